/* Memory of CUDA devices on simulated machines: what peers may reach, growing without virtual memory, managed
 * memory, host memory read in place, and the caller's current device, which no function may change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/runtime.h>

#include "core/mem.h"
#include "cuda/device/device.h"
#include "cuda/comm/peer.h"
#include "runtime/device_props.h"
#include "support/failing_alloc.h"

enum { MIB = 1 << 20, GRANULE = 64 << 10, PAGE = 4096 };

static void ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s: %s", tsr_status_name(status), tsr_last_error());
}

static void machine(const cudasim_config *config)
{
    cudasim_configure(config);
}

static void plain_machine(int n_devices)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = 64 * MIB;
    machine(&config);
}

typedef struct log_lines {
    int n;
    char text[2048];
} log_lines;

static void note_line(tsr_log_level level, const char *line, void *user)
{
    log_lines *log = user;
    (void)level;
    log->n++;
    snprintf(log->text + strlen(log->text), sizeof log->text - strlen(log->text), "%s\n", line);
}

/* `config` has what the test is about; names are cuda0, cuda1... */
static tsr_device *open_with(int ordinal, int index, tsr_cuda_device_config config, log_lines *log)
{
    char name[16];
    tsr_logger logger = {.fn = note_line, .user = log, .max_level = TSR_LOG_DEBUG};
    tsr_device *device = NULL;
    snprintf(name, sizeof name, "cuda%d", index);
    config.name = name;
    config.ordinal = ordinal;
    config.index = index;
    config.logger = log ? &logger : NULL;
    ok(tsr_cuda_device_create(&config, &device));
    return device;
}

static tsr_device *open_device(int ordinal, int index)
{
    return open_with(ordinal, index, (tsr_cuda_device_config){0}, NULL);
}

static void nothing_is_left(void)
{
    assert_int_equal(cudasim_leaks(stderr), 0);
    assert_string_equal(cudasim_violation(), "");
}

static void *alloc(tsr_device *device, size_t bytes)
{
    void *pointer = NULL;
    ok(tsr_device_alloc(device, TSR_MEMORY_COMM, bytes, "a test", &pointer));
    return pointer;
}

static void drop(tsr_device *device, void *pointer, size_t bytes)
{
    tsr_device_free(device, TSR_MEMORY_COMM, pointer, bytes);
}

/* y = 2 x by a kernel of `device`. */
static tsr_status double_it(tsr_device *device, const float *x, float *y, int n)
{
    tsr_status status = TSR_OK;
    tsr_device_program *program = NULL;
    const tsr_op op = {.kind = TSR_OP_SCALE, .name = "doubled", .scale = {x, y, n, 2.0f}};
    TSR_TRY(device->ops->program_create(device, &op, 1, &program));
    TSR_TRY(device->ops->launch(device, program));
    TSR_TRY(device->ops->synchronize(device, 0));
out:
    device->ops->program_destroy(device, program);
    return status;
}

/* -- allocations and peers -- */

