/* The activations of gated FFNs. */
#ifndef TSR_CUDA_GLU_CUH
#define TSR_CUDA_GLU_CUH

#include "cuda/common.cuh"

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

TSR_DEVICE float tsr_glu_activation(tsr_glu_kind kind, float x)
{
    return kind == TSR_GLU_SILU ? tsr_silu(x) : tsr_gelu_tanh(x);
}

#endif
