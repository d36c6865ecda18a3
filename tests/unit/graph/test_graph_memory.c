/* test_graph_memory.c -- every allocation of core/graph made to fail in turn: each call says so, and nothing is lost
 * (which the build with sanitizers sees). */
#include "support/device_double.h"

static int64_t left = -1; /* allocations until one fails; -1: none does */

static bool fails(void) { return left >= 0 && left-- == 0; }

void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t size) { return fails() ? NULL : __real_realloc(p, size); }

static ddp_status build(ddp_graph *g, ddp_err *err)
{
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image"));

    for (int i = 0; i < 12; i++) /* more than the first room of every array */
        x = ddp_relu(g, ddp_linear(g, x, 5, 1, "a.name.that.takes.its.share.of.the.pool.%d", i));
    x = ddp_linear(g, x, MODEL_CLASSES, 1, "head");
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, ddp_input(g, "label")));
    return ddp_graph_finish(g, err);
}

/* The device is a double: its own allocations do not fail. */
static ddp_status plan(const ddp_program *p, const ddp_layout *l, ddp_err *err)
{
    int64_t kept = left;
    rng r = rng_make(3);
    ddp_planned *planned = NULL;
    device d;
    ddp_status st;

    left = -1;
    device_lower(&d, p, &r, true);
    left = kept;
    st = ddp_lowered_check(p, &d.lowered, err);
    if (st == DDP_OK) st = ddp_plan_create(p, &d.lowered, p->training ? l : NULL, &planned, err);
    ddp_plan_free(planned);
    device_free(&d);
    return st;
}

static ddp_status run_all(ddp_err *err)
{
    ddp_graph *g = NULL;
    ddp_layout *l = NULL;
    ddp_status st = ddp_graph_create(model_fields, DDP_COUNT(model_fields), &g, err);

    if (st != DDP_OK) return st;
    st = build(g, err);
    if (st == DDP_OK) st = ddp_layout_create(g, 1, 1, 1, &l, err);
    for (int training = 0; st == DDP_OK && training < 2; training++) {
        ddp_program *p = NULL;

        st = ddp_program_create(g, l, 2, training != 0, &p, err);
        if (st == DDP_OK) st = plan(p, l, err);
        ddp_program_free(p);
    }
    ddp_layout_free(l);
    ddp_graph_free(g);
    return st;
}

static void each_allocation_fails(void **state)
{
    int64_t n = 0;

    (void)state;
    for (;; n++) {
        ddp_err err = {0};
        ddp_status st;

        left = n;
        st = run_all(&err);
        if (left >= 0) { /* none was left to fail */
            left = -1;
            assert_int_equal(st, DDP_OK);
            break;
        }
        left = -1;
        assert_int_equal(st, DDP_ERR_NOMEM);
        assert_has(err.msg, "out of memory");
    }
    assert_true(n > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_fails)};

    return cmocka_run_group_tests_name("graph memory", tests, NULL, NULL);
}
