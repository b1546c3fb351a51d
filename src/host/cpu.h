/* What the processor and the system offer, by level of kernels. */
#ifndef TSR_HOST_CPU_H
#define TSR_HOST_CPU_H

#include <stdbool.h>

/* Each returns NULL where kernels of that level run here, else why not, a static text that completes "there
 * are no such kernels: ...". Any thread. Of x86-64: */
const char *tsr_cpu_lacking_for_avx2(void);
const char *tsr_cpu_lacking_for_avxvnni(void);
const char *tsr_cpu_lacking_for_avx512(void);
const char *tsr_cpu_lacking_for_avx512vnni(void);
const char *tsr_cpu_lacking_for_avx512bf16(void);

/* Also asks Linux to let this process use tiles, which lasts as long as the process. */
const char *tsr_cpu_lacking_for_amx(void);

/* Of AArch64. */
const char *tsr_cpu_lacking_for_dotprod(void);

/* How a core reads memory fastest, as measured.
 *
 * STREAMS: several at once, asked for into the first-level cache. Intel's Xeons (Cascade Lake, Sapphire
 * Rapids) need four to read all they can.
 *
 * ONE_STREAM: AMD's. On Zen 5 one core reads as fast either way, two cores that share the memory decode 1.14
 * times as fast from one stream each.
 *
 * ONE_STREAM_L2: the same, asked for into the second-level cache, which has more requests under way than the
 * first: AMD's before Zen 5. Zen 4 decodes 1.3 to 1.8 times as fast. */
typedef enum tsr_cpu_reading {
    TSR_CPU_STREAMS,
    TSR_CPU_ONE_STREAM,
    TSR_CPU_ONE_STREAM_L2,
    TSR_CPU_READINGS
} tsr_cpu_reading;

/* Any thread. */
tsr_cpu_reading tsr_cpu_reads(void);

#endif
