/* The part of NVTX 3 that TSR calls; cudasim.h has what a profiler sees. */
#ifndef CUDASIM_NVTOOLSEXT_H
#define CUDASIM_NVTOOLSEXT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Both return the depth of the calling thread's ranges, counted from 0; less than 0: there is no range. */
int nvtxRangePushA(const char *message);
int nvtxRangePop(void);

#ifdef __cplusplus
}
#endif

#endif
