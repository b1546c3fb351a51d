/* The KV region under thousands of random operations, against a naive model: every row that a group keeps is
 * written and read back, and every group keeps what the next token may see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/kv/kv.h"
#include "core/mem.h"
#include "support/kv_case.h"
#include "support/random.h"

enum { MAX_TOKENS = 128 };

static uint64_t seed = 1;

static int below(int n)
{
    return (int)random_below(&seed, (uint64_t)n);
}

/* -- rows that name their token, layer, head and part -- */

static void row_pattern(int64_t stamp, int layer, int64_t head, int part, unsigned char *row, size_t bytes)
{
    uint64_t x = ((uint64_t)stamp * 64 + (uint64_t)layer * 16 + (uint64_t)head * 2 + (uint64_t)part + 1) *
                 UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < bytes; i++)
        row[i] = (unsigned char)((x >> (i % 8 * 8)) + i / 8);
}

/* The bytes of one head's K (part 0) or V (part 1) of one key of a sequence, as kernels find them: the key of
 * one position, or of `ratio` positions. */
static unsigned char *row_at(const kv_fixture *f, int device, int layer, int64_t local_head, int part,
                             int seq, int64_t key, size_t *bytes_out)
{
    tsr_kv_view view;
    tsr_kv_span span;
    const int32_t *pages = tsr_kv_pages(f->kv, tsr_kv_group_of(f->kv, layer), seq, &span);
    tsr_kv_view_of(f->kv, device, layer, &view);
    assert_true(key / view.page_tokens >= span.first);
    assert_true(key / view.page_tokens < span.end);
    assert_true(local_head < view.n_heads);
    size_t row_bytes = part ? view.v_row_bytes : view.k_row_bytes;
    *bytes_out = row_bytes;
    size_t row = (size_t)(local_head * view.page_tokens + key % view.page_tokens);
    return view.base + (size_t)pages[key / view.page_tokens] * view.page_bytes +
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

/* Visit every row of one key in one layer, all heads, wherever they are. */
static void visit_layer(const kv_fixture *f, int layer, int seq, int64_t key, int64_t stamp,
                        row_visitor visit)
{
    unsigned char pattern[HEAD_DIM * sizeof(float)];
    for (int64_t head = 0; head < N_HEADS; head++)
        for (int part = 0; part < 2; part++) {
            size_t bytes;
            int device = tsr_shard_map_device(&f->maps[layer], head);
            int64_t local = head - tsr_shard_map_first(&f->maps[layer], device);
            unsigned char *row = row_at(f, device, layer, local, part, seq, key, &bytes);
            row_pattern(stamp, layer, head, part, pattern, bytes);
            visit(row, pattern, bytes);
        }
}

/* -- the naive model: what each sequence holds, and which pages it would need -- */

typedef struct group_model {
    int64_t window, kept; /* kept 0: all */
    int64_t ratio, page;  /* positions of a key and of a page */
    int64_t n_pages;
    int64_t first[N_SEQ];
    int64_t pages[N_SEQ][MAX_TOKENS / PAGE]; /* an invented number per page */
} group_model;

typedef struct model {
    int64_t length[N_SEQ];
    int64_t stamp[N_SEQ][MAX_TOKENS]; /* of each token */
    group_model groups[N_LAYERS];
    int n_groups;
    int64_t next_stamp, next_page;
} model;

static int64_t pages_of(const group_model *g, int64_t n_tokens)
{
    return (n_tokens + g->page - 1) / g->page;
}

static int64_t at_least_0(int64_t n)
{
    return n > 0 ? n : 0;
}

/* Groups in the order of their first layers. */
static void model_describe(model *m, const kv_fixture *f)
{
    memset(m, 0, sizeof *m);
    for (int l = 0; l < N_LAYERS; l++) {
        int64_t window = f->layers[l].window, ratio = f->layers[l].ratio ? f->layers[l].ratio : 1;
        int g = 0;
        while (g < m->n_groups && (m->groups[g].window != window || m->groups[g].ratio != ratio))
            g++;
        assert_int_equal(tsr_kv_group_of(f->kv, l), g);
        if (g < m->n_groups)
            continue;
        m->groups[m->n_groups++] =
            (group_model){.window = window,
                          .kept = window && !f->spec.keep_all ? window - 1 + f->spec.n_batch : 0,
                          .ratio = ratio,
                          .page = PAGE * ratio,
                          .n_pages = tsr_kv_n_pages(&f->spec, window, ratio)};
        assert_int_equal(tsr_kv_page_positions(f->kv, g), PAGE * ratio);
    }
    assert_int_equal(tsr_kv_n_groups(f->kv), m->n_groups);
}

static int model_users(const model *m, const group_model *g, int64_t page)
{
    int users = 0;
    for (int s = 0; s < N_SEQ; s++)
        for (int64_t i = g->first[s]; i < pages_of(g, m->length[s]); i++)
            users += g->pages[s][i] == page;
    return users;
}

/* Distinct pages; those with several users into *shared. */
static int model_count_pages(const model *m, const group_model *g, int *shared)
{
    static int64_t seen[N_SEQ * MAX_TOKENS / PAGE];
    int used = 0;
    *shared = 0;
    for (int s = 0; s < N_SEQ; s++)
        for (int64_t i = g->first[s]; i < pages_of(g, m->length[s]); i++) {
            int k = 0;
            while (k < used && seen[k] != g->pages[s][i])
                k++;
            if (k < used)
                continue;
            seen[used++] = g->pages[s][i];
            *shared += model_users(m, g, g->pages[s][i]) > 1;
        }
    return used;
}

static int64_t first_after(const model *m, const group_model *g, int seq, int n)
{
    int64_t first = g->kept ? at_least_0(m->length[seq] + n - g->kept) / g->page : 0;
    return first > g->first[seq] ? first : g->first[seq];
}

/* Whether the page that holds the next position is to be copied first. */
static bool is_copied(const model *m, const group_model *g, int seq, int n)
{
    int64_t at = m->length[seq] / g->page;
    return m->length[seq] % g->page && at >= first_after(m, g, seq, n) &&
           model_users(m, g, g->pages[seq][at]) > 1;
}

/* Whether there are pages for n more: for the copy while all others are still there, for the rest when those
 * behind the window are not. */
static bool group_fits(const model *m, const group_model *g, int seq, int n)
{
    int shared, used = model_count_pages(m, g, &shared);
    int64_t first = first_after(m, g, seq, n), old_end = pages_of(g, m->length[seq]);
    bool copied = is_copied(m, g, seq, n);
    if (used + copied > g->n_pages)
        return false;
    for (int64_t i = g->first[seq]; i < first && i < old_end; i++)
        used -= model_users(m, g, g->pages[seq][i]) == 1;
    int64_t begin = first > old_end ? first : old_end;
    return used + copied + pages_of(g, m->length[seq] + n) - begin <= g->n_pages;
}

static bool model_fits(const model *m, int seq, int n)
{
    for (int g = 0; g < m->n_groups && n > 0; g++)
        if (!group_fits(m, &m->groups[g], seq, n))
            return false;
    return m->length[seq] + n <= N_CTX;
}

static void model_append(model *m, int seq, int n)
{
    int64_t length = m->length[seq];
    for (int k = 0; k < m->n_groups && n > 0; k++) {
        group_model *g = &m->groups[k];
        int64_t first = first_after(m, g, seq, n);
        if (is_copied(m, g, seq, n))
            g->pages[seq][length / g->page] = m->next_page++;
        for (int64_t i = pages_of(g, length); i < pages_of(g, length + n); i++)
            g->pages[seq][i] = m->next_page++;
        g->first[seq] = first;
    }
    for (int i = 0; i < n; i++)
        m->stamp[seq][length + i] = m->next_stamp++;
    m->length[seq] = length + n;
}

static void model_trim(model *m, int seq, int64_t length)
{
    m->length[seq] = length;
    for (int g = 0; g < m->n_groups && length == 0; g++)
        m->groups[g].first[seq] = 0;
}

/* What the token behind `length` sees is in pages from this one on. */
static int64_t first_seen(const group_model *g, int64_t length)
{
    return g->window ? at_least_0(length - g->window + 1) / g->page : 0;
}

static bool can_trim(const model *m, int seq, int64_t length)
{
    for (int g = 0; g < m->n_groups && length > 0; g++)
        if (m->groups[g].first[seq] > first_seen(&m->groups[g], length))
            return false;
    return true;
}

/* Rows of one sequence in a group, of the keys whose positions there all are, with the last one's stamp. */
static void check_rows(const kv_fixture *f, const model *m, int k, int s)
{
    const group_model *g = &m->groups[k];
    for (int l = 0; l < N_LAYERS; l++)
        for (int64_t i = g->first[s] * PAGE; tsr_kv_group_of(f->kv, l) == k && i < m->length[s] / g->ratio;
             i++)
            visit_layer(f, l, s, i, m->stamp[s][(i + 1) * g->ratio - 1], check_row);
}

/* All that is counted, and the rows of some sequences: what is wrong stays so until its turn comes. */
static void check_group(const kv_fixture *f, const model *m, int k)
{
    const group_model *g = &m->groups[k];
    int shared, used = model_count_pages(m, g, &shared);
    tsr_kv_stats stats = tsr_kv_group_stats(f->kv, k);
    assert_int_equal(stats.n_pages, g->n_pages);
    assert_int_equal(stats.n_used, used);
    assert_int_equal(stats.n_shared, shared);
    assert_int_equal(stats.n_free, stats.n_pages - used);
    for (int s = 0; s < N_SEQ; s++) {
        tsr_kv_span span;
        tsr_kv_pages(f->kv, k, s, &span);
        assert_int_equal(span.first, g->first[s]);
        assert_int_equal(span.end, pages_of(g, m->length[s]));
        assert_true(span.first <= first_seen(g, m->length[s]));
        if (g->kept)
            assert_true(span.end - span.first <= (g->kept + PAGE - 2) / PAGE + 1);
        if (below(8) == 0)
            check_rows(f, m, k, s);
    }
}

static void check_all(const kv_fixture *f, const model *m)
{
    for (int g = 0; g < m->n_groups; g++)
        check_group(f, m, g);
    for (int s = 0; s < N_SEQ; s++) {
        int64_t least = tsr_kv_min_length(f->kv, s);
        assert_int_equal(tsr_kv_length(f->kv, s), m->length[s]);
        assert_true(least == 0 || !can_trim(m, s, least - 1));
        assert_true(least == 0 || can_trim(m, s, least));
    }
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(f->kv, d), fake_device_committed_bytes(f->fake.devices[d]));
}

