/* Plans of published shapes, without a file: every shape has as many parameters as its model, runs, and in a
 * mixture of types is as large as the files that people share. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/program_json.h"

#define MACHINE " --machine 'host 16 cores 3TiB 400GB/s'"

/* Billions of parameters, from the models' pages on Hugging Face ("Model size", or the text). Those of models
 * that also read images are of the text part, as llama.cpp counts them; those of GLM include the layer that
 * predicts further tokens, those of the other models do not. */
static const struct {
    const char *shape;
    double billions;
} published[] = {
    {"tinyllama-1.1b", 1.10},    {"llama-2-7b", 6.74},
    {"llama-2-13b", 13.0},       {"llama-3.2-1b", 1.24},
    {"llama-3.2-3b", 3.21},      {"llama-3-8b", 8.03},
    {"llama-3-70b", 70.6},       {"llama-3-405b", 406},
    {"mistral-7b", 7.25},        {"mistral-small-24b", 23.6},
    {"mistral-large-123b", 123}, {"mixtral-8x7b", 46.7},
    {"mixtral-8x22b", 141},      {"qwen3-0.6b", 0.6},
    {"qwen3-1.7b", 1.72},        {"qwen3-4b", 4.02},
    {"qwen3-8b", 8.19},          {"qwen3-14b", 14.8},
    {"qwen3-32b", 32.8},         {"qwen3-30b-a3b", 30.5},
    {"qwen3-235b-a22b", 235},    {"qwen3-480b-a35b", 480},
    {"gpt-oss-20b", 20.9},       {"gpt-oss-120b", 117},
    {"glm-4.5-air", 110},        {"glm-4.5", 358},
    {"gemma-3-4b", 3.88},        {"gemma-3-12b", 11.77},
    {"gemma-3-27b", 27.01},      {"gemma-4-e4b", 7.52},
    {"gemma-4-26b-a4b", 25.2},   {"gemma-4-31b", 30.7},
    {"qwen3-vl-235b-a22b", 235}, {"qwen3-next-80b-a3b", 79.7},
    {"qwen3.5-27b", 26.9},       {"qwen3.5-122b-a10b", 122},
    {"qwen3.5-397b-a17b", 397},  {"deepseek-v3", 671},
    {"kimi-k2", 1026},           {"glm-4.7-flash", 31.2},
    {"mistral-large-3", 673},    {"mistral-small-4", 119},
    {"minimax-m2", 228.7},       {"seed-oss-36b", 36.2},
    {"hunyuan-a13b", 80.4},      {"exaone-4-32b", 32.0},
    {"ling-1t", 1000},           {"trinity-large", 399},
    {"step-3.5-flash", 196.8},   {"llama-4-scout", 107.8},
    {"llama-4-maverick", 400.7},
};

enum { N_PUBLISHED = sizeof published / sizeof *published };

/* A new shape needs a line here. */
static double billions_of(const char *shape)
{
    for (int i = 0; i < N_PUBLISHED; i++)
        if (strcmp(published[i].shape, shape) == 0)
            return published[i].billions;
    fail_msg("no published number of parameters of %s", shape);
    return 0;
}

static void check_near(const char *what, double is, double should)
{
    if (!(fabs(is - should) <= 0.01 * should))
        fail_msg("%s: %g, and published are %g", what, is, should);
}

static void shapes_have_the_parameters_of_their_models(void **state)
{
    (void)state;
    static char text[1 << 14];
    char shape[64];
    double billions;
    int n = 0;
    assert_int_equal(program_run("plan --synthetic help", text, sizeof text), 0);
    for (const char *line = strchr(text, '\n'); line; line = strchr(line + 1, '\n'))
        if (sscanf(line, "\n%63s %*s %lf %*d", shape, &billions) == 2) {
            check_near(shape, billions, billions_of(shape));
            n++;
        }
    assert_int_equal(n, N_PUBLISHED);
}

static json_t *plan_with(const char *model, int n_ctx)
{
    char line[256];
    snprintf(line, sizeof line, "plan --synthetic %s --json" MACHINE " -c %d", model, n_ctx);
    return program_json(line);
}

static json_t *plan_of(const char *model)
{
    return plan_with(model, 512);
}

static void every_shape_is_planned_as_a_model_that_runs(void **state)
{
    (void)state;
    for (int i = 0; i < N_PUBLISHED; i++) {
        json_t *root = plan_of(published[i].shape);
        if (!json_is_true(json_object_get(root, "runnable")))
            fail_msg("%s does not run", published[i].shape);
        assert_string_equal(json_string_value(json_object_get(root, "model")), published[i].shape);
        json_decref(root);
    }
}

