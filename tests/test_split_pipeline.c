/* Groups of devices in a row: compared with trying every pipeline, and with what can be said by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "split/search/pipeline.h"
#include "split/search/transfer.h"
#include "support/failing_alloc.h"
#include "support/random.h"

enum { C = TSR_PIPELINE_CLASSES, MAX_N = 4, MAX_LAYERS = 5 };

typedef struct problem {
    tsr_pipeline_problem p;
    tsr_cost_class classes[C];
    tsr_split_room rooms[TSR_MAX_DEVICES];
    tsr_cost_class chunked[C];
    double hand[2][TSR_MAX_DEVICES][TSR_MAX_DEVICES];
    double sync_per_device;
} problem;

static double sync_by_count(void *user, uint64_t devices, int class_index)
{
    const problem *q = user;
    int n = __builtin_popcountll(devices);
    return n > 1 ? q->sync_per_device * (n + class_index) : 0;
}

/* Of problems with an odd number of layers. */
static const int machine[MAX_N] = {0, 0, 1, 1};

static void wire(problem *q)
{
    q->p.classes = q->classes;
    q->p.rooms = q->rooms;
    q->p.allowed = ~UINT64_C(0);
    q->p.sync_ns = sync_by_count;
    q->p.user = q;
    q->p.transfer_ns = (const double(*)[TSR_MAX_DEVICES])q->hand[0];
    q->p.output_transfer_ns = (const double(*)[TSR_MAX_DEVICES])q->hand[1];
}

/* -- every pipeline, one by one -- */

typedef struct brute {
    const problem *q;
    bool layers_mode;
    double memo[1 << MAX_N][2][2][MAX_LAYERS + 1]; /* of a stage; 0: not yet */
    int64_t counts[C][MAX_N];
    double best_ns;
} brute;

/* Everything about one stage by the definition: -1 where it does not fit or a device has nothing. */
static double time_of_counts(const brute *b, int set, bool first, bool last, int64_t n_layers)
{
    const tsr_pipeline_problem *p = &b->q->p;
    double ns = 0;
    for (int d = 0; d < p->n_devices; d++) {
        size_t bytes = p->rooms[d].fixed_bytes, row = first && last ? p->shared_bytes
                                                      : first       ? p->embedding_bytes
                                                                    : p->classes[2].granule_bytes;
        bytes += (size_t)(b->counts[0][d] * n_layers) * p->classes[0].granule_bytes;
        bytes += (size_t)(b->counts[1][d] * n_layers) * p->classes[1].granule_bytes;
        bytes += (size_t)b->counts[2][d] * row;
        if (!(set >> d & 1))
            continue;
        if (bytes > p->rooms[d].capacity_bytes || b->counts[0][d] + b->counts[1][d] + b->counts[2][d] == 0)
            return INFINITY;
    }
    for (int c = 0; c < C; c++) {
        double slowest = 0, times = c < 2 ? (double)n_layers : 1;
        for (int i = 0; i < tsr_cost_n_parts(&p->classes[c]); i++) {
            const tsr_cost_times part = tsr_cost_part(&p->classes[c], i);
            double of_part = 0;
            for (int d = 0; d < p->n_devices; d++)
                if (b->counts[c][d])
                    of_part = fmax(of_part, part.fixed_ns[d] + (double)b->counts[c][d] * part.granule_ns[d]);
            slowest += of_part;
        }
        if (c < 2 || last)
            ns += times * slowest;
        if ((c < 2 || first) && p->classes[c].n_granules)
            ns += times * p->sync_ns(p->user, (uint64_t)set, c);
    }
    return ns;
}

static void try_counts(brute *b, int set, bool first, bool last, int64_t n_layers, int c, int d, int64_t left,
                       double *least)
{
    if (c == C) {
        *least = fmin(*least, time_of_counts(b, set, first, last, n_layers));
        return;
    }
    bool none = (c < 2 && n_layers == 0) || (c == 2 && !first && !last);
    if (d < 0) {
        d = 0;
        left = none ? 0 : b->q->classes[c].n_granules;
    }
    int n = b->q->p.n_devices;
    for (int64_t k = d == n - 1 ? left : 0; k <= (set >> d & 1 ? left : 0); k++) {
        b->counts[c][d] = k;
        if (d == n - 1)
            try_counts(b, set, first, last, n_layers, c + 1, -1, 0, least);
        else
            try_counts(b, set, first, last, n_layers, c, d + 1, left - k, least);
    }
    b->counts[c][d] = 0;
}

