/* What the host and the GPUs do for one token, by count: calls of CUDA and NCCL in a step of decoding, and
 * operations (kernels, copies, events) that each further layer adds. A count that changes, also for the
 * better, is changed here with the reason in the commit: that is how none becomes worse unseen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cudasim.h>

#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { MAX_NAMES = 64, TEXT = 2048 };

/* Their number depends on time, not on the work. */
static bool is_poll(const char *name)
{
    static const char *const polls[] = {"cudaEventQuery", "cudaStreamQuery", "cudaEventSynchronize",
                                        "cudaGetLastError", "ncclCommGetAsyncError"};
    for (size_t i = 0; i < sizeof polls / sizeof *polls; i++)
        if (strcmp(name, polls[i]) == 0)
            return true;
    return false;
}

typedef struct tally {
    const char *name;
    int n;
} tally;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tally *)a)->name, ((const tally *)b)->name);
}

/* "cudaGraphLaunch 1, cudaMemcpyAsync 6", in alphabetical order, of the calls from number `first` on. */
static void calls_since(uint64_t first, char text[TEXT])
{
    tally tallies[MAX_NAMES];
    int n = 0, used = 0;
    for (uint64_t i = first; i < cudasim_calls(); i++) {
        const char *name = cudasim_call_name(i);
        int k = 0;
        while (k < n && strcmp(tallies[k].name, name) != 0)
            k++;
        if (is_poll(name))
            continue;
        assert_true(k < MAX_NAMES);
        if (k == n)
            tallies[n++] = (tally){name, 0};
        tallies[k].n++;
    }
    qsort(tallies, (size_t)n, sizeof *tallies, by_name);
    text[0] = '\0';
    for (int k = 0; k < n; k++)
        used += snprintf(text + used, TEXT - (size_t)used, "%s%s %d", k ? ", " : "", tallies[k].name,
                         tallies[k].n);
}

typedef struct step {
    uint64_t operations;
    char calls[TEXT];
} step;

static void decode(runner *r, int32_t token, bool candidates, float *logits)
{
    tsr_candidate likeliest[1];
    const tsr_batch batch = {.n_tokens = 1, .tokens = &token};
    if (candidates)
        runner_ok(tsr_session_decode_candidates(r->session, &batch, 1, likeliest), "candidates");
    else
        runner_ok(tsr_session_decode(r->session, &batch, logits), "logits");
}

typedef struct budget {
    int n_gpus, n_experts; /* no experts: dense layers */
    const char *collectives;
    uint64_t per_layer, besides; /* operations: of a layer, and of a step without layers; 0: not compared */
    const char *calls;           /* of a step with two layers */
    int n_ctx;                   /* 0: 64 */
    bool candidates;             /* the likeliest token, instead of all logits */
    tsr_type type, other_type;   /* of the weights (synth_model.h); TSR_TYPE_F32: Q8_0 alone */
} budget;

/* The fourth token: by then programs are captured and pages are mapped. */
static step count_step(const budget *b, int n_layers)
{
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    tsr_model_config config = tsr_model_config_default();
    char path[DIRECTORY_PATH];
    step s;
    runner r;
    model.n_layers = n_layers;
    model.weight_type = b->type != TSR_TYPE_F32 ? b->type : TSR_TYPE_Q8_0;
    model.other_type = b->other_type;
    model.n_experts = b->n_experts;
    model.n_experts_used = b->n_experts > 0 ? 2 : 0;
    config.session.n_ctx = b->n_ctx > 0 ? b->n_ctx : 64;
    model.n_ctx = (int)config.session.n_ctx;
    machine.n_devices = b->n_gpus;
    machine.peer_access = true;
    cudasim_configure(&machine);
    close(directory_new(path));
    synth_model_write(&model, path);
    runner_open_with(&r, path, "cuda", b->collectives, NULL, &config);
    float *logits = malloc((size_t)r.n_vocab * sizeof *logits);
    for (int32_t token = 1; token < 4; token++)
        decode(&r, token, b->candidates, logits);
    const uint64_t operations = cudasim_operations(), calls = cudasim_calls();
    decode(&r, 4, b->candidates, logits);
    calls_since(calls, s.calls);
    s.operations = cudasim_operations() - operations;
    free(logits);
    runner_close(&r);
    return s;
}

