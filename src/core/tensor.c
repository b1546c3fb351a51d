/* A tensor's shape and placement in elements and bytes. Everything that iterates over shards (allocation,
 * copies, views of files, compiled programs) calls tsr_placement_window(), the one function that applies a
 * shard map to a tensor. */
#include "core/tensor.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"

const char *tsr_sharding_name(tsr_sharding sharding)
{
    switch (sharding) {
    case TSR_SHARDING_NONE:
        return "none";
    case TSR_SHARDING_REPLICATED:
        return "replicated";
    case TSR_SHARDING_SPLIT:
        return "split";
    case TSR_SHARDING_PARTIAL:
        return "partial";
    }
    return "?";
}

tsr_status tsr_tensor_init(tsr_tensor *tensor, tsr_runtime *rt, tsr_type type, const int64_t ne[4],
                           const char *name)
{
    name = name ? name : "";
    if (!tsr_type_known((int)type))
        return tsr_fail(TSR_ERR_INVALID, "tensor %.63s: unknown element type %d", name, (int)type);
    int64_t n_rows = 1;
    bool fits = true;
    for (int i = 0; i < 4; i++) {
        if (ne[i] < 1)
            return tsr_fail(TSR_ERR_INVALID, "tensor %.63s: ne[%d] is %lld; extents are at least 1", name, i,
                            (long long)ne[i]);
        if (i > 0)
            fits = fits && !__builtin_mul_overflow(n_rows, ne[i], &n_rows);
    }
    int64_t block = tsr_type_block_elems(type);
    if (ne[0] % block != 0)
        return tsr_fail(TSR_ERR_INVALID,
                        "tensor %.63s: rows of %lld elements are not whole %s blocks of %lld", name,
                        (long long)ne[0], tsr_type_name(type), (long long)block);
    size_t row = tsr_type_row_bytes(type, ne[0]), bytes;
    if (!fits || row == 0 || !tsr_mul_size(row, (size_t)n_rows, &bytes) || bytes > PTRDIFF_MAX)
        return tsr_fail(
            TSR_ERR_INVALID, "tensor %.63s: %lld x %lld x %lld x %lld of %s exceed the address space", name,
            (long long)ne[0], (long long)ne[1], (long long)ne[2], (long long)ne[3], tsr_type_name(type));

    memset(tensor, 0, sizeof *tensor);
    tensor->rt = rt;
    tensor->type = type;
    memcpy(tensor->ne, ne, sizeof tensor->ne);
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    return TSR_OK;
}

static tsr_status check_map(const tsr_tensor *tensor, const tsr_placement *placement)
{
    const tsr_shard_map *map = placement->map;
    int n_devices = tensor->rt->n_devices;
    if ((placement->axis != 0 && placement->axis != 1) || !map)
        return tsr_fail(TSR_ERR_INVALID, "tensor %s: a split needs an axis of 0 or 1 and a shard map",
                        tensor->name);
    int64_t extent = placement->axis == 0 ? tensor->ne[0] : tsr_tensor_rows(tensor);
    if (map->extent != extent || map->n_devices != n_devices)
        return tsr_fail(
            TSR_ERR_INVALID,
            "tensor %s: a shard map of %lld elements over %d devices does not suit %lld %s and %d "
            "devices",
            tensor->name, (long long)map->extent, map->n_devices, (long long)extent,
            placement->axis == 0 ? "columns" : "rows", n_devices);
    int64_t block = tsr_type_block_elems(tensor->type);
    for (int d = 0; d < n_devices; d++) {
        if (tsr_shard_map_count(map, d) > 0 && !tsr_device_set_has(placement->devices, d))
            return tsr_fail(TSR_ERR_INVALID,
                            "tensor %s: the shard map gives a part to device %s, which is not "
                            "in its device mask",
                            tensor->name, tensor->rt->devices[d]->name);
        if (placement->axis == 0 && tsr_shard_map_first(map, d) % block != 0)
            return tsr_fail(TSR_ERR_INVALID,
                            "tensor %s: granules of %lld columns cut %s blocks of %lld; make the granule a "
                            "multiple of the block",
                            tensor->name, (long long)map->granule, tsr_type_name(tensor->type),
                            (long long)block);
    }
    return TSR_OK;
}

