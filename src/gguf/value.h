/* The scalar value types of GGUF: their sizes, names and conversions. Values in the file are unaligned. */
#ifndef TSR_GGUF_VALUE_H
#define TSR_GGUF_VALUE_H

#include <tsr/gguf.h>

/* Bytes of one number or bool; 0 for strings, arrays and unknown types. */
size_t tsr_gguf_value_bytes(uint32_t type);

/* Convert the number at `data`. False if the type is not a number of the requested kind (an integer for
 * u64 and i64; integer or float for f64) or the value does not fit; a bool is not a number. */
bool tsr_gguf_value_u64(uint32_t type, const void *data, uint64_t *value_out);
bool tsr_gguf_value_i64(uint32_t type, const void *data, int64_t *value_out);
bool tsr_gguf_value_f64(uint32_t type, const void *data, double *value_out);

#endif