/* -- steps -- */

/* What a program would write of the last n positions. */
static void write_last(const kv_fixture *f, const model *m, int seq, int n)
{
    for (int l = 0; l < N_LAYERS; l++) {
        const group_model *g = &m->groups[tsr_kv_group_of(f->kv, l)];
        int64_t kept = g->first[seq] * g->page;
        for (int64_t i = m->length[seq] - n; i < m->length[seq]; i++)
            if (i >= kept && (i + 1) % g->ratio == 0)
                visit_layer(f, l, seq, i / g->ratio, m->stamp[seq][i], write_row);
    }
}

static void step_append(kv_fixture *f, model *m, int seq, int n)
{
    bool fits = model_fits(m, seq, n);
    int64_t length = m->length[seq];
    size_t committed[N_DEVICES];
    for (int d = 0; d < N_DEVICES; d++)
        committed[d] = tsr_kv_committed_bytes(f->kv, d);
    assert_int_equal(tsr_kv_fits(f->kv, seq, n), fits);
    tsr_status status = tsr_kv_append(f->kv, seq, n);
    if (!fits) {
        assert_int_equal(status, TSR_ERR_FULL);
    } else if (status != TSR_OK) { /* made to fail */
        assert_true(status == TSR_ERR_MEMORY || status == TSR_ERR_DEVICE);
    } else {
        model_append(m, seq, n);
        write_last(f, m, seq, n);
        for (int g = 0; g < m->n_groups && n > 0 && n <= f->spec.n_batch; g++)
            assert_true(m->groups[g].first[seq] <= first_seen(&m->groups[g], length));
        return;
    }
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(f->kv, d), committed[d]);
}

