/* graph/ops/dropout.c -- rows of torch.nn.functional.dropout and its gradient. The gradient draws the mask again: it is
 * a function of the step's random numbers, of the op's position in the model and of the element. */
#include "graph/internal.h"
#include <math.h>

ddp_status ddp_dropout_check(double p, ddp_err *err)
{
    if (p >= 0.0 && p <= 1.0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "the probability of dropout is %g, it must be from 0 to 1", p);
}

double ddp_dropout_factor(const ddp_random *random, uint32_t place, uint64_t element, double p)
{
    uint32_t word[4];

    ddp_philox(random, place, element / 4, word);
    return (double)word[element % 4] < nearbyint(p * 4294967296.0) ? 0.0 : 1.0 / (1.0 - p);
}

static ddp_status dropout_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                ddp_err *err)
{
    (void)in_count;
    DDP_TRY(ddp_shape_need(in[0], DDP_F32, "the input", err));
    DDP_TRY(ddp_dropout_check(attrs->dropout.p, err));
    *out = *in[0];
    return DDP_OK;
}

static ddp_status dropout_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_DROPOUT_GRAD, node->in[0], dy, -1, err);
}

static uint64_t dropout_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[0]].elements;
}

/* Also of the gradient: dx = dy times the same factors. */
static void dropout_reference(const ddp_node *node, const ddp_random *random, const ddp_ref_tensor *in,
                              ddp_ref_tensor *out)
{
    for (int64_t i = 0; i < out->elements; i++) {
        double f = ddp_dropout_factor(random, node->attrs.dropout.place, (uint64_t)i, node->attrs.dropout.p);

        out->data[i] = f == 0.0 ? 0.0 : in[0].data[i] * f;
    }
}

DDP_OP_ROW(DROPOUT, dropout, 1, 1, .shape = dropout_shape, .gradient = dropout_gradient, .flops = dropout_flops,
           .reference_random = dropout_reference);
DDP_OP_ROW(DROPOUT_GRAD, dropout_grad, 1, 1, .flops = dropout_flops, .reference_random = dropout_reference);
