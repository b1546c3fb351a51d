/* conv, recurrence and compress on the host, every instruction set: against double precision
 * (support/recurrent_case.h), and bit for bit where the definition promises it: threads, tokens one by one,
 * parts of the heads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/kernel_run.h"
#include "support/recurrent_case.h"

/* y and the slots after an op. */
typedef struct results {
    float *y, *slots;
} results;

static size_t slot_bytes(const recurrent_case *c)
{
    return (size_t)c->slot_elems * sizeof(float);
}

/* Take the results out of the case, and put back the slots that the op writes. */
static results take(recurrent_case *c, const float *before)
{
    size_t n_y = (size_t)c->n_y * sizeof(float), n_slots = RECURRENT_SLOTS * slot_bytes(c);
    results r = {malloc(n_y), malloc(n_slots)};
    memcpy(r.y, c->y, n_y);
    memcpy(r.slots, c->slots, n_slots);
    memset(c->y, 0xff, n_y);
    memcpy(c->slots, before, n_slots);
    return r;
}

static void results_free(results r)
{
    free(r.y);
    free(r.slots);
}

static void check_same(const recurrent_case *c, results a, results b)
{
    assert_memory_equal(a.y, b.y, (size_t)c->n_y * sizeof(float));
    for (int s = 0; s < RECURRENT_SEQS; s++)
        assert_memory_equal(a.slots + c->rows[s].write * c->slot_elems,
                            b.slots + c->rows[s].write * c->slot_elems, slot_bytes(c));
}

/* Run the tokens one by one: each reads the state that the one before it has written. */
static void run_one_by_one(const tsr_kernel_set *set, recurrent_case *c, int64_t n_tokens)
{
    tsr_op op = c->op;
    tsr_state_index *index = recurrent_case_index(&op);
    int32_t *next = malloc((size_t)n_tokens * sizeof *next);
    memset(next, -1, (size_t)n_tokens * sizeof *next);
    index->next = next;
    index->n_rows = 1;
    for (int s = 0; s < RECURRENT_SEQS; s++) {
        tsr_state_row row = c->rows[s];
        int32_t other = s ? 3 : 0, last = c->rows[s].write;
        for (int32_t t = row.first; t >= 0; t = c->next[t]) {
            row.first = t;
            index->rows = &row;
            (void)kernel_run(set, &op, 1);
            row.read = row.write;
            row.write = row.write == last ? other : last;
        }
        if (row.first >= 0 && row.read != last)
            memcpy(c->slots + last * c->slot_elems, c->slots + other * c->slot_elems, slot_bytes(c));
    }
    free(next);
}

static void check_case(const tsr_kernel_set *set, recurrent_case *c, int64_t n_tokens)
{
    float *before = malloc(RECURRENT_SLOTS * slot_bytes(c));
    memcpy(before, c->slots, RECURRENT_SLOTS * slot_bytes(c));
    (void)kernel_run(set, &c->op, 1);
    results whole = take(c, before);
    recurrent_case_check(c, whole.y, whole.slots);
    (void)kernel_run(set, &c->op, 3);
    results by_threads = take(c, before);
    check_same(c, whole, by_threads);
    run_one_by_one(set, c, n_tokens);
    results one_by_one = take(c, before);
    check_same(c, whole, one_by_one);
    results_free(whole);
    results_free(by_threads);
    results_free(one_by_one);
    free(before);
}

static void conv_is_close_to_its_formula(void **state)
{
    (void)state;
    static const conv_setup setups[] = {{40, 64, 4, true, false, 0},
                                        {7, 35, 3, false, true, 13},
                                        {1, 16, 4, true, true, 0},
                                        {5, 3, 8, false, false, 3}};
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
            recurrent_case c;
            recurrent_case_conv(&c, setups[i]);
            check_case(set, &c, setups[i].n_tokens);
            if (setups[i].gap == 0) {
                c.op.conv.y = (float *)(uintptr_t)c.op.conv.x; /* in place */
                (void)kernel_run(set, &c.op, 2);
                recurrent_case_check(&c, c.op.conv.y, c.slots);
            }
            recurrent_case_destroy(&c);
        }
}

