/* Rates derived from descriptions, for machines that cannot be measured.
 *
 * GPUs: the constants are fitted, for all cards together, to published speeds of llama.cpp with Llama 3 8B
 * and 70B in Q4_K_M and F16 on cards from the RTX 3070 to the H100 PCIe
 * (github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024; tests/test_published.c has the figures
 * and the bounds). Two models of one type on a card separate what grows with the bytes from what grows
 * with the layers:
 *   - Weights are read at 0.84 to 0.95 of the memory's peak, whatever their type, but no faster than 6.5 to
 *     7.4 bytes per cycle of a multiprocessor: more loads than that are not in flight. This limits cards with
 *     HBM: an A100 reads at 0.55 of its peak, an H100 PCIe at 0.67.
 *   - A layer takes 80 to 90 us besides, on cards of all speeds, in 16 ops: a kernel has to start and to end.
 *   - Prompts of 512 tokens reach 0.6 to 0.87 of the tensor cores' rate (F16, summed in F32) where that is
 *     512 operations per cycle of a multiprocessor (GeForce), and 350 to 570 operations where it is more.
 *     Cards of 300 W and many multiprocessors (RTX 6000 Ada, L40S) reach half of what this gives. */
#include <tsr/rates.h>

#include <string.h>

#include "core/mem.h"

static const double gpu_read = 0.87, gpu_read_per_cycle = 7, gpu_flops = 0.75, gpu_flops_per_cycle = 450;
static const double gpu_op_ns = 5300;

/* Prompts with activations of 8 bits, by type, as multiples of those with 16. GPUs: by counts of
 * instructions (tests/ptx/budgets.txt). Cores: with AVX-512 (docs/benchmarks.md). */
static const double gpu_byte_gain[TSR_RATE_TYPES] = {1, 1, 1, 1.15, 1.15, 1.15, 1.15, 1.15, 1};
static const double core_byte_gain[TSR_RATE_TYPES] = {1, 1, 1, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5};

/* On cores, rates per thread in bytes of weights per second, and in operations per second: half of what one
 * thread of a Zen 4 does with AVX-512 in docs/benchmarks.md, as servers have more cores at lower clocks.
 * Kernels read at 0.84 to 0.97 of the rate of plain loads there, but types with code books, which take more
 * time to unpack than to read. */
static const double core_read[TSR_RATE_TYPES] = {14e9, 14e9, 14e9, 14e9, 9e9, 10e9, 10e9, 10e9, 1.2e9};
static const double core_flops[TSR_RATE_TYPES] = {50e9, 50e9, 50e9, 90e9, 90e9, 90e9, 90e9, 90e9, 90e9};
static const double host_read = 0.9;

/* Defaults for missing facts: a memory of one DDR4 channel pair, a card of 300 GB/s and 40 TFLOP/s behind
 * four lanes of PCIe 4. */
static const double any_host_memory = 50e9, any_gpu_memory = 300e9, any_gpu_flops = 40e12, any_link = 7.9e9;

static const double host_op_ns = 1500; /* a barrier of a few threads */
static const double gpu_sync_ns = 15000,
                    host_sync_ns = 4000; /* through peer or pinned memory; shared caches */

static double host_memory(const tsr_device_desc *desc)
{
    return desc->memory_bytes_per_s > 0 ? desc->memory_bytes_per_s : any_host_memory;
}

static void guess_gpu(const tsr_device_desc *desc, int n_sharing, tsr_device_rates *rates)
{
    double read = gpu_read * (desc->memory_bytes_per_s > 0 ? desc->memory_bytes_per_s : any_gpu_memory);
    double flops = gpu_flops * (desc->flops_per_s > 0 ? desc->flops_per_s : any_gpu_flops);
    if (desc->sm_cycles_per_s > 0) {
        read = TSR_MIN(read, gpu_read_per_cycle * desc->sm_cycles_per_s);
        flops = TSR_MIN(flops, gpu_flops_per_cycle * desc->sm_cycles_per_s);
    }
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        rates->read_bytes_per_s[i] = read / n_sharing;
        rates->flops_per_s[i] = flops / n_sharing;
        rates->byte_flops_per_s[i] = gpu_byte_gain[i] * rates->flops_per_s[i];
    }
    rates->op_ns = gpu_op_ns;
}

static void guess_host(const tsr_device_desc *desc, tsr_device_rates *rates)
{
    double memory = host_read * host_memory(desc), duty = desc->duty_percent ? desc->duty_percent / 100.0 : 1;
    int n = desc->n_threads > 0 ? desc->n_threads : 1;
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        rates->read_bytes_per_s[i] = duty * TSR_MIN(core_read[i] * n, memory);
        rates->flops_per_s[i] = duty * core_flops[i] * n;
        rates->byte_flops_per_s[i] = core_byte_gain[i] * rates->flops_per_s[i];
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
        double this_link = !gpu                         ? host_memory(desc)
                           : desc->link_bytes_per_s > 0 ? desc->link_bytes_per_s
                                                        : any_link;
        int n_sharing = 0;
        for (int e = 0; e < n; e++)
            n_sharing += gpu && devices[e].kind == TSR_DEVICE_CUDA && devices[e].gpu == desc->gpu;
        if (gpu)
            guess_gpu(desc, n_sharing, &rates_out[d]);
        else
            guess_host(desc, &rates_out[d]);
        sync_ns = TSR_MAX(sync_ns, gpu ? gpu_sync_ns : host_sync_ns);
        link = d == 0 || this_link < link ? this_link : link;
    }
    for (int d = 0; d < n && n > 1; d++) {
        rates_out[d].sync_ns = sync_ns;
        rates_out[d].sync_bytes_per_s = link / n; /* all devices' partial sums over the slowest link */
    }
}
