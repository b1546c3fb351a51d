/* Reading the hyper-parameters of planned architectures, and what a plan needs of them. Keys: the GGUF
 * specification and llama.cpp's gguf-py/gguf/constants.py (class Keys). */
#include "plan/header_only/header.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "alloc/kv/kv.h"
#include "core/mem.h"
#include "plan/header_only/names.h"

/* A key, the field for its number, and the range of the number. Keys of an unknown architecture may mean
 * anything, so numbers out of range count as absent there. */
typedef struct key_row {
    const char *suffix;
    size_t field; /* offset of the int64_t */
    int64_t low, high;
    bool required; /* of a known architecture */
} key_row;

#define MODEL(field) offsetof(tsr_header, field)
#define LAYER(field) offsetof(tsr_header_layer, field)

static const key_row model_keys[] = {
    {"block_count", MODEL(n_layers), 1, 1 << 12, true},
    {"nextn_predict_layers", MODEL(n_predict_layers), 0, 1 << 12, false},
    {"embedding_length", MODEL(n_embd), 1, 1 << 20, true},
    {"context_length", MODEL(n_ctx_train), 1, INT32_MAX, true},
    {"expert_count", MODEL(n_expert), 0, 1 << 16, false},
    {"expert_used_count", MODEL(n_expert_used), 0, 1 << 16, false},
    {"expert_feed_forward_length", MODEL(n_ff_expert), 0, 1 << 22, false},
    {"expert_shared_feed_forward_length", MODEL(n_ff_shared), 0, 1 << 22, false},
    {"attention.kv_lora_rank", MODEL(kv_lora_rank), 0, 1 << 16, false},
    {"rope.dimension_count", MODEL(n_rot), 0, 1 << 16, false},
    {"attention.sliding_window", MODEL(window), 0, INT32_MAX, false},
};

/* Keys that a file may have per layer. A later row overrides an earlier one. */
static const key_row layer_keys[] = {
    {"attention.head_count", LAYER(n_head), 0, 1 << 16, true},
    {"attention.head_count_kv", LAYER(n_head_kv), 0, 1 << 16, false},
    {"attention.key_length", LAYER(key_length), 2, 1 << 16, false},
    {"attention.value_length", LAYER(value_length), 2, 1 << 16, false},
    {"attention.key_length_mla", LAYER(key_length), 2, 1 << 16, false},
    {"attention.value_length_mla", LAYER(value_length), 2, 1 << 16, false},
    {"feed_forward_length", LAYER(n_ff), 0, 1 << 22, false},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static tsr_status read_keys(const tsr_header *header, const key_row *rows, size_t n, int64_t layer,
                            void *fields)
{
    tsr_status status = TSR_OK;
    tsr_keys keys = {.gguf = header->gguf, .architecture = header->architecture};
    for (size_t i = 0; i < n; i++) {
        int64_t *field = (int64_t *)((char *)fields + rows[i].field);
        bool required = rows[i].required && !header->by_size;
        status = tsr_keys_int(&keys, rows[i].suffix, layer, required, rows[i].low, rows[i].high, field);
        if (status != TSR_OK && !header->by_size)
            return status;
        tsr_fail_clear();
    }
    return TSR_OK;
}

/* -- the model -- */

static tsr_status read_architecture(tsr_header *p)
{
    tsr_gguf_string name;
    if (!tsr_gguf_has_key(p->gguf, "general.architecture"))
        return tsr_fail(TSR_ERR_FORMAT, "%s: key general.architecture is missing", tsr_gguf_path(p->gguf));
    tsr_status status = tsr_gguf_get_string(p->gguf, "general.architecture", &name);
    if (status != TSR_OK)
        return status;
    snprintf(p->architecture, sizeof p->architecture, "%.*s",
             (int)TSR_MIN(name.bytes, sizeof p->architecture - 1), name.data);
    p->by_size = name.bytes >= sizeof p->architecture || !tsr_arch_table_has(p->architecture);
    return TSR_OK;
}

/* The layers are counted in the names of tensors. The count must agree with the key. */
static tsr_status count_layers(tsr_header *p)
{
    int64_t n = 0;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(p->gguf); i++)
        n = TSR_MAX(n, tsr_weight_name_layer(tsr_gguf_tensor_at(p->gguf, i)->name) + 1);
    if (p->by_size && p->n_layers < n && n <= 1 << 12)
        p->n_layers = n;
    p->n_layers = TSR_MAX(p->n_layers, p->by_size);
    if (p->by_size && n <= p->n_layers)
        return TSR_OK;
    if (n != p->n_layers)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s.block_count is %lld; the tensors are of %lld layers",
                        tsr_gguf_path(p->gguf), p->architecture, (long long)p->n_layers, (long long)n);
    if (p->n_predict_layers >= n)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s.nextn_predict_layers is %lld of %lld layers",
                        tsr_gguf_path(p->gguf), p->architecture, (long long)p->n_predict_layers,
                        (long long)n);
    p->n_layers -= p->n_predict_layers;
    return TSR_OK;
}

