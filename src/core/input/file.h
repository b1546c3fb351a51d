/* Opening files that are read. */
#ifndef TSR_CORE_INPUT_FILE_H
#define TSR_CORE_INPUT_FILE_H

#include <stdint.h>

#include "core/status.h"

/* Open the regular file at `path` for reading; the caller closes *fd_out. *bytes_out: its size. Anything else
 * is TSR_ERR_IO without waiting: opening a FIFO would block until it has a writer, and a device may act on
 * being opened. TSR_ERR_IO also if the system refuses, with the reason in errno. */
tsr_status tsr_file_open(const char *path, int *fd_out, int64_t *bytes_out);

#endif
