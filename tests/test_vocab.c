/* Vocabularies that cannot be: each is refused with the key and the place, and memory that runs out is
 * survived. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <tsr/tokenizer.h>

#include "support/failing_alloc.h"
#include "support/small_vocab.h"

static void replace(char **text, const char *with)
{
    free(*text);
    *text = strdup(with);
}

/* One way of breaking a good vocabulary, and what the message must say. */
typedef struct fault {
    const char *model;
    void (*breaks)(small_vocab *v);
    tsr_status status;
    const char *says[2];
} fault;

static void no_model(small_vocab *v)
{
    v->model = NULL;
}

static void odd_model(small_vocab *v)
{
    v->model = "rwkv";
}

static void odd_pre(small_vocab *v)
{
    v->pre = "klingon";
}

static void no_tokens(small_vocab *v)
{
    v->has_tokens = false;
}

static void repeated_token(small_vocab *v)
{
    small_vocab_add(v, "<0x07>", 1, 0);
    small_vocab_add(v, "<0x07>", 1, 0);
}

static void few_types(small_vocab *v)
{
    v->n_types = 100;
}

static void odd_type(small_vocab *v)
{
    v->types[5] = 7;
}

static void negative_type(small_vocab *v)
{
    v->types[6] = -1;
}

static void odd_byte_token(small_vocab *v)
{
    replace(&v->tokens[13], "<0xGG>");
}

static void no_merges(small_vocab *v)
{
    v->has_merges = false;
}

static void merge_without_space(small_vocab *v)
{
    replace(&v->merges[1], "ab");
}

static void merge_of_unknown_left(small_vocab *v)
{
    replace(&v->merges[1], "zz a");
}

static void merge_of_unknown_right(small_vocab *v)
{
    replace(&v->merges[0], "a zz");
}

static void merge_into_unknown(small_vocab *v)
{
    replace(&v->merges[1], "x y");
}

static void empty_merge(small_vocab *v)
{
    replace(&v->merges[1], "");
}

static void overlong_merge(small_vocab *v)
{
    replace(&v->merges[1], "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa a");
}

static void no_scores(small_vocab *v)
{
    v->n_scores = 0;
}

static void few_scores(small_vocab *v)
{
    v->n_scores = 200;
}

static void score_not_a_number(small_vocab *v)
{
    v->scores[77] = NAN;
}

static void bos_outside(small_vocab *v)
{
    v->bos = 1000000;
}

static void eos_outside(small_vocab *v)
{
    v->eos = (int64_t)v->n_tokens;
}

static void eot_outside(small_vocab *v)
{
    v->eot = UINT32_MAX;
}

static void unk_outside(small_vocab *v)
{
    v->unk = 5000;
}

static void bos_wanted_but_missing(small_vocab *v)
{
    v->add_bos = 1;
}

static void eos_wanted_but_missing(small_vocab *v)
{
    v->add_eos = 1;
}

static const fault faults[] = {
    {"gpt2", no_model, TSR_ERR_NOT_FOUND, {"tokenizer.ggml.model"}},
    {"gpt2", odd_model, TSR_ERR_UNSUPPORTED, {"\"rwkv\"", "gpt2 llama gemma4 bert t5"}},
    {"gpt2", odd_pre, TSR_ERR_UNSUPPORTED, {"\"klingon\"", "llama-bpe"}},
    {"gpt2", no_tokens, TSR_ERR_FORMAT, {"tokenizer.ggml.tokens"}},
    {"gpt2", repeated_token, TSR_ERR_FORMAT, {"tokenizer.ggml.tokens[259]", "258"}},
    {"gpt2", few_types, TSR_ERR_FORMAT, {"tokenizer.ggml.token_type", "100"}},
    {"gpt2", odd_type, TSR_ERR_FORMAT, {"tokenizer.ggml.token_type[5]", "7"}},
    {"llama", negative_type, TSR_ERR_FORMAT, {"tokenizer.ggml.token_type[6]", "-1"}},
    {"llama", odd_byte_token, TSR_ERR_FORMAT, {"tokenizer.ggml.tokens[13]"}},
    {"gpt2", no_merges, TSR_ERR_FORMAT, {"tokenizer.ggml.merges"}},
    {"gpt2", merge_without_space, TSR_ERR_FORMAT, {"tokenizer.ggml.merges[1]"}},
    {"gpt2", merge_of_unknown_left, TSR_ERR_FORMAT, {"tokenizer.ggml.merges[1]", "left"}},
    {"gpt2", merge_of_unknown_right, TSR_ERR_FORMAT, {"tokenizer.ggml.merges[0]", "right"}},
    {"gpt2", merge_into_unknown, TSR_ERR_FORMAT, {"tokenizer.ggml.merges[1]", "its result"}},
    {"gpt2", empty_merge, TSR_ERR_FORMAT, {"tokenizer.ggml.merges[1]"}},
    {"gpt2", overlong_merge, TSR_ERR_FORMAT, {"tokenizer.ggml.merges[1]"}},
    {"llama", no_scores, TSR_ERR_FORMAT, {"tokenizer.ggml.scores"}},
    {"llama", few_scores, TSR_ERR_FORMAT, {"tokenizer.ggml.scores", "200"}},
    {"llama", score_not_a_number, TSR_ERR_FORMAT, {"tokenizer.ggml.scores[77]"}},
    {"gpt2", bos_outside, TSR_ERR_FORMAT, {"tokenizer.ggml.bos_token_id", "1000000"}},
    {"gpt2", eos_outside, TSR_ERR_FORMAT, {"tokenizer.ggml.eos_token_id", "258"}},
    {"llama", eot_outside, TSR_ERR_FORMAT, {"tokenizer.ggml.eot_token_id", "4294967295"}},
    {"llama", unk_outside, TSR_ERR_FORMAT, {"tokenizer.ggml.unknown_token_id", "5000"}},
    {"gpt2", bos_wanted_but_missing, TSR_ERR_FORMAT, {"tokenizer.ggml.add_bos_token", "bos_token_id"}},
    {"gpt2", eos_wanted_but_missing, TSR_ERR_FORMAT, {"tokenizer.ggml.add_eos_token", "eos_token_id"}},
};

