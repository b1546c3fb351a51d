/* Clock, medians, and how fast this machine reads memory: the yardstick for decoding, which reads every
 * weight once per token. */
#ifndef TSR_BENCH_MEASURED_H
#define TSR_BENCH_MEASURED_H

#include <stddef.h>

/* Seconds of a monotonic clock. */
double bench_now(void);

/* Best of `repeats` passes in bytes/s over `data` with n_threads threads, each reading its part as 8, 4 and 2
 * streams at once. */
double bench_read_bandwidth(const void *data, size_t bytes, int n_threads, int repeats);

/* Median of values[n]; sorts them, so that values[0] is the least. */
double bench_median(double *values, int n);

#endif
