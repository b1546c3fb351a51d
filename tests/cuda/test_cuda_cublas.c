/* Products by (simulated) cuBLASLt: right for odd shapes, strides of column splits and either output; who
 * gets them; and every call failing once. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cublasLt.h>
#include <cudasim.h>

#include "core/quant/half.h"
#include "cuda/libs/cublas.h"
#include "cuda/device/device.h"
#include "cuda/simulated.h"
#include "support/random.h"

enum { TOKENS = 40 };

/* y = W x on one device: columns [first, first + k) of W [n_rows][k_all] and of x [n_tokens][k_all]. */
typedef struct problem {
    tsr_type type;
    int64_t n_rows, k_all, first, k, n_tokens;
    tsr_reduce_type reduce;
    float magnitude; /* of x; every other token's is smaller by 2^-20 */
} problem;

typedef struct setting {
    tsr_device *device;
    uint16_t *host_w;
    float *host_x;
    void *w, *x, *y;
    tsr_device_program *program;
    size_t y_bytes;
} setting;

static tsr_status device_open(size_t scratch_bytes, int64_t library_tokens, tsr_device **device_out)
{
    const tsr_cuda_device_config config = {.name = "cuda0", .polls = 10, .library_tokens = library_tokens};
    tsr_status status = tsr_cuda_device_create(&config, device_out);
    if (status == TSR_OK && scratch_bytes)
        (*device_out)->scratch_bytes = scratch_bytes;
    return status;
}

static tsr_op op_of(const problem *p, const setting *s)
{
    return (tsr_op){.kind = TSR_OP_MUL_MAT,
                    .name = "product",
                    .mul_mat = {.type = p->type,
                                .w = (const uint16_t *)s->w + p->first,
                                .w_stride = (size_t)p->k_all * sizeof(uint16_t),
                                .n_rows = p->n_rows,
                                .k = p->k,
                                .x = (const float *)s->x + p->first,
                                .x_stride = p->k_all,
                                .n_tokens = p->n_tokens,
                                .partial = true,
                                .reduce = p->reduce,
                                .granule = 32,
                                .limit = 1,
                                .y = s->y,
                                .y_stride = p->n_rows}};
}

static tsr_status put(tsr_device *device, const void *data, size_t bytes, void **out)
{
    tsr_status status = device->ops->alloc(device, TSR_MEMORY_OTHER, bytes, out);
    return status == TSR_OK && data ? tsr_device_upload(device, *out, data, bytes) : status;
}

/* In (-1, 1). */
static float random_below_one(uint64_t *seed)
{
    return (float)((int64_t)(random_u64(seed) >> 40) - (1 << 23)) * 0x1p-23f;
}

static tsr_status set_up(const problem *p, setting *s)
{
    tsr_status status = TSR_OK;
    const size_t n_w = (size_t)(p->n_rows * p->k_all), n_x = (size_t)(p->n_tokens * p->k_all);
    uint64_t seed = 5;
    float *w = malloc(n_w * sizeof *w);
    s->host_w = malloc(n_w * sizeof *s->host_w);
    s->host_x = malloc(n_x * sizeof *s->host_x);
    for (size_t i = 0; i < n_w; i++)
        w[i] = random_below_one(&seed);
    for (size_t i = 0; i < n_x; i++)
        s->host_x[i] = random_below_one(&seed) * p->magnitude * (i / (size_t)p->k_all % 2 ? 0x1p-20f : 1.0f);
    for (size_t i = 0; i < n_w; i++)
        s->host_w[i] = p->type == TSR_TYPE_F16 ? tsr_f32_to_f16(w[i]) : tsr_f32_to_bf16(w[i]);
    free(w);
    s->y_bytes = (size_t)(p->n_rows * p->n_tokens) * tsr_reduce_bytes(p->reduce);
    TSR_TRY(put(s->device, s->host_w, n_w * sizeof *s->host_w, &s->w));
    TSR_TRY(put(s->device, s->host_x, n_x * sizeof *s->host_x, &s->x));
    TSR_TRY(put(s->device, NULL, s->y_bytes, &s->y));
    const tsr_op op = op_of(p, s);
    TSR_TRY(s->device->ops->program_create(s->device, &op, 1, &s->program));
out:
    return status;
}

static void tear_down(setting *s)
{
    void *blocks[] = {s->w, s->x, s->y};
    if (s->device)
        s->device->ops->program_destroy(s->device, s->program);
    for (int i = 0; i < 3; i++)
        if (blocks[i])
            s->device->ops->free(s->device, blocks[i], 0);
    free(s->host_w);
    free(s->host_x);
    tsr_device_destroy(s->device);
    *s = (setting){0};
}

static tsr_status run(setting *s, void *y)
{
    tsr_status status = s->device->ops->launch(s->device, s->program);
    if (status == TSR_OK)
        status = s->device->ops->synchronize(s->device, 0);
    return status == TSR_OK ? tsr_device_download(s->device, y, s->y, s->y_bytes) : status;
}

