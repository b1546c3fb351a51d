/* Matrices of experts: one tensor of the file for all experts of a layer, some rows of each of its matrices,
 * or a tensor for each expert. Either way the experts are one tensor of the model, so that a device's part of
 * all of them is one shard. */
#include <stdio.h>

#include "arch/weights.h"
#include "core/mem.h"
#include "core/status.h"

/* Make the source of the weight some of each expert's rows. */
static void take_rows_of_experts(tsr_weight *weight, const tsr_weight_experts *e)
{
    const size_t row_bytes = tsr_type_row_bytes(weight->source->type, e->ne0);
    weight->part = *weight->source;
    weight->part.ne[1] = e->ne1;
    weight->part.bytes = (size_t)(e->ne1 * e->n_experts) * row_bytes;
    if (weight->source->data)
        weight->part.data = (const unsigned char *)weight->source->data + (size_t)e->first_row * row_bytes;
    weight->source = &weight->part;
    weight->layout.part_stride = (size_t)e->all_rows * row_bytes;
}

/* Whether an expert's matrix is one row of the tensor. */
static bool in_rows(tsr_weight_role role, const tsr_weight_experts *e)
{
    return e->by_expert || role == TSR_WEIGHT_EXPERT_ROWS;
}

static void make_experts(tsr_weight *weight, const tsr_weight_experts *e)
{
    const bool rows = in_rows(weight->role, e);
    weight->expert = true;
    weight->by_expert = e->by_expert;
    weight->tensor.ne[0] = rows ? e->ne0 * e->ne1 : e->ne0;
    weight->tensor.ne[1] = rows ? e->n_experts : e->ne1 * e->n_experts;
}

tsr_status tsr_weights_declare_experts(tsr_weights *weights, tsr_weight_role role, int layer,
                                       tsr_weight_experts e, tsr_tensor **tensor_out, const char *name)
{
    tsr_status status = TSR_OK;
    const tsr_gguf_tensor *source;
    tsr_weight *weight;
    int64_t all_rows = e.all_rows > 0 ? e.all_rows : e.ne1;
    TSR_TRY(tsr_weights_find(weights, true, name, (const int64_t[]){e.ne0, all_rows, e.n_experts}, true,
                             &source));
    TSR_TRY(tsr_weights_append(weights, source, role, layer, &weight));
    if (e.all_rows > 0)
        take_rows_of_experts(weight, &e);
    make_experts(weight, &e);
    *tensor_out = &weight->tensor;
out:
    return status;
}

/* The tensors of the experts, all of one type. */
static tsr_status find_expert_tensors(const tsr_weights *weights, int layer, const tsr_weight_experts *e,
                                      const char *kind, const tsr_gguf_tensor **tensors)
{
    tsr_status status = TSR_OK;
    for (int64_t i = 0; i < e->n_experts; i++) {
        char name[TSR_MAX_NAME];
        snprintf(name, sizeof name, "blk.%d.ffn_%s.%d.weight", layer, kind, (int)i);
        TSR_TRY(
            tsr_weights_find(weights, true, name, (const int64_t[]){e->ne0, e->ne1, 1}, true, &tensors[i]));
        if (tensors[i]->type != tensors[0]->type)
            return tsr_fail(TSR_ERR_UNSUPPORTED,
                            "%s: tensor %s is %s and tensor %s is %s; all experts of a layer must have one "
                            "type: convert the model anew",
                            tsr_gguf_path(weights->gguf), tensors[0]->name, tsr_type_name(tensors[0]->type),
                            name, tsr_type_name(tensors[i]->type));
    }
out:
    return status;
}

/* The distance from tensor to tensor; 0: there is none that all have. By offsets instead of addresses, so
 * that a plan, which may have no data, finds the same. */
static size_t common_distance(const tsr_gguf_tensor *const *tensors, int64_t n)
{
    const uint64_t distance = n > 1 ? tensors[1]->offset - tensors[0]->offset : tensors[0]->bytes;
    for (int64_t i = 1; i < n; i++)
        if (tensors[i]->file != tensors[0]->file || tensors[i]->offset <= tensors[i - 1]->offset ||
            tensors[i]->offset - tensors[i - 1]->offset != distance)
            return 0;
    return (size_t)distance;
}

static tsr_status lay_out_experts(tsr_weight *weight, const tsr_weight_experts *e)
{
    tsr_status status = TSR_OK;
    const void **parts;
    weight->layout.part_rows = in_rows(weight->role, e) ? 1 : e->ne1;
    weight->layout.part_stride = common_distance(weight->experts, e->n_experts);
    if (weight->layout.part_stride > 0)
        return TSR_OK;
    TSR_TRY(tsr_mem_array((size_t)e->n_experts, sizeof *parts, "the experts of a layer", &parts));
    for (int64_t i = 0; i < e->n_experts; i++)
        parts[i] = weight->experts[i]->data;
    weight->layout.parts = parts;
out:
    return status;
}

tsr_status tsr_weights_declare_expert_tensors(tsr_weights *weights, tsr_weight_role role, int layer,
                                              tsr_weight_experts e, tsr_tensor **tensor_out, const char *kind)
{
    tsr_status status = TSR_OK;
    const tsr_gguf_tensor **tensors = NULL;
    tsr_weight *weight;
    char name[TSR_MAX_NAME];
    TSR_TRY(tsr_mem_array((size_t)e.n_experts, sizeof *tensors, "the experts of a layer", &tensors));
    TSR_TRY(find_expert_tensors(weights, layer, &e, kind, tensors));
    tsr_gguf_tensor joined = *tensors[0];
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, kind);
    joined.name = name;
    joined.n_dims = 3;
    joined.ne[2] = e.n_experts;
    joined.bytes *= (size_t)e.n_experts;
    TSR_TRY(tsr_weights_append(weights, &joined, role, layer, &weight));
    weight->experts = tensors;
    tensors = NULL; /* now the weight's */
    weight->part = joined;
    weight->part.name = weight->tensor.name;
    weight->source = &weight->part;
    make_experts(weight, &e);
    TSR_TRY(lay_out_experts(weight, &e));
    *tensor_out = &weight->tensor;
out:
    tsr_mem_free(tensors);
    return status;
}

tsr_status tsr_weights_declare_expert_biases(tsr_weights *weights, tsr_weight_role role, int layer, int64_t n,
                                             const tsr_weight_experts *e, tsr_tensor **tensor_out,
                                             const char *name)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_weights_declare(weights, false, role, layer, n, e->n_experts, tensor_out, "%s", name));
    if (!*tensor_out)
        return TSR_OK;
    TSR_TRY(tsr_weights_check_vector(weights, name, (*tensor_out)->type));
    weights->list[weights->n - 1]->expert = true;
    weights->list[weights->n - 1]->by_expert = e->by_expert;
    weights->list[weights->n - 1]->vectors = true;
out:
    return status;
}
