/* Unigram vocabularies: the most probable tokens, against trying every way to cut a text;
 * spellings; spaces. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <tsr/tokenizer.h>

#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/small_vocab.h"
#include "support/tokenizer_check.h"

static void unigram_vocab(small_vocab *v)
{
    small_vocab_init(v, "t5");
    v->unk = 0;
    v->eos = 2;
    v->add_eos = 0;
}

/* -- the most probable tokens -- */

/* Every way to cut text[bytes] from `begin` on, the long way round; -DBL_MAX: there is none. A character
 * without a token of its own may be unknown. */
static double best_score(const small_vocab *v, const char *text, size_t bytes, size_t begin, double unknown)
{
    if (begin == bytes)
        return 0;
    double best = -DBL_MAX;
    bool alone = false;
    for (size_t id = 259; id < v->n_tokens; id++) {
        const size_t length = strlen(v->tokens[id]);
        if (length > bytes - begin || memcmp(v->tokens[id], text + begin, length))
            continue;
        alone = alone || length == 1;
        const double rest = best_score(v, text, bytes, begin + length, unknown);
        const double score = v->types[id] == 4 ? 0 : (double)v->scores[id];
        if (rest > -DBL_MAX && score + rest > best)
            best = score + rest;
    }
    const double rest = alone ? -DBL_MAX : best_score(v, text, bytes, begin + 1, unknown);
    return rest > -DBL_MAX && unknown + rest > best ? unknown + rest : best;
}

/* Of tokens that spell text[bytes]; an unknown one stands for as many characters as the next needs. */
static double score_of(const small_vocab *v, const token_list *tokens, const char *text, size_t bytes,
                       double unknown)
{
    double sum = 0;
    size_t at = 0;
    for (size_t i = 0; i < tokens->n; i++) {
        const int32_t id = tokens->at[i];
        if (id == 0) {
            for (; at < bytes && (text[at] == 'x' || text[at] == 'y'); at++)
                sum += unknown;
            continue;
        }
        const size_t length = strlen(v->tokens[id]);
        assert_true(length <= bytes - at);
        assert_memory_equal(text + at, v->tokens[id], length);
        at += length;
        sum += (double)v->scores[id];
    }
    assert_int_equal(at, bytes);
    return sum;
}

static void tokens_are_the_most_probable(void **state)
{
    (void)state;
    static const char *const pieces[] = {"a", "b", "c", "ab", "bc", "abc", "ca", "cab", "aa", "bb", "abca"};
    uint64_t random = 7;
    for (int round = 0; round < 40; round++) {
        small_vocab v;
        unigram_vocab(&v);
        double least = 0;
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            const float score = -(float)(random_below(&random, 1000)) / 64;
            least = score < least ? score : least;
            small_vocab_add(&v, pieces[i], 1, score);
        }
        tsr_tokenizer *t = small_vocab_tokenizer(&v);
        for (int text = 0; text < 20; text++) {
            char bytes[12];
            const size_t n = 1 + random_below(&random, sizeof bytes);
            for (size_t i = 0; i < n; i++)
                bytes[i] = "aabbccxy"[random_below(&random, 8)];
            const token_list tokens = tokenizer_encode_bytes(t, bytes, n, 0);
            const double got = score_of(&v, &tokens, bytes, n, least - 10);
            const double best = best_score(&v, bytes, n, 0, least - 10);
            assert_true(fabs(got - best) < 1e-9);
        }
        tsr_tokenizer_destroy(t);
        small_vocab_release(&v);
    }
}

static void unknown_characters_in_a_row_are_one(void **state)
{
    (void)state;
    small_vocab v;
    unigram_vocab(&v);
    small_vocab_add(&v, "a", 1, -1);
    small_vocab_add(&v, "é", 1, -1);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, "axya中é", 0, "a <unk> a <unk> é");
    tokenizer_check(t, "\xC3 a", 0, "<unk> a"); /* half a character, a space: neither is a token */
    tokenizer_check(t, "", 0, "");
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

