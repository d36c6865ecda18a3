/* test_lowered.c -- what ddp_lowered_check refuses of a device's lowering, with the kernel and the value named. */
#include "support/device_double.h"

static void refused(small *s, const char *a, const char *b)
{
    ddp_err err = {0};

    assert_int_equal(ddp_lowered_check(s->p, &s->d.lowered, &err), DDP_ERR_INTERNAL);
    assert_has(err.msg, "the device's lowering");
    assert_has(err.msg, a);
    assert_has(err.msg, b);
    small_free(s);
    small_make(s, true);
    ok(ddp_lowered_check(s->p, &s->d.lowered, &err));
}

static void refuses_nodes(small *s)
{
    uint32_t kept;

    s->d.order[2] = s->p->node_count;
    refused(s, "kernel 2 \"double\"", "a node that the program does not have");
    s->d.order[2] = 1;
    refused(s, "kernel 2", "is in two kernels");
    s->d.lowered.kernel_count--;
    refused(s, "\"fc1.weight\"", "is in no kernel");
    kept = s->d.order[1];
    s->d.order[1] = s->d.order[2];
    s->d.order[2] = kept;
    refused(s, "kernel 1", "read before it is written");
    s->d.kernels[0].node_count = 2; /* takes over the node of kernel 1 */
    s->d.order[0] = 1;
    s->d.order[1] = 0;
    refused(s, "kernel 0", "not in program order");
    s->d.kernels[1].inplace_count = 3;
    refused(s, "kernel 1", "too many in-place pairs");
}

static void refuses_storage(small *s)
{
    int32_t fc1 = s->p->nodes[1].out[0], relu = out_of_op(s, DDP_OP_RELU);

    s->d.storage[fc1].bytes = 0;
    refused(s, "value 4 \"fc1\"", "has no storage");
    s->d.storage[s->p->loss].bytes = 0;
    refused(s, "cross_entropy", "has no storage");
    s->d.storage[0].bytes = 8;
    refused(s, "\"image\"", "outside the arena");
    s->d.storage[relu].alias_of = fc1;
    refused(s, "\"relu\"", "alias of a value with other elements");
    s->d.storage[relu].alias_of = relu;
    refused(s, "\"relu\"", "alias of nothing, or of itself");
    s->d.storage[relu].alias_of = 1000;
    refused(s, "\"relu\"", "alias of nothing, or of itself");
    s->d.privates[0] = (ddp_private){8, 3, 2};
    s->d.lowered.private_count = 1;
    refused(s, "private value 0", "kernels 3 to 2");
    s->d.privates[0] = (ddp_private){8, 3, s->d.lowered.kernel_count};
    s->d.lowered.private_count = 1;
    refused(s, "private value 0", "kernels 3 to");
}

static void refuses_pairs(small *s)
{
    int32_t fc1 = s->p->nodes[1].out[0], relu = out_of_op(s, DDP_OP_RELU), flat = s->p->nodes[0].out[0];
    uint32_t k = kernel_of_op(s, DDP_OP_RELU);

    pair(s, k, 0, relu, -1);
    refused(s, "kernel 2", "a value that the program does not have");
    pair(s, k, 0, fc1, fc1);
    refused(s, "kernel 2", "does not write it");
    pair(s, k, 0, relu, flat);
    refused(s, "kernel 2", "does not read it from the arena");
    pair(s, 0, 0, flat, 0);
    refused(s, "kernel 0", "does not read it from the arena");
    s->d.kernels[1].node_count = 2; /* linear and relu in one kernel: the sum in between is not in the arena yet */
    memmove(s->d.kernels + 2, s->d.kernels + 3, (--s->d.lowered.kernel_count - 2) * sizeof(ddp_kernel));
    pair(s, 1, 0, relu, fc1);
    refused(s, "kernel 1", "does not read it from the arena");
}

static void refusals(void **state)
{
    small s;

    (void)state;
    small_make(&s, true);
    refuses_nodes(&s);
    refuses_storage(&s);
    refuses_pairs(&s);
    small_free(&s);
}

/* A model with a shared parameter; the node that sets its gradient is put behind the one that adds to it. */
static void refuses_gradients_out_of_order(void **state)
{
    ddp_graph *g;
    rng r = rng_make(1);
    ddp_err err = {0};
    ddp_tensor in[2];
    ddp_layout *l;
    ddp_program *p;
    device d;
    uint32_t set = 0, add = 0;

    (void)state;
    ok(ddp_graph_create(model_fields, DDP_COUNT(model_fields), &g, &err));
    in[0] = ddp_flatten(g, ddp_input(g, "image"));
    in[1] = g->api->param(g, "shared", 2, (int64_t[]){6, 6}, &(ddp_init_spec){.kind = DDP_INIT_CONSTANT});
    for (int i = 0; i < 2; i++) in[0] = g->api->op(g, DDP_OP_LINEAR, NULL, 2, in, "twice");
    ddp_loss(g, ddp_cross_entropy(g, in[0], ddp_input(g, "label")));
    ok(ddp_graph_finish(g, &err));
    ok(ddp_layout_create(g, 1, 1, 1, &l, &err));
    ok(ddp_program_create(g, l, 2, true, &p, &err));
    while (add < p->node_count && !p->nodes[add].accumulate) add++;
    assert_true(add < p->node_count);
    while (p->nodes[set].out[0] != p->nodes[add].out[0]) set++;
    device_lower(&d, p, &r, true);
    for (uint32_t k = 0; k < d.lowered.kernel_count; k++) d.kernels[k].inplace_count = 0;
    ok(ddp_lowered_check(p, &d.lowered, &err));
    for (uint32_t i = set; i < add; i++) d.order[i] = i + 1; /* one node a kernel */
    d.order[add] = set;
    assert_int_equal(ddp_lowered_check(p, &d.lowered, &err), DDP_ERR_INTERNAL);
    assert_has(err.msg, "it is added to before it is set");
    assert_has(err.msg, p->values[p->nodes[add].out[0]].name);
    device_free(&d);
    ddp_program_free(p);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

static void counts_bytes(void **state)
{
    const uint64_t x = 32 * 6 * 4, parameters = (4 * 6 + 4) * 4;
    small s;
    int32_t fc1, relu;
    ddp_kernel *k;

    (void)state;
    small_make(&s, false);
    fc1 = out_of_op(&s, DDP_OP_LINEAR);
    relu = out_of_op(&s, DDP_OP_RELU);
    s.d.storage[out_of_op(&s, DDP_OP_RESHAPE)].bytes = x;
    s.d.storage[fc1].bytes = 32 * 4 * 2; /* in bf16 */
    s.d.storage[relu].bytes = 32 * 4 * 4;
    k = &s.d.kernels[kernel_of_op(&s, DDP_OP_LINEAR)];
    assert_int_equal(ddp_kernel_bytes(s.p, &s.d.lowered, k), x + parameters + 256);
    k->node_count = 2; /* and the relu */
    assert_int_equal(ddp_kernel_bytes(s.p, &s.d.lowered, k), x + parameters + 256 + 512);
    s.d.storage[fc1].bytes = 0;
    assert_int_equal(ddp_kernel_bytes(s.p, &s.d.lowered, k), x + parameters + 512);
    assert_int_equal(ddp_kernel_bytes(s.p, &s.d.lowered, &s.d.kernels[kernel_of_op(&s, DDP_OP_RESHAPE)]), 0);
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(refuses_gradients_out_of_order),
        cmocka_unit_test(counts_bytes),
    };

    return cmocka_run_group_tests_name("lowered", tests, NULL, NULL);
}
