/** @file
 * Plans: which device holds which part of a model, and how many bytes each needs, before anything is loaded.
 *
 * A plan is made by running the loader itself on devices that only measure, so its bytes are the bytes that
 * loading will allocate, not an estimate. It needs the file's header and a description of the devices; those
 * may be of another machine. Models that tsr_model_open() does not run are planned, too: their weights and KV
 * are counted, their arena is estimated (tsr_plan_info.runnable, exact_arena; docs/models.md).
 *
 *     tsr_gguf_open("model.gguf", NULL, &gguf);
 *     tsr_device_list_create(topo, "host:2", NULL, &devices);
 *     tsr_model_config config = tsr_model_config_default();
 *     config.split.tensor_split = (float[]){3, 1};  config.split.n_tensor_split = 2;
 *     tsr_plan_create(gguf, devices, &config, &plan);
 *     tsr_plan_print(plan, write, NULL);
 *
 * A finished plan is read-only: any number of threads may query it.
 */
#ifndef TSR_PLAN_H
#define TSR_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/config.h>
#include <tsr/device_list.h>
#include <tsr/gguf.h>
#include <tsr/log.h>
#include <tsr/memory.h>
#include <tsr/split.h>
#include <tsr/types.h>

TSR_BEGIN_DECLS

/** What every device will hold and do; read-only. */
typedef struct tsr_plan tsr_plan;

/** Plan `gguf` (opened whole or header_only) over `devices` as `config` (NULL: the defaults) says. All are
 * only read during the call. Allocates nothing on any device. TSR_ERR_INVALID for a bad config,
 * TSR_ERR_UNSUPPORTED for a KV type whose blocks do not divide a head, or for different KV types with latent
 * attention, TSR_ERR_FORMAT for a broken model, TSR_ERR_MEMORY when it does not fit: the message names the
 * device and the bytes that are missing. */
TSR_NODISCARD TSR_API tsr_status tsr_plan_create(const tsr_gguf *gguf, const tsr_device_list *devices,
                                                 const tsr_model_config *config, tsr_plan **plan_out);

/** Plan as if no device had a cap, to show what is missing where tsr_plan_create() found no room: devices
 * whose bytes exceed their caps have tsr_plan_device.missing_bytes. Without a tensor_split the shares follow
 * the caps instead of the speed, so that all devices lack about the same part of their memory. A fit is not
 * made; with config->plan.fit an open context is the least that the fit may leave. Errors as
 * tsr_plan_create(). */
TSR_NODISCARD TSR_API tsr_status tsr_plan_create_uncapped(const tsr_gguf *gguf,
                                                          const tsr_device_list *devices,
                                                          const tsr_model_config *config,
                                                          tsr_plan **plan_out);
TSR_API void tsr_plan_destroy(tsr_plan *plan); /**< NULL is fine */

/** Classes of tensors that are divided by the same counts. */
typedef enum tsr_split_class_id {
    TSR_CLASS_ATTENTION = 0, /**< granule: KV heads with their query heads */
    TSR_CLASS_FFN = 1,       /**< granule: FFN columns, or an expert */
    TSR_CLASS_OUTPUT = 2,    /**< granule: rows of the embedding and output matrices */
    TSR_CLASS_COUNT = 3
} tsr_split_class_id;

/** "attention", "ffn", "output"; never NULL. */
TSR_API const char *tsr_split_class_name(tsr_split_class_id id);

