/* Time counters of devices. The devices' own threads write them while programs run, so they are accessed
 * here only when no program runs: synchronize orders the two. */

#include "core/runtime.h"
#include "core/status.h"

/* A program's failure is reported to its owner; here only its end matters. */
static void wait_idle(tsr_device *device)
{
    (void)!device->ops->synchronize(device, 0);
}

void tsr_runtime_time_collectives(tsr_runtime *rt, bool on)
{
    for (int d = 0; d < rt->n_devices; d++) {
        wait_idle(rt->devices[d]);
        tsr_device_clock *clock = &rt->devices[d]->clock;
        clock->on = on;
        clock->program_ns = clock->collective_ns = clock->wait_ns = 0;
    }
}

tsr_status tsr_runtime_times(const tsr_runtime *rt, int device, tsr_device_times *times_out)
{
    if (device < 0 || device >= rt->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "device %d does not exist; the runtime has %d", device,
                        rt->n_devices);
    tsr_device *d = rt->devices[device];
    wait_idle(d);
    bool known = d->ops->kind == TSR_DEVICE_HOST && !d->elsewhere;
    *times_out = (tsr_device_times){.known = known,
                                    .collective_ns = known ? d->clock.collective_ns : 0,
                                    .wait_ns = known ? d->clock.wait_ns : 0};
    return TSR_OK;
}
