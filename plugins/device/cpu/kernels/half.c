/* plugins/device/cpu/kernels/half.c -- products in bf16 over the device's threads: scratch, cuts, and the three
 * products of a linear layer in half.h's terms.
 *
 * Operands are f32 in memory and rounded on the way, but for a right side in bf16; sums and results are f32. A thread
 * computes a stretch of columns with a block of its own for the packed right side. */
#include "cpu.h"

#define SERIAL_FLOPS 4e6 /* below, waking another thread costs more */

typedef struct job {
    const cpu_half_kernels *half;
    const cpu_half_product *p;
    char *blocks;
    uint64_t block_bytes;
    int64_t slots;
} job;

static uint64_t lines(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t slots_of(const ddp_device *d, const cpu_half_product *p)
{
    int64_t panels = (p->n + CPU_HALF_PANEL - 1) / CPU_HALF_PANEL;

    if (2.0 * (double)p->m * (double)p->n * (double)p->k < SERIAL_FLOPS) return 1;
    return panels < (int64_t)d->threads ? panels : (int64_t)d->threads;
}

uint64_t cpu_half_scratch(const ddp_device *d, const cpu_half_product *p)
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

void cpu_half_multiply(const ddp_device *d, cpu_half_product *p, void *scratch)
{
    job j = {.half = d->half, .p = p, .slots = slots_of(d, p)};

    p->left_packed = scratch;
    j.blocks = (char *)scratch + lines(d->half->left_bytes(p));
    j.block_bytes = lines(d->half->right_bytes(p));
    cpu_parallel(j.slots > 1 ? d->threads : 1, d->half->prepare_count(p), 16, prepare_piece, &j);
    cpu_parallel(d->threads, j.slots, 1, run_slots, &j);
}

/* ---- linear layers ----------------------------------------------------------------------------------------------- */
cpu_half_product cpu_half_forward(int64_t rows, int64_t in, int64_t out, bool transposed, const float *x, const void *w)
{
    return (cpu_half_product){.m = rows,
                              .n = out,
                              .k = in,
                              .left = {.at = x, .stride = in},
                              .right = {.at = w, .stride = transposed ? out : in, .turned = transposed}};
}

cpu_half_product cpu_half_grad_input(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                     const void *w, float *dx)
{
    return (cpu_half_product){.m = rows,
                              .n = in,
                              .k = out,
                              .left = {.at = dy, .stride = out},
                              .right = {.at = w, .stride = transposed ? out : in, .turned = !transposed},
                              .plain = dx};
}

cpu_half_product cpu_half_grad_weight(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                      const float *x, float *dw, bool add)
{
    const cpu_side g = {.at = dy, .stride = out, .turned = true}, from = {.at = x, .stride = in, .turned = true};

    return (cpu_half_product){.m = transposed ? in : out,
                              .n = transposed ? out : in,
                              .k = rows,
                              .left = transposed ? from : g,
                              .right = transposed ? g : from,
                              .plain = dw,
                              .add = add};
}
