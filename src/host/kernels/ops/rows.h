/* get_rows, copy, kv_write: ops that move rows between types. */
#ifndef TSR_HOST_KERNELS_OPS_ROWS_H
#define TSR_HOST_KERNELS_OPS_ROWS_H

#include "core/quant/fixed.h"
#include "core/quant/quant.h"
#include "host/kernel_set.h"
#include "host/kernels/ops/elementwise.h"
#include "host/kernels/quant/weights.h"

/* -- get_rows -- */

enum { GET_ROWS_PIECE = 1024 }; /* columns decoded at a time: a multiple of every block */

/* Store n decoded elements at position `at` of the output, in its format. */
static void get_rows_put(const tsr_op_get_rows *op, int64_t at, const float *values, int64_t n, bool *fault)
{
    if (!op->partial || op->reduce == TSR_REDUCE_F32) {
        memcpy((float *)op->y + at, values, (size_t)n * sizeof(float));
        return;
    }
    if (op->reduce == TSR_REDUCE_BF16) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)op->y)[at + i] = tsr_f32_to_bf16(values[i]);
        return;
    }
    int64_t *y = (int64_t *)op->y + at;
    for (int64_t i = 0; i < n; i++) {
        const bool ok = tsr_fixed_in_range(values[i], op->limit);
        y[i] = tsr_fixed_from_f32(ok ? values[i] : 0.0f);
        *fault |= !ok;
    }
}

static void get_rows_piece(const tsr_op_get_rows *op, int64_t j, int64_t column, bool *fault)
{
    const int64_t n = op->n_cols - column < GET_ROWS_PIECE ? op->n_cols - column : GET_ROWS_PIECE;
    const int64_t id = op->ids[j];
    float values[GET_ROWS_PIECE] = {0};
    if (id >= op->row_begin && id < op->row_end) {
        const unsigned char *row =
            (const unsigned char *)op->table + (size_t)(id - op->row_begin) * op->table_stride;
        decode_row(op->type, row + elems_bytes(op->type, column), n, values);
    }
    get_rows_put(op, j * op->n_cols + column, values, n, fault);
}

static void kernel_get_rows(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_get_rows *op = &record->get_rows;
    const int64_t pieces = (op->n_cols + GET_ROWS_PIECE - 1) / GET_ROWS_PIECE;
    const range part = thread_part(env, op->n_ids * pieces, 1);
    bool fault = false;
    for (int64_t i = part.begin; i < part.end; i++)
        get_rows_piece(op, i / pieces, i % pieces * GET_ROWS_PIECE, &fault);
    if (fault)
        atomic_store_explicit(env->range_fault, 1, memory_order_relaxed);
}

/* -- f32 rows to another type -- */

static void encode_f16(const float *x, unsigned char *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store_f16(y + 2 * i, v16_load(x + i));
    for (; i < n; i++) {
        const uint16_t half = tsr_f32_to_f16(x[i]);
        memcpy(y + 2 * i, &half, sizeof half);
    }
}

static void encode_bf16(const float *x, unsigned char *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint16_t half = tsr_f32_to_bf16(x[i]);
        memcpy(y + 2 * i, &half, sizeof half);
    }
}

/* Encode n elements (whole blocks) with the bits of core's encoders. Other types are refused when a program
 * is created. */
static void encode_row(tsr_type type, const float *x, void *y, int64_t n)
{
    switch (type) {
    case TSR_TYPE_F32:
        memcpy(y, x, (size_t)n * sizeof(float));
        break;
    case TSR_TYPE_F16:
        encode_f16(x, y, n);
        break;
    case TSR_TYPE_BF16:
        encode_bf16(x, y, n);
        break;
    case TSR_TYPE_Q8_0:
        tsr_quant_encode_q8_0(x, y, n / TSR_QUANT_BLOCK);
        break;
    case TSR_TYPE_Q4_0:
        tsr_quant_encode_q4_0(x, y, n / TSR_QUANT_BLOCK);
        break;
    default:
        break;
    }
}

static void kernel_copy(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_copy *op = &record->copy;
    const range rows = thread_part(env, op->n_rows, 1);
    for (int64_t r = rows.begin; r < rows.end; r++)
        encode_row(op->dst_type, op->x + r * op->x_stride, (char *)op->y + (size_t)r * op->y_stride, op->n);
}

/* -- kv_write -- */

/* The address of the key (or value) of token t, KV head h. */
static unsigned char *kv_row(const tsr_kv_view *kv, const tsr_kv_index *index, int64_t seq_row,
                             int64_t position, int64_t head, size_t offset, size_t row_bytes)
{
    const int64_t page = index->page_table[seq_row * index->table_stride + position / kv->page_tokens];
    const int64_t row = head * kv->page_tokens + position % kv->page_tokens;
    return kv->base + (size_t)page * kv->page_bytes + offset + (size_t)row * row_bytes;
}

static void kernel_kv_write(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_kv_write *op = &record->kv_write;
    const tsr_kv_view *kv = &op->kv;
    const int64_t k_dim = tsr_kv_write_dim(kv);
    const range part = thread_part(env, op->n_tokens * kv->n_heads, 1);
    for (int64_t i = part.begin; i < part.end; i++) {
        const int64_t t = i / kv->n_heads, head = i % kv->n_heads;
        const int64_t seq_row = op->index.seq_row[t], position = tsr_kv_seen(kv, op->index.position[t]) - 1;
        if (kv->ratio > 1 && (op->index.position[t] + 1) % kv->ratio != 0)
            continue;
        unsigned char *key = kv_row(kv, &op->index, seq_row, position, head, kv->k_offset, kv->k_row_bytes);
        if (kv->v_in_k)
            key += elems_bytes(kv->type_k, kv->v_dim);
        encode_row(kv->type_k, op->k + i * k_dim, key, k_dim);
        encode_row(kv->type_v, op->v + i * kv->v_dim,
                   kv_row(kv, &op->index, seq_row, position, head, kv->v_offset, kv->v_row_bytes), kv->v_dim);
    }
}

#endif
