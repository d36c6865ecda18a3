/* graph/lowered.c -- checks what a device made of a program, so that a mistake there ends the run with the kernel and
 * the value named, not with wrong numbers. Also when each value is touched, which the plan needs too. */
#include "graph/internal.h"
#include <stdlib.h>

/* ---- lifetimes --------------------------------------------------------------------------------------------------- */
static void touch(uint32_t kernel, const ddp_node *n, ddp_lifetimes *t)
{
    for (uint32_t i = 0; i < n->in_count; i++)
        if (n->in[i] >= 0) t->last[n->in[i]] = DDP_MAX_OF(t->last[n->in[i]], kernel);
    for (uint32_t i = 0; i < n->out_count; i++) {
        if (n->out[i] < 0) continue;
        t->first[n->out[i]] = DDP_MIN_OF(t->first[n->out[i]], kernel);
        t->last[n->out[i]] = DDP_MAX_OF(t->last[n->out[i]], kernel);
    }
}

ddp_status graph_lifetimes_create(const ddp_program *p, const ddp_lowered *l, ddp_lifetimes *out, ddp_err *err)
{
    ddp_lifetimes t = {.kernel_of = ddp_alloc(p->node_count * sizeof(*t.kernel_of), err),
                       .first = ddp_alloc(p->value_count * sizeof(*t.first), err),
                       .last = ddp_alloc(p->value_count * sizeof(*t.last), err)};

    if (t.kernel_of == NULL || t.first == NULL || t.last == NULL) {
        graph_lifetimes_free(&t);
        return DDP_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < p->node_count; i++) t.kernel_of[i] = DDP_NEVER;
    for (uint32_t i = 0; i < p->value_count; i++) t.first[i] = DDP_NEVER;
    for (uint32_t k = 0; k < l->kernel_count; k++)
        for (uint32_t i = 0; i < ddp_kernel_at(l, k)->node_count; i++) {
            t.kernel_of[ddp_kernel_at(l, k)->nodes[i]] = k;
            touch(k, &p->nodes[ddp_kernel_at(l, k)->nodes[i]], &t);
        }
    if (p->loss >= 0) t.last[p->loss] = l->kernel_count;
    for (uint32_t i = 0; i < p->metric_count; i++) t.last[p->metrics[i]] = l->kernel_count;
    *out = t;
    return DDP_OK;
}

void graph_lifetimes_free(ddp_lifetimes *t)
{
    free(t->kernel_of);
    free(t->first);
    free(t->last);
    *t = (ddp_lifetimes){0};
}

int32_t graph_storage_root(const ddp_lowered *l, int32_t value)
{
    while (ddp_storage_at(l, (uint32_t)value)->alias_of >= 0) value = ddp_storage_at(l, (uint32_t)value)->alias_of;
    return value;
}

/* ---- what a kernel moves ----------------------------------------------------------------------------------------- */
static uint64_t stored_bytes(const ddp_program *p, const ddp_lowered *l, int32_t value)
{
    int32_t root = graph_storage_root(l, value);
    const ddp_value *v = &p->values[root];

    return v->kind == DDP_VALUE_ACT ? ddp_storage_at(l, (uint32_t)root)->bytes
                                    : (uint64_t)v->elements * ddp_dtype_size(v->dtype);
}

static bool same_storage(const ddp_lowered *l, int32_t a, int32_t b)
{
    return a >= 0 && b >= 0 && graph_storage_root(l, a) == graph_storage_root(l, b);
}

/* Whether an earlier node of the kernel has read or written it, or this one by one of its first `ins` inputs. */
static bool known_before(const ddp_program *p, const ddp_lowered *l, const ddp_kernel *k, uint32_t node, uint32_t ins,
                         int32_t value)
{
    for (uint32_t i = 0; i <= node; i++) {
        const ddp_node *n = &p->nodes[k->nodes[i]];

        for (uint32_t j = 0; j < (i < node ? n->in_count : ins); j++)
            if (same_storage(l, n->in[j], value)) return true;
        for (uint32_t j = 0; i < node && j < n->out_count; j++)
            if (same_storage(l, n->out[j], value)) return true;
    }
    return false;
}

uint64_t ddp_kernel_bytes(const ddp_program *p, const ddp_lowered *l, const ddp_kernel *k)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < k->node_count; i++) {
        const ddp_node *n = &p->nodes[k->nodes[i]];

        /* a view costs nothing, except where it has to put its elements into the gradient arena */
        if (ddp_op_find(n->op)->view && p->values[n->out[0]].kind != DDP_VALUE_GRAD) continue;
        for (uint32_t j = 0; j < n->in_count; j++)
            if (n->in[j] >= 0 && !known_before(p, l, k, i, j, n->in[j])) bytes += stored_bytes(p, l, n->in[j]);
        for (uint32_t j = 0; j < n->out_count; j++)
            if (n->out[j] >= 0) bytes += stored_bytes(p, l, n->out[j]) * (n->accumulate >> j & 1u ? 2 : 1);
    }
    return bytes;
}

