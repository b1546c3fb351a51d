/* How failures are recorded and passed up inside the library. */
#ifndef TSR_CORE_STATUS_H
#define TSR_CORE_STATUS_H

#include <stdbool.h>

#include <tsr/log.h>
#include <tsr/status.h>

TSR_BEGIN_DECLS

static inline tsr_status tsr_failed(tsr_status status)
{
    return status;
}

/* Store the sentence for tsr_last_error(); the value of the expression is `status`. Called by the function
 * that first detects the failure; callers only pass the status up. (A macro, so that the compiler sees
 * that the status is not TSR_OK and can tell which variables are set.) */
#define tsr_fail(status, ...) (tsr_fail_store(__VA_ARGS__), tsr_failed(status))
void tsr_fail_store(const char *format, ...) TSR_PRINTF(1, 2);

/* Put "context: " in front of the stored sentence; the value is `status`. For a caller that alone has the
 * name of the object (file, tensor). */
#define tsr_fail_in(status, ...) (tsr_fail_prefix(__VA_ARGS__), tsr_failed(status))
void tsr_fail_prefix(const char *format, ...) TSR_PRINTF(1, 2);

/* Drop the stored sentence, so that a handled failure is not reported by an unrelated call. */
void tsr_fail_clear(void);

/* In a function with `tsr_status status` and a label `out`: leave through `out` on failure. */
#define TSR_TRY(expression)    \
    do {                       \
        status = (expression); \
        if (status != TSR_OK)  \
            goto out;          \
    } while (0)

/* Write one formatted line to the sink, if the level is enabled; `logger` may be NULL. */
void tsr_log(const tsr_logger *logger, tsr_log_level level, const char *format, ...) TSR_PRINTF(3, 4);

/* The ending of a noun in a text: "" for one, "s" for several. */
static inline const char *tsr_plural(long long n)
{
    return n == 1 ? "" : "s";
}

/* Columns of printed plans and machines. */
enum { TSR_PRINT_COLUMNS = 80 };

/* Write `text`, a paragraph without line ends, broken at blanks into lines of TSR_PRINT_COLUMNS; the first
 * line is indented as the text is, the others by two more. A word longer than a line is not broken. A list is
 * broken after commas rather than inside its items. The text is changed meanwhile. */
void tsr_put_paragraph(char *text, bool is_list, tsr_write_fn write, void *user);

TSR_END_DECLS

#endif
