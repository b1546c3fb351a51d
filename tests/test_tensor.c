/* Tensors: bytes in, bytes out through tsr_tensor_set and tsr_tensor_get, and where they are in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include <tsr/buffer.h>

#include "alloc/buffer/buffer.h"
#include "core/mem.h"
#include "support/failing_alloc.h"
#include "support/fake_device.h"
#include "support/random.h"
#include "support/random_buffer_type.h"
#include "support/weight_types.h"

static uint64_t seed = 1;

static int below(int n)
{
    return (int)random_below(&seed, (uint64_t)n);
}

static void fill_random(unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)random_u64(&seed);
}

static const tsr_type all_types[] = {TSR_TYPE_I32, TSR_TYPE_I64, WEIGHT_TYPES};
enum { N_TYPES = sizeof all_types / sizeof *all_types };

/* -- where bytes are, block by block -- */

/* The device that has block `block` of row `row` of a split tensor, and its first row and column there. */
static int holder(const tsr_tensor *t, int64_t row, int64_t column, int64_t *first_row, int64_t *first_column)
{
    const tsr_shard_map *map = t->placement.map;
    int d = tsr_shard_map_device(map, t->placement.axis == 0 ? column : row);
    *first_row = t->placement.axis == 1 ? tsr_shard_map_first(map, d) : 0;
    *first_column = t->placement.axis == 0 ? tsr_shard_map_first(map, d) : 0;
    return d;
}

static void check_block(const tsr_tensor *t, int d, int64_t row, int64_t block, const unsigned char *expected)
{
    const tsr_shard *shard = &t->shards[d];
    size_t block_bytes = tsr_type_block_bytes(t->type);
    assert_memory_equal((unsigned char *)shard->data + (size_t)row * shard->row_stride +
                            (size_t)block * block_bytes,
                        expected, block_bytes);
}

/* Every block of the logical tensor is where its placement says. */
static void check_shards(const tsr_tensor *t, const unsigned char *logical)
{
    int64_t block_elems = tsr_type_block_elems(t->type), n_blocks = t->ne[0] / block_elems;
    for (int64_t row = 0; row < tsr_tensor_rows(t); row++)
        for (int64_t b = 0; b < n_blocks; b++) {
            const unsigned char *expected =
                logical + (size_t)(row * n_blocks + b) * tsr_type_block_bytes(t->type);
            int64_t row0, column0;
            if (t->placement.sharding == TSR_SHARDING_SPLIT) {
                int d = holder(t, row, b * block_elems, &row0, &column0);
                check_block(t, d, row - row0, b - column0 / block_elems, expected);
            } else {
                for (int d = 0; d < t->rt->n_devices; d++)
                    if (t->placement.devices >> d & 1)
                        check_block(t, d, row, b, expected);
            }
        }
}

/* Set all, then set and get random ranges, against a copy of the logical tensor. */
static void check_round_trip(tsr_tensor *t)
{
    size_t bytes = tsr_tensor_bytes(t), block = tsr_type_block_bytes(t->type);
    unsigned char *logical = malloc(bytes), *got = malloc(bytes);
    fill_random(logical, bytes);
    assert_int_equal(tsr_tensor_set(t, logical, 0, bytes), TSR_OK);
    check_shards(t, logical);
    for (int i = 0; i < 12; i++) {
        size_t begin = random_u64(&seed) % (bytes / block + 1) * block;
        size_t length = random_u64(&seed) % ((bytes - begin) / block + 1) * block;
        fill_random(logical + begin, length);
        assert_int_equal(tsr_tensor_set(t, logical + begin, begin, length), TSR_OK);
        begin = random_u64(&seed) % (bytes / block + 1) * block;
        length = random_u64(&seed) % ((bytes - begin) / block + 1) * block;
        memset(got, 0, bytes);
        assert_int_equal(tsr_tensor_get(t, got, begin, length), TSR_OK);
        assert_memory_equal(got, logical + begin, length);
    }
    check_shards(t, logical);
    assert_int_equal(tsr_tensor_get(t, got, 0, bytes), TSR_OK);
    assert_memory_equal(got, logical, bytes);
    free(got);
    free(logical);
}

static void any_bytes_come_back_from_any_split(void **state)
{
    (void)state;
    for (int round = 0; round < 1000; round++) {
        fake_runtime fake;
        tsr_context *ctx = NULL;
        tsr_buffer *buffer = NULL;
        tsr_type type = all_types[round % N_TYPES];
        int64_t block = tsr_type_block_elems(type);
        fake_runtime_open(&fake, 1 + below(9), NULL);
        assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
        tsr_tensor *a = tsr_tensor_2d(ctx, type, block * (1 + below(8)), 1 + below(30), "a");
        tsr_tensor *b = tsr_tensor_1d(ctx, type, block * (1 + below(8)), "b");
        tsr_tensor *c = tsr_tensor_3d(ctx, type, block * (1 + below(5)), 1 + below(7), 1 + below(4), "c");
        const tsr_buffer_type *bt = random_buffer_type(&fake.rt, block, &seed);
        assert_non_null(bt);
        assert_int_equal(tsr_tensors_alloc(ctx, bt, &buffer), TSR_OK);
        check_round_trip(a);
        check_round_trip(b);
        check_round_trip(c);
        tsr_buffer_destroy(buffer);
        tsr_context_destroy(ctx);
        fake_runtime_close(&fake);
    }
}

