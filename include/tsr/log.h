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

/** Receives one line without a newline. May be called from any thread that calls into the library, never from
 * device threads. `text` is valid during the call only. */
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

TSR_END_DECLS
#endif
