/* Inside the library: how a failure is written down and passed up. */
#ifndef TSR_CORE_STATUS_H
#define TSR_CORE_STATUS_H

#include <tsr/log.h>
#include <tsr/status.h>

/* Store the sentence for tsr_last_error() and return `status`. Called by the function that first detects the
 * failure; callers only pass the status up. */
tsr_status tsr_fail(tsr_status status, const char *format, ...) TSR_PRINTF(2, 3);

/* Put "context: " in front of the stored sentence and return `status`; for a caller that alone knows which
 * object (file, tensor) was meant. */
tsr_status tsr_fail_in(tsr_status status, const char *format, ...) TSR_PRINTF(2, 3);

/* Forget the stored sentence (a failure that was handled must not surface later). */
void tsr_fail_clear(void);

/* In a function with `tsr_status status` and a label `out`: leave through `out` on failure. */
#define TSR_TRY(expression)    \
    do {                       \
        status = (expression); \
        if (status != TSR_OK)  \
            goto out;          \
    } while (0)

/* One formatted line to the sink, if it wants that level; `logger` may be NULL. */
void tsr_log(const tsr_logger *logger, tsr_log_level level, const char *format, ...) TSR_PRINTF(3, 4);

#endif
