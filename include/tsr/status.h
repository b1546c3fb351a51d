/** @file
 * Status codes and the message of the last error.
 *
 * Every public function that can fail returns a tsr_status: TSR_OK is zero, each failure a distinct
 * negative value. One sentence per thread says what failed, where, and what to do; tsr_last_error()
 * returns it. A function that fails leaves its objects as they were and does not write its outputs.
 * The library never prints, exits or aborts.
 *
 *     tsr_status status = tsr_model_open(rt, path, &config, &model);
 *     if (status != TSR_OK)
 *         fprintf(stderr, "%s: %s\n", tsr_status_name(status), tsr_last_error());
 */
#ifndef TSR_STATUS_H
#define TSR_STATUS_H

#ifdef __cplusplus
#define TSR_BEGIN_DECLS extern "C" {
#define TSR_END_DECLS   }
#else
#define TSR_BEGIN_DECLS /**< opens declarations that C++ reads as C */
#define TSR_END_DECLS   /**< closes declarations that C++ reads as C */
#endif

#if defined(__GNUC__)
#define TSR_API          __attribute__((visibility("default")))
#define TSR_NODISCARD    __attribute__((warn_unused_result))
#define TSR_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TSR_API          /**< a function that the library exports */
#define TSR_NODISCARD    /**< warns where the result is not used */
#define TSR_PRINTF(f, a) /**< arguments f and a are those of printf() */
#endif

TSR_BEGIN_DECLS

/** What a function that can fail returns. */
typedef enum tsr_status {
    TSR_OK = 0,
    TSR_ERR_INVALID = -1,     /**< an argument is wrong; the message names it */
    TSR_ERR_MEMORY = -2,      /**< host or device memory is short; the message names device and bytes */
    TSR_ERR_IO = -3,          /**< the operating system refused a file operation */
    TSR_ERR_FORMAT = -4,      /**< a file is malformed; the message names key or tensor and offset */
    TSR_ERR_UNSUPPORTED = -5, /**< well-formed, but this build or machine cannot do it */
    TSR_ERR_NOT_FOUND = -6,   /**< an object with this name does not exist */
    /** a region of fixed size (KV pages, sequences) has no room; nothing was lost */
    TSR_ERR_FULL = -7,
    TSR_ERR_RANGE = -8,        /**< a partial sum left the exact reduction's range (or was not a number) */
    TSR_ERR_TIMEOUT = -9,      /**< a deadline passed; the message names the device that did not arrive */
    TSR_ERR_DEVICE = -10,      /**< a device call failed; retrying may help */
    TSR_ERR_DEVICE_LOST = -11, /**< a device is unusable until its runtime is destroyed */
    TSR_ERR_CANCELLED = -12    /**< the caller has cancelled the call (tsr_session_cancel()) */
} tsr_status;

/** The constant's name without its prefix, e.g. "ERR_MEMORY"; never NULL. Any thread. */
TSR_API const char *tsr_status_name(tsr_status status);

/** One sentence on the last failure on this thread, without control characters; "" if there was none. The
 * pointer is valid until this thread's next call that fails. */
TSR_API const char *tsr_last_error(void);

TSR_END_DECLS
#endif
