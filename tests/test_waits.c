/* Waits for host devices that never finish, and waits in a child process after fork(). A call whose device
 * makes no progress names the device and the op; the runtime is then lost, and nothing waits for it any more.
 * A device that is slow, and works, is never given up.
 *
 * The attention of one device is replaced by a function that hangs until it is released. Each body runs in a
 * process of its own, since a lost runtime keeps threads and memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "core/event.h"
#include "core/runtime.h"
#include "host/host.h"
#include "support/child.h"
#include "support/failing_alloc.h"
#include "support/session_check.h"

enum { MS = 1000000, N_TOKENS = 4, LIMIT_S = 20, STALL_MS = 600 };

/* What the attention of the hooked device does before its work: in its calls from the n-th on, 1 first. */
static tsr_kernel_set hooked;
static tsr_kernel_fn attention;
static _Atomic bool hangs;    /* the first thread waits until this is false */
static _Atomic int n_hanging; /* threads that wait */
static _Atomic int slow_ms;   /* the first thread takes this time, with progress all the while */

static void nap_ms(long ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * MS};
    nanosleep(&time, NULL);
}

static void hooked_attention(const tsr_op *op, const tsr_kernel_env *env)
{
    if (env->thread == 0) {
        atomic_fetch_add(&n_hanging, 1);
        while (atomic_load(&hangs))
            nap_ms(1);
        atomic_fetch_sub(&n_hanging, 1);
        for (int ms = 0; ms < atomic_load(&slow_ms); ms += 20) {
            nap_ms(20);
            tsr_host_shares_next(env->shares, env->place + 1, INT32_MAX, 0, env->n_threads); /* a piece */
        }
    }
    attention(op, env);
}

typedef struct bench {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    float logits[SESSION_VOCAB];
} bench;

/* Open a session and compute a step; the attention of the last device is hooked. */
static void open_bench(bench *b, const char *devices, uint64_t stall_ns, uint64_t timeout_ns)
{
    const float split[] = {1, 1};
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_model_config model = session_config(64, 1, 16, 16);
    config.devices = devices;
    config.stall_timeout_ns = stall_ns;
    model.split.mode = TSR_SPLIT_MODE_TENSOR;
    model.split.tensor_split = split;
    model.compute.timeout_ns = timeout_ns;
    CHECK(tsr_runtime_open(&config, &b->rt) == TSR_OK);
    model.split.n_tensor_split = tsr_runtime_n_devices(b->rt);
    CHECK(tsr_model_open(b->rt, session_model_path, &model, &b->model) == TSR_OK);
    CHECK(tsr_session_create(b->model, &b->session) == TSR_OK);
    tsr_host_device *host = tsr_host(b->rt->devices[tsr_runtime_n_devices(b->rt) - 1]);
    hooked = *host->kernels;
    attention = hooked.run[TSR_OP_ATTENTION];
    hooked.run[TSR_OP_ATTENTION] = hooked_attention;
    host->kernels = &hooked;
}

static tsr_status step(bench *b)
{
    const int32_t tokens[N_TOKENS] = {1, 2, 3, 4};
    return session_append(b->session, 0, tokens, N_TOKENS, b->logits);
}

static void close_bench(bench *b)
{
    tsr_session_destroy(b->session);
    tsr_model_close(b->model);
    tsr_runtime_close(b->rt);
}

/* Whether the last error names device and op. */
static bool names_the_op(const char *device)
{
    return strstr(tsr_last_error(), device) &&
           strstr(tsr_last_error(), "op 'attention' (attention) of layer 0 made no progress for 0.6 s");
}

static uint64_t ms_since(uint64_t begin_ns)
{
    return (tsr_clock_ns() - begin_ns) / MS;
}

/* -- devices that hang -- */

typedef struct hanging {
    const char *devices, *name;
    uint64_t timeout_ns;
} hanging;

