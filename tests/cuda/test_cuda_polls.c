/* The host thread of a GPU, and the caller that waits for it, poll before they sleep: sleeps are counted
 * at the system call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>
#include <cudasim.h>
#include <dlfcn.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tsr/runtime.h>

#include "core/runtime.h"
#include "cuda/device/device.h"
#include "cuda/simulated.h"

enum { STEPS = 50, MS = 1000000, LONG_ENOUGH = 2000000000 };

static _Atomic int n_sleeps;

/* In place of the C library's, for all of this program. A call has as many arguments as it needs; the others
 * are read, too, and mean nothing, which AddressSanitizer cannot know. */
__attribute__((no_sanitize_address)) long syscall(long number, ...)
{
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET)
        atomic_fetch_add(&n_sleeps, 1);
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Queries of events before a thread that waits for a GPU first slept between them; 0: not slept. */
static _Atomic bool is_stalled;
static _Atomic uint64_t queries_at_start, queries_before_sleep;

int nanosleep(const struct timespec *duration, struct timespec *left)
{
    enum { BETWEEN_POLLS_NS = 20000 };
    if (atomic_load(&is_stalled) && duration->tv_nsec == BETWEEN_POLLS_NS &&
        atomic_load(&queries_before_sleep) == 0)
        atomic_store(&queries_before_sleep,
                     cudasim_calls_of("cudaEventQuery") - atomic_load(&queries_at_start));
    return clock_nanosleep(CLOCK_MONOTONIC, 0, duration, left);
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * MS}, NULL);
}

/* A device that polls so often, and a program of one op. */
typedef struct scaling {
    tsr_device *device;
    tsr_device_program *program;
    void *y;
} scaling;

static scaling open_scaling(int polls)
{
    const tsr_cuda_device_config config = {.name = "cuda0", .polls = polls};
    scaling s = {0};
    ok(tsr_cuda_device_create(&config, &s.device));
    ok(tsr_device_alloc(s.device, TSR_MEMORY_OTHER, 4096, "a test", &s.y));
    const tsr_op op = {.kind = TSR_OP_SCALE, .scale = {.x = s.y, .y = s.y, .n = 1024, .factor = 2}};
    ok(s.device->ops->program_create(s.device, &op, 1, &s.program));
    return s;
}

static void close_scaling(scaling *s)
{
    s->device->ops->program_destroy(s->device, s->program);
    tsr_device_free(s->device, TSR_MEMORY_OTHER, s->y, 4096);
    tsr_device_destroy(s->device);
}

/* Sleeps during programs that are launched one after another on a device that polls so often. */
static int sleeps_of_steps(int polls)
{
    scaling s = open_scaling(polls);
    const int before = atomic_load(&n_sleeps);
    for (int i = 0; i < STEPS; i++) {
        if (polls == 0)
            pause_ms(1); /* the host thread has nothing to do */
        ok(s.device->ops->launch(s.device, s.program));
        ok(s.device->ops->synchronize(s.device, 0));
    }
    const int n = atomic_load(&n_sleeps) - before;
    close_scaling(&s);
    return n;
}

static void polls_take_the_place_of_sleeps(void **state)
{
    (void)state;
    assert_in_range(sleeps_of_steps(0), STEPS / 2, 1000 * STEPS);
    assert_int_equal(sleeps_of_steps(LONG_ENOUGH), 0);
}

static int polls_of_a_runtime(const char *devices)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    config.devices = devices;
    ok(tsr_runtime_open(&config, &rt));
    const int polls = rt->devices[0]->polls;
    tsr_runtime_close(rt);
    return polls;
}

/* One for the host thread and one for the caller. */
static void a_gpu_polls_where_processors_suffice(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) {
        print_message("skipped: one processor\n");
        skip();
    }
    assert_true(polls_of_a_runtime("cuda:0") > 0);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const int polls = polls_of_a_runtime("cuda:0");
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(polls, 0);
}

/* The host thread of a device with nothing to do sleeps: no processor is busy for it. */
static void an_idle_gpu_does_not_poll(void **state)
{
    (void)state;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    const int before = atomic_load(&n_sleeps);
    config.devices = "cuda:0";
    ok(tsr_runtime_open(&config, &rt));
    for (int i = 0; i < 10000 && atomic_load(&n_sleeps) == before; i++)
        pause_ms(1);
    assert_true(atomic_load(&n_sleeps) > before);
    tsr_runtime_close(rt);
}

/* Of a device that polls so often, while its GPU carries out nothing. */
static uint64_t queries_before_sleeping(int polls)
{
    scaling s = open_scaling(polls);
    cudasim_stall_device(0, true);
    atomic_store(&queries_before_sleep, 0);
    atomic_store(&queries_at_start, cudasim_calls_of("cudaEventQuery"));
    atomic_store(&is_stalled, true);
    ok(s.device->ops->launch(s.device, s.program));
    for (int i = 0; i < 20000 && atomic_load(&queries_before_sleep) == 0; i++)
        pause_ms(1);
    atomic_store(&is_stalled, false);
    cudasim_stall_device(0, false);
    ok(s.device->ops->synchronize(s.device, 0));
    close_scaling(&s);
    return atomic_load(&queries_before_sleep);
}

static void a_gpu_is_polled_less_where_processors_are_few(void **state)
{
    (void)state;
    assert_in_range(queries_before_sleeping(0), 1, 100);
    assert_in_range(queries_before_sleeping(LONG_ENOUGH), 10000, 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(polls_take_the_place_of_sleeps),
        cmocka_unit_test(a_gpu_polls_where_processors_suffice),
        cmocka_unit_test(an_idle_gpu_does_not_poll),
        cmocka_unit_test(a_gpu_is_polled_less_where_processors_are_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
