/* Weights with random values, each divided in a way of its own, for tests of public graphs: a runtime of
 * three host devices, and a context and a buffer for each weight. */
#ifndef TSR_TESTS_PUBLIC_WEIGHTS_H
#define TSR_TESTS_PUBLIC_WEIGHTS_H

#include <tsr/tsr.h>

enum { PUBLIC_WEIGHTS_MAX = 48, PUBLIC_DEVICES = 3 };

/* The ways of dividing the tests' weights: on one device, evenly, unevenly, and not on the first device. */
enum { PUBLIC_SPLITS = 4 };
extern const float public_splits[PUBLIC_SPLITS][PUBLIC_DEVICES];

typedef struct public_weights {
    tsr_runtime *rt;
    const float *split; /* [PUBLIC_DEVICES] */
    tsr_context *contexts[PUBLIC_WEIGHTS_MAX];
    tsr_buffer *buffers[PUBLIC_WEIGHTS_MAX];
    int n;
} public_weights;

void public_weights_open(public_weights *p, const float *split);
void public_weights_close(public_weights *p);

/* An F32 weight [ne0, ne1] of normal values times `size`, by the seed. axis 1: rows divided as the split
 * says, 0: columns; `granule` of them stay together. axis -1: whole on every device, -2: on the last device
 * only. */
tsr_tensor *public_weight(public_weights *p, int axis, int64_t granule, int64_t ne0, int64_t ne1, float size,
                          uint64_t seed);

/* The elements of a tensor, to be freed by the caller. */
float *public_read(const tsr_tensor *tensor);

/* Fail the test unless x is within 1e-4 of `expected`, relative to 1 or the larger. */
void public_near(const char *what, float x, double expected);

/* Fail the test unless tsr_last_error() contains `words`. */
void public_says(const char *words);

#endif
