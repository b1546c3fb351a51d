/** @file
 * Speeds of devices, for dividing a model over them.
 *
 *     tsr_device_rates rates[TSR_MAX_DEVICES];
 *     tsr_runtime_measure(rt, NULL, 0, rates); (about a second; all devices work together)
 *     config.rates = rates;                    (tsr_plan_create() and tsr_model_open() divide by them)
 *
 * Devices are measured on request only, so that a plan made from descriptions is the plan that loading
 * carries out. */
#ifndef TSR_RATES_H
#define TSR_RATES_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/device_list.h>
#include <tsr/links.h>
#include <tsr/runtime.h>
#include <tsr/types.h>

TSR_BEGIN_DECLS

/** Weight types that are measured: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, IQ2_XS. The planner gives
 * other types the rates of a similar one; IQ2_XS stands for the IQ1, IQ2, IQ3 and TQ types. */
#define TSR_RATE_TYPES 9

/** Arrays are by weight type (tsr_rate_index()). All zeros: nothing is known. */
typedef struct tsr_device_rates {
    /** Bytes of weights per second, in products with one token: decoding. 0: the type is not known */
    double read_bytes_per_s[TSR_RATE_TYPES];
    /** Operations per second, 2 per weight and token, in products with many tokens. 0: the type is not
     * known */
    double flops_per_s[TSR_RATE_TYPES];
    /** Nanoseconds of a small op, the norm of one row. 0: small ops take no time in predictions */
    double op_ns;
    /** Nanoseconds of a small all-reduce between all devices of the runtime. 0: one device, or not known */
    double sync_ns;
    /** Bytes per second of one device's partial sums, in a large all-reduce. 0: one device, or not known */
    double sync_bytes_per_s;
    bool measured;       /**< by running kernels; false: described or guessed */
    int64_t measured_at; /**< when, in seconds since 1970; 0: not known */
    /** The part of all processors' time that other processes took meanwhile, 0 to 1, as far as the caller
     * knows: tsr_runtime_measure() writes 0 */
    double load;
    /** Nanoseconds that a product with one token takes besides reading. Less than op_ns: op_ns */
    double product_ns[TSR_RATE_TYPES];
    /** As flops_per_s, with the sums of the exact reduction, which the last product of a block has. 0: as
     * flops_per_s */
    double partial_flops_per_s[TSR_RATE_TYPES];
    /** As read_bytes_per_s, of the matrices of experts; the time includes choosing them and starting kernels.
     * 0: as read_bytes_per_s */
    double expert_bytes_per_s[TSR_RATE_TYPES];
    /** As flops_per_s, of the matrices of experts; the time includes choosing them and starting kernels.
     * 0: as flops_per_s */
    double expert_flops_per_s[TSR_RATE_TYPES];
    /** As flops_per_s, with activations of 8 bits (tsr_model_config.compute.activation_bits);
     * partial_flops_per_s and expert_flops_per_s then change in the same proportion. 0: as flops_per_s */
    double byte_flops_per_s[TSR_RATE_TYPES];
} tsr_device_rates;

/** Index into the arrays; -1 for other types. */
TSR_API int tsr_rate_index(tsr_type type);
/** The type at an index, 0..TSR_RATE_TYPES - 1. */
TSR_API tsr_type tsr_rate_type(int index);

/** Run matrix products and experts of types[n_types] (NULL: all), norms and all-reduces on all devices
 * together and write rates_out[tsr_runtime_n_devices()]. The rates of types that are not in types[] are 0.
 * Takes about 0.1 s per type. Nothing else may run on the devices during the call. The call allocates about
 * 70 MiB on each host device and 560 MiB on each GPU, less if that is not free, and frees them.
 * TSR_ERR_INVALID: a type is none of tsr_rate_type(). TSR_ERR_MEMORY; a device's own status if it fails. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_measure(tsr_runtime *rt, const tsr_type *types, int n_types,
                                                     tsr_device_rates *rates_out);

/** Guess the speeds of devices[n], which work together, from their descriptions: memory bandwidth and matrix
 * rates, times the fraction that kernels usually reach. Rates that a description lacks are assumed; the
 * fractions and assumptions are at the definition. `measured` is false. */
TSR_API void tsr_device_rates_guess(const tsr_device_desc *devices, int n, tsr_device_rates *rates_out);

/** Time all-reduces over all devices and over every pair of devices, and transfers between every pair (there
 * and back; both directions get the mean). Record the times in `links`, which must be of the same devices in
 * the same order. Sizes go from 4 KiB to 16 MiB by factors of eight; sizes that would probably take more than
 * 10 ms are left out. Takes at most about a second per pair. Nothing else may run on the devices during the
 * call. The call allocates up to 72 MiB on each device, not charged to its cap, and frees them. On failure
 * `links` is as it was. TSR_ERR_INVALID: `links` is of other devices. TSR_ERR_TIMEOUT: a collective does not
 * end. TSR_ERR_MEMORY; a device's own status if it fails. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_measure_links(tsr_runtime *rt, tsr_links *links);

TSR_END_DECLS
#endif
