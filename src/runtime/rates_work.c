/* The ops by which devices are measured, and their memory.
 *
 * GPUs get products as large as those of models. A small one would occupy a few of more than a hundred
 * multiprocessors (256 rows and 64 tokens: 2 blocks), and a rate of it says nothing about prompts. */
#include "runtime/rates_work.h"

#include <string.h>

#include "core/mem.h"

enum {
    WEIGHT_BYTE = 0x2c, /* F16 0.065, F32 2.4e-12; scales of blocks are F16 */
    HOST_ROWS = 256,    /* of a product with many tokens */
    HOST_TOKENS = 64,
    GPU_ROWS = 8192, /* 512 blocks of 128 rows and 64 tokens */
    GPU_TOKENS = 512,
    GRANULE = 128, /* of the exact reduction */
    /* As Qwen3-30B-A3B has them. */
    EXPERTS = 128,
    EXPERTS_USED = 8,
    EXPERT_COLUMNS = 2048,
    EXPERT_ROWS = 768,
    EXPERT_MATRICES = 3
};
static const size_t host_weights = (size_t)64 << 20, gpu_weights = (size_t)512 << 20; /* beyond the caches */
static const size_t least_weights = (size_t)4 << 20;                                  /* HOST_ROWS of F32 */
static const float limit = 1024.0f; /* of the exact reduction; sums are below 1 */

/* -- memory -- */

void tsr_rates_work_close(tsr_rates_work *w)
{
    if (w->weights)
        tsr_device_free(w->device, TSR_MEMORY_OTHER, w->weights, w->weight_bytes);
    if (w->x)
        tsr_device_free(w->device, TSR_MEMORY_OTHER, w->x, w->x_bytes);
    if (w->y)
        tsr_device_free(w->device, TSR_MEMORY_OTHER, w->y, w->y_bytes);
    if (w->partial)
        tsr_device_free(w->device, TSR_MEMORY_COMM, w->partial, w->partial_bytes);
}

/* Fill device memory with copies of chunk[TSR_RATES_COLUMNS * 4]. */
static tsr_status fill(tsr_device *device, void *memory, size_t bytes, const void *chunk)
{
    tsr_status status = TSR_OK;
    size_t most = TSR_RATES_COLUMNS * sizeof(float);
    for (size_t at = 0; at < bytes; at += most)
        TSR_TRY(tsr_device_upload(device, (char *)memory + at, chunk, TSR_MIN(most, bytes - at)));
out:
    return status;
}

/* The first program allocates the kernels' scratch, unless another program has done so. */
static tsr_status choose_sizes(tsr_rates_work *w, bool with_partials)
{
    size_t used = tsr_device_used(w->device), cap = w->device->memory_cap;
    size_t rest = w->device->scratch_users == 0 ? w->device->scratch_bytes : 0;
    size_t left = cap > used ? cap - used : 0;
    w->n_tokens = w->is_gpu ? GPU_TOKENS : HOST_TOKENS;
    w->x_bytes = (size_t)w->n_tokens * TSR_RATES_COLUMNS * sizeof(float);
    w->y_bytes = w->is_gpu ? (size_t)GPU_TOKENS * GPU_ROWS * sizeof(int64_t)
                           : (size_t)TSR_RATES_LARGE_SYNC * sizeof(float);
    w->partial_bytes = with_partials ? 2 * (size_t)TSR_RATES_LARGE_SYNC * sizeof(int64_t) : 0;
    rest += w->x_bytes + w->y_bytes + w->partial_bytes;
    if (left < rest + least_weights)
        return tsr_fail(TSR_ERR_MEMORY,
                        "device %s: %zu free bytes are too few for measuring, which takes at least %zu; "
                        "raise its cap or free memory",
                        w->device->name, left, rest + least_weights);
    w->weight_bytes = TSR_MIN(w->is_gpu ? gpu_weights : host_weights, TSR_MAX(left / 2, least_weights));
    w->weight_bytes = TSR_MIN(w->weight_bytes, left - rest) / 4096 * 4096;
    return TSR_OK;
}

