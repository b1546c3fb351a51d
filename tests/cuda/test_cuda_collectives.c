/* Collectives between simulated GPUs, by every implementation: the same sums to the bit, through host memory
 * by threads and by kernels, and through peer memory in one shot, pulled and pushed, and in two; for odd
 * sizes and any subset of contributors; and what happens where a device never comes. Every partial is made by
 * a kernel inside the program and every slot is used again and again, so a missing wait shows as a wrong
 * sum. */
#include <stdlib.h>

#include "core/mem.h"
#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "cuda/peer_run.h"
#include "support/random.h"

enum { STEPS = 5 };

typedef enum way { STAGED, ONE_SHOT, TWO_SHOT, PUSH, PINNED, N_WAYS } way;

static const char *const way_names[] = {"staged", "one-shot", "two-shot", "push", "pinned"};

static const tsr_peer_form forms[] = {
    [ONE_SHOT] = TSR_PEER_ONE_SHOT,
    [TWO_SHOT] = TSR_PEER_TWO_SHOT,
    [PUSH] = TSR_PEER_PUSH,
    [PINNED] = TSR_PEER_PINNED,
};

static void connect(group *g, way w)
{
    if (w == PINNED)
        tsr_cuda_peers_waiting(g->devices, g->n, g->reach);
    ok(w == STAGED ? tsr_comm_local_create(g->n, &g->comm)
                   : tsr_comm_peer_create(g->devices, g->n, g->reach, forms[w], &g->comm));
}

/* -- a program of sums -- */

/* Step k: contributors look up row block k of a table of their own as partials, all add them up, with the sum
 * of the step before as residual (or none), and normalise the rows. */

typedef enum case_values {
    BELOW_8,
    BELOW_1,
    AT_EDGES /* of the planes of core/quant/wire.h and of the range, next to values far from all edges */
} case_values;

typedef struct sums_case {
    int n_devices, n_gpus;
    int64_t row, n_rows; /* elements per row, rows */
    uint64_t contributors;
    tsr_reduce_type reduce;
    bool residual;
    case_values values;
    bool once; /* run once instead of three times */
} sums_case;

typedef struct sums {
    const sums_case *c;
    size_t n; /* elements */
    float *table[MAX_GPUS], *y[MAX_GPUS], *z[MAX_GPUS], *weight[MAX_GPUS];
    int32_t *ids[MAX_GPUS];
    void *slot[2][MAX_GPUS];
    tsr_collective *collectives[STEPS];
    tsr_device_program *programs[MAX_GPUS];
    float *host_table[MAX_GPUS];
} sums;

static void *put(tsr_device *device, const void *from, size_t bytes)
{
    void *pointer = take(device, bytes);
    ok(tsr_device_upload(device, pointer, from, bytes));
    return pointer;
}

/* A third of the runs of 64 values are near zero, a third below 8, a third has values at edges. */
static float value_of(case_values values, uint64_t random, size_t i)
{
    static const float edges[] = {4,        4 - 0x1p-22f, 512, 512 - 0x1p-15f, 512 + 0x1p-14f,
                                  0x1p-28f, 0x1p29f - 32, 0.5f};
    const float below_8 = (float)(int32_t)(random >> 33) * 0x1p-27f - 8.0f;
    if (values == BELOW_1 || (values == AT_EDGES && i / 64 % 3 == 0))
        return below_8 / 8;
    if (values == BELOW_8 || i / 64 % 3 == 1 || random % 3 == 0)
        return below_8;
    return random % 2 ? edges[random / 16 % 8] : -edges[random / 16 % 8];
}

static void make_buffers(group *g, sums *s)
{
    const sums_case *c = s->c;
    int32_t ids[STEPS * 16];
    uint64_t seed = 5;
    float *weight = malloc((size_t)c->row * sizeof *weight);
    for (int i = 0; i < STEPS * 16; i++)
        ids[i] = i;
    for (int64_t i = 0; i < c->row; i++)
        weight[i] = 0.5f + (float)(i % 7);
    assert_true(c->n_rows <= 16);
    for (int d = 0; d < g->n; d++) {
        tsr_device *device = g->devices[d];
        size_t cells = STEPS * s->n;
        s->host_table[d] = malloc(cells * sizeof(float));
        for (size_t i = 0; i < cells; i++)
            s->host_table[d][i] = value_of(c->values, random_u64(&seed), i);
        s->table[d] = put(device, s->host_table[d], cells * sizeof(float));
        s->ids[d] = put(device, ids, sizeof ids);
        s->weight[d] = put(device, weight, (size_t)c->row * sizeof *weight);
        s->y[d] = take(device, cells * sizeof(float));
        s->z[d] = take(device, cells * sizeof(float));
        for (int slot = 0; slot < 2; slot++)
            s->slot[slot][d] = take(device, s->n * sizeof(int64_t));
    }
    free(weight);
}