static void compress_is_close_to_its_formula(void **state)
{
    (void)state;
    static const compress_setup setups[] = {
        {40, 40, 4, true}, {41, 35, 4, false}, {150, 16, 128, false}, {2, 3, 5, true}, {1, 16, 2, false}};
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
            recurrent_case c;
            recurrent_case_compress(&c, setups[i]);
            check_case(set, &c, setups[i].n_tokens);
            recurrent_case_destroy(&c);
        }
}

/* The Mamba-2 with three heads has all key heads; two heads of the first one are elsewhere. */
static const recurrence_setup setups[] = {
    {40, 4, 2, 16, 16, false, 0},
    {40, 4, 2, 16, 16, false, 3},
    {9, 6, 6, 20, 24, true, 0},
    {70, 2, 1, 128, 128, false, 0},
    {3, 1, 1, 256, 5, true, 2},
    {40, 4, 2, 16, 16, false, 3, TSR_RECURRENCE_MAMBA, 0, 0},
    {9, 3, 3, 20, 24, false, 0, TSR_RECURRENCE_MAMBA, 2, 4},
    {3, 2, 1, 256, 5, false, 0, TSR_RECURRENCE_MAMBA, 0, 0},
};
enum { N_SETUPS = sizeof setups / sizeof *setups };

static void recurrence_is_close_to_its_formula(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int i = 0; i < N_SETUPS; i++) {
            recurrent_case c;
            recurrent_case_recurrence(&c, setups[i]);
            check_case(set, &c, setups[i].n_tokens);
            recurrent_case_destroy(&c);
        }
}

/* A device with the last key head and its heads computes the bits that a device with all heads does. */
static void recurrence_does_not_depend_on_the_heads_held(void **state)
{
    (void)state;
    enum { TOKENS = 40, HEADS = 4, KEYS = 2, D = 16, MINE = HEADS / KEYS };
    const tsr_kernel_set *set = kernel_run_set(0);
    recurrent_case c;
    recurrent_case_recurrence(
        &c, (recurrence_setup){.n_tokens = TOKENS, .n_heads = HEADS, .n_key_heads = KEYS, .dk = D, .dv = D});
    const tsr_op_recurrence *all = &c.op.recurrence;
    (void)kernel_run(set, &c.op, 1);
    float q[TOKENS][D], k[TOKENS][D], v[TOKENS][MINE][D], alpha[TOKENS][MINE], beta[TOKENS][MINE];
    static float y[TOKENS][MINE][D], slots[RECURRENT_SLOTS][MINE][D][D];
    for (int t = 0; t < TOKENS; t++) {
        memcpy(q[t], all->q + (t * KEYS + 1) * D, sizeof q[t]);
        memcpy(k[t], all->k + (t * KEYS + 1) * D, sizeof k[t]);
        memcpy(v[t], all->v + (t * HEADS + MINE) * D, sizeof v[t]);
        memcpy(alpha[t], all->alpha + t * HEADS + MINE, sizeof alpha[t]);
        memcpy(beta[t], all->beta + t * HEADS + MINE, sizeof beta[t]);
    }
    for (int s = 0; s < RECURRENT_SLOTS; s++)
        memcpy(slots[s], c.slots + s * c.slot_elems + MINE * D * D, sizeof slots[s]);
    tsr_op op = c.op;
    tsr_op_recurrence *mine = &op.recurrence;
    mine->state = (tsr_state_view){&slots[0][0][0][0], MINE * D * D};
    mine->q = q[0];
    mine->k = k[0];
    mine->v = v[0][0];
    mine->alpha = alpha[0];
    mine->beta = beta[0];
    mine->a += MINE;
    mine->dt_bias += MINE;
    mine->y = y[0][0];
    mine->n_heads = mine->heads_stride = MINE;
    mine->n_key_heads = 1;
    (void)kernel_run(set, &op, 1);
    for (int t = 0; t < TOKENS; t++)
        assert_memory_equal(y[t], c.y + (t * HEADS + MINE) * D, sizeof y[t]);
    recurrent_case_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_is_close_to_its_formula),
        cmocka_unit_test(compress_is_close_to_its_formula),
        cmocka_unit_test(recurrence_is_close_to_its_formula),
        cmocka_unit_test(recurrence_does_not_depend_on_the_heads_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