static void step_trim(kv_fixture *f, model *m, int seq)
{
    int64_t back = below(2) ? below((int)f->spec.n_batch + 1) : below((int)m->length[seq] + 1);
    int64_t length = at_least_0(m->length[seq] - back);
    tsr_status status = tsr_kv_trim(f->kv, seq, length);
    assert_int_equal(status, can_trim(m, seq, length) ? TSR_OK : TSR_ERR_INVALID);
    if (status == TSR_OK)
        model_trim(m, seq, length);
}

static void step_fork(kv_fixture *f, model *m, int src, int dst)
{
    tsr_status status = tsr_kv_fork(f->kv, src, dst);
    if (m->length[dst] > 0) {
        assert_int_equal(status, TSR_ERR_INVALID);
        return;
    }
    assert_int_equal(status, TSR_OK);
    m->length[dst] = m->length[src];
    memcpy(m->stamp[dst], m->stamp[src], sizeof m->stamp[dst]);
    for (int g = 0; g < m->n_groups; g++) {
        m->groups[g].first[dst] = m->groups[g].first[src];
        memcpy(m->groups[g].pages[dst], m->groups[g].pages[src], sizeof m->groups[g].pages[dst]);
    }
}

/* Afterwards no more is committed than the pages in use take, unless something was made to fail. */
static void step_compact(const kv_fixture *f)
{
    size_t granularity = f->fake.devices[0]->granularity;
    tsr_status status = tsr_kv_compact(f->kv);
    for (int d = 0; d < N_DEVICES && status == TSR_OK; d++) {
        size_t bytes = 0;
        for (int g = 0; g < tsr_kv_n_groups(f->kv); g++) {
            tsr_kv_view view = {0};
            for (int l = 0; l < N_LAYERS && !view.base; l++)
                if (tsr_kv_group_of(f->kv, l) == g)
                    tsr_kv_view_of(f->kv, d, l, &view);
            size_t n_used = (size_t)tsr_kv_group_stats(f->kv, g).n_used;
            bytes += tsr_align_up(view.base ? view.page_bytes * n_used : 0, granularity);
        }
        assert_int_equal(tsr_kv_committed_bytes(f->kv, d), bytes);
    }
    assert_true(status == TSR_OK || status == TSR_ERR_DEVICE);
}

