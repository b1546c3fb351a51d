/* The definition of a context, for src/alloc only. */
#ifndef TSR_ALLOC_BUFFER_TENSOR_H
#define TSR_ALLOC_BUFFER_TENSOR_H

#include "core/tensor.h"

enum { TSR_CONTEXT_ERROR_BYTES = 512 };

struct tsr_context {
    tsr_runtime *rt;
    tsr_tracked tracked;
    tsr_tensor **tensors; /* [n_tensors], in order of creation; each allocated on its own */
    int n_tensors, capacity;
    tsr_status status;                   /* the first failure */
    char error[TSR_CONTEXT_ERROR_BYTES]; /* message of the first failure */
};

#endif
