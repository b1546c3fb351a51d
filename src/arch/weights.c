/* Finding and checking a model's tensors. */
#include "arch/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/buffer.h>

#include "core/mem.h"

tsr_status tsr_weights_init(tsr_weights *weights, const tsr_gguf *gguf, int64_t n_layers)
{
    *weights = (tsr_weights){.gguf = gguf, .n_layers = n_layers};
    return tsr_mem_array((size_t)n_layers, sizeof *weights->layers, "layers", &weights->layers);
}

void tsr_weights_free(tsr_weights *weights)
{
    tsr_buffer_destroy(weights->buffer);
    for (int i = 0; i < weights->n; i++) {
        tsr_mem_free(weights->list[i]->experts);
        tsr_mem_free((void *)weights->list[i]->layout.parts);
        tsr_mem_free(weights->list[i]->floats);
        tsr_mem_free(weights->list[i]);
    }
    tsr_mem_free(weights->list);
    tsr_mem_free(weights->layers);
    *weights = (tsr_weights){0};
}

int64_t tsr_weight_name_layer(const char *name)
{
    const size_t n_digits = strncmp(name, "blk.", 4) == 0 ? strspn(name + 4, "0123456789") : 0;
    if (n_digits < 1 || n_digits > 9 || name[4 + n_digits] != '.')
        return -1;
    return strtol(name + 4, NULL, 10);
}

static tsr_status append(tsr_weights *weights, tsr_weight **weight_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_mem_grow(&weights->list, weights->n, &weights->capacity, 64, sizeof(tsr_weight *),
                         "the list of tensors"));
    TSR_TRY(TSR_NEW(&weights->list[weights->n], "a tensor"));
    *weight_out = weights->list[weights->n++];
out:
    return status;
}

/* The dimensions other than 1, in ne_out; their number. Converters keep some dimensions of 1 that an original
 * tensor has: [1, n, 1, 1] has the elements of [n], in the same order. */
static int without_ones(const int64_t *ne, int n, int64_t ne_out[4])
{
    int n_kept = 0;
    for (int i = 0; i < n; i++)
        if (ne[i] != 1)
            ne_out[n_kept++] = ne[i];
    return n_kept;
}

tsr_status tsr_weights_append(tsr_weights *weights, const tsr_gguf_tensor *source, tsr_weight_role role,
                              int layer, tsr_weight **weight_out)
{
    tsr_weight *weight;
    tsr_status status = append(weights, &weight);
    if (status != TSR_OK)
        return status;
    weight->source = source;
    weight->role = role;
    weight->layer = layer;
    weight->tensor.type = source->type;
    snprintf(weight->tensor.name, sizeof weight->tensor.name, "%s", source->name);
    int64_t ne[4];
    const int64_t n_rows = source->ne[1] * source->ne[2] * source->ne[3];
    const bool vector = without_ones(source->ne, 4, ne) <= 1;
    weight->tensor.ne[0] = vector ? source->ne[0] * n_rows : source->ne[0];
    weight->tensor.ne[1] = vector ? 1 : n_rows;
    weight->tensor.ne[2] = weight->tensor.ne[3] = 1;
    *weight_out = weight;
    return TSR_OK;
}

/* A tensor without a file, for measuring the arena of a model. */
static tsr_status declare_unfounded(tsr_weights *weights, tsr_weight_role role, int layer, int64_t ne0,
                                    int64_t ne1, tsr_tensor **tensor_out)
{
    const tsr_gguf_tensor shape = {
        .name = "", .type = ne1 > 1 ? TSR_TYPE_F16 : TSR_TYPE_F32, .ne = {ne0, ne1, 1, 1}};
    tsr_weight *weight;
    tsr_status status = tsr_weights_append(weights, &shape, role, layer, &weight);
    if (status != TSR_OK)
        return status;
    weight->source = NULL;
    *tensor_out = &weight->tensor;
    return TSR_OK;
}

