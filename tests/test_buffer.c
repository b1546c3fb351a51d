/* Tensors in buffers of every type: bytes in, bytes out, where they are in between, and what goes wrong. */
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

static const tsr_type all_types[] = {TSR_TYPE_I32, TSR_TYPE_I64, WEIGHT_TYPES};
enum { N_TYPES = sizeof all_types / sizeof *all_types };

/* -- sizes -- */

static void random_tensors(tsr_context *ctx, int n)
{
    for (int i = 0; i < n; i++) {
        tsr_type type = all_types[below(N_TYPES)];
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        assert_non_null(tsr_tensor_2d(ctx, type, 256 * (1 + below(3)), 1 + below(40), name));
    }
}

static void measured_bytes_are_allocated_bytes(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        fake_runtime fake, measuring;
        fake_device_config configs[5];
        for (int d = 0; d < 5; d++) {
            configs[d] = fake_device_defaults();
            configs[d].alignment = (size_t)16 << below(5);
            configs[d].max_alloc = below(2) ? SIZE_MAX : (size_t)250000 + (size_t)below(100000);
        }
        fake_runtime_open(&fake, 5, configs);
        fake_runtime_open_dry(&measuring, 5, configs);
        uint64_t start = seed;
        size_t measured[2][5];
        tsr_context *ctx[2];
        tsr_buffer *buffer[2];
        tsr_runtime *rts[2] = {&fake.rt, &measuring.rt};
        for (int i = 0; i < 2; i++) { /* the same tensors on both */
            seed = start;
            assert_int_equal(tsr_context_create(rts[i], &ctx[i]), TSR_OK);
            random_tensors(ctx[i], 1 + below(30));
            const tsr_buffer_type *bt = random_buffer_type(rts[i], 256, &seed);
            assert_int_equal(tsr_tensors_measure(ctx[i], bt, measured[i]), TSR_OK);
            assert_int_equal(tsr_tensors_alloc(ctx[i], bt, &buffer[i]), TSR_OK);
        }
        for (int d = 0; d < 5; d++) {
            assert_int_equal(measured[0][d], measured[1][d]);
            assert_int_equal(measured[0][d], tsr_buffer_bytes(buffer[0], d));
            assert_int_equal(measured[0][d], tsr_device_used(fake.devices[d]));
            assert_int_equal(measured[0][d], tsr_device_used(measuring.devices[d]));
            assert_int_equal(measured[0][d], fake_device_live_bytes(fake.devices[d]));
        }
        for (int i = 0; i < 2; i++) {
            tsr_buffer_destroy(buffer[i]);
            tsr_context_destroy(ctx[i]);
        }
        fake_runtime_close(&measuring);
        fake_runtime_close(&fake);
    }
}

static void measuring_and_zero_shares_allocate_nothing(void **state)
{
    (void)state;
    fake_runtime fake;
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL;
    size_t bytes[3];
    float split[3] = {3, 0, 1};
    fake_runtime_open(&fake, 3, NULL);
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    tsr_tensor *w = tsr_tensor_2d(ctx, TSR_TYPE_F32, 16, 8, "w");
    tsr_tensor *norm = tsr_tensor_1d(ctx, TSR_TYPE_F32, 16, "norm");
    const tsr_buffer_type *bt = tsr_split_buffer_type(&fake.rt, 0, split, 3);
    assert_int_equal(tsr_tensors_measure(ctx, bt, bytes), TSR_OK);
    assert_int_equal(bytes[0], 6 * 64 + 64);
    assert_int_equal(bytes[1], 0);
    assert_int_equal(bytes[2], 2 * 64 + 64);
    assert_int_equal(fake_device_calls(fake.devices[0], FAKE_ALLOC), 0);
    assert_int_equal(tsr_tensor_sharding(w), TSR_SHARDING_NONE);
    assert_int_equal(tsr_tensors_alloc(ctx, bt, &buffer), TSR_OK);
    assert_int_equal(fake_device_calls(fake.devices[0], FAKE_ALLOC), 1);
    assert_int_equal(fake_device_calls(fake.devices[1], FAKE_ALLOC), 0);
    assert_int_equal(tsr_tensor_sharding(w), TSR_SHARDING_SPLIT);
    assert_int_equal(tsr_tensor_split_axis(w), 1);
    assert_int_equal(tsr_tensor_device_bytes(w, 0), 6 * 64);
    assert_int_equal(tsr_tensor_device_bytes(w, 1), 0);
    assert_int_equal(tsr_tensor_device_bytes(w, 2), 2 * 64);
    assert_int_equal(tsr_tensor_device_bytes(w, 3), 0);
    assert_int_equal(tsr_tensor_sharding(norm), TSR_SHARDING_REPLICATED);
    assert_int_equal(tsr_tensor_split_axis(norm), -1);
    assert_int_equal(tsr_tensor_device_bytes(norm, 1), 0);
    assert_int_equal(tsr_tensor_device_bytes(norm, 2), 64);
    int64_t columns, rows;
    tsr_tensor_local_shape(w, 0, &columns, &rows);
    assert_int_equal(columns, 16);
    assert_int_equal(rows, 6);
    tsr_tensor_local_shape(w, 1, &columns, &rows);
    assert_int_equal(columns, 0);
    assert_int_equal(rows, 0);
    tsr_buffer_destroy(buffer);
    assert_int_equal(tsr_tensor_sharding(w), TSR_SHARDING_NONE);
    tsr_context_destroy(ctx);
    fake_runtime_close(&fake);
}

