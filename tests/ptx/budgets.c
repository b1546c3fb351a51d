/* What the compiled kernels cost by count, without a GPU: warp instructions, sectors of global loads and
 * wavefronts of shared memory of one op at shapes of an 8B model.
 *
 *     ptx_budgets           prints the table
 *     ptx_budgets FILE      compares it with FILE (tests/ptx/budgets.txt); any difference is a failure, a
 *                           better count too, so that it cannot be lost again unseen. Skips where FILE is of
 *                           another release of nvcc
 *
 * The counts are those of nvcc's PTX for compute capability 8.0, launched as for a card of 132
 * multiprocessors; ptxas makes 0.95 to 1.4 machine instructions of one. */
#include "../cuda/gpu_run.h"

#include <stdio.h>

#include <cudasim.h>
#include <tsr/types.h>

#include "core/quant/fixed.h"
#include "counts.h"
#include "support/attention_case.h"

enum { SCRATCH = 64 << 20, LINE = 256, MAX_LINES = 128, SKIPPED = 77 };

typedef struct table {
    gpu g;
    char lines[MAX_LINES][LINE];
    int n;
} table;

static void add_line(table *t, const char *name, size_t weight_bytes)
{
    ptx_counts c;
    assert_true(ptx_take_counts(&c) && t->n < MAX_LINES);
    const double all = (double)c.instructions / 100;
    snprintf(t->lines[t->n++], LINE, "%-42s %2llu %10llu %7.3f %3.0f %3.0f %3.0f %3.0f %3.0f %6.2f %6.2f\n",
             name, (unsigned long long)c.launches, (unsigned long long)c.instructions,
             weight_bytes ? (double)c.instructions / (double)weight_bytes : 0.0, (double)c.arithmetic / all,
             (double)c.memory / all, (double)c.lane / all, (double)c.mma / all, (double)c.flow / all,
             c.bytes ? 32 * (double)c.sectors / (double)c.bytes : 0.0,
             c.ideal ? (double)c.wavefronts / (double)c.ideal : 0.0);
}

/* What ran before does not count. */
static void forget_counts(void)
{
    ptx_counts before;
    assert_true(ptx_take_counts(&before));
}

/* Runs the op and counts it. */
static void count_op(table *t, const tsr_op *op, const char *name, size_t weight_bytes)
{
    forget_counts();
    assert_false(gpu_run(&t->g, op));
    add_line(t, name, weight_bytes);
    gpu_clear(&t->g);
}

/* -- products -- */

/* Rows repeat: counts do not depend on the values, but for infinities. */
static void *put_weights(gpu *g, tsr_type type, int64_t rows, int64_t k)
{
    enum { DIFFERENT = 8 };
    const size_t row_bytes = tsr_type_row_bytes(type, k);
    float *values = random_floats(k, -0.05f, 0.05f, 1);
    unsigned char *data = malloc((size_t)rows * row_bytes);
    for (int64_t r = 0; r < rows; r++)
        if (r < DIFFERENT)
            assert_int_equal(tsr_type_from_f32(type, values, data + (size_t)r * row_bytes, k), TSR_OK);
        else
            memcpy(data + (size_t)r * row_bytes, data + (size_t)(r % DIFFERENT) * row_bytes, row_bytes);
    void *device = gpu_put(g, data, (size_t)rows * row_bytes, true);
    free(values);
    free(data);
    return device;
}

static void count_mul_mat(table *t, tsr_type type, int64_t rows, int64_t k, int64_t tokens, bool partial,
                          int x_bits)
{
    char name[64];
    const size_t row_bytes = tsr_type_row_bytes(type, k);
    const tsr_op op = {
        .kind = TSR_OP_MUL_MAT,
        .mul_mat = {.type = type,
                    .w = put_weights(&t->g, type, rows, k),
                    .w_stride = row_bytes,
                    .n_rows = rows,
                    .k = k,
                    .x = gpu_put(&t->g, random_floats(k * tokens, -1, 1, 2), (size_t)(k * tokens) * 4, true),
                    .x_stride = k,
                    .n_tokens = tokens,
                    .partial = partial,
                    .granule = 256,
                    .limit = tsr_fixed_limit(k / 256),
                    .y = gpu_alloc(&t->g, (size_t)(rows * tokens) * 8, true),
                    .y_stride = rows,
                    .x_bits = x_bits}};
    snprintf(name, sizeof name, "mul_mat %s %lldx%lld %lld%s%s", tsr_type_name(type), (long long)rows,
             (long long)k, (long long)tokens, partial ? " exact" : "", x_bits == 8 ? " 8 bits" : "");
    count_op(t, &op, name, (size_t)rows * row_bytes);
}

