/* Linked with programs that are not made for the simulated machine, of FIRST_LIGHT_GPUS GPUs. */
#include <stdlib.h>

#include <cudasim.h>

#include <tsr/rates.h>
#include <tsr/runtime.h>

__attribute__((constructor)) static void configure(void)
{
    const char *n = getenv("FIRST_LIGHT_GPUS");
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n ? atoi(n) : 1;
    config.memory = (size_t)4 << 30;
    cudasim_configure(&config);
}

/* The linker puts it in the place of tsr_runtime_measure(): a simulated GPU has no speed that would be worth
 * a minute of measuring. */
extern "C" tsr_status __wrap_tsr_runtime_measure(tsr_runtime *rt, const tsr_type *, int,
                                                 tsr_device_rates *rates_out);

tsr_status __wrap_tsr_runtime_measure(tsr_runtime *rt, const tsr_type *, int, tsr_device_rates *rates_out)
{
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        rates_out[d] = tsr_device_rates{};
        for (int i = 0; i < TSR_RATE_TYPES; i++) {
            rates_out[d].read_bytes_per_s[i] = 1e7;
            rates_out[d].flops_per_s[i] = 1e7;
        }
        rates_out[d].op_ns = 1e5;
        rates_out[d].measured = true;
    }
    return TSR_OK;
}
