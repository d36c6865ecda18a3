/* plugins/device/cpu/families/narrow.c -- linear layers one of whose sides has few features, 8 or 16, as both of a
 * low-rank adapter have: the product, with the add of what the adapter adapts, and the gradients. In f32 in either
 * precision: they are bound by memory, and a product in bf16 would compute columns that are not there.
 *
 *   linear + add              y = base + x W^T, in place where nobody needs base later
 *   gradient of input + add   the same of dx */
#include "cpu.h"

#include <string.h>

enum { LEFT, RIGHT, BASE }; /* in: x or dy; the weight, or x for the weight's gradient; what is added */
enum { INTO_FEW, FROM_FEW, GRAD_FEW_ROWS, GRAD_FEW_COLUMNS }; /* kind */
enum { MIN_ROWS = 64 };

/* From `inner` to `cols` features, of which one side has few. */
static bool fits(const low_lowering *w, const low_kernel *k)
{
    int64_t few = k->inner < k->cols ? k->inner : k->cols, many = k->inner < k->cols ? k->cols : k->inner;

    for (uint32_t i = LEFT; i <= RIGHT; i++)
        if (low_value(w->p, k->in[i])->dtype != DDP_F32) return false;
    return few <= CPU_NARROW && few % 8 == 0 && many % 16 == 0 && k->rows % 8 == 0 && k->rows >= MIN_ROWS;
}

/* What is added to the result, if one node alone reads it and that is an add. */
static void take_add(low_lowering *w, low_kernel *k, uint32_t node)
{
    static const uint32_t add = DDP_OP_ADD;

    for (uint32_t slot = 0; slot < 2 && low_read_once(w, k->out[0]); slot++) {
        int64_t reader = low_find_reader(w, node, k->out[0], slot, &add, 1);
        if (reader < 0) continue;
        w->inner[k->out[0]] = true;
        k->in[BASE] = low_node(w->p, (uint32_t)reader)->in[1 - slot];
        k->out[0] = low_node(w->p, (uint32_t)reader)->out[0];
        low_may_replace(k, k->out[0], k->in[BASE]);
        low_take_and_move(w, k, (uint32_t)reader);
        k->name = low_node(w->p, node)->op == DDP_OP_LINEAR ? "linear+add" : "linear_grad_input+add";
        return;
    }
}

/* The weight as the kernels take it, padded, or the gradient before it is turned. */
static void set_scratch(low_kernel *k)
{
    int64_t many = k->inner < k->cols ? k->cols : k->inner;

    k->scratch_bytes = (uint64_t)(many * CPU_NARROW) * sizeof(float);
}

bool cpu_narrow_group(low_lowering *w, low_kernel *k, uint32_t node)
{
    const ddp_node *n = low_node(w->p, node);
    bool few_out = k->cols <= k->inner;

    if (!fits(w, k) || (n->op == DDP_OP_LINEAR && k->in[BASE] >= 0)) return false; /* that is the bias here */
    k->family = &cpu_family_narrow.base;
    if (n->op == DDP_OP_LINEAR_GRAD_WEIGHT)
        k->kind = few_out ? GRAD_FEW_ROWS : GRAD_FEW_COLUMNS;
    else
        k->kind = few_out == (n->op == DDP_OP_LINEAR) ? INTO_FEW : FROM_FEW;
    set_scratch(k);
    if (k->kind == FROM_FEW) take_add(w, k, node);
    return true;
}

typedef struct narrow_job {
    const cpu_call *c;
    const float *left, *right;
    float *out;
    int64_t few, many;
    bool add; /* to a weight's gradient, in its place */
} narrow_job;

static narrow_job job_of(const cpu_call *c)
{
    const low_kernel *k = c->k;

    return (narrow_job){.c = c,
                        .left = c->at[k->in[LEFT]], /* none of these is absent */
                        .right = c->at[k->in[RIGHT]],
                        .out = c->at[k->out[0]],
                        .few = k->inner < k->cols ? k->inner : k->cols,
                        .many = k->inner < k->cols ? k->cols : k->inner};
}