static int make_ops(const sums *s, int d, tsr_op *ops)
{
    const sums_case *c = s->c;
    int n = 0;
    for (int k = 0; k < STEPS; k++) {
        float *y = s->y[d] + (size_t)k * s->n;
        if (c->contributors >> d & 1)
            ops[n++] = (tsr_op){.kind = TSR_OP_GET_ROWS,
                                .name = "partial",
                                .get_rows = {.type = TSR_TYPE_F32,
                                             .table = s->table[d],
                                             .table_stride = (size_t)c->row * sizeof(float),
                                             .row_end = STEPS * c->n_rows,
                                             .n_cols = c->row,
                                             .ids = s->ids[d] + k * c->n_rows,
                                             .n_ids = c->n_rows,
                                             .partial = true,
                                             .reduce = c->reduce,
                                             .limit = tsr_fixed_limit(1),
                                             .y = s->slot[k % 2][d]}};
        const float *residual = c->residual && k > 0 ? y - s->n : NULL;
        ops[n++] = (tsr_op){.kind = TSR_OP_ALL_REDUCE,
                            .name = "sum",
                            .all_reduce = {s->collectives[k], residual, y, (int64_t)s->n}};
        ops[n++] =
            (tsr_op){.kind = TSR_OP_RMS_NORM,
                     .name = "norm",
                     .rms_norm = {y, s->weight[d], s->z[d] + (size_t)k * s->n, c->row, c->n_rows, 1e-5f,
                                  k % 2 ? s->weight[d] : NULL, k % 2}}; /* every other one a LayerNorm */
    }
    return n;
}

static void make_sums(group *g, const sums_case *c, sums *s)
{
    tsr_op ops[3 * STEPS];
    *s = (sums){.c = c, .n = (size_t)(c->row * c->n_rows)};
    make_buffers(g, s);
    for (int k = 0; k < STEPS; k++) {
        const tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                          .participants = ((uint64_t)1 << g->n) - 1,
                                          .contributors = c->contributors,
                                          .reduce = c->reduce,
                                          .n = (int64_t)s->n,
                                          .row = c->row,
                                          .partial = s->slot[k % 2],
                                          .name = "sum"};
        ok(g->comm->ops->collective_create(g->comm, &desc, &s->collectives[k]));
    }
    for (int d = 0; d < g->n; d++) {
        int n = make_ops(s, d, ops);
        ok(g->devices[d]->ops->program_create(g->devices[d], ops, n, &s->programs[d]));
    }
}

static void drop_sums(group *g, sums *s)
{
    for (int d = 0; d < g->n; d++) {
        tsr_device *device = g->devices[d];
        void *blocks[] = {s->table[d], s->ids[d],     s->weight[d], s->y[d],
                          s->z[d],     s->slot[0][d], s->slot[1][d]};
        device->ops->program_destroy(device, s->programs[d]);
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            device->ops->free(device, blocks[i], 0);
        free(s->host_table[d]);
    }
    for (int k = 0; k < STEPS; k++)
        g->comm->ops->collective_destroy(g->comm, s->collectives[k]);
}

static void launch_all(group *g, const sums *s)
{
    for (int d = 0; d < g->n; d++)
        ok(g->devices[d]->ops->launch(g->devices[d], s->programs[d]));
}

/* What step k's sum must be. */
static void expect(const sums *s, int k, const float *before, float *y)
{
    for (size_t i = 0; i < s->n; i++) {
        int64_t fixed = 0;
        float plain = 0;
        bool first = true;
        for (uint64_t rest = s->c->contributors; rest; rest &= rest - 1, first = false) {
            float x = s->host_table[__builtin_ctzll(rest)][(size_t)k * s->n + i];
            if (s->c->reduce == TSR_REDUCE_BF16)
                x = tsr_bf16_to_f32(tsr_f32_to_bf16(x));
            fixed += tsr_fixed_from_f32(x);
            plain = first ? x : plain + x;
        }
        y[i] = s->c->reduce == TSR_REDUCE_EXACT ? tsr_fixed_to_f32(fixed) : plain;
        if (s->c->reduce == TSR_REDUCE_BF16)
            y[i] = tsr_bf16_to_f32(tsr_f32_to_bf16(plain));
        if (s->c->residual && k > 0)
            y[i] += before[i];
    }
}

/* Whether all devices reach each other. One GPU's queues let only a few devices wait for each other. */
static bool all_reach(const group *g)
{
    for (int d = 0; d < g->n; d++)
        if (g->reach[d] != ((uint64_t)1 << g->n) - 1)
            return false;
    return true;
}

/* Run three times, two of them queued behind one another; or once. The norms of all steps are the caller's to
 * free. NULL: this machine cannot, which a simulated one always can. */
