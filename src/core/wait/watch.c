/* Watching the waits of a runtime; see watch.h. */
#include "core/wait/watch.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tsr/device_list.h>

#include "core/mem.h"

/* Time between two looks at the devices' progress: at most SLICE_NS, and several within the stall timeout
 * (slice_ns). A longer time between two looks means that the process was stopped, or had no processor; only
 * 2 * slice_ns of it count, less than the timeout. */
enum { SLICE_NS = 1000000000, SLICES = 4 };

typedef struct source {
    tsr_progress progress;
    const void *user;
} source;

struct tsr_watch {
    bool by_default; /* the stall timeout is the default, and may grow */
    uint64_t stall_ns;
    uint64_t slice_ns;
    source sources[TSR_MAX_DEVICES];
    int n_sources;
    unsigned char *alive; /* a page whose first byte is 1, and 0 in a child; NULL: `pid` is compared */
    size_t alive_bytes;
    pid_t pid;
    pthread_mutex_t lock; /* of `reason` */
    char reason[512];
    _Atomic bool lost, abandoned;
    _Atomic uint64_t n_notes;
};

/* -- children -- */

/* A page that the kernel clears in a child costs a load per check, getpid() a system call. */
static void make_alive(tsr_watch *watch)
{
    watch->pid = getpid();
#ifdef MADV_WIPEONFORK
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return;
    if (madvise(page, bytes, MADV_WIPEONFORK) != 0) {
        munmap(page, bytes);
        return;
    }
    watch->alive = page;
    watch->alive_bytes = bytes;
    *watch->alive = 1;
#endif
}

bool tsr_watch_is_forked(const tsr_watch *watch)
{
    if (!watch)
        return false;
    return watch->alive ? !*watch->alive : getpid() != watch->pid;
}

/* -- life -- */

tsr_status tsr_watch_create(uint64_t stall_timeout_ns, tsr_watch **watch_out)
{
    tsr_watch *watch;
    tsr_status status = TSR_NEW(&watch, "the watch over a runtime's waits");
    if (status != TSR_OK)
        return status;
    if (pthread_mutex_init(&watch->lock, NULL) != 0) {
        tsr_mem_free(watch);
        return tsr_fail(TSR_ERR_MEMORY, "the system refused a lock");
    }
    watch->by_default = stall_timeout_ns == 0;
    watch->stall_ns = stall_timeout_ns ? stall_timeout_ns : TSR_STALL_DEFAULT_NS;
    watch->slice_ns = TSR_MIN(watch->stall_ns / SLICES + 1, (uint64_t)SLICE_NS);
    make_alive(watch);
    *watch_out = watch;
    return TSR_OK;
}

void tsr_watch_destroy(tsr_watch *watch)
{
    if (!watch)
        return;
    if (watch->alive)
        munmap(watch->alive, watch->alive_bytes);
    pthread_mutex_destroy(&watch->lock);
    tsr_mem_free(watch);
}

void tsr_watch_add(tsr_watch *watch, tsr_progress progress, const void *user)
{
    if (watch && watch->n_sources < TSR_MAX_DEVICES)
        watch->sources[watch->n_sources++] = (source){progress, user};
}

void tsr_watch_remove(tsr_watch *watch, const void *user)
{
    for (int i = 0; watch && i < watch->n_sources; i++)
        if (watch->sources[i].user == user)
            watch->sources[i--] = watch->sources[--watch->n_sources];
}

void tsr_watch_note(tsr_watch *watch)
{
    if (watch)
        atomic_fetch_add_explicit(&watch->n_notes, 1, memory_order_relaxed);
}

/* -- losing -- */

bool tsr_watch_is_lost(const tsr_watch *watch)
{
    return watch && atomic_load(&watch->lost);
}

tsr_status tsr_watch_check(tsr_watch *watch)
{
    char reason[sizeof watch->reason];
    if (tsr_watch_is_forked(watch))
        return tsr_fail(
            TSR_ERR_DEVICE_LOST,
            "the runtime was opened before fork(): its threads do not exist in this child process; "
            "open a runtime in the child");
    if (!tsr_watch_is_lost(watch))
        return TSR_OK;
    pthread_mutex_lock(&watch->lock);
    memcpy(reason, watch->reason, sizeof reason);
    pthread_mutex_unlock(&watch->lock);
    return tsr_fail(TSR_ERR_DEVICE_LOST, "%s", reason);
}

