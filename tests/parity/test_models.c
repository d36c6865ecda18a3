/* tests/parity/test_models.c -- the models against torchvision's, Hugging Face's and PyTorch's (make_models.py):
 * names, shapes, first values; and with the weights of a file, loss, logits, every gradient and buffers from the
 * scalar references and from device cpu. The bound is 1e-5 of the largest magnitude of a tensor (for a gradient at
 * least GRAD_FLOOR of the largest of all), or 3 times what PyTorch's float32 is from its float64. Each model prints
 * which tensor came nearest to its bound. */
#include "model_util.h"

#define GRAD_FLOOR 1e-6 /* as make_models.py has it */

enum { HASHED_ELEMENTS = 32 << 20 }; /* larger models are drawn only with DDP_TEST_LARGE set */

/* ---- state_dict -------------------------------------------------------------------------------------------------- */
static void compare_entry(const char *model, const json_t *want, const char *name, uint32_t dtype, uint32_t rank,
                          const int64_t *dims)
{
    const json_t *shape = json_array_get(want, 2);

    if (want == NULL) fail_msg("%s: \"%s\" is not in PyTorch's state_dict", model, name);
    if (strcmp(json_string_value(json_array_get(want, 0)), name) != 0)
        fail_msg("%s: \"%s\" where PyTorch has \"%s\"", model, name, json_string_value(json_array_get(want, 0)));
    if (strcmp(json_string_value(json_array_get(want, 1)), dtype == DDP_I64 ? "I64" : "F32") != 0)
        fail_msg("%s: \"%s\" has another dtype", model, name);
    if (json_array_size(shape) != rank) fail_msg("%s: \"%s\" has rank %u", model, name, rank);
    for (uint32_t i = 0; i < rank; i++)
        if (json_integer_value(json_array_get(shape, i)) != dims[i])
            fail_msg("%s: dimension %u of \"%s\" is %lld", model, i, name, (long long)dims[i]);
}

/* Parameters and buffers in the order in which they were declared. */
static void compare_state(const model *m, const json_t *want)
{
    const ddp_param_info *params;
    const ddp_buffer_info *buffers;
    uint32_t param_count = ddp_graph_params(m->g, &params), buffer_count = ddp_graph_buffers(m->g, &buffers);
    uint32_t b = 0, at = 0;

    for (uint32_t p = 0; p <= param_count; p++) {
        for (; b < buffer_count && buffers[b].after_param == p; b++)
            compare_entry(m->name, json_array_get(want, at++), buffers[b].name, buffers[b].dtype, buffers[b].rank,
                          buffers[b].dims);
        if (p < param_count)
            compare_entry(m->name, json_array_get(want, at++), params[p].name, DDP_F32, params[p].rank, params[p].dims);
    }
    assert_int_equal(at, json_array_size(want));
}

static void compare_initial(const model *m, const json_t *initial)
{
    const char *name = m->name, *seed;
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(m->g, &params);
    float *arena = malloc(m->layout->elements * sizeof(*arena));
    json_t *want;
    char hex[DDP_SHA256_HEX];

    assert_non_null(arena);
    json_object_foreach((json_t *)initial, seed, want)
    {
        ddp_sha256 hash;
        ddp_err err = {0};

        ddp_initial_params(m->g, m->layout, strtoull(seed, NULL, 10), arena);
        ok(ddp_sha256_begin(&hash, &err));
        for (uint32_t p = 0; p < count; p++)
            ddp_sha256_add(&hash, arena + m->layout->offset[p], params[p].elements * sizeof(*arena));
        ddp_sha256_end(&hash, hex);
        if (strcmp(hex, json_string_value(want)) != 0)
            fail_msg("%s, seed %s: the first values are not PyTorch's", m->name, seed);
    }
    free(arena);
}

static void test_listed(void **state)
{
    const fixture *f = *state;
    const json_t *listed = json_object_get(f->vectors, "listed");
    bool large = getenv("DDP_TEST_LARGE") != NULL;
    size_t i, drawn = 0;
    json_t *described;

    json_array_foreach(listed, i, described)
    {
        model m;

        model_open(f, described, &m);
        compare_state(&m, json_object_get(described, "state"));
        if (large || m.layout->elements <= HASHED_ELEMENTS) {
            compare_initial(&m, json_object_get(described, "initial"));
            drawn++;
        }
        model_close(&m);
    }
    assert_true(i >= 14 && drawn >= 12);
}

/* ---- weights of a file ------------------------------------------------------------------------------------------- */
enum kind { TRAINING, EVALUATION, OUTPUTS, KINDS };

