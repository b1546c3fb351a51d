/** @file
 * The instruction sets that host devices have kernels for.
 *
 * One source of kernels is compiled several times, and a host device takes one of these *levels*: the one
 * that its isa= names (tsr/device_list.h), otherwise that of tsr_runtime_config.isa, otherwise that of the
 * environment variable TSR_ISA, otherwise the best that this machine runs. A level that is named and cannot
 * run is an error; it is never replaced by another. docs/exact-reduction.md says which levels agree to the
 * bit.
 *
 *     tsr_isa_list isa;
 *     if (tsr_isa_discover(&isa) == TSR_OK)
 *         printf("host devices run %s kernels\n", isa.levels[isa.chosen].name);
 */
#ifndef TSR_ISA_H
#define TSR_ISA_H

#include <stdbool.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

enum { TSR_MAX_ISA_LEVELS = 8 };

/** A set of kernels of host devices. */
typedef struct tsr_isa_level {
    char name[16];     /**< what isa= and TSR_ISA take */
    char lacking[160]; /**< what keeps it from running on this machine; "": it runs */
} tsr_isa_level;

/** The kernels of this build and which of them run here. */
typedef struct tsr_isa_list {
    int n_levels; /**< entries of `levels` */
    /** that this build has, best first; the last one always runs */
    tsr_isa_level levels[TSR_MAX_ISA_LEVELS];
    int chosen;          /**< the level of host devices that name none */
    bool by_environment; /**< TSR_ISA names the level */
} tsr_isa_list;

/** Write the levels of this build, and which of them run on this machine. Any thread. TSR_ERR_UNSUPPORTED:
 * TSR_ISA names a level that this build lacks or this machine cannot run; the message has the reason and
 * lists the levels that run. */
TSR_NODISCARD TSR_API tsr_status tsr_isa_discover(tsr_isa_list *list_out);

TSR_END_DECLS

#endif
