/* Weights of a mapped file on their devices: views where a device can read the file, copies where not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "core/mem.h"
#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/weights_case.h"

static size_t shard_bytes(const weights *w, int d)
{
    size_t bytes = 0;
    for (int i = 0; i < w->n; i++)
        bytes += tsr_tensor_device_bytes(&w->tensors[i], d);
    return bytes;
}

static void views_read_no_byte_and_cost_exactly_their_shards(void **state)
{
    (void)state;
    static weights w;
    uint64_t seed = 1;
    for (int round = 0; round < 200; round++) {
        fake_runtime fake;
        tsr_buffer *buffer = NULL;
        fake_runtime_open(&fake, 1 + (int)random_below(&seed, 6), NULL);
        weights_random(&w, &fake.rt, &seed);
        weights_map_file(&w, PROT_NONE, &seed); /* a read would end the program */
        assert_int_equal(weights_load(&fake.rt, &w, false, &buffer), TSR_OK);
        for (int i = 0; i < w.n; i++) {
            const tsr_tensor *t = &w.tensors[i];
            assert_ptr_equal(t->buffer, buffer);
            for (int d = 0; d < fake.rt.n_devices; d++) {
                if (tsr_tensor_device_bytes(t, d) == 0) {
                    assert_null(t->shards[d].data);
                    continue;
                }
                tsr_window window = tsr_placement_window(t, &w.placements[i], d);
                size_t row_bytes = tsr_type_row_bytes(t->type, t->ne[0]);
                assert_int_equal(t->shards[d].row_stride, row_bytes);
                assert_ptr_equal(t->shards[d].data, (const unsigned char *)w.sources[i] +
                                                        (size_t)window.row_begin * row_bytes +
                                                        tsr_type_row_bytes(t->type, window.col_begin));
            }
        }
        for (int d = 0; d < fake.rt.n_devices; d++) {
            assert_int_equal(fake.devices[d]->used[TSR_MEMORY_WEIGHTS], shard_bytes(&w, d));
            assert_int_equal(tsr_buffer_bytes(buffer, d), shard_bytes(&w, d));
            assert_int_equal(fake_device_calls(fake.devices[d], FAKE_ALLOC), 0);
            assert_int_equal(fake_device_calls(fake.devices[d], FAKE_UPLOAD), 0);
        }
        tsr_buffer_destroy(buffer);
        assert_null(w.tensors[0].shards);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&fake);
    }
}

static void views_and_copies_hold_the_file(void **state)
{
    (void)state;
    static weights w;
    uint64_t seed = 2;
    for (int round = 0; round < 200; round++) {
        fake_runtime fake;
        fake_device_config configs[6];
        tsr_buffer *buffer = NULL;
        bool copy = round % 2;
        for (int d = 0; d < 6;
             d++) { /* some devices can read the file, some cannot, some take it in chunks */
            configs[d] = fake_device_defaults();
            configs[d].refuses_wrap = random_below(&seed, 2);
            configs[d].alignment = (size_t)32 << random_below(&seed, 4);
            configs[d].max_alloc = random_below(&seed, 2) ? SIZE_MAX : 300000;
        }
        fake_runtime_open(&fake, 6, configs);
        weights_random(&w, &fake.rt, &seed);
        weights_map_file(&w, PROT_READ, &seed); /* a write would end the program */
        assert_int_equal(weights_load(&fake.rt, &w, copy, &buffer), TSR_OK);
        weights_check_contents(&w);
        assert_int_equal(tsr_tensor_set(&w.tensors[0], w.sources[0], 0, tsr_tensor_bytes(&w.tensors[0])),
                         TSR_ERR_INVALID);
        for (int d = 0; d < 6; d++) {
            bool copied = copy || configs[d].refuses_wrap;
            size_t padded = 0;
            for (int i = 0; i < w.n; i++) {
                int64_t columns, rows;
                tsr_tensor_local_shape(&w.tensors[i], d, &columns, &rows);
                padded += tsr_align_up(tsr_tensor_device_bytes(&w.tensors[i], d), configs[d].alignment);
                if (copied && rows > 0)
                    assert_int_equal(w.tensors[i].shards[d].row_stride,
                                     tsr_type_row_bytes(w.tensors[i].type, columns));
                if (copied)
                    assert_int_equal((uintptr_t)w.tensors[i].shards[d].data % configs[d].alignment, 0);
            }
            assert_int_equal(fake.devices[d]->used[TSR_MEMORY_WEIGHTS], copied ? padded : shard_bytes(&w, d));
            assert_int_equal(fake_device_calls(fake.devices[d], FAKE_UPLOAD) > 0, copied && padded > 0);
        }
        tsr_buffer_destroy(buffer);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&fake);
    }
}

