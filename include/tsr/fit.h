/** @file
 * Fitting: reducing what a config leaves open until a model fits, before anything is loaded.
 *
 * By default a model has its full context and all of its layers on the devices. If that does not fit,
 * tsr_fit_create() reduces what the config leaves open, in these steps:
 *
 *     1. the types of keys and values, to those that the fit allows: smaller types hold more context
 *     2. the context (n_ctx 0), in steps of TSR_FIT_CTX_STEP tokens, down to n_ctx_min
 *     3. experts (n_cpu_moe 0), offloaded from the first layer on
 *     4. layers (n_gpu_layers -1), offloaded with embedding and output, from the first one on
 *
 * until every device keeps its margin free. A step is taken only after the step above has reached its limit,
 * and only as far as needed. Steps 3 and 4 need an offload device that has no other part: a host device next
 * to GPUs, or the one that config.offload.device names. An offload device that is not needed is not used,
 * unless tensor_split gives it a share.
 *
 * What the config sets itself (n_ctx, tensor_split, offload rules, ...) is never changed. Every candidate is
 * planned by tsr_plan_create(), so the result is exact: its bytes are those that loading allocates, and
 * TSR_FIT_CTX_STEP more tokens would not fit. Steps 3 and 4 are coarser than a step of context; the memory
 * that they leave over is given back to the context.
 *
 *     tsr_fit_config fit_config = tsr_fit_config_default();
 *     tsr_model_config config = tsr_model_config_default();
 *     config.plan.fit = &fit_config;
 *     tsr_fit_create(gguf, devices, &config, &fit);      (allocates nothing on any device)
 *     tsr_fit_print(fit, write, NULL);
 *     tsr_fit_result(fit, &config);                      (n_ctx, types and layers as they fit)
 *
 * With config.plan.fit set, tsr_plan_create() and tsr_model_open() fit the model themselves. tsr_model_open()
 * uses the memory that its devices have free at that time.
 *
 * A finished fit is read-only: any number of threads may query it, and make other fits at the same time. */
#ifndef TSR_FIT_H
#define TSR_FIT_H

#include <tsr/plan.h>

TSR_BEGIN_DECLS

/** Bytes that a device keeps free by default. */
#define TSR_FIT_MARGIN ((size_t)1 << 30)
/** The least context of a fit by default, in tokens. */
#define TSR_FIT_CTX_MIN 4096
/** The step in which the context is cut, in tokens. */
#define TSR_FIT_CTX_STEP 256

/** How far a fit may cut. */
typedef struct tsr_fit_config {
    size_t size;       /**< sizeof(tsr_fit_config) */
    int64_t n_ctx_min; /**< tokens; the context of a model trained with fewer tokens is not cut */
    tsr_type type_k;   /**< smaller type in which keys may be stored; TSR_TYPE_F32, or a type that
                            is not smaller than the config's: keys keep the config's type */
    tsr_type type_v;   /**< smaller type in which values may be stored, as type_k */
    /** [n_margins] bytes to leave free: one for all devices, or one per device in their order; NULL:
     * config->margin, or without that TSR_FIT_MARGIN on each. Devices without a cap have none */
    const size_t *margins;
    int n_margins; /**< entries of `margins` */
    /** cut nothing but the context, set no offload device apart, and leave TSR_FIT_MARGIN on GPUs only */
    bool context_only;
} tsr_fit_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_fit_config_init(tsr_fit_config *config_out, size_t size);

/** The defaults: no other KV type, TSR_FIT_CTX_MIN, TSR_FIT_MARGIN on each device. */
static inline tsr_fit_config tsr_fit_config_default(void)
{
    tsr_fit_config config;
    tsr_fit_config_init(&config, sizeof config);
    return config;
}

/** A model that was fitted into devices; read-only. */
typedef struct tsr_fit tsr_fit;

/** Fit `gguf` (opened whole or header_only) into `devices`. `config` NULL: the defaults; config->plan.fit
 * NULL: the defaults of a fit. The arguments are only read during the call, but objects that `config` points
 * to must live as long as tsr_fit_result() is used. Errors as tsr_plan_create(). TSR_ERR_INVALID: a bad fit
 * config. TSR_ERR_MEMORY: the model does not fit after all cuts that are allowed; the message names the
 * devices and the bytes that each lacks. */