static tsr_status check_shape(const tsr_weights *weights, const tsr_gguf_tensor *source, const int64_t ne[3])
{
    int64_t got[4], wanted[4];
    const int n = without_ones(source->ne, 4, got);
    if (n == without_ones(ne, 3, wanted) && memcmp(got, wanted, (size_t)n * sizeof *got) == 0 &&
        (n <= 1 || source->ne[0] == ne[0]))
        return TSR_OK;
    return tsr_fail(TSR_ERR_FORMAT,
                    "%s: tensor %s is [%lld, %lld, %lld, %lld]; the keys say [%lld, %lld, %lld, 1]",
                    tsr_gguf_path(weights->gguf), source->name, (long long)source->ne[0],
                    (long long)source->ne[1], (long long)source->ne[2], (long long)source->ne[3],
                    (long long)ne[0], (long long)ne[1], (long long)ne[2]);
}

tsr_status tsr_weights_check_vector(const tsr_weights *weights, const char *name, tsr_type type)
{
    if (type != TSR_TYPE_F32)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: tensor %s is %s; norms and biases must be F32",
                        tsr_gguf_path(weights->gguf), name, tsr_type_name(type));
    return TSR_OK;
}

tsr_status tsr_weights_find(const tsr_weights *weights, bool required, const char *name, const int64_t ne[3],
                            bool matrix, const tsr_gguf_tensor **source_out)
{
    tsr_status status = TSR_OK;
    *source_out = tsr_gguf_find_tensor(weights->gguf, name);
    if (!*source_out && required)
        return tsr_fail(TSR_ERR_FORMAT, "%s: tensor %s is missing", tsr_gguf_path(weights->gguf), name);
    if (*source_out) {
        TSR_TRY(check_shape(weights, *source_out, ne));
        if (!matrix)
            TSR_TRY(tsr_weights_check_vector(weights, name, (*source_out)->type));
    }
out:
    return status;
}

tsr_status tsr_weights_declare(tsr_weights *weights, bool required, tsr_weight_role role, int layer,
                               int64_t ne0, int64_t ne1, tsr_tensor **tensor_out, const char *name_format,
                               ...)
{
    tsr_status status = TSR_OK;
    char name[TSR_MAX_NAME];
    const tsr_gguf_tensor *source;
    tsr_weight *weight;
    va_list args;
    va_start(args, name_format);
    vsnprintf(name, sizeof name, name_format, args);
    va_end(args);

    *tensor_out = NULL;
    if (!weights->gguf)
        return required ? declare_unfounded(weights, role, layer, ne0, ne1, tensor_out) : TSR_OK;
    TSR_TRY(tsr_weights_find(weights, required, name, (const int64_t[]){ne0, ne1, 1}, ne1 > 1, &source));
    if (!source)
        return TSR_OK;
    TSR_TRY(tsr_weights_append(weights, source, role, layer, &weight));
    *tensor_out = &weight->tensor;
out:
    return status;
}

tsr_status tsr_weights_declare_rows(tsr_weights *weights, bool required, tsr_weight_role role, int layer,
                                    tsr_weight_rows rows, tsr_tensor **tensor_out, const char *name)
{
    tsr_status status = TSR_OK;
    const tsr_gguf_tensor *source;
    tsr_weight *weight;
    bool vector = rows.ne0 == 1;
    *tensor_out = NULL;
    const int64_t ne[] = {vector ? rows.all : rows.ne0, vector ? 1 : rows.all, 1};
    TSR_TRY(tsr_weights_find(weights, required, name, ne, !vector, &source));
    if (!source)
        return TSR_OK;
    size_t row_bytes = tsr_type_row_bytes(source->type, rows.ne0);
    tsr_gguf_tensor part = *source;
    part.ne[0] = vector ? rows.ne1 : rows.ne0;
    part.ne[1] = vector ? 1 : rows.ne1;
    part.ne[2] = part.ne[3] = 1;
    part.bytes = (size_t)rows.ne1 * row_bytes;
    if (source->data)
        part.data = (const unsigned char *)source->data + (size_t)rows.first * row_bytes;
    TSR_TRY(tsr_weights_append(weights, &part, role, layer, &weight));
    weight->part = part;
    weight->source = &weight->part;
    weight->matrix = !vector;
    *tensor_out = &weight->tensor;
out:
    return status;
}