static void a_user_defined_token_is_taken_however_improbable(void **state)
{
    (void)state;
    small_vocab v;
    unigram_vocab(&v);
    small_vocab_add(&v, "a", 1, -1);
    small_vocab_add(&v, "<x>", 4, -100);
    small_vocab_add(&v, "▁a", 1, -1);
    v.add_space_prefix = 1;
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, "a<x>a", 0, "▁a <x> ▁a");
    tokenizer_check(t, "a", TSR_ENCODE_ADD_SPECIAL, "▁a");
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

/* -- spaces -- */

static void check_spaces(int prefix, int merges, int behind, const char *expected)
{
    static const char *const pieces[] = {"a", "▁"};
    small_vocab v;
    unigram_vocab(&v);
    for (size_t i = 0; i < 2; i++)
        small_vocab_add(&v, pieces[i], 1, -1);
    v.add_space_prefix = prefix;
    v.merges_spaces = merges;
    v.space_behind = behind;
    v.add_eos = -1; /* the family's habit */
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, " a  a ", TSR_ENCODE_ADD_SPECIAL, expected);
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

static void spaces_are_kept_merged_or_added_as_the_file_says(void **state)
{
    (void)state;
    check_spaces(0, 0, 0, "▁ a ▁ ▁ a ▁ </s>");
    check_spaces(1, 0, 0, "▁ ▁ a ▁ ▁ a ▁ </s>");
    check_spaces(1, 1, 0, "▁ a ▁ a </s>");
    check_spaces(1, 1, 1, "▁ a ▁ a ▁ </s>");
    check_spaces(1, 0, 1, "▁ a ▁ ▁ a ▁ ▁ </s>");
    check_spaces(-1, -1, -1, "▁ a ▁ ▁ a ▁ </s>");
}

