/* The KV region: page tables, sharing and growth, checked by writing every row and reading it back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/kv.h"
#include "core/mem.h"
#include "support/failing_alloc.h"
#include "support/fake_device.h"
#include "support/random.h"

enum {
    N_DEVICES = 3,
    N_LAYERS = 3,
    N_HEADS = 5,
    HEAD_DIM = 32,
    N_SEQ = 6,
    N_CTX = 90,
    PAGE = 4,
    MAX_TOKENS = 128
};

static uint64_t seed = 1;

static int below(int n)
{
    return (int)random_below(&seed, (uint64_t)n);
}

/* ---- a region over three devices: layer 0 on all, layer 1 on one (layer split), layer 2 on two ---- */

typedef struct fixture {
    fake_runtime fake;
    tsr_shard_map maps[N_LAYERS];
    tsr_kv_layer layers[N_LAYERS];
    tsr_kv_config config;
    tsr_kv *kv;
} fixture;

static void describe(fixture *f, tsr_type type_k, tsr_type type_v)
{
    static const int64_t counts[N_LAYERS][N_DEVICES] = {{3, 1, 1}, {0, 5, 0}, {4, 0, 1}};
    static const uint64_t devices[N_LAYERS] = {7, 2, 7}; /* device 1 is in layer 2's set with no head */
    for (int i = 0; i < N_LAYERS; i++) {
        assert_int_equal(tsr_shard_map_init(N_HEADS, 1, N_DEVICES, counts[i], &f->maps[i]), TSR_OK);
        f->layers[i] = (tsr_kv_layer){devices[i], &f->maps[i]};
    }
    f->config = (tsr_kv_config){.n_layers = N_LAYERS,
                                .layers = f->layers,
                                .head_dim = HEAD_DIM,
                                .type_k = type_k,
                                .type_v = type_v,
                                .n_ctx = N_CTX,
                                .n_seq_max = N_SEQ,
                                .page_tokens = PAGE};
}

static void open_region(fixture *f, tsr_type type_k, tsr_type type_v)
{
    memset(f, 0, sizeof *f);
    fake_runtime_open(&f->fake, N_DEVICES, NULL);
    describe(f, type_k, type_v);
    assert_int_equal(tsr_kv_create(&f->fake.rt, &f->config, &f->kv), TSR_OK);
}

static void close_region(fixture *f)
{
    tsr_kv_destroy(f->kv);
    fake_runtime_close(&f->fake);
}

/* ---- rows that name their token, layer, head and part ---- */

static void row_pattern(int64_t stamp, int layer, int64_t head, int part, unsigned char *row, size_t bytes)
{
    uint64_t x = ((uint64_t)stamp * 64 + (uint64_t)layer * 16 + (uint64_t)head * 2 + (uint64_t)part + 1) *
                 UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < bytes; i++)
        row[i] = (unsigned char)((x >> (i % 8 * 8)) + i / 8);
}

/* The bytes of one head's K (part 0) or V (part 1) at one position of a sequence, as kernels find them. */
static unsigned char *row_at(const fixture *f, int device, int layer, int64_t local_head, int part, int seq,
                             int64_t position, size_t *bytes_out)
{
    tsr_kv_view view;
    int n_pages;
    const int32_t *pages = tsr_kv_pages(f->kv, seq, &n_pages);
    tsr_kv_view_of(f->kv, device, layer, &view);
    assert_true(position / view.page_tokens < n_pages);
    assert_true(local_head < view.n_heads);
    size_t row_bytes = part ? view.v_row_bytes : view.k_row_bytes;
    *bytes_out = row_bytes;
    size_t row = (size_t)(local_head * view.page_tokens + position % view.page_tokens);
    return view.base + (size_t)pages[position / view.page_tokens] * view.page_bytes +
           (part ? view.v_offset : view.k_offset) + row * row_bytes;
}

