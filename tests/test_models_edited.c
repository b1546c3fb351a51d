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

#include "support/directory.h"
#include "support/edited_file.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_TOKENS = 40, N_VOCAB = 320 };

static const char *model_of(const char *folder)
{
    static char path[128];
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", folder);
    return path;
}

static const char *write_with(const char *folder, const file_edit *edits, const char *name)
{
    const char *copy = directory_file(name);
    edited_file_write(model_of(folder), edits, copy);
    return copy;
}

/* -- comparing -- */

static bool is_missing(const char *folder)
{
    if (access(model_of(folder), R_OK) == 0)
        return false;
    printf("skipped: %s is missing\n", model_of(folder));
    return true;
}

/* Logits of the last token; the tokens in chunks (0: at once). */
static float *logits_of_split(const char *path, const char *devices, const char *split, int64_t chunk)
{
    int32_t tokens[N_TOKENS];
    runner r;
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 29 + 3) % N_VOCAB;
    runner_open(&r, path, devices, split, NULL);
    float *logits = calloc(N_VOCAB, sizeof *logits);
    assert_non_null(logits);
    assert_int_equal(r.n_vocab, N_VOCAB);
    runner_decode(&r, tokens, N_TOKENS, chunk, false, logits);
    runner_close(&r);
    return logits;
}

static float *logits_of(const char *path)
{
    return logits_of_split(path, "host:2,threads=1", "1,1", 0);
}

static bool same_logits(const char *a, const char *b)
{
    float *x = logits_of(a), *y = logits_of(b);
    const bool same = memcmp(x, y, N_VOCAB * sizeof(float)) == 0;
    free(x);
    free(y);
    return same;
}

static void check_refused_with(const char *path, const tsr_model_config *model_config, tsr_status expected,
                               const char *object)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    tsr_model *model = NULL;
    config.devices = "host:1,threads=1";
    runner_ok(tsr_runtime_open(&config, &rt), "runtime");
    assert_int_equal(tsr_model_open(rt, path, model_config, &model), expected);
    if (!strstr(tsr_last_error(), object))
        fail_msg("this should name %s: %s", object, tsr_last_error());
    tsr_runtime_close(rt);
}

static void check_refused(const char *path, tsr_status expected, const char *object)
{
    check_refused_with(path, NULL, expected, object);
}

/* -- tests -- */

static void keys_of_layers_that_read_others_change_nothing(void **state)
{
    (void)state;
    if (is_missing("gemma4-e"))
        skip();
    const char *const plain = "../shared/ref/hf/gemma4-e/model.gguf";
    const file_edit unused[] = {{"blk.4.attn_k.weight", FILE_TENSOR, .ne = {64, 32}, .value = 1},
                                {"blk.4.attn_v.weight", FILE_TENSOR, .ne = {64, 32}, .value = 1},
                                {"blk.5.attn_k_norm.weight", FILE_TENSOR, .ne = {32}, .value = 1},
                                {0}};
    assert_true(same_logits(write_with("gemma4-e", unused, "unused.gguf"), plain));
    const file_edit used[] = {{"blk.4.attn_output.bias", FILE_TENSOR, .ne = {64}, .value = 1}, {0}};
    assert_false(same_logits(write_with("gemma4-e", used, "used.gguf"), plain));
    const file_edit unknown[] = {{"blk.4.attn_r.weight", FILE_TENSOR, .ne = {64, 32}, .value = 1}, {0}};
    check_refused(write_with("gemma4-e", unknown, "unknown.gguf"), TSR_ERR_UNSUPPORTED,
                  "blk.4.attn_r.weight");
}

static void half_a_rotation_takes_half_of_the_factors(void **state)
{
    (void)state;
    if (is_missing("step35"))
        skip();
    const char *const plain = "../shared/ref/hf/step35/model.gguf";
    const file_edit ones[] = {{"rope_freqs.weight", FILE_TENSOR, .ne = {8}, .value = 1}, {0}},
                    twos[] = {{"rope_freqs.weight", FILE_TENSOR, .ne = {8}, .value = 2}, {0}},
                    few[] = {{"rope_freqs.weight", FILE_TENSOR, .ne = {4}, .value = 1}, {0}};
    assert_true(same_logits(write_with("step35", ones, "ones.gguf"), plain));
    assert_false(same_logits(write_with("step35", twos, "twos.gguf"), plain));
    check_refused(write_with("step35", few, "few.gguf"), TSR_ERR_FORMAT, "rope_freqs.weight");
}

