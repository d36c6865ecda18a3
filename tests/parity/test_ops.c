/* tests/parity/test_ops.c -- every op on the inputs of vectors/ops.safetensors: the scalar reference and device cpu against
 * what PyTorch gives (make_ops.py). The bound is 1e-5 of the largest magnitude of the result. */
#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "graph/graph.h"
#include "plugin/plugin.h"
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BOUND 1e-5

struct op_case {
    const char *op; /* as make_ops.py names it */
    uint32_t code, tanh;
    unsigned params; /* bit i: input i is a parameter */
    bool grad;       /* the output is a parameter's gradient */
};
static const struct op_case cases[] = {
    {"linear", DDP_OP_LINEAR, 0, 6, false},
    {"linear_grad_input", DDP_OP_LINEAR_GRAD_INPUT, 0, 2, false},
    {"linear_grad_weight", DDP_OP_LINEAR_GRAD_WEIGHT, 0, 0, true},
    {"linear_grad_bias", DDP_OP_LINEAR_GRAD_BIAS, 0, 0, true},
    {"relu", DDP_OP_RELU, 0, 0, false},
    {"relu_grad", DDP_OP_RELU_GRAD, 0, 0, false},
    {"gelu", DDP_OP_GELU, 0, 0, false},
    {"gelu_grad", DDP_OP_GELU_GRAD, 0, 0, false},
    {"gelu_tanh", DDP_OP_GELU, 1, 0, false},
    {"gelu_tanh_grad", DDP_OP_GELU_GRAD, 1, 0, false},
    {"add", DDP_OP_ADD, 0, 0, false},
    {"cross_entropy", DDP_OP_CROSS_ENTROPY, 0, 0, false},
    {"cross_entropy_grad", DDP_OP_CROSS_ENTROPY_GRAD, 0, 0, false},
    {"mse", DDP_OP_MSE, 0, 0, false},
    {"mse_grad", DDP_OP_MSE_GRAD, 0, 0, false},
    {"accuracy", DDP_OP_ACCURACY, 0, 0, false},
};

struct fixture {
    ddp_safetensors *file;
    ddp_log log;
    ddp_registry *registry;
    const ddp_device_ops *device_ops; /* NULL: no device to test */
    ddp_device *device;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    const char *const folders[] = {DDP_BUILDDIR "/.libs"};
    const ddp_list build_tree = {.count = 1, .items = folders};
    ddp_device_params p = {.struct_size = sizeof(p), .threads = 1, .local_size = 1};
    ddp_loaded *plugin;
    ddp_host host;
    ddp_err err;

    if (f == NULL) return -1;
    *state = f;
    ddp_log_init(&f->log);
    host = ddp_log_host(&f->log);
    assert_int_equal(ddp_safetensors_open(DDP_SRCDIR "/tests/parity/vectors/ops.safetensors", &f->file, &err), DDP_OK);
    assert_int_equal(ddp_registry_open(&f->log, &build_tree, &f->registry, &err), DDP_OK);
    if (ddp_registry_load(f->registry, DDP_KIND_DEVICE, "cpu", &plugin, &err) != DDP_OK) return 0;
    f->device_ops = plugin->ops;
    return f->device_ops->open(&host, NULL, &p, &f->device, &err);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    if (f->device != NULL) f->device_ops->close(f->device);
    ddp_registry_close(f->registry);
    ddp_safetensors_close(f->file);
    free(f);
    return 0;
}

static const ddp_named_tensor *tensor_of(const struct fixture *f, const char *op, int k, const char *part)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s.%d.%s", op, k, part);
    return ddp_safetensors_find(f->file, name);
}

static int64_t elements_of(const ddp_named_tensor *t)
{
    int64_t n = 1;

    for (uint32_t i = 0; i < t->rank; i++) n *= t->dims[i];
    return n;
}

/* ---- one op as a program of one node --------------------------------------------------------------------------------- */
struct one {
    ddp_value values[DDP_NODE_MAX_IN + 1];
    ddp_node node;
    ddp_program program;
    const ddp_named_tensor *in[DDP_NODE_MAX_IN], *out;
    uint64_t param_elements;
};

static void fill_value(ddp_value *v, const ddp_named_tensor *t, uint32_t kind, int32_t index, uint64_t offset)
{
    *v = (ddp_value){.kind = kind,
                     .dtype = t->dtype,
                     .rank = t->rank,
                     .index = index,
                     .elements = elements_of(t),
                     .offset = offset,
                     .name = ""};
    memcpy(v->dims, t->dims, sizeof(v->dims));
}

