/* Unpacks by libarchive: only tar, within bounds, and only what hwloc reads.
 *
 * libarchive refuses to write through a link, to an absolute name and to a name with "..". Links are written
 * as they are and checked at the end, because a link may lead through other links. */
#include "topo/import/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10, FILE_BYTES = 16 << 20 };

bool tsr_unpack_is_archive(const char *text, size_t bytes)
{
    static const struct {
        size_t at, length;
        const char *magic;
    } kinds[] = {{0, 3, "BZh"},
                 {0, 2, "\x1f\x8b"},
                 {0, 5, "\xfd\x37zXZ"},
                 {0, 4, "\x28\xb5\x2f\xfd"},
                 {257, 5, "ustar"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (bytes >= kinds[i].at + kinds[i].length &&
            memcmp(text + kinds[i].at, kinds[i].magic, kinds[i].length) == 0)
            return true;
    return false;
}

static tsr_status damaged(const char *path, struct archive *from)
{
    return tsr_fail(
        TSR_ERR_FORMAT,
        "archive '%s' is damaged or no tar archive (%s); pack it again, or unpack it and name the "
        "directory",
        path, archive_error_string(from));
}

/* A libarchive that was built without the library of a compression would start a program instead. */
static tsr_status open_archive(const char *path, struct archive *from)
{
    int codes[] = {archive_read_support_format_tar(from),
                   archive_zlib_version() ? archive_read_support_filter_gzip(from) : ARCHIVE_OK,
                   archive_bzlib_version() ? archive_read_support_filter_bzip2(from) : ARCHIVE_OK,
                   archive_liblzma_version() ? archive_read_support_filter_xz(from) : ARCHIVE_OK,
                   archive_libzstd_version() ? archive_read_support_filter_zstd(from) : ARCHIVE_OK};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] != ARCHIVE_OK)
            return tsr_fail(TSR_ERR_MEMORY, "archive '%s': %s", path, archive_error_string(from));
    return archive_read_open_filename(from, path, READ_BYTES) == ARCHIVE_OK ? TSR_OK : damaged(path, from);
}

/* Whether hwloc reads the entry: sys/ and proc/ at the top or one level down. */
static bool is_wanted(const char *name)
{
    for (int level = 0; level < 2 && name; level++) {
        while (strncmp(name, "./", 2) == 0 || *name == '/')
            name += *name == '/' ? 1 : 2;
        if (strncmp(name, "sys/", 4) == 0 || strncmp(name, "proc/", 5) == 0)
            return true;
        name = strchr(name, '/');
    }
    return false;
}

/* The sizes are those that the entry claims, and bound what is read for it. */
static tsr_status check_entry(const char *path, struct archive *from, struct archive_entry *entry,
                              bool *wanted_out)
{
    mode_t type = archive_entry_filetype(entry);
    const char *name = archive_entry_pathname(entry);
    int64_t size = archive_entry_size(entry);
    if (archive_file_count(from) > TSR_UNPACK_ENTRIES)
        return tsr_fail(TSR_ERR_FORMAT,
                        "archive '%s' has more than %d entries; unpack it and name the directory", path,
                        TSR_UNPACK_ENTRIES);
    if (size > TSR_UNPACK_BYTES - archive_filter_bytes(from, 0))
        return tsr_fail(TSR_ERR_FORMAT,
                        "archive '%s' unpacks to more than %d MiB; unpack it and name the directory", path,
                        TSR_UNPACK_BYTES >> 20);
    *wanted_out = is_wanted(name);
    if (!*wanted_out)
        return TSR_OK;
    if (archive_entry_hardlink(entry) || (type != AE_IFREG && type != AE_IFDIR && type != AE_IFLNK))
        return tsr_fail(TSR_ERR_FORMAT,
                        "archive '%s': entry '%.200s' is no file, directory or symbolic link; unpack it and "
                        "name the directory",
                        path, name);
    if (type == AE_IFREG && size > FILE_BYTES)
        return tsr_fail(TSR_ERR_FORMAT, "archive '%s': file '%.200s' of %lld bytes is too large for /sys",
                        path, name, (long long)size);
    return TSR_OK;
}