static double stage_time(brute *b, int set, bool first, bool last, int64_t n_layers)
{
    double *memo = &b->memo[set][first][last][n_layers];
    if (*memo == 0) {
        *memo = INFINITY;
        try_counts(b, set, first, last, n_layers, 0, -1, 0, memo);
    }
    return *memo;
}

/* Two devices on each machine: one copy to the lower receiver of the other machine, which passes it on. */
static double transfer(const problem *q, int from, int to, bool output)
{
    const int sender = __builtin_ctz((unsigned)from);
    double ns = 0;
    for (int d = 0; d < q->p.n_devices; d++) {
        const int before = d - 1;
        const bool is_passed_on = q->p.machine && d / 2 != sender / 2 && d % 2 && (to >> before & 1);
        if (!(to >> d & 1))
            continue;
        ns = fmax(ns, is_passed_on ? q->hand[output][sender][before] + q->hand[output][before][d]
                                   : q->hand[output][sender][d]);
    }
    return ns;
}

/* The chunked part of a device's stage. */
static double chunked_time(const problem *q, int set, bool last, int64_t n_layers)
{
    const int d = __builtin_ctz((unsigned)set);
    double ns = 0;
    for (int c = 0; c < C && q->p.chunked; c++) {
        const tsr_cost_class *k = &q->chunked[c];
        const double walk = k->fixed_ns[d] + (double)k->n_granules * k->granule_ns[d];
        ns += c < 2 ? (double)n_layers * walk : last ? walk : 0;
    }
    return ns;
}

/* A pipeline so far: its time, and in the chunked part the sum of its stages and the slowest. */
typedef struct so_far {
    double ns, sum, most;
    int n_stages;
} so_far;

static so_far with_stage(brute *b, so_far t, int set, bool first, bool last, int64_t n_layers)
{
    const double chunked = chunked_time(b->q, set, last, n_layers);
    return (so_far){t.ns + stage_time(b, set, first, last, n_layers), t.sum + chunked, fmax(t.most, chunked),
                    t.n_stages + 1};
}

static double in_chunks(const tsr_pipeline_problem *p, so_far t)
{
    const tsr_pipeline_chunks *c = &p->chunks[t.n_stages];
    if (!p->chunked || t.n_stages == 1 || c->n <= 1)
        return t.ns;
    return c->slower * (t.sum + (c->n - 1) * t.most) / c->n + t.ns - t.sum;
}

static void try_pipelines(brute *b, int used, int previous, int64_t left, so_far t)
{
    int all = (1 << b->q->p.n_devices) - 1;
    for (int set = 1; set <= all; set++) {
        bool allowed = !(set & used);
        if (b->layers_mode)
            allowed = allowed && (set & (set - 1)) == 0 && set > previous;
        for (int64_t l = previous ? 0 : 1; allowed && l <= left; l++) {
            if ((l == 0 && left > 0) || (l < left && left - l < b->q->p.n_together))
                continue;
            so_far here = t, whole;
            here.ns += previous ? transfer(b->q, previous, set, l == 0) : 0;
            whole = with_stage(b, here, set, !previous, true, l);
            if (l == left)
                b->best_ns = fmin(b->best_ns, in_chunks(&b->q->p, whole));
            if (l > 0)
                try_pipelines(b, used | set, set, left - l, with_stage(b, here, set, !previous, false, l));
        }
    }
}

/* -- random problems -- */

