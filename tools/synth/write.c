/* Writing a model of random weights as GGUF version 3
 * (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
 *
 * A matrix is N(0, 1 / columns), so that its product with a vector is about as large as the vector,
 * however wide the model: activations neither vanish nor overflow. Drawing and encoding every weight would
 * take minutes, so a matrix draws POOL_CHUNKS chunks and repeats them in random order; kernels still read
 * the whole matrix. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "synth/synth.h"

enum { ALIGNMENT = 32, CHUNK = 4096, POOL_CHUNKS = 16, MOST_TENSORS_PER_LAYER = 10 };
enum { N_KEYS = 15, N_EXPERT_KEYS = 2 }; /* written by put_keys() */

/* Value types of keys. */
enum { GGUF_U32 = 4, GGUF_F32 = 6, GGUF_STRING = 8 };

typedef struct tensor {
    char name[48];
    tsr_type type;
    int n_dims;
    int64_t ne[3];
    uint64_t offset;
} tensor;

typedef struct writer {
    const synth_shape *shape;
    tsr_type type;
    FILE *file;
    uint64_t random; /* state of the generator */
    tensor *tensors;
    int n_tensors;
    uint64_t data_bytes;
    uint8_t pool[POOL_CHUNKS][CHUNK * sizeof(float)]; /* chunks of the current matrix */
} writer;

/* -- random numbers -- */

