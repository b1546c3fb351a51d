/* Reading an open GGUF model: accessors and typed values. The model is not changed. */
#include "gguf/gguf.h"

#include <inttypes.h>
#include <string.h>

#include "gguf/value.h"

const char *tsr_gguf_path(const tsr_gguf *gguf)
{
    return gguf->parts[0].path;
}

int tsr_gguf_version(const tsr_gguf *gguf)
{
    return (int)gguf->parts[0].version;
}

int tsr_gguf_n_files(const tsr_gguf *gguf)
{
    return gguf->n_parts;
}

size_t tsr_gguf_file_bytes(const tsr_gguf *gguf)
{
    size_t bytes = 0; /* cannot overflow: all files are mapped at the same time */
    for (int i = 0; i < gguf->n_parts; i++)
        bytes += gguf->parts[i].bytes;
    return bytes;
}

int64_t tsr_gguf_n_tensors(const tsr_gguf *gguf)
{
    return (int64_t)gguf->n_tensors;
}

const tsr_gguf_tensor *tsr_gguf_tensor_at(const tsr_gguf *gguf, int64_t index)
{
    return index >= 0 && index < (int64_t)gguf->n_tensors ? &gguf->tensors[index] : NULL;
}

const tsr_gguf_tensor *tsr_gguf_find_tensor(const tsr_gguf *gguf, const char *name)
{
    return name ? tsr_gguf_index_find(&gguf->tensor_index, name) : NULL;
}

int64_t tsr_gguf_n_keys(const tsr_gguf *gguf)
{
    return (int64_t)gguf->parts[0].n_keys;
}

const char *tsr_gguf_key_at(const tsr_gguf *gguf, int64_t index)
{
    return index >= 0 && index < (int64_t)gguf->parts[0].n_keys ? gguf->parts[0].keys[index].name : NULL;
}

bool tsr_gguf_has_key(const tsr_gguf *gguf, const char *key)
{
    return key && tsr_gguf_index_find(&gguf->parts[0].key_index, key) != NULL;
}

/* The key, which must exist. */
static tsr_status find_key(const tsr_gguf *gguf, const char *name, const void *out,
                           const struct tsr_gguf_key **key_out)
{
    if (!gguf || !name || !out)
        return tsr_fail(TSR_ERR_INVALID, "reading a GGUF key: model, key and output must not be NULL");
    *key_out = tsr_gguf_index_find(&gguf->parts[0].key_index, name);
    if (!*key_out)
        return tsr_fail(TSR_ERR_NOT_FOUND, "%s: there is no key \"%s\"", tsr_gguf_path(gguf), name);
    return TSR_OK;
}

/* The key, which must exist and be a scalar or an array as requested. */
static tsr_status find_value(const tsr_gguf *gguf, const char *name, bool is_array, const void *out,
                             const struct tsr_gguf_key **key_out)
{
    const tsr_status status = find_key(gguf, name, out, key_out);
    const struct tsr_gguf_key *key = *key_out;
    if (status == TSR_OK && key->is_array != is_array)
        return tsr_gguf_fail(TSR_ERR_FORMAT, tsr_gguf_path(gguf), "key", name, strlen(name), key->at,
                             is_array ? "it must be an array, not a single %s"
                                      : "it must not be an array of %s",
                             tsr_gguf_value_type_name(key->type));
    return status;
}

tsr_status tsr_gguf_get_type(const tsr_gguf *gguf, const char *key, tsr_gguf_value_type *type_out)
{
    const struct tsr_gguf_key *found = NULL;
    const tsr_status status = find_key(gguf, key, type_out, &found);
    if (status == TSR_OK)
        *type_out = found->is_array ? TSR_GGUF_ARRAY : (tsr_gguf_value_type)found->type;
    return status;
}

static tsr_status wrong_type(const tsr_gguf *gguf, const struct tsr_gguf_key *key, const char *wanted)
{
    return tsr_gguf_fail(TSR_ERR_FORMAT, tsr_gguf_path(gguf), "key", key->name, strlen(key->name), key->at,
                         "it must hold %s; it holds type %s", wanted, tsr_gguf_value_type_name(key->type));
}

static tsr_gguf_string string_at(const uint8_t *data)
{
    uint64_t bytes;
    memcpy(&bytes, data, sizeof bytes);
    return (tsr_gguf_string){(const char *)data + sizeof bytes, (size_t)bytes};
}