static void files_of_older_converters_are_told_so(void **state)
{
    (void)state;
    if (is_missing("qwen3next"))
        skip();
    const file_edit joined[] = {{"blk.0.ssm_in.weight", FILE_TENSOR, .ne = {64, 32}, .value = 1}, {0}};
    check_refused(write_with("qwen3next", joined, "joined.gguf"), TSR_ERR_UNSUPPORTED,
                  "convert the model anew");
    if (is_missing("kimi-linear"))
        skip();
    const file_edit joined_heads[] = {{"blk.2.attn_kv_b.weight", FILE_TENSOR, .ne = {32, 176}, .value = 1},
                                      {0}};
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
    const file_edit wide[] = {{key, FILE_U32, {N_TOKENS}}, {0}},
                    narrow[] = {{key, FILE_U32, {N_TOKENS - 1}}, {0}};
    assert_true(same_logits(write_with("lfm2", wide, "wide.gguf"), plain));
    assert_false(same_logits(write_with("lfm2", narrow, "narrow.gguf"), plain));
}

/* Of its recurrent layers, too. */
static void layers_without_heads_are_refused(void **state)
{
    (void)state;
    if (is_missing("kimi-linear"))
        skip();
    const file_edit edits[] = {{"kimi-linear.attention.head_count", FILE_U32S, {4, 0, 4, 4, 4}, 5}, {0}};
    check_refused(write_with("kimi-linear", edits, "edited.gguf"), TSR_ERR_UNSUPPORTED,
                  "layer 1 has 0 heads");
}

/* A bias that is too small to change any key stands for no bias. */
static void the_key_of_an_index_may_have_no_bias(void **state)
{
    (void)state;
    if (is_missing("glm-dsa"))
        skip();
    const file_edit without[] = {
        {"blk.0.indexer.k_norm.bias", FILE_DROP}, {"blk.2.indexer.k_norm.bias", FILE_DROP}, {0}};
    const file_edit tiny[] = {{"blk.0.indexer.k_norm.bias", FILE_TENSOR, .ne = {64}, .value = 1e-30f},
                              {"blk.2.indexer.k_norm.bias", FILE_TENSOR, .ne = {64}, .value = 1e-30f},
                              {0}};
    char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, "%s", write_with("glm-dsa", without, "without.gguf"));
    assert_true(same_logits(path, write_with("glm-dsa", tiny, "tiny.gguf")));
}

static void an_index_has_weights_of_heads_where_it_sums_them(void **state)
{
    (void)state;
    if (is_missing("glm-dsa") || is_missing("minimax-m3"))
        skip();
    const file_edit without[] = {{"blk.2.indexer.proj.weight", FILE_DROP}, {0}};
    check_refused(write_with("glm-dsa", without, "edited.gguf"), TSR_ERR_FORMAT, "blk.2.indexer.proj.weight");
    const file_edit more[] = {{"blk.2.indexer.proj.weight", FILE_TENSOR, .ne = {64, 2}}, {0}};
    check_refused(write_with("minimax-m3", more, "edited.gguf"), TSR_ERR_UNSUPPORTED,
                  "blk.2.indexer.proj.weight");
}

/* Layers without an index may have other KV heads. */
static void an_index_has_a_head_for_each_kv_head_of_its_layer(void **state)
{
    (void)state;
    if (is_missing("minimax-m3"))
        skip();
    static const char key[] = "minimax-m3.attention.head_count_kv";
    const file_edit dense[] = {{key, FILE_U32S, {4, 2, 2, 2, 2}, 5},
                               {"blk.0.attn_k.weight", FILE_TENSOR, .ne = {64, 128}},
                               {"blk.0.attn_v.weight", FILE_TENSOR, .ne = {64, 128}},
                               {0}};
    free(logits_of(write_with("minimax-m3", dense, "edited.gguf")));
    const file_edit sparse[] = {{key, FILE_U32S, {2, 2, 4, 2, 2}, 5}, {0}};
    check_refused(write_with("minimax-m3", sparse, "edited.gguf"), TSR_ERR_UNSUPPORTED,
                  "layer 2 has an index of 2 heads for 4 KV heads");
}

