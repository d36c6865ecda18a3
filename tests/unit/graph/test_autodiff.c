/* test_autodiff.c -- whole programs: the gradients of random models against finite differences of their loss. */
#include "support/graph_util.h"

static double loss_at(values *v)
{
    ddp_err err = {0};

    ok(ddp_reference_run(v->p, &(const ddp_random){0}, v->at, &err));
    return values_loss(v);
}

static double *param_data(const values *v, int32_t index)
{
    for (uint32_t i = 0; i < v->p->value_count; i++)
        if (v->p->values[i].kind == DDP_VALUE_PARAM && v->p->values[i].index == index) return v->at[i].data;
    fail_msg("parameter %d has no value", index);
    return NULL;
}

/* Central differences at two widths: a kink of relu between the points would make them differ. */
static bool slope_at(values *v, double *x, double *slope)
{
    double kept = *x, at[2];

    for (int i = 0; i < 2; i++) {
        double h = i == 0 ? 1e-5 : 3e-6;

        *x = kept + h;
        double up = loss_at(v);
        *x = kept - h;
        double down = loss_at(v);
        at[i] = (up - down) / (2 * h);
    }
    *x = kept;
    *slope = at[0];
    return fabs(at[0] - at[1]) <= 1e-7 * (1.0 + fabs(at[0]));
}

struct tally {
    uint32_t checked, kinks, accumulated, copies;
};

static void check_param(values *train, values *eval, uint32_t g, rng *r, struct tally *tally, uint64_t seed)
{
    const ddp_value *d = &train->p->values[g];
    double *x = param_data(eval, d->index);

    for (int64_t n = DDP_MIN_OF(d->elements, 4); n > 0; n--) {
        int64_t i = d->elements <= 4 ? n - 1 : (int64_t)rng_below(r, (uint32_t)d->elements);
        double slope, got = train->at[g].data[i];

        if (!slope_at(eval, x + i, &slope)) {
            tally->kinks++;
            continue;
        }
        tally->checked++;
        if (!(fabs(slope - got) <= 1e-7 * (1.0 + fabs(slope))))
            fail_msg("model %llu, %s[%lld]: gradient %.12g, finite difference %.12g", (unsigned long long)seed, d->name,
                     (long long)i, got, slope);
    }
}

/* Every parameter is written exactly once without the flag, first, and only gradients are written twice. */
static void check_writes(const ddp_program *p, struct tally *tally)
{
    uint32_t *writes = calloc(p->value_count, sizeof(*writes)), grads = 0;

    assert_non_null(writes);
    for (uint32_t n = 0; n < p->node_count; n++) {
        const ddp_node *node = &p->nodes[n];
        uint32_t kind = p->values[node->out[0]].kind;

        for (uint32_t i = 0; i < node->in_count; i++) {
            uint32_t from = p->values[node->in[i]].kind;

            assert_true(from == DDP_VALUE_INPUT || from == DDP_VALUE_PARAM || writes[node->in[i]] > 0);
            assert_true(from != DDP_VALUE_GRAD);
        }
        assert_true(kind == DDP_VALUE_ACT || kind == DDP_VALUE_GRAD);
        assert_int_equal(node->accumulate != 0, writes[node->out[0]] > 0);
        if (kind == DDP_VALUE_ACT) assert_int_equal(writes[node->out[0]], 0);
        if (node->op == DDP_OP_RESHAPE) {
            assert_int_equal(node->attrs.reshape.rank, p->values[node->out[0]].rank);
            assert_memory_equal(node->attrs.reshape.dims, p->values[node->out[0]].dims,
                                sizeof(node->attrs.reshape.dims));
        }
        if (node->accumulate) tally->accumulated++;
        if (kind == DDP_VALUE_GRAD && node->op == DDP_OP_RESHAPE) tally->copies++;
        if (writes[node->out[0]]++ == 0 && kind == DDP_VALUE_GRAD) grads++;
    }
    assert_int_equal(grads, p->param_count);
    free(writes);
}

static void check_model(uint64_t seed, int64_t batch, struct tally *tally)
{
    ddp_graph *g = random_model(seed);
    ddp_err err = {0};
    ddp_layout *l;
    ddp_program *train, *eval;
    values vt, ve;
    rng r = rng_make(seed + 77);

    ok(ddp_layout_create(g, 64, 256, 2, &l, &err));
    ok(ddp_program_create(g, l, batch, true, &train, &err));
    ok(ddp_program_create(g, l, batch, false, &eval, &err));
    check_writes(train, tally);
    vt = values_make(train);
    ve = values_make(eval);
    values_fill(&vt, seed, MODEL_CLASSES);
    values_fill(&ve, seed, MODEL_CLASSES);
    ok(ddp_reference_run(train, &(const ddp_random){0}, vt.at, &err));
    assert_true(values_loss(&vt) == loss_at(&ve));
    for (uint32_t i = 0; i < train->value_count; i++)
        if (train->values[i].kind == DDP_VALUE_GRAD) check_param(&vt, &ve, i, &r, tally, seed);
    values_free(&vt);
    values_free(&ve);
    ddp_program_free(train);
    ddp_program_free(eval);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

static void random_models(void **state)
{
    struct tally tally = {0};

    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) check_model(seed, seed % 4 == 0 ? 1 : 2 + (int64_t)(seed % 4), &tally);
    assert_true(tally.checked > 5000 && tally.kinks * 100 < tally.checked);
    assert_true(tally.accumulated > 100 && tally.copies > 100);
}

static void reference_refuses_labels(void **state)
{
    ddp_graph *g = random_model(4);
    ddp_err err = {0};
    ddp_layout *l;
    ddp_program *p;
    values v;

    (void)state;
    ok(ddp_layout_create(g, 64, 256, 1, &l, &err));
    ok(ddp_program_create(g, l, 3, false, &p, &err));
    v = values_make(p);
    values_fill(&v, 1, MODEL_CLASSES);
    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == DDP_VALUE_INPUT && p->values[i].dtype == DDP_I64) v.at[i].data[1] = 3.0;
    assert_int_equal(ddp_reference_run(p, &(const ddp_random){0}, v.at, &err), DDP_ERR_DATA);
    assert_has(err.msg, "row 1 has label 3, there are 3 classes");
    values_free(&v);
    ddp_program_free(p);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_models),
        cmocka_unit_test(reference_refuses_labels),
    };

    return cmocka_run_group_tests_name("autodiff", tests, NULL, NULL);
}
