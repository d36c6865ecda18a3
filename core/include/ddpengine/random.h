/* ddpengine/random.h -- Philox4x32-10: 128 random bits from a counter and a key, with no state.
 *
 * Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; known answers in
 * tests/unit/dataset/test_synthetic.c. */
#ifndef DDPENGINE_RANDOM_H
#define DDPENGINE_RANDOM_H

#include <stdint.h>

static inline void ddp_philox4x32(const uint32_t counter[4], uint64_t key, uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    int round;

    for (round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
