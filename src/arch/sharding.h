/* How one model is divided over devices. A plan makes this decision; the loader carries it out.
 *
 * A model is a row of blocks: the embedding, per layer attention and FFN (each with its norm and its residual
 * sum), the output. Devices work in groups. Inside a group every matrix is divided. Every block belongs to
 * one group; if the next block belongs to another group, the activations are transferred. Groups may share
 * devices.
 *
 *   tensor mode            one group of all used devices
 *   layer mode             one group per device, consecutive layers in each
 *   offload                one group of a host device alone, and a tensor group
 *   pipeline               a tensor group per stage
 *
 * Each of these is a tsr_split_layout: counts of granules per group, and the group of every block. */
#ifndef TSR_ARCH_SHARDING_H
#define TSR_ARCH_SHARDING_H

#include <tsr/plan.h>
#include <tsr/split.h>

#include "arch/hparams.h"
#include "core/device_set.h"

/* Sizes of the granules, from the shape and the quantization blocks of the matrices divided by columns.
 * Attention has the granules of the kind of layers with the most, the main kind; layers of other kinds are
 * divided in the same proportions. */
typedef struct tsr_model_granules {
    int main_kind;
    int64_t kind_heads[TSR_MAX_LAYER_KINDS]; /* KV heads per granule of each kind */
    int64_t kv_heads;                        /* per attention granule */
    int64_t ffn_columns;                     /* per FFN granule */
    int64_t n[TSR_CLASS_COUNT];              /* granules of each class */
    int64_t size[TSR_CLASS_COUNT];           /* KV heads, columns, rows */
} tsr_model_granules;

/* `attention_blocks` (of each kind), `ffn_block`: the columns of W_o and W_down are cut at multiples of this
 * number of elements (the least common multiple over layers). */
tsr_status tsr_model_granules_find(const tsr_hparams *hparams,
                                   const int64_t attention_blocks[TSR_MAX_LAYER_KINDS], int64_t ffn_block,
                                   tsr_model_granules *granules_out);

typedef enum tsr_block {
    TSR_BLOCK_EMBEDDING = 0, /* blocks outside the layers */
    TSR_BLOCK_ATTENTION,
    TSR_BLOCK_FFN,
    TSR_BLOCK_OUTPUT
} tsr_block;

/* One group, and the part of each of its devices. begin[] of all maps has an entry for every device of the
 * runtime. The map of a class without granules in the group is empty. */
typedef struct tsr_split_group {
    tsr_device_set devices; /* devices with a granule */
    tsr_shard_map q;        /* query elements = rows of W_q, columns of W_o */
    tsr_shard_map kv;       /* key and value elements = rows of W_k and W_v */
    tsr_shard_map kv_heads; /* KV heads */
    tsr_shard_map ffn;      /* FFN elements = rows of gate and up, columns of down; or whole experts */
    tsr_shard_map vocab;    /* rows of the embedding and output matrices */
} tsr_split_group;

typedef struct tsr_model_split {
    tsr_split_mode mode;
    int n_devices;
    int64_t n_layers;
    double requested[TSR_MAX_DEVICES]; /* shares, sum 1 */
    int n_groups;
    tsr_split_group *groups;          /* [n_groups]; a group without blocks takes no memory */
    int *attention_group, *ffn_group; /* [n_layers] */
    int embedding_group, output_group;
    /* The split of steps of prompt_tokens tokens and more; NULL: this one. Attention is divided as here, so
     * that keys, values and states are where steps of any size need them. */
    struct tsr_model_split *prompt;
    int64_t prompt_tokens;
} tsr_model_split;

/* The parts of a split. All arrays belong to the caller and are only read. */
typedef struct tsr_split_layout {
    tsr_split_mode mode;
    int n_devices;
    const double *requested; /* [n_devices] shares, for the user to see */
    int n_groups;
    /* counts[g][class * n_devices + d] granules of group g. The counts of a class sum to granules->n[class],
     * or to 0 if the group has no block of that class. Devices without a granule do not take part. */
    const int64_t (*counts)[TSR_CLASS_COUNT * TSR_MAX_DEVICES];
    const int *attention_group, *ffn_group; /* [n_layers] */
    int embedding_group, output_group;
} tsr_split_layout;

