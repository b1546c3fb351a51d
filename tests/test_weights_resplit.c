/* Weights of which the devices had others before: after another split only what a device lacks is
 * uploaded, and copies that were dropped come again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "support/random.h"
#include "support/weights_case.h"

/* The same tensors divided anew; one time in five as they were. */
static void divide_anew(weights *next, const weights *earlier, int n_devices, uint64_t *seed)
{
    bool same = random_below(seed, 5) == 0;
    *next = *earlier;
    for (int i = 0; i < next->n; i++) {
        tsr_placement *p = &next->placements[i];
        next->pointers[i] = &next->tensors[i];
        next->tensors[i].shards = NULL;
        next->tensors[i].buffer = NULL;
        next->tensors[i].placement = (tsr_placement){0};
        if (p->sharding == TSR_SHARDING_SPLIT) {
            p->map = &next->maps[i];
            if (!same)
                weights_random_map(earlier->maps[i].extent, earlier->maps[i].granule, n_devices, seed,
                                   &next->maps[i]);
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
static int check_device(const weights *next, const weights *earlier, int d, bool all_anew)
{
    int n_kept = 0;
    for (int i = 0; i < next->n; i++) {
        const tsr_tensor *t = &next->tensors[i], *was = &earlier->tensors[i];
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
    static weights earlier, next;
    uint64_t seed = 12;
    int n_kept = 0, n_borrowed = 0;
    for (int round = 0; round < 200; round++) {
        fake_runtime fake;
        tsr_buffer *old = NULL, *new = NULL;
        bool verify = round % 4 == 0;
        fake_runtime_open(&fake, 3, NULL);
        weights_random(&earlier, &fake.rt, &seed);
        weights_map_file(&earlier, PROT_READ | PROT_WRITE, &seed);
        assert_int_equal(weights_load(&fake.rt, &earlier, true, &old), TSR_OK);
        divide_anew(&next, &earlier, 3, &seed);
        for (size_t i = 0; i < earlier.file_bytes; i++)
            earlier.file[i] ^= 0xff;
        const tsr_buffer_load_config config = {.flags = TSR_LOAD_COPY | (verify ? TSR_LOAD_VERIFY : 0u),
                                               .owner = TSR_MEMORY_WEIGHTS,
                                               .previous_buffer = old,
                                               .previous = earlier.pointers};
        assert_int_equal(
            tsr_buffer_load(&fake.rt, next.pointers, next.placements, next.sources, next.n, &config, &new),
            TSR_OK);
        for (int d = 0; d < 3; d++) {
            bool borrowed = same_regions(old, new, d);
            n_borrowed += borrowed;
            n_kept += check_device(&next, &earlier, d, verify && !borrowed);
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
        munmap(earlier.file, earlier.file_bytes);
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
        weights_random(&w, &fake.rt, &seed);
        weights_map_file(&w, PROT_READ, &seed);
        assert_int_equal(weights_load(&fake.rt, &w, true, &buffer), TSR_OK);
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
        weights_check_contents(&w);
        tsr_buffer_destroy(buffer);
        munmap(w.file, w.file_bytes);
        fake_runtime_close(&fake);
    }
}

/* A device has a view of a tensor whose parts of two rows are apart in the file, and a copy of a tensor whose
 * parts have no common distance. As it gets copies of both, with more columns, each is read where it is. */
static void views_in_parts_are_uploaded_anew(void **state)
{
    (void)state;
    enum { COLUMNS = 8, ROWS = 6, PART = 2 * COLUMNS, GAP = 16 };
    static const int64_t ne[4] = {COLUMNS, ROWS, 1, 1};
    static float file[2][ROWS / 2][PART + GAP]; /* by tensor, by part */
    const void *parts[] = {file[1][2], file[1][0], file[1][1]};
    static const int64_t counts[][2] = {{1, 1}, {2, 0}};
    const void *sources[] = {file[0], file[1]};
    fake_runtime fake;
    tsr_shard_map maps[2];
    tsr_tensor tensors[2][2], *pointers[2][2];
    tsr_placement placements[2];
    tsr_buffer *buffers[2];
    float got[COLUMNS];
    fake_runtime_open(&fake, 2, NULL);
    for (int i = 0; i < ROWS * PART; i++)
        file[i / PART % 2][i / PART / 2][i % PART] = (float)i;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(tsr_shard_map_init(COLUMNS, COLUMNS / 2, 2, counts[k], &maps[k]), TSR_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tsr_tensor_init(&tensors[k][i], &fake.rt, TSR_TYPE_F32, ne, "weight"), TSR_OK);
            pointers[k][i] = &tensors[k][i];
            placements[i] = (tsr_placement){.sharding = TSR_SHARDING_SPLIT,
                                            .devices = 3,
                                            .map = &maps[k],
                                            .source = {.part_rows = 2,
                                                       .part_stride = i ? 0 : sizeof file[0][0],
                                                       .parts = i ? parts : NULL}};
        }
        const tsr_buffer_load_config config = {.flags = k ? TSR_LOAD_COPY : 0,
                                               .owner = TSR_MEMORY_WEIGHTS,
                                               .previous_buffer = k ? buffers[0] : NULL,
                                               .previous = k ? pointers[0] : NULL};
        assert_int_equal(tsr_buffer_load(&fake.rt, pointers[k], placements, sources, 2, &config, &buffers[k]),
                         TSR_OK);
    }
    assert_int_equal(tsr_tensor_get(&tensors[0][0], got, 0, sizeof got), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "parts are apart"));
    for (int i = 0; i < 2; i++)
        for (size_t row = 0; row < ROWS; row++) {
            const float *part = i ? parts[row / 2] : file[0][row / 2];
            assert_int_equal(tsr_tensor_get(&tensors[1][i], got, row * sizeof got, sizeof got), TSR_OK);
            assert_memory_equal(got, part + row % 2 * COLUMNS, sizeof got);
        }
    tsr_buffer_destroy(buffers[1]);
    tsr_buffer_destroy(buffers[0]);
    fake_runtime_close(&fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_a_device_lacks_is_uploaded),
        cmocka_unit_test(copies_can_be_dropped_and_filled_again),
        cmocka_unit_test(views_in_parts_are_uploaded_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