/* Inputs come as fields, parameters from the parameter arena; false when there is no case K. */
static bool make_one(const struct fixture *f, const struct op_case *c, int k, struct one *o)
{
    char part[8];

    memset(o, 0, sizeof(*o));
    o->out = tensor_of(f, c->op, k, "out");
    if (o->out == NULL) return false;
    o->node = (ddp_node){.op = c->code, .in = {-1, -1, -1, -1}, .out = {-1, -1, -1}, .out_count = 1, .name = "case"};
    o->node.attrs.gelu.tanh = c->tanh;
    for (uint32_t i = 0; i < DDP_NODE_MAX_IN; i++) {
        bool param = (c->params >> i & 1) != 0;

        (void)snprintf(part, sizeof(part), "in%u", i);
        o->in[i] = tensor_of(f, c->op, k, part);
        if (o->in[i] == NULL) break;
        fill_value(&o->values[i], o->in[i], param ? DDP_VALUE_PARAM : DDP_VALUE_INPUT, (int32_t)i,
                   param ? o->param_elements : 0);
        if (param) o->param_elements += ddp_round_up((uint64_t)o->values[i].elements, 16);
        o->node.in[i] = (int32_t)i;
        o->node.in_count++;
    }
    fill_value(&o->values[o->node.in_count], o->out, c->grad ? DDP_VALUE_GRAD : DDP_VALUE_ACT, c->grad ? 0 : -1, 0);
    o->node.out[0] = (int32_t)o->node.in_count;
    o->program = (ddp_program){.struct_size = sizeof(ddp_program),
                               .value_size = sizeof(ddp_value),
                               .node_size = sizeof(ddp_node),
                               .batch = o->in[0]->dims[0],
                               .training = strstr(c->op, "_grad") != NULL,
                               .value_count = o->node.in_count + 1,
                               .node_count = 1,
                               .values = o->values,
                               .nodes = &o->node,
                               .loss = c->grad ? 0 : o->node.out[0]};
    return true;
}

static void compare(const struct op_case *c, int k, const char *who, const double *got, const ddp_named_tensor *want)
{
    const float *w = want->data;
    int64_t n = elements_of(want);
    double scale = 0.0;

    for (int64_t i = 0; i < n; i++) scale = fmax(scale, fabs((double)w[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - (double)w[i]) <= BOUND * fmax(scale, 1e-30)))
            fail_msg("%s, %s case %d, element %ld: %.9g, PyTorch's %.9g", who, c->op, k, (long)i, got[i], (double)w[i]);
}

/* ---- the reference ------------------------------------------------------------------------------------------------------- */
static void run_reference(const struct op_case *c, int k, const struct one *o)
{
    ddp_ref_tensor values[DDP_NODE_MAX_IN + 1];
    ddp_err err;

    for (uint32_t i = 0; i < o->program.value_count; i++) {
        values[i] = (ddp_ref_tensor){.data = calloc((size_t)o->values[i].elements, sizeof(double)),
                                     .rank = o->values[i].rank,
                                     .dims = o->values[i].dims,
                                     .elements = o->values[i].elements};
        assert_non_null(values[i].data);
        for (int64_t e = 0; i < o->node.in_count && e < values[i].elements; e++)
            values[i].data[e] = o->values[i].dtype == DDP_I64 ? (double)((const int64_t *)o->in[i]->data)[e]
                                                              : (double)((const float *)o->in[i]->data)[e];
    }
    assert_int_equal(ddp_reference_run(&o->program, values, &err), DDP_OK);
    compare(c, k, "reference", values[o->node.out[0]].data, o->out);
    for (uint32_t i = 0; i < o->program.value_count; i++) free(values[i].data);
}

static void test_reference(void **state)
{
    const struct fixture *f = *state;
    struct one o;
    int ran = 0;

    for (size_t i = 0; i < DDP_COUNT(cases); i++)
        for (int k = 0; make_one(f, &cases[i], k, &o); k++, ran++) run_reference(&cases[i], k, &o);
    assert_true(ran >= 60);
}

