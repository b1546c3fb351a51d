#include "support/mul_mat_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <tsr/types.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "support/weight_types.h"

static const tsr_type types[] = {WEIGHT_TYPES};
enum { N_TYPES = sizeof types / sizeof *types };
enum { FIRST_OF_8 = 1 };
_Static_assert(N_KINDS == 2 * N_TYPES - FIRST_OF_8, "mul_mat_case.h counts the kinds");

kind mul_mat_kind(int i)
{
    return i < N_TYPES ? (kind){types[i], 16} : (kind){types[i - N_TYPES + FIRST_OF_8], 8};
}

int64_t mul_mat_block(tsr_type type)
{
    return tsr_type_block_elems(type);
}

/* Whether products with the type are sums of integers; of floats otherwise. */
static bool is_integer(tsr_type type)
{
    return mul_mat_block(type) > 1 && type != TSR_TYPE_NVFP4;
}

/* Half a step of the integers that stand for x[k] beside quantized weights (host/kernels/quant/x_blocks.h),
 * 1.001 times for the scale's own rounding: 32 activations share a scale. */
static void half_steps(const problem *p, const float *x, double *steps)
{
    const int most = p->x_bits == 8 ? 127 : p->type == TSR_TYPE_Q6_K ? 16383 : 32767;
    memset(steps, 0, (size_t)p->k * sizeof *steps);
    for (int64_t i = 0; i < p->k && is_integer(p->type); i += 32) {
        float largest = 0;
        for (int64_t j = i; j < i + 32; j++)
            largest = fmaxf(largest, fabsf(x[j]));
        for (int64_t j = i; j < i + 32; j++)
            steps[j] = 1.001 * largest / most / 2;
    }
}

void problem_exact(problem *p)
{
    double *steps = malloc((size_t)p->k * sizeof *steps);
    assert_non_null(steps);
    for (int64_t t = 0; t < p->n_tokens; t++) {
        const float *x = p->x + t * p->k;
        half_steps(p, x, steps);
        for (int64_t r = 0; r < p->n_rows; r++) {
            double sum = 0, magnitude = 0, rounding = 0;
            for (int64_t i = 0; i < p->k; i++) {
                const double w = (double)p->decoded[r * p->k + i], product = w * (double)x[i];
                sum += product;
                magnitude += fabs(product);
                rounding += fabs(w) * steps[i];
            }
            p->rounding[t * p->n_rows + r] = rounding;
            p->exact[t * p->n_rows + r] = sum;
            p->magnitude[t * p->n_rows + r] = magnitude;
        }
    }
    free(steps);
}

problem problem_create(kind of, int64_t n_rows, int64_t k, int64_t n_tokens, uint64_t seed)
{
    const tsr_type type = of.type;
    problem p = {.type = type, .x_bits = of.x_bits, .n_rows = n_rows, .k = k, .n_tokens = n_tokens};
    const size_t outputs = (size_t)(n_rows * n_tokens);
    p.row_bytes = tsr_type_row_bytes(type, k);
    p.w_bytes = p.row_bytes * (size_t)n_rows;
    p.x_bytes = (size_t)(n_tokens * k) * sizeof(float);
    p.w = guarded_alloc(p.w_bytes);
    p.x = guarded_alloc(p.x_bytes);
    p.decoded = calloc((size_t)(n_rows * k), sizeof(float));
    p.exact = calloc(outputs, sizeof(double));
    p.magnitude = calloc(outputs, sizeof(double));
    p.rounding = calloc(outputs, sizeof(double));
    random_fill(&seed, p.x, n_tokens * k, -2.0f, 2.0f);
    random_fill(&seed, p.decoded, n_rows * k, -1.0f, 1.0f);
    for (int64_t r = 0; r < n_rows; r++) {
        unsigned char *row = p.w + (size_t)r * p.row_bytes;
        assert_int_equal(tsr_type_from_f32(type, p.decoded + r * k, row, k), TSR_OK);
        assert_int_equal(tsr_type_to_f32(type, row, p.decoded + r * k, k), TSR_OK);
    }
    problem_exact(&p);
    return p;
}

void problem_destroy(problem *p)
{
    guarded_free(p->w, p->w_bytes);
    guarded_free(p->x, p->x_bytes);
    free(p->decoded);
    free(p->exact);
    free(p->magnitude);
    free(p->rounding);
}

size_t problem_output_bytes(const problem *p, bool partial, tsr_reduce_type reduce)
{
    return (size_t)(p->n_tokens * p->n_rows) * (partial ? tsr_reduce_bytes(reduce) : sizeof(float));
}

tsr_op problem_op(const problem *p, int64_t granule, tsr_reduce_type reduce, void *y)
{
    return (tsr_op){
        .kind = TSR_OP_MUL_MAT,
        .mul_mat = {.type = p->type,
                    .w = p->w,
                    .w_stride = p->row_bytes,
                    .n_rows = p->n_rows,
                    .k = p->k,
                    .x = p->x,
                    .x_stride = p->k,
                    .n_tokens = p->n_tokens,
                    .partial = granule > 0,
                    .reduce = reduce,
                    .granule = granule,
                    .limit = granule > 0 ? tsr_fixed_limit((p->k + granule - 1) / granule) : 0,
                    .y = y,
                    .y_stride = p->n_rows,
                    .x_bits = p->x_bits},
    };
}