/* Two walks with the same counts, in which devices differ in other ways. */
static void add_parts(uint64_t *r, bool all_alike, int n_devices, tsr_cost_class *c)
{
    c->has_parts = true;
    for (int d = 0; d < n_devices; d++) {
        double slower = all_alike ? 3 : (double)(1 + random_below(r, 12)) / 4;
        for (int i = 0; i < TSR_COST_PARTS; i++) {
            c->part_granule_ns[i][d] = c->granule_ns[d] * (i ? slower : 1);
            c->part_fixed_ns[i][d] = c->fixed_ns[d] * (i ? 2 : 1);
        }
        c->granule_ns[d] *= 1 + slower;
        c->fixed_ns[d] *= 3;
    }
}

static void random_problem(uint64_t *r, problem *q, double tightness, bool parts)
{
    memset(q, 0, sizeof *q);
    wire(q);
    bool all_alike = random_below(r, 4) == 0;
    q->p.n_devices = 1 + (int)random_below(r, MAX_N);
    q->p.n_layers = 1 + (int64_t)random_below(r, MAX_LAYERS);
    q->p.machine = q->p.n_layers % 2 ? machine : NULL;
    q->p.n_together = (int64_t)random_below(r, (uint64_t)q->p.n_layers + 1);
    q->sync_per_device = (double)random_below(r, 25);
    for (int c = 0; c < C; c++)
        q->classes[c] = (tsr_cost_class){.name = "some",
                                         .n_granules = 1 + (int64_t)random_below(r, 4),
                                         .granule_bytes = 1 + random_below(r, 12),
                                         .repeats = 1};
    q->p.embedding_bytes = 1 + random_below(r, 12);
    q->p.shared_bytes = q->p.embedding_bytes + (random_below(r, 2) ? q->classes[2].granule_bytes : 0);
    size_t all = (size_t)q->classes[2].n_granules * q->p.shared_bytes;
    for (int c = 0; c < 2; c++)
        all += (size_t)(q->p.n_layers * q->classes[c].n_granules) * q->classes[c].granule_bytes;
    double hand = (double)random_below(r, 30);
    for (int d = 0; d < q->p.n_devices; d++) {
        double speed = all_alike ? 2 : 1 + (double)random_below(r, 5);
        for (int c = 0; c < C; c++) {
            q->classes[c].granule_ns[d] = speed * (double)(5 + c);
            q->classes[c].fixed_ns[d] = all_alike ? 4 : (double)random_below(r, 3) * 4;
        }
        double even = (double)all / q->p.n_devices, most = even * (1.05 + random_below(r, 100) * 0.01);
        q->rooms[d].fixed_bytes = all_alike ? 3 : random_below(r, 20);
        size_t room = (size_t)(most / (tightness > 0 ? tightness : 1)) + random_below(r, 20);
        q->rooms[d].capacity_bytes = tightness > 0 ? room : SIZE_MAX;
        if (all_alike && d > 0)
            q->rooms[d].capacity_bytes = q->rooms[0].capacity_bytes;
        for (int e = 0; e < q->p.n_devices; e++)
            for (int o = 0; o < 2; o++)
                q->hand[o][d][e] = d == e      ? 0
                                   : all_alike ? hand / (o + 1)
                                               : (double)(1 + random_below(r, 40)) / (o + 1);
    }
    for (int c = 0; c < C && parts; c++)
        add_parts(r, all_alike, q->p.n_devices, &q->classes[c]);
}

/* A part of every walk is that of a prompt in chunks. */
static void chunk_problem(uint64_t *r, problem *q)
{
    memcpy(q->chunked, q->classes, sizeof q->chunked);
    for (int d = 0; d < q->p.n_devices; d++) {
        const double part = (double)(1 + random_below(r, 8)) / 8;
        for (int c = 0; c < C; c++) {
            q->chunked[c].granule_ns[d] *= part;
            q->chunked[c].fixed_ns[d] *= part;
        }
    }
    q->p.chunked = q->chunked;
    double n = (double)(1 + random_below(r, 20));
    const bool varies = random_below(r, 2);
    for (int s = 1; s <= TSR_PIPELINE_LANES; s++) {
        q->p.chunks[s] = (tsr_pipeline_chunks){.n = n, .slower = varies && s > 1 && n > 1 ? 1 + n / 80 : 1};
        n = varies && n > 2 && s > 1 ? n - 1 : n;
    }
}

