/* Internal: an open GGUF model. */
#ifndef TSR_GGUF_GGUF_H
#define TSR_GGUF_GGUF_H

#include "gguf/part.h"

struct tsr_gguf {
    struct tsr_gguf_part *parts; /* one per file; the first one's keys are the model's */
    int n_parts;
    tsr_gguf_tensor *tensors; /* of all files, in file order */
    size_t n_tensors;
    struct tsr_gguf_index tensor_index; /* over tensors */
};

#endif
