/* Writing a model of random weights as a GGUF file.
 *
 * A matrix is N(0, 1 / columns), so that its product with a vector is about as large as the vector, however
 * wide the model: activations neither vanish nor overflow. Drawing and encoding every weight would take
 * minutes, so a matrix draws POOL_CHUNKS chunks and repeats them in random order; kernels still read the
 * whole matrix. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gguf/writer.h"
#include "synth/synth.h"

enum { CHUNK = 4096, POOL_CHUNKS = 16, MOST_TENSORS_PER_LAYER = 10 };

typedef struct tensor {
    tsr_type type;
    int n_dims;
    int64_t ne[3];
} tensor;

typedef struct model {
    const synth_shape *shape;
    tsr_type type;
    tsr_gguf_writer *writer;
    uint64_t random; /* state of the generator */
    tensor *tensors;
    int n_tensors;
    tsr_status status;                                /* the first failure of add() */
    uint8_t pool[POOL_CHUNKS][CHUNK * sizeof(float)]; /* chunks of the current matrix */
} model;

/* -- random numbers -- */

/* SplitMix64 (Steele, Lea, Flood, 2014): any seed works, the sequence is the same on every machine. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* About N(0, 1): the sum of four uniform numbers, scaled. Unlike Box-Muller it needs no libm function, whose
 * last bit differs between machines. */
static float draw_normal(uint64_t *state)
{
    uint64_t bits = draw(state);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(bits >> 16 * i & 0xffff);
    return ((float)sum - 131070.0f) * (1.0f / 37837.0f); /* deviation of the sum: 65536 / sqrt(3) */
}

/* -- the list of tensors -- */

/* F32 for vectors; the requested type for matrices if their rows allow it, otherwise Q8_0 or F16. */
static tsr_type type_for(const model *m, int n_dims, int64_t columns)
{
    if (n_dims == 1)
        return TSR_TYPE_F32;
    if (columns % tsr_type_block_elems(m->type) == 0)
        return m->type;
    return columns % tsr_type_block_elems(TSR_TYPE_Q8_0) == 0 ? TSR_TYPE_Q8_0 : TSR_TYPE_F16;
}

/* Extents of 0 are omitted; layer -1: outside layers. */
static void add(model *m, int layer, const char *name, int64_t ne0, int64_t ne1, int64_t ne2)
{
    tensor *t = &m->tensors[m->n_tensors++];
    char prefix[16] = "", full_name[48];
    if (layer >= 0)
        snprintf(prefix, sizeof prefix, "blk.%d.", layer);
    snprintf(full_name, sizeof full_name, "%s%s.weight", prefix, name);
    *t = (tensor){.n_dims = 1 + (ne1 > 0) + (ne2 > 0), .ne = {ne0, ne1 > 0 ? ne1 : 1, ne2 > 0 ? ne2 : 1}};
    t->type = type_for(m, t->n_dims, ne0);
    if (m->status == TSR_OK)
        m->status = tsr_gguf_writer_tensor(m->writer, full_name, t->type, t->n_dims, t->ne);
}

static void add_layer(model *m, int layer)
{
    const synth_shape *s = m->shape;
    int64_t n_q = (int64_t)s->n_head * s->head_dim, n_kv = (int64_t)s->n_head_kv * s->head_dim;
    add(m, layer, "attn_norm", s->n_embd, 0, 0);
    add(m, layer, "attn_q", s->n_embd, n_q, 0);
    add(m, layer, "attn_k", s->n_embd, n_kv, 0);
    add(m, layer, "attn_v", s->n_embd, n_kv, 0);
    add(m, layer, "attn_output", n_q, s->n_embd, 0);
    add(m, layer, "ffn_norm", s->n_embd, 0, 0);
    if (s->n_expert) {
        add(m, layer, "ffn_gate_inp", s->n_embd, s->n_expert, 0);
        add(m, layer, "ffn_gate_exps", s->n_embd, s->n_ff, s->n_expert);
        add(m, layer, "ffn_up_exps", s->n_embd, s->n_ff, s->n_expert);
        add(m, layer, "ffn_down_exps", s->n_ff, s->n_embd, s->n_expert);
    } else {
        add(m, layer, "ffn_gate", s->n_embd, s->n_ff, 0);
        add(m, layer, "ffn_up", s->n_embd, s->n_ff, 0);
        add(m, layer, "ffn_down", s->n_ff, s->n_embd, 0);
    }
}

