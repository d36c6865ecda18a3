/* test_plan_cases.c -- the memory plan of a small model, worked out by hand. */
#include "support/device_double.h"

static void plan_by_hand(void **state)
{
    small s;
    ddp_err err = {0};
    ddp_planned *planned;
    uint32_t ce_grad, relu_grad;

    (void)state;
    small_make(&s, true);
    /* batch 32, 8 bytes: flatten 1536, fc1 and relu 1024 each, fc2 768, loss 64, dlogits 768, drelu and dfc1 1024 each.
     * Live at relu_grad: flatten (for fc1's weight), relu, drelu, dfc1, the loss. */
    ok(ddp_plan_create(s.p, &s.d.lowered, s.l, &planned, &err));
    assert_int_equal(planned->peak_bytes, 1536 + 3 * 1024 + 64);
    assert_int_equal(planned->peak_kernel, kernel_of_op(&s, DDP_OP_RELU_GRAD));
    assert_int_equal(planned->plan.arena_bytes, planned->peak_bytes);
    ddp_plan_free(planned);
    /* in place: dlogits over the logits, dfc1 over drelu. The peak moves to fc2's input gradient: flatten, relu,
     * dlogits, drelu, loss. */
    ce_grad = kernel_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD);
    relu_grad = kernel_of_op(&s, DDP_OP_RELU_GRAD);
    s.d.kernels[ce_grad].inplace_count = s.d.kernels[relu_grad].inplace_count = 1;
    s.d.kernels[ce_grad].inplace_out[0] = out_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD);
    s.d.kernels[ce_grad].inplace_in[0] = s.p->nodes[s.d.kernels[ce_grad].nodes[0]].in[0];
    s.d.kernels[relu_grad].inplace_out[0] = out_of_op(&s, DDP_OP_RELU_GRAD);
    s.d.kernels[relu_grad].inplace_in[0] = s.p->nodes[s.d.kernels[relu_grad].nodes[0]].in[0];
    ok(ddp_lowered_check(s.p, &s.d.lowered, &err));
    ok(ddp_plan_create(s.p, &s.d.lowered, s.l, &planned, &err));
    assert_int_equal(planned->peak_bytes, 1536 + 2 * 1024 + 768 + 64);
    assert_int_equal(planned->plan.value_offset[s.d.kernels[ce_grad].inplace_out[0]],
                     planned->plan.value_offset[s.d.kernels[ce_grad].inplace_in[0]]);
    /* buckets: fc2.bias, fc2.weight, fc1.bias, fc1.weight, one each, as soon as their kernel is done */
    assert_int_equal(s.l->bucket_count, 4);
    assert_int_equal(planned->bucket_ready[0], ce_grad + 2);
    assert_int_equal(planned->bucket_ready[1], ce_grad + 3);
    assert_int_equal(planned->bucket_ready[2], relu_grad + 2);
    assert_int_equal(planned->bucket_ready[3], relu_grad + 3);
    assert_int_equal(planned->bucket_ready[3], s.d.lowered.kernel_count);
    /* the forward pass uses them the other way round, fc1 in the first kernel that reads it */
    assert_int_equal(planned->bucket_used[3], kernel_of_op(&s, DDP_OP_LINEAR));
    assert_int_equal(planned->bucket_used[2], planned->bucket_used[3]);
    assert_true(planned->bucket_used[1] > planned->bucket_used[2]);
    assert_int_equal(planned->bucket_used[0], planned->bucket_used[1]);
    ddp_plan_free(planned);
    small_free(&s);
}

/* An input that is read again, or is of another size, keeps its place. */
static void in_place_only_where_it_may(void **state)
{
    small s;
    ddp_err err = {0};
    ddp_planned *planned;
    uint32_t ce, ce_grad;
    int32_t logits;

    (void)state;
    small_make(&s, true);
    ce_grad = kernel_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD);
    ce = kernel_of_op(&s, DDP_OP_CROSS_ENTROPY);
    logits = s.p->nodes[s.d.kernels[ce].nodes[0]].in[0];
    pair(&s, ce, 0, s.p->loss, logits); /* the gradient reads the logits again */
    pair(&s, ce_grad + 3, 0, out_of_op(&s, DDP_OP_LINEAR_GRAD_INPUT), out_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD));
    ok(ddp_lowered_check(s.p, &s.d.lowered, &err));
    ok(ddp_plan_create(s.p, &s.d.lowered, s.l, &planned, &err));
    check_spans(&s.d, &planned->plan);
    assert_true(planned->plan.value_offset[s.p->loss] != planned->plan.value_offset[logits]);
    assert_true(planned->plan.value_offset[out_of_op(&s, DDP_OP_LINEAR_GRAD_INPUT)] !=
                planned->plan.value_offset[out_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD)]);
    ddp_plan_free(planned);
    small_free(&s);
}

