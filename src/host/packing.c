/* Packed activations; see packing.h. */
#include "host/packing.h"

#include "core/mem.h"
#include "host/device.h"

/* Whether two products' packed activations are equal. */
static bool packs_alike(const tsr_op_mul_mat *a, const tsr_op_mul_mat *b)
{
    return a->type == b->type && a->x_bits == b->x_bits && a->x == b->x && a->x_stride == b->x_stride &&
           a->k == b->k && a->n_tokens == b->n_tokens && a->partial == b->partial && a->reduce == b->reduce &&
           a->granule == b->granule;
}

/* The packed activations of an earlier op that are also those of ops[i]; otherwise NULL. */
static unsigned char *find_same(const tsr_op *const ops[], int i, const tsr_host_packed packed[])
{
    for (int j = 0; j < i; j++)
        if (packed[j].at && ops[j]->kind == TSR_OP_MUL_MAT && packs_alike(&ops[j]->mul_mat, &ops[i]->mul_mat))
            return packed[j].at;
    return NULL;
}

void tsr_host_find_packed(const tsr_host_device *host, const tsr_kernel_env *env, const tsr_op *const ops[],
                          int n, tsr_host_packed packed[])
{
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        packed[i] = (tsr_host_packed){NULL, false};
        if (!host->packed)
            continue;
        if (ops[i]->kind == TSR_OP_MUL_MAT)
            packed[i].at = find_same(ops, i, packed);
        const size_t bytes = tsr_align_up(host->kernels->pack_bytes(ops[i], env), (size_t)TSR_HOST_ALIGNMENT);
        if (packed[i].at || bytes == 0 || bytes > TSR_HOST_PACKED_BYTES - used)
            continue;
        packed[i] = (tsr_host_packed){host->packed + used, true};
        used += bytes;
    }
}
