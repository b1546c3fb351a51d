/** @file
 * The instruction sets that host devices have kernels for.
 *
 * The source of the kernels is compiled once for each *level*. A host device uses the level that its isa=
 * names (tsr/device_list.h), otherwise tsr_runtime_config.isa, otherwise the environment variable TSR_ISA,
 * otherwise the best level that this machine runs. A named level that cannot run is an error and is never
 * replaced by another level. docs/exact-reduction.md says which levels agree to the bit.
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
    char name[16];     /**< value of isa= and TSR_ISA */
    char lacking[160]; /**< features that this machine lacks for this level; "": the level runs */
} tsr_isa_level;

/** The levels of this build, and which of them this machine runs. */
typedef struct tsr_isa_list {
    int n_levels; /**< entries of `levels` */
    /** levels of this build, best first; the last level always runs */
    tsr_isa_level levels[TSR_MAX_ISA_LEVELS];
    int chosen;          /**< index of the level of host devices without isa= */
    bool by_environment; /**< TSR_ISA names the level */
} tsr_isa_list;

/** Write the levels of this build, and which of them run on this machine. Any thread. TSR_ERR_INVALID:
 * TSR_ISA names a level that this build lacks. TSR_ERR_UNSUPPORTED: this machine cannot run the level. The
 * message has the reason and lists the levels that run. */
TSR_NODISCARD TSR_API tsr_status tsr_isa_discover(tsr_isa_list *list_out);

TSR_END_DECLS

#endif
