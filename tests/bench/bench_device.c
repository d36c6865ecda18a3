/* bench_device.c -- how far the CPU device is from oneDNN's matrix products alone.
 *
 *     make tests/bench/bench_device && tests/bench/bench_device [threads]
 *
 * For each MLP: time of forward, of forward + backward, of the optimiser, as lower quartile (median) of rounds. The
 * floor is the sum, over the products of the step, of the faster of oneDNN's matmul and sgemm for that shape. Both
 * sides take turns in one run, since a machine's speed drifts. */
#include "plugins/device/cpu/onednn/api.h"
#include "plugins/device/cpu/openmp.h"
#include <stdio.h>
#include <time.h>

#include "support/device_util.h"

enum { ROUNDS = 60, MAX_LAYERS = 8 };

static uint64_t seed = 1;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

typedef struct times {
    double t[ROUNDS];
    int n;
} times;

static double quantile(times *t, double q)
{
    qsort(t->t, (size_t)t->n, sizeof(double), by_value);
    return t->t[(int)(q * (t->n - 1))];
}

/* ---- the floor --------------------------------------------------------------------------------------------------- */
enum { FORWARD, GRAD_INPUT, GRAD_WEIGHT };

/* One product C (m, n) = A (m, k) B (k, n) by matmul, A or B stored transposed. */
typedef struct product {
    int64_t m, n, k;
    bool ta, tb;
    float *a, *b, *c;
    dnnl_primitive_t matmul;
    dnnl_exec_arg_t args[3];
    times by_matmul, by_sgemm;
} product;

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static float *numbers(int64_t n)
{
    float *x = aligned((size_t)n * 4);

    for (int64_t i = 0; i < n; i++) x[i] = random_float(&seed);
    return x;
}

static dnnl_memory_t memory(cpu_desc *d, int64_t rows, int64_t cols, bool transposed, float *data)
{
    dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : cols, transposed ? rows : 1};
    dnnl_memory_t m = NULL;

    if (cpu_desc_by_strides(d, 2, dims, dnnl_f32, strides) != dnnl_success ||
        dnnl_memory_create(&m, *d, engine, data) != dnnl_success)
        abort();
    return m;
}

static void product_open(product *p, int what, int64_t rows, int64_t in, int64_t out)
{
    cpu_desc a, b, c;
    dnnl_primitive_desc_t desc;

    memset(p, 0, sizeof(*p));
    p->m = what == GRAD_WEIGHT ? out : rows;
    p->n = what == FORWARD ? out : in;
    p->k = what == FORWARD ? in : what == GRAD_INPUT ? out : rows;
    p->ta = what == GRAD_WEIGHT;
    p->tb = what == FORWARD;
    p->a = numbers(p->m * p->k);
    p->b = numbers(p->k * p->n);
    p->c = numbers(p->m * p->n);
    p->args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, memory(&a, p->m, p->k, p->ta, p->a)};
    p->args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, memory(&b, p->k, p->n, p->tb, p->b)};
    p->args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, memory(&c, p->m, p->n, false, p->c)};
    if (cpu_matmul_describe(&(cpu_matmul_call){.x = a, .w = b, .y = c}, engine, NULL, &desc) != dnnl_success ||
        dnnl_primitive_create(&p->matmul, desc) != dnnl_success)
        abort();
    (void)dnnl_primitive_desc_destroy(desc);
    cpu_desc_free(a);
    cpu_desc_free(b);
    cpu_desc_free(c);
}

static void product_time(product *p, bool record)
{
    double t0 = now(), t1, t2;

    (void)dnnl_primitive_execute(p->matmul, stream, 3, p->args);
    t1 = now();
    (void)dnnl_sgemm(p->ta ? 'T' : 'N', p->tb ? 'T' : 'N', p->m, p->n, p->k, 1.0f, p->a, p->ta ? p->m : p->k, p->b,
                     p->tb ? p->k : p->n, 0.0f, p->c, p->n);
    t2 = now();
    if (!record) return;
    p->by_matmul.t[p->by_matmul.n++] = t1 - t0;
    p->by_sgemm.t[p->by_sgemm.n++] = t2 - t1;
}

static void product_close(product *p)
{
    for (int i = 0; i < 3; i++) (void)dnnl_memory_destroy(p->args[i].memory);
    (void)dnnl_primitive_destroy(p->matmul);
    free(p->a);
    free(p->b);
    free(p->c);
}

static double best(product *p, double q)
{
    double a = quantile(&p->by_matmul, q), b = quantile(&p->by_sgemm, q);

    return a < b ? a : b;
}

/* ---- one MLP ----------------------------------------------------------------------------------------------------- */
typedef struct net {
    int64_t batch;
    int layers;
    int64_t width[MAX_LAYERS + 1]; /* input, hidden.., classes */
} net;

static void net_build(ddp_graph *g, const net *m)
{
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image"));

    for (int i = 1; i < m->layers; i++) x = ddp_relu(g, ddp_linear(g, x, m->width[i], 1, "fc%d", i));
    x = ddp_linear(g, x, m->width[m->layers], 1, "fc%d", m->layers);
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
}

static int open_products(const net *m, product *p)
{
    int n = 0;

    for (int i = 0; i < m->layers; i++)
        for (int what = FORWARD; what <= GRAD_WEIGHT; what++)
            if (what != GRAD_INPUT || i > 0) product_open(&p[n++], what, m->batch, m->width[i], m->width[i + 1]);
    return n;
}