static void copies_are_read_from_the_main_device(void **state)
{
    (void)state;
    fake_runtime fake;
    float split[3] = {0, 1, 1}, value = 7, got = 0;
    fake_runtime_open(&fake, 3, NULL);
    for (int main_device = 0; main_device < 3; main_device++) {
        tsr_context *ctx = NULL;
        tsr_buffer *buffer = NULL;
        assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
        tsr_tensor *bias = tsr_tensor_1d(ctx, TSR_TYPE_F32, 1, "bias");
        assert_int_equal(
            tsr_tensors_alloc(ctx, tsr_split_buffer_type(&fake.rt, main_device, split, 3), &buffer), TSR_OK);
        assert_int_equal(tsr_tensor_set(bias, &value, 0, 4), TSR_OK);
        assert_null(bias->shards[0].data);
        for (int d = 1; d < 3; d++)
            *(float *)bias->shards[d].data += (float)d; /* tell the copies apart */
        assert_int_equal(tsr_tensor_get(bias, &got, 0, 4), TSR_OK);
        assert_true(got == 7 + (main_device == 2 ? 2 : 1));
        tsr_buffer_destroy(buffer);
        tsr_context_destroy(ctx);
    }
    fake_runtime_close(&fake);
}

/* -- a tensor that a graph computed: shards without a buffer, strides of their own -- */

static void computed_tensors_are_read_through_their_strides(void **state)
{
    (void)state;
    fake_runtime fake;
    fake_runtime_open(&fake, 2, NULL);
    const int64_t ne[4] = {5, 3, 1, 1}, counts[2] = {2, 3};
    tsr_shard_map map;
    tsr_shard shards[2] = {{NULL, 40}, {NULL, 12}};
    tsr_tensor y;
    float got[15], some[4];
    assert_int_equal(tsr_tensor_init(&y, &fake.rt, TSR_TYPE_F32, ne, "y"), TSR_OK);
    assert_int_equal(tsr_shard_map_init(5, 1, 2, counts, &map), TSR_OK);
    for (int d = 0; d < 2; d++)
        assert_int_equal(tsr_device_alloc(fake.devices[d], TSR_MEMORY_ARENA, 120, "y", &shards[d].data),
                         TSR_OK);
    for (int row = 0; row < 3; row++)
        for (int i = 0; i < 5; i++)
            *(float *)((char *)shards[i >= 2].data + (size_t)row * shards[i >= 2].row_stride +
                       (size_t)(i < 2 ? i : i - 2) * 4) = (float)(10 * row + i);
    y.shards = shards;
    y.placement = (tsr_placement){TSR_SHARDING_SPLIT, 0, 3, &map};
    assert_int_equal(tsr_tensor_get(&y, got, 0, sizeof got), TSR_OK);
    for (int i = 0; i < 15; i++)
        assert_true(got[i] == (float)(i / 5 * 10 + i % 5));
    assert_int_equal(tsr_tensor_get(&y, some, 16, sizeof some), TSR_OK); /* 4, 10, 11, 12 */
    assert_true(some[0] == 4 && some[1] == 10 && some[2] == 11 && some[3] == 12);
    assert_int_equal(tsr_tensor_set(&y, some, 0, 8), TSR_OK);
    assert_true(((float *)shards[0].data)[1] == 10);
    y.placement = (tsr_placement){TSR_SHARDING_REPLICATED, 0, 1, NULL}; /* whole rows of 20 bytes, 40 apart */
    assert_int_equal(tsr_tensor_set(&y, got, 0, sizeof got), TSR_OK);
    for (int i = 0; i < 15; i++)
        assert_true(((float *)shards[0].data)[i / 5 * 10 + i % 5] == got[i]);
    y.placement = (tsr_placement){TSR_SHARDING_PARTIAL, 0, 3, NULL};
    assert_int_equal(tsr_tensor_get(&y, got, 0, sizeof got), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "partial"));
    for (int d = 0; d < 2; d++)
        tsr_device_free(fake.devices[d], TSR_MEMORY_ARENA, shards[d].data, 120);
    fake_runtime_close(&fake);
}

/* -- errors of set, get, creation -- */

