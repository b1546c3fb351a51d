/* Packing instances as text: what is read, what is refused and in which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../bench/support/pack_file.h"
#include "support/directory.h"

static char path[DIRECTORY_PATH];

static int set_up(void **state)
{
    (void)state;
    int fd = directory_new(path);
    return fd < 0 || close(fd);
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

static void write_bytes(const char *text, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void read_text(const char *text, pack_file *file)
{
    char message[PACK_FILE_MESSAGE];
    write_bytes(text, strlen(text));
    if (!pack_file_read(path, file, message))
        fail_msg("%s: %s", text, message);
}

/* Two buffers, b1 in [0, 3) of 4096 bytes and b2 in [1, 2) of 7. */
static void check_two(const char *text)
{
    pack_file file;
    read_text(text, &file);
    assert_int_equal(file.n_items, 2);
    assert_string_equal(file.items[0].name, "b1");
    assert_true(file.items[0].lower == 0 && file.items[0].upper == 3 && file.items[0].size == 4096);
    assert_string_equal(file.items[1].name, "b2");
    assert_true(file.items[1].lower == 1 && file.items[1].upper == 2 && file.items[1].size == 7);
    assert_int_equal(file.items[1].fixed_offset, TSR_PACK_FREE);
    pack_file_free(&file);
}

static void the_same_is_read_however_it_is_written(void **state)
{
    (void)state;
    check_two("id,lower,upper,size\nb1,0,3,4096\nb2,1,2,7\n");
    check_two("id,lower,upper,size\nb1,0,3,4096\nb2,1,2,7");
    check_two("\xef\xbb\xbfid,lower,upper,size\r\nb1,0,3,4096\r\nb2,1,2,7\r\n");
    check_two("\n\nid , lower,\tupper,size\n\n# a remark\nb1, 0 ,3,4096\n   \nb2,1,2,7\n\n");
    check_two("size,upper,ID,Lower\n4096,3,b1,0\n7,2,b2,1\n");
    check_two("\"id\",\"lower\",\"upper\",\"size\"\n\"b1\",0,3,4096\n\"b2\",1,2,\"7\"\n");
    check_two("buffer_id,start,end,size\nb1,0,2,4096\nb2,1,1,7\n");
    check_two("buffer,begin,end,size,gaps\nb1,0,2,4096,\nb2,1,1,7,\n");
    check_two("id,kind,lower,upper,size,color\nb1,x,0,3,4096,red\nb2,,1,2,+7,\n");
}

static void what_is_left_out_has_its_default(void **state)
{
    (void)state;
    pack_file file;
    read_text("lower,upper,size,alignment\n-5,3,1,64\n-9223372036854775808,9223372036854775807,0,1\n", &file);
    assert_int_equal(file.n_items, 2);
    assert_string_equal(file.items[0].name, "");
    assert_true(file.items[0].lower == -5 && file.items[0].alignment == 64);
    assert_true(file.items[1].lower == INT64_MIN && file.items[1].upper == INT64_MAX);
    pack_file_free(&file);
    read_text("7,0,3,16\n", &file); /* no header */
    assert_int_equal(file.n_items, 1);
    assert_true(file.items[0].lower == 0 && file.items[0].upper == 3 && file.items[0].size == 16);
    pack_file_free(&file);
    read_text("id,lower,upper,size\n", &file);
    assert_int_equal(file.n_items, 0);
    pack_file_free(&file);
}

static void what_is_wrong_is_named_with_its_line(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "empty"},
        {"\n \r\n", "empty"},
        {"id,lower,upper\n", "line 1: the header names no column size"},
        {"lower,upper,size,lower\n", "line 1: there are two columns for lower"},
        {"lower,end,upper,size\n", "line 1: there are two columns for upper"},
        {"id,lower,upper,size\n1,0,1,8\n2,0,1\n", "line 3: there is no size"},
        {"id,lower,upper,size\n1,0,,8\n", "line 2: there is no upper"},
        {"id,lower,upper,size\n\n1,0,1.5,8\n", "line 3: upper is '1.5', which is no whole number"},
        {"id,lower,upper,size\n1,0,1,8k\n", "line 2: size is '8k'"},
        {"id,lower,upper,size\n1,0,1,-8\n", "line 2: size -8 is out of range"},
        {"id,lower,upper,size\n1,0,1,99999999999999999999\n", "line 2: size 99999999999999999999 is out"},
        {"id,lower,upper,size\n1,0,99999999999999999999,1\n", "line 2: upper 99999999999999999999 is out"},
        {"id,lower,upper,size\n1,3,3,8\n", "line 2: a buffer that lives in [3, 3) never lives"},
    };
    char message[PACK_FILE_MESSAGE];
    pack_file file;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bytes(cases[i][0], strlen(cases[i][0]));
        assert_false(pack_file_read(path, &file, message));
        if (!strstr(message, cases[i][1]))
            fail_msg("'%s' should say '%s'", message, cases[i][1]);
    }
    write_bytes("id,lower\0,upper,size\n", 21);
    assert_false(pack_file_read(path, &file, message));
    assert_string_equal(message, "it is no text");
    assert_false(pack_file_read("/nonexistent/file.csv", &file, message));
    assert_non_null(strstr(message, "No such file"));
}

static void offsets_are_written_beside_the_ids(void **state)
{
    (void)state;
    char text[256];
    pack_file file;
    read_text("size,upper,id,lower\n4096,3,b1,0\n7,2,,1\n", &file);
    tsr_pack_problem problem = {file.items, file.n_items, 0};
    tsr_pack_solution solution;
    assert_int_equal(tsr_pack_solve(&problem, NULL, &solution), TSR_OK);
    assert_true(pack_file_write(path, &file, &solution));
    FILE *out = fopen(path, "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    fclose(out);
    assert_string_equal(text, "id,lower,upper,size,offset\nb1,0,3,4096,0\n1,1,2,7,4096\n");
    assert_false(pack_file_write("/nonexistent/file.csv", &file, &solution));
    tsr_pack_solution_free(&solution);
    pack_file_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_is_read_however_it_is_written),
        cmocka_unit_test(what_is_left_out_has_its_default),
        cmocka_unit_test(what_is_wrong_is_named_with_its_line),
        cmocka_unit_test(offsets_are_written_beside_the_ids),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
