/* Text from files on its way to a terminal: no sentence of the library has a control character in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/log.h>
#include <tsr/plan.h>
#include <tsr/tokenizer.h>

#include "core/input/utf8.h"
#include "core/status.h"
#include "support/header_plan.h"
#include "support/random.h"
#include "support/small_vocab.h"

/* Clears the screen, in the bytes of both encodings of CSI. */
#define HOSTILE "x\033[2J\xc2\x9b"
#define CLEANED "x?[2J??"

static void check(const char *text, const char *keep, const char *expected)
{
    char copy[64];
    snprintf(copy, sizeof copy, "%s", text);
    tsr_clean_text(copy, strlen(copy), keep);
    assert_string_equal(copy, expected);
}

static void control_characters_become_question_marks(void **state)
{
    (void)state;
    check(HOSTILE, "", CLEANED);
    check("a\nb\tc\rd", "", "a?b?c?d");
    check("a\nb\tc\rd", "\n\t", "a\nb\tc?d");
    check("\x7f\x1f ", "", "?? ");
    check("\x9b"
          "31m",
          "", "?31m"); /* no UTF-8, but CSI to a terminal of 8 bits */
    check("\xc2\x80\xc2\x9f\xc2\xa0", "", "????\xc2\xa0");
    check("\xc2\xc2\x9b", "", "\xc2??");
    char zero[] = {'a', 0, 'b'};
    tsr_clean_text(zero, sizeof zero, "\n");
    assert_memory_equal(zero, "a?b", 3);
}

static void other_text_stays(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "plain", "Grüße", "ě Ġ ▁", "日本語", "🎉", "\xe2\x80\x9c\xe2\x80\x9d", "\xf0\x90\x80\x80"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check(texts[i], "", texts[i]);
}

/* The code point of a well-formed sequence. */
static uint32_t point_of(const char *text, size_t length)
{
    uint32_t point = (uint8_t)*text & (length == 1 ? 0x7f : 0xff >> (length + 1));
    for (size_t i = 1; i < length; i++)
        point = point << 6 | ((uint8_t)text[i] & 0x3f);
    return point;
}

/* Random bytes, many of which begin or continue a sequence: whatever is well-formed afterwards is no control
 * character, and was there before. */
static void nothing_well_formed_is_a_control_character(void **state)
{
    (void)state;
    static const uint8_t likely[] = {0x1b, 0x80, 0x9b, 0x9f, 0xa0, 0xc2, 0xc3, 0xe2, 0xf0, 'a'};
    uint64_t seed = 7;
    for (int round = 0; round < 100000; round++) {
        char before[12], after[12];
        for (size_t i = 0; i < sizeof before; i++)
            before[i] = (char)likely[random_below(&seed, sizeof likely)];
        memcpy(after, before, sizeof before);
        tsr_clean_text(after, sizeof after, "");
        for (size_t at = 0, length; at < sizeof after; at += length ? length : 1) {
            length = tsr_utf8_sequence(after + at, sizeof after - at, NULL);
            uint32_t point = point_of(after + at, length);
            assert_false(length > 0 && (point < 0x20 || (point >= 0x7f && point < 0xa0)));
            assert_true(after[at] == '?' || after[at] == before[at]);
        }
        tsr_clean_text(before, sizeof before, "");
        assert_memory_equal(before, after, sizeof after);
    }
}

static void keep_line(tsr_log_level level, const char *text, void *user)
{
    (void)level;
    snprintf(user, 64, "%s", text);
}

static void messages_and_log_lines_are_clean(void **state)
{
    (void)state;
    char line[64] = "";
    const tsr_logger logger = {.fn = keep_line, .user = line, .max_level = TSR_LOG_INFO};
    assert_int_equal(tsr_fail(TSR_ERR_FORMAT, "key \"%s\"", HOSTILE), TSR_ERR_FORMAT);
    assert_string_equal(tsr_last_error(), "key \"" CLEANED "\"");
    assert_int_equal(tsr_fail_in(TSR_ERR_FORMAT, "file \"%s\"", HOSTILE), TSR_ERR_FORMAT);
    assert_string_equal(tsr_last_error(), "file \"" CLEANED "\": key \"" CLEANED "\"");
    tsr_log(&logger, TSR_LOG_INFO, "device \"%s\"", HOSTILE);
    assert_string_equal(line, "device \"" CLEANED "\"");
}

static void a_tokenizer_that_is_unknown_is_named_cleanly(void **state)
{
    (void)state;
    small_vocab v;
    small_vocab_init(&v, "gpt2");
    v.model = HOSTILE;
    tsr_gguf *gguf = small_vocab_gguf(&v);
    tsr_tokenizer *tokenizer = NULL;
    assert_int_equal(tsr_tokenizer_create(gguf, &tokenizer), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "\"" CLEANED "\""));
    tsr_gguf_close(gguf);
    small_vocab_release(&v);
}

static void append(const char *text, void *user)
{
    strncat(user, text, 8191 - strlen(user));
}

static void an_unknown_architecture_is_named_cleanly(void **state)
{
    static const struct arch_key keys[] = {{"context_length", 256}, {NULL}};
    static const struct arch_tensor tensors[] = {{"token_embd.weight", {512, 1000}, false}, {NULL}};
    static char printed[8192];
    const struct arch_model strange = {"strange", HOSTILE, 0, 0, false, 1, keys, tensors};
    tsr_plan *plan = header_planned(*state, arch_model_writer(&strange, TSR_TYPE_F16), 2, 256);
    assert_true(header_has_note(plan, CLEANED));
    assert_false(header_has_note(plan, "\033"));
    tsr_plan_print(plan, append, printed);
    assert_non_null(strstr(printed, CLEANED));
    assert_null(strstr(printed, "\033"));
    tsr_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_characters_become_question_marks),
        cmocka_unit_test(other_text_stays),
        cmocka_unit_test(nothing_well_formed_is_a_control_character),
        cmocka_unit_test(messages_and_log_lines_are_clean),
        cmocka_unit_test(a_tokenizer_that_is_unknown_is_named_cleanly),
        cmocka_unit_test_setup_teardown(an_unknown_architecture_is_named_cleanly, header_set_up,
                                        header_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