/* TSR_ERR_INVALID: the counts have a wrong sum. */
tsr_status tsr_model_split_create(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                  const tsr_split_layout *layout, tsr_model_split *split_out);

/* Layers that read another layer's keys and values belong to that layer's group. Their FFN goes with them if
 * it was in the same group. To be called after a change of groups. */
void tsr_model_split_join_shared_kv(const tsr_hparams *hparams, tsr_model_split *split);

/* Tensor mode: counts[class * n_devices + d] granules. Devices without a granule are not in the group. */
tsr_status tsr_model_split_tensor(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                  const double *shares, int n_devices, const int64_t *counts,
                                  tsr_model_split *split_out);

/* Layer mode and "none": devices[l] of every layer, and devices[n_layers] of the output. The embedding is on
 * the device of the first layer. */
tsr_status tsr_model_split_layers(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                  const double *shares, int n_devices, tsr_split_mode mode,
                                  const int *devices, tsr_model_split *split_out);

/* Give a split of tensor mode, counts[class * n_devices + d], a split of its own for steps of prompt_tokens
 * tokens and more, with prompt_counts of the same attention. TSR_ERR_INVALID: counts have a wrong sum. */
tsr_status tsr_model_split_add_prompt(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                      const double *shares, const int64_t *prompt_counts,
                                      int64_t prompt_tokens, tsr_model_split *split);

/* The split of a step of n_tokens tokens. */
const tsr_model_split *tsr_model_split_of(const tsr_model_split *split, int64_t n_tokens);

void tsr_model_split_free(tsr_model_split *split);

tsr_status tsr_model_split_copy(const tsr_model_split *split, tsr_model_split *copy_out);

/* The group of device d alone. */
tsr_status tsr_split_group_init_alone(const tsr_hparams *hparams, const tsr_model_granules *granules,
                                      int n_devices, int d, tsr_split_group *group_out);

/* The group of a block; `layer` is used for attention and FFN only. */
const tsr_split_group *tsr_model_split_group(const tsr_model_split *split, tsr_block block, int64_t layer);

/* The states of a recurrent mixer of a kind, by their numbers in the KV layer: the inputs that the
 * convolutions of queries, of keys and of each part of the values keep, then the matrices of each part. A
 * short convolution has its inputs alone, compressed positions the group of rows that is not full, then that
 * of index keys. */
enum {
    TSR_STATE_CONV_Q = 0,
    TSR_STATE_CONV_K,
    TSR_STATE_CONV_V
}; /* the matrices: TSR_STATE_CONV_V + parts */

/* Whether every device of a layer of the kind has some of the layer's states whole. */
bool tsr_kind_has_whole_states(const tsr_layer_kind *kind);

/* Groups of blocks that follow each other on devices of their own: the devices of the blocks before a stage
 * have no later block. At least 1. The embedding alone, or the output alone, is no stage: its time is too
 * short for other stages to gain from smaller chunks. */
int tsr_model_split_n_stages(const tsr_model_split *split);

/* The most tokens of a chunk of n_tokens that go through n_stages stages. A chunk takes the time of some
 * tokens (its cost) in addition to that of its own: weights are read, kernels are launched. T tokens in
 * chunks of m take (T / m + S - 1) (m + cost) on S stages, least where m^2 = T cost / (S - 1). The result is
 * a power of two near that, so that prompts of many lengths share programs. Where layers keep a window only
 * (`windows`), they keep what n_batch tokens need to be undone: the chunks in flight have no more. */
int64_t tsr_stage_chunk_tokens(int64_t n_tokens, int n_stages, bool any_gpu, bool windows, int64_t n_batch);

/* The cost of a chunk, in tokens. */
int64_t tsr_stage_chunk_cost(bool any_gpu);

/* The map that counts granules of a class in a group. */
const tsr_shard_map *tsr_split_group_map(const tsr_split_group *group, tsr_split_class_id id);

/* The KV heads of a kind on each device of a group. */
void tsr_split_group_kv_heads(const tsr_split_group *group, const tsr_hparams *hparams,
                              const tsr_model_granules *granules, int kind, tsr_shard_map *heads_out);

#endif
