/* plugins/device/cpu/kernels/turn_body.h -- words of 32 bits in registers of AVX-512, transposed. */
#pragma once

/* to[j * width + i] = x[i][j], sixteen by sixteen words */
CPU_INLINE void turn16(uint32_t *to, int64_t width, const __m512i x[16])
{
    __m512i a[16], b[16];

    CPU_UNROLL for (int64_t i = 0; i < 16; i += 2)
    {
        b[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    CPU_UNROLL for (int64_t i = 0; i < 16; i += 4)
    {
        CPU_UNROLL for (int64_t j = 0; j < 2; j++)
        {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    }
    CPU_UNROLL for (int64_t i = 0; i < 16; i += 8)
    {
        CPU_UNROLL for (int64_t j = 0; j < 4; j++)
        {
            b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
            b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xdd);
        }
    }
    CPU_UNROLL for (int64_t j = 0; j < 8; j++)
    {
        _mm512_storeu_si512(to + j * width, _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88));
        _mm512_storeu_si512(to + (j + 8) * width, _mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd));
    }
}
