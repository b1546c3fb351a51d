/* Products by cuBLASLt; see cublas.h.
 *
 * Row-major y[t][r] = sum_k w[r][k] x[t][k] is, in the library's column-major terms, Y = W^T X: W is k x
 * n_rows with the rows' stride as its leading dimension, X is k x n_tokens, Y is n_rows x n_tokens. A
 * split by columns is a W that begins inside its rows; nothing else changes.
 *
 * The scratch block holds the workspace, then a slab of tokens: their activations, their scales, and their
 * sums where y cannot hold f32. A slab has as many tokens as there is room for; the last slab may have
 * fewer. */
#include "cuda/libs/cublas.h"

#include <stdio.h>

#include "core/mem.h"
#include "cuda/context/context.h"
#include "cuda/libs/cublas_convert.h"
#include "cuda/libs/cublas_library.h"
#include "cuda/memory/memory.h"

/* Bytes of the scratch block; NVIDIA's advice is 4 MiB, for Hopper 32 MiB (cuBLAS, cublasSetWorkspace()). */
enum { WORKSPACE_BYTES = 8 << 20, PART_ALIGNMENT = 256, X_ALIGNMENT = 8, SLAB_TOKENS = 64 };

struct tsr_cublas {
    tsr_cublas_library lt;
    cublasLtHandle_t handle; /* NULL: no working library */
};

/* A product of one shape. */
typedef struct gemm {
    int64_t n_tokens;
    cublasLtMatrixLayout_t x, y;
    cublasLtMatmulAlgo_t algo;
} gemm;

typedef struct product {
    bool serves;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w;
    gemm whole, last;               /* slabs; last.n_tokens 0: all slabs are whole */
    int64_t x_stride;               /* elements, of the converted activations */
    size_t x_at, scale_at, sums_at; /* in the scratch block */
    bool in_place;                  /* sums are stored in y directly */
} product;

struct tsr_cublas_products {
    tsr_cublas *cublas;
    int n_ops;
    product *list; /* [n_ops] */
};

/* -- the library -- */

/* The newest library that is installed and supports the driver and the card. Where none does, the sentence is
 * that of the newest. */
static tsr_status open_library(tsr_cuda_device *cuda, tsr_cublas *cublas)
{
    char first[512] = "";
    cublas->lt.index = -1;
    for (;;) {
        tsr_status status = tsr_cublas_library_next(&cublas->lt);
        if (status != TSR_OK)
            return *first ? tsr_fail(status, "%s", first) : status;
        status = TSR_CUBLAS(&cublas->lt, cublasLtCreate(&cublas->handle));
        if (status != TSR_ERR_UNSUPPORTED)
            return status;
        cublas->handle = NULL;
        tsr_log(&cuda->logger, TSR_LOG_INFO, "device %s: cuBLASLt %zu: %s; an older one is looked for",
                cuda->base.name, cublas->lt.version, tsr_last_error());
        if (!*first)
            snprintf(first, sizeof first, "%s", tsr_last_error());
    }
}

/* Load the library. Without a library, or with one that does not support the driver or the card, the device
 * stores that, so that the warning is logged once. */
static tsr_status get_library(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    tsr_cublas *cublas = NULL;
    size_t before, after;
    if (cuda->cublas)
        return TSR_OK;
    before = tsr_cuda_free_bytes();
    TSR_TRY(TSR_NEW(&cublas, "a cuBLASLt handle"));
    status = open_library(cuda, cublas);
    if (status == TSR_OK) {
        tsr_log(&cuda->logger, TSR_LOG_INFO,
                "device %s: cuBLASLt %zu multiplies F16 and BF16 weights from %lld tokens on, since the "
                "reduction "
                "is not exact",
                cuda->base.name, cublas->lt.version, (long long)cuda->library_tokens);
    } else if (status == TSR_ERR_UNSUPPORTED) {
        tsr_log(&cuda->logger, TSR_LOG_WARN, "device %s: %s; TSR's own kernels multiply F16 and BF16 weights",
                cuda->base.name, tsr_last_error());
        tsr_fail_clear();
        cublas->handle = NULL;
        status = TSR_OK;
    } else {
        goto out;
    }
    after = tsr_cuda_free_bytes();
    cuda->base.accounting.library += before > after ? before - after : 0;
    cuda->cublas = cublas;
    cublas = NULL;
out:
    tsr_mem_free(cublas);
    return status;
}