/* Activations are rounded to 11 (F16) or 8 (BF16) bits, sums to f32 and, if BF16, to 8 bits. */
static void compare(const problem *p, const setting *s, const void *y)
{
    const double rounding = p->type == TSR_TYPE_F16 ? 0x1p-11 : 0x1p-8;
    for (int64_t t = 0; t < p->n_tokens; t++)
        for (int64_t r = 0; r < p->n_rows; r++) {
            double exact = 0, size = 0;
            for (int64_t i = p->first; i < p->first + p->k; i++) {
                uint16_t bits = s->host_w[r * p->k_all + i];
                double w = p->type == TSR_TYPE_F16 ? tsr_f16_to_f32(bits) : tsr_bf16_to_f32(bits);
                exact += w * s->host_x[t * p->k_all + i];
                size += fabs(w * s->host_x[t * p->k_all + i]);
            }
            int64_t at = t * p->n_rows + r;
            bool bf16 = p->reduce == TSR_REDUCE_BF16;
            double got = bf16 ? tsr_bf16_to_f32(((const uint16_t *)y)[at]) : ((const float *)y)[at];
            double bound = (rounding + 0x1p-20) * size + (bf16 ? 0x1p-8 * fabs(exact) : 0);
            if (!(fabs(got - exact) <= bound))
                fail_msg("rows %d, columns %d of %d, token %d of %d, row %d: %g, exact %g, bound %g",
                         (int)p->n_rows, (int)p->k, (int)p->k_all, (int)t, (int)p->n_tokens, (int)r, got,
                         exact, bound);
        }
}

static uint64_t check(const problem *p, size_t scratch_bytes)
{
    setting s = {0};
    cudasim_configure(NULL);
    ok(device_open(scratch_bytes, 0, &s.device));
    ok(set_up(p, &s));
    void *y = malloc(s.y_bytes);
    for (int again = 0; again < 2; again++) {
        memset(y, 0xff, s.y_bytes);
        ok(run(&s, y));
        compare(p, &s, y);
    }
    uint64_t calls = cudasim_calls_of("cublasLtMatmul");
    free(y);
    tear_down(&s);
    nothing_is_left();
    return calls;
}

static void products_are_right_whatever_the_shape(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {/* rows, columns, of them from, to */
                                        {1, 1, 0, 1},        {7, 33, 0, 33},     {65, 130, 2, 99},
                                        {64, 256, 128, 256}, {130, 515, 0, 515}, {3, 1024, 512, 640}};
    static const float magnitudes[] = {1, 1e6f, 1e-7f}; /* inside F16's range, and out of it at both ends */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 4; k++) {
            problem p = {.type = k % 2 ? TSR_TYPE_BF16 : TSR_TYPE_F16,
                         .n_rows = shapes[i][0],
                         .k_all = shapes[i][1],
                         .first = shapes[i][2],
                         .k = shapes[i][3] - shapes[i][2],
                         .n_tokens = TOKENS + (int64_t)i,
                         .reduce = k / 2 ? TSR_REDUCE_BF16 : TSR_REDUCE_F32,
                         .magnitude = magnitudes[i % 3]};
            assert_int_equal(check(&p, 0), 1);
        }
}

/* Tokens slab by slab, the last one smaller, where scratch memory is short;
 * own kernels where there is none. */
static void little_scratch_memory_takes_slabs(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        problem p = {k ? TSR_TYPE_BF16 : TSR_TYPE_F16, 20, 512, 0, 512, 150, TSR_REDUCE_BF16, 1};
        assert_int_equal(check(&p, ((size_t)8 << 20) + 100 * 1200), 3);
        assert_int_equal(check(&p, (size_t)1 << 20), 0);
    }
}

static uint64_t calls_for(int64_t tokens, tsr_reduce_type reduce, int64_t library_tokens, bool absent)
{
    problem p = {TSR_TYPE_F16, 8, 64, 0, 64, tokens, reduce, 1};
    setting s = {0};
    cudasim_configure(NULL);
    if (absent)
        cudasim_remove_cublas();
    ok(device_open(0, library_tokens, &s.device));
    p.reduce = reduce;
    ok(set_up(&p, &s));
    void *y = malloc(s.y_bytes);
    tsr_status status = run(&s, y);
    assert_true(status == TSR_OK || (reduce == TSR_REDUCE_EXACT && status == TSR_ERR_RANGE));
    uint64_t calls = cudasim_calls_of("cublasLtMatmul");
    if (calls == 0)
        assert_int_equal(cudasim_calls_of("cublasLtCreate"), 0);
    free(y);
    tear_down(&s);
    nothing_is_left();
    return calls;
}

static void only_many_tokens_of_inexact_reductions_are_the_librarys(void **state)
{
    (void)state;
    assert_int_equal(calls_for(TSR_CUBLAS_TOKENS, TSR_REDUCE_F32, 0, false), 1);
    assert_int_equal(calls_for(TSR_CUBLAS_TOKENS - 1, TSR_REDUCE_F32, 0, false), 0);
    assert_int_equal(calls_for(100, TSR_REDUCE_EXACT, 0, false), 0);
    assert_int_equal(calls_for(3, TSR_REDUCE_BF16, 2, false), 1);
    assert_int_equal(calls_for(100, TSR_REDUCE_F32, -1, false), 0);
    assert_int_equal(calls_for(100, TSR_REDUCE_F32, 0, true), 0); /* no library: own kernels, and a warning */
}

