/* plugins/device/cpu/kernels/attention/product_body.h -- of attention: the small product of eight rows, whose sums stay
 * in registers. Included by attention_body.h only. An operand is one number or several of neighbouring k. */

#if CPU_VECTOR == 16
#define TILE_ROWS INT64_C(8) /* with two registers each, sixteen of 32 hold sums */
#else
#define TILE_ROWS INT64_C(4)
#endif
#define TILE_VECS INT64_C(2)

/* c (TILE_ROWS, vecs) = or += sum over k < depth of a[r * ar + k * ak] * b[k * bk ..] */
CPU_INLINE void tile_product(float *c, int64_t cr, const operand *a, int64_t ar, int64_t ak, const operand *b,
                             int64_t bk, int64_t depth, bool add, const int64_t vecs)
{
    cpu_vec s[TILE_ROWS][TILE_VECS];

    CPU_UNROLL for (int64_t r = 0; r < TILE_ROWS; r++)
    {
        CPU_UNROLL for (int64_t v = 0; v < vecs; v++) s[r][v] =
            add ? vec_load(c + r * cr + v * CPU_VECTOR) : (cpu_vec){0};
    }
    for (int64_t k = 0; k < depth; k++, a += ak, b += bk) {
        operand_vec x[TILE_VECS];
        CPU_UNROLL for (int64_t v = 0; v < vecs; v++) x[v] = operand_load(b + v * CPU_VECTOR);
        CPU_UNROLL for (int64_t r = 0; r < TILE_ROWS; r++)
        {
            operand_vec y = operand_spread(a[r * ar]);
            CPU_UNROLL for (int64_t v = 0; v < vecs; v++) s[r][v] = operand_fma(y, x[v], s[r][v]);
        }
    }
    CPU_UNROLL for (int64_t r = 0; r < TILE_ROWS; r++)
    {
        CPU_UNROLL for (int64_t v = 0; v < vecs; v++) vec_store(c + r * cr + v * CPU_VECTOR, s[r][v]);
    }
}

/* Eight rows of c, n columns, a multiple of sixteen; depth: numbers. */
static void group_product(float *c, int64_t cr, const operand *a, int64_t ar, int64_t ak, const operand *b, int64_t bk,
                          int64_t depth, int64_t n, bool add)
{
    depth = DEPTH_OF(depth);
    for (int64_t r = 0; r < GROUP; r += TILE_ROWS) {
        int64_t j = 0;
        for (; j + TILE_VECS * CPU_VECTOR <= n; j += TILE_VECS * CPU_VECTOR)
            tile_product(c + r * cr + j, cr, a + r * ar, ar, ak, b + j, bk, depth, add, TILE_VECS);
        for (; j < n; j += CPU_VECTOR) tile_product(c + r * cr + j, cr, a + r * ar, ar, ak, b + j, bk, depth, add, 1);
    }
}