static double output_at(const void *y, bool partial, tsr_reduce_type reduce, int64_t i)
{
    if (partial && reduce == TSR_REDUCE_EXACT)
        return (double)((const int64_t *)y)[i] / TSR_FIXED_ONE;
    return partial && reduce == TSR_REDUCE_BF16 ? tsr_bf16_to_f32(((const uint16_t *)y)[i])
                                                : ((const float *)y)[i];
}

/* Rounding: of plain weights a lane adds 16 products per segment, the tree adds 5 times, then segments are
 * added up, at most one rounding (two without a fused multiply-add) each; of quantized ones each block rounds
 * at most five times, and so do minima, which may be larger than the sum. Relative to the sum of magnitudes.
 * A lane of pairs adds two products per 32 elements. Tiles of bfloat16 add 16 products, then up to three sums
 * per 32 elements, to parts of activations. A bfloat16 has 8 bits of the sum. */
static void check_close(const problem *p, const tsr_kernel_set *set, int64_t granule, tsr_reduce_type reduce,
                        const void *y)
{
    const double n_granules = granule > 0 ? (double)((p->k + granule - 1) / granule) : 1;
    const double product_error = kernel_run_product_error(set, p->type, p->x_bits);
    const bool tiles = product_error > 0 && !kernel_run_is_pairs(set, p->type, p->x_bits);
    const double roundings =
        tiles ? 17 + 3 * (double)p->k / 32 + 4 * n_granules : 2 * 16 + 5 + (double)p->k / 16 + 1 + n_granules;
    for (int64_t i = 0; i < p->n_tokens * p->n_rows; i++) {
        const bool exact = granule > 0 && reduce == TSR_REDUCE_EXACT;
        const bool bf16 = granule > 0 && reduce == TSR_REDUCE_BF16;
        const double got = output_at(y, granule > 0, reduce, i);
        const double bound = (roundings * 0x1p-24 + product_error) * p->magnitude[i] + p->rounding[i] +
                             (exact ? n_granules * 0.5 / TSR_FIXED_ONE : 0) +
                             (bf16 ? 0x1p-8 * fabs(p->exact[i]) : 0);
        if (!(fabs(got - p->exact[i]) <= bound))
            fail_msg(
                "%s %s x_bits %d rows %d k %d tokens %d granule %d output %d: %.9g, exact %.9g, bound %.3g",
                set->isa, tsr_type_name(p->type), p->x_bits, (int)p->n_rows, (int)p->k, (int)p->n_tokens,
                (int)granule, (int)i, got, p->exact[i], bound);
    }
}

/* Do all sets agree? The generic one multiplies and adds floats with two roundings where the target's
 * baseline has no fused multiply-add; tiles and pairs of bfloat16 have an order of their own. */
static bool same_bits_promised(const problem *p, const tsr_kernel_set *set)
{
    if (kernel_run_product_error(set, p->type, p->x_bits) > 0)
        return false;
#ifdef __FP_FAST_FMAF
    return true;
#else
    return strcmp(set->isa, "generic") != 0 || is_integer(p->type);
#endif
}

void problem_check_sets(const problem *p, int64_t granule, tsr_reduce_type reduce)
{
    const size_t bytes = problem_output_bytes(p, granule > 0, reduce);
    void *y = guarded_alloc(bytes), *again = guarded_alloc(bytes), *first = NULL;
    const tsr_kernel_set *set;
    for (int i = 0; (set = kernel_run_product_set(i)) != NULL; i++) {
        tsr_op op = problem_op(p, granule, reduce, y);
        assert_false(kernel_run(set, &op, 1));
        check_close(p, set, granule, reduce, y);
        for (int threads = 2; threads <= 5; threads += 3) {
            op.mul_mat.y = again;
            memset(again, 0xff, bytes);
            assert_false(kernel_run(set, &op, threads));
            assert_memory_equal(y, again, bytes);
        }
        if (!same_bits_promised(p, set))
            continue;
        if (first)
            assert_memory_equal(y, first, bytes);
        else
            memcpy(first = guarded_alloc(bytes), y, bytes);
    }
    guarded_free(y, bytes);
    guarded_free(again, bytes);
    guarded_free(first, bytes);
}

void problem_check_tokens(const problem *p, int64_t granule)
{
    const tsr_kernel_set *set;
    const size_t bytes = problem_output_bytes(p, granule > 0, TSR_REDUCE_EXACT);
    const size_t token_bytes = bytes / (size_t)p->n_tokens;
    char *many = guarded_alloc(bytes), *one = guarded_alloc(token_bytes);
    for (int s = 0; (set = kernel_run_product_set(s)) != NULL; s++) {
        tsr_op op = problem_op(p, granule, TSR_REDUCE_EXACT, many);
        assert_false(kernel_run(set, &op, 1));
        op.mul_mat.y = one;
        op.mul_mat.n_tokens = 1;
        for (int64_t t = 0; t < p->n_tokens; t++) {
            op.mul_mat.x = p->x + t * p->k;
            assert_false(kernel_run(set, &op, 1));
            assert_memory_equal(one, many + (size_t)t * token_bytes, token_bytes);
        }
    }
    guarded_free(many, bytes);
    guarded_free(one, token_bytes);
}
