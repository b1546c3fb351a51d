/* Predictions from the table of cards beside published speeds of llama.cpp.
 *
 * Source of all figures: github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference, README, "LLaMA 3", May 2024:
 * llama-bench, tokens per second of tg 1024 and pp 512. Several cards work in layer mode there. Models are
 * the headers of Meta's Llama 3 as llama.cpp quantizes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/links.h>
#include <tsr/machine.h>
#include <tsr/plan.h>

#include "support/directory.h"
#include "support/gguf_writer.h"
#include "support/runner.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum model { LLAMA_8B_Q4_K_M, LLAMA_8B_F16, LLAMA_70B_Q4_K_M, N_MODELS };

struct figure {
    const char *machine;
    enum model model;
    double decode; /* tokens/s of 1024 tokens from an empty context */
    double prompt; /* tokens/s of 512 tokens; 0: not compared */
};

/* Prompts are compared for Q4_K_M on one card. Cards of 300 W with more multiprocessors than a GeForce card
 * of 450 W (RTX 6000 Ada, L40S) are left out: their clock falls, and prompts take twice as long as
 * predicted. */
static const struct figure figures[] = {
    {"1x rtx3070", LLAMA_8B_Q4_K_M, 70.94, 2402.51},
    {"1x rtx3080", LLAMA_8B_Q4_K_M, 106.40, 3728.86},
    {"1x rtx3080ti", LLAMA_8B_Q4_K_M, 106.71, 3690.30},
    {"1x rtx3090", LLAMA_8B_Q4_K_M, 111.74, 4030.40},
    {"1x rtx3090", LLAMA_8B_F16, 46.51, 0},
    {"1x rtx4070ti", LLAMA_8B_Q4_K_M, 82.21, 3936.29},
    {"1x rtx4080", LLAMA_8B_Q4_K_M, 106.22, 5389.74},
    {"1x rtx4080", LLAMA_8B_F16, 40.29, 0},
    {"1x rtx4090", LLAMA_8B_Q4_K_M, 127.74, 7138.99},
    {"1x rtx4090", LLAMA_8B_F16, 54.34, 0},
    {"1x a6000", LLAMA_8B_Q4_K_M, 102.22, 3780.55},
    {"1x a6000", LLAMA_8B_F16, 40.25, 0},
    {"1x a6000", LLAMA_70B_Q4_K_M, 14.58, 0},
    {"1x rtx6000ada", LLAMA_8B_Q4_K_M, 130.99, 0},
    {"1x rtx6000ada", LLAMA_8B_F16, 51.97, 0},
    {"1x rtx6000ada", LLAMA_70B_Q4_K_M, 18.36, 0},
    {"1x l40s", LLAMA_8B_Q4_K_M, 113.60, 0},
    {"1x l40s", LLAMA_8B_F16, 43.42, 0},
    {"1x l40s", LLAMA_70B_Q4_K_M, 15.31, 0},
    {"1x a100-pcie", LLAMA_8B_Q4_K_M, 138.31, 5981.04},
    {"1x a100-pcie", LLAMA_8B_F16, 54.56, 0},
    {"1x a100-pcie", LLAMA_70B_Q4_K_M, 22.11, 0},
    {"1x h100-pcie", LLAMA_8B_Q4_K_M, 144.49, 8125.45},
    {"1x h100-pcie", LLAMA_8B_F16, 67.79, 0},
    {"1x h100-pcie", LLAMA_70B_Q4_K_M, 25.01, 0},
    {"2x rtx3090", LLAMA_8B_Q4_K_M, 108.07, 0},
    {"2x rtx3090", LLAMA_70B_Q4_K_M, 16.29, 0},
    {"2x rtx4090", LLAMA_8B_Q4_K_M, 122.56, 0},
    {"2x rtx4090", LLAMA_70B_Q4_K_M, 19.06, 0},
    {"4x rtx3090", LLAMA_70B_Q4_K_M, 16.89, 0},
    {"4x rtx4090", LLAMA_70B_Q4_K_M, 18.83, 0},
};

/* Most that a prediction may be off, of the published figure: decoding, prompts. */
static const double decode_bound = 0.15, prompt_bound = 0.30;

static char path[DIRECTORY_PATH];

