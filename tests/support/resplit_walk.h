/* Changes of split with sequences in flight: what the tests on host devices and on GPUs have in common. A
 * walk is a model with sessions whose sequences are prefixes of a few texts, so that every row of logits can
 * be compared with that of a run that was never split and never changed. */
#ifndef TSR_TESTS_RESPLIT_WALK_H
#define TSR_TESTS_RESPLIT_WALK_H

#include <tsr/session.h>

#include "support/directory.h"

enum {
    WALK_VOCAB = 288,
    WALK_CTX = 288,
    WALK_TEXTS = 2,
    WALK_LENGTH = 150,
    WALK_SEQS = 3,
    WALK_SESSIONS = 2
};

typedef struct walk {
    const char *path; /* NULL: walk_model_path */
    const char *devices;
    uint64_t seed;
    tsr_model_config config;
    int64_t length;     /* of the texts, at most WALK_LENGTH */
    const float *plain; /* [WALK_TEXTS][length][WALK_VOCAB] */
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *sessions[WALK_SESSIONS];
    int text[WALK_SESSIONS][WALK_SEQS];
} walk;

/* The small model and a mixture of experts, written by the group's setup and removed by its teardown. */
extern char walk_model_path[DIRECTORY_PATH], walk_moe_path[DIRECTORY_PATH];
int walk_model_write(void **state);
int walk_model_remove(void **state);

/* A config for it, with room for all sequences. */
tsr_model_config walk_config(void);

/* Make w->plain with the KV types of w->config, on `devices`; the caller frees it. */
float *walk_make_plain(walk *w, const char *devices);

/* Open the model (w->devices, config, length, plain and seed are set) with a --tensor-split text, NULL: what
 * w->config says. */
void walk_open(walk *w, const char *split);
void walk_close(walk *w);

/* Change the split; NULL: the planner's. */
tsr_status walk_resplit(walk *w, const char *split);

/* Append, fork, trim or empty sequences at random, n times, and compare each row. */
void walk_step(walk *w, int n);

/* Append one token to every sequence that has room and compare its row: whatever was there is read. */
void walk_go_on(walk *w);

/* Fail unless every device holds, by owner, what the model's plan says. */
void walk_check_accounting(const walk *w);

/* A --tensor-split text with zeros and lopsided entries, and at least one device. */
void walk_random_split(uint64_t *seed, int n_devices, char *text, size_t capacity);

#endif
