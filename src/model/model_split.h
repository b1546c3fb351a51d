/* How one model is divided over devices: the decision that a plan makes and the loader carries out.
 *
 * Devices work in groups. Inside a group every matrix is divided; each layer belongs to one group. Tensor
 * mode is one group of all used devices, layer mode one group per device, mode "none" one group of one
 * device. */
#ifndef TSR_MODEL_MODEL_SPLIT_H
#define TSR_MODEL_MODEL_SPLIT_H

#include <tsr/plan.h>
#include <tsr/split.h>

#include "model/hparams.h"

/* Sizes of the granules, from the shape and the quantization blocks of the matrices divided by columns. */
typedef struct tsr_model_granules {
    int64_t kv_heads;              /* per attention granule */
    int64_t ffn_columns;           /* per FFN granule */
    int64_t n[TSR_CLASS_COUNT];    /* granules of each class */
    int64_t size[TSR_CLASS_COUNT]; /* KV heads, columns, rows */
} tsr_model_granules;

/* `attention_block`, `ffn_block`: elements that the columns of W_o and W_down must be cut at (the least
 * common multiple over layers). */
tsr_status tsr_model_granules_find(const tsr_hparams *hparams, int64_t attention_block, int64_t ffn_block,
                                   tsr_model_granules *granules_out);

/* One group and who holds what in it; begin[] of all maps counts all devices of the runtime. */
typedef struct tsr_split_group {
    uint64_t devices;
    tsr_shard_map q;        /* query elements = rows of W_q, columns of W_o */
    tsr_shard_map kv;       /* key and value elements = rows of W_k and W_v */
    tsr_shard_map kv_heads; /* the same in KV heads */
    tsr_shard_map ffn;      /* FFN elements = rows of gate and up, columns of down */
    tsr_shard_map vocab;    /* rows of the embedding and output matrices */
} tsr_split_group;

typedef struct tsr_model_split {
    tsr_split_mode mode;
    int n_devices;
    int64_t n_layers;
    double requested[TSR_MAX_DEVICES]; /* shares, sum 1 */
    int n_groups;
    tsr_split_group *groups; /* [n_groups] */
    int *layer_group;        /* [n_layers] */
    int embedding_group, output_group;
} tsr_model_split;

/* Tensor mode: counts[class * n_devices + d] granules. Devices that get nothing are left out of the group. */
tsr_status tsr_model_split_tensor(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                  const double *shares, int n_devices, const int64_t *counts,
                                  tsr_model_split *split_out);

/* Layer mode and "none": layers (and, last, the output matrix) in device order as `layers` says. */
tsr_status tsr_model_split_layers(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                  const double *shares, tsr_split_mode mode, const tsr_shard_map *layers,
                                  tsr_model_split *split_out);

void tsr_model_split_free(tsr_model_split *split);

#endif