/* Tokens that two sequences begin with, as files count them. */
static int64_t common_tokens(const model *m, int seq, int64_t length, int other)
{
    int64_t n = 0;
    while (n < length && n < m->length[other] && m->stamp[seq][n] == m->stamp[other][n])
        n++;
    return n == length ? n : n / PAGE * PAGE;
}

typedef struct saved_pages {
    unsigned char *bytes[N_LAYERS][MAX_TOKENS / PAGE]; /* of each group */
} saved_pages;

static void save_pages(const kv_fixture *f, int seq, int g, tsr_kv_span span, saved_pages *saved)
{
    size_t bytes = tsr_kv_page_bytes(f->kv, g);
    for (int i = span.first; i < span.end; i++) {
        saved->bytes[g][i] = malloc(bytes);
        assert_int_equal(tsr_kv_page_get(f->kv, g, seq, i, saved->bytes[g][i]), TSR_OK);
    }
}

/* Of pages that are the parent's there must be the bytes that were saved. */
static void load_pages(const kv_fixture *f, model *m, int seq, int g, const tsr_kv_saved *what,
                       const saved_pages *saved)
{
    group_model *group = &m->groups[g];
    size_t bytes = tsr_kv_page_bytes(f->kv, g);
    unsigned char *again = malloc(bytes);
    int64_t shared =
        what->shared == what->length ? pages_of(group, what->length) : what->shared / group->page;
    group->first[seq] = what->first[g];
    for (int64_t i = what->first[g]; i < pages_of(group, what->length); i++) {
        bool theirs = what->parent >= 0 && i < shared && i >= group->first[what->parent];
        group->pages[seq][i] = theirs ? group->pages[what->parent][i] : m->next_page++;
        if (!theirs)
            assert_int_equal(tsr_kv_page_put(f->kv, g, seq, (int)i, saved->bytes[g][i]), TSR_OK);
        assert_int_equal(tsr_kv_page_get(f->kv, g, seq, (int)i, again), TSR_OK);
        assert_memory_equal(again, saved->bytes[g][i], bytes);
    }
    free(again);
}