static void ranges_are_checked(void **state)
{
    (void)state;
    fake_runtime fake;
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL;
    unsigned char data[34 * 12];
    fake_runtime_open(&fake, 2, NULL);
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    tsr_tensor *t = tsr_tensor_2d(ctx, TSR_TYPE_Q8_0, 96, 4, "weights");
    assert_int_equal(tsr_tensor_get(t, data, 0, 34), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "weights has no memory"));
    assert_int_equal(tsr_tensors_alloc(ctx, tsr_split_buffer_type(&fake.rt, 0, NULL, 0), &buffer), TSR_OK);
    memset(data, 0, sizeof data);
    assert_int_equal(tsr_tensor_set(t, data, 0, sizeof data), TSR_OK);
    assert_int_equal(tsr_tensor_set(t, data, 34, sizeof data), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_set(t, data, SIZE_MAX - 33, 34), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_set(t, data, 2, 34), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "block"));
    assert_int_equal(tsr_tensor_get(t, data, 34, 33), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_get(t, NULL, 0, 34), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_get(NULL, data, 0, 34), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_set(NULL, data, 0, 34), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_get(t, NULL, 0, 0), TSR_OK);
    assert_int_equal(tsr_tensor_get(t, data, sizeof data, 0), TSR_OK);
    fake_device_fail(fake.devices[1], FAKE_UPLOAD, 1);
    assert_int_equal(tsr_tensor_set(t, data, 0, sizeof data), TSR_ERR_DEVICE);
    fake_device_fail(fake.devices[0], FAKE_DOWNLOAD, 1);
    assert_int_equal(tsr_tensor_get(t, data, 0, sizeof data), TSR_ERR_DEVICE);
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(ctx);
    fake_runtime_close(&fake);
}

static void a_failed_tensor_sticks_to_its_context(void **state)
{
    (void)state;
    fake_runtime fake;
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL;
    fake_runtime_open(&fake, 1, NULL);
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    assert_int_equal(tsr_context_status(ctx), TSR_OK);
    assert_null(tsr_tensor_2d(ctx, TSR_TYPE_Q4_K, 100, 4, "odd"));
    assert_non_null(strstr(tsr_last_error(), "odd"));
    assert_null(tsr_tensor_2d(ctx, TSR_TYPE_F32, 0, 4, "none"));
    assert_null(tsr_tensor_2d(ctx, (tsr_type)99, 4, 4, "what"));
    assert_null(tsr_tensor_3d(ctx, TSR_TYPE_F32, INT64_MAX, INT64_MAX, 2, "huge"));
    assert_null(tsr_tensor_2d(ctx, TSR_TYPE_F32, INT64_MAX / 2, 1, "large"));
    assert_null(tsr_tensor_1d(NULL, TSR_TYPE_F32, 1, "lost"));
    assert_non_null(tsr_tensor_1d(ctx, TSR_TYPE_F32, 4, NULL));
    assert_int_equal(tsr_tensors_alloc(ctx, tsr_device_buffer_type(&fake.rt, 0), &buffer), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "odd")); /* the first one */
    assert_int_equal(tsr_context_status(ctx), TSR_ERR_INVALID);
    assert_null(buffer);
    tsr_context_destroy(ctx);
    tsr_context_destroy(NULL);
    fake_runtime_close(&fake);
}

static void names_and_shapes_are_what_was_asked(void **state)
{
    (void)state;
    fake_runtime fake;
    tsr_context *ctx = NULL;
    fake_runtime_open(&fake, 1, NULL);
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    tsr_tensor *t =
        tsr_tensor_3d(ctx, TSR_TYPE_Q8_0, 64, 5, 3,
                      "a name of more than sixty-three bytes is cut short, and ends with a zero byte");
    assert_int_equal(strlen(tsr_tensor_name(t)), 63);
    assert_int_equal(tsr_tensor_type(t), TSR_TYPE_Q8_0);
    assert_int_equal(tsr_tensor_n_rows(t), 15);
    assert_int_equal(tsr_tensor_n_elements(t), 960);
    assert_int_equal(tsr_tensor_bytes(t), 15 * 68);
    const int64_t ne[4] = {64, 5, 3, 1};
    assert_memory_equal(tsr_tensor_ne(t), ne, sizeof ne);
    assert_string_equal(tsr_sharding_name(tsr_tensor_sharding(t)), "none");
    tsr_context_destroy(ctx);
    fake_runtime_close(&fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bytes_come_back_from_any_split),
        cmocka_unit_test(copies_are_read_from_the_main_device),
        cmocka_unit_test(computed_tensors_are_read_through_their_strides),
        cmocka_unit_test(ranges_are_checked),
        cmocka_unit_test(a_failed_tensor_sticks_to_its_context),
        cmocka_unit_test(names_and_shapes_are_what_was_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
