/* Opening models that are not what they should be: each fault gives the right status and one line that names
 * the file and the key or tensor, whether the model is planned or opened, and leaves nothing behind. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/device_list.h>
#include <tsr/plan.h>
#include <tsr/runtime.h>

#include "support/directory.h"
#include "support/edited_model.h"
#include "support/failing_alloc.h"
#include "support/runner.h"
#include "support/synth_model.h"

/* -- what is expected -- */

typedef struct fixture {
    char path[DIRECTORY_PATH];
    tsr_runtime *rt;
    tsr_device_list *list;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_topology *topo;
    close(directory_new(f.path));
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    runner_ok(tsr_device_list_create(topo, "host:2,threads=1", NULL, &f.list), "devices");
    config.devices = "host:2,threads=1";
    config.topology = topo;
    runner_ok(tsr_runtime_open(&config, &f.rt), "runtime");
    tsr_topology_destroy(topo);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tsr_runtime_close(f->rt);
    tsr_device_list_destroy(f->list);
    return unlink(f->path);
}

static void assert_message(const char *path, const char *object)
{
    const char *message = tsr_last_error();
    if (!strstr(message, object) || !strstr(message, path) || strchr(message, '\n'))
        fail_msg("this should name %s and be one line: %s", object, message);
}

static tsr_status plan_it(const fixture *f, bool *runnable_out)
{
    tsr_gguf *gguf = NULL;
    tsr_plan *plan = NULL;
    tsr_status status = tsr_gguf_open(f->path, NULL, &gguf);
    if (status == TSR_OK)
        status = tsr_plan_create(gguf, f->list, NULL, &plan);
    if (status == TSR_OK) {
        tsr_plan_info info;
        tsr_plan_get_info(plan, &info);
        *runnable_out = info.runnable;
    }
    tsr_plan_destroy(plan);
    tsr_gguf_close(gguf);
    return status;
}

/* A plan refuses what opening refuses; only what the library does not have is planned where it can be, and
 * called what it is. */
static void check_plan(const fixture *f, tsr_status expected, const char *object)
{
    bool runnable = true;
    tsr_status status = plan_it(f, &runnable);
    if (expected == TSR_ERR_UNSUPPORTED && status == TSR_OK) {
        assert_false(runnable);
        return;
    }
    if (expected == TSR_ERR_UNSUPPORTED && status == TSR_ERR_FORMAT) {
        assert_message(f->path, ""); /* the tensors are not those of the keys */
        return;
    }
    assert_int_equal(status, expected);
    assert_message(f->path, object);
}

static void refuse(const fixture *f, const edit *edits, tsr_status expected, const char *object)
{
    int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
    tsr_model *model = NULL;
    edited_model_write(f->path, edits);
    tsr_status status = tsr_model_open(f->rt, f->path, NULL, &model);
    if (status != expected || model)
        fail_msg("%s: %s instead of %s: %s", object, tsr_status_name(status), tsr_status_name(expected),
                 tsr_last_error());
    assert_message(f->path, object);
    bool by_data = edits[0].how == FACTORS; /* a plan reads no tensor */
    if (!by_data)
        check_plan(f, expected, object);
    assert_int_equal(failing_alloc_live(), blocks);
    assert_int_equal(failing_alloc_live_maps(), maps);
}

#define REFUSED(status, object, ...)                 \
    do {                                             \
        const edit edits[MAX_EDITS] = {__VA_ARGS__}; \
        refuse(*state, edits, status, object);       \
    } while (0)

/* Opens, and has the same bits on one device and on two. */
static void accept(const fixture *f, const edit *edits)
{
    int32_t tokens[5] = {3, 90, 41, 0, 95};
    float logits[3][N_VOCAB];
    static const char *const devices[] = {"host:1,threads=1", "host:2,threads=1", "host:3,threads=1"};
    edited_model_write(f->path, edits);
    for (int i = 0; i < 3; i++) {
        runner r;
        runner_open(&r, f->path, devices[i], NULL, NULL);
        runner_decode(&r, tokens, 5, 0, false, logits[i]);
        runner_close(&r);
        assert_memory_equal(logits[i], logits[0], sizeof logits[0]);
        for (int j = 0; j < N_VOCAB; j++)
            assert_true(isfinite(logits[i][j]));
    }
}

