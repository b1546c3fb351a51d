/* Activations that a host device packs for all its threads: which threads share them, where they are, and
 * that what is multiplied from there has the bits of what every thread packs for itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <tsr/types.h>

#include "core/event.h"
#include "host/device.h"
#include "host/packing.h"
#include "support/kernel_run.h"

enum { K = 512, ROWS = 80, TOKENS = 40 };

static tsr_device *device_of(const tsr_kernel_set *set, int n_threads)
{
    const tsr_host_device_config config = {
        .name = "host:0", .n_threads = n_threads, .numa_node = -1, .kernels = set};
    tsr_device *device = NULL;
    assert_int_equal(tsr_host_device_create(&config, &device), TSR_OK);
    return device;
}

static tsr_op product(tsr_type type, const void *w, const float *x, int64_t n_tokens, float *y)
{
    return (tsr_op){.kind = TSR_OP_MUL_MAT,
                    .mul_mat = {.type = type,
                                .x_bits = 8,
                                .w = w,
                                .w_stride = tsr_type_row_bytes(type, K),
                                .n_rows = ROWS,
                                .k = K,
                                .x = x,
                                .x_stride = K,
                                .n_tokens = n_tokens,
                                .y = y,
                                .y_stride = ROWS}};
}

static void find(const tsr_device *device, const tsr_op *ops, int n, tsr_host_packed packed[])
{
    const tsr_host_device *host = tsr_host((tsr_device *)device);
    const tsr_kernel_env env = {.n_threads = device->n_threads, .pairs = host->kernels->pairs};
    const tsr_op *pointers[TSR_HOST_RUN_OPS];
    for (int i = 0; i < n; i++)
        pointers[i] = &ops[i];
    tsr_host_find_packed(host, &env, pointers, n, packed);
}

static void products_that_read_alike_share(void **state)
{
    (void)state;
    static float x[2][TOKENS * K];
    tsr_device *device = device_of(tsr_kernel_set_select("generic"), 2);
    const tsr_op ops[] = {
        product(TSR_TYPE_Q4_0, NULL, x[0], TOKENS, NULL), product(TSR_TYPE_Q4_0, NULL, x[0], TOKENS, NULL),
        product(TSR_TYPE_Q8_0, NULL, x[0], TOKENS, NULL), product(TSR_TYPE_Q4_0, NULL, x[1], TOKENS, NULL)};
    tsr_host_packed packed[4];
    find(device, ops, 4, packed);
    assert_true(packed[0].is_first && packed[2].is_first && packed[3].is_first);
    assert_ptr_equal(packed[0].at, packed[1].at);
    assert_false(packed[1].is_first);
    assert_true(packed[2].at - packed[0].at >= TOKENS * K); /* a byte per element at least */
    assert_true(packed[3].at - packed[2].at >= TOKENS * K);
    tsr_device_destroy(device);
}

static void one_token_and_other_ops_pack_nothing(void **state)
{
    (void)state;
    static float x[K];
    tsr_device *device = device_of(tsr_kernel_set_select(NULL), 2);
    const tsr_op ops[] = {product(TSR_TYPE_Q8_0, NULL, x, 1, NULL),
                          {.kind = TSR_OP_SCALE, .scale = {.x = x, .y = x, .n = K}}};
    tsr_host_packed packed[2];
    find(device, ops, 2, packed);
    assert_null(packed[0].at);
    assert_null(packed[1].at);
    tsr_device_destroy(device);
}

static void what_does_not_fit_leaves_room_for_others(void **state)
{
    (void)state;
    static float x[K];
    tsr_device *device = device_of(tsr_kernel_set_select(NULL), 1);
    const tsr_op ops[] = {product(TSR_TYPE_Q8_0, NULL, x, 1 << 20, NULL),
                          product(TSR_TYPE_Q8_0, NULL, x, TOKENS, NULL)};
    tsr_host_packed packed[2];
    find(device, ops, 2, packed);
    assert_null(packed[0].at);
    assert_non_null(packed[1].at);
    tsr_device_destroy(device);
}

/* Two products of one input, then one of what the first brought. */
typedef struct chain {
    tsr_op ops[3];
    float y[3][TOKENS * K];
} chain;