static tsr_status read_vocab(tsr_header *p)
{
    const tsr_gguf_tensor *embedding = tsr_gguf_find_tensor(p->gguf, "token_embd.weight");
    if (!embedding && !p->by_size)
        return tsr_fail(TSR_ERR_FORMAT, "%s: tensor token_embd.weight is missing", tsr_gguf_path(p->gguf));
    p->n_vocab = embedding ? embedding->ne[1] : 1;
    if (p->n_vocab > INT32_MAX)
        return tsr_fail(TSR_ERR_FORMAT, "%s: token_embd.weight has %lld rows", tsr_gguf_path(p->gguf),
                        (long long)p->n_vocab);
    if (embedding && !p->by_size && embedding->ne[0] != p->n_embd)
        return tsr_fail(TSR_ERR_FORMAT, "%s: token_embd.weight has %lld columns; %s.embedding_length is %lld",
                        tsr_gguf_path(p->gguf), (long long)embedding->ne[0], p->architecture,
                        (long long)p->n_embd);
    return TSR_OK;
}

static tsr_status read_experts(tsr_header *p)
{
    tsr_status status = TSR_OK;
    int64_t n_shared = 0, n_ff = 0;
    tsr_keys keys = {.gguf = p->gguf, .architecture = p->architecture};
    if (p->n_expert == 0)
        return TSR_OK;
    TSR_TRY(
        tsr_keys_int(&keys, "expert_used_count", TSR_ALL_LAYERS, true, 1, p->n_expert, &p->n_expert_used));
    TSR_TRY(tsr_keys_int(&keys, "expert_shared_count", TSR_ALL_LAYERS, false, 0, 1 << 16, &n_shared));
    if (p->n_ff_expert == 0) { /* Mixtral: its experts are all the FFN there is */
        TSR_TRY(tsr_keys_int(&keys, "feed_forward_length", 0, true, 1, 1 << 22, &n_ff));
        p->n_ff_expert = n_ff;
    }
    if (p->n_ff_shared == 0)
        p->n_ff_shared = n_shared * p->n_ff_expert;
out:
    return status;
}

tsr_status tsr_header_read(const tsr_gguf *gguf, tsr_header *header_out)
{
    tsr_status status = TSR_OK;
    tsr_header p = {.gguf = gguf};
    TSR_TRY(read_architecture(&p));
    TSR_TRY(read_keys(&p, model_keys, COUNT(model_keys), TSR_ALL_LAYERS, &p));
    TSR_TRY(count_layers(&p));
    TSR_TRY(read_vocab(&p));
    if (!p.by_size)
        TSR_TRY(read_experts(&p));
    if (p.by_size) /* the meaning of its other keys is unknown */
        p.n_expert = p.kv_lora_rank = p.window = 0;
    *header_out = p;
out:
    return status;
}

