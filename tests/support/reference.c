/* See reference.h. */
#include "support/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
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

double reference_relative_error(const float *a, const float *exact, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - exact[i]) * ((double)a[i] - exact[i]);
        norm += (double)exact[i] * exact[i];
    }
    return sqrt(difference / norm);
}

double reference_largest_error(const float *a, const float *exact, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)a[i] - exact[i]));
    return largest;
}

/* The prompt at once, then the forced tokens; compare at both ends and every argmax on the way. */
static void check_prompt(runner *r, const char *name, int prompt, int64_t chunk, double times_engine)
{
    char prefix[128];
    reference ref = {0};
    snprintf(prefix, sizeof prefix, REF "%s.p%d", name, prompt);
    read_reference(prefix, r->n_vocab, &ref);
    float *logits = malloc((size_t)((N_FORCED + 1) * r->n_vocab) * sizeof(float));
    double largest = 0;
    assert_non_null(logits);
    runner_ok(tsr_session_trim(r->session, 0, 0), "trim");
    runner_decode(r, ref.ids, ref.n_ids, 0, false, logits);
    runner_decode(r, ref.greedy, N_FORCED, chunk, true, logits + r->n_vocab);
    for (int k = 0; k < 2; k++) {
        const float *mine = logits + (k ? N_FORCED * r->n_vocab : 0);
        double error = reference_relative_error(mine, ref.exact[k], r->n_vocab);
        double engine = ref.engine[k] ? reference_relative_error(ref.engine[k], ref.exact[k], r->n_vocab) : 0;
        print_message("%s.p%d %s: error %.2e, other engine %.2e\n", name, prompt, k ? "after 32" : "prompt",
                      error, engine);
        assert_true(error <= fmax(2e-3, times_engine * engine));
        largest = fmax(largest, reference_largest_error(mine, ref.exact[k], r->n_vocab));
    }
    for (int i = 0; i < N_FORCED; i++)
        if (ref.exact_margin[i] > 2 * largest)
            assert_int_equal(runner_argmax(logits + i * r->n_vocab, r->n_vocab), ref.exact_argmax[i]);
    free(logits);
    for (int k = 0; k < 2; k++) {
        free(ref.exact[k]);
        free(ref.engine[k]);
    }
}

bool reference_path(const char *name, char *path, size_t capacity)
{
    static const char *const folders[] = {REF, "../shared/model/"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, capacity, "%s%s.gguf", folders[i], name);
        if (access(path, R_OK) == 0)
            return true;
    }
    print_message("skipped: %s%s.gguf is missing\n", REF, name);
    return false;
}

void reference_check(const char *name, const char *devices, const char *collectives, const char *split,
                     int activation_bits, int64_t chunk, unsigned prompts)
{
    char path[256];
    tsr_model_config config = tsr_model_config_default();
    config.compute.activation_bits = activation_bits;
    if (!reference_path(name, path, sizeof path))
        skip();
    runner r;
    runner_open_with(&r, path, devices, collectives, split, &config);
    for (int prompt = 0; prompt < N_PROMPTS; prompt++)
        if (prompts >> prompt & 1)
            check_prompt(&r, name, prompt, chunk, activation_bits == 8 ? 2.5 : 1.1);
    runner_close(&r);
}
