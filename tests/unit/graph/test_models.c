/* test_models.c -- the model plugins as built: opened, their options set, the graphs they describe. */
#include "support/graph_util.h"
#include <ddpengine/model.h>
#include <dlfcn.h>

static const ddp_field images[] = {
    {.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {1, 28, 28}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = 9},
};
static const ddp_field vectors[] = {
    {.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {10}, .min = 1, .max = 0},
    {.name = "target", .dtype = DDP_F32, .rank = 1, .dims = {2}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = 1},
};

typedef struct model {
    void *handle;
    const ddp_plugin *desc;
    _Alignas(16) unsigned char config[256]; /* every option set by the test */
} model;

static model open_model(const char *name)
{
    model m = {0};
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/.libs/model_%s.so", DDP_BUILDDIR, name);
    m.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (m.handle == NULL) fail_msg("%s", dlerror());
    m.desc = dlsym(m.handle, DDP_PLUGIN_SYMBOL);
    assert_non_null(m.desc);
    assert_int_equal(m.desc->kind, DDP_KIND_MODEL);
    assert_int_equal(m.desc->kind_abi, DDP_MODEL_ABI);
    assert_string_equal(m.desc->name, name);
    assert_true(m.desc->config_size <= sizeof(m.config));
    return m;
}

static void *option(model *m, const char *key, uint32_t type)
{
    for (uint32_t i = 0; i < m->desc->option_count; i++)
        if (strcmp(m->desc->options[i].key, key) == 0) {
            assert_int_equal(m->desc->options[i].type, type);
            assert_true(m->desc->options[i].doc != NULL && m->desc->options[i].dflt != NULL);
            return m->config + m->desc->options[i].offset;
        }
    fail_msg("model %s has no option %s", m->desc->name, key);
    return NULL;
}

static ddp_status build(model *m, const ddp_field *fields, uint32_t count, ddp_graph **g, ddp_err *err)
{
    const ddp_model_ops *ops = m->desc->ops;
    ddp_status st;

    assert_int_equal(ddp_graph_create(fields, count, g, err), DDP_OK);
    st = ops->build(*g, m->config, err);
    return st == DDP_OK ? ddp_graph_finish(*g, err) : st;
}

static void set_mlp(model *m, ddp_list hidden, int64_t classes, int32_t activation, int32_t bias, const char *input)
{
    *(ddp_list *)option(m, "hidden", DDP_OPT_INT) = hidden;
    *(int64_t *)option(m, "classes", DDP_OPT_INT) = classes;
    *(int32_t *)option(m, "activation", DDP_OPT_ENUM) = activation;
    *(int32_t *)option(m, "bias", DDP_OPT_BOOL) = bias;
    *(const char **)option(m, "input", DDP_OPT_STRING) = input;
}

static bool has_op(const ddp_graph *g, uint32_t op, bool training, uint64_t tanh_form)
{
    ddp_err err = {0};
    ddp_layout *l;
    ddp_program *p;
    bool found = false;

    ok(ddp_layout_create(g, 1 << 20, 25 << 20, 1, &l, &err));
    ok(ddp_program_create(g, l, 4, training, &p, &err));
    for (uint32_t i = 0; i < p->node_count; i++)
        found |= p->nodes[i].op == op && (op != DDP_OP_GELU || p->nodes[i].attrs.gelu.tanh == tanh_form);
    ddp_program_free(p);
    ddp_layout_free(l);
    return found;
}

static void mlp_is_pytorchs(void **state)
{
    static const char *const names[] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"};
    static const int64_t dims[][2] = {{512, 784}, {512, 0}, {256, 512}, {256, 0}, {10, 256}, {10, 0}};
    static const int64_t widths[] = {512, 256};
    model m = open_model("mlp");
    const ddp_param_info *p;
    ddp_graph *g;
    ddp_err err = {0};

    (void)state;
    set_mlp(&m, (ddp_list){2, widths}, 10, 0, 1, "image");
    ok(build(&m, images, 2, &g, &err));
    assert_int_equal(ddp_graph_params(g, &p), 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_string_equal(p[i].name, names[i]);
        assert_int_equal(p[i].rank, 2 - i % 2);
        assert_int_equal(p[i].dims[0], dims[i][0]);
        if (p[i].rank == 2) assert_int_equal(p[i].dims[1], dims[i][1]);
    }
    assert_true(has_op(g, DDP_OP_RELU, true, 0));
    assert_true(has_op(g, DDP_OP_ACCURACY, false, 0) && !has_op(g, DDP_OP_ACCURACY, true, 0));
    ddp_graph_free(g);
    (void)dlclose(m.handle);
}

