/* The ops over residual streams (core/op.h) against double precision. */
#ifndef TSR_TESTS_STREAM_CASE_H
#define TSR_TESTS_STREAM_CASE_H

#include "core/op.h"

/* op->y is what the definition makes of the operands, in host memory; x and y are apart. */
void stream_case_check_weights(const tsr_op_stream_weights *op);
void stream_case_check_mix(const tsr_op_stream_mix *op);

#endif
