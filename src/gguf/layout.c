/* Places the tensors of one file: finds the start of the data section, and checks that every tensor is
 * inside it, aligned and without overlap. Only descriptions are read; the data's pages stay untouched. */
#include "gguf/part.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

enum {
    DEFAULT_ALIGNMENT = 32, /* of the format, for a file without general.alignment */
    MIN_ALIGNMENT = 8,      /* of the format; also required for reading numbers in place */
    MAX_ALIGNMENT = 1 << 20
};

static tsr_status find_data_section(struct tsr_gguf_part *part)
{
    uint64_t alignment = DEFAULT_ALIGNMENT;
    size_t key_at = 0;
    tsr_status status = tsr_gguf_part_u64(part, "general.alignment", &alignment, &key_at);
    if (status != TSR_OK && status != TSR_ERR_NOT_FOUND)
        return status;
    if (alignment < MIN_ALIGNMENT || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return tsr_gguf_fail(TSR_ERR_FORMAT, part->path, "key", "general.alignment",
                             strlen("general.alignment"), key_at, "%llu is not a power of two from %d to %d",
                             (unsigned long long)alignment, MIN_ALIGNMENT, MAX_ALIGNMENT);
    part->alignment = (size_t)alignment;
    part->data_start = tsr_align_up(part->data_start, part->alignment);
    return TSR_OK;
}

static tsr_status place_tensor(const struct tsr_gguf_part *part, struct tsr_gguf_record *record,
                               bool header_only)
{
    tsr_gguf_tensor *tensor = &record->tensor;
    uint64_t end;

    if (record->data_at % part->alignment != 0)
        return tsr_gguf_fail(TSR_ERR_FORMAT, part->path, "tensor", tensor->name, strlen(tensor->name),
                             record->at, "its data offset %llu is not a multiple of the file's alignment %zu",
                             (unsigned long long)record->data_at, part->alignment);
    bool overflow = __builtin_add_overflow(record->data_at, (uint64_t)part->data_start, &tensor->offset);
    overflow |= __builtin_add_overflow(tensor->offset, (uint64_t)tensor->bytes, &end);
    if (overflow || (end > part->bytes && !header_only))
        return tsr_gguf_fail(
            TSR_ERR_FORMAT, part->path, "tensor", tensor->name, strlen(tensor->name), record->at,
            "its %zu bytes at offset %llu of the data (which starts at byte %zu) extend past the "
            "file's end at byte %zu; the file is truncated or damaged",
            tensor->bytes, (unsigned long long)record->data_at, part->data_start, part->bytes);
    tensor->data = end <= part->bytes ? part->map + tensor->offset : NULL;
    return TSR_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct tsr_gguf_record *x = *(const struct tsr_gguf_record *const *)a;
    const struct tsr_gguf_record *y = *(const struct tsr_gguf_record *const *)b;
    return (x->data_at > y->data_at) - (x->data_at < y->data_at);
}

static tsr_status check_overlap(const struct tsr_gguf_part *part)
{
    const struct tsr_gguf_record **sorted;
    tsr_status status =
        tsr_mem_array(part->n_records, sizeof *sorted, "the order of a model's tensors", &sorted);
    if (status != TSR_OK)
        return status;
    for (size_t i = 0; i < part->n_records; i++)
        sorted[i] = &part->records[i];
    qsort(sorted, part->n_records, sizeof *sorted, by_offset);
    for (size_t i = 1; i < part->n_records && status == TSR_OK; i++) {
        const struct tsr_gguf_record *before = sorted[i - 1], *record = sorted[i];
        if (record->data_at - before->data_at < before->tensor.bytes)
            status = tsr_gguf_fail(
                TSR_ERR_FORMAT, part->path, "tensor", record->tensor.name, strlen(record->tensor.name),
                record->at,
                "its data at offset %llu overlaps the %zu bytes of tensor \"%.80s\" at offset %llu",
                (unsigned long long)record->data_at, before->tensor.bytes, before->tensor.name,
                (unsigned long long)before->data_at);
    }
    tsr_mem_free(sorted);
    return status;
}

tsr_status tsr_gguf_part_place(struct tsr_gguf_part *part, bool header_only)
{
    tsr_status status = find_data_section(part);
    for (size_t i = 0; i < part->n_records && status == TSR_OK; i++)
        status = place_tensor(part, &part->records[i], header_only);
    return status == TSR_OK ? check_overlap(part) : status;
}
