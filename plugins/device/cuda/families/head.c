/* plugins/device/cuda/families/head.c -- the last layer of a model of language: linear + cross-entropy, with all of
 * their gradients, in pieces of rows where the logits would take much memory (GPT-2's are 3.3 GB for 32 x 1024 tokens).
 * The logits of one piece lie in the kernel's scratch, are replaced by their gradient there, and both products that
 * read it follow before the next piece.
 *
 * The gradient of the weight is added up over the pieces, in order. */
#include "host/cu.h"

#include <stdlib.h>

enum { X, W, LABEL };     /* in */
enum { LOSS, DX, DW };    /* out; DX and DW may be absent */
enum { WHOLE, LAST };     /* pieces; the last one may be shorter */
enum { ROWS_UNIT = 128 }; /* of a piece's rows */

typedef struct head_state {
    bool transposed;
    uint8_t type; /* of the logits */
    int64_t piece;
    cu_entropy entropy;
    uint64_t entropy_bytes; /* of the scratch, in front of the logits */
    struct {
        cu_product *forward, *dx, *dw;
    } products[2];
} head_state;

static void head_release(void *state)
{
    head_state *t = state;

    if (t == NULL) return;
    for (int i = 0; i < 2; i++) {
        cu_product_free(t->products[i].forward);
        cu_product_free(t->products[i].dx);
        cu_product_free(t->products[i].dw);
    }
    free(t);
}

/* ---- grouping ---------------------------------------------------------------------------------------------------- */
typedef struct head_nodes {
    const ddp_node *linear, *loss, *loss_grad, *dx, *dw; /* the last three are there or not, together */
    uint32_t count;                                      /* right after each other */
} head_nodes;

/* A node after the linear layer: whether it is one of its own. */
static bool belongs(head_nodes *h, const ddp_node *n)
{
    const int32_t *in = n->in;
    int32_t logits = h->linear->out[0], dy = h->loss_grad != NULL ? h->loss_grad->out[0] : -1;

    if (n->op == DDP_OP_CROSS_ENTROPY && in[0] == logits && h->loss == NULL)
        h->loss = n;
    else if (n->op == DDP_OP_CROSS_ENTROPY_GRAD && in[0] == logits && h->loss_grad == NULL && n->accumulate == 0)
        h->loss_grad = n;
    else if (n->op == DDP_OP_LINEAR_GRAD_WEIGHT && dy >= 0 && in[0] == dy && in[1] == h->linear->in[X] && h->dw == NULL)
        h->dw = n;
    else if (n->op == DDP_OP_LINEAR_GRAD_INPUT && dy >= 0 && in[0] == dy && in[1] == h->linear->in[W] &&
             h->dx == NULL && n->accumulate == 0)
        h->dx = n;
    else
        return false;
    return true;
}

static bool find_nodes(const low_lowering *w, uint32_t node, head_nodes *h)
{
    const ddp_node *n = low_node(w->p, node);
    uint32_t readers;

    *h = (head_nodes){.linear = n, .count = 1};
    if (n->op != DDP_OP_LINEAR || (n->in_count > 2 && n->in[2] >= 0)) return false;
    while (node + h->count < w->p->node_count && !w->taken[node + h->count] &&
           belongs(h, low_node(w->p, node + h->count)))
        h->count++;
    if (h->loss == NULL || h->loss->in_count > 2 || h->loss->attrs.cross_entropy.weights > 0 ||
        (h->loss_grad == NULL) != (h->dw == NULL) || (h->dw == NULL) != (h->dx == NULL))
        return false;
    readers = h->loss_grad != NULL ? 2 : 1;
    if (w->kept[n->out[0]] || w->readers[n->out[0]] != readers) return false;
    if (h->loss_grad == NULL) return true;
    return h->loss->in[1] == h->loss_grad->in[1] && w->readers[h->loss_grad->out[0]] == 2 &&
           !w->kept[h->loss_grad->out[0]] && !low_outside(low_value(w->p, h->loss_grad->out[0])) &&
           !low_outside(low_value(w->p, h->dx->out[0])) && low_value(w->p, h->dw->out[0])->kind == DDP_VALUE_GRAD;
}