static uint32_t forward_kernels(const ddp_lowered *l) /* up to and with the loss */
{
    for (uint32_t i = 0; i < l->kernel_count; i++)
        if (strncmp(l->kernels[i].name, "cross_entropy", 13) == 0) return i + 1;
    return l->kernel_count;
}

static void print(const char *what, times *t, double floor)
{
    (void)printf("  %-20s %9.3f ms  (median %.3f, 90 %% %.3f)", what, 1e3 * quantile(t, 0.25), 1e3 * quantile(t, 0.5),
                 1e3 * quantile(t, 0.9));
    if (floor > 0.0) (void)printf("  %.2f x the floor", quantile(t, 0.25) / floor);
    (void)printf("\n");
}

static void bench_rounds(job *j, product *p, int products, times *forward, times *both, times *update)
{
    fixture *f = j->f;
    ddp_run r = {.struct_size = sizeof(r), .inputs = (void *const *)(void *)j->inputs};
    uint32_t cut = forward_kernels(j->lowered), count = j->lowered->kernel_count;
    float *state = aligned(j->arena_elements * 4);
    ddp_optim o = {.struct_size = sizeof(o), .algorithm = DDP_OPTIM_SGD, .momentum = 0.9, .lr = 1e-3, .grad_scale = 1};
    ddp_optim_slice s = {.grad_dtype = DDP_F32,
                         .state_dtype = DDP_F32,
                         .param = j->params,
                         .state1 = state,
                         .grad = j->grads,
                         .count = j->arena_elements};

    memset(state, 0, j->arena_elements * 4);
    memset(j->grads, 0, j->arena_elements * 4);
    for (int round = -3; round < ROUNDS; round++) {
        double t0, t1, t2, t3;
        for (int i = 0; i < products; i++) product_time(&p[i], round >= 0);
        t0 = now();
        OK(f, f->ops->run(j->instance, &r, 0, cut, &f->err));
        t1 = now();
        OK(f, f->ops->run(j->instance, &r, cut, count, &f->err));
        t2 = now();
        o.step++;
        OK(f, f->ops->optim_step(f->device, &o, &s, &f->err));
        t3 = now();
        if (round < 0) continue;
        forward->t[forward->n++] = t1 - t0;
        both->t[both->n++] = t2 - t0;
        update->t[update->n++] = t3 - t2;
    }
    free(state);
}

static void bench_net(fixture *f, const net *m)
{
    const ddp_field fields[] = {
        {.name = "image", .dtype = DDP_F32, .rank = 1, .dims = {m->width[0]}, .min = 1},
        {.name = "label", .dtype = DDP_I64, .min = 0, .max = m->width[m->layers] - 1},
    };
    ddp_graph *g;
    ddp_layout *layout;
    ddp_program *p;
    product products[3 * MAX_LAYERS];
    job j = {.f = f, .seed = &seed, .classes = m->width[m->layers], .scale = 0.05};
    times forward = {.n = 0}, both = {.n = 0}, update = {.n = 0};
    double floor = 0.0;
    int count = open_products(m, products);

    OK(f, ddp_graph_create(fields, 2, &g, &f->err));
    net_build(g, m);
    OK(f, ddp_graph_finish(g, &f->err));
    OK(f, ddp_layout_create(g, 1 << 20, 25 << 20, 1, &layout, &f->err));
    OK(f, ddp_program_create(g, layout, m->batch, true, &p, &f->err));
    j.p = p;
    j.layout = layout;
    j.arena_elements = layout->elements;
    job_open(&j);
    bench_rounds(&j, products, count, &forward, &both, &update);
    (void)printf("batch %lld:", (long long)m->batch);
    for (int i = 0; i <= m->layers; i++) (void)printf("%s%lld", i > 0 ? "-" : " ", (long long)m->width[i]);
    for (int i = 0; i < count; i++) floor += best(&products[i], 0.25);
    (void)printf("  floor %.3f ms, %.0f GFLOP/s\n", 1e3 * floor, (double)ddp_program_flops(p) / floor * 1e-9);
    print("forward", &forward, 0.0);
    print("forward + backward", &both, floor);
    print("optimiser", &update, 0.0);
    for (int i = 0; i < count; i++) product_close(&products[i]);
    job_close(&j);
    ddp_program_free(p);
    ddp_layout_free(layout);
    ddp_graph_free(g);
}

int main(int argc, char **argv)
{
    static const net nets[] = {{64, 3, {784, 512, 512, 10}},
                               {16, 3, {784, 512, 512, 10}},
                               {1, 3, {784, 512, 512, 10}},
                               {256, 3, {784, 512, 512, 10}},
                               {64, 3, {784, 4096, 4096, 10}}};
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    ddp_device_info info = {0};
    fixture f;

    fixture_open(&f, threads);
    f.ops->describe(f.device, &info);
    (void)printf("%s, %s, %u thread%s\n", info.name, info.library, threads, threads > 1 ? "s" : "");
    omp_set_num_threads((int)threads);
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success)
        return 1;
    for (size_t i = 0; i < DDP_COUNT(nets); i++) {
        omp_set_num_threads((int)threads);
        bench_net(&f, &nets[i]);
    }
    (void)dnnl_stream_destroy(stream);
    (void)dnnl_engine_destroy(engine);
    fixture_close(&f);
    return 0;
}
