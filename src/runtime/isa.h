/* The default level of the kernels of host devices: see tsr/isa.h. */
#ifndef TSR_RUNTIME_ISA_H
#define TSR_RUNTIME_ISA_H

#include <tsr/isa.h>

/* The level in TSR_ISA, NULL if the variable is unset or empty: a level that runs on this machine. The
 * text belongs to the environment. TSR_ERR_UNSUPPORTED as tsr_isa_discover(). */
tsr_status tsr_isa_from_environment(const char **name_out);

#endif
