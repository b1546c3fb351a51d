/* Configs: structs of a caller that may be compiled for an older version of the library.
 *
 * A config starts with its size. A later version of the library adds fields at the end, so an older caller's
 * config is the start of ours. The fields that the caller does not have keep their defaults. A field that is
 * added must not fit into the padding at the end of the struct before: the size would stay the same. */
#ifndef TSR_CORE_CONFIG_H
#define TSR_CORE_CONFIG_H

#include <stddef.h>

#include "core/status.h"

/* Copy the caller's `config` over own[bytes], which holds the defaults. `config` NULL: the defaults stay.
 * `oldest` is the size that the first version of the struct had. own->size is `bytes` afterwards. `name` is
 * the type, for messages. TSR_ERR_INVALID: config->size is less than `oldest` or more than `bytes`; *own is
 * unchanged. */
tsr_status tsr_config_read(const char *name, const void *config, size_t oldest, void *own, size_t bytes);

/* Write the defaults own[bytes] to the caller's `config`, a struct of `size` bytes: config->size is `size`
 * afterwards, and fields that the library does not know are zero. Returns `bytes`. */
size_t tsr_config_write(const void *own, size_t bytes, void *config, size_t size);

#endif
