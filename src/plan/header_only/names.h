/* What is known of architectures that are planned but not run: the names of their tensors, what divides each,
 * and the keys that say how long the divided axis is. It is data: one more architecture is a name in one
 * table and, where it has tensors that no other has, rows in another. */
#ifndef TSR_PLAN_HEADER_ONLY_NAMES_H
#define TSR_PLAN_HEADER_ONLY_NAMES_H

#include "arch/weights.h"

/* Length of a tensor's divided axis, in the words of the keys of its layer. */
typedef enum tsr_extent {
    TSR_EXTENT_NONE = 0,  /* not divided: any shape */
    TSR_EXTENT_Q,         /* heads x key length */
    TSR_EXTENT_K,         /* KV heads x key length */
    TSR_EXTENT_V,         /* KV heads x value length */
    TSR_EXTENT_QKV,       /* Q, then K, then V */
    TSR_EXTENT_O,         /* heads x value length */
    TSR_EXTENT_KV_B,      /* MLA: heads x (key length without its rotated part + value length) */
    TSR_EXTENT_HEADS,     /* heads; it is axis 2 */
    TSR_EXTENT_FF,        /* FFN length; twice that where gate and up are one tensor */
    TSR_EXTENT_FF_EXPERT, /* that of one expert */
    TSR_EXTENT_FF_SHARED, /* that of the experts every token uses */
    TSR_EXTENT_VOCAB
} tsr_extent;

typedef struct tsr_tensor_row {
    const char *name; /* '#' stands for a number: the layer, then the expert */
    tsr_weight_role role;
    tsr_extent extent;
    unsigned flags;
} tsr_tensor_row;

enum {
    TSR_TENSOR_EXPERT = 1, /* tsr_weight.expert */
    TSR_TENSOR_TWICE = 2,  /* gate and up may be one tensor */
    TSR_TENSOR_CALLER = 4  /* read on the caller's side: on no device */
};

/* Whether all tensors of the architecture are in the table. */
bool tsr_arch_table_has(const char *architecture);

/* The row of a tensor; NULL: no architecture has a tensor of that name. */
const tsr_tensor_row *tsr_arch_table_find(const char *name);

#endif