static void decoding_takes_the_added_space_away(void **state)
{
    (void)state;
    small_vocab v;
    unigram_vocab(&v);
    small_vocab_add(&v, "▁a", 1, -1);
    small_vocab_add(&v, "▁", 1, -3);
    small_vocab_add(&v, "b", 1, -1);
    v.add_space_prefix = 1;
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check_round_trip(t, "a b  a", 6, 0);
    tokenizer_check_round_trip(t, " b", 2, 0);
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

/* -- spellings -- */

/* "A" is "a", "AB" is "c", "¼" (C2 BC) is "a b", a tab is a space, 0x7F vanishes: a trie of units, offset 0
 * from the root to the bytes themselves, and behind them at 256 and above. */
typedef struct spellings {
    uint32_t n_bytes, units[1024];
    char replacements[16];
} spellings;

/* A unit at `at`, for the byte on the way to it, whose children and value are at `at` ^ offset. */
static void place(spellings *s, uint32_t at, uint8_t byte, uint32_t offset, bool leaf)
{
    s->units[at] = offset << 10 | (leaf ? 1u << 8 : 0) | byte;
}

static void place_value(spellings *s, uint32_t at, uint32_t value)
{
    s->units[at] = 1u << 31 | value;
}

static void make_spellings(spellings *s)
{
    *s = (spellings){.n_bytes = sizeof s->units};
    memcpy(s->replacements, "a\0c\0a b\0 \0", 11); /* at 0, 2, 4, 8; the NUL at 1 is an empty string */
    place(s, 0, 0, 0, false);
    place(s, 'A', 'A', 256, true);
    place_value(s, 'A' ^ 256, 0);
    place(s, 'A' ^ 256 ^ 'B', 'B', 512, true);
    place_value(s, 'A' ^ 256 ^ 'B' ^ 512, 2);
    place(s, 0xC2, 0xC2, 512, false);
    place(s, 0xC2 ^ 512 ^ 0xBC, 0xBC, 768, true);
    place_value(s, 0xC2 ^ 512 ^ 0xBC ^ 768, 4);
    place(s, '\t', '\t', 768, true);
    place_value(s, '\t' ^ 768, 8);
    place(s, 0x7F, 0x7F, 512, true);
    place_value(s, 0x7F ^ 512, 1);
}

static void spelled_vocab(small_vocab *v, const spellings *s)
{
    static const char *const pieces[] = {"a", "b", "c", "▁", "B"};
    unigram_vocab(v);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        small_vocab_add(v, pieces[i], 1, -1);
    v->charsmap = (const uint8_t *)s;
    v->charsmap_bytes = sizeof s->n_bytes + sizeof s->units + sizeof s->replacements;
}

static void spellings_that_count_as_one_give_the_same_tokens(void **state)
{
    (void)state;
    spellings s;
    small_vocab v;
    make_spellings(&s);
    spelled_vocab(&v, &s);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, "AABa", 0, "a c a"); /* the longest beginning */
    tokenizer_check(t, "¼B", 0, "a ▁ b B");
    tokenizer_check(t, "a\tb", 0, "a ▁ b");
    tokenizer_check(t,
                    "a\x7F"
                    "b",
                    0, "a b");
    tokenizer_check(t, "\x7F", 0, "");
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

/* Units, values and sizes that lead nowhere are refused, or end a look-up; they are never followed. */
static void damaged_spellings_are_refused_or_not_followed(void **state)
{
    (void)state;
    uint64_t random = 3;
    for (int round = 0; round < 300; round++) {
        spellings s;
        small_vocab v;
        tsr_tokenizer *t = NULL;
        make_spellings(&s);
        for (int i = 0; i < 1 + round % 40; i++) {
            uint8_t *bytes = (uint8_t *)&s;
            const size_t at = round % 3 ? 4 + random_below(&random, 0x260) : random_below(&random, sizeof s);
            bytes[at] = (uint8_t)random_u64(&random);
        }
        spelled_vocab(&v, &s);
        v.charsmap_bytes -= round % 7 ? 0 : random_below(&random, v.charsmap_bytes);
        tsr_gguf *gguf = small_vocab_gguf(&v);
        const tsr_status status = tsr_tokenizer_create(gguf, &t);
        if (status == TSR_OK) {
            (void)tokenizer_encode_text(t, "AABa \tb\x7F ¼B\xC2 Ab AB", 0);
        } else {
            assert_int_equal(status, TSR_ERR_FORMAT);
            assert_non_null(strstr(tsr_last_error(), "precompiled_charsmap"));
        }
        tsr_tokenizer_destroy(t);
        tsr_gguf_close(gguf);
        small_vocab_release(&v);
    }
}

/* -- what can fail -- */

static void a_missing_or_damaged_key_is_named(void **state)
{
    (void)state;
    for (int fault = 0; fault < 3; fault++) {
        static const char *const names[] = {"scores is missing", "unknown_token_id", "scores[260]"};
        small_vocab v;
        tsr_tokenizer *t = NULL;
        unigram_vocab(&v);
        small_vocab_add(&v, "a", 1, -1);
        small_vocab_add(&v, "b", 1, fault == 2 ? -(float)DBL_MAX : -1);
        if (fault == 0)
            v.n_scores = 0;
        if (fault == 1)
            v.unk = 100000;
        tsr_gguf *gguf = small_vocab_gguf(&v);
        assert_int_equal(tsr_tokenizer_create(gguf, &t), TSR_ERR_FORMAT);
        if (!strstr(tsr_last_error(), names[fault]))
            fail_msg("%s", tsr_last_error());
        tsr_gguf_close(gguf);
        small_vocab_release(&v);
    }
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    spellings s;
    small_vocab v;
    make_spellings(&s);
    spelled_vocab(&v, &s);
    tsr_gguf *gguf = small_vocab_gguf(&v);
    bool fired = true;
    for (int n = 1; fired; n++) {
        tsr_tokenizer *t = NULL;
        int32_t tokens[16];
        size_t n_tokens = 0;
        const int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = tsr_tokenizer_create(gguf, &t);
        if (status == TSR_OK)
            status = tsr_tokenizer_encode(t, "AABa", 4, 0, tokens, 16, &n_tokens);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        tsr_tokenizer_destroy(t);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    tsr_gguf_close(gguf);
    small_vocab_release(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_the_most_probable),
        cmocka_unit_test(unknown_characters_in_a_row_are_one),
        cmocka_unit_test(a_user_defined_token_is_taken_however_improbable),
        cmocka_unit_test(spaces_are_kept_merged_or_added_as_the_file_says),
        cmocka_unit_test(decoding_takes_the_added_space_away),
        cmocka_unit_test(spellings_that_count_as_one_give_the_same_tokens),
        cmocka_unit_test(damaged_spellings_are_refused_or_not_followed),
        cmocka_unit_test(a_missing_or_damaged_key_is_named),
        cmocka_unit_test(every_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