static bool add_tensors(model *m)
{
    const synth_shape *s = m->shape;
    m->tensors = calloc((size_t)s->n_layers * MOST_TENSORS_PER_LAYER + 3, sizeof *m->tensors);
    if (!m->tensors)
        return false;
    add(m, -1, "token_embd", s->n_embd, s->n_vocab, 0);
    for (int l = 0; l < s->n_layers; l++)
        add_layer(m, l);
    add(m, -1, "output_norm", s->n_embd, 0, 0);
    if (!s->tied_output)
        add(m, -1, "output", s->n_embd, s->n_vocab, 0);
    return m->status == TSR_OK;
}

static void add_keys(tsr_gguf_writer *w, const synth_shape *s)
{
    tsr_gguf_writer_string(w, "general.architecture", "llama");
    tsr_gguf_writer_string(w, "general.name", s->name);
    tsr_gguf_writer_u32(w, "llama.block_count", (uint32_t)s->n_layers);
    tsr_gguf_writer_u32(w, "llama.context_length", (uint32_t)s->n_ctx);
    tsr_gguf_writer_u32(w, "llama.embedding_length", (uint32_t)s->n_embd);
    tsr_gguf_writer_u32(w, "llama.feed_forward_length", (uint32_t)s->n_ff);
    tsr_gguf_writer_u32(w, "llama.attention.head_count", (uint32_t)s->n_head);
    tsr_gguf_writer_u32(w, "llama.attention.head_count_kv", (uint32_t)s->n_head_kv);
    tsr_gguf_writer_u32(w, "llama.attention.key_length", (uint32_t)s->head_dim);
    tsr_gguf_writer_u32(w, "llama.attention.value_length", (uint32_t)s->head_dim);
    tsr_gguf_writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    tsr_gguf_writer_u32(w, "llama.rope.dimension_count", (uint32_t)s->head_dim);
    tsr_gguf_writer_f32(w, "llama.rope.freq_base", s->rope_freq_base);
    tsr_gguf_writer_u32(w, "llama.vocab_size", (uint32_t)s->n_vocab);
    tsr_gguf_writer_string(w, "tokenizer.ggml.model", "no_vocab");
    if (s->n_expert) {
        tsr_gguf_writer_u32(w, "llama.expert_count", (uint32_t)s->n_expert);
        tsr_gguf_writer_u32(w, "llama.expert_used_count", (uint32_t)s->n_expert_used);
    }
}

/* -- weights -- */

/* Norms are ones. */
static bool put_vector(model *m, const tensor *t)
{
    const float one = 1;
    bool good = true;
    for (int64_t i = 0; i < t->ne[0] && good; i++)
        good = tsr_gguf_writer_put(m->writer, &one, sizeof one) == TSR_OK;
    return good;
}

static bool put_matrix(model *m, const tensor *t)
{
    float values[CHUNK];
    int64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float deviation = sqrtf(1.0f / (float)t->ne[0]); /* IEEE: the same on every machine */
    bool good = true;
    for (int c = 0; c < POOL_CHUNKS; c++) {
        for (int i = 0; i < CHUNK; i++)
            values[i] = deviation * draw_normal(&m->random);
        if (tsr_type_from_f32(t->type, values, m->pool[c], CHUNK) != TSR_OK) {
            errno = EINVAL;
            return false;
        }
    }
    for (; n > 0 && good; n -= CHUNK) {
        const uint8_t *chunk = m->pool[draw(&m->random) % POOL_CHUNKS];
        good = tsr_gguf_writer_put(m->writer, chunk, tsr_type_row_bytes(t->type, n < CHUNK ? n : CHUNK)) ==
               TSR_OK;
    }
    return good;
}

bool synth_write(const synth_shape *shape, tsr_type type, uint64_t seed, FILE *file)
{
    model *m = calloc(1, sizeof *m);
    if (!m)
        return false;
    *m = (model){.shape = shape, .type = type, .random = seed};
    bool good = tsr_gguf_writer_create(3, &m->writer) == TSR_OK;
    if (good) {
        add_keys(m->writer, shape);
        good = add_tensors(m) && tsr_gguf_writer_begin(m->writer, file) == TSR_OK;
    }
    for (int i = 0; i < m->n_tensors && good; i++)
        good = m->tensors[i].n_dims == 1 ? put_vector(m, &m->tensors[i]) : put_matrix(m, &m->tensors[i]);
    good = good && tsr_gguf_writer_end(m->writer) == TSR_OK;
    tsr_gguf_writer_destroy(m->writer);
    free(m->tensors);
    free(m);
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
