/* Weights of a mapped file on their devices: views where a device can read the file, copies where not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "alloc/buffer/buffer.h"
#include "core/mem.h"
#include "arch/weights.h"
#include "support/failing_alloc.h"
#include "support/fake_device.h"
#include "support/random.h"

enum { MAX_WEIGHTS = 12 };

/* A model's worth of tensors, as a loader has them: not in a context, each with a place and a source. */
typedef struct weights {
    int n;
    tsr_tensor tensors[MAX_WEIGHTS];
    tsr_tensor *pointers[MAX_WEIGHTS];
    tsr_placement placements[MAX_WEIGHTS];
    tsr_shard_map maps[MAX_WEIGHTS];
    const void *sources[MAX_WEIGHTS];
    unsigned char *file;
    size_t file_bytes;
} weights;

static const tsr_type types[] = {TSR_TYPE_F32,  TSR_TYPE_F16,    TSR_TYPE_BF16,   TSR_TYPE_Q8_0,
                                 TSR_TYPE_Q4_0, TSR_TYPE_Q4_K,   TSR_TYPE_Q5_K,   TSR_TYPE_Q6_K,
                                 TSR_TYPE_Q4_1, TSR_TYPE_Q5_0,   TSR_TYPE_Q5_1,   TSR_TYPE_Q2_K,
                                 TSR_TYPE_Q3_K, TSR_TYPE_IQ4_NL, TSR_TYPE_IQ4_XS, TSR_TYPE_MXFP4};

/* Divide an axis at random; some devices get nothing of it. */
static void random_map(int64_t extent, int64_t granule, int n_devices, uint64_t *seed, tsr_shard_map *map)
{
    int64_t counts[TSR_MAX_DEVICES], left = (extent + granule - 1) / granule;
    for (int d = 0; d < n_devices; d++) {
        counts[d] = d == n_devices - 1 ? left : (int64_t)random_below(seed, (uint64_t)left + 1);
        left -= counts[d];
    }
    assert_int_equal(tsr_shard_map_init(extent, granule, n_devices, counts, map), TSR_OK);
}

static void random_weights(weights *w, tsr_runtime *rt, uint64_t *seed)
{
    memset(w, 0, sizeof *w);
    w->n = 1 + (int)random_below(seed, MAX_WEIGHTS);
    for (int i = 0; i < w->n; i++) {
        tsr_type type = types[random_below(seed, sizeof types / sizeof *types)];
        int64_t block = tsr_type_block_elems(type);
        const int64_t ne[4] = {block * (int64_t)(1 + random_below(seed, 9)),
                               1 + (int64_t)random_below(seed, 30), 1, 1};
        tsr_placement *p = &w->placements[i];
        assert_int_equal(tsr_tensor_init(&w->tensors[i], rt, type, ne, "weight"), TSR_OK);
        w->pointers[i] = &w->tensors[i];
        w->file_bytes += tsr_align_up(tsr_tensor_bytes(&w->tensors[i]), 32);
        p->devices = (UINT64_C(1) << rt->n_devices) - 1;
        p->axis = (int)random_below(seed, 2);
        if (random_below(seed, 4) == 0) {
            p->sharding = TSR_SHARDING_REPLICATED;
            p->devices = 1 + random_below(seed, p->devices); /* any mask but none */
            continue;
        }
        p->sharding = TSR_SHARDING_SPLIT;
        p->map = &w->maps[i];
        random_map(ne[p->axis], p->axis == 0 ? block * (int64_t)(1 + random_below(seed, 2)) : 1,
                   rt->n_devices, seed, &w->maps[i]);
    }
}