/* Two outputs of a kernel that nobody reads later are both offered one input's place: only one may have it. */
static void one_input_has_one_heir(void **state)
{
    small s;
    ddp_err err = {0};
    ddp_planned *planned;
    uint32_t k = 2;
    rng r = rng_make(1);
    int32_t in, a, b;
    ddp_tensor h, y;

    (void)state;
    ok(ddp_graph_create(model_fields, DDP_COUNT(model_fields), &s.g, &err));
    h = ddp_linear(s.g, ddp_flatten(s.g, ddp_input(s.g, "image")), 3, 1, "fc1");
    y = ddp_add(s.g, ddp_relu(s.g, h), ddp_gelu(s.g, h, 0));
    ddp_loss(s.g, ddp_cross_entropy(s.g, y, ddp_input(s.g, "label")));
    ok(ddp_graph_finish(s.g, &err));
    ok(ddp_layout_create(s.g, 1, 1, 1, &s.l, &err));
    ok(ddp_program_create(s.g, s.l, 32, false, &s.p, &err));
    device_lower(&s.d, s.p, &r, true); /* reshape, linear, relu, gelu, add, cross_entropy */
    s.d.kernels[k].node_count = 3;     /* relu, gelu and add in one kernel */
    s.d.kernels[k + 1] = s.d.kernels[k + 3];
    s.d.lowered.kernel_count = 4;
    in = s.p->nodes[1].out[0];
    a = s.p->nodes[2].out[0];
    b = s.p->nodes[3].out[0];
    for (uint32_t i = 0; i < 4; i++) s.d.kernels[i].inplace_count = 0;
    pair(&s, k, 0, a, in);
    pair(&s, k, 1, b, in);
    ok(ddp_lowered_check(s.p, &s.d.lowered, &err));
    ok(ddp_plan_create(s.p, &s.d.lowered, NULL, &planned, &err));
    assert_int_equal(planned->plan.value_offset[a], planned->plan.value_offset[in]);
    assert_int_not_equal(planned->plan.value_offset[b], planned->plan.value_offset[in]);
    ddp_plan_free(planned);
    small_free(&s);
}

/* Large private values make two gaps while kernel 1 runs; a smaller one goes into the narrower. */
static void takes_the_best_gap(void **state)
{
    static const uint64_t unit = 6400; /* more than any value of the program */
    small s;
    ddp_err err = {0};
    ddp_planned *planned;

    (void)state;
    small_make(&s, false);
    s.d.lowered.private_count = 6;
    s.d.privates[0] = (ddp_private){50 * unit, 0, 0}; /* leaves a gap of 50 */
    s.d.privates[1] = (ddp_private){40 * unit, 0, 1};
    s.d.privates[2] = (ddp_private){30 * unit, 0, 0}; /* of 30 */
    s.d.privates[3] = (ddp_private){20 * unit, 0, 1};
    s.d.privates[4] = (ddp_private){19 * unit, 1, 1};
    s.d.privates[5] = (ddp_private){18 * unit, 1, 1}; /* the narrower is taken */
    ok(ddp_lowered_check(s.p, &s.d.lowered, &err));
    ok(ddp_plan_create(s.p, &s.d.lowered, NULL, &planned, &err));
    check_spans(&s.d, &planned->plan);
    assert_int_equal(planned->plan.private_offset[1], 50 * unit);
    assert_int_equal(planned->plan.private_offset[3], 120 * unit);
    assert_int_equal(planned->plan.private_offset[4], 90 * unit);
    assert_int_equal(planned->plan.private_offset[5], 0);
    ddp_plan_free(planned);
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_by_hand),
        cmocka_unit_test(in_place_only_where_it_may),
        cmocka_unit_test(one_input_has_one_heir),
        cmocka_unit_test(takes_the_best_gap),
    };

    return cmocka_run_group_tests_name("plan cases", tests, NULL, NULL);
}
