/* A handful of kernels, a few lines each, to test what runs kernels: host devices and communicators. They use
 * the ops' records freely; what each one does is said below. */
#ifndef TSR_TESTS_TINY_KERNELS_H
#define TSR_TESTS_TINY_KERNELS_H

#include <stdio.h>
#include <time.h>

#include "core/quant/half.h"
#include "host/device.h"

/* A number that depends on every bit of both arguments (the finalizer of MurmurHash3). */
static inline uint64_t tiny_hash(uint64_t seed, uint64_t i)
{
    uint64_t h = seed * 0x9e3779b97f4a7c15u + i + 1;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

static inline int64_t tiny_partial_i64(uint64_t seed, int64_t i)
{
    return (int64_t)tiny_hash(seed, (uint64_t)i) >> 6; /* within +-2^57: 32 of them cannot wrap */
}

static inline float tiny_partial_f32(uint64_t seed, int64_t i)
{
    return (float)((int64_t)tiny_hash(seed, (uint64_t)i) >> 40) / 4096.0f;
}

/* SCALE: y[i] = factor * x[n - 1 - i]: reads what other threads wrote, in pieces of shares. */
static inline void tiny_scale(const tsr_op *op, const tsr_kernel_env *env)
{
    enum { CHUNK = 8 };
    const tsr_op_scale *a = &op->scale;
    for (int64_t piece; (piece = tsr_kernel_next_piece(env, (a->n + CHUNK - 1) / CHUNK)) >= 0;)
        for (int64_t i = piece * CHUNK; i < a->n && i < (piece + 1) * CHUNK; i++)
            a->y[i] = a->factor * a->x[a->n - 1 - i];
}

/* MUL_MAT: fill y with n_rows partials of the reduce type. The seed is k plus the number at x (if any). A
 * limit below zero raises the range fault instead, on the team's last thread. */
static inline void tiny_fill(const tsr_op *op, const tsr_kernel_env *env)
{
    const tsr_op_mul_mat *a = &op->mul_mat;
    uint64_t seed = (uint64_t)a->k + (a->x ? (uint64_t)*a->x : 0);
    if (a->limit < 0.0f) {
        if (env->thread == env->n_threads - 1)
            atomic_store(env->range_fault, 1);
        return;
    }
    for (int64_t i = env->thread; i < a->n_rows; i += env->n_threads) {
        if (a->reduce == TSR_REDUCE_EXACT)
            ((int64_t *)a->y)[i] = tiny_partial_i64(seed, i);
        else if (a->reduce == TSR_REDUCE_BF16)
            ((uint16_t *)a->y)[i] = tsr_f32_to_bf16(tiny_partial_f32(seed, i));
        else
            ((float *)a->y)[i] = tiny_partial_f32(seed, i);
    }
}

/* ADD: y[i] = a[i] + b[i], by stripes. */
static inline void tiny_add(const tsr_op *op, const tsr_kernel_env *env)
{
    const tsr_op_add *a = &op->add;
    for (int64_t i = env->thread; i < a->n; i += env->n_threads)
        a->y[i] = a->a[i] + a->b[i];
}

/* SOFTMAX: sleep n milliseconds. */
static inline void tiny_sleep(const tsr_op *op, const tsr_kernel_env *env)
{
    (void)env;
    struct timespec pause = {op->softmax.n / 1000, op->softmax.n % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static const tsr_kernel_set tiny_kernels = {
    .isa = "tiny",
    .scratch_bytes = 100,
    .run =
        {
            [TSR_OP_SCALE] = tiny_scale,
            [TSR_OP_MUL_MAT] = tiny_fill,
            [TSR_OP_ADD] = tiny_add,
            [TSR_OP_SOFTMAX] = tiny_sleep,
        },
};

/* A host device with these kernels; fails the test if it cannot be made. */
static inline tsr_device *tiny_device(int index, int n_threads, int total_threads)
{
    char name[16];
    snprintf(name, sizeof name, "host:%d", index);
    tsr_host_device_config config = {
        .name = name,
        .index = index,
        .n_threads = n_threads,
        .total_threads = total_threads,
        .numa_node = -1,
        .kernels = &tiny_kernels,
    };
    tsr_device *device = NULL;
    assert_int_equal(tsr_host_device_create(&config, &device), TSR_OK);
    return device;
}

#endif