void tsr_cublas_destroy(tsr_cublas *cublas)
{
    if (!cublas)
        return;
    if (cublas->handle)
        (void)cublas->lt.cublasLtDestroy(cublas->handle);
    tsr_mem_free(cublas);
}

/* -- creating products -- */

static cudaDataType_t data_type(tsr_type type)
{
    return type == TSR_TYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* Whether the rule chooses cuBLASLt. Weights and outputs must be aligned as their types. */
static bool is_wanted(const tsr_cuda_device *cuda, const tsr_op *op)
{
    const tsr_op_mul_mat *a = &op->mul_mat;
    return op->kind == TSR_OP_MUL_MAT && (a->type == TSR_TYPE_F16 || a->type == TSR_TYPE_BF16) &&
           a->reduce != TSR_REDUCE_EXACT && cuda->library_tokens > 0 && a->n_tokens >= cuda->library_tokens &&
           a->k > 0 && a->n_rows > 0 && (uintptr_t)a->w % sizeof(uint16_t) == 0 &&
           a->w_stride % sizeof(uint16_t) == 0;
}

/* Divide the scratch block; false: no room even for a small slab. */
static bool place(const tsr_cuda_device *cuda, const tsr_op_mul_mat *op, product *p)
{
    p->in_place = !(op->partial && op->reduce == TSR_REDUCE_BF16);
    p->x_stride = (op->k + X_ALIGNMENT - 1) / X_ALIGNMENT * X_ALIGNMENT;
    const size_t x_bytes = (size_t)p->x_stride * sizeof(uint16_t);
    const size_t sums_bytes = p->in_place ? 0 : (size_t)op->n_rows * sizeof(float);
    const size_t used = WORKSPACE_BYTES + 3 * (size_t)PART_ALIGNMENT;
    if (cuda->base.scratch_bytes <= used)
        return false;
    int64_t room = (int64_t)((cuda->base.scratch_bytes - used) / (x_bytes + sizeof(float) + sums_bytes));
    if (room < op->n_tokens)
        room = room / SLAB_TOKENS * SLAB_TOKENS;
    if (room == 0)
        return false;
    p->whole.n_tokens = TSR_MIN(room, op->n_tokens);
    p->last.n_tokens = op->n_tokens % p->whole.n_tokens;
    p->x_at = WORKSPACE_BYTES;
    p->scale_at = tsr_align_up(p->x_at + (size_t)p->whole.n_tokens * x_bytes, PART_ALIGNMENT);
    p->sums_at = tsr_align_up(p->scale_at + (size_t)p->whole.n_tokens * sizeof(float), PART_ALIGNMENT);
    return true;
}

/* The largest power of two up to 256 that divides all of them. */
static uint32_t alignment_of(uintptr_t address, size_t stride)
{
    uintptr_t bits = address | stride | 256;
    return (uint32_t)(bits & -bits);
}

static tsr_status set_preferences(const tsr_cublas_library *lt, const tsr_op_mul_mat *op, const product *p,
                                  cublasLtMatmulPreference_t preference)
{
    tsr_status status = TSR_OK;
    const uint64_t workspace = WORKSPACE_BYTES;
    const uint32_t w = alignment_of((uintptr_t)op->w, op->w_stride);
    const uint32_t x = alignment_of(0, (size_t)p->x_stride * sizeof(uint16_t));
    const size_t y_stride = (size_t)(p->in_place ? op->y_stride : op->n_rows) * sizeof(float);
    const uint32_t y = alignment_of(p->in_place ? (uintptr_t)op->y : 0, y_stride);
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } settings[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &w, sizeof w},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x, sizeof x},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y, sizeof y},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y, sizeof y}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        TSR_TRY(TSR_CUBLAS(lt, cublasLtMatmulPreferenceSetAttribute(preference, settings[i].attribute,
                                                                    settings[i].value, settings[i].bytes)));
