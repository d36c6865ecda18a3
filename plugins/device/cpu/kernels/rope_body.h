/* plugins/device/cpu/kernels/rope_body.h -- the rotary position embedding. Included by kernels_body.h only.
 *
 * The cosines of a position are computed once for all heads, and not kept: they cost less than reading a table. */

static void rope(const cpu_rope *p, float *y, const float *x, int64_t first, int64_t last)
{
    const int64_t half = p->size / 2, wide = p->heads * p->size;
    float cosine[CPU_ROPE_PAIRS], sine[CPU_ROPE_PAIRS];

    for (int64_t r = first; r < last; r++) {
        const int64_t t = r % p->length;
        const float at = (float)(p->position == NULL ? t : p->starts ? p->position[r / p->length] + t : p->position[r]);
        const float *frequency = p->frequency;
        const float cos_scale = p->scaling, sin_scale = p->scaling * p->direction;

        MAP(half, sine[i] = cpu_sin_cos(at * frequency[i], &cosine[i]))
        MAP(half, cosine[i] *= cos_scale)
        MAP(half, sine[i] *= sin_scale)
        for (int64_t h = 0; h < p->heads; h++) {
            const float *a = x + r * wide + h * p->size, *b = a + half;
            float *to = y + r * wide + h * p->size, *other = to + half;
            MAP_LOOP for (int64_t i = 0; i < half; i++)
            {
                const float u = a[i], v = b[i];
                to[i] = fmaf(u, cosine[i], -(v * sine[i]));
                other[i] = fmaf(v, cosine[i], u * sine[i]);
            }
        }
    }
}