/* Stages as they should be, found without the optimiser's help. */
static void check_pipeline(const problem *q, const tsr_pipeline *result, bool layers_mode)
{
    uint64_t used = 0;
    int64_t layers = 0;
    for (int i = 0; i < result->n_stages; i++) {
        const tsr_pipeline_stage *s = &result->stages[i];
        bool first = i == 0, last = i == result->n_stages - 1;
        assert_true((s->devices & used) == 0 && s->devices != 0);
        if (layers_mode)
            assert_true(s->devices > used && (s->devices & (s->devices - 1)) == 0);
        used |= s->devices;
        layers += s->n_layers;
        assert_true(layers == q->p.n_layers || q->p.n_layers - layers >= q->p.n_together);
        assert_true(s->n_layers > 0 || (last && !first));
        for (int c = 0; c < C; c++) {
            bool has = c < 2 ? s->n_layers > 0 : first || last;
            int64_t sum = 0;
            for (int d = 0; d < q->p.n_devices; d++)
                sum += s->counts[c][d];
            assert_int_equal(sum, has ? q->classes[c].n_granules : 0);
        }
        for (int d = 0; d < q->p.n_devices; d++) {
            size_t row = first && last ? q->p.shared_bytes
                         : first       ? q->p.embedding_bytes
                                       : q->classes[2].granule_bytes;
            size_t bytes = q->rooms[d].fixed_bytes + (size_t)s->counts[2][d] * row +
                           (size_t)(s->counts[0][d] * s->n_layers) * q->classes[0].granule_bytes +
                           (size_t)(s->counts[1][d] * s->n_layers) * q->classes[1].granule_bytes;
            if (s->devices >> d & 1)
                assert_true(bytes <= q->rooms[d].capacity_bytes);
        }
    }
    assert_int_equal(layers, q->p.n_layers);
    assert_true(fabs(tsr_pipeline_evaluate(&q->p, result) - result->total_ns) <= 1e-9 * result->total_ns);
}

/* The stages of a prompt in chunks: more of them than would be used one after another. */
static void whole_layers_in_chunks_are_the_fastest_there_are(void **state)
{
    (void)state;
    static const double tightness[] = {0, 0.7, 0.9, 1};
    static problem q;
    static tsr_pipeline result, apart;
    static brute b;
    uint64_t r = 9;
    int n_more = 0, n_proven = 0;
    for (int i = 0; i < 1200; i++) {
        random_problem(&r, &q, tightness[i % 4], false);
        chunk_problem(&r, &q);
        b = (brute){.q = &q, .layers_mode = true, .best_ns = INFINITY};
        try_pipelines(&b, 0, 0, q.p.n_layers, (so_far){0});
        tsr_status status = tsr_pipeline_layers(&q.p, &result);
        assert_int_equal(status, isinf(b.best_ns) ? TSR_ERR_MEMORY : TSR_OK);
        if (status != TSR_OK)
            continue;
        check_pipeline(&q, &result, true);
        if (result.proven && fabs(result.total_ns - b.best_ns) > 1e-9 * b.best_ns)
            fail_msg("problem %d: %g, but %g is possible", i, result.total_ns, b.best_ns);
        n_proven += result.proven;
        q.p.chunked = NULL;
        assert_int_equal(tsr_pipeline_layers(&q.p, &apart), TSR_OK);
        n_more += result.n_stages > apart.n_stages;
    }
    assert_true(n_more > 100);
    if (n_proven < 800)
        fail_msg("%d proven", n_proven);
}

