/* Experts with quantized weights on integer tensor cores: the same bits for a token alone and among many, in
 * any portions and through any kernel; and odd places of weights. test_cuda_experts.c compares with double
 * precision. */
#include "gpu_run.h"

#include "core/status.h"
#include "support/experts_case.h"

static const tsr_type types[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0,   TSR_TYPE_Q4_K, TSR_TYPE_Q5_K,
                                 TSR_TYPE_Q6_K, TSR_TYPE_IQ4_NL, TSR_TYPE_MXFP4};
enum { N_TYPES = sizeof types / sizeof *types, ROOM = 8 << 20 };

#ifndef X_BITS
#define X_BITS 16
#endif

static experts_case create_case(experts_setup s, uint64_t seed)
{
    s.x_bits = X_BITS;
    return experts_case_create(s, seed);
}

/* All matrices of a case on the device, `odd` bytes behind a multiple of 16. */
static experts_memory put_matrices(gpu *g, const experts_case *c, size_t odd)
{
    experts_memory memory = {0};
    for (int i = 0; i < EXPERTS_MATRICES; i++) {
        const experts_matrix *m = &c->m[i];
        const size_t bytes = m->expert_bytes * (size_t)c->s.n_experts;
        unsigned char *data = gpu_alloc(g, bytes + odd, true);
        GPU_OK(cudaMemcpy(data + odd, m->bytes, bytes, cudaMemcpyHostToDevice));
        memory.data[i] = data + odd;
        memory.expert_stride[i] = m->expert_bytes;
        memory.bias[i] = gpu_put(g, c->bias[i], (size_t)(c->s.n_experts * m->n_rows) * sizeof(float), false);
    }
    return memory;
}

/* The results of some tokens. */
typedef struct results {
    float *hidden;
    void *y;
    size_t hidden_bytes, y_bytes;
} results;

static void results_free(results r)
{
    free(r.hidden);
    free(r.y);
}

/* Run an op with `room` bytes of scratch memory. */
static void run_in(gpu *g, const tsr_op *op, size_t room)
{
    void *scratch = NULL;
    tsr_cuda_stream s = gpu_stream(g, NULL);
    GPU_OK(cudaMalloc(&scratch, room));
    s.scratch = scratch;
    s.scratch_bytes = room;
    assert_int_equal(tsr_cuda_op_check(op), TSR_OK);
    assert_int_equal(tsr_cuda_op_launch(op, &s), TSR_OK);
    assert_false(gpu_fault(g));
    GPU_OK(cudaFree(scratch));
}

/* Tokens [first, first + n) of the case through both ops. */
static results run_tokens(gpu *g, const experts_case *c, const experts_memory *memory, int64_t first,
                          int64_t n, tsr_reduce_type reduce, size_t room)
{
    experts_case part = *c;
    part.s.n_tokens = n;
    const experts_setup *s = &part.s;
    const experts_shard whole = experts_case_whole(c);
    const int before = g->n_blocks;
    results r = {.hidden_bytes = (size_t)(n * s->n_used * s->n_ff) * sizeof(float),
                 .y_bytes = (size_t)(n * s->n_embd) * tsr_reduce_bytes(reduce)};
    void *words = gpu_alloc(g, (size_t)tsr_routing_words(n, s->n_used, s->n_experts) * 4, false);
    const float *logits =
        gpu_put(g, c->logits + first * s->n_experts, (size_t)(n * s->n_experts) * sizeof(float), false);
    const float *x = gpu_put(g, c->x + first * s->n_embd, (size_t)(n * s->n_embd) * sizeof(float), false);
    float *hidden = gpu_alloc(g, r.hidden_bytes, false);
    void *y = gpu_alloc(g, r.y_bytes, false);
    const tsr_op route = experts_case_route_op(&part, logits, NULL, words);
    const tsr_op glu = experts_case_glu_op(&part, whole, memory, route.route.routing, x, hidden);
    const tsr_op down = experts_case_down_op(&part, whole, memory, route.route.routing, hidden, reduce, y);
    run_in(g, &route, room);
    run_in(g, &glu, room);
    run_in(g, &down, room);
    r.hidden = malloc(r.hidden_bytes);
    r.y = malloc(r.y_bytes);
    assert_true(r.hidden && r.y);
    gpu_get(r.hidden, hidden, r.hidden_bytes);
    gpu_get(r.y, y, r.y_bytes);
    while (g->n_blocks > before)
        GPU_OK(cudaFree(g->blocks[--g->n_blocks]));
    return r;
}

