/* tsr embed: its numbers are those of the library, for every split and pooling; and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include <tsr/tsr.h>

#include "support/directory.h"
#include "support/edited_model.h"
#include "support/program_json.h"
#include "support/runner.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"
#define TEXT  "lighthouse (n.): a tower with a light"
#define EMBED "embed -m " MODEL " -p '" TEXT "' "

enum { MOST_TOKENS = 32, MOST_EMBD = 1024 };

static float rows[MOST_TOKENS][MOST_EMBD];
static int64_t n_tokens, n_embd;
static tsr_plan_device planned;

static int compute(void **state)
{
    (void)state;
    static float packed[MOST_TOKENS * MOST_EMBD];
    int32_t tokens[MOST_TOKENS];
    bool all[MOST_TOKENS];
    size_t n;
    runner r;
    tsr_model_info info;
    tsr_tokenizer *tokenizer;
    tsr_model_config config = tsr_model_config_default();
    config.output.embeddings = true;
    runner_open(&r, MODEL, "host:1,threads=1", NULL, &config);
    tsr_model_get_info(r.model, &info);
    runner_ok(tsr_plan_get_device(tsr_model_plan(r.model), 0, &planned), "plan");
    runner_ok(tsr_model_tokenizer(r.model, &tokenizer), "tokenizer");
    runner_ok(
        tsr_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), TSR_ENCODE_ADD_SPECIAL, tokens, MOST_TOKENS, &n),
        "encode");
    tsr_tokenizer_destroy(tokenizer);
    assert_in_range(n, 4, MOST_TOKENS);
    assert_in_range(info.n_embd, 1, MOST_EMBD);
    memset(all, true, sizeof all);
    const tsr_batch batch = {.n_tokens = (int64_t)n, .tokens = tokens, .outputs = all};
    runner_ok(tsr_session_decode_embeddings(r.session, &batch, packed), "embed");
    n_tokens = (int64_t)n;
    n_embd = info.n_embd;
    for (int64_t t = 0; t < n_tokens; t++)
        memcpy(rows[t], packed + t * n_embd, (size_t)n_embd * sizeof(float));
    runner_close(&r);
    return 0;
}

/* Whether array `at` of the embeddings has the bits of row[n_embd] / norm. */
static void check_row(const json_t *root, size_t at, const float *row, double norm)
{
    const json_t *array = json_array_get(json_object_get(root, "embeddings"), at);
    assert_int_equal(json_array_size(array), n_embd);
    for (int64_t i = 0; i < n_embd; i++) {
        const double value = json_real_value(json_array_get(array, (size_t)i));
        assert_true(value == (double)(float)((double)row[i] / norm));
    }
}

static void embeddings_are_those_of_the_library(void **state)
{
    (void)state;
    static const char *const ways[] = {"--devices host:1,threads=1",
                                       "--devices host:2,threads=1 -ts 3,1 -b 4"};
    float mean[MOST_EMBD];
    double squares = 0;
    for (int64_t i = 0; i < n_embd; i++) {
        double sum = 0;
        for (int64_t t = 0; t < n_tokens; t++)
            sum += (double)rows[t][i];
        mean[i] = (float)(sum / (double)n_tokens);
        squares += (double)mean[i] * (double)mean[i];
    }
    for (int w = 0; w < 2; w++) {
        char line[512];
        snprintf(line, sizeof line, EMBED "%s", ways[w]);
        json_t *last = program_json(line);
        assert_string_equal(json_string_value(json_object_get(last, "pooling")), "last");
        assert_int_equal(program_json_integer(last, "n_tokens"), n_tokens);
        assert_int_equal(json_array_size(json_object_get(last, "embeddings")), 1);
        check_row(last, 0, rows[n_tokens - 1], 1);
        json_decref(last);
        snprintf(line, sizeof line, EMBED "--pooling mean --normalize %s", ways[w]);
        json_t *normalized = program_json(line);
        check_row(normalized, 0, mean, sqrt(squares));
        json_decref(normalized);
    }
    json_t *all = program_json(EMBED "--pooling none --devices host:1,threads=1");
    assert_int_equal(json_array_size(json_object_get(all, "embeddings")), n_tokens);
    for (int64_t t = 0; t < n_tokens; t++)
        check_row(all, (size_t)t, rows[t], 1);
    json_decref(all);
}

/* With logits the arena would have a row of them. */
static void bytes_are_planned_before(void **state)
{
    (void)state;
    json_t *root = program_json("plan -m " MODEL " --devices host:1,threads=1 --embeddings --json");
    const json_t *bytes = json_object_get(json_array_get(json_object_get(root, "devices"), 0), "bytes");
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        assert_int_equal(program_json_integer(bytes, tsr_memory_owner_name((tsr_memory_owner)o)),
                         planned.bytes[o]);
    json_decref(root);
    root = program_json("plan -m " MODEL " --devices host:1,threads=1 --json");
    bytes = json_object_get(json_array_get(json_object_get(root, "devices"), 0), "bytes");
    assert_int_not_equal(program_json_integer(bytes, "arena"), planned.bytes[TSR_MEMORY_ARENA]);
    json_decref(root);
}

static void mistakes_have_a_sentence(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"embed -p x", 2, "no model given; use -m FILE"},
        {EMBED "-f file", 2, "-p and -f exclude each other"},
        {EMBED "--pooling cls", 2, "--pooling takes none, mean or last"},
        {"embed -m " MODEL " --mpi", 2, "only one process has standard input"},
        {"embed -m " MODEL " -f no-such-file", 1, "no-such-file"},
        {EMBED "-c 2 --devices host:1,threads=1", 1, "larger n_ctx"},
        {"run --embedding", 2, "tsr embed"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

/* The model's file names the pooling of the first token. */
static void a_pooling_that_is_not_computed_is_named(void **state)
{
    (void)state;
    const edit edits[MAX_EDITS] = {{"llama.pooling_type", U32, 2}};
    char line[512], text[1024];
    edited_model_write(directory_file("model"), edits);
    snprintf(line, sizeof line, "embed -p x --devices host:1,threads=1 -m %s", directory_file("model"));
    program_check(line, 1, "llama.pooling_type is 2, which is not computed", text, sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_are_those_of_the_library),
        cmocka_unit_test(a_pooling_that_is_not_computed_is_named),
        cmocka_unit_test(bytes_are_planned_before),
        cmocka_unit_test(mistakes_have_a_sentence),
    };
    return cmocka_run_group_tests(tests, compute, NULL);
}