static tsr_status unpack_entry(const char *path, struct archive *from, struct archive *to,
                               struct archive_entry *entry)
{
    bool wanted;
    tsr_status status = check_entry(path, from, entry, &wanted);
    if (status != TSR_OK || !wanted)
        return status;
    archive_entry_set_perm(entry, archive_entry_filetype(entry) == AE_IFDIR ? 0700 : 0600);
    if (archive_read_extract2(from, entry, to) != ARCHIVE_OK)
        return tsr_fail(TSR_ERR_FORMAT, "archive '%s': cannot unpack '%.200s': %s", path,
                        archive_entry_pathname(entry), archive_error_string(from));
    return TSR_OK;
}

/* Into the working directory. */
static tsr_status unpack_all(const char *path, struct archive *from, struct archive *to)
{
    tsr_status status = TSR_OK;
    struct archive_entry *entry;
    int code = ARCHIVE_OK;
    while ((code = archive_read_next_header(from, &entry)) == ARCHIVE_OK || code == ARCHIVE_WARN)
        TSR_TRY(unpack_entry(path, from, to, entry));
    if (code != ARCHIVE_EOF)
        status = damaged(path, from);
out:
    return status;
}

static tsr_status unpack(const char *path, const char *folder)
{
    struct archive *from = archive_read_new(), *to = archive_write_disk_new();
    tsr_status status = TSR_OK;
    if (!from || !to) {
        status = tsr_fail(TSR_ERR_MEMORY, "out of memory for the reader of archive '%s'", path);
        goto out;
    }
    archive_write_disk_set_options(to, ARCHIVE_EXTRACT_SECURE_SYMLINKS | ARCHIVE_EXTRACT_SECURE_NODOTDOT |
                                           ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS);
    TSR_TRY(open_archive(path, from));
    if (chdir(folder) != 0) {
        status = tsr_fail(TSR_ERR_IO, "cannot enter '%s' to unpack '%s': %s", folder, path, strerror(errno));
        goto out;
    }
    TSR_TRY(unpack_all(path, from, to));
out:
    archive_read_free(from);
    archive_write_free(to);
    return status;
}

/* -- the tree -- */

/* A link out of the folder would read this machine's files as the archive's. */
static tsr_status check_links(const char *path, const char *folder)
{
    tsr_status status = TSR_OK;
    char base[PATH_MAX], target[PATH_MAX];
    char *const roots[] = {base, NULL};
    FTS *tree = realpath(folder, base) ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    if (!tree)
        return tsr_fail(TSR_ERR_IO, "cannot read the contents of '%s': %s", path, strerror(errno));
    size_t length = strlen(base);
    for (FTSENT *entry; status == TSR_OK && (entry = fts_read(tree)) != NULL;) {
        bool is_link = entry->fts_info == FTS_SL || entry->fts_info == FTS_SLNONE;
        if (is_link && realpath(entry->fts_path, target) &&
            (strncmp(target, base, length) != 0 || (target[length] && target[length] != '/')))
            status = tsr_fail(TSR_ERR_FORMAT, "archive '%s': link '%.200s' leads out of the archive", path,
                              entry->fts_path + length + 1);
    }
    fts_close(tree);
    return status;
}

static bool is_root(const char *folder)
{
    char probe[TSR_UNPACK_PATH_BYTES];
    int used = snprintf(probe, sizeof probe, "%s/sys/devices/system/cpu", folder);
    return used > 0 && (size_t)used < sizeof probe && access(probe, R_OK) == 0;
}

/* The folder itself or one of its subfolders. */
static bool find_root(const char *folder, char root[TSR_UNPACK_PATH_BYTES])
{
    bool found = is_root(folder);
    snprintf(root, TSR_UNPACK_PATH_BYTES, "%s", folder);
    DIR *listing = found ? NULL : opendir(folder);
    for (struct dirent *entry; listing && !found && (entry = readdir(listing)) != NULL;) {
        int used = snprintf(root, TSR_UNPACK_PATH_BYTES, "%s/%s", folder, entry->d_name);
        found = entry->d_name[0] != '.' && used > 0 && used < TSR_UNPACK_PATH_BYTES && is_root(root);
    }
    if (listing)
        closedir(listing);
    return found;
}

tsr_status tsr_unpack_root(const char *path, const char *folder, char root_out[TSR_UNPACK_PATH_BYTES])
{
    tsr_status status = TSR_OK;
    TSR_TRY(unpack(path, folder));
    TSR_TRY(check_links(path, folder));
    if (!find_root(folder, root_out))
        status = tsr_fail(TSR_ERR_FORMAT,
                          "archive '%s' does not contain sys/devices/system/cpu; give one that "
                          "hwloc-gather-topology wrote",
                          path);
out:
    return status;
}