/* ---- check ------------------------------------------------------------------------------------------------------- */
typedef struct checker {
    const ddp_program *p;
    const ddp_lowered *l;
    ddp_lifetimes t;
    int32_t *same; /* by value: a value with the same elements, by views; itself where there is none */
    ddp_err *err;
} checker;

/* `kernel` kernel_count: no kernel is to blame; `value` -1: no value. */
static ddp_status bad(const checker *c, uint32_t kernel, int32_t value, const char *why)
{
    char where[192] = "";
    const char *name = value >= 0 ? c->p->values[value].name : "";
    int n = 0;

    if (kernel < c->l->kernel_count)
        n = snprintf(where, sizeof(where), ", kernel %u \"%.64s\"", kernel, ddp_kernel_at(c->l, kernel)->name);
    if (value >= 0 && n >= 0)
        (void)snprintf(where + n, sizeof(where) - (size_t)n, name[0] != '\0' ? ", value %d \"%.64s\"" : ", value %d",
                       value, name);
    return ddp_fail(c->err, DDP_ERR_INTERNAL, "the device's lowering%s: %s", where, why);
}

static ddp_status check_kernel_nodes(const checker *c, uint32_t k, bool *seen)
{
    const ddp_kernel *kernel = ddp_kernel_at(c->l, k);

    for (uint32_t i = 0; i < kernel->node_count; i++) {
        uint32_t n = kernel->nodes[i];

        if (n >= c->p->node_count) return bad(c, k, -1, "it has a node that the program does not have");
        if (i > 0 && kernel->nodes[i - 1] >= n) return bad(c, k, -1, "its nodes are not in program order");
        if (seen[n]) return bad(c, k, c->p->nodes[n].out[0], "the node that computes it is in two kernels");
        seen[n] = true;
    }
    if (kernel->inplace_count > DDP_COUNT(kernel->inplace_out)) return bad(c, k, -1, "it has too many in-place pairs");
    return DDP_OK;
}

static ddp_status check_nodes(const checker *c)
{
    bool *seen = ddp_alloc(c->p->node_count, c->err);
    ddp_status st = DDP_OK;

    if (seen == NULL) return DDP_ERR_NOMEM;
    for (uint32_t k = 0; st == DDP_OK && k < c->l->kernel_count; k++) st = check_kernel_nodes(c, k, seen);
    for (uint32_t n = 0; st == DDP_OK && n < c->p->node_count; n++)
        if (!seen[n])
            st = bad(c, c->l->kernel_count, c->p->nodes[n].out[0], "the node that computes it is in no kernel");
    free(seen);
    return st;
}

/* Every value is written before it is read; a gradient that several nodes write, in their order. */
static ddp_status check_order(const checker *c)
{
    uint32_t *written = ddp_alloc(c->p->value_count * sizeof(*written), c->err); /* kernel, by value */
    ddp_status st = DDP_OK;

    if (written == NULL) return DDP_ERR_NOMEM;
    for (uint32_t n = 0; st == DDP_OK && n < c->p->node_count; n++) {
        const ddp_node *node = &c->p->nodes[n];
        uint32_t k = c->t.kernel_of[n];

        for (uint32_t i = 0; st == DDP_OK && i < node->in_count; i++)
            if (node->in[i] >= 0 && written[node->in[i]] > k)
                st = bad(c, k, node->in[i], "it is read before it is written");
        for (uint32_t i = 0; st == DDP_OK && i < node->out_count; i++) {
            if (node->out[i] < 0) continue;
            if (written[node->out[i]] > k) st = bad(c, k, node->out[i], "it is added to before it is set");
            written[node->out[i]] = DDP_MAX_OF(written[node->out[i]], k);
        }
    }
    free(written);
    return st;
}

static ddp_status check_alias(const checker *c, int32_t v)
{
    int32_t at = v;
    uint32_t k = DDP_MIN_OF(c->t.first[v], c->l->kernel_count);

    for (uint32_t steps = 0; ddp_storage_at(c->l, (uint32_t)at)->alias_of >= 0; steps++) {
        int32_t to = ddp_storage_at(c->l, (uint32_t)at)->alias_of;

        if ((uint32_t)to >= c->p->value_count || steps >= c->p->value_count)
            return bad(c, k, v, "it is an alias of nothing, or of itself");
        at = to;
    }
    if (at == v) return DDP_OK;
    if (c->same[at] != c->same[v]) return bad(c, k, v, "it is an alias of a value with other elements");
    if (c->p->values[at].kind != DDP_VALUE_ACT) return DDP_OK;
    if (c->t.first[at] > c->t.first[v]) return bad(c, k, v, "it is an alias of a value that is written later");
    if (ddp_storage_at(c->l, (uint32_t)v)->bytes > ddp_storage_at(c->l, (uint32_t)at)->bytes)
        return bad(c, k, v, "it is larger than the value it is an alias of");
    return DDP_OK;
}

