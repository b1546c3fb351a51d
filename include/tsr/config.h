/** @file
 * The config of a model: how it is split over devices and run.
 *
 *     tsr_model_config config = tsr_model_config_default();
 *     config.split.tensor_split = (float[]){3, 1};
 *     config.split.n_tensor_split = 2;
 *     config.session.n_ctx = 8192;
 *
 * tsr_plan_create(), tsr_fit_create() and tsr_model_open() take a config. They read what the config points to
 * during the call only, unless they say otherwise.
 */
#ifndef TSR_CONFIG_H
#define TSR_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/graph.h>
#include <tsr/status.h>
#include <tsr/types.h>

TSR_BEGIN_DECLS

struct tsr_device_rates;
struct tsr_links;
struct tsr_fit_config;

/** How a model is divided over devices; the names are llama.cpp's. */
typedef enum tsr_split_mode {
    TSR_SPLIT_MODE_NONE = 0, /**< the whole model on main_device */
    /** Whole layers, in device order. Without a tensor_split, the planner chooses the numbers of layers that
     * take the least time. One device works at a time, so the fastest devices get as many as fit. */
    TSR_SPLIT_MODE_LAYER = 1,
    TSR_SPLIT_MODE_TENSOR = 2, /**< every matrix divided by rows or columns */
    /** The mode that takes the least time: one of the above, or several groups of devices one after another,
     * with matrices divided inside each group. With a tensor_split or offloaded blocks: tensor mode. The info
     * of a plan has the mode that was chosen; AUTO there means groups one after another. */
    TSR_SPLIT_MODE_AUTO = 3
} tsr_split_mode;

/** "none", "layer", "tensor", "auto"; never NULL. */
TSR_API const char *tsr_split_mode_name(tsr_split_mode mode);
/** TSR_ERR_INVALID for another name. */
TSR_NODISCARD TSR_API tsr_status tsr_split_mode_parse(const char *name, tsr_split_mode *mode_out);

/** How the FFN of a mixture of experts is divided; no bit of the result depends on it. */
typedef enum tsr_expert_split {
    /** The columns of every expert: devices work evenly, whatever experts a token uses. */
    TSR_EXPERT_SPLIT_COLUMNS = 0,
    /** Whole experts: for more devices than an expert has granules of columns, and for steps of many tokens.
     * With one token, only the devices that hold its experts work. */
    TSR_EXPERT_SPLIT_EXPERTS = 1,
    /** The one that takes less time, chosen when the model is opened or planned. A change of split keeps the
     * choice. The info of a plan has the choice. */
    TSR_EXPERT_SPLIT_AUTO = 2
} tsr_expert_split;

/** "columns", "experts", "auto"; never NULL. */
TSR_API const char *tsr_expert_split_name(tsr_expert_split split);
/** TSR_ERR_INVALID for another name. */
TSR_NODISCARD TSR_API tsr_status tsr_expert_split_parse(const char *name, tsr_expert_split *split_out);

/** A block goes to `device` if `pattern` is found in the name of one of its tensors. */
typedef struct tsr_offload_rule {
    const char *pattern; /**< PCRE2, searched in names of tensors, not anchored */
    const char *device;  /**< name in plans ("host0", "cuda1"), number, or "CPU": the offload device */
} tsr_offload_rule;

/** How a model is split over devices and run. Each group of fields decides one thing. A later version of the
 * library adds fields at the end only. */
