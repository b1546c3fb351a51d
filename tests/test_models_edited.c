/* Recorded models (../shared/ref/hf) with what published files of their architectures have besides: tensors
 * and keys that change nothing, and such that this version refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>
#include <tsr/runtime.h>

#include "core/mem.h"
#include "support/directory.h"
#include "support/runner.h"

enum { N_TOKENS = 9, N_VOCAB = 320, MAX_NEW = 3 };

/* -- a copy of a file with more tensors -- */

typedef struct bytes {
    unsigned char *at;
    size_t n;
} bytes;

static bytes read_file(const char *path)
{
    bytes b = {0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    b.n = (size_t)ftell(file);
    rewind(file);
    b.at = malloc(b.n);
    assert_non_null(b.at);
    assert_int_equal(fread(b.at, 1, b.n, file), b.n);
    fclose(file);
    return b;
}

/* A tensor of F32 elements. */
typedef struct new_tensor {
    const char *name;
    int64_t ne[2]; /* ne[1] 0: one dimension */
    float value;
} new_tensor;

static size_t n_elements(const new_tensor *t)
{
    return (size_t)(t->ne[0] * (t->ne[1] > 0 ? t->ne[1] : 1));
}

static void put_info(FILE *file, const new_tensor *t, uint64_t offset)
{
    const uint64_t length = strlen(t->name), ne[2] = {(uint64_t)t->ne[0], (uint64_t)t->ne[1]};
    const uint32_t n_dims = t->ne[1] > 0 ? 2 : 1, type = TSR_TYPE_F32;
    fwrite(&length, sizeof length, 1, file);
    fwrite(t->name, 1, (size_t)length, file);
    fwrite(&n_dims, sizeof n_dims, 1, file);
    fwrite(ne, sizeof *ne, n_dims, file);
    fwrite(&type, sizeof type, 1, file);
    fwrite(&offset, sizeof offset, 1, file);
}

/* The offset of the first tensor's data. */
static size_t data_begin(const char *path)
{
    tsr_gguf *gguf;
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    size_t begin = SIZE_MAX;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++)
        begin = TSR_MIN(begin, (size_t)tsr_gguf_tensor_at(gguf, i)->offset);
    tsr_gguf_close(gguf);
    return begin;
}

/* The last name of a tensor in the header, and the rest of its entry: behind it the new entries belong. */
static size_t infos_end(const char *path, const bytes *b, size_t begin)
{
    tsr_gguf *gguf;
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    const tsr_gguf_tensor *last = tsr_gguf_tensor_at(gguf, tsr_gguf_n_tensors(gguf) - 1);
    const size_t length = strlen(last->name), n_dims = (size_t)last->n_dims;
    size_t at = begin - length;
    while (at > 0 && memcmp(b->at + at, last->name, length) != 0)
        at--;
    tsr_gguf_close(gguf);
    return at + length + sizeof(uint32_t) + n_dims * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint64_t);
}

/* Offsets of the old tensors count from the data's begin, which is a multiple of 32, as all offsets are. */
static const char *write_with(const char *folder, const new_tensor *tensors, const char *name)
{
    char path[128];
    static const char zeros[32];
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", folder);
    bytes b = read_file(path);
    const size_t begin = data_begin(path), end = infos_end(path, &b, begin);
    uint64_t n_tensors, offset = tsr_align_up(b.n - begin, 32);
    memcpy(&n_tensors, b.at + 8, sizeof n_tensors);
    const char *copy = directory_file(name);
    FILE *file = fopen(copy, "wb");
    assert_non_null(file);
    for (int i = 0; i < MAX_NEW && tensors[i].name; i++)
        n_tensors++;
    memcpy(b.at + 8, &n_tensors, sizeof n_tensors);
    fwrite(b.at, 1, end, file);
    for (int i = 0; i < MAX_NEW && tensors[i].name; i++) {
        put_info(file, &tensors[i], offset);
        offset += tsr_align_up(n_elements(&tensors[i]) * sizeof(float), 32);
    }
    fwrite(zeros, 1, (size_t)(-ftell(file) & 31), file);
    fwrite(b.at + begin, 1, b.n - begin, file);
    for (int i = 0; i < MAX_NEW && tensors[i].name; i++) {
        fwrite(zeros, 1, (size_t)(-ftell(file) & 31), file);
        for (size_t j = 0; j < n_elements(&tensors[i]); j++)
            fwrite(&tensors[i].value, sizeof(float), 1, file);
    }
    assert_int_equal(fclose(file), 0);
    free(b.at);
    return copy;
}

/* A copy with one more key, of an integer, before the others. */
static const char *write_with_key(const char *folder, const char *key, uint32_t value, const char *name)
{
    enum { HEADER = 24, UINT32 = 4 };
    char path[128];
    static const char zeros[32];
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", folder);
    bytes b = read_file(path);
    const size_t begin = data_begin(path), end = infos_end(path, &b, begin);
    const uint64_t length = strlen(key);
    const uint32_t type = UINT32;
    uint64_t n_keys;
    memcpy(&n_keys, b.at + 16, sizeof n_keys);
    n_keys++;
    memcpy(b.at + 16, &n_keys, sizeof n_keys);
    const char *copy = directory_file(name);
    FILE *file = fopen(copy, "wb");
    assert_non_null(file);
    fwrite(b.at, 1, HEADER, file);
    fwrite(&length, sizeof length, 1, file);
    fwrite(key, 1, (size_t)length, file);
    fwrite(&type, sizeof type, 1, file);
    fwrite(&value, sizeof value, 1, file);
    fwrite(b.at + HEADER, 1, end - HEADER, file);
    fwrite(zeros, 1, (size_t)(-ftell(file) & 31), file);
    fwrite(b.at + begin, 1, b.n - begin, file);
    assert_int_equal(fclose(file), 0);
    free(b.at);
    return copy;
}

