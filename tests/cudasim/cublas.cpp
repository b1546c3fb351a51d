/* The simulated cuBLASLt: D = alpha A^T B + beta C of matrices in 16 bits, column-major, with sums in f32.
 *
 * What the library leaves to its caller is a rule here: an algorithm serves the shapes, types, leading
 * dimensions and alignments that it was asked for and no others; its workspace is as large as it said and
 * overlaps nothing (it is overwritten); matrices are in memory of the handle's GPU or of the host; the handle
 * is used with streams of its own GPU. Sums are made in double, so that no order of theirs is relied on. */
#include <string.h>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "sim.h"

using namespace cudasim;

struct cublasLtContext {
    int device;
};
struct cublasLtDesc {
    int transposed[2];
};
struct cublasLtLayout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t leading;
};
struct cublasLtPreference {
    uint64_t workspace;
    uint32_t alignment[4]; /* of A, B, C, D */
};

namespace
{

/* What an algorithm was made for, inside cublasLtMatmulAlgo_t. */
struct Algo {
    uint64_t rows, columns, sum;
    uint64_t a_leading, b_leading, d_leading;
    uint64_t workspace;
    uint8_t log_alignment[4];
    uint32_t type;
};
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm has 64 bytes");

const uint64_t WORKSPACE = 1 << 20; /* what every algorithm wants, if it may have it */

bool absent; /* under the machine's lock */
uint64_t absent_generation;

cublasStatus_t result_of(const Call &call)
{
    return call.injected() != 0 ? (cublasStatus_t)call.injected() : CUBLAS_STATUS_EXECUTION_FAILED;
}

template <typename T> cublasStatus_t make(const char *name, T **out, const T &value)
{
    Call call(name, CALL_QUIET, CUBLAS_STATUS_ALLOC_FAILED);
    if (call.failed())
        return result_of(call);
    *out = new T(value);
    machine().cublas_objects.insert(*out);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> cublasStatus_t drop(const char *name, T *object)
{
    Call call(name, CALL_QUIET | CALL_RELEASE, CUBLAS_STATUS_INTERNAL_ERROR);
    if (machine().cublas_objects.erase(object) == 0) {
        violate("%s: there is no such object", name);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    delete object;
    return call.injected() != 0 ? result_of(call) : CUBLAS_STATUS_SUCCESS;
}

bool exists(const void *object)
{
    return machine().cublas_objects.count(const_cast<void *>(object)) != 0;
}

uint8_t log_of(uint32_t alignment)
{
    return (uint8_t)__builtin_ctz(alignment == 0 ? 1 : alignment);
}

Algo describe(const cublasLtLayout &a, const cublasLtLayout &b, const cublasLtLayout &d)
{
    Algo algo = {};
    algo.rows = d.rows;
    algo.columns = d.columns;
    algo.sum = a.rows;
    algo.a_leading = (uint64_t)a.leading;
    algo.b_leading = (uint64_t)b.leading;
    algo.d_leading = (uint64_t)d.leading;
    algo.type = (uint32_t)a.type;
    return algo;
}

bool shapes_fit(const cublasLtDesc &desc, const cublasLtLayout &a, const cublasLtLayout &b,
                const cublasLtLayout &d)
{
    return desc.transposed[0] && !desc.transposed[1] && a.type == b.type && a.type != CUDA_R_32F &&
           d.type == CUDA_R_32F && a.rows == b.rows && a.columns == d.rows && b.columns == d.columns &&
           (uint64_t)a.leading >= a.rows && (uint64_t)b.leading >= b.rows && (uint64_t)d.leading >= d.rows;
}

size_t extent(const cublasLtLayout &layout)
{
    const size_t element = layout.type == CUDA_R_32F ? 4 : 2;
    return ((layout.columns - 1) * (size_t)layout.leading + layout.rows) * element;
}

/* Allocated, aligned as promised, and not another GPU's. */
bool place_ok(const char *what, const void *pointer, size_t bytes, uint8_t log_alignment, int device)
{
    const Region *region = region_of(pointer);
    if ((uintptr_t)pointer % ((uintptr_t)1 << log_alignment) != 0)
        violate("cublasLtMatmul: %s at %p is less aligned than its algorithm was asked for", what, pointer);
    else if (!range_ok(pointer, bytes) || region == NULL)
        violate("cublasLtMatmul: %s, %zu bytes at %p, is not allocated", what, bytes, pointer);
    else if (!region->is_host() && region->device != device)
        violate("cublasLtMatmul: %s at %p is memory of device %d, not %d", what, pointer, region->device,
                device);
    else
        return true;
    return false;
}

float value_at(const std::vector<uint16_t> &matrix, size_t i, cudaDataType_t type)
{
    return type == CUDA_R_16F ? __half2float(__ushort_as_half(matrix[i]))
                              : __bfloat162float(__ushort_as_bfloat16(matrix[i]));
}

std::vector<uint16_t> fetch(const void *from, const cublasLtLayout &layout)
{
    std::vector<uint16_t> matrix(extent(layout) / 2);
    copy_bytes(matrix.data(), from, extent(layout));
    return matrix;
}

struct Product {
    const void *a, *b;
    void *d;
    cublasLtLayout a_layout, b_layout, d_layout;
    float alpha;
    void *workspace;
    size_t workspace_bytes;
};

cudaError_t multiply(const Product &p)
{
    if (!range_ok(p.a, extent(p.a_layout)) || !range_ok(p.b, extent(p.b_layout)) ||
        !range_ok(p.d, extent(p.d_layout)))
        return cudaErrorIllegalAddress;
    const std::vector<uint16_t> a = fetch(p.a, p.a_layout), b = fetch(p.b, p.b_layout);
    if (p.workspace_bytes > 0)
        set_bytes(p.workspace, 0xa5, p.workspace_bytes);
    std::vector<float> wide(p.a_layout.rows), column(p.d_layout.rows);
    for (size_t j = 0; j < p.d_layout.columns; j++) {
        for (size_t k = 0; k < wide.size(); k++)
            wide[k] = value_at(b, j * (size_t)p.b_layout.leading + k, p.b_layout.type);
        for (size_t i = 0; i < column.size(); i++) {
            double sum = 0;
            for (size_t k = 0; k < wide.size(); k++)
                sum += (double)value_at(a, i * (size_t)p.a_layout.leading + k, p.a_layout.type) * wide[k];
            column[i] = (float)(p.alpha * sum);
        }
        copy_bytes((float *)p.d + j * (size_t)p.d_layout.leading, column.data(),
                   column.size() * sizeof(float));
    }
    return cudaSuccess;
}

} // namespace

void cudasim_remove_cublas(void)
{
    absent = true;
    absent_generation = machine().generation;
}

bool cudasim_cublas_has(const char *name)
{
    const bool has = !absent || absent_generation != machine().generation;
    return has && (strcmp(name, "libcublasLt.so.13") == 0 || strcmp(name, "libcublasLt.so.12") == 0);
}

size_t cublasLtGetVersion(void)
{
    return 130100;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return make("cublasLtCreate", handle, cublasLtContext{current_device()->ordinal});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return drop("cublasLtDestroy", handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return make("cublasLtMatmulDescCreate", desc, cublasLtDesc{});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return drop("cublasLtMatmulDescDestroy", desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes)
{
    Call call("cublasLtMatmulDescSetAttribute", CALL_QUIET, CUBLAS_STATUS_INVALID_VALUE);
    if (call.failed())
        return result_of(call);
    cublasOperation_t operation;
    if (!exists(desc) || bytes != sizeof operation)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&operation, value, sizeof operation);
    desc->transposed[attribute == CUBLASLT_MATMUL_DESC_TRANSB] = operation == CUBLAS_OP_T;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t leading)
{
    return make("cublasLtMatrixLayoutCreate", layout, cublasLtLayout{type, rows, columns, leading});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return drop("cublasLtMatrixLayoutDestroy", layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    return make("cublasLtMatmulPreferenceCreate", preference, cublasLtPreference{0, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return drop("cublasLtMatmulPreferenceDestroy", preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    Call call("cublasLtMatmulPreferenceSetAttribute", CALL_QUIET, CUBLAS_STATUS_INVALID_VALUE);
    if (call.failed())
        return result_of(call);
    const bool workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (!exists(preference) || bytes != (workspace ? sizeof(uint64_t) : sizeof(uint32_t)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace)
        memcpy(&preference->workspace, value, bytes);
    else
        memcpy(&preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* As the library, which wants 16-bit matrices at even places and has nothing for what is less aligned. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *n_results)
{
    Call call("cublasLtMatmulAlgoGetHeuristic", CALL_QUIET | CALL_CONTEXT, CUBLAS_STATUS_INTERNAL_ERROR);
    if (call.failed())
        return result_of(call);
    *n_results = 0;
    if (n_wanted < 1 || !exists(handle) || !exists(desc) || !exists(a) || !exists(b) || !exists(d) ||
        c != d || !exists(preference) || !shapes_fit(*desc, *a, *b, *d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (forbidden_by_capture())
        violate("cublasLtMatmulAlgoGetHeuristic: belongs before a capture");
    const uint32_t *alignment = preference->alignment;
    if (alignment[0] < 2 || alignment[1] < 2 || alignment[3] < 4)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    Algo algo = describe(*a, *b, *d);
    algo.workspace = preference->workspace < WORKSPACE ? preference->workspace : WORKSPACE;
    for (int i = 0; i < 4; i++)
        algo.log_alignment[i] = log_of(alignment[i]);
    memset(results, 0, sizeof *results);
    memcpy(&results->algo, &algo, sizeof algo);
    results->workspaceSize = algo.workspace;
    *n_results = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    Call call("cublasLtMatmul", CALL_QUIET | CALL_CONTEXT, CUBLAS_STATUS_EXECUTION_FAILED);
    if (call.failed())
        return result_of(call);
    stream = find_stream(stream);
    if (stream == NULL || !exists(handle) || !exists(desc) || !exists(a_layout) || !exists(b_layout) ||
        !exists(d_layout) || c_layout != d_layout || c != d || *(const float *)beta != 0.0f)
        return CUBLAS_STATUS_INVALID_VALUE;
    Algo made_for, asked = describe(*a_layout, *b_layout, *d_layout);
    memcpy(&made_for, algo, sizeof made_for);
    asked.workspace = made_for.workspace;
    memcpy(asked.log_alignment, made_for.log_alignment, sizeof asked.log_alignment);
    if (memcmp(&made_for, &asked, sizeof asked) != 0 || stream->device != handle->device) {
        violate("cublasLtMatmul: the algorithm is for another product, or the handle for another device");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const int device = handle->device;
    const size_t d_bytes = extent(*d_layout);
    if (!place_ok("A", a, extent(*a_layout), made_for.log_alignment[0], device) ||
        !place_ok("B", b, extent(*b_layout), made_for.log_alignment[1], device) ||
        !place_ok("D", d, d_bytes, made_for.log_alignment[3], device) ||
        !place_ok("the workspace", workspace, made_for.workspace, 8, device))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_bytes < made_for.workspace) {
        violate("cublasLtMatmul: a workspace of %zu bytes, %zu are needed", workspace_bytes,
                (size_t)made_for.workspace);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const Product product = {
        a, b, d, *a_layout, *b_layout, *d_layout, *(const float *)alpha, workspace, workspace_bytes};
    auto body = std::make_shared<Body>();
    body->kind = Body::ACTION;
    body->device = device;
    body->name = "cublasLtMatmul";
    body->action = [product] { return multiply(product); };
    return enqueue(stream, body, NULL) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                      : CUBLAS_STATUS_EXECUTION_FAILED;
}
