/* tests/parity/test_ops.c -- every op on the inputs of vectors/ops.safetensors: the scalar reference and device cpu
 * against what PyTorch gives (make_ops.py). The bound is 1e-5 of the largest magnitude of the result; of losses and of
 * what metrics add up (vectors/losses.safetensors, make_losses.py) 1e-6. The ops of LLaMA-class models are in
 * vectors/llama_ops.safetensors, make_llama.py. */
#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "graph/graph.h"
#include "plugin/plugin.h"
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { OPS, LOSSES, LLAMA, FILES };
static const char *const file_names[] = {[OPS] = "ops", [LOSSES] = "losses", [LLAMA] = "llama_ops"};

struct op_case {
    const char *op; /* as make_ops.py names it */
    uint32_t code, tanh;
    unsigned params;  /* bit i: input i is a parameter */
    unsigned grads;   /* bit i: output i is a parameter's gradient */
    unsigned buffers; /* bit i: input i is a buffer */
    int file;         /* of its cases */
};
static const struct op_case cases[] = {
    {"linear", DDP_OP_LINEAR, 0, 6, 0, 0, OPS},
    {"linear_grad_input", DDP_OP_LINEAR_GRAD_INPUT, 0, 2, 0, 0, OPS},
    {"linear_grad_weight", DDP_OP_LINEAR_GRAD_WEIGHT, 0, 0, 1, 0, OPS},
    {"linear_grad_bias", DDP_OP_LINEAR_GRAD_BIAS, 0, 0, 1, 0, OPS},
    {"relu", DDP_OP_RELU, 0, 0, 0, 0, OPS},
    {"relu_grad", DDP_OP_RELU_GRAD, 0, 0, 0, 0, OPS},
    {"gelu", DDP_OP_GELU, 0, 0, 0, 0, OPS},
    {"gelu_grad", DDP_OP_GELU_GRAD, 0, 0, 0, 0, OPS},
    {"gelu_tanh", DDP_OP_GELU, 1, 0, 0, 0, OPS},
    {"gelu_tanh_grad", DDP_OP_GELU_GRAD, 1, 0, 0, 0, OPS},
    {"add", DDP_OP_ADD, 0, 0, 0, 0, OPS},
    {"rms_norm", DDP_OP_RMS_NORM, 0, 2, 0, 0, LLAMA},
    {"rms_norm_grad", DDP_OP_RMS_NORM_GRAD, 0, 4, 2, 0, LLAMA},
    {"silu", DDP_OP_SILU, 0, 0, 0, 0, LLAMA},
    {"silu_grad", DDP_OP_SILU_GRAD, 0, 0, 0, 0, LLAMA},
    {"mul", DDP_OP_MUL, 0, 0, 0, 0, LLAMA},
    {"rope", DDP_OP_ROPE, 0, 0, 0, 0, LLAMA},
    {"rope_grad", DDP_OP_ROPE_GRAD, 0, 0, 0, 0, LLAMA},
    {"cross_entropy", DDP_OP_CROSS_ENTROPY, 0, 0, 0, 0, OPS},
    {"cross_entropy_grad", DDP_OP_CROSS_ENTROPY_GRAD, 0, 0, 0, 0, OPS},
    {"mse", DDP_OP_MSE, 0, 0, 0, 0, OPS},
    {"mse_grad", DDP_OP_MSE_GRAD, 0, 0, 0, 0, OPS},
    {"accuracy", DDP_OP_ACCURACY, 0, 0, 0, 0, OPS},
    {"conv2d", DDP_OP_CONV2D, 0, 6, 0, 0, OPS},
    {"conv2d_grad_input", DDP_OP_CONV2D_GRAD_INPUT, 0, 2, 0, 0, OPS},
    {"conv2d_grad_weight", DDP_OP_CONV2D_GRAD_WEIGHT, 0, 0, 1, 0, OPS},
    {"conv2d_grad_bias", DDP_OP_CONV2D_GRAD_BIAS, 0, 0, 1, 0, OPS},
    {"max_pool2d", DDP_OP_MAX_POOL2D, 0, 0, 0, 0, OPS},
    {"max_pool2d_grad", DDP_OP_MAX_POOL2D_GRAD, 0, 0, 0, 0, OPS},
    {"avg_pool2d", DDP_OP_AVG_POOL2D, 0, 0, 0, 0, OPS},
    {"avg_pool2d_grad", DDP_OP_AVG_POOL2D_GRAD, 0, 0, 0, 0, OPS},
    {"adaptive_avg_pool2d", DDP_OP_ADAPTIVE_AVG_POOL2D, 0, 0, 0, 0, OPS},
    {"adaptive_avg_pool2d_grad", DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD, 0, 0, 0, 0, OPS},
    {"batch_norm", DDP_OP_BATCH_NORM, 0, 6, 0, 24, OPS},
    {"batch_norm_eval", DDP_OP_BATCH_NORM, 0, 6, 0, 24, OPS},
    {"batch_norm_grad", DDP_OP_BATCH_NORM_GRAD, 0, 4, 6, 0, OPS},
#define LOSS(name, NAME)                                                                                               \
    {name, DDP_OP_##NAME, 0, 0, 0, 0, LOSSES}, { name "_grad", DDP_OP_##NAME##_GRAD, 0, 0, 0, 0, LOSSES }
    LOSS("l1", L1),
    LOSS("smooth_l1", SMOOTH_L1),
    LOSS("bce_with_logits", BCE_WITH_LOGITS),
    LOSS("cross_entropy", CROSS_ENTROPY),
    LOSS("leaky_relu", LEAKY_RELU),
    {"top_k", DDP_OP_TOP_K, 0, 0, 0, 0, LOSSES},
    {"confusion", DDP_OP_CONFUSION, 0, 0, 0, 0, LOSSES},
    {"binary_confusion", DDP_OP_BINARY_CONFUSION, 0, 0, 0, 0, LOSSES},
    {"regression", DDP_OP_REGRESSION, 0, 0, 0, 0, LOSSES},
};

struct fixture {
    ddp_safetensors *files[FILES];
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
    char path[512];

    if (f == NULL) return -1;
    *state = f;
    ddp_log_init(&f->log);
    host = ddp_log_host(&f->log);
    for (int i = 0; i < FILES; i++) {
        (void)snprintf(path, sizeof(path), "%s/tests/parity/vectors/%s.safetensors", DDP_SRCDIR, file_names[i]);
        assert_int_equal(ddp_safetensors_open(path, &f->files[i], &err), DDP_OK);
    }
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
    for (int i = 0; i < FILES; i++) ddp_safetensors_close(f->files[i]);
    free(f);
    return 0;
}

static const ddp_named_tensor *tensor_of(const struct fixture *f, const struct op_case *c, int k, const char *part)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s.%d.%s", c->op, k, part);
    return ddp_safetensors_find(f->files[c->file], name);
}

