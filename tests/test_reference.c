/* Logits against an independent computation: a double-precision forward pass over the stored weights, and the
 * logits of another engine, both recorded for several models (../shared/ref/README.md). Skips where they are
 * missing.
 *
 * Bound: ||a - exact|| / ||exact|| <= max(2e-3, 1.1 x the other engine's own error). The greedy token must be
 * the exact one wherever its margin over the runner-up exceeds twice the largest error seen (each of the two
 * may be off by it). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/runner.h"

#define REF "../shared/ref/"

enum { N_FORCED = 32, MAX_IDS = 1024, N_PROMPTS = 3 };

typedef struct reference {
    int32_t ids[MAX_IDS];
    int n_ids;
    int32_t greedy[N_FORCED];       /* forced after the prompt */
    int64_t exact_argmax[N_FORCED]; /* at each of those steps */
    double exact_margin[N_FORCED];
    float *exact[2], *engine[2]; /* logits after the prompt, and after the forced tokens */
} reference;

static float *read_logits(const char *prefix, const char *suffix, int64_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", prefix, suffix);
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    float *logits = malloc((size_t)n * sizeof(float));
    assert_non_null(logits);
    assert_int_equal(fread(logits, sizeof(float), (size_t)n, file), n);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    return logits;
}

static FILE *open_text(const char *prefix, const char *suffix)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", prefix, suffix);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s is missing", path);
    return file;
}

static void read_reference(const char *prefix, int64_t n_vocab, reference *ref)
{
    static const char *const suffixes[2][2] = {{".exact.f32", ".logits.f32"},
                                               {".exact32.f32", ".logits32.f32"}};
    FILE *file = open_text(prefix, ".ids");
    for (ref->n_ids = 0; ref->n_ids < MAX_IDS && fscanf(file, "%d", &ref->ids[ref->n_ids]) == 1;)
        ref->n_ids++;
    fclose(file);
    file = open_text(prefix, ".greedy");
    for (int i = 0; i < N_FORCED; i++)
        assert_int_equal(fscanf(file, "%d %*f %*d %*f", &ref->greedy[i]), 1);
    fclose(file);
    file = open_text(prefix, ".exact_tf");
    for (int i = 0; i < N_FORCED; i++)
        assert_int_equal(fscanf(file, "%ld %lf", &ref->exact_argmax[i], &ref->exact_margin[i]), 2);
    fclose(file);
    for (int k = 0; k < 2; k++) {
        ref->exact[k] = read_logits(prefix, suffixes[k][0], n_vocab);
        ref->engine[k] = read_logits(prefix, suffixes[k][1], n_vocab);
        assert_non_null(ref->exact[k]);
    }
}

static double relative_error(const float *a, const float *exact, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - exact[i]) * ((double)a[i] - exact[i]);
        norm += (double)exact[i] * exact[i];
    }
    return sqrt(difference / norm);
}

static double largest_error(const float *a, const float *exact, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)a[i] - exact[i]));
    return largest;
}

/* Prompt, then the forced tokens one by one; compare at both ends and every argmax on the way. */
static void check_prompt(runner *r, const char *prefix)
{
    reference ref = {0};
    read_reference(prefix, r->n_vocab, &ref);
    float *logits = malloc((size_t)r->n_vocab * sizeof(float));
    int64_t argmax[N_FORCED];
    double largest = 0;
    assert_non_null(logits);
    runner_ok(tsr_session_trim(r->session, 0, 0), "trim");
    runner_decode(r, ref.ids, ref.n_ids, 0, false, logits);
    for (int k = 0; k < 2; k++) {
        double error = relative_error(logits, ref.exact[k], r->n_vocab);
        double engine = ref.engine[k] ? relative_error(ref.engine[k], ref.exact[k], r->n_vocab) : 0;
        print_message("%s %s: error %.2e, other engine %.2e\n", prefix + strlen(REF),
                      k ? "after 32" : "prompt", error, engine);
        assert_true(error <= fmax(2e-3, 1.1 * engine));
        largest = fmax(largest, largest_error(logits, ref.exact[k], r->n_vocab));
        for (int i = 0; k == 0 && i < N_FORCED; i++) {
            argmax[i] = runner_argmax(logits, r->n_vocab);
            runner_decode(r, &ref.greedy[i], 1, 0, false, logits);
        }
    }
    for (int i = 0; i < N_FORCED; i++)
        if (ref.exact_margin[i] > 2 * largest)
            assert_int_equal(argmax[i], ref.exact_argmax[i]);
    free(logits);
    for (int k = 0; k < 2; k++) {
        free(ref.exact[k]);
        free(ref.engine[k]);
    }
}

static void check_model(const char *model_path, const char *name, const char *devices, const char *split)
{
    if (access(model_path, R_OK) != 0) {
        print_message("skipped: %s is missing\n", model_path);
        skip();
    }
    runner r;
    runner_open(&r, model_path, devices, split, NULL);
    for (int p = 0; p < N_PROMPTS; p++) {
        char prefix[256];
        snprintf(prefix, sizeof prefix, REF "%s.p%d", name, p);
        check_prompt(&r, prefix);
    }
    runner_close(&r);
}

#define MODEL_TEST(function, name, devices, split)           \
    static void function(void **state)                       \
    {                                                        \
        (void)state;                                         \
        check_model(REF name ".gguf", name, devices, split); \
    }

MODEL_TEST(f16_with_tied_output_and_rope_factors, "nano-l31-F16", "host:3,threads=1", "2,1,3")
MODEL_TEST(f16_without_grouped_queries, "nano-mha-F16", "host:2,threads=1", "3,1")
MODEL_TEST(bf16, "nano-mha-BF16", "host:2,threads=1", "1,1")
MODEL_TEST(q6_k_with_q8_0_down, "nano-mha-Q6_K", "host:2,threads=1", "1,2")
MODEL_TEST(trained_q4_0, "glossary-7m-Q4_0", "host:2,threads=1", "1,1")
MODEL_TEST(trained_q4_k, "glossary-7m-Q4_K_M", "host:2,threads=1", "1,1")
MODEL_TEST(trained_q5_k, "glossary-7m-Q5_K_M", "host:2,threads=1", "1,1")

static void trained_q8_0(void **state)
{
    (void)state;
    check_model("../shared/model/glossary-7m-Q8_0.gguf", "glossary-7m-Q8_0", "host:2,threads=1", "3,1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_with_tied_output_and_rope_factors),
        cmocka_unit_test(f16_without_grouped_queries),
        cmocka_unit_test(bf16),
        cmocka_unit_test(q6_k_with_q8_0_down),
        cmocka_unit_test(trained_q8_0),
        cmocka_unit_test(trained_q4_0),
        cmocka_unit_test(trained_q4_k),
        cmocka_unit_test(trained_q5_k),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