static void large_allocations_are_whole_granules_and_small_ones_are_not(void **state)
{
    (void)state;
    plain_machine(1);
    tsr_device *device = open_device(0, 0);
    size_t before = cudasim_used(0);
    uint64_t mapped = cudasim_calls_of("cuMemMap");
    void *large = alloc(device, 5 * GRANULE + 1), *small = alloc(device, 100);
    assert_int_equal(cudasim_calls_of("cuMemMap") - mapped, 1); /* however large */
    assert_int_equal(cudasim_used(0) - before, 6 * GRANULE + 512);
    assert_int_equal(device->used[TSR_MEMORY_COMM], 5 * GRANULE + 101);
    drop(device, large, 5 * GRANULE + 1);
    drop(device, small, 100);
    assert_int_equal(cudasim_used(0), before);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void let_peers(tsr_device *const *devices, int n)
{
    uint64_t reach[8];
    ok(tsr_cuda_peers_test(devices, n, NULL, reach));
    for (int d = 0; d < n; d++)
        assert_int_equal(reach[d] | (uint64_t)1 << d, ((uint64_t)1 << n) - 1);
}

/* Memory that one device allocates, before and after peers are let in, is read and written by the others'
 * kernels and copies. */
static void peers_reach_allocations_of_every_size_and_age(void **state)
{
    (void)state;
    static const int counts[] = {2, 3, 5, 8};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int n = counts[c];
        enum { SMALL = 100, LARGE = 3 * GRANULE / 4 };
        tsr_device *devices[8];
        float *old[8], *fresh[8], *small[8], value = 3;
        plain_machine(n);
        for (int d = 0; d < n; d++) {
            devices[d] = open_device(d, d);
            old[d] = alloc(devices[d], LARGE * 4);
        }
        let_peers(devices, n);
        for (int d = 0; d < n; d++) {
            fresh[d] = alloc(devices[d], LARGE * 4);
            small[d] = alloc(devices[d], SMALL * 4);
        }
        for (int d = 0; d < n; d++) {
            int e = (d + 1) % n;
            float there[3] = {0};
            ok(tsr_device_upload(devices[d], old[d] + LARGE - 1, &value, 4));
            ok(tsr_device_download(devices[d], &value, old[d] + LARGE - 1, 4));     /* it has arrived */
            ok(double_it(devices[e], old[d] + LARGE - 1, fresh[d] + LARGE - 1, 1)); /* all of it elsewhere */
            ok(double_it(devices[e], fresh[d] + LARGE - 1, small[d], 1));
            ok(tsr_device_copy(devices[e], fresh[e], small[d], 4));
            ok(tsr_device_download(devices[d], &there[0], fresh[d] + LARGE - 1, 4));
            ok(tsr_device_download(devices[d], &there[1], small[d], 4));
            ok(tsr_device_download(devices[e], &there[2], fresh[e], 4));
            assert_true(there[0] == 6 && there[1] == 12 && there[2] == 12);
        }
        for (int d = 0; d < n; d++) {
            drop(devices[d], old[d], LARGE * 4);
            drop(devices[d], fresh[d], LARGE * 4);
            drop(devices[d], small[d], SMALL * 4);
            tsr_device_destroy(devices[d]);
        }
        nothing_is_left();
    }
}

