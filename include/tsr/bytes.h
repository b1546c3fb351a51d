/** @file
 * Byte counts as text. */
#ifndef TSR_BYTES_H
#define TSR_BYTES_H

#include <stdint.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

/** Bytes of a text that holds any byte count, its end included. */
#define TSR_BYTES_TEXT 32

/** Write a byte count in powers of 1024, "31.3 GiB", "512 KiB" or "17 B", to text[TSR_BYTES_TEXT]. Returns
 * `text`. The opposite is tsr_bytes_parse(). */
TSR_API const char *tsr_bytes_text(uint64_t bytes, char *text);

/** Read a byte count: "200MiB", "1.5G", "4096". The units are B, KB MB GB TB (powers of 1000), and KiB MiB
 * GiB TiB or K M G T (powers of 1024). TSR_ERR_INVALID: not a byte count; the message quotes the text. */
TSR_NODISCARD TSR_API tsr_status tsr_bytes_parse(const char *text, uint64_t *bytes_out);

TSR_END_DECLS
#endif
