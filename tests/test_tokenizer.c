/* The tokenizer on small vocabularies: what merges, what does not, and the way back. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <tsr/tokenizer.h>

#include "support/small_vocab.h"
#include "support/tokenizer_check.h"

static void merges_make_tokens_of_bytes(void **state)
{
    (void)state;
    tsr_tokenizer *t = small_vocab_hello();
    tokenizer_check(t, "hello world", 0, "hello Ġw or l d");
    tokenizer_check(t, "hehello", 0, "he hello");
    tokenizer_check(t, "HELLO", 0, "H E L L O");
    tokenizer_check(t, "", 0, "");
    tokenizer_check(t, "é", 0, "Ã ©");
    tsr_tokenizer_destroy(t);
}

static void lower_ranks_merge_first_and_equal_ones_from_the_left(void **state)
{
    (void)state;
    small_vocab v;
    small_vocab_init(&v, "gpt2");
    small_vocab_merge(&v, "b", "c");
    small_vocab_merge(&v, "a", "b");
    small_vocab_merge(&v, "x", "x");
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, "abc", 0, "a bc");
    tokenizer_check(t, "abd", 0, "ab d");
    tokenizer_check(t, "xxxxx", 0, "xx xx x");
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

static void bos_and_eos_are_added_where_the_model_asks(void **state)
{
    (void)state;
    for (int bos = -1; bos <= 1; bos++)
        for (int eos = -1; eos <= 1; eos++) {
            small_vocab v;
            small_vocab_init(&v, "gpt2");
            v.bos = small_vocab_add(&v, "<b>", 3, 0);
            v.eos = small_vocab_add(&v, "<e>", 3, 0);
            v.add_bos = bos;
            v.add_eos = eos;
            tsr_tokenizer *t = small_vocab_tokenizer(&v);
            assert_int_equal(tsr_tokenizer_adds_bos(t), bos == 1);
            assert_int_equal(tsr_tokenizer_adds_eos(t), eos == 1);
            char expected[32];
            snprintf(expected, sizeof expected, "%sa%s", bos == 1 ? "<b> " : "", eos == 1 ? " <e>" : "");
            tokenizer_check(t, "a", TSR_ENCODE_ADD_SPECIAL, expected);
            tokenizer_check(t, "a", 0, "a");
            tsr_tokenizer_destroy(t);
            small_vocab_release(&v);
        }
}

static void control_tokens_are_recognised_on_request_only(void **state)
{
    (void)state;
    tsr_tokenizer *t = small_vocab_hello();
    tokenizer_check(t, "<|bos|>he<|eos|>", TSR_ENCODE_PARSE_SPECIAL, "<|bos|> he <|eos|>");
    tokenizer_check(t, "<|eos|>", 0, "< | e o s | >");
    tokenizer_check(t, "<|eot_id|>", TSR_ENCODE_PARSE_SPECIAL, "<|eot_id|>");
    tokenizer_check(t, "<|eot_id|>", 0, "< | e o t _ i d | >");
    tokenizer_check(t, "<|bos<|bos|>", TSR_ENCODE_PARSE_SPECIAL, "< | b o s <|bos|>");
    tsr_tokenizer_destroy(t);
}

static void user_defined_tokens_are_recognised_always(void **state)
{
    (void)state;
    tsr_tokenizer *t = small_vocab_hello();
    tokenizer_check(t, "he[tool]he", 0, "he [tool] he");
    tokenizer_check(t, "[tool]s [tool]", 0, "[tool]s Ġ [tool]"); /* the longest that fits */
    tokenizer_check(t, "[tool]", TSR_ENCODE_PARSE_SPECIAL, "[tool]");
    tokenizer_check(t, "[too", 0, "[ t o o");
    tsr_tokenizer_destroy(t);
}

