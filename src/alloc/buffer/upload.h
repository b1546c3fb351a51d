/* Filling the devices' copies of weights from host memory, in parallel: up to n_uploaders threads per device
 * copy, while the caller's thread reports progress. */
#ifndef TSR_ALLOC_BUFFER_UPLOAD_H
#define TSR_ALLOC_BUFFER_UPLOAD_H

#include "alloc/buffer/buffer.h"

/* A part of a device's shard of an item, as elements of the whole tensor. */
typedef struct tsr_upload_part {
    const tsr_buffer_item *item;
    tsr_window window; /* inside the stored one */
} tsr_upload_part;

/* The uploads of one device: parts of shards that are laid out in its memory. */
typedef struct tsr_upload_job {
    tsr_device *device;
    tsr_upload_part *parts; /* [n_parts] */
    int n_parts;
} tsr_upload_job;

typedef struct tsr_upload_config {
    bool verify;                  /* read everything back and compare it with its source */
    tsr_buffer_progress progress; /* NULL: no progress callback */
    void *user;
    size_t done_bytes, total_bytes; /* for progress: bytes already present, and all bytes */
} tsr_upload_config;

/* Blocks until all parts are uploaded, or until all threads have stopped after the first failure. The call
 * returns that failure: the device's own, TSR_ERR_DEVICE naming device, tensor and byte that was read back
 * changed, or TSR_ERR_MEMORY. Nothing else may use the devices during the call. */
tsr_status tsr_upload_weights(const tsr_upload_job *jobs, int n_jobs, const tsr_upload_config *config);

/* Address of a window's first element in an item's source (may be NULL on a dry-run device), and in the
 * memory of the shard, whose stored window contains the given window. */
const void *tsr_upload_source(const tsr_buffer_item *item, tsr_window window);
unsigned char *tsr_upload_target(const tsr_buffer_item *item, tsr_window window, int device);

/* Bytes of a row of a window, and the number of its rows. */
static inline size_t tsr_window_width(const tsr_tensor *tensor, tsr_window window)
{
    return tsr_type_row_bytes(tensor->type, window.col_end - window.col_begin);
}

static inline size_t tsr_window_height(tsr_window window)
{
    return (size_t)(window.row_end - window.row_begin);
}

#endif
