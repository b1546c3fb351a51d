/* The host device: memory, copies, programs on a thread team, and what is said when something goes wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "core/device.h"
#include "core/event.h"
#include "core/mem.h"
#include "support/failing_alloc.h"
#include "support/tiny_kernels.h"

enum { MS = 1000000 };

static tsr_op scale_op(const char *name, const float *x, float *y, int64_t n, float factor)
{
    return (tsr_op){.kind = TSR_OP_SCALE, .name = name, .scale = {x, y, n, factor}};
}

static tsr_op sleep_op(const char *name, int64_t ms)
{
    return (tsr_op){.kind = TSR_OP_SOFTMAX, .name = name, .softmax = {.n = ms}};
}

static tsr_op fault_op(const char *name)
{
    return (tsr_op){.kind = TSR_OP_MUL_MAT, .name = name, .mul_mat = {.limit = -1.0f}};
}

static tsr_device_program *program_of(tsr_device *device, const tsr_op *ops, int n_ops)
{
    tsr_device_program *program = NULL;
    assert_int_equal(device->ops->program_create(device, ops, n_ops, &program), TSR_OK);
    return program;
}

static void a_device_knows_its_configuration(void **state)
{
    (void)state;
    tsr_device *device = tiny_device(3, 2, 0);
    assert_string_equal(device->name, "host:3");
    assert_int_equal(device->ops->kind, TSR_DEVICE_HOST);
    assert_string_equal(device->isa, "tiny");
    assert_int_equal(device->index, 3);
    assert_int_equal(device->n_threads, 2);
    assert_true(device->memory_cap == SIZE_MAX);
    assert_int_equal(device->alignment & (device->alignment - 1), 0);
    tsr_device_destroy(device);
    tsr_device_destroy(NULL);
}

static void bad_configurations_are_refused(void **state)
{
    (void)state;
    tsr_device *device = NULL;
    tsr_host_device_config config = {.name = "host:0", .n_threads = 0, .kernels = &tiny_kernels};
    assert_int_equal(tsr_host_device_create(&config, &device), TSR_ERR_INVALID);
    config = (tsr_host_device_config){.name = "host:0", .n_threads = 1, .isa = "abacus"};
    assert_int_equal(tsr_host_device_create(&config, &device), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "abacus"));
    assert_null(device);
}

static void memory_is_aligned_zeroed_and_accounted(void **state)
{
    (void)state;
    tsr_device *device = tiny_device(0, 1, 0);
    size_t sizes[] = {1, 4096, 3 * 1024 * 1024 + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *memory = NULL;
        assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_OTHER, sizes[i], "a test", (void **)&memory),
                         TSR_OK);
        assert_int_equal((uintptr_t)memory % 256, 0);
        assert_int_equal(memory[0] | memory[sizes[i] - 1], 0);
        memory[0] = memory[sizes[i] - 1] = 1;
        assert_int_equal(tsr_device_used(device), sizes[i]);
        tsr_device_free(device, TSR_MEMORY_OTHER, memory, sizes[i]);
    }
    assert_int_equal(tsr_device_used(device), 0);
    tsr_device_destroy(device);
}

static void decommitted_memory_comes_back_zeroed(void **state)
{
    (void)state;
    tsr_device *device = tiny_device(0, 1, 0);
    size_t page = device->granularity, bytes = 1024 * page;
    unsigned char *base = NULL;
    assert_int_equal(device->ops->reserve(device, bytes, (void **)&base), TSR_OK);
    assert_int_equal(device->ops->commit(device, base, 4 * page, 2 * page), TSR_OK);
    for (size_t i = 0; i < 2 * page; i++)
        assert_int_equal(base[4 * page + i], 0);
    memset(base + 4 * page, 0xee, 2 * page);
    assert_int_equal(device->ops->commit(device, base, 5 * page, 2 * page), TSR_OK); /* overlaps: kept */
    assert_int_equal(base[5 * page], 0xee);
    assert_int_equal(base[6 * page], 0);
    assert_int_equal(device->ops->decommit(device, base, 4 * page, page), TSR_OK);
    assert_int_equal(base[5 * page], 0xee); /* the neighbour is untouched */
    assert_int_equal(device->ops->commit(device, base, 4 * page, page), TSR_OK);
    assert_int_equal(base[4 * page], 0);
    assert_int_equal(device->ops->commit(device, base, 1, page), TSR_ERR_INVALID);
    assert_int_equal(device->ops->decommit(device, base, 0, page - 1), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "host:0"));
    device->ops->release(device, base, bytes);
    tsr_device_destroy(device);
}