tsr_status tsr_rates_work_open(tsr_rates_work *w, tsr_device *device, bool with_partials)
{
    tsr_status status = TSR_OK;
    const char *what = "measuring";
    unsigned char *chunk = NULL;
    *w = (tsr_rates_work){.device = device, .is_gpu = device->n_threads == 0};
    TSR_TRY(choose_sizes(w, with_partials));
    TSR_TRY(tsr_mem_array(TSR_RATES_COLUMNS, sizeof(float), "measuring devices", &chunk));
    memset(chunk, WEIGHT_BYTE, TSR_RATES_COLUMNS * sizeof(float));
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_OTHER, w->weight_bytes, what, (void **)&w->weights));
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_OTHER, w->x_bytes, what, (void **)&w->x));
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_OTHER, w->y_bytes, what, &w->y));
    if (with_partials) {
        TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_COMM, w->partial_bytes, what, (void **)&w->partial));
        TSR_TRY(fill(device, w->partial, w->partial_bytes, chunk));
    }
    TSR_TRY(fill(device, w->weights, w->weight_bytes, chunk));
    TSR_TRY(fill(device, w->x, w->x_bytes, chunk));
out:
    tsr_mem_free(chunk);
    return status;
}

/* -- products -- */

static tsr_op product(const tsr_rates_work *w, tsr_type type, int64_t n_rows, int64_t n_tokens)
{
    return (tsr_op){.kind = TSR_OP_MUL_MAT,
                    .name = "measuring",
                    .mul_mat = {.type = type,
                                .w = w->weights,
                                .w_stride = tsr_type_row_bytes(type, TSR_RATES_COLUMNS),
                                .n_rows = n_rows,
                                .k = TSR_RATES_COLUMNS,
                                .x = w->x,
                                .x_stride = TSR_RATES_COLUMNS,
                                .n_tokens = n_tokens,
                                .granule = GRANULE,
                                .limit = limit,
                                .y = w->y,
                                .y_stride = n_rows}};
}

/* Rows of a type in the weights. */
static int64_t rows_of(const tsr_rates_work *w, tsr_type type)
{
    return (int64_t)(w->weight_bytes / tsr_type_row_bytes(type, TSR_RATES_COLUMNS));
}

tsr_op tsr_rates_read(const tsr_rates_work *w, tsr_type type)
{
    return product(w, type, TSR_MIN(rows_of(w, type), (int64_t)(w->y_bytes / sizeof(float))), 1);
}

tsr_op tsr_rates_prompt(const tsr_rates_work *w, tsr_type type, bool partial)
{
    int64_t rows = TSR_MIN(rows_of(w, type), w->is_gpu ? GPU_ROWS : HOST_ROWS);
    tsr_op op = product(w, type, rows, w->n_tokens);
    op.mul_mat.partial = partial;
    return op;
}

int tsr_rates_n_slices(const tsr_rates_work *w, tsr_type type)
{
    return w->is_gpu ? (int)TSR_MIN(rows_of(w, type) / TSR_RATES_COLUMNS, TSR_RATES_SLICES) : 0;
}

tsr_op tsr_rates_slice(const tsr_rates_work *w, tsr_type type, int i)
{
    tsr_op op = product(w, type, TSR_RATES_COLUMNS, 1);
    op.mul_mat.w = w->weights + (size_t)i * TSR_RATES_COLUMNS * op.mul_mat.w_stride;
    return op;
}

tsr_op tsr_rates_norm(const tsr_rates_work *w)
{
    return (tsr_op){.kind = TSR_OP_RMS_NORM,
                    .name = "measuring",
                    .rms_norm = {.x = w->x, .y = w->y, .n = TSR_RATES_COLUMNS, .n_rows = 1, .eps = 1e-5f}};
}

/* -- experts -- */

double tsr_rates_expert_elems(void)
{
    return (double)EXPERT_MATRICES * EXPERTS_USED * EXPERT_ROWS * EXPERT_COLUMNS;
}

double tsr_rates_expert_bytes(tsr_type type)
{
    return (double)EXPERT_MATRICES * EXPERTS_USED * EXPERT_ROWS *
           (double)tsr_type_row_bytes(type, EXPERT_COLUMNS);
}

/* The weights as the matrix `which` of all experts. Rows of gate and up have EXPERT_COLUMNS, those of down
 * EXPERT_ROWS. */
static tsr_expert_matrix matrix_of(const tsr_rates_work *w, tsr_type type, int which)
{
    const int64_t k = which == EXPERT_MATRICES - 1 ? EXPERT_ROWS : EXPERT_COLUMNS;
    const size_t row = tsr_type_row_bytes(type, k);
    return (tsr_expert_matrix){.type = type,
                               .data = w->weights + w->weight_bytes / EXPERT_MATRICES / 4096 * 4096 * which,
                               .row_stride = row,
                               .expert_stride =
                                   row * (size_t)(k == EXPERT_ROWS ? EXPERT_COLUMNS : EXPERT_ROWS)};
}

