/* Pre-tokenizers: where each one cuts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "text/tokenizer/pretokenizer.h"
#include "support/failing_alloc.h"

typedef struct words {
    char joined[4096]; /* with a '|' before each */
    size_t n_words, n_bytes;
} words;

static tsr_status collect(void *user, const char *word, size_t bytes)
{
    words *w = user;
    assert_true(bytes > 0);
    size_t used = strlen(w->joined);
    if (used + bytes + 2 < sizeof w->joined) {
        w->joined[used] = '|';
        memcpy(w->joined + used + 1, word, bytes);
    }
    w->n_words++;
    w->n_bytes += bytes;
    return TSR_OK;
}

static tsr_pretokenizer *open_rule(const char *name)
{
    const tsr_pretokenizer_rule *rule;
    tsr_pretokenizer *pretokenizer;
    assert_int_equal(tsr_pretokenizer_find(name, strlen(name), &rule), TSR_OK);
    assert_int_equal(tsr_pretokenizer_create(rule, &pretokenizer), TSR_OK);
    return pretokenizer;
}

static void check(const char *name, const char *text, const char *expected)
{
    words w = {0};
    tsr_pretokenizer *pretokenizer = open_rule(name);
    assert_int_equal(tsr_pretokenizer_split(pretokenizer, text, strlen(text), collect, &w), TSR_OK);
    if (strcmp(w.joined, expected))
        fail_msg("%s cuts '%s' into '%s', not '%s'", name, text, w.joined, expected);
    tsr_pretokenizer_destroy(pretokenizer);
}

static void gpt2_keeps_letters_digits_and_signs_apart(void **state)
{
    (void)state;
    check("gpt-2", "Hello, world! It's 2024.", "|Hello|,| world|!| It|'s| 2024|.");
    check("gpt-2", "a  b   c \n d", "|a| | b|  | c| \n| d");
    check("gpt-2", "end  ", "|end|  ");
    check("gpt-2", "IT'S", "|IT|'|S"); /* its contractions are lower case only */
    check("gpt-2", "Größe 日本語 １２", "|Größe| 日本語| １２");
}

static void llama_takes_digits_in_threes_and_newlines_together(void **state)
{
    (void)state;
    check("llama-bpe", "Hello, world! IT'S 12345 3.14", "|Hello|,| world|!| IT|'S| |123|45| |3|.|14");
    check("llama-bpe", "a\n\n b", "|a|\n\n| b");
    check("llama-bpe", "x = (y);\n\tz", "|x| =| (|y|);\n|\tz");
    check("llama-bpe", "$dollar #tag", "|$dollar| #|tag");
    check("llama3", "123456", "|123|456");
}

static void qwen2_takes_digits_one_by_one(void **state)
{
    (void)state;
    check("qwen2", "in 2024, we're", "|in| |2|0|2|4|,| we|'re");
}

static void smollm_cuts_digits_before_words(void **state)
{
    (void)state;
    check("smollm", "in 2024 it's", "|in| |2|0|2|4| it|'s");
}

static void falcon_takes_digits_in_threes_from_the_left(void **state)
{
    (void)state;
    check("falcon", "x=12345, `a` we're", "|x|=|123|45|,| |`|a|`| we|'|re");
}

static void deepseek_keeps_scripts_apart(void **state)
{
    (void)state;
    check("deepseek-llm", "Hello, world 12345\n\n x  ", "|Hello|,| world| |12345|\n|\n| x|  ");
    check("deepseek-llm", "ab\xE6\x97\xA5\xE6\x9C\xAC!", "|ab|\xE6\x97\xA5\xE6\x9C\xAC|!");
    check("deepseek-coder", "x1 = 12;\r\n", "|x|1| = |1|2|;|\r|\n");
    check("deepseek-v3", "f(x) = 12345 abc.def\n", "|f|(x|)| =| |123|45| abc|.def|\n");
}

static void changes_from_small_to_capital_begin_words(void **state)
{
    (void)state;
    check("tekken", "helloWorld XMLParser's 12", "|hello|World| XMLParser|'s| |1|2");
    check("gpt-4o", "helloWorld's I'M 12345/ a", "|hello|World's| I'M| |123|45|/| a");
    check("llama4", "/usr//\n/ x", "|/usr|//\n/| x");
    check("kimi-k2",
          "a\xE4\xB8\xAD\xE6\x96\x87"
          "b 1234",
          "|a|\xE4\xB8\xAD\xE6\x96\x87|b| |123|4");
}