/* A sequence leaves the region and comes back with what a file keeps of it, alone or with a parent. */
static void step_save_and_load(kv_fixture *f, model *m, int seq)
{
    saved_pages saved = {0};
    tsr_kv_saved what = {.length = m->length[seq], .parent = below(2) ? below(N_SEQ) : -1};
    if (what.parent == seq || (what.parent >= 0 && !common_tokens(m, seq, what.length, what.parent)))
        what.parent = -1;
    if (what.parent >= 0)
        what.shared = common_tokens(m, seq, what.length, what.parent);
    for (int g = 0; g < m->n_groups; g++) {
        tsr_kv_span span = tsr_kv_saved_span(f->kv, g, seq);
        assert_true(tsr_kv_saved_valid(f->kv, g, what.length, span.first));
        assert_false(tsr_kv_saved_valid(f->kv, g, what.length, first_seen(&m->groups[g], what.length) + 1));
        what.first[g] = span.first;
        save_pages(f, seq, g, span, &saved);
    }
    assert_int_equal(tsr_kv_remove(f->kv, seq), TSR_OK);
    model_trim(m, seq, 0);
    tsr_status status = tsr_kv_restore(f->kv, seq, &what);
    if (status == TSR_OK) { /* else: made to fail, or no room unshared */
        m->length[seq] = what.length;
        for (int g = 0; g < m->n_groups; g++)
            load_pages(f, m, seq, g, &what, &saved);
    } else {
        assert_true(status == TSR_ERR_FULL || status == TSR_ERR_MEMORY);
    }
    for (int g = 0; g < m->n_groups; g++)
        for (int i = 0; i < MAX_TOKENS / PAGE; i++)
            free(saved.bytes[g][i]);
}

/* All pages go to a region whose heads are divided at random; some layers wander to other devices. */
static void step_adopt(kv_fixture *f)
{
    kv_fixture next = *f;
    size_t wanted[N_DEVICES];
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
    next.spec.layers = next.layers;
    for (int d = 0; d < N_DEVICES; d++)
        wanted[d] = tsr_kv_adopt_bytes(f->kv, next.layers, f->fake.devices[d]);
    assert_int_equal(tsr_kv_create_spec(&f->fake.rt, &next.spec, &next.kv), TSR_OK);
    tsr_kv_stats before = tsr_kv_stats_of(f->kv);
    tsr_status status = tsr_kv_adopt(next.kv, f->kv);
    if (status != TSR_OK) { /* made to fail: the old one goes on */
        assert_true(status == TSR_ERR_MEMORY || status == TSR_ERR_DEVICE);
        tsr_kv_destroy(next.kv);
        return;
    }
    tsr_kv_stats after = tsr_kv_stats_of(next.kv);
    assert_memory_equal(&after, &before, sizeof after);
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(next.kv, d), wanted[d]);
    assert_int_equal(tsr_kv_adopt(next.kv, f->kv), before.n_touched ? TSR_ERR_INVALID : TSR_OK);
    tsr_kv_destroy(f->kv);
    f->kv = next.kv;
    memcpy(f->maps, next.maps, sizeof f->maps);
    for (int i = 0; i < N_LAYERS; i++)
        f->layers[i].devices = next.layers[i].devices;
}

