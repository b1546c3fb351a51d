/* The GGUF reader on damaged files and without memory: cut off at every byte, changed at random, and with
 * every allocation failing in turn. It must return a status and a sentence; the sanitizers see to the
 * rest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>

#include "support/failing_alloc.h"
#include "support/gguf_writer.h"
#include "support/memory_file.h"
#include "support/random.h"

enum { FILE_BYTES = 4096 };

/* A small file with all that a file can hold. It ends with a page, so that reading past it is likely to
 * fault. */
static uint8_t *small_file(size_t *header_bytes_out, size_t *bytes_out)
{
    uint8_t *data = NULL;
    int64_t fill = 1;
    for (int pass = 0; pass < 2; pass++) {
        gguf_writer *writer = gguf_writer_create(3);
        gguf_writer_string(writer, "general.architecture", "llama");
        gguf_writer_alignment(writer, 32);
        gguf_writer_value(writer, "i8", TSR_GGUF_I8, &(int8_t){-1});
        gguf_writer_value(writer, "u16", TSR_GGUF_U16, &(uint16_t){1});
        gguf_writer_value(writer, "f64", TSR_GGUF_F64, &(double){1});
        gguf_writer_bool(writer, "bool", true);
        gguf_writer_strings(writer, "strings", (const char *[]){"one", "", "three"}, 3);
        gguf_writer_array(writer, "numbers", TSR_GGUF_I32, (int32_t[]){1, 2, 3}, 3);
        gguf_writer_array(writer, "bools", TSR_GGUF_BOOL, (uint8_t[]){1, 0}, 2);
        gguf_writer_tensor_zero(writer, "f16", TSR_TYPE_F16, 3, (int64_t[]){4, 3, 2});
        gguf_writer_tensor_zero(writer, "q8_0", TSR_TYPE_Q8_0, 2, (int64_t[]){32, 2});
        gguf_writer_tensor_zero(writer, "q6_k", TSR_TYPE_Q6_K, 1, (int64_t[]){256});
        gguf_writer_tensor_zero(writer, "fill", TSR_TYPE_F32, 1, &fill);
        free(data);
        data = gguf_writer_bytes(writer, bytes_out);
        gguf_writer_destroy(writer);
        fill = (FILE_BYTES - (int64_t)*bytes_out + 32) / 4;
    }
    assert_int_equal(*bytes_out, FILE_BYTES);
    const uint8_t *last = memmem(data, FILE_BYTES, "fill", 4);
    *header_bytes_out = (size_t)(last - data) + 4 + 4 + 8 + 4 + 8;
    return data;
}

static uint64_t sum_bytes(const void *data, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum += ((const uint8_t *)data)[i];
    return sum;
}

/* Use everything that the model offers; the sum keeps the compiler from dropping the reads. */
static uint64_t read_everything(const tsr_gguf *gguf)
{
    uint64_t sum = 0;
    for (int64_t k = 0; k < tsr_gguf_n_keys(gguf); k++) {
        const char *key = tsr_gguf_key_at(gguf, k);
        tsr_gguf_value_type type;
        tsr_gguf_string text;
        int64_t n, integer;
        uint64_t number;
        double real;
        assert_true(tsr_gguf_has_key(gguf, key));
        if (tsr_gguf_get_u64(gguf, key, &number) == TSR_OK)
            sum += number;
        if (tsr_gguf_get_f64(gguf, key, &real) == TSR_OK)
            sum += real > 0;
        if (tsr_gguf_get_string(gguf, key, &text) == TSR_OK)
            sum += sum_bytes(text.data, text.bytes);
        if (tsr_gguf_get_array(gguf, key, &type, &n) != TSR_OK)
            continue;
        for (int64_t i = 0; i < n; i++) {
            if (tsr_gguf_array_string(gguf, key, i, &text) == TSR_OK)
                sum += sum_bytes(text.data, text.bytes);
            if (tsr_gguf_array_i64(gguf, key, i, &integer) == TSR_OK)
                sum += (uint64_t)integer;
        }
    }
    for (int64_t t = 0; t < tsr_gguf_n_tensors(gguf); t++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(gguf, t);
        assert_ptr_equal(tsr_gguf_find_tensor(gguf, tensor->name), tensor);
        if (tensor->data)
            sum += sum_bytes(tensor->data, tensor->bytes);
    }
    return sum;
}

/* Open and read the bytes, which may be anything. Returns the status, which must be one that fits a bad
 * file. */
static tsr_status try_bytes(const uint8_t *data, size_t bytes, bool header_only)
{
    tsr_gguf *gguf = NULL;
    tsr_gguf_config config = tsr_gguf_config_default();
    config.header_only = header_only;
    struct memory_file file = memory_file_create(data, bytes);
    tsr_status status = tsr_gguf_open(file.path, &config, &gguf);
    if (status == TSR_OK) {
        volatile uint64_t sum = read_everything(gguf); /* volatile: read in earnest */
        (void)sum;
        tsr_gguf_close(gguf);
    } else {
        assert_true(status == TSR_ERR_FORMAT || status == TSR_ERR_UNSUPPORTED);
        assert_null(gguf);
        assert_non_null(strstr(tsr_last_error(), file.path));
        assert_non_null(strstr(tsr_last_error(), "at byte "));
    }
    memory_file_destroy(&file);
    return status;
}