/** What a plan is about. */
typedef struct tsr_plan_info {
    int n_devices;                       /**< those without a share included */
    tsr_split_mode mode;                 /**< as configured, or the choice of "auto" */
    int64_t n_ctx;                       /**< as planned */
    int64_t n_ctx_train;                 /**< tokens of context that the model was trained with */
    int n_seq_max;                       /**< sequences of a session, as planned */
    int n_batch;                         /**< most tokens of a step, as planned */
    tsr_type type_k;                     /**< of keys in the KV region */
    tsr_type type_v;                     /**< of values in the KV region */
    int64_t n_layers;                    /**< of the model */
    int64_t n_windowed;                  /**< layers with a sliding window */
    int64_t window;                      /**< tokens that they see, with the current one; 0: no such layers */
    int64_t n_granules[TSR_CLASS_COUNT]; /**< 0 where the model has none */
    int64_t granule_size[TSR_CLASS_COUNT]; /**< KV heads, columns (or experts), rows */
    int n_all_reduces;                     /**< per step */
    int n_transfers;                       /**< per step, from one group of devices to another */
    bool runnable;                 /**< tsr_model_open() can load it; otherwise a note has the reason */
    bool has_experts;              /**< a mixture of experts, divided as expert_split says */
    tsr_expert_split expert_split; /**< how they are divided */
    bool exact_arena;  /**< false: the arena is that of a similar graph, or not counted; a note says which */
    bool fits;         /**< false, of tsr_plan_create_uncapped() only: some device has missing_bytes */
    bool n_ctx_fitted; /**< a fit cut the context: n_ctx is the largest that fits */
    int n_prompt;      /**< of config.workload */
    int n_new;         /**< of config.workload */
    int n_seq;         /**< of config.workload */
    int64_t prompt_tokens; /**< the least tokens of a step of the split of prompts; 0: there is none */
    uint64_t reserved[8];  /**< 0; fields of later versions take its place */
} tsr_plan_info;

/** What a plan puts on one device. */
typedef struct tsr_plan_device {
    char name[32];                     /**< as in tsr_device_desc */
    tsr_device_kind kind;              /**< host or CUDA */
    bool used;                         /**< false: nothing is allocated on it */
    double requested;                  /**< share of what is not offloaded, all devices sum to 1 */
    double achieved[TSR_CLASS_COUNT];  /**< share of the class's granules, over all layers */
    int64_t granules[TSR_CLASS_COUNT]; /**< in one layer; where layers differ, the most in any */
    int64_t n_layers;                  /**< layers that it works on */
    size_t bytes[TSR_MEMORY_COUNT];    /**< by owner: exactly what loading will allocate */
    size_t total_bytes;                /**< sum of bytes[] */
    size_t kv_windowed_bytes;          /**< of bytes[TSR_MEMORY_KV], of layers with a sliding window */
    size_t memory_cap;                 /**< SIZE_MAX = no cap */
    size_t margin_bytes;               /**< of the cap, left free as a fit demanded */
    /** of the cap, beyond total_bytes; SIZE_MAX = no cap. Of a host device of this machine at most what the
     * machine has available now, beyond total_bytes of all its host devices and of GPUs that share its
     * memory; the same of such a GPU beside host devices */
    size_t free_bytes;
    size_t missing_bytes;     /**< of total_bytes and the margin, beyond the cap */
    size_t arena_bound_bytes; /**< no packing of the activations could be smaller */
    /** as `granules`, in steps of the split of prompts; 0 if there is none */
    int64_t prompt_granules[TSR_CLASS_COUNT];
    size_t prompt_bytes;  /**< of total_bytes, what the split of prompts adds */
    uint64_t reserved[8]; /**< 0; fields of later versions take its place */
} tsr_plan_device;

/** Write what the plan is about. */
TSR_API void tsr_plan_get_info(const tsr_plan *plan, tsr_plan_info *info_out);
/** TSR_ERR_INVALID if there is no such device. */
TSR_NODISCARD TSR_API tsr_status tsr_plan_get_device(const tsr_plan *plan, int device,
                                                     tsr_plan_device *device_out);

/** Consecutive layers on the same devices. The first stage has the embedding, the last the output, unless
 * they are offloaded. */
typedef struct tsr_plan_stage {
    uint64_t devices;    /**< one bit each */
    int64_t first_layer; /**< index of the first layer */
    int64_t n_layers;    /**< 0: the last stage has the output only */
} tsr_plan_stage;

/** Write a stage. False: there is no stage with this index. Tensor mode has one stage. */
TSR_API bool tsr_plan_stage_at(const tsr_plan *plan, int index, tsr_plan_stage *stage_out);

/** Predicted time of one kind of step. Each class of tensors takes `repeats` times the work of the slowest
 * device of its group and the all-reduce after the work (of the output's class: after the embedding).
 * Transfers between groups are added. Groups work one after another, but chunks of a prompt are in flight
 * together, so that groups on devices of their own work at the same time, and in a group of GPUs all-reduces
 * of one half of a chunk run beside the work of the other half (overlap_ns). Where layers differ,
 * in layer mode and with offload, the times are means over the layers. All-reduces of norms over all heads
 * and of embeddings per layer, gathers in recurrent layers, and the recurrences are not in the times. */
