/* Op runs; see op_runs.h. Ops are compared by the bytes that they read and write. Ops that are not known to
 * be independent count as dependent, and so do all collectives, whose buffers belong to other devices. */
#include "host/op_runs.h"

enum { MAX_READS = 5 };

typedef struct bytes {
    uintptr_t begin, end;
} bytes;

typedef struct footprint {
    bool known;
    bytes writes, reads[MAX_READS];
} footprint;

static bytes range(const void *from, int64_t n, size_t elem)
{
    uintptr_t begin = (uintptr_t)from;
    return from ? (bytes){begin, begin + (size_t)(n > 0 ? n : 1) * elem} : (bytes){0, 0};
}

static bytes floats(const float *from, int64_t n)
{
    return range(from, n, sizeof *from);
}

/* The bytes of rows `stride` elements apart, `used` elements of each. */
static bytes rows(const void *from, int64_t n_rows, int64_t stride, int64_t used, size_t elem)
{
    return range(from, (n_rows > 0 ? n_rows - 1 : 0) * stride + used, elem);
}

/* A page table, which changes from step to step, chooses a cache's pages. So the cache counts as one byte. */
static bytes cache(const tsr_kv_view *kv)
{
    return (bytes){(uintptr_t)kv->base, (uintptr_t)kv->base + 1};
}

static footprint of_mul_mat(const tsr_op_mul_mat *op)
{
    size_t elem = op->partial ? tsr_reduce_bytes(op->reduce) : sizeof(float);
    return (footprint){true,
                       rows(op->y, op->n_tokens, op->y_stride, op->n_rows, elem),
                       {rows(op->x, op->n_tokens, op->x_stride, op->k, sizeof(float))}};
}

static footprint of_mul_heads(const tsr_op_mul_heads *op)
{
    int64_t n = op->n_tokens * op->n_heads;
    return (footprint){
        true, floats(op->y, n * (op->n_rows + op->rest)), {floats(op->x, n * (op->k + op->rest))}};
}

static footprint of_attention(const tsr_op_attention *op)
{
    int64_t n = op->n_tokens * op->n_heads;
    return (footprint){
        true,
        floats(op->y, n * op->kv.v_dim),
        {floats(op->q, n * op->kv.k_dim), cache(&op->kv),
         range(op->selected.blocks, op->n_tokens * op->selected.n_lists * op->selected.n_blocks,
               sizeof *op->selected.blocks),
         cache(&op->more.kv),
         range(op->more.selected.blocks,
               op->n_tokens * op->more.selected.n_lists * op->more.selected.n_blocks,
               sizeof *op->more.selected.blocks)}};
}

static footprint of_kv_write(const tsr_op_kv_write *op)
{
    int64_t n = op->n_tokens * op->kv.n_heads;
    return (footprint){true,
                       cache(&op->kv),
                       {floats(op->k, n * tsr_kv_write_dim(&op->kv)), floats(op->v, n * op->kv.v_dim)}};
}

static footprint of_rope(const tsr_op_rope *op)
{
    int64_t n = op->n_tokens * op->n_heads * op->head_dim;
    return (footprint){
        true, floats(op->y, n), {floats(op->x, n), floats(op->table, op->n_tokens * op->n_rot)}};
}

static footprint of_add(const tsr_op_add *op)
{
    int64_t n = op->n * op->n_rows;
    return (footprint){
        true, floats(op->y, n), {floats(op->a, n), floats(op->b, op->broadcast_b ? op->n : n)}};
}

static footprint of_rms_norm(const tsr_op_rms_norm *op)
{
    int64_t n = op->n * op->n_rows;
    return (footprint){true, floats(op->y, n), {floats(op->x, n), floats(op->weight, op->n)}};
}

static footprint footprint_of(const tsr_op *op)
{
    switch (op->kind) {
    case TSR_OP_MUL_MAT:
        return of_mul_mat(&op->mul_mat);
    case TSR_OP_MUL_HEADS:
        return of_mul_heads(&op->mul_heads);
    case TSR_OP_ATTENTION:
        return of_attention(&op->attention);
    case TSR_OP_KV_WRITE:
        return of_kv_write(&op->kv_write);
    case TSR_OP_ROPE:
        return of_rope(&op->rope);
    case TSR_OP_ADD:
        return of_add(&op->add);
    case TSR_OP_RMS_NORM:
        return of_rms_norm(&op->rms_norm);
    case TSR_OP_GLU:
        return (footprint){true,
                           floats(op->glu.y, op->glu.n),
                           {floats(op->glu.gate, op->glu.n), floats(op->glu.up, op->glu.n)}};
    case TSR_OP_SCALE:
        return (footprint){true, floats(op->scale.y, op->scale.n), {floats(op->scale.x, op->scale.n)}};
    default:
        return (footprint){0};
    }
}

static bool overlap(bytes a, bytes b)
{
    return a.begin < b.end && b.begin < a.end;
}

/* A rope of keys and the write of those keys divide (token, head) pairs among the threads in the same way:
 * each thread stores the heads that it has rotated. */
static bool hands_on_in_thread(const tsr_op *first, const tsr_op *second)
{
    if (first->kind != TSR_OP_ROPE || second->kind != TSR_OP_KV_WRITE)
        return false;
    const tsr_op_rope *rope = &first->rope;
    const tsr_op_kv_write *write = &second->kv_write;
    return rope->y == write->k && rope->n_tokens == write->n_tokens && rope->n_heads == write->kv.n_heads &&
           rope->head_dim == tsr_kv_write_dim(&write->kv);
}

static bool independent(const tsr_op *first, const tsr_op *second)
{
    footprint a = footprint_of(first), b = footprint_of(second);
    if (!a.known || !b.known || overlap(a.writes, b.writes))
        return false;
    for (int i = 0; i < MAX_READS; i++) {
        if (overlap(b.writes, a.reads[i]))
            return false;
        bool own = i == 0 && hands_on_in_thread(first, second); /* the keys are a write's first read */
        if (!own && overlap(a.writes, b.reads[i]))
            return false;
    }
    return true;
}

bool tsr_host_joins_run(const tsr_op *ops, int n)
{
    if (n >= TSR_HOST_RUN_OPS)
        return false;
    for (int i = 0; i < n; i++)
        if (!independent(&ops[i], &ops[n]) ||
            (ops[i].kind == TSR_OP_ATTENTION && ops[n].kind == TSR_OP_ATTENTION)) /* share memory */
            return false;
    return true;
}

bool tsr_host_is_for_one_thread(const tsr_op *op)
{
    enum { LITTLE = 4096 }; /* floats: as many as are added up in the time of a barrier */
    switch (op->kind) {
    case TSR_OP_RMS_NORM:
        return op->rms_norm.n_rows == 1;
    case TSR_OP_SUM_SQUARES:
        return op->sum_squares.n_rows == 1;
    case TSR_OP_RMS_SCALE:
        return op->rms_scale.n * op->rms_scale.n_rows <= LITTLE;
    case TSR_OP_ARGMAX:
        return op->argmax.n_rows == 1;
    case TSR_OP_TOP_K:
        return op->top_k.n_rows == 1;
    case TSR_OP_ADD:
        return op->add.n * op->add.n_rows <= LITTLE;
    default:
        return false;
    }
}