tsr_status tsr_gguf_get_u64(const tsr_gguf *gguf, const char *key, uint64_t *value_out)
{
    const struct tsr_gguf_key *found = NULL;
    uint64_t value;
    tsr_status status = find_value(gguf, key, false, value_out, &found);
    if (status != TSR_OK)
        return status;
    if (!tsr_gguf_value_u64(found->type, found->data, &value))
        return wrong_type(gguf, found, "an integer that is not negative");
    *value_out = value;
    return TSR_OK;
}

tsr_status tsr_gguf_get_f64(const tsr_gguf *gguf, const char *key, double *value_out)
{
    const struct tsr_gguf_key *found = NULL;
    double value;
    tsr_status status = find_value(gguf, key, false, value_out, &found);
    if (status != TSR_OK)
        return status;
    if (!tsr_gguf_value_f64(found->type, found->data, &value))
        return wrong_type(gguf, found, "a number");
    *value_out = value;
    return TSR_OK;
}

tsr_status tsr_gguf_get_bool(const tsr_gguf *gguf, const char *key, bool *value_out)
{
    const struct tsr_gguf_key *found = NULL;
    tsr_status status = find_value(gguf, key, false, value_out, &found);
    if (status != TSR_OK)
        return status;
    if (found->type != TSR_GGUF_BOOL)
        return wrong_type(gguf, found, "a bool");
    *value_out = found->data[0] != 0;
    return TSR_OK;
}

tsr_status tsr_gguf_get_string(const tsr_gguf *gguf, const char *key, tsr_gguf_string *value_out)
{
    const struct tsr_gguf_key *found = NULL;
    tsr_status status = find_value(gguf, key, false, value_out, &found);
    if (status != TSR_OK)
        return status;
    if (found->type != TSR_GGUF_STRING)
        return wrong_type(gguf, found, "a string");
    *value_out = string_at(found->data);
    return TSR_OK;
}

tsr_status tsr_gguf_get_array(const tsr_gguf *gguf, const char *key, tsr_gguf_value_type *type_out,
                              int64_t *n_out)
{
    const struct tsr_gguf_key *found = NULL;
    tsr_status status = find_value(gguf, key, true, type_out && n_out ? type_out : NULL, &found);
    if (status != TSR_OK)
        return status;
    *type_out = (tsr_gguf_value_type)found->type;
    *n_out = found->n;
    return TSR_OK;
}

/* The array, in which `index` must exist. */
static tsr_status find_element(const tsr_gguf *gguf, const char *name, int64_t index, const void *out,
                               const struct tsr_gguf_key **key_out)
{
    tsr_status status = find_value(gguf, name, true, out, key_out);
    if (status == TSR_OK && (index < 0 || index >= (*key_out)->n))
        return tsr_fail(TSR_ERR_INVALID,
                        "%s: key \"%s\" has %" PRId64 " elements; index %" PRId64 " is out of range",
                        tsr_gguf_path(gguf), name, (*key_out)->n, index);
    return status;
}

static const uint8_t *element(const struct tsr_gguf_key *key, int64_t index)
{
    return key->data + (size_t)index * tsr_gguf_value_bytes(key->type);
}

tsr_status tsr_gguf_array_string(const tsr_gguf *gguf, const char *key, int64_t index,
                                 tsr_gguf_string *value_out)
{
    const struct tsr_gguf_key *found = NULL;
    tsr_status status = find_element(gguf, key, index, value_out, &found);
    if (status != TSR_OK)
        return status;
    if (found->type != TSR_GGUF_STRING)
        return wrong_type(gguf, found, "strings");
    *value_out = string_at(found->data + found->string_at[index]);
    return TSR_OK;
}

tsr_status tsr_gguf_array_f64(const tsr_gguf *gguf, const char *key, int64_t index, double *value_out)
{
    const struct tsr_gguf_key *found = NULL;
    double value;
    tsr_status status = find_element(gguf, key, index, value_out, &found);
    if (status != TSR_OK)
        return status;
    if (!tsr_gguf_value_f64(found->type, element(found, index), &value))
        return wrong_type(gguf, found, "numbers");
    *value_out = value;
    return TSR_OK;
}

tsr_status tsr_gguf_array_i64(const tsr_gguf *gguf, const char *key, int64_t index, int64_t *value_out)
{
    const struct tsr_gguf_key *found = NULL;
    int64_t value;
    tsr_status status = find_element(gguf, key, index, value_out, &found);
    if (status != TSR_OK)
        return status;
    if (found->type == TSR_GGUF_BOOL)
        value = element(found, index)[0];
    else if (!tsr_gguf_value_i64(found->type, element(found, index), &value))
        return wrong_type(gguf, found, "integers that fit into 64 signed bits");
    *value_out = value;
    return TSR_OK;
}
