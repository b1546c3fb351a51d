/* Opening a model, decoding, dividing it anew, and decoding again. The last byte chooses split, mode and
 * types of the KV region. The logits of both splits are the same bits. */
#include "fuzz.h"

#include <tsr/tsr.h>

static tsr_runtime *runtime(void)
{
    static tsr_runtime *rt;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:2,threads=1";
    if (!rt && tsr_runtime_open(&config, &rt) != TSR_OK)
        abort();
    return rt;
}

static bool decode(tsr_model *model, float *logits)
{
    static const int32_t tokens[] = {1, 2, 0};
    tsr_batch batch = {.n_tokens = 3, .tokens = tokens};
    tsr_session *session = NULL;
    bool decoded =
        fuzz_ok(tsr_session_create(model, &session)) && fuzz_ok(tsr_session_decode(session, &batch, logits));
    tsr_session_destroy(session);
    return decoded;
}

static void run(const char *path, unsigned choice)
{
    static const float splits[][2] = {{1, 1}, {1, 0}, {3, 1}, {1, 5}};
    tsr_model *model = NULL;
    tsr_model_config config = tsr_model_config_default();
    config.split.tensor_split = splits[choice & 3];
    config.split.n_tensor_split = 2;
    config.split.mode = choice & 4 ? TSR_SPLIT_MODE_LAYER : TSR_SPLIT_MODE_TENSOR;
    config.session.type_k = config.session.type_v = choice & 8 ? TSR_TYPE_F32 : TSR_TYPE_F16;
    config.session.n_ctx = 32;
    config.session.n_batch = 8;
    config.compute.timeout_ns = UINT64_C(5000000000);
    if (!fuzz_ok(tsr_model_open(runtime(), path, &config, &model)))
        return;
    tsr_model_info info;
    tsr_model_get_info(model, &info);
    size_t n = (size_t)info.n_vocab;
    float *first = malloc(2 * n * sizeof *first), *second = first + n;
    if (!first)
        abort();
    if (decode(model, first) && fuzz_ok(tsr_model_resplit(model, splits[(choice >> 4) & 3], 2)) &&
        decode(model, second) && memcmp(first, second, n * sizeof *first) != 0)
        abort();
    free(first);
    tsr_model_close(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    if (bytes < 1)
        return 0;
    int fd = fuzz_file(data, bytes, path);
    run(path, data[bytes - 1]);
    close(fd);
    return 0;
}
