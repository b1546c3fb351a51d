/* Prints a hash of the logits of model files under several splits, kernels and types of keys and values, a
 * line each. scripts/hash-results calls it; not a test by itself.
 *
 *     hash_logits FILE.gguf ...
 *
 * Each line is computed from a prompt of 40 tokens, decoded in two chunks, and of four single tokens after
 * it. A combination that a file does not allow prints the status instead of a hash. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <tsr/tsr.h>

enum { N_PROMPT = 40, N_FIRST = 33, N_SINGLE = 4, MAX_SPLIT = 4 };

typedef struct variant {
    const char *devices;
    int n_split;
    float split[MAX_SPLIT];
    tsr_split_mode mode;
    tsr_type type_kv;
    int activation_bits;
} variant;

static const variant variants[] = {
    {"host:1,threads=2", 1, {1}, TSR_SPLIT_MODE_TENSOR, TSR_TYPE_F16, 16},
    {"host:2,threads=1", 2, {3, 1}, TSR_SPLIT_MODE_TENSOR, TSR_TYPE_F16, 16},
    {"host:3,threads=1", 3, {1, 2, 1}, TSR_SPLIT_MODE_TENSOR, TSR_TYPE_F32, 16},
    {"host:4,threads=1", 4, {5, 0, 1, 3}, TSR_SPLIT_MODE_TENSOR, TSR_TYPE_Q8_0, 16},
    {"host:2,threads=1", 2, {1, 1}, TSR_SPLIT_MODE_LAYER, TSR_TYPE_BF16, 16},
    {"host:2,threads=1", 2, {2, 1}, TSR_SPLIT_MODE_TENSOR, TSR_TYPE_F16, 8},
    {"host:2,threads=1,isa=generic", 2, {1, 2}, TSR_SPLIT_MODE_TENSOR, TSR_TYPE_F16, 16},
    {"host:2,threads=1,isa=avx2", 2, {1, 2}, TSR_SPLIT_MODE_TENSOR, TSR_TYPE_Q4_0, 16},
    {"host:2,threads=1,isa=avx2", 2, {3, 2}, TSR_SPLIT_MODE_TENSOR, TSR_TYPE_F16, 8},
};

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n_bytes)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static tsr_status decode_and_hash(tsr_model *model, uint64_t *hash_out)
{
    int32_t tokens[N_PROMPT + N_SINGLE];
    tsr_model_info info;
    tsr_session *session = NULL;
    tsr_status status = tsr_session_create(model, &session);
    tsr_model_get_info(model, &info);
    size_t n_bytes = (size_t)info.n_vocab * sizeof(float);
    float *logits = malloc(n_bytes);
    if (!logits)
        status = TSR_ERR_MEMORY;
    for (int i = 0; i < N_PROMPT + N_SINGLE; i++)
        tokens[i] = (int32_t)((INT64_C(7919) * i + 31) % info.n_vocab);
    *hash_out = UINT64_C(0xcbf29ce484222325);
    for (int done = 0, n; status == TSR_OK && done < N_PROMPT + N_SINGLE; done += n) {
        n = done == 0 ? N_FIRST : done == N_FIRST ? N_PROMPT - N_FIRST : 1;
        tsr_batch batch = {.n_tokens = n, .tokens = tokens + done};
        status = tsr_session_decode(session, &batch, logits);
        if (status == TSR_OK)
            *hash_out = hash_bytes(*hash_out, logits, n_bytes);
    }
    free(logits);
    tsr_session_destroy(session);
    return status;
}

static tsr_status run(const char *path, const variant *v, uint64_t *hash_out)
{
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_runtime_config runtime = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    runtime.devices = v->devices;
    config.split.tensor_split = v->split;
    config.split.n_tensor_split = v->n_split;
    config.split.mode = v->mode;
    config.session.n_ctx = 256;
    config.session.type_k = config.session.type_v = v->type_kv;
    config.compute.activation_bits = v->activation_bits;
    tsr_status status = tsr_runtime_open(&runtime, &rt);
    if (status == TSR_OK)
        status = tsr_model_open(rt, path, &config, &model);
    if (status == TSR_OK)
        status = decode_and_hash(model, hash_out);
    tsr_model_close(model);
    tsr_runtime_close(rt);
    return status;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
            uint64_t hash = 0;
            tsr_status status = run(argv[i], &variants[v], &hash);
            if (status == TSR_OK)
                printf("%016" PRIx64, hash);
            else
                printf("%-16s", tsr_status_name(status));
            printf("  logits of %s, variant %zu: %s\n", argv[i], v, variants[v].devices);
        }
    return 0;
}