static void sizes_of_an_index_are_checked_when_the_file_is_read(void **state)
{
    (void)state;
    if (is_missing("glm-dsa") || is_missing("minimax-m3"))
        skip();
    const file_edit many[] = {{"minimax-m3.attention.indexer.top_k", FILE_U32, {4097}}, {0}};
    check_refused(write_with("minimax-m3", many, "edited.gguf"), TSR_ERR_UNSUPPORTED,
                  "4097 blocks of positions for each of 2 heads; up to 8192");
    const file_edit keys[] = {{"glm-dsa.attention.indexer.key_length", FILE_U32, {14}}, {0}};
    check_refused(write_with("glm-dsa", keys, "edited.gguf"), TSR_ERR_FORMAT,
                  "key_length is 14, and rope.dimension_count, which it includes, 16");
}

/* Without a multiplier for the scores, YaRN makes cos and sin grow. A key that says by how much goes before
 * either. */
static void latent_attention_without_a_multiplier_has_the_growth_of_yarn(void **state)
{
    (void)state;
    if (is_missing("deepseek2-v3"))
        skip();
    const file_edit without[] = {{"deepseek2.rope.scaling.yarn_log_multiplier", FILE_DROP}, {0}},
                    fixed[] = {{"deepseek2.rope.scaling.yarn_log_multiplier", FILE_DROP},
                               {"deepseek2.rope.scaling.yarn_attn_factor", FILE_U32, {1}},
                               {0}};
    char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, "%s", write_with("deepseek2-v3", without, "without.gguf"));
    assert_false(same_logits(path, write_with("deepseek2-v3", fixed, "fixed.gguf")));
    const file_edit one[] = {{"deepseek2.rope.scaling.yarn_attn_factor", FILE_U32, {1}}, {0}},
                    two[] = {{"deepseek2.rope.scaling.yarn_attn_factor", FILE_U32, {2}}, {0}};
    snprintf(path, sizeof path, "%s", write_with("deepseek2-v3", one, "one.gguf"));
    assert_true(same_logits(path, "../shared/ref/hf/deepseek2-v3/model.gguf"));
    assert_false(same_logits(path, write_with("deepseek2-v3", two, "two.gguf")));
}

static void minimax_models_choose_experts_by_sigmoids(void **state)
{
    (void)state;
    if (is_missing("minimax-m2") || is_missing("minimax-m3"))
        skip();
    const file_edit m2[] = {{"minimax-m2.expert_gating_func", FILE_DROP}, {0}},
                    m3[] = {{"minimax-m3.expert_gating_func", FILE_DROP}, {0}};
    assert_true(
        same_logits(write_with("minimax-m2", m2, "edited.gguf"), "../shared/ref/hf/minimax-m2/model.gguf"));
    assert_true(
        same_logits(write_with("minimax-m3", m3, "edited.gguf"), "../shared/ref/hf/minimax-m3/model.gguf"));
}

/* Converters write both epsilons where a configuration has both; then the norms are RMS norms. */
static void cohere_mixtures_may_have_rms_norms(void **state)
{
    (void)state;
    if (is_missing("cohere2moe"))
        skip();
    static const char layer_eps[] = "cohere2moe.attention.layer_norm_epsilon",
                      rms_eps[] = "cohere2moe.attention.layer_norm_rms_epsilon";
    const file_edit rms[] = {{layer_eps, FILE_DROP}, {rms_eps, FILE_U32, {1}}, {0}},
                    both[] = {{rms_eps, FILE_U32, {1}}, {0}},
                    biased[] = {{rms_eps, FILE_U32, {1}},
                                {"blk.0.attn_norm.bias", FILE_TENSOR, .ne = {64}, .value = 1},
                                {0}};
    char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, "%s", write_with("cohere2moe", rms, "rms.gguf"));
    assert_true(same_logits(path, write_with("cohere2moe", both, "both.gguf")));
    assert_false(same_logits(path, "../shared/ref/hf/cohere2moe/model.gguf"));
    check_refused(write_with("cohere2moe", biased, "biased.gguf"), TSR_ERR_UNSUPPORTED,
                  "blk.0.attn_norm.bias");
}

/* Without dense layers, files have the length of an expert alone. */
static void models_of_experts_need_no_length_of_dense_layers(void **state)
{
    (void)state;
    if (is_missing("qwen35moe"))
        skip();
    static const char dense[] = "qwen35moe.feed_forward_length";
    const file_edit without[] = {{dense, FILE_DROP}, {0}},
                    neither[] = {
                        {dense, FILE_DROP}, {"qwen35moe.expert_feed_forward_length", FILE_DROP}, {0}};
    assert_true(same_logits(write_with("qwen35moe", without, "without.gguf"),
                            "../shared/ref/hf/qwen35moe/model.gguf"));
    check_refused(write_with("qwen35moe", neither, "neither.gguf"), TSR_ERR_FORMAT, dense);
}

