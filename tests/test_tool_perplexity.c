/* tsr perplexity: its figures against sums in double over the library's logits, computed token by token; the
 * same figures for every split; texts and references that it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include <tsr/runtime.h>
#include <tsr/session.h>
#include <tsr/tokenizer.h>

#include "support/directory.h"
#include "support/program_json.h"
#include "support/synth_model.h"

#define MODEL      "examples/models/glossary-7m-Q8_0.gguf"
#define PERPLEXITY "perplexity -m " MODEL " "
#define TEXT                                                                                         \
    "lighthouse (n.): a tower with a light that gives warning of shoals to passing ships. Also: "    \
    "beacon, pharos.<|eos|><|bos|>to whittle (v.): cut small bits or pare shavings from; \"whittle " \
    "a piece of wood\". Also: pare.<|eos|><|bos|>gloss (n.): an explanation of an obscure word in a text."

enum { CHUNK = 24, MOST_TOKENS = 512 };

/* -- the figures, from the library -- */

typedef struct figures {
    int64_t n;
    double loss, reference_loss, kl[MOST_TOKENS];
    int64_t n_same;
} figures;

static size_t encode(const tsr_model *model, int32_t *tokens)
{
    size_t n;
    tsr_tokenizer *tokenizer;
    assert_int_equal(tsr_model_tokenizer(model, &tokenizer), TSR_OK);
    assert_int_equal(tsr_tokenizer_encode(tokenizer, TEXT, strlen(TEXT),
                                          TSR_ENCODE_ADD_SPECIAL | TSR_ENCODE_PARSE_SPECIAL, tokens,
                                          MOST_TOKENS, &n),
                     TSR_OK);
    tsr_tokenizer_destroy(tokenizer);
    assert_in_range(n, 3 * CHUNK, MOST_TOKENS);
    return n;
}

/* log p of every entry of the vocabulary, after each token of a chunk: at[token][entry]. */
static void log_probabilities(tsr_session *session, const int32_t *tokens, int64_t n_vocab, double *at)
{
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    for (int i = 0; i < CHUNK; i++, at += n_vocab) {
        long double sum = 0;
        const tsr_batch batch = {.n_tokens = 1, .tokens = &tokens[i]};
        assert_int_equal(tsr_session_decode(session, &batch, logits), TSR_OK);
        for (int64_t v = 0; v < n_vocab; v++)
            sum += expl(logits[v]);
        for (int64_t v = 0; v < n_vocab; v++)
            at[v] = (double)(logits[v] - logl(sum));
    }
    assert_int_equal(tsr_session_trim(session, 0, 0), TSR_OK);
    free(logits);
}

static int64_t top_of(const double *p, int64_t n)
{
    int64_t top = 0;
    for (int64_t i = 1; i < n; i++)
        top = p[i] > p[top] ? i : top;
    return top;
}

static void count(figures *f, const double *p, const double *r, int64_t n_vocab, int32_t token)
{
    double kl = 0;
    for (int64_t v = 0; v < n_vocab; v++)
        kl += exp(r[v]) * (r[v] - p[v]);
    f->loss -= p[token];
    f->reference_loss -= r[token];
    f->n_same += top_of(p, n_vocab) == top_of(r, n_vocab);
    f->kl[f->n++] = kl;
}

/* Of the model with activations of 8 bits, compared with itself with 16. */
static figures compute(void)
{
    figures f = {0};
    int32_t tokens[MOST_TOKENS];
    tsr_runtime *rt;
    tsr_model *models[2];
    tsr_session *sessions[2];
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_model_info info;
    runtime_config.devices = "host:1,threads=1";
    assert_int_equal(tsr_runtime_open(&runtime_config, &rt), TSR_OK);
    for (int s = 0; s < 2; s++) {
        config.compute.activation_bits = s ? 16 : 8;
        assert_int_equal(tsr_model_open(rt, MODEL, &config, &models[s]), TSR_OK);
        assert_int_equal(tsr_session_create(models[s], &sessions[s]), TSR_OK);
    }
    tsr_model_get_info(models[0], &info);
    const size_t n = encode(models[0], tokens), row = (size_t)info.n_vocab;
    double *at[2] = {malloc(CHUNK * row * sizeof(double)), malloc(CHUNK * row * sizeof(double))};
    for (size_t begin = 0; begin + CHUNK <= n; begin += CHUNK) {
        tokens[begin] = 0; /* <|bos|> */
        for (int s = 0; s < 2; s++)
            log_probabilities(sessions[s], tokens + begin, info.n_vocab, at[s]);
        for (size_t i = CHUNK / 2 + 1; i < CHUNK; i++)
            count(&f, at[0] + (i - 1) * row, at[1] + (i - 1) * row, info.n_vocab, tokens[begin + i]);
    }
    for (int s = 0; s < 2; s++) {
        free(at[s]);
        tsr_session_destroy(sessions[s]);
        tsr_model_close(models[s]);
    }
    tsr_runtime_close(rt);
    return f;
}