TSR_NODISCARD TSR_API tsr_status tsr_fit_create(const tsr_gguf *gguf, const tsr_device_list *devices,
                                                const tsr_model_config *config, tsr_fit **fit_out);
TSR_API void tsr_fit_destroy(tsr_fit *fit); /**< NULL is fine */

/** The values that a fit chooses. */
typedef struct tsr_fit_choice {
    int64_t n_ctx;    /**< tokens of context */
    tsr_type type_k;  /**< of keys in the KV region */
    tsr_type type_v;  /**< of values in the KV region */
    int n_gpu_layers; /**< as in tsr_model_config; one more than the model has: no layer is offloaded, and
                           the offload device has no part */
    int n_cpu_moe;    /**< as in tsr_model_config */
} tsr_fit_choice;

/** The choice of the config, and the choice of the fit. */
typedef struct tsr_fit_info {
    int n_devices;         /**< of the plan */
    int n_steps;           /**< cuts, for tsr_fit_step_at() */
    tsr_fit_choice wanted; /**< the choice of the config */
    tsr_fit_choice chosen; /**< the choice that fits; equal to `wanted` if nothing had to be cut */
    uint64_t reserved[8];  /**< 0; fields of later versions take its place */
} tsr_fit_info;

/** Write both choices. */
TSR_API void tsr_fit_get_info(const tsr_fit *fit, tsr_fit_info *info_out);

/** Write the plan of a device with nothing cut and unlimited memory, and the bytes that the device lacks for
 * this plan and its margin (0: none). TSR_ERR_INVALID: there is no such device. */
TSR_NODISCARD TSR_API tsr_status tsr_fit_wanted(const tsr_fit *fit, int device, tsr_plan_device *device_out,
                                                size_t *missing_bytes_out);

/** The cuts of a fit. */
typedef enum tsr_fit_cut {
    TSR_FIT_CUT_CONTEXT = 0,
    TSR_FIT_CUT_KV_TYPE = 1,
    TSR_FIT_CUT_EXPERTS = 2,
    TSR_FIT_CUT_LAYERS = 3,
    TSR_FIT_GROW_CONTEXT = 4, /**< context given back, in memory that a coarser cut left over */
    TSR_FIT_CUT_COUNT = 5
} tsr_fit_cut;

/** "context", "kv_type", "experts", "layers", "context_back"; never NULL. */
TSR_API const char *tsr_fit_cut_name(tsr_fit_cut cut);

/** One cut of a fit. */
typedef struct tsr_fit_step {
    tsr_fit_cut cut;                       /**< what was cut */
    tsr_fit_choice before;                 /**< the choice before the cut */
    tsr_fit_choice after;                  /**< the choice after the cut */
    char text[96];                         /**< "context 131072 -> 8192 tokens" */
    int64_t saved_bytes;                   /**< on all devices except the offload device; negative where
                                                context is given back */
    int64_t device_bytes[TSR_MAX_DEVICES]; /**< on each device, with the offload device */
} tsr_fit_step;

/** Write a cut, in the order in which they were made. False past the last cut. */
TSR_API bool tsr_fit_step_at(const tsr_fit *fit, int index, tsr_fit_step *step_out);

/** The placement that was found; belongs to the fit. */
TSR_API const tsr_plan *tsr_fit_plan(const tsr_fit *fit);

/** Write the config that gives this placement: the caller's config with the choices of the fit and its
 * margins. config_out->size is the size of the caller's struct, as tsr_model_config_default() sets it. The
 * config has the pointers of the caller's config. */
TSR_API void tsr_fit_result(const tsr_fit *fit, tsr_model_config *config_out);

/** Print the whole fit as tables, for people to read. */
TSR_API void tsr_fit_print(const tsr_fit *fit, tsr_write_fn write, void *user);
/** Print the fit without the placement, for logs. */
TSR_API void tsr_fit_print_cuts(const tsr_fit *fit, tsr_write_fn write, void *user);

TSR_END_DECLS
#endif
