/* Properties of the tokenizer, on random and on extreme input. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <tsr/tokenizer.h>

#include "support/small_vocab.h"
#include "support/tokenizer_check.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocab.h"

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* The rule in its plainest form, on texts: until nothing merges, find the best pair of neighbours, leftmost
 * first. `cost` is the rank of a merge or minus the score of what it makes; lower is better. */
static void naive_merge(char parts[][64], size_t *n,
                        double (*cost)(const small_vocab *, const char *, const char *), const small_vocab *v)
{
    for (;;) {
        size_t best = *n;
        double best_cost = DBL_MAX;
        for (size_t i = 0; i + 1 < *n; i++) {
            double c = cost(v, parts[i], parts[i + 1]);
            if (c < best_cost) {
                best = i;
                best_cost = c;
            }
        }
        if (best == *n)
            return;
        char joined[64];
        snprintf(joined, sizeof joined, "%.31s%.31s", parts[best], parts[best + 1]);
        strcpy(parts[best], joined);
        memmove(parts[best + 1], parts[best + 2], (*n - best - 2) * sizeof *parts);
        --*n;
    }
}

static double merge_cost(const small_vocab *v, const char *left, const char *right)
{
    char text[160];
    snprintf(text, sizeof text, "%s %s", left, right);
    for (size_t i = 0; i < v->n_merges; i++)
        if (!strcmp(v->merges[i], text))
            return (double)i;
    return DBL_MAX;
}

static double score_cost(const small_vocab *v, const char *left, const char *right)
{
    char text[160];
    snprintf(text, sizeof text, "%s%s", left, right);
    int32_t id = small_vocab_find(v, text);
    return id < 0 ? DBL_MAX : -v->scores[id];
}

/* Random merges over three letters, random words: the heap and the naive loop agree. */
static void merging_agrees_with_the_naive_loop(void **state)
{
    (void)state;
    uint32_t random = 7;
    for (int round = 0; round < 40; round++) {
        bool spm = round % 2;
        small_vocab v;
        small_vocab_init(&v, spm ? "llama" : "gpt2");
        size_t first = spm ? v.n_tokens : 'a';
        for (const char *c = "abc"; spm && *c; c++)
            small_vocab_add(&v, (char[]){*c, 0}, 1, -100);
        for (int i = 0; i < 25; i++) {
            size_t n_made = spm ? v.n_tokens - first : 3 + v.n_tokens - 256;
            size_t pick[2];
            for (int j = 0; j < 2; j++) {
                size_t k = next_random(&random) % n_made;
                pick[j] = spm || k < 3 ? first + k : 256 + k - 3;
            }
            char text[160];
            snprintf(text, sizeof text, "%s%s", v.tokens[pick[0]], v.tokens[pick[1]]);
            if (strlen(text) > 12)
                continue;
            if (!spm)
                small_vocab_merge(&v, v.tokens[pick[0]], v.tokens[pick[1]]);
            else if (small_vocab_find(&v, text) < 0)
                small_vocab_add(&v, text, 1, -(float)(next_random(&random) % 10));
        }
        v.add_space_prefix = 0;
        tsr_tokenizer *t = small_vocab_tokenizer(&v);
        for (int word = 0; word < 30; word++) {
            char text[49] = "", parts[48][64], expected[256] = "";
            size_t n = 1 + next_random(&random) % 48;
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + next_random(&random) % 3);
                snprintf(parts[i], sizeof parts[i], "%c", text[i]);
            }
            naive_merge(parts, &n, spm ? score_cost : merge_cost, &v);
            for (size_t i = 0, used = 0; i < n; i++)
                used +=
                    (size_t)snprintf(expected + used, sizeof expected - used, "%s%s", i ? " " : "", parts[i]);
            tokenizer_check(t, text, 0, expected);
        }
        tsr_tokenizer_destroy(t);
        small_vocab_release(&v);
    }
}

