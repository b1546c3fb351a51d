/* What the processor and the system offer, by level of kernels. */
#ifndef TSR_HOST_CPU_H
#define TSR_HOST_CPU_H

/* Each returns NULL where kernels of that level run here, else why not, a static text that completes "there
 * are no such kernels: ...". x86-64 only; any thread. */
const char *tsr_cpu_lacking_for_avx2(void);
const char *tsr_cpu_lacking_for_avx512(void);
const char *tsr_cpu_lacking_for_avx512vnni(void);

/* Also asks Linux to let this process use tiles, which lasts as long as the process. */
const char *tsr_cpu_lacking_for_amx(void);

#endif
