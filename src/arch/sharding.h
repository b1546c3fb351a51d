/* How one model is divided over devices: the decision that a plan makes and the loader carries out.
 *
 * A model is a row of blocks: the embedding, per layer attention and FFN (each with its norm and its residual
 * sum), the output. Devices work in groups. Inside a group every matrix is divided; every block belongs to
 * one group, and where the next block belongs to another the activations are handed over. Groups may share
 * devices.
 *
 *   tensor mode            one group of all used devices
 *   layer mode             one group per device, consecutive layers in each
 *   offload                one group of a host device alone, and a tensor group
 *   pipeline               a tensor group per stage
 *
 * All of them are a tsr_split_layout: counts of granules per group, and the group of every block. */
#ifndef TSR_ARCH_SHARDING_H
#define TSR_ARCH_SHARDING_H

#include <tsr/plan.h>
#include <tsr/split.h>

#include "arch/hparams.h"
#include "core/device_set.h"

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

typedef enum tsr_block {
    TSR_BLOCK_EMBEDDING = 0, /* of no layer, like the output */
    TSR_BLOCK_ATTENTION,
    TSR_BLOCK_FFN,
    TSR_BLOCK_OUTPUT
} tsr_block;

/* One group and who holds what in it; begin[] of all maps counts all devices of the runtime. A class that the
 * group has no granules of has a map of nothing. */
typedef struct tsr_split_group {
    tsr_device_set devices; /* that hold any granule */
    tsr_shard_map q;        /* query elements = rows of W_q, columns of W_o */
    tsr_shard_map kv;       /* key and value elements = rows of W_k and W_v */
    tsr_shard_map kv_heads; /* the same in KV heads */
    tsr_shard_map ffn;      /* FFN elements = rows of gate and up, columns of down; or whole experts */
    tsr_shard_map vocab;    /* rows of the embedding and output matrices */
} tsr_split_group;

typedef struct tsr_model_split {
    tsr_split_mode mode;
    int n_devices;
    int64_t n_layers;
    double requested[TSR_MAX_DEVICES]; /* shares, sum 1 */
    int n_groups;
    tsr_split_group *groups;          /* [n_groups]; one that has no block takes no memory */
    int *attention_group, *ffn_group; /* [n_layers] */
    int embedding_group, output_group;
} tsr_model_split;

/* What a split is made of; all arrays are the caller's and only read. */
typedef struct tsr_split_layout {
    tsr_split_mode mode;
    int n_devices;
    const double *requested; /* [n_devices] shares, for the user to see */
    int n_groups;
    /* counts[g][class * n_devices + d] granules of group g; those of a class sum to granules->n[class], or to
     * 0 where no block of that class is in the group. Devices that get nothing do not take part. */
    const int64_t (*counts)[TSR_CLASS_COUNT * TSR_MAX_DEVICES];
    const int *attention_group, *ffn_group; /* [n_layers] */
    int embedding_group, output_group;
} tsr_split_layout;

/* TSR_ERR_INVALID: counts that do not sum up. */
tsr_status tsr_model_split_create(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                  const tsr_split_layout *layout, tsr_model_split *split_out);

/* Tensor mode: counts[class * n_devices + d] granules. Devices that get nothing are left out of the group. */
tsr_status tsr_model_split_tensor(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                  const double *shares, int n_devices, const int64_t *counts,
                                  tsr_model_split *split_out);

/* Layer mode and "none": devices[l] of every layer, and devices[n_layers] of the output. The embedding is
 * where the first layer is. */
tsr_status tsr_model_split_layers(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                  const double *shares, int n_devices, tsr_split_mode mode,
                                  const int *devices, tsr_model_split *split_out);

void tsr_model_split_free(tsr_model_split *split);

tsr_status tsr_model_split_copy(const tsr_model_split *split, tsr_model_split *copy_out);

/* The group in which device d holds all of everything. */
tsr_status tsr_split_group_init_alone(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                      int n_devices, int d, tsr_split_group *group_out);

/* The group of a block; `layer` is looked at for attention and FFN only. */
const tsr_split_group *tsr_model_split_group(const tsr_model_split *split, tsr_block block, int64_t layer);

/* The map that counts granules of a class in a group. */
const tsr_shard_map *tsr_split_group_map(const tsr_split_group *group, tsr_split_class_id id);

#endif
