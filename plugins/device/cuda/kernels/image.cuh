/* plugins/device/cuda/kernels/image.cuh -- what the kernels over images share: vectors of channels, and the choice
 * of their width. */
#pragma once

#include "load.cuh"

/* How a thread sees channels: WIDE of them in one access of 16 bytes where all arrays are of one type, aligned, and
 * c is a multiple of WIDE; else one by one, each array with its own type. */
struct cu_wide_f32 {
    typedef float type;
    static constexpr int WIDE = 4;
};
struct cu_wide_bf16 {
    typedef cu_bf16 type;
    static constexpr int WIDE = 8;
};
struct cu_one_by_one {
    typedef void type;
    static constexpr int WIDE = 1;
};

/* Elements i .. i + WIDE - 1. */
template <class L> static __device__ __forceinline__ void cu_fetch(cu_view x, int64_t i, float (&v)[L::WIDE])
{
    if constexpr (L::WIDE == 1)
        v[0] = cu_get(x, i);
    else
        cu_load(static_cast<const typename L::type *>(x.at) + i, v);
}
template <class L> static __device__ __forceinline__ void cu_keep(cu_view y, int64_t i, const float (&v)[L::WIDE])
{
    if constexpr (L::WIDE == 1)
        cu_put(y, i, v[0]);
    else
        cu_store(static_cast<typename L::type *>(y.at) + i, v);
}

static inline bool cu_all_wide(const cu_view *views, int count, uint32_t type, int64_t c)
{
    if (c % (type == CU_BF16 ? cu_wide_bf16::WIDE : cu_wide_f32::WIDE) != 0) return false;
    for (int i = 0; i < count; i++)
        if (views[i].at != NULL && (views[i].type != type || !cu_aligned(views[i].at, 16))) return false;
    return true;
}

/* Calls f with what `views`, of which the first is there, allow. */
template <int N, class F> static inline cudaError_t cu_by_width(const cu_view (&views)[N], int64_t c, F f)
{
    if (!cu_all_wide(views, N, views[0].type, c)) return f(cu_one_by_one());
    return views[0].type == CU_BF16 ? f(cu_wide_bf16()) : f(cu_wide_f32());
}