/* A copy of deepseek4 whose table of experts has the number `expert` for the first token of a test. */
static const char *write_table_with(int32_t expert, char path[DIRECTORY_PATH])
{
    static unsigned char bytes[4 << 20];
    FILE *file = fopen(model_of("deepseek4"), "rb");
    tsr_gguf *gguf;
    assert_non_null(file);
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    runner_ok(tsr_gguf_open(model_of("deepseek4"), NULL, &gguf), "open");
    const tsr_gguf_tensor *table = tsr_gguf_find_tensor(gguf, "blk.0.ffn_gate_tid2eid.weight");
    unsigned char *at = memmem(bytes, n, table->data, table->bytes);
    assert_non_null(at);
    memcpy(at + 3 * table->ne[0] * (int64_t)sizeof expert, &expert, sizeof expert);
    tsr_gguf_close(gguf);
    snprintf(path, DIRECTORY_PATH, "%s%d", directory_file("table.gguf"), (int)expert);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
    return path;
}

static void tables_of_experts_are_checked(void **state)
{
    (void)state;
    if (is_missing("deepseek4"))
        skip();
    char first[DIRECTORY_PATH], last[DIRECTORY_PATH];
    assert_false(same_logits(write_table_with(0, first), write_table_with(5, last)));
    check_refused(write_table_with(6, last), TSR_ERR_FORMAT, "ffn_gate_tid2eid.weight has expert 6 of 6");
    check_refused(write_table_with(-1, last), TSR_ERR_FORMAT, "ffn_gate_tid2eid.weight has expert -1 of 6");
    const file_edit floats[] = {{"blk.0.ffn_gate_tid2eid.weight", FILE_TENSOR, .ne = {2, 320}}, {0}};
    check_refused(write_with("deepseek4", floats, "edited.gguf"), TSR_ERR_UNSUPPORTED, "it must be I32");
    const file_edit all[] = {{"deepseek4.hash_layer_count", FILE_U32, {5}}, {0}};
    check_refused(write_with("deepseek4", all, "edited.gguf"), TSR_ERR_UNSUPPORTED,
                  "hash_layer_count is 5 of 5 layers");
}

/* Whether a model that gets the same split anew, and one that gets another, continue with the same bits. */
static bool same_logits_behind_splits(const char *path)
{
    static const float splits[][2] = {{1, 1}, {2, 1}};
    float *expected = logits_of(path), logits[N_VOCAB];
    runner r;
    runner_open(&r, path, "host:2,threads=1", "1,1", NULL);
    for (int i = 0; i < N_TOKENS; i++) {
        const int32_t token = (i * 29 + 3) % N_VOCAB;
        if (i % 13 == 12)
            runner_ok(tsr_model_resplit(r.model, splits[i / 13 % 2], 2), "resplit");
        runner_decode(&r, &token, 1, 0, false, logits);
    }
    runner_close(&r);
    const bool same = memcmp(logits, expected, sizeof logits) == 0;
    free(expected);
    return same;
}

/* The biases of compressors are matrices in files, so quantizers may give them any type. */
static void compressors_take_biases_of_any_type(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0};
    static const char attention[] = "blk.1.attn_compressor_ape.weight",
                      index[] = "blk.1.indexer_compressor_ape.weight";
    if (is_missing("deepseek4"))
        skip();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const file_edit decoded[] = {{attention, FILE_TENSOR, .ne = {64, 4}, .like = types[i]},
                                     {index, FILE_TENSOR, .ne = {128, 4}, .like = types[i]},
                                     {0}};
        const file_edit typed[] = {{attention, FILE_TENSOR, .ne = {64, 4}, .type = types[i]},
                                   {index, FILE_TENSOR, .ne = {128, 4}, .type = types[i]},
                                   {0}};
        char path[DIRECTORY_PATH];
        snprintf(path, sizeof path, "%s", write_with("deepseek4", decoded, "decoded.gguf"));
        assert_true(same_logits(path, write_with("deepseek4", typed, "typed.gguf")));
        assert_false(same_logits(path, model_of("deepseek4")));
        assert_true(same_logits_behind_splits(directory_file("typed.gguf")));
    }
}