/* -- the command -- */

static double real_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is no number", key);
    return json_number_value(value);
}

#define NEAR(value, expected) check_near(#value, value, expected)

static void check_near(const char *what, double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%s is %.17g, not %.17g", what, value, expected);
}

static json_t *measure(const char *options)
{
    static char line[1024];
    directory_write("text", TEXT, strlen(TEXT));
    snprintf(line, sizeof line, PERPLEXITY "-f %s --parse-special -c %d --reference %s --json %s",
             directory_file("text"), CHUNK, MODEL, options);
    return program_json(line);
}

static void figures_are_those_of_the_logits(void **state)
{
    (void)state;
    const figures f = compute();
    json_t *root = measure("--activations 8 --devices host:1,threads=1");
    const json_t *reference = json_object_get(root, "reference");
    double sum = 0, largest = 0;
    for (int64_t i = 0; i < f.n; i++) {
        sum += f.kl[i];
        largest = fmax(largest, f.kl[i]);
    }
    assert_true(largest > 0);
    assert_true(f.n > 0 && f.n < 100); /* so the 99th percentile is the largest */
    assert_int_equal(program_json_integer(root, "counted_tokens"), f.n);
    assert_int_equal(program_json_integer(root, "chunk_tokens"), CHUNK);
    assert_int_equal(program_json_integer(root, "activation_bits"), 8);
    NEAR(real_of(root, "perplexity"), exp(f.loss / (double)f.n));
    NEAR(real_of(reference, "perplexity"), exp(f.reference_loss / (double)f.n));
    NEAR(real_of(reference, "same_top"), (double)f.n_same / (double)f.n);
    assert_true(fabs(real_of(reference, "kl") - sum / (double)f.n) <= 1e-12);
    assert_true(fabs(real_of(reference, "kl_99") - largest) <= 1e-12);
    json_decref(root);
}

static void figures_do_not_depend_on_split_or_batches(void **state)
{
    (void)state;
    static const char *const ways[] = {"--devices host:3,threads=1 -ts 2,1,1 --activations 8",
                                       "--devices host:2,threads=1 -sm layer -b 5 --activations 8"};
    json_t *first = measure("--activations 8");
    json_object_del(first, "seconds");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        json_t *root = measure(ways[i]);
        json_object_del(root, "seconds");
        assert_true(json_equal(root, first));
        json_decref(root);
    }
    json_decref(first);
}

static void a_model_does_not_diverge_from_itself(void **state)
{
    (void)state;
    json_t *root = measure("");
    const json_t *reference = json_object_get(root, "reference");
    assert_true(real_of(reference, "kl") == 0 && real_of(reference, "kl_99") == 0);
    assert_true(real_of(reference, "same_top") == 1);
    json_decref(root);
}