/* Whatever chunks save, the search over sets of devices finds what is best without them. */
static void chunks_change_no_search_over_sets(void **state)
{
    (void)state;
    static problem q;
    static tsr_pipeline result, apart;
    uint64_t r = 11;
    for (int i = 0; i < 200; i++) {
        random_problem(&r, &q, 0.9, false);
        chunk_problem(&r, &q);
        const tsr_status status = tsr_pipeline_optimize(&q.p, &result);
        q.p.chunked = NULL;
        assert_int_equal(tsr_pipeline_optimize(&q.p, &apart), status);
        if (status == TSR_OK && (result.total_ns != apart.total_ns || result.n_stages != apart.n_stages))
            fail_msg("problem %d: %g in %d stages with chunks, %g in %d without", i, result.total_ns,
                     result.n_stages, apart.total_ns, apart.n_stages);
    }
}

static void compare_with_all(bool parts)
{
    static const double tightness[] = {0, 0.7, 0.9, 1};
    static problem q;
    static tsr_pipeline result;
    static brute b;
    uint64_t r = 5;
    int n_solved[2] = {0}, n_long = 0, n_groups = 0;
    for (int i = 0; i < 600; i++) {
        random_problem(&r, &q, tightness[i % 4], parts);
        for (int layers_mode = 0; layers_mode < 2; layers_mode++) {
            memset(&b, 0, sizeof b);
            b = (brute){.q = &q, .layers_mode = layers_mode, .best_ns = INFINITY};
            try_pipelines(&b, 0, 0, q.p.n_layers, (so_far){0});
            tsr_status status =
                layers_mode ? tsr_pipeline_layers(&q.p, &result) : tsr_pipeline_optimize(&q.p, &result);
            if (status != (isinf(b.best_ns) ? TSR_ERR_MEMORY : TSR_OK))
                fail_msg("problem %d: %s, but %g is possible", i, status ? tsr_last_error() : "solved",
                         b.best_ns);
            if (status != TSR_OK)
                continue;
            check_pipeline(&q, &result, layers_mode);
            if (result.proven && fabs(result.total_ns - b.best_ns) > 1e-9 * b.best_ns)
                fail_msg("problem %d: %g, but %g is possible", i, result.total_ns, b.best_ns);
            if (!result.proven)
                fail_msg("problem %d: not proven", i);
            n_solved[layers_mode]++;
            if (!layers_mode)
                for (int k = 0; k < result.n_stages; k++) {
                    n_long += k == 1;
                    n_groups += result.n_stages > 1 && __builtin_popcountll(result.stages[k].devices) > 1;
                }
        }
    }
    print_message("%d and %d problems solved, %d in several stages, %d of them groups\n", n_solved[0],
                  n_solved[1], n_long, n_groups);
    assert_true(n_solved[0] > 400 && n_solved[1] > 200 && n_long > 50 && n_groups > 20);
}

static void no_pipeline_of_all_is_faster(void **state)
{
    (void)state;
    compare_with_all(false);
}

/* The time of a walk is the sum of two maxima. */
static void no_pipeline_of_all_is_faster_in_two_parts(void **state)
{
    (void)state;
    compare_with_all(true);
}

/* -- by hand -- */

/* n equal devices with room for `layers` layers each; a layer takes one of them 100. */
static void equal_devices(problem *q, int n, int64_t n_layers, size_t layers, double sync_per_device)
{
    memset(q, 0, sizeof *q);
    wire(q);
    q->p.n_devices = n;
    q->p.n_layers = n_layers;
    q->p.embedding_bytes = q->p.shared_bytes = 1;
    q->sync_per_device = sync_per_device;
    for (int c = 0; c < C; c++) {
        q->classes[c] = (tsr_cost_class){
            .name = "some", .n_granules = c < 2 ? 8 : 1, .granule_bytes = c < 2 ? 100 : 1, .repeats = 1};
        for (int d = 0; d < n; d++)
            q->classes[c].granule_ns[d] = c < 2 ? 100.0 / 16 : 1;
    }
    for (int d = 0; d < n; d++) {
        q->rooms[d].capacity_bytes = layers * 1600 + 10;
        for (int e = 0; e < n; e++)
            q->hand[0][d][e] = q->hand[1][d][e] = d == e ? 0 : 5;
    }
}