static void chain_fill(chain *c, tsr_type type, const void *w, const float *x)
{
    memset(c->y, 0, sizeof c->y);
    c->ops[0] = product(type, w, x, TOKENS, c->y[0]);
    c->ops[1] = product(type, w, x, TOKENS, c->y[1]);
    c->ops[2] = product(type, w, c->y[0], TOKENS, c->y[2]);
    c->ops[0].mul_mat.y_stride = K; /* what the third reads, zeros behind the rows */
}

static void check_program(const tsr_kernel_set *set, int n_threads, tsr_type type, const void *w,
                          const float *x)
{
    static chain packed, own;
    tsr_device *device = device_of(set, n_threads);
    tsr_device_program *program = NULL;
    chain_fill(&packed, type, w, x);
    chain_fill(&own, type, w, x);
    assert_int_equal(device->ops->program_create(device, packed.ops, 3, &program), TSR_OK);
    for (int run = 0; run < 2; run++) { /* the second finds what the first has packed */
        assert_int_equal(device->ops->launch(device, program), TSR_OK);
        assert_int_equal(device->ops->synchronize(device, TSR_FOREVER), TSR_OK);
    }
    device->ops->program_destroy(device, program);
    tsr_device_destroy(device);
    for (int i = 0; i < 3; i++)
        assert_false(kernel_run(set, &own.ops[i], 1));
    assert_memory_equal(packed.y, own.y, sizeof packed.y);
}

static void programs_give_the_bits_of_products_that_pack_for_themselves(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q6_K};
    static float x[TOKENS * K], row[K];
    uint64_t seed = 7;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const size_t row_bytes = tsr_type_row_bytes(types[i], K);
        unsigned char *w = malloc(ROWS * row_bytes);
        assert_non_null(w);
        random_fill(&seed, x, TOKENS * K, -2.0f, 2.0f);
        for (size_t r = 0; r < ROWS; r++) {
            random_fill(&seed, row, K, -1.0f, 1.0f);
            assert_int_equal(tsr_type_from_f32(types[i], row, w + r * row_bytes, K), TSR_OK);
        }
        const tsr_kernel_set *set;
        for (int s = 0; (set = kernel_run_set(s)); s++)
            for (int n_threads = 1; n_threads <= 3; n_threads++)
                check_program(set, n_threads, types[i], w, x);
        free(w);
    }
}

/* Tokens that walk along weights, as many elements as are packed by more threads than these. */
static void few_tokens_are_packed_however_many_threads_sit_out(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_Q6_K};
    enum { LONG_K = 2560, FEW = 4 };
    static float x[FEW * LONG_K], row[LONG_K], one[FEW * ROWS], many[FEW * ROWS];
    uint64_t seed = 8;
    random_fill(&seed, x, FEW * LONG_K, -2.0f, 2.0f);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const size_t row_bytes = tsr_type_row_bytes(types[i], LONG_K);
        unsigned char *w = malloc(ROWS * row_bytes);
        assert_non_null(w);
        for (size_t r = 0; r < ROWS; r++) {
            random_fill(&seed, row, LONG_K, -1.0f, 1.0f);
            assert_int_equal(tsr_type_from_f32(types[i], row, w + r * row_bytes, LONG_K), TSR_OK);
        }
        tsr_op op = product(types[i], w, x, FEW, NULL);
        op.mul_mat.k = op.mul_mat.x_stride = LONG_K;
        op.mul_mat.w_stride = row_bytes;
        const tsr_kernel_set *set;
        for (int s = 0; (set = kernel_run_set(s)); s++)
            for (int n_threads = 2; n_threads <= 4; n_threads++) {
                op.mul_mat.y = one;
                assert_false(kernel_run(set, &op, 1));
                op.mul_mat.y = many;
                assert_false(kernel_run(set, &op, n_threads));
                assert_memory_equal(one, many, sizeof one);
            }
        free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_tokens_are_packed_however_many_threads_sit_out),
        cmocka_unit_test(products_that_read_alike_share),
        cmocka_unit_test(one_token_and_other_ops_pack_nothing),
        cmocka_unit_test(what_does_not_fit_leaves_room_for_others),
        cmocka_unit_test(programs_give_the_bits_of_products_that_pack_for_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