/* The whole text where it is shorter than a chunk, of which a text of two tokens is the shortest. */
static void short_texts_are_one_chunk(void **state)
{
    (void)state;
    static char line[512];
    static const struct {
        const char *text;
        int n_tokens, n_counted;
    } cases[] = {{"a", 2, 1}, {" of the of", 4, 1}, {" of the of the", 5, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        directory_write("short", cases[i].text, strlen(cases[i].text));
        snprintf(line, sizeof line, PERPLEXITY "-f %s --json", directory_file("short"));
        json_t *root = program_json(line);
        assert_int_equal(program_json_integer(root, "chunk_tokens"), cases[i].n_tokens);
        assert_int_equal(program_json_integer(root, "counted_tokens"), cases[i].n_counted);
        assert_null(json_object_get(root, "reference"));
        json_decref(root);
    }
}

static void text_output_has_the_figures(void **state)
{
    (void)state;
    char text[4096];
    program_check("perplexity -m " MODEL " --reference " MODEL " < README.md", 0,
                  "same most likely token: 100.00 %", text, sizeof text);
    assert_non_null(strstr(text, "chunks of 256, "));
    assert_non_null(strstr(text, "\nperplexity "));
}

static void mistakes_get_one_line_and_an_exit_code(void **state)
{
    (void)state;
    static char other[512], model[256];
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    snprintf(model, sizeof model, "%s", directory_file("other.gguf"));
    synth_model_write(&config, model);
    snprintf(other, sizeof other, PERPLEXITY "-f README.md --reference %s", model);
    const program_case cases[] = {
        {"perplexity -f README.md", 2, "no model given"},
        {PERPLEXITY "< /dev/null", 1, "tsr perplexity: the text has 1 token; a prediction takes two"},
        {PERPLEXITY "-f /nope.txt", 1, "tsr perplexity: cannot read the text from /nope.txt: No such file"},
        {PERPLEXITY "-f .", 1, "cannot read the text from .: Is a directory"},
        {PERPLEXITY "-f /nope.txt -c 1", 2, "a chunk of one token predicts none; use -c 2 or more"},
        {PERPLEXITY "-f README.md --reference /nope.gguf", 1, "cannot open '/nope.gguf'"},
        {PERPLEXITY "-f README.md --reference LICENSE", 1, "not a GGUF file"},
        {other, 1, "the vocabulary is not that of the model; give the same model with other weights"},
        {PERPLEXITY "-f README.md --activations 4", 2, "--activations takes a whole number from 8 to 16"},
        {PERPLEXITY "-f README.md --devices host:2,mem=1MiB", 3, "bytes"},
        {PERPLEXITY "--mpi", 2, "with --mpi only one process has standard input; give the text with -f"},
        {PERPLEXITY "-f README.md --fit-ctx 64", 2, "--fit-ctx, --fit-kv and --fit-margin need --fit"},
        {PERPLEXITY "-f README.md -c 64 --json > /dev/full 2> /dev/null", 1, ""},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

/* As files have it whose embedding has more rows than the tokenizer has tokens, or fewer. */
static void logits_need_not_be_as_many_as_tokens(void **state)
{
    (void)state;
    enum { N_TOKENS = 512, N_BYTE_TOKENS = 260 };
    static const struct {
        const char *name;
        int n_vocab;
    } models[] = {{"same.gguf", N_TOKENS}, {"more.gguf", N_TOKENS + 4096}, {"fewer.gguf", N_BYTE_TOKENS}};
    static char lines[4][1024], text[256], pair[256];
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    char path[3][256];
    config.n_tokens = N_TOKENS;
    for (int i = 0; i < 3; i++) {
        config.n_vocab = models[i].n_vocab;
        snprintf(path[i], sizeof path[i], "%s", directory_file(models[i].name));
        synth_model_write(&config, path[i]);
    }
    directory_write("bytes", "a b a b", 7);
    snprintf(text, sizeof text, "%s", directory_file("bytes"));
    directory_write("pair", "ab", 2); /* a token above those of bytes, which only predictions need */
    snprintf(pair, sizeof pair, "%s", directory_file("pair"));
    snprintf(lines[0], sizeof lines[0], "perplexity -m %s -f %s --reference %s", path[0], text, path[1]);
    snprintf(lines[1], sizeof lines[1], "perplexity -m %s -f %s --reference %s", path[1], text, path[0]);
    snprintf(lines[2], sizeof lines[2], "perplexity -m %s -f %s --reference %s", path[1], text, path[1]);
    snprintf(lines[3], sizeof lines[3], "perplexity -m %s -c 2 -f %s", path[2], pair);
    const program_case cases[] = {
        {lines[0], 1,
         ": 4608 logits per token, but 512 in the model; give the same model with other weights"},
        {lines[1], 1,
         ": 512 logits per token, but 4608 in the model; give the same model with other weights"},
        {lines[2], 0, "same most likely token: 100.00 %"},
        {lines[3], 1,
         ": token 261 of the text has no logit, the model has 260; give a file whose tokenizer is"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_the_logits),
        cmocka_unit_test(figures_do_not_depend_on_split_or_batches),
        cmocka_unit_test(a_model_does_not_diverge_from_itself),
        cmocka_unit_test(short_texts_are_one_chunk),
        cmocka_unit_test(text_output_has_the_figures),
        cmocka_unit_test(logits_need_not_be_as_many_as_tokens),
        cmocka_unit_test(mistakes_get_one_line_and_an_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
