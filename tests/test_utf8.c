/* UTF-8: which sequences are well-formed, by the table in RFC 3629 and by all code points. */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "core/input/utf8.h"

static void every_code_point_is_one_sequence(void **state)
{
    (void)state;
    for (uint32_t point = 0; point < 0x120000; point++) {
        char text[4];
        size_t n = 0;
        if (point < 0x80) {
            text[n++] = (char)point;
        } else if (point < 0x800) {
            text[n++] = (char)(0xC0 | point >> 6);
        } else if (point < 0x10000) {
            text[n++] = (char)(0xE0 | point >> 12);
            text[n++] = (char)(0x80 | (point >> 6 & 63));
        } else {
            text[n++] = (char)(0xF0 | point >> 18);
            text[n++] = (char)(0x80 | (point >> 12 & 63));
            text[n++] = (char)(0x80 | (point >> 6 & 63));
        }
        if (point >= 0x80)
            text[n++] = (char)(0x80 | (point & 63));
        bool good = point < 0x110000 && !(point >= 0xD800 && point < 0xE000), cut = true;
        assert_int_equal(tsr_utf8_sequence(text, n, &cut), good ? n : 0);
        assert_false(cut);
        for (size_t part = 1; good && part < n; part++) {
            assert_int_equal(tsr_utf8_sequence(text, part, &cut), 0);
            assert_true(cut); /* more bytes would complete it */
        }
    }
}

static void ill_formed_sequences_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\x80",
        "\xBF",
        "\xC0\x80",
        "\xC1\xBF",
        "\xE0\x80\x80",
        "\xE0\x9F\xBF",
        "\xED\xA0\x80",
        "\xF5\x80",
        "\xF0\x80\x80\x80",
        "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80",
        "\xFF",
        "\xC3(",
        "\xE2\x82(",
        "\xF0\x9F\xA6(",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bool cut = true;
        assert_int_equal(tsr_utf8_sequence(bad[i], strlen(bad[i]), &cut), 0);
        if (cut)
            fail_msg("sequence %zu is taken for the beginning of one", i);
    }
    assert_int_equal(tsr_utf8_sequence("", 0, NULL), 0);
    assert_int_equal(tsr_utf8_sequence("\0", 1, NULL), 1);
}

static void the_valid_prefix_ends_at_the_first_fault(void **state)
{
    (void)state;
    assert_int_equal(tsr_utf8_valid_prefix("", 0), 0);
    assert_int_equal(tsr_utf8_valid_prefix("plain ASCII, longer than eight", 30), 30);
    assert_int_equal(tsr_utf8_valid_prefix("é\xE2\x82\xAC\xF0\x9F\xA6\x99", 9), 9);
    for (size_t at = 0; at < 24; at++) {
        char text[24];
        memset(text, 'a', sizeof text);
        text[at] = '\xFF';
        assert_int_equal(tsr_utf8_valid_prefix(text, sizeof text), at);
    }
    assert_int_equal(tsr_utf8_valid_prefix("abcdefgh\xE2\x82", 10), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_is_one_sequence),
        cmocka_unit_test(ill_formed_sequences_are_refused),
        cmocka_unit_test(the_valid_prefix_ends_at_the_first_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