static int64_t elements_of(const ddp_named_tensor *t)
{
    int64_t n = 1;

    for (uint32_t i = 0; i < t->rank; i++) n *= t->dims[i];
    return n;
}

#define VALUES (DDP_NODE_MAX_IN + DDP_NODE_MAX_OUT)

/* ---- one op as a program of one node ----------------------------------------------------------------------------- */
struct one {
    ddp_value values[VALUES];
    ddp_node node;
    ddp_program program;
    const ddp_named_tensor *in[DDP_NODE_MAX_IN], *out[DDP_NODE_MAX_OUT], *after[DDP_NODE_MAX_IN];
    int32_t results[DDP_NODE_MAX_OUT];                       /* outputs of the arena */
    uint64_t param_elements, grad_elements, buffer_elements; /* of the arenas */
};

static uint64_t place_in(uint64_t *arena, const ddp_named_tensor *t)
{
    uint64_t at = *arena;

    *arena += ddp_round_up((uint64_t)elements_of(t), 16);
    return at;
}

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

/* Inputs come as fields, parameters and buffers from their arenas. */
static void make_input(const struct fixture *f, const struct op_case *c, int k, struct one *o, uint32_t i)
{
    bool param = (c->params >> i & 1) != 0, buffer = (c->buffers >> i & 1) != 0;
    uint64_t *arena = param ? &o->param_elements : &o->buffer_elements;
    char part[8];

    fill_value(&o->values[i], o->in[i],
               param    ? DDP_VALUE_PARAM
               : buffer ? DDP_VALUE_BUFFER
                        : DDP_VALUE_INPUT,
               (int32_t)i, param || buffer ? place_in(arena, o->in[i]) : 0);
    (void)snprintf(part, sizeof(part), "after%u", i);
    o->after[i] = tensor_of(f, c, k, part);
    o->node.in[i] = (int32_t)i;
    o->node.in_count++;
}