static void good_vocab(small_vocab *v, const char *model)
{
    small_vocab_init(v, model);
    if (!strcmp(model, "gpt2")) {
        small_vocab_merge(v, "a", "b");
        small_vocab_merge(v, "ab", "c");
    } else {
        small_vocab_add(v, "▁", 1, -1);
        small_vocab_add(v, "▁a", 1, -2);
    }
}

static void contradictions_are_refused_with_key_and_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        small_vocab v;
        tsr_tokenizer *tokenizer = NULL;
        good_vocab(&v, faults[i].model);
        faults[i].breaks(&v);
        tsr_gguf *gguf = small_vocab_gguf(&v);
        tsr_status status = tsr_tokenizer_create(gguf, &tokenizer);
        const char *said = tsr_last_error();
        if (status != faults[i].status || tokenizer)
            fail_msg("fault %zu: status %s: %s", i, tsr_status_name(status), said);
        for (int j = 0; j < 2; j++)
            if (faults[i].says[j] && !strstr(said, faults[i].says[j]))
                fail_msg("fault %zu: '%s' does not say '%s'", i, said, faults[i].says[j]);
        tsr_gguf_close(gguf);
        small_vocab_release(&v);
    }
}

static void padding_and_keys_without_effect_are_accepted(void **state)
{
    (void)state;
    small_vocab v;
    good_vocab(&v, "gpt2");
    v.pad = 123456; /* nothing depends on it */
    v.n_types = 0;  /* all normal */
    v.pre = NULL;   /* "default" */
    small_vocab_merge(&v, "b", "d");
    small_vocab_merge(&v, "a", "b"); /* again: the first one counts */
    small_vocab_add(&v, "", 1, 0);   /* padding */
    small_vocab_add(&v, "", 1, 0);
    small_vocab_add(&v, "plain words", 1, 0); /* not in byte-level spelling */
    v.n_types = 0;
    tsr_tokenizer *tokenizer = small_vocab_tokenizer(&v);
    assert_int_equal(tsr_tokenizer_pad(tokenizer), TSR_TOKEN_NONE);
    tsr_bytes piece = tsr_tokenizer_piece(tokenizer, (int32_t)v.n_tokens - 1);
    assert_int_equal(piece.bytes, 11);
    assert_memory_equal(piece.data, "plain words", 11);
    assert_int_equal(tsr_tokenizer_piece(tokenizer, (int32_t)v.n_tokens - 2).bytes, 0);
    int32_t id = 0;
    size_t n;
    assert_int_equal(tsr_tokenizer_encode(tokenizer, "abc", 3, 0, &id, 1, &n), TSR_OK);
    assert_int_equal(id, 257);
    int32_t pair[2];
    assert_int_equal(tsr_tokenizer_encode(tokenizer, "abd", 3, 0, pair, 2, &n), TSR_OK);
    assert_int_equal(pair[0], 256); /* "ab", not "a" and "bd" */
    tsr_tokenizer_destroy(tokenizer);
    small_vocab_release(&v);
}

/* Everything in the life of a tokenizer, stopping at the first failure. */
static tsr_status live(const tsr_gguf *gguf, const char *text, size_t bytes)
{
    tsr_tokenizer *tokenizer = NULL;
    tsr_detokenizer *detokenizer = NULL;
    size_t n = 77;
    tsr_status status = tsr_tokenizer_create(gguf, &tokenizer);
    if (status == TSR_OK) {
        status = tsr_tokenizer_encode(tokenizer, text, bytes, TSR_ENCODE_ADD_SPECIAL, NULL, 0, &n);
        assert_true((status == TSR_OK) == (n != 77));
    } else {
        assert_null(tokenizer);
    }
    if (status == TSR_OK) {
        status = tsr_detokenizer_create(tokenizer, &detokenizer);
        assert_true((status == TSR_OK) == (detokenizer != NULL));
    }
    tsr_detokenizer_destroy(detokenizer);
    tsr_tokenizer_destroy(tokenizer);
    return status;
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    enum { BYTES = 20000 }; /* enough for the cache of words */
    static char text[BYTES];
    memset(text, 'a', BYTES);
    memset(text, ' ', BYTES / 2);
    for (int kind = 0; kind < 2; kind++) {
        small_vocab v;
        good_vocab(&v, kind ? "llama" : "gpt2");
        if (!kind) {
            v.pre = "llama-bpe";
            v.bos = 0;
        }
        tsr_gguf *gguf = small_vocab_gguf(&v);
        bool fired = true;
        int n_failed = 0;
        for (int n = 1; fired; n++) {
            int64_t blocks = failing_alloc_live();
            failing_alloc_set(n);
            tsr_status status = live(gguf, text, BYTES);
            fired = failing_alloc_fired();
            failing_alloc_set(0);
            assert_true(status == TSR_ERR_MEMORY || status == TSR_OK);
            if (!fired)
                assert_int_equal(status, TSR_OK);
            n_failed += status != TSR_OK;
            assert_int_equal(failing_alloc_live(), blocks);
        }
        assert_true(n_failed > 10);
        tsr_gguf_close(gguf);
        small_vocab_release(&v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contradictions_are_refused_with_key_and_place),
        cmocka_unit_test(padding_and_keys_without_effect_are_accepted),
        cmocka_unit_test(every_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