static void measuring_needs_no_file_and_counts_the_same(void **state)
{
    (void)state;
    static weights w;
    for (uint64_t round = 0; round < 100; round++) {
        fake_runtime fake, measuring;
        tsr_buffer *buffer = NULL, *planned = NULL;
        bool copy = round % 2;
        uint64_t seed = round;
        fake_runtime_open(&fake, 5, NULL);
        fake_runtime_open_dry(&measuring, 5, NULL);
        weights_random(&w, &measuring.rt, &seed);
        assert_int_equal(weights_load(&measuring.rt, &w, copy, &planned), TSR_OK);
        size_t bytes[5];
        for (int d = 0; d < 5; d++)
            bytes[d] = measuring.devices[d]->used[TSR_MEMORY_WEIGHTS];
        tsr_buffer_destroy(planned);
        seed = round;
        weights_random(&w, &fake.rt, &seed);
        weights_map_file(&w, PROT_READ, &seed);
        assert_int_equal(weights_load(&fake.rt, &w, copy, &buffer), TSR_OK);
        for (int d = 0; d < 5; d++)
            assert_int_equal(fake.devices[d]->used[TSR_MEMORY_WEIGHTS], bytes[d]);
        tsr_buffer_destroy(buffer);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&measuring);
        fake_runtime_close(&fake);
    }
}

/* -- twins -- */

/* The same tensors, divided in another way or not at all as before. */
static void divide_again(const weights *w, tsr_runtime *rt, uint64_t *seed, weights *second)
{
    *second = *w;
    for (int i = 0; i < w->n; i++) {
        tsr_placement *p = &second->placements[i];
        second->pointers[i] = &second->tensors[i];
        if (p->sharding == TSR_SHARDING_REPLICATED) {
            p->devices = 1 + random_below(seed, (UINT64_C(1) << rt->n_devices) - 1);
            continue;
        }
        p->map = &second->maps[i];
        if (random_below(seed, 4))
            weights_random_map(w->maps[i].extent, w->maps[i].granule, rt->n_devices, seed, &second->maps[i]);
    }
}

static tsr_status load_twins(tsr_runtime *rt, const weights *a, const weights *b, bool copy,
                             tsr_buffer **buffer_out)
{
    const tsr_buffer_load_config config = {.flags = (unsigned)copy | TSR_LOAD_TWINS,
                                           .owner = TSR_MEMORY_WEIGHTS};
    const weights *both[2] = {a, b};
    tsr_tensor *tensors[2 * MAX_WEIGHTS];
    tsr_placement placements[2 * MAX_WEIGHTS];
    const void *sources[2 * MAX_WEIGHTS];
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < a->n; i++) {
            tensors[t * a->n + i] = both[t]->pointers[i];
            placements[t * a->n + i] = both[t]->placements[i];
            sources[t * a->n + i] = both[t]->sources[i];
        }
    return tsr_buffer_load(rt, tensors, placements, sources, 2 * a->n, &config, buffer_out);
}

/* Bytes of the elements of tensor i that a device has under either split, block by block. */
static size_t bytes_of_either(const weights *a, const weights *b, int i, int d)
{
    const tsr_tensor *t = &a->tensors[i];
    const tsr_window x = tsr_placement_window(t, &a->placements[i], d),
                     y = tsr_placement_window(t, &b->placements[i], d);
    const int64_t block = tsr_type_block_elems(t->type);
    size_t n = 0;
    for (int64_t row = 0; row < t->ne[1]; row++)
        for (int64_t col = 0; col < t->ne[0]; col += block)
            n += (row >= x.row_begin && row < x.row_end && col >= x.col_begin && col < x.col_end) ||
                 (row >= y.row_begin && row < y.row_end && col >= y.col_begin && col < y.col_end);
    return n * tsr_type_row_bytes(t->type, block);
}