out:
    return status;
}

/* Layouts and algorithm of one slab. TSR_ERR_UNSUPPORTED: the library has no algorithm. */
static tsr_status make_gemm(const tsr_cublas *cublas, const tsr_op_mul_mat *op, const product *p, gemm *g)
{
    tsr_status status = TSR_OK;
    const tsr_cublas_library *lt = &cublas->lt;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int n_found = 0;
    TSR_TRY(TSR_CUBLAS(lt, cublasLtMatrixLayoutCreate(&g->x, data_type(op->type), (uint64_t)op->k,
                                                      (uint64_t)g->n_tokens, p->x_stride)));
    TSR_TRY(TSR_CUBLAS(lt, cublasLtMatrixLayoutCreate(&g->y, CUDA_R_32F, (uint64_t)op->n_rows,
                                                      (uint64_t)g->n_tokens,
                                                      p->in_place ? op->y_stride : op->n_rows)));
    TSR_TRY(TSR_CUBLAS(lt, cublasLtMatmulPreferenceCreate(&preference)));
    TSR_TRY(set_preferences(lt, op, p, preference));
    TSR_TRY(TSR_CUBLAS(lt, cublasLtMatmulAlgoGetHeuristic(cublas->handle, p->desc, p->w, g->x, g->y, g->y,
                                                          preference, 1, &found, &n_found)));
    if (n_found == 0 || found.state != CUBLAS_STATUS_SUCCESS || found.workspaceSize > WORKSPACE_BYTES)
        TSR_TRY(tsr_fail(TSR_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for this product"));
    g->algo = found.algo;
out:
    if (preference)
        (void)lt->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static void drop_gemm(const tsr_cublas_library *lt, gemm *g)
{
    if (g->x)
        (void)lt->cublasLtMatrixLayoutDestroy(g->x);
    if (g->y)
        (void)lt->cublasLtMatrixLayoutDestroy(g->y);
}

static void drop_product(const tsr_cublas_library *lt, product *p)
{
    drop_gemm(lt, &p->whole);
    drop_gemm(lt, &p->last);
    if (p->w)
        (void)lt->cublasLtMatrixLayoutDestroy(p->w);
    if (p->desc)
        (void)lt->cublasLtMatmulDescDestroy(p->desc);
    *p = (product){0};
}

static tsr_status make_product(const tsr_cublas *cublas, const tsr_op_mul_mat *op, product *p)
{
    tsr_status status = TSR_OK;
    const tsr_cublas_library *lt = &cublas->lt;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    TSR_TRY(TSR_CUBLAS(lt, cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    TSR_TRY(TSR_CUBLAS(lt, cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                          sizeof transposed)));
    TSR_TRY(TSR_CUBLAS(lt, cublasLtMatrixLayoutCreate(&p->w, data_type(op->type), (uint64_t)op->k,
                                                      (uint64_t)op->n_rows,
                                                      (int64_t)(op->w_stride / sizeof(uint16_t)))));
    TSR_TRY(make_gemm(cublas, op, p, &p->whole));
    if (p->last.n_tokens > 0)
        TSR_TRY(make_gemm(cublas, op, p, &p->last));
    p->serves = true;
out:
    return status;
}

/* Prepare one op, or log why cuBLASLt does not compute it. */
static tsr_status add_product(const tsr_cuda_device *cuda, const tsr_op *op, product *p)
{
    const tsr_op_mul_mat *a = &op->mul_mat;
    tsr_status status = place(cuda, a, p) ? make_product(cuda->cublas, a, p)
                                          : tsr_fail(TSR_ERR_UNSUPPORTED, "too little scratch memory");
    if (status == TSR_OK)
        return TSR_OK;
    drop_product(&cuda->cublas->lt, p);
    if (status != TSR_ERR_UNSUPPORTED)
        return tsr_fail_in(status, "op '%s' (%s)", op->name ? op->name : "?", tsr_op_kind_name(op->kind));
    tsr_log(&cuda->logger, TSR_LOG_WARN,
            "device %s: TSR's own kernels multiply '%s' [%lld, %lld] by %lld tokens: %s", cuda->base.name,
            op->name ? op->name : "?", (long long)a->k, (long long)a->n_rows, (long long)a->n_tokens,
            tsr_last_error());
    tsr_fail_clear();
    return TSR_OK;
}

tsr_status tsr_cublas_products_create(tsr_cuda_device *cuda, const tsr_op *ops, int n_ops,
                                      tsr_cublas_products **products_out)
{
    tsr_status status = TSR_OK;
    tsr_cublas_products *products = NULL;
    bool any = false;
    for (int i = 0; i < n_ops; i++)
        any = any || is_wanted(cuda, &ops[i]);
    *products_out = NULL;
    if (!any)
        return TSR_OK;
    TSR_TRY(get_library(cuda));
    if (!cuda->cublas->handle)
        return TSR_OK;
    TSR_TRY(TSR_NEW(&products, "cuBLASLt products"));
    products->cublas = cuda->cublas;
    TSR_TRY(tsr_mem_array((size_t)n_ops, sizeof *products->list, "cuBLASLt products", &products->list));
    products->n_ops = n_ops;
    for (int i = 0; i < n_ops; i++)
        if (is_wanted(cuda, &ops[i]))
            TSR_TRY(add_product(cuda, &ops[i], &products->list[i]));
    *products_out = products;
    products = NULL;
out:
    tsr_cublas_products_destroy(products);
    return status;
}

void tsr_cublas_products_destroy(tsr_cublas_products *products)
{
    if (!products)
        return;
    for (int i = 0; i < products->n_ops; i++)
        drop_product(&products->cublas->lt, &products->list[i]);
    tsr_mem_free(products->list);
    tsr_mem_free(products);
}

bool tsr_cublas_serves(const tsr_cublas_products *products, int index)
{
    return products && products->list[index].serves;
}

/* -- running -- */

static tsr_status launch_slab(const tsr_cublas *cublas, const product *p, const tsr_op_mul_mat *op,
                              const gemm *g, int64_t first, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    unsigned char *scratch = s->scratch;
    const float one = 1.0f, zero = 0.0f;
    const bool bf16 = op->partial && op->reduce == TSR_REDUCE_BF16;
    uint16_t *x = (uint16_t *)(scratch + p->x_at);
    float *scale = op->type == TSR_TYPE_F16 ? (float *)(scratch + p->scale_at) : NULL;
    unsigned char *y =
        (unsigned char *)op->y + (size_t)(first * op->y_stride) * (bf16 ? sizeof(uint16_t) : sizeof(float));
    float *sums = p->in_place ? (float *)y : (float *)(scratch + p->sums_at);
    TSR_TRY(tsr_cublas_convert(op->type, op->x + first * op->x_stride, op->x_stride, op->k, g->n_tokens, x,
                               p->x_stride, scale, s));
    TSR_TRY(TSR_CUBLAS(&cublas->lt,
                       cublasLtMatmul(cublas->handle, p->desc, &one, op->w, p->w, x, g->x, &zero, sums, g->y,
                                      sums, g->y, &g->algo, scratch, WORKSPACE_BYTES, s->stream)));
    if (scale || !p->in_place)
        TSR_TRY(tsr_cublas_finish(sums, p->in_place ? op->y_stride : op->n_rows, scale, op->n_rows,
                                  g->n_tokens, y, op->y_stride, bf16, s));
out:
    return status;
}

tsr_status tsr_cublas_launch(const tsr_cublas_products *products, int index, const tsr_op_mul_mat *op,
                             const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    const product *p = &products->list[index];
    for (int64_t first = 0; first < op->n_tokens && status == TSR_OK; first += p->whole.n_tokens) {
        bool is_last = op->n_tokens - first < p->whole.n_tokens;
        status = launch_slab(products->cublas, p, op, is_last ? &p->last : &p->whole, first, s);
    }
    return status;
}