bool cu_head_takes(const low_lowering *w, uint32_t node)
{
    head_nodes h;

    if (!find_nodes(w, node, &h)) return false;
    return low_stored_bytes(low_value(w->p, h.linear->out[0]), cu_operand(w->device)) > w->device->logits_bytes;
}

static void size_pieces(low_lowering *w, low_kernel *k, head_state *t)
{
    uint64_t row = (uint64_t)k->cols * cu_size(t->type), limit = w->device->logits_bytes;
    int64_t most = limit / row > ROWS_UNIT ? (int64_t)(limit / row) / ROWS_UNIT * ROWS_UNIT : ROWS_UNIT;
    int64_t pieces = (k->rows + most - 1) / most, even = (k->rows + pieces - 1) / pieces;

    t->piece = (even + ROWS_UNIT - 1) / ROWS_UNIT * ROWS_UNIT;
    if (t->piece > k->rows) t->piece = k->rows;
    t->entropy_bytes = cu_round(cu_cross_entropy_scratch(k->rows, k->cols));
    k->scratch_bytes = t->entropy_bytes + (uint64_t)t->piece * row;
}

/* The values and nodes of the loss, and of the gradients where there are any. */
static void take_nodes(low_lowering *w, low_kernel *k, uint32_t node, const head_nodes *h)
{
    k->in[LABEL] = h->loss->in[1];
    k->out[LOSS] = h->loss->out[0];
    w->inner[h->linear->out[0]] = true;
    k->name = "linear+cross_entropy";
    if (h->loss_grad != NULL && h->dx != NULL && h->dw != NULL) {
        w->inner[h->loss_grad->out[0]] = true;
        k->out[DX] = h->dx->out[0];
        k->out[DW] = h->dw->out[0];
        k->adds = (h->dw->accumulate & 1u) << DW;
        k->writes_grad = 1u << DW;
        k->name = "linear+cross_entropy+grads";
    }
    for (uint32_t i = 1; i < h->count; i++) low_take(w, k, node + i);
}