static void random_step(kv_fixture *f, model *m)
{
    int seq = below(N_SEQ), kind = below(14);
    if (kind < 6) {
        step_append(f, m, seq, below(below(4) == 0 ? 60 : 6));
    } else if (kind < 8) {
        step_fork(f, m, seq, below(N_SEQ));
    } else if (kind < 10) {
        step_trim(f, m, seq);
    } else if (kind < 11) {
        assert_int_equal(tsr_kv_remove(f->kv, seq), TSR_OK);
        model_trim(m, seq, 0);
    } else if (kind < 12) {
        step_compact(f);
    } else if (kind < 13) {
        step_save_and_load(f, m, seq);
    } else {
        step_adopt(f);
    }
}

/* -- runs -- */

typedef struct run_config {
    tsr_type type_k, type_v;
    int64_t windows[N_LAYERS], ratios[N_LAYERS];
    int64_t n_batch;
    bool keep_all, inject;
    int n_steps;
} run_config;

static void make_region(kv_fixture *f, model *m)
{
    assert_int_equal(tsr_kv_create_spec(&f->fake.rt, &f->spec, &f->kv), TSR_OK);
    model_describe(m, f);
}

static void run_random(const run_config *run)
{
    static model m; /* large */
    kv_fixture f = {0};
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    kv_describe(&f, run->type_k, run->type_v);
    for (int i = 0; i < N_LAYERS; i++) {
        f.layers[i].window = run->windows[i];
        f.layers[i].ratio = run->ratios[i];
    }
    f.spec.n_batch = run->n_batch;
    f.spec.keep_all = run->keep_all;
    make_region(&f, &m);
    for (int i = 0; i < run->n_steps; i++) {
        tsr_device *device = f.fake.devices[below(N_DEVICES)];
        static const fake_call calls[] = {FAKE_COMMIT, FAKE_COPY, FAKE_DECOMMIT};
        fake_call call = calls[below(3)];
        if (run->inject && below(3) == 0)
            fake_device_fail(device, call, 1);
        random_step(&f, &m);
        fake_device_fail(device, call, 0);
        check_all(&f, &m);
        if (run->inject && i % 500 == 499) { /* a fresh region, so that commits keep happening */
            tsr_kv_destroy(f.kv);
            make_region(&f, &m);
        }
    }
    kv_close(&f);
}

static void thousands_of_random_operations_keep_every_row(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    for (int i = 0; i < 5; i++)
        run_random(&(run_config){.type_k = types[i], .type_v = types[(i + 2) % 5], .n_steps = 1000});
}

static void failing_commits_and_copies_lose_nothing(void **state)
{
    (void)state;
    run_random(
        &(run_config){.type_k = TSR_TYPE_F16, .type_v = TSR_TYPE_Q8_0, .inject = true, .n_steps = 5000});
}

/* Windows from one position to more than the context, the same in some layers, in others not; and layers
 * without one in which a key is that of several positions. */
static run_config random_layers(int n_steps)
{
    static const int64_t windows[] = {0, 1, 2, 4, 5, 11, 23, 400}, ratios[] = {1, 2, 3, 4, 32};
    run_config run = {.type_k = TSR_TYPE_F16, .type_v = TSR_TYPE_Q4_0, .n_steps = n_steps};
    for (int i = 0; i < N_LAYERS; i++)
        if (below(3) == 0)
            run.ratios[i] = ratios[below(sizeof ratios / sizeof *ratios)];
        else
            run.windows[i] = windows[below(sizeof windows / sizeof *windows)];
    run.n_batch = 1 + below(12);
    run.keep_all = below(6) == 0;
    return run;
}

static void groups_keep_what_is_seen(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        run_config run = random_layers(200);
        run_random(&run);
    }
}

static void groups_survive_failures(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        run_config run = random_layers(250);
        run.inject = true;
        run_random(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousands_of_random_operations_keep_every_row),
        cmocka_unit_test(failing_commits_and_copies_lose_nothing),
        cmocka_unit_test(groups_keep_what_is_seen),
        cmocka_unit_test(groups_survive_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
