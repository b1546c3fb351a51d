/* Opening a GPU that the build has no machine code for: the driver compiles all kernels, and a line says so
 * before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <cudasim.h>

#include <tsr/runtime.h>

#include "support/runner.h"

typedef struct heard {
    char text[512];  /* the line about compilation; empty: none yet */
    uint64_t loaded; /* kernels that were loaded before it */
} heard;

static void listen(tsr_log_level level, const char *message, void *user)
{
    heard *h = user;
    if (level != TSR_LOG_WARN || !strstr(message, "compiles the kernels"))
        return;
    h->loaded = cudasim_calls_of("cudaFuncGetAttributes");
    snprintf(h->text, sizeof h->text, "%s", message);
}

static heard open_gpu(int compute_capability)
{
    heard h = {.loaded = 0};
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    machine.compute_capability = compute_capability;
    cudasim_configure(&machine);
    config.devices = "cuda:0";
    config.logger = (tsr_logger){.fn = listen, .user = &h, .max_level = TSR_LOG_WARN};
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    tsr_runtime_close(rt);
    assert_int_equal(cudasim_leaks(stderr), 0);
    return h;
}

static void compilation_by_the_driver_is_announced(void **state)
{
    (void)state;
    static const int later[] = {87, 100, 110, 120, 121}; /* 8.7 is not a later 8.0: it is a Tegra */
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        char option[64];
        const heard h = open_gpu(later[i]);
        snprintf(option, sizeof option, "CMAKE_CUDA_ARCHITECTURES=%d", later[i]);
        assert_non_null(strstr(h.text, "cuda0"));
        assert_non_null(strstr(h.text, "minutes"));
        assert_non_null(strstr(h.text, option));
        assert_int_equal(h.loaded, 0);
    }
}

/* Simulated builds are for 8.0 and 9.0, whose code runs on the minor versions after them. */
static void machine_code_is_loaded_without_a_word(void **state)
{
    (void)state;
    static const int built_for[] = {80, 86, 89, 90};
    for (size_t i = 0; i < sizeof built_for / sizeof *built_for; i++)
        assert_string_equal(open_gpu(built_for[i]).text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compilation_by_the_driver_is_announced),
        cmocka_unit_test(machine_code_is_loaded_without_a_word),
    };
    return cmocka_run_group_tests_name("machine code", tests, NULL, NULL);
}