/* Sizes of files, in GB as Hugging Face shows them (Llama 3.1 70B, Qwen3 4B) or in GiB as llama-bench prints
 * them (the others). */
static void mixtures_are_as_large_as_shared_files(void **state)
{
    (void)state;
    const double gb = 1e9, gib = 1073741824;
    const struct {
        const char *model;
        double bytes;
    } files[] = {
        {"llama-3-70b:q3_k_s", 30.91 * gb},    {"llama-3-70b:q3_k_m", 34.27 * gb},
        {"llama-3-70b:q3_k_l", 37.14 * gb},    {"llama-3-70b:q4_k_s", 40.35 * gb},
        {"llama-3-70b:Q4_K_M", 42.52 * gb},    {"llama-3-70b:q5_k_s", 48.66 * gb},
        {"llama-3-70b:q5_k_m", 49.95 * gb},    {"llama-3-70b:q6_k", 57.89 * gb},
        {"llama-3-70b:q8_0", 74.98 * gb},      {"qwen3-4b:q4_k_m", 2.50 * gb},
        {"qwen3-4b:q5_k_m", 2.89 * gb},        {"llama-3-8b:q4_k_m", 4.58 * gib},
        {"qwen3-30b-a3b:q4_k_m", 17.28 * gib}, {"gemma-3-12b:q4_k_m", 6.79 * gib},
        {"gpt-oss-20b", 11.27 * gib},          {"gpt-oss-120b:mxfp4", 59.02 * gib},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        json_t *root = plan_of(files[i].model);
        const json_t *device = json_array_get(json_object_get(root, "devices"), 0);
        json_int_t weights = program_json_integer(json_object_get(device, "bytes"), "weights");
        check_near(files[i].model, (double)weights, files[i].bytes);
        json_decref(root);
    }
}

static json_int_t kv_bytes(const char *model, int n_ctx)
{
    json_t *root = plan_with(model, n_ctx);
    const json_t *device = json_array_get(json_object_get(root, "devices"), 0);
    json_int_t bytes = program_json_integer(json_object_get(device, "bytes"), "kv");
    json_decref(root);
    return bytes;
}

/* By the models' numbers of layers and heads. A key and a value take 4 bytes per element together, a
 * compressed row 2. A layer with a window keeps the window, a batch of 512 tokens and a page of 32. A
 * sequence has three states of every recurrent layer: per value head a matrix of floats, and of the
 * convolution the 3 last inputs. */
static void keys_and_values_take_the_bytes_of_their_heads(void **state)
{
    (void)state;
    enum { KV = 4, ROW = 2, AROUND = 512 + 32, STATES = 3, FLOAT = 4 };
    const struct {
        const char *shape;
        json_int_t per_token, per_sequence;
    } models[] = {
        {"deepseek-v3", 61 * (512 + 64) * ROW, 0},
        {"kimi-k2", 61 * (512 + 64) * ROW, 0},
        {"glm-4.7-flash", 47 * (512 + 64) * ROW, 0},
        {"mistral-small-4", 36 * (256 + 64) * ROW, 0},
        {"qwen3-vl-235b-a22b", 94 * 4 * 128 * KV, 0},
        {"qwen3-next-80b-a3b", 12 * 2 * 256 * KV,
         STATES * 36 * (32 * 128 * 128 + 3 * (2 * 16 + 32) * 128) * FLOAT},
        {"qwen3.5-27b", 16 * 4 * 256 * KV, STATES * 48 * (48 * 128 * 128 + 3 * (2 * 16 + 48) * 128) * FLOAT},
        {"qwen3.5-397b-a17b", 15 * 2 * 256 * KV,
         STATES * 45 * (64 * 128 * 128 + 3 * (2 * 16 + 64) * 128) * FLOAT},
        {"gemma-4-e4b", 4 * 2 * 512 * KV, (512 + AROUND) * 20 * 2 * 256 * KV},
        {"gemma-4-26b-a4b", 5 * 2 * 512 * KV, (1024 + AROUND) * 25 * 8 * 256 * KV},
        {"gemma-4-31b", 10 * 4 * 512 * KV, (1024 + AROUND) * 50 * 16 * 256 * KV},
        {"minimax-m2", 62 * 8 * 128 * KV, 0},
        {"seed-oss-36b", 64 * 8 * 128 * KV, 0},
        {"hunyuan-a13b", 32 * 8 * 128 * KV, 0},
        {"exaone-4-32b", 16 * 8 * 128 * KV, (4096 + AROUND) * 48 * 8 * 128 * KV},
        {"ling-1t", 80 * 8 * 128 * KV, 0},
        {"trinity-large", 15 * 8 * 128 * KV, (4096 + AROUND) * 45 * 8 * 128 * KV},
        {"step-3.5-flash", 12 * 8 * 128 * KV, (512 + AROUND) * 33 * 8 * 128 * KV},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const json_int_t at_8k = kv_bytes(models[i].shape, 8192), at_16k = kv_bytes(models[i].shape, 16384);
        assert_int_equal(at_16k - at_8k, 8192 * models[i].per_token);
        assert_int_equal(at_8k - 8192 * models[i].per_token, models[i].per_sequence);
    }
}