/* A model with its files and one program. */
typedef struct trial {
    model m;
    ddp_safetensors *weights, *expected;
    ddp_program *p;
    enum kind kind;
    const char *prefix; /* of what it gives: "", outside of training "eval." */
    double largest;     /* magnitude in PyTorch's gradients; 0 outside of training */
} trial;

/* The tensor of a model that is farthest from PyTorch, as a share of what is allowed. */
typedef struct nearest {
    double share, apart;
    char name[DDP_NAME_MAX + 16];
    uint32_t compared;
} nearest;

static ddp_safetensors *open_file(const char *name, const char *suffix)
{
    char path[512];
    ddp_safetensors *file;
    ddp_err err = {0};

    (void)snprintf(path, sizeof(path), VECTORS "/models/%s%s", name, suffix);
    ok(ddp_safetensors_open(path, &file, &err));
    return file;
}

static void trial_close(trial *t)
{
    ddp_program_free(t->p);
    ddp_safetensors_close(t->expected);
    ddp_safetensors_close(t->weights);
    model_close(&t->m);
}

static const ddp_named_tensor *find(const trial *t, const ddp_safetensors *file, const char *prefix, const char *name,
                                    int64_t elements)
{
    char full[DDP_NAME_MAX + 16];
    const ddp_named_tensor *n;
    int64_t count = 1;

    (void)snprintf(full, sizeof(full), "%s%s", prefix, name);
    n = ddp_safetensors_find(file, full);
    if (n == NULL) fail_msg("%s: the file has no \"%s\"", t->m.name, full);
    for (uint32_t i = 0; n != NULL && i < n->rank; i++) count *= n->dims[i];
    if (count != elements) fail_msg("%s: \"%s\" has %lld elements", t->m.name, full, (long long)count);
    return n;
}

/* Where a value comes from: a field, or the weights; NULL for what is computed. */
static const ddp_named_tensor *source_of(const trial *t, const ddp_value *v)
{
    const ddp_param_info *params;
    const ddp_buffer_info *buffers;

    (void)ddp_graph_params(t->m.g, &params);
    (void)ddp_graph_buffers(t->m.g, &buffers);
    switch (v->kind) {
    case DDP_VALUE_INPUT: return find(t, t->expected, "", t->m.fields[v->index].name, v->elements);
    case DDP_VALUE_PARAM: return find(t, t->weights, "", params[v->index].name, v->elements);
    case DDP_VALUE_BUFFER: return find(t, t->weights, "", buffers[v->index].name, v->elements);
    default: return NULL;
    }
}

static double element(const ddp_named_tensor *t, int64_t i)
{
    float f;
    int64_t n;

    if (t->dtype == DDP_I64) {
        memcpy(&n, (const char *)t->data + i * 8, sizeof(n));
        return (double)n;
    }
    memcpy(&f, (const char *)t->data + i * 4, sizeof(f));
    return (double)f;
}

static double magnitude(const ddp_named_tensor *t, int64_t elements)
{
    double largest = 0.0;

    for (int64_t i = 0; i < elements; i++) largest = fmax(largest, fabs(element(t, i)));
    return largest;
}

static double largest_gradient(const trial *t)
{
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(t->m.g, &params);
    double largest = 0.0;

    for (uint32_t i = 0; i < count; i++) {
        int64_t elements = (int64_t)params[i].elements;

        largest = fmax(largest, magnitude(find(t, t->expected, "grad.", params[i].name, elements), elements));
    }
    return largest;
}

static void trial_open(const fixture *f, const json_t *described, enum kind kind, trial *t)
{
    const char *name = text_of(described, "name");
    int64_t batch = json_integer_value(json_object_get(described, "batch"));
    ddp_err err = {0};

    model_open(f, described, &t->m);
    t->weights = open_file(name, ".safetensors");
    t->expected = open_file(name, ".expected.safetensors");
    t->kind = kind;
    t->prefix = kind == TRAINING ? "" : "eval.";
    t->largest = kind == TRAINING ? largest_gradient(t) : 0.0;
    if (kind == OUTPUTS)
        ok(ddp_program_create_outputs(t->m.g, t->m.layout, batch, &t->p, &err));
    else
        ok(ddp_program_create(t->m.g, t->m.layout, batch, kind == TRAINING, &t->p, &err));
}