/* -- comparing -- */

static bool is_missing(const char *folder)
{
    char path[128];
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", folder);
    if (access(path, R_OK) == 0)
        return false;
    printf("skipped: %s is missing\n", path);
    return true;
}

static float *logits_of(const char *path)
{
    static const int32_t tokens[N_TOKENS] = {5, 17, 3, 200, 41, 8, 99, 4, 60};
    runner r;
    runner_open(&r, path, "host:2,threads=1", "1,1", NULL);
    float *logits = calloc(N_VOCAB, sizeof *logits);
    assert_non_null(logits);
    assert_int_equal(r.n_vocab, N_VOCAB);
    runner_decode(&r, tokens, N_TOKENS, 0, false, logits);
    runner_close(&r);
    return logits;
}

static bool same_logits(const char *a, const char *b)
{
    float *x = logits_of(a), *y = logits_of(b);
    const bool same = memcmp(x, y, N_VOCAB * sizeof(float)) == 0;
    free(x);
    free(y);
    return same;
}

static void check_refused(const char *path, tsr_status expected, const char *object)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    tsr_model *model = NULL;
    config.devices = "host:1,threads=1";
    runner_ok(tsr_runtime_open(&config, &rt), "runtime");
    assert_int_equal(tsr_model_open(rt, path, NULL, &model), expected);
    if (!strstr(tsr_last_error(), object))
        fail_msg("this should name %s: %s", object, tsr_last_error());
    tsr_runtime_close(rt);
}

/* -- tests -- */

static void keys_of_layers_that_read_others_change_nothing(void **state)
{
    (void)state;
    if (is_missing("gemma4-e"))
        skip();
    const char *const plain = "../shared/ref/hf/gemma4-e/model.gguf";
    const new_tensor unused[MAX_NEW] = {{"blk.4.attn_k.weight", {64, 32}, 1},
                                        {"blk.4.attn_v.weight", {64, 32}, 1},
                                        {"blk.5.attn_k_norm.weight", {32}, 1}};
    assert_true(same_logits(write_with("gemma4-e", unused, "unused.gguf"), plain));
    const new_tensor used[MAX_NEW] = {{"blk.4.attn_output.bias", {64}, 1}};
    assert_false(same_logits(write_with("gemma4-e", used, "used.gguf"), plain));
    const new_tensor unknown[MAX_NEW] = {{"blk.4.attn_r.weight", {64, 32}, 1}};
    check_refused(write_with("gemma4-e", unknown, "unknown.gguf"), TSR_ERR_UNSUPPORTED,
                  "blk.4.attn_r.weight");
}

static void half_a_rotation_takes_half_of_the_factors(void **state)
{
    (void)state;
    if (is_missing("step35"))
        skip();
    const char *const plain = "../shared/ref/hf/step35/model.gguf";
    const new_tensor ones[MAX_NEW] = {{"rope_freqs.weight", {8}, 1}},
                     twos[MAX_NEW] = {{"rope_freqs.weight", {8}, 2}},
                     few[MAX_NEW] = {{"rope_freqs.weight", {4}, 1}};
    assert_true(same_logits(write_with("step35", ones, "ones.gguf"), plain));
    assert_false(same_logits(write_with("step35", twos, "twos.gguf"), plain));
    check_refused(write_with("step35", few, "few.gguf"), TSR_ERR_FORMAT, "rope_freqs.weight");
}

static void files_of_older_converters_are_told_so(void **state)
{
    (void)state;
    if (is_missing("qwen3next"))
        skip();
    const new_tensor joined[MAX_NEW] = {{"blk.0.ssm_in.weight", {64, 32}, 1}};
    check_refused(write_with("qwen3next", joined, "joined.gguf"), TSR_ERR_UNSUPPORTED,
                  "convert the model anew");
    if (is_missing("kimi-linear"))
        skip();
    const new_tensor joined_heads[MAX_NEW] = {{"blk.2.attn_kv_b.weight", {32, 176}, 1}};
    check_refused(write_with("kimi-linear", joined_heads, "joined.gguf"), TSR_ERR_UNSUPPORTED,
                  "convert the model anew");
}

static void layers_beside_short_convolutions_may_have_a_window(void **state)
{
    (void)state;
    if (is_missing("lfm2"))
        skip();
    static const char key[] = "lfm2.attention.sliding_window";
    const char *const plain = "../shared/ref/hf/lfm2/model.gguf";
    assert_true(same_logits(write_with_key("lfm2", key, N_TOKENS, "wide.gguf"), plain));
    assert_false(same_logits(write_with_key("lfm2", key, N_TOKENS - 1, "narrow.gguf"), plain));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_layers_that_read_others_change_nothing),
        cmocka_unit_test(half_a_rotation_takes_half_of_the_factors),
        cmocka_unit_test(files_of_older_converters_are_told_so),
        cmocka_unit_test(layers_beside_short_convolutions_may_have_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
