/* The activations of gated FFNs. */
#ifndef TSR_CUDA_KERNELS_GLU_CUH
#define TSR_CUDA_KERNELS_GLU_CUH

#include "cuda/kernels/common.cuh"

/* x / (1 + e^-x) */
TSR_DEVICE float tsr_silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* x / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u): no cancellation. */
TSR_DEVICE float tsr_gelu_tanh(float x)
{
    const float cubic = fmaf(x * x * 0.044715f, x, x);
    return x / (1.0f + expf(cubic * (-2.0f * 0.797884561f)));
}

/* A NaN stays a NaN. */
TSR_DEVICE float tsr_at_most(float x, float limit)
{
    return x > limit ? limit : x;
}

TSR_DEVICE float tsr_within(float x, float limit)
{
    const float below = tsr_at_most(x, limit);
    return below < -limit ? -limit : below;
}

/* x / (1 + e^(-A x)) with x limited from above; a NaN stays a NaN. */
TSR_DEVICE float tsr_clamped_silu(float x)
{
    const float g = tsr_at_most(x, TSR_GLU_LIMIT);
    return g / (1.0f + expf(-TSR_GLU_ALPHA * g));
}

/* The factor of x in GELU. */
TSR_DEVICE float tsr_gelu_gate(float x)
{
    const float cubic = fmaf(x * x * 0.044715f, x, x);
    return 1.0f / (1.0f + expf(cubic * (-2.0f * 0.797884561f)));
}

/* A NaN stays a NaN. */
TSR_DEVICE float tsr_relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}

TSR_DEVICE float tsr_glu_activation(tsr_glu_kind kind, float x, float limit)
{
    return kind == TSR_GLU_SILU        ? tsr_silu(x)
           : kind == TSR_GLU_GELU_TANH ? tsr_gelu_tanh(x)
           : kind == TSR_GLU_CLAMPED   ? tsr_clamped_silu(x)
           : kind == TSR_GLU_GELU_GATE ? tsr_gelu_gate(x)
           : kind == TSR_GLU_SIGMOID   ? 1.0f / (1.0f + expf(-x))
           : kind == TSR_GLU_CAPPED    ? tsr_at_most(tsr_silu(x), limit)
           : kind == TSR_GLU_PLAIN     ? x
           : kind == TSR_GLU_BOUNDED   ? tsr_silu(tsr_at_most(x, limit))
                                       : tsr_relu(x);
}

/* The factor of an activation. */
TSR_DEVICE float tsr_glu_factor(tsr_glu_kind kind, float up, float limit)
{
    return kind == TSR_GLU_CLAMPED                             ? tsr_within(up, TSR_GLU_LIMIT) + 1.0f
           : kind == TSR_GLU_CAPPED || kind == TSR_GLU_BOUNDED ? tsr_within(up, limit)
                                                               : up;
}

#endif
