/* base/mt19937.c -- the generator behind torch.Generator on the CPU, and draws from it whose bits this project
 * promises: uniform floats and permutations; normal floats are in normal.c. Needs nothing of the core, so that the
 * sampler plugin compiles it too.
 *
 * Sources: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998), and the behaviour of PyTorch 1.13
 * and later; tests/parity/make/make_vectors.py stores what PyTorch gives. */
#include "base/mt19937.h"
#include <math.h>
#include <stddef.h>

enum { STATE_WORDS = 624, SHIFT = 397 };

void ddp_mt19937_seed(ddp_mt19937 *g, uint64_t seed)
{
    g->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < STATE_WORDS; i++) {
        uint32_t last = g->state[i - 1];
        g->state[i] = 1812433253u * (last ^ (last >> 30)) + i;
    }
    g->next = STATE_WORDS;
    g->has_kept = 0;
}

/* The recurrence for one word: the upper bit of `high`, the lower 31 of `low`. */
static inline uint32_t twist(uint32_t high, uint32_t low, uint32_t far)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);

    return far ^ (y >> 1) ^ ((low & 1u) ? 0x9908b0dfu : 0u);
}

static void refill(ddp_mt19937 *g)
{
    uint32_t *s = g->state;
    uint32_t i = 0;

    for (; i < STATE_WORDS - SHIFT; i++) s[i] = twist(s[i], s[i + 1], s[i + SHIFT]);
    for (; i < STATE_WORDS - 1; i++) s[i] = twist(s[i], s[i + 1], s[i + SHIFT - STATE_WORDS]);
    s[i] = twist(s[i], s[0], s[SHIFT - 1]);
    g->next = 0;
}

uint32_t base_mt19937_next(ddp_mt19937 *g)
{
    uint32_t y;

    if (g->next >= STATE_WORDS) refill(g);
    y = g->state[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

void ddp_mt19937_skip(ddp_mt19937 *g, uint64_t words)
{
    for (; words > STATE_WORDS - g->next; refill(g)) words -= STATE_WORDS - g->next;
    g->next += (uint32_t)words;
}

/* CPUGeneratorImpl::random64: the first draw is the high half. */
static uint64_t next64(ddp_mt19937 *g)
{
    uint64_t high = base_mt19937_next(g);

    return high << 32 | base_mt19937_next(g);
}

void ddp_mt19937_uniform(ddp_mt19937 *g, float *out, uint64_t count, double from, double to)
{
    float low = (float)from, width = (float)to - low;

    /* PyTorch writes u * width + low; its AVX2 build contracts that to one rounding, here it is written out */
    for (uint64_t i = 0; i < count; i++) {
        float u = (float)(base_mt19937_next(g) & 0xffffffu) * 0x1p-24f;
        out[i] = fmaf(u, width, low);
    }
}

static inline void swap_indices(uint64_t *a, uint64_t *b)
{
    uint64_t kept = *a;

    *a = *b;
    *b = kept;
}

void ddp_mt19937_permutation(ddp_mt19937 *g, uint64_t *out, uint64_t count)
{
    /* From this length on PyTorch 2 draws 64 bits and shuffles inside out, since 32 bits would be visibly biased. */
    if (count >= UINT32_MAX / 20) {
        for (uint64_t i = 0; i < count; i++) {
            uint64_t at = next64(g) % (i + 1);
            out[i] = i;
            swap_indices(&out[i], &out[at]);
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) out[i] = i;
    for (uint64_t i = 0; i + 1 < count; i++) {
        uint64_t step = base_mt19937_next(g) % (uint32_t)(count - i);
        swap_indices(&out[i], &out[i + step]);
    }
}
