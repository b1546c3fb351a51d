/* An archive of a Linux root directory, as written by hwloc-gather-topology. It is unpacked by tar, read
 * and removed.
 *
 * The tar command is used instead of a library: such archives are rare, and tar supports every installed
 * compression. tar keeps all files inside the given folder; limits on its time and on the size of each
 * file keep a hostile archive from filling the disk. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"
#include "topo/import/machine_file.h"

enum { PATH_BYTES = 4096 };

extern char **environ;

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The shell sets the limits: 20 s of processor time and 64 MiB per file (131072 blocks of 512 bytes). */
static tsr_status unpack(const char *path, const char *folder)
{
    static const char script[] =
        "ulimit -t 20 -f 131072 2>/dev/null; exec tar -xf \"$1\" -C \"$2\" --no-same-owner "
        "--no-same-permissions";
    char *const argv[] = {"sh", "-c", (char *)script, "sh", (char *)path, (char *)folder, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int code = 0;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for unpacking '%s'", path);
    int error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && !error; fd++)
        error = posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
    if (!error)
        error = posix_spawn(&child, "/bin/sh", &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (error)
        return tsr_fail(TSR_ERR_IO, "cannot start a process to unpack '%s': %s", path, strerror(error));
    while (waitpid(child, &code, 0) < 0)
        if (errno != EINTR)
            return tsr_fail(TSR_ERR_IO, "cannot wait for the unpacking of '%s': %s", path, strerror(errno));
    if (WIFEXITED(code) && WEXITSTATUS(code) == 127)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "'%s' is an archive and there is no tar command; unpack it and name the "
                        "directory",
                        path);
    if (code != 0)
        return tsr_fail(TSR_ERR_FORMAT, "tar cannot unpack '%s'; unpack it elsewhere and name the directory",
                        path);
    return TSR_OK;
}

/* A link out of the folder would read this machine's files as the archive's. */
static tsr_status check_links(const char *path, char *folder)
{
    tsr_status status = TSR_OK;
    char base[PATH_MAX], target[PATH_MAX];
    char *const roots[] = {folder, NULL};
    FTS *tree = realpath(folder, base) ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    if (!tree)
        return tsr_fail(TSR_ERR_IO, "cannot read the contents of '%s': %s", path, strerror(errno));
    for (FTSENT *entry; status == TSR_OK && (entry = fts_read(tree)) != NULL;) {
        bool is_link = entry->fts_info == FTS_SL || entry->fts_info == FTS_SLNONE;
        size_t length = strlen(base);
        if (is_link && realpath(entry->fts_path, target) &&
            (strncmp(target, base, length) != 0 || (target[length] && target[length] != '/')))
            status = tsr_fail(TSR_ERR_FORMAT, "archive '%s': link '%.200s' leads out of the archive", path,
                              entry->fts_path + strlen(folder) + 1);
    }
    fts_close(tree);
    return status;
}

static bool is_root(const char *folder)
{
    char probe[PATH_BYTES];
    int used = snprintf(probe, sizeof probe, "%s/sys/devices/system/cpu", folder);
    return used > 0 && (size_t)used < sizeof probe && access(probe, R_OK) == 0;
}

/* Find the root: the folder itself or one of its subfolders. */
static bool find_root(const char *folder, char root[PATH_BYTES])
{
    bool found = is_root(folder);
    snprintf(root, PATH_BYTES, "%s", folder);
    DIR *listing = found ? NULL : opendir(folder);
    for (struct dirent *entry; listing && !found && (entry = readdir(listing)) != NULL;) {
        int used = snprintf(root, PATH_BYTES, "%s/%s", folder, entry->d_name);
        found = entry->d_name[0] != '.' && used > 0 && used < PATH_BYTES && is_root(root);
    }
    if (listing)
        closedir(listing);
    return found;
}

/* An archive has ten thousand files of a few bytes: immediate in a memory file system, up to a minute on a
 * disk. */
static const char *temporary_folder(void)
{
    const char *named = getenv("TMPDIR");
    if (named && *named)
        return named;
    return access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

tsr_status tsr_topo_read_archive(const char *path, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    char folder[PATH_BYTES], root[PATH_BYTES];
    int used = snprintf(folder, sizeof folder, "%s/tsr-machine-XXXXXX", temporary_folder());
    if (used < 0 || (size_t)used >= sizeof folder || !mkdtemp(folder))
        return tsr_fail(TSR_ERR_IO, "cannot create a temporary folder to unpack '%s': %s", path,
                        strerror(errno));
    TSR_TRY(unpack(path, folder));
    TSR_TRY(check_links(path, folder));
    if (!find_root(folder, root)) {
        status = tsr_fail(TSR_ERR_FORMAT,
                          "archive '%s' does not contain sys/devices/system/cpu; give one that "
                          "hwloc-gather-topology wrote",
                          path);
        goto out;
    }
    TSR_TRY(tsr_topo_read_in_child(TSR_TOPO_ROOT_DIR, root, strlen(root), path, topo_out));
out:
    remove_tree(folder);
    return status;
}
