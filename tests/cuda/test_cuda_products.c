/* Products of the same activations in one launch for each type of weights, and gate, up and their product of
 * an FFN: the bits of the separate ops, for any sizes, with any memory. (test_cuda_siblings.c has the choice
 * of the ops of a program that are taken together.) Matrices end where a page ends, so that reading a byte
 * too far leaves the allocation. */
#include "gpu_run.h"

#include <tsr/types.h>

#include "core/mem.h"
#include "core/status.h"
#include "cuda/device/fuse.h"

/* A type of weights, and the bits of the activations beside them. */
typedef struct kind {
    tsr_type type;
    int x_bits;
} kind;

static const kind kinds[] = {{TSR_TYPE_Q8_0, 16}, {TSR_TYPE_Q4_0, 16}, {TSR_TYPE_Q4_K, 16},
                             {TSR_TYPE_Q5_K, 16}, {TSR_TYPE_Q6_K, 16}, {TSR_TYPE_F16, 16},
                             {TSR_TYPE_BF16, 16}, {TSR_TYPE_Q8_0, 8},  {TSR_TYPE_Q4_0, 8},
                             {TSR_TYPE_Q4_K, 8},  {TSR_TYPE_Q5_K, 8},  {TSR_TYPE_Q6_K, 8}};
enum { N_KINDS = sizeof kinds / sizeof *kinds, K = 768, MOST_TOKENS = 8 };

/* Products of one buffer of activations, each with results of its own. */
typedef struct family {
    gpu *g;
    int n;
    tsr_op op[TSR_CUDA_PRODUCTS];
} family;

static size_t result_bytes(const tsr_op *op)
{
    return (size_t)(op->mul_mat.n_tokens * op->mul_mat.y_stride) * sizeof(float);
}

static tsr_op product(gpu *g, kind of, int64_t n_rows, const float *x, int64_t n_tokens, uint64_t seed)
{
    tsr_op op = {.kind = TSR_OP_MUL_MAT,
                 .mul_mat = {.type = of.type,
                             .w = gpu_weights(g, of.type, n_rows, K, seed),
                             .w_stride = tsr_type_row_bytes(of.type, K),
                             .n_rows = n_rows,
                             .k = K,
                             .x = x,
                             .x_stride = K,
                             .n_tokens = n_tokens,
                             .y_stride = n_rows,
                             .x_bits = of.x_bits}};
    op.mul_mat.y = gpu_alloc(g, result_bytes(&op), false);
    return op;
}

static family family_make(gpu *g, kind of, int n, const int64_t *rows, int64_t n_tokens)
{
    family f = {.g = g, .n = n};
    const float *x = gpu_random(g, n_tokens * K, -2, 2, 7, NULL);
    for (int i = 0; i < n; i++)
        f.op[i] = product(g, of, rows[i], x, n_tokens, (uint64_t)i + 1);
    return f;
}

static tsr_cuda_products products_of(const family *f)
{
    tsr_cuda_products p = {.n = f->n};
    for (int i = 0; i < f->n; i++)
        p.of[i] = &f->op[i].mul_mat;
    return p;
}

/* Launch them together; the number of products that kernels could. */
static int launched(family *f, const tsr_op_glu *glu, size_t scratch_bytes)
{
    int n;
    void *scratch = NULL;
    tsr_cuda_products p = products_of(f);
    p.glu = glu;
    if (scratch_bytes > 0)
        GPU_OK(cudaMalloc(&scratch, scratch_bytes));
    tsr_cuda_stream s = gpu_stream(f->g, scratch);
    s.scratch_bytes = scratch_bytes;
    assert_int_equal(tsr_cuda_mul_mats(&p, &s, &n), TSR_OK);
    assert_false(gpu_fault(f->g));
    GPU_OK(cudaFree(scratch));
    return n;
}

static bool together(family *f, const tsr_op_glu *glu, size_t scratch_bytes)
{
    return launched(f, glu, scratch_bytes) == f->n;
}

