/* The out-of-tree examples of the manual: they build without a warning in C99 and C11 from the public headers, load,
 * and do what they say. The backend runs with several ranks, one thread each, over a store in memory. */
#include "plugin_fixture.h"

#include <ddpengine/hook.h>
#include <pthread.h>

#define WORLD 3

static char *folder;

static void build(const char *example, const char *plugin, const char *standard)
{
    char command[4 * PATH_MAX];

    (void)snprintf(
        command, sizeof(command),
        DDP_CC " -std=%s -O1 -g -Wall -Wextra -Wconversion -Wpedantic -Werror -fPIC -fvisibility=hidden -I'" DDP_SRCDIR
               "/core/include' " DDP_SAN_FLAGS " -o '%s/%s.so' '" DDP_SRCDIR
               "/docs/examples/%s/%s.c' -shared -lpthread -lm",
        standard, folder, plugin, example, plugin);
    if (system(command) != 0) fail_msg("does not build: %s", command);
}

/* ---- a store in memory ------------------------------------------------------------------------------------------- */
typedef struct item {
    char key[64];
    void *value;
    size_t length;
} item;

typedef struct memory_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    item items[64];
} memory_store;

static item *find_item(memory_store *s, const char *key)
{
    for (size_t i = 0; i < DDP_COUNT(s->items); i++)
        if (s->items[i].value != NULL && strcmp(s->items[i].key, key) == 0) return &s->items[i];
    return NULL;
}