static void hang_in_attention(void *argument)
{
    const hanging *h = argument;
    bench b;
    char sentence[512];
    open_bench(&b, h->devices, STALL_MS * MS, h->timeout_ns);
    CHECK(step(&b) == TSR_OK);
    atomic_store(&hangs, true);
    uint64_t begin = tsr_clock_ns();
    CHECK(step(&b) == TSR_ERR_DEVICE_LOST);
    CHECK(names_the_op(h->name));
    CHECK(ms_since(begin) < 10000);
    CHECK(atomic_load(&n_hanging) == 1);
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    begin = tsr_clock_ns();
    CHECK(step(&b) == TSR_ERR_DEVICE_LOST);
    CHECK(strcmp(sentence, tsr_last_error()) == 0);
    tsr_session *other = NULL;
    CHECK(tsr_session_create(b.model, &other) != TSR_OK || step(&b) == TSR_ERR_DEVICE_LOST);
    tsr_session_destroy(other);
    close_bench(&b);
    CHECK(ms_since(begin) < 5000);
    CHECK(failing_alloc_live() > 0); /* what the thread may access */
    atomic_store(&hangs, false);     /* the thread goes on, and ends */
    while (atomic_load(&n_hanging) > 0)
        nap_ms(1);
    nap_ms(50);
}

static void a_device_that_hangs_is_named_with_its_op(void **state)
{
    (void)state;
    hanging last = {"host:2,threads=2", "device host1", 0}, alone = {"host:1,threads=1", "device host0", 0},
            team = {"host:1,threads=3", "device host0", 0};
    assert_true(child_succeeds(hang_in_attention, &last, LIMIT_S));
    assert_true(child_succeeds(hang_in_attention, &alone, LIMIT_S));
    assert_true(child_succeeds(hang_in_attention, &team, LIMIT_S));
}

static void a_deadline_does_not_wait_for_a_device_that_hangs(void **state)
{
    (void)state;
    hanging last = {"host:2,threads=1", "device host1", 500 * MS};
    assert_true(child_succeeds(hang_in_attention, &last, LIMIT_S));
}

/* Logits of three steps of a session on one device. */
static void compute_alone(float logits[3][SESSION_VOCAB])
{
    bench b;
    tsr_model_config model = session_config(64, 1, 16, 16);
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:1,threads=1";
    CHECK(tsr_runtime_open(&config, &b.rt) == TSR_OK);
    CHECK(tsr_model_open(b.rt, session_model_path, &model, &b.model) == TSR_OK);
    CHECK(tsr_session_create(b.model, &b.session) == TSR_OK);
    for (int i = 0; i < 3; i++) {
        CHECK(step(&b) == TSR_OK);
        memcpy(logits[i], b.logits, sizeof b.logits);
    }
    close_bench(&b);
}

static void step_with_the_bits_of(bench *b, const float expected[SESSION_VOCAB])
{
    CHECK(step(b) == TSR_OK);
    CHECK(memcmp(b->logits, expected, sizeof b->logits) == 0);
}

/* The device hangs in the second step, and goes on when no call waits for it any more. Each step has the bits
 * of one device: the step before, the one that failed and is made again while the thread hangs, and the one
 * after the thread has returned. */
static void drop_what_hangs(void *argument)
{
    float expected[3][SESSION_VOCAB];
    tsr_device_info info;
    bench b;
    (void)argument;
    compute_alone(expected);
    open_bench(&b, "host:2,threads=2", STALL_MS * MS, 0);
    step_with_the_bits_of(&b, expected[0]);
    atomic_store(&hangs, true);
    CHECK(step(&b) == TSR_ERR_DEVICE_LOST);
    CHECK(tsr_runtime_device(b.rt, 0, &info) == TSR_OK && !info.lost && !info.dropped);
    CHECK(tsr_runtime_device(b.rt, 1, &info) == TSR_OK && info.lost && !info.dropped);
    CHECK(tsr_runtime_drop_device(b.rt, 1) == TSR_OK);
    CHECK(tsr_runtime_device(b.rt, 1, &info) == TSR_OK && info.dropped);
    CHECK(tsr_session_length(b.session, 0) == N_TOKENS);
    CHECK(atomic_load(&n_hanging) == 1);
    step_with_the_bits_of(&b, expected[1]);
    atomic_store(&hangs, false);
    while (atomic_load(&n_hanging) > 0)
        nap_ms(1);
    nap_ms(50);
    step_with_the_bits_of(&b, expected[2]);
    CHECK(tsr_runtime_drop_device(b.rt, 1) == TSR_ERR_INVALID && strstr(tsr_last_error(), "dropped before"));
    CHECK(tsr_runtime_drop_device(b.rt, 0) == TSR_ERR_INVALID &&
          strstr(tsr_last_error(), "no device remains"));
    close_bench(&b);
}