/* SplitMix64 (Steele, Lea, Flood, 2014): any seed works, the sequence is the same on every machine. */
static uint64_t draw(writer *w)
{
    uint64_t z = w->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* About N(0, 1): the sum of four uniform numbers, scaled. Unlike Box-Muller it needs no libm function, whose
 * last bit differs between machines. */
static float draw_normal(writer *w)
{
    uint64_t bits = draw(w);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(bits >> 16 * i & 0xffff);
    return ((float)sum - 131070.0f) * (1.0f / 37837.0f); /* deviation of the sum: 65536 / sqrt(3) */
}

/* -- the list of tensors -- */

/* F32 for vectors; the requested type for matrices, if their rows allow it. */
static tsr_type type_for(const writer *w, int n_dims, int64_t columns)
{
    if (n_dims == 1)
        return TSR_TYPE_F32;
    if (columns % tsr_type_block_elems(w->type) == 0)
        return w->type;
    return columns % tsr_type_block_elems(TSR_TYPE_Q8_0) == 0 ? TSR_TYPE_Q8_0 : TSR_TYPE_F16;
}

/* Extents of 0 are omitted; layer -1: outside layers. */
static void add(writer *w, int layer, const char *name, int64_t ne0, int64_t ne1, int64_t ne2)
{
    tensor *t = &w->tensors[w->n_tensors++];
    char prefix[16] = "";
    if (layer >= 0)
        snprintf(prefix, sizeof prefix, "blk.%d.", layer);
    snprintf(t->name, sizeof t->name, "%s%s.weight", prefix, name);
    t->n_dims = 1 + (ne1 > 0) + (ne2 > 0);
    t->ne[0] = ne0;
    t->ne[1] = ne1 > 0 ? ne1 : 1;
    t->ne[2] = ne2 > 0 ? ne2 : 1;
    t->type = type_for(w, t->n_dims, ne0);
    t->offset = w->data_bytes;
    uint64_t bytes = tsr_type_row_bytes(t->type, ne0) * (uint64_t)(t->ne[1] * t->ne[2]);
    w->data_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void add_layer(writer *w, int layer)
{
    const synth_shape *s = w->shape;
    int64_t n_q = (int64_t)s->n_head * s->head_dim, n_kv = (int64_t)s->n_head_kv * s->head_dim;
    add(w, layer, "attn_norm", s->n_embd, 0, 0);
    add(w, layer, "attn_q", s->n_embd, n_q, 0);
    add(w, layer, "attn_k", s->n_embd, n_kv, 0);
    add(w, layer, "attn_v", s->n_embd, n_kv, 0);
    add(w, layer, "attn_output", n_q, s->n_embd, 0);
    add(w, layer, "ffn_norm", s->n_embd, 0, 0);
    if (s->n_expert) {
        add(w, layer, "ffn_gate_inp", s->n_embd, s->n_expert, 0);
        add(w, layer, "ffn_gate_exps", s->n_embd, s->n_ff, s->n_expert);
        add(w, layer, "ffn_up_exps", s->n_embd, s->n_ff, s->n_expert);
        add(w, layer, "ffn_down_exps", s->n_ff, s->n_embd, s->n_expert);
    } else {
        add(w, layer, "ffn_gate", s->n_embd, s->n_ff, 0);
        add(w, layer, "ffn_up", s->n_embd, s->n_ff, 0);
        add(w, layer, "ffn_down", s->n_ff, s->n_embd, 0);
    }
}

static bool list_tensors(writer *w)
{
    const synth_shape *s = w->shape;
    w->tensors = calloc((size_t)s->n_layers * MOST_TENSORS_PER_LAYER + 3, sizeof *w->tensors);
    if (!w->tensors)
        return false;
    add(w, -1, "token_embd", s->n_embd, s->n_vocab, 0);
    for (int l = 0; l < s->n_layers; l++)
        add_layer(w, l);
    add(w, -1, "output_norm", s->n_embd, 0, 0);
    if (!s->tied_output)
        add(w, -1, "output", s->n_embd, s->n_vocab, 0);
    return true;
}

/* -- the header -- */

/* Errors of stdio are checked once, at the end. */
static void put(writer *w, const void *bytes, size_t n)
{
    fwrite(bytes, 1, n, w->file);
}

static void put_u32(writer *w, uint32_t value)
{
    put(w, &value, sizeof value); /* little-endian, like all supported machines */
}

static void put_u64(writer *w, uint64_t value)
{
    put(w, &value, sizeof value);
}

static void put_string(writer *w, const char *text)
{
    put_u64(w, strlen(text));
    put(w, text, strlen(text));
}

static void put_key_u32(writer *w, const char *key, uint32_t value)
{
    put_string(w, key);
    put_u32(w, GGUF_U32);
    put_u32(w, value);
}

static void put_key_f32(writer *w, const char *key, float value)
{
    put_string(w, key);
    put_u32(w, GGUF_F32);
    put(w, &value, sizeof value);
}

static void put_key_string(writer *w, const char *key, const char *value)
{
    put_string(w, key);
    put_u32(w, GGUF_STRING);
    put_string(w, value);
}

static void put_keys(writer *w)
{
    const synth_shape *s = w->shape;
    put_key_string(w, "general.architecture", "llama");
    put_key_string(w, "general.name", s->name);
    put_key_u32(w, "llama.block_count", (uint32_t)s->n_layers);
    put_key_u32(w, "llama.context_length", (uint32_t)s->n_ctx);
    put_key_u32(w, "llama.embedding_length", (uint32_t)s->n_embd);
    put_key_u32(w, "llama.feed_forward_length", (uint32_t)s->n_ff);
    put_key_u32(w, "llama.attention.head_count", (uint32_t)s->n_head);
    put_key_u32(w, "llama.attention.head_count_kv", (uint32_t)s->n_head_kv);
    put_key_u32(w, "llama.attention.key_length", (uint32_t)s->head_dim);
    put_key_u32(w, "llama.attention.value_length", (uint32_t)s->head_dim);
    put_key_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    put_key_u32(w, "llama.rope.dimension_count", (uint32_t)s->head_dim);
    put_key_f32(w, "llama.rope.freq_base", s->rope_freq_base);
    put_key_u32(w, "llama.vocab_size", (uint32_t)s->n_vocab);
    put_key_string(w, "tokenizer.ggml.model", "no_vocab");
    if (s->n_expert) {
        put_key_u32(w, "llama.expert_count", (uint32_t)s->n_expert);
        put_key_u32(w, "llama.expert_used_count", (uint32_t)s->n_expert_used);
    }
}

static void pad(writer *w)
{
    static const uint8_t zeros[ALIGNMENT];
    long at = ftell(w->file);
    if (at > 0)
        put(w, zeros, (size_t)(ALIGNMENT - at % ALIGNMENT) % ALIGNMENT);
}

static void put_header(writer *w)
{
    put(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, (uint64_t)w->n_tensors);
    put_u64(w, w->shape->n_expert ? N_KEYS + N_EXPERT_KEYS : N_KEYS);
    put_keys(w);
    for (int i = 0; i < w->n_tensors; i++) {
        const tensor *t = &w->tensors[i];
        put_string(w, t->name);
        put_u32(w, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++)
            put_u64(w, (uint64_t)t->ne[d]);
        put_u32(w, (uint32_t)t->type);
        put_u64(w, t->offset);
    }
    pad(w);
}

/* -- weights -- */

/* Norms are ones. */
static bool put_vector(writer *w, const tensor *t)
{
    const float one = 1;
    for (int64_t i = 0; i < t->ne[0]; i++)
        put(w, &one, sizeof one);
    return true;
}

static bool put_matrix(writer *w, const tensor *t)
{
    float values[CHUNK];
    int64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float deviation = sqrtf(1.0f / (float)t->ne[0]); /* IEEE: the same on every machine */
    size_t chunk_bytes = tsr_type_row_bytes(t->type, CHUNK);
    for (int c = 0; c < POOL_CHUNKS; c++) {
        for (int i = 0; i < CHUNK; i++)
            values[i] = deviation * draw_normal(w);
        if (tsr_type_from_f32(t->type, values, w->pool[c], CHUNK) != TSR_OK) {
            errno = EINVAL;
            return false;
        }
    }
    for (; n > 0; n -= CHUNK)
        put(w, w->pool[draw(w) % POOL_CHUNKS], n < CHUNK ? tsr_type_row_bytes(t->type, n) : chunk_bytes);
    return !ferror(w->file);
}

bool synth_write(const synth_shape *shape, tsr_type type, uint64_t seed, FILE *file)
{
    writer *w = calloc(1, sizeof *w);
    if (!w)
        return false;
    *w = (writer){.shape = shape, .type = type, .file = file, .random = seed};
    bool good = list_tensors(w);
    if (good)
        put_header(w);
    for (int i = 0; i < w->n_tensors && good; i++) {
        const tensor *t = &w->tensors[i];
        good = t->n_dims == 1 ? put_vector(w, t) : put_matrix(w, t);
        pad(w);
    }
    good = good && fflush(file) == 0 && !ferror(file);
    free(w->tensors);
    free(w);
    return good;
}

int synth_in_memory(const synth_shape *shape, tsr_type type, uint64_t seed, char path[64])
{
    int fd = memfd_create(shape->name, MFD_CLOEXEC);
    int copy = fd < 0 ? -1 : dup(fd);
    FILE *file = copy < 0 ? NULL : fdopen(copy, "w");
    bool good = file && synth_write(shape, type, seed, file);
    if (file && fclose(file) != 0)
        good = false;
    if (!file && copy >= 0)
        close(copy);
    if (!good && fd >= 0) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