static void special_tokens_have_their_kinds_and_texts(void **state)
{
    (void)state;
    tsr_tokenizer *t = small_vocab_hello();
    int32_t hello = tsr_tokenizer_find(t, "hello", 5), eos = tsr_tokenizer_find(t, "<|eos|>", 7);
    int32_t eot = tsr_tokenizer_find(t, "<|eot_id|>", 10), start = tsr_tokenizer_find(t, "<|start|>", 9);
    int32_t tool = tsr_tokenizer_find(t, "[tool]", 6), space_w = tsr_tokenizer_find(t, "Ġw", 3);

    assert_int_equal(tsr_tokenizer_n_vocab(t), 256 + 6 + 6);
    assert_int_equal(tsr_tokenizer_eos(t), eos);
    assert_int_equal(tsr_tokenizer_bos(t), tsr_tokenizer_find(t, "<|bos|>", 7));
    assert_int_equal(tsr_tokenizer_eot(t), TSR_TOKEN_NONE);
    assert_int_equal(tsr_tokenizer_eom(t), TSR_TOKEN_NONE);
    assert_int_equal(tsr_tokenizer_unk(t), TSR_TOKEN_NONE);
    assert_int_equal(tsr_tokenizer_pad(t), TSR_TOKEN_NONE);
    assert_true(tsr_tokenizer_is_eog(t, eos) && tsr_tokenizer_is_eog(t, eot));
    assert_false(tsr_tokenizer_is_eog(t, start) || tsr_tokenizer_is_eog(t, hello));
    assert_true(tsr_tokenizer_is_control(t, start) && tsr_tokenizer_is_control(t, eot));
    assert_false(tsr_tokenizer_is_control(t, hello) || tsr_tokenizer_is_control(t, tool));
    assert_memory_equal(tsr_tokenizer_piece(t, space_w).data, " w", 2);
    assert_int_equal(tsr_tokenizer_piece(t, space_w).bytes, 2);
    assert_int_equal(tsr_tokenizer_piece(t, eos).bytes, 0);
    assert_int_equal(tsr_tokenizer_find(t, "nothing", 7), TSR_TOKEN_NONE);
    assert_int_equal(tsr_tokenizer_find(t, "", 0), TSR_TOKEN_NONE);

    const int32_t outside[] = {-1, 268, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        assert_int_equal(tsr_tokenizer_piece(t, outside[i]).bytes, 0);
        assert_int_equal(tsr_tokenizer_token_text(t, outside[i]).bytes, 0);
        assert_false(tsr_tokenizer_is_eog(t, outside[i]) || tsr_tokenizer_is_control(t, outside[i]));
    }
    tsr_tokenizer_destroy(t);
    tsr_tokenizer_destroy(NULL);
}

static void llama3_takes_whole_words_before_merging(void **state)
{
    (void)state;
    small_vocab v;
    small_vocab_init(&v, "gpt2");
    small_vocab_merge(&v, "a", "b");
    small_vocab_add(&v, "abc", 1, 0); /* no merge leads here */
    small_vocab_add(&v, "xyz", 3, 0); /* a control token is no word */
    v.bos = small_vocab_add(&v, "<b>", 3, 0);
    tsr_tokenizer *gpt2 = small_vocab_tokenizer(&v);
    v.pre = "llama-bpe";
    tsr_tokenizer *llama3 = small_vocab_tokenizer(&v);
    tokenizer_check(gpt2, "abc", 0, "ab c");
    tokenizer_check(llama3, "abc", 0, "abc");
    tokenizer_check(llama3, "xyz", 0, "x y z");
    tokenizer_check(gpt2, "a", TSR_ENCODE_ADD_SPECIAL, "a");
    tokenizer_check(llama3, "a", TSR_ENCODE_ADD_SPECIAL, "<b> a"); /* adds BOS unless told not to */
    tsr_tokenizer_destroy(gpt2);
    tsr_tokenizer_destroy(llama3);
    small_vocab_release(&v);
}

static void a_byte_without_a_token_is_unknown_or_an_error(void **state)
{
    (void)state;
    small_vocab v;
    small_vocab_init(&v, "gpt2");
    free(v.tokens['q']);
    v.tokens['q'] = strdup("somethingelse");
    tsr_tokenizer *without = small_vocab_tokenizer(&v);
    v.unk = small_vocab_add(&v, "<unk>", 2, 0);
    tsr_tokenizer *with = small_vocab_tokenizer(&v);
    tokenizer_check(with, "aqa", 0, "a <unk> a");
    size_t n = 77;
    assert_int_equal(tsr_tokenizer_encode(without, "aqa", 3, 0, NULL, 0, &n), TSR_ERR_UNSUPPORTED);
    assert_int_equal(n, 77);
    assert_non_null(strstr(tsr_last_error(), "0x71"));
    tsr_tokenizer_destroy(without);
    tsr_tokenizer_destroy(with);
    small_vocab_release(&v);
}

