/** @file
 * Models: the weights of a GGUF file on the devices of a runtime.
 *
 *     tsr_model_config config = tsr_model_config_default();
 *     config.split.tensor_split = split;  config.split.n_tensor_split = 2;  config.session.n_ctx = 8192;
 *     tsr_model *model;
 *     if (tsr_model_open(rt, "model.gguf", &config, &model) != TSR_OK) ...
 *
 * On host devices the weights are views of the mapped file: opening takes milliseconds and reads no weight.
 * While the model is open, the file may be deleted or replaced by rename(). Weights that are overwritten in
 * place change results and nothing else. A file that shrinks ends the process with SIGBUS (gguf.h). With
 * load.copy_weights the file is read by tsr_model_open() and by a change of the split only.
 *
 * A model is used by one thread at a time, like its runtime. Close a model after its sessions and before its
 * runtime. */
#ifndef TSR_MODEL_H
#define TSR_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/config.h>
#include <tsr/status.h>
#include <tsr/tensor.h>

TSR_BEGIN_DECLS

struct tsr_fit;
struct tsr_gguf;
struct tsr_plan;
struct tsr_tokenizer;

/** A model that is loaded on a runtime. */
typedef struct tsr_model tsr_model;

/** Plan, then load. `config` may be NULL; it is only read during the call. `rt` must outlive the model.
 * Errors as tsr_gguf_open() and tsr_plan_create(); TSR_ERR_MEMORY names device and bytes. */
TSR_NODISCARD TSR_API tsr_status tsr_model_open(tsr_runtime *rt, const char *path,
                                                const tsr_model_config *config, tsr_model **model_out);
TSR_API void tsr_model_close(tsr_model *model); /**< NULL is fine */

/** Change the split of a loaded model and of its sessions. Afterwards model and sessions are as if the model
 * had been opened with this tensor_split[n_tensor_split] and otherwise the same config, with its split of
 * prompts, too. n_tensor_split 0, or
 * all zeros: the planner chooses anew. Handles stay valid, sequences keep their tokens, and decoding
 * continues with the bits that it would have had without the change. The plan that tsr_model_plan() returned
 * before is no longer valid.
 *
 * Weights that are views of the file stay in place; only pointers to them change. A device with copies of
 * weights keeps the copies if its part stays the same. Otherwise the device gets new memory, filled from its
 * own copies where they have the bytes, and from the file elsewhere. KV pages and states of recurrent layers
 * are copied once, shared ones too, to the devices of their heads under the new split. The old split exists
 * until the new split is complete, so each device must have room for both: copied weights, committed KV
 * pages, arenas.
 *
 * TSR_ERR_MEMORY when it does not fit: the message names the device and the bytes that are missing.
 * TSR_ERR_INVALID: no such split. A device's own status if it fails. On any failure the model and its
 * sessions are as they were. Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_model_resplit(tsr_model *model, const float *tensor_split,
                                                   int n_tensor_split);

/** Change the split of all models that are open on a runtime: all of them change, or none. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_resplit(tsr_runtime *rt, const float *tensor_split,
                                                     int n_tensor_split);

/** Adapt the split to the speeds that devices really have: a device that others wait for, because its cores
 * are busy or it is throttled, gives granules to the others by tsr_model_resplit(), and gets them back when
 * it is fast again. To be called between steps, after every one of them; most calls only read counters.
 *
 *     while (...) {
 *         tsr_session_decode(session, &batch, logits);
 *         tsr_model_adapt(model, NULL);
 *
 * The work of every device is measured in windows of about 0.25 s, in steps of up to 64 tokens, with the
 * counters of tsr_runtime_time_collectives(), which this switches on. With GPUs one step of eight is
 * measured, and a window has at least four of those: a GPU then launches graphs with events around what waits
 * for other devices, which are captured before the first such step. The split changes if two windows in a
 * row agree that a step would become at least 5 % shorter, and that this pays for the change within 10 s.
 * After every change the next one must gain twice as much, for some time, so that nothing moves to and fro. A
 * change is logged with its reason (TSR_LOG_INFO), and *changed_out (may be NULL) tells of it; as after any
 * change of split, results keep their bits. Without room for another split a warning is logged, and the split
 * stays.
 *
 * With several processes all of them make this call, and share their times at the end of a window. A
 * device without a share never gets one, and no device loses all of its granules.
 *
 * TSR_ERR_UNSUPPORTED: devices work one after another (layer mode), or the steps of a GPU could not be timed,
 * at the end of a window. Otherwise the errors of tsr_model_resplit(). */
TSR_NODISCARD TSR_API tsr_status tsr_model_adapt(tsr_model *model, bool *changed_out);

/** Description of a loaded model. */
typedef struct tsr_model_info {
    char architecture[32]; /**< general.architecture of the file */
    char name[128];        /**< general.name, "" if none */
    int64_t n_layers;      /**< transformer layers */
    int64_t n_embd;        /**< elements of a token's embedding */
    int64_t n_head;        /**< query heads; where layers differ, of those with the most */
    int64_t n_head_kv;     /**< key and value heads; where layers differ, of those with the most */
    /** elements of a head; windowed layers may have others; with latent attention, of a value */
    int64_t head_dim;
    int64_t n_ff;         /**< columns of the FFN, or of one expert; where layers differ, the most */
    int64_t n_vocab;      /**< tokens of the vocabulary */
    int64_t n_ctx_train;  /**< tokens of context that the model was trained with */
    int64_t n_params;     /**< elements of all tensors in use */
    size_t weight_bytes;  /**< of all tensors in use */
    uint64_t reserved[8]; /**< 0; fields of later versions take its place */
} tsr_model_info;

/** Write the description of the model. */
TSR_API void tsr_model_get_info(const tsr_model *model, tsr_model_info *info_out);

/** The plan that was carried out. It has room for config.session.n_sessions sessions, after a change of split
 * for the sessions that exist. The plan belongs to the model and is valid until the split changes. */
TSR_API const struct tsr_plan *tsr_model_plan(const tsr_model *model);

/** The fit of the opening, with its plan. It belongs to the model. NULL: config.plan.fit was not set. */
TSR_API const struct tsr_fit *tsr_model_fit(const tsr_model *model);

/** The opened file; belongs to the model. */
TSR_API const struct tsr_gguf *tsr_model_gguf(const tsr_model *model);

/** Read the model's tokenizer; the caller destroys it, before or after the model. Errors as
 * tsr_tokenizer_create(). */
TSR_NODISCARD TSR_API tsr_status tsr_model_tokenizer(const tsr_model *model,
                                                     struct tsr_tokenizer **tokenizer_out);

TSR_END_DECLS
#endif
