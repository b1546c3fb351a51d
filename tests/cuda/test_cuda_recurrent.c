/* conv, recurrence and compress on a GPU: against double precision (support/recurrent_case.h), and the bits
 * of the tokens one by one. */
#include "gpu_run.h"

#include "support/recurrent_case.h"

/* The case on the device, and the results of a run. */
typedef struct there {
    tsr_op op;
    tsr_state_index *index; /* of op */
    float *slots, *y;       /* device memory */
} there;

static size_t slots_bytes(const recurrent_case *c)
{
    return (size_t)(RECURRENT_SLOTS * c->slot_elems) * sizeof(float);
}

static void put_case(gpu *g, const recurrent_case *c, int64_t n_tokens, there *t)
{
    t->op = c->op;
    for (int i = 0; i < c->n_arrays; i++) {
        const size_t field = (size_t)((const char *)c->arrays[i].field - (const char *)&c->op);
        const float *copy =
            gpu_put(g, *c->arrays[i].field, (size_t)c->arrays[i].n * sizeof(float), i % 2 == 0);
        memcpy((char *)&t->op + field, &copy, sizeof copy);
    }
    t->slots = gpu_put(g, c->slots, slots_bytes(c), false);
    t->y = gpu_alloc(g, (size_t)c->n_y * sizeof(float), false);
    t->index = recurrent_case_index(&t->op);
    t->index->rows = gpu_put(g, c->rows, sizeof c->rows, false);
    t->index->next = gpu_put(g, c->next, (size_t)n_tokens * sizeof *c->next, false);
    recurrent_case_state(&t->op)->base = t->slots;
    *recurrent_case_y(&t->op) = t->y;
    if (c->position)
        t->op.compress.position = gpu_put(g, c->position, (size_t)n_tokens * sizeof *c->position, false);
}

/* Run the tokens of each sequence one by one, each from the state that the previous one has written. */
static void run_one_by_one(gpu *g, const recurrent_case *c, int64_t n_tokens, there *t)
{
    int32_t *none = malloc((size_t)n_tokens * sizeof *none);
    memset(none, 0xff, (size_t)n_tokens * sizeof *none);
    t->index->next = gpu_put(g, none, (size_t)n_tokens * sizeof *none, false);
    t->index->n_rows = 1;
    for (int s = 0; s < RECURRENT_SEQS; s++) {
        tsr_state_row row = c->rows[s];
        for (int32_t i = row.first; i >= 0; i = c->next[i]) {
            row.first = i;
            t->index->rows = gpu_put(g, &row, sizeof row, false);
            assert_false(gpu_run(g, &t->op));
            row.read = row.write;
            row.write ^= 1; /* slots 1 and 0, or 2 and 3 */
        }
    }
    free(none);
}

static void check_case(const recurrent_case *c, int64_t n_tokens)
{
    gpu g = gpu_open();
    there t;
    float *y = malloc((size_t)c->n_y * sizeof *y), *again = malloc((size_t)c->n_y * sizeof *y);
    float *slots = malloc(slots_bytes(c));
    put_case(&g, c, n_tokens, &t);
    assert_false(gpu_run(&g, &t.op));
    gpu_get(y, t.y, (size_t)c->n_y * sizeof *y);
    gpu_get(slots, t.slots, slots_bytes(c));
    recurrent_case_check(c, y, slots);
    gpu_fill(t.y, 0xff, (size_t)c->n_y * sizeof *y);
    run_one_by_one(&g, c, n_tokens, &t);
    gpu_get(again, t.y, (size_t)c->n_y * sizeof *y);
    assert_memory_equal(y, again, (size_t)c->n_y * sizeof *y);
    free(y);
    free(again);
    free(slots);
    gpu_close(&g);
}

static void conv_is_close_to_its_formula(void **state)
{
    (void)state;
    static const conv_setup setups[] = {{40, 300, 4, true, false, 0},
                                        {7, 35, 3, false, true, 13},
                                        {1, 128, 4, true, true, 0},
                                        {5, 3, 8, false, false, 3}};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        recurrent_case c;
        recurrent_case_conv(&c, setups[i]);
        check_case(&c, setups[i].n_tokens);
        recurrent_case_destroy(&c);
    }
}

static void compress_is_close_to_its_formula(void **state)
{
    (void)state;
    static const compress_setup setups[] = {
        {40, 300, 4, true}, {41, 35, 4, false}, {150, 16, 128, false}, {2, 3, 5, true}, {1, 128, 2, false}};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        recurrent_case c;
        recurrent_case_compress(&c, setups[i]);
        check_case(&c, setups[i].n_tokens);
        recurrent_case_destroy(&c);
    }
}

static void recurrence_is_close_to_its_formula(void **state)
{
    (void)state;
    static const recurrence_setup setups[] = {
        {20, 4, 2, 16, 16, false, 0},
        {20, 4, 2, 16, 16, false, 3},
        {9, 6, 6, 20, 24, true, 0},
        {12, 2, 1, 128, 128, false, 0},
        {3, 1, 1, 256, 5, true, 2},
        {20, 4, 2, 16, 16, false, 3, TSR_RECURRENCE_MAMBA, 0, 0},
        {9, 3, 3, 20, 24, false, 0, TSR_RECURRENCE_MAMBA, 2, 4},
        {3, 2, 1, 256, 5, false, 0, TSR_RECURRENCE_MAMBA, 0, 0},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        recurrent_case c;
        recurrent_case_recurrence(&c, setups[i]);
        check_case(&c, setups[i].n_tokens);
        recurrent_case_destroy(&c);
    }
}

/* A grid's second and third sides are short. */
static void more_than_a_grid_takes_is_refused(void **state)
{
    (void)state;
    tsr_op op = {.kind = TSR_OP_RECURRENCE, .recurrence = {.n_heads = 65535, .dk = 8, .index.n_rows = 65535}};
    assert_int_equal(tsr_cuda_op_check(&op), TSR_OK);
    op.recurrence.n_heads++;
    assert_int_equal(tsr_cuda_op_check(&op), TSR_ERR_UNSUPPORTED);
    op.recurrence.n_heads--;
    op.recurrence.index.n_rows++;
    assert_int_equal(tsr_cuda_op_check(&op), TSR_ERR_UNSUPPORTED);
    op = (tsr_op){.kind = TSR_OP_MUL_HEADS, .mul_heads = {.type = TSR_TYPE_F32, .n_heads = 65535}};
    assert_int_equal(tsr_cuda_op_check(&op), TSR_OK);
    op.mul_heads.n_heads++;
    assert_int_equal(tsr_cuda_op_check(&op), TSR_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_is_close_to_its_formula),
        cmocka_unit_test(compress_is_close_to_its_formula),
        cmocka_unit_test(recurrence_is_close_to_its_formula),
        cmocka_unit_test(more_than_a_grid_takes_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