/* Any bytes at all come back, whatever they look like. */
static void random_bytes_come_back(void **state)
{
    (void)state;
    static const char *const bits[] = {
        "\xE2\x96\x81", "\xF0\x9F\xA6\x99", " ",    "  ", "hello",    "\n",    "[tool]", "<|bos|>",
        "\xC4\xA0",     "\xED\xA0\x80",     "1234", "'s", "\xE2\x80", "<0x0A>"};
    uint32_t random = 99;
    small_vocab v;
    small_vocab_init(&v, "llama");
    small_vocab_add(&v, "▁", 1, -1);
    tsr_tokenizer *both[] = {small_vocab_hello(), small_vocab_tokenizer(&v)};
    for (int round = 0; round < 600; round++) {
        char text[600];
        size_t n = 0, want = next_random(&random) % 500;
        while (n < want) {
            if (next_random(&random) % 3) {
                text[n++] = (char)next_random(&random);
            } else {
                const char *bit = bits[next_random(&random) % (sizeof bits / sizeof *bits)];
                memcpy(text + n, bit, strlen(bit));
                n += strlen(bit);
            }
        }
        tokenizer_check_round_trip(both[0], text, n, TSR_ENCODE_ADD_SPECIAL);
        /* SentencePiece cannot tell a '▁' in the text from a space: it writes both the same. */
        for (size_t i = 0; i + 3 <= n; i++)
            if (!memcmp(text + i, "\xE2\x96\x81", 3))
                text[i] = '?';
        tokenizer_check_round_trip(both[1], text, n, TSR_ENCODE_ADD_SPECIAL);
    }
    tsr_tokenizer_destroy(both[0]);
    tsr_tokenizer_destroy(both[1]);
    small_vocab_release(&v);
}

static void check_long_text(const tsr_tokenizer *t)
{
    static char text[40000];
    static int32_t parts[TOKEN_LIST_MAX];
    static const char *const words[] = {"hello", "he",          "world",  "x",
                                        "é",     "\xFF",        "[tool]", "helloworldhelloworldhello",
                                        "or",    "hellhellhell"};
    uint32_t random = 5;
    size_t n = 0, n_parts = 0, begin = 0;

    while (n < sizeof text - 64) {
        const char *word = words[next_random(&random) % (sizeof words / sizeof *words)];
        memcpy(text + n, word, strlen(word));
        n += strlen(word);
        if (next_random(&random) % 8)
            continue;
        text[n++] = '\n'; /* merges with nothing here, so lines are independent */
        token_list line = tokenizer_encode_bytes(t, text + begin, n - begin, 0);
        memcpy(parts + n_parts, line.at, line.n * sizeof *parts);
        n_parts += line.n;
        begin = n;
    }
    token_list whole = tokenizer_encode_bytes(t, text, begin, 0);
    assert_int_equal(whole.n, n_parts);
    assert_memory_equal(whole.at, parts, n_parts * sizeof *parts);
}

/* A long text, which goes through the cache of words, gives what its lines give one by one; so do words with
 * bytes that have no token, which the cache does not keep. */
static void a_long_text_gives_what_its_parts_give(void **state)
{
    (void)state;
    tsr_tokenizer *hello = small_vocab_hello();
    check_long_text(hello);
    tsr_tokenizer_destroy(hello);

    small_vocab v;
    small_vocab_init(&v, "gpt2");
    small_vocab_merge(&v, "h", "e");
    free(v.tokens['x']);
    v.tokens['x'] = strdup("somethingelse");
    v.unk = small_vocab_add(&v, "<unk>", 2, 0);
    tsr_tokenizer *unknown = small_vocab_tokenizer(&v);
    check_long_text(unknown);
    tsr_tokenizer_destroy(unknown);
    small_vocab_release(&v);
}

static void a_megabyte_without_spaces_is_encoded(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    small_vocab v, w;
    small_vocab_init(&v, "gpt2");
    small_vocab_init(&w, "llama");
    small_vocab_add(&w, "a", 1, -9);
    char text[256] = "a";
    for (int i = 0; i < 6; i++) { /* aa, aaaa, ... */
        char twice[512];
        small_vocab_merge(&v, text, text);
        snprintf(twice, sizeof twice, "%s%s", text, text);
        small_vocab_add(&w, twice, 1, -(float)i);
        strcpy(text, twice);
    }
    char *as = malloc(BYTES);
    memset(as, 'a', BYTES);
    size_t n;
    tsr_tokenizer *bpe = small_vocab_tokenizer(&v), *spm = small_vocab_tokenizer(&w);
    assert_int_equal(tsr_tokenizer_encode(bpe, as, BYTES, 0, NULL, 0, &n), TSR_OK);
    assert_int_equal(n, BYTES / 64);
    assert_int_equal(tsr_tokenizer_encode(spm, as, BYTES, 0, NULL, 0, &n), TSR_OK);
    assert_int_equal(n, 3 + BYTES / 64); /* the added '▁' is no token here, but three bytes */
    free(as);
    tsr_tokenizer_destroy(bpe);
    tsr_tokenizer_destroy(spm);
    small_vocab_release(&v);
    small_vocab_release(&w);
}

