/* One process of an MPI job; see processes.h. */
#include "processes.h"

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifdef TSR_TOOL_WITH_MPI
#include <tsr/mpi.h>
#else
static const char *tsr_mpi_transport_create(const void *mpi_comm, tsr_transport **transport_out)
{
    (void)mpi_comm, (void)transport_out;
    return "this tsr was built without MPI; install one (Debian: libopenmpi-dev) and build it again";
}

static const char *tsr_mpi_transport_create_surviving(const void *mpi_comm, tsr_transport **transport_out)
{
    return tsr_mpi_transport_create(mpi_comm, transport_out);
}

static void tsr_mpi_transport_destroy(tsr_transport *transport)
{
    (void)transport;
}
#endif

static int silenced = -1; /* stderr of a process that is silent */

/* All processes would write the same text and tables; warnings differ. */
static bool fall_silent(FILE **log_out)
{
    const int own = silenced = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    *log_out = own >= 0 ? fdopen(own, "w") : NULL;
    return *log_out && freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr);
}

bool tool_processes_join(const char *command, tool_joining joining, tool_processes *processes_out)
{
    *processes_out = (tool_processes){.command = command};
    if (joining == TOOL_ALONE)
        return true;
    const char *problem = joining == TOOL_SURVIVING
                              ? tsr_mpi_transport_create_surviving(NULL, &processes_out->transport)
                              : tsr_mpi_transport_create(NULL, &processes_out->transport);
    if (!problem && processes_out->transport->rank > 0 && !fall_silent(&processes_out->log))
        problem = "cannot open /dev/null";
    if (!problem)
        return true;
    fprintf(stderr, "tsr %s: --mpi: %s\n", command, problem);
    tool_processes_leave(processes_out);
    return false;
}

void tool_processes_leave_out(tool_processes *processes, int rank)
{
    processes->gone |= UINT64_C(1) << rank;
}

static bool is_gone(const tool_processes *processes, int rank)
{
    return processes->gone >> rank & 1;
}

void tool_processes_speak(void)
{
    if (silenced >= 0)
        dup2(silenced, fileno(stderr));
}

int tool_processes_count(const tool_processes *processes)
{
    return processes->transport ? processes->transport->n_ranks : 1;
}

int tool_processes_rank(const tool_processes *processes)
{
    return processes->transport ? processes->transport->rank : 0;
}

bool tool_processes_is_first(const tool_processes *processes)
{
    return tool_processes_rank(processes) == 0;
}

/* The other process may wait for a terminal, so long waits sleep. */
static const char *wait_for(const tsr_transport *t, tsr_transfer *transfer)
{
    enum { YIELDS = 100000 };
    const struct timespec nap = {0, 1000000};
    bool done = false;
    const char *problem = t->test(t->user, transfer, &done);
    for (int i = 0; !done && !problem; i += i < YIELDS) {
        if (i < YIELDS)
            sched_yield();
        else
            nanosleep(&nap, NULL);
        problem = t->test(t->user, transfer, &done);
    }
    return problem;
}

/* Messages of a pair of processes arrive in order, so they need no tags. */
static const char *send_to(const tsr_transport *t, int rank, const void *bytes, size_t n)
{
    tsr_transfer transfer;
    const char *problem = t->send(t->user, rank, 0, bytes, n, &transfer);
    return problem ? problem : wait_for(t, &transfer);
}

static const char *receive_from(const tsr_transport *t, int rank, void *bytes, size_t n)
{
    tsr_transfer transfer;
    const char *problem = t->receive(t->user, rank, 0, bytes, n, &transfer);
    return problem ? problem : wait_for(t, &transfer);
}

bool tool_processes_share(const tool_processes *processes, int root, void *bytes, size_t n)
{
    const tsr_transport *t = processes->transport;
    const char *problem = NULL;
    if (t && t->rank != root && !is_gone(processes, root))
        problem = receive_from(t, root, bytes, n);
    for (int rank = 0; t && t->rank == root && rank < t->n_ranks && !problem; rank++)
        if (rank != root && !is_gone(processes, rank))
            problem = send_to(t, rank, bytes, n);
    if (problem)
        fprintf(processes->log ? processes->log : stderr, "tsr %s: --mpi: %s\n", processes->command, problem);
    return !problem;
}

bool tool_processes_gather(const tool_processes *processes, void *parts, size_t n)
{
    bool good = true;
    for (int root = 0; root < tool_processes_count(processes) && good; root++)
        good = tool_processes_share(processes, root, (char *)parts + (size_t)root * n, n);
    return good;
}

bool tool_processes_share_text(const tool_processes *processes, int *outcome, char **text, size_t *n)
{
    struct {
        uint64_t bytes;
        int32_t outcome, is_there;
    } head = {*text ? *n : 0, *outcome, *text != NULL};
    if (!processes->transport)
        return true;
    if (!tool_processes_share(processes, 0, &head, sizeof head))
        return false;
    *outcome = head.outcome;
    if (!tool_processes_is_first(processes)) {
        free(*text);
        *text = head.is_there ? malloc((size_t)head.bytes + 1) : NULL;
        *n = head.is_there ? (size_t)head.bytes : 0;
        if (head.is_there && !*text) {
            fprintf(processes->log, "tsr %s: out of memory for a text of %zu bytes\n", processes->command,
                    *n);
            return false;
        }
        if (*text)
            (*text)[*n] = '\0';
    }
    return *n == 0 || !*text || tool_processes_share(processes, 0, *text, *n);
}

void tool_processes_leave(tool_processes *processes)
{
    tsr_mpi_transport_destroy(processes->transport);
    if (processes->log)
        fclose(processes->log);
    silenced = -1;
    *processes = (tool_processes){0};
}
