/* What devices do while they are measured: ops as those of models, and memory for them. */
#ifndef TSR_RUNTIME_RATES_WORK_H
#define TSR_RUNTIME_RATES_WORK_H

#include "core/device.h"
#include "core/op.h"

enum {
    TSR_RATES_COLUMNS = 4096,
    TSR_RATES_SYNC = TSR_RATES_COLUMNS,            /* elements of a small all-reduce: one token */
    TSR_RATES_LARGE_SYNC = TSR_RATES_COLUMNS * 64, /* of a large one */
    TSR_RATES_SLICES = 64,                         /* most products of TSR_RATES_COLUMNS rows in a program */
    TSR_RATES_LAYERS = 16,                         /* most layers of experts in a program */
    TSR_RATES_EXPERT_OPS = 3
};

/* The memory of one device. */
typedef struct tsr_rates_work {
    tsr_device *device;
    bool is_gpu;
    int64_t n_tokens; /* of a product with many tokens */
    unsigned char *weights;
    float *x;         /* [n_tokens][TSR_RATES_COLUMNS] */
    void *y;          /* results, and what the experts need */
    int64_t *partial; /* [2][TSR_RATES_LARGE_SYNC], NULL for a single device */
    size_t weight_bytes, x_bytes, y_bytes, partial_bytes;
} tsr_rates_work;

/* All bytes of the weights are equal. In every type this gives small normal numbers, and no kernel's speed
 * depends on the values. TSR_ERR_MEMORY: the device's cap leaves too little. Close it in any case. */
tsr_status tsr_rates_work_open(tsr_rates_work *w, tsr_device *device, bool with_partials);
void tsr_rates_work_close(tsr_rates_work *w);

/* A product of one token with all of the weights. */
tsr_op tsr_rates_read(const tsr_rates_work *w, tsr_type type);

/* A product of many tokens; `partial`: with the exact reduction, as the last of a block. It has more tiles
 * than a GPU has multiprocessors. On host devices it is small, since their rate hardly depends on rows. */
tsr_op tsr_rates_prompt(const tsr_rates_work *w, tsr_type type, bool partial);

/* Product number i of one token with TSR_RATES_COLUMNS rows, each with rows of its own, which no cache has
 * from the previous run. Their number, at most TSR_RATES_SLICES; 0 on host devices, where a product takes
 * little more than its bytes do. */
tsr_op tsr_rates_slice(const tsr_rates_work *w, tsr_type type, int i);
int tsr_rates_n_slices(const tsr_rates_work *w, tsr_type type);

/* The norm of one row. */
tsr_op tsr_rates_norm(const tsr_rates_work *w);

/* Layer number i of a mixture of experts of many tokens, or of one; every token goes through experts of its
 * own, so that all are used alike. The number of layers of one token, at most TSR_RATES_LAYERS; 0 on host
 * devices, whose experts are as fast as other weights, and where the weights are too few. */
void tsr_rates_experts(const tsr_rates_work *w, tsr_type type, int64_t n_tokens, int i,
                       tsr_op ops[TSR_RATES_EXPERT_OPS]);
int tsr_rates_n_layers(const tsr_rates_work *w, tsr_type type);
/* Write the logits of the routers, before the first of the layers. */
tsr_status tsr_rates_route(const tsr_rates_work *w, tsr_type type);

/* Bytes of the weights that one token's experts of a layer have, and how many elements. */
double tsr_rates_expert_bytes(tsr_type type);
double tsr_rates_expert_elems(void);

#endif
