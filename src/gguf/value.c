/* Scalar values of GGUF files. Every integer goes through one of two wide readers, which implement the
 * rule that any integer type converts where the value fits. */
#include "gguf/value.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [TSR_GGUF_U8] = {"u8", 1},       [TSR_GGUF_I8] = {"i8", 1},     [TSR_GGUF_U16] = {"u16", 2},
    [TSR_GGUF_I16] = {"i16", 2},     [TSR_GGUF_U32] = {"u32", 4},   [TSR_GGUF_I32] = {"i32", 4},
    [TSR_GGUF_F32] = {"f32", 4},     [TSR_GGUF_BOOL] = {"bool", 1}, [TSR_GGUF_STRING] = {"string", 0},
    [TSR_GGUF_ARRAY] = {"array", 0}, [TSR_GGUF_U64] = {"u64", 8},   [TSR_GGUF_I64] = {"i64", 8},
    [TSR_GGUF_F64] = {"f64", 8},
};

enum { N_TYPES = sizeof types / sizeof types[0] };

size_t tsr_gguf_value_bytes(uint32_t type)
{
    return type < N_TYPES ? types[type].bytes : 0;
}

const char *tsr_gguf_value_type_name(tsr_gguf_value_type type)
{
    return (uint32_t)type < N_TYPES ? types[type].name : "?";
}

static bool read_unsigned(uint32_t type, const void *data, uint64_t *value_out)
{
    switch (type) {
    case TSR_GGUF_U8:
    case TSR_GGUF_U16:
    case TSR_GGUF_U32:
    case TSR_GGUF_U64:
        *value_out = 0;
        memcpy(value_out, data, types[type].bytes); /* little-endian, as in the file */
        return true;
    default:
        return false;
    }
}

static bool read_signed(uint32_t type, const void *data, int64_t *value_out)
{
    int8_t i8;
    int16_t i16;
    int32_t i32;
    switch (type) {
    case TSR_GGUF_I8:
        memcpy(&i8, data, sizeof i8);
        *value_out = i8;
        return true;
    case TSR_GGUF_I16:
        memcpy(&i16, data, sizeof i16);
        *value_out = i16;
        return true;
    case TSR_GGUF_I32:
        memcpy(&i32, data, sizeof i32);
        *value_out = i32;
        return true;
    case TSR_GGUF_I64:
        memcpy(value_out, data, sizeof *value_out);
        return true;
    default:
        return false;
    }
}

bool tsr_gguf_value_u64(uint32_t type, const void *data, uint64_t *value_out)
{
    int64_t number;
    if (read_unsigned(type, data, value_out))
        return true;
    if (!read_signed(type, data, &number) || number < 0)
        return false;
    *value_out = (uint64_t)number;
    return true;
}

bool tsr_gguf_value_i64(uint32_t type, const void *data, int64_t *value_out)
{
    uint64_t number;
    if (read_signed(type, data, value_out))
        return true;
    if (!read_unsigned(type, data, &number) || number > INT64_MAX)
        return false;
    *value_out = (int64_t)number;
    return true;
}

bool tsr_gguf_value_f64(uint32_t type, const void *data, double *value_out)
{
    uint64_t unsigned_number;
    int64_t signed_number;
    float f32;
    if (type == TSR_GGUF_F64) {
        memcpy(value_out, data, sizeof *value_out);
    } else if (type == TSR_GGUF_F32) {
        memcpy(&f32, data, sizeof f32);
        *value_out = f32;
    } else if (read_unsigned(type, data, &unsigned_number)) {
        *value_out = (double)unsigned_number;
    } else if (read_signed(type, data, &signed_number)) {
        *value_out = (double)signed_number;
    } else {
        return false;
    }
    return true;
}