#define ACCEPTED(...)                                \
    do {                                             \
        const edit edits[MAX_EDITS] = {__VA_ARGS__}; \
        accept(*state, edits);                       \
    } while (0)

/* -- the faults -- */

static void missing_keys_are_refused(void **state)
{
    static const char *const keys[] = {"general.architecture",
                                       "llama.block_count",
                                       "llama.embedding_length",
                                       "llama.feed_forward_length",
                                       "llama.context_length",
                                       "llama.attention.head_count",
                                       "llama.attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        REFUSED(TSR_ERR_FORMAT, keys[i], {keys[i], DROP});
}

static void missing_tensors_are_refused(void **state)
{
    static const char *const tensors[] = {
        "token_embd.weight",   "blk.0.attn_norm.weight",   "blk.1.attn_q.weight",   "blk.0.attn_k.weight",
        "blk.0.attn_v.weight", "blk.1.attn_output.weight", "blk.1.ffn_norm.weight", "blk.0.ffn_gate.weight",
        "blk.1.ffn_up.weight", "blk.1.ffn_down.weight",    "output_norm.weight"};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        REFUSED(TSR_ERR_FORMAT, tensors[i], {tensors[i], DROP});
    REFUSED(TSR_ERR_FORMAT, "blk.2.attn_norm.weight", {"llama.block_count", U32, .number = 3});
}

static void wrong_shapes_are_refused(void **state)
{
    static const struct {
        const char *name;
        int64_t ne[3];
        int n_dims;
    } shapes[] = {{"token_embd.weight", {32, N_VOCAB}, 2},
                  {"output.weight", {N_EMBD, N_VOCAB + 1}, 2}, /* another vocabulary than the embedding's */
                  {"output.weight", {N_EMBD, N_VOCAB - 1}, 2},
                  {"blk.0.attn_q.weight", {N_EMBD, 65}, 2},
                  {"blk.1.attn_q.weight", {N_EMBD, 32}, 2},
                  {"blk.0.attn_k.weight", {N_EMBD, 64}, 2},
                  {"blk.0.attn_v.weight", {32, N_EMBD}, 2}, /* transposed */
                  {"blk.1.attn_output.weight", {N_EMBD, 1}, 2},
                  {"blk.0.ffn_gate.weight", {N_EMBD, N_FF, 2}, 3},
                  {"blk.0.ffn_up.weight", {N_EMBD, N_FF + 128}, 2},
                  {"blk.1.ffn_down.weight", {N_EMBD, N_FF}, 2},
                  {"blk.1.ffn_norm.weight", {N_EMBD - 1}, 1},
                  {"output_norm.weight", {1}, 1},
                  {"blk.0.attn_q.bias", {N_EMBD - 1}, 1},
                  {"blk.1.attn_k.bias", {N_EMBD}, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        REFUSED(TSR_ERR_FORMAT, shapes[i].name,
                {shapes[i].name, strstr(shapes[i].name, ".bias") ? ADD : SHAPE, .n_dims = shapes[i].n_dims,
                 .ne = {shapes[i].ne[0], shapes[i].ne[1], shapes[i].ne[2]}});
}

static void wrong_types_are_refused(void **state)
{
    REFUSED(TSR_ERR_UNSUPPORTED, "blk.0.attn_norm.weight",
            {"blk.0.attn_norm.weight", TYPE, .type = TSR_TYPE_F16});
    REFUSED(TSR_ERR_UNSUPPORTED, "output_norm.weight", {"output_norm.weight", TYPE, .type = TSR_TYPE_BF16});
    REFUSED(TSR_ERR_FORMAT, "llama.block_count", {"llama.block_count", STRING, .text = "2"});
    REFUSED(TSR_ERR_FORMAT, "llama.block_count", {"llama.block_count", F32, .number = 2});
    REFUSED(TSR_ERR_FORMAT, "llama.block_count", {"llama.block_count", I32, .number = -2});
    REFUSED(TSR_ERR_FORMAT, "general.architecture", {"general.architecture", U32, .number = 1});
    REFUSED(TSR_ERR_FORMAT, "llama.attention.head_count", {"llama.attention.head_count", STRINGS, .n = 2});
    REFUSED(TSR_ERR_FORMAT, "llama.rope.freq_base", {"llama.rope.freq_base", STRING, .text = "10000"});
}

static void what_this_library_does_not_have(void **state)
{
    REFUSED(TSR_ERR_UNSUPPORTED, "mamba", {"general.architecture", STRING, .text = "mamba"});
    REFUSED(TSR_ERR_UNSUPPORTED, "\"\"", {"general.architecture", STRING, .text = ""});
    REFUSED(TSR_ERR_UNSUPPORTED, "8 experts are not a tensor each", {"llama.expert_count", U32, .number = 8},
            {"llama.expert_used_count", U32, .number = 2});
    REFUSED(TSR_ERR_UNSUPPORTED, "longrope", {"llama.rope.scaling.type", STRING, .text = "longrope"});
    REFUSED(TSR_ERR_FORMAT, "blk.1.attn_q.weight",
            {"llama.attention.head_count", U32S, .list = {4, 2}, .n = 2});
    REFUSED(TSR_ERR_UNSUPPORTED, "layer 1 has 4 heads and 0 KV heads",
            {"llama.attention.head_count_kv", U32S, .list = {2, 0}, .n = 2});
    REFUSED(TSR_ERR_UNSUPPORTED, "heads of 1040", {"llama.attention.key_length", U32, .number = 1040},
            {"llama.attention.value_length", U32, .number = 1040});
    REFUSED(TSR_ERR_UNSUPPORTED, "(values)", {"llama.attention.key_length", U32, .number = 16},
            {"llama.attention.value_length", U32, .number = 8});
}

static void refuse_arch(const fixture *f, const struct synth_arch *arch, tsr_status expected,
                        const char *object)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    tsr_model *model = NULL;
    config.arch = arch;
    synth_model_write(&config, f->path);
    assert_int_equal(tsr_model_open(f->rt, f->path, NULL, &model), expected);
    assert_message(f->path, object);
    assert_null(model);
}

/* The activation of gpt-oss is one of experts. */
static void dense_ffns_of_gpt_oss(void **state)
{
    struct synth_arch arch = {"gpt-oss", "gpt-oss", SYNTH_OTHER_FFN_NORM | SYNTH_SINKS, {{NULL}}};
    refuse_arch(*state, &arch, TSR_ERR_UNSUPPORTED, "dense FFN");
    arch.parts |= SYNTH_EXPERTS | SYNTH_DENSE_FIRST;
    refuse_arch(*state, &arch, TSR_ERR_UNSUPPORTED, "dense FFN");
}

/* Keys that only some architectures need. */
static void missing_keys_of_architectures_are_refused(void **state)
{
    static const struct synth_arch archs[] = {
        {"", "cohere2", SYNTH_LAYER_NORM | SYNTH_NO_FFN_NORM, {{"attention.sliding_window", 5}}},
        {"", "granite", 0, {{"embedding_scale", 3, true}}},
        {"", "granitemoe", SYNTH_EXPERTS, {{NULL}}},
        {"", "starcoder2", SYNTH_NO_GATE, {{NULL}}}, /* has the epsilon of RMS norms */
        {"", "qwen2", SYNTH_LAYER_NORM, {{NULL}}}};  /* the other way round */
    static const char *const keys[] = {"cohere2.logit_scale", "granite.logit_scale", "granitemoe.logit_scale",
                                       "starcoder2.attention.layer_norm_epsilon",
                                       "qwen2.attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        refuse_arch(*state, &archs[i], TSR_ERR_FORMAT, keys[i]);
}

static void absurd_numbers_are_refused(void **state)
{
    static const struct {
        const char *key;
        how how;
        double number;
    } cases[] = {{"llama.block_count", U32, 0},
                 {"llama.block_count", U32, 4294967295.0},
                 {"llama.block_count", U64, 1.8e19},
                 {"llama.embedding_length", U32, 0},
                 {"llama.embedding_length", U32, 1 << 30},
                 {"llama.feed_forward_length", U32, 0},
                 {"llama.feed_forward_length", U64, 1e18},
                 {"llama.context_length", U32, 0},
                 {"llama.context_length", U64, 1e15},
                 {"llama.attention.head_count", U32, 0},
                 {"llama.attention.head_count", U32, 1 << 20},
                 {"llama.attention.head_count_kv", U32, 0},
                 {"llama.attention.key_length", U32, 0},
                 {"llama.attention.key_length", U32, 1 << 20},
                 {"llama.rope.dimension_count", U32, 0},
                 {"llama.rope.dimension_count", U32, HEAD_DIM + 2},
                 {"llama.attention.layer_norm_rms_epsilon", F32, NAN},
                 {"llama.attention.layer_norm_rms_epsilon", F32, INFINITY},
                 {"llama.attention.layer_norm_rms_epsilon", F32, -1e-5},
                 {"llama.attention.layer_norm_rms_epsilon", F32, 2},
                 {"llama.rope.freq_base", F32, NAN},
                 {"llama.rope.freq_base", F32, 0},
                 {"llama.rope.freq_base", F32, -10000},
                 {"llama.rope.freq_base", F32, INFINITY},
                 {"llama.rope.scaling.factor", F32, NAN},
                 {"llama.rope.scaling.factor", F32, -4},
                 {"llama.rope.scaling.factor", F32, 1e-30},
                 {"llama.rope.scaling.factor", F32, INFINITY},
                 {"llama.rope.scaling.original_context_length", U32, 0},
                 {"llama.rope.scaling.attn_factor", F32, NAN},
                 {"llama.rope.scaling.yarn_beta_fast", F32, -1},
                 {"llama.rope.scaling.yarn_beta_slow", F32, NAN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSED(TSR_ERR_FORMAT, cases[i].key, {cases[i].key, cases[i].how, .number = cases[i].number});
    REFUSED(TSR_ERR_FORMAT, "no multiple of 3 KV heads", {"llama.attention.head_count_kv", U32, .number = 3});
    REFUSED(TSR_ERR_FORMAT, "no multiple of 8 KV heads", {"llama.attention.head_count_kv", U32, .number = 8});
    REFUSED(TSR_ERR_FORMAT, "is odd", {"llama.rope.dimension_count", U32, .number = 15});
    REFUSED(TSR_ERR_FORMAT, "blk.0.attn_q.weight", {"llama.attention.head_count", U32, .number = 6});
    REFUSED(TSR_ERR_FORMAT, "empty array", {"llama.feed_forward_length", U32S, .n = 0});
}

static void rope_factors_are_checked(void **state)
{
    static const char *const name = "rope_freqs.weight";
    ACCEPTED({name, FACTORS, .number = 2, .n = HEAD_DIM / 2, .type = TSR_TYPE_F32});
    REFUSED(TSR_ERR_FORMAT, name, {name, FACTORS, .number = 2, .n = HEAD_DIM, .type = TSR_TYPE_F32});
    REFUSED(TSR_ERR_FORMAT, name, {name, FACTORS, .number = 2, .n = 1, .type = TSR_TYPE_F32});
    REFUSED(TSR_ERR_FORMAT, name, {name, FACTORS, .number = 2, .n = HEAD_DIM / 2, .type = TSR_TYPE_F16});
    static const double bad[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        REFUSED(TSR_ERR_FORMAT, name,
                {name, FACTORS, .number = bad[i], .n = HEAD_DIM / 2, .type = TSR_TYPE_F32});
}

/* -- what may change the result, and is not known -- */

static void unknown_tensors_are_refused(void **state)
{
    static const struct {
        const char *name;
        int64_t ne[3];
        int n_dims;
    } tensors[] = {{"blk.0.attn_q_norm.weight", {HEAD_DIM}, 1}, /* of other architectures */
                   {"blk.1.post_attention_norm.weight", {N_EMBD}, 1},
                   {"blk.0.attn_norm.bias", {N_EMBD}, 1},
                   {"output_norm.bias", {N_EMBD}, 1},
                   {"rope_factors_short.weight", {HEAD_DIM / 2}, 1},
                   {"blk.0.attn_q.scale", {1}, 1},
                   {"blk.2.attn_norm.weight", {N_EMBD}, 1}, /* of a layer too many */
                   {"blk.1.nextn.eh_proj.weight", {2 * N_EMBD, N_EMBD}, 2},
                   {"foo.weight", {3}, 1}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        REFUSED(
            TSR_ERR_UNSUPPORTED, tensors[i].name,
            {tensors[i].name, ADD, .n_dims = tensors[i].n_dims, .ne = {tensors[i].ne[0], tensors[i].ne[1]}});
    REFUSED(TSR_ERR_UNSUPPORTED, "blk.1.", {"llama.block_count", U32, .number = 1});
}

static void unknown_keys_are_refused(void **state)
{
    static const edit keys[] = {{"llama.rope.dimension_sections", U32S, .list = {2, 3, 3}, .n = 4},
                                {"llama.rope.scaling.alpha", F32, .number = 1000},
                                {"llama.rope.scaling.yarn_ext_factor", F32, .number = 0.5},
                                {"llama.rope.freq_base_swa", F32, .number = 500},
                                {"llama.attention.sliding_window", U32, .number = 4096},
                                {"llama.attention.clamp_kqv", F32, .number = 8},
                                {"llama.attention.max_alibi_bias", F32, .number = 8},
                                {"llama.attention.causal", BOOL, .number = 0},
                                {"llama.attention.scale", F32, .number = 0.25},
                                {"llama.final_logit_softcapping", F32, .number = 30},
                                {"llama.logit_scale", F32, .number = 0.5},
                                {"llama.use_parallel_residual", BOOL, .number = 1},
                                {"llama.hidden_activation", STRING, .text = "relu"},
                                {"llama.foo", U32, .number = 0}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        REFUSED(TSR_ERR_UNSUPPORTED, keys[i].name, keys[i]);
    REFUSED(TSR_ERR_UNSUPPORTED, "llama.rope.scaling.alpha = 1000", keys[1]);
    REFUSED(TSR_ERR_UNSUPPORTED, "llama.attention.causal = 0", keys[7]);
}

/* -- unusual, but right -- */

static void keys_that_change_nothing_are_accepted(void **state)
{
    static const edit keys[] = {{"llama.vocab_size", U32, .number = N_VOCAB},
                                {"llama.tensor_data_layout", STRING, .text = "Meta AI original pth"},
                                {"llama.pooling_type", U32, .number = 3},
                                {"llama.rope.scaling.finetuned", BOOL, .number = 1},
                                {"llama.attention.layer_norm_epsilon", F32, .number = 0.1},
                                {"llama.attention.causal", BOOL, .number = 1},
                                {"llama.attention.sliding_window", U32, .number = 0},
                                {"llama.logit_scale", F32, .number = 1},
                                {"llama.rope.scaling.yarn_ext_factor", F32, .number = 1},
                                {"llama.expert_used_count", U32, .number = 0}, /* of no experts */
                                {"llama.expert_group_used_count", U32, .number = 1},
                                {"other.attention.causal", BOOL, .number = 0}}; /* of no architecture */
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ACCEPTED(keys[i]);
}

static void unusual_models_open(void **state)
{
    ACCEPTED({0});
    ACCEPTED({"output.weight", DROP});
    ACCEPTED({"llama.nextn_predict_layers", U32, .number = 1}); /* the second layer is one */
    ACCEPTED({"llama.nextn_predict_layers", U32, .number = 1},
             {"blk.1.nextn.eh_proj.weight", ADD, .ne = {2 * N_EMBD, N_EMBD}, .n_dims = 2});
    ACCEPTED({"llama.expert_count", U32, .number = 0});
    ACCEPTED({"llama.attention.head_count", U32S, .list = {4, 4}, .n = 2},
             {"llama.attention.head_count_kv", U32S, .list = {2, 2}, .n = 2},
             {"llama.feed_forward_length", U32S, .list = {N_FF, N_FF}, .n = 2});
    ACCEPTED({"llama.rope.dimension_count", U32, .number = 8});
    ACCEPTED({"llama.rope.scaling.type", STRING, .text = "yarn"},
             {"llama.rope.scaling.factor", F32, .number = 4},
             {"llama.rope.scaling.original_context_length", U32, .number = 32});
    ACCEPTED({"llama.attention.layer_norm_rms_epsilon", F32, .number = 0});
    ACCEPTED({"blk.0.attn_q.bias", ADD, .ne = {N_HEAD * HEAD_DIM}, .n_dims = 1},
             {"blk.0.attn_k.bias", ADD, .ne = {N_HEAD_KV * HEAD_DIM}, .n_dims = 1},
             {"blk.1.attn_v.bias", ADD, .ne = {N_HEAD_KV * HEAD_DIM}, .n_dims = 1});
}

/* Granules suit the coarsest type of any layer. */
static void layers_may_differ_in_type(void **state)
{
    ACCEPTED({"blk.0.ffn_down.weight", TYPE, .type = TSR_TYPE_Q4_K},
             {"blk.1.ffn_down.weight", TYPE, .type = TSR_TYPE_Q8_0},
             {"blk.1.attn_output.weight", TYPE, .type = TSR_TYPE_Q8_0});
    ACCEPTED({"blk.1.attn_q.weight", TYPE, .type = TSR_TYPE_F32},
             {"blk.0.attn_v.weight", TYPE, .type = TSR_TYPE_Q4_0},
             {"blk.0.ffn_gate.weight", TYPE, .type = TSR_TYPE_BF16});
    ACCEPTED({"token_embd.weight", TYPE, .type = TSR_TYPE_Q4_0},
             {"output.weight", TYPE, .type = TSR_TYPE_Q8_0},
             {"blk.0.ffn_up.weight", TYPE, .type = TSR_TYPE_Q8_0});
}

/* Finite in F32, and not in F16: the message says what to change, and the change helps. */
static void values_beyond_f16_fail_with_a_remedy(void **state)
{
    fixture *f = *state;
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_F32};
    const edit edits[MAX_EDITS] = {
        {"blk.0.attn_v.bias", FACTORS, .number = 1e5, .n = N_HEAD_KV * HEAD_DIM, .type = TSR_TYPE_F32}};
    edited_model_write(f->path, edits);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        tsr_model_config config = tsr_model_config_default();
        int32_t tokens[5] = {3, 90, 41, 0, 95};
        float logits[N_VOCAB];
        const tsr_batch batch = {.n_tokens = 5, .tokens = tokens};
        bool fits = types[i] != TSR_TYPE_F16;
        runner r;
        config.session.type_v = types[i];
        runner_open(&r, f->path, "host:2,threads=1", NULL, &config);
        assert_int_equal(tsr_session_decode(r.session, &batch, logits), fits ? TSR_OK : TSR_ERR_RANGE);
        if (!fits) {
            assert_non_null(strstr(tsr_last_error(), "-ctv"));
            assert_null(strstr(tsr_last_error(), "reduction"));
        }
        runner_close(&r);
    }
}

static void wrong_arguments_and_paths_are_refused(void **state)
{
    fixture *f = *state;
    tsr_model *model = NULL;
    assert_int_equal(tsr_model_open(NULL, f->path, NULL, &model), TSR_ERR_INVALID);
    assert_int_equal(tsr_model_open(f->rt, NULL, NULL, &model), TSR_ERR_INVALID);
    assert_int_equal(tsr_model_open(f->rt, f->path, NULL, NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_model_open(f->rt, "/nonexistent/model.gguf", NULL, &model), TSR_ERR_IO);
    assert_message("/nonexistent/model.gguf", "No such file");
    assert_int_equal(tsr_model_open(f->rt, "/tmp", NULL, &model), TSR_ERR_IO);
    assert_null(model);
    tsr_model_close(NULL);
    tsr_model_info info;
    edited_model_write(f->path, NULL);
    runner_ok(tsr_model_open(f->rt, f->path, NULL, &model), f->path);
    tsr_model_get_info(model, &info);
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.name, "");
    assert_int_equal(info.n_layers, N_LAYERS);
    assert_int_equal(info.n_embd, N_EMBD);
    assert_int_equal(info.n_head, N_HEAD);
    assert_int_equal(info.n_head_kv, N_HEAD_KV);
    assert_int_equal(info.head_dim, HEAD_DIM);
    assert_int_equal(info.n_ff, N_FF);
    assert_int_equal(info.n_vocab, N_VOCAB);
    assert_int_equal(info.n_ctx_train, 64);
    int64_t layer = 2 * N_EMBD + 2 * N_EMBD * HEAD_DIM * (N_HEAD + N_HEAD_KV) + 3 * N_EMBD * N_FF;
    assert_int_equal(info.n_params, 2 * N_EMBD * N_VOCAB + N_LAYERS * layer + N_EMBD);
    size_t norms = (2 * N_LAYERS + 1) * N_EMBD;
    assert_int_equal(info.weight_bytes, 4 * norms + 2 * ((size_t)info.n_params - norms));
    assert_string_equal(tsr_gguf_path(tsr_model_gguf(model)), f->path);
    tsr_model_close(model);
}

static void note_progress(double fraction, void *user)
{
    double *last = user;
    assert_true(fraction >= *last && fraction <= 1);
    *last = fraction;
}

static void progress_ends_at_one(void **state)
{
    fixture *f = *state;
    edited_model_write(f->path, NULL);
    for (int copy = 0; copy < 2; copy++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_model *model;
        double last = 0;
        config.load.copy_weights = copy;
        config.load.progress = note_progress;
        config.load.progress_user = &last;
        runner_ok(tsr_model_open(f->rt, f->path, &config, &model), f->path);
        assert_true(last == 1);
        tsr_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_keys_are_refused),
        cmocka_unit_test(missing_keys_of_architectures_are_refused),
        cmocka_unit_test(missing_tensors_are_refused),
        cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(wrong_types_are_refused),
        cmocka_unit_test(what_this_library_does_not_have),
        cmocka_unit_test(dense_ffns_of_gpt_oss),
        cmocka_unit_test(absurd_numbers_are_refused),
        cmocka_unit_test(rope_factors_are_checked),
        cmocka_unit_test(unknown_tensors_are_refused),
        cmocka_unit_test(unknown_keys_are_refused),
        cmocka_unit_test(keys_that_change_nothing_are_accepted),
        cmocka_unit_test(unusual_models_open),
        cmocka_unit_test(layers_may_differ_in_type),
        cmocka_unit_test(values_beyond_f16_fail_with_a_remedy),
        cmocka_unit_test(progress_ends_at_one),
        cmocka_unit_test(wrong_arguments_and_paths_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
