/* Staging collectives through host memory; see staged.h.
 *
 * Pinned memory of a program: a copy of each partial buffer, one block for the data of sends, and one for
 * results. Partials are identified by their device addresses, so their copies are reused exactly as the
 * buffers are, which src/graph/lower/slots.h has proved safe. The other two blocks belong to one collective
 * at a time, because the host waits for the stream in between. */
#include "cuda/comm/staged.h"

#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/staging/stage.h"

enum { PIECE_ALIGNMENT = 256 };

bool tsr_cuda_is_staged(const tsr_op *op)
{
    tsr_collective *collective = tsr_op_collective(op);
    return collective && !collective->comm->ops->enqueue && !tsr_collective_is_alone(collective);
}

/* The device's buffer that the other ranks read: its address in the device's memory (of a send, its staging
 * buffer, which the GPU never touches here) and its size. Bytes 0: none. */
static void partial_of(const tsr_collective_desc *desc, int index, const void **partial_out,
                       size_t *bytes_out)
{
    bool contributes = tsr_device_set_has(desc->contributors, index);
    size_t n = (size_t)desc->n, size = sizeof(float);
    if (desc->kind == TSR_OP_ALL_REDUCE)
        size = tsr_reduce_bytes(desc->reduce);
    if (desc->kind == TSR_OP_ALL_GATHER) {
        n = (size_t)(desc->begin[index + 1] - desc->begin[index]) * (size_t)desc->n_rows;
        contributes = true;
    }
    *partial_out = desc->partial[index];
    *bytes_out = contributes && desc->partial[index] ? n * size : 0;
}

/* Device pointers and sizes; host pointers follow when the pinned memory is allocated. */
static tsr_cuda_staged describe(const tsr_op *op, int index)
{
    tsr_cuda_staged s = {.op = *op};
    const tsr_collective_desc *desc = tsr_op_collective(op)->desc;
    partial_of(desc, index, &s.source, &s.source_bytes);
    switch (op->kind) {
    case TSR_OP_ALL_REDUCE:
        s.residual = op->all_reduce.residual;
        s.op.all_reduce.residual = NULL;
        s.result = op->all_reduce.y;
        s.n_result = op->all_reduce.n;
        s.as_planes = tsr_collective_is_narrow(desc);
        break;
    case TSR_OP_ALL_GATHER:
        s.result = op->all_gather.y;
        s.n_result = op->all_gather.n * op->all_gather.n_rows;
        break;
    case TSR_OP_SEND:
        s.source = op->send.x;
        break;
    case TSR_OP_RECV:
        s.result = op->recv.y;
        s.n_result = op->recv.n;
        s.source_bytes = 0;
        break;
    default:
        break;
    }
    return s;
}

/* The copy of one partial. */
typedef struct copy_place {
    const void *partial;
    size_t bytes, offset;
} copy_place;

typedef struct staging_plan {
    copy_place *places;
    int n_places;
    size_t result_bytes, send_bytes;
    size_t result_offset, send_offset, bytes;
} staging_plan;

static copy_place *find_place(staging_plan *plan, const void *partial)
{
    int i = 0;
    while (i < plan->n_places && plan->places[i].partial != partial)
        i++;
    if (i == plan->n_places)
        plan->places[plan->n_places++] = (copy_place){.partial = partial};
    return &plan->places[i];
}

static size_t append(size_t *total, size_t bytes)
{
    size_t offset = *total;
    *total = tsr_align_up(offset + bytes, PIECE_ALIGNMENT);
    return offset;
}

static void plan_memory(staging_plan *plan, const tsr_cuda_staged *staged, int n, int index)
{
    for (int i = 0; i < n; i++) {
        const void *partial;
        size_t bytes;
        partial_of(tsr_op_collective(&staged[i].op)->desc, index, &partial, &bytes);
        if (bytes > 0) {
            copy_place *place = find_place(plan, partial);
            place->bytes = TSR_MAX(place->bytes, bytes);
        }
        if (staged[i].op.kind == TSR_OP_SEND)
            plan->send_bytes = TSR_MAX(plan->send_bytes, staged[i].source_bytes);
        plan->result_bytes = TSR_MAX(plan->result_bytes, (size_t)staged[i].n_result * sizeof(float));
    }
    for (int i = 0; i < plan->n_places; i++)
        plan->places[i].offset = append(&plan->bytes, plan->places[i].bytes);
    plan->send_offset = append(&plan->bytes, plan->send_bytes);
    plan->result_offset = append(&plan->bytes, plan->result_bytes);
}

