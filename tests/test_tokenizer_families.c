/* What families of models want beyond the common rules: raw text under BPE, special tokens that take white
 * space along, and which tokens end an answer. */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <tsr/tokenizer.h>

#include "support/small_vocab.h"
#include "support/tokenizer_check.h"

/* BPE over characters with '▁' for ' ', and byte tokens for what is not there. */
static void gemma4_vocab(small_vocab *v)
{
    static const char *const characters[] = {"a", "b", "c", "▁", "é", "\n"};
    small_vocab_init(v, "gemma4");
    v->n_scores = 0;
    v->has_merges = true;
    v->bos = small_vocab_find(v, "<s>");
    for (size_t i = 0; i < sizeof characters / sizeof *characters; i++)
        small_vocab_add(v, characters[i], 1, 0);
    small_vocab_merge(v, "▁", "a");
    small_vocab_merge(v, "▁a", "b");
    small_vocab_merge(v, "b", "▁a");
    small_vocab_add(v, "\n\n", 1, 0); /* no merge makes it */
    v->n_scores = 0;
}

static void raw_text_merges_over_marked_spaces(void **state)
{
    (void)state;
    small_vocab v;
    gemma4_vocab(&v);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, "a ab", 0, "a ▁ab");
    tokenizer_check(t, "b a", 0, "b▁a");
    tokenizer_check(t, "é a", 0, "é ▁a");
    tokenizer_check(t, "x a", 0, "<0x78> ▁a");
    tokenizer_check(t, "a\n\nb", 0, "a \n\n b");
    tokenizer_check(t, "a\n\n\n", 0, "a \n \n \n");
    tokenizer_check(t, "a", TSR_ENCODE_ADD_SPECIAL, "<s> a"); /* asked for by the family */
    tokenizer_check_round_trip(t, " a  b\n\n é x\xFF", 13, 0);
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

