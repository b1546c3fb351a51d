/* An archive of a Linux root directory, as written by hwloc-gather-topology: unpacked and read in a child
 * process (child.c, unpack.c), in a temporary folder.
 *
 * hwloc reads a tree from a file system only, so the folder cannot be avoided. A second process makes the
 * folder, and removes it once this one says so or is gone, however it ended: Ctrl-C and kill leave nothing
 * behind. */
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

/* An archive has ten thousand files of a few bytes: immediate in a memory file system, up to a minute on a
 * disk. */
static const char *temporary_folder(void)
{
    const char *named = getenv("TMPDIR");
    if (named && *named)
        return named;
    return access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

/* What the remover answers: the folder that it made, or the reason why it could not. */
struct made {
    int error;
    char folder[TSR_UNPACK_PATH_BYTES];
};

/* Make the folder, wait for a byte or the end of the caller, and remove the folder. The signals of a terminal
 * are ignored before there is a folder. A few tries, since a process that writes to the folder may be killed
 * at the same time. */
static void remover_main(int lifeline, struct made *made)
{
    char byte;
    tsr_topo_ignore_terminal();
    made->error = mkdtemp(made->folder) ? 0 : errno;
    (void)send(lifeline, made, sizeof *made, MSG_NOSIGNAL);
    while (read(lifeline, &byte, 1) < 0 && errno == EINTR)
        ;
    for (int tries = 0; tries < 100 && access(made->folder, F_OK) == 0; tries++) {
        if (nftw(made->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
            (void)usleep(10 * 1000);
    }
    _exit(0);
}

static void wait_for(pid_t child)
{
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* Start the process that makes the folder, and removes it once *lifeline_out has a byte or is closed. */
static tsr_status start_remover(struct made *made, int *lifeline_out, pid_t *remover_out)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return tsr_fail(TSR_ERR_IO, "cannot create a socket to remove '%s': %s", made->folder,
                        strerror(errno));
    pid_t remover = fork();
    if (remover == 0) {
        close(ends[1]);
        remover_main(ends[0], made);
    }
    made->error = errno;
    close(ends[0]);
    ssize_t got = 0;
    while (remover > 0 && (got = recv(ends[1], made, sizeof *made, MSG_WAITALL)) < 0 && errno == EINTR)
        ;
    if (remover > 0 && got != (ssize_t)sizeof *made)
        made->error = ECHILD; /* killed */
    if (remover < 0 || made->error) {
        close(ends[1]);
        wait_for(remover);
        return tsr_fail(TSR_ERR_IO,
                        "cannot create a temporary folder in '%s': %s; set TMPDIR to another place",
                        temporary_folder(), strerror(made->error));
    }
    *lifeline_out = ends[1];
    *remover_out = remover;
    return TSR_OK;
}

tsr_status tsr_topo_read_archive(const char *path, int deadline_ms, tsr_topology **topo_out)
{
    struct made made = {0};
    int lifeline;
    pid_t remover;
    int used = snprintf(made.folder, sizeof made.folder, "%s/tsr-machine-XXXXXX", temporary_folder());
    if (used < 0 || (size_t)used >= sizeof made.folder)
        return tsr_fail(TSR_ERR_IO,
                        "the name of the temporary folder TMPDIR has %d bytes, which are too many", used);
    tsr_status status = start_remover(&made, &lifeline, &remover);
    if (status != TSR_OK)
        return status;
    tsr_topo_source source = {
        .kind = TSR_TOPO_ARCHIVE, .text = made.folder, .name = path, .deadline_ms = deadline_ms};
    status = tsr_topo_read_in_child(&source, topo_out);
    (void)send(lifeline, "", 1, MSG_NOSIGNAL); /* a process that another thread forked may hold it open */
    close(lifeline);
    wait_for(remover);
    return status;
}
