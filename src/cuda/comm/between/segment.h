/* Host memory that the processes of a machine share and their GPUs access. It has no name: the others open it
 * through the first process's entry in /proc, so that nothing is left when a process is killed. */
#ifndef TSR_CUDA_COMM_BETWEEN_SEGMENT_H
#define TSR_CUDA_COMM_BETWEEN_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/context/context.h"

/* What the other processes need to find it, and to know that they have. */
typedef struct tsr_cuda_segment_name {
    int64_t process, file; /* in the first one's numbering */
    uint64_t device, inode;
} tsr_cuda_segment_name;

typedef struct tsr_cuda_segment {
    unsigned char *data; /* NULL: not open */
    size_t bytes;
    tsr_cuda_device *keeper; /* in whose context it is registered; NULL: not */
} tsr_cuda_segment;

/* In the first process: zeroed memory, and its name. The file is closed by the caller when all have opened
 * it; -1 after a failure. */
tsr_status tsr_cuda_segment_create(size_t bytes, tsr_cuda_segment_name *name_out, int *file_out);

/* In every process. TSR_ERR_UNSUPPORTED where processes do not see each other: in containers of their own. */
tsr_status tsr_cuda_segment_open(const tsr_cuda_segment_name *name, size_t bytes, tsr_cuda_segment *segment);

/* Let all GPUs of the process use it. */
tsr_status tsr_cuda_segment_register(tsr_cuda_segment *segment, tsr_cuda_device *keeper);

/* Its address on a GPU. */
tsr_status tsr_cuda_segment_address(const tsr_cuda_segment *segment, tsr_cuda_device *cuda,
                                    unsigned char **address_out);

void tsr_cuda_segment_close(tsr_cuda_segment *segment); /* a zeroed one is fine */

#endif