static void make_output(const struct op_case *c, struct one *o, uint32_t i)
{
    uint32_t value = o->node.in_count + i;
    bool grad = (c->grads >> i & 1) != 0;

    fill_value(&o->values[value], o->out[i], grad ? DDP_VALUE_GRAD : DDP_VALUE_ACT, grad ? (int32_t)i : -1,
               grad ? place_in(&o->grad_elements, o->out[i]) : 0);
    o->node.out[i] = (int32_t)value;
    if (!grad) o->results[o->program.metric_count++] = (int32_t)value;
    o->program.value_count = value + 1;
}

/* Class weights of cross_entropy. */
static void make_weights(ddp_attrs *attrs, const ddp_named_tensor *weight)
{
    if (weight == NULL) return;
    attrs->cross_entropy.weight = weight->data;
    attrs->cross_entropy.weights = (uint32_t)elements_of(weight);
}

/* False when there is no case K. */
static bool make_one(const struct fixture *f, const struct op_case *c, int k, struct one *o)
{
    const ddp_named_tensor *attrs = tensor_of(f, c, k, "attrs");
    char part[8];

    memset(o, 0, sizeof(*o));
    o->out[0] = tensor_of(f, c, k, "out");
    if (o->out[0] == NULL) return false;
    o->node = (ddp_node){.op = c->code, .in = {-1, -1, -1, -1, -1, -1}, .out = {-1, -1, -1}, .name = "case"};
    o->node.out_count = ddp_op_outs(ddp_op_find(c->code));
    o->node.attrs.gelu.tanh = c->tanh;
    if (attrs != NULL) memcpy(o->node.attrs.words, attrs->data, (size_t)elements_of(attrs) * sizeof(int64_t));
    make_weights(&o->node.attrs, tensor_of(f, c, k, "weight"));
    for (uint32_t i = 0; i < DDP_NODE_MAX_IN; i++) {
        (void)snprintf(part, sizeof(part), "in%u", i);
        o->in[i] = tensor_of(f, c, k, part);
        if (o->in[i] == NULL) break;
        make_input(f, c, k, o, i);
    }
    for (uint32_t i = 0; i < DDP_NODE_MAX_OUT; i++) {
        (void)snprintf(part, sizeof(part), "out%u", i);
        if (i > 0) o->out[i] = tensor_of(f, c, k, part);
        if (o->out[i] != NULL) make_output(c, o, i);
    }
    o->program.struct_size = sizeof(ddp_program);
    o->program.value_size = sizeof(ddp_value);
    o->program.node_size = sizeof(ddp_node);
    o->program.batch = o->in[0]->dims[0];
    o->program.training = strstr(c->op, "_eval") == NULL;
    o->program.node_count = 1;
    o->program.values = o->values;
    o->program.nodes = &o->node;
    o->program.metrics = o->results;
    o->program.loss = o->program.metric_count > 0 ? o->results[0] : 0;
    return true;
}

static void compare(const struct op_case *c, int k, const char *who, const double *got, const ddp_named_tensor *want)
{
    const float *w = want->data;
    int64_t n = elements_of(want);
    double scale = 0.0, bound = c->file == LOSSES ? 1e-6 : 1e-5;

    for (int64_t i = 0; i < n; i++) scale = fmax(scale, fabs((double)w[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - (double)w[i]) <= bound * fmax(scale, 1e-30)))
            fail_msg("%s, %s case %d, element %ld: %.9g, PyTorch's %.9g", who, c->op, k, (long)i, got[i], (double)w[i]);
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */
/* The file aligns nothing to eight bytes. */
static double element(const ddp_named_tensor *t, int64_t at)
{
    const char *data = t->data;
    int64_t whole;
    float real;

    if (t->dtype == DDP_I64) {
        memcpy(&whole, data + at * (int64_t)sizeof(whole), sizeof(whole));
        return (double)whole;
    }
    memcpy(&real, data + at * (int64_t)sizeof(real), sizeof(real));
    return (double)real;
}

static void run_reference(const struct op_case *c, int k, const struct one *o)
{
    ddp_ref_tensor values[VALUES];
    ddp_err err;

    for (uint32_t i = 0; i < o->program.value_count; i++) {
        values[i] = (ddp_ref_tensor){.data = calloc((size_t)o->values[i].elements, sizeof(double)),
                                     .rank = o->values[i].rank,
                                     .dims = o->values[i].dims,
                                     .elements = o->values[i].elements};
        assert_non_null(values[i].data);
        for (int64_t e = 0; i < o->node.in_count && e < values[i].elements; e++)
            values[i].data[e] = element(o->in[i], e);
    }
    assert_int_equal(ddp_reference_run(&o->program, &(const ddp_random){0}, values, &err), DDP_OK);
    for (uint32_t i = 0; i < DDP_NODE_MAX_OUT; i++)
        if (o->out[i] != NULL) compare(c, k, "reference", values[o->node.out[i]].data, o->out[i]);
    for (uint32_t i = 0; i < o->node.in_count; i++)
        if (o->after[i] != NULL) compare(c, k, "reference, buffer", values[i].data, o->after[i]);
    for (uint32_t i = 0; i < o->program.value_count; i++) free(values[i].data);
}

static void test_reference(void **state)
{
    const struct fixture *f = *state;
    struct one o;
    int ran = 0;

    for (size_t i = 0; i < DDP_COUNT(cases); i++)
        for (int k = 0; make_one(f, &cases[i], k, &o); k++, ran++) run_reference(&cases[i], k, &o);
    assert_true(ran >= 250);
}

/* ---- the device -------------------------------------------------------------------------------------------------- */
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
    float *params, *grads, *buffers, *arena;
};

