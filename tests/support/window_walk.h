/* Layers with a sliding window keep the pages of their window only, which does not show in the logits: a
 * random walk of batches, forks, cuts, files and changes of split is taken by two sessions at once, one
 * that keeps all pages on one plain device, one that does not on any devices, and every row of logits is
 * compared bit by bit. */
#ifndef TSR_TESTS_WINDOW_WALK_H
#define TSR_TESTS_WINDOW_WALK_H

#include "support/ways.h"

enum { WINDOW_WALK_CTX = 600, WINDOW_WALK_SEQS = 3 };

/* A model of this architecture with windows of n_swa positions; `n_steps` steps of each of `rounds` walks
 * with sequences of up to `length` tokens (at most WINDOW_WALK_CTX / WINDOW_WALK_SEQS). */
typedef struct window_walk {
    const struct synth_arch *arch;
    int window;
    int rounds, n_steps, length;
    uint64_t seed;
} window_walk;

void window_walk_check(const way_family *family, const window_walk *plan);

#endif
