/* Pins: the blocks of a model whose device the user chose, by n_gpu_layers, n_cpu_moe or offload rules. All
 * other blocks are free: the planner divides them over the devices that are not set apart. */
#ifndef TSR_PLAN_OFFLOAD_H
#define TSR_PLAN_OFFLOAD_H

#include "core/device_set.h"
#include "model/shape.h"
#include "runtime/device_props.h"

enum { TSR_FREE = -1 };

typedef struct tsr_offload_map {
    int64_t n_layers;
    int embedding, output;   /* device, or TSR_FREE */
    int *attention, *ffn;    /* [n_layers] the same */
    tsr_device_set reserved; /* devices with pinned blocks that get no share of the free ones unless the
                              tensor_split says so: the offload device, and host devices beside others */
    bool any;
} tsr_offload_map;

/* `weights` are the declared ones. TSR_ERR_INVALID for a pattern that cannot be compiled, matches nothing, or
 * parts the matrices of a block (the message names the one left behind), for a device that does not exist, or
 * when there is no device to offload to, or no experts. */
tsr_status tsr_offload_map_create(const tsr_device_props *props, int n_devices, const tsr_weights *weights,
                                  const tsr_model_config *config, tsr_offload_map *map_out);
void tsr_offload_map_free(tsr_offload_map *map);

/* The pin of a block; `layer` is looked at for attention and FFN only. */
int *tsr_offload_at(tsr_offload_map *map, tsr_block block, int64_t layer);

/* How many blocks of a class are free, embedding and output counting as two of TSR_CLASS_OUTPUT; and the
 * bytes of their divided weights. */
int64_t tsr_offload_n_free(const tsr_offload_map *map, tsr_split_class_id id);
size_t tsr_offload_free_bytes(const tsr_offload_map *map, const tsr_weights *weights, tsr_split_class_id id);

/* Move the pinned blocks of a split of any kind to groups of their own devices alone; its free blocks stay
 * where they are. On failure the split can only be freed. */
tsr_status tsr_offload_apply(const tsr_offload_map *map, const tsr_hparams *hparams,
                             const tsr_model_granules *granules, tsr_model_split *split);

/* Where offload rules put the blocks whose tensors they name: devices into `map`, which is as it was where
 * they name none. `offload_device` is what "CPU" stands for, -1: nothing (see offload_patterns.c). */
tsr_status tsr_offload_rules_apply(const tsr_device_props *props, int n_devices, const tsr_weights *weights,
                                   const tsr_model_config *config, int offload_device, tsr_offload_map *map);

/* The device that could be offloaded to and has no other part: the one that config->offload.device names, or
 * the last host device, if it is beside GPUs or beside the only device of TSR_SPLIT_MODE_NONE. -1: there is
 * none, or tensor_split gives it a share. */
tsr_status tsr_offload_spare_device(const tsr_device_props *props, int n_devices,
                                    const tsr_model_config *config, int *device_out);

/* The device that a text names: its name, or its number. TSR_ERR_INVALID lists those there are; `what` is
 * where the text comes from. */
tsr_status tsr_offload_find_device(const tsr_device_props *props, int n_devices, const char *text,
                                   const char *what, int *device_out);

#endif