static void numbers_are_cut_in_threes_from_the_right(void **state)
{
    (void)state;
    check("superbpe", "in 1234567 and 12", "|in |1|234|567| and |12");
    check("afmoe", "1234 x", "|1|234| x");
    check("tiny_aya", "1234 x", "|1|234| x");
    check("tiny_aya", "1234x", "|123|4|x"); /* no number by itself */
}

static void marks_stay_with_their_letters_where_the_model_wants(void **state)
{
    (void)state;
    check("qwen35", "e\xCC\x81t\xC3\xA9", "|e\xCC\x81t\xC3\xA9");
    check("qwen2", "e\xCC\x81t\xC3\xA9", "|e|\xCC\x81t\xC3\xA9");
}

static void other_families_cut_their_own_way(void **state)
{
    (void)state;
    check("bloom", "Hi there, (you) 12", "|Hi| there|, (|you|)| 12");
    check("viking", "a 12", "|a| |1|2");
    check("bailingmoe", "a\n\nb", "|a|\n\n|b");
    check("seed-coder", "a;\n\nb 12", "|a|;|\n\n|b| |1|2");
    check("exaone-moe", "how are you 12", "|how are you| |1|2");
    check("jais-2", "a       b", "|a|    |  | b"); /* 4, 2, and the one that goes with the word */
    check("chameleon", "IMGIMGABZ<sentinel:12>", "|IMGIMGABZ|<|sentinel|:|1|2|>");
    check("gemma4", "a b\n\n c", "|a b|\n\n| c");
}

static void default_cuts_in_four_stages(void **state)
{
    (void)state;
    check("default", "x=1234567, a", "|x|=|123|456|7|,| a");
}

/* The Mongolian vowel separator was a space until Unicode 6.3 and still is one to PCRE2's \s. */
static void spaces_are_what_unicode_calls_white_space(void **state)
{
    (void)state;
    check("gpt-2",
          "a\xE1\xA0\x8E"
          "b",
          "|a|\xE1\xA0\x8E|b");
    check("gpt-2",
          "a\xC2\xA0\xC2\xA0"
          "b",
          "|a|\xC2\xA0|\xC2\xA0|b");
    check("gpt-2", "!\xE3\x80\x80!", "|!|\xE3\x80\x80|!");
}

static void bytes_that_are_not_utf8_are_words_of_their_own(void **state)
{
    (void)state;
    check("gpt-2",
          "ab\xFF\xFE"
          "cd \xE2\x82",
          "|ab|\xFF\xFE|cd| |\xE2\x82");
}

/* Converters of GLM 4 write two names, of which one takes whole words that are tokens. */
static void names_of_one_pattern_share_its_rule(void **state)
{
    (void)state;
    const tsr_pretokenizer_rule *glm4, *glm5, *chatglm;
    check("glm5", "It's 12345 x", "|It|'s| |123|45| x");
    assert_int_equal(tsr_pretokenizer_find("glm4", 4, &glm4), TSR_OK);
    assert_int_equal(tsr_pretokenizer_find("glm5", 4, &glm5), TSR_OK);
    assert_int_equal(tsr_pretokenizer_find("chatglm-bpe", 11, &chatglm), TSR_OK);
    assert_ptr_equal(glm4, glm5);
    assert_true(glm4->flags & TSR_PRE_WHOLE_WORDS);
    assert_false(chatglm->flags & TSR_PRE_WHOLE_WORDS);
}

static void an_unknown_name_is_refused_with_those_that_exist(void **state)
{
    (void)state;
    const tsr_pretokenizer_rule *rule = NULL;
    assert_int_equal(tsr_pretokenizer_find("klingon", 7, &rule), TSR_ERR_UNSUPPORTED);
    assert_null(rule);
    assert_non_null(strstr(tsr_last_error(), "\"klingon\""));
    assert_non_null(strstr(tsr_last_error(), "gpt-2"));
    assert_non_null(strstr(tsr_last_error(), "llama-bpe"));
    assert_non_null(strstr(tsr_last_error(), "qwen2"));
    /* part of a name, and several at once, are no names */
    assert_int_equal(tsr_pretokenizer_find("gpt", 3, &rule), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_pretokenizer_find("gpt-2 phi-2", 11, &rule), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_pretokenizer_find("", 0, &rule), TSR_ERR_UNSUPPORTED);
}

