/* hwloc in a child process, for untrusted descriptions and for a /sys that is not the kernel's (discover.c).
 *
 * Reasons for a process: hwloc 2.9 crashes on about one in a hundred randomly damaged XML files, and
 * reports others on stderr, which only an environment variable turns off. It takes the root of a foreign
 * /sys only from an environment variable. Its XML reader turns off libxml2's error output for the whole
 * process. A child has its own memory, stderr and environment, so the caller is unaffected. Memory and
 * time are bounded for files that claim excessive sizes.
 *
 * The child dies with the thread that waits for it, whatever ends that thread, and the signals of a terminal
 * are left to the caller.
 *
 * The result crosses a pipe as a fixed header and either the bytes of a topology or an error sentence.
 * Only the forking thread exists in the child. A lock that another thread held inside hwloc or libxml2
 * would block it indefinitely; the deadline turns this into TSR_ERR_TIMEOUT. */
#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "topo/import/unpack.h"
#include "topo/topo.h"

enum {
    DEADLINE_MS = 30 * 1000,
    EXTRA_MEMORY_BYTES = 512 << 20, /* in addition to the memory that the caller has mapped */
    ERROR_BYTES = 1024
};

struct answer {
    tsr_status status;
    char error[ERROR_BYTES]; /* if status is not TSR_OK */
    tsr_topology shape;      /* otherwise the topology's struct; its arrays follow in the pipe */
};

/* -- in the child -- */

static void limit(int resource, rlim_t most)
{
    struct rlimit old;
    if (getrlimit(resource, &old) == 0 && (old.rlim_max == RLIM_INFINITY || most < old.rlim_max)) {
        struct rlimit now = {most, most};
        (void)setrlimit(resource, &now); /* best effort: the deadline remains */
    }
}

/* Bytes that the process has mapped, 0 if unknown. */
static rlim_t mapped_bytes(void)
{
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "re");
    if (statm) {
        if (fscanf(statm, "%lu", &pages) != 1)
            pages = 0;
        fclose(statm);
    }
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

void tsr_topo_ignore_terminal(void)
{
    static const int for_the_caller[] = {SIGINT, SIGQUIT, SIGHUP, SIGTERM};
    for (size_t i = 0; i < sizeof for_the_caller / sizeof *for_the_caller; i++)
        (void)signal(for_the_caller[i], SIG_IGN);
}

/* The caller's handlers must not run in the child: a crash of the child is not the caller's, and Ctrl-C,
 * which reaches both, is the caller's to decide about. A crash must not leave a core file. */
static void isolate(pid_t caller)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPIPE, SIGCHLD};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != caller && getppid() != 0) /* the caller died before; 0: it is in another PID namespace */
        _exit(1);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        (void)signal(fatal[i], SIG_DFL);
    tsr_topo_ignore_terminal();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0)
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
            (void)dup2(null, fd);
    limit(RLIMIT_CORE, 0);
    rlim_t mapped = mapped_bytes();
    if (mapped)
        limit(RLIMIT_AS, mapped + EXTRA_MEMORY_BYTES);
}

/* hwloc's variables name a machine of their own and would override the description. The environment is the
 * child's own. */
static void set_environment(tsr_topo_source_kind kind)
{
    static const char *const variables[] = {"HWLOC_XMLFILE",    "HWLOC_SYNTHETIC",  "HWLOC_FSROOT",
                                            "HWLOC_CPUID_PATH", "HWLOC_COMPONENTS", "HWLOC_THISSYSTEM"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables && kind != TSR_TOPO_THIS_MACHINE; i++)
        (void)unsetenv(variables[i]);
    /* Plugins for this machine's devices; loading their libraries would take longer than reading the file. */
    (void)setenv("HWLOC_PLUGINS_BLACKLIST",
                 "hwloc_cuda.so,hwloc_gl.so,hwloc_levelzero.so,hwloc_nvml.so,hwloc_opencl.so,hwloc_pci.so,"
                 "hwloc_rsmi.so",
                 1);
}

/* "x86" would describe this machine instead, and so would "no_os" the number of processors, where the tree
 * has none. */
static bool set_root(hwloc_topology_t hw, const char *root)
{
    (void)hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    (void)hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "no_os");
    return setenv("HWLOC_FSROOT", root, 1) == 0;
}

static tsr_status set_source(hwloc_topology_t hw, const tsr_topo_source *source)
{
    tsr_status status = TSR_OK;
    char root[TSR_UNPACK_PATH_BYTES];
    bool good = true;
    switch (source->kind) {
    case TSR_TOPO_XML: /* the length includes the NUL, which the built-in parser requires */
        good = source->bytes < INT32_MAX &&
               hwloc_topology_set_xmlbuffer(hw, source->text, (int)source->bytes + 1) == 0;
        break;
    case TSR_TOPO_SYNTHETIC:
        if (hwloc_topology_set_synthetic(hw, source->text) < 0)
            return tsr_fail(
                TSR_ERR_FORMAT,
                "'%s' is not a synthetic machine; write levels from the outside in, ending with pu, as "
                "in 'synthetic:pack:2 core:4 pu:2'",
                source->name);
        break;
    case TSR_TOPO_ROOT_DIR:
        good = set_root(hw, source->text);
        break;
    case TSR_TOPO_ARCHIVE:
        status = tsr_unpack_root(source->name, source->text, root);
        good = status != TSR_OK || set_root(hw, root);
        break;
    case TSR_TOPO_THIS_MACHINE:
        break;
    }
    return good ? status
                : tsr_fail(TSR_ERR_FORMAT, "hwloc cannot parse '%s': %s; write it again with lstopo",
                           source->name, strerror(errno));
}

