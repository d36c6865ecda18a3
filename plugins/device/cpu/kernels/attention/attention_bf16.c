/* plugins/device/cpu/kernels/attention/attention_bf16.c -- attention whose products are of bf16 numbers with sums in
 * f32, for CPUs with AVX512_BF16. The softmax, its log-sum-exp and its gradient are in f32, as those of PyTorch's SDPA
 * under autocast. The headers come before the pragma: nothing of theirs may need AVX-512. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <ddpengine/device.h>
#include "kernels/product/half.h"
#include "kernels/kernels.h"
#include "kernels/loops.h"

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 11)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))),        \
                             apply_to = function)
#else
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")
#endif
#define CPU_VECTOR 16
#include "kernels/vector_body.h"
#include "kernels/math_body.h"
#include "kernels/dropout_body.h"
#include "kernels/attention/head_body.h"
#include "kernels/attention/operands_bf16_body.h"
#include "kernels/attention/attention_body.h"

const cpu_attention_kernels cpu_attention_bf16 = ATTENTION_TABLE;
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
