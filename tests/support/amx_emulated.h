/* The AMX kernels on emulated tiles, for machines without AMX. */
#ifndef TSR_TESTS_AMX_EMULATED_H
#define TSR_TESTS_AMX_EMULATED_H

#include <stdbool.h>

#include "host/kernels.h"

/* NULL where the machine lacks what the rest of these kernels takes, AVX-512 with VNNI,
 * or the compiler AMX. */
const tsr_kernel_set *amx_emulated(void);

/* The look that real tiles get before their level is offered; call only where amx_emulated() is something. */
bool amx_emulated_agrees(void);

#endif