/* No clean-up on failure: the process exits. */
static tsr_status read_description(const tsr_topo_source *source, pid_t caller, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    hwloc_topology_t hw;
    set_environment(source->kind);
    if (source->kind == TSR_TOPO_THIS_MACHINE)
        return tsr_topo_load_this_machine(caller, topo_out);
    if (hwloc_topology_init(&hw) < 0)
        return tsr_fail(TSR_ERR_MEMORY, "hwloc could not start: %s", strerror(errno));
    TSR_TRY(tsr_topo_hwloc_configure(hw));
    TSR_TRY(set_source(hw, source));
    if (hwloc_topology_load(hw) < 0)
        return tsr_fail(TSR_ERR_FORMAT, "hwloc rejects '%s' (%s): it is %s", source->name, strerror(errno),
                        source->kind == TSR_TOPO_XML
                            ? "malformed; write it again with lstopo"
                            : "cut short; give a whole tree that hwloc-gather-topology wrote");
    status = tsr_topo_from_hwloc(hw, topo_out);
    if (status == TSR_ERR_FORMAT)
        return tsr_fail_in(status, "'%s'", source->name);
out:
    return status;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t put = write(fd, from, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        from += put;
        bytes -= (size_t)put;
    }
    return true;
}

static void child_main(int fd, const tsr_topo_source *source, pid_t caller)
{
    tsr_topology *topo = NULL;
    struct answer answer;
    memset(&answer, 0, sizeof answer);
    isolate(caller);
    answer.status = read_description(source, caller, &topo);
    if (answer.status == TSR_OK)
        answer.shape = *topo;
    else
        snprintf(answer.error, sizeof answer.error, "%s", tsr_last_error());
    bool sent = write_all(fd, &answer, sizeof answer);
    if (sent && topo)
        sent = write_all(fd, topo + 1, tsr_topo_bytes(topo) - sizeof *topo);
    _exit(sent ? 0 : 1);
}

/* -- in the caller -- */

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Read `bytes` bytes from the child. A child that ends early crashed or exceeded a limit. */
static tsr_status read_all(int fd, void *data, size_t bytes, int64_t deadline_ms, const char *name)
{
    char *to = data;
    while (bytes > 0) {
        int64_t left = deadline_ms - now_ms();
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int ready = left > 0 ? poll(&wait, 1, (int)left) : 0;
        if (ready == 0)
            return tsr_fail(TSR_ERR_TIMEOUT,
                            "reading '%s' took too long and was stopped; copy the file to "
                            "a local disk, or write it again",
                            name);
        ssize_t got = ready > 0 ? read(fd, to, bytes) : -1;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tsr_fail(TSR_ERR_IO, "reading '%s' failed: %s", name, strerror(errno));
        if (got == 0)
            return tsr_fail(TSR_ERR_FORMAT,
                            "hwloc crashed while reading '%s', which is malformed or claims an excessive "
                            "size; write it again with lstopo",
                            name);
        to += got;
        bytes -= (size_t)got;
    }
    return TSR_OK;
}

static tsr_status receive(int fd, const tsr_topo_source *source, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_topology *topo = NULL;
    struct answer answer;
    int64_t deadline_ms = now_ms() + (source->deadline_ms ? source->deadline_ms : DEADLINE_MS);

    TSR_TRY(read_all(fd, &answer, sizeof answer, deadline_ms, source->name));
    if (answer.status != TSR_OK) {
        answer.error[ERROR_BYTES - 1] = '\0';
        status = tsr_fail(answer.status, "%s", answer.error);
        goto out;
    }
    TSR_TRY(tsr_topo_alloc(&answer.shape, &topo));
    TSR_TRY(read_all(fd, topo + 1, tsr_topo_bytes(topo) - sizeof *topo, deadline_ms, source->name));
    *topo = answer.shape;
    tsr_topo_link(topo);
    *topo_out = topo;
    topo = NULL;
out:
    tsr_topology_destroy(topo);
    return status;
}

tsr_status tsr_topo_read_in_child(const tsr_topo_source *source, tsr_topology **topo_out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return tsr_fail(TSR_ERR_IO, "cannot create a pipe to the process that reads '%s': %s", source->name,
                        strerror(errno));
    pid_t caller = getpid(), child = fork();
    if (child == 0) {
        close(ends[0]);
        child_main(ends[1], source, caller);
    }
    int fork_error = errno;
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return tsr_fail(TSR_ERR_IO, "cannot start a process to read '%s': %s", source->name,
                        strerror(fork_error));
    }
    tsr_status status = receive(ends[0], source, topo_out);
    close(ends[0]);

    /* The child has answered or never will. ECHILD, for a caller that ignores SIGCHLD, is fine too. */
    (void)kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return status;
}