/* ---- the device ---------------------------------------------------------------------------------------------------------- */
static void *device_copy(const struct fixture *f, const void *data, size_t bytes, size_t room)
{
    ddp_err err;
    void *p;

    assert_int_equal(f->device_ops->alloc(f->device, DDP_MAX_OF(room, (size_t)64), &p, &err), DDP_OK);
    if (data != NULL) memcpy(p, data, bytes);
    return p;
}

struct device_memory {
    void *inputs[DDP_NODE_MAX_IN];
    float *params, *grads, *arena;
};

static void fill_memory(const struct fixture *f, const struct one *o, const ddp_planned *plan, struct device_memory *m)
{
    size_t out_bytes = (size_t)o->values[o->node.out[0]].elements * sizeof(float);

    m->params = device_copy(f, NULL, 0, (size_t)o->param_elements * sizeof(float));
    m->grads = device_copy(f, NULL, 0, out_bytes);
    m->arena = device_copy(f, NULL, 0, plan->plan.arena_bytes);
    memset(m->arena, 0xff, plan->plan.arena_bytes); /* NaN */
    memset(m->grads, 0xff, out_bytes);
    for (uint32_t i = 0; i < o->node.in_count; i++) {
        size_t bytes = (size_t)o->values[i].elements * ddp_dtype_size(o->values[i].dtype);

        if (o->values[i].kind == DDP_VALUE_PARAM)
            memcpy(m->params + o->values[i].offset, o->in[i]->data, bytes);
        else
            m->inputs[i] = device_copy(f, o->in[i]->data, bytes, bytes);
    }
}

static void free_memory(const struct fixture *f, struct device_memory *m)
{
    void *all[] = {m->params, m->grads, m->arena, m->inputs[0], m->inputs[1], m->inputs[2], m->inputs[3]};

    for (size_t i = 0; i < DDP_COUNT(all); i++)
        if (all[i] != NULL) f->device_ops->free(f->device, all[i]);
}

static void run_device(const struct fixture *f, const struct op_case *c, int k, const struct one *o)
{
    const ddp_device_ops *ops = f->device_ops;
    struct device_memory m = {0};
    ddp_bind bind = {.struct_size = sizeof(bind)};
    ddp_run run = {.struct_size = sizeof(run), .inputs = m.inputs};
    ddp_lowered *lowered;
    ddp_planned *plan;
    ddp_exec *exec;
    ddp_instance *instance;
    const float *result;
    double *wide;
    ddp_err err = {0};

    if (ops->lower(f->device, &o->program, &lowered, &err) != DDP_OK) fail_msg("%s: %s", c->op, err.msg);
    if (ddp_lowered_check(&o->program, lowered, &err) != DDP_OK) fail_msg("%s: %s", c->op, err.msg);
    if (ddp_plan_create(&o->program, lowered, NULL, &plan, &err) != DDP_OK) fail_msg("%s: %s", c->op, err.msg);
    if (ops->compile(f->device, &o->program, lowered, &plan->plan, &exec, &err) != DDP_OK)
        fail_msg("%s: %s", c->op, err.msg);
    fill_memory(f, o, plan, &m);
    bind.arena = m.arena;
    bind.params = m.params;
    bind.grads = m.grads;
    assert_int_equal(ops->instance_create(exec, &bind, &instance, &err), DDP_OK);
    if (ops->run(instance, &run, 0, lowered->kernel_count, &err) != DDP_OK) fail_msg("%s: %s", c->op, err.msg);
    result = c->grad ? m.grads : m.arena + plan->plan.value_offset[o->node.out[0]] / sizeof(float);
    wide = calloc((size_t)o->values[o->node.out[0]].elements, sizeof(double));
    assert_non_null(wide);
    for (int64_t e = 0; e < o->values[o->node.out[0]].elements; e++) wide[e] = (double)result[e];
    compare(c, k, "device cpu", wide, o->out);
    free(wide);
    ops->instance_free(instance);
    ops->exec_free(exec);
    ddp_plan_free(plan);
    ops->lowered_free(f->device, lowered);
    free_memory(f, &m);
}

static void test_device(void **state)
{
    const struct fixture *f = *state;
    struct one o;
    int ran = 0;

    if (f->device == NULL) skip();
    for (size_t i = 0; i < DDP_COUNT(cases); i++)
        for (int k = 0; make_one(f, &cases[i], k, &o); k++, ran++) run_device(f, &cases[i], k, &o);
    assert_true(ran >= 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_reference, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_device, setup, teardown)};

    return cmocka_run_group_tests_name("parity of ops", tests, NULL, NULL);
}