/* Rows of other numbers of positions, which all layers of a kind share; and no limit of the activations. */
static void compressed_rows_have_a_ratio_for_each_kind_of_layer(void **state)
{
    (void)state;
    static const char key[] = "deepseek4.attention.compress_ratios";
    if (is_missing("deepseek4"))
        skip();
    const file_edit others[] = {{key, FILE_U32S, {0, 6, 9, 6, 9}, 5},
                                {"blk.1.attn_compressor_ape.weight", FILE_TENSOR, .ne = {64, 6}},
                                {"blk.1.indexer_compressor_ape.weight", FILE_TENSOR, .ne = {128, 6}},
                                {"blk.2.attn_compressor_ape.weight", FILE_TENSOR, .ne = {32, 9}},
                                {"blk.3.attn_compressor_ape.weight", FILE_TENSOR, .ne = {64, 6}},
                                {"blk.3.indexer_compressor_ape.weight", FILE_TENSOR, .ne = {128, 6}},
                                {"blk.4.attn_compressor_ape.weight", FILE_TENSOR, .ne = {32, 9}},
                                {"deepseek4.swiglu_clamp_exp", FILE_DROP},
                                {0}};
    const char *const edited = write_with("deepseek4", others, "edited.gguf");
    float *at_once = logits_of(edited), *alone = logits_of_split(edited, "host:1,threads=1", NULL, 1),
          *parts = logits_of_split(edited, "host:3,threads=1", "0,3,1", 7);
    assert_memory_equal(alone, at_once, N_VOCAB * sizeof(float));
    assert_memory_equal(parts, at_once, N_VOCAB * sizeof(float));
    free(at_once);
    free(alone);
    free(parts);
    assert_false(same_logits(edited, model_of("deepseek4")));
    const file_edit two[] = {{key, FILE_U32S, {0, 4, 128, 4, 64}, 5}, {0}};
    check_refused(write_with("deepseek4", two, "edited.gguf"), TSR_ERR_UNSUPPORTED,
                  "compress_ratios is 64 for layer 4, and 128 for others of its kind; one number");
    const file_edit one[] = {{key, FILE_U32S, {1, 4, 128, 4, 128}, 5}, {0}};
    check_refused(write_with("deepseek4", one, "edited.gguf"), TSR_ERR_UNSUPPORTED,
                  "compress_ratios is 1 for layer 0; a compressed row must have at least 2 positions");
}

/* The table has one column, as vectors have. */
static void tables_may_have_one_expert_for_each_token(void **state)
{
    (void)state;
    static const char used[] = "deepseek4.expert_used_count", table[] = "blk.0.ffn_gate_tid2eid.weight";
    if (is_missing("deepseek4"))
        skip();
    const file_edit first[] = {{used, FILE_U32, {1}},
                               {table, FILE_TENSOR, {0}, .n = 1, .ne = {1, N_VOCAB}, .type = TSR_TYPE_I32},
                               {0}};
    const file_edit last[] = {{used, FILE_U32, {1}},
                              {table, FILE_TENSOR, {5}, .n = 1, .ne = {1, N_VOCAB}, .type = TSR_TYPE_I32},
                              {0}};
    char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, "%s", write_with("deepseek4", first, "first.gguf"));
    assert_false(same_logits(path, write_with("deepseek4", last, "last.gguf")));
    const file_edit none[] = {{used, FILE_U32, {1}},
                              {table, FILE_TENSOR, {6}, .n = 1, .ne = {1, N_VOCAB}, .type = TSR_TYPE_I32},
                              {0}};
    check_refused(write_with("deepseek4", none, "edited.gguf"), TSR_ERR_FORMAT, "has expert 6 of 6");
}

/* The last layer of the file as prediction layer. */
static void predictions_from_residual_streams_are_refused(void **state)
{
    (void)state;
    if (is_missing("deepseek4"))
        skip();
    const file_edit edits[] = {{"deepseek4.nextn_predict_layers", FILE_U32, {1}},
                               {"deepseek4.attention.compress_ratios", FILE_U32S, {0, 4, 128, 4, 0}, 5},
                               {0}};
    tsr_model_config config = tsr_model_config_default();
    const char *const path = write_with("deepseek4", edits, "edited.gguf");
    free(logits_of(path));
    config.prediction.load = true;
    check_refused_with(path, &config, TSR_ERR_UNSUPPORTED, "a model with residual streams");
}

