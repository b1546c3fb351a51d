/* Weights of a model as a loader has them: not in a context, each with a place and a source in a mapped
 * file; at random, on fake devices. */
#ifndef TSR_TESTS_WEIGHTS_CASE_H
#define TSR_TESTS_WEIGHTS_CASE_H

#include "alloc/buffer/buffer.h"
#include "arch/weights.h"
#include "support/fake_device.h"

enum { MAX_WEIGHTS = 12 };

typedef struct weights {
    int n;
    tsr_tensor tensors[MAX_WEIGHTS];
    tsr_tensor *pointers[MAX_WEIGHTS];
    tsr_placement placements[MAX_WEIGHTS];
    tsr_shard_map maps[MAX_WEIGHTS];
    const void *sources[MAX_WEIGHTS];
    unsigned char *file;
    size_t file_bytes;
} weights;

/* Divide an axis at random; some devices get nothing of it. */
void weights_random_map(int64_t extent, int64_t granule, int n_devices, uint64_t *seed, tsr_shard_map *map);

/* Tensors of any type and shape, without a file. */
void weights_random(weights *w, tsr_runtime *rt, uint64_t *seed);

/* The file, filled or (protection PROT_NONE) impossible to read. */
void weights_map_file(weights *w, int protection, uint64_t *seed);

/* TSR_LOAD_COPY if `copy`. */
tsr_status weights_load(tsr_runtime *rt, weights *w, bool copy, tsr_buffer **buffer_out);

/* Every tensor reads as its source. */
void weights_check_contents(const weights *w);

#endif
