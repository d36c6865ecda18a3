/* plugins/device/cpu/families/embedding.c -- rows of a table by index, rows added by position, and their gradients:
 *   embedding + position   one pass over the result
 *
 * The gradient of an embedding adds to the rows that occur and to no others: with a table that is the output layer
 * too, the rest of a large gradient stays untouched. Each thread has columns of its own, so that every row is summed
 * in the batch's order. */
#include "cpu.h"

#include <string.h>

enum { INDEX, TABLE, POSITIONS }; /* embedding: in; POSITIONS with a position */
enum { X, W };                    /* position: in */

static ddp_status check_index(const cpu_call *c, const int64_t *index, int64_t rows, int64_t table, ddp_err *err)
{
    for (int64_t r = 0; r < rows; r++)
        if (index[r] < 0 || index[r] >= table)
            return ddp_fail(
                err, DDP_ERR_DATA,
                "device \"cpu\": index %lld at position %lld of the batch is not one of the %lld rows (0 to %lld) of layer \"%s\"; check the data set's values against the model's vocabulary",
                (long long)index[r], (long long)r, (long long)table, (long long)(table - 1), c->k->layer);
    return DDP_OK;
}

/* ---- embedding, with position ------------------------------------------------------------------------------------ */
static ddp_status group_embedding(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const uint32_t ops[] = {DDP_OP_POSITION};
    int64_t position = low_read_once(w, k->out[0]) ? low_find_reader(w, node, k->out[0], X, ops, 1) : -1;

    (void)err;
    k->plain = true;
    k->cols = low_last_dim(low_value(w->p, k->out[0]));
    k->rows = low_value(w->p, k->out[0])->elements / k->cols;
    if (position < 0 || !low_outside(low_value(w->p, low_node(w->p, (uint32_t)position)->in[W]))) return DDP_OK;
    w->inner[k->out[0]] = true;
    k->in[POSITIONS] = low_node(w->p, (uint32_t)position)->in[W];
    k->out[0] = low_node(w->p, (uint32_t)position)->out[0];
    k->name = "embedding+position";
    low_take(w, k, (uint32_t)position);
    return DDP_OK;
}

static void widen(float *y, const uint16_t *half, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)half[i] << 16;
        memcpy(&y[i], &bits, sizeof(bits));
    }
}

static void embedding_rows(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    const low_kernel *k = c->k;
    const int64_t *index = cpu_in(c, INDEX);
    const float *table = cpu_in(c, TABLE), *positions = cpu_in(c, POSITIONS);
    const uint16_t *half = low_value(c->program, k->in[TABLE])->dtype == DDP_BF16 ? cpu_in(c, TABLE) : NULL;
    float *y = cpu_out(c, 0);
    int64_t length = positions != NULL ? low_value(c->program, k->out[0])->dims[1] : 1;

    for (int64_t r = first; r < last; r++) {
        const float *row = half != NULL ? y + r * k->cols : table + index[r] * k->cols;
        if (half != NULL) widen(y + r * k->cols, half + index[r] * k->cols, k->cols);
        if (positions != NULL)
            c->device->kernels->add(y + r * k->cols, row, positions + r % length * k->cols, k->cols);
        else if (half == NULL)
            memcpy(y + r * k->cols, row, (size_t)k->cols * sizeof(*y));
    }
}

static ddp_status run_embedding(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;
    ddp_status status =
        check_index(c, cpu_in(c, INDEX), c->k->rows, low_value(c->program, c->k->in[TABLE])->dims[0], err);

    if (status != DDP_OK) return status;
    cpu_parallel(c->device->threads, c->k->rows, (CPU_GRAIN + c->k->cols - 1) / c->k->cols, embedding_rows, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_embedding = {.base.group = group_embedding, .run = run_embedding};

/* ---- gradient of the table --------------------------------------------------------------------------------------- */
enum { DY, AT }; /* in */

static ddp_status group_embedding_grad(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    k->plain = true;
    k->writes_grad = 1;
    k->cols = low_last_dim(low_value(w->p, k->in[DY]));
    k->rows = low_value(w->p, k->in[DY])->elements / k->cols;
    return DDP_OK;
}

static void clear_piece(void *ctx, int64_t first, int64_t last)
{
    float *dw = cpu_out(ctx, 0);

    memset(dw + first, 0, (size_t)(last - first) * sizeof(*dw));
}

static void scatter_columns(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    const low_kernel *k = c->k;
    const int64_t *index = cpu_in(c, AT);
    const float *dy = cpu_in(c, DY);
    float *dw = cpu_out(c, 0);

    for (int64_t r = 0; r < k->rows; r++) {
        float *row = dw + index[r] * k->cols + first;
        c->device->kernels->add(row, row, dy + r * k->cols + first, last - first);
    }
}

static ddp_status run_embedding_grad(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;
    const ddp_value *dw = low_value(c->program, c->k->out[0]);
    int64_t grain = (CPU_GRAIN / c->k->rows + 64) / 64 * 64;
    ddp_status status = check_index(c, cpu_in(c, AT), c->k->rows, dw->dims[0], err);

    if (status != DDP_OK) return status;
    if (!cpu_adds(c, 0)) cpu_parallel(c->device->threads, dw->elements, CPU_GRAIN, clear_piece, &mine);
    cpu_parallel(c->device->threads, c->k->cols, grain, scatter_columns, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_embedding_grad = {.base.group = group_embedding_grad, .run = run_embedding_grad};

/* ---- position alone, and its gradient ---------------------------------------------------------------------------- */
static ddp_status group_position(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    const ddp_value *x = low_value(w->p, n->in[0]);

    (void)err;
    k->plain = true;
    k->kind = n->op;
    k->rows = x->dims[0];
    k->cols = x->dims[1] * x->dims[2]; /* of one sample */
    if (n->op == DDP_OP_POSITION)
        low_may_replace(k, k->out[0], k->in[X]);
    else
        k->writes_grad = 1;
    return DDP_OK;
}

/* Columns first .. last - 1 of (N, T E). */
static void position_columns(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    const low_kernel *k = c->k;
    const float *x = cpu_in(c, 0), *w = cpu_in(c, W);
    float *y = cpu_out(c, 0);

    for (int64_t n = 0; n < k->rows; n++)
        c->device->kernels->add(y + n * k->cols + first, x + n * k->cols + first, w + first, last - first);
}

static void position_sums(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    const low_kernel *k = c->k;
    const float *dy = cpu_in(c, 0);
    float *dw = cpu_out(c, 0);
    int64_t n = 0;

    if (!cpu_adds(c, 0)) memcpy(dw + first, dy + n++ * k->cols + first, (size_t)(last - first) * sizeof(*dw));
    for (; n < k->rows; n++) c->device->kernels->add(dw + first, dw + first, dy + n * k->cols + first, last - first);
}

static ddp_status run_position(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;
    const low_kernel *k = c->k;
    int64_t grain = (CPU_GRAIN / k->rows + 64) / 64 * 64, rest;

    (void)err;
    cpu_parallel(c->device->threads, k->cols, grain, k->kind == DDP_OP_POSITION ? position_columns : position_sums,
                 &mine);
    if (k->kind == DDP_OP_POSITION || cpu_adds(c, 0)) return DDP_OK;
    rest = low_value(c->program, k->out[0])->elements - k->cols; /* positions that no sample of this program has */
    memset((float *)cpu_out(c, 0) + k->cols, 0, (size_t)rest * sizeof(float));
    return DDP_OK;
}

const cpu_family cpu_family_position = {.base.group = group_position, .run = run_position};
