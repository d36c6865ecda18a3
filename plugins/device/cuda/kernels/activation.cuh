/* plugins/device/cuda/kernels/activation.cuh -- relu, gelu and silu, and their slopes. */
#pragma once

#include "load.cuh"

/* x / 2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3); this is -2u. */
static __device__ __forceinline__ float tanh_power(float x)
{
    return -2.0f * 0.7978845608028654f * x * fmaf(x * x, 0.044715f, 1.0f);
}

static __device__ __forceinline__ float tanh_slope(float x)
{
    float v, e, s, du2;

    x = x > 15.0f ? 15.0f : x; /* beyond, the slope is 0 or 1; no inf * 0 */
    x = x < -15.0f ? -15.0f : x;
    v = tanh_power(x);
    e = cu_exp(v > 87.0f ? 87.0f : v);
    s = 1.0f / (1.0f + e);
    du2 = 2.0f * 0.7978845608028654f * fmaf(x * x, 3.0f * 0.044715f, 1.0f); /* d(2u)/dx */
    return fmaf(x * s * (e * s), du2, s);
}

/* The normal distribution below x; erfc keeps the lower tail's digits. */
static __device__ __forceinline__ float normal(float x) { return 0.5f * erfcf(x * -0.7071067811865476f); }

static __device__ __forceinline__ float silu_slope(float x)
{
    float s;

    x = x > 80.0f ? 80.0f : x; /* beyond, the slope is 0 or 1; no inf * 0 */
    x = x < -80.0f ? -80.0f : x;
    s = 1.0f / (1.0f + cu_exp(-x));
    return fmaf(x, 1.0f - s, 1.0f) * s;
}

template <int ACT> static __device__ __forceinline__ float activate(float x)
{
    if (ACT == CU_ACT_RELU) return x <= 0.0f ? 0.0f : x;
    if (ACT == CU_ACT_GELU_TANH) return x / (1.0f + cu_exp(tanh_power(x)));
    if (ACT == CU_ACT_GELU_ERF) return x * normal(x);
    if (ACT == CU_ACT_SILU) return x / (1.0f + cu_exp(-x));
    return x;
}

template <int ACT> struct act_grad_of {
    __device__ __forceinline__ float operator()(float dy, float saved) const
    {
        if (ACT == CU_ACT_RELU) return saved <= 0.0f ? 0.0f : dy;
        if (ACT == CU_ACT_SILU) return dy * silu_slope(saved);
        if (ACT == CU_ACT_GELU_TANH) return dy * tanh_slope(saved);
        if (ACT == CU_ACT_GELU_ERF)
            return dy * fmaf(saved * expf(-0.5f * saved * saved), 0.3989422804014327f, normal(saved));
        return dy;
    }
};