/* The longest token of the types that the text begins with, by trying all of them. */
static int32_t naive_special(const tsr_vocab *vocab, const char *text, size_t bytes, unsigned types)
{
    int32_t best = TSR_TOKEN_NONE;
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        const tsr_vocab_token *token = &vocab->tokens[id];
        if (tsr_vocab_is(vocab, id, types) && token->text_bytes > 0 && token->text_bytes <= bytes &&
            memcmp(vocab->bytes + token->text, text, token->text_bytes) == 0 &&
            (best == TSR_TOKEN_NONE || token->text_bytes > vocab->tokens[best].text_bytes))
            best = id;
    }
    return best;
}

static void the_longest_special_token_is_found(void **state)
{
    (void)state;
    static const int32_t types[] = {1, 3, 3, 4};
    uint32_t seed = 5;
    for (int round = 0; round < 200; round++) {
        char text[64];
        small_vocab v;
        small_vocab_init(&v, "gpt2");
        for (int i = 0; i < 60; i++) { /* of two letters, so that many begin with others */
            int length = 2 + (int)(next_random(&seed) % (i % 2 ? 4 : 20));
            for (int k = 0; k < length; k++)
                text[k] = next_random(&seed) % 4 ? 'a' : 'b';
            text[length] = '\0';
            if (small_vocab_find(&v, text) < 0)
                small_vocab_add(&v, text, types[next_random(&seed) % 4], 0);
        }
        tsr_tokenizer *t = small_vocab_tokenizer(&v);
        for (int i = 0; i < 200; i++) {
            static const unsigned masks[] = {TSR_TOKEN_SPECIAL_TYPES,
                                             TSR_TOKEN_TYPE_BIT(TSR_TOKEN_USER_DEFINED)};
            size_t bytes = 1 + next_random(&seed) % 30;
            for (size_t k = 0; k < bytes; k++)
                text[k] = next_random(&seed) % 5 ? 'a' : 'b';
            for (int m = 0; m < 2; m++)
                assert_int_equal(tsr_vocab_find_special(t->vocab, text, bytes, masks[m]),
                                 naive_special(t->vocab, text, bytes, masks[m]));
        }
        tsr_tokenizer_destroy(t);
        small_vocab_release(&v);
    }
}

/* First tokens that begin like the text at every place and are not in it, then tokens of which each begins
 * with all shorter ones. */
static void special_tokens_cost_little_in_a_megabyte(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20, N = 10000, LONGEST = 1000, LIMIT_SECONDS = 60 };
    small_vocab *v = malloc(sizeof *v);
    char *text = malloc(BYTES);
    char token[LONGEST + 8];
    for (int nested = 0; nested < 2; nested++) {
        size_t n;
        small_vocab_init(v, "gpt2");
        memset(token, 'a', sizeof token);
        for (int i = 0; i < (nested ? LONGEST : N); i++) {
            char *end = token + 1 + i % LONGEST;
            snprintf(end, 6, nested ? "a" : "!%02d", i / LONGEST);
            small_vocab_add(v, token, nested && i == 0 ? 4 : 3, 0);
            memset(end, 'a', 6);
        }
        tsr_tokenizer *t = small_vocab_tokenizer(v);
        for (int i = 0; i < BYTES; i++)
            text[i] = nested && i % 3 == 0 ? 'b' : 'a';
        clock_t began = clock();
        assert_int_equal(tsr_tokenizer_encode(t, text, BYTES, TSR_ENCODE_PARSE_SPECIAL, NULL, 0, &n), TSR_OK);
        print_message("%zu tokens, %.2f s\n", n, (double)(clock() - began) / CLOCKS_PER_SEC);
        assert_int_equal(n, nested ? 2 * (BYTES / 3) + 1 : BYTES);
        assert_true(clock() - began < LIMIT_SECONDS * (clock_t)CLOCKS_PER_SEC);
        tsr_tokenizer_destroy(t);
        small_vocab_release(v);
    }
    free(text);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_agrees_with_the_naive_loop),
        cmocka_unit_test(random_bytes_come_back),
        cmocka_unit_test(a_long_text_gives_what_its_parts_give),
        cmocka_unit_test(a_megabyte_without_spaces_is_encoded),
        cmocka_unit_test(the_longest_special_token_is_found),
        cmocka_unit_test(special_tokens_cost_little_in_a_megabyte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
