/* Packing instances as text: comma-separated lines under a header that names the columns.
 *
 *     id,lower,upper,size
 *     b1,0,3,4096
 *
 * Columns come in any order; lower, upper and size are needed, id (any text) and alignment are not, others
 * are passed over. A buffer lives in [lower, upper). minimalloc's older files have start or begin for lower
 * and end for upper, the last moment, which still counts. Without a header the columns are
 * id,lower,upper,size. Line ends may be LF or CRLF; blank lines and lines that begin with # say nothing. */
#ifndef TSR_BENCH_PACK_FILE_H
#define TSR_BENCH_PACK_FILE_H

#include <stdbool.h>

#include "alloc/pack/pack.h"

typedef struct pack_file {
    tsr_pack_item *items; /* [n_items], named by their ids */
    int n_items;
    char *text; /* what the names point into */
} pack_file;

enum { PACK_FILE_MESSAGE = 256 };

/* False, with a sentence that names the line, where the file cannot be read as such. */
bool pack_file_read(const char *path, pack_file *file_out, char message[PACK_FILE_MESSAGE]);
void pack_file_free(pack_file *file);

/* Writes id,lower,upper,size,offset, and the chunk where there is more than one. */
bool pack_file_write(const char *path, const pack_file *file, const tsr_pack_solution *solution);

#endif