static void mlp_options(void **state)
{
    static const int64_t widths[] = {7};
    model m = open_model("mlp");
    const ddp_param_info *p;
    ddp_graph *g;
    ddp_err err = {0};

    (void)state;
    for (int32_t form = 0; form < 2; form++) {
        set_mlp(&m, (ddp_list){1, widths}, 2, 1 + form, 0, "input");
        ok(build(&m, vectors, 3, &g, &err));
        assert_int_equal(ddp_graph_params(g, &p), 2);
        assert_true(has_op(g, DDP_OP_GELU, true, (uint64_t)form) && !has_op(g, DDP_OP_GELU, true, (uint64_t)!form));
        assert_false(has_op(g, DDP_OP_RELU, true, 0));
        ddp_graph_free(g);
    }
    set_mlp(&m, (ddp_list){0, NULL}, 10, 0, 1, "image");
    ok(build(&m, images, 2, &g, &err));
    assert_int_equal(ddp_graph_params(g, &p), 2);
    ddp_graph_free(g);
    set_mlp(&m, (ddp_list){0, NULL}, 5, 0, 1, "image");
    assert_int_equal(build(&m, images, 2, &g, &err), DDP_ERR_DATA);
    assert_has(err.msg, "labels from 0 to 9, the model has 5 classes");
    ddp_graph_free(g);
    assert_int_equal(build(&m, vectors, 3, &g, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "input \"image\"");
    assert_has(err.msg, "input f32 (10); target f32 (2); label i64 ()");
    ddp_graph_free(g);
    (void)dlclose(m.handle);
}

static void toy_nets(void **state)
{
    static const char *const names[2][4] = {{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"},
                                            {"net1.weight", "net1.bias", "net2.weight", "net2.bias"}};
    static const int64_t outs[2][2] = {{5, 2}, {10, 5}};
    model m = open_model("toy");
    ddp_field fields[3];
    const ddp_param_info *p;
    ddp_graph *g;
    ddp_err err = {0};

    (void)state;
    memcpy(fields, vectors, sizeof(fields));
    for (int32_t net = 0; net < 2; net++)
        for (int32_t loss = 0; loss < 2; loss++) {
            *(int32_t *)option(&m, "net", DDP_OPT_ENUM) = net;
            *(int32_t *)option(&m, "loss", DDP_OPT_ENUM) = loss;
            fields[1].dims[0] = outs[net][1];
            ok(build(&m, fields, 3, &g, &err));
            assert_int_equal(ddp_graph_params(g, &p), 4);
            for (int i = 0; i < 4; i++) assert_string_equal(p[i].name, names[net][i]);
            assert_int_equal(p[0].dims[0], outs[net][0]);
            assert_int_equal(p[0].dims[1], 10);
            assert_int_equal(p[2].dims[0], outs[net][1]);
            assert_int_equal(p[2].dims[1], outs[net][0]);
            assert_int_equal(has_op(g, DDP_OP_RELU, true, 0), net == 1);
            assert_int_equal(has_op(g, DDP_OP_CROSS_ENTROPY, true, 0), loss == 1);
            assert_int_equal(has_op(g, DDP_OP_ACCURACY, false, 0), loss == 1);
            ddp_graph_free(g);
        }
    fields[0].dims[0] = 12;
    assert_int_equal(build(&m, fields, 3, &g, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "\"input\" must have the shape (10)");
    ddp_graph_free(g);
    (void)dlclose(m.handle);
}

static uint32_t count_op(const ddp_graph *g, uint32_t op, bool training)
{
    ddp_err err = {0};
    ddp_layout *l;
    ddp_program *p;
    uint32_t n = 0;

    ok(ddp_layout_create(g, 1 << 20, 25 << 20, 1, &l, &err));
    ok(ddp_program_create(g, l, 4, training, &p, &err));
    for (uint32_t i = 0; i < p->node_count; i++) n += p->nodes[i].op == op;
    ddp_program_free(p);
    ddp_layout_free(l);
    return n;
}

static void set_lenet(model *m, int32_t variant, double dropout1, double dropout2)
{
    *(int32_t *)option(m, "variant", DDP_OPT_ENUM) = variant;
    *(int64_t *)option(m, "classes", DDP_OPT_INT) = 10;
    *(double *)option(m, "dropout1", DDP_OPT_FLOAT) = dropout1;
    *(double *)option(m, "dropout2", DDP_OPT_FLOAT) = dropout2;
    *(const char **)option(m, "input", DDP_OPT_STRING) = "image";
}

/* Names, shapes and results of the three are compared with PyTorch's by tests/parity/test_models. */
static void lenet_options(void **state)
{
    static const ddp_field small[] = {{.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {1, 4, 4}, .min = 1},
                                      {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = 9}};
    model m = open_model("lenet");
    ddp_graph *g;
    ddp_err err = {0};

    (void)state;
    for (uint32_t drops = 0; drops < 3; drops++) {
        set_lenet(&m, 1, drops > 0 ? 0.25 : 0.0, drops > 1 ? 0.5 : 0.0);
        ok(build(&m, images, 2, &g, &err));
        assert_int_equal(count_op(g, DDP_OP_DROPOUT, true), drops);
        assert_int_equal(count_op(g, DDP_OP_DROPOUT, false), 0);
        ddp_graph_free(g);
    }
    set_lenet(&m, 0, 0.25, 0.5);
    ok(build(&m, images, 2, &g, &err));
    assert_int_equal(count_op(g, DDP_OP_DROPOUT, true), 0);
    ddp_graph_free(g);
    assert_int_equal(build(&m, small, 2, &g, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "conv1");
    ddp_graph_free(g);
    assert_int_equal(build(&m, vectors, 3, &g, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "input \"image\"");
    ddp_graph_free(g);
    (void)dlclose(m.handle);
}

static void resnet_options(void **state)
{
    model m = open_model("resnet");
    ddp_graph *g;
    ddp_err err = {0};

    (void)state;
    *(int64_t *)option(&m, "classes", DDP_OPT_INT) = 10;
    *(int64_t *)option(&m, "width", DDP_OPT_INT) = 3;
    *(const char **)option(&m, "input", DDP_OPT_STRING) = "image";
    for (int32_t depth = 0; depth < 2; depth++)
        for (int32_t stem = 0; stem < 2; stem++) {
            *(int32_t *)option(&m, "depth", DDP_OPT_ENUM) = depth;
            *(int32_t *)option(&m, "stem", DDP_OPT_ENUM) = stem;
            *(double *)option(&m, "label_smoothing", DDP_OPT_FLOAT) = 0.1 * depth;
            ok(build(&m, images, 2, &g, &err));
            assert_int_equal(count_op(g, DDP_OP_CONV2D, true), depth == 0 ? 20 : 36);
            assert_int_equal(count_op(g, DDP_OP_MAX_POOL2D, true), stem == 0);
            ddp_graph_free(g);
        }
    *(int64_t *)option(&m, "classes", DDP_OPT_INT) = 9;
    assert_int_equal(build(&m, images, 2, &g, &err), DDP_ERR_DATA);
    assert_has(err.msg, "labels from 0 to 9, the model has 9 classes");
    ddp_graph_free(g);
    (void)dlclose(m.handle);
}

static const ddp_field tokens[] = {
    {.name = "input", .dtype = DDP_I64, .rank = 1, .dims = {12}, .min = 0, .max = 255},
    {.name = "target", .dtype = DDP_I64, .rank = 1, .dims = {12}, .min = 0, .max = 255},
};

static void set_gpt2(model *m, int64_t width, int64_t heads, int64_t context, int64_t vocabulary, int64_t padded)
{
    memset(m->config, 0, sizeof(m->config));
    *(int64_t *)option(m, "layers", DDP_OPT_INT) = 2;
    *(int64_t *)option(m, "width", DDP_OPT_INT) = width;
    *(int64_t *)option(m, "heads", DDP_OPT_INT) = heads;
    *(int64_t *)option(m, "context", DDP_OPT_INT) = context;
    *(int64_t *)option(m, "vocabulary", DDP_OPT_INT) = vocabulary;
    *(int64_t *)option(m, "padded_vocabulary", DDP_OPT_INT) = padded;
}

static void gpt2_refuses(model *m, const ddp_field *fields, ddp_status status, const char *part)
{
    ddp_err err = {0};
    ddp_graph *g;

    assert_int_equal(build(m, fields, 2, &g, &err), status);
    assert_has(err.msg, part);
    ddp_graph_free(g);
}

static void gpt2_options(void **state)
{
    model m = open_model("gpt2");
    const ddp_param_info *p;
    ddp_graph *g;
    ddp_err err = {0};

    (void)state;
    for (uint32_t drops = 0; drops < 2; drops++) {
        set_gpt2(&m, 16, 4, 12, 256, 0);
        *(double *)option(&m, "dropout", DDP_OPT_FLOAT) = drops > 0 ? 0.1 : 0.0;
        ok(build(&m, tokens, 2, &g, &err));
        assert_int_equal(count_op(g, DDP_OP_DROPOUT, true), drops > 0 ? 5 : 0);
        assert_int_equal(ddp_graph_params(g, &p), 2 + 2 * 12 + 2);
        ddp_graph_free(g);
    }
    set_gpt2(&m, 16, 3, 12, 256, 0);
    gpt2_refuses(&m, tokens, DDP_ERR_CONFIG, "width = 16 cannot be split over heads = 3");
    set_gpt2(&m, 16, 4, 11, 256, 0);
    gpt2_refuses(&m, tokens, DDP_ERR_CONFIG, "sequences of 12 tokens and the model's context is 11");
    set_gpt2(&m, 16, 4, 12, 256, 255);
    gpt2_refuses(&m, tokens, DDP_ERR_CONFIG, "padded_vocabulary = 255 is less than vocabulary = 256");
    set_gpt2(&m, 16, 4, 12, 255, 0);
    gpt2_refuses(&m, tokens, DDP_ERR_DATA, "0 to 255");
    set_gpt2(&m, 16, 4, 12, 256, 0);
    gpt2_refuses(&m, images, DDP_ERR_CONFIG, "input \"input\"");
    (void)dlclose(m.handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_is_pytorchs), cmocka_unit_test(mlp_options),    cmocka_unit_test(toy_nets),
        cmocka_unit_test(lenet_options),   cmocka_unit_test(resnet_options), cmocka_unit_test(gpt2_options),
    };

    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