static void large_sets_come_in_chunks_a_device_can_allocate(void **state)
{
    (void)state;
    fake_runtime fake;
    fake_device_config configs[2] = {fake_device_defaults(), fake_device_defaults()};
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL;
    configs[1].max_alloc = (size_t)3 * 832; /* exactly three tensors of 800 bytes, each aligned to 64 */
    fake_runtime_open(&fake, 2, configs);
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    tsr_tensor *t[10];
    for (int i = 0; i < 10; i++)
        t[i] = tsr_tensor_2d(ctx, TSR_TYPE_F32, 10, 20, "t"); /* 800 bytes */
    assert_int_equal(tsr_tensors_alloc(ctx, tsr_replicated_buffer_type(&fake.rt), &buffer), TSR_OK);
    assert_int_equal(fake_device_calls(fake.devices[0], FAKE_ALLOC), 1);
    assert_int_equal(fake_device_calls(fake.devices[1], FAKE_ALLOC), 4);
    assert_int_equal(tsr_buffer_bytes(buffer, 1), 10 * 832);
    unsigned char rows[10][800], got[4000];
    for (int i = 0; i < 10; i++) {
        memset(rows[i], i + 1, 800);
        assert_int_equal(tsr_tensor_set(t[i], rows[i], 0, 800), TSR_OK);
    }
    for (int i = 0; i < 10; i++) { /* none overlaps another */
        assert_memory_equal(t[i]->shards[1].data, rows[i], 800);
        assert_int_equal((uintptr_t)t[i]->shards[1].data % 64, 0);
    }
    tsr_tensor *large = tsr_tensor_2d(ctx, TSR_TYPE_F32, 10, 100, "large");
    tsr_buffer *second = NULL;
    assert_int_equal(tsr_tensors_alloc(ctx, tsr_replicated_buffer_type(&fake.rt), &second), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "fake:1"));
    assert_non_null(strstr(tsr_last_error(), "large"));
    assert_null(second);
    assert_int_equal(tsr_tensor_sharding(large), TSR_SHARDING_NONE);
    assert_int_equal(tsr_device_used(fake.devices[0]), 10 * 832);
    assert_int_equal(tsr_tensors_alloc(ctx, tsr_split_buffer_type(&fake.rt, 0, NULL, 0), &second), TSR_OK);
    assert_int_equal(tsr_tensor_get(large, got, 0, 4000), TSR_OK); /* the halves fit */
    tsr_buffer_destroy(second);
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(ctx);
    fake_runtime_close(&fake);
}

/* -- buffer types -- */

