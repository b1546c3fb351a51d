/* Ranges of NVTX; see nvtx.h. The header has state of its own, for the whole process, so it is included here
 * only. */
#include "cuda/libs/nvtx.h"

#if __has_include(<nvtx3/nvToolsExt.h>)

#include <stdio.h>

#define NVTX_SUPPORT_STATIC_INJECTION_LIBRARY 0 /* a global symbol less */
#include <nvtx3/nvToolsExt.h>

void tsr_nvtx_push(const tsr_op *op)
{
    char name[96];
    snprintf(name, sizeof name, "%s %s", tsr_op_kind_name(op->kind), op->name ? op->name : "");
    (void)nvtxRangePushA(name);
}

void tsr_nvtx_pop(void)
{
    (void)nvtxRangePop();
}

#else

void tsr_nvtx_push(const tsr_op *op)
{
    (void)op;
}

void tsr_nvtx_pop(void)
{
}

#endif
