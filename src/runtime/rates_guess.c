/* Rates derived from descriptions, for machines that cannot be measured. */
#include <tsr/rates.h>

#include <string.h>

/* Shares of the peak that kernels reach, by type in the order of tsr_rate_type(): the targets of the CUDA
 * kernels for decoding (85 % of the memory's rate for plain types, 80 % for Q8_0, 65 % for K quants), and
 * half of the tensor cores' for prompts. */
static const double gpu_read[TSR_RATE_TYPES] = {0.85, 0.85, 0.85, 0.80, 0.70, 0.65, 0.65, 0.65};
static const double gpu_flops = 0.5;

/* On cores, quantized weights are bound by unpacking: rates per thread in bytes of weights per second, and
 * in operations per second, of AVX2 cores of the 2020s (orders of magnitude; measured rates replace them). */
static const double core_read[TSR_RATE_TYPES] = {10e9, 10e9, 10e9, 6e9, 3.5e9, 3.5e9, 3.5e9, 4e9};
static const double core_flops = 30e9;

/* Defaults for missing facts: a memory of one DDR4 channel pair, a card of 300 GB/s and 40 TFLOP/s behind
 * four lanes of PCIe 4. */
static const double any_host_memory = 40e9, any_gpu_memory = 300e9, any_gpu_flops = 40e12, any_link = 7.9e9;

static const double gpu_op_ns = 3000, host_op_ns = 1500; /* inside a graph; a barrier of a few threads */
static const double gpu_sync_ns = 15000,
                    host_sync_ns = 4000; /* through peer or pinned memory; shared caches */

static void guess_gpu(const tsr_device_desc *desc, int n_sharing, tsr_device_rates *rates)
{
    double memory = desc->memory_bytes_per_s > 0 ? desc->memory_bytes_per_s : any_gpu_memory;
    double flops = desc->flops_per_s > 0 ? desc->flops_per_s : any_gpu_flops;
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        rates->read_bytes_per_s[i] = gpu_read[i] * memory / n_sharing;
        rates->flops_per_s[i] = gpu_flops * flops / n_sharing;
    }
    rates->op_ns = gpu_op_ns;
}

static void guess_host(const tsr_device_desc *desc, tsr_device_rates *rates)
{
    double memory = desc->memory_bytes_per_s > 0 ? desc->memory_bytes_per_s : any_host_memory;
    int n = desc->n_threads > 0 ? desc->n_threads : 1;
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        double cores = core_read[i] * n;
        rates->read_bytes_per_s[i] = cores < memory ? cores : memory;
        rates->flops_per_s[i] = core_flops * n;
    }
    rates->op_ns = host_op_ns;
}

void tsr_device_rates_guess(const tsr_device_desc *devices, int n, tsr_device_rates *rates_out)
{
    double sync_ns = 0, link = 0;
    memset(rates_out, 0, (size_t)n * sizeof *rates_out);
    for (int d = 0; d < n; d++) {
        const tsr_device_desc *desc = &devices[d];
        bool gpu = desc->kind == TSR_DEVICE_CUDA;
        double this_link = !gpu                         ? any_host_memory
                           : desc->link_bytes_per_s > 0 ? desc->link_bytes_per_s
                                                        : any_link;
        int n_sharing = 0;
        for (int e = 0; e < n; e++)
            n_sharing += gpu && devices[e].kind == TSR_DEVICE_CUDA && devices[e].gpu == desc->gpu;
        if (gpu)
            guess_gpu(desc, n_sharing, &rates_out[d]);
        else
            guess_host(desc, &rates_out[d]);
        sync_ns = sync_ns > (gpu ? gpu_sync_ns : host_sync_ns) ? sync_ns : gpu ? gpu_sync_ns : host_sync_ns;
        link = d == 0 || this_link < link ? this_link : link;
    }
    for (int d = 0; d < n && n > 1; d++) {
        rates_out[d].sync_ns = sync_ns;
        rates_out[d].sync_bytes_per_s = link / n; /* all devices' partial sums over the slowest link */
    }
}
