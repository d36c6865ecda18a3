/* plugins/backend/common/bf16.h -- bfloat16 as uint16_t, to and from float. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float ddp_bf16_load(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Round to nearest even; a NaN stays one. Without a branch, so that loops over it are vectorised. */
static inline uint16_t ddp_bf16_store(float f)
{
    uint32_t bits, nan, even;

    memcpy(&bits, &f, sizeof(bits));
    nan = (bits >> 16) | 0x40u;
    even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : even);
}