static void biases_for_images_change_nothing(void **state)
{
    (void)state;
    if (is_missing("deepseek4"))
        skip();
    const file_edit images[] = {{"blk.3.exp_probs_b_vl.bias", FILE_TENSOR, .ne = {6}, .value = 1}, {0}},
                    unknown[] = {{"blk.3.exp_probs_b_vl.weight", FILE_TENSOR, .ne = {6}}, {0}};
    assert_true(same_logits(write_with("deepseek4", images, "edited.gguf"), model_of("deepseek4")));
    check_refused(write_with("deepseek4", unknown, "edited.gguf"), TSR_ERR_UNSUPPORTED, "exp_probs_b_vl");
}

/* A file without a limit of the shared expert has the limit of the others. */
static void shared_experts_have_the_limit_of_the_others(void **state)
{
    (void)state;
    static const char experts[] = "deepseek4.swiglu_clamp_exp", shared[] = "deepseek4.swiglu_clamp_shexp";
    if (is_missing("deepseek4"))
        skip();
    const file_edit both[] = {{experts, FILE_U32, {1}}, {shared, FILE_U32, {1}}, {0}},
                    one[] = {{experts, FILE_U32, {1}}, {shared, FILE_DROP}, {0}},
                    other[] = {{experts, FILE_U32, {1}}, {shared, FILE_U32, {0}}, {0}};
    char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, "%s", write_with("deepseek4", one, "one.gguf"));
    assert_true(same_logits(path, write_with("deepseek4", both, "both.gguf")));
    assert_false(same_logits(path, write_with("deepseek4", other, "other.gguf")));
}

/* Factors that make all angles too small to change anything stand for no rotation. */
static void granite_models_may_have_no_rotation(void **state)
{
    (void)state;
    static const struct synth_arch archs[] = {{"", "granite", 0, {{"logit_scale", 4, true}}},
                                              {"", "granitemoe", SYNTH_EXPERTS, {{"logit_scale", 4, true}}}};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
        char plain[DIRECTORY_PATH], without[DIRECTORY_PATH], still[DIRECTORY_PATH], key[64];
        config.arch = &archs[i];
        config.n_vocab = N_VOCAB;
        snprintf(plain, sizeof plain, "%s", directory_file("plain.gguf"));
        snprintf(without, sizeof without, "%s", directory_file("without.gguf"));
        snprintf(still, sizeof still, "%s", directory_file("still.gguf"));
        snprintf(key, sizeof key, "%s.rope.scaling.finetuned", archs[i].name);
        synth_model_write(&config, plain);
        edited_file_write(plain, (const file_edit[]){{key, FILE_BOOL, {false}}, {0}}, without);
        edited_file_write(
            plain, (const file_edit[]){{"rope_freqs.weight", FILE_TENSOR, .ne = {16}, .value = 1e30f}, {0}},
            still);
        assert_true(same_logits(without, still));
        assert_false(same_logits(without, plain));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_layers_that_read_others_change_nothing),
        cmocka_unit_test(half_a_rotation_takes_half_of_the_factors),
        cmocka_unit_test(files_of_older_converters_are_told_so),
        cmocka_unit_test(layers_beside_short_convolutions_may_have_a_window),
        cmocka_unit_test(layers_without_heads_are_refused),
        cmocka_unit_test(the_key_of_an_index_may_have_no_bias),
        cmocka_unit_test(an_index_has_weights_of_heads_where_it_sums_them),
        cmocka_unit_test(an_index_has_a_head_for_each_kv_head_of_its_layer),
        cmocka_unit_test(sizes_of_an_index_are_checked_when_the_file_is_read),
        cmocka_unit_test(latent_attention_without_a_multiplier_has_the_growth_of_yarn),
        cmocka_unit_test(minimax_models_choose_experts_by_sigmoids),
        cmocka_unit_test(cohere_mixtures_may_have_rms_norms),
        cmocka_unit_test(models_of_experts_need_no_length_of_dense_layers),
        cmocka_unit_test(granite_models_may_have_no_rotation),
        cmocka_unit_test(tables_of_experts_are_checked),
        cmocka_unit_test(compressors_take_biases_of_any_type),
        cmocka_unit_test(compressed_rows_have_a_ratio_for_each_kind_of_layer),
        cmocka_unit_test(tables_may_have_one_expert_for_each_token),
        cmocka_unit_test(predictions_from_residual_streams_are_refused),
        cmocka_unit_test(biases_for_images_change_nothing),
        cmocka_unit_test(shared_experts_have_the_limit_of_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