/* `bound` 0: what the head of this file says. Exactly one of `wide` and `narrow` is given; `n` may be NULL. */
static void compare(const trial *t, const char *who, const char *kind, const char *name, int64_t elements,
                    const double *wide, const float *narrow, double bound, nearest *n)
{
    char full[DDP_NAME_MAX + 16];
    const ddp_named_tensor *want;
    double scale, apart = 0.0;

    (void)snprintf(full, sizeof(full), "%s%s%s", t->prefix, kind, name);
    want = find(t, t->expected, "", full, elements);
    if (bound == 0.0) bound = fmax(1e-5, 3.0 * element(find(t, t->expected, "own.", full, 1), 0));
    scale = magnitude(want, elements);
    if (strcmp(kind, "grad.") == 0) scale = fmax(scale, GRAD_FLOOR * t->largest);
    for (int64_t i = 0; i < elements; i++) {
        double got = wide != NULL ? wide[i] : (double)narrow[i];

        apart = fmax(apart, isfinite(got) ? fabs(got - element(want, i)) : INFINITY);
    }
    if (!(apart <= bound * scale))
        fail_msg("%s, %s: %s is off by %.2e of its largest magnitude, allowed %.2e", t->m.name, who, full,
                 apart / scale, bound);
    if (n == NULL) return;
    n->compared++;
    if (apart < n->share * bound * scale) return;
    n->share = apart / (bound * scale);
    n->apart = apart / scale;
    memcpy(n->name, full, sizeof(full));
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */
static const char *param_of(const trial *t, const ddp_value *v)
{
    const ddp_param_info *params;

    (void)ddp_graph_params(t->m.g, &params);
    return params[v->index].name;
}

static const char *buffer_of(const trial *t, const ddp_value *v)
{
    const ddp_buffer_info *buffers;

    (void)ddp_graph_buffers(t->m.g, &buffers);
    return buffers[v->index].name;
}

/* The stored numbers are float32 of PyTorch's float64. */
static void compare_reference(const trial *t, const ddp_ref_tensor *values)
{
    const double bound = 1e-6;
    int32_t logits = t->kind == OUTPUTS ? t->p->metrics[0] : -1;

    if (t->kind == OUTPUTS)
        compare(t, "reference", "logits", "", values[logits].elements, values[logits].data, NULL, bound, NULL);
    else
        compare(t, "reference", "loss", "", 1, values[t->p->loss].data, NULL, bound, NULL);
    for (uint32_t i = 0; i < t->p->value_count; i++) {
        const ddp_value *v = &t->p->values[i];

        if (v->kind == DDP_VALUE_GRAD)
            compare(t, "reference", "grad.", param_of(t, v), v->elements, values[i].data, NULL, bound, NULL);
        if (v->kind == DDP_VALUE_BUFFER && t->kind == TRAINING)
            compare(t, "reference", "after.", buffer_of(t, v), v->elements, values[i].data, NULL, bound, NULL);
    }
}

static void run_reference(const fixture *f, const json_t *described, enum kind kind)
{
    const char *name = text_of(described, "name");
    ddp_ref_tensor *values;
    ddp_err err = {0};
    trial t;

    trial_open(f, described, kind, &t);
    values = calloc(t.p->value_count, sizeof(*values));
    assert_non_null(values);
    for (uint32_t i = 0; i < t.p->value_count; i++) {
        const ddp_named_tensor *source = source_of(&t, &t.p->values[i]);

        values[i].data = calloc((size_t)t.p->values[i].elements, sizeof(double));
        assert_non_null(values[i].data);
        for (int64_t e = 0; source != NULL && e < t.p->values[i].elements; e++) values[i].data[e] = element(source, e);
    }
    ok(ddp_reference_run(t.p, &(const ddp_random){0}, values, &err));
    compare_reference(&t, values);
    for (uint32_t i = 0; i < t.p->value_count; i++) free(values[i].data);
    free(values);
    trial_close(&t);
}

static void test_reference(void **state)
{
    const fixture *f = *state;
    size_t i;
    json_t *described;

    json_array_foreach(json_object_get(f->vectors, "small"), i, described)
    {
        for (int kind = 0; kind < KINDS; kind++) run_reference(f, described, (enum kind)kind);
    }
    assert_int_equal(i, 8);
}

/* ---- device cpu -------------------------------------------------------------------------------------------------- */
struct memory {
    void *inputs[2];
    float *params, *grads, *buffers, *arena;
};

static float *device_floats(const fixture *f, uint64_t count, bool poisoned)
{
    void *p;
    ddp_err err;

    count = DDP_MAX_OF(count, (uint64_t)1);
    assert_int_equal(f->device_ops->alloc(f->device, count * sizeof(float), &p, &err), DDP_OK);
    if (poisoned) memset(p, 0xff, count * sizeof(float)); /* NaN */
    return p;
}

static void fill_memory(const fixture *f, const trial *t, uint64_t arena_bytes, struct memory *m)
{
    m->params = device_floats(f, t->m.layout->elements, false);
    m->grads = device_floats(f, t->m.layout->elements, true);
    m->buffers = device_floats(f, ddp_graph_buffer_elements(t->m.g), true);
    m->arena = device_floats(f, arena_bytes / sizeof(float), true);
    for (uint32_t i = 0; i < t->p->value_count; i++) {
        const ddp_value *v = &t->p->values[i];
        const ddp_named_tensor *source = source_of(t, v);
        size_t bytes = (size_t)v->elements * ddp_dtype_size(v->dtype);

        if (v->kind == DDP_VALUE_INPUT) m->inputs[v->index] = device_floats(f, bytes / sizeof(float), false);
        if (v->kind == DDP_VALUE_INPUT) memcpy(m->inputs[v->index], source->data, bytes);
        if (v->kind == DDP_VALUE_PARAM) memcpy(m->params + v->offset, source->data, bytes);
        if (v->kind == DDP_VALUE_BUFFER) memcpy(m->buffers + v->offset, source->data, bytes);
    }
}

static void free_memory(const fixture *f, struct memory *m)
{
    void *all[] = {m->params, m->grads, m->buffers, m->arena, m->inputs[0], m->inputs[1]};

    for (size_t i = 0; i < DDP_COUNT(all); i++) f->device_ops->free(f->device, all[i]);
}

static void compare_device(const trial *t, const ddp_planned *plan, const struct memory *m, nearest *n)
{
    int32_t value = t->kind == OUTPUTS ? t->p->metrics[0] : t->p->loss;

    compare(t, "device cpu", t->kind == OUTPUTS ? "logits" : "loss", "", t->p->values[value].elements, NULL,
            m->arena + plan->plan.value_offset[value] / sizeof(float), 0.0, n);
    for (uint32_t i = 0; i < t->p->value_count; i++) {
        const ddp_value *v = &t->p->values[i];

        if (v->kind == DDP_VALUE_GRAD)
            compare(t, "device cpu", "grad.", param_of(t, v), v->elements, NULL, m->grads + v->offset, 0.0, n);
        if (v->kind == DDP_VALUE_BUFFER && t->kind == TRAINING)
            compare(t, "device cpu", "after.", buffer_of(t, v), v->elements, NULL, m->buffers + v->offset, 0.0, n);
    }
}

static void run_lowered(const fixture *f, const trial *t, ddp_lowered *lowered, nearest *n)
{
    const char *name = t->m.name;
    const ddp_device_ops *ops = f->device_ops;
    struct memory m = {0};
    ddp_bind bind = {.struct_size = sizeof(bind)};
    ddp_run run = {.struct_size = sizeof(run), .inputs = m.inputs};
    ddp_planned *plan;
    ddp_exec *exec;
    ddp_instance *instance;
    ddp_err err = {0};

    ok(ddp_lowered_check(t->p, lowered, &err));
    ok(ddp_plan_create(t->p, lowered, NULL, &plan, &err));
    ok(ops->compile(f->device, t->p, lowered, &plan->plan, &exec, &err));
    fill_memory(f, t, plan->plan.arena_bytes, &m);
    bind.arena = m.arena;
    bind.params = m.params;
    bind.grads = t->kind == TRAINING ? m.grads : NULL;
    bind.buffers = m.buffers;
    ok(ops->instance_create(exec, &bind, &instance, &err));
    ok(ops->run(instance, &run, 0, lowered->kernel_count, &err));
    compare_device(t, plan, &m, n);
    ops->instance_free(instance);
    ops->exec_free(exec);
    ddp_plan_free(plan);
    free_memory(f, &m);
}

static void run_device(const fixture *f, const json_t *described, enum kind kind, nearest *n)
{
    const char *name = text_of(described, "name");
    ddp_lowered *lowered;
    ddp_err err = {0};
    trial t;

    trial_open(f, described, kind, &t);
    ok(f->device_ops->lower(f->device, t.p, &lowered, &err));
    run_lowered(f, &t, lowered, n);
    f->device_ops->lowered_free(f->device, lowered);
    trial_close(&t);
}

static void test_device(void **state)
{
    const fixture *f = *state;
    size_t i;
    json_t *described;

    if (f->device == NULL) skip();
    json_array_foreach(json_object_get(f->vectors, "small"), i, described)
    {
        nearest n = {0};

        for (int kind = 0; kind < KINDS; kind++) run_device(f, described, (enum kind)kind, &n);
        print_message(
            "# %s: %u tensors from device cpu; nearest to its bound is %s, off by %.1e, %.2f of what is allowed\n",
            text_of(described, "name"), n.compared, n.name, n.apart, n.share);
    }
    assert_int_equal(i, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_listed, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(test_reference, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(test_device, fixture_open, fixture_close),
    };

    return cmocka_run_group_tests_name("parity of models", tests, NULL, NULL);
}
