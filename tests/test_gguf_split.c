/* GGUF models of several files: read as one, and refused where the files do not belong together. */
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

#include "support/gguf_open.h"

enum { PATH_BYTES = 256 };

/* A fresh directory's "model"; remove_parts() removes both. */
static void temporary_prefix(char prefix[PATH_BYTES])
{
    snprintf(prefix, PATH_BYTES, "/tmp/tsr_test_gguf.XXXXXX");
    assert_non_null(mkdtemp(prefix));
    strcat(prefix, "/model");
}

static void part_path(char path[PATH_BYTES], const char *prefix, int file, int n_files)
{
    snprintf(path, PATH_BYTES, "%.200s-%05d-of-%05d.gguf", prefix, file, n_files);
}

static void remove_parts(const char *prefix, int n_files)
{
    char path[PATH_BYTES];
    for (int i = 1; i <= n_files; i++) {
        part_path(path, prefix, i, n_files);
        unlink(path);
    }
    snprintf(path, sizeof path, "%.*s", (int)(strrchr(prefix, '/') - prefix), prefix);
    assert_int_equal(rmdir(path), 0);
}

/* Seven tensors t0..t6 whose only element is their number. */
static gguf_writer *seven_tensors(void)
{
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_u32(writer, "answer", 42);
    gguf_writer_alignment(writer, 64);
    for (int i = 0; i < 7; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        gguf_writer_tensor_raw(writer, name, TSR_TYPE_I32, 1, (int64_t[]){1}, &i);
    }
    return writer;
}

static void a_multi_file_model_reads_as_one(void **state)
{
    (void)state;
    char prefix[PATH_BYTES], path[PATH_BYTES], name[16];
    temporary_prefix(prefix);
    gguf_writer *writer = seven_tensors();
    gguf_writer_save_split(writer, prefix, 3);
    gguf_writer_destroy(writer);
    part_path(path, prefix, 1, 3);
    tsr_gguf *gguf = NULL;
    uint64_t answer = 0;
    assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_OK);
    assert_int_equal(tsr_gguf_n_files(gguf), 3);
    assert_int_equal(tsr_gguf_n_tensors(gguf), 7);
    assert_int_equal(tsr_gguf_get_u64(gguf, "answer", &answer), TSR_OK);
    assert_int_equal(answer, 42);
    int files_seen = 0;
    for (int i = 0; i < 7; i++) {
        snprintf(name, sizeof name, "t%d", i);
        const tsr_gguf_tensor *tensor = tsr_gguf_find_tensor(gguf, name);
        assert_ptr_equal(tensor, tsr_gguf_tensor_at(gguf, i));
        assert_int_equal(*(const int32_t *)tensor->data, i);
        files_seen |= 1 << tensor->file;
    }
    assert_int_equal(files_seen, 7);
    tsr_gguf_close(gguf);
    remove_parts(prefix, 3);
}

static void a_multi_file_model_needs_all_its_files(void **state)
{
    (void)state;
    char prefix[PATH_BYTES], path[PATH_BYTES], other[PATH_BYTES];
    tsr_gguf *gguf = NULL;
    temporary_prefix(prefix);
    gguf_writer *writer = seven_tensors();
    gguf_writer_save_split(writer, prefix, 3);

    part_path(path, prefix, 2, 3);
    assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "-00001-of-00003.gguf"));

    part_path(other, prefix, 3, 3);
    assert_int_equal(rename(path, other), 0); /* file 2 in the place of file 3, and none in that of 2 */
    part_path(path, prefix, 1, 3);
    assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_ERR_IO);
    assert_non_null(strstr(tsr_last_error(), "-00002-of-00003.gguf"));

    gguf_writer_save_split(writer, prefix, 3);
    part_path(path, prefix, 2, 3);
    assert_int_equal(rename(path, other), 0);
    gguf_writer_save_split(writer, prefix, 2); /* leaves the files of three alone */
    part_path(other, prefix, 2, 2);
    assert_int_equal(rename(other, path), 0); /* "2 of 3" now says that it is 2 of 2 */
    part_path(path, prefix, 1, 3);
    assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_ERR_FORMAT);
    assert_non_null(strstr(tsr_last_error(), "file 2 of 2, not 2 of 3"));

    part_path(other, prefix, 1, 2);
    assert_int_equal(rename(path, other), 0);
    snprintf(path, sizeof path, "%.200s", prefix);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_ERR_FORMAT);
    assert_non_null(strstr(tsr_last_error(), "must end in \"-00001-of-00003.gguf\""));
    assert_null(gguf);
    unlink(path);
    gguf_writer_destroy(writer);
    remove_parts(prefix, 3);
}

static void tensors_of_two_files_must_differ_and_be_complete(void **state)
{
    (void)state;
    char prefix[PATH_BYTES], path[PATH_BYTES];
    tsr_gguf *gguf = NULL;
    temporary_prefix(prefix);
    part_path(path, prefix, 1, 2);

    gguf_writer *writer = seven_tensors();
    gguf_writer_tensor_zero(writer, "t0", TSR_TYPE_F32, 1, (int64_t[]){1});
    gguf_writer_save_split(writer, prefix, 2);
    gguf_writer_destroy(writer);
    assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_ERR_FORMAT);
    assert_non_null(strstr(tsr_last_error(), "-00002-of-00002.gguf: tensor \"t0\""));

    writer = seven_tensors();
    gguf_writer_save_split(writer, prefix, 2);
    gguf_writer_destroy(writer);
    FILE *file = fopen(path, "r+b");
    uint8_t data[1024];
    size_t bytes = fread(data, 1, sizeof data, file);
    size_t count_at = gguf_bytes_after(data, bytes, "split.tensors.count") + 4;
    fseek(file, (long)count_at, SEEK_SET);
    fputc(8, file);
    fclose(file);
    assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_ERR_FORMAT);
    assert_non_null(strstr(tsr_last_error(), "is 8, but the files contain 7 tensors"));
    assert_null(gguf);
    remove_parts(prefix, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_multi_file_model_reads_as_one),
        cmocka_unit_test(a_multi_file_model_needs_all_its_files),
        cmocka_unit_test(tensors_of_two_files_must_differ_and_be_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