static void count_products(table *t)
{
    static const tsr_type types[] = {TSR_TYPE_Q4_0,   TSR_TYPE_Q8_0,  TSR_TYPE_Q4_K, TSR_TYPE_Q5_K,
                                     TSR_TYPE_Q6_K,   TSR_TYPE_F16,   TSR_TYPE_BF16, TSR_TYPE_F32,
                                     TSR_TYPE_IQ4_NL, TSR_TYPE_MXFP4, TSR_TYPE_Q4_1};
    static const tsr_type prompts[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_K, TSR_TYPE_Q6_K, TSR_TYPE_F16,
                                       TSR_TYPE_BF16};
    static const tsr_type bytes[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_K, TSR_TYPE_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        count_mul_mat(t, types[i], 4096, 4096, 1, false, 16);
    count_mul_mat(t, TSR_TYPE_Q4_K, 4096, 4096, 1, true, 16);
    count_mul_mat(t, TSR_TYPE_Q4_K, 14336, 4096, 1, false, 16);
    count_mul_mat(t, TSR_TYPE_Q4_K, 4096, 4096, 8, false, 16);
    count_mul_mat(t, TSR_TYPE_F16, 4096, 4096, 8, false, 16);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        count_mul_mat(t, prompts[i], 1024, 4096, 256, false, 16);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        count_mul_mat(t, bytes[i], 4096, 4096, 1, false, 8);
        count_mul_mat(t, bytes[i], 4096, 4096, 8, false, 8);
        count_mul_mat(t, bytes[i], 1024, 4096, 256, false, 8);
    }
    for (int bits = 16; bits >= 8; bits -= 8)
        count_mul_mat(t, TSR_TYPE_Q4_K, 1024, 4096, 256, true, bits);
}

/* -- attention -- */

/* Keys and values are zeros: a cache that was cleared. */
static void count_attention(table *t, tsr_type type, int64_t kv_heads, int64_t past, int64_t tokens)
{
    char name[64];
    attention_case a;
    gpu *g = &t->g;
    attention_case_layout(&a, (attention_setup){type, type, kv_heads, 4, 128, 32, .window = 0, .softcap = 0},
                          1, past + tokens);
    attention_case_batch(&a, past, tokens);
    a.kv.base = gpu_alloc(g, a.bytes, true);
    GPU_OK(cudaMemset(a.kv.base, 0, a.bytes));
    const size_t q_bytes = (size_t)(tokens * kv_heads * 4 * 128) * sizeof(float);
    const tsr_kv_index index = {
        gpu_put(g, a.page_table, (size_t)a.pages_per_sequence * sizeof(int32_t), true), a.pages_per_sequence,
        gpu_put(g, a.seq_row, (size_t)tokens * sizeof(int32_t), true),
        gpu_put(g, a.position, (size_t)tokens * sizeof(int32_t), true)};
    float *q = gpu_alloc(g, q_bytes, true);
    GPU_OK(cudaMemset(q, 0, q_bytes));
    const tsr_op op = attention_case_op(&a, index, q, gpu_alloc(g, q_bytes, true));
    snprintf(name, sizeof name, "attention %s %lld heads %lld+%lld", tsr_type_name(type),
             (long long)kv_heads * 4, (long long)past, (long long)tokens);
    count_op(t, &op, name, (size_t)((past + tokens) * kv_heads) * (a.kv.k_row_bytes + a.kv.v_row_bytes));
    free(a.page_table);
}

/* -- rows -- */

