/* Models: a GGUF file laid over the devices of a runtime.
 *
 *     tsr_model_config config = TSR_MODEL_CONFIG_INIT;
 *     config.tensor_split = split;  config.n_tensor_split = 2;  config.n_ctx = 8192;
 *     tsr_model *model;
 *     if (tsr_model_open(rt, "model.gguf", &config, &model) != TSR_OK) ...
 *
 * On host devices the weights are views of the mapped file: opening takes milliseconds and reads no weight. A
 * model is used by one thread at a time, like its runtime, and must be closed before it, after its
 * sessions. */
#ifndef TSR_MODEL_H
#define TSR_MODEL_H

#include <stdint.h>

#include <tsr/fit.h>
#include <tsr/plan.h>
#include <tsr/runtime.h>
#include <tsr/tokenizer.h>

TSR_BEGIN_DECLS

typedef struct tsr_model tsr_model;

/* Plan, then load. `config` may be NULL; it is only read during the call. `rt` must outlive the model. Errors
 * as tsr_gguf_open() and tsr_plan_create(); TSR_ERR_MEMORY names device and bytes. */
TSR_NODISCARD TSR_API tsr_status tsr_model_open(tsr_runtime *rt, const char *path,
                                                const tsr_model_config *config, tsr_model **model_out);
TSR_API void tsr_model_close(tsr_model *model); /* NULL is fine */

typedef struct tsr_model_info {
    char architecture[32];
    char name[128]; /* general.name, "" if none */
    int64_t n_layers, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab;
    int64_t n_ctx_train;
    int64_t n_params;
    size_t weight_bytes; /* of all tensors in use */
} tsr_model_info;

TSR_API void tsr_model_describe(const tsr_model *model, tsr_model_info *info_out);

/* The plan that was carried out; belongs to the model. */
TSR_API const tsr_plan *tsr_model_plan(const tsr_model *model);

/* What config.fit had to cut; belongs to the model. NULL where it was not set. Its plan is tsr_model_plan().
 */
TSR_API const tsr_fit *tsr_model_fit(const tsr_model *model);

/* The opened file; belongs to the model. */
TSR_API const tsr_gguf *tsr_model_gguf(const tsr_model *model);

/* Read the model's tokenizer; the caller destroys it, before or after the model. Errors as
 * tsr_tokenizer_create(). */
TSR_NODISCARD TSR_API tsr_status tsr_model_tokenizer(const tsr_model *model, tsr_tokenizer **tokenizer_out);

TSR_END_DECLS
#endif