static void memory_info_respects_the_cap(void **state)
{
    (void)state;
    tsr_host_device_config config = {
        .name = "host:0", .n_threads = 1, .numa_node = -1, .memory_cap = 1 << 20, .kernels = &tiny_kernels};
    tsr_device *device = NULL;
    assert_int_equal(tsr_host_device_create(&config, &device), TSR_OK);
    size_t available = 0, total = 0;
    void *memory = NULL;
    assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_KV, 1 << 18, "kv", &memory), TSR_OK);
    assert_int_equal(tsr_device_memory_info(device, &available, &total), TSR_OK);
    assert_int_equal(total, 1 << 20);
    assert_int_equal(available, (1 << 20) - (1 << 18));
    void *more = NULL;
    assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_KV, 1 << 20, "kv", &more), TSR_ERR_MEMORY);
    tsr_device_free(device, TSR_MEMORY_KV, memory, 1 << 18);
    tsr_device_destroy(device);

    device = tiny_device(0, 1, 0);
    assert_int_equal(tsr_device_memory_info(device, &available, &total), TSR_OK);
    assert_true(available > 0 && available <= total);
    tsr_device_destroy(device);
}

static void copies_are_two_dimensional(void **state)
{
    (void)state;
    const size_t shapes[][2] = {{1, 1}, {7, 5}, {0, 9}, {1000, 3000}, {4096, 512}}; /* width, height */
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        tsr_device *device = tiny_device(0, n_threads, 0);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            size_t width = shapes[s][0], height = shapes[s][1], stride = width + 24;
            unsigned char *from = malloc(stride * height), *to = calloc(stride * height, 1), *on = NULL;
            for (size_t i = 0; i < stride * height; i++)
                from[i] = (unsigned char)(tiny_hash(s, i) | 1);
            size_t bytes = width * height + 1;
            assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_OTHER, bytes, "copy", (void **)&on), TSR_OK);
            assert_int_equal(device->ops->upload(device, on, width, from, stride, width, height), TSR_OK);
            for (size_t row = 0; row < height; row++)
                assert_memory_equal(on + row * width, from + row * stride, width);
            assert_int_equal(on[width * height], 0); /* nothing past the end */
            assert_int_equal(device->ops->download(device, to, stride, on, width, width, height), TSR_OK);
            for (size_t row = 0; row < height; row++) {
                assert_memory_equal(to + row * stride, from + row * stride, width);
                for (size_t i = width; i < stride; i++)
                    assert_int_equal(to[row * stride + i], 0); /* nor between the rows */
            }
            memset(to, 0, stride * height);
            assert_int_equal(tsr_device_download(device, to, on, width * height), TSR_OK);
            assert_memory_equal(to, on, width * height);
            tsr_device_free(device, TSR_MEMORY_OTHER, on, bytes);
            free(from);
            free(to);
        }
        tsr_device_destroy(device);
    }
}

static void mapped_memory_is_used_in_place(void **state)
{
    (void)state;
    static const int weights[4] = {1, 2, 3, 4};
    tsr_device *device = tiny_device(0, 1, 0);
    const void *wrapped = NULL;
    assert_int_equal(device->ops->wrap(device, weights, sizeof weights, &wrapped), TSR_OK);
    assert_ptr_equal(wrapped, weights);
    device->ops->unwrap(device, wrapped, sizeof weights);
    tsr_device_destroy(device);
}

/* A chain of ops, each of which reads what other threads wrote in the op before. */
static void ops_run_in_order_on_the_whole_team(void **state)
{
    (void)state;
    enum { N = 1000, N_OPS = 12, RUNS = 300 };
    static float buffers[N_OPS + 1][N];
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        tsr_device *device = tiny_device(0, n_threads, 0);
        tsr_op ops[N_OPS];
        for (int i = 0; i < N_OPS; i++)
            ops[i] = scale_op("chain", buffers[i], buffers[i + 1], N, i % 2 ? 0.5f : 2.0f);
        tsr_device_program *program = program_of(device, ops, N_OPS);
        memset(ops, 0, sizeof ops); /* the list was copied */
        for (int run = 0; run < RUNS; run++) {
            for (int i = 0; i < N; i++)
                buffers[0][i] = (float)(run + i);
            assert_int_equal(device->ops->launch(device, program), TSR_OK);
            assert_int_equal(device->ops->synchronize(device, 0), TSR_OK);
            assert_memory_equal(buffers[0], buffers[N_OPS], sizeof buffers[0]);
        }
        device->ops->program_destroy(device, program);
        tsr_device_destroy(device);
    }
}

