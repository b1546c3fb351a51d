/* 04: which tensor_split is fastest? A model is loaded once, its split is changed in place, and every split
 * decodes the same tokens: measured beside what the planner predicts, and beside how long each device waited
 * for the others. That no split changes a bit of the logits is checked on the way.
 *
 *     build/bin/04_sweep_splits
 *     build/bin/04_sweep_splits model.gguf host:1,threads=1,host:1,threads=1,duty=50%
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tsr/tsr.h>

#define TRY(call)                                                        \
    do {                                                                 \
        if ((call) != TSR_OK) {                                          \
            fprintf(stderr, "%s failed: %s\n", #call, tsr_last_error()); \
            goto out;                                                    \
        }                                                                \
    } while (0)

enum { N_RATIOS = 5, N_TOKENS = 32, N_ROUNDS = 3 };

typedef struct sweep {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    int64_t n_vocab;
    float *logits, *first_logits; /* [n_vocab]; of the split that came first */
} sweep;

static double now_s(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Decode N_TOKENS tokens from the start of an empty sequence, one at a time. */
static tsr_status decode(sweep *s, double *seconds_out)
{
    tsr_status status = tsr_session_trim(s->session, 0, 0);
    double begin = now_s();
    for (int32_t token = 0; token < N_TOKENS && status == TSR_OK; token++) {
        tsr_batch batch = {.n_tokens = 1, .tokens = &token};
        status = tsr_session_decode(s->session, &batch, s->logits);
    }
    *seconds_out = now_s() - begin;
    return status;
}

/* The best of some rounds; the first, in which programs are made, does not count. */
static tsr_status time_split(sweep *s, double *best_out)
{
    tsr_status status = decode(s, best_out);
    *best_out = 1e30;
    for (int round = 0; round < N_ROUNDS && status == TSR_OK; round++) {
        double seconds;
        tsr_runtime_time_collectives(s->rt, true); /* from 0 again */
        status = decode(s, &seconds);
        *best_out = seconds < *best_out ? seconds : *best_out;
    }
    return status;
}

/* One line of the table. Returns 0 if the logits are those of the first split. */
static int report(const sweep *s, const float *split, double seconds)
{
    tsr_plan_times predicted;
    tsr_device_times first = {0}, second = {0};
    tsr_plan_predict(tsr_model_plan(s->model), &predicted);
    if (tsr_runtime_times(s->rt, 0, &first) != TSR_OK || tsr_runtime_times(s->rt, 1, &second) != TSR_OK)
        return 1;
    printf("%3.0f,%-3.0f  %10.1f  %12.1f  %14.1f  %14.1f\n", (double)split[0], (double)split[1],
           N_TOKENS / seconds, 1e9 / predicted.decode.total_ns, (double)first.wait_ns * 1e-6,
           (double)second.wait_ns * 1e-6);
    return memcmp(s->logits, s->first_logits, (size_t)s->n_vocab * sizeof *s->logits) != 0;
}

static int sweep_splits(sweep *s)
{
    int failed = 1, differ = 0;
    printf("split    tokens/s  predicted/s  device 0 waits  device 1 waits (ms)\n");
    for (int i = 0; i < N_RATIOS; i++) {
        float share = 100.0f * (float)(i + 1) / (N_RATIOS + 1), split[2] = {share, 100 - share};
        double seconds;
        TRY(tsr_model_resplit(s->model, split, 2));
        TRY(time_split(s, &seconds));
        if (i == 0)
            memcpy(s->first_logits, s->logits, (size_t)s->n_vocab * sizeof *s->logits);
        differ += report(s, split, seconds);
    }
    printf("%s\n", differ ? "the logits differ" : "the logits are the same to the bit");
    failed = differ;
out:
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 1;
    const char *path = argc > 1 ? argv[1] : "examples/models/glossary-7m-Q8_0.gguf";
    sweep s = {0};
    tsr_runtime_config rc = tsr_runtime_config_default();
    tsr_model_config mc = tsr_model_config_default();
    tsr_device_rates rates[TSR_MAX_DEVICES];
    tsr_model_info info;
    float even[] = {1, 1};
    rc.devices = argc > 2 ? argv[2] : "host:2,threads=1";
    TRY(tsr_runtime_open(&rc, &s.rt));
    if (tsr_runtime_n_devices(s.rt) != 2) {
        fprintf(stderr, "'%s' makes %d devices; this example sweeps over two\n", rc.devices,
                tsr_runtime_n_devices(s.rt));
        goto out;
    }
    TRY(tsr_runtime_measure(s.rt, NULL, 0, rates)); /* what predictions are made of */
    mc.plan.rates = rates;
    mc.split.tensor_split = even;
    mc.split.n_tensor_split = 2;
    mc.session.n_ctx = 2 * N_TOKENS;
    TRY(tsr_model_open(s.rt, path, &mc, &s.model));
    TRY(tsr_session_create(s.model, &s.session));
    tsr_model_get_info(s.model, &info);
    s.n_vocab = info.n_vocab;
    s.logits = calloc((size_t)s.n_vocab, sizeof *s.logits);
    s.first_logits = calloc((size_t)s.n_vocab, sizeof *s.first_logits);
    if (s.logits && s.first_logits)
        failed = sweep_splits(&s);
out:
    free(s.first_logits);
    free(s.logits);
    tsr_session_destroy(s.session);
    tsr_model_close(s.model);
    tsr_runtime_close(s.rt);
    return failed;
}