static void wordpieces_are_the_longest_that_fit(void **state)
{
    (void)state;
    static const char *const pieces[] = {"▁hel", "▁hello", "lo", "l", "▁e", "▁!", "▁中", "▁ᄒ", "ᅡ", "ᆫ"};
    small_vocab v;
    small_vocab_init(&v, "bert");
    v.unk = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        small_vocab_add(&v, pieces[i], 1, 0);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    tokenizer_check(t, "  hello hell\n", 0, "▁hello ▁hel l");
    tokenizer_check(t, "HÉLlo!", 0, "▁hello ▁!");
    tokenizer_check(t, "e\xCC\x81", 0, "▁e");                  /* the accent as a character of its own */
    tokenizer_check(t, "hel\xE2\x80\x8Blo \x01", 0, "▁hello"); /* characters that are not seen */
    tokenizer_check(t, "e中e", 0, "▁e ▁中 ▁e");
    tokenizer_check(t, "한", 0, "▁ᄒ ᅡ ᆫ");
    tokenizer_check(t, "hellox e", 0, "<unk> ▁e"); /* not a word in part */
    tokenizer_check(t, "", 0, "");
    char text[16];
    size_t bytes;
    token_list tokens = tokenizer_encode_text(t, "Hello e!", 0);
    assert_int_equal(tsr_tokenizer_decode(t, tokens.at, tokens.n, 0, text, sizeof text, &bytes), TSR_OK);
    assert_int_equal(bytes, 9);
    assert_memory_equal(text, "hello e !", 9);
    assert_true(tsr_tokenizer_adds_bos(t) && tsr_tokenizer_adds_eos(t));
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

static void phi3_takes_white_space_behind_its_special_tokens_along(void **state)
{
    (void)state;
    for (int named = 0; named < 2; named++) {
        small_vocab v;
        small_vocab_init(&v, "llama");
        v.name = named ? "Phi3 mini" : "another";
        v.add_space_prefix = 0;
        small_vocab_add(&v, "<|user|>", 3, 0);
        small_vocab_add(&v, "a", 1, 0);
        tsr_tokenizer *t = small_vocab_tokenizer(&v);
        tokenizer_check(t, "<|user|>\na", TSR_ENCODE_PARSE_SPECIAL,
                        named ? "<|user|> a" : "<|user|> <0x0A> a");
        tokenizer_check(t, "<s>\na", TSR_ENCODE_PARSE_SPECIAL, "<s> <0x0A> a"); /* not this one */
        tsr_tokenizer_destroy(t);
        small_vocab_release(&v);
    }
}

/* A vocabulary with these tokens, all control tokens. */
static tsr_tokenizer *with_controls(const char *const *names, size_t n)
{
    small_vocab v;
    small_vocab_init(&v, "gpt2");
    for (size_t i = 0; i < n; i++)
        small_vocab_add(&v, names[i], 3, 0);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    small_vocab_release(&v);
    return t;
}

static bool ends(const tsr_tokenizer *t, const char *name)
{
    int32_t id = tsr_tokenizer_find(t, name, strlen(name));
    assert_int_not_equal(id, TSR_TOKEN_NONE);
    return tsr_tokenizer_is_eog(t, id);
}

static void every_familys_end_of_an_answer_is_known(void **state)
{
    (void)state;
    static const char *const names[] = {
        "<|eot_id|>",    "<|eom_id|>",     "<|im_end|>", "<|end|>", "<end_of_turn>",
        "<|endoftext|>", "</s>",           "[EOT]",      "<turn|>", "<｜end▁of▁sentence｜>",
        "[e~[",          "<|end_of_text|>"};
    enum { N = sizeof names / sizeof *names };
    tsr_tokenizer *t = with_controls(names, N);
    for (size_t i = 0; i < N; i++)
        assert_true(ends(t, names[i]));
    tsr_tokenizer_destroy(t);
}

static void the_end_of_a_message_is_not_the_end_of_an_answer(void **state)
{
    (void)state;
    static const char *const gpt_oss[] = {"<|end|>", "<|return|>", "<|call|>", "<|start|>"};
    tsr_tokenizer *t = with_controls(gpt_oss, 4);
    assert_false(ends(t, "<|end|>"));
    assert_true(ends(t, "<|return|>") && ends(t, "<|call|>"));
    assert_false(ends(t, "<|start|>"));
    tsr_tokenizer_destroy(t);
}

/* Gemma's vocabulary has HTML's tag for struck-out text. */
static void a_tag_is_not_the_end_of_an_answer(void **state)
{
    (void)state;
    small_vocab v;
    small_vocab_init(&v, "gpt2");
    small_vocab_add(&v, "</s>", 4, 0);
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    assert_false(ends(t, "</s>"));
    tokenizer_check(t, "a</s>", 0, "a </s>");
    tsr_tokenizer_destroy(t);
    small_vocab_release(&v);
}

static void a_file_without_a_vocabulary_says_so(void **state)
{
    (void)state;
    small_vocab v;
    tsr_tokenizer *t = NULL;
    small_vocab_init(&v, "gpt2");
    v.model = "no_vocab";
    tsr_gguf *gguf = small_vocab_gguf(&v);
    assert_int_equal(tsr_tokenizer_create(gguf, &t), TSR_ERR_NOT_FOUND);
    assert_non_null(strstr(tsr_last_error(), "without a vocabulary"));
    tsr_gguf_close(gguf);
    small_vocab_release(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_text_merges_over_marked_spaces),
        cmocka_unit_test(wordpieces_are_the_longest_that_fit),
        cmocka_unit_test(phi3_takes_white_space_behind_its_special_tokens_along),
        cmocka_unit_test(every_familys_end_of_an_answer_is_known),
        cmocka_unit_test(the_end_of_a_message_is_not_the_end_of_an_answer),
        cmocka_unit_test(a_tag_is_not_the_end_of_an_answer),
        cmocka_unit_test(a_file_without_a_vocabulary_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
