/* Buffer types of every kind, for tests that must hold for all of them. */
#ifndef TSR_TESTS_RANDOM_BUFFER_TYPE_H
#define TSR_TESTS_RANDOM_BUFFER_TYPE_H

#include <stdint.h>

#include <tsr/buffer.h>

/* One device, replicated, rows or columns with some granule; proportions with zeros and lopsided values.
 * Suits tensors whose blocks have block_elems elements. */
const tsr_buffer_type *random_buffer_type(tsr_runtime *rt, int64_t block_elems, uint64_t *seed);

#endif