static void assert_same(results a, results b)
{
    assert_int_equal(a.hidden_bytes, b.hidden_bytes);
    assert_memory_equal(a.hidden, b.hidden, a.hidden_bytes);
    assert_memory_equal(a.y, b.y, a.y_bytes);
}

/* Two of three experts are used, each by all tokens: tiles of 64 and 6 slots. */
static experts_setup setup_of(tsr_type type, bool biased)
{
    return (experts_setup){type, type, type, 1280, 768, 3, 2, 70, 256, TSR_GLU_SILU, true, .biased = biased};
}

/* The results of many tokens are those of each alone. */
static void check_alone(gpu *g, const experts_case *c, const experts_memory *memory, tsr_reduce_type reduce)
{
    const results all = run_tokens(g, c, memory, 0, c->s.n_tokens, reduce, ROOM);
    for (int64_t t = 0; t < c->s.n_tokens; t += 23) {
        const results one = run_tokens(g, c, memory, t, 1, reduce, ROOM);
        assert_memory_equal(one.hidden, (char *)all.hidden + (size_t)t * one.hidden_bytes, one.hidden_bytes);
        assert_memory_equal(one.y, (char *)all.y + (size_t)t * one.y_bytes, one.y_bytes);
        results_free(one);
    }
    results_free(all);
}

/* -- tests -- */

static void a_token_alone_and_among_many_has_the_same_bits(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++) {
        experts_case c = create_case(setup_of(types[i], i % 2), 7 + (uint64_t)i);
        const experts_memory memory = put_matrices(&g, &c, 0);
        check_alone(&g, &c, &memory, TSR_REDUCE_EXACT);
        check_alone(&g, &c, &memory, i % 2 ? TSR_REDUCE_F32 : TSR_REDUCE_BF16);
        gpu_clear(&g);
        experts_case_destroy(&c);
    }
    gpu_close(&g);
}

/* Rows, columns and granules that fill neither tiles nor chunks, and more experts of a token than lanes. */
static void ragged_shapes_have_the_same_bits(void **state)
{
    (void)state;
    static const experts_setup setups[] = {
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 416, 544, 5, 3, 30, 96, TSR_GLU_GELU_TANH, true},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, 32, 32, 4, 2, 9, 32, TSR_GLU_SILU, true},
        {TSR_TYPE_Q4_K, TSR_TYPE_Q6_K, TSR_TYPE_Q5_K, 256, 768, 3, 3, 12, 512, TSR_GLU_SILU, true},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, 64, 96, 72, 40, 30, 32, TSR_GLU_SILU, true},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, TSR_TYPE_F16, 96, 20, 4, 2, 9, 4, TSR_GLU_SILU, true},
        {TSR_TYPE_Q6_K, TSR_TYPE_Q6_K, TSR_TYPE_F16, 256, 20, 4, 2, 9, 4, TSR_GLU_SILU, true},
        {TSR_TYPE_MXFP4, TSR_TYPE_MXFP4, TSR_TYPE_MXFP4, 416, 544, 5, 3, 30, 96, TSR_GLU_CLAMPED, true},
        {TSR_TYPE_MXFP4, TSR_TYPE_MXFP4, TSR_TYPE_MXFP4, 704, 1120, 3, 2, 12, 128, TSR_GLU_CLAMPED, true},
        {TSR_TYPE_Q4_K, TSR_TYPE_MXFP4, TSR_TYPE_Q8_0, 256, 96, 3, 1, 12, 64, TSR_GLU_CLAMPED, true,
         .biased = true}};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        experts_case c = create_case(setups[i], 30 + i);
        const experts_memory memory = put_matrices(&g, &c, 0);
        check_alone(&g, &c, &memory, TSR_REDUCE_EXACT);
        check_alone(&g, &c, &memory, TSR_REDUCE_F32);
        gpu_clear(&g);
        experts_case_destroy(&c);
    }
    gpu_close(&g);
}

