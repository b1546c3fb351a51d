/* See ways.h. */
#include "support/ways.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/sanitized.h"
#include "support/synth_model.h"
#include "support/weight_types.h"

enum { N_TOKENS = 21, N_KV_TYPES = 4 };

static const tsr_type kv_types[N_KV_TYPES] = {TSR_TYPE_F16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_F32};

int64_t ways_rounds(void)
{
    const char *text = getenv("TSR_TEST_ROUNDS");
    return text && atol(text) > 0 ? atol(text) : 300;
}

/* Proportions with zeros and lopsided values; at least one is positive. */
static void random_split(uint64_t *seed, int n, char *text, size_t capacity)
{
    static const char *const choices[] = {"0", "1", "1", "2", "3", "0.1", "17", "1000"};
    int sure = (int)random_below(seed, (uint64_t)n);
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        const char *choice = i == sure ? "1" : choices[random_below(seed, sizeof choices / sizeof *choices)];
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", i ? "," : "", choice);
    }
}

/* One way in four leaves blocks to one of the devices alone. */
static void random_offload(uint64_t *seed, int n_devices, tsr_model_config *config)
{
    static const char *const devices[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    static const tsr_offload_rule offload_rules[] = {
        {"(ffn|inp)_(gate|up|down)|[0-9]\\.proj\\.", "CPU"},
        {"blk\\.[01]\\.(attn|hc_attn|ssm|shortconv|indexer)", "CPU"},
        {"blk\\.0\\.", "0"},
        {"token_embd|per_layer_", "CPU"},
        {"^(output|token_embd|per_layer_)", "0"}};
    if (n_devices < 2 || n_devices > 8 || random_below(seed, 4) != 0)
        return;
    config->offload.device = devices[random_below(seed, (uint64_t)n_devices)];
    config->offload.n_gpu_layers = (int)random_below(seed, 5) - 1;
    if (random_below(seed, 2)) {
        config->offload.rules =
            &offload_rules[random_below(seed, sizeof offload_rules / sizeof *offload_rules)];
        config->offload.n_rules = 1;
    }
}

/* One way in three has other proportions in steps of some tokens and more. */
static void random_prompt_split(uint64_t *seed, int n_devices, way *w)
{
    static const float shares[][16] = {
        {1},          {0, 1},           {1, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 1, 0, 5},
        {0, 0, 2, 1}, {0.1f, 17, 1, 3}, {1, 0, 0, 0, 0, 0, 0, 1}};
    const size_t which = (size_t)random_below(seed, 3 * sizeof shares / sizeof *shares);
    const int most = w->config.session.n_batch;
    double sum = 0;
    if (w->config.split.mode != TSR_SPLIT_MODE_TENSOR || w->config.offload.n_rules > 0 ||
        w->config.offload.n_gpu_layers >= 0 || most < 2 || which >= sizeof shares / sizeof *shares)
        return;
    w->config.prompt.tensor_split = shares[which];
    w->config.prompt.n_tensor_split = n_devices < 16 ? n_devices : 16;
    w->config.prompt.n_tokens = 2 + (int)random_below(seed, (uint64_t)most - 1);
    for (int d = 0; d < w->config.prompt.n_tensor_split; d++)
        sum += (double)shares[which][d];
    const size_t used = strlen(w->about);
    snprintf(w->about + used, sizeof w->about - used, ", prompt split %d of %d tokens%s", (int)which,
             w->config.prompt.n_tokens, sum > 0 ? "" : " (none)");
}

way ways_draw(const way_family *family, uint64_t *seed)
{
    way w = {.config = tsr_model_config_default()};
    int n_devices = family->prepare(seed, &w);
    uint64_t mode = random_below(seed, 10);
    random_split(seed, n_devices, w.split, sizeof w.split);
    w.config.split.mode = mode == 0   ? TSR_SPLIT_MODE_NONE
                          : mode <= 2 ? TSR_SPLIT_MODE_LAYER
                                      : TSR_SPLIT_MODE_TENSOR;
    w.config.split.main_device = (int)random_below(seed, (uint64_t)n_devices);
    w.config.load.copy_weights = random_below(seed, 4) == 0;
    w.config.session.n_ctx = 64;
    w.config.session.n_batch = 1 + (int)random_below(seed, N_TOKENS);
    w.config.session.n_outputs_max = 1 + (int)random_below(seed, N_TOKENS);
    w.chunk = 1 + (int64_t)random_below(seed, N_TOKENS);
    random_offload(seed, n_devices, &w.config);
    random_prompt_split(seed, n_devices, &w);
    return w;
}

static void run_way(const char *path, const way *w, const int32_t *tokens, float *logits)
{
    runner r;
    runner_open_on(&r, w->machine, path, w->devices, w->collectives, w->split, &w->config);
    runner_decode(&r, tokens, N_TOKENS, w->chunk, true, logits);
    runner_close(&r);
}

void ways_fail(const char *title, const way *w)
{
    fail_msg("%s: %s, split %s, mode %s, chunks of %lld, batch %d, KV %s, activations of %d bits, copy %d, "
             "keeping %d layers from %s, override %s, experts by %s%s: other bits",
             title, w->devices, w->split, tsr_split_mode_name(w->config.split.mode), (long long)w->chunk,
             w->config.session.n_batch, tsr_type_name(w->config.session.type_k),
             w->config.compute.activation_bits, w->config.load.copy_weights, w->config.offload.n_gpu_layers,
             w->config.offload.device ? w->config.offload.device : "-",
             w->config.offload.n_rules ? w->config.offload.rules->pattern : "-",
             tsr_expert_split_name(w->config.split.experts), w->about);
}

/* The logits on one plain device. */
static float *make_reference(const way_family *family, const tsr_topology *machine, const char *path,
                             const int32_t *tokens, size_t bytes, tsr_type kv_type, int activation_bits)
{
    way plain = {.split = "1", .config = tsr_model_config_default()};
    snprintf(plain.devices, sizeof plain.devices, "%s", family->plain);
    plain.config.session.type_k = plain.config.session.type_v = kv_type;
    plain.config.compute.activation_bits = activation_bits;
    const int64_t singles = family->singles ? family->singles : N_TOKENS;
    float *logits = malloc(bytes);
    runner r;
    assert_non_null(logits);
    runner_open_on(&r, machine, path, plain.devices, NULL, plain.split, &plain.config);
    runner_decode(&r, tokens, singles, 1, true, logits);
    if (singles < N_TOKENS)
        runner_decode(&r, tokens + singles, N_TOKENS - singles, 0, true, logits + singles * r.n_vocab);
    runner_close(&r);
    return logits;
}

/* Compare `rounds` random ways to run the model at `path`. */
static void check_file(const way_family *family, const char *path, const char *title, int64_t n_vocab,
                       int n_kv_types, int64_t rounds, uint64_t seed)
{
    int32_t tokens[N_TOKENS];
    float *references[2][N_KV_TYPES] = {{NULL}}, *logits; /* made when a way first needs it */
    tsr_topology *machine = NULL;
    size_t bytes = (size_t)N_TOKENS * (size_t)n_vocab * sizeof(float);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)random_below(&seed, (uint64_t)n_vocab);
    logits = malloc(bytes);
    assert_non_null(logits);
    if (family->on_this_machine)
        runner_ok(tsr_topology_discover(NULL, &machine), "this machine");
    for (int64_t i = 0; i < rounds; i++) {
        const int k = (int)random_below(&seed, (uint64_t)n_kv_types), few_bits = random_below(&seed, 4) == 0;
        float **reference = &references[few_bits][k];
        if (!*reference)
            *reference = make_reference(family, machine, path, tokens, bytes, kv_types[k], few_bits ? 8 : 16);
        way w = ways_draw(family, &seed);
        w.machine = machine;
        w.config.split.experts = i % 2 ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS; /* half each */
        w.config.session.type_k = w.config.session.type_v = kv_types[k];
        w.config.compute.activation_bits = few_bits ? 8 : 16;
        memset(logits, 0xff, bytes);
        run_way(path, &w, tokens, logits);
        if (memcmp(logits, *reference, bytes) != 0)
            ways_fail(title, &w);
        if (family->done)
            family->done(&w);
    }
    for (int k = 0; k < n_kv_types; k++) {
        free(references[0][k]);
        free(references[1][k]);
    }
    tsr_topology_destroy(machine);
    free(logits);
}