static void count_rows(table *t)
{
    enum { N = 4096, FF = 14336, VOCABULARY = 128256, CANDIDATES = 40 };
    gpu *g = &t->g;
    for (int64_t tokens = 1; tokens <= 64; tokens *= 64) {
        char name[64];
        const tsr_op norm = {.kind = TSR_OP_RMS_NORM,
                             .rms_norm = {.x = gpu_random(g, N * tokens, -1, 1, 1, NULL),
                                          .weight = gpu_random(g, N, -1, 1, 2, NULL),
                                          .y = gpu_alloc(g, (size_t)(N * tokens) * 4, true),
                                          .n = N,
                                          .n_rows = tokens,
                                          .eps = 1e-5f}};
        snprintf(name, sizeof name, "rms_norm %d %lld", N, (long long)tokens);
        count_op(t, &norm, name, 0);
        const tsr_op glu = {.kind = TSR_OP_GLU,
                            .glu = {.gate = gpu_random(g, FF * tokens, -1, 1, 1, NULL),
                                    .up = gpu_random(g, FF * tokens, -1, 1, 2, NULL),
                                    .y = gpu_alloc(g, (size_t)(FF * tokens) * 4, true),
                                    .n = FF * tokens}};
        snprintf(name, sizeof name, "glu %d %lld", FF, (long long)tokens);
        count_op(t, &glu, name, 0);
    }
    const tsr_op argmax = {.kind = TSR_OP_ARGMAX,
                           .argmax = {.x = gpu_random(g, VOCABULARY, -1, 1, 1, NULL),
                                      .y = gpu_alloc(g, 4, true),
                                      .n = VOCABULARY,
                                      .n_rows = 1}};
    count_op(t, &argmax, "argmax 128256 1", 0);
    const tsr_op top_k = {.kind = TSR_OP_TOP_K,
                          .top_k = {.x = gpu_random(g, VOCABULARY, -1, 1, 1, NULL),
                                    .y = gpu_alloc(g, CANDIDATES * sizeof(tsr_candidate), true),
                                    .n = VOCABULARY,
                                    .n_rows = 1,
                                    .k = CANDIDATES}};
    count_op(t, &top_k, "top_k 128256 40", 0);
}

/* An all-reduce's own part: `n_parts` partial sums of `n` elements, added and normalised. */
static void count_reduce(table *t, int n_parts, int64_t n)
{
    char name[64];
    gpu *g = &t->g;
    tsr_cuda_reduction r = {.type = TSR_REDUCE_EXACT,
                            .n_parts = n_parts,
                            .residual = gpu_random(g, n, -1, 1, 1, NULL),
                            .y = gpu_alloc(g, (size_t)n * 4, true),
                            .n = n};
    for (int i = 0; i < n_parts; i++) {
        void *part = gpu_alloc(g, (size_t)n * 8, true);
        GPU_OK(cudaMemset(part, 0, (size_t)n * 8));
        r.parts[i] = part;
    }
    const tsr_op_rms_norm norm = {.x = r.y,
                                  .weight = gpu_random(g, 4096, -1, 1, 2, NULL),
                                  .y = gpu_alloc(g, (size_t)n * 4, true),
                                  .n = 4096,
                                  .n_rows = n / 4096,
                                  .eps = 1e-5f};
    const tsr_cuda_stream s = gpu_stream(g, NULL);
    forget_counts();
    assert_int_equal(tsr_cuda_reduce(&r, &norm, &s), TSR_OK);
    assert_false(gpu_fault(g));
    snprintf(name, sizeof name, "reduce+norm %d parts %lld", n_parts, (long long)n);
    add_line(t, name, 0);
    gpu_clear(g);
}

/* -- experts -- */

typedef struct mixture {
    tsr_type type;
    int64_t n_embd, n_ff, n_experts, n_used, n_tokens;
    int x_bits; /* of activations */
} mixture;