static void add(gguf_writer *w, int layer, const char *name, tsr_type type, int64_t columns, int64_t rows)
{
    char full[64];
    if (layer < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    gguf_writer_tensor_zero(w, full, type, rows > 0 ? 2 : 1, (int64_t[]){columns, rows > 0 ? rows : 1});
}

/* Q4_K_M has more bits in the values and the last matrix of an eighth of the layers at both ends and of every
 * third between, in the output, and a few more in the values of models of 80 layers. */
static void write_model(enum model model)
{
    bool large = model == LLAMA_70B_Q4_K_M, f16 = model == LLAMA_8B_F16;
    int n_layers = large ? 80 : 32, eighth = n_layers / 8;
    int64_t n_embd = large ? 8192 : 4096, n_ff = large ? 28672 : 14336, n_vocab = 128256, kv = 1024;
    tsr_type type = f16 ? TSR_TYPE_F16 : TSR_TYPE_Q4_K, fine = f16 ? TSR_TYPE_F16 : TSR_TYPE_Q6_K;
    gguf_writer *w = gguf_writer_create(3);
    gguf_writer_string(w, "general.architecture", "llama");
    gguf_writer_u32(w, "llama.block_count", (uint32_t)n_layers);
    gguf_writer_u32(w, "llama.context_length", 8192);
    gguf_writer_u32(w, "llama.embedding_length", (uint32_t)n_embd);
    gguf_writer_u32(w, "llama.feed_forward_length", (uint32_t)n_ff);
    gguf_writer_u32(w, "llama.attention.head_count", (uint32_t)(n_embd / 128));
    gguf_writer_u32(w, "llama.attention.head_count_kv", 8);
    gguf_writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_writer_u32(w, "llama.rope.dimension_count", 128);
    gguf_writer_f32(w, "llama.rope.freq_base", 500000);
    gguf_writer_string(w, "tokenizer.ggml.model", "no_vocab");
    add(w, -1, "token_embd", type, n_embd, n_vocab);
    for (int l = 0; l < n_layers; l++) {
        bool more = l < eighth || l >= 7 * eighth || (l - eighth) % 3 == 2;
        add(w, l, "attn_norm", TSR_TYPE_F32, n_embd, 0);
        add(w, l, "attn_q", type, n_embd, n_embd);
        add(w, l, "attn_k", type, n_embd, kv);
        add(w, l, "attn_v", more ? fine : large ? TSR_TYPE_Q5_K : type, n_embd, kv);
        add(w, l, "attn_output", type, n_embd, n_embd);
        add(w, l, "ffn_norm", TSR_TYPE_F32, n_embd, 0);
        add(w, l, "ffn_gate", type, n_embd, n_ff);
        add(w, l, "ffn_up", type, n_embd, n_ff);
        add(w, l, "ffn_down", more ? fine : type, n_ff, n_embd);
    }
    add(w, -1, "output_norm", TSR_TYPE_F32, n_embd, 0);
    add(w, -1, "output", fine, n_embd, n_vocab);
    gguf_writer_save_header(w, path, false);
    gguf_writer_destroy(w);
}

static double tokens_per_s(const tsr_plan_phase *phase)
{
    return (double)phase->n_tokens / phase->total_ns * 1e9;
}

static tsr_plan_times predict(const tsr_gguf *gguf, const char *machine, const char *devices)
{
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_links *links;
    tsr_plan *plan;
    tsr_plan_times times;
    tsr_model_config config = tsr_model_config_default();
    runner_ok(tsr_topology_parse(machine, NULL, &topo), machine);
    runner_ok(tsr_device_list_create(topo, devices, NULL, &list), machine);
    runner_ok(tsr_links_create(topo, list, &links), machine);
    config.plan.links = links;
    config.split.mode = TSR_SPLIT_MODE_LAYER;
    config.split.tensor_split = (float[]){1, 1, 1, 1};
    config.split.n_tensor_split = list->n_devices;
    config.session.n_ctx = 1024;
    runner_ok(tsr_plan_create(gguf, list, &config, &plan), machine);
    tsr_plan_predict(plan, &times);
    tsr_plan_destroy(plan);
    tsr_links_destroy(links);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
    return times;
}

/* Whether `predicted` is within `bound` of `published`; a line with both if it is not, or always with
 * TSR_TEST_LONG=1. */
static bool check(const struct figure *f, const char *what, double predicted, double published, double bound)
{
    static const char *const names[N_MODELS] = {"8B Q4_K_M", "8B F16", "70B Q4_K_M"};
    double off = predicted / published - 1;
    bool good = off <= bound && off >= -bound;
    if (!good || getenv("TSR_TEST_LONG"))
        print_message("%-20s %-11s %s: predicted %.1f, published %.1f tokens/s: %+.0f %%%s\n", f->machine,
                      names[f->model], what, predicted, published, 100 * off, good ? "" : " (too far)");
    return good;
}

static void predictions_are_near_published_speeds(void **state)
{
    (void)state;
    int n_bad = 0;
    for (int model = 0; model < N_MODELS; model++) {
        tsr_gguf *gguf;
        tsr_gguf_config header = tsr_gguf_config_default();
        header.header_only = true;
        write_model((enum model)model);
        runner_ok(tsr_gguf_open(path, &header, &gguf), path);
        for (size_t i = 0; i < COUNT(figures); i++) {
            const struct figure *f = &figures[i];
            if ((int)f->model != model)
                continue;
            tsr_plan_times times = predict(gguf, f->machine, "cuda");
            n_bad += !check(f, "decode", tokens_per_s(&times.decode), f->decode, decode_bound);
            if (f->prompt > 0)
                n_bad += !check(f, "prompt", tokens_per_s(&times.prompt), f->prompt, prompt_bound);
        }
        tsr_gguf_close(gguf);
    }
    assert_int_equal(n_bad, 0);
}

/* A host reads weights at the speed of its memory until its cores are the limit. */
static void a_hosts_tokens_take_as_long_as_its_memory_needs(void **state)
{
    (void)state;
    static const char *const machines[] = {"host 64 cores 64GiB 40GB/s", "host 64 cores 64GiB 80GB/s",
                                           "host 64 cores 64GiB 400GB/s", "host 4 cores 64GiB 400GB/s"};
    double ns[COUNT(machines)];
    tsr_gguf *gguf;
    tsr_gguf_config header = tsr_gguf_config_default();
    header.header_only = true;
    write_model(LLAMA_8B_Q4_K_M);
    runner_ok(tsr_gguf_open(path, &header, &gguf), path);
    for (size_t i = 0; i < COUNT(machines); i++)
        ns[i] = predict(gguf, machines[i], "host").decode.total_ns;
    assert_true(ns[0] > 1.95 * ns[1] && ns[0] < 2.05 * ns[1]);
    assert_true(ns[1] > 4.5 * ns[2]);
    assert_true(ns[3] > 2 * ns[2]);
    tsr_gguf_close(gguf);
}

static int set_up(void **state)
{
    (void)state;
    return close(directory_new(path));
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(predictions_are_near_published_speeds),
                                       cmocka_unit_test(a_hosts_tokens_take_as_long_as_its_memory_needs)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
