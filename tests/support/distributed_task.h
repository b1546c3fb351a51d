/* Runtimes whose devices are in several processes (support/thread_transport.h): the devices of each, a
 * model and how it is divided, and what the processes compute with it, compared with one device in one
 * process. */
#ifndef TSR_TESTS_DISTRIBUTED_TASK_H
#define TSR_TESTS_DISTRIBUTED_TASK_H

#include <tsr/tsr.h>

#include "support/session_check.h"
#include "support/thread_transport.h"

enum { N_TOKENS = 40, N_CTX = 128, N_BATCH = 8 };

/* Set-up and tear-down of a cmocka group: the sessions' model, random tokens, and the logits of one device
 * for all of them. The first one leaves out the logits: a process that has opened a runtime has called CUDA,
 * and its children cannot. */
int task_set_up_model(void **state);
int task_set_up(void **state);
int task_tear_down(void **state);

/* What all processes of a test do. */
typedef struct task {
    const char *devices[PROCESSES_MAX]; /* of each */
    const char *network[PROCESSES_MAX]; /* between their machines */
    const tsr_topology *topology;       /* of each; NULL: this machine */
    const char *path;                   /* NULL: the sessions' model */
    const char *path_of_1;              /* NULL: the same */
    float split[TSR_MAX_DEVICES];
    int n_split;
    tsr_split_mode mode;
    tsr_reduction reduction;
    bool copies;
    const char *collectives;
    const tsr_offload_rule *rule; /* NULL: none */
    int n_gpu_layers;             /* 0: all; the others go to the last device,
                         from which many are handed what it computed */
    int chunk;
    bool last_only; /* logits of a chunk's last token only, where those of its first would be */
    uint64_t timeout_ns;
    int64_t fail_alloc;
    uint64_t stall_ns;
    int late_ms;                  /* process 1 runs its program so much later than the others */
    int n_rows;                   /* of the input of task_multiply(); 0: 2800 */
    float *logits[PROCESSES_MAX]; /* [N_TOKENS][SESSION_VOCAB], what came of it */
    size_t used[PROCESSES_MAX][TSR_MAX_DEVICES][TSR_MEMORY_COUNT];
} task;

/* The runtime of a process with the devices and limits of its task. */
tsr_status task_open_runtime(process *self, tsr_runtime **rt_out);

/* Tokens [begin, end) with all their logits. */
tsr_status task_decode(const process *self, tsr_session *session, int begin, int end);

/* Decode what is missing of the tokens, a few in each call, and go on without what is lost. *n_losses_out:
 * how often; NULL: do not go on. */
tsr_status task_decode_on(const process *self, tsr_model *model, tsr_session *session, int *n_losses_out);

/* A session of a model of a runtime, and what is done with it. */
void task_with_session(process *self,
                       tsr_status (*use)(process *self, tsr_model *model, tsr_session *session));

/* A body: decode all tokens. */
void task_decode_all(process *self);

/* A body: one product with divided columns. Its sums are enough and large enough to pass between processes in
 * words of 32 bits, in two messages. */
void task_multiply(process *self);

/* The product of all processes of `t` has the bits that `alone`, of one process, computes. */
void task_assert_product(task *t, task *alone);

/* Run `body` in as many processes as have devices. Returns how many; the logits are task_free()'s. */
int task_run(task *t, void (*body)(process *self), const process_faults *faults, process *processes);
void task_free(task *t);

/* The logits of all tokens by one process, [N_TOKENS][SESSION_VOCAB], for the caller to free. Of three
 * devices the second has twice the share of another. */
float *task_logits_alone(const char *devices, int n_split);

/* Every process ended with this status, and a sentence that has `text` in it. */
void task_assert_status(const process *processes, int n, tsr_status status, const char *text);

/* Process r has the bits of one device. */
void task_assert_rows(const task *t, int r);

/* Every process has, and they have the same accounting of all devices. */
void task_assert_same(const task *t, int n);

#endif