/* A token's experts are random ones; all experts have one memory. */
static tsr_routing put_routing(gpu *g, const mixture *m)
{
    void *words = gpu_alloc(g, (size_t)tsr_routing_words(m->n_tokens, m->n_used, m->n_experts) * 4, true);
    const tsr_op route = {.kind = TSR_OP_ROUTE,
                          .route = {.logits = gpu_random(g, m->n_tokens * m->n_experts, -4, 4, 3, NULL),
                                    .gating = TSR_GATING_SOFTMAX,
                                    .normalize = true,
                                    .scale = 1,
                                    .routing = tsr_routing_at(words, m->n_tokens, m->n_used, m->n_experts)}};
    assert_false(gpu_run(g, &route));
    return route.route.routing;
}

static void count_route(table *t, mixture m)
{
    char name[64];
    forget_counts();
    put_routing(&t->g, &m);
    snprintf(name, sizeof name, "route %lld/%lld %lld", (long long)m.n_used, (long long)m.n_experts,
             (long long)m.n_tokens);
    add_line(t, name, 0);
    gpu_clear(&t->g);
}

static void count_experts_op(table *t, const tsr_op *op, const mixture *m, int64_t rows, int64_t k,
                             size_t weight_bytes)
{
    char name[64];
    forget_counts();
    assert_false(gpu_run(&t->g, op));
    snprintf(name, sizeof name, "%s %s %lldx%lld %lld/%lld %lld%s", tsr_op_kind_name(op->kind),
             tsr_type_name(m->type), (long long)rows, (long long)k, (long long)m->n_used,
             (long long)m->n_experts, (long long)m->n_tokens, m->x_bits == 8 ? " 8 bits" : "");
    add_line(t, name, weight_bytes);
}

static void count_experts(table *t, mixture m)
{
    const int64_t granule = tsr_type_block_elems(m.type) > 32 ? 256 : 128; /* as tsr_granule_ffn() has it */
    gpu *g = &t->g;
    const size_t glu_row = tsr_type_row_bytes(m.type, m.n_embd),
                 down_row = tsr_type_row_bytes(m.type, m.n_ff), glu_bytes = glu_row * (size_t)m.n_ff,
                 down_bytes = down_row * (size_t)m.n_embd;
    const tsr_routing routing = put_routing(g, &m);
    const int64_t slots = m.n_tokens * m.n_used;
    int32_t touched;
    gpu_get(&touched, routing.n_touched, sizeof touched);
    const tsr_op glu = {
        .kind = TSR_OP_EXPERTS_GLU,
        .experts_glu = {.gate = {m.type, put_weights(g, m.type, m.n_ff, m.n_embd), glu_row, 0},
                        .up = {m.type, put_weights(g, m.type, m.n_ff, m.n_embd), glu_row, 0},
                        .held = {0, m.n_experts},
                        .n_rows = m.n_ff,
                        .k = m.n_embd,
                        .routing = routing,
                        .x_bits = m.x_bits,
                        .x = gpu_random(g, m.n_tokens * m.n_embd, -1, 1, 2, NULL),
                        .y = gpu_alloc(g, (size_t)(slots * m.n_ff) * sizeof(float), true)}};
    const tsr_op down = {
        .kind = TSR_OP_EXPERTS_DOWN,
        .experts_down = {.down = {m.type, put_weights(g, m.type, m.n_embd, m.n_ff), down_row, 0},
                         .held = {0, m.n_experts},
                         .n_rows = m.n_embd,
                         .k = m.n_ff,
                         .granule = granule,
                         .reduce = TSR_REDUCE_EXACT,
                         .limit = tsr_fixed_limit((m.n_ff + granule - 1) / granule * m.n_used),
                         .routing = routing,
                         .x_bits = m.x_bits,
                         .x = glu.experts_glu.y,
                         .y = gpu_alloc(g, (size_t)(m.n_tokens * m.n_embd) * sizeof(int64_t), true)}};
    count_experts_op(t, &glu, &m, m.n_ff, m.n_embd, 2 * (size_t)touched * glu_bytes);
    count_experts_op(t, &down, &m, m.n_embd, m.n_ff, (size_t)touched * down_bytes);
    gpu_clear(g);
}

/* -- the table -- */