/* Each call of cuBLASLt fails once: a status that names device and call, or the right result (a product that
 * cannot be captured is launched anew); nothing is left. */
static void every_call_fails_once(void **state)
{
    (void)state;
    static const char *const calls[] = {"cublasLtCreate",
                                        "cublasLtMatmulDescCreate",
                                        "cublasLtMatmulDescSetAttribute",
                                        "cublasLtMatrixLayoutCreate",
                                        "cublasLtMatmulPreferenceCreate",
                                        "cublasLtMatmulPreferenceSetAttribute",
                                        "cublasLtMatmulAlgoGetHeuristic",
                                        "cublasLtMatmul",
                                        "cublasLtMatmulPreferenceDestroy",
                                        "cublasLtMatrixLayoutDestroy",
                                        "cublasLtMatmulDescDestroy",
                                        "cublasLtDestroy"};
    const problem p = {TSR_TYPE_F16, 20, 512, 0, 512, 150, TSR_REDUCE_BF16, 1};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (uint64_t nth = 1;; nth++) {
            setting s = {0};
            cudasim_configure(NULL);
            ok(device_open(((size_t)8 << 20) + 100 * 1200, 0, &s.device));
            cudasim_fail_named(calls[c], nth, 0);
            tsr_status status = set_up(&p, &s);
            void *y = malloc(s.y_bytes);
            if (status == TSR_OK)
                status = run(&s, y);
            if (status == TSR_OK)
                compare(&p, &s, y);
            else if (!strstr(tsr_last_error(), calls[c]) || !strstr(tsr_last_error(), "cuda0"))
                fail_msg("%s, number %d: '%s'", calls[c], (int)nth, tsr_last_error());
            free(y);
            tear_down(&s);
            bool hit = cudasim_faults_hit() > 0;
            assert_int_equal(status != TSR_OK, hit && !strstr(calls[c], "Destroy") && c != 7);
            nothing_is_left();
            if (!hit)
                break;
        }
}

/* As cublasLtCreate() says it: the next older library multiplies, and own kernels where there is none. */
static void a_library_newer_than_the_driver_is_not_used(void **state)
{
    (void)state;
    enum { INSTALLED = 2 };
    const problem p = {TSR_TYPE_F16, 20, 64, 0, 64, 40, TSR_REDUCE_F32, 1};
    for (int too_new = 1; too_new <= INSTALLED; too_new++) {
        setting s = {0};
        cudasim_configure(NULL);
        ok(device_open(0, 0, &s.device));
        for (int i = 0; i < too_new; i++)
            cudasim_fail_named("cublasLtCreate", 1, CUBLAS_STATUS_NOT_INITIALIZED);
        ok(set_up(&p, &s));
        float *y = malloc(s.y_bytes);
        ok(run(&s, y));
        compare(&p, &s, y);
        assert_int_equal(cudasim_calls_of("cublasLtCreate"), too_new < INSTALLED ? too_new + 1 : INSTALLED);
        assert_int_equal(cudasim_calls_of("cublasLtMatmul") > 0, too_new < INSTALLED);
        free(y);
        tear_down(&s);
        nothing_is_left();
    }
}

/* A product whose launch fails while it is made anew each time, as after a failed capture. */
static void a_launch_that_fails_is_told(void **state)
{
    (void)state;
    const problem p = {TSR_TYPE_BF16, 20, 64, 0, 64, 40, TSR_REDUCE_F32, 1};
    setting s = {0};
    cudasim_configure(NULL);
    ok(device_open(0, 0, &s.device));
    cudasim_fail_named("cublasLtMatmul", 1, 0); /* in the capture */
    cudasim_fail_named("cublasLtMatmul", 1, 0); /* and in the first run */
    ok(set_up(&p, &s));
    float *y = malloc(s.y_bytes);
    assert_int_equal(run(&s, y), TSR_ERR_DEVICE);
    assert_non_null(strstr(tsr_last_error(), "cublasLtMatmul failed: CUBLAS_STATUS_EXECUTION_FAILED"));
    assert_non_null(strstr(tsr_last_error(), "cuda0"));
    assert_non_null(strstr(tsr_last_error(), "'product'"));
    ok(run(&s, y));
    compare(&p, &s, y);
    free(y);
    tear_down(&s);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right_whatever_the_shape),
        cmocka_unit_test(little_scratch_memory_takes_slabs),
        cmocka_unit_test(only_many_tokens_of_inexact_reductions_are_the_librarys),
        cmocka_unit_test(every_call_fails_once),
        cmocka_unit_test(a_library_newer_than_the_driver_is_not_used),
        cmocka_unit_test(a_launch_that_fails_is_told),
    };
    return cmocka_run_group_tests_name("products by cuBLASLt on a simulated GPU", tests, NULL, NULL);
}