/* The same for a model of this shape. */
static void check_model(const way_family *family, const struct synth_model_config *config, int n_kv_types,
                        int64_t rounds, uint64_t seed)
{
    char path[DIRECTORY_PATH], title[96];
    close(directory_new(path));
    synth_model_write(config, path);
    snprintf(title, sizeof title, "%s in %s", config->arch ? config->arch->title : "llama",
             tsr_type_name(config->weight_type));
    check_file(family, path, title, config->n_vocab, n_kv_types, rounds, seed);
    unlink(path);
}

void ways_check_file(const way_family *family, const char *path, int64_t n_vocab, int64_t rounds)
{
    check_file(family, path, path, n_vocab, N_KV_TYPES, rounds, 7);
}

void ways_check_arch(const way_family *family, const struct synth_arch *arch, tsr_type type, int64_t rounds)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.arch = arch;
    config.weight_type = type;
    config.head_dim = 64;
    config.n_kv_heads = 4;
    config.n_layers = 4; /* so that layers differ where they may */
    config.n_ff = 768;
    config.n_vocab = 384;
    config.tied_output = type % 2;
    check_model(family, &config, N_KV_TYPES, rounds, (uint64_t)type + (uint64_t)(arch - synth_archs) * 100);
}

void ways_check_type(const way_family *family, tsr_type type, int64_t rounds)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.weight_type = type;
    config.head_dim = 64; /* so that a K-quant's blocks of 256 columns leave more than one granule */
    config.n_ff = 768;
    config.n_vocab = 384;
    config.tied_output = type % 2;
    check_model(family, &config, N_KV_TYPES, rounds, (uint64_t)type);
}