static float *run_sums(const sums_case *c, way w)
{
    group g;
    sums s;
    open_devices(&g, c->n_devices, c->n_gpus);
    if (w != STAGED && !all_reach(&g)) {
        assert_false(CUDASIM_SIMULATED);
        print_message("a part is left out on this machine: needs peer access between %d devices\n", g.n);
        close_group(&g);
        return NULL;
    }
    connect(&g, w);
    make_sums(&g, c, &s);
    size_t cells = STEPS * s.n, bytes = cells * sizeof(float);
    float *got = malloc(bytes), *expected = malloc(bytes), *norms = malloc(bytes);
    for (int round = 0; round < (c->once ? 1 : 2); round++) {
        for (int again = 0; again <= round; again++)
            launch_all(&g, &s);
        for (int d = 0; d < g.n; d++)
            ok(g.devices[d]->ops->synchronize(g.devices[d], 0));
    }
    for (int k = 0; k < STEPS; k++)
        expect(&s, k, expected + (size_t)TSR_MAX(k - 1, 0) * s.n, expected + (size_t)k * s.n);
    for (int d = 0; d < g.n; d++) {
        ok(tsr_device_download(g.devices[d], got, s.y[d], bytes));
        if (memcmp(got, expected, bytes) != 0)
            fail_msg("%s, %d devices, %lld x %lld: device %d has other sums", way_names[w], g.n,
                     (long long)c->n_rows, (long long)c->row, d);
        ok(tsr_device_download(g.devices[d], d == 0 ? norms : got, s.z[d], bytes));
        if (d > 0 && memcmp(got, norms, bytes) != 0)
            fail_msg("%s, %d devices: device %d has other norms", way_names[w], g.n, d);
    }
    drop_sums(&g, &s);
    close_group(&g);
    free(got);
    free(expected);
    return norms;
}

static void check_ways_agree(const sums_case *c, uint64_t seed)
{
    float *first = NULL;
    for (way w = STAGED; w < N_WAYS; w++) {
        const cudasim_config config = config_of(c->n_gpus, seed);
        if (!cudasim_have(&config))
            return;
        float *norms = run_sums(c, w);
        if (!norms)
            continue;
        if (first && memcmp(first, norms, (size_t)(STEPS * c->row * c->n_rows) * sizeof(float)) != 0)
            fail_msg("%s: other norms than staged", way_names[w]);
        nothing_is_left();
        if (first)
            free(norms);
        else
            first = norms;
    }
    free(first);
}

static void all_ways_give_the_same_bits(void **state)
{
    (void)state;
    static const struct {
        int64_t row, n_rows;
    } shapes[] = {{1, 1}, {513, 1}, {1024, 3}, {2055, 2}};
    static const int counts[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            if (counts[i] == 8 && shapes[k].row > 2000)
                continue; /* the simulation's time */
            const sums_case c = {.n_devices = counts[i],
                                 .n_gpus = TSR_MIN(counts[i], cudasim_most_devices()),
                                 .row = shapes[k].row,
                                 .n_rows = shapes[k].n_rows,
                                 .contributors = ((uint64_t)1 << counts[i]) - 1,
                                 .reduce = (tsr_reduce_type)((i + k) % 3),
                                 .residual = (i + k) % 2 == 0};
            check_ways_agree(&c, 10 * i + k);
        }
}

