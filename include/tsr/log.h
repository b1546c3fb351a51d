/** @file
 * Logging: silent unless the caller passes a sink in a config. */
#ifndef TSR_LOG_H
#define TSR_LOG_H

#include <stddef.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

/** How important a line of the log is; a logger gets those up to its max_level. */
typedef enum tsr_log_level {
    TSR_LOG_WARN = 0, /**< the caller probably wants to change something */
    TSR_LOG_INFO = 1, /**< once per object: what was chosen and why */
    TSR_LOG_DEBUG = 2 /**< for work on the library */
} tsr_log_level;

/** Receives one line without a newline or another control character. May be called from any thread that calls
 * into the library, never from device threads. `text` is valid during the call only. */
typedef void (*tsr_log_fn)(tsr_log_level level, const char *text, void *user);

/** A sink for the log. */
typedef struct tsr_logger {
    tsr_log_fn fn;           /**< NULL: silent */
    void *user;              /**< passed to `fn` */
    tsr_log_level max_level; /**< the least important lines that are wanted */
} tsr_logger;

/** Where a tsr_<object>_print() function writes: receives pieces of text, newlines included, in order. `text`
 * is valid during the call only.
 *
 *     static void to_file(const char *text, void *user) { fputs(text, user); }
 *     tsr_topology_print(topo, to_file, stdout);
 */
typedef void (*tsr_write_fn)(const char *text, void *user);

/** Make text[bytes], from a file or from a model, safe for a terminal: every byte of a control character
 * becomes '?', unless the character is one of `keep` ("\n\t" for running text, "" for one line). Control
 * characters are U+0000 to U+001F and U+007F to U+009F in UTF-8, and the bytes 0x80 to 0x9f that belong to no
 * UTF-8 sequence. The library does this with its own sentences: tsr_last_error(), the log, a plan's notes,
 * printed plans and machines. Names and strings of a file and generated text are returned as they are. */
TSR_API void tsr_clean_text(char *text, size_t bytes, const char *keep);

TSR_END_DECLS
#endif
