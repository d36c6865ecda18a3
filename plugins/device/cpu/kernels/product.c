/* plugins/device/cpu/kernels/product.c -- see product.h. In f32: blocks of the right side, packed once each, stay in the
 * second cache; a panel of the left side, packed as it is needed, in the first; sums in registers (product_body.h). A
 * thread computes a stretch of columns or rows with room of its own for both. */
#include "cpu.h"

#define SERIAL_FLOPS 4e6 /* below, waking another thread costs more */

/* ---- bf16 --------------------------------------------------------------------------------------------------------- */
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

/* ---- f32 --------------------------------------------------------------------------------------------------------- */
enum { DEPTH = 256, PANEL = 16 * DEPTH, STRETCH = 64 };

/* How the work is cut: `down` times `across` pieces, each of which packs blocks of at most `wide` columns. */
typedef struct cut {
    int64_t down, across, wide, depth;
} cut;

static cut cut_of(const ddp_device *d, const cpu_product *p)
{
    const cpu_product_kernels *f = &d->kernels->product;
    const int64_t threads = 2.0 * (double)p->m * (double)p->n * (double)p->k < SERIAL_FLOPS ? 1 : (int64_t)d->threads;
    cut c = {.across = least(threads, times(p->n, STRETCH))};
    int64_t columns;

    c.down = least(threads / c.across, times(p->m, f->rows));
    c.depth = (times(p->k, times(p->k, DEPTH)) + 7) / 8 * 8;
    columns = times(times(p->n, f->cols), c.across) * f->cols;
    c.wide = times(times(columns, f->cols), times(columns, d->block_columns)) * f->cols;
    return c;
}

static uint64_t room_of(const cut *c) { return lines((uint64_t)(PANEL + c->depth * c->wide) * sizeof(float)); }

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

static const float *at(const cpu_side *s, int64_t line, int64_t k)
{
    return (const float *)s->at + (s->turned ? k * s->stride + line : line * s->stride + k);
}

static int64_t along(const cpu_side *s) { return s->turned ? 1 : s->stride; }
static int64_t down(const cpu_side *s) { return s->turned ? s->stride : 1; }

/* The bias and the activation of rows whose sums are whole, while they are in the cache. */
static void finish(const cpu_kernels *f, const cpu_product *p, float *y, const stretch *s, int64_t row, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        float *from = y + (row + r) * p->n + s->col;
        float *to = p->activated != NULL ? p->activated + (row + r) * p->n + s->col : from;
        f->bias_act(to, from, p->bias != NULL ? p->bias + s->col : NULL, 1, s->cols, p->activated != NULL ? p->act : 0);
    }
}

/* One block of the right side with all rows. */
static void run_block(const f32_job *j, const stretch *s, float *room)
{
    const cpu_product_kernels *f = &j->d->kernels->product;
    const cpu_product *p = j->p;
    float *y = p->plain != NULL ? p->plain : p->activated, *right = room + PANEL;
    const bool last = s->k + s->depth == p->k && (p->bias != NULL || p->activated != NULL);

    f->pack_right(right, at(&p->right, s->col, s->k), along(&p->right), down(&p->right), s->cols, s->depth);
    for (int64_t i = s->row; i < s->row + s->rows; i += f->rows) {
        const int64_t rows = least(f->rows, s->row + s->rows - i);

        f->pack_left(room, at(&p->left, i, s->k), along(&p->left), down(&p->left), rows, s->depth);
        f->row(y + i * p->n + s->col, p->n, room, right, s->depth, rows, s->cols, p->add || s->k > 0);
        if (last) finish(j->d->kernels, p, y, s, i, rows);
    }
}

/* Bounds of part `i` of `count`, in whole units. */
static void part(int64_t n, int64_t unit, int64_t i, int64_t count, int64_t *first, int64_t *length)
{
    const int64_t units = times(n, unit);

    *first = units * i / count * unit;
    *length = least(units * (i + 1) / count * unit, n) - *first;
}

static void run_pieces(void *ctx, int64_t first, int64_t last)
{
    const f32_job *j = ctx;
    const cpu_product_kernels *f = &j->d->kernels->product;

    for (int64_t i = first; i < last; i++) {
        float *room = (float *)(void *)(j->rooms + (uint64_t)i * room_of(&j->c));
        stretch s;
        int64_t col, cols;

        part(j->p->m, f->rows, i / j->c.across, j->c.down, &s.row, &s.rows);
        part(j->p->n, f->cols, i % j->c.across, j->c.across, &col, &cols);
        for (s.col = col; s.col < col + cols; s.col += s.cols) {
            s.cols = least(j->c.wide, col + cols - s.col);
            for (s.k = 0; s.k < j->p->k; s.k += s.depth) {
                s.depth = least(j->c.depth, j->p->k - s.k);
                run_block(j, &s, room);
            }
        }
    }
}

uint64_t cpu_product_scratch(const ddp_device *d, const cpu_product *p)
{
    const cut c = cut_of(d, p);

    return d->half != NULL ? half_scratch(d, p) : (uint64_t)(c.down * c.across) * room_of(&c);
}

void cpu_product_run(const ddp_device *d, cpu_product *p, void *scratch)
{
    f32_job j = {.d = d, .p = p, .c = cut_of(d, p), .rooms = scratch};

    if (d->half != NULL)
        half_run(d, p, scratch);
    else
        cpu_parallel(d->threads, j.c.down * j.c.across, 1, run_pieces, &j);
}

/* ---- linear layers ----------------------------------------------------------------------------------------------- */
cpu_product cpu_product_forward(int64_t rows, int64_t in, int64_t out, bool transposed, const float *x, const void *w)
{
    return (cpu_product){.m = rows,
                         .n = out,
                         .k = in,
                         .left = {.at = x, .stride = in},
                         .right = {.at = w, .stride = transposed ? out : in, .turned = transposed}};
}

cpu_product cpu_product_grad_input(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                   const void *w, float *dx)
{
    return (cpu_product){.m = rows,
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

    return (cpu_product){.m = transposed ? in : out,
                         .n = transposed ? out : in,
                         .k = rows,
                         .left = transposed ? from : g,
                         .right = transposed ? g : from,
                         .plain = dw,
                         .add = add};
}
