/* The KV region: sharing, growth, windows and refusals, one by one. test_kv_random.c has them all at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/kv/kv.h"
#include "core/mem.h"
#include "support/failing_alloc.h"
#include "support/fake_device.h"
#include "support/kv_case.h"
#include "support/random.h"

static uint64_t seed = 1;

static int below(int n)
{
    return (int)random_below(&seed, (uint64_t)n);
}

static void a_context_of_tokens_fits_however_it_is_spread(void **state)
{
    (void)state;
    kv_fixture f;
    kv_open(&f, TSR_TYPE_F16, TSR_TYPE_F16, NULL);
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
    kv_close(&f);
}

static void running_out_says_so_and_changes_nothing(void **state)
{
    (void)state;
    kv_fixture f;
    kv_open(&f, TSR_TYPE_F16, TSR_TYPE_F16, NULL);
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
    kv_close(&f);
}

static void memory_is_committed_as_pages_are_used(void **state)
{
    (void)state;
    kv_fixture f;
    kv_open(&f, TSR_TYPE_F32, TSR_TYPE_F32, NULL);
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
    kv_close(&f);
}

/* Of two sequences, in layers with a window and without: what is appended later commits nothing. */
static void pages_are_committed_ahead(void **state)
{
    (void)state;
    static const int64_t windows[N_LAYERS] = {0, 6, 0};
    kv_fixture f;
    size_t committed[N_DEVICES];
    const int64_t longer[N_SEQ] = {40, 0, 30}, too_long[N_SEQ] = {N_CTX, N_CTX};
    kv_open(&f, TSR_TYPE_F32, TSR_TYPE_F32, windows);
    fake_device_fail(f.fake.rt.devices[2], FAKE_COMMIT, 1);
    assert_int_equal(tsr_kv_commit_ahead(f.kv, longer), TSR_ERR_MEMORY);
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(f.kv, d), 0);
    fake_device_fail(f.fake.rt.devices[1], FAKE_COMMIT, 2); /* of the layer with a window */
    assert_int_equal(tsr_kv_commit_ahead(f.kv, longer), TSR_ERR_MEMORY);
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(f.kv, d), 0);
    assert_int_equal(tsr_kv_commit_ahead(f.kv, longer), TSR_OK);
    for (int d = 0; d < N_DEVICES; d++)
        committed[d] = tsr_kv_committed_bytes(f.kv, d);
    assert_true(committed[0] > 0);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(tsr_kv_append(f.kv, 0, 4), TSR_OK);
        assert_int_equal(tsr_kv_append(f.kv, 2, 3), TSR_OK);
    }
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(f.kv, d), committed[d]);
    assert_int_equal(tsr_kv_stats_of(f.kv).n_used, tsr_kv_stats_of(f.kv).n_touched);
    assert_int_equal(tsr_kv_commit_ahead(f.kv, too_long), TSR_OK); /* as far as there are pages */
    kv_close(&f);
}

/* Pages behind the windows are used again, so that long sequences need no more of them. */
static void no_more_is_committed_ahead_than_windows_keep(void **state)
{
    (void)state;
    static const int64_t windows[N_LAYERS] = {6, 6, 6};
    for (int start = 0; start < 40; start += 3) {
        kv_fixture f;
        size_t committed[N_DEVICES];
        const int64_t longer[N_SEQ] = {60, 0, 60}; /* with as many pages as windows ever keep */
        kv_open(&f, TSR_TYPE_F32, TSR_TYPE_F32, windows);
        for (int i = 0; i < start; i++) {
            assert_int_equal(tsr_kv_append(f.kv, 0, 1), TSR_OK);
            assert_int_equal(tsr_kv_append(f.kv, 2, 1), TSR_OK);
        }
        assert_int_equal(tsr_kv_commit_ahead(f.kv, longer), TSR_OK);
        for (int d = 0; d < N_DEVICES; d++)
            committed[d] = tsr_kv_committed_bytes(f.kv, d);
        while (tsr_kv_length(f.kv, 2) < longer[2]) {
            assert_int_equal(tsr_kv_append(f.kv, 0, 1), TSR_OK);
            assert_int_equal(tsr_kv_append(f.kv, 2, 1), TSR_OK);
        }
        for (int d = 0; d < N_DEVICES; d++)
            assert_int_equal(tsr_kv_committed_bytes(f.kv, d), committed[d]);
        assert_int_equal(tsr_kv_compact(f.kv), TSR_OK);
        for (int d = 0; d < N_DEVICES; d++)
            assert_int_equal(tsr_kv_committed_bytes(f.kv, d), committed[d]);
        kv_close(&f);
    }
}