typedef void (*row_visitor)(unsigned char *row, const unsigned char *pattern, size_t bytes);

static void write_row(unsigned char *row, const unsigned char *pattern, size_t bytes)
{
    memcpy(row, pattern, bytes);
}

static void check_row(unsigned char *row, const unsigned char *pattern, size_t bytes)
{
    assert_memory_equal(row, pattern, bytes);
}

/* Visit every row (all layers and heads, wherever they are) of one position. */
static void visit_token(const fixture *f, int seq, int64_t position, int64_t stamp, row_visitor visit)
{
    unsigned char pattern[HEAD_DIM * sizeof(float)];
    for (int layer = 0; layer < N_LAYERS; layer++)
        for (int64_t head = 0; head < N_HEADS; head++)
            for (int part = 0; part < 2; part++) {
                size_t bytes;
                int device = tsr_shard_map_device(&f->maps[layer], head);
                int64_t local = head - tsr_shard_map_first(&f->maps[layer], device);
                unsigned char *row = row_at(f, device, layer, local, part, seq, position, &bytes);
                row_pattern(stamp, layer, head, part, pattern, bytes);
                visit(row, pattern, bytes);
            }
}

/* ---- the naive model: what each sequence holds, and which pages it would need ---- */

typedef struct model {
    int64_t length[N_SEQ];
    int64_t stamp[N_SEQ][MAX_TOKENS];       /* of each token */
    int64_t page[N_SEQ][MAX_TOKENS / PAGE]; /* an invented number per page */
    int64_t next_stamp, next_page;
} model;

static int model_n_pages(const model *m, int seq)
{
    return (int)((m->length[seq] + PAGE - 1) / PAGE);
}

static int model_users(const model *m, int64_t page)
{
    int users = 0;
    for (int s = 0; s < N_SEQ; s++)
        for (int i = 0; i < model_n_pages(m, s); i++)
            users += m->page[s][i] == page;
    return users;
}

/* Distinct pages; those with several users into *shared. */
static int model_count_pages(const model *m, int *shared)
{
    int used = 0;
    *shared = 0;
    for (int s = 0; s < N_SEQ; s++)
        for (int i = 0; i < model_n_pages(m, s); i++) {
            bool seen = false;
            for (int t = 0; t <= s; t++)
                for (int j = 0; j < (t < s ? model_n_pages(m, t) : i); j++)
                    seen = seen || m->page[t][j] == m->page[s][i];
            used += !seen;
            *shared += !seen && model_users(m, m->page[s][i]) > 1;
        }
    return used;
}

/* Pages that appending would take. */
static int model_wanted(const model *m, int seq, int n)
{
    if (n == 0)
        return 0;
    int wanted = (int)((m->length[seq] + n + PAGE - 1) / PAGE) - model_n_pages(m, seq);
    if (m->length[seq] % PAGE != 0 && model_users(m, m->page[seq][m->length[seq] / PAGE]) > 1)
        wanted++;
    return wanted;
}

static void model_append(model *m, int seq, int n)
{
    if (n > 0 && m->length[seq] % PAGE != 0 && model_users(m, m->page[seq][m->length[seq] / PAGE]) > 1)
        m->page[seq][m->length[seq] / PAGE] = m->next_page++;
    for (int i = 0; i < n; i++) {
        if (m->length[seq] % PAGE == 0)
            m->page[seq][m->length[seq] / PAGE] = m->next_page++;
        m->stamp[seq][m->length[seq]++] = m->next_stamp++;
    }
}

static void check_all(const fixture *f, const model *m)
{
    int shared, used = model_count_pages(m, &shared);
    tsr_kv_stats stats = tsr_kv_stats_of(f->kv);
    assert_int_equal(stats.n_used, used);
    assert_int_equal(stats.n_shared, shared);
    assert_int_equal(stats.n_free, stats.n_pages - used);
    for (int s = 0; s < N_SEQ; s++) {
        int n_pages;
        tsr_kv_pages(f->kv, s, &n_pages);
        assert_int_equal(tsr_kv_length(f->kv, s), m->length[s]);
        assert_int_equal(n_pages, model_n_pages(m, s));
        for (int64_t i = 0; i < m->length[s]; i++)
            visit_token(f, s, i, m->stamp[s][i], check_row);
    }
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(f->kv, d), fake_device_committed_bytes(f->fake.devices[d]));
}

