/* A model opened over devices, in one line: what the model-level tests have in common. Failures of the
 * library are test failures, with its own message. */
#ifndef TSR_TESTS_RUNNER_H
#define TSR_TESTS_RUNNER_H

#include <stdbool.h>

#include <tsr/session.h>
#include <tsr/topology.h>

typedef struct runner {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    int64_t n_vocab;
} runner;

/* Fail the test with the library's message unless `status` is TSR_OK. */
void runner_ok(tsr_status status, const char *what);

/* `split` is a --tensor-split text; NULL: the config's, or where that has none even shares of all devices
 * (the planner would leave devices out for models as small as the tests'). */
void runner_open(runner *r, const char *path, const char *devices, const char *split,
                 const tsr_model_config *config);

/* The same with collectives as tsr_runtime_config has them. */
void runner_open_with(runner *r, const char *path, const char *devices, const char *collectives,
                      const char *split, const tsr_model_config *config);

/* The same on a machine that was described before (borrowed for the call; NULL: it is described now). */
void runner_open_on(runner *r, const tsr_topology *machine, const char *path, const char *devices,
                    const char *collectives, const char *split, const tsr_model_config *config);
void runner_close(runner *r);

/* Append tokens to sequence 0 in chunks of `chunk` tokens (0: all at once), with the logits of every token
 * (logits[n][n_vocab]) or only of the last (logits[n_vocab]). */
void runner_decode(runner *r, const int32_t *tokens, int64_t n, int64_t chunk, bool all, float *logits);

/* Index of the largest element, the lowest on a tie. */
int64_t runner_argmax(const float *x, int64_t n);

#endif