/* Pairs are faster than one device and than all, and hold half of the model each. */
static void pairs_follow_one_another(void **state)
{
    (void)state;
    static problem q;
    static tsr_pipeline result;
    equal_devices(&q, 4, 8, 2, 8);
    assert_int_equal(tsr_pipeline_optimize(&q.p, &result), TSR_OK);
    assert_true(result.proven);
    check_pipeline(&q, &result, false);
    assert_int_equal(result.n_stages, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(__builtin_popcountll(result.stages[i].devices), 2);
        assert_int_equal(result.stages[i].n_layers, 4);
    }
}

/* A walk of the FFN that is divided takes three times as long, by chance. */
static double divided_is_slow(void *user, int class_index, const int64_t *counts)
{
    const problem *q = user;
    int n = 0;
    if (class_index != TSR_PIPELINE_FFN)
        return -1;
    for (int d = 0; d < q->p.n_devices; d++)
        n += counts[d] > 0;
    return (n > 1 ? 3 : 1) * tsr_cost_walk_ns(&q->classes[class_index], q->p.n_devices, counts);
}

/* Pairs would be faster, but for chance. */
static void chance_counts_in_stages(void **state)
{
    (void)state;
    static problem q;
    static tsr_pipeline result;
    equal_devices(&q, 4, 8, 2, 8);
    q.p.walk_ns = divided_is_slow;
    assert_int_equal(tsr_pipeline_optimize(&q.p, &result), TSR_OK);
    assert_false(result.proven);
    check_pipeline(&q, &result, false);
    assert_int_equal(result.n_stages, 4);
}

/* More devices than all sets can be looked at of: still something that fits and beats whole layers. */
static void many_devices_are_taken_by_neighbours(void **state)
{
    (void)state;
    static problem q;
    static tsr_pipeline result, layers;
    equal_devices(&q, 20, 40, 3, 8);
    assert_int_equal(tsr_pipeline_optimize(&q.p, &result), TSR_OK);
    assert_int_equal(tsr_pipeline_layers(&q.p, &layers), TSR_OK);
    assert_false(result.proven);
    assert_true(layers.proven);
    check_pipeline(&q, &result, false);
    check_pipeline(&q, &layers, true);
    assert_true(result.total_ns < layers.total_ns);
}

/* No more chunks are in flight than there are lanes. */
static void lanes_limit_what_many_stages_save(void **state)
{
    (void)state;
    enum { N = 2 * TSR_PIPELINE_LANES };
    const tsr_pipeline_chunks two[TSR_PIPELINE_LANES + 1] = {
        [2] = {.n = 4, .slower = 1.5}, [TSR_PIPELINE_LANES] = {.n = 100, .slower = 1}};
    const double sum = N * 10;
    assert_true(tsr_pipeline_saved(two, 1, 10, 10) == 0);
    assert_true(fabs(tsr_pipeline_saved(two, 2, 20, 10) - (20 - 1.5 * (20 + 3 * 10) / 4)) < 1e-9);
    assert_true(fabs(tsr_pipeline_saved(two, 8, 80, 10) - (80 - (80 + 99 * 10) / 100.)) < 1e-9);
    assert_true(fabs(tsr_pipeline_saved(two, N, sum, 10) - (sum - (sum + 99 * sum / 8) / 100.)) < 1e-9);
}

/* Slowest stages of many lengths, each of which bounds another search. */
static void a_search_over_many_chains_ends_unproven(void **state)
{
    (void)state;
    static problem q;
    static tsr_pipeline result;
    uint64_t r = 3;
    equal_devices(&q, 64, 126, 126, 8);
    memcpy(q.chunked, q.classes, sizeof q.chunked);
    q.p.chunked = q.chunked;
    for (int s = 2; s <= TSR_PIPELINE_LANES; s++)
        q.p.chunks[s] = (tsr_pipeline_chunks){.n = 16, .slower = 1};
    for (int d = 0; d < 64 * 64; d++)
        q.hand[0][d / 64][d % 64] = q.hand[1][d / 64][d % 64] = d / 64 == d % 64 ? 0 : 300;
    for (int d = 0; d < 64; d++)
        for (int c = 0; c < C; c++)
            q.classes[c].granule_ns[d] = q.chunked[c].granule_ns[d] *=
                1 + (double)random_below(&r, 997) / 997;
    assert_int_equal(tsr_pipeline_layers(&q.p, &result), TSR_OK);
    check_pipeline(&q, &result, true);
    assert_false(result.proven);
}