static void launches_queue_and_copies_wait_for_them(void **state)
{
    (void)state;
    enum { N = 64 };
    float a[N] = {0}, b[N] = {0}, out[N];
    a[0] = 1.0f;
    tsr_device *device = tiny_device(0, 2, 0);
    const tsr_op ops[] = {sleep_op("nap", 100), scale_op("there", a, b, N, 2.0f),
                          scale_op("back", b, a, N, 2.0f)};
    tsr_device_program *program = program_of(device, ops, 3);
    tsr_device_program *empty = program_of(device, NULL, 0);
    uint64_t start = tsr_clock_ns();
    for (int i = 0; i < 4; i++) {
        assert_int_equal(device->ops->launch(device, program), TSR_OK);
        assert_int_equal(device->ops->launch(device, empty), TSR_OK);
    }
    assert_true(tsr_clock_ns() - start < 350 * MS); /* the naps have not been waited for */
    assert_int_equal(tsr_device_download(device, out, a, sizeof a), TSR_OK);
    assert_true(out[0] == 256.0f);
    assert_int_equal(device->ops->synchronize(device, 0), TSR_OK);
    device->ops->program_destroy(device, program);
    device->ops->program_destroy(device, empty);
    device->ops->program_destroy(device, NULL);
    tsr_device_destroy(device);
}

static void the_queue_has_an_end(void **state)
{
    (void)state;
    tsr_device *device = tiny_device(0, 1, 0);
    const tsr_op nap = sleep_op("nap", 2);
    tsr_device_program *program = program_of(device, &nap, 1);
    int n_launched = 0;
    tsr_status status;
    while ((status = device->ops->launch(device, program)) == TSR_OK && n_launched < 1000)
        n_launched++;
    assert_int_equal(status, TSR_ERR_FULL);
    assert_true(n_launched >= 64);
    assert_non_null(strstr(tsr_last_error(), "host:0"));
    assert_int_equal(device->ops->synchronize(device, 0), TSR_OK);
    assert_int_equal(device->ops->launch(device, program), TSR_OK);
    device->ops->program_destroy(device, program); /* waits for it */
    tsr_device_destroy(device);
}

static void a_deadline_that_passes_names_the_op(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        tsr_device *device = tiny_device(0, n_threads, 0);
        const tsr_op nap = sleep_op("long_nap", 500);
        tsr_device_program *program = program_of(device, &nap, 1);
        assert_int_equal(device->ops->launch(device, program), TSR_OK);
        uint64_t start = tsr_clock_ns();
        assert_int_equal(device->ops->synchronize(device, 20 * MS), TSR_ERR_TIMEOUT);
        assert_true(tsr_clock_ns() - start >= 20 * MS);
        assert_non_null(strstr(tsr_last_error(), "host:0"));
        assert_non_null(strstr(tsr_last_error(), "long_nap"));
        assert_int_equal(device->ops->synchronize(device, 0), TSR_OK); /* it goes on meanwhile */
        device->ops->program_destroy(device, program);
        tsr_device_destroy(device);
    }
}

static void a_range_fault_names_the_first_op_once(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        tsr_device *device = tiny_device(5, n_threads, 0);
        const tsr_op ops[] = {sleep_op("fine", 0), fault_op("ffn_down.3"), fault_op("ffn_down.4"),
                              sleep_op("fine", 0)};
        tsr_device_program *bad = program_of(device, ops, 4), *good = program_of(device, ops, 1);
        for (int run = 0; run < 3; run++) {
            assert_int_equal(device->ops->launch(device, bad), TSR_OK);
            assert_int_equal(device->ops->launch(device, good), TSR_OK);
            assert_int_equal(device->ops->synchronize(device, 0), TSR_ERR_RANGE);
            assert_non_null(strstr(tsr_last_error(), "host:5"));
            assert_non_null(strstr(tsr_last_error(), "ffn_down.3"));
            assert_int_equal(device->ops->launch(device, good), TSR_OK);
            assert_int_equal(device->ops->synchronize(device, 0), TSR_OK);
        }
        device->ops->program_destroy(device, bad);
        device->ops->program_destroy(device, good);
        tsr_device_destroy(device);
    }
}

