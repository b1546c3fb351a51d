/** @file
 * How fast devices are, as far as dividing a model over them is concerned.
 *
 *     tsr_device_rates rates[TSR_MAX_DEVICES];
 *     tsr_runtime_measure(rt, NULL, 0, rates); (a few tenths of a second; all devices work together)
 *     config.rates = rates;                    (tsr_plan_create() and tsr_model_open() divide by them)
 *
 * Nothing is measured by itself: a plan made from descriptions is the plan that loading carries out. */
#ifndef TSR_RATES_H
#define TSR_RATES_H

#include <stdbool.h>

#include <tsr/device_list.h>
#include <tsr/links.h>
#include <tsr/runtime.h>
#include <tsr/types.h>

TSR_BEGIN_DECLS

/** Weight types that kernels multiply by: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K. */
#define TSR_RATE_TYPES 8

/** All zeros: nothing is known. */
typedef struct tsr_device_rates {
    double read_bytes_per_s[TSR_RATE_TYPES]; /**< of weights, multiplied by one token: decoding */
    double flops_per_s[TSR_RATE_TYPES];      /**< of products with many tokens; 2 per weight and token */
    double op_ns;                            /**< one op, however small */
    double sync_ns;          /**< one small all-reduce between all devices of the runtime; 0 for one device */
    double sync_bytes_per_s; /**< bytes of one device's partial sums that a large one takes per second */
    bool measured;           /**< by running kernels; false: described or guessed */
} tsr_device_rates;

/** Index into the arrays; -1 for other types. */
TSR_API int tsr_rate_index(tsr_type type);
/** The type at an index, 0..TSR_RATE_TYPES - 1. */
TSR_API tsr_type tsr_rate_type(int index);

/** Run matrix products of types[n_types] (NULL: all), empty ops and all-reduces on all devices together and
 * fill rates_out[tsr_runtime_n_devices()]; other types' rates are 0. Takes about 0.1 s per type. Nothing else
 * may run on the devices meanwhile. About 70 MiB (host) or 520 MiB (GPU) are allocated on each device for the
 * time, less where that is not free. A type that a device has no kernel for gets 0. TSR_ERR_INVALID for a
 * type that is none of tsr_rate_type(), TSR_ERR_MEMORY, and what devices report. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_measure(tsr_runtime *rt, const tsr_type *types, int n_types,
                                                     tsr_device_rates *rates_out);

/** Guess the speed of devices[n], which work together, from their descriptions: memory bandwidth and matrix
 * rates, reduced to what kernels reach of them as a rule; what a description leaves open is assumed (the
 * factors and assumptions are at the definition). `measured` is false. */
TSR_API void tsr_device_rates_guess(const tsr_device_desc *devices, int n, tsr_device_rates *rates_out);

/** Time all-reduces over all devices and over every two of them, and transfers between every two (there and
 * back; both directions get the mean), and record them in `links`, which is of the same devices in the same
 * order. Sizes go from 4 KiB to 16 MiB, each eight times the one before; none is begun that would probably
 * take more than 10 ms. About a second per pair at most; nothing else may run on the devices. Buffers of up
 * to 72 MiB are allocated on each for the time, uncharged. On failure `links` is as it was. TSR_ERR_INVALID
 * for links of other devices, TSR_ERR_TIMEOUT where a collective does not end, TSR_ERR_MEMORY, and what
 * devices report. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_measure_links(tsr_runtime *rt, tsr_links *links);

TSR_END_DECLS
#endif
