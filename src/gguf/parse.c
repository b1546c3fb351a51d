/* Reads header, keys and tensor descriptions of one GGUF file.
 *
 * Every read goes through a cursor with the end of the file and the name of the key or tensor being read,
 * so the error for a truncated file contains the name. The cursor copies the file piece by piece as it
 * advances, and each byte is read from the file once: another process may write to the file meanwhile, and a
 * length that has been checked must not change before it is used, as it can in a map. Counts in the file do
 * not size allocations: arrays grow with the entries actually read, and stay within a constant factor of the
 * header's size. */
#include "gguf/part.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/quant/quant.h"
#include "gguf/value.h"

enum {
    MAX_NAME_BYTES = 65535, /* the format's limit for keys */
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
    FIRST_CAPACITY = 64,        /* entries of a growing array */
    PIECE_BYTES = 64 << 10,     /* of the file, read at a time */
    MAX_HEADER_BYTES = 1 << 30, /* vocabularies and their merges take some 20 MB */
};

/* Position of parsing; `subject` and `name` are used in error messages. */
struct cursor {
    struct tsr_gguf_part *part;
    int fd;
    size_t at;
    size_t end;              /* of the file, or MAX_HEADER_BYTES */
    size_t copied, capacity; /* bytes of part->header */
    const char *subject;     /* "key", "tensor", or "header" before the first of them */
    size_t name_at;          /* in the header, which may still move; 0 until the name has been read */
    size_t name_bytes;
    size_t subject_at;
    size_t names_bytes, names_capacity; /* of part->names */
};

static const char *cursor_name(const struct cursor *cursor)
{
    return cursor->name_at ? (const char *)cursor->part->header + cursor->name_at : NULL;
}

#define CURSOR_FAIL(cursor, status, ...)                                                \
    tsr_gguf_fail(status, (cursor)->part->path, (cursor)->subject, cursor_name(cursor), \
                  (cursor)->name_bytes, (cursor)->subject_at, __VA_ARGS__)

static void cursor_subject(struct cursor *cursor, const char *subject)
{
    cursor->subject = subject;
    cursor->subject_at = cursor->at;
    cursor->name_at = 0;
    cursor->name_bytes = 0;
}

static size_t bytes_left(const struct cursor *cursor)
{
    return cursor->end - cursor->at;
}

/* The cursor's end in the words of an error. */
static const char *end_text(const struct cursor *cursor)
{
    return cursor->end < cursor->part->bytes ? "the longest header that is supported," : "the file's end";
}

/* Make room for `more` elements after n in a growing array. */
static tsr_status grow(void *array_pointer, size_t *capacity, size_t n, size_t more, size_t size)
{
    void *array;
    if (more <= *capacity - n)
        return TSR_OK;
    size_t wanted = TSR_MAX(TSR_MAX(2 * *capacity, n + more), (size_t)FIRST_CAPACITY);
    memcpy(&array, array_pointer, sizeof array);
    array = tsr_mem_realloc(array, wanted, size);
    if (!array)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory: %zu x %zu bytes for a model's header", wanted,
                        size);
    memcpy(array_pointer, &array, sizeof array);
    *capacity = wanted;
    return TSR_OK;
}

static tsr_status copy_piece(struct cursor *cursor, size_t end)
{
    end = TSR_MIN(TSR_MAX(end, cursor->copied + PIECE_BYTES), cursor->end);
    tsr_status status =
        grow(&cursor->part->header, &cursor->capacity, cursor->copied, end - cursor->copied, 1);
    while (status == TSR_OK && cursor->copied < end) {
        ssize_t n = pread(cursor->fd, cursor->part->header + cursor->copied, end - cursor->copied,
                          (off_t)cursor->copied);
        if (n < 0 && errno != EINTR)
            status = tsr_fail(TSR_ERR_IO, "cannot read %s: %s", cursor->part->path, strerror(errno));
        else if (n == 0)
            status = CURSOR_FAIL(cursor, TSR_ERR_FORMAT,
                                 "the file ends at byte %zu, although it had %zu bytes when it was opened",
                                 cursor->copied, cursor->part->bytes);
        else if (n > 0)
            cursor->copied += (size_t)n;
    }
    return status;
}

/* Have the file's bytes before `end`, at most the cursor's end, in part->header. */
static inline tsr_status copy_until(struct cursor *cursor, size_t end)
{
    return end <= cursor->copied ? TSR_OK : copy_piece(cursor, end);
}