/* Store the host pointers in one staged op, and the address of this device's part in the collective. */
static void connect(tsr_cuda_staged *s, staging_plan *plan, unsigned char *pinned, int index)
{
    tsr_collective *collective = tsr_op_collective(&s->op);
    const void *partial;
    size_t bytes;
    partial_of(collective->desc, index, &partial, &bytes);
    if (bytes > 0 && s->op.kind != TSR_OP_RECV) {
        s->source_copy = pinned + find_place(plan, partial)->offset;
        collective->comm->ops->stage(collective->comm, collective, index, s->source_copy);
    }
    if (s->result)
        s->result_copy = (float *)(pinned + plan->result_offset);
    switch (s->op.kind) {
    case TSR_OP_ALL_REDUCE:
        s->op.all_reduce.y = s->result_copy;
        break;
    case TSR_OP_ALL_GATHER:
        s->op.all_gather.y = s->result_copy;
        break;
    case TSR_OP_SEND: /* run() copies from here to the partial's place */
        s->source_copy = pinned + plan->send_offset;
        s->op.send.x = s->source_copy;
        break;
    default:
        s->op.recv.y = s->result_copy;
        break;
    }
}

tsr_status tsr_cuda_staged_create(tsr_cuda_device *cuda, const tsr_op *ops, int n_ops,
                                  tsr_cuda_staged **staged_out, tsr_pool_block **pinned_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_staged *staged = NULL;
    staging_plan plan = {0};
    tsr_pool_block *pinned = NULL;
    int n = 0, index = cuda->base.index;

    for (int i = 0; i < n_ops; i++)
        n += tsr_cuda_is_staged(&ops[i]);
    if (n == 0)
        return TSR_OK;
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *staged, "the collectives of a program", &staged));
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *plan.places, "the collectives of a program", &plan.places));
    for (int i = 0, j = 0; i < n_ops; i++)
        if (tsr_cuda_is_staged(&ops[i]))
            staged[j++] = describe(&ops[i], index);
    plan_memory(&plan, staged, n, index);
    TSR_TRY(tsr_pool_take(cuda->pinned, plan.bytes, TSR_POOL_HOST, "staging collectives", &pinned));
    for (int i = 0; i < n; i++)
        connect(&staged[i], &plan, pinned->data, index);
    *staged_out = staged;
    *pinned_out = pinned;
    staged = NULL;
out:
    tsr_mem_free(plan.places);
    tsr_mem_free(staged);
    return status;
}

tsr_status tsr_cuda_staged_begin(const tsr_cuda_staged *staged, const tsr_cuda_stream *s)
{
    if (staged->source_bytes == 0)
        return TSR_OK;
    if (staged->as_planes)
        return tsr_cuda_stage_planes(staged->source, staged->op.all_reduce.n, staged->source_copy, s);
    return TSR_CUDA(cudaMemcpyAsync(staged->source_copy, staged->source, staged->source_bytes,
                                    cudaMemcpyDeviceToHost, s->stream));
}

/* With a residual the sum is read from pinned memory by the kernel that adds it. */
tsr_status tsr_cuda_staged_end(const tsr_cuda_staged *staged, const tsr_cuda_stream *s)
{
    if (staged->n_result == 0)
        return TSR_OK;
    if (staged->residual) {
        const tsr_op_add add = {.a = staged->result_copy,
                                .b = staged->residual,
                                .y = staged->result,
                                .n = staged->n_result,
                                .n_rows = 1};
        return tsr_cuda_add(&add, s);
    }
    return TSR_CUDA(cudaMemcpyAsync(staged->result, staged->result_copy,
                                    (size_t)staged->n_result * sizeof(float), cudaMemcpyHostToDevice,
                                    s->stream));
}
