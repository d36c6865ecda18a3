/* plugins/device/cpu/kernels/peak_body.h -- what the CPU is measured with: multiply-adds that never wait for each
 * other or for memory, and a pass over memory that only reads. Included by kernels_body.h only. */

/* Rows of four vectors that are in flight: enough for two units and more with their latency, and no more than
 * registers. */
#if CPU_VECTOR < 16 && defined(__x86_64__)
enum { CHAIN_ROWS = 3 };
#else
enum { CHAIN_ROWS = 6 };
#endif

CPU_INLINE cpu_vec chain_step(cpu_vec c, cpu_vec a, cpu_vec b)
{
#if CPU_VECTOR >= 8 || defined(__ARM_FEATURE_FMA)
    return vec_fma(c, a, b);
#else
    return c * a + b; /* without the instruction fmaf is a function of the C library */
#endif
}

/* Of equal chains a compiler would make one: each starts elsewhere. */
static double fma_chains(int64_t rounds, float *keep)
{
    cpu_vec a = vec_load(keep), b = a + 0.5f, c[CHAIN_ROWS][4];

    CPU_UNROLL for (int64_t r = 0; r < CHAIN_ROWS; r++) CPU_UNROLL for (int64_t v = 0; v < 4; v++) c[r][v] =
        b + (float)(4 * r + v);
    for (int64_t i = 0; i < rounds; i++)
        CPU_UNROLL for (int64_t r = 0; r < CHAIN_ROWS; r++) CPU_UNROLL for (int64_t v = 0; v < 4; v++) c[r][v] =
            chain_step(c[r][v], a, b);
    CPU_UNROLL for (int64_t r = 0; r < CHAIN_ROWS; r++) CPU_UNROLL for (int64_t v = 0; v < 4; v++) b += c[r][v];
    vec_store(keep + CPU_VECTOR, b);
    return (double)(rounds * CHAIN_ROWS * 4) * 2.0 * CPU_VECTOR;
}

static void read_through(const float *x, int64_t n, float *keep)
{
    cpu_vec sum[8] = {{0}};

    for (int64_t i = 0; i + INT64_C(8) * CPU_VECTOR <= n; i += INT64_C(8) * CPU_VECTOR)
        CPU_UNROLL for (int64_t v = 0; v < 8; v++) sum[v] += vec_load(x + i + v * CPU_VECTOR);
    CPU_UNROLL for (int64_t v = 1; v < 8; v++) sum[0] += sum[v];
    vec_store(keep + CPU_VECTOR, sum[0]);
}