/* Skip n elements of `size` bytes; returns their start, which is good until the next call. */
static tsr_status take(struct cursor *cursor, uint64_t n, size_t size, const char *what,
                       const uint8_t **data_out)
{
    if (n > bytes_left(cursor) / size)
        return CURSOR_FAIL(
            cursor, TSR_ERR_FORMAT,
            "%s (%llu x %zu bytes from byte %zu on) extends past %s at byte %zu; the file is truncated or "
            "damaged",
            what, (unsigned long long)n, size, cursor->at, end_text(cursor), cursor->end);
    tsr_status status = copy_until(cursor, cursor->at + (size_t)n * size);
    if (status != TSR_OK)
        return status;
    *data_out = cursor->part->header + cursor->at;
    cursor->at += (size_t)n * size;
    return TSR_OK;
}

static tsr_status take_u32(struct cursor *cursor, const char *what, uint32_t *value_out)
{
    const uint8_t *data = NULL;
    tsr_status status = take(cursor, 1, sizeof *value_out, what, &data);
    if (status == TSR_OK)
        memcpy(value_out, data, sizeof *value_out);
    return status;
}

static tsr_status take_u64(struct cursor *cursor, const char *what, uint64_t *value_out)
{
    const uint8_t *data = NULL;
    tsr_status status = take(cursor, 1, sizeof *value_out, what, &data);
    if (status == TSR_OK)
        memcpy(value_out, data, sizeof *value_out);
    return status;
}

static tsr_status take_string(struct cursor *cursor, const char *what, tsr_gguf_string *string_out)
{
    uint64_t bytes = 0;
    const uint8_t *data = NULL;
    tsr_status status = take_u64(cursor, what, &bytes);
    if (status == TSR_OK)
        status = take(cursor, bytes, 1, what, &data);
    if (status == TSR_OK)
        *string_out = (tsr_gguf_string){(const char *)data, (size_t)bytes};
    return status;
}

/* Read the name of a key or tensor and keep a NUL-terminated copy; returned as an offset in part->names,
 * since the block may still move. */
static tsr_status take_name(struct cursor *cursor, size_t *name_at_out)
{
    tsr_gguf_string name = {0};
    tsr_status status = take_string(cursor, "the name", &name);
    if (status != TSR_OK)
        return status;
    cursor->name_at = cursor->at - name.bytes;
    cursor->name_bytes = name.bytes;
    if (name.bytes == 0 || name.bytes > MAX_NAME_BYTES || memchr(name.data, '\0', name.bytes))
        return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "a name has 1 to %d bytes without a zero byte, not %zu",
                           MAX_NAME_BYTES, name.bytes);
    status = grow(&cursor->part->names, &cursor->names_capacity, cursor->names_bytes, name.bytes + 1, 1);
    if (status != TSR_OK)
        return status;
    memcpy(cursor->part->names + cursor->names_bytes, name.data, name.bytes);
    cursor->part->names[cursor->names_bytes + name.bytes] = '\0';
    *name_at_out = cursor->names_bytes;
    cursor->names_bytes += name.bytes + 1;
    return TSR_OK;
}

static tsr_status parse_header(struct cursor *cursor, uint64_t *n_tensors_out, uint64_t *n_keys_out)
{
    const uint8_t *magic = NULL;
    tsr_status status = take(cursor, 4, 1, "the magic number", &magic);
    if (status != TSR_OK)
        return status;
    if (memcmp(magic, "FUGG", 4) == 0)
        return CURSOR_FAIL(cursor, TSR_ERR_UNSUPPORTED,
                           "a big-endian GGUF file; convert it to little-endian");
    if (memcmp(magic, "GGUF", 4) != 0)
        return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "not a GGUF file (it starts with %02x %02x %02x %02x)",
                           magic[0], magic[1], magic[2], magic[3]);
    status = take_u32(cursor, "the version", &cursor->part->version);
    if (status != TSR_OK)
        return status;
    uint32_t version = cursor->part->version;
    if (version != 0 && (version & 0xffff) == 0) /* big-endian writers keep the magic's byte order */
        return CURSOR_FAIL(cursor, TSR_ERR_UNSUPPORTED,
                           "a big-endian GGUF file; convert it to little-endian");
    if (version < 2 || version > 3)
        return CURSOR_FAIL(cursor, TSR_ERR_UNSUPPORTED,
                           "GGUF version %u; versions 2 and 3 are supported; convert the file", version);
    status = take_u64(cursor, "the tensor count", n_tensors_out);
    if (status == TSR_OK)
        status = take_u64(cursor, "the key count", n_keys_out);
    if (status != TSR_OK)
        return status;
    size_t left = bytes_left(cursor);
    if (*n_keys_out > left / MIN_KEY_BYTES || *n_tensors_out > left / MIN_TENSOR_BYTES)
        return CURSOR_FAIL(cursor, TSR_ERR_FORMAT,
                           "the header claims %llu keys and %llu tensors, but only %zu bytes follow",
                           (unsigned long long)*n_keys_out, (unsigned long long)*n_tensors_out, left);
    return TSR_OK;
}

