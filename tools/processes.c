/* One process of an MPI job; see processes.h. */
#include "processes.h"

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "options.h"

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

/* This process's place in the job. */
static struct {
    const char *problem;      /* why there is none; NULL: none was wanted, or there is one */
    tsr_transport *transport; /* NULL: single process */
    FILE *log;                /* standard error of a process that is silent; NULL: stderr */
    FILE *held;               /* what such a process has written until the processes agree */
    bool agreed;              /* on what each process did before joining */
} job;

/* All processes would write the same text and tables; warnings differ. */
static const char *fall_silent(void)
{
    const int own = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    job.log = own >= 0 ? fdopen(own, "w") : NULL;
    job.held = tmpfile();
    if (!job.log || !job.held)
        return "cannot open a temporary file for messages";
    if (!freopen("/dev/null", "w", stdout) || dup2(fileno(job.held), STDERR_FILENO) < 0)
        return "cannot open /dev/null";
    setvbuf(job.log, NULL, _IOLBF, 0);
    return NULL;
}

static bool has_option(int argc, char **argv, const char *option)
{
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], option) == 0)
            return true;
    return false;
}

void tool_processes_begin(int argc, char **argv)
{
    if (!has_option(argc, argv, "--mpi"))
        return;
    job.problem = has_option(argc, argv, "--survive")
                      ? tsr_mpi_transport_create_surviving(NULL, &job.transport)
                      : tsr_mpi_transport_create(NULL, &job.transport);
    if (!job.problem && job.transport->rank > 0)
        job.problem = fall_silent();
}

FILE *tool_processes_log(void)
{
    return job.log ? job.log : stderr;
}

void tool_processes_leave_out(tool_processes *processes, int rank)
{
    processes->gone |= UINT64_C(1) << rank;
}

bool tool_processes_is_gone(const tool_processes *processes, int rank)
{
    return processes->gone >> rank & 1;
}

void tool_processes_speak(void)
{
    if (job.log)
        dup2(fileno(job.log), STDERR_FILENO);
}

/* What has been held back is written, behind the number of the process. */
static void write_held(void)
{
    char line[1024];
    rewind(job.held);
    while (fgets(line, sizeof line, job.held))
        fprintf(job.log, "process %d: %s", job.transport->rank, line);
    fflush(job.log);
}

/* The outcome of the first process that has failed, whose messages are written; TOOL_GO_ON: none has. */
static int agree(const tool_processes *processes, int code)
{
    int32_t codes[TOOL_MOST_PROCESSES] = {0};
    const int n = tool_processes_count(processes);
    int first = 0;
    job.agreed = true;
    if (n > TOOL_MOST_PROCESSES) /* more than a runtime has; it says so */
        return code;
    codes[tool_processes_rank(processes)] = code;
    if (!tool_processes_gather(processes, codes, sizeof *codes))
        return TOOL_EXIT_FAILED;
    while (first < n - 1 && codes[first] == TOOL_GO_ON)
        first++;
    if (job.held && codes[first] != TOOL_GO_ON && first == tool_processes_rank(processes))
        write_held();
    else if (job.held && !freopen("/dev/null", "w", stderr))
        return TOOL_EXIT_FAILED;
    return codes[first];
}

int tool_processes_join(const char *command, bool wanted, tool_processes *processes_out)
{
    *processes_out = (tool_processes){.command = command};
    if (!wanted)
        return TOOL_GO_ON;
    if (job.problem) {
        fprintf(tool_processes_log(), "tsr %s: --mpi: %s\n", command, job.problem);
        return TOOL_EXIT_FAILED;
    }
    processes_out->transport = job.transport;
    return agree(processes_out, TOOL_GO_ON);
}

int tool_processes_end(const char *command, int code)
{
    const tool_processes processes = {.command = command, .transport = job.transport};
    fflush(stdout); /* before mpirun sees that this process is done */
    if (job.transport && !job.agreed)
        code = agree(&processes, code);
    tsr_mpi_transport_destroy(job.transport);
    if (job.log)
        fclose(job.log);
    if (job.held)
        fclose(job.held);
    return code;
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

static bool report(const tool_processes *processes, const char *problem)
{
    if (problem)
        fprintf(tool_processes_log(), "tsr %s: --mpi: %s\n", processes->command, problem);
    return !problem;
}

bool tool_processes_send(const tool_processes *processes, int to, const void *bytes, size_t n)
{
    return report(processes, send_to(processes->transport, to, bytes, n));
}

bool tool_processes_receive(const tool_processes *processes, int from, void *bytes, size_t n)
{
    return report(processes, receive_from(processes->transport, from, bytes, n));
}

bool tool_processes_share(const tool_processes *processes, int root, void *bytes, size_t n)
{
    const tsr_transport *t = processes->transport;
    const char *problem = NULL;
    if (t && t->rank != root && !tool_processes_is_gone(processes, root))
        problem = receive_from(t, root, bytes, n);
    for (int rank = 0; t && t->rank == root && rank < t->n_ranks && !problem; rank++)
        if (rank != root && !tool_processes_is_gone(processes, rank))
            problem = send_to(t, rank, bytes, n);
    return report(processes, problem);
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
            fprintf(tool_processes_log(), "tsr %s: out of memory for a text of %zu bytes\n",
                    processes->command, *n);
            return false;
        }
        if (*text)
            (*text)[*n] = '\0';
    }
    return *n == 0 || !*text || tool_processes_share(processes, 0, *text, *n);
}