/* SentencePiece: the higher score first, a space in front, byte tokens for what is missing. */
static void spm_init(small_vocab *v)
{
    small_vocab_init(v, "llama");
    small_vocab_add(v, "▁", 1, -10);
    small_vocab_add(v, "a", 1, -11);
    small_vocab_add(v, "b", 1, -12);
    small_vocab_add(v, "c", 1, -13);
    small_vocab_add(v, "s", 1, -14);
    small_vocab_add(v, ">", 1, -15);
    small_vocab_add(v, "<", 1, -16);
    small_vocab_add(v, "<s", 1, -17);
    small_vocab_add(v, "▁a", 1, -2);
    small_vocab_add(v, "ab", 1, -1);
    small_vocab_add(v, "bc", 1, -1);
    small_vocab_add(v, "▁▁", 1, -3);
}

static void sentencepiece_merges_by_score(void **state)
{
    (void)state;
    small_vocab v;
    spm_init(&v);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, "a", 0, "▁a");
    tokenizer_check(t, "ab", 0, "▁ ab");
    tokenizer_check(t, "abc", 0, "▁ ab c"); /* equal scores: from the left */
    tokenizer_check(t, "  a", 0, "▁▁ ▁a");
    tokenizer_check(t, "", 0, "");
    tokenizer_check(t, "é", 0, "▁ <0xC3> <0xA9>");
    tokenizer_check(t, "a", TSR_ENCODE_ADD_SPECIAL, "<s> ▁a");
    tokenizer_check(t, "<s>", 0, "▁ <s >"); /* never the control token by merging */
    tokenizer_check(t, "a<s>b", TSR_ENCODE_PARSE_SPECIAL, "▁a <s> ▁ b");
    v.add_space_prefix = 0;
    tsr_tokenizer *bare = small_vocab_tokenizer(&v);
    tokenizer_check(bare, "a", 0, "a");
    tsr_tokenizer_destroy(bare);
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