/* Skip n strings, recording the start of each. A vocabulary has some 100 000 strings, and this loop takes
 * most of the time of opening a model, so take_string() is not used. */
static tsr_status parse_string_array(struct cursor *cursor, uint64_t n, struct tsr_gguf_key *key)
{
    tsr_status status = TSR_OK;
    if (n > bytes_left(cursor) / sizeof(uint64_t))
        return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "%llu strings do not fit into the %zu bytes that follow",
                           (unsigned long long)n, bytes_left(cursor));
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *key->string_at, "a model's string index", &key->string_at));
    for (size_t i = 0; i < n; i++) {
        const size_t at = cursor->at;
        uint64_t bytes = UINT64_MAX; /* kept if the file ends before the length */
        key->string_at[i] = at - key->data_at;
        if (bytes_left(cursor) >= sizeof bytes) {
            TSR_TRY(copy_until(cursor, at + sizeof bytes));
            memcpy(&bytes, cursor->part->header + at, sizeof bytes);
            cursor->at += sizeof bytes;
        }
        if (bytes > bytes_left(cursor))
            return CURSOR_FAIL(
                cursor, TSR_ERR_FORMAT,
                "string %zu from byte %zu on extends past %s at byte %zu; the file is truncated or damaged",
                i, at, end_text(cursor), cursor->end);
        cursor->at += (size_t)bytes;
    }
    status = copy_until(cursor, cursor->at);
out:
    return status;
}

static tsr_status check_bools(struct cursor *cursor, const uint8_t *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (values[i] > 1)
            return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "bool %lld is %d; only 0 and 1 are valid",
                               (long long)i, values[i]);
    }
    return TSR_OK;
}

/* The value of `key`, whose name has been read. */
static tsr_status parse_value(struct cursor *cursor, struct tsr_gguf_key *key)
{
    tsr_status status = TSR_OK;
    uint64_t n = 1;
    tsr_gguf_string string;
    const uint8_t *numbers = NULL;

    TSR_TRY(take_u32(cursor, "the value type", &key->type));
    if (key->type == TSR_GGUF_ARRAY) {
        key->is_array = true;
        TSR_TRY(take_u32(cursor, "the element type", &key->type));
        TSR_TRY(take_u64(cursor, "the element count", &n));
        if (key->type == TSR_GGUF_ARRAY)
            return CURSOR_FAIL(cursor, TSR_ERR_UNSUPPORTED, "arrays of arrays are not supported");
    }
    key->data_at = cursor->at;
    size_t size = tsr_gguf_value_bytes(key->type);
    if (size > 0)
        TSR_TRY(take(cursor, n, size, "the value", &numbers));
    else if (key->type != TSR_GGUF_STRING)
        return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "unknown value type %u", key->type);
    else if (key->is_array)
        TSR_TRY(parse_string_array(cursor, n, key));
    else
        TSR_TRY(take_string(cursor, "the value", &string));
    key->n = (int64_t)n; /* cannot overflow: n is at most the file's size */
    if (key->type == TSR_GGUF_BOOL)
        TSR_TRY(check_bools(cursor, numbers, key->n));
out:
    return status;
}

static tsr_status parse_keys(struct cursor *cursor, uint64_t n)
{
    struct tsr_gguf_part *part = cursor->part;
    tsr_status status = TSR_OK;
    size_t capacity = 0;
    for (uint64_t i = 0; i < n; i++) {
        TSR_TRY(grow(&part->keys, &capacity, part->n_keys, 1, sizeof *part->keys));
        struct tsr_gguf_key *key = &part->keys[part->n_keys++];
        memset(key, 0, sizeof *key);
        key->at = cursor->at;
        cursor_subject(cursor, "key");
        TSR_TRY(take_name(cursor, &key->name_at));
        TSR_TRY(parse_value(cursor, key));
    }
out:
    return status;
}