/* The last 18 of 42 layers read keys and values of the two before them, so 20 layers have one device. */
static void layers_that_share_keys_and_values_stay_together(void **state)
{
    (void)state;
    enum { N = 5 };
    static const char *const options[] = {
        "--machine '5x rtx3090' -ts 1,1,1,1,1",
        "--machine '5x rtx3070' -ts 1,1,1,1,1", /* of 8 GB: the first has little room beside the embedding */
        "--machine '5x rtx3070'",
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char line[256];
        json_int_t last = 0, layers[N];
        snprintf(line, sizeof line, "plan --synthetic gemma-4-e4b -sm layer -c 8192 --json %s", options[i]);
        json_t *root = program_json(line);
        for (int d = 0; d < N; d++) {
            layers[d] =
                program_json_integer(json_array_get(json_object_get(root, "devices"), (size_t)d), "n_layers");
            last = layers[d] > 0 ? layers[d] : last;
        }
        assert_true(last >= 20);
        if (i == 0)
            assert_true(layers[0] == 9 && layers[1] == 9 && layers[2] == 4 && last == 20);
        json_decref(root);
    }
}

/* GLM's prediction layer has 3.6 of 110 billion parameters, and as much KV as each of the 46 layers. */
static void a_prediction_layer_is_planned_where_it_is_wanted(void **state)
{
    (void)state;
    json_int_t n_layers[2], kv[2], weights[2];
    for (int with = 0; with < 2; with++) {
        char line[256];
        snprintf(line, sizeof line, "plan --synthetic glm-4.5-air:q8_0 --json -c 4096" MACHINE "%s",
                 with ? " --prediction" : "");
        json_t *root = program_json(line);
        const json_t *bytes = json_object_get(json_array_get(json_object_get(root, "devices"), 0), "bytes");
        n_layers[with] = program_json_integer(root, "n_layers");
        kv[with] = program_json_integer(bytes, "kv");
        weights[with] = program_json_integer(bytes, "weights");
        json_decref(root);
    }
    assert_int_equal(n_layers[0], 46);
    assert_int_equal(n_layers[1], 47);
    assert_int_equal(kv[1] - kv[0], kv[0] / 46);
    check_near("bytes of the layer", (double)(weights[1] - weights[0]), 3.64e9 * 34 / 32);
}

static void a_shape_is_fitted(void **state)
{
    (void)state;
    static char text[1 << 14];
    program_check("fit --synthetic qwen3-32b:q4_k_m --machine '1x rtx4090'", 0, "Options: -c ", text,
                  sizeof text);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    const program_case cases[] = {
        {"plan --synthetic lama-3-8b", 2, "did you mean 'llama-3-8b'? `tsr synth --shape help` lists"},
        {"plan --synthetic xyz", 2, "'xyz' is not a known shape; `tsr synth"},
        {"plan --synthetic 8b:q4_k_x", 2, "mixtures are q3_k_s, "},
        {"plan --synthetic 8b:i32", 2, "weights cannot be integers"},
        {"plan --synthetic 8b -m x.gguf", 2, "each name a model"},
        {"fit --synthetic 8b -m x.gguf", 2, "each name a model"},
        {"run --synthetic 8b", 2, "unknown option '--synthetic'"},
        {"plan --synthetic llama-3-8b --prediction", 2,
         "no prediction layer (llama.nextn_predict_layers); "
         "leave out --prediction"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_have_the_parameters_of_their_models),
        cmocka_unit_test(every_shape_is_planned_as_a_model_that_runs),
        cmocka_unit_test(mixtures_are_as_large_as_shared_files),
        cmocka_unit_test(keys_and_values_take_the_bytes_of_their_heads),
        cmocka_unit_test(layers_that_share_keys_and_values_stay_together),
        cmocka_unit_test(a_prediction_layer_is_planned_where_it_is_wanted),
        cmocka_unit_test(a_shape_is_fitted),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
