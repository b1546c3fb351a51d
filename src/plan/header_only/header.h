/* Architectures that are planned from their header and not run: their hyper-parameters, layer by layer.
 *
 * A plan of one is as exact as of one that runs where the file says all there is to know: every tensor has a
 * role, so weights are exact, and so is the KV region. Only the arena is that of another graph: a llama-like
 * one of the same widths, with the experts that a token uses as one FFN. Its hyper-parameters are those in
 * tsr_model_shape; those of the real layers are here.
 *
 * Of an architecture that is not in the table either, only sizes are known: its matrices are divided by rows,
 * and activations are not counted. */
#ifndef TSR_PLAN_HEADER_ONLY_HEADER_H
#define TSR_PLAN_HEADER_ONLY_HEADER_H

#include "arch/arch.h"
#include "model/shape.h"
#include "runtime/device_props.h"

/* Numbers of the whole model; 0 where it has no such thing. */
typedef struct tsr_header {
    const tsr_gguf *gguf;
    char architecture[32];
    bool by_size; /* the architecture is not known */
    int64_t n_layers, n_embd, n_vocab, n_ctx_train;
    int64_t n_predict_layers; /* layers after these, which are not counted */
    int64_t n_expert, n_expert_used, n_ff_expert, n_ff_shared;
    int64_t kv_lora_rank, n_rot; /* MLA: the cached row is both of them, once for all heads */
    int64_t window; /* of the layers with a sliding window, where the file says which these are */
} tsr_header;

/* Numbers of one layer. */
typedef struct tsr_header_layer {
    int64_t n_head, n_head_kv;        /* 0: no attention. MLA: as many KV heads as heads */
    int64_t key_length, value_length; /* per head. MLA: uncompressed */
    int64_t n_ff;                     /* of a dense FFN */
    bool windowed;
} tsr_header_layer;

/* TSR_ERR_FORMAT names the key that is missing or out of range. */
tsr_status tsr_header_read(const tsr_gguf *gguf, tsr_header *header_out);
tsr_status tsr_header_layer_read(const tsr_header *header, int64_t layer, tsr_header_layer *layer_out);

/* As tsr_model_shape_read(), also of what cannot run: shape_out->arch is then tsr_arch_header_only or
 * tsr_arch_by_size, and its remarks say so. */
tsr_status tsr_plan_shape_read(const tsr_gguf *gguf, bool prediction, tsr_model_shape *shape_out);

extern const tsr_arch tsr_arch_header_only, tsr_arch_by_size;

/* Granules of the attention of one layer, whose W_o must be cut at `block` columns. */
tsr_status tsr_header_attention_granules(const tsr_header *header, const tsr_header_layer *layer,
                                         int64_t block, int64_t *n_out);

/* Bytes of the KV region on a device: of layers that see all tokens, and of those with a window. */
typedef struct tsr_header_kv {
    size_t full_bytes, windowed_bytes;
} tsr_header_kv;

/* The KV region on every device, paged and rounded as the real one (alloc/kv/kv.h). A compressed row
 * (MLA) is on every device that has attention of its layer, keys and values of heads are divided like
 * attention. */
tsr_status tsr_header_kv_bytes(const tsr_model_shape *shape, const tsr_model_config *resolved,
                               const tsr_model_split *split, const tsr_device_props *props,
                               tsr_header_kv *kv_out /* [n_devices] */);

#endif