static void *fetch(const void *from, size_t bytes)
{
    void *copy = malloc(bytes);
    gpu_get(copy, from, bytes);
    return copy;
}

static void check_together(family *f, size_t scratch_bytes)
{
    void *alone[TSR_CUDA_PRODUCTS];
    for (int i = 0; i < f->n; i++) {
        assert_false(gpu_run(f->g, &f->op[i]));
        alone[i] = fetch(f->op[i].mul_mat.y, result_bytes(&f->op[i]));
        gpu_fill(f->op[i].mul_mat.y, 0xff, result_bytes(&f->op[i]));
    }
    assert_true(together(f, NULL, scratch_bytes));
    for (int i = 0; i < f->n; i++) {
        void *got = fetch(f->op[i].mul_mat.y, result_bytes(&f->op[i]));
        assert_memory_equal(got, alone[i], result_bytes(&f->op[i]));
        free(got);
        free(alone[i]);
    }
}

static void one_launch_has_the_bits_of_several(void **state)
{
    (void)state;
    static const int64_t rows[][TSR_CUDA_PRODUCTS] = {{40, 17, 5}, {5, 130, 3}, {16, 16, 64}};
    gpu g = gpu_open();
    for (int i = 0; i < N_KINDS; i++)
        for (int n = 2; n <= TSR_CUDA_PRODUCTS; n++)
            for (int64_t tokens = 1; tokens <= MOST_TOKENS; tokens += tokens == 1 ? 2 : 5) {
                family f = family_make(&g, kinds[i], n, rows[(i + n) % 3], tokens);
                check_together(&f, 0);
                gpu_clear(&g);
            }
    gpu_close(&g);
}

/* Weights of another type, or of other activations, take a launch each. */
static void and_so_have_launches_of_several_types(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < N_KINDS; i++)
        for (int of = 0; of < 4; of++) {
            const int64_t tokens = 1 + (i + 3 * of) % MOST_TOKENS;
            const float *x = gpu_random(&g, tokens * K, -2, 2, 7, NULL);
            family f = {.g = &g, .n = TSR_CUDA_PRODUCTS};
            for (int j = 0; j < f.n; j++)
                f.op[j] = product(&g, kinds[(i + (of >> (j > 1)) % 2 * (1 + of + i % 3)) % N_KINDS],
                                  20 + 11 * j, x, tokens, (uint64_t)j + 1);
            check_together(&f, 0);
            gpu_clear(&g);
        }
    gpu_close(&g);
}

/* Blocks with several turns, one group of warps, or activations in scratch memory. */
static void nor_do_small_cards_change_them(void **state)
{
    (void)state;
    enum { SCRATCH = 1 << 20 };
    static const int64_t rows[TSR_CUDA_PRODUCTS] = {70, 40, 33};
    gpu g = gpu_open();
    for (int i = 0; i < N_KINDS; i++) {
        const tsr_cuda_props props = g.props;
        family f = family_make(&g, kinds[i], TSR_CUDA_PRODUCTS, rows, 2);
        g.props.n_sms = 1 + i % 2;
        check_together(&f, 0);
        g.props.shared_bytes = TSR_MIN((size_t)99 << 10, props.shared_bytes);
        check_together(&f, 0);
        g.props.shared_bytes = 0; /* the least that is enough has no room for activations */
        while (!together(&f, NULL, SCRATCH))
            g.props.shared_bytes += 512;
        check_together(&f, SCRATCH);
        g.props = props;
        gpu_clear(&g);
    }
    gpu_close(&g);
}

/* -- gate and up -- */

enum glu_place { APART, OVER_GATE, OVER_UP };

