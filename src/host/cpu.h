/* What the processors and the system offer: their number, levels of kernels, how a core reads memory. */
#ifndef TSR_HOST_CPU_H
#define TSR_HOST_CPU_H

#include <stdbool.h>

/* Processors that the calling thread may use. */
int tsr_cpu_allowed(void);

/* Each returns NULL where kernels of that level run here, otherwise the reason, a static text that completes
 * "there are no such kernels: ...". Any thread. For x86-64: */
const char *tsr_cpu_lacking_for_avx2(void);
const char *tsr_cpu_lacking_for_avxvnni(void);
const char *tsr_cpu_lacking_for_avx512(void);
const char *tsr_cpu_lacking_for_avx512vnni(void);
const char *tsr_cpu_lacking_for_avx512bf16(void);

/* Also requests from Linux that this process may use tiles, as long as it runs. */
const char *tsr_cpu_lacking_for_amx(void);

/* For AArch64: */
const char *tsr_cpu_lacking_for_dotprod(void);

/* How a core reads memory fastest, as measured.
 *
 * STREAMS: several streams, prefetched into the first-level cache. Intel's Xeons (Cascade Lake, Sapphire
 * Rapids) need four streams for their full rate.
 *
 * ONE_STREAM: AMD's processors. On Zen 5 one core reads as fast either way; two cores that share the memory
 * decode 1.14 times as fast from one stream each.
 *
 * ONE_STREAM_L2: one stream, prefetched into the second-level cache, which has more requests in flight than
 * the first: AMD's processors before Zen 5. Zen 4 decodes 1.3 to 1.8 times as fast. */
typedef enum tsr_cpu_reading {
    TSR_CPU_STREAMS,
    TSR_CPU_ONE_STREAM,
    TSR_CPU_ONE_STREAM_L2,
    TSR_CPU_READINGS
} tsr_cpu_reading;

/* Any thread. */
tsr_cpu_reading tsr_cpu_reads(void);

#endif