static bool crosses(const checker *c, int32_t v) { return c->t.last[v] != c->t.first[v]; }

static ddp_status check_storage(const checker *c)
{
    for (int32_t v = 0; (uint32_t)v < c->p->value_count; v++) {
        uint32_t k = DDP_MIN_OF(c->t.first[v], c->l->kernel_count);
        int32_t root;

        if (c->p->values[v].kind != DDP_VALUE_ACT) {
            if (ddp_storage_at(c->l, (uint32_t)v)->bytes > 0 || ddp_storage_at(c->l, (uint32_t)v)->alias_of >= 0)
                return bad(c, k, v, "it is outside the arena and can have no storage there");
            continue;
        }
        DDP_TRY(check_alias(c, v));
        root = graph_storage_root(c->l, v);
        if (crosses(c, v) && c->p->values[root].kind == DDP_VALUE_ACT &&
            ddp_storage_at(c->l, (uint32_t)root)->bytes == 0 &&
            ddp_storage_at(c->l, (uint32_t)root)->alias_of != DDP_NOT_STORED)
            return bad(c, k, v, "it is needed after that kernel and has no storage");
    }
    return DDP_OK;
}

static bool reads(const checker *c, const ddp_kernel *kernel, int32_t v)
{
    for (uint32_t i = 0; i < kernel->node_count; i++)
        for (uint32_t j = 0; j < c->p->nodes[kernel->nodes[i]].in_count; j++)
            if (c->p->nodes[kernel->nodes[i]].in[j] == v) return true;
    return false;
}

static ddp_status check_pair(const checker *c, uint32_t k, uint32_t pair)
{
    const ddp_kernel *kernel = ddp_kernel_at(c->l, k);
    int32_t out = kernel->inplace_out[pair], in = kernel->inplace_in[pair], root;

    if (out < 0 || (uint32_t)out >= c->p->value_count || in < 0 || (uint32_t)in >= c->p->value_count)
        return bad(c, k, -1, "an in-place pair names a value that the program does not have");
    if (c->t.first[out] != k || ddp_storage_at(c->l, (uint32_t)out)->bytes == 0 ||
        ddp_storage_at(c->l, (uint32_t)out)->alias_of >= 0)
        return bad(c, k, out, "in place, but the kernel does not write it to storage of its own");
    root = graph_storage_root(c->l, in);
    if (!reads(c, kernel, in) || ddp_storage_at(c->l, (uint32_t)root)->bytes == 0 || c->t.first[root] >= k)
        return bad(c, k, in, "in place, but the kernel does not read it from the arena");
    return DDP_OK;
}

static ddp_status check_kernels(const checker *c)
{
    for (uint32_t k = 0; k < c->l->kernel_count; k++)
        for (uint32_t i = 0; i < ddp_kernel_at(c->l, k)->inplace_count; i++) DDP_TRY(check_pair(c, k, i));
    for (uint32_t i = 0; i < c->l->private_count; i++)
        if (ddp_private_at(c->l, i)->first_kernel > ddp_private_at(c->l, i)->last_kernel ||
            ddp_private_at(c->l, i)->last_kernel >= c->l->kernel_count)
            return ddp_fail(c->err, DDP_ERR_INTERNAL, "the device's lowering, private value %u: kernels %u to %u of %u",
                            i, ddp_private_at(c->l, i)->first_kernel, ddp_private_at(c->l, i)->last_kernel,
                            c->l->kernel_count);
    return DDP_OK;
}

/* Values that views join; nodes are in program order, so one pass is enough. */
static void join_views(checker *c)
{
    for (uint32_t i = 0; i < c->p->value_count; i++) c->same[i] = (int32_t)i;
    for (uint32_t i = 0; i < c->p->node_count; i++)
        if (ddp_op_find(c->p->nodes[i].op)->view) c->same[c->p->nodes[i].out[0]] = c->same[c->p->nodes[i].in[0]];
}

static ddp_status check_all(checker *c)
{
    DDP_TRY(check_nodes(c));
    DDP_TRY(graph_lifetimes_create(c->p, c->l, &c->t, c->err));
    join_views(c);
    DDP_TRY(check_order(c));
    DDP_TRY(check_storage(c));
    return check_kernels(c);
}

ddp_status ddp_lowered_check(const ddp_program *p, const ddp_lowered *l, ddp_err *err)
{
    checker c = {.p = p, .l = l, .err = err};
    ddp_status st;

    if (l->kernel_size < sizeof(ddp_kernel) || l->storage_size < sizeof(ddp_storage) ||
        (l->private_count > 0 && l->private_size < sizeof(ddp_private)))
        return ddp_fail(err, DDP_ERR_INVALID, "the device's lowering leaves the strides of its arrays unset");
    c.same = ddp_alloc(p->value_count * sizeof(*c.same), err);
    if (c.same == NULL) return err->status;
    st = check_all(&c);
    graph_lifetimes_free(&c.t);
    free(c.same);
    return st;
}