/* -- a layer -- */

/* "sliding_window_pattern" is an array of flags, or the length n of a period: of every n layers all but the
 * last have a window. */
static tsr_status read_window(const tsr_header *p, int64_t layer, bool *windowed_out)
{
    tsr_status status = TSR_OK;
    int64_t value = 0, n;
    tsr_gguf_value_type type;
    tsr_keys keys = {.gguf = p->gguf, .architecture = p->architecture};
    TSR_TRY(tsr_keys_int(&keys, "attention.sliding_window_pattern", layer, false, 0, INT32_MAX, &value));
    bool array = tsr_gguf_get_array(p->gguf, keys.name, &type, &n) == TSR_OK;
    tsr_fail_clear();
    *windowed_out = p->window > 0 && (array ? value != 0 : value > 0 && layer % value < value - 1);
out:
    return status;
}

static tsr_status check_heads(const tsr_header *p, int64_t layer, const tsr_header_layer *l)
{
    if (l->n_head_kv > 0 && l->n_head % l->n_head_kv != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: layer %lld has %lld heads, no multiple of its %lld KV heads",
                        tsr_gguf_path(p->gguf), (long long)layer, (long long)l->n_head,
                        (long long)l->n_head_kv);
    if (p->kv_lora_rank > 0 && (p->n_rot < 1 || p->n_rot >= l->key_length))
        return tsr_fail(
            TSR_ERR_FORMAT, "%s: %s.rope.dimension_count is %lld; with MLA it must be in [1, %lld]",
            tsr_gguf_path(p->gguf), p->architecture, (long long)p->n_rot, (long long)l->key_length - 1);
    return TSR_OK;
}

tsr_status tsr_header_layer_read(const tsr_header *p, int64_t layer, tsr_header_layer *layer_out)
{
    tsr_status status = TSR_OK;
    tsr_header_layer l = {.n_head_kv = -1};
    TSR_TRY(read_keys(p, layer_keys, COUNT(layer_keys), layer, &l));
    if (l.n_head_kv < 0 || (p->kv_lora_rank > 0 && l.n_head_kv > 0))
        l.n_head_kv = l.n_head;
    if (l.n_head_kv == 0)
        l.n_head = 0;
    if (l.key_length == 0)
        l.key_length = l.n_head > 0 ? p->n_embd / l.n_head : 0;
    if (l.value_length == 0)
        l.value_length = l.key_length;
    if (!p->by_size) {
        TSR_TRY(check_heads(p, layer, &l));
        TSR_TRY(read_window(p, layer, &l.windowed));
    } else if (l.n_head_kv > 0 && l.n_head % l.n_head_kv != 0) {
        l.n_head = l.n_head_kv = 0;
    }
    *layer_out = l;
out:
    return status;
}

tsr_status tsr_header_attention_granules(const tsr_header *p, const tsr_header_layer *l, int64_t block,
                                         int64_t *n_out)
{
    int64_t kv_heads;
    if (l->n_head == 0) {
        *n_out = 1;
        return TSR_OK;
    }
    tsr_status status = tsr_granule_attention(l->value_length, l->n_head, l->n_head_kv, block, &kv_heads);
    if (status != TSR_OK)
        return tsr_fail(TSR_ERR_FORMAT,
                        "%s: %s has %lld heads of %lld values, which W_o's blocks of %lld do not divide",
                        tsr_gguf_path(p->gguf), p->architecture, (long long)l->n_head,
                        (long long)l->value_length, (long long)block);
    *n_out = (l->n_head_kv + kv_heads - 1) / kv_heads;
    return TSR_OK;
}

/* -- KV -- */