static void a_device_that_hangs_can_be_dropped(void **state)
{
    (void)state;
    assert_true(child_succeeds(drop_what_hangs, NULL, LIMIT_S));
}

/* Memory whose first access waits, as for a file on a server that is gone, until the descriptor is closed. -1
 * where the kernel does not offer this. */
static int make_absent(void *memory, size_t bytes)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(uintptr_t)memory, bytes},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    const int file = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (file >= 0 && ioctl(file, UFFDIO_API, &api) == 0 && ioctl(file, UFFDIO_REGISTER, &range) == 0)
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

enum { COPY_BYTES = 16 << 20, NOT_OFFERED = 77 };

static void hang_in_copy(void *argument)
{
    (void)argument;
    bench b;
    void *to;
    open_bench(&b, "host:1,threads=2", STALL_MS * MS, 0);
    tsr_device *device = b.rt->devices[0];
    void *from = mmap(NULL, COPY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(from != MAP_FAILED);
    CHECK(tsr_device_alloc(device, TSR_MEMORY_OTHER, COPY_BYTES, "a test", &to) == TSR_OK);
    const int file = make_absent(from, COPY_BYTES);
    if (file < 0)
        _exit(NOT_OFFERED);
    const uint64_t begin = tsr_clock_ns();
    CHECK(tsr_device_upload(device, to, from, COPY_BYTES) == TSR_ERR_DEVICE_LOST);
    CHECK(strstr(tsr_last_error(), "device host0: a copy made no progress for 0.6 s"));
    CHECK(step(&b) == TSR_ERR_DEVICE_LOST);
    tsr_device_free(device, TSR_MEMORY_OTHER, to, COPY_BYTES);
    close_bench(&b);
    CHECK(ms_since(begin) < 10000);
    close(file); /* the threads go on, and end */
    nap_ms(100);
}

static void a_copy_that_hangs_is_bounded(void **state)
{
    (void)state;
    const int result = child_result(hang_in_copy, NULL, LIMIT_S);
    if (result == NOT_OFFERED) {
        print_message("this kernel does not offer userfaultfd; skipped\n");
        skip();
    }
    assert_int_equal(result, 0);
}

/* A device that comes back after the deadline is as good as before. */
static void come_back(void *argument)
{
    (void)argument;
    bench b;
    open_bench(&b, "host:2,threads=1", 0, 500 * MS);
    CHECK(step(&b) == TSR_OK);
    atomic_store(&slow_ms, 1000);
    CHECK(step(&b) == TSR_ERR_TIMEOUT);
    atomic_store(&slow_ms, 0);
    CHECK(step(&b) == TSR_OK);
    close_bench(&b);
    CHECK(failing_alloc_live() == 0);
}

static void a_device_that_misses_a_deadline_is_used_again(void **state)
{
    (void)state;
    assert_true(child_succeeds(come_back, NULL, LIMIT_S));
}

/* An op that takes longer than the stall timeout and takes one piece after the other. */
static void work_slowly(void *argument)
{
    const int *n_threads = argument;
    char devices[32];
    bench b;
    snprintf(devices, sizeof devices, "host:2,threads=%d", *n_threads);
    open_bench(&b, devices, STALL_MS * MS, 0);
    atomic_store(&slow_ms, 2 * STALL_MS);
    CHECK(step(&b) == TSR_OK);
    close_bench(&b);
    CHECK(failing_alloc_live() == 0);
}

static void a_device_that_works_slowly_is_waited_for(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 2; n_threads++)
        assert_true(child_succeeds(work_slowly, &n_threads, LIMIT_S));
}

