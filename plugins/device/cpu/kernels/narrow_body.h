/* plugins/device/cpu/kernels/narrow_body.h -- products with a matrix of few columns, as those of a low-rank adapter: in
 * f32, by attention's kernel of eight rows. Included by kernels_body.h only, after attention. All take multiples: rows
 * of eight, the rank of eight, the other sizes of sixteen. Each sum has one order: the same bits on every CPU. */

#define NARROW_ROWS INT64_C(64) /* that stay in the cache while each column is summed */

/* z (rows, rank) = x (rows, k) w, w (k, rank up to a multiple of 16) */
static void narrow_in(float *z, const float *x, const float *w, int64_t rows, int64_t k, int64_t rank)
{
    const int64_t wide = (rank + 15) / 16 * 16;
    float c[GROUP * CPU_NARROW];

    for (int64_t r = 0; r < rows; r += GROUP) {
        group_product(c, wide, x + r * k, k, 1, w, wide, k, wide, false);
        for (int64_t i = 0; i < GROUP; i++) memcpy(z + (r + i) * rank, c + i * wide, (size_t)rank * sizeof(*z));
    }
}

/* y (rows, n) = base + z (rows, rank) w, w (rank, n); base NULL: 0. y may be base. */
static void narrow_out(float *y, const float *base, const float *z, const float *w, int64_t rows, int64_t n,
                       int64_t rank)
{
    for (int64_t r = 0; r < rows; r += GROUP) {
        if (base != NULL && base != y) memcpy(y + r * n, base + r * n, (size_t)(GROUP * n) * sizeof(*y));
        group_product(y + r * n, n, z + r * rank, rank, 1, w, n, rank, n, base != NULL);
    }
}

/* Columns first .. last - 1 of dw (rank, n) = or += z^T (rank, rows) x (rows, n) */
static void narrow_outer(float *dw, const float *z, const float *x, int64_t rows, int64_t n, int64_t rank,
                         int64_t first, int64_t last, bool add)
{
    for (int64_t t = 0; t < rows; t += NARROW_ROWS)
        for (int64_t r = 0; r < rank; r += GROUP)
            group_product(dw + r * n + first, n, z + t * rank + r, 1, rank, x + t * n + first, n,
                          rows - t < NARROW_ROWS ? rows - t : NARROW_ROWS, last - first, add || t > 0);
}