static void fill(table *t)
{
    snprintf(t->lines[t->n++], LINE, "# nvcc %s\n", TSR_PTX_NVCC_RELEASE);
    snprintf(t->lines[t->n++], LINE, "%-42s %2s %10s %7s %3s %3s %3s %3s %3s %6s %6s\n", "# op", "n",
             "warp instr", "per B", "ar%", "me%", "la%", "mm%", "fl%", "32B/B", "banks");
    count_products(t);
    count_attention(t, TSR_TYPE_F16, 8, 4095, 1);
    count_attention(t, TSR_TYPE_Q8_0, 8, 4095, 1);
    count_attention(t, TSR_TYPE_F16, 8, 60, 1);
    count_attention(t, TSR_TYPE_F16, 2, 448, 64);
    count_attention(t, TSR_TYPE_F16, 8, 768, 256);
    count_attention(t, TSR_TYPE_Q8_0, 8, 768, 256);
    count_rows(t);
    count_reduce(t, 1, 4096);
    count_reduce(t, 2, 4096);
    count_reduce(t, 8, 4096);
    count_route(t, (mixture){.n_experts = 128, .n_used = 8, .n_tokens = 1});
    count_experts(t, (mixture){TSR_TYPE_Q4_K, 1024, 512, 8, 2, 1, 16});
    count_experts(t, (mixture){TSR_TYPE_Q6_K, 1024, 512, 8, 2, 1, 16});
    count_experts(t, (mixture){TSR_TYPE_Q4_K, 2048, 768, 128, 8, 1, 16}); /* Qwen3 30B-A3B */
    count_experts(t, (mixture){TSR_TYPE_Q4_K, 2048, 768, 128, 8, 1, 8});
    count_experts(t, (mixture){TSR_TYPE_Q6_K, 2048, 768, 128, 8, 1, 16});
    count_experts(t, (mixture){TSR_TYPE_MXFP4, 2880, 2880, 32, 4, 1, 16}); /* gpt-oss 20B */
    /* Prompts of 48 and 256 tokens of the first have as many tokens per expert. */
    count_experts(t, (mixture){TSR_TYPE_Q4_K, 2048, 768, 8, 2, 12, 16});
    count_experts(t, (mixture){TSR_TYPE_Q4_K, 2048, 768, 8, 2, 64, 16});
    count_experts(t, (mixture){TSR_TYPE_Q4_K, 2048, 768, 8, 2, 64, 8});
}

/* Lines that differ, as stored and as counted. An exit code. */
static int compare(const table *t, const char *path)
{
    char stored[LINE];
    int n_different = 0, n = 0;
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "ptx_budgets: cannot read '%s'\n", path);
        return 1;
    }
    while (fgets(stored, sizeof stored, file)) {
        const char *counted = n < t->n ? t->lines[n++] : "(nothing)\n";
        if (strcmp(stored, counted) == 0)
            continue;
        if (n == 1) {
            printf("skipped: the counts in %s are of '%.*s', this compiler is %s", path,
                   (int)strcspn(stored, "\n"), stored, counted);
            n_different = -1;
            break;
        }
        n_different++;
        printf("stored  %scounted %s", stored, counted);
    }
    fclose(file);
    if (n_different < 0)
        return SKIPPED;
    for (; n < t->n; n++, n_different++)
        printf("new     %s", t->lines[n]);
    if (n_different > 0)
        printf("%d lines of %s are not what was counted; tests/ptx/README.md says what to do\n", n_different,
               path);
    return n_different > 0;
}

int main(int argc, char **argv)
{
    static table t;
    ptx_counts none;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    machine.memory = (size_t)1 << 30;
    machine.n_sms = 132;
    cudasim_configure(&machine);
    if (!ptx_take_counts(&none)) {
        fprintf(stderr, "ptx_budgets: TSR_PTX names no folder of PTX\n");
        return 2;
    }
    t.g = gpu_open();
    t.g.props.n_sms = machine.n_sms;
    t.g.scratch_bytes = SCRATCH;
    fill(&t);
    gpu_close(&t.g);
    if (argc > 1)
        return compare(&t, argv[1]);
    for (int i = 0; i < t.n; i++)
        fputs(t.lines[i], stdout);
    return 0;
}
