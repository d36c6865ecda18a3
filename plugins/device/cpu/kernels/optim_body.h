/* plugins/device/cpu/kernels/optim_body.h -- parameter updates and reductions over a flat slice. Included by
 * kernels_body.h only.
 *
 * Operation for operation what torch.optim.SGD, Adam and AdamW do on a CPU (add with alpha and addcmul are fused
 * multiply-adds there, addcdiv is not), so that one update from the same state gives PyTorch's bits. */

/* `first` and `nesterov` are constants where it is inlined, so that the loop has no branch. */
static inline __attribute__((always_inline)) void momentum(const cpu_update *u, float *restrict p, float *restrict buf,
                                                           const float *restrict g, int64_t n, bool first,
                                                           bool nesterov)
{
    const float scale = u->grad_scale, wd = u->weight_decay, lr = u->minus_lr, mu = u->momentum;

    for (int64_t i = 0; i < n; i++) {
        float d = fmaf(wd, p[i], g[i] * scale);
        float b = first ? d : buf[i] * mu + d; /* torch clones the first gradient */
        buf[i] = b;
        p[i] = fmaf(lr, nesterov ? fmaf(mu, b, d) : b, p[i]);
    }
}

static void sgd(const cpu_update *u, float *restrict p, float *restrict buf, const float *restrict g, int64_t n)
{
    const float scale = u->grad_scale, wd = u->weight_decay, lr = u->minus_lr;

    if (!u->momentum_on) {
        for (int64_t i = 0; i < n; i++) p[i] = fmaf(lr, fmaf(wd, p[i], g[i] * scale), p[i]);
    } else if (u->first) {
        if (u->nesterov)
            momentum(u, p, buf, g, n, true, true);
        else
            momentum(u, p, buf, g, n, true, false);
    } else {
        if (u->nesterov)
            momentum(u, p, buf, g, n, false, true);
        else
            momentum(u, p, buf, g, n, false, false);
    }
}

static void adam(const cpu_update *u, float *restrict p, float *restrict m, float *restrict v, const float *restrict g,
                 int64_t n)
{
    const float scale = u->grad_scale, b1 = u->beta1, c1 = u->one_minus_beta1, b2 = u->beta2, c2 = u->one_minus_beta2;
    const float step = u->minus_step, root = u->root_bias2, eps = u->eps;
    const float shrink = u->algorithm == DDP_OPTIM_ADAMW ? u->shrink : 1.0f;
    const float wd = u->algorithm == DDP_OPTIM_ADAMW ? 0.0f : u->weight_decay;

    for (int64_t i = 0; i < n; i++) {
        float q = p[i] * shrink;
        float d = fmaf(wd, q, g[i] * scale);
        float m1 = fmaf(d, c1, m[i] * b1);
        float v1 = fmaf(d * c2, d, v[i] * b2);
        float denominator = sqrtf(v1) / root + eps;
        m[i] = m1;
        v[i] = v1;
        p[i] = q + step * m1 / denominator;
    }
}

static void update(const cpu_update *u, float *param, float *state1, float *state2, const float *grad, int64_t n)
{
    if (u->algorithm == DDP_OPTIM_SGD)
        sgd(u, param, state1, grad, n);
    else
        adam(u, param, state1, state2, grad, n);
}

/* By a half, a quarter .. the product has the bits of the quotient. */
static void mean(float *restrict y, const float *const *x, uint32_t count, int64_t n)
{
    const float *a = x[0], *b = x[count > 1 ? 1 : 0];
    const bool exact = (count & (count - 1)) == 0;
    const float by = exact ? 1.0f / (float)count : (float)count;

    if (count == 2) {
        for (int64_t i = 0; i < n; i++) y[i] = (a[i] + b[i]) * 0.5f;
        return;
    }
    for (int64_t i = 0; i < n; i++) y[i] = a[i];
    for (uint32_t k = 1; k < count; k++) {
        const float *from = x[k];
        for (int64_t i = 0; i < n; i++) y[i] += from[i];
    }
    if (exact) {
        for (int64_t i = 0; i < n; i++) y[i] *= by;
    } else {
        for (int64_t i = 0; i < n; i++) y[i] /= by;
    }
}

static void copy_past(float *y, const float *x, int64_t n)
{
    int64_t i = 0;

#if CPU_VECTOR == 16
    for (; i + 16 <= n; i += 16) _mm512_stream_ps(y + i, _mm512_loadu_ps(x + i));
    _mm_sfence();
#endif
    if (i < n) memcpy(y + i, x + i, (size_t)(n - i) * sizeof(*y));
}

#define FINITE_CHUNK 4096

/* Chunk by chunk the exponents' highest value, then the offset within the first bad chunk. */
static int64_t first_not_finite(const float *x, int64_t n)
{
    for (int64_t first = 0; first < n; first += FINITE_CHUNK) {
        int64_t count = n - first < FINITE_CHUNK ? n - first : FINITE_CHUNK;
        uint32_t highest = 0;
        for (int64_t i = 0; i < count; i++) {
            uint32_t e = cpu_to_bits(x[first + i]) & 0x7f800000u;
            highest = e > highest ? e : highest;
        }
        if (highest != 0x7f800000u) continue;
        for (int64_t i = first; i < n; i++)
            if ((cpu_to_bits(x[i]) & 0x7f800000u) == 0x7f800000u) return i;
    }
    return n;
}

static double sum_squares(const float *x, int64_t n)
{
    double lane[16] = {0}, sum = 0.0;
    int64_t i = 0;

    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) lane[l] += (double)x[i + l] * (double)x[i + l]; /* the product is exact */
    for (int l = 0; i < n; i++, l++) lane[l] += (double)x[i] * (double)x[i];
    for (int l = 0; l < 16; l++) sum += lane[l];
    return sum;
}
