/* What a program outside the project sees: all headers, the devices opened. Valid as C and as
 * C++. */
#include <stdio.h>

#include <tsr/tsr.h>

static tsr_status describe(tsr_runtime *rt)
{
    for (int i = 0; i < tsr_runtime_n_devices(rt); i++) {
        tsr_device_info info;
        tsr_status status = tsr_runtime_device(rt, i, &info);
        if (status != TSR_OK)
            return status;
        printf("tsr %s: %s, %d thread(s), %s kernels\n", tsr_version(), info.name, info.n_threads, info.isa);
    }
    return TSR_OK;
}

int main(void)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:2,threads=1";
    tsr_runtime *rt = NULL;
    tsr_status status = tsr_runtime_open(&config, &rt);
    if (status == TSR_OK)
        status = describe(rt);
    if (status != TSR_OK)
        fprintf(stderr, "consumer: %s: %s\n", tsr_status_name(status), tsr_last_error());
    tsr_runtime_close(rt);
    return status != TSR_OK;
}