static void twins_hold_the_file_and_store_once_what_both_have(void **state)
{
    (void)state;
    static weights a, b;
    uint64_t seed = 8;
    for (int round = 0; round < 200; round++) {
        enum { N = 5 };
        const bool copy = round % 2;
        fake_runtime fake;
        tsr_buffer *buffer = NULL;
        fake_runtime_open(&fake, N, NULL);
        weights_random(&a, &fake.rt, &seed);
        weights_map_file(&a, PROT_READ, &seed);
        divide_again(&a, &fake.rt, &seed, &b);
        assert_int_equal(load_twins(&fake.rt, &a, &b, copy, &buffer), TSR_OK);
        weights_check_contents(&a);
        weights_check_contents(&b);
        for (int d = 0; d < N; d++) {
            size_t least = 0, padding = 2 * (size_t)a.n * fake.devices[d]->alignment;
            for (int i = 0; i < a.n; i++)
                least += bytes_of_either(&a, &b, i, d);
            assert_true(tsr_buffer_bytes(buffer, d) >= least);
            assert_true(tsr_buffer_bytes(buffer, d) <= least + (copy ? padding : 0));
            assert_int_equal(fake.devices[d]->used[TSR_MEMORY_WEIGHTS], tsr_buffer_bytes(buffer, d));
        }
        tsr_buffer_destroy(buffer);
        munmap(a.file, a.file_bytes);
        fake_runtime_close(&fake);
    }
}

/* -- progress -- */

typedef struct progress_log {
    int n_calls;
    size_t done, total;
} progress_log;

static void note_progress(size_t done, size_t total, void *user)
{
    progress_log *log = user;
    assert_true(done >= log->done && done <= total);
    assert_true(log->n_calls == 0 || total == log->total);
    *log = (progress_log){log->n_calls + 1, done, total};
}

static void progress_grows_to_the_sum_of_all_shards(void **state)
{
    (void)state;
    static weights w;
    uint64_t seed = 3;
    for (int copy = 0; copy < 2; copy++) {
        fake_runtime fake;
        tsr_buffer *buffer = NULL;
        progress_log log = {0};
        size_t total = 0;
        fake_runtime_open(&fake, 3, NULL);
        weights_random(&w, &fake.rt, &seed);
        weights_map_file(&w, PROT_READ, &seed);
        const tsr_buffer_load_config config = {
            .flags = (unsigned)copy, .owner = TSR_MEMORY_WEIGHTS, .progress = note_progress, .user = &log};
        assert_int_equal(
            tsr_buffer_load(&fake.rt, w.pointers, w.placements, w.sources, w.n, &config, &buffer), TSR_OK);
        for (int d = 0; d < 3; d++)
            total += shard_bytes(&w, d);
        assert_int_equal(log.total, total);
        assert_int_equal(log.done, total);
        assert_true(log.n_calls > copy);
        tsr_buffer_destroy(buffer);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&fake);
    }
}

/* -- verifying -- */

static tsr_status load_verified(tsr_runtime *rt, weights *w, unsigned flags, tsr_buffer **buffer_out)
{
    const tsr_buffer_load_config config = {.flags = flags | TSR_LOAD_VERIFY, .owner = TSR_MEMORY_WEIGHTS};
    return tsr_buffer_load(rt, w->pointers, w->placements, w->sources, w->n, &config, buffer_out);
}