static void step_append(fixture *f, model *m, int seq, int n)
{
    int shared;
    tsr_kv_stats stats = tsr_kv_stats_of(f->kv);
    bool too_long = m->length[seq] + n > N_CTX;
    bool full = model_wanted(m, seq, n) > stats.n_pages - model_count_pages(m, &shared);
    size_t committed[N_DEVICES];
    for (int d = 0; d < N_DEVICES; d++)
        committed[d] = tsr_kv_committed_bytes(f->kv, d);
    assert_int_equal(tsr_kv_fits(f->kv, seq, n), !too_long && !full);
    tsr_status status = tsr_kv_append(f->kv, seq, n);
    if (too_long || full) {
        assert_int_equal(status, TSR_ERR_FULL);
    } else if (status != TSR_OK) { /* made to fail */
        assert_true(status == TSR_ERR_MEMORY || status == TSR_ERR_DEVICE);
    } else {
        model_append(m, seq, n);
        for (int64_t i = m->length[seq] - n; i < m->length[seq]; i++)
            visit_token(f, seq, i, m->stamp[seq][i], write_row);
        return;
    }
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(f->kv, d), committed[d]);
}

static void step_fork(fixture *f, model *m, int src, int dst)
{
    tsr_status status = tsr_kv_fork(f->kv, src, dst);
    if (m->length[dst] > 0) {
        assert_int_equal(status, TSR_ERR_INVALID);
        return;
    }
    assert_int_equal(status, TSR_OK);
    m->length[dst] = m->length[src];
    memcpy(m->stamp[dst], m->stamp[src], sizeof m->stamp[dst]);
    memcpy(m->page[dst], m->page[src], sizeof m->page[dst]);
}

/* Afterwards no more is committed than the pages in use take, unless something was made to fail. */
static void step_compact(const fixture *f)
{
    size_t granularity = f->fake.devices[0]->granularity;
    tsr_kv_stats stats = tsr_kv_stats_of(f->kv);
    tsr_status status = tsr_kv_compact(f->kv);
    for (int d = 0; d < N_DEVICES && status == TSR_OK; d++) {
        tsr_kv_view view = {0};
        for (int layer = 0; layer < N_LAYERS && !view.base; layer++)
            tsr_kv_view_of(f->kv, d, layer, &view);
        assert_int_equal(tsr_kv_committed_bytes(f->kv, d),
                         tsr_align_up(view.base ? view.page_bytes * (size_t)stats.n_used : 0, granularity));
    }
    assert_true(status == TSR_OK || status == TSR_ERR_DEVICE);
}

/* A sequence leaves the region and comes back: its pages are alone now, and hold what they held. */
static void step_save_and_load(fixture *f, model *m, int seq)
{
    size_t bytes = tsr_kv_page_bytes(f->kv);
    int64_t length = m->length[seq];
    int n = model_n_pages(m, seq);
    unsigned char *saved = malloc(bytes * (size_t)n + 1), *again = malloc(bytes);
    for (int i = 0; i < n; i++)
        assert_int_equal(tsr_kv_page_get(f->kv, seq, i, saved + (size_t)i * bytes), TSR_OK);
    assert_int_equal(tsr_kv_remove(f->kv, seq), TSR_OK);
    m->length[seq] = 0;
    if (tsr_kv_append(f->kv, seq, length) == TSR_OK) { /* else: made to fail, or no room unshared */
        m->length[seq] = length;
        for (int i = 0; i < n; i++) {
            m->page[seq][i] = m->next_page++;
            assert_int_equal(tsr_kv_page_put(f->kv, seq, i, saved + (size_t)i * bytes), TSR_OK);
            assert_int_equal(tsr_kv_page_get(f->kv, seq, i, again), TSR_OK);
            assert_memory_equal(again, saved + (size_t)i * bytes, bytes);
        }
    }
    free(saved);
    free(again);
}