static void equal_arguments_give_the_same_type(void **state)
{
    (void)state;
    fake_runtime fake, other;
    float a[3] = {3, 1, 0}, b[2] = {6, 2}, c[3] = {1, 3, 0}, even[3] = {0, 0, 0};
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    fake_runtime_open(&fake, 3, NULL);
    fake_runtime_open(&other, 3, NULL);
    const tsr_buffer_type *bt = tsr_split_buffer_type(&fake.rt, 0, a, 3);
    assert_non_null(bt);
    assert_ptr_equal(bt, tsr_split_buffer_type(&fake.rt, 0, a, 3));
    assert_ptr_equal(bt, tsr_split_buffer_type(&fake.rt, 0, b, 2));
    config.tensor_split = a;
    config.n_tensor_split = 3;
    assert_ptr_equal(bt, tsr_split_buffer_type_ex(&fake.rt, &config));
    assert_ptr_equal(bt, tsr_split_buffer_type(&fake.rt, 2, a, 3)); /* 2 has no share: 0 is read */
    assert_ptr_not_equal(bt, tsr_split_buffer_type(&fake.rt, 1, a, 3));
    assert_ptr_not_equal(bt, tsr_split_buffer_type(&fake.rt, 0, c, 3));
    assert_ptr_not_equal(bt, tsr_split_buffer_type(&other.rt, 0, a, 3));
    config.granule = 4;
    assert_ptr_not_equal(bt, tsr_split_buffer_type_ex(&fake.rt, &config));
    assert_ptr_equal(tsr_split_buffer_type(&fake.rt, 0, NULL, 0),
                     tsr_split_buffer_type(&fake.rt, 0, even, 3));
    assert_ptr_equal(tsr_split_buffer_type(&fake.rt, 0, NULL, 0), tsr_split_buffer_type_ex(&fake.rt, NULL));
    assert_ptr_equal(tsr_device_buffer_type(&fake.rt, 1), tsr_device_buffer_type(&fake.rt, 1));
    assert_ptr_not_equal(tsr_device_buffer_type(&fake.rt, 1), tsr_device_buffer_type(&fake.rt, 2));
    assert_ptr_equal(tsr_replicated_buffer_type(&fake.rt), tsr_replicated_buffer_type(&fake.rt));
    fake_runtime_close(&other);
    fake_runtime_close(&fake);
}

static void expect_no_type(const tsr_buffer_type *type, const char *word)
{
    assert_null(type);
    assert_non_null(strstr(tsr_last_error(), word));
}

static void bad_splits_are_named(void **state)
{
    (void)state;
    fake_runtime fake;
    float negative[2] = {1, -1}, nan_split[2] = {1, NAN}, many[4] = {1, 1, 1, 1};
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    fake_runtime_open(&fake, 3, NULL);
    expect_no_type(tsr_split_buffer_type(&fake.rt, 0, negative, 2), "entry 2");
    expect_no_type(tsr_split_buffer_type(&fake.rt, 0, nan_split, 2), "entry 2");
    expect_no_type(tsr_split_buffer_type(&fake.rt, 0, many, 4), "entry 4");
    expect_no_type(tsr_split_buffer_type(&fake.rt, 3, NULL, 0), "device 3");
    expect_no_type(tsr_split_buffer_type(&fake.rt, -1, NULL, 0), "device -1");
    expect_no_type(tsr_device_buffer_type(&fake.rt, 3), "device 3");
    expect_no_type(tsr_split_buffer_type(NULL, 0, NULL, 0), "runtime");
    expect_no_type(tsr_replicated_buffer_type(NULL), "runtime");
    config.axis = 2;
    expect_no_type(tsr_split_buffer_type_ex(&fake.rt, &config), "axis 2");
    config.axis = 0;
    config.granule = -1;
    expect_no_type(tsr_split_buffer_type_ex(&fake.rt, &config), "granule -1");
    config.size = sizeof config + 8;
    expect_no_type(tsr_split_buffer_type_ex(&fake.rt, &config), "newer version");
    /* NULL straight into the allocation: the reason is still told. */
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL;
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    assert_int_equal(tsr_tensors_alloc(ctx, tsr_split_buffer_type(&fake.rt, 0, negative, 2), &buffer),
                     TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "entry 2"));
    tsr_context_destroy(ctx);
    fake_runtime_close(&fake);
}

static void a_granule_that_cuts_blocks_names_the_tensor(void **state)
{
    (void)state;
    fake_runtime fake;
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL;
    size_t bytes[2];
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    fake_runtime_open(&fake, 2, NULL);
    config.axis = 0;
    config.granule = 48;
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    assert_non_null(tsr_tensor_2d(ctx, TSR_TYPE_Q8_0, 96, 4, "down"));
    const tsr_buffer_type *bt = tsr_split_buffer_type_ex(&fake.rt, &config);
    assert_int_equal(tsr_tensors_alloc(ctx, bt, &buffer), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "down"));
    assert_non_null(strstr(tsr_last_error(), "48"));
    assert_int_equal(tsr_tensors_measure(ctx, bt, bytes), TSR_ERR_INVALID);
    tsr_context_destroy(ctx);
    fake_runtime_close(&fake);
}

