/* Unpacking an archive of a Linux root directory, in the child process of child.c, whose limits on processor
 * time and memory also hold here. */
#ifndef TSR_TOPO_IMPORT_UNPACK_H
#define TSR_TOPO_IMPORT_UNPACK_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

enum {
    TSR_UNPACK_PATH_BYTES = 4096,
    /* More than a machine of 2048 CPUs has: about 60 files each, in blocks of 512 bytes. */
    TSR_UNPACK_BYTES = 256 << 20,
    TSR_UNPACK_ENTRIES = 200 * 1000
};

/* Whether a file that begins with these bytes may be an archive: tar, plain or compressed. */
bool tsr_unpack_is_archive(const char *text, size_t bytes);

/* Unpack sys/ and proc/ of the archive into the empty directory `folder`, at the top or one level down, and
 * find the root of the tree. Makes `folder` the working directory. TSR_ERR_FORMAT: damaged, too large, or no
 * such tree. TSR_ERR_IO, TSR_ERR_MEMORY. */
tsr_status tsr_unpack_root(const char *path, const char *folder, char root_out[TSR_UNPACK_PATH_BYTES]);

#endif