static void what_comes_back_changed_names_device_and_tensor(void **state)
{
    (void)state;
    static weights w;
    uint64_t seed = 6;
    for (int d = 0; d < 3; d++) {
        fake_runtime fake;
        tsr_buffer *buffer = NULL;
        fake_runtime_open(&fake, 3, NULL);
        fake.devices[d]->prefers_copies = true; /* the others get views, which need no verification */
        weights_random(&w, &fake.rt, &seed);
        weights_map_file(&w, PROT_READ, &seed);
        for (int64_t n = 1;; n++) {
            int64_t before = fake_device_calls(fake.devices[d], FAKE_UPLOAD);
            fake_device_corrupt(fake.devices[d], n);
            tsr_status status = load_verified(&fake.rt, &w, 0, &buffer);
            int64_t uploads = fake_device_calls(fake.devices[d], FAKE_UPLOAD) - before;
            assert_int_equal(fake_device_calls(fake.devices[(d + 1) % 3], FAKE_UPLOAD), 0);
            if (uploads < n) {
                assert_int_equal(status, TSR_OK);
                assert_int_equal(fake_device_calls(fake.devices[d], FAKE_DOWNLOAD),
                                 fake_device_calls(fake.devices[d], FAKE_UPLOAD));
                break;
            }
            assert_int_equal(status, TSR_ERR_DEVICE);
            assert_non_null(strstr(tsr_last_error(), fake.devices[d]->name));
            assert_non_null(strstr(tsr_last_error(), "read back"));
            assert_null(buffer);
        }
        fake_device_corrupt(fake.devices[d], 0);
        weights_check_contents(&w);
        tsr_buffer_destroy(buffer);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&fake);
    }
}

/* -- failures -- */

static void check_untouched(const fake_runtime *fake, const weights *w, const tsr_buffer *buffer)
{
    assert_null(buffer);
    for (int i = 0; i < w->n; i++) {
        assert_null(w->tensors[i].shards);
        assert_null(w->tensors[i].buffer);
        assert_int_equal(tsr_tensor_sharding(&w->tensors[i]), TSR_SHARDING_NONE);
    }
    for (int d = 0; d < fake->rt.n_devices; d++) {
        assert_int_equal(tsr_device_used(fake->devices[d]), 0);
        assert_int_equal(fake_device_live_bytes(fake->devices[d]), 0);
    }
}

static void every_device_call_can_fail(void **state)
{
    (void)state;
    static weights w;
    static const fake_call calls[2] = {FAKE_WRAP, FAKE_UPLOAD};
    uint64_t seed = 4;
    for (int copy = 0; copy < 2; copy++)
        for (int d = 0; d < 3; d++) {
            fake_runtime fake;
            tsr_buffer *buffer = NULL;
            int n = 1;
            fake_runtime_open(&fake, 3, NULL);
            weights_random(&w, &fake.rt, &seed);
            weights_map_file(&w, PROT_READ, &seed);
            for (;; n++) {
                int64_t before = fake_device_calls(fake.devices[d], calls[copy]);
                fake_device_fail(fake.devices[d], calls[copy], n);
                tsr_status status = weights_load(&fake.rt, &w, copy, &buffer);
                if (fake_device_calls(fake.devices[d], calls[copy]) - before < n) {
                    assert_int_equal(status, TSR_OK);
                    break;
                }
                assert_int_equal(status, TSR_ERR_DEVICE);
                check_untouched(&fake, &w, buffer);
            }
            tsr_buffer_destroy(buffer);
            munmap(w.file, w.file_bytes);
            fake_runtime_close(&fake);
        }
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    static weights w;
    uint64_t seed = 5;
    for (int copy = 0; copy < 2; copy++) {
        fake_runtime fake;
        tsr_buffer *buffer = NULL;
        fake_runtime_open(&fake, 4, NULL);
        weights_random(&w, &fake.rt, &seed);
        weights_map_file(&w, PROT_READ, &seed);
        for (int n = 1;; n++) {
            int64_t blocks = failing_alloc_live();
            failing_alloc_set(n);
            tsr_status status = weights_load(&fake.rt, &w, copy, &buffer);
            bool fired = failing_alloc_fired();
            failing_alloc_set(0);
            if (!fired) {
                assert_int_equal(status, TSR_OK);
                assert_true(n > 4);
                break;
            }
            assert_int_equal(status, TSR_ERR_MEMORY);
            check_untouched(&fake, &w, buffer);
            assert_int_equal(failing_alloc_live(), blocks);
        }
        tsr_buffer_destroy(buffer);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&fake);
    }
}