static void a_growing_region_is_its_devices_own(void **state)
{
    (void)state;
    plain_machine(2);
    tsr_device *devices[2] = {open_device(0, 0), open_device(1, 1)};
    float *base = NULL, *there = NULL;
    let_peers(devices, 2);
    there = alloc(devices[1], 4);
    ok(devices[0]->ops->reserve(devices[0], 4 * GRANULE, (void **)&base));
    ok(devices[0]->ops->commit(devices[0], base, 0, GRANULE));
    assert_int_equal(double_it(devices[1], base, there, 1), TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(cudasim_violation(), "no access (cuMemSetAccess)"));
    cudasim_forget_violations();
    devices[0]->ops->release(devices[0], base, 4 * GRANULE);
    drop(devices[1], there, 4);
    tsr_device_destroy(devices[0]);
    tsr_device_destroy(devices[1]);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

/* -- without virtual memory, and managed -- */

static void check_growth(tsr_device *device)
{
    size_t g = device->granularity;
    unsigned char *base = NULL, byte = 7, *page = malloc(g);
    ok(device->ops->reserve(device, 16 * g, (void **)&base));
    ok(device->ops->commit(device, base, 2 * g, 2 * g));
    ok(tsr_device_download(device, page, base + 3 * g, g));
    for (size_t i = 0; i < g; i++)
        assert_int_equal(page[i], 0);
    ok(tsr_device_upload(device, base + 2 * g, &byte, 1));
    ok(device->ops->commit(device, base, 0, 4 * g)); /* what was there keeps its bytes */
    ok(tsr_device_download(device, page, base + 2 * g, 1));
    assert_int_equal(page[0], 7);
    ok(device->ops->decommit(device, base, 2 * g, g));
    ok(device->ops->commit(device, base, 2 * g, g));
    ok(tsr_device_download(device, page, base + 2 * g, 1));
    assert_int_equal(page[0], 0);
    device->ops->release(device, base, 16 * g);
    free(page);
}

static void without_virtual_memory_everything_works_and_the_log_says_so(void **state)
{
    (void)state;
    log_lines log = {0};
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.no_vmm = true;
    machine(&config);
    tsr_device *device = open_with(0, 0, (tsr_cuda_device_config){0}, &log);
    assert_non_null(strstr(log.text, "cuda0"));
    assert_non_null(strstr(log.text, "no virtual memory"));
    check_growth(device);
    float *x = alloc(device, MIB), value = 2;
    ok(tsr_device_upload(device, x, &value, 4));
    ok(double_it(device, x, x + 1, 1));
    drop(device, x, MIB);
    assert_int_equal(cudasim_calls_of("cuMemCreate"), 0);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void managed_memory_may_exceed_the_gpu_and_says_what_it_costs(void **state)
{
    (void)state;
    log_lines log = {0};
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.memory = 16 * MIB;
    machine(&config);
    tsr_cuda_device_config managed = {.managed = true, .memory_cap = 64 * MIB};
    tsr_device *device = open_with(0, 0, managed, &log);
    assert_non_null(strstr(log.text, "crosses the bus"));
    assert_int_equal(device->memory_cap, 64 * MIB);
    size_t left, total;
    float *x = alloc(device, 40 * MIB), value = 5;
    ok(tsr_device_memory_info(device, &left, &total));
    assert_int_equal(left, 24 * MIB);
    assert_int_equal(total, 64 * MIB);
    ok(tsr_device_upload(device, x + 9 * MIB, &value, 4));
    ok(double_it(device, x + 9 * MIB, x, 1));
    ok(tsr_device_download(device, &value, x, 4));
    assert_true(value == 10);
    drop(device, x, 40 * MIB);
    check_growth(device);
    assert_int_equal(cudasim_calls_of("cuMemCreate"), 0);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void a_cap_is_at_most_what_is_free(void **state)
{
    (void)state;
    log_lines log = {0};
    plain_machine(1);
    tsr_device *first = open_device(0, 0);
    void *taken = alloc(first, 40 * MIB);
    tsr_device *second = open_with(0, 1, (tsr_cuda_device_config){.memory_cap = 32 * MIB}, &log);
    assert_true(second->memory_cap <= 24 * MIB && second->memory_cap > 23 * MIB);
    assert_non_null(strstr(log.text, "cuda1"));
    assert_non_null(strstr(log.text, "free"));
    tsr_device_destroy(second);
    drop(first, taken, 40 * MIB);
    tsr_device_destroy(first);
    nothing_is_left();
}

/* What a plan from descriptions counts on is what the opened devices have, also where they share a GPU. */
static void a_plan_and_a_runtime_see_the_same_cap(void **state)
{
    (void)state;
    static const char text[] =
        "cuda:0,cuda:0,mem=20MiB,cuda:0,cuda:1,cuda:2,mem=30MiB,cuda:2,managed=1,mem=1GiB";
    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    tsr_runtime *rt = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    uint64_t on_first = 0;
    plain_machine(3);
    ok(tsr_topology_discover(NULL, &topo));
    ok(tsr_device_list_create(topo, text, NULL, &list));
    config.devices = text;
    config.topology = topo;
    config.collectives = "staged"; /* which takes no memory on devices */
    ok(tsr_runtime_open(&config, &rt));
    assert_int_equal(tsr_runtime_n_devices(rt), 6);
    for (int d = 0; d < 6; d++) {
        tsr_device_info info;
        tsr_device_props props;
        ok(tsr_runtime_device(rt, d, &info));
        tsr_device_props_of_desc(&list->devices[d], &props);
        assert_int_equal(info.memory_cap, props.memory_cap);
        on_first += d < 3 ? info.memory_cap : 0;
        if (d == 3) /* alone on its GPU */
            assert_int_equal(info.memory_cap, 63 * MIB);
    }
    assert_true(on_first <= 63 * MIB && on_first > 62 * MIB);
    tsr_runtime_close(rt);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
    nothing_is_left();
}

/* -- host memory in place -- */

/* A file's pages, as if it were mapped for reading; `bytes` of it count up from 1. */
static float *map_file(size_t bytes)
{
    float *file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(file != MAP_FAILED);
    for (size_t i = 0; i < bytes / 4; i++)
        file[i] = (float)(i + 1);
    assert_int_equal(mprotect(file, bytes, PROT_READ), 0);
    return file;
}

/* The first float of the wrapped memory, as a kernel sees it, doubled. */
static float seen(tsr_device *device, const void *wrapped)
{
    float *y = alloc(device, 4), value = 0;
    ok(double_it(device, wrapped, y, 1));
    ok(tsr_device_download(device, &value, y, 4));
    drop(device, y, 4);
    return value;
}

static void machine_that_wraps(int n_devices, bool registers, bool read_only)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.integrated = true;
    config.registers = registers;
    config.register_read_only = read_only;
    machine(&config);
}

static void pages_are_registered_once_however_tensors_lie(void **state)
{
    (void)state;
    for (int read_only = 0; read_only < 2; read_only++) {
        float *file = map_file(16 * PAGE);
        const unsigned char *bytes = (const unsigned char *)file;
        const void *a, *b, *c, *d;
        machine_that_wraps(1, true, read_only);
        tsr_device *device = open_device(0, 0);
        ok(device->ops->wrap(device, bytes + 100, 5000, &a));              /* pages 0, 1 */
        ok(device->ops->wrap(device, bytes + 5100, 300, &b));              /* page 1 */
        ok(device->ops->wrap(device, bytes + 6 * PAGE + 4, 2 * PAGE, &c)); /* pages 6 to 8 */
        ok(device->ops->wrap(device, bytes + 4, 16 * PAGE - 4, &d));       /* all: the gaps are added */
        assert_true(seen(device, a) == 2 * 26 && seen(device, b) == 2 * 1276);
        assert_true(seen(device, c) == 2 * (6 * PAGE / 4 + 2) && seen(device, d) == 4);
        device->ops->unwrap(device, d, 16 * PAGE - 4);
        assert_true(seen(device, a) == 2 * 26);
        device->ops->unwrap(device, a, 5000);
        assert_true(seen(device, b) == 2 * 1276); /* page 1 stays */
        device->ops->unwrap(device, c, 2 * PAGE);
        device->ops->unwrap(device, b, 300);
        assert_int_equal(cudasim_leaks(NULL) > 0, 1); /* the device itself */
        tsr_device_destroy(device);
        assert_true(file[0] == 1); /* unregistered, not freed */
        munmap(file, 16 * PAGE);
        nothing_is_left();
    }
}

static void a_coherent_gpu_needs_no_registration(void **state)
{
    (void)state;
    float *file = map_file(PAGE);
    const void *wrapped;
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.coherent = true;
    machine(&config);
    tsr_device *device = open_device(0, 0);
    ok(device->ops->wrap(device, file + 3, 100, &wrapped));
    assert_ptr_equal(wrapped, file + 3);
    assert_true(seen(device, wrapped) == 8);
    assert_true(device->prefers_copies); /* its own memory is faster */
    assert_int_equal(cudasim_calls_of("cudaHostRegister"), 0);
    device->ops->unwrap(device, wrapped, 100);
    tsr_device_destroy(device);
    munmap(file, PAGE);
    nothing_is_left();
}

static void devices_of_a_runtime_share_what_is_registered(void **state)
{
    (void)state;
    float *file = map_file(4 * PAGE);
    const void *a, *b;
    machine_that_wraps(2, true, true);
    tsr_device *first = open_device(0, 0);
    tsr_device *second = open_with(1, 1, (tsr_cuda_device_config){.sibling = first}, NULL);
    assert_false(first->prefers_copies);
    ok(first->ops->wrap(first, file, 2 * PAGE, &a));
    ok(second->ops->wrap(second, file + PAGE / 4, 3 * PAGE, &b)); /* shares a page */
    assert_int_equal(cudasim_calls_of("cudaHostRegister"), 2);
    first->ops->unwrap(first, a, 2 * PAGE);
    tsr_device_destroy(first);
    assert_true(seen(second, b) == 2 * (PAGE / 4 + 1));
    second->ops->unwrap(second, b, 3 * PAGE);
    tsr_device_destroy(second);
    munmap(file, 4 * PAGE);
    nothing_is_left();
}

static void memory_that_the_caller_registered_is_used_and_left(void **state)
{
    (void)state;
    float *file = map_file(4 * PAGE);
    const void *wrapped = NULL;
    machine_that_wraps(1, true, true);
    tsr_device *device = open_device(0, 0);
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    assert_int_equal(cudaHostRegister(file, 4 * PAGE, flags), cudaSuccess);
    ok(device->ops->wrap(device, file + 1, PAGE, &wrapped));
    assert_true(seen(device, wrapped) == 4);
    device->ops->unwrap(device, wrapped, PAGE);
    assert_int_equal(cudaHostUnregister(file), cudaSuccess); /* still was */
    /* In part: nothing can be done about the rest. */
    assert_int_equal(cudaHostRegister(file, PAGE, flags), cudaSuccess);
    assert_int_equal(device->ops->wrap(device, file, 2 * PAGE, &wrapped), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "cuda0"));
    assert_non_null(strstr(tsr_last_error(), "registered with CUDA already"));
    assert_int_equal(cudaHostUnregister(file), cudaSuccess);
    tsr_device_destroy(device);
    munmap(file, 4 * PAGE);
    nothing_is_left();
}

static void a_discrete_card_is_forced_and_the_log_says_what_a_token_costs(void **state)
{
    (void)state;
    enum { BYTES = 50 * PAGE };
    log_lines log = {0};
    float *file = map_file(BYTES);
    const void *wrapped;
    plain_machine(1);
    tsr_device *device = open_device(0, 0);
    assert_true(device->prefers_copies);
    assert_int_equal(device->ops->wrap(device, file, BYTES, &wrapped), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "wrap=1"));
    tsr_device_destroy(device);

    tsr_cuda_device_config forced = {.always_wrap = true, .link_bytes_per_s = 20.48e9};
    device = open_with(0, 0, forced, &log);
    assert_false(device->prefers_copies);
    ok(device->ops->wrap(device, file, BYTES, &wrapped));
    assert_true(seen(device, wrapped) == 2);
    assert_true(seen(device, wrapped) == 2);
    assert_int_equal(log.n, 1); /* once */
    assert_non_null(strstr(log.text, "200 KiB"));
    assert_non_null(strstr(log.text, "0.01 ms"));
    assert_non_null(strstr(log.text, "20.5 GB/s"));
    device->ops->unwrap(device, wrapped, BYTES);
    tsr_device_destroy(device);
    munmap(file, BYTES);
    nothing_is_left();
}