tsr_status tsr_weights_declare_columns(tsr_weights *weights, tsr_weight_role role, int layer,
                                       tsr_weight_columns c, tsr_tensor **tensor_out, const char *name)
{
    tsr_status status = TSR_OK;
    const tsr_gguf_tensor *source;
    tsr_weight *weight;
    TSR_TRY(tsr_weights_find(weights, true, name, (const int64_t[]){c.all, c.ne1, 1}, true, &source));
    if (c.first % tsr_type_block_elems(source->type) != 0 || c.ne0 % tsr_type_block_elems(source->type) != 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: tensor %s is %s, and the first %lld of its columns are no whole blocks of the "
                        "type; quantize the model with the tensor in F16",
                        tsr_gguf_path(weights->gguf), name, tsr_type_name(source->type), (long long)c.ne0);
    tsr_gguf_tensor part = *source;
    part.ne[0] = c.ne0;
    part.bytes = (size_t)c.ne1 * tsr_type_row_bytes(source->type, c.ne0);
    if (source->data)
        part.data = (const unsigned char *)source->data + tsr_type_row_bytes(source->type, c.first);
    TSR_TRY(tsr_weights_append(weights, &part, role, layer, &weight));
    weight->part = part;
    weight->source = &weight->part;
    weight->layout.part_stride = tsr_type_row_bytes(source->type, c.all);
    *tensor_out = &weight->tensor;
out:
    return status;
}

tsr_status tsr_weights_declare_heads(tsr_weights *weights, int layer, int64_t ne0, int64_t ne1,
                                     int64_t n_heads, tsr_tensor **tensor_out, const char *name)
{
    tsr_status status = TSR_OK;
    const tsr_gguf_tensor *source;
    tsr_weight *weight;
    TSR_TRY(tsr_weights_find(weights, true, name, (const int64_t[]){ne0, ne1, n_heads}, true, &source));
    TSR_TRY(tsr_weights_append(weights, source, TSR_WEIGHT_Q_ROWS, layer, &weight));
    *tensor_out = &weight->tensor;
out:
    return status;
}

/* Decode the source to F32. A source in parts has no views, so devices get copies: another split may keep the
 * memory of a device for longer than this weight exists. */
static tsr_status decode_source(tsr_weight *weight)
{
    tsr_status status = TSR_OK;
    const tsr_gguf_tensor *source = weight->source;
    const int64_t n = source->ne[0] * source->ne[1];
    const void **part = NULL;
    TSR_TRY(tsr_mem_array(1, sizeof *part, "a decoded tensor", &part));
    weight->layout.parts = part;
    if (source->data) {
        TSR_TRY(tsr_mem_array((size_t)n, sizeof *weight->floats, "a decoded tensor", &weight->floats));
        TSR_TRY(tsr_type_to_f32(source->type, source->data, weight->floats, n));
    }
    weight->part = *source;
    weight->part.type = weight->tensor.type = TSR_TYPE_F32;
    weight->part.bytes = (size_t)n * sizeof *weight->floats;
    weight->part.data = *part = weight->floats;
    weight->source = &weight->part;
out:
    return status;
}

tsr_status tsr_weights_declare_vector(tsr_weights *weights, bool required, tsr_weight_role role, int layer,
                                      int64_t ne0, int64_t ne1, tsr_tensor **tensor_out, const char *name)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_weights_declare(weights, required, role, layer, ne0, ne1, tensor_out, "%s", name));
    if (!*tensor_out)
        return TSR_OK;
    if (weights->gguf && (*tensor_out)->type != TSR_TYPE_F32)
        TSR_TRY(decode_source((tsr_weight *)*tensor_out)); /* its first member */
    (*tensor_out)->type = TSR_TYPE_F32;
    (*tensor_out)->ne[0] = ne0 * ne1;
    (*tensor_out)->ne[1] = 1;
out:
    return status;
}