static void expect_refused(fake_runtime *fake, weights *w, tsr_status status, const char *word)
{
    tsr_buffer *buffer = NULL;
    assert_int_equal(weights_load(&fake->rt, w, false, &buffer), status);
    assert_non_null(strstr(tsr_last_error(), word));
    assert_non_null(strstr(tsr_last_error(), "ffn_down"));
    check_untouched(fake, w, buffer);
}

static void a_bad_placement_names_the_tensor(void **state)
{
    (void)state;
    static weights w;
    fake_runtime fake;
    const int64_t ne[4] = {96, 4, 1, 1}, halves[2] = {1, 1}, wrong[2] = {2, 2};
    unsigned char data[4 * 3 * 34] = {0};
    fake_device_config configs[2] = {fake_device_defaults(), fake_device_defaults()};
    configs[1].memory_cap = 100;
    fake_runtime_open(&fake, 2, configs);
    memset(&w, 0, sizeof w);
    w.n = 1;
    w.pointers[0] = &w.tensors[0];
    w.sources[0] = data;
    assert_int_equal(tsr_tensor_init(&w.tensors[0], &fake.rt, TSR_TYPE_Q8_0, ne, "ffn_down"), TSR_OK);
    assert_int_equal(tsr_shard_map_init(96, 48, 2, halves, &w.maps[0]), TSR_OK);
    w.placements[0] = (tsr_placement){TSR_SHARDING_SPLIT, 0, 3, &w.maps[0]};
    expect_refused(&fake, &w, TSR_ERR_INVALID, "granules of 48 columns cut Q8_0 blocks");
    w.placements[0].axis = 1;
    expect_refused(&fake, &w, TSR_ERR_INVALID, "does not suit 4 rows");
    assert_int_equal(tsr_shard_map_init(4, 1, 2, wrong, &w.maps[0]), TSR_OK);
    w.placements[0].devices = 1;
    expect_refused(&fake, &w, TSR_ERR_INVALID, "fake:1");
    w.placements[0].devices = 7;
    expect_refused(&fake, &w, TSR_ERR_INVALID, "0x7");
    w.placements[0] = (tsr_placement){TSR_SHARDING_PARTIAL, 0, 3, NULL};
    expect_refused(&fake, &w, TSR_ERR_INVALID, "partial");
    w.placements[0] = (tsr_placement){TSR_SHARDING_REPLICATED, 0, 3, NULL};
    expect_refused(&fake, &w, TSR_ERR_MEMORY, "408 bytes"); /* over the cap */
    w.sources[0] = NULL;
    expect_refused(&fake, &w, TSR_ERR_INVALID, "no data");
    fake_runtime_close(&fake);
}

/* A header may claim what no machine holds; planning goes on until it knows the bytes. */
static void a_map_is_scaled_to_any_extent(void **state)
{
    (void)state;
    const tsr_shard_map like = {.extent = 12, .granule = 3, .n_devices = 2, .begin = {0, 3, 4}};
    tsr_shard_map map;
    tsr_shard_map_scale(&like, 100, 8, &map);
    assert_int_equal(map.begin[1], 10); /* of 13: 9.75 */
    assert_int_equal(map.begin[2], 13);
    tsr_shard_map_scale(&like, INT64_MAX, 1, &map);
    assert_true(map.begin[1] == INT64_MAX / 4 * 3 + 2); /* 3/4 of 2^63 - 1, to the nearest */
    assert_true(map.begin[2] == INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_map_is_scaled_to_any_extent),
        cmocka_unit_test(views_read_no_byte_and_cost_exactly_their_shards),
        cmocka_unit_test(views_and_copies_hold_the_file),
        cmocka_unit_test(measuring_needs_no_file_and_counts_the_same),
        cmocka_unit_test(twins_hold_the_file_and_store_once_what_both_have),
        cmocka_unit_test(progress_grows_to_the_sum_of_all_shards),
        cmocka_unit_test(what_comes_back_changed_names_device_and_tensor),
        cmocka_unit_test(every_device_call_can_fail),
        cmocka_unit_test(every_allocation_can_fail),
        cmocka_unit_test(a_bad_placement_names_the_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
