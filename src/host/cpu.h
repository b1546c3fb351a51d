/* What the processor and the system offer, by level of kernels. */
#ifndef TSR_HOST_CPU_H
#define TSR_HOST_CPU_H

#include <stdbool.h>

/* Each returns NULL where kernels of that level run here, else why not, a static text that completes "there
 * are no such kernels: ...". x86-64 only; any thread. */
const char *tsr_cpu_lacking_for_avx2(void);
const char *tsr_cpu_lacking_for_avxvnni(void);
const char *tsr_cpu_lacking_for_avx512(void);
const char *tsr_cpu_lacking_for_avx512vnni(void);
const char *tsr_cpu_lacking_for_avx512bf16(void);

/* Also asks Linux to let this process use tiles, which lasts as long as the process. */
const char *tsr_cpu_lacking_for_amx(void);

/* Whether cores read memory at full speed in one stream each, and less than that in several where they share
 * it: AMD's. On Zen 5 one core reads as fast either way, two cores decode 1.14 times as fast from one stream
 * each; a core of Intel's Xeons (Cascade Lake, Sapphire Rapids) needs four to read all it can. Any thread. */
bool tsr_cpu_reads_one_stream(void);

#endif