static void fill_memory(const struct fixture *f, const struct one *o, const ddp_planned *plan, struct device_memory *m)
{
    m->params = device_copy(f, NULL, 0, (size_t)o->param_elements * sizeof(float));
    m->grads = device_copy(f, NULL, 0, (size_t)o->grad_elements * sizeof(float));
    m->buffers = device_copy(f, NULL, 0, (size_t)o->buffer_elements * sizeof(float));
    m->arena = device_copy(f, NULL, 0, plan->plan.arena_bytes);
    memset(m->arena, 0xff, plan->plan.arena_bytes); /* NaN */
    memset(m->grads, 0xff, (size_t)o->grad_elements * sizeof(float));
    for (uint32_t i = 0; i < o->node.in_count; i++) {
        size_t bytes = (size_t)o->values[i].elements * ddp_dtype_size(o->values[i].dtype);

        if (o->values[i].kind == DDP_VALUE_PARAM)
            memcpy(m->params + o->values[i].offset, o->in[i]->data, bytes);
        else if (o->values[i].kind == DDP_VALUE_BUFFER)
            memcpy(m->buffers + o->values[i].offset, o->in[i]->data, bytes);
        else
            m->inputs[i] = device_copy(f, o->in[i]->data, bytes, bytes);
    }
}

static void free_memory(const struct fixture *f, struct device_memory *m)
{
    void *all[] = {m->params, m->grads, m->buffers, m->arena};

    for (size_t i = 0; i < DDP_COUNT(all); i++)
        if (all[i] != NULL) f->device_ops->free(f->device, all[i]);
    for (size_t i = 0; i < DDP_NODE_MAX_IN; i++)
        if (m->inputs[i] != NULL) f->device_ops->free(f->device, m->inputs[i]);
}

static void compare_floats(const struct op_case *c, int k, const char *who, const float *got,
                           const ddp_named_tensor *want)
{
    double *wide = calloc((size_t)elements_of(want), sizeof(double));

    assert_non_null(wide);
    for (int64_t e = 0; e < elements_of(want); e++) wide[e] = (double)got[e];
    compare(c, k, who, wide, want);
    free(wide);
}

static void compare_device(const struct op_case *c, int k, const struct one *o, const struct device_memory *m,
                           const ddp_planned *plan)
{
    for (uint32_t i = 0; i < DDP_NODE_MAX_OUT; i++) {
        int32_t value = o->node.out[i];

        if (o->out[i] == NULL) continue;
        compare_floats(c, k, "device cpu",
                       c->grads >> i & 1 ? m->grads + o->values[value].offset
                                         : m->arena + plan->plan.value_offset[value] / sizeof(float),
                       o->out[i]);
    }
    for (uint32_t i = 0; i < o->node.in_count; i++)
        if (o->after[i] != NULL)
            compare_floats(c, k, "device cpu, buffer", m->buffers + o->values[i].offset, o->after[i]);
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
    bind.buffers = m.buffers;
    assert_int_equal(ops->instance_create(exec, &bind, &instance, &err), DDP_OK);
    if (ops->run(instance, &run, 0, lowered->kernel_count, &err) != DDP_OK) fail_msg("%s: %s", c->op, err.msg);
    compare_device(c, k, o, &m, plan);
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
    assert_true(ran >= 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_reference, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_device, setup, teardown)};
    int failed = cmocka_run_group_tests_name("parity of ops", tests, NULL, NULL);

    /* oneDNN has looked for a profiler that is not there: the second call frees the loader's text about that */
    (void)dlerror();
    (void)dlerror();
    return failed;
}