/* Extents and size of a tensor, after n_dims, ne and type have been read. */
static tsr_status check_shape(struct cursor *cursor, tsr_gguf_tensor *tensor)
{
    int64_t rows = 1;
    for (int d = 0; d < 4; d++) {
        if (tensor->ne[d] <= 0)
            return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "dimension %d is %llu; it must be from 1 to 2^63 - 1",
                               d, (unsigned long long)tensor->ne[d]);
        if (d > 0 && __builtin_mul_overflow(rows, tensor->ne[d], &rows))
            return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "the product of its dimensions is too large");
    }
    int64_t block = tsr_type_block_elems(tensor->type), elems;
    if (tensor->ne[0] % block != 0)
        return CURSOR_FAIL(cursor, TSR_ERR_FORMAT,
                           "its rows have %lld elements, not a multiple of %s's block of %lld",
                           (long long)tensor->ne[0], tsr_type_name(tensor->type), (long long)block);
    size_t row_bytes = tsr_type_row_bytes(tensor->type, tensor->ne[0]);
    if (row_bytes == 0 || (uint64_t)rows > SIZE_MAX || __builtin_mul_overflow(tensor->ne[0], rows, &elems) ||
        !tsr_mul_size(row_bytes, (size_t)rows, &tensor->bytes))
        return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "the product of its dimensions is too large");
    return TSR_OK;
}

static tsr_status parse_tensor(struct cursor *cursor, struct tsr_gguf_record *record)
{
    tsr_gguf_tensor *tensor = &record->tensor;
    tsr_status status = TSR_OK;
    uint32_t n_dims, type;

    cursor_subject(cursor, "tensor");
    TSR_TRY(take_name(cursor, &record->name_at));
    TSR_TRY(take_u32(cursor, "the number of dimensions", &n_dims));
    if (n_dims < 1 || n_dims > 4)
        return CURSOR_FAIL(cursor, TSR_ERR_FORMAT, "%u dimensions; a tensor has 1 to 4", n_dims);
    tensor->n_dims = (int)n_dims;
    for (int d = 0; d < 4; d++) {
        uint64_t extent = 1;
        if (d < tensor->n_dims)
            TSR_TRY(take_u64(cursor, "a dimension", &extent));
        tensor->ne[d] = (int64_t)extent; /* values above 2^63 - 1 become negative and are refused by
                                          * check_shape */
    }
    TSR_TRY(take_u32(cursor, "the type", &type));
    TSR_TRY(take_u64(cursor, "the offset", &record->data_at));
    if (type > INT32_MAX || !tsr_type_known((int)type)) {
        char known[256];
        tsr_type_list(known, sizeof known);
        return CURSOR_FAIL(cursor, TSR_ERR_UNSUPPORTED, "type %u is not supported; supported: %s", type,
                           known);
    }
    tensor->type = (tsr_type)type;
    TSR_TRY(check_shape(cursor, tensor));
out:
    return status;
}

static tsr_status parse_tensors(struct cursor *cursor, uint64_t n)
{
    struct tsr_gguf_part *part = cursor->part;
    tsr_status status = TSR_OK;
    size_t capacity = 0;
    for (uint64_t i = 0; i < n; i++) {
        TSR_TRY(grow(&part->records, &capacity, part->n_records, 1, sizeof *part->records));
        struct tsr_gguf_record *record = &part->records[part->n_records++];
        memset(record, 0, sizeof *record);
        record->at = cursor->at;
        TSR_TRY(parse_tensor(cursor, record));
    }
out:
    return status;
}

static tsr_status index_keys(struct tsr_gguf_part *part)
{
    size_t duplicate;
    tsr_status status =
        tsr_gguf_index_create(part->keys, sizeof *part->keys, part->n_keys, &part->key_index, &duplicate);
    if (status == TSR_ERR_FORMAT) {
        const struct tsr_gguf_key *key = &part->keys[duplicate];
        return tsr_gguf_fail(status, part->path, "key", key->name, strlen(key->name), key->at,
                             "a previous key has the same name");
    }
    return status;
}

tsr_status tsr_gguf_part_parse(struct tsr_gguf_part *part, int fd)
{
    struct cursor cursor = {.part = part, .fd = fd, .subject = "header"};
    tsr_status status = TSR_OK;
    uint64_t n_tensors = 0, n_keys = 0;

    cursor.end = TSR_MIN(part->bytes, (size_t)MAX_HEADER_BYTES);
    TSR_TRY(parse_header(&cursor, &n_tensors, &n_keys));
    TSR_TRY(parse_keys(&cursor, n_keys));
    TSR_TRY(parse_tensors(&cursor, n_tensors));
    for (size_t i = 0; i < part->n_keys; i++) {
        part->keys[i].name = part->names + part->keys[i].name_at;
        part->keys[i].data = part->header + part->keys[i].data_at;
    }
    for (size_t i = 0; i < part->n_records; i++)
        part->records[i].tensor.name = part->names + part->records[i].name_at;
    TSR_TRY(index_keys(part));
    part->data_start = cursor.at; /* tsr_gguf_part_place rounds it up to the alignment */
out:
    return status;
}
