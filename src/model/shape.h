/* The shape of a model: the facts in its file, known without any device. */
#ifndef TSR_MODEL_SHAPE_H
#define TSR_MODEL_SHAPE_H

#include "arch/arch.h"

/* The facts of a file that need no device. */
typedef struct tsr_model_shape {
    const tsr_gguf *gguf;
    const tsr_arch *arch;
    tsr_hparams hparams;
    tsr_model_granules granules;
    char remarks[3][320]; /* for a plan's notes */
    int n_remarks;
} tsr_model_shape;

/* Read architecture, hyper-parameters and granules; `prediction`: with the prediction layer. */
tsr_status tsr_model_shape_read(const tsr_gguf *gguf, bool prediction, tsr_model_shape *shape_out);

/* How the FFN of a mixture is divided by these hyper-parameters. */
tsr_expert_split tsr_expert_split_of(const tsr_hparams *hparams);

/* Divide the FFN of a shape with experts by whole experts, or by columns. */
void tsr_expert_split_set(tsr_model_shape *shape, bool by_expert);

#endif
