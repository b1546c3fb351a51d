/* How fast this machine reads memory: the yardstick for decoding, which reads every weight once per token. */
#ifndef TSR_BENCH_READ_BANDWIDTH_H
#define TSR_BENCH_READ_BANDWIDTH_H

#include <stddef.h>

/* Seconds of a monotonic clock. */
double bench_now(void);

/* Best of `repeats` passes in bytes/s over `data` with n_threads threads, each reading its part as 8 streams
 * at once. */
double bench_read_bandwidth(const void *data, size_t bytes, int n_threads, int repeats);

/* Median of values[n]; sorts them. */
double bench_median(double *values, int n);

#endif
