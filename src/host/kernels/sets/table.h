/* The kernel set of one instruction set: included last by each of the files that compile the kernels. */
#ifndef TSR_HOST_KERNELS_SETS_TABLE_H
#define TSR_HOST_KERNELS_SETS_TABLE_H

#include "host/kernels/ops/attention.h"
#include "host/kernels/ops/elementwise.h"
#include "host/kernels/ops/experts.h"
#include "host/kernels/mul_mat/mul_mat.h"
#include "host/kernels/mul_mat/glu.h"
#include "host/kernels/mul_mat/heads.h"
#include "host/kernels/mul_mat/pack.h"
#include "host/kernels/ops/compress.h"
#include "host/kernels/ops/recurrent.h"
#include "host/kernels/ops/rows.h"
#include "host/kernels/ops/select.h"
#include "host/kernels/ops/streams.h"
#include "host/kernels/ops/top_k.h"
#include "host/kernels/sets/sets.h"

/* One op at a time uses a thread's scratch. */
typedef union kernel_scratch {
    attn_scratch attention;
    select_scratch select;
    experts_scratch experts;
    recurrent_scratch recurrent;
} kernel_scratch;

#define TSR_KERNEL_SET(name, multiplies_pairs)                                                   \
    {                                                                                            \
        .isa = name, .scratch_bytes = sizeof(kernel_scratch), .shared_bytes = ATTN_SHARED_BYTES, \
        .has_epilogue = true, .pairs = (multiplies_pairs), .products_glu = kernel_products_glu,  \
        .pack_bytes = kernel_pack_bytes, .pack = kernel_pack,                                    \
        .run = {                                                                                 \
            [TSR_OP_GET_ROWS] = kernel_get_rows,                                                 \
            [TSR_OP_RMS_NORM] = kernel_rms_norm,                                                 \
            [TSR_OP_SUM_SQUARES] = kernel_sum_squares,                                           \
            [TSR_OP_RMS_SCALE] = kernel_rms_scale,                                               \
            [TSR_OP_MUL_MAT] = kernel_mul_mat,                                                   \
            [TSR_OP_MUL_HEADS] = kernel_mul_heads,                                               \
            [TSR_OP_ROPE] = kernel_rope,                                                         \
            [TSR_OP_KV_WRITE] = kernel_kv_write,                                                 \
            [TSR_OP_ATTENTION] = kernel_attention,                                               \
            [TSR_OP_SELECT] = kernel_select,                                                     \
            [TSR_OP_CONV] = kernel_conv,                                                         \
            [TSR_OP_RECURRENCE] = kernel_recurrence,                                             \
            [TSR_OP_COMPRESS] = kernel_compress,                                                 \
            [TSR_OP_STREAM_WEIGHTS] = kernel_stream_weights,                                     \
            [TSR_OP_STREAM_MIX] = kernel_stream_mix,                                             \
            [TSR_OP_GLU] = kernel_glu,                                                           \
            [TSR_OP_ADD] = kernel_add,                                                           \
            [TSR_OP_SCALE] = kernel_scale,                                                       \
            [TSR_OP_SOFTMAX] = kernel_softmax,                                                   \
            [TSR_OP_ARGMAX] = kernel_argmax,                                                     \
            [TSR_OP_TOP_K] = kernel_top_k,                                                       \
            [TSR_OP_COPY] = kernel_copy,                                                         \
            [TSR_OP_SOFTCAP] = kernel_softcap,                                                   \
            [TSR_OP_GATE] = kernel_gate,                                                         \
            [TSR_OP_ROUTE] = kernel_route,                                                       \
            [TSR_OP_EXPERTS_GLU] = kernel_experts_glu,                                           \
            [TSR_OP_EXPERTS_DOWN] = kernel_experts_down,                                         \
        },                                                                                       \
    }

#endif
