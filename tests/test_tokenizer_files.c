/* The tokenizer against other engines' results: the vocabularies and ids in ../shared/ref. Skips without
 * them. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <tsr/tokenizer.h>

static const char hello[] = "Hello, world! The quick brown fox jumps over 13 lazy dogs.";

/* A file's contents, NUL-terminated; NULL if there is none. */
static char *read_file(const char *path, size_t *bytes_out)
{
    FILE *in = fopen(path, "rb");
    if (!in)
        return NULL;
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    long bytes = ftell(in);
    rewind(in);
    char *data = malloc((size_t)bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)bytes, in), bytes);
    fclose(in);
    data[bytes] = '\0';
    *bytes_out = (size_t)bytes;
    return data;
}

static tsr_tokenizer *open_tokenizer(const char *path)
{
    tsr_gguf *gguf = NULL;
    tsr_tokenizer *tokenizer = NULL;
    if (tsr_gguf_open(path, NULL, &gguf) != TSR_OK || tsr_tokenizer_create(gguf, &tokenizer) != TSR_OK)
        fail_msg("%s: %s", path, tsr_last_error());
    tsr_gguf_close(gguf);
    return tokenizer;
}

/* Encodes and compares with the numbers in `expected` (up to a newline if one_line); if `and_back`, decodes
 * and compares with the text. */
static void check(const tsr_tokenizer *tokenizer, const char *text, size_t bytes, unsigned flags,
                  const char *expected, bool one_line, bool and_back)
{
    size_t n, decoded_bytes;
    assert_int_equal(tsr_tokenizer_encode(tokenizer, text, bytes, flags, NULL, 0, &n), TSR_OK);
    int32_t *tokens = calloc(n + 1, sizeof *tokens);
    assert_int_equal(tsr_tokenizer_encode(tokenizer, text, bytes, flags, tokens, n, &n), TSR_OK);

    const char *at = expected;
    for (size_t i = 0; i <= n; i++) {
        at += strspn(at, one_line ? " " : " \n");
        if (i == n) {
            if (*at && *at != '\n')
                fail_msg("'%.*s': more than %zu tokens expected", (int)bytes, text, n);
            break;
        }
        char *end = NULL;
        long id = *at == '\n' ? -1 : strtol(at, &end, 10);
        if (*at == '\n' || end == at || id != tokens[i])
            fail_msg("'%.*s': token %zu is %d, expected %ld", (int)bytes, text, i, tokens[i], id);
        at = end;
    }

    if (!and_back) {
        free(tokens);
        return;
    }
    char *decoded = malloc(bytes + 1);
    assert_int_equal(tsr_tokenizer_decode(tokenizer, tokens, n, 0, decoded, bytes, &decoded_bytes), TSR_OK);
    assert_int_equal(decoded_bytes, bytes);
    assert_memory_equal(decoded, text, bytes);
    free(decoded);
    free(tokens);
}

/* Whether text survives the way there and back: not where the vocabulary folds case or accents. */
static bool is_lossless(const char *path)
{
    tsr_gguf *gguf = NULL;
    tsr_gguf_string model;
    assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_OK);
    assert_int_equal(tsr_gguf_get_string(gguf, "tokenizer.ggml.model", &model), TSR_OK);
    bool folds = (model.bytes == 4 && !memcmp(model.data, "bert", 4)) ||
                 (model.bytes == 2 && !memcmp(model.data, "t5", 2));
    tsr_gguf_close(gguf);
    return !folds;
}

/* A vocabulary, with inputs in .inp separated by marker lines and a line of ids for each in .out. Returns
 * how many there are; 0 where one of the files is missing. */
static size_t check_vocabulary(const char *path)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char beside[1024];
    size_t in_bytes, out_bytes, n = 0;

    snprintf(beside, sizeof beside, "%s.inp", path);
    char *in = read_file(beside, &in_bytes);
    snprintf(beside, sizeof beside, "%s.out", path);
    char *out = read_file(beside, &out_bytes);
    if (in && out) {
        bool lossless = is_lossless(path);
        tsr_tokenizer *tokenizer = open_tokenizer(path);
        const char *line = out;
        print_message("%s\n", path);
        for (const char *text = in, *end; (end = strstr(text, separator)) != NULL; n++) {
            check(tokenizer, text, (size_t)(end - text), TSR_ENCODE_PLAIN, line, true, lossless);
            text = end + strlen(separator);
            line += strcspn(line, "\n") + 1;
        }
        assert_int_equal((size_t)(line - out), out_bytes); /* as many lines as texts */
        tsr_tokenizer_destroy(tokenizer);
    }
    free(out);
    free(in);
    return n;
}

static void vocabularies_give_the_known_ids(void **state)
{
    (void)state;
    glob_t found;
    size_t n = 0;
    if (glob("../shared/ref/vocab/*.gguf", 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            n += check_vocabulary(found.gl_pathv[i]);
        globfree(&found);
    }
    if (n == 0) {
        print_message("skipped: ../shared/ref/vocab/*.gguf are missing, or their .inp and .out\n");
        skip();
    }
}

static void reference_prompts_give_the_known_ids(void **state)
{
    (void)state;
    glob_t found;
    if (glob("../shared/ref/*.p0.ids", 0, NULL, &found) != 0) {
        print_message("skipped: ../shared/ref/*.p0.ids is missing\n");
        skip();
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char model[512];
        size_t bytes;
        char *ids = read_file(found.gl_pathv[i], &bytes);
        int base = (int)(strlen(found.gl_pathv[i]) - strlen(".p0.ids"));
        snprintf(model, sizeof model, "%.*s.gguf", base, found.gl_pathv[i]);
        FILE *there = fopen(model, "rb");
        if (there)
            fclose(there);
        else /* the one that is not beside its ids */
            snprintf(model, sizeof model, "../shared/model/glossary-7m-Q8_0.gguf");
        tsr_tokenizer *tokenizer = open_tokenizer(model);
        check(tokenizer, hello, strlen(hello), TSR_ENCODE_ADD_SPECIAL, ids, false, true);
        tsr_tokenizer_destroy(tokenizer);
        free(ids);
    }
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocabularies_give_the_known_ids),
        cmocka_unit_test(reference_prompts_give_the_known_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