typedef struct tsr_plan_phase {
    int64_t n_tokens;                /**< in the step, with half of the context before each */
    double total_ns;                 /**< of the whole step */
    double repeats[TSR_CLASS_COUNT]; /**< layers; 1 for the output */
    double work_ns[TSR_CLASS_COUNT]; /**< of the slowest device, per repeat */
    double sync_ns[TSR_CLASS_COUNT]; /**< of the all-reduce after the work, per repeat */
    double device_ns[TSR_CLASS_COUNT][TSR_MAX_DEVICES]; /**< work of every device */
    int slowest[TSR_CLASS_COUNT];                       /**< the device with the most work; -1: no work */
    double transfer_ns;                                 /**< of the whole step */
    double overlap_ns; /**< what chunks in flight together through several stages, or a chunk's halves, save;
                             below 0 if being small costs them more. total_ns is less by this */
} tsr_plan_phase;

/** Predicted times of a plan, by the rates that it was made with. */
typedef struct tsr_plan_times {
    bool automatic; /**< the planner chose the shares */
    /** automatic: no other shares, nor other devices, would be faster by these rates */
    bool proven;
    bool known;            /**< false: some rates are unknown; times are 0, there are no alternatives */
    bool measured;         /**< the rates were measured; false: described or assumed */
    int64_t measured_at;   /**< when, of the earliest, in seconds since 1970; 0: unknown */
    double load;           /**< tsr_device_rates.load of the device where it was highest */
    tsr_plan_phase decode; /**< one token of every sequence of config.workload */
    tsr_plan_phase prompt; /**< n_batch tokens, or the prompts of config.workload if those are fewer */
    double workload_ns;    /**< of config.workload: its prompts in such steps, then its new tokens */
    uint64_t reserved[8];  /**< 0; fields of later versions take its place */
} tsr_plan_times;

/** Write the predicted times. They are unknown where the config's rates have 0 for a weight type. A plan
 * whose shares the caller gives needs no rates; one whose shares the planner chooses fails without them. */
TSR_API void tsr_plan_predict(const tsr_plan *plan, tsr_plan_times *times_out);

/** Another split of the model and its time by the same rates: either regardless of memory, or the best of a
 * mode that fits into the devices' memory. A mode that does not fit is left out. */
typedef struct tsr_plan_alternative {
    /** "even shares", "cuda0 alone", "without cuda3", "whole layers"; in memory "none: cuda0", "tensor:
     * cuda0-1", "layer: cuda0 30, cuda1 50" with the layers of each, "auto: cuda0-1 60, cuda2 20" */
    char text[128];
    double decode_ns;   /**< a step like tsr_plan_times.decode */
    double prompt_ns;   /**< a step like tsr_plan_times.prompt */
    bool in_memory;     /**< the best of a mode that fits; false: regardless of memory */
    bool too_large;     /**< of one regardless of memory: some device has too little for its part */
    double workload_ns; /**< of config.workload */
} tsr_plan_alternative;

/** Write an alternative. False: there is none with this index. */
TSR_API bool tsr_plan_alternative_at(const tsr_plan *plan, int index, tsr_plan_alternative *alternative_out);

/** Explain the plan, for people to read: per phase the slowest device and the time of the all-reduces, the
 * work of every device, and the alternatives. */
TSR_API void tsr_plan_explain(const tsr_plan *plan, tsr_write_fn write, void *user);

/** A remark for the user, in one sentence ("host2 gets no attention: 3 devices, 2 granules"). NULL: there is
 * no remark with this index. */
TSR_API const char *tsr_plan_note(const tsr_plan *plan, int index);

/** Print a plan for people to read, in lines of at most 80 columns: first a summary, then tables and notes.
 * Devices with consecutive names whose rows are equal share a row ("cuda0-3"). */
TSR_API void tsr_plan_print(const tsr_plan *plan, tsr_write_fn write, void *user);
/** The summary: whether the model fits, the memory that is left free or missing, predicted speeds, and the
 * context. */
TSR_API void tsr_plan_print_summary(const tsr_plan *plan, tsr_write_fn write, void *user);
/** The rest: how the model is divided, memory and shares of every device, notes. */
TSR_API void tsr_plan_print_tables(const tsr_plan *plan, tsr_write_fn write, void *user);

TSR_END_DECLS
#endif
