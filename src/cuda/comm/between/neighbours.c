/* See neighbours.h. */
#include "cuda/comm/between/neighbours.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/peer.h"
#include "cuda/context/context.h"

/* What a process says of one of its GPUs. */
typedef struct introduction {
    char machine[128];     /* boot id and host name */
    unsigned char gpu[48]; /* its uuid and its place on the bus */
    int32_t n_sms, waits;
} introduction;

static void name_machine(char text[128])
{
    char boot[40] = "", host[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(boot, sizeof boot, file))
            *boot = '\0';
        (void)fclose(file);
    }
    (void)!gethostname(host, sizeof host - 1);
    snprintf(text, 128, "%.36s %s", boot, host);
}

static tsr_status introduce(const tsr_cuda_device *cuda, bool waits, introduction *mine)
{
    tsr_status status = TSR_OK;
    struct cudaDeviceProp properties;
    TSR_TRY(TSR_CUDA(cudaGetDeviceProperties(&properties, cuda->ordinal)));
    name_machine(mine->machine);
    memcpy(mine->gpu, properties.uuid.bytes, 16);
    TSR_TRY(
        TSR_CUDA(cudaDeviceGetPCIBusId((char *)mine->gpu + 16, (int)sizeof mine->gpu - 16, cuda->ordinal)));
    mine->n_sms = cuda->props.n_sms;
    mine->waits = waits;
out:
    return status;
}

static bool is_connected(const tsr_device *device)
{
    return device->is_gpu && !tsr_device_is_dropped(device);
}

static tsr_status introduce_here(tsr_device *const *devices, int n_devices, introduction *all)
{
    tsr_status status = TSR_OK;
    tsr_device_set waiting[TSR_CUDA_MAX_PEERS] = {0};
    tsr_cuda_peers_waiting(devices, n_devices, waiting);
    for (int d = 0; d < n_devices; d++)
        if (is_connected(devices[d]) && !devices[d]->elsewhere)
            TSR_TRY(introduce(tsr_cuda(devices[d]), waiting[d] != 0, &all[d]));
out:
    return status;
}

static bool is_same_gpu(const introduction *a, const introduction *b)
{
    return strcmp(a->machine, b->machine) == 0 && memcmp(a->gpu, b->gpu, sizeof a->gpu) == 0;
}

/* Waiting blocks of all devices on a GPU take at most half of its multiprocessors; device_barrier.h says why.
 * Kernels of different processes take turns on a GPU, or, with CUDA's Multi-Process Service, run together. */
static void judge(const introduction *all, int n_devices, tsr_cuda_neighbours *found)
{
    for (int d = 0; d < n_devices; d++) {
        int most = TSR_CUDA_MAX_BARRIER_BLOCKS;
        TSR_FOR_DEVICES(i, found->on[d]) {
            int sharers = 0;
            TSR_FOR_DEVICES(j, found->on[d]) {
                const bool same = is_same_gpu(&all[i], &all[j]);
                sharers += same;
                found->share_gpu |= same && found->process[i] != found->process[j];
                found->several |= found->process[i] != found->process[j];
            }
            found->wait = found->wait && all[i].waits;
            most = TSR_MIN(most, all[i].n_sms / 2 / sharers);
        }
        found->max_blocks[d] = TSR_MAX(most, 1);
    }
}

tsr_status tsr_cuda_neighbours_find(tsr_device *const *devices, int n_devices, tsr_processes *processes,
                                    tsr_cuda_neighbours *found_out)
{
    tsr_status status = TSR_OK;
    introduction all[TSR_CUDA_MAX_PEERS] = {{{0}}};
    tsr_cuda_neighbours found = {.wait = true};
    TSR_TRY(tsr_processes_try(processes, introduce_here(devices, n_devices, all), "introducing GPUs"));
    for (int d = 0; d < n_devices; d++) {
        found.process[d] = devices[d]->process;
        if (is_connected(devices[d]))
            TSR_TRY(tsr_processes_share(processes, devices[d]->process, TSR_OK, &all[d], sizeof *all,
                                        sizeof *all, 1, "introducing GPUs"));
    }
    for (int d = 0; d < n_devices; d++)
        for (int e = 0; e < n_devices; e++)
            if (*all[d].machine && strcmp(all[d].machine, all[e].machine) == 0)
                found.on[d] |= tsr_device_set_one(e);
    judge(all, n_devices, &found);
    *found_out = found;
out:
    return status;
}

int tsr_cuda_neighbours_processes(const tsr_cuda_neighbours *neighbours, tsr_device_set devices)
{
    int n = 0, last = -1;
    TSR_FOR_DEVICES(d, devices) { /* devices are numbered process after process */
        n += neighbours->process[d] != last;
        last = neighbours->process[d];
    }
    return n;
}
