/* A tensor: its shape, its op, and the addresses of its bytes on each device. */
#ifndef TSR_CORE_TENSOR_H
#define TSR_CORE_TENSOR_H

#include <stdint.h>

#include <tsr/split.h>
#include <tsr/tensor.h>
#include <tsr/types.h>

#include "core/device.h"
#include "core/device_set.h"
#include "core/op.h"
#include "core/runtime.h"

enum { TSR_MAX_NAME = 64, TSR_MAX_SRC = 8 };

/* The layout of a weight's source: parts of part_rows adjacent rows each. Zeros: all rows are adjacent. A
 * tensor with parts of several rows is divided by columns or not at all. */
typedef struct tsr_source_layout {
    int64_t part_rows;        /* 0: 1 */
    size_t part_stride;       /* bytes from the beginning of a part to that of the next */
    const void *const *parts; /* where each part begins, if their distances differ; otherwise NULL */
} tsr_source_layout;

/* Where a tensor is stored. SPLIT along axis 1 divides rows, along axis 0 columns. A device outside
 * `devices` has nothing of it; a device in the mask may have an empty shard. */
typedef struct tsr_placement {
    tsr_sharding sharding;
    int axis;
    tsr_device_set devices;
    const tsr_shard_map *map; /* SPLIT: borrowed from the buffer type, plan or source tensor */
    tsr_source_layout source; /* of a weight; parts are borrowed */
} tsr_placement;

/* One device's bytes: row r (of the rows held here) starts at data + r * row_stride. A view of a source in
 * parts of several rows has a part_stride, from part to part; otherwise it is 0. An input that its program
 * copies from pinned host memory is written there. */
typedef struct tsr_shard {
    void *data;
    size_t row_stride, part_stride;
    unsigned char *pinned; /* rows as in `data`; NULL: none */
} tsr_shard;

struct tsr_buffer;

struct tsr_tensor {
    tsr_runtime *rt; /* its devices hold the tensor */
    char name[TSR_MAX_NAME];
    tsr_type type;
    int64_t ne[4];
    tsr_placement placement;
    struct tsr_buffer *buffer; /* holds its shards; NULL for tensors computed by a graph */
    tsr_shard *shards;         /* [n_devices of the runtime]; NULL until allocated */

    /* List of the buffer's tensors: the next one, and the pointer to this one (src/alloc). */
    tsr_tensor *buffer_next, **buffer_link;

    /* For nodes of a graph (src/graph). */
    tsr_op_kind op;
    tsr_tensor *src[TSR_MAX_SRC];
    int index;        /* in its graph or context */
    unsigned flags;   /* TSR_TENSOR_INPUT, ... */
    const void *args; /* op parameters, owned by the graph */
};

enum { TSR_TENSOR_INPUT = 1, TSR_TENSOR_OUTPUT = 2 };

/* Rows of the tensor, all outer dimensions multiplied. */
static inline int64_t tsr_tensor_rows(const tsr_tensor *tensor)
{
    return tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
}

/* Initialise a tensor without storage. TSR_ERR_INVALID, naming it, for an unknown type, an extent below 1,
 * a row that is no whole number of blocks, or a size beyond the address space. The name is cut at
 * TSR_MAX_NAME - 1 bytes; NULL is "". */
tsr_status tsr_tensor_init(tsr_tensor *tensor, tsr_runtime *rt, tsr_type type, const int64_t ne[4],
                           const char *name);

/* Check that the placement suits the tensor: an axis of 0 or 1, a map of the axis's extent for the
 * runtime's devices, columns cut at whole blocks, no shard outside the mask. TSR_ERR_INVALID names the
 * tensor. */
tsr_status tsr_placement_check(const tsr_tensor *tensor, const tsr_placement *placement);

/* The beginning of a row in the source, which begins at `source`: a number, because C allows no offset to
 * NULL. */
uintptr_t tsr_placement_source_row(const tsr_tensor *tensor, const tsr_placement *placement,
                                   const void *source, int64_t row);

/* How many of the n rows from `row` on have one distance from row to row in the source, and the distance. */
int64_t tsr_placement_source_run(const tsr_tensor *tensor, const tsr_placement *placement, int64_t row,
                                 int64_t n, size_t *stride_out);

/* Elements [begin, end) of the columns (within a row) and of the rows that device `index` holds. Empty ones
 * (0 to 0) for a device that holds nothing. */
typedef struct tsr_window {
    int64_t col_begin, col_end, row_begin, row_end;
} tsr_window;

tsr_window tsr_placement_window(const tsr_tensor *tensor, const tsr_placement *placement, int index);

/* Bytes of that window, dense. */
size_t tsr_placement_bytes(const tsr_tensor *tensor, const tsr_placement *placement, int index);

/* Elements per row and rows that device `index` holds (0 x 0 if it holds nothing). */
void tsr_tensor_local_shape(const tsr_tensor *tensor, int index, int64_t *n_cols_out, int64_t *n_rows_out);

#endif