/* Experts whose weights there are; the matrices have equal sizes. */
static int64_t experts_of(const tsr_rates_work *w, tsr_type type)
{
    size_t room = w->weight_bytes / EXPERT_MATRICES / 4096 * 4096;
    return (int64_t)TSR_MIN(room / matrix_of(w, type, 0).expert_stride, (size_t)EXPERTS);
}

int tsr_rates_n_layers(const tsr_rates_work *w, tsr_type type)
{
    return w->is_gpu ? (int)TSR_MIN(experts_of(w, type) / EXPERTS_USED, TSR_RATES_LAYERS) : 0;
}

/* What the memory of results holds. */
typedef struct expert_memory {
    float *logits; /* [GPU_TOKENS][experts] */
    tsr_routing routing;
    float *between;  /* [slots][EXPERT_ROWS] */
    int64_t *result; /* [GPU_TOKENS][EXPERT_COLUMNS] */
} expert_memory;

static expert_memory memory_of(const tsr_rates_work *w, tsr_type type)
{
    const int64_t slots = (int64_t)GPU_TOKENS * EXPERTS_USED;
    expert_memory m = {.result = w->y};
    m.between = (float *)(m.result + (int64_t)GPU_TOKENS * EXPERT_COLUMNS);
    m.logits = m.between + slots * EXPERT_ROWS;
    int32_t *ints = (int32_t *)(m.logits + (int64_t)GPU_TOKENS * EXPERTS);
    m.routing = (tsr_routing){.n_used = EXPERTS_USED,
                              .n_experts = experts_of(w, type),
                              .expert = ints,
                              .weight = (float *)ints + slots,
                              .order = ints + 2 * slots,
                              .begin = ints + 3 * slots,
                              .touched = ints + 3 * slots + EXPERTS + 1,
                              .n_touched = ints + 3 * slots + 2 * EXPERTS + 1};
    return m;
}

/* Token t uses the experts from EXPERTS_USED * t on, modulo their number. */
tsr_status tsr_rates_route(const tsr_rates_work *w, tsr_type type)
{
    tsr_status status = TSR_OK;
    const expert_memory m = memory_of(w, type);
    const int64_t n = m.routing.n_experts;
    float *logits = NULL;
    TSR_TRY(tsr_mem_array((size_t)(GPU_TOKENS * n), sizeof *logits, "measuring devices", &logits));
    for (int64_t t = 0; t < GPU_TOKENS; t++)
        for (int64_t i = 0; i < n; i++)
            logits[t * n + (EXPERTS_USED * t + i) % n] = -(float)i;
    TSR_TRY(tsr_device_upload(w->device, m.logits, logits, (size_t)(GPU_TOKENS * n) * sizeof *logits));
out:
    tsr_mem_free(logits);
    return status;
}

void tsr_rates_experts(const tsr_rates_work *w, tsr_type type, int64_t n_tokens, int i,
                       tsr_op ops[TSR_RATES_EXPERT_OPS])
{
    expert_memory m = memory_of(w, type);
    const tsr_expert_range held = {0, m.routing.n_experts};
    m.routing.n_tokens = n_tokens;
    for (int j = 0; j < TSR_RATES_EXPERT_OPS; j++)
        ops[j] = (tsr_op){.name = "measuring"};
    ops[0].kind = TSR_OP_ROUTE;
    ops[0].route = (tsr_op_route){
        .logits = m.logits + i * m.routing.n_experts, .routing = m.routing, .normalize = true, .scale = 1};
    ops[1].kind = TSR_OP_EXPERTS_GLU;
    ops[1].experts_glu = (tsr_op_experts_glu){.kind = TSR_GLU_SILU,
                                              .gate = matrix_of(w, type, 0),
                                              .up = matrix_of(w, type, 1),
                                              .held = held,
                                              .n_rows = EXPERT_ROWS,
                                              .k = EXPERT_COLUMNS,
                                              .routing = m.routing,
                                              .x = w->x,
                                              .y = m.between};
    ops[2].kind = TSR_OP_EXPERTS_DOWN;
    ops[2].experts_down = (tsr_op_experts_down){.down = matrix_of(w, type, 2),
                                                .held = held,
                                                .n_rows = EXPERT_COLUMNS,
                                                .k = EXPERT_ROWS,
                                                .routing = m.routing,
                                                .x = m.between,
                                                .granule = GRANULE,
                                                .limit = limit,
                                                .y = m.result};
}
