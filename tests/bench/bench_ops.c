/* bench_ops.c -- how far the CPU device is from oneDNN's convolutions and matrix products alone, kernel by kernel.
 *
 *     make tests/bench/bench_ops && tests/bench/bench_ops [resnet|lenet|gpt|gpt2] [rounds] [threads] [f32|bf16]
 *
 * The step is forward and backward of one of bench_nets.h. Its floor is the sum, over the convolutions, linear
 * layers and products of attention of the program, of the fastest that oneDNN does for that shape by any of its
 * implementations and layouts, weights already reordered; of convolutions in f32 also by Winograd's algorithm, and a
 * second sum goes without it. Attention counts as the two products of the forward and the four of the gradient over
 * all pairs of positions, as one batched product each: what is skipped above the diagonal is the engine's gain, what
 * it computes again its loss. All sides take turns within each round, minima count: a machine's speed drifts. With
 * one thread the clock is the processor's time of that thread, so that a busy machine takes part of the cache but
 * not of the count. */
#include "plugins/device/cpu/onednn/api.h"
#include "plugins/device/cpu/onednn/conv.h"
#include "plugins/device/cpu/openmp.h"
#include <stdio.h>
#include <time.h>

#include "bench_nets.h"
#include "support/device_util.h"

static uint64_t seed = 1;
static bool half;
static clockid_t which_clock = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(which_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void keep_least(double *least, double t)
{
    if (*least == 0.0 || t < *least) *least = t;
}

static void dnnl_ok(dnnl_status_t s)
{
    if (s != dnnl_success) abort();
}

/* ---- the floor --------------------------------------------------------------------------------------------------- */
enum { MOST_WAYS = 10, MOST_FLOORS = 96 };

typedef struct way { /* one implementation, or sgemm */
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
    double least;
    bool winograd; /* which does fewer multiplications than are counted */
} way;

typedef struct floor_entry {
    uint32_t op;
    int64_t key[9];
    way ways[MOST_WAYS];
    int way_count;
    double sgemm; /* linear: least by sgemm */
    float *a, *b, *c;
} floor_entry;

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static floor_entry floors[MOST_FLOORS];
static int floor_count;

static float *numbers(size_t bytes)
{
    float *x = aligned(bytes + 64);

    for (size_t i = 0; i < bytes / 4; i++) x[i] = random_float(&seed);
    return x;
}

static dnnl_memory_t memory_for(dnnl_primitive_desc_t pd, dnnl_query_t what)
{
    cpu_desc_view md = dnnl_primitive_desc_query_md(pd, what, 0);
    dnnl_memory_t m;

    dnnl_ok(dnnl_memory_create(&m, md, engine, numbers(dnnl_memory_desc_get_size(md))));
    return m;
}

enum { FORWARD = CPU_CONV_FORWARD, BACKWARD_DATA = CPU_CONV_GRAD_INPUT, BACKWARD_WEIGHTS = CPU_CONV_GRAD_WEIGHT };

/* Results are f32; what is multiplied is as the step's precision says. */
static dnnl_data_type_t type_of(bool result) { return half && !result ? dnnl_bf16 : dnnl_f32; }

static way *add_way(floor_entry *e, dnnl_primitive_desc_t pd, uint32_t what)
{
    static const int args[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                   {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                   {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
    static const dnnl_query_t mds[3][3] = {{dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
                                           {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
                                           {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
    way *w = &e->ways[e->way_count];

    if (e->way_count == MOST_WAYS) abort();
    dnnl_ok(dnnl_primitive_create(&w->primitive, pd));
    for (int i = 0; i < 3; i++) w->args[i] = (dnnl_exec_arg_t){args[what][i], memory_for(pd, mds[what][i])};
    e->way_count++;
    return w;
}

typedef struct conv_case {
    dnnl_dims_t x, w, y, stride, padding;
    dnnl_alg_kind_t algorithm;
    dnnl_format_tag_t tag; /* of images */
} conv_case;

static void describe(const conv_case *c, const dnnl_data_type_t types[3], cpu_desc out[3])
{
    dnnl_ok(cpu_desc_by_tag(&out[0], 4, c->x, types[0], c->tag));
    dnnl_ok(cpu_desc_by_tag(&out[1], 4, c->w, types[1], dnnl_format_tag_any));
    dnnl_ok(cpu_desc_by_tag(&out[2], 4, c->y, types[2], c->tag));
}

/* Implementation `nth` of the library's list; NULL: it has none, as by Winograd's algorithm for some shapes. */
static dnnl_primitive_desc_t conv_way(const conv_case *c, int what, const dnnl_data_type_t types[3],
                                      dnnl_primitive_desc_t forward, int nth)
{
    cpu_desc m[3];
    cpu_conv_call call = {.what = what, .algorithm = c->algorithm, .forward = forward};
    dnnl_primitive_desc_t pd = NULL;

    describe(c, types, m);
    call.x = m[0];
    call.w = m[1];
    call.y = m[2];
    memcpy(call.stride, c->stride, sizeof(call.stride));
    memcpy(call.padding, c->padding, sizeof(call.padding));
    if (cpu_conv_describe(&call, engine, NULL, nth, &pd) != dnnl_success) {
        pd = NULL;
        if (nth == 0 && c->algorithm != dnnl_convolution_winograd) abort();
    }
    for (int i = 0; i < 3; i++) cpu_desc_free(m[i]);
    return pd;
}

/* The first two of the library's list. A gradient wants the forward convolution, all of it of the type that is read. */
static void conv_ways_of(floor_entry *e, const conv_case *c)
{
    const dnnl_data_type_t types[3] = {type_of(e->op == DDP_OP_CONV2D_GRAD_INPUT),
                                       type_of(e->op == DDP_OP_CONV2D_GRAD_WEIGHT), type_of(e->op == DDP_OP_CONV2D)};
    const dnnl_data_type_t read[3] = {type_of(false), type_of(false), type_of(false)};
    uint32_t what = e->op - DDP_OP_CONV2D;
    dnnl_primitive_desc_t forward = conv_way(c, FORWARD, read, NULL, 0), pd;

    if (forward == NULL) return;
    for (int i = 0; i < 2 && (pd = conv_way(c, (int)what, types, what == FORWARD ? NULL : forward, i)) != NULL; i++) {
        add_way(e, pd, what)->winograd = c->algorithm == dnnl_convolution_winograd;
        (void)dnnl_primitive_desc_destroy(pd);
    }
    (void)dnnl_primitive_desc_destroy(forward);
}

/* With images in the layout that the library likes best, channels last, and by Winograd's algorithm. */
static void conv_ways(floor_entry *e, const ddp_value *x, const ddp_value *w, const ddp_value *y, const ddp_attrs *a)
{
    conv_case c = {.stride = {a->conv.stride[0], a->conv.stride[1]},
                   .padding = {a->conv.padding[0], a->conv.padding[1]},
                   .algorithm = dnnl_convolution_direct};

    for (int i = 0; i < 4; i++) {
        c.x[i] = x->dims[i];
        c.w[i] = w->dims[i];
        c.y[i] = y->dims[i];
    }
    c.tag = dnnl_format_tag_any;
    conv_ways_of(e, &c);
    c.tag = dnnl_nhwc;
    conv_ways_of(e, &c);
    c.tag = dnnl_format_tag_any;
    c.algorithm = dnnl_convolution_winograd;
    if (!half) conv_ways_of(e, &c);
}

/* `batch` products (m, k) (k, n), in the layouts that the library likes and in plain ones. */
static void matmul_ways(floor_entry *e, int64_t batch, int64_t m, int64_t n, int64_t k)
{
    static const dnnl_format_tag_t plain[2] = {dnnl_abc, dnnl_acb};

    for (int i = 0; i < 4; i++) {
        dnnl_format_tag_t a = i == 3 ? dnnl_format_tag_any : plain[i / 2],
                          b = i == 3 ? dnnl_format_tag_any : plain[i % 2];
        cpu_desc am, bm, cm;
        dnnl_primitive_desc_t pd;
        dnnl_ok(cpu_desc_by_tag(&am, 3, (dnnl_dims_t){batch, m, k}, type_of(false), a));
        dnnl_ok(cpu_desc_by_tag(&bm, 3, (dnnl_dims_t){batch, k, n}, type_of(false), b));
        dnnl_ok(cpu_desc_by_tag(&cm, 3, (dnnl_dims_t){batch, m, n}, dnnl_f32, dnnl_abc));
        dnnl_ok(cpu_matmul_describe(&(cpu_matmul_call){.x = am, .w = bm, .y = cm}, engine, NULL, &pd));
        (void)add_way(e, pd, FORWARD);
        (void)dnnl_primitive_desc_destroy(pd);
        cpu_desc_free(am);
        cpu_desc_free(bm);
        cpu_desc_free(cm);
    }
}

static void linear_ways(floor_entry *e, int64_t rows, int64_t in, int64_t out)
{
    static const int which[3][3] = {{0, 2, 1}, {0, 1, 2}, {2, 1, 0}}; /* m, n, k of rows, in, out */
    const int64_t size[3] = {rows, in, out};
    const int *s = which[e->op - DDP_OP_LINEAR];

    matmul_ways(e, 1, size[s[0]], size[s[1]], size[s[2]]);
    if (half) return;
    e->a = numbers((size_t)(rows * in) * 4);
    e->b = numbers((size_t)(in * out) * 4);
    e->c = numbers((size_t)(rows * out) * 4);
}

/* The entry of the shape; nodes of one shape share theirs. */
static floor_entry *entry_for(uint32_t op, const int64_t key[9])
{
    floor_entry *e = floors;

    for (; e < floors + floor_count; e++)
        if (e->op == op && memcmp(e->key, key, 9 * sizeof(*key)) == 0) return e;
    if (floor_count++ == MOST_FLOORS) abort();
    e->op = op;
    memcpy(e->key, key, 9 * sizeof(*key));
    return e;
}

static int64_t last_dim(const ddp_value *v) { return v->dims[v->rank - 1]; }

static floor_entry *conv_floor(const ddp_node *n, const ddp_value *x, const ddp_value *w, const ddp_value *y)
{
    const int64_t key[9] = {x->elements, x->dims[1], y->elements, y->dims[1], w->elements};
    floor_entry *e = entry_for(n->op, key);

    if (e->way_count == 0) conv_ways(e, x, w, y, &n->attrs);
    return e;
}

static floor_entry *linear_floor(const ddp_node *n, const ddp_value *x, const ddp_value *y)
{
    const int64_t key[9] = {x->elements / last_dim(x), last_dim(x), last_dim(y)};
    floor_entry *e = entry_for(n->op, key);

    if (e->way_count == 0) linear_ways(e, key[0], key[1], key[2]);
    return e;
}

/* Its op is that of the attention, key[8] tells the two products apart: (T, d) (d, T), and (T, T) (T, d). */
static floor_entry *attention_floor(const ddp_node *n, const ddp_value *qkv, int64_t which)
{
    int64_t heads = n->attrs.attention.heads, t = qkv->dims[1], d = qkv->dims[2] / 3 / heads;
    const int64_t key[9] = {qkv->dims[0] * heads, t, d, 0, 0, 0, 0, 0, which};
    floor_entry *e = entry_for(DDP_OP_ATTENTION, key);

    if (e->way_count == 0) matmul_ways(e, key[0], t, which ? d : t, which ? t : d);
    return e;
}

enum { MOST_TERMS = 4 };
typedef struct node_floor { /* the products that a node counts as */
    const floor_entry *term[MOST_TERMS];
} node_floor;

static node_floor floor_of(const ddp_program *p, const ddp_node *n)
{
    const ddp_value *a = &p->values[n->in[0]], *b = n->in[1] >= 0 ? &p->values[n->in[1]] : NULL;
    const ddp_value *c = n->out[0] >= 0 ? &p->values[n->out[0]] : NULL;
    node_floor f = {{NULL}};

    switch (n->op) {
    case DDP_OP_CONV2D: f.term[0] = conv_floor(n, a, b, c); break;
    case DDP_OP_CONV2D_GRAD_INPUT: f.term[0] = conv_floor(n, c, b, a); break;
    case DDP_OP_CONV2D_GRAD_WEIGHT: f.term[0] = conv_floor(n, b, c, a); break;
    case DDP_OP_LINEAR: f.term[0] = linear_floor(n, a, c); break;
    case DDP_OP_LINEAR_GRAD_INPUT: f.term[0] = linear_floor(n, c, a); break;
    case DDP_OP_LINEAR_GRAD_WEIGHT: f.term[0] = linear_floor(n, b, a); break;
    case DDP_OP_ATTENTION:
        for (int i = 0; i < 2; i++) f.term[i] = attention_floor(n, a, i);
        break;
    case DDP_OP_ATTENTION_GRAD:
        for (int i = 0; i < 4; i++) f.term[i] = attention_floor(n, b, i > 0);
        break;
    default: break;
    }
    return f;
}

static void time_linear(floor_entry *e)
{
    int64_t rows = e->key[0], in = e->key[1], out = e->key[2];
    double t = now();

    if (e->op == DDP_OP_LINEAR)
        (void)dnnl_sgemm('N', 'T', rows, out, in, 1.0f, e->a, in, e->b, in, 0.0f, e->c, out);
    else if (e->op == DDP_OP_LINEAR_GRAD_INPUT)
        (void)dnnl_sgemm('N', 'N', rows, in, out, 1.0f, e->c, out, e->b, in, 0.0f, e->a, in);
    else
        (void)dnnl_sgemm('T', 'N', out, in, rows, 1.0f, e->c, out, e->a, in, 0.0f, e->b, in);
    keep_least(&e->sgemm, now() - t);
}

static void time_floor(void)
{
    for (int i = 0; i < floor_count; i++) {
        floor_entry *e = &floors[i];
        for (int k = 0; k < e->way_count; k++)
            for (int again = 0; again < 2; again++) {
                double t = now();
                (void)dnnl_primitive_execute(e->ways[k].primitive, stream, 3, e->ways[k].args);
                keep_least(&e->ways[k].least, now() - t);
            }
        if (e->a != NULL) time_linear(e);
    }
}

static double least_of(const floor_entry *e, bool winograd)
{
    double least = e->sgemm;

    for (int k = 0; k < e->way_count; k++)
        if (winograd || !e->ways[k].winograd) keep_least(&least, e->ways[k].least);
    return least;
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */
static void rounds_of(job *j, int rounds, double *whole, double *each)
{
    fixture *f = j->f;
    const ddp_run r = {.struct_size = sizeof(r), .inputs = (void *const *)(void *)j->inputs};
    uint32_t count = j->lowered->kernel_count;

    for (int round = 0; round < rounds; round++) {
        double t;
        for (int again = 0; again < 2; again++) {
            t = now();
            OK(f, f->ops->run(j->instance, &r, 0, count, &f->err));
            if (round > 0) keep_least(whole, now() - t);
        }
        for (uint32_t i = 0; i < count; i++) {
            t = now();
            OK(f, f->ops->run(j->instance, &r, i, i + 1, &f->err));
            if (round > 0) keep_least(&each[i], now() - t);
        }
        time_floor();
    }
}

/* One line for each kernel: its time, and for a product the floor of its shape. sum: of these, and without
 * Winograd's algorithm. */
static void print_kernels(const job *j, const double *each, const node_floor *entry, double sum[2])
{
    for (uint32_t i = 0; i < j->lowered->kernel_count; i++) {
        const ddp_kernel *k = &j->lowered->kernels[i];
        double least[2] = {0.0, 0.0};
        for (uint32_t a = 0; a < k->node_count; a++)
            for (int t = 0; t < MOST_TERMS; t++)
                for (int direct = 0; direct < 2 && entry[k->nodes[a]].term[t] != NULL; direct++)
                    least[direct] += least_of(entry[k->nodes[a]].term[t], direct == 0);
        sum[0] += least[0];
        sum[1] += least[1];
        (void)printf("%4u  %-36s %-24s %8.3f ms", i, k->name, j->p->nodes[k->nodes[0]].name, 1e3 * each[i]);
        if (least[0] > 0.0) (void)printf("   floor %8.3f", 1e3 * least[0]);
        if (least[0] < least[1]) (void)printf(", direct %8.3f", 1e3 * least[1]);
        (void)printf("\n");
    }
}

/* By name of the kernel: its times, summed. */
static void print_totals(const job *j, const double *each)
{
    for (uint32_t i = 0; i < j->lowered->kernel_count; i++) {
        const char *name = j->lowered->kernels[i].name;
        double sum = 0.0;
        uint32_t count = 0, first = j->lowered->kernel_count;
        for (uint32_t k = 0; k < j->lowered->kernel_count; k++) {
            if (strcmp(j->lowered->kernels[k].name, name) != 0) continue;
            if (first == j->lowered->kernel_count) first = k;
            sum += each[k];
            count++;
        }
        if (first == i) (void)printf("%4u x %-36s %8.3f ms\n", count, name, 1e3 * sum);
    }
}

static void bench(fixture *f, const net *n, int rounds)
{
    ddp_graph *g;
    ddp_layout *layout;
    ddp_program *p;
    job j = {.f = f, .seed = &seed, .classes = n->classes, .scale = 0.05};
    double whole = 0.0, *each, sum = 0.0, floor[2] = {0.0, 0.0};
    node_floor *entry;

    OK(f, ddp_graph_create(n->fields, 2, &g, &f->err));
    n->build(g);
    OK(f, ddp_graph_finish(g, &f->err));
    OK(f, ddp_layout_create(g, 1 << 20, 25 << 20, 1, &layout, &f->err));
    OK(f, ddp_program_create(g, layout, n->batch, true, &p, &f->err));
    j.p = p;
    j.layout = layout;
    j.arena_elements = layout->elements;
    job_open(&j);
    each = calloc(j.lowered->kernel_count, sizeof(*each));
    entry = calloc(p->node_count, sizeof(*entry));
    for (uint32_t i = 0; i < p->node_count; i++) entry[i] = floor_of(p, &p->nodes[i]);
    rounds_of(&j, rounds, &whole, each);
    print_kernels(&j, each, entry, floor);
    print_totals(&j, each);
    for (uint32_t i = 0; i < j.lowered->kernel_count; i++) sum += each[i];
    (void)printf("%s, batch %lld: step %.2f ms (kernels by themselves %.2f), floor %.2f ms, %.2f x, "
                 "convolutions direct %.2f ms, %.2f x; %.0f GFLOP/s, arena %.1f MiB\n",
                 n->text, (long long)n->batch, 1e3 * whole, 1e3 * sum, 1e3 * floor[0], whole / floor[0], 1e3 * floor[1],
                 whole / floor[1], (double)ddp_program_flops(p) / whole * 1e-9,
                 (double)j.planned->plan.arena_bytes / 1048576.0);
    free(entry);
    free(each);
    job_close(&j);
    ddp_program_free(p);
    ddp_layout_free(layout);
    ddp_graph_free(g);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "resnet";
    int rounds = argc > 2 ? atoi(argv[2]) : 8;
    uint32_t threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
    const net *n = nets;
    fixture f;

    while (n < nets + DDP_COUNT(nets) && strcmp(n->name, name) != 0) n++;
    if (n == nets + DDP_COUNT(nets)) {
        (void)fprintf(stderr, "bench_ops: there is no net \"%s\"; resnet, lenet, gpt and gpt2 are\n", name);
        return 2;
    }
    if (threads == 1) which_clock = CLOCK_THREAD_CPUTIME_ID;
    half = argc > 4 && strcmp(argv[4], "bf16") == 0;
    fixture_open_in(&f, threads, half ? DDP_PRECISION_BF16 : DDP_PRECISION_F32);
    omp_set_num_threads((int)threads);
    dnnl_ok(dnnl_engine_create(&engine, dnnl_cpu, 0));
    dnnl_ok(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    bench(&f, n, rounds);
    fixture_close(&f);
    return 0;
}
