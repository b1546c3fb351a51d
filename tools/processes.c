/* One process of an MPI job; see processes.h. */
#include "processes.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#ifdef TSR_TOOL_WITH_MPI
#include <tsr/mpi.h>
#else
static const char *tsr_mpi_transport_create(const void *mpi_comm, tsr_transport **transport_out)
{
    (void)mpi_comm, (void)transport_out;
    return "this tsr was built without MPI; install one (Debian: libopenmpi-dev) and build it again";
}

static void tsr_mpi_transport_destroy(tsr_transport *transport)
{
    (void)transport;
}
#endif

/* All processes would write the same text and tables; warnings differ. */
static bool fall_silent(FILE **log_out)
{
    const int own = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    *log_out = own >= 0 ? fdopen(own, "w") : NULL;
    return *log_out && freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr);
}

bool tool_processes_join(const char *command, bool wanted, tool_processes *processes_out)
{
    *processes_out = (tool_processes){0};
    if (!wanted)
        return true;
    const char *problem = tsr_mpi_transport_create(NULL, &processes_out->transport);
    if (!problem && processes_out->transport->rank > 0 && !fall_silent(&processes_out->log))
        problem = "cannot open /dev/null";
    if (!problem)
        return true;
    fprintf(stderr, "tsr %s: --mpi: %s\n", command, problem);
    tool_processes_leave(processes_out);
    return false;
}

static const char *wait_for(const tsr_transport *t, tsr_transfer *transfer)
{
    bool done = false;
    const char *problem = NULL;
    while (!done && !problem) {
        problem = t->test(t->user, transfer, &done);
        sched_yield();
    }
    return problem;
}

bool tool_processes_share(const char *command, const tool_processes *processes, void *bytes, size_t n)
{
    const tsr_transport *t = processes->transport;
    const char *problem = NULL;
    tsr_transfer transfer;
    if (t && t->rank > 0) {
        problem = t->receive(t->user, 0, 0, bytes, n, &transfer);
        if (!problem)
            problem = wait_for(t, &transfer);
    }
    for (int rank = 1; t && t->rank == 0 && rank < t->n_ranks && !problem; rank++) {
        problem = t->send(t->user, rank, 0, bytes, n, &transfer);
        if (!problem)
            problem = wait_for(t, &transfer);
    }
    if (problem)
        fprintf(stderr, "tsr %s: --mpi: %s\n", command, problem);
    return !problem;
}

void tool_processes_leave(tool_processes *processes)
{
    tsr_mpi_transport_destroy(processes->transport);
    if (processes->log)
        fclose(processes->log);
    *processes = (tool_processes){0};
}
