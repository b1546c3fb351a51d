/* The CUDA device: a GPU, or a part of one, as a tsr_device. Several may share a GPU, each with its own
 * memory cap. A device has one compute stream and one host thread (cuda/context/context.h). */
#ifndef TSR_CUDA_DEVICE_DEVICE_H
#define TSR_CUDA_DEVICE_DEVICE_H

#include "core/device.h"

typedef struct tsr_cuda_device_config {
    const char *name;  /* "cuda0"; copied, cut after 31 characters */
    int index;         /* in the runtime */
    int ordinal;       /* CUDA's number of the GPU */
    size_t memory_cap; /* bytes; 0 or SIZE_MAX = the free memory when the device is opened, which is also
                        * the upper limit (except with managed and always_wrap) */
    int polls;         /* of the host thread, and of a thread that waits for it, before it sleeps */
    bool always_wrap;  /* read weights in host memory even over a bus (memory/wrap.h) */
    bool managed;      /* managed memory: may exceed the GPU's, at the price of bus transfers */
    double link_bytes_per_s; /* of the bus to the host, one direction, for messages; 0 if unknown */
    tsr_device *sibling;     /* a CUDA device of the same runtime, NULL for the first */
    int64_t library_tokens;  /* 0: TSR_CUBLAS_TOKENS; negative: never (libs/cublas.h) */
    uint64_t grace_ns;       /* after a deadline, before a busy device is given up; 0 = 10 s, but
                              * at most the stall timeout of `watch` */
    /* Called by the device's host thread with thread 0, before tsr_cuda_device_create() returns, to move to
     * processors near the GPU; NULL: the thread runs where the system puts it. A failure is logged, and the
     * device works nevertheless. */
    tsr_status (*pin)(void *user, int thread);
    void *pin_user;
    tsr_watch *watch;         /* over waits for the device; NULL: such waits have no end but their deadline */
    const tsr_logger *logger; /* may be NULL; copied */
} tsr_cuda_device_config;

/* TSR_ERR_NOT_FOUND: no such GPU. TSR_ERR_UNSUPPORTED: the driver is too old. TSR_ERR_MEMORY, TSR_ERR_DEVICE,
 * TSR_ERR_DEVICE_LOST. The calling thread's current CUDA device does not change, here and in every function
 * of the device. */
tsr_status tsr_cuda_device_create(const struct tsr_cuda_device_config *config, tsr_device **device_out);

#endif