tsr_status tsr_weights_tie_output(tsr_weights *weights)
{
    tsr_weight *weight;
    tsr_status status = append(weights, &weight);
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < weights->n - 1; i++)
        if (&weights->list[i]->tensor == weights->embedding)
            *weight = *weights->list[i];
    weight->layer = TSR_LAYER_OUTPUT;
    weight->tied = true;
    weights->output = &weight->tensor;
    weights->tied_output = true;
    return TSR_OK;
}

int64_t tsr_weight_common_block(const tsr_weight *weight, int64_t block)
{
    int64_t elems = tsr_type_block_elems(weight->source->type);
    return block / tsr_gcd(block, elems) * elems;
}

int64_t tsr_weights_block(const tsr_weights *weights, tsr_weight_role role)
{
    int64_t block = 1;
    for (int i = 0; i < weights->n; i++)
        if (weights->list[i]->role == role)
            block = tsr_weight_common_block(weights->list[i], block);
    return block;
}

size_t tsr_weights_bytes(const tsr_weights *weights)
{
    size_t bytes = 0;
    for (int i = 0; i < weights->n; i++)
        if (!weights->list[i]->tied)
            bytes += weights->list[i]->source->bytes;
    return bytes;
}

tsr_block tsr_weight_block(const tsr_weight *weight)
{
    switch (weight->role) {
    case TSR_WEIGHT_ATTENTION_WHOLE:
    case TSR_WEIGHT_Q_ROWS:
    case TSR_WEIGHT_KV_ROWS:
    case TSR_WEIGHT_Q_COLUMNS:
    case TSR_WEIGHT_Q_HEADS:
        return TSR_BLOCK_ATTENTION;
    case TSR_WEIGHT_FFN_WHOLE:
    case TSR_WEIGHT_FFN_ROWS:
    case TSR_WEIGHT_FFN_COLUMNS:
    case TSR_WEIGHT_EXPERT_ROWS:
    case TSR_WEIGHT_EXPERT_COLUMNS:
    case TSR_WEIGHT_EXPERTS:
        return TSR_BLOCK_FFN;
    case TSR_WEIGHT_OUTPUT_WHOLE:
    case TSR_WEIGHT_VOCAB_ROWS:
        break;
    }
    return weight->layer == TSR_LAYER_EMBEDDING ? TSR_BLOCK_EMBEDDING : TSR_BLOCK_OUTPUT;
}

static bool is_whole(tsr_weight_role role)
{
    return role == TSR_WEIGHT_ATTENTION_WHOLE || role == TSR_WEIGHT_FFN_WHOLE ||
           role == TSR_WEIGHT_OUTPUT_WHOLE;
}

tsr_split_class_id tsr_weight_class(const tsr_weight *weight)
{
    if (is_whole(weight->role))
        return TSR_CLASS_COUNT;
    tsr_block block = tsr_weight_block(weight);
    return block == TSR_BLOCK_ATTENTION ? TSR_CLASS_ATTENTION
           : block == TSR_BLOCK_FFN     ? TSR_CLASS_FFN
                                        : TSR_CLASS_OUTPUT;
}

size_t tsr_weights_class_bytes(const tsr_weights *weights, tsr_split_class_id id)
{
    size_t bytes = 0;
    for (int i = 0; i < weights->n; i++)
        if (!weights->list[i]->tied && tsr_weight_class(weights->list[i]) == id)
            bytes += weights->list[i]->source->bytes;
    return bytes;
}

void tsr_weights_cut_every(tsr_tensor *tensor, int64_t granule)
{
    ((tsr_weight *)tensor)->granule = granule; /* its first member */
}

void tsr_weights_cut_heads(tsr_tensor *tensor, int64_t per_head)
{
    if (tensor)
        ((tsr_weight *)tensor)->per_head = per_head;
}

int tsr_weight_kind(const tsr_weight *weight, const tsr_hparams *hp)
{
    const int kind = hp->kind_of[weight->layer];
    return weight->beside ? (int)hp->kinds[kind].beside - 1 : kind;
}
