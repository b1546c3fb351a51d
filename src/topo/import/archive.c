/* An archive of a Linux root directory, as written by hwloc-gather-topology: unpacked and read in a child
 * process (child.c, unpack.c), in a temporary folder.
 *
 * hwloc reads a tree from a file system only, so the folder cannot be avoided. A second process removes the
 * folder, once this one says so or is gone, however it ended: Ctrl-C and kill leave nothing behind. */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "topo/import/machine_file.h"
#include "topo/import/unpack.h"

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

/* Wait for a byte or the end of the caller, and remove the folder. A few tries, since a process that writes
 * to it may be killed at the same time. */
static void remover_main(int lifeline, const char *folder)
{
    char byte;
    tsr_topo_ignore_terminal();
    while (read(lifeline, &byte, 1) < 0 && errno == EINTR)
        ;
    for (int tries = 0; tries < 100 && access(folder, F_OK) == 0; tries++) {
        if (nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
            (void)usleep(10 * 1000);
    }
    _exit(0);
}

/* Start the process that removes the folder once *lifeline_out has a byte for it, or is closed. */
static tsr_status start_remover(const char *folder, int *lifeline_out, pid_t *remover_out)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return tsr_fail(TSR_ERR_IO, "cannot create a socket to remove '%s': %s", folder, strerror(errno));
    pid_t remover = fork();
    if (remover == 0) {
        close(ends[1]);
        remover_main(ends[0], folder);
    }
    close(ends[0]);
    if (remover < 0) {
        close(ends[1]);
        return tsr_fail(TSR_ERR_IO, "cannot start a process to remove '%s': %s", folder, strerror(errno));
    }
    *lifeline_out = ends[1];
    *remover_out = remover;
    return TSR_OK;
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

tsr_status tsr_topo_read_archive(const char *path, int deadline_ms, tsr_topology **topo_out)
{
    char folder[TSR_UNPACK_PATH_BYTES];
    int lifeline;
    pid_t remover;
    int used = snprintf(folder, sizeof folder, "%s/tsr-machine-XXXXXX", temporary_folder());
    if (used < 0 || (size_t)used >= sizeof folder || !mkdtemp(folder))
        return tsr_fail(TSR_ERR_IO, "cannot create a temporary folder to unpack '%s': %s", path,
                        strerror(errno));
    tsr_status status = start_remover(folder, &lifeline, &remover);
    if (status != TSR_OK) {
        (void)rmdir(folder);
        return status;
    }
    tsr_topo_source source = {
        .kind = TSR_TOPO_ARCHIVE, .text = folder, .name = path, .deadline_ms = deadline_ms};
    status = tsr_topo_read_in_child(&source, topo_out);
    (void)send(lifeline, "", 1, MSG_NOSIGNAL); /* a process that another thread forked may hold it open */
    close(lifeline);
    while (waitpid(remover, NULL, 0) < 0 && errno == EINTR)
        ;
    return status;
}