static void a_fork_costs_one_page_where_it_diverges(void **state)
{
    (void)state;
    kv_fixture f;
    kv_open(&f, TSR_TYPE_F16, TSR_TYPE_F16, NULL);
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
    kv_close(&f);
}

/* A program writes to positions that a sequence has already: only the pages of these positions are copied. */
static void pages_are_copied_before_they_are_written_again(void **state)
{
    (void)state;
    kv_fixture f;
    tsr_kv_span span;
    kv_open(&f, TSR_TYPE_F16, TSR_TYPE_F16, NULL);
    assert_int_equal(tsr_kv_append(f.kv, 0, 10 * PAGE + 1), TSR_OK);
    assert_int_equal(tsr_kv_fork(f.kv, 0, 1), TSR_OK);
    assert_int_equal(tsr_kv_own(f.kv, 0, 1, 3 * PAGE - 1, 4 * PAGE), TSR_OK);
    assert_int_equal(tsr_kv_stats_of(f.kv).n_used, 13);
    assert_int_equal(tsr_kv_stats_of(f.kv).n_shared, 9);
    assert_int_equal(fake_device_calls(f.fake.devices[0], FAKE_COPY), 2);
    const int32_t *a = tsr_kv_pages(f.kv, 0, 0, &span), *b = tsr_kv_pages(f.kv, 0, 1, &span);
    for (int i = 0; i < span.end; i++)
        assert_int_equal(a[i] == b[i], i != 2 && i != 3);
    assert_int_equal(tsr_kv_own(f.kv, 0, 1, 3 * PAGE - 1, 4 * PAGE), TSR_OK); /* they are its own */
    assert_int_equal(tsr_kv_own(f.kv, 0, 0, 3 * PAGE - 1, 4 * PAGE), TSR_OK);
    assert_int_equal(fake_device_calls(f.fake.devices[0], FAKE_COPY), 2);
    assert_int_equal(tsr_kv_own(f.kv, 0, 1, 10 * PAGE, 10 * PAGE + 2), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_length(f.kv, 1), 10 * PAGE + 1);
    kv_close(&f);
}