static void an_op_without_kernel_is_refused(void **state)
{
    (void)state;
    tsr_device *device = tiny_device(0, 1, 0);
    const tsr_op ops[] = {
        {.kind = TSR_OP_ATTENTION, .name = "attn.7"},
        {.kind = TSR_OP_NONE, .name = "nothing"},
        {.kind = TSR_OP_ALL_REDUCE, .name = "of nothing"},
        {.kind = TSR_OP_ATTENTION, .name = "wide heads", .attention.kv.k_dim = TSR_MAX_HEAD_DIM + 1}};
    for (int i = 0; i < 4; i++) {
        tsr_device_program *program = NULL;
        assert_int_equal(device->ops->program_create(device, &ops[i], 1, &program), TSR_ERR_UNSUPPORTED);
        assert_non_null(strstr(tsr_last_error(), ops[i].name));
        assert_null(program);
    }
    assert_non_null(strstr(tsr_last_error(), "1025 elements")); /* the last one, for its size */
    tsr_device_destroy(device);
}

/* -- pinning -- */

typedef struct pin_record {
    pthread_mutex_t mutex;
    pthread_t threads[8];
    int calls[8];
    int n_warnings;
} pin_record;

static tsr_status pin_all_but_the_last(void *user, int thread)
{
    pin_record *record = user;
    pthread_mutex_lock(&record->mutex);
    record->threads[thread] = pthread_self();
    record->calls[thread]++;
    pthread_mutex_unlock(&record->mutex);
    return thread == 7 ? TSR_ERR_DEVICE : TSR_OK;
}

static void count_warnings(tsr_log_level level, const char *text, void *user)
{
    if (level == TSR_LOG_WARN && strstr(text, "1 of 8"))
        ((pin_record *)user)->n_warnings++;
}

static void every_thread_pins_itself_once(void **state)
{
    (void)state;
    pin_record record = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    tsr_logger logger = {count_warnings, &record, TSR_LOG_DEBUG};
    tsr_host_device_config config = {.name = "host:0",
                                     .n_threads = 8,
                                     .numa_node = 0,
                                     .pin = pin_all_but_the_last,
                                     .pin_user = &record,
                                     .logger = &logger,
                                     .kernels = &tiny_kernels};
    tsr_device *device = NULL;
    assert_int_equal(tsr_host_device_create(&config, &device), TSR_OK);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(record.calls[i], 1);
        assert_false(pthread_equal(record.threads[i], pthread_self()));
        for (int j = 0; j < i; j++)
            assert_false(pthread_equal(record.threads[i], record.threads[j]));
    }
    assert_int_equal(record.n_warnings, 1);
    tsr_device_destroy(device);
}

/* -- economy -- */

static uint64_t process_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void idle_teams_sleep(void **state)
{
    (void)state;
    tsr_device *devices[3];
    for (int i = 0; i < 3; i++)
        devices[i] = tiny_device(i, 2, 0); /* each believes that it is alone, so it polls as long as it may */
    struct timespec pause = {0, 20 * MS};
    nanosleep(&pause, NULL);
    uint64_t before = process_cpu_ns();
    pause.tv_nsec = 200 * MS;
    nanosleep(&pause, NULL);
    assert_true(process_cpu_ns() - before < 20 * MS);
    for (int i = 0; i < 3; i++)
        tsr_device_destroy(devices[i]);
}