tsr_status tsr_placement_check(const tsr_tensor *tensor, const tsr_placement *placement)
{
    int n_devices = tensor->rt->n_devices;
    if (placement->devices == 0 || (n_devices < 64 && placement->devices >> n_devices != 0))
        return tsr_fail(TSR_ERR_INVALID, "tensor %s: device mask %#llx is empty or exceeds the %d devices",
                        tensor->name, (unsigned long long)placement->devices, n_devices);
    if (placement->sharding == TSR_SHARDING_SPLIT)
        return check_map(tensor, placement);
    if (placement->sharding != TSR_SHARDING_REPLICATED)
        return tsr_fail(TSR_ERR_INVALID, "tensor %s: only whole copies and splits can be stored, not \"%s\"",
                        tensor->name, tsr_sharding_name(placement->sharding));
    return TSR_OK;
}

uintptr_t tsr_placement_source_row(const tsr_tensor *tensor, const tsr_placement *placement,
                                   const void *source, int64_t row)
{
    const tsr_source_layout *s = &placement->source;
    const size_t row_bytes = tsr_type_row_bytes(tensor->type, tensor->ne[0]);
    const int64_t part_rows = TSR_MAX(s->part_rows, 1), part = row / part_rows;
    const size_t stride = s->part_stride > 0 ? s->part_stride : (size_t)part_rows * row_bytes;
    const uintptr_t begin = s->parts ? (uintptr_t)s->parts[part] : (uintptr_t)source + (size_t)part * stride;
    return begin + (size_t)(row % part_rows) * row_bytes;
}

int64_t tsr_placement_source_run(const tsr_tensor *tensor, const tsr_placement *placement, int64_t row,
                                 int64_t n, size_t *stride_out)
{
    const tsr_source_layout *s = &placement->source;
    const int64_t part_rows = TSR_MAX(s->part_rows, 1);
    const bool even = !s->parts && (part_rows == 1 || s->part_stride == 0);
    *stride_out =
        even && s->part_stride > 0 ? s->part_stride : tsr_type_row_bytes(tensor->type, tensor->ne[0]);
    return even ? n : TSR_MIN(n, part_rows - row % part_rows);
}

tsr_window tsr_placement_window(const tsr_tensor *tensor, const tsr_placement *placement, int index)
{
    tsr_window window = {0, tensor->ne[0], 0, tsr_tensor_rows(tensor)};
    if (placement->sharding == TSR_SHARDING_NONE || index < 0 || index >= TSR_MAX_DEVICES ||
        !tsr_device_set_has(placement->devices, index))
        return (tsr_window){0};
    if (placement->sharding != TSR_SHARDING_SPLIT)
        return window;
    int64_t begin = tsr_shard_map_first(placement->map, index);
    int64_t end = tsr_shard_map_first(placement->map, index + 1);
    if (begin == end)
        return (tsr_window){0};
    if (placement->axis == 0) {
        window.col_begin = begin;
        window.col_end = end;
    } else {
        window.row_begin = begin;
        window.row_end = end;
    }
    return window;
}

size_t tsr_placement_bytes(const tsr_tensor *tensor, const tsr_placement *placement, int index)
{
    tsr_window window = tsr_placement_window(tensor, placement, index);
    return tsr_type_row_bytes(tensor->type, window.col_end - window.col_begin) *
           (size_t)(window.row_end - window.row_begin);
}

void tsr_tensor_local_shape(const tsr_tensor *tensor, int index, int64_t *n_cols_out, int64_t *n_rows_out)
{
    tsr_window window = tsr_placement_window(tensor, &tensor->placement, index);
    *n_cols_out = window.col_end - window.col_begin;
    *n_rows_out = window.row_end - window.row_begin;
}
