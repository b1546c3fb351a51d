/* The host memory that a device has wrapped, and its abilities to read host memory (memory/wrap.h). */
#ifndef TSR_CUDA_CONTEXT_WRAPPING_H
#define TSR_CUDA_CONTEXT_WRAPPING_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tsr_cuda_wrapping {
    bool forced;             /* even over a bus */
    double link_bytes_per_s; /* of that bus; 0 if unknown */
    bool integrated, coherent;
    bool can_register, read_only_flag;
    struct tsr_cuda_registry *registry; /* shared with other devices */
    struct tsr_cuda_wrap *wraps;        /* what this device has wrapped */
    size_t bytes, told_bytes;           /* wrapped in all; when the cost was last logged */
} tsr_cuda_wrapping;

#endif