static void wrapped_memory_is_never_written(void **state)
{
    (void)state;
    float *file = map_file(4 * PAGE), value = -1;
    const void *wrapped;
    machine_that_wraps(1, true, false);
    tsr_device *device = open_device(0, 0);
    ok(device->ops->wrap(device, file + 8, 2 * PAGE, &wrapped));
    void *dst = (void *)(uintptr_t)wrapped, *mine = alloc(device, 64);
    assert_int_equal(tsr_device_upload(device, (char *)dst + 2 * PAGE - 4, &value, 4), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "cuda0"));
    assert_non_null(strstr(tsr_last_error(), "never written"));
    assert_int_equal(device->ops->upload(device, (char *)dst - 64, 64, &value, 4, 4, 2), TSR_ERR_INVALID);
    assert_int_equal(tsr_device_copy(device, dst, mine, 4), TSR_ERR_INVALID);
    ok(tsr_device_copy(device, mine, dst, 64));
    assert_true(file[8] == 9);
    device->ops->unwrap(device, wrapped, 2 * PAGE);
    drop(device, mine, 64);
    tsr_device_destroy(device);
    munmap(file, 4 * PAGE);
    nothing_is_left();
}

/* -- trouble -- */

static tsr_status wrap_some(tsr_device *device, float *file)
{
    tsr_status status = TSR_OK;
    const void *a = NULL, *b = NULL;
    TSR_TRY(device->ops->wrap(device, file + PAGE, 100, &a)); /* page 4 */
    TSR_TRY(device->ops->wrap(device, file, 16 * PAGE, &b));  /* two gaps */
out:
    if (b)
        device->ops->unwrap(device, b, 16 * PAGE);
    if (a)
        device->ops->unwrap(device, a, 100);
    return status;
}