typedef struct tsr_model_config {
    size_t size; /**< sizeof(tsr_model_config) */

    /** Which device works on which part of the matrices. */
    struct {
        /** [n_tensor_split] proportions in device order; NULL or all 0: the planner chooses those that take
         * the least time */
        const float *tensor_split;
        int n_tensor_split;       /**< entries of `tensor_split` */
        tsr_split_mode mode;      /**< how the model is divided */
        tsr_expert_split experts; /**< how the FFN of a mixture of experts is divided */
        int main_device;          /**< the device of TSR_SPLIT_MODE_NONE */
    } split;

    /** Blocks that one device works on alone, while the other blocks are divided over the other devices. A
     * block is the attention or the FFN of a layer, the embedding, or the output. A host device with such
     * blocks has no part in the divided blocks unless `tensor_split` gives it a share. Among devices of one
     * kind an offload changes no bit of the logits; GPUs and host devices round differently. */
    struct {
        /** Layers that are not offloaded, counted from the last; -1: all. With one more than the model has,
         * the embedding and the output are not offloaded either: the offload device has no part then, unless
         * `tensor_split` gives it a share. */
        int n_gpu_layers;
        /** the FFN with its experts is offloaded in this number of layers, counted from the first */
        int n_cpu_moe;
        /** [n_rules] applied before the two numbers above; of several rules that match, the first counts */
        const tsr_offload_rule *rules;
        int n_rules;        /**< entries of `rules` */
        const char *device; /**< the offload device, by name or number; NULL: the last host device */
    } offload;

    /** What a session holds, and how much one step computes. */
    struct {
        int64_t n_ctx;     /**< tokens of all sequences of a session; 0: the model's trained context */
        int n_seq_max;     /**< sequences of a session */
        int n_batch;       /**< most tokens of a step; a longer batch is cut, which changes no bit */
        int n_outputs_max; /**< most rows of logits of a step; a batch with more is cut; 0: n_seq_max, and of
                            * embeddings n_batch */
        tsr_type type_k;   /**< of keys in the KV region: F32, F16, BF16, Q8_0, Q4_0 */
        /** of values in the KV region, like `type_k`; equal to it in models with latent attention or
         * compressed positions, where values are in keys */
        tsr_type type_v;
        /** llama.cpp's name. True: layers with a sliding window keep the keys and values of all tokens, so
         * that sequences can be cut back to any length (not in models with recurrent layers or compressed
         * positions). False: the keys and values of the window and a batch. */
        bool swa_full;
        int n_sessions; /**< sessions that a plan has memory for; each has a KV region and an arena */
    } session;

    /** How a step computes. */
    struct {
        tsr_reduction reduction; /**< how partial sums are added up */
        /** of activations beside quantized weights: 16 or 8 (tsr_program_config) */
        int activation_bits;
        uint64_t timeout_ns; /**< a step that takes longer fails with TSR_ERR_TIMEOUT; 0: no limit */
    } compute;

    /** What the planner is given. */
    struct {
        /** [number of devices] how fast the devices are; NULL: guessed from their descriptions
         * (tsr_device_rates_guess) */
        const struct tsr_device_rates *rates;
        /** Times of transfers and all-reduces between the same devices: measured ones, and predicted ones
         * unless the rates are measured. NULL: the figures in the rates. */
        const struct tsr_links *links;
        /** reduce what this config leaves open until the model fits (tsr/fit.h); NULL: a model that does not
         * fit is an error */
        const struct tsr_fit_config *fit;
    } plan;

    /** How weights are loaded. */
    struct {
        /** called on the calling thread with 0 to 1; NULL: no progress callback */
        void (*progress)(double fraction, void *user);
        void *progress_user; /**< passed to `progress` */
        /** of host devices. True: shards are copied into memory near the device. False: they are read in the
         * mapped file where that is possible. */
        bool copy_weights;
        /** compare copied weights with the file: by checksums made on GPUs, otherwise by reading them back */
        bool verify_upload;
    } load;

    /** The workload whose time the planner minimises: the prompts of some sequences, in steps of n_batch
     * tokens, and new tokens, one of every sequence per step. Prompts are bound by arithmetic and by the
     * bytes of all-reduces, decoding by memory and latency, so the fastest splits differ. The default is a
     * turn of a conversation, 512 and 128 tokens, in all sequences that a session holds. One of the numbers
     * of tokens may be 0. */
    struct {
        int n_prompt; /**< tokens of each prompt */
        int n_new;    /**< tokens generated after each */
        int n_seq;    /**< sequences that are computed at the same time, at most n_seq_max; 0: n_seq_max */
    } workload;

    /** Memory that a plan leaves free on devices with a cap. A fit without margins of its own uses these. */
    struct {
        const size_t *bytes; /**< [n]; NULL: nothing is left free */
        int n;               /**< 1: the same on all devices; otherwise one per device, in their order */
    } margin;

    /** The prediction layer of files that have one ("nextn_predict_layers"), for tsr_session_predict(). Of
     * several the first. */
    struct {
        /** Plan and load it as the model's last layer, and keep its keys and values. tsr_model_open() and
         * tsr_plan_create() then return TSR_ERR_INVALID for a file without one, TSR_ERR_FORMAT if the layer
         * lacks a tensor, and TSR_ERR_UNSUPPORTED if it is recurrent or has no keys and values of its own, or
         * if the model can be planned, but not run. docs/models.md says which architectures were tested */
        bool load;
    } prediction;

    /** A split of their own for steps of many tokens, in tensor mode without offloaded blocks. Prompts are
     * bound by arithmetic and by the bytes of all-reduces, decoding by memory and latency. FFN and output
     * matrices are divided as this split says in steps of n_tokens tokens and more, and as
     * split.tensor_split says in shorter ones. Attention is divided by split.tensor_split in both, so keys
     * and values stay where they are, and steps of any size may follow each other. Each device stores what it
     * has under either split, once. No bit of the result depends on it. TSR_ERR_INVALID with other split
     * modes, with offloaded blocks, with n_tokens above session.n_batch, and where session.n_batch is 1;
     * TSR_ERR_UNSUPPORTED for models that are only planned. */
    struct {
        /** [n_tensor_split] proportions in device order, of which 0 means no part of FFN and output; NULL or
         * all 0: as `automatic` says */
        const float *tensor_split;
        int n_tensor_split; /**< entries of `tensor_split` */
        /** without a tensor_split here: true: the planner chooses a split of prompts if the workload is
         * predicted to be faster by TSR_PROMPT_SPLIT_GAIN or more with it, and has none where it must not.
         * False: none */
        bool automatic;
        int n_tokens; /**< the least tokens of a step of this split, at least 2; 0: the planner's choice */
    } prompt;

    /** What sessions give of the tokens that a batch marks (tsr_batch.outputs). */
    struct {
        /** true: embeddings, by tsr_session_decode_embeddings(), and no logits. The output matrix is loaded,
         * but takes no part: its time and the bytes of logits are not planned. TSR_ERR_INVALID together with
         * prediction.load. False: logits */
        bool embeddings;
    } output;
} tsr_model_config;

/** What a split of prompts that the planner chooses gains at least: 3 % of the time of the workload. */
#define TSR_PROMPT_SPLIT_GAIN 0.03

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_model_config_init(tsr_model_config *config_out, size_t size);

/** The defaults: tensor mode, shares by the planner for 512 tokens in and 128 out, full context, one
 * sequence, F16 keys and values. */
static inline tsr_model_config tsr_model_config_default(void)
{
    tsr_model_config config;
    tsr_model_config_init(&config, sizeof config);
    return config;
}

TSR_END_DECLS
#endif