static void check_glu(gpu *g, kind of, int64_t n_rows, int64_t n_tokens, tsr_glu_kind glu_kind,
                      enum glu_place place)
{
    const int64_t rows[2] = {n_rows, n_rows}, n = n_rows * n_tokens;
    const size_t bytes = (size_t)n * sizeof(float);
    family f = family_make(g, of, 2, rows, n_tokens);
    float *gate = f.op[0].mul_mat.y, *up = f.op[1].mul_mat.y;
    tsr_op glu = {.kind = TSR_OP_GLU,
                  .glu = {.kind = glu_kind, .gate = gate, .up = up, .n = n, .limit = 0.5f}};
    glu.glu.y = place == APART ? gpu_alloc(g, bytes, false) : place == OVER_GATE ? gate : up;
    float *const buffers[] = {gate, up, glu.glu.y};
    void *alone[3];
    for (int i = 0; i < 2; i++)
        assert_false(gpu_run(g, &f.op[i]));
    assert_false(gpu_run(g, &glu));
    for (int i = 0; i < 3; i++)
        alone[i] = fetch(buffers[i], bytes);
    for (int i = 0; i < 3; i++)
        gpu_fill(buffers[i], 0xff, bytes);
    assert_true(together(&f, &glu.glu, 0));
    for (int i = 0; i < 3; i++) {
        void *got = fetch(buffers[i], bytes);
        assert_memory_equal(got, alone[i], bytes);
        free(got);
        free(alone[i]);
    }
    gpu_clear(g);
}

static void gate_and_up_have_the_bits_of_three_ops(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const int n_sms = g.props.n_sms;
    for (int i = 0; i < N_KINDS; i++)
        for (int64_t tokens = 1; tokens <= MOST_TOKENS; tokens += tokens == 1 ? 2 : 5) {
            const tsr_glu_kind glu_kind = (tsr_glu_kind)((i + tokens) % (TSR_GLU_BOUNDED + 1));
            g.props.n_sms = tokens == 3 ? 2 : n_sms;
            check_glu(&g, kinds[i], 8 * i + 33, tokens, glu_kind, (enum glu_place)((i + tokens) % 3));
        }
    g.props.n_sms = n_sms;
    for (int i = 0; i <= TSR_GLU_BOUNDED; i++)
        check_glu(&g, kinds[0], 7, 1, (tsr_glu_kind)i, APART);
    gpu_close(&g);
}

/* -- what is not launched together -- */

static void others_are_left_alone(void **state)
{
    (void)state;
    static const int64_t rows[] = {20, 20};
    gpu g = gpu_open();
    family f = family_make(&g, kinds[0], 2, rows, 1);
    g.props.shared_bytes = 1 << 10; /* and there is no scratch memory */
    assert_false(together(&f, NULL, 0));
    f.op[0].mul_mat.type = f.op[1].mul_mat.type = TSR_TYPE_Q5_0;
    assert_int_equal(launched(&f, NULL, 0), 0);
    gpu_close(&g);
}

static void and_so_are_those_after_them(void **state)
{
    (void)state;
    static const int64_t rows[] = {20, 20, 20};
    gpu g = gpu_open();
    family f = family_make(&g, kinds[0], TSR_CUDA_PRODUCTS, rows, 1);
    const size_t bytes = result_bytes(&f.op[2]);
    void *before = fetch(f.op[2].mul_mat.y, bytes);
    f.op[1].mul_mat.type = TSR_TYPE_Q5_0;
    assert_int_equal(launched(&f, NULL, 0), 1);
    void *after = fetch(f.op[2].mul_mat.y, bytes);
    assert_memory_equal(after, before, bytes);
    free(before);
    free(after);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch_has_the_bits_of_several),
        cmocka_unit_test(and_so_have_launches_of_several_types),
        cmocka_unit_test(nor_do_small_cards_change_them),
        cmocka_unit_test(gate_and_up_have_the_bits_of_three_ops),
        cmocka_unit_test(others_are_left_alone),
        cmocka_unit_test(and_so_are_those_after_them),
    };
    return cmocka_run_group_tests_name("products in one launch", tests, NULL, NULL);
}
