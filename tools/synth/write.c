/* Writing a model of random weights as a GGUF file.
 *
 * A matrix is N(0, 1 / columns), so that its product with a vector is about as large as the vector, however
 * wide the model: activations neither vanish nor overflow. Drawing and encoding every weight would take
 * minutes, so a matrix draws POOL_CHUNKS chunks and repeats them in random order; kernels still read the
 * whole matrix. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gguf/writer.h"
#include "interrupt.h"
#include "synth/synth.h"

enum { CHUNK = 4096, POOL_CHUNKS = 16, CHUNKS_PER_SHOW = 1024 };

typedef struct source {
    tsr_gguf_writer *writer;
    uint64_t random;                                  /* state of the generator */
    tool_progress *progress;                          /* NULL: none */
    int64_t n_chunks, n_done;                         /* of all matrices */
    uint8_t pool[POOL_CHUNKS][CHUNK * sizeof(float)]; /* chunks of the current matrix */
} source;

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

/* -- weights -- */

/* Norms and factors are ones, biases and sinks zeros. The decay of a recurrence, ssm_a, is negative. */
static bool put_constant(source *s, const synth_tensor *t)
{
    const bool zero = strstr(t->name, ".bias") || strstr(t->name, "sinks");
    const float value = zero ? 0 : strstr(t->name, ".ssm_a") ? -1 : 1;
    bool good = true;
    for (int64_t i = 0; i < t->ne[0] * t->ne[1] && good; i++)
        good = tsr_gguf_writer_put(s->writer, &value, sizeof value) == TSR_OK;
    return good;
}

static bool put_matrix(source *s, const synth_tensor *t)
{
    float values[CHUNK];
    int64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float deviation = sqrtf(1.0f / (float)t->ne[0]); /* IEEE: the same on every machine */
    bool good = true;
    for (int c = 0; c < POOL_CHUNKS; c++) {
        for (int i = 0; i < CHUNK; i++)
            values[i] = deviation * draw_normal(&s->random);
        if (tsr_type_from_f32(t->type, values, s->pool[c], CHUNK) != TSR_OK) {
            errno = EINVAL;
            return false;
        }
    }
    for (; n > 0 && good; n -= CHUNK) {
        if (s->progress && s->n_done++ % CHUNKS_PER_SHOW == 0)
            tool_progress_show((double)s->n_done / (double)(s->n_chunks + 1), s->progress);
        if (tool_interrupted) {
            errno = EINTR;
            return false;
        }
        const uint8_t *chunk = s->pool[draw(&s->random) % POOL_CHUNKS];
        good = tsr_gguf_writer_put(s->writer, chunk, tsr_type_row_bytes(t->type, n < CHUNK ? n : CHUNK)) ==
               TSR_OK;
    }
    return good;
}

static bool is_constant(const synth_tensor *t)
{
    return t->n_dims == 1 || strstr(t->name, ".bias");
}

static bool put_data(source *s, const synth_tensor *tensors, int n)
{
    bool good = true;
    for (int i = 0; i < n; i++)
        if (!is_constant(&tensors[i]))
            s->n_chunks += (tensors[i].ne[0] * tensors[i].ne[1] * tensors[i].ne[2] + CHUNK - 1) / CHUNK;
    for (int i = 0; i < n && good; i++) {
        good = is_constant(&tensors[i]) ? put_constant(s, &tensors[i]) : put_matrix(s, &tensors[i]);
    }
    return good && tsr_gguf_writer_end(s->writer) == TSR_OK;
}

static bool put_header(tsr_gguf_writer *writer, const synth_shape *shape, const synth_tensor *tensors, int n,
                       FILE *file)
{
    bool good = true;
    synth_add_keys(shape, writer);
    for (int i = 0; i < n && good; i++)
        good = tsr_gguf_writer_tensor(writer, tensors[i].name, tensors[i].type, tensors[i].n_dims,
                                      tensors[i].ne) == TSR_OK;
    return good && tsr_gguf_writer_begin(writer, file) == TSR_OK;
}

static bool write_model(const synth_model *model, uint64_t seed, bool header_only, tool_progress *progress,
                        FILE *file)
{
    int n = 0;
    source *s = calloc(1, sizeof *s);
    synth_tensor *tensors = synth_tensors(model, &n);
    bool good = s && tensors && tsr_gguf_writer_create(3, &s->writer) == TSR_OK;
    if (good) {
        s->random = seed;
        s->progress = progress;
        good = put_header(s->writer, &model->shape, tensors, n, file);
    }
    if (good && !header_only)
        good = put_data(s, tensors, n);
    if (s)
        tsr_gguf_writer_destroy(s->writer);
    free(tensors);
    free(s);
    return good;
}

bool synth_write(const synth_model *model, uint64_t seed, tool_progress *progress, FILE *file)
{
    return write_model(model, seed, false, progress, file);
}

int synth_in_memory(const synth_model *model, uint64_t seed, bool header_only, char path[64])
{
    int fd = memfd_create(model->shape.name, MFD_CLOEXEC);
    int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    FILE *file = copy < 0 ? NULL : fdopen(copy, "w");
    bool good = file && write_model(model, seed, header_only, NULL, file);
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