static bool add_part(size_t n_rows, size_t row_bytes, size_t n_pages, size_t *bytes)
{
    size_t part;
    return tsr_mul_size(n_rows * TSR_KV_PAGE_TOKENS, row_bytes, &part) &&
           part < SIZE_MAX - TSR_KV_PART_ALIGNMENT &&
           tsr_mul_size(tsr_align_up(part, TSR_KV_PART_ALIGNMENT), n_pages, &part) &&
           tsr_add_size(*bytes, part, bytes) && *bytes < PTRDIFF_MAX;
}

static tsr_status check_kv_row(const tsr_header *p, tsr_type type, int64_t n)
{
    if (n % tsr_type_block_elems(type) == 0)
        return TSR_OK;
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "%s: %lld elements per key or value are no whole blocks of %s; use F16",
                    tsr_gguf_path(p->gguf), (long long)n, tsr_type_name(type));
}

/* Pages of the group of a layer. */
static size_t layer_pages(const tsr_header *p, const tsr_header_layer *l, const tsr_model_config *config)
{
    const tsr_kv_spec spec = {.n_ctx = config->session.n_ctx,
                              .n_seq_max = config->session.n_seq_max,
                              .n_batch = config->session.n_batch,
                              .keep_all = config->session.swa_full};
    return (size_t)tsr_kv_n_pages(&spec, l->windowed ? p->window : 0, 1);
}

static tsr_status add_layer(const tsr_header *p, const tsr_header_layer *l, const tsr_model_config *config,
                            int64_t heads, size_t *bytes)
{
    tsr_status status = TSR_OK;
    int64_t k = p->kv_lora_rank > 0 ? p->kv_lora_rank + p->n_rot : l->key_length;
    size_t n_pages = layer_pages(p, l, config);
    bool fits;
    TSR_TRY(check_kv_row(p, config->session.type_k, k));
    if (p->kv_lora_rank > 0) { /* values are a part of the row */
        fits = add_part(1, tsr_type_row_bytes(config->session.type_k, k), n_pages, bytes);
    } else {
        TSR_TRY(check_kv_row(p, config->session.type_v, l->value_length));
        fits = add_part((size_t)heads, tsr_type_row_bytes(config->session.type_k, k), n_pages, bytes) &&
               add_part((size_t)heads, tsr_type_row_bytes(config->session.type_v, l->value_length), n_pages,
                        bytes);
    }
    if (!fits)
        status = tsr_fail(TSR_ERR_MEMORY, "%s: %lld tokens of KV exceed the address space",
                          tsr_gguf_path(p->gguf), (long long)config->session.n_ctx);
out:
    return status;
}

tsr_status tsr_header_kv_bytes(const tsr_model_shape *shape, const tsr_model_config *resolved,
                               const tsr_model_split *split, const tsr_device_props *props,
                               tsr_header_kv *kv_out)
{
    tsr_status status = TSR_OK;
    tsr_header p;
    tsr_header_layer l;
    tsr_header_kv kv[TSR_MAX_DEVICES] = {{0}};
    TSR_TRY(tsr_header_read(shape->gguf, &p));
    for (int64_t i = 0; i < p.n_layers; i++) {
        const tsr_shard_map *map = &tsr_model_split_group(split, TSR_BLOCK_ATTENTION, i)->kv_heads;
        tsr_shard_map heads;
        TSR_TRY(tsr_header_layer_read(&p, i, &l));
        tsr_shard_map_scale(map, l.n_head_kv, 1, &heads);
        for (int d = 0; d < split->n_devices && l.n_head_kv > 0; d++)
            if (map->begin[d] < map->begin[d + 1])
                TSR_TRY(add_layer(&p, &l, resolved, tsr_shard_map_count(&heads, d),
                                  l.windowed ? &kv[d].windowed_bytes : &kv[d].full_bytes));
    }
    for (int d = 0; d < split->n_devices; d++)
        kv_out[d] =
            (tsr_header_kv){.full_bytes = tsr_align_up(kv[d].full_bytes, props[d].granularity),
                            .windowed_bytes = tsr_align_up(kv[d].windowed_bytes, props[d].granularity)};
out:
    return status;
}