static void any_subset_contributes_and_devices_share_gpus(void **state)
{
    (void)state;
    static const sums_case cases[] = {
        {3, 3, 1301, 1, 2, TSR_REDUCE_EXACT, true},
        {3, 1, 2049, 1, 5, TSR_REDUCE_EXACT, true},
        {5, 2, 777, 2, 0x16, TSR_REDUCE_EXACT, false},
        {5, 5, 3, 5, 0x11, TSR_REDUCE_F32, true},
        {4, 1, 1100, 2, 0xf, TSR_REDUCE_EXACT, true},
        {8, 2, 515, 1, 0xff, TSR_REDUCE_EXACT, true},
        {2, 1, 4097, 2, 3, TSR_REDUCE_EXACT, false},
        {3, 3, 4099, 1, 7, TSR_REDUCE_BF16, true},
        {5, 2, 777, 2, 0x16, TSR_REDUCE_BF16, false},
        {3, 1, 9001, 1, 5, TSR_REDUCE_BF16, false},
        {3, 3, 4099, 2, 7, TSR_REDUCE_EXACT, true, AT_EDGES},
        {2, 2, 2048, 3, 3, TSR_REDUCE_EXACT, false, AT_EDGES},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_ways_agree(&cases[i], 77 + i);
}

/* -- the wire of large sums -- */

/* In host memory three parts are added up in two steps. The sums after the last whole tile are no planes. */
static void large_sums_are_the_same_as_planes(void **state)
{
    (void)state;
    static const sums_case c = {3, 3, 2055, 16, 7, TSR_REDUCE_EXACT, true, AT_EDGES, .once = true};
    static const way ways[] = {STAGED, TWO_SHOT, PUSH};
    for (int i = 0; i < 3; i++) {
        const cudasim_config config = config_of(3, 5);
        if (!cudasim_have(&config))
            return;
        free(run_sums(&c, ways[i]));
        nothing_is_left();
    }
}

/* Bytes over links per sum, of two devices together. */
static double link_bytes_of(way w, case_values values)
{
    const sums_case c = {2, 2, 2048, 16, 3, TSR_REDUCE_EXACT, false, values};
    group g;
    sums s;
    machine_of(2, 6);
    open_devices(&g, 2, 2);
    connect(&g, w);
    make_sums(&g, &c, &s);
    uint64_t before = 0;
    for (int run = 0; run < 2; run++) { /* uploads may reach into the first */
        before = cudasim_link_bytes();
        launch_all(&g, &s);
        for (int d = 0; d < 2; d++)
            ok(g.devices[d]->ops->synchronize(g.devices[d], 0));
    }
    const double bytes = (double)(cudasim_link_bytes() - before) / (double)(STEPS * s.n);
    drop_sums(&g, &s);
    close_group(&g);
    return bytes;
}

/* In two shots each device reads half of the other's sums and half of the total as f32; staged sums are
 * written to host memory by both devices, and read as f32; pushed ones are written to the other. Of the
 * values below 8, half are wide, and most groups of four. Host words of the programs add a few bytes. */
static void large_sums_take_few_bytes(void **state)
{
    (void)state;
    const cudasim_config config = config_of(2, 6);
    if (!cudasim_have(&config) || getenv("TSR_PTX")) /* kernels from PTX count no bytes */
        return;
    static const struct {
        way w;
        double small, wide;
    } expected[] = {
        {TWO_SHOT, 4 + 4, 4.94 + 4}, {STAGED, 2 * (4 + 4), 2 * (5 + 4)}, {PUSH, 2 * 4, 2 * (4 + 4 * 0.75)}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const double small = link_bytes_of(expected[i].w, BELOW_1),
                     wide = link_bytes_of(expected[i].w, BELOW_8);
        print_message("%s, two devices: %.3f bytes per element below 1, %.3f below 8\n",
                      way_names[expected[i].w], small, wide);
        assert_float_equal(small, expected[i].small, 0.01);
        assert_float_equal(wide, expected[i].wide, 0.02);
    }
}

/* -- trouble -- */

/* The last device gets no program: as if it had stopped. */
static void a_device_that_never_comes_is_named(void **state)
{
    (void)state;
    const sums_case c = {3, 3, 700, 1, 7, TSR_REDUCE_EXACT, true};
    for (way w = ONE_SHOT; w < N_WAYS; w++) {
        group g;
        sums s;
        const int n_gpus = TSR_MIN(3, cudasim_most_devices());
        machine_of(n_gpus, 4);
        open_devices(&g, 3, n_gpus);
        connect(&g, w);
        make_sums(&g, &c, &s);
        for (int d = 0; d < 2; d++)
            ok(g.devices[d]->ops->launch(g.devices[d], s.programs[d]));
        bool named = false;
        for (int tries = 0; tries < 200 && !named; tries++) { /* the others need a moment to come */
            assert_int_equal(g.devices[0]->ops->synchronize(g.devices[0], 30 * MS), TSR_ERR_TIMEOUT);
            named = strstr(tsr_last_error(), "device cuda0") != NULL &&
                    strstr(tsr_last_error(), "30 ms; device 2 did not arrive") != NULL;
        }
        if (!named)
            fail_msg("%s: '%s'", way_names[w], tsr_last_error());
        g.comm->ops->abort(g.comm);
        for (int d = 0; d < 2; d++) {
            assert_int_equal(g.devices[d]->ops->synchronize(g.devices[d], 0), TSR_ERR_DEVICE);
            assert_true(g.devices[d]->was_aborted);
        }
        g.comm->ops->reset(g.comm);
        launch_all(&g, &s); /* and then as if nothing had been */
        for (int d = 0; d < 3; d++)
            ok(g.devices[d]->ops->synchronize(g.devices[d], 0));
        drop_sums(&g, &s);
        close_group(&g);
        nothing_is_left();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ways_give_the_same_bits),
        cmocka_unit_test(any_subset_contributes_and_devices_share_gpus),
        cmocka_unit_test(large_sums_are_the_same_as_planes),
        cmocka_unit_test(large_sums_take_few_bytes),
        cmocka_unit_test(a_device_that_never_comes_is_named),
    };
    return cmocka_run_group_tests_name("collectives between simulated GPUs", tests, NULL, NULL);
}
