/* plugins/device/cpu/kernels/dropout_body.h -- dropout by Philox 4x32-10 ("Parallel random numbers: as easy as 1, 2,
 * 3", Salmon et al., 2011), whose words come by position. Included by kernels_body.h and attention/attention_bf16.c
 * only. */

/* Sixteen blocks at once: the words of blocks first .. first + 15 in order. */
#if CPU_VECTOR == 16
/* Words stand in the low halves of 64-bit lanes, where the product finds them; what is in the high ones does not
 * matter. */
static void philox16(uint32_t *out, const ddp_random *random, uint32_t place, uint64_t first)
{
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i low = _mm512_set1_epi64(0xFFFFFFFF), order = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i high = _mm512_add_epi64(order, _mm512_set1_epi64(4));
    uint32_t k0 = (uint32_t)random->seed, k1 = (uint32_t)(random->seed >> 32);
    __m512i c0[2], c1[2], c2[2], c3[2];

    for (int64_t h = 0; h < 2; h++) {
        __m512i lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
        c0[h] = _mm512_add_epi64(_mm512_set1_epi64((int64_t)first + 8 * h), lane);
        c1[h] = _mm512_xor_si512(_mm512_set1_epi64(place), _mm512_slli_epi64(_mm512_srli_epi64(c0[h], 32), 16));
        c2[h] = _mm512_set1_epi64((int64_t)random->stream);
        c3[h] = _mm512_srli_epi64(c2[h], 32);
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int64_t h = 0; h < 2; h++) {
            __m512i a = _mm512_mul_epu32(m0, c0[h]), b = _mm512_mul_epu32(m1, c2[h]);
            c0[h] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(b, 32), c1[h], _mm512_set1_epi64(k0), 0x96);
            c2[h] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), c3[h], _mm512_set1_epi64(k1), 0x96);
            c1[h] = b;
            c3[h] = a;
        }
    for (int64_t h = 0; h < 2; h++) {
        __m512i l = _mm512_ternarylogic_epi64(low, c0[h], _mm512_slli_epi64(c1[h], 32), 0xEA); /* (low & c0) | c1 */
        __m512i r = _mm512_ternarylogic_epi64(low, c2[h], _mm512_slli_epi64(c3[h], 32), 0xEA);
        _mm512_storeu_si512(out + 32 * h, _mm512_permutex2var_epi64(l, order, r));
        _mm512_storeu_si512(out + 32 * h + 16, _mm512_permutex2var_epi64(l, high, r));
    }
}
#else
static void philox16(uint32_t *out, const ddp_random *random, uint32_t place, uint64_t first)
{
    uint32_t c0[16], c1[16], c2[16], c3[16], k0 = (uint32_t)random->seed, k1 = (uint32_t)(random->seed >> 32);

    for (int64_t l = 0; l < 16; l++) {
        uint64_t block = first + (uint64_t)l;
        c0[l] = (uint32_t)block;
        c1[l] = place ^ (uint32_t)(block >> 32) << 16;
        c2[l] = (uint32_t)random->stream;
        c3[l] = (uint32_t)(random->stream >> 32);
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int64_t l = 0; l < 16; l++) {
            uint64_t a = (uint64_t)0xD2511F53u * c0[l], b = (uint64_t)0xCD9E8D57u * c2[l];
            c0[l] = (uint32_t)(b >> 32) ^ c1[l] ^ k0;
            c1[l] = (uint32_t)b;
            c2[l] = (uint32_t)(a >> 32) ^ c3[l] ^ k1;
            c3[l] = (uint32_t)a;
        }
    for (int64_t l = 0; l < 16; l++) {
        out[4 * l] = c0[l];
        out[4 * l + 1] = c1[l];
        out[4 * l + 2] = c2[l];
        out[4 * l + 3] = c3[l];
    }
}
#endif

/* Elements first .. first + n - 1 of the op, at y and x. */
static void dropout(float *y, const float *x, const cpu_mask *m, uint64_t first, int64_t n)
{
    const uint32_t threshold = m->threshold;
    const float scale = m->scale;
    uint32_t words[64];

    for (int64_t skip = (int64_t)(first % 4), done = 0, count; done < n; done += count, skip = 0) {
        const float *from = x + done;
        const uint32_t *word = words + skip;
        float *to = y + done;
        count = n - done < 64 - skip ? n - done : 64 - skip;
        philox16(words, &m->random, m->place, (first + (uint64_t)done) / 4);
        MAP(count, to[i] = word[i] < threshold ? 0.0f : from[i] * scale)
    }
}
