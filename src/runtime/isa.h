/* The level of kernels of host devices that name none: see tsr/isa.h. */
#ifndef TSR_RUNTIME_ISA_H
#define TSR_RUNTIME_ISA_H

#include <tsr/isa.h>

/* What TSR_ISA says, NULL where it is unset or empty: a level that runs on this machine. The text is the
 * environment's. TSR_ERR_UNSUPPORTED as tsr_isa_discover(). */
tsr_status tsr_isa_from_environment(const char **name_out);

#endif