/* The file, filled or (protection PROT_NONE) impossible to read. */
static void map_file(weights *w, int protection, uint64_t *seed)
{
    w->file = mmap(NULL, w->file_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(w->file != MAP_FAILED);
    for (size_t i = 0; protection != PROT_NONE && i < w->file_bytes; i++)
        w->file[i] = (unsigned char)random_u64(seed);
    assert_int_equal(mprotect(w->file, w->file_bytes, protection), 0);
    size_t at = 0;
    for (int i = 0; i < w->n; i++) {
        w->sources[i] = w->file + at;
        at += tsr_align_up(tsr_tensor_bytes(&w->tensors[i]), 32);
    }
}

static tsr_status load(tsr_runtime *rt, weights *w, bool copy, tsr_buffer **buffer_out)
{
    const tsr_buffer_load_config config = {.flags = copy, .owner = TSR_MEMORY_WEIGHTS};
    return tsr_buffer_load(rt, w->pointers, w->placements, w->sources, w->n, &config, buffer_out);
}

static size_t shard_bytes(const weights *w, int d)
{
    size_t bytes = 0;
    for (int i = 0; i < w->n; i++)
        bytes += tsr_tensor_device_bytes(&w->tensors[i], d);
    return bytes;
}

static void check_contents(const weights *w)
{
    for (int i = 0; i < w->n; i++) {
        size_t bytes = tsr_tensor_bytes(&w->tensors[i]);
        unsigned char *got = malloc(bytes);
        assert_int_equal(tsr_tensor_get(&w->tensors[i], got, 0, bytes), TSR_OK);
        assert_memory_equal(got, w->sources[i], bytes);
        free(got);
    }
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
        random_weights(&w, &fake.rt, &seed);
        map_file(&w, PROT_NONE, &seed); /* a read would end the program */
        assert_int_equal(load(&fake.rt, &w, false, &buffer), TSR_OK);
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
        random_weights(&w, &fake.rt, &seed);
        map_file(&w, PROT_READ, &seed); /* a write would end the program */
        assert_int_equal(load(&fake.rt, &w, copy, &buffer), TSR_OK);
        check_contents(&w);
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
        random_weights(&w, &measuring.rt, &seed);
        assert_int_equal(load(&measuring.rt, &w, copy, &planned), TSR_OK);
        size_t bytes[5];
        for (int d = 0; d < 5; d++)
            bytes[d] = measuring.devices[d]->used[TSR_MEMORY_WEIGHTS];
        tsr_buffer_destroy(planned);
        seed = round;
        random_weights(&w, &fake.rt, &seed);
        map_file(&w, PROT_READ, &seed);
        assert_int_equal(load(&fake.rt, &w, copy, &buffer), TSR_OK);
        for (int d = 0; d < 5; d++)
            assert_int_equal(fake.devices[d]->used[TSR_MEMORY_WEIGHTS], bytes[d]);
        tsr_buffer_destroy(buffer);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&measuring);
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
        random_weights(&w, &fake.rt, &seed);
        map_file(&w, PROT_READ, &seed);
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
        fake.devices[d]->prefers_copies = true; /* the others get views, which nobody has to verify */
        random_weights(&w, &fake.rt, &seed);
        map_file(&w, PROT_READ, &seed);
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
        check_contents(&w);
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
            random_weights(&w, &fake.rt, &seed);
            map_file(&w, PROT_READ, &seed);
            for (;; n++) {
                int64_t before = fake_device_calls(fake.devices[d], calls[copy]);
                fake_device_fail(fake.devices[d], calls[copy], n);
                tsr_status status = load(&fake.rt, &w, copy, &buffer);
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
        random_weights(&w, &fake.rt, &seed);
        map_file(&w, PROT_READ, &seed);
        for (int n = 1;; n++) {
            int64_t blocks = failing_alloc_live();
            failing_alloc_set(n);
            tsr_status status = load(&fake.rt, &w, copy, &buffer);
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
    assert_int_equal(load(&fake->rt, w, false, &buffer), status);
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

/* -- after a former split -- */

/* The same tensors divided anew; one time in five as they were. */
static void divide_anew(weights *next, const weights *former, int n_devices, uint64_t *seed)
{
    bool same = random_below(seed, 5) == 0;
    *next = *former;
    for (int i = 0; i < next->n; i++) {
        tsr_placement *p = &next->placements[i];
        next->pointers[i] = &next->tensors[i];
        next->tensors[i].shards = NULL;
        next->tensors[i].buffer = NULL;
        next->tensors[i].placement = (tsr_placement){0};
        if (p->sharding == TSR_SHARDING_SPLIT) {
            p->map = &next->maps[i];
            if (!same)
                random_map(former->maps[i].extent, former->maps[i].granule, n_devices, seed, &next->maps[i]);
        } else if (!same) {
            p->devices = 1 + random_below(seed, (UINT64_C(1) << n_devices) - 1);
        }
    }
}

static bool holds(tsr_window w, int64_t col, int64_t row)
{
    return col >= w.col_begin && col < w.col_end && row >= w.row_begin && row < w.row_end;
}

/* Block by block: what the device had is what the file said then, the rest what it says now (every bit of it
 * turned). Returns how many blocks of the device stayed. */
static int check_device(const weights *next, const weights *former, int d, bool all_anew)
{
    int n_kept = 0;
    for (int i = 0; i < next->n; i++) {
        const tsr_tensor *t = &next->tensors[i], *was = &former->tensors[i];
        tsr_window now = tsr_placement_window(t, &t->placement, d);
        tsr_window then = tsr_placement_window(was, &was->placement, d);
        int64_t block = tsr_type_block_elems(t->type);
        size_t bytes = tsr_type_row_bytes(t->type, block), row_bytes = tsr_type_row_bytes(t->type, t->ne[0]);
        for (int64_t row = now.row_begin; row < now.row_end; row++)
            for (int64_t col = now.col_begin; col < now.col_end; col += block) {
                const unsigned char *got = (const unsigned char *)t->shards[d].data +
                                           (size_t)(row - now.row_begin) * t->shards[d].row_stride +
                                           tsr_type_row_bytes(t->type, col - now.col_begin);
                const unsigned char *source = (const unsigned char *)next->sources[i] +
                                              (size_t)row * row_bytes + tsr_type_row_bytes(t->type, col);
                bool kept = holds(then, col, row) && !all_anew;
                n_kept += kept;
                for (size_t b = 0; b < bytes; b++)
                    assert_int_equal(got[b], kept ? source[b] ^ 0xff : source[b]);
            }
    }
    return n_kept;
}

static bool same_regions(const tsr_buffer *a, const tsr_buffer *b, int d)
{
    for (int i = 0; i < a->n_regions; i++)
        for (int k = 0; k < b->n_regions; k++)
            if (a->regions[i].device == d && b->regions[k].device == d &&
                a->regions[i].pointer == b->regions[k].pointer)
                return true;
    return false;
}

static void only_what_a_device_lacks_is_uploaded(void **state)
{
    (void)state;
    static weights former, next;
    uint64_t seed = 12;
    int n_kept = 0, n_borrowed = 0;
    for (int round = 0; round < 200; round++) {
        fake_runtime fake;
        tsr_buffer *old = NULL, *new = NULL;
        bool verify = round % 4 == 0;
        fake_runtime_open(&fake, 3, NULL);
        random_weights(&former, &fake.rt, &seed);
        map_file(&former, PROT_READ | PROT_WRITE, &seed);
        assert_int_equal(load(&fake.rt, &former, true, &old), TSR_OK);
        divide_anew(&next, &former, 3, &seed);
        for (size_t i = 0; i < former.file_bytes; i++)
            former.file[i] ^= 0xff;
        const tsr_buffer_load_config config = {.flags = TSR_LOAD_COPY | (verify ? TSR_LOAD_VERIFY : 0u),
                                               .owner = TSR_MEMORY_WEIGHTS,
                                               .previous_buffer = old,
                                               .previous = former.pointers};
        assert_int_equal(
            tsr_buffer_load(&fake.rt, next.pointers, next.placements, next.sources, next.n, &config, &new),
            TSR_OK);
        for (int d = 0; d < 3; d++) {
            bool borrowed = same_regions(old, new, d);
            n_borrowed += borrowed;
            n_kept += check_device(&next, &former, d, verify && !borrowed);
        }
        if (round % 2) { /* the new one takes over, or goes */
            tsr_buffer_inherit(new, old);
            tsr_buffer_destroy(old);
            for (int d = 0; d < 3; d++)
                assert_int_equal(tsr_device_used(fake.rt.devices[d]), tsr_buffer_bytes(new, d));
            tsr_buffer_destroy(new);
        } else {
            tsr_buffer_destroy(new);
            for (int d = 0; d < 3; d++)
                assert_int_equal(tsr_device_used(fake.rt.devices[d]), tsr_buffer_bytes(old, d));
            tsr_buffer_destroy(old);
        }
        munmap(former.file, former.file_bytes);
        fake_runtime_close(&fake);
    }
    assert_true(n_kept > 1000 && n_borrowed > 20);
}

/* A device's copies go, and come again. */
static void copies_can_be_dropped_and_filled_again(void **state)
{
    (void)state;
    static weights w;
    uint64_t seed = 13;
    for (int round = 0; round < 50; round++) {
        fake_runtime fake;
        tsr_buffer *buffer = NULL;
        fake_runtime_open(&fake, 3, NULL);
        random_weights(&w, &fake.rt, &seed);
        map_file(&w, PROT_READ, &seed);
        assert_int_equal(load(&fake.rt, &w, true, &buffer), TSR_OK);
        size_t bytes = tsr_buffer_bytes(buffer, 1);
        tsr_buffer_drop_device(buffer, 1);
        assert_int_equal(tsr_device_used(fake.rt.devices[1]), 0);
        fake_device_fail(fake.rt.devices[1], FAKE_ALLOC, 1);
        tsr_status status = tsr_buffer_fill(buffer, w.pointers, w.sources, w.n, 2, 0);
        assert_int_equal(status, bytes > 0 ? TSR_ERR_MEMORY : TSR_OK);
        assert_int_equal(tsr_device_used(fake.rt.devices[1]), 0);
        fake_device_fail(fake.rt.devices[1], FAKE_ALLOC, 0);
        assert_int_equal(tsr_buffer_fill(buffer, w.pointers, w.sources, w.n, 2, 0), TSR_OK);
        assert_int_equal(tsr_buffer_bytes(buffer, 1), bytes);
        check_contents(&w);
        tsr_buffer_destroy(buffer);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&fake);
    }
}

/* A header may claim what no machine holds; planning goes on until it knows the bytes. */
static void a_map_is_scaled_to_any_extent(void **state)
{
    (void)state;
    const tsr_shard_map like = {.extent = 12, .granule = 3, .n_devices = 2, .begin = {0, 3, 4}};
    tsr_shard_map map;
    tsr_weights_scale_map(&like, 100, 8, &map);
    assert_int_equal(map.begin[1], 10); /* of 13: 9.75 */
    assert_int_equal(map.begin[2], 13);
    tsr_weights_scale_map(&like, INT64_MAX, 1, &map);
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
        cmocka_unit_test(progress_grows_to_the_sum_of_all_shards),
        cmocka_unit_test(what_comes_back_changed_names_device_and_tensor),
        cmocka_unit_test(every_device_call_can_fail),
        cmocka_unit_test(every_allocation_can_fail),
        cmocka_unit_test(a_bad_placement_names_the_tensor),
        cmocka_unit_test(only_what_a_device_lacks_is_uploaded),
        cmocka_unit_test(copies_can_be_dropped_and_filled_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