/* All pages go to a region whose heads are divided at random; some layers wander to other devices. */
static void step_take_over(fixture *f)
{
    fixture next = *f;
    for (int i = 0; i < N_LAYERS; i++) {
        int64_t counts[N_DEVICES] = {0};
        next.layers[i].devices = 0;
        for (int h = 0; h < N_HEADS; h++)
            counts[below(2) ? below(N_DEVICES) : i]++;
        for (int d = 0; d < N_DEVICES; d++)
            next.layers[i].devices |= counts[d] > 0 || below(2) ? UINT64_C(1) << d : 0;
        assert_int_equal(tsr_shard_map_init(N_HEADS, 1, N_DEVICES, counts, &next.maps[i]), TSR_OK);
        next.layers[i].kv_heads = &next.maps[i];
    }
    next.config.layers = next.layers;
    assert_int_equal(tsr_kv_create(&f->fake.rt, &next.config, &next.kv), TSR_OK);
    tsr_kv_stats before = tsr_kv_stats_of(f->kv);
    tsr_status status = tsr_kv_take_over(next.kv, f->kv);
    if (status != TSR_OK) { /* made to fail: the old one goes on */
        assert_true(status == TSR_ERR_MEMORY || status == TSR_ERR_DEVICE);
        tsr_kv_destroy(next.kv);
        return;
    }
    tsr_kv_stats after = tsr_kv_stats_of(next.kv);
    assert_memory_equal(&after, &before, sizeof after);
    assert_int_equal(tsr_kv_take_over(next.kv, f->kv), before.n_touched ? TSR_ERR_INVALID : TSR_OK);
    tsr_kv_destroy(f->kv);
    f->kv = next.kv;
    memcpy(f->maps, next.maps, sizeof f->maps);
    for (int i = 0; i < N_LAYERS; i++)
        f->layers[i].devices = next.layers[i].devices;
}

static void random_step(fixture *f, model *m)
{
    int seq = below(N_SEQ), kind = below(13);
    if (kind < 5) {
        step_append(f, m, seq, below(below(4) == 0 ? 60 : 6));
    } else if (kind < 7) {
        step_fork(f, m, seq, below(N_SEQ));
    } else if (kind < 9) {
        int64_t length = below((int)m->length[seq] + 1);
        assert_int_equal(tsr_kv_trim(f->kv, seq, length), TSR_OK);
        m->length[seq] = length;
    } else if (kind < 10) {
        assert_int_equal(tsr_kv_remove(f->kv, seq), TSR_OK);
        m->length[seq] = 0;
    } else if (kind < 11) {
        step_compact(f);
    } else if (kind < 12) {
        step_save_and_load(f, m, seq);
    } else {
        step_take_over(f);
    }
}

static void run_random(tsr_type type_k, tsr_type type_v, int n_steps, bool inject)
{
    static model m; /* large */
    fixture f;
    memset(&m, 0, sizeof m);
    open_region(&f, type_k, type_v);
    for (int i = 0; i < n_steps; i++) {
        tsr_device *device = f.fake.devices[below(N_DEVICES)];
        static const fake_call calls[] = {FAKE_COMMIT, FAKE_COPY, FAKE_DECOMMIT};
        fake_call call = calls[below(3)];
        if (inject && below(3) == 0)
            fake_device_fail(device, call, 1);
        random_step(&f, &m);
        fake_device_fail(device, call, 0);
        check_all(&f, &m);
        if (inject && i % 500 == 499) { /* a fresh region, so that commits keep happening */
            tsr_kv_destroy(f.kv);
            assert_int_equal(tsr_kv_create(&f.fake.rt, &f.config, &f.kv), TSR_OK);
            memset(m.length, 0, sizeof m.length);
        }
    }
    close_region(&f);
}

