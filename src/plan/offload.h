/* Pins: the blocks of a model whose device the user chose, by n_gpu_layers, n_cpu_moe or offload rules. All
 * other blocks are free: the planner divides them over the devices that are not set apart. */
#ifndef TSR_PLAN_OFFLOAD_H
#define TSR_PLAN_OFFLOAD_H

#include "core/device_set.h"
#include "plan/planner.h"

enum { TSR_FREE = -1 };

typedef struct tsr_offload_map {
    int64_t n_layers;
    int embedding, output; /* device, or TSR_FREE */
    int *attention, *ffn;  /* [n_layers] the same */
    /* Devices with pinned blocks that get no share of the free ones unless the tensor_split says so: the
     * offload device, and host devices together with others */
    tsr_device_set reserved;
    bool any;
} tsr_offload_map;

/* Map the blocks that planner->config offloads. TSR_ERR_INVALID for a pattern that cannot be compiled,
 * matches nothing, or parts the matrices of a block (the message names the matrix left behind), for a device
 * that does not exist, or if there is no device to offload to, or no experts. */
tsr_status tsr_offload_map_create(const tsr_planner *planner, tsr_offload_map *map_out);
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

/* Enter the devices of the blocks that offload rules name into `map`; all other blocks stay as they are.
 * `offload_device` is the meaning of "CPU"; -1: there is no such device (see offload_patterns.c). */
tsr_status tsr_offload_rules_apply(const tsr_planner *planner, int offload_device, tsr_offload_map *map);

/* The device that a fit may offload to, since it has no other part: the device that config.offload.device
 * names, or the last host device, if there are GPUs as well or if TSR_SPLIT_MODE_NONE uses another device.
 * -1: there is no such device, or tensor_split gives it a share. */
tsr_status tsr_offload_spare_device(const tsr_planner *planner, int *device_out);

/* The device of a name or number. TSR_ERR_INVALID lists the devices; `what` says where the text comes
 * from. */
tsr_status tsr_offload_find_device(const tsr_planner *planner, const char *text, const char *what,
                                   int *device_out);

#endif