/* A lot of one thing, and of two in turn, ends in reasonable time and loses nothing, by every rule. */
static void monotonous_text_of_any_kind_is_cut(void **state)
{
    (void)state;
    enum { BYTES = 1 << 16 };
    static const char *const units[] = {" ",  "a",   "1", "!",    "\n", "'",  " \n", "\n ", " a",
                                        "'s", "\t ", "é", "\xFF", "日", "ア", "aB",  "12 "};
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (int rule = 0; tsr_pretokenizer_names(rule); rule++) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(tsr_pretokenizer_names(rule), " "),
                 tsr_pretokenizer_names(rule));
        tsr_pretokenizer *pretokenizer = open_rule(name);
        for (size_t unit = 0; unit < sizeof units / sizeof *units; unit++) {
            words w = {0};
            for (size_t i = 0; i < BYTES; i++)
                text[i] = units[unit][i % strlen(units[unit])];
            if (tsr_pretokenizer_split(pretokenizer, text, BYTES, collect, &w) != TSR_OK)
                fail_msg("%s, '%s': %s", name, units[unit], tsr_last_error());
            assert_int_equal(w.n_bytes, BYTES);
        }
        tsr_pretokenizer_destroy(pretokenizer);
    }
    free(text);
}

static tsr_status refuse(void *user, const char *word, size_t bytes)
{
    (void)word;
    (void)bytes;
    ++*(int *)user;
    return TSR_ERR_FULL;
}

static void the_callers_refusal_ends_the_cutting(void **state)
{
    (void)state;
    int calls = 0;
    tsr_pretokenizer *pretokenizer = open_rule("default");
    assert_int_equal(tsr_pretokenizer_split(pretokenizer, "a b c", 5, refuse, &calls), TSR_ERR_FULL);
    assert_int_equal(calls, 1);
    tsr_pretokenizer_destroy(pretokenizer);
    tsr_pretokenizer_destroy(NULL);
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    const tsr_pretokenizer_rule *rule;
    assert_int_equal(tsr_pretokenizer_find("default", 7, &rule), TSR_OK);
    bool fired = true;
    for (int n = 1; fired; n++) {
        int64_t live = failing_alloc_live();
        tsr_pretokenizer *pretokenizer = NULL;
        words w = {0};
        failing_alloc_set(n);
        tsr_status status = tsr_pretokenizer_create(rule, &pretokenizer);
        if (status == TSR_OK)
            status = tsr_pretokenizer_split(pretokenizer, "a b, 1", 6, collect, &w);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired)
            assert_int_equal(status, TSR_OK);
        /* with one missing, patterns may have stayed uncompiled: slower, the same words */
        if (status == TSR_OK)
            assert_string_equal(w.joined, "|a| b|,| |1");
        else
            assert_int_equal(status, TSR_ERR_MEMORY);
        tsr_pretokenizer_destroy(pretokenizer);
        assert_int_equal(failing_alloc_live(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_keeps_letters_digits_and_signs_apart),
        cmocka_unit_test(llama_takes_digits_in_threes_and_newlines_together),
        cmocka_unit_test(qwen2_takes_digits_one_by_one),
        cmocka_unit_test(smollm_cuts_digits_before_words),
        cmocka_unit_test(falcon_takes_digits_in_threes_from_the_left),
        cmocka_unit_test(deepseek_keeps_scripts_apart),
        cmocka_unit_test(changes_from_small_to_capital_begin_words),
        cmocka_unit_test(numbers_are_cut_in_threes_from_the_right),
        cmocka_unit_test(marks_stay_with_their_letters_where_the_model_wants),
        cmocka_unit_test(other_families_cut_their_own_way),
        cmocka_unit_test(default_cuts_in_four_stages),
        cmocka_unit_test(spaces_are_what_unicode_calls_white_space),
        cmocka_unit_test(bytes_that_are_not_utf8_are_words_of_their_own),
        cmocka_unit_test(names_of_one_pattern_share_its_rule),
        cmocka_unit_test(an_unknown_name_is_refused_with_those_that_exist),
        cmocka_unit_test(monotonous_text_of_any_kind_is_cut),
        cmocka_unit_test(the_callers_refusal_ends_the_cutting),
        cmocka_unit_test(every_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