ddp_status cu_head_group(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_value *weight = low_value(w->p, k->in[W]);
    head_state *t = cu_state(k, sizeof(*t), err);
    head_nodes h;

    if (t == NULL) return err->status;
    if (!find_nodes(w, node, &h) || h.loss == NULL)
        return ddp_fail(err, DDP_ERR_INTERNAL, "device \"cuda\": no loss after \"%s\"", k->layer);
    k->family = &cu_family_head.base;
    t->transposed = h.linear->attrs.linear.transposed != 0;
    t->type = cu_operand(w->device);
    t->entropy = (cu_entropy){.smoothing = h.loss->attrs.cross_entropy.label_smoothing,
                              .ignore_index = h.loss->attrs.cross_entropy.ignore_index,
                              .ignores = h.loss->attrs.cross_entropy.ignores,
                              .classes = h.loss->attrs.cross_entropy.classes,
                              .divisor = h.loss->attrs.cross_entropy.divisor};
    k->plain = true;
    k->inner = weight->dims[t->transposed ? 0 : 1];
    k->cols = k->limit = weight->dims[t->transposed ? 1 : 0];
    k->rows = low_value(w->p, k->out[0])->elements / k->cols;
    if (t->entropy.classes > 0) k->limit = t->entropy.classes;
    k->in_type[X] = k->in_type[W] = cu_operand(w->device);
    take_nodes(w, k, node, &h);
    size_pieces(w, k, t);
    return DDP_OK;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */
static ddp_status make_products(const cu_building *b, const low_kernel *k, int which, int64_t rows, ddp_err *err)
{
    head_state *t = k->state;
    const cu_product_params forward = {.m = rows,
                                       .n = k->cols,
                                       .k = k->inner,
                                       .b_transposed = !t->transposed,
                                       .a_type = t->type,
                                       .b_type = t->type,
                                       .c_type = t->type};
    const cu_product_params dx = {.m = rows,
                                  .n = k->inner,
                                  .k = k->cols,
                                  .b_transposed = t->transposed,
                                  .a_type = t->type,
                                  .b_type = t->type,
                                  .c_type = k->out[DX] >= 0 ? b->type[k->out[DX]] : CU_F32};
    const cu_product_params dw = {.m = t->transposed ? k->inner : k->cols,
                                  .n = t->transposed ? k->cols : k->inner,
                                  .k = rows,
                                  .a_transposed = true,
                                  .a_type = t->type,
                                  .b_type = t->type,
                                  .c_type = CU_F32,
                                  .add = true};
    ddp_status status = cu_product_create(b->device->products, &forward, &t->products[which].forward, err);

    if (status == DDP_OK && k->out[DX] >= 0)
        status = cu_product_create(b->device->products, &dx, &t->products[which].dx, err);
    if (status == DDP_OK && k->out[DW] >= 0)
        status = cu_product_create(b->device->products, &dw, &t->products[which].dw, err);
    return status;
}

static ddp_status build_head(const cu_building *b, const low_kernel *k, ddp_err *err)
{
    const head_state *t = k->state;
    int64_t rest = k->rows % t->piece;
    ddp_status status = make_products(b, k, WHOLE, t->piece, err);

    if (status == DDP_OK && rest > 0) status = make_products(b, k, LAST, rest, err);
    return cu_in_kernel(k, status, err);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */
static ddp_status run_piece(const cu_call *c, int64_t first, int64_t rows, ddp_err *err)
{
    const low_kernel *k = c->k;
    const head_state *t = k->state;
    int which = rows == t->piece ? WHOLE : LAST;
    const char *x = (const char *)c->in[X].at + (size_t)(first * k->inner) * cu_size(t->type);
    char *dx =
        c->out[DX].at != NULL ? (char *)c->out[DX].at + (size_t)(first * k->inner) * cu_size(c->out[DX].type) : NULL;
    cu_view logits = {c->scratch + t->entropy_bytes, t->type}, none = {NULL, CU_F32};
    ddp_status status =
        cu_product_run(t->products[which].forward, c->stream, x, c->in[W].at, logits.at, NULL, NULL, false, err);

    if (status != DDP_OK) return cu_in_kernel(k, status, err);
    status = cu_started(c,
                        cu_entropy_rows(c->stream, logits, c->in[LABEL].at, dx != NULL ? logits : none, first, rows,
                                        k->rows, k->cols, &t->entropy, c->scratch),
                        err);
    if (status != DDP_OK || dx == NULL) return status;
    status = cu_product_run(t->products[which].dw, c->stream, t->transposed ? (const void *)x : logits.at,
                            t->transposed ? logits.at : (const void *)x, c->out[DW].at, NULL, NULL,
                            first > 0 || cu_adds(c, DW), err);
    if (status == DDP_OK)
        status = cu_product_run(t->products[which].dx, c->stream, logits.at, c->in[W].at, dx, NULL, NULL, false, err);
    return cu_in_kernel(k, status, err);
}

static ddp_status run_head(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const head_state *t = k->state;
    ddp_status status = cu_started(
        c, cu_entropy_begin(c->stream, c->in[LABEL].at, k->rows, k->cols, &t->entropy, c->scratch, c->fault, c->site),
        err);

    for (int64_t first = 0; status == DDP_OK && first < k->rows; first += t->piece)
        status = run_piece(c, first, first + t->piece <= k->rows ? t->piece : k->rows - first, err);
    if (status != DDP_OK) return status;
    return cu_started(c, cu_entropy_end(c->stream, c->out[LOSS].at, k->rows, k->cols, &t->entropy, c->scratch), err);
}

const cu_family cu_family_head = {
    .base.group = cu_head_group, .build = build_head, .run = run_head, .base.release = head_release};