static void a_file_cut_off_anywhere_is_refused(void **state)
{
    (void)state;
    size_t header_bytes, bytes;
    uint8_t *data = small_file(&header_bytes, &bytes);
    int64_t blocks = failing_alloc_live();
    for (size_t cut = 0; cut < bytes; cut++) {
        /* An exact copy on the heap: AddressSanitizer knows where that ends. */
        tsr_status status = try_bytes(data, cut, false);
        if (status != TSR_ERR_FORMAT)
            fail_msg("%zu of %zu bytes: %s", cut, bytes, tsr_status_name(status));
        status = try_bytes(data, cut, true);
        if (status != (cut < header_bytes ? TSR_ERR_FORMAT : TSR_OK))
            fail_msg("%zu of %zu bytes, header only: %s %s", cut, bytes, tsr_status_name(status),
                     tsr_last_error());
        assert_int_equal(failing_alloc_live(), blocks);
    }
    assert_int_equal(try_bytes(data, bytes, false), TSR_OK);
    free(data);
}

/* One random change within the first n bytes. */
static void damage(uint8_t *data, size_t n, uint64_t *seed)
{
    static const uint64_t extremes[] = {
        0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, 0x100000000, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX};
    size_t at = random_below(seed, n), from = random_below(seed, n);
    uint64_t extreme = extremes[random_below(seed, sizeof extremes / sizeof extremes[0])];
    static const size_t widths[] = {1, 2, 4, 8};
    size_t width = widths[random_below(seed, 4)], length = 1 + random_below(seed, 32);
    switch (random_below(seed, 4)) {
    case 0:
        data[at] ^= (uint8_t)(1 << random_below(seed, 8));
        break;
    case 1:
        data[at] = (uint8_t)random_u64(seed);
        break;
    case 2:
        memcpy(data + at, &extreme, width);
        break;
    default:
        memmove(data + at, data + from, length);
        break;
    }
}

static void random_damage_never_does_harm(void **state)
{
    (void)state;
    enum { N_FILES = 20000, SLACK = 64 };
    size_t header_bytes, bytes, opened = 0, unsupported = 0;
    uint8_t *good = small_file(&header_bytes, &bytes);
    uint8_t *data = malloc(bytes + SLACK);
    uint64_t seed = 20240229;
    int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
    for (int i = 0; i < N_FILES; i++) {
        memcpy(data, good, bytes);
        for (uint64_t n = 1 + random_below(&seed, 6); n > 0; n--)
            damage(data, header_bytes, &seed);
        size_t kept = random_below(&seed, 16) == 0 ? random_below(&seed, bytes) : bytes;
        tsr_status status = try_bytes(data, kept, random_below(&seed, 4) == 0);
        opened += status == TSR_OK;
        unsupported += status == TSR_ERR_UNSUPPORTED;
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
    }
    print_message("%d damaged files: %zu opened, %zu unsupported, the others malformed\n", N_FILES, opened,
                  unsupported);
    assert_true(opened > N_FILES / 100 &&
                opened < N_FILES / 2); /* the damage is neither nothing nor too much */
    assert_true(unsupported > 0);
    free(data);
    free(good);
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    char directory[] = "/tmp/tsr_test_gguf.XXXXXX", prefix[64], paths[2][128];
    assert_non_null(mkdtemp(directory));
    snprintf(prefix, sizeof prefix, "%s/model", directory);
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_strings(writer, "strings", (const char *[]){"one", "two"}, 2);
    for (int i = 0; i < 200; i++) { /* enough for the growing arrays to grow */
        char name[32];
        snprintf(name, sizeof name, "a tensor with number %d", i);
        gguf_writer_u32(writer, name, (uint32_t)i);
        gguf_writer_tensor_zero(writer, name, TSR_TYPE_F32, 1, (int64_t[]){1});
    }
    gguf_writer_save_split(writer, prefix, 2);
    gguf_writer_destroy(writer);
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "%s-%05d-of-00002.gguf", prefix, i + 1);

    int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
    int n_memory = 0, n_map = 0;
    for (int n = 1;; n++) {
        tsr_gguf *gguf = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_gguf_open(paths[0], NULL, &gguf);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            tsr_gguf_close(gguf);
            break;
        }
        n_memory += status == TSR_ERR_MEMORY;
        n_map += status == TSR_ERR_IO;
        assert_true(status == TSR_ERR_MEMORY || status == TSR_ERR_IO);
        assert_null(gguf);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
    }
    assert_true(n_memory > 10);
    assert_int_equal(n_map, 2); /* one map for each file */
    assert_int_equal(failing_alloc_live(), blocks);
    assert_int_equal(failing_alloc_live_maps(), maps);
    unlink(paths[0]);
    unlink(paths[1]);
    rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_cut_off_anywhere_is_refused),
        cmocka_unit_test(random_damage_never_does_harm),
        cmocka_unit_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