/* Scratch memory for all tokens, for some, and for none: in portions, and without. */
static void portions_have_the_same_bits(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < 2; i++) {
        const tsr_reduce_type reduce = i == 0 ? TSR_REDUCE_EXACT : TSR_REDUCE_F32;
        experts_case c = create_case(setup_of(TSR_TYPE_Q4_K, true), 90);
        const experts_memory memory = put_matrices(&g, &c, 0);
        const results all = run_tokens(&g, &c, &memory, 0, c.s.n_tokens, reduce, ROOM);
        static const size_t rooms[] = {400 << 10, 100 << 10, 1 << 10};
        for (int j = 0; j < (i == 0 ? 3 : 2); j++) {
            const results again = run_tokens(&g, &c, &memory, 0, c.s.n_tokens, reduce, rooms[j]);
            assert_same(all, again);
            results_free(again);
        }
        results_free(all);
        gpu_clear(&g);
        experts_case_destroy(&c);
    }
    gpu_close(&g);
}

/* Weights at an odd multiple of two bytes, which asynchronous copies cannot move; MXFP4 at odd bytes. */
static void odd_places_have_the_same_bits(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++) {
        experts_setup s = setup_of(types[i], false);
        s.n_embd = 256;
        s.n_ff = 512;
        experts_case c = create_case(s, 50);
        const experts_memory even = put_matrices(&g, &c, 0),
                             odd = put_matrices(&g, &c, types[i] == TSR_TYPE_MXFP4 ? 3 : 2);
        for (int64_t n = 1; n <= s.n_tokens; n += s.n_tokens - 1) {
            const results a = run_tokens(&g, &c, &even, 0, n, TSR_REDUCE_EXACT, ROOM);
            const results b = run_tokens(&g, &c, &odd, 0, n, TSR_REDUCE_EXACT, ROOM);
            assert_same(a, b);
            results_free(a);
            results_free(b);
        }
        gpu_clear(&g);
        experts_case_destroy(&c);
    }
    gpu_close(&g);
}

/* Sums of slots need room, which the message names. */
static void too_little_scratch_memory_is_reported(void **state)
{
    (void)state;
    gpu g = gpu_open();
    experts_setup setup = setup_of(TSR_TYPE_Q8_0, false);
    setup.n_tokens = 1;
    experts_case c = create_case(setup, 60);
    const experts_memory memory = put_matrices(&g, &c, 0);
    const tsr_cuda_stream s = gpu_stream(&g, NULL);
    void *words = gpu_alloc(&g, (size_t)tsr_routing_words(1, 2, 3) * 4, false);
    float *hidden = gpu_alloc(&g, (size_t)(2 * setup.n_ff) * sizeof(float), false);
    void *y = gpu_alloc(&g, (size_t)setup.n_embd * sizeof(float), false);
    const tsr_op down = experts_case_down_op(&c, experts_case_whole(&c), &memory,
                                             tsr_routing_at(words, 1, 2, 3), hidden, TSR_REDUCE_F32, y);
    assert_int_equal(tsr_cuda_op_launch(&down, &s), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "bytes of scratch memory"));
    gpu_clear(&g);
    experts_case_destroy(&c);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_alone_and_among_many_has_the_same_bits),
        cmocka_unit_test(ragged_shapes_have_the_same_bits),
        cmocka_unit_test(portions_have_the_same_bits),
        cmocka_unit_test(odd_places_have_the_same_bits),
        cmocka_unit_test(too_little_scratch_memory_is_reported),
    };
    return cmocka_run_group_tests_name("quantized experts on CUDA", tests, NULL, NULL);
}