/* -- the caller's memory -- */

static void callers_memory_is_used_where_it_is_and_never_written(void **state)
{
    (void)state;
    fake_runtime fake;
    fake_device_config configs[2] = {fake_device_defaults(), fake_device_defaults()};
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL, *refused = NULL;
    float data[32], got[8];
    configs[1].refuses_wrap = true;
    for (int i = 0; i < 32; i++)
        data[i] = (float)i;
    fake_runtime_open(&fake, 2, configs);
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    tsr_tensor *t = tsr_tensor_2d(ctx, TSR_TYPE_F32, 4, 2, "mapped");
    tsr_tensor *u = tsr_tensor_2d(ctx, TSR_TYPE_F32, 4, 7, "second");
    assert_int_equal(tsr_buffer_from_ptr(&fake.rt, 0, data, sizeof data, &buffer), TSR_OK);
    assert_int_equal(tsr_device_used(fake.devices[0]), sizeof data);
    assert_int_equal(tsr_tensor_place(t, buffer, 32), TSR_OK);
    assert_ptr_equal(t->shards[0].data, data + 8);
    assert_int_equal(tsr_tensor_get(t, got, 0, 32), TSR_OK);
    assert_memory_equal(got, data + 8, 32);
    assert_int_equal(tsr_tensor_set(t, got, 0, 32), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "read-only"));
    assert_int_equal(tsr_tensor_place(t, buffer, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_place(u, buffer, 20), TSR_ERR_INVALID); /* beyond the end */
    assert_int_equal(tsr_tensor_place(u, buffer, 6), TSR_ERR_INVALID);  /* no address for a float */
    assert_int_equal(tsr_tensor_place(u, NULL, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_place(NULL, buffer, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_place(u, buffer, 16), TSR_OK);
    assert_int_equal(tsr_buffer_from_ptr(&fake.rt, 1, data, sizeof data, &refused), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_buffer_from_ptr(&fake.rt, 2, data, sizeof data, &refused), TSR_ERR_INVALID);
    assert_int_equal(tsr_buffer_from_ptr(&fake.rt, 0, NULL, 1, &refused), TSR_ERR_INVALID);
    assert_null(refused);
    tsr_context_destroy(ctx); /* before the buffer */
    assert_null(buffer->tensors);
    tsr_buffer_destroy(buffer);
    tsr_buffer_destroy(NULL);
    fake_runtime_close(&fake);
}

static void buffers_and_contexts_end_in_any_order(void **state)
{
    (void)state;
    fake_runtime fake;
    fake_runtime_open(&fake, 2, NULL);
    for (int order = 0; order < 2; order++) {
        tsr_context *ctx = NULL;
        tsr_buffer *first = NULL, *second = NULL;
        const tsr_buffer_type *bt = tsr_replicated_buffer_type(&fake.rt);
        assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
        tsr_tensor *a = tsr_tensor_1d(ctx, TSR_TYPE_F32, 4, "a");
        assert_int_equal(tsr_tensors_alloc(ctx, bt, &first), TSR_OK);
        tsr_tensor *b = tsr_tensor_1d(ctx, TSR_TYPE_F32, 8, "b"); /* the second call takes only what is new */
        assert_int_equal(tsr_tensors_alloc(ctx, bt, &second), TSR_OK);
        assert_int_equal(tsr_buffer_bytes(second, 0), 64);
        assert_ptr_equal(a->buffer, first);
        assert_ptr_equal(b->buffer, second);
        tsr_buffer_destroy(first);
        assert_null(a->shards);
        first = NULL;
        assert_int_equal(tsr_tensors_alloc(ctx, bt, &first), TSR_OK); /* and it can have memory again */
        assert_ptr_equal(a->buffer, first);
        if (order == 0)
            tsr_context_destroy(ctx);
        tsr_buffer_destroy(first);
        tsr_buffer_destroy(second);
        if (order == 1)
            tsr_context_destroy(ctx);
    }
    fake_runtime_close(&fake);
}

/* -- every allocation fails once -- */

/* Everything public, in a row. */
static tsr_status use_everything(fake_runtime *fake, float *memory)
{
    tsr_status status = TSR_OK;
    float split[3] = {2, 1, 1};
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL, *wrapped = NULL;
    tsr_tensor *t = NULL;
    size_t bytes[3];
    const tsr_buffer_type *bt;

    TSR_TRY(tsr_context_create(&fake->rt, &ctx));
    for (int i = 0; i < 20; i++) /* the list grows */
        t = tsr_tensor_2d(ctx, TSR_TYPE_F32, 4, 1 + i, "t");
    TSR_TRY(tsr_context_status(ctx));
    bt = tsr_split_buffer_type(&fake->rt, 0, split, 3);
    if (!bt) {
        status = TSR_ERR_MEMORY;
        goto out;
    }
    TSR_TRY(tsr_tensors_measure(ctx, bt, bytes));
    TSR_TRY(tsr_tensors_alloc(ctx, bt, &buffer));
    TSR_TRY(tsr_tensor_set(t, memory, 0, 64));
    tsr_buffer_destroy(buffer);
    buffer = NULL;
    TSR_TRY(tsr_buffer_from_ptr(&fake->rt, 0, memory, 4096, &wrapped));
    TSR_TRY(tsr_tensor_place(t, wrapped, 16));
out:
    tsr_buffer_destroy(wrapped);
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(ctx);
    return status;
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    static float memory[1024];
    for (int n = 1;; n++) {
        fake_runtime fake;
        int64_t blocks = failing_alloc_live();
        fake_runtime_open(&fake, 3, NULL);
        failing_alloc_set(n);
        tsr_status status = use_everything(&fake, memory);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        fake_runtime_close(&fake);
        assert_int_equal(failing_alloc_live(), blocks);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            assert_true(n > 30);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
    }
}

static void a_failed_allocation_leaves_tensors_as_they_were(void **state)
{
    (void)state;
    fake_runtime fake;
    fake_device_config configs[3] = {fake_device_defaults(), fake_device_defaults(), fake_device_defaults()};
    tsr_context *ctx = NULL;
    tsr_buffer *buffer = NULL;
    configs[2].memory_cap = 6400;
    fake_runtime_open(&fake, 3, configs);
    assert_int_equal(tsr_context_create(&fake.rt, &ctx), TSR_OK);
    tsr_tensor *t = tsr_tensor_2d(ctx, TSR_TYPE_F32, 16, 300, "t");
    const tsr_buffer_type *bt = tsr_split_buffer_type(&fake.rt, 0, NULL, 0);
    for (int d = 0; d < 3; d++) {
        fake_device_fail(fake.devices[d], FAKE_ALLOC, 1);
        assert_int_equal(tsr_tensors_alloc(ctx, bt, &buffer), TSR_ERR_MEMORY);
        assert_null(buffer);
        assert_int_equal(tsr_tensor_sharding(t), TSR_SHARDING_NONE);
        assert_null(t->shards);
        for (int e = 0; e < 3; e++)
            assert_int_equal(tsr_device_used(fake.devices[e]) + fake_device_live_bytes(fake.devices[e]), 0);
        fake_device_fail(fake.devices[d], FAKE_ALLOC, 0);
    }
    assert_int_equal(tsr_tensors_alloc(ctx, bt, &buffer), TSR_OK); /* exactly the cap */
    tsr_buffer *second = NULL;
    assert_non_null(tsr_tensor_2d(ctx, TSR_TYPE_F32, 1, 3, "u"));
    assert_int_equal(tsr_tensors_alloc(ctx, bt, &second), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "fake:2"));
    assert_non_null(strstr(tsr_last_error(), "64 bytes"));
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(ctx);
    fake_runtime_close(&fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_bytes_are_allocated_bytes),
        cmocka_unit_test(measuring_and_zero_shares_allocate_nothing),
        cmocka_unit_test(large_sets_come_in_chunks_a_device_can_allocate),
        cmocka_unit_test(equal_arguments_give_the_same_type),
        cmocka_unit_test(bad_splits_are_named),
        cmocka_unit_test(a_granule_that_cuts_blocks_names_the_tensor),
        cmocka_unit_test(callers_memory_is_used_where_it_is_and_never_written),
        cmocka_unit_test(buffers_and_contexts_end_in_any_order),
        cmocka_unit_test(every_allocation_can_fail),
        cmocka_unit_test(a_failed_allocation_leaves_tensors_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
