/* A GGUF file as JSON. */
#include "json_gguf.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

/* The whole string as tool_text_copy() makes it; free() it. NULL: out of memory. */
static char *text_of(tsr_gguf_string string)
{
    size_t capacity = 3 * string.bytes + 1; /* a byte becomes U+FFFD at most */
    char *copy = malloc(capacity);
    if (copy)
        tool_text_copy(copy, capacity, string.data, string.bytes);
    return copy;
}

static json_t *json_string_of(tsr_gguf_string string)
{
    char *copy = text_of(string);
    json_t *value = copy ? json_string(copy) : NULL;
    free(copy);
    return value;
}

static bool is_integer(tsr_gguf_value_type type)
{
    return type != TSR_GGUF_F32 && type != TSR_GGUF_F64;
}

static json_t *json_scalar(const tsr_gguf *gguf, const char *key, tsr_gguf_value_type type)
{
    tsr_gguf_string string;
    uint64_t integer;
    double real;
    bool flag;
    if (type == TSR_GGUF_STRING && tsr_gguf_get_string(gguf, key, &string) == TSR_OK)
        return json_string_of(string);
    if (type == TSR_GGUF_BOOL && tsr_gguf_get_bool(gguf, key, &flag) == TSR_OK)
        return json_boolean(flag);
    if (is_integer(type) && tsr_gguf_get_u64(gguf, key, &integer) == TSR_OK && integer <= INT64_MAX)
        return json_integer((json_int_t)integer);
    if (tsr_gguf_get_f64(gguf, key, &real) != TSR_OK || !isfinite(real))
        return json_null();
    return is_integer(type) && real < 0 ? json_integer((json_int_t)real) : json_real(real);
}

static json_t *json_array_of(const tsr_gguf *gguf, const char *key)
{
    tsr_gguf_value_type type = TSR_GGUF_U8;
    json_t *array = json_array();
    int64_t n = 0;
    if (tsr_gguf_get_array(gguf, key, &type, &n) != TSR_OK)
        n = 0;
    for (int64_t i = 0; i < n; i++) {
        tsr_gguf_string string;
        int64_t integer;
        double real;
        json_t *element = NULL;
        if (type == TSR_GGUF_STRING && tsr_gguf_array_string(gguf, key, i, &string) == TSR_OK)
            element = json_string_of(string);
        else if (is_integer(type) && tsr_gguf_array_i64(gguf, key, i, &integer) == TSR_OK)
            element = type == TSR_GGUF_BOOL ? json_boolean(integer != 0) : json_integer(integer);
        else if (tsr_gguf_array_f64(gguf, key, i, &real) == TSR_OK && isfinite(real))
            element = json_real(real);
        json_array_append_new(array, element ? element : json_null());
    }
    return array;
}

static json_t *json_keys(const tsr_gguf *gguf)
{
    json_t *keys = json_object();
    for (int64_t i = 0; i < tsr_gguf_n_keys(gguf); i++) {
        const char *key = tsr_gguf_key_at(gguf, i);
        tsr_gguf_value_type type;
        if (tsr_gguf_get_type(gguf, key, &type) != TSR_OK)
            continue;
        char *name = text_of((tsr_gguf_string){key, strlen(key)});
        json_object_set_new(keys, name,
                            type == TSR_GGUF_ARRAY ? json_array_of(gguf, key) : json_scalar(gguf, key, type));
        free(name);
    }
    return keys;
}

static json_t *json_tensors(const tsr_gguf *gguf)
{
    json_t *tensors = json_array();
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(gguf, i);
        json_t *shape = json_array();
        for (int d = 0; d < tensor->n_dims; d++)
            json_array_append_new(shape, json_integer(tensor->ne[d]));
        json_array_append_new(tensors,
                              json_pack("{s:o, s:s, s:o, s:I, s:i, s:I}", "name",
                                        tool_text_json(tensor->name), "type", tsr_type_name(tensor->type),
                                        "shape", shape, "bytes", (json_int_t)tensor->bytes, "file",
                                        tensor->file, "offset", (json_int_t)tensor->offset));
    }
    return tensors;
}

json_t *tool_json_gguf(const tsr_gguf *gguf)
{
    return json_pack("{s:o, s:i, s:i, s:I, s:o, s:o}", "path", tool_text_json(tsr_gguf_path(gguf)), "version",
                     tsr_gguf_version(gguf), "files", tsr_gguf_n_files(gguf), "bytes",
                     (json_int_t)tsr_gguf_file_bytes(gguf), "keys", json_keys(gguf), "tensors",
                     json_tensors(gguf));
}
