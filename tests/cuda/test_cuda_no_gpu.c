/* A build with the CUDA device on a machine without a GPU, or with a driver that fails: host devices do the
 * work, and one line says so if there is a driver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/runtime.h>

#include "support/runner.h"

typedef struct heard {
    int n; /* messages that speak of GPUs */
    char text[512];
} heard;

static void listen(tsr_log_level level, const char *message, void *user)
{
    heard *h = user;
    if (level > TSR_LOG_WARN || !strstr(message, "GPU"))
        return;
    h->n++;
    snprintf(h->text, sizeof h->text, "%s", message);
}

/* reason NULL: nothing is said, since nothing is missing. */
static void check_host_goes_on(const char *reason)
{
    heard h = {0};
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_device_info info;
    tsr_runtime *rt = NULL;
    config.logger = (tsr_logger){.fn = listen, .user = &h, .max_level = TSR_LOG_WARN};
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    runner_ok(tsr_runtime_device(rt, 0, &info), "device");
    assert_int_equal(info.kind, TSR_DEVICE_HOST);
    tsr_runtime_close(rt);
    assert_int_equal(h.n, reason != NULL);
    if (reason) {
        assert_non_null(strstr(h.text, "no GPU is usable"));
        assert_non_null(strstr(h.text, "host devices"));
        assert_non_null(strstr(h.text, reason));
        assert_null(strchr(h.text, '\n'));
    }

    config.devices = "cuda"; /* who asks for a GPU gets no host device instead */
    rt = NULL;
    assert_int_not_equal(tsr_runtime_open(&config, &rt), TSR_OK);
    assert_null(rt);
    assert_non_null(strstr(tsr_last_error(), "no GPU is usable"));
    assert_null(strchr(tsr_last_error(), '\n'));
}

static void a_machine_without_gpus_runs_on_the_host(void **state)
{
    (void)state;
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = 0;
    cudasim_configure(&config);
    check_host_goes_on(NULL);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

static void a_driver_that_does_not_start(void **state)
{
    (void)state;
    cudasim_configure(NULL);
    for (int i = 0; i < 10; i++)
        cudasim_fail_named("cudaGetDeviceCount", 1, cudaErrorInitializationError);
    check_host_goes_on("initialization error; check nvidia-smi");
}

static void a_driver_older_than_the_runtime(void **state)
{
    (void)state;
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.driver_version = 12040;
    cudasim_configure(&config);
    check_host_goes_on(
        "the NVIDIA driver supports CUDA 12.4 and this build needs 13.0 (driver 580 or newer); "
        "update the driver, or build with CUDA 12");
    assert_int_equal(cudasim_leaks(stderr), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_without_gpus_runs_on_the_host),
        cmocka_unit_test(a_driver_that_does_not_start),
        cmocka_unit_test(a_driver_older_than_the_runtime),
    };
    return cmocka_run_group_tests_name("no GPU", tests, NULL, NULL);
}
