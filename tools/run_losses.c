/* Going on after a loss; see run_losses.h. */
#include "run_losses.h"

#include <stdio.h>

#include "tsr.h"

static bool is_dropped(const tsr_runtime *rt, int device)
{
    tsr_device_info info;
    return tsr_runtime_device(rt, device, &info) == TSR_OK && info.dropped;
}

/* Write what is lost now. False without the process that writes the text. */
static bool note_losses(const tsr_runtime *rt, const bool *dropped, tool_processes *processes, double seconds)
{
    int n = 0;
    bool has_first = true;
    for (int i = 0; i < tsr_runtime_n_devices(rt); i++) {
        tsr_device_info info;
        if (tsr_runtime_device(rt, i, &info) != TSR_OK || !info.dropped)
            continue;
        if (info.gone)
            tool_processes_leave_out(processes, info.process);
        has_first = has_first && !(info.gone && info.process == 0);
        if (!dropped[i])
            fprintf(stderr, "%s%s", n++ ? ", " : "tsr: run: goes on without ", info.name);
    }
    if (n > 0)
        fprintf(stderr, ", after %.1f s\n", seconds);
    else
        fprintf(stderr, "tsr: run: goes on with all devices, after %.1f s\n", seconds);
    return has_first;
}

tsr_status run_losses_go_on(tsr_runtime *rt, tool_processes *processes)
{
    bool dropped[TSR_MAX_DEVICES];
    const double start = tool_clock();
    fprintf(stderr, "tsr: run: %s\n", tsr_last_error());
    for (int i = 0; i < tsr_runtime_n_devices(rt); i++)
        dropped[i] = is_dropped(rt, i);
    const tsr_status status = tsr_runtime_drop_device(rt, TSR_LOST_DEVICES);
    if (status != TSR_OK || note_losses(rt, dropped, processes, tool_clock() - start))
        return status;
    tool_processes_speak();
    fprintf(stderr, "tsr run: process 0, which writes the text, is gone\n");
    return TSR_ERR_CANCELLED;
}