tsr_status tsr_watch_lose(tsr_watch *watch, const char *format, ...)
{
    char reason[sizeof watch->reason];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    if (watch) {
        pthread_mutex_lock(&watch->lock);
        memcpy(watch->reason, reason, sizeof reason);
        pthread_mutex_unlock(&watch->lock);
        atomic_store(&watch->lost, true);
    }
    return tsr_fail(TSR_ERR_DEVICE_LOST, "%s", reason);
}

void tsr_watch_revive(tsr_watch *watch)
{
    if (watch)
        atomic_store(&watch->lost, false);
}

void tsr_watch_abandon(tsr_watch *watch)
{
    if (watch)
        atomic_store(&watch->abandoned, true);
}

bool tsr_watch_has_abandoned(const tsr_watch *watch)
{
    return watch && atomic_load(&watch->abandoned);
}

void tsr_watch_allow(tsr_watch *watch, uint64_t ns)
{
    if (watch && watch->by_default)
        watch->stall_ns = TSR_MAX(watch->stall_ns, ns); /* slices stay: SLICE_NS is the most */
}

uint64_t tsr_watch_stall_ns(const tsr_watch *watch)
{
    return watch ? watch->stall_ns : UINT64_MAX;
}

/* -- waiting -- */

/* A number that changes when that of a source does, but for a chance of 2^-64. */
static uint64_t progress_of(const tsr_watch *watch)
{
    uint64_t sum = atomic_load_explicit(&watch->n_notes, memory_order_relaxed);
    for (int i = 0; i < watch->n_sources; i++) {
        sum = (sum ^ watch->sources[i].progress(watch->sources[i].user)) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 32;
    }
    return sum;
}

bool tsr_watch_look(const tsr_watch *watch, tsr_stall *stall)
{
    if (!watch || watch->stall_ns == UINT64_MAX)
        return false;
    const uint64_t now = tsr_clock_ns();
    if (stall->looked_ns && now - stall->looked_ns < watch->slice_ns)
        return false;
    const uint64_t progress = progress_of(watch);
    if (stall->looked_ns == 0 || progress != stall->seen)
        stall->idle_ns = 0;
    else
        stall->idle_ns += TSR_MIN(now - stall->looked_ns, 2 * watch->slice_ns);
    stall->seen = progress;
    stall->looked_ns = now;
    return stall->idle_ns >= watch->stall_ns;
}

typedef struct watched {
    const tsr_watch *watch;
    tsr_stall stall;
} watched;

static bool makes_progress(void *user)
{
    watched *w = user;
    return !tsr_watch_look(w->watch, &w->stall);
}

tsr_wait_end tsr_watch_wait(tsr_watch *watch, tsr_event *event, tsr_condition condition, void *what,
                            int polls, uint64_t deadline_ns)
{
    if (!watch)
        return tsr_event_wait(event, condition, what, polls, deadline_ns) ? TSR_WAIT_DONE : TSR_WAIT_LATE;
    if (tsr_watch_is_forked(watch) || (tsr_watch_is_lost(watch) && deadline_ns == TSR_FOREVER))
        return condition(what) ? TSR_WAIT_DONE : TSR_WAIT_STALLED;
    if (tsr_event_poll(condition, what, polls))
        return TSR_WAIT_DONE;
    watched w = {.watch = watch};
    const tsr_event_look look = {watch->slice_ns, makes_progress, &w};
    (void)tsr_watch_look(watch, &w.stall);
    if (tsr_event_sleep_watched(event, condition, what, deadline_ns, tsr_watch_is_lost(watch) ? NULL : &look))
        return TSR_WAIT_DONE;
    return w.stall.idle_ns >= watch->stall_ns ? TSR_WAIT_STALLED : TSR_WAIT_LATE;
}
