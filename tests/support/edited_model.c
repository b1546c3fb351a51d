/* See edited_model.h. */
#include "support/edited_model.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "support/gguf_writer.h"

static const edit *find(const edit *edits, const char *name)
{
    for (int i = 0; edits && i < MAX_EDITS && edits[i].name; i++)
        if (strcmp(edits[i].name, name) == 0)
            return &edits[i];
    return NULL;
}

static void write_edited_key(gguf_writer *w, const edit *e)
{
    int32_t i32 = (int32_t)e->number;
    uint64_t u64 = (uint64_t)e->number;
    const char *const texts[] = {"4", "4"};
    switch (e->how) {
    case U32:
        gguf_writer_u32(w, e->name, (uint32_t)e->number);
        break;
    case I32:
        gguf_writer_value(w, e->name, TSR_GGUF_I32, &i32);
        break;
    case U64:
        gguf_writer_value(w, e->name, TSR_GGUF_U64, &u64);
        break;
    case F32:
        gguf_writer_f32(w, e->name, (float)e->number);
        break;
    case BOOL:
        gguf_writer_bool(w, e->name, e->number != 0);
        break;
    case STRING:
        gguf_writer_string(w, e->name, e->text);
        break;
    case U32S:
        gguf_writer_array(w, e->name, TSR_GGUF_U32, e->list, e->n);
        break;
    case STRINGS:
        gguf_writer_strings(w, e->name, texts, e->n);
        break;
    default:
        break;
    }
}

static void write_keys(gguf_writer *w, const edit *edits)
{
    static const struct {
        const char *name;
        uint32_t value;
    } keys[] = {{"llama.block_count", N_LAYERS},        {"llama.embedding_length", N_EMBD},
                {"llama.feed_forward_length", N_FF},    {"llama.context_length", 64},
                {"llama.attention.head_count", N_HEAD}, {"llama.attention.head_count_kv", N_HEAD_KV}};
    if (!find(edits, "general.architecture"))
        gguf_writer_string(w, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!find(edits, keys[i].name))
            gguf_writer_u32(w, keys[i].name, keys[i].value);
    if (!find(edits, "llama.attention.layer_norm_rms_epsilon"))
        gguf_writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (int i = 0; edits && i < MAX_EDITS && edits[i].name; i++)
        write_edited_key(w, &edits[i]);
}

static void write_factors(gguf_writer *w, const edit *e)
{
    float values[64];
    int64_t n = (int64_t)e->n;
    for (size_t i = 0; i < e->n; i++)
        values[i] = (float)e->number;
    gguf_writer_tensor_f32(w, e->name, e->type, 1, &n, values);
}

static void write_tensor(gguf_writer *w, const edit *edits, const char *name, int64_t ne0, int64_t ne1,
                         uint64_t seed)
{
    const edit *e = find(edits, name);
    int64_t ne[3] = {ne0, ne1, 1};
    int n_dims = ne1 ? 2 : 1;
    tsr_type type = ne1 ? TSR_TYPE_F16 : TSR_TYPE_F32;
    if (e && e->how == DROP)
        return;
    if (e && e->how == SHAPE) {
        memcpy(ne, e->ne, sizeof ne);
        n_dims = e->n_dims;
    }
    if (e && e->how == TYPE)
        type = e->type;
    gguf_writer_tensor_normal(w, name, type, n_dims, ne, seed, 0.1f);
}

void edited_model_write(const char *path, const edit *edits)
{
    static const struct {
        const char *name;
        int64_t ne0, ne1;
    } parts[] = {{"attn_norm", N_EMBD, 0},
                 {"attn_q", N_EMBD, N_HEAD * HEAD_DIM},
                 {"attn_k", N_EMBD, N_HEAD_KV * HEAD_DIM},
                 {"attn_v", N_EMBD, N_HEAD_KV * HEAD_DIM},
                 {"attn_output", N_HEAD * HEAD_DIM, N_EMBD},
                 {"ffn_norm", N_EMBD, 0},
                 {"ffn_gate", N_EMBD, N_FF},
                 {"ffn_up", N_EMBD, N_FF},
                 {"ffn_down", N_FF, N_EMBD}};
    gguf_writer *w = gguf_writer_create(3);
    uint64_t seed = 1;
    write_keys(w, edits);
    write_tensor(w, edits, "token_embd.weight", N_EMBD, N_VOCAB, seed++);
    for (int l = 0; l < N_LAYERS; l++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, parts[i].name);
            write_tensor(w, edits, name, parts[i].ne0, parts[i].ne1, seed++);
        }
    write_tensor(w, edits, "output_norm.weight", N_EMBD, 0, seed++);
    write_tensor(w, edits, "output.weight", N_EMBD, N_VOCAB, seed++);
    for (int i = 0; edits && i < MAX_EDITS && edits[i].name; i++) {
        const edit *e = &edits[i];
        if (e->how == FACTORS)
            write_factors(w, e);
        else if (e->how == ADD)
            gguf_writer_tensor_normal(w, e->name, TSR_TYPE_F32, e->n_dims, e->ne, seed++, 0.5f);
    }
    gguf_writer_save(w, path);
    gguf_writer_destroy(w);
}