/* The step through models of one kind, each of which costs a reference: where one way is asked for, as on
 * simulated GPUs, every third model is run under a sanitizer. */
static size_t model_step(int64_t rounds)
{
    return rounds == 1 ? TSR_TEST_EVERY(3) : 1;
}

static size_t first_model(int64_t rounds)
{
    return rounds == 1 ? TSR_TEST_FIRST(3) : 0;
}

void ways_check_rare_types(const way_family *family, int64_t rounds)
{
    static const tsr_type types[] = {RARE_TYPES, TWO_CODE_TYPES};
    for (size_t i = first_model(rounds); i < sizeof types / sizeof *types; i += model_step(rounds))
        ways_check_type(family, types[i], (rounds + 7) / 8);
}

/* Extents that are multiples of nothing: short last granules, row tails, one KV head, more heads than
 * columns. */
void ways_check_odd_shapes(const way_family *family, int64_t rounds)
{
    static const struct {
        int n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    } shapes[] = {{72, 5, 5, 18, 200, 301},
                  {40, 7, 1, 6, 129, 270},
                  {100, 6, 2, 50, 1000, 333},
                  {264, 9, 3, 40, 127, 261}};
    for (size_t i = first_model(rounds); i < sizeof shapes / sizeof *shapes; i += model_step(rounds)) {
        struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
        config.weight_type = i % 2 ? TSR_TYPE_BF16 : TSR_TYPE_F16;
        config.n_embd = shapes[i].n_embd;
        config.n_heads = shapes[i].n_heads;
        config.n_kv_heads = shapes[i].n_kv_heads;
        config.head_dim = shapes[i].head_dim;
        config.n_ff = shapes[i].n_ff;
        config.n_vocab = shapes[i].n_vocab;
        config.rope_factors = i == 2;
        check_model(family, &config, 1, (rounds + 3) / 4, i); /* F16 only: heads are no whole blocks */
    }
}

/* From one granule per expert to several, the last one short;
 * as many experts as a token uses, or many more. */
void ways_check_experts(const way_family *family, int64_t rounds)
{
    static const struct {
        tsr_type type;
        int n_embd, n_ff, n_experts, n_used;
    } shapes[] = {{TSR_TYPE_F16, 72, 300, 3, 1},   {TSR_TYPE_Q8_0, 96, 416, 5, 2},
                  {TSR_TYPE_Q4_K, 256, 512, 8, 3}, {TSR_TYPE_F32, 40, 129, 16, 4},
                  {TSR_TYPE_BF16, 64, 96, 4, 4},   {TSR_TYPE_Q4_0, 64, 768, 7, 2}};
    const size_t n = sizeof shapes / sizeof *shapes;
    for (size_t i = first_model(rounds); i < n; i += model_step(rounds)) {
        struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
        config.weight_type = shapes[i].type;
        config.n_embd = shapes[i].n_embd;
        config.n_heads = 4;
        config.n_kv_heads = 2;
        config.n_ff = shapes[i].n_ff;
        config.n_experts = shapes[i].n_experts;
        config.n_experts_used = shapes[i].n_used;
        config.n_vocab = 300;
        check_model(family, &config, 1, (rounds + (int64_t)n - 1) / (int64_t)n, 100 + i);
    }
}
