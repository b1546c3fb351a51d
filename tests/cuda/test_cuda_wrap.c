/* Host memory that CUDA devices of simulated machines read in place: what is registered with CUDA and for how
 * long, on which cards, what it costs, and that it is never written. */
#include "cuda/memory_run.h"
#include "support/failing_alloc.h"

/* The first float of the wrapped memory, as a kernel sees it, doubled. */
static float seen(tsr_device *device, const void *wrapped)
{
    float *y = alloc(device, 4), value = 0;
    ok(double_it(device, wrapped, y, 1));
    ok(tsr_device_download(device, &value, y, 4));
    drop(device, y, 4);
    return value;
}

static void pages_are_registered_once_however_tensors_share_them(void **state)
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
    cudasim_configure(&config);
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
    assert_true(first->prefers_copies); /* views are slower until a measurement says otherwise */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_registered_once_however_tensors_share_them),
        cmocka_unit_test(a_coherent_gpu_needs_no_registration),
        cmocka_unit_test(devices_of_a_runtime_share_what_is_registered),
        cmocka_unit_test(memory_that_the_caller_registered_is_used_and_left),
        cmocka_unit_test(a_discrete_card_is_forced_and_the_log_says_what_a_token_costs),
        cmocka_unit_test(wrapped_memory_is_never_written),
        cmocka_unit_test(every_call_of_wrapping_may_fail),
    };
    return cmocka_run_group_tests_name("host memory in place", tests, NULL, NULL);
}