static ddp_status store_set(void *ctx, const char *key, const void *value, size_t length, ddp_err *err)
{
    memory_store *s = ctx;
    size_t i = 0;
    bool full;

    (void)pthread_mutex_lock(&s->lock);
    while (i < DDP_COUNT(s->items) && s->items[i].value != NULL) i++;
    full = i == DDP_COUNT(s->items);
    if (!full) {
        ddp_copy_text(s->items[i].key, sizeof(s->items[i].key), key);
        s->items[i].value = malloc(length + 1);
        if (length != 0) memcpy(s->items[i].value, value, length);
        s->items[i].length = length;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return full ? ddp_fail(err, DDP_ERR_NOMEM, "the store is full: somebody does not remove") : DDP_OK;
}

static ddp_status store_get(void *ctx, const char *key, void *buf, size_t capacity, size_t *length, int64_t timeout_ms,
                            ddp_err *err)
{
    memory_store *s = ctx;
    int64_t deadline = ddp_now_ns() + timeout_ms * 1000000;
    bool in_time = true;
    ddp_status status = DDP_OK;
    item *it;

    (void)pthread_mutex_lock(&s->lock);
    while ((it = find_item(s, key)) == NULL && in_time) in_time = ddp_cond_wait_until(&s->changed, &s->lock, deadline);
    if (it == NULL) {
        status = ddp_fail(err, DDP_ERR_TIMEOUT, "no %s", key);
    } else if (it->length > capacity) {
        status = ddp_fail(err, DDP_ERR_INVALID, "%s is too long", key);
    } else {
        if (it->length != 0) memcpy(buf, it->value, it->length);
        *length = it->length;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

static ddp_status store_remove(void *ctx, const char *key, ddp_err *err)
{
    memory_store *s = ctx;
    item *it;

    (void)err;
    (void)pthread_mutex_lock(&s->lock);
    it = find_item(s, key);
    if (it != NULL) {
        free(it->value);
        it->value = NULL;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return DDP_OK;
}

/* ---- the backend ------------------------------------------------------------------------------------------------- */
struct store_config { /* as in backend_store.c */
    uint64_t chunk;
};

typedef struct rank {
    pthread_t thread;
    uint32_t rank;
    const ddp_backend_ops *ops;
    memory_store *memory;
    ddp_store store;
    ddp_host host;
    ddp_comm *comm;
    int wrong;
    ddp_err err;
} rank;

#define COUNT 700 /* elements: three chunks of f32 at 1 KiB, the last one short */

static double value_of(uint32_t r, size_t i) { return (double)((i * 7 + r * 5) % 11) + 1.0; } /* exact in every dtype */

static double expected(uint32_t op, size_t i)
{
    double v = value_of(0, i);

    for (uint32_t r = 1; r < WORLD; r++) {
        double w = value_of(r, i);
        v = op == DDP_MIN ? DDP_MIN_OF(v, w) : op == DDP_MAX ? DDP_MAX_OF(v, w) : v + w;
    }
    return v;
}

static void put(uint32_t dtype, void *base, size_t i, double v)
{
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    switch (dtype) {
    case DDP_F32: ((float *)base)[i] = f; break;
    case DDP_F64: ((double *)base)[i] = v; break;
    case DDP_I32: ((int32_t *)base)[i] = (int32_t)v; break;
    case DDP_I64: ((int64_t *)base)[i] = (int64_t)v; break;
    case DDP_U8: ((uint8_t *)base)[i] = (uint8_t)v; break;
    default: ((uint16_t *)base)[i] = (uint16_t)(bits >> 16); break;
    }
}

static double read_back(uint32_t dtype, const void *base, size_t i)
{
    uint32_t bits;
    float f;

    switch (dtype) {
    case DDP_F32: return (double)((const float *)base)[i];
    case DDP_F64: return ((const double *)base)[i];
    case DDP_I32: return (double)((const int32_t *)base)[i];
    case DDP_I64: return (double)((const int64_t *)base)[i];
    case DDP_U8: return (double)((const uint8_t *)base)[i];
    default:
        bits = (uint32_t)((const uint16_t *)base)[i] << 16;
        memcpy(&f, &bits, sizeof(f));
        return (double)f;
    }
}

static void expect(rank *k, bool ok) { k->wrong += !ok; }

static void reduce_and_scatter(rank *k, uint32_t dtype, uint32_t op)
{
    double in[COUNT], out[COUNT];
    size_t count = COUNT / WORLD;
    ddp_coll c = {.struct_size = sizeof(c), .dtype = dtype, .op = op, .send = in, .recv = in, .count = COUNT};
    double tolerance = dtype == DDP_BF16 ? 0.05 : 1e-6;
    double parts = op == DDP_AVG ? WORLD : 1;

    for (size_t i = 0; i < COUNT; i++) put(dtype, in, i, value_of(k->rank, i));
    expect(k, k->ops->all_reduce(k->comm, &c, NULL, &k->err) == DDP_OK); /* in place */
    for (size_t i = 0; i < COUNT; i++) expect(k, fabs(read_back(dtype, in, i) - expected(op, i) / parts) <= tolerance);

    for (size_t i = 0; i < COUNT; i++) put(dtype, in, i, value_of(k->rank, i));
    c.recv = out;
    c.count = count;
    expect(k, k->ops->reduce_scatter(k->comm, &c, NULL, &k->err) == DDP_OK);
    for (size_t i = 0; i < count; i++)
        expect(k, fabs(read_back(dtype, out, i) - expected(op, k->rank * count + i) / parts) <= tolerance);
}

static void gather_and_broadcast(rank *k)
{
    float mine[COUNT], all[COUNT * WORLD];
    ddp_coll c = {.struct_size = sizeof(c), .dtype = DDP_F32, .send = mine, .recv = all, .count = COUNT};

    for (size_t i = 0; i < COUNT; i++) mine[i] = (float)value_of(k->rank, i);
    expect(k, k->ops->all_gather(k->comm, &c, NULL, &k->err) == DDP_OK);
    for (uint32_t r = 0; r < WORLD; r++)
        for (size_t i = 0; i < COUNT; i++) expect(k, all[r * COUNT + i] == (float)value_of(r, i));
    c.recv = mine;
    c.root = 2;
    expect(k, k->ops->broadcast(k->comm, &c, NULL, &k->err) == DDP_OK);
    for (size_t i = 0; i < COUNT; i++) expect(k, mine[i] == (float)value_of(2, i));

    c.count = 0; /* legal everywhere */
    c.op = DDP_SUM;
    expect(k, k->ops->all_reduce(k->comm, &c, NULL, &k->err) == DDP_OK);
    expect(k, k->ops->all_gather(k->comm, &c, NULL, &k->err) == DDP_OK);
    expect(k, k->ops->broadcast(k->comm, &c, NULL, &k->err) == DDP_OK);
    c.count = 10;
    c.send = mine;
    c.recv = mine + 5;
    expect(k, k->ops->all_reduce(k->comm, &c, NULL, &k->err) == DDP_ERR_INVALID);
    c.op = DDP_AVG;
    c.dtype = DDP_I32;
    expect(k, k->ops->all_reduce(k->comm, &c, NULL, &k->err) == DDP_ERR_UNSUPPORTED);
}

static ddp_backend *join(rank *k)
{
    static const struct store_config config = {1024};
    ddp_comm_params p = {.struct_size = sizeof(p),
                         .rank = k->rank,
                         .world_size = WORLD,
                         .timeout_ms = 60000,
                         .connect_timeout_ms = 60000,
                         .group = "g",
                         .address = "127.0.0.1",
                         .store = &k->store};
    ddp_backend *b = NULL;

    expect(k, k->ops->open(&k->host, &config, &b, &k->err) == DDP_OK);
    expect(k, k->ops->comm_create(b, &p, &k->comm, &k->err) == DDP_OK);
    return b;
}

static void *run_rank(void *arg)
{
    rank *k = arg;
    ddp_backend *b = join(k);

    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
            if (k->ops->supports(k->comm, dtype, op) == DDP_OK) reduce_and_scatter(k, dtype, op);
    gather_and_broadcast(k);
    for (int i = 0; i < 20; i++) expect(k, k->ops->barrier(k->comm, NULL, &k->err) == DDP_OK);
    k->ops->comm_destroy(k->comm);
    k->ops->close(b);
    return NULL;
}

/* Rank 0 waits for a barrier that nobody else comes to, until it is aborted. */
static void *run_lonely(void *arg)
{
    rank *k = arg;
    ddp_backend *b = join(k);

    if (k->rank == 0) {
        expect(k, k->ops->barrier(k->comm, NULL, &k->err) == DDP_ERR_ABORTED);
        expect(k, k->ops->barrier(k->comm, NULL, &k->err) == DDP_ERR_ABORTED);
        expect(k, strstr(k->err.msg, "barrier was aborted") != NULL);
    }
    k->ops->comm_destroy(k->comm);
    k->ops->close(b);
    return NULL;
}

/* Ranks with `main`; returns after all have ended. `during` runs once rank 0 has connected. */
static void run_world(const ddp_backend_ops *ops, void *(*run)(void *), void (*during)(rank *), memory_store *memory)
{
    rank ranks[WORLD] = {0};
    ddp_log log;

    ddp_log_init(&log);
    log.level = DDP_LOG_ERROR;
    for (uint32_t r = 0; r < WORLD; r++) {
        ranks[r] = (rank){.rank = r, .ops = ops, .memory = memory, .host = ddp_log_host(&log)};
        ranks[r].store = (ddp_store){.struct_size = sizeof(ddp_store),
                                     .ctx = memory,
                                     .set = store_set,
                                     .get = store_get,
                                     .remove = store_remove};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run, &ranks[r]), 0);
    }
    if (during != NULL) during(ranks);
    for (uint32_t r = 0; r < WORLD; r++) (void)pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < WORLD; r++)
        if (ranks[r].wrong != 0) fail_msg("rank %u: %d wrong; %s", r, ranks[r].wrong, ranks[r].err.msg);
}

/* The second barrier's part of rank 0 shows that it is waiting. */
static void abort_rank_0(rank *ranks)
{
    char buf[8];
    size_t length;
    ddp_err err;

    assert_int_equal(store_get(ranks[0].memory, "1.0", buf, sizeof(buf), &length, 60000, &err), DDP_OK);
    ranks[0].ops->comm_abort(ranks[0].comm);
}

static void backend_reduces(void **state)
{
    const ddp_backend_ops *ops;
    ddp_registry *r = *state;
    ddp_loaded *p;
    memory_store memory = {0};
    ddp_err err;
    size_t left = 0;

    build("backend-skeleton", "backend_store", "c99");
    build("backend-skeleton", "backend_store", "c11");
    if (ddp_registry_load(r, DDP_KIND_BACKEND, "store", &p, &err) != DDP_OK) fail_msg("%s", err.msg);
    ops = p->ops;
    ddp_cond_init(&memory.changed);
    (void)pthread_mutex_init(&memory.lock, NULL);
    run_world(ops, run_rank, NULL, &memory);
    for (size_t i = 0; i < DDP_COUNT(memory.items); i++) {
        left += memory.items[i].value != NULL;
        free(memory.items[i].value);
        memory.items[i].value = NULL;
    }
    assert_true(left <= WORLD); /* the last exchange's parts; all others are removed */
    run_world(ops, run_lonely, abort_rank_0, &memory);
    for (size_t i = 0; i < DDP_COUNT(memory.items); i++) free(memory.items[i].value);
    (void)pthread_mutex_destroy(&memory.lock);
    (void)pthread_cond_destroy(&memory.changed);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */
typedef struct recorder { /* a graph that writes down what a model asks for; every tensor is (N, 64) */
    ddp_graph graph;
    ddp_text text;
    char scope[64];
    int32_t next;
} recorder;

static ddp_tensor next_tensor(ddp_graph *g) { return (ddp_tensor){((recorder *)g)->next++}; }
static ddp_tensor on_input(ddp_graph *g, const char *field)
{
    ddp_text_printf(&((recorder *)g)->text, "input %s\n", field);
    return next_tensor(g);
}
static ddp_tensor on_param(ddp_graph *g, const char *name, uint32_t rank, const int64_t *dims,
                           const ddp_init_spec *init)
{
    recorder *r = (recorder *)g;

    (void)init;
    ddp_text_printf(&r->text, "param %s%s%s %d\n", r->scope, r->scope[0] != '\0' ? "." : "", name,
                    (int)(rank == 2 ? dims[0] : 0));
    return next_tensor(g);
}
static ddp_tensor on_op(ddp_graph *g, uint32_t op, const ddp_attrs *attrs, uint32_t count, const ddp_tensor *in,
                        const char *name)
{
    (void)op;
    (void)attrs;
    (void)count;
    (void)in;
    (void)name;
    return next_tensor(g);
}
static void on_scope(ddp_graph *g, const char *name)
{
    recorder *r = (recorder *)g;

    ddp_copy_text(r->scope, sizeof(r->scope), name != NULL ? name : "");
}
static void on_loss(ddp_graph *g, ddp_tensor t)
{
    (void)t;
    ddp_text_printf(&((recorder *)g)->text, "loss\n");
}
static void on_metric(ddp_graph *g, const char *name, ddp_tensor t)
{
    (void)t;
    ddp_text_printf(&((recorder *)g)->text, "metric %s\n", name);
}
static uint32_t on_dims(const ddp_graph *g, ddp_tensor t, int64_t *dims)
{
    (void)g;
    (void)t;
    dims[0] = DDP_N;
    dims[1] = 64;
    return 2;
}
static ddp_status on_status(const ddp_graph *g, ddp_err *err)
{
    (void)g;
    (void)err;
    return DDP_OK;
}

static void model_builds(void **state)
{
    static const ddp_graph_api api = {.struct_size = sizeof(api),
                                      .input = on_input,
                                      .param = on_param,
                                      .op = on_op,
                                      .scope = on_scope,
                                      .loss = on_loss,
                                      .metric = on_metric,
                                      .dims = on_dims,
                                      .status = on_status};
    const struct {
        int64_t width, inner, blocks, classes;
    } config = {64, 32, 1, 10};
    recorder graph = {.graph = {&api}};
    ddp_registry *r = *state;
    ddp_loaded *p;
    ddp_err err;

    build("model-example", "model_resmlp", "c99");
    build("model-example", "model_resmlp", "c11");
    if (ddp_registry_load(r, DDP_KIND_MODEL, "resmlp", &p, &err) != DDP_OK) fail_msg("%s", err.msg);
    assert_int_equal(p->desc.config_size, sizeof(config));
    assert_int_equal(((const ddp_model_ops *)p->ops)->build(&graph.graph, &config, &err), DDP_OK);
    assert_string_equal(graph.text.data, "input label\ninput image\nparam stem.weight 64\nparam stem.bias 0\n"
                                         "param blocks.0.fc1.weight 32\nparam blocks.0.fc1.bias 0\n"
                                         "param blocks.0.fc2.weight 64\nparam blocks.0.fc2.bias 0\n"
                                         "param head.weight 10\nparam head.bias 0\nloss\nmetric accuracy\n");
    ddp_text_free(&graph.text);
}

/* ---- the hook ---------------------------------------------------------------------------------------------------- */
static ddp_status all_gather_alone(void *ctx, const ddp_coll *a, ddp_err *err)
{
    (void)ctx;
    (void)err;
    memcpy(a->recv, a->send, a->count * ddp_dtype_size(a->dtype));
    return DDP_OK;
}

/* In a world of one: every update is the upper halves of its gradients, and what was cut off comes later. */
static void check_hook(const ddp_hook_ops *ops, ddp_hook *h)
{
    const float third = 1.0f / 3.0f;
    double sum = 0.0;
    ddp_err err;

    for (uint64_t update = 1; update <= 1000; update++) {
        float grads[] = {third, -8.0f, 0.0f};
        uint32_t bits;

        assert_int_equal(ops->compress(h, 0, update, grads, &err), DDP_OK);
        assert_int_equal(ops->exchange(h, 0, update, grads, &err), DDP_OK);
        assert_int_equal(ops->decompress(h, 0, update, grads, &err), DDP_OK);
        memcpy(&bits, &grads[0], sizeof(bits));
        assert_int_equal(bits & 0xffffu, 0);
        assert_true(grads[0] >= 0.33f && grads[0] < 0.337f && grads[1] == -8.0f && grads[2] == 0.0f);
        sum += (double)grads[0];
    }
    assert_true(sum > 1000 * (double)third - 0.01 && sum < 1000 * (double)third + 0.01); /* else 1.3 too little */
}

static void hook_carries(void **state)
{
    const struct {
        int32_t carry;
    } config = {1};
    const ddp_hook_group group = {.struct_size = sizeof(group), .world_size = 1, .all_gather = all_gather_alone};
    const ddp_hook_tensor tensor = {.name = "weight", .elements = 3, .rank = 1, .dims = {3}};
    const ddp_hook_bucket bucket = {.count = 3, .tensors = &tensor, .tensor_count = 1, .dtype = DDP_F32};
    const ddp_hook_params params = {.struct_size = sizeof(params),
                                    .bucket_size = sizeof(bucket),
                                    .tensor_size = sizeof(tensor),
                                    .bucket_count = 1,
                                    .buckets = &bucket,
                                    .group = &group};
    const ddp_host host = {.struct_size = sizeof(host)};
    const ddp_hook_state *states;
    const ddp_hook_ops *ops;
    ddp_registry *r = *state;
    ddp_loaded *p;
    ddp_hook *h;
    ddp_err err;

    build("hook-skeleton", "hook_carry", "c99");
    build("hook-skeleton", "hook_carry", "c11");
    if (ddp_registry_load(r, DDP_KIND_HOOK, "carry", &p, &err) != DDP_OK) fail_msg("%s", err.msg);
    ops = p->ops;
    assert_int_equal(p->desc.config_size, sizeof(config));
    if (ops->open(&host, &config, &params, &h, &err) != DDP_OK) fail_msg("%s", err.msg);
    check_hook(ops, h);
    assert_int_equal(ops->states(h, &states), 1);
    assert_string_equal(states[0].name, "rest.0");
    assert_true(states[0].elements == 3 && states[0].shared == 0);
    ops->close(h);
}

static int set_up(void **state)
{
    static ddp_log log;
    ddp_list paths;
    ddp_err err;

    ddp_log_init(&log);
    folder = make_folder();
    paths = (ddp_list){1, &folder};
    return ddp_registry_open(&log, &paths, (ddp_registry **)state, &err) == DDP_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    ddp_registry_close(*state);
    remove_tree(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(backend_reduces, set_up, tear_down),
        cmocka_unit_test_setup_teardown(model_builds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hook_carries, set_up, tear_down),
    };

    return cmocka_run_group_tests_name("examples", tests, NULL, NULL);
}
