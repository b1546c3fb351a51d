/* A reader of tar archives: ustar, with the long names of GNU and POSIX.
 *
 * Not the tar command: it takes a name with a colon for another machine, is steered by variables, extracts
 * all that an archive has, and bounds neither the bytes nor the number of files. Only decompression is left
 * to a program, which reads the file from a descriptor and is stopped once it has written enough.
 *
 * Each directory on the way to a file is opened without following links, and no file is written twice, so
 * nothing is written outside of the folder. Links are made as they are and checked at the end. */
#include "topo/import/unpack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"

enum { BLOCK = 512, META_BYTES = 1 << 16, FILE_BYTES = 16 << 20 };

struct archive {
    const char *path, *program; /* program "": not compressed */
    int fd, folder;
    pid_t child;   /* of the program; 0: none */
    size_t bytes;  /* read so far */
    int n_entries; /* seen so far */
    bool at_end;   /* of the file or of the program's output */
    char name[TSR_UNPACK_PATH_BYTES], link[TSR_UNPACK_PATH_BYTES]; /* of the current entry */
    uint64_t size;                                                 /* of its content */
    char type;
};

const char *tsr_unpack_program(const char *text, size_t bytes)
{
    static const struct {
        const char *magic;
        size_t length;
        const char *program;
    } kinds[] = {{"BZh", 3, "bzip2"},
                 {"\x1f\x8b", 2, "gzip"},
                 {"\xfd\x37zXZ", 5, "xz"},
                 {"\x28\xb5\x2f\xfd", 4, "zstd"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (bytes >= kinds[i].length && memcmp(text, kinds[i].magic, kinds[i].length) == 0)
            return kinds[i].program;
    return bytes > BLOCK && memcmp(text + 257, "ustar", 5) == 0 ? "" : NULL;
}

static tsr_status damaged(const struct archive *a, const char *what)
{
    return tsr_fail(TSR_ERR_FORMAT, "archive '%s' %s; pack it again, or unpack it and name the directory",
                    a->path, what);
}

/* -- the bytes -- */

/* In the program's process. Its environment is empty but for the search path: variables such as XZ_OPT give
 * options. */
static void become_program(const struct archive *a, int output)
{
    char path[TSR_UNPACK_PATH_BYTES];
    const char *search = getenv("PATH");
    char *const arguments[] = {(char *)a->program, "-dc", NULL};
    char *const environment[] = {path, NULL};
    snprintf(path, sizeof path, "PATH=%s", search ? search : "/usr/bin:/bin");
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(a->fd, STDIN_FILENO);
    (void)dup2(output, STDOUT_FILENO);
    (void)execvpe(a->program, arguments, environment);
    _exit(127);
}

static tsr_status open_archive(struct archive *a)
{
    char text[2 * BLOCK] = "";
    int ends[2];
    a->fd = open(a->path, O_RDONLY | O_CLOEXEC);
    ssize_t got = a->fd >= 0 ? pread(a->fd, text, sizeof text - 1, 0) : -1;
    if (got < 0)
        return tsr_fail(TSR_ERR_IO, "cannot read archive '%s': %s", a->path, strerror(errno));
    a->program = tsr_unpack_program(text, (size_t)got);
    if (!a->program)
        return damaged(a, "has changed while it was read");
    if (!*a->program)
        return TSR_OK;
    a->child = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
    if (a->child == 0)
        become_program(a, ends[1]);
    if (a->child < 0)
        return tsr_fail(TSR_ERR_IO, "cannot start %s for archive '%s': %s", a->program, a->path,
                        strerror(errno));
    close(ends[1]);
    close(a->fd);
    a->fd = ends[0];
    return TSR_OK;
}

/* Fewer than `bytes` bytes only at the end. */
static tsr_status read_some(struct archive *a, char *to, size_t bytes, size_t *got_out)
{
    size_t used = 0;
    while (used < bytes && !a->at_end) {
        ssize_t got = read(a->fd, to + used, bytes - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tsr_fail(TSR_ERR_IO, "cannot read archive '%s': %s", a->path, strerror(errno));
        a->at_end = got == 0;
        used += (size_t)got;
        a->bytes += (size_t)got;
        if (a->bytes > TSR_UNPACK_BYTES)
            return tsr_fail(TSR_ERR_FORMAT,
                            "archive '%s' unpacks to more than %d MiB; unpack it and name the directory",
                            a->path, TSR_UNPACK_BYTES >> 20);
    }
    *got_out = used;
    return TSR_OK;
}

static tsr_status read_exactly(struct archive *a, char *to, size_t bytes)
{
    size_t got;
    tsr_status status = read_some(a, to, bytes, &got);
    return status == TSR_OK && got < bytes ? damaged(a, "is cut off") : status;
}

/* The program has to be content, too: it finds errors that a tar archive does not show. */
static tsr_status read_to_the_end(struct archive *a)
{
    tsr_status status = TSR_OK;
    char rest[BLOCK * 16];
    size_t got;
    int code = 0;
    do
        TSR_TRY(read_some(a, rest, sizeof rest, &got));
    while (got == sizeof rest);
    while (a->child && waitpid(a->child, &code, 0) < 0 && errno == EINTR)
        ;
    a->child = 0;
    if (code != 0)
        status = damaged(a, "is damaged");
out:
    return status;
}

/* A program that fails ends its output early, so the end of the archive says why. */
static tsr_status close_archive(struct archive *a, tsr_status status)
{
    int code = 0;
    if (a->fd >= 0)
        close(a->fd);
    if (a->child > 0 && a->at_end && waitpid(a->child, &code, 0) == a->child) {
        if (WIFEXITED(code) && WEXITSTATUS(code) == 127)
            return tsr_fail(TSR_ERR_UNSUPPORTED,
                            "archive '%s' needs the command %s, which is not installed; install it, or "
                            "unpack the archive and name the directory",
                            a->path, a->program);
    } else if (a->child > 0) {
        (void)kill(a->child, SIGKILL);
        (void)waitpid(a->child, NULL, 0);
    }
    return status;
}

/* -- headers -- */

/* Octal digits, or a big-endian number after a set highest bit. */
static uint64_t number_of(const char *field, size_t length)
{
    uint64_t value = 0;
    bool binary = field[0] & (char)0x80;
    for (size_t i = binary; i < length; i++) {
        unsigned char c = (unsigned char)field[i];
        if (value >> 55 || (!binary && c != ' ' && (c < '0' || c > '7')))
            break;
        value = binary ? value << 8 | c : c == ' ' ? value : value << 3 | (unsigned)(c - '0');
    }
    return value;
}

static bool checksum_holds(const char header[BLOCK])
{
    uint64_t sum = 8 * ' ';
    for (int i = 0; i < BLOCK; i++)
        sum += i < 148 || i >= 156 ? (unsigned char)header[i] : 0;
    return sum == number_of(header + 148, 8);
}

/* The records "LENGTH KEY=VALUE\n" of a POSIX header. */
static tsr_status take_records(struct archive *a, const char *text, char *name, char *link)
{
    while (*text) {
        char *rest;
        unsigned long length = strtoul(text, &rest, 10);
        const char *end = length <= strlen(text) ? text + length : rest;
        if (*rest != ' ' || end <= rest + 1 || end[-1] != '\n')
            return damaged(a, "has a malformed header");
        char *to = strncmp(rest, " path=", 6) == 0        ? name
                   : strncmp(rest, " linkpath=", 10) == 0 ? link
                                                          : NULL;
        const char *value = strchr(rest, '=');
        if (strncmp(rest, " size=", 6) == 0 || strncmp(rest, " GNU.sparse", 11) == 0)
            return damaged(a, "has a huge or sparse file");
        if (to && value && end - value <= TSR_UNPACK_PATH_BYTES)
            snprintf(to, TSR_UNPACK_PATH_BYTES, "%.*s", (int)(end - value) - 2, value + 1);
        text = end;
    }
    return TSR_OK;
}

/* Content that describes the next entry: a long name of GNU's, or records. */
static tsr_status take_meta(struct archive *a, char *name, char *link)
{
    tsr_status status = TSR_OK;
    char *text = NULL;
    if (a->size >= META_BYTES)
        return damaged(a, "has a malformed header");
    TSR_TRY(tsr_mem_array(a->size + 2 * BLOCK, 1, "the header of an archive", &text));
    TSR_TRY(read_exactly(a, text, (a->size + BLOCK - 1) / BLOCK * BLOCK));
    text[a->size] = '\0';
    if (a->type == 'x')
        TSR_TRY(take_records(a, text, name, link));
    else if (a->type != 'g')
        snprintf(a->type == 'K' ? link : name, TSR_UNPACK_PATH_BYTES, "%s", text);
out:
    tsr_mem_free(text);
    return status;
}

/* The next entry that is not about another one. *found_out: false at the end. */
static tsr_status next_entry(struct archive *a, bool *found_out)
{
    tsr_status status = TSR_OK;
    char h[BLOCK], name[TSR_UNPACK_PATH_BYTES] = "", link[TSR_UNPACK_PATH_BYTES] = "";
    static const char zeros[BLOCK];
    *found_out = false;
    do {
        TSR_TRY(read_exactly(a, h, BLOCK));
        if (memcmp(h, zeros, BLOCK) == 0)
            goto out;
        if (!checksum_holds(h)) {
            status = damaged(a, "is not a tar archive, or is damaged");
            goto out;
        }
        if (++a->n_entries > TSR_UNPACK_ENTRIES) {
            status = tsr_fail(TSR_ERR_FORMAT,
                              "archive '%s' has more than %d entries; unpack it and name the directory",
                              a->path, TSR_UNPACK_ENTRIES);
            goto out;
        }
        a->size = number_of(h + 124, 12);
        a->type = h[156];
        if (a->type && strchr("xgLK", a->type))
            TSR_TRY(take_meta(a, name, link));
    } while (a->type && strchr("xgLK", a->type));
    bool has_prefix = memcmp(h + 257, "ustar", 6) == 0 && h[345];
    if (*name)
        memcpy(a->name, name, sizeof name);
    else
        snprintf(a->name, sizeof a->name, "%.155s%s%.100s", has_prefix ? h + 345 : "", has_prefix ? "/" : "",
                 h);
    if (*link)
        memcpy(a->link, link, sizeof link);
    else
        snprintf(a->link, sizeof a->link, "%.100s", h + 157);
    if (a->type == '\0' && *a->name && a->name[strlen(a->name) - 1] == '/')
        a->type = '5';
    *found_out = true;
out:
    return status;
}

/* -- files -- */

/* Cut the name into its parts, "a/./b" into "a", "b". -1 if there is a "..", or the name is absolute or too
 * deep. */
static int cut(char *name, char *parts[], int most)
{
    int n = 0;
    if (*name == '/')
        return -1;
    for (char *rest = NULL, *part = strtok_r(name, "/", &rest); part; part = strtok_r(NULL, "/", &rest)) {
        if (strcmp(part, ".") == 0)
            continue;
        if (n == most || strcmp(part, "..") == 0)
            return -1;
        parts[n++] = part;
    }
    return n;
}

static bool is_wanted(char *const parts[], int n)
{
    for (int i = 0; i < 2 && i < n; i++)
        if (strcmp(parts[i], "sys") == 0 || strcmp(parts[i], "proc") == 0)
            return true;
    return false;
}

/* The directory of all parts but the last, made where it is missing; -1 and errno. */
static int open_parent(int folder, char *const parts[], int n)
{
    int at = dup(folder);
    for (int i = 0; i + 1 < n && at >= 0; i++) {
        int above = at;
        if (mkdirat(above, parts[i], 0700) < 0 && errno != EEXIST)
            at = -1;
        else
            at = openat(above, parts[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(above);
    }
    return at;
}

/* Read the content; to >= 0: write it there. */
static tsr_status copy_content(struct archive *a, int to)
{
    tsr_status status = TSR_OK;
    char block[BLOCK];
    for (uint64_t left = a->size; left > 0; left -= TSR_MIN(left, (uint64_t)BLOCK)) {
        size_t bytes = (size_t)TSR_MIN(left, (uint64_t)BLOCK);
        TSR_TRY(read_exactly(a, block, BLOCK));
        if (to >= 0 && write(to, block, bytes) != (ssize_t)bytes) {
            status = tsr_fail(TSR_ERR_IO, "cannot unpack archive '%s': %s; set TMPDIR to a folder with space",
                              a->path, strerror(errno ? errno : ENOSPC));
            goto out;
        }
    }
out:
    return status;
}

static tsr_status unpack_entry(struct archive *a)
{
    enum { MOST_PARTS = 64 };
    tsr_status status = TSR_OK;
    char copy[TSR_UNPACK_PATH_BYTES], *parts[MOST_PARTS];
    memcpy(copy, a->name, sizeof copy);
    int n = cut(copy, parts, MOST_PARTS), parent = -1, made = -1;
    bool is_file = a->type == '0' || a->type == '\0' || a->type == '7';
    if (n < 0)
        return tsr_fail(TSR_ERR_FORMAT, "archive '%s': entry '%.200s' leads out of the archive", a->path,
                        a->name);
    if (!is_wanted(parts, n))
        return copy_content(a, -1);
    if (!is_file && a->type != '5' && a->type != '2')
        return tsr_fail(TSR_ERR_FORMAT,
                        "archive '%s': entry '%.200s' is no file, directory or symbolic link; unpack it and "
                        "name the directory",
                        a->path, a->name);
    if (is_file && a->size > FILE_BYTES)
        return tsr_fail(TSR_ERR_FORMAT, "archive '%s': file '%.200s' of %llu bytes is too large for /sys",
                        a->path, a->name, (unsigned long long)a->size);
    errno = 0;
    parent = open_parent(a->folder, parts, n);
    if (parent >= 0)
        made = is_file          ? openat(parent, parts[n - 1], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
               : a->type == '2' ? symlinkat(a->link, parent, parts[n - 1])
                                : mkdirat(parent, parts[n - 1], 0700);
    if (made < 0 && !(a->type == '5' && errno == EEXIST)) {
        status = tsr_fail(TSR_ERR_FORMAT, "archive '%s': cannot unpack '%.200s': %s", a->path, a->name,
                          strerror(errno));
        goto out;
    }
    TSR_TRY(copy_content(a, is_file ? made : -1));
out:
    if (is_file && made >= 0)
        close(made);
    if (parent >= 0)
        close(parent);
    return status;
}

static tsr_status unpack(const char *path, const char *folder)
{
    tsr_status status = TSR_OK;
    struct archive a = {.path = path, .fd = -1};
    bool found = true;
    a.folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (a.folder < 0)
        return tsr_fail(TSR_ERR_IO, "cannot open '%s' to unpack '%s': %s", folder, path, strerror(errno));
    TSR_TRY(open_archive(&a));
    for (;;) {
        TSR_TRY(next_entry(&a, &found));
        if (!found)
            break;
        TSR_TRY(unpack_entry(&a));
    }
    TSR_TRY(read_to_the_end(&a));
out:
    close(a.folder);
    return close_archive(&a, status);
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