static void devices_without_heads_hold_nothing(void **state)
{
    (void)state;
    kv_fixture f = {0};
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    kv_describe(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    f.spec.n_layers = 1;
    f.spec.layers = &f.layers[1]; /* on device 1 alone */
    assert_int_equal(tsr_kv_create_spec(&f.fake.rt, &f.spec, &f.kv), TSR_OK);
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
    kv_close(&f);
}

/* Values are in the keys, so a page has one row of them per token. */
static void a_whole_layer_is_on_every_device_and_in_a_file_once(void **state)
{
    (void)state;
    enum { ROW = HEAD_DIM * 2, N_TOKENS = 3 };
    kv_fixture f = {0};
    unsigned char page[PAGE * ROW], back[PAGE * ROW];
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    kv_describe(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    f.spec.n_layers = 1;
    f.layers[0].whole = f.layers[0].v_in_k = true;
    f.layers[0].v_dim = HEAD_DIM - 8;
    assert_int_equal(tsr_kv_create_spec(&f.fake.rt, &f.spec, &f.kv), TSR_OK);
    assert_int_equal(tsr_kv_page_bytes(f.kv, 0), sizeof page);
    assert_int_equal(tsr_kv_append(f.kv, 0, N_TOKENS), TSR_OK);
    memset(page, 0, sizeof page);
    for (int i = 0; i < N_TOKENS * ROW; i++)
        page[i] = (unsigned char)(1 + i % 255);
    assert_int_equal(tsr_kv_page_put(f.kv, 0, 0, 0, page), TSR_OK);
    for (int d = 0; d < N_DEVICES; d++) {
        tsr_kv_view view;
        tsr_kv_span span;
        tsr_kv_view_of(f.kv, d, 0, &view);
        assert_int_equal(view.n_heads, 1);
        assert_int_equal(view.page_bytes, sizeof page);
        assert_int_equal(view.v_offset, view.k_offset);
        assert_int_equal(view.v_row_bytes, view.k_row_bytes);
        const int32_t *pages = tsr_kv_pages(f.kv, 0, 0, &span);
        assert_memory_equal(view.base + (size_t)pages[0] * view.page_bytes + view.k_offset, page,
                            N_TOKENS * ROW);
    }
    assert_int_equal(tsr_kv_page_get(f.kv, 0, 0, 0, back), TSR_OK);
    assert_memory_equal(back, page, sizeof page);
    kv_close(&f);
}

/* Three positions of layer 1 have one key: 13 positions have 4, and the first page has room for 12. */
static void with_a_ratio_a_page_has_keys_of_more_positions(void **state)
{
    (void)state;
    enum { RATIO = 3, PAGE_BYTES = N_HEADS * 2 * PAGE * HEAD_DIM * 2 };
    kv_fixture f = {0};
    tsr_kv_view view;
    tsr_kv_span span;
    unsigned char page[PAGE_BYTES], back[PAGE_BYTES], zeros[PAGE_BYTES] = {0};
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    kv_describe(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    f.layers[1].ratio = RATIO;
    assert_int_equal(tsr_kv_create_spec(&f.fake.rt, &f.spec, &f.kv), TSR_OK);
    assert_int_equal(tsr_kv_n_groups(f.kv), 2);
    assert_int_equal(tsr_kv_page_positions(f.kv, 1), RATIO * PAGE);
    assert_int_equal(tsr_kv_max_pages(f.kv, 1), (N_CTX + RATIO * PAGE - 1) / (RATIO * PAGE));
    tsr_kv_view_of(f.kv, 1, 1, &view);
    assert_int_equal(view.ratio, RATIO);
    assert_int_equal(view.page_tokens, PAGE);
    assert_int_equal(tsr_kv_append(f.kv, 0, RATIO * PAGE + 1), TSR_OK);
    (void)tsr_kv_pages(f.kv, 0, 0, &span);
    assert_int_equal(span.end, RATIO + 1);
    (void)tsr_kv_pages(f.kv, 1, 0, &span);
    assert_int_equal(span.end, 2);
    assert_int_equal(tsr_kv_page_bytes(f.kv, 1), sizeof page);
    memset(page, 0x5a, sizeof page);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tsr_kv_page_put(f.kv, 1, 0, i, page), TSR_OK);
    assert_int_equal(tsr_kv_page_get(f.kv, 1, 0, 0, back), TSR_OK);
    assert_memory_equal(back, page, sizeof page);
    assert_int_equal(tsr_kv_page_get(f.kv, 1, 0, 1, back), TSR_OK);
    assert_memory_equal(back, zeros, sizeof back); /* of a key that is not complete */
    assert_int_equal(tsr_kv_fork(f.kv, 0, 1), TSR_OK);
    assert_int_equal(tsr_kv_append(f.kv, 1, 1), TSR_OK);
    assert_int_equal(tsr_kv_group_stats(f.kv, 1).n_used, 3);
    assert_int_equal(tsr_kv_group_stats(f.kv, 1).n_shared, 1);
    assert_int_equal(tsr_kv_trim(f.kv, 1, RATIO * PAGE), TSR_OK);
    assert_int_equal(tsr_kv_group_stats(f.kv, 1).n_used, 2);
    kv_close(&f);
}

static void planned_bytes_are_reserved_bytes(void **state)
{
    (void)state;
    kv_fixture f;
    fake_runtime measuring;
    tsr_kv *planned = NULL;
    kv_open(&f, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, NULL);
    fake_runtime_open_dry(&measuring, N_DEVICES, NULL);
    assert_int_equal(tsr_kv_create_spec(&measuring.rt, &f.spec, &planned), TSR_OK);
    for (int d = 0; d < N_DEVICES; d++) {
        assert_true(measuring.devices[d]->used[TSR_MEMORY_KV] > 0);
        assert_int_equal(measuring.devices[d]->used[TSR_MEMORY_KV], f.fake.devices[d]->used[TSR_MEMORY_KV]);
    }
    assert_int_equal(tsr_kv_append(planned, 0, 5), TSR_OK); /* page tables work there as well */
    tsr_kv_destroy(planned);
    fake_runtime_close(&measuring);
    kv_close(&f);
}

static void expect_refused(kv_fixture *f, const tsr_kv_spec *spec, tsr_status status, const char *word)
{
    tsr_kv *kv = NULL;
    assert_int_equal(tsr_kv_create_spec(&f->fake.rt, spec, &kv), status);
    assert_null(kv);
    assert_non_null(strstr(tsr_last_error(), word));
}

static void bad_configurations_are_named(void **state)
{
    (void)state;
    kv_fixture f = {0};
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    kv_describe(&f, TSR_TYPE_Q8_0, TSR_TYPE_F16);
    f.layers[1].k_dim = 80;
    expect_refused(&f, &f.spec, TSR_ERR_UNSUPPORTED, "type_k Q8_0");
    assert_non_null(strstr(tsr_last_error(), "head_dim 80"));
    f.layers[1].k_dim = HEAD_DIM;
    f.layers[1].v_in_k = true;
    expect_refused(&f, &f.spec, TSR_ERR_UNSUPPORTED, "pass the same type for both");
    f.layers[1].v_dim = HEAD_DIM + 32;
    expect_refused(&f, &f.spec, TSR_ERR_INVALID, "values inside keys no more than keys");
    kv_describe(&f, TSR_TYPE_Q8_0, TSR_TYPE_F16);
    tsr_kv_spec spec = f.spec;
    spec.type_v = TSR_TYPE_Q4_K;
    expect_refused(&f, &spec, TSR_ERR_UNSUPPORTED, "type_v Q4_K");
    spec = f.spec;
    spec.n_ctx = 0;
    expect_refused(&f, &spec, TSR_ERR_INVALID, "n_ctx 0");
    spec = f.spec;
    spec.n_ctx = INT64_C(1) << 40;
    expect_refused(&f, &spec, TSR_ERR_INVALID, "2^31");
    f.layers[1].window = -1;
    expect_refused(&f, &f.spec, TSR_ERR_INVALID, "a window of -1 positions; 0 (none) to 2147483647");
    f.layers[1].window = 9;
    spec = f.spec;
    spec.n_batch = 0;
    expect_refused(&f, &spec, TSR_ERR_INVALID, "n_batch 0 must be 1");
    f.layers[1].ratio = 2;
    expect_refused(&f, &f.spec, TSR_ERR_INVALID,
                   "2 positions have one key; 1 to 65536 are possible, and 1 with");
    f.layers[1].ratio = 0;
    f.layers[0].devices = 3; /* device 2 has heads of layer 0 */
    expect_refused(&f, &f.spec, TSR_ERR_INVALID, "layer 0");
    fake_runtime_close(&f.fake);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    kv_fixture f;
    kv_open(&f, TSR_TYPE_F16, TSR_TYPE_F16, NULL);
    assert_int_equal(tsr_kv_append(f.kv, 0, 7), TSR_OK);
    assert_int_equal(tsr_kv_append(f.kv, N_SEQ, 1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_append(f.kv, -1, 1), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "sequences 0 to"));
    assert_int_equal(tsr_kv_append(f.kv, 0, -1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_trim(f.kv, 0, 8), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "sequence 0 of 7 tokens cannot be cut to 8; pass 0 to 7"));
    assert_int_equal(tsr_kv_trim(f.kv, 0, -1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_fork(f.kv, 0, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_fork(f.kv, 1, N_SEQ), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_length(f.kv, 0), 7);
    assert_int_equal(tsr_kv_trim(f.kv, 0, 1), TSR_OK);
    assert_int_equal(tsr_kv_trim(f.kv, 0, 2), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "sequence 0 of 1 token cannot be cut to 2"));
    tsr_kv_destroy(NULL);
    kv_close(&f);
}

static void a_cap_too_small_names_device_and_bytes(void **state)
{
    (void)state;
    kv_fixture f = {0};
    fake_device_config configs[N_DEVICES];
    for (int d = 0; d < N_DEVICES; d++)
        configs[d] = fake_device_defaults();
    configs[1].memory_cap = 5000;
    fake_runtime_open(&f.fake, N_DEVICES, configs);
    kv_describe(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    expect_refused(&f, &f.spec, TSR_ERR_MEMORY, "fake:1");
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(fake_device_live_bytes(f.fake.devices[d]), 0);
    fake_runtime_close(&f.fake);
}

static void creation_survives_every_failing_allocation(void **state)
{
    (void)state;
    kv_fixture f = {0};
    fake_runtime_open(&f.fake, N_DEVICES, NULL);
    kv_describe(&f, TSR_TYPE_F16, TSR_TYPE_F16);
    f.layers[1].window = 9; /* two groups */
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        tsr_kv *kv = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_kv_create_spec(&f.fake.rt, &f.spec, &kv);
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
        cmocka_unit_test(a_context_of_tokens_fits_however_it_is_spread),
        cmocka_unit_test(running_out_says_so_and_changes_nothing),
        cmocka_unit_test(memory_is_committed_as_pages_are_used),
        cmocka_unit_test(pages_are_committed_ahead),
        cmocka_unit_test(no_more_is_committed_ahead_than_windows_keep),
        cmocka_unit_test(a_fork_costs_one_page_where_it_diverges),
        cmocka_unit_test(pages_are_copied_before_they_are_written_again),
        cmocka_unit_test(devices_without_heads_hold_nothing),
        cmocka_unit_test(a_whole_layer_is_on_every_device_and_in_a_file_once),
        cmocka_unit_test(with_a_ratio_a_page_has_keys_of_more_positions),
        cmocka_unit_test(planned_bytes_are_reserved_bytes),
        cmocka_unit_test(bad_configurations_are_named),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_cap_too_small_names_device_and_bytes),
        cmocka_unit_test(creation_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