static void many_teams_share_few_processors(void **state)
{
    (void)state;
    enum { DEVICES = 9, THREADS = 3, N = 256, N_OPS = 50 };
    static float buffers[DEVICES][2][N];
    tsr_device *devices[DEVICES];
    tsr_device_program *programs[DEVICES];
    for (int d = 0; d < DEVICES; d++) {
        devices[d] = tiny_device(d, THREADS, DEVICES * THREADS);
        tsr_op ops[N_OPS];
        for (int i = 0; i < N_OPS; i++)
            ops[i] = scale_op("many", buffers[d][i % 2], buffers[d][1 - i % 2], N, i % 4 < 2 ? 2.0f : 0.5f);
        programs[d] = program_of(devices[d], ops, N_OPS - N_OPS % 4);
        for (int i = 0; i < N; i++)
            buffers[d][0][i] = (float)(d * N + i);
    }
    for (int run = 0; run < 20; run++) {
        for (int d = 0; d < DEVICES; d++)
            assert_int_equal(devices[d]->ops->launch(devices[d], programs[d]), TSR_OK);
        for (int d = 0; d < DEVICES; d++)
            assert_int_equal(devices[d]->ops->synchronize(devices[d], 0), TSR_OK);
    }
    for (int d = 0; d < DEVICES; d++) {
        for (int i = 0; i < N; i++)
            assert_true(buffers[d][0][i] == (float)(d * N + i));
        devices[d]->ops->program_destroy(devices[d], programs[d]);
        tsr_device_destroy(devices[d]);
    }
}

/* -- failures -- */

static tsr_status use_a_device(void)
{
    tsr_status status = TSR_OK;
    tsr_device *device = NULL;
    tsr_device_program *program = NULL;
    void *memory = NULL, *base = NULL;
    const tsr_op nap = sleep_op("nap", 0);
    tsr_host_device_config config = {.name = "host:0", .n_threads = 3, .kernels = &tiny_kernels};

    TSR_TRY(tsr_host_device_create(&config, &device));
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_ARENA, 5000, "arena", &memory));
    TSR_TRY(device->ops->reserve(device, 65536, &base));
    TSR_TRY(device->ops->commit(device, base, 0, device->granularity));
    TSR_TRY(device->ops->program_create(device, &nap, 1, &program));
    TSR_TRY(device->ops->launch(device, program));
    TSR_TRY(device->ops->synchronize(device, 0));
    TSR_TRY(device->ops->decommit(device, base, 0, device->granularity));
out:
    if (device) {
        device->ops->program_destroy(device, program);
        if (base)
            device->ops->release(device, base, 65536);
        tsr_device_free(device, TSR_MEMORY_ARENA, memory, 5000);
        assert_int_equal(tsr_device_used(device), 0);
    }
    tsr_device_destroy(device);
    return status;
}

static void each_allocation_and_thread_can_be_refused(void **state)
{
    (void)state;
    bool done = false;
    int n = 1;
    for (; !done; n++) {
        int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        failing_alloc_set(n);
        tsr_status status = use_a_device();
        done = !failing_alloc_fired();
        failing_alloc_set(0);
        if (done)
            assert_int_equal(status, TSR_OK);
        else
            assert_true(status == TSR_ERR_MEMORY || status == TSR_ERR_DEVICE); /* the latter from decommit */
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
    }
    assert_true(n > 12); /* three threads, three maps or protections, six blocks at least */
}

static void too_much_memory_is_an_error_with_a_name(void **state)
{
    (void)state;
    tsr_device *device = tiny_device(0, 1, 0);
    void *memory = NULL;
    size_t too_much = (size_t)1 << 62;
    assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_WEIGHTS, too_much, "weights", &memory),
                     TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "host:0"));
    assert_int_equal(device->ops->reserve(device, too_much, &memory), TSR_ERR_MEMORY);
    assert_null(memory);
    assert_int_equal(tsr_device_used(device), 0);
    tsr_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_knows_its_configuration),
        cmocka_unit_test(bad_configurations_are_refused),
        cmocka_unit_test(memory_is_aligned_zeroed_and_accounted),
        cmocka_unit_test(decommitted_memory_comes_back_zeroed),
        cmocka_unit_test(memory_info_respects_the_cap),
        cmocka_unit_test(copies_are_two_dimensional),
        cmocka_unit_test(mapped_memory_is_used_in_place),
        cmocka_unit_test(ops_run_in_order_on_the_whole_team),
        cmocka_unit_test(launches_queue_and_copies_wait_for_them),
        cmocka_unit_test(the_queue_has_an_end),
        cmocka_unit_test(a_deadline_that_passes_names_the_op),
        cmocka_unit_test(a_range_fault_names_the_first_op_once),
        cmocka_unit_test(an_op_without_kernel_is_refused),
        cmocka_unit_test(every_thread_pins_itself_once),
        cmocka_unit_test(idle_teams_sleep),
        cmocka_unit_test(many_teams_share_few_processors),
        cmocka_unit_test(each_allocation_and_thread_can_be_refused),
        cmocka_unit_test(too_much_memory_is_an_error_with_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