static void every_call_of_wrapping_may_fail(void **state)
{
    (void)state;
    float *file = map_file(16 * PAGE);
    machine_that_wraps(1, true, true);
    tsr_device *device = open_device(0, 0);
    int64_t blocks = failing_alloc_live();
    uint64_t before = cudasim_calls(), n_failed = 0;
    ok(wrap_some(device, file));
    uint64_t n_calls = cudasim_calls() - before;
    int left = cudasim_leaks(NULL);
    for (uint64_t call = 0; call < n_calls; call++) {
        cudasim_fail_call(cudasim_calls() + call, 0);
        tsr_status status = wrap_some(device, file);
        cudasim_clear_faults();
        n_failed += status != TSR_OK;
        if (status != TSR_OK)
            assert_non_null(strstr(tsr_last_error(), "cuda0"));
        assert_int_equal(cudasim_leaks(NULL), left);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    assert_true(n_failed > 5);
    for (int n = 1, fired = 1; fired; n++) {
        failing_alloc_set(n);
        tsr_status status = wrap_some(device, file);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_true(status == TSR_OK || status == TSR_ERR_MEMORY);
        assert_int_equal(cudasim_leaks(NULL), left);
    }
    tsr_device_destroy(device);
    munmap(file, 16 * PAGE);
    nothing_is_left();
}

static void expect_current(int expected, const char *after)
{
    int current = -1;
    assert_int_equal(cudaGetDevice(&current), cudaSuccess);
    if (current != expected)
        fail_msg("the current device is %d after %s", current, after);
}

#define STAYS(call)                        \
    do {                                   \
        tsr_status stays_status = (call);  \
        assert_int_equal(stays_status, 0); \
        expect_current(1, #call);          \
    } while (0)

#define STAYS_VOID(call)          \
    do {                          \
        call;                     \
        expect_current(1, #call); \
    } while (0)

static void the_callers_device_stays_current(void **state)
{
    (void)state;
    float *file = map_file(PAGE), value = 1;
    const void *wrapped;
    void *x = NULL, *base = NULL;
    size_t left, total;
    tsr_device *device = NULL;
    tsr_device_program *program = NULL;
    machine_that_wraps(2, true, true);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    tsr_cuda_device_config config = {.name = "cuda0"};
    STAYS(tsr_cuda_device_create(&config, &device));
    const struct tsr_device_ops *ops = device->ops;
    STAYS(ops->alloc(device, MIB, &x));
    STAYS(ops->reserve(device, 4 * GRANULE, &base));
    STAYS(ops->commit(device, base, 0, GRANULE));
    STAYS(ops->decommit(device, base, 0, GRANULE));
    STAYS_VOID(ops->release(device, base, 4 * GRANULE));
    STAYS(tsr_device_memory_info(device, &left, &total));
    STAYS(ops->wrap(device, file, 100, &wrapped));
    STAYS_VOID(ops->unwrap(device, wrapped, 100));
    STAYS(tsr_device_upload(device, x, &value, 4));
    STAYS(tsr_device_download(device, &value, x, 4));
    STAYS(tsr_device_copy(device, (char *)x + 64, x, 4));
    const tsr_op op = {.kind = TSR_OP_SCALE, .name = "doubled", .scale = {x, x, 1, 2.0f}};
    STAYS(ops->program_create(device, &op, 1, &program));
    STAYS(ops->launch(device, program));
    STAYS(ops->synchronize(device, 0));
    STAYS_VOID(ops->program_destroy(device, program));
    STAYS_VOID(ops->free(device, x, MIB));
    /* and where they fail */
    assert_int_equal(ops->alloc(device, (size_t)1 << 40, &x), TSR_ERR_MEMORY);
    expect_current(1, "a failed allocation");
    config.memory_cap = 1;
    cudasim_fail_named("cudaMemGetInfo", 1, 0);
    tsr_device *none = NULL;
    assert_true(tsr_cuda_device_create(&config, &none) != TSR_OK);
    expect_current(1, "a failed open");
    STAYS_VOID(tsr_device_destroy(device));
    munmap(file, PAGE);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_allocations_are_whole_granules_and_small_ones_are_not),
        cmocka_unit_test(peers_reach_allocations_of_every_size_and_age),
        cmocka_unit_test(a_growing_region_is_its_devices_own),
        cmocka_unit_test(without_virtual_memory_everything_works_and_the_log_says_so),
        cmocka_unit_test(managed_memory_may_exceed_the_gpu_and_says_what_it_costs),
        cmocka_unit_test(a_cap_is_at_most_what_is_free),
        cmocka_unit_test(a_plan_and_a_runtime_see_the_same_cap),
        cmocka_unit_test(pages_are_registered_once_however_tensors_lie),
        cmocka_unit_test(a_coherent_gpu_needs_no_registration),
        cmocka_unit_test(devices_of_a_runtime_share_what_is_registered),
        cmocka_unit_test(memory_that_the_caller_registered_is_used_and_left),
        cmocka_unit_test(a_discrete_card_is_forced_and_the_log_says_what_a_token_costs),
        cmocka_unit_test(wrapped_memory_is_never_written),
        cmocka_unit_test(every_call_of_wrapping_may_fail),
        cmocka_unit_test(the_callers_device_stays_current),
    };
    return cmocka_run_group_tests_name("the memory of CUDA devices", tests, NULL, NULL);
}