static void sentencepiece_decodes_without_the_space_it_added(void **state)
{
    (void)state;
    small_vocab v;
    spm_init(&v);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    const char *const texts[] = {"a", " a", "a b", "  ", "", "é<s>", "a\n\tb", "\xFF\xE2\x96", "<s>ab"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tokenizer_check_round_trip(t, texts[i], strlen(texts[i]), 0);
        tokenizer_check_round_trip(t, texts[i], strlen(texts[i]), TSR_ENCODE_ADD_SPECIAL);
    }

    char shown[64];
    size_t n;
    token_list tokens = tokenizer_encode_text(t, "a<s>b", TSR_ENCODE_ADD_SPECIAL | TSR_ENCODE_PARSE_SPECIAL);
    assert_int_equal(tsr_tokenizer_decode(t, tokens.at, tokens.n, TSR_DECODE_SHOW_SPECIAL, shown, 64, &n),
                     TSR_OK);
    assert_int_equal(n, strlen("<s>a<s>b"));
    assert_memory_equal(shown, "<s>a<s>b", n);
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

/* A token that reaches into the next word forbids treating words one by one. */
static void sentencepiece_merges_across_words_where_a_token_does(void **state)
{
    (void)state;
    small_vocab v;
    spm_init(&v);
    small_vocab_add(&v, "a▁", 1, -1.5f);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, "b a b", 0, "▁ b ▁ a▁ b");
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

static void arrays_that_are_too_small_are_refused(void **state)
{
    (void)state;
    tsr_tokenizer *t = small_vocab_hello();
    int32_t tokens[8];
    char text[8];
    size_t n = 77;
    assert_int_equal(tsr_tokenizer_encode(t, "abc", 3, 0, tokens, 2, &n), TSR_ERR_FULL);
    assert_non_null(strstr(tsr_last_error(), "3 tokens"));
    assert_int_equal(n, 77);
    assert_int_equal(tsr_tokenizer_encode(t, "abc", 3, 0, tokens, 3, &n), TSR_OK);
    assert_int_equal(tsr_tokenizer_decode(t, tokens, 3, 0, text, 2, &n), TSR_ERR_FULL);
    assert_non_null(strstr(tsr_last_error(), "3 bytes"));
    assert_int_equal(n, 3);
    tsr_tokenizer_destroy(t);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    tsr_tokenizer *t = small_vocab_hello(), *none = NULL;
    tsr_detokenizer *d = NULL;
    int32_t tokens[] = {'a', 268};
    size_t n = 77;
    assert_int_equal(tsr_tokenizer_encode(NULL, "a", 1, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_tokenizer_encode(t, NULL, 1, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_tokenizer_encode(t, "a", 1, 0, NULL, 0, NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_tokenizer_encode(t, "a", (size_t)1 << 30, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_tokenizer_decode(t, tokens, 2, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "tokens[1] is 268"));
    assert_int_equal(tsr_tokenizer_decode(NULL, tokens, 1, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_tokenizer_decode(t, NULL, 1, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_tokenizer_create(NULL, &none), TSR_ERR_INVALID);
    assert_int_equal(tsr_detokenizer_create(NULL, &d), TSR_ERR_INVALID);
    assert_int_equal(n, 77);
    assert_int_equal(tsr_tokenizer_encode(t, NULL, 0, 0, NULL, 0, &n), TSR_OK);
    assert_int_equal(n, 0);
    tsr_tokenizer_destroy(t);
}

static void check_push(tsr_detokenizer *d, int32_t token, const char *expected)
{
    tsr_bytes text = tsr_detokenizer_push(d, token);
    assert_int_equal(text.bytes, strlen(expected));
    assert_memory_equal(text.data, expected, text.bytes);
}

static void a_stream_gives_whole_characters_only(void **state)
{
    (void)state;
    tsr_tokenizer *t = small_vocab_hello();
    tsr_detokenizer *d;
    assert_int_equal(tsr_detokenizer_create(t, &d), TSR_OK);
    check_push(d, tsr_tokenizer_find(t, "hello", 5), "hello");
    check_push(d, tsr_tokenizer_find(t, "Ġw", 3), " w");
    const unsigned char llama[] = {0xF0, 0x9F, 0xA6, 0x99};
    for (int i = 0; i < 3; i++)
        check_push(d, llama[i], "");
    check_push(d, tsr_tokenizer_eos(t), ""); /* nothing, and does not disturb */
    check_push(d, -5, "");
    check_push(d, llama[3], "\xF0\x9F\xA6\x99");

    check_push(d, 0xFF, "\xEF\xBF\xBD"); /* part of no character */
    check_push(d, 0xE2, "");
    check_push(d, 'a',
               "\xEF\xBF\xBD"
               "a"); /* a beginning that was not continued */
    check_push(d, 0xF0, "");
    check_push(d, 0x9F, "");
    tsr_bytes rest = tsr_detokenizer_finish(d);
    assert_int_equal(rest.bytes, 6);
    assert_memory_equal(rest.data, "\xEF\xBF\xBD\xEF\xBF\xBD", 6);
    assert_int_equal(tsr_detokenizer_finish(d).bytes, 0);
    check_push(d, 'b', "b");
    tsr_detokenizer_destroy(d);
    tsr_detokenizer_destroy(NULL);
    tsr_tokenizer_destroy(t);
}

typedef struct thread_work {
    const tsr_tokenizer *tokenizer;
    token_list result;
} thread_work;

static void *encode_in_thread(void *arg)
{
    thread_work *work = arg;
    for (int i = 0; i < 20; i++)
        if (tsr_tokenizer_encode(work->tokenizer, "hello world [tool] 123 \xFF", 24, 0, work->result.at,
                                 TOKEN_LIST_MAX, &work->result.n) != TSR_OK)
            work->result.n = 0;
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    static thread_work work[THREADS];
    pthread_t threads[THREADS];
    tsr_tokenizer *t = small_vocab_hello();
    token_list expected = tokenizer_encode_bytes(t, "hello world [tool] 123 \xFF", 24, 0);
    for (int i = 0; i < THREADS; i++) {
        work[i].tokenizer = t;
        assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, &work[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(work[i].result.n, expected.n);
        assert_memory_equal(work[i].result.at, expected.at, expected.n * sizeof *expected.at);
    }
    tsr_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_make_tokens_of_bytes),
        cmocka_unit_test(lower_ranks_merge_first_and_equal_ones_from_the_left),
        cmocka_unit_test(bos_and_eos_are_added_where_the_model_asks),
        cmocka_unit_test(control_tokens_are_recognised_on_request_only),
        cmocka_unit_test(user_defined_tokens_are_recognised_always),
        cmocka_unit_test(special_tokens_have_their_kinds_and_texts),
        cmocka_unit_test(llama3_takes_whole_words_before_merging),
        cmocka_unit_test(a_byte_without_a_token_is_unknown_or_an_error),
        cmocka_unit_test(sentencepiece_merges_by_score),
        cmocka_unit_test(sentencepiece_decodes_without_the_space_it_added),
        cmocka_unit_test(sentencepiece_merges_across_words_where_a_token_does),
        cmocka_unit_test(arrays_that_are_too_small_are_refused),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(a_stream_gives_whole_characters_only),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