static void check(const budget *b)
{
    const step two = count_step(b, 2), six = count_step(b, 6);
    const uint64_t per_layer = (six.operations - two.operations) / 4;
    print_message("%d GPU(s), %d experts, %s: %llu operations per layer and %llu besides; %s\n", b->n_gpus,
                  b->n_experts, b->collectives, (unsigned long long)per_layer,
                  (unsigned long long)(two.operations - 2 * per_layer), two.calls);
    assert_string_equal(two.calls, b->calls);
    if (b->per_layer == 0)
        return;
    assert_int_equal((six.operations - two.operations) % 4, 0);
    assert_int_equal(per_layer, b->per_layer);
    assert_int_equal(two.operations - 2 * per_layer, b->besides);
}

static void a_step_on_one_gpu_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){1, 0, "auto", 5, 13,
                    "cuCtxPopCurrent 1, cuCtxPushCurrent 1, cudaEventRecord 2, cudaGraphLaunch 1, "
                    "cudaMemcpyAsync 1"});
}

static void a_step_of_a_mixture_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){1, 8, "auto", 8, 12,
                    "cuCtxPopCurrent 1, cuCtxPushCurrent 1, cudaEventRecord 2, cudaGraphLaunch 1, "
                    "cudaMemcpyAsync 1"});
}

/* As a layer of a Q4_K_M file: one launch for queries and keys, another for values. */
static void a_step_with_values_of_another_type_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){.n_gpus = 1,
                    .collectives = "auto",
                    .per_layer = 6,
                    .besides = 13,
                    .calls = "cuCtxPopCurrent 1, cuCtxPushCurrent 1, cudaEventRecord 2, cudaGraphLaunch 1, "
                             "cudaMemcpyAsync 1",
                    .type = TSR_TYPE_Q4_K,
                    .other_type = TSR_TYPE_Q6_K});
}

/* The last block of attention combines the results of all. */
static void a_step_with_a_long_context_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){.n_gpus = 1,
                    .collectives = "auto",
                    .per_layer = 5,
                    .besides = 13,
                    .calls = "cuCtxPopCurrent 1, cuCtxPushCurrent 1, cudaEventRecord 2, cudaGraphLaunch 1, "
                             "cudaMemcpyAsync 1",
                    .n_ctx = 4096});
}

/* The likeliest token instead of all logits: a kernel more, and 8 bytes to the host. */
static void a_step_with_candidates_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){.n_gpus = 1,
                    .collectives = "auto",
                    .per_layer = 5,
                    .besides = 14,
                    .calls = "cuCtxPopCurrent 1, cuCtxPushCurrent 1, cudaEventRecord 2, cudaGraphLaunch 1, "
                             "cudaMemcpyAsync 1",
                    .candidates = true});
}

/* One-shot and two-shot all-reduces differ in kernels, and a measurement chooses. */
static void a_step_on_two_gpus_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){2, 0, "peer", 0, 0,
                    "cuCtxPopCurrent 2, cuCtxPushCurrent 2, cudaEventRecord 4, cudaGraphLaunch 2, "
                    "cudaMemcpyAsync 2"});
}

/* As over peer memory, one kernel per sum; without a candidate beside it. */
static void a_step_through_pinned_memory_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){2, 0, "pinned", 14, 24,
                    "cuCtxPopCurrent 2, cuCtxPushCurrent 2, cudaEventRecord 4, cudaGraphLaunch 2, "
                    "cudaMemcpyAsync 2"});
}

static void a_staged_step_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){2, 0, "staged", 30, 34,
                    "cuCtxPopCurrent 2, cuCtxPushCurrent 2, cudaEventRecord 14, cudaGraphLaunch 12, "
                    "cudaMemcpyAsync 2"});
}

static void a_step_with_nccl_costs_what_it_did(void **state)
{
    (void)state;
    check(&(budget){2, 0, "nccl", 22, 28,
                    "cuCtxPopCurrent 2, cuCtxPushCurrent 2, cudaEventRecord 4, cudaGraphLaunch 2, "
                    "cudaMemcpyAsync 2"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_on_one_gpu_costs_what_it_did),
        cmocka_unit_test(a_step_of_a_mixture_costs_what_it_did),
        cmocka_unit_test(a_step_with_a_long_context_costs_what_it_did),
        cmocka_unit_test(a_step_with_candidates_costs_what_it_did),
        cmocka_unit_test(a_step_with_values_of_another_type_costs_what_it_did),
        cmocka_unit_test(a_step_on_two_gpus_costs_what_it_did),
        cmocka_unit_test(a_step_through_pinned_memory_costs_what_it_did),
        cmocka_unit_test(a_staged_step_costs_what_it_did),
        cmocka_unit_test(a_step_with_nccl_costs_what_it_did),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