/* w (rows, cols) -> (cols, wide), or the same way round; what is there too much is 0. */
static void lay(float *to, const float *w, int64_t rows, int64_t cols, int64_t wide, bool turn)
{
    memset(to, 0, (size_t)((turn ? cols : rows) * wide) * sizeof(*to));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) to[turn ? i * wide + r : r * wide + i] = w[r * cols + i];
}

static void rows_piece(void *ctx, int64_t first, int64_t last)
{
    const narrow_job *j = ctx;
    const cpu_kernels *f = j->c->device->kernels;
    int64_t rows = (last - first) * 8, row = first * 8;

    if (j->c->k->kind == INTO_FEW) {
        f->narrow_in(j->out + row * j->few, j->left + row * j->many, j->right, rows, j->many, j->few);
    } else {
        const float *base = cpu_in(j->c, BASE);
        f->narrow_out(j->out + row * j->many, base != NULL ? base + row * j->many : NULL, j->left + row * j->few,
                      j->right, rows, j->many, j->few);
    }
}

/* Of the features of the many, in parts of sixteen. */
static void columns_piece(void *ctx, int64_t first, int64_t last)
{
    const narrow_job *j = ctx;
    const low_kernel *k = j->c->k;
    bool few_rows = k->kind == GRAD_FEW_ROWS;

    j->c->device->kernels->narrow_outer(j->out, few_rows ? j->left : j->right, few_rows ? j->right : j->left, k->rows,
                                        j->many, j->few, first * 16, last * 16, j->add);
}

static void run_product(const cpu_call *c, bool transposed)
{
    narrow_job j = job_of(c);
    bool forward = low_node(c->program, c->k->nodes[0])->op == DDP_OP_LINEAR;
    int64_t out = c->k->cols, in = c->k->inner, grain = 1 + CPU_GRAIN / (8 * j.many);

    /* torch's weight is (out, in): by rows of the result's features forward, by those of the input's backward */
    if (c->k->kind == INTO_FEW) {
        bool turn = forward != transposed;
        lay(c->scratch, j.right, transposed ? in : out, transposed ? out : in, CPU_NARROW, turn);
        j.right = c->scratch;
    } else if (forward != transposed) {
        lay(c->scratch, j.right, transposed ? in : out, transposed ? out : in, transposed ? in : out, true);
        j.right = c->scratch;
    }
    cpu_parallel(c->device->threads, c->k->rows / 8, grain, rows_piece, &j);
}

/* dw (out, in), or transposed (in, out), of which the kernels give (few, many). */
static void run_weight(const cpu_call *c, bool transposed)
{
    narrow_job j = job_of(c);
    bool few_rows = c->k->kind == GRAD_FEW_ROWS, turn = few_rows == transposed;
    float *to = j.out;

    if (turn) j.out = c->scratch;
    j.add = !turn && cpu_adds(c, 0);
    cpu_parallel(c->device->threads, j.many / 16, 1 + CPU_GRAIN / (16 * c->k->rows), columns_piece, &j);
    for (int64_t i = 0; turn && i < j.many; i++)
        for (int64_t r = 0; r < j.few; r++) {
            float sum = j.out[r * j.many + i];
            to[i * j.few + r] = cpu_adds(c, 0) ? to[i * j.few + r] + sum : sum;
        }
}

static ddp_status run_narrow(const cpu_call *c, ddp_err *err)
{
    bool transposed = low_node(c->program, c->k->nodes[0])->attrs.linear.transposed != 0;

    (void)err;
    if (c->k->kind == GRAD_FEW_ROWS || c->k->kind == GRAD_FEW_COLUMNS)
        run_weight(c, transposed);
    else
        run_product(c, transposed);
    return DDP_OK;
}

const cpu_family cpu_family_narrow = {.run = run_narrow};
