/** @file
 * Speeds of devices, for dividing a model over them.
 *
 *     tsr_device_rates rates[TSR_MAX_DEVICES];
 *     tsr_runtime_measure(rt, NULL, 0, rates); (a few tenths of a second; all devices work together)
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

/** All zeros: nothing is known. */
typedef struct tsr_device_rates {
    double read_bytes_per_s[TSR_RATE_TYPES]; /**< of weights, multiplied by one token: decoding */
    double flops_per_s[TSR_RATE_TYPES];      /**< of products with many tokens; 2 per weight and token */
    double op_ns;                            /**< time of a small op: the norm of one row */
    double sync_ns;          /**< one small all-reduce between all devices of the runtime; 0 for one device */
    double sync_bytes_per_s; /**< bytes of one device's partial sums per second, in a large all-reduce */
    bool measured;           /**< by running kernels; false: described or guessed */
    int64_t measured_at;     /**< when, in seconds since 1970; 0 if unknown */
    double load; /**< the part of all processors' time that other processes took meanwhile, 0 to 1, as far as
                  * the caller knows: tsr_runtime_measure() writes 0 */
    double product_ns[TSR_RATE_TYPES];          /**< what a product of one token takes besides reading */
    double partial_flops_per_s[TSR_RATE_TYPES]; /**< as flops_per_s, with sums of the exact reduction: the
                                                 * last product of a block */
    double expert_bytes_per_s[TSR_RATE_TYPES]; /**< as read_bytes_per_s and flops_per_s, of the matrices of */
    double expert_flops_per_s[TSR_RATE_TYPES]; /**< experts, choice and start of kernels included; the last
                                                 * four: 0 is no difference from other products */
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