/* A look that comes late says nothing about the devices: they were stopped, too. */
static void a_stopped_process_is_not_a_device_that_hangs(void **state)
{
    (void)state;
    tsr_watch *watch = NULL;
    tsr_stall stall = {0};
    int n_looks = 0;
    assert_int_equal(tsr_watch_create(200 * MS, &watch), TSR_OK);
    assert_false(tsr_watch_look(watch, &stall));
    nap_ms(250);
    assert_false(tsr_watch_look(watch, &stall));
    for (; !tsr_watch_look(watch, &stall); n_looks++)
        nap_ms(1);
    assert_true(n_looks > 0);
    tsr_watch_destroy(watch);
}

/* -- child processes -- */

static void use_and_close(void *argument)
{
    bench *b = argument;
    tsr_device_memory memory;
    const uint64_t begin = tsr_clock_ns();
    const uint64_t blocks = (uint64_t)failing_alloc_live();
    CHECK(step(b) == TSR_ERR_DEVICE_LOST);
    CHECK(strstr(tsr_last_error(), "fork()") && strstr(tsr_last_error(), "open a runtime in the child"));
    CHECK(tsr_runtime_memory(b->rt, 0, &memory) == TSR_OK || strstr(tsr_last_error(), "fork()"));
    CHECK((uint64_t)failing_alloc_live() == blocks);
    close_bench(b);
    CHECK(failing_alloc_live() == 0);
    CHECK(ms_since(begin) < 5000);
#ifndef __SANITIZE_THREAD__ /* ThreadSanitizer ends children that start threads */
    open_bench(b, "host:2,threads=2", 0, 0);
    CHECK(step(b) == TSR_OK);
    close_bench(b);
#endif
}

static void fork_and_go_on(void *argument)
{
    const char *devices = argument;
    bench b;
    float before[SESSION_VOCAB];
    open_bench(&b, devices, 0, 0);
    CHECK(step(&b) == TSR_OK);
    CHECK(tsr_session_trim(b.session, 0, 0) == TSR_OK);
    memcpy(before, b.logits, sizeof before);
    CHECK(child_succeeds(use_and_close, &b, LIMIT_S / 2));
    CHECK(step(&b) == TSR_OK); /* the parent is not affected */
    CHECK(memcmp(before, b.logits, sizeof before) == 0);
    close_bench(&b);
    CHECK(failing_alloc_live() == 0);
}

static void a_child_is_told_that_threads_do_not_survive_fork(void **state)
{
    (void)state;
    assert_true(child_succeeds(fork_and_go_on, "host:2,threads=2", LIMIT_S));
    assert_true(child_succeeds(fork_and_go_on, "host:1,threads=1", LIMIT_S));
}

/* As on kernels without MADV_WIPEONFORK. */
static void compare_process_numbers(void *argument)
{
    (void)argument;
    tsr_watch *watch = NULL;
    failing_alloc_set(2); /* the page */
    CHECK(tsr_watch_create(0, &watch) == TSR_OK);
    CHECK(failing_alloc_fired());
    failing_alloc_set(0);
    CHECK(!tsr_watch_is_forked(watch));
    const pid_t pid = fork();
    if (pid == 0)
        _exit(tsr_watch_is_forked(watch) ? 0 : 1);
    CHECK(pid > 0);
    int result = 1;
    CHECK(waitpid(pid, &result, 0) == pid && result == 0);
    tsr_watch_destroy(watch);
}

static void a_child_is_known_without_the_kernels_help(void **state)
{
    (void)state;
    assert_true(child_succeeds(compare_process_numbers, NULL, LIMIT_S));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_hangs_is_named_with_its_op),
        cmocka_unit_test(a_device_that_hangs_can_be_dropped),
        cmocka_unit_test(a_deadline_does_not_wait_for_a_device_that_hangs),
        cmocka_unit_test(a_copy_that_hangs_is_bounded),
        cmocka_unit_test(a_device_that_misses_a_deadline_is_used_again),
        cmocka_unit_test(a_device_that_works_slowly_is_waited_for),
        cmocka_unit_test(a_stopped_process_is_not_a_device_that_hangs),
        cmocka_unit_test(a_child_is_told_that_threads_do_not_survive_fork),
        cmocka_unit_test(a_child_is_known_without_the_kernels_help),
    };
    return cmocka_run_group_tests(tests, session_model_write, NULL);
}
