/* A tensor: shape, how it was made, and where its bytes are on each device. */
#ifndef TSR_CORE_TENSOR_H
#define TSR_CORE_TENSOR_H

#include <stdint.h>

#include <tsr/split.h>
#include <tsr/types.h>

#include "core/device.h"
#include "core/op.h"

enum { TSR_MAX_NAME = 64, TSR_MAX_SRC = 6 };

typedef enum tsr_sharding {
    TSR_SHARDING_NONE = 0,   /* not placed yet */
    TSR_SHARDING_REPLICATED, /* each device of the set has all of it */
    TSR_SHARDING_SPLIT,      /* divided along `axis` as `map` says */
    TSR_SHARDING_PARTIAL     /* the value is the sum over the devices */
} tsr_sharding;

/* Where a tensor lives. SPLIT along axis 1 divides rows, along axis 0 columns. A device outside `devices` has
 * nothing of it; a device inside may still have an empty shard. */
typedef struct tsr_placement {
    tsr_sharding sharding;
    int axis;
    uint64_t devices;         /* bit per device index */
    const tsr_shard_map *map; /* SPLIT: borrowed from the buffer type, plan or source tensor */
} tsr_placement;

/* One device's bytes: row r (of the rows held here) starts at data + r * row_stride. */
typedef struct tsr_shard {
    void *data;
    size_t row_stride;
} tsr_shard;

struct tsr_buffer;

typedef struct tsr_tensor tsr_tensor;
struct tsr_tensor {
    char name[TSR_MAX_NAME];
    tsr_type type;
    int64_t ne[4];
    tsr_placement placement;
    struct tsr_buffer *buffer; /* that holds its shards; NULL for tensors computed by a graph */
    tsr_shard *shards;         /* [n_devices of the runtime]; NULL until allocated */

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

/* Elements per row and rows that device `index` holds (0 x 0 if it holds nothing). */
void tsr_tensor_local_shape(const tsr_tensor *tensor, int index, int64_t *n_cols_out, int64_t *n_rows_out);

#endif
