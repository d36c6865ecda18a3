/* plugins/device/cpu/kernels/product/product.c -- see product.h. In f32: blocks of the left side, packed once each,
 * stay in the second cache; a panel of the right side, packed when it is first needed, in the first; sums in
 * registers (product_body.h). A thread computes a stretch of rows and columns with room of its own for both. */
#include "cpu.h"

#define SERIAL_FLOPS 4e6 /* below, waking another thread costs more */

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */
typedef struct job {
    const cpu_half_kernels *half;
    const cpu_product *p;
    char *blocks;
    uint64_t block_bytes;
    int64_t slots;
} job;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t times(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
static uint64_t lines(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t slots_of(const ddp_device *d, const cpu_product *p)
{
    int64_t panels = (p->n + CPU_HALF_PANEL - 1) / CPU_HALF_PANEL;

    if (2.0 * (double)p->m * (double)p->n * (double)p->k < SERIAL_FLOPS) return 1;
    return panels < (int64_t)d->threads ? panels : (int64_t)d->threads;
}

static uint64_t half_scratch(const ddp_device *d, const cpu_product *p)
{
    return lines(d->half->left_bytes(p)) + (uint64_t)slots_of(d, p) * lines(d->half->right_bytes(p));
}

static void prepare_piece(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->half->prepare(j->p, first, last);
}

static void run_slots(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;
    int64_t panels = (j->p->n + CPU_HALF_PANEL - 1) / CPU_HALF_PANEL;

    for (int64_t s = first; s < last; s++) {
        int64_t from = panels * s / j->slots * CPU_HALF_PANEL, to = panels * (s + 1) / j->slots * CPU_HALF_PANEL;
        j->half->run(j->p, from, to < j->p->n ? to : j->p->n, j->blocks + (uint64_t)s * j->block_bytes);
    }
}

static void half_run(const ddp_device *d, cpu_product *p, void *scratch)
{
    job j = {.half = d->half, .p = p, .slots = slots_of(d, p)};

    p->left_packed = scratch;
    j.blocks = (char *)scratch + lines(d->half->left_bytes(p));
    j.block_bytes = lines(d->half->right_bytes(p));
    cpu_parallel(j.slots > 1 ? d->threads : 1, d->half->prepare_count(p), 16, prepare_piece, &j);
    cpu_parallel(d->threads, j.slots, 1, run_slots, &j);
}

/* ---- f32, and bf16 without instructions for it: operands are rounded once they are packed ------------------------ */
enum {
    DEPTH = 256,          /* of k at which block_rows of the left side, and a panel of the right one, fill a cache */
    WIDEST = 2048,        /* columns whose packed right side is kept for the next rows */
    PACKED = 8,           /* panels of the right side that are packed, and whose columns are finished, together */
    PAST_CACHES = 8 << 20 /* bytes of a result */
};

/* How the work is cut: `down` times `across` pieces. A piece packs blocks of `tall` rows of the left side, and of
 * `wide` columns of the right one, whose panels are kept where there are more rows than one block. */
typedef struct cut {
    int64_t down, across, tall, wide, depth, panels;
    bool kept; /* the right side, for the next rows */
} cut;

/* Panels of a stretch that is cut into `parts`, and in the largest of them. */
static int64_t share(int64_t n, int64_t unit, int64_t parts)
{
    return times(times(n, unit), parts > 1 ? parts : 1) * unit;
}

/* Pieces for the threads: those whose largest has the least to multiply and to pack. */
static void cut_pieces(const ddp_device *d, const cpu_product *p, cut *c)
{
    const cpu_product_kernels *f = &d->kernels->product;
    const int64_t threads = 2.0 * (double)p->m * (double)p->n * (double)p->k < SERIAL_FLOPS ? 1 : (int64_t)d->threads;
    double least_cost = 0;

    for (int64_t across = 1; across <= threads; across++) {
        const int64_t down = threads / across;
        const double rows = (double)share(p->m, f->rows, down), cols = (double)share(p->n, f->cols, across);
        const double cost = rows * cols + 16 * (rows + cols);
        if (across > 1 && cost >= least_cost) continue;
        least_cost = cost;
        c->down = least(down, times(p->m, f->rows));
        c->across = least(across, times(p->n, f->cols));
    }
}

static cut cut_of(const ddp_device *d, const cpu_product *p)
{
    const cpu_product_kernels *f = &d->kernels->product;
    const int64_t parts = p->k > f->depth ? times(p->k, f->depth) : 1, depth = (times(p->k, parts) + 7) / 8 * 8;
    cut c = {.depth = depth};
    int64_t rows, cols;

    cut_pieces(d, p, &c);
    rows = share(p->m, f->rows, c.down);
    cols = share(p->n, f->cols, c.across);
    c.tall = share(rows, f->rows, times(rows, d->block_rows * DEPTH / depth));
    c.wide = share(cols, f->cols, times(cols, WIDEST));
    c.kept = rows > c.tall;
    c.panels = c.kept ? times(c.wide, PACKED * f->cols) * PACKED : PACKED;
    return c;
}

static int64_t left_size(const cpu_product_kernels *f, const cut *c)
{
    return c->tall / f->rows * cpu_product_stride(f->rows, c->depth);
}

/* Of a piece: packed blocks of both sides, and a part of a side before it is packed. */
typedef struct parts {
    float *left, *right, *laid;
} parts;

/* Whether a side is no matrix of f32, and so first written as one, a part at a time. */
static bool is_laid(const cpu_side *s) { return s->half || s->windows != NULL; }

/* What a part of a side takes as a matrix: of the right one, which has more. */
static int64_t laid_size(const cpu_product_kernels *f, const cpu_product *p, const cut *c)
{
    return is_laid(&p->left) || is_laid(&p->right) ? PACKED * f->cols * c->depth : 0;
}

static uint64_t room_of(const ddp_device *d, const cpu_product *p, const cut *c)
{
    const cpu_product_kernels *f = &d->kernels->product;
    const int64_t panel = cpu_product_stride(f->cols, c->depth);

    return lines((uint64_t)(left_size(f, c) + c->panels * panel + laid_size(f, p, c)) * sizeof(float));
}

typedef struct f32_job {
    const ddp_device *d;
    const cpu_product *p;
    cut c;
    char *rooms;
} f32_job;

/* A stretch of rows and columns of the result, and of k. */
typedef struct stretch {
    int64_t row, rows, col, cols, k, depth;
} stretch;

/* The bias and the activation of columns whose sums are whole, while they are in the cache. */
static void finish(const cpu_kernels *f, const cpu_product *p, float *y, const stretch *s, int64_t col, int64_t cols)
{
    for (int64_t r = s->row; r < s->row + s->rows; r++) {
        float *from = y + r * p->stride + col, *to = p->activated != NULL ? p->activated + r * p->stride + col : from;
        f->bias_act(to, from, p->bias != NULL ? p->bias + col : NULL, 1, cols, p->activated != NULL ? p->act : 0);
    }
}

/* Lines line .. line + lines - 1, k .. k + depth - 1 of them, as a matrix (lines, depth), or turned, (depth, lines). */
static void lay(const cpu_kernels *f, const cpu_side *s, int64_t line, int64_t lines, int64_t k, int64_t depth,
                float *to)
{
    const int64_t row = s->turned ? k : line, rows = s->turned ? depth : lines, first = s->turned ? line : k,
                  length = s->turned ? lines : depth;

    if (s->windows != NULL) {
        f->image.windows(to, length, s->at, s->windows, row, rows, first, first + length);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        f->widen_bf16(to + i * length, (const uint16_t *)s->at + (row + i) * s->stride + first, length);
}

/* Panels of `count` lines of a side; `room`: of (count, depth). */
static void pack(const f32_job *j, const cpu_side *s, bool is_left, int64_t line, int64_t count, int64_t k,
                 int64_t depth, float *room, float *to)
{
    const cpu_kernels *f = j->d->kernels;
    const int64_t width = is_left ? f->product.rows : f->product.cols;
    const float *from = room;
    int64_t along = s->turned ? 1 : depth, down = s->turned ? count : 1;

    if (is_laid(s)) {
        lay(f, s, line, count, k, depth, room);
    } else {
        along = s->turned ? 1 : s->stride;
        down = s->turned ? s->stride : 1;
        from = (const float *)s->at + line * along + k * down;
    }
    (is_left ? f->product.pack_left : f->product.pack_right)(to, from, along, down, count, depth);
    if (j->d->bf16 && !s->half) f->round_bf16(to, to, times(count, width) * cpu_product_stride(width, depth));
}

/* What is laid first goes by in parts that stay in the first cache. */
static void pack_left(const f32_job *j, const stretch *s, float *room, float *to)
{
    const int64_t width = j->d->kernels->product.rows, part = is_laid(&j->p->left) ? 4 * width : s->rows;

    for (int64_t i = 0; i < s->rows; i += part)
        pack(j, &j->p->left, true, s->row + i, least(part, s->rows - i), s->k, s->depth, room,
             to + i / width * cpu_product_stride(width, s->depth));
}

/* Sets, adds to what is there, or past the caches, where the result is too large for them. */
static int how_of(const cpu_product *p, const stretch *s)
{
    if (p->add || s->k > 0) return CPU_PRODUCT_ADD;
    if (s->depth < p->k || p->activated != NULL || p->bias != NULL) return CPU_PRODUCT_SET;
    return p->m * p->n * (int64_t)sizeof(float) >= PAST_CACHES && p->stride % 16 == 0 && (uintptr_t)p->plain % 64 == 0
               ? CPU_PRODUCT_PAST
               : CPU_PRODUCT_SET;
}

/* One block of the left side with all columns; `first`: of the rows, which packs the right side. */
static void run_block(const f32_job *j, const stretch *s, const parts *room, bool first)
{
    const cpu_product_kernels *f = &j->d->kernels->product;
    const cpu_product *p = j->p;
    const int64_t next = cpu_product_stride(f->cols, s->depth), packed = PACKED * f->cols,
                  together = least(PACKED, times(DEPTH, s->depth)) * f->cols;
    float *y = p->plain != NULL ? p->plain : p->activated, *right = room->right;
    const bool last = s->k + s->depth == p->k && (p->bias != NULL || p->activated != NULL);

    pack_left(j, s, room->laid, room->left);
    for (int64_t g = 0; g < s->cols; g += packed) {
        const int64_t col = s->col + g, cols = least(packed, s->cols - g);

        if (first) pack(j, &p->right, false, col, cols, s->k, s->depth, room->laid, right);
        for (int64_t i = 0; i < cols; i += together)
            f->panels(y + s->row * p->stride + col + i, p->stride, room->left, right + i / f->cols * next, s->depth,
                      s->rows, least(together, cols - i), how_of(p, s));
        if (j->c.kept) right += PACKED * next;
        if (last) finish(j->d->kernels, p, y, s, col, cols);
    }
}

/* Bounds of part `i` of `count`, in whole units. */
static void part(int64_t n, int64_t unit, int64_t i, int64_t count, int64_t *first, int64_t *length)
{
    const int64_t units = times(n, unit);

    *first = units * i / count * unit;
    *length = least(units * (i + 1) / count * unit, n) - *first;
}

static void run_piece(const f32_job *j, int64_t row, int64_t rows, int64_t col, int64_t cols, float *room)
{
    const cpu_product_kernels *f = &j->d->kernels->product;
    const cut *c = &j->c;
    parts in = {.left = room, .right = room + left_size(f, c)};
    stretch s;

    in.laid = in.right + c->panels * cpu_product_stride(f->cols, c->depth);
    for (s.col = col; s.col < col + cols; s.col += s.cols) {
        s.cols = least(c->wide, col + cols - s.col);
        for (s.k = 0; s.k < j->p->k; s.k += s.depth) {
            s.depth = least(c->depth, j->p->k - s.k);
            for (s.row = row; s.row < row + rows; s.row += s.rows) {
                s.rows = least(c->tall, row + rows - s.row);
                run_block(j, &s, &in, s.row == row);
            }
        }
    }
}

static void run_pieces(void *ctx, int64_t first, int64_t last)
{
    const f32_job *j = ctx;
    const cpu_product_kernels *f = &j->d->kernels->product;

    for (int64_t i = first; i < last; i++) {
        int64_t row, rows, col, cols;

        part(j->p->m, f->rows, i / j->c.across, j->c.down, &row, &rows);
        part(j->p->n, f->cols, i % j->c.across, j->c.across, &col, &cols);
        run_piece(j, row, rows, col, cols, (float *)(void *)(j->rooms + (uint64_t)i * room_of(j->d, j->p, &j->c)));
    }
}

/* The kernels for bf16 take matrices alone. */
static bool by_half(const ddp_device *d, const cpu_product *p)
{
    return d->half != NULL && p->left.windows == NULL && p->right.windows == NULL && p->stride == p->n;
}

uint64_t cpu_product_scratch(const ddp_device *d, const cpu_product *p)
{
    const cut c = cut_of(d, p);

    return by_half(d, p) ? half_scratch(d, p) : (uint64_t)(c.down * c.across) * room_of(d, p, &c);
}

void cpu_product_run(const ddp_device *d, cpu_product *p, void *scratch)
{
    f32_job j = {.d = d, .p = p, .c = cut_of(d, p), .rooms = scratch};

    if (by_half(d, p))
        half_run(d, p, scratch);
    else
        cpu_parallel(d->threads, j.c.down * j.c.across, 1, run_pieces, &j);
}

/* ---- linear layers ----------------------------------------------------------------------------------------------- */
cpu_product cpu_product_forward(int64_t rows, int64_t in, int64_t out, bool transposed, const float *x, const void *w)
{
    return (cpu_product){.stride = out,
                         .m = rows,
                         .n = out,
                         .k = in,
                         .left = {.at = x, .stride = in},
                         .right = {.at = w, .stride = transposed ? out : in, .turned = transposed}};
}

cpu_product cpu_product_grad_input(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                   const void *w, float *dx)
{
    return (cpu_product){.stride = in,
                         .m = rows,
                         .n = in,
                         .k = out,
                         .left = {.at = dy, .stride = out},
                         .right = {.at = w, .stride = transposed ? out : in, .turned = !transposed},
                         .plain = dx};
}

cpu_product cpu_product_grad_weight(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                    const float *x, float *dw, bool add)
{
    const cpu_side g = {.at = dy, .stride = out, .turned = true}, from = {.at = x, .stride = in, .turned = true};

    return (cpu_product){.stride = transposed ? out : in,
                         .m = transposed ? in : out,
                         .n = transposed ? out : in,
                         .k = rows,
                         .left = transposed ? from : g,
                         .right = transposed ? g : from,
                         .plain = dw,
                         .add = add};
}
