/* How much elements may change when a block is encoded and decoded. */
#ifndef TSR_TESTS_QUANT_BOUNDS_H
#define TSR_TESTS_QUANT_BOUNDS_H

#include <tsr/types.h>

/* The error allowed at element e of one block x. */
double quant_error_bound(tsr_type type, const float *x, int e);

#endif