static void thousands_of_random_operations_keep_every_row(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    for (int i = 0; i < 5; i++)
        run_random(types[i], types[(i + 2) % 5], 1000, false);
}

static void failing_commits_and_copies_lose_nothing(void **state)
{
    (void)state;
    run_random(TSR_TYPE_F16, TSR_TYPE_Q8_0, 5000, true);
}

/* ---- behaviours one by one ---- */

static void a_context_of_tokens_fits_however_it_is_spread(void **state)
{
    (void)state;
    fixture f;
    open_region(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    for (int round = 0; round < 200; round++) {
        int left = N_CTX;
        for (int s = 0; s < N_SEQ; s++) {
            int n = s == N_SEQ - 1 ? left : below(left + 1);
            left -= n;
            assert_int_equal(tsr_kv_append(f.kv, s, n), TSR_OK);
        }
        for (int s = 0; s < N_SEQ; s++)
            assert_int_equal(tsr_kv_remove(f.kv, s), TSR_OK);
    }
    /* The worst case: every sequence but one has a page with a single token. */
    for (int s = 1; s < N_SEQ; s++)
        assert_int_equal(tsr_kv_append(f.kv, s, 1), TSR_OK);
    assert_int_equal(tsr_kv_append(f.kv, 0, N_CTX - (N_SEQ - 1)), TSR_OK);
    close_region(&f);
}

static void running_out_says_so_and_changes_nothing(void **state)
{
    (void)state;
    fixture f;
    open_region(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    assert_int_equal(tsr_kv_append(f.kv, 0, N_CTX), TSR_OK);
    assert_int_equal(tsr_kv_append(f.kv, 0, 1), TSR_ERR_FULL);
    assert_non_null(strstr(tsr_last_error(), "n_ctx"));
    tsr_kv_stats before = tsr_kv_stats_of(f.kv);
    assert_int_equal(tsr_kv_append(f.kv, 1, (before.n_free + 1) * PAGE), TSR_ERR_FULL);
    assert_non_null(strstr(tsr_last_error(), "pages"));
    tsr_kv_stats after = tsr_kv_stats_of(f.kv);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(tsr_kv_length(f.kv, 1), 0);
    assert_int_equal(tsr_kv_append(f.kv, 1, before.n_free * PAGE), TSR_OK);
    close_region(&f);
}

static void memory_is_committed_as_pages_are_used(void **state)
{
    (void)state;
    fixture f;
    open_region(&f, TSR_TYPE_F32, TSR_TYPE_F32);
    tsr_kv_view view;
    tsr_kv_view_of(f.kv, 1, 1, &view);
    assert_int_equal(tsr_kv_committed_bytes(f.kv, 1), 0);
    for (int n = 1; n <= 20; n++) {
        assert_int_equal(tsr_kv_append(f.kv, 0, PAGE), TSR_OK);
        assert_int_equal(tsr_kv_committed_bytes(f.kv, 1), tsr_align_up((size_t)n * view.page_bytes, 4096));
    }
    int64_t commits = fake_device_calls(f.fake.devices[1], FAKE_COMMIT);
    for (int round = 0; round < 50; round++) { /* returned pages are used again: no more commits */
        assert_int_equal(tsr_kv_trim(f.kv, 0, 20 * PAGE - 1 - below(70)), TSR_OK);
        assert_int_equal(tsr_kv_append(f.kv, 0, 20 * PAGE - tsr_kv_length(f.kv, 0)), TSR_OK);
    }
    assert_int_equal(fake_device_calls(f.fake.devices[1], FAKE_COMMIT), commits);
    assert_int_equal(fake_device_calls(f.fake.devices[1], FAKE_COPY), 0);
    close_region(&f);
}

static void a_fork_costs_one_page_where_it_diverges(void **state)
{
    (void)state;
    fixture f;
    open_region(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    assert_int_equal(tsr_kv_append(f.kv, 0, 10 * PAGE + 1), TSR_OK);
    assert_int_equal(tsr_kv_fork(f.kv, 0, 1), TSR_OK);
    assert_int_equal(tsr_kv_stats_of(f.kv).n_used, 11);
    assert_int_equal(tsr_kv_stats_of(f.kv).n_shared, 11);
    assert_int_equal(tsr_kv_append(f.kv, 1, 1), TSR_OK);
    assert_int_equal(tsr_kv_stats_of(f.kv).n_used, 12);
    assert_int_equal(tsr_kv_stats_of(f.kv).n_shared, 10);
    assert_int_equal(fake_device_calls(f.fake.devices[0], FAKE_COPY), 1);
    assert_int_equal(tsr_kv_append(f.kv, 0, 1), TSR_OK); /* its page is its own again */
    assert_int_equal(tsr_kv_stats_of(f.kv).n_used, 12);
    assert_int_equal(fake_device_calls(f.fake.devices[0], FAKE_COPY), 1);
    close_region(&f);
}

static void devices_without_heads_hold_nothing(void **state)
{
    (void)state;
    fixture f = {0};
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    describe(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    f.config.n_layers = 1;
    f.config.layers = &f.layers[1]; /* on device 1 alone */
    assert_int_equal(tsr_kv_create(&f.fake.rt, &f.config, &f.kv), TSR_OK);
    tsr_kv_view view;
    tsr_kv_view_of(f.kv, 0, 0, &view);
    assert_null(view.base);
    assert_int_equal(view.n_heads, 0);
    tsr_kv_view_of(f.kv, 1, 0, &view);
    assert_int_equal(view.n_heads, N_HEADS);
    assert_int_equal(view.page_bytes, 2 * N_HEADS * PAGE * HEAD_DIM * 2);
    assert_int_equal(tsr_kv_append(f.kv, 0, 30), TSR_OK);
    for (int d = 0; d < N_DEVICES; d++) {
        assert_int_equal(f.fake.devices[d]->used[TSR_MEMORY_KV], tsr_kv_reserved_bytes(f.kv, d));
        assert_int_equal(fake_device_live_bytes(f.fake.devices[d]), tsr_kv_reserved_bytes(f.kv, d));
    }
    assert_int_equal(tsr_kv_reserved_bytes(f.kv, 0), 0);
    assert_int_equal(tsr_kv_reserved_bytes(f.kv, 2), 0);
    close_region(&f);
}

static void planned_bytes_are_reserved_bytes(void **state)
{
    (void)state;
    fixture f;
    fake_runtime measuring;
    tsr_kv *planned = NULL;
    open_region(&f, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0);
    fake_runtime_open_measuring(&measuring, N_DEVICES, NULL);
    assert_int_equal(tsr_kv_create(&measuring.rt, &f.config, &planned), TSR_OK);
    for (int d = 0; d < N_DEVICES; d++) {
        assert_true(measuring.devices[d]->used[TSR_MEMORY_KV] > 0);
        assert_int_equal(measuring.devices[d]->used[TSR_MEMORY_KV], f.fake.devices[d]->used[TSR_MEMORY_KV]);
    }
    assert_int_equal(tsr_kv_append(planned, 0, 5), TSR_OK); /* page tables work there as well */
    tsr_kv_destroy(planned);
    fake_runtime_close(&measuring);
    close_region(&f);
}

static void expect_refused(fixture *f, const tsr_kv_config *config, tsr_status status, const char *word)
{
    tsr_kv *kv = NULL;
    assert_int_equal(tsr_kv_create(&f->fake.rt, config, &kv), status);
    assert_null(kv);
    assert_non_null(strstr(tsr_last_error(), word));
}

static void bad_configurations_are_named(void **state)
{
    (void)state;
    fixture f = {0};
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    describe(&f, TSR_TYPE_Q8_0, TSR_TYPE_F16);
    tsr_kv_config config = f.config;
    config.head_dim = 80;
    expect_refused(&f, &config, TSR_ERR_UNSUPPORTED, "type_k Q8_0");
    assert_non_null(strstr(tsr_last_error(), "head_dim 80"));
    config = f.config;
    config.type_v = TSR_TYPE_Q4_K;
    expect_refused(&f, &config, TSR_ERR_UNSUPPORTED, "type_v Q4_K");
    config = f.config;
    config.n_ctx = 0;
    expect_refused(&f, &config, TSR_ERR_INVALID, "n_ctx 0");
    config = f.config;
    config.n_ctx = INT64_C(1) << 40;
    expect_refused(&f, &config, TSR_ERR_INVALID, "2^31");
    f.layers[0].devices = 3; /* device 2 has heads of layer 0 */
    expect_refused(&f, &f.config, TSR_ERR_INVALID, "layer 0");
    fake_runtime_close(&f.fake);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    fixture f;
    open_region(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    assert_int_equal(tsr_kv_append(f.kv, 0, 7), TSR_OK);
    assert_int_equal(tsr_kv_append(f.kv, N_SEQ, 1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_append(f.kv, -1, 1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_append(f.kv, 0, -1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_trim(f.kv, 0, 8), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_trim(f.kv, 0, -1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_fork(f.kv, 0, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_fork(f.kv, 1, N_SEQ), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_length(f.kv, 0), 7);
    tsr_kv_destroy(NULL);
    close_region(&f);
}

static void a_cap_too_small_names_device_and_bytes(void **state)
{
    (void)state;
    fixture f = {0};
    fake_device_config configs[N_DEVICES];
    for (int d = 0; d < N_DEVICES; d++)
        configs[d] = fake_device_defaults();
    configs[1].memory_cap = 5000;
    fake_runtime_open(&f.fake, N_DEVICES, configs);
    describe(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    expect_refused(&f, &f.config, TSR_ERR_MEMORY, "fake:1");
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(fake_device_live_bytes(f.fake.devices[d]), 0);
    fake_runtime_close(&f.fake);
}

static void creation_survives_every_failing_allocation(void **state)
{
    (void)state;
    fixture f = {0};
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    describe(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        tsr_kv *kv = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_kv_create(&f.fake.rt, &f.config, &kv);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            assert_true(n > 8);
            failing_alloc_set(1); /* from here on nothing allocates: the first allocation would fail */
            assert_int_equal(tsr_kv_fork(kv, 0, 1), TSR_OK);
            assert_int_equal(tsr_kv_trim(kv, 0, 0), TSR_OK);
            assert_false(failing_alloc_fired());
            failing_alloc_set(0);
            tsr_kv_destroy(kv);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_null(kv);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
        for (int d = 0; d < N_DEVICES; d++)
            assert_int_equal(tsr_device_used(f.fake.devices[d]), 0);
    }
    fake_runtime_close(&f.fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousands_of_random_operations_keep_every_row),
        cmocka_unit_test(failing_commits_and_copies_lose_nothing),
        cmocka_unit_test(a_context_of_tokens_fits_however_it_is_spread),
        cmocka_unit_test(running_out_says_so_and_changes_nothing),
        cmocka_unit_test(memory_is_committed_as_pages_are_used),
        cmocka_unit_test(a_fork_costs_one_page_where_it_diverges),
        cmocka_unit_test(devices_without_heads_hold_nothing),
        cmocka_unit_test(planned_bytes_are_reserved_bytes),
        cmocka_unit_test(bad_configurations_are_named),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_cap_too_small_names_device_and_bytes),
        cmocka_unit_test(creation_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