static void values_out_of_range_and_models_too_large_are_refused(void **state)
{
    (void)state;
    static problem q;
    static tsr_pipeline result;
    bool no_room = false;
    equal_devices(&q, 4, 8, 1, 8);
    q.p.no_room = &no_room;
    assert_int_equal(tsr_pipeline_optimize(&q.p, &result), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "short"));
    assert_true(no_room);
    no_room = false;
    assert_int_equal(tsr_pipeline_layers(&q.p, &result), TSR_ERR_MEMORY);
    assert_true(no_room);
    equal_devices(&q, 4, 8, 2, 8);
    q.classes[1].granule_ns[2] = NAN;
    assert_int_equal(tsr_pipeline_optimize(&q.p, &result), TSR_ERR_INVALID);
    equal_devices(&q, 4, 0, 2, 8);
    assert_int_equal(tsr_pipeline_layers(&q.p, &result), TSR_ERR_INVALID);
    equal_devices(&q, 4, 8, 2, 8);
    q.classes[0].granule_bytes = SIZE_MAX / 2;
    assert_int_equal(tsr_pipeline_optimize(&q.p, &result), TSR_ERR_INVALID);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static problem q;
    static tsr_pipeline result;
    equal_devices(&q, 4, 8, 2, 8);
    for (int layers = 0; layers < 2; layers++)
        for (int n = 1;; n++) {
            int64_t blocks = failing_alloc_live();
            failing_alloc_set(n);
            tsr_status status =
                layers ? tsr_pipeline_layers(&q.p, &result) : tsr_pipeline_optimize(&q.p, &result);
            bool fired = failing_alloc_fired();
            failing_alloc_set(0);
            assert_int_equal(failing_alloc_live(), blocks);
            assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
            if (!fired)
                break;
        }
}

/* A copy takes 100 between machines, and 10 + d to device d of the same machine. */
static double copy_of_six(const void *user, int from, int to)
{
    const int *of = user;
    return of[from] != of[to] ? 100 : 10 + to;
}

static void a_transfer_crosses_once_to_each_machine(void **state)
{
    (void)state;
    static const int of[] = {0, 0, 1, 1, 1, 2};
    assert_true(tsr_transfer_ns(of, 0x1, 0x3, copy_of_six, of) == 11);
    assert_true(tsr_transfer_ns(of, 0x1, 0x4, copy_of_six, of) == 100);
    assert_true(tsr_transfer_ns(of, 0x1, 0x1c, copy_of_six, of) == 100 + 14); /* not three times 100 */
    assert_true(tsr_transfer_ns(of, 0x1, 0x3e, copy_of_six, of) == 2 * 100 + 14);
    assert_true(tsr_transfer_ns(of, 0x5, 0x1c, copy_of_six, of) == 100 + 14); /* 2 has it, and 0 sends */
    assert_true(tsr_transfer_ns(of, 0x7, 0x3, copy_of_six, of) == 0);
    assert_true(tsr_transfer_ns(NULL, 0x1, 0x1c, copy_of_six, of) == 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transfer_crosses_once_to_each_machine),
        cmocka_unit_test(no_pipeline_of_all_is_faster),
        cmocka_unit_test(no_pipeline_of_all_is_faster_in_two_parts),
        cmocka_unit_test(pairs_follow_one_another),
        cmocka_unit_test(chance_counts_in_stages),
        cmocka_unit_test(many_devices_are_taken_by_neighbours),
        cmocka_unit_test(values_out_of_range_and_models_too_large_are_refused),
        cmocka_unit_test(whole_layers_in_chunks_are_the_fastest_there_are),
        cmocka_unit_test(chunks_change_no_search_over_sets),
        cmocka_unit_test(lanes_limit_what_many_stages_save),
        cmocka_unit_test(a_search_over_many_chains_ends_unproven),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
