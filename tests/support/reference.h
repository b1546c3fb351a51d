/* Logits against an independent computation: a double-precision forward pass over the stored weights, and the
 * logits of another engine, both recorded for several models (../shared/ref/README.md). */
#ifndef TSR_TESTS_REFERENCE_H
#define TSR_TESTS_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ||a - exact|| / ||exact||, and the largest |a - exact|, of n elements. */
double reference_relative_error(const float *a, const float *exact, int64_t n);
double reference_largest_error(const float *a, const float *exact, int64_t n);

/* The path of the model; false, with a line that says so, if it is missing. */
bool reference_path(const char *name, char *path, size_t capacity);

/* The recorded prompts, as a set: two short ones and one of 200 tokens. */
enum { REFERENCE_SHORT = 1 | 2, REFERENCE_LONG = 4, REFERENCE_ALL = REFERENCE_SHORT | REFERENCE_LONG };

/* Run some recorded prompts of the model on these devices with F16 KV: each prompt at once, the 32 tokens
 * recorded after it in chunks of `chunk`. `collectives` as in tsr_runtime_config. Skips the test
 * where the model is missing.
 *
 * Bound: ||a - exact|| / ||exact|| <= max(2e-3, 1.1 x the other engine's own error); with activations of 8
 * bits, which that engine has, too, 2.5 x its error: both are noise of one size, and now one is larger and
 * now the other. The greedy token must be the exact one wherever its margin over the runner-up exceeds twice
 * the largest error seen (each of the two may be off by it). */
void reference_check(const char *name, const char *devices, const char *collectives, const char *split,
                     int activation_bits, int64_t chunk, unsigned prompts);

#endif
