/* Speed of the tokenizer: encoding and decoding in MB/s, on prose and on texts that are hard to merge.
 *
 *     build/bench/tokenizer MODEL.gguf [TEXT_FILE]
 *
 * Without TEXT_FILE the prose is made of the vocabulary's own words, drawn with a fixed seed. Each text is
 * encoded several times; the median and the fastest and slowest of the runs are printed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/tokenizer.h>

#include "support/measured.h"
#include "support/opened.h"

enum { TEXT_BYTES = 1 << 20, RUNS = 7 };

static uint32_t next_random(uint32_t *state) /* Numerical Recipes' linear congruential generator */
{
    return *state = *state * 1664525u + 1013904223u;
}

/* Words of the vocabulary, commoner (lower) ids more often, as merges are learned in the order of
 * frequency. */
static size_t make_prose(const tsr_tokenizer *tokenizer, char *text, size_t bytes)
{
    uint32_t state = 1;
    size_t n = 0;
    while (n < bytes) {
        double u = (next_random(&state) >> 8) * 0x1p-24;
        int32_t id = (int32_t)(u * u * u * tsr_tokenizer_n_vocab(tokenizer));
        tsr_bytes piece = tsr_tokenizer_piece(tokenizer, id);
        if (piece.bytes < 2 || piece.data[0] != ' ')
            continue;
        size_t take = piece.bytes < bytes - n ? piece.bytes : bytes - n;
        memcpy(text + n, piece.data, take);
        n += take;
    }
    return n;
}

static size_t read_text(const char *path, char *text, size_t bytes)
{
    FILE *in = fopen(path, "rb");
    if (!in) {
        perror(path);
        exit(1);
    }
    size_t n = fread(text, 1, bytes, in);
    fclose(in);
    return n;
}

static void report(const char *what, size_t bytes, double seconds[RUNS])
{
    double mb = (double)bytes / 1e6, middle = bench_median(seconds, RUNS);
    printf("  %-28s %8.1f MB/s   (%.1f .. %.1f)\n", what, mb / middle, mb / seconds[RUNS - 1],
           mb / seconds[0]);
}

static void measure(const tsr_tokenizer *tokenizer, const char *name, const char *text, size_t bytes)
{
    static int32_t tokens[4 * TEXT_BYTES];
    static char back[2 * TEXT_BYTES];
    double encode[RUNS], decode[RUNS];
    size_t n = 0, n_bytes = 0;

    for (int run = -1; run < RUNS; run++) { /* the first one warms up */
        double begin = bench_now();
        bench_check(tsr_tokenizer_encode(tokenizer, text, bytes, 0, tokens, 4 * TEXT_BYTES, &n));
        double middle = bench_now();
        bench_check(tsr_tokenizer_decode(tokenizer, tokens, n, 0, back, sizeof back, &n_bytes));
        if (run >= 0) {
            encode[run] = middle - begin;
            decode[run] = bench_now() - middle;
        }
    }
    if (n_bytes != bytes || memcmp(text, back, bytes)) {
        fprintf(stderr, "%s does not come back from decoding\n", name);
        exit(1);
    }
    printf("%s: %zu bytes, %zu tokens\n", name, bytes, n);
    report("encode", bytes, encode);
    report("decode", bytes, decode);
}

int main(int argc, char **argv)
{
    static char text[TEXT_BYTES];
    tsr_gguf *gguf;
    tsr_tokenizer *tokenizer;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s MODEL.gguf [TEXT_FILE]\n", argv[0]);
        return 2;
    }
    bench_check(tsr_gguf_open(argv[1], NULL, &gguf));
    double begin = bench_now();
    bench_check(tsr_tokenizer_create(gguf, &tokenizer));
    printf("%s: %d tokens, loaded in %.1f ms\n", argv[1], tsr_tokenizer_n_vocab(tokenizer),
           1e3 * (bench_now() - begin));
    tsr_gguf_close(gguf);

    size_t bytes =
        argc == 3 ? read_text(argv[2], text, sizeof text) : make_prose(tokenizer, text, sizeof text);
    measure(tokenizer, argc == 3 ? argv[2] : "prose", text, bytes);

    uint32_t state = 1;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + (next_random(&state) >> 16) % 26);
    measure(tokenizer, "random letters, no spaces", text, sizeof text);
    memset(text, 'a', sizeof text);
    measure(tokenizer, "one letter, no spaces", text, sizeof text);
    memset(text, ' ', sizeof text);
    measure(tokenizer, "spaces", text, sizeof text);
    tsr_tokenizer_destroy(tokenizer);
    return 0;
}
