/* tests/unit/cuda/cuda_device_util.h -- the CUDA device over its doubles, or on a GPU with DDP_CUDA_REAL: opening
 * it, and single ops as jobs of device_util.h. */
#pragma once

#ifndef DDP_CUDA_REAL
#include "doubles/cuda_runtime_double.h"
#include "doubles/cudnn_double.h"
#endif
#include "support/device_util.h"

#include <ddpengine/layers.h>

/* cu_config of plugins/device/cuda/host/cu.h, which no test sees. */
typedef struct cuda_config {
    int32_t tf32, rounding, residual, graphs, side_stream;
    const char *cublas_library, *cudnn_library, *algorithm_cache;
    uint64_t workspace, logits;
} cuda_config;

static char cuda_log[65536]; /* all lines, "LEVEL TEXT\n"; DDP_TEST_LOG: shown, too */

static inline void cuda_keep_log(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    size_t n = strlen(cuda_log);
    va_list ap;

    (void)ctx;
    (void)file;
    (void)line;
    if (getenv("DDP_TEST_LOG") != NULL) {
        va_start(ap, fmt);
        (void)vfprintf(stderr, fmt, ap);
        va_end(ap);
        (void)fputc('\n', stderr);
    }
    n += (size_t)snprintf(cuda_log + n, sizeof(cuda_log) - n, "%d ", level);
    if (n >= sizeof(cuda_log)) return;
    va_start(ap, fmt);
    n += (size_t)vsnprintf(cuda_log + n, sizeof(cuda_log) - n, fmt, ap);
    va_end(ap);
    if (n + 1 < sizeof(cuda_log)) memcpy(cuda_log + n, "\n", 2);
}

static const ddp_host cuda_host = {.struct_size = sizeof(cuda_host), .log = cuda_keep_log};

/* Sizes that would take the double too long stand in LARGE(...). */
#ifdef DDP_CUDA_REAL
#define CUDA_PLUGIN ".libs/device_cuda.so"
#define CUDA_CUBLAS "libcublasLt.so.13"
#define CUDA_CUDNN  "libcudnn.so.9"
#define LARGE(...)  , __VA_ARGS__
#else
#define CUDA_PLUGIN "tests/doubles/plugins/.libs/device_cuda.so"
#define CUDA_CUBLAS "double"
#define CUDA_CUDNN  "double"
#define LARGE(...)
#endif

static inline void cuda_load(fixture *f)
{
    fixture_load(f, CUDA_PLUGIN);
    cuda_log[0] = '\0';
}

static inline cuda_config cuda_defaults(bool dnn)
{
    return (cuda_config){.graphs = 1,
                         .cublas_library = CUDA_CUBLAS,
                         .cudnn_library = dnn ? CUDA_CUDNN : "",
                         .algorithm_cache = "off",
                         .workspace = 1 << 20,
                         .logits = 1 << 30};
}

static inline ddp_status cuda_open_with(fixture *f, const cuda_config *config, uint32_t precision, uint32_t ordinal,
                                        bool deterministic, ddp_device **out)
{
    const ddp_device_params p = {.struct_size = sizeof(p),
                                 .ordinal = ordinal,
                                 .threads = 1,
                                 .precision = precision,
                                 .local_size = 1,
                                 .deterministic = deterministic};

#ifndef DDP_CUDA_REAL
    cudnn_double()->must_be_same = deterministic;
#endif
    return f->ops->open(&cuda_host, config, &p, out, &f->err);
}

#ifndef DDP_CUDA_REAL
/* What a test that failed before has left behind: that is its own failure, and no other's. */
static inline cuda_double_counts *cuda_left_before(void)
{
    static cuda_double_counts c;

    return &c;
}
#endif

/* A set-up's failed assertion has no text, so it is printed. */
static inline int cuda_setup_with(void **state, const cuda_config *config, uint32_t precision, bool deterministic)
{
    static fixture f;

    cuda_load(&f);
    f.half = precision == DDP_PRECISION_BF16;
    *state = &f;
#ifndef DDP_CUDA_REAL
    cuda_double_count(cuda_left_before());
#endif
    if (cuda_open_with(&f, config, precision, 0, deterministic, &f.device) == DDP_OK) return 0;
    (void)printf("# %s\n", f.err.msg);
    return -1;
}

static inline int cuda_setup(void **state, bool dnn, uint32_t precision, bool deterministic)
{
    const cuda_config config = cuda_defaults(dnn);

    return cuda_setup_with(state, &config, precision, deterministic);
}

static inline int open_f32(void **state) { return cuda_setup(state, true, DDP_PRECISION_F32, true); }
static inline int open_half(void **state) { return cuda_setup(state, true, DDP_PRECISION_BF16, true); }
static inline int open_stream(void **state) /* bf16, the residual stream too */
{
    cuda_config config = cuda_defaults(true);

    config.residual = 1;
    return cuda_setup_with(state, &config, DDP_PRECISION_BF16, true);
}
static inline int open_own(void **state) { return cuda_setup(state, false, DDP_PRECISION_F32, true); }
static inline int open_own_half(void **state) { return cuda_setup(state, false, DDP_PRECISION_BF16, true); }
static inline int open_timed(void **state) { return cuda_setup(state, true, DDP_PRECISION_F32, false); }
static inline int open_timed_half(void **state) { return cuda_setup(state, true, DDP_PRECISION_BF16, false); }

/* Nothing is left behind, and nothing was used wrongly. */
static inline int cuda_teardown(void **state)
{
    fixture *f = *state;

    f->ops->close(f->device);
#ifdef DDP_CUDA_REAL
    return 0;
#else
    const cuda_double_counts *b = cuda_left_before();
    cuda_double_counts c;

    cuda_double_count(&c);
    if (c.misuse == b->misuse && c.device_memory == b->device_memory && c.host_memory == b->host_memory &&
        c.streams == b->streams && c.events == b->events && c.graphs == b->graphs)
        return 0;
    (void)printf("# misuse \"%s\"; left: %lld device, %lld host, %lld streams, %lld events, %lld graphs\n",
                 cuda_double_misuse(), (long long)c.device_memory, (long long)c.host_memory, (long long)c.streams,
                 (long long)c.events, (long long)c.graphs);
    return 1;
#endif
}

#define F32(test)                                                                                                      \
    {                                                                                                                  \
#test, test, open_f32, cuda_teardown, NULL                                                                     \
    }
#define BF16(test)                                                                                                     \
    {                                                                                                                  \
#test ", bf16", test, open_half, cuda_teardown, NULL                                                           \
    }
#define BF16_STREAM(test)                                                                                              \
    {                                                                                                                  \
#test ", bf16 stream", test, open_stream, cuda_teardown, NULL                                                  \
    }
#define OWN(test)                                                                                                      \
    {#test ", without cuDNN", test, open_own, cuda_teardown, NULL},                                                    \
    {                                                                                                                  \
#test ", without cuDNN, bf16", test, open_own_half, cuda_teardown, NULL                                        \
    }

#define TIMED(test)                                                                                                    \
    {#test ", timed", test, open_timed, cuda_teardown, NULL},                                                          \
    {                                                                                                                  \
#test ", timed, bf16", test, open_timed_half, cuda_teardown, NULL                                              \
    }

/* ---- one node ---------------------------------------------------------------------------------------------------- */
typedef struct operand {
    uint32_t kind, rank;
    int64_t dims[4];
    uint32_t dtype; /* 0: f32 */
} operand;

typedef struct single {
    ddp_value values[DDP_NODE_MAX_IN + DDP_NODE_MAX_OUT];
    ddp_node node;
    ddp_program p;
    int32_t metrics[3];
    uint64_t elements; /* of the parameter arena */
} single;

static inline void single_value(ddp_value *v, const operand *o, uint64_t *arena, uint64_t *buffers, int32_t *fields)
{
    *v = (ddp_value){.kind = o->kind, .rank = o->rank, .index = -1, .elements = 1, .name = "v"};
    v->dtype = o->dtype != 0 ? o->dtype : DDP_F32;
    for (uint32_t d = 0; d < v->rank; d++) v->elements *= v->dims[d] = o->dims[d];
    if (v->kind == DDP_VALUE_INPUT) v->index = (*fields)++;
    if (v->kind == DDP_VALUE_PARAM || v->kind == DDP_VALUE_GRAD) {
        v->offset = *arena;
        *arena += ddp_round_up((uint64_t)v->elements, 16) + 16;
    }
    if (v->kind == DDP_VALUE_BUFFER) {
        v->offset = *buffers;
        *buffers += ddp_round_up((uint64_t)v->elements, 16);
    }
}

/* The outputs stand behind the inputs; those of kind ACT are results, so that they live to the end. An output of
 * rank 0 is not wanted. */
static inline void single_make(single *s, uint32_t op, const ddp_attrs *attrs, uint32_t in_count, uint32_t out_count,
                               const operand *o)
{
    uint64_t buffers = 0;
    int32_t fields = 0;

    memset(s, 0, sizeof(*s));
    s->node = (ddp_node){.op = op, .in_count = in_count, .out_count = out_count, .name = "layer7"};
    if (attrs != NULL) s->node.attrs = *attrs;
    for (uint32_t i = 0; i < DDP_NODE_MAX_IN; i++) s->node.in[i] = i < in_count ? (int32_t)i : -1;
    for (uint32_t i = 0; i < DDP_NODE_MAX_OUT; i++) s->node.out[i] = -1;
    s->p = (ddp_program){.struct_size = sizeof(s->p),
                         .value_size = sizeof(ddp_value),
                         .node_size = sizeof(ddp_node),
                         .batch = o[0].dims[0],
                         .training = 1,
                         .value_count = in_count + out_count,
                         .node_count = 1,
                         .values = s->values,
                         .nodes = &s->node,
                         .loss = -1,
                         .metrics = s->metrics};
    for (uint32_t i = 0; i < in_count + out_count; i++) {
        single_value(&s->values[i], &o[i], &s->elements, &buffers, &fields);
        if (i < in_count || o[i].rank == 0) continue;
        s->node.out[i - in_count] = (int32_t)i;
        if (o[i].kind == DDP_VALUE_ACT) s->metrics[s->p.metric_count++] = (int32_t)i;
    }
}

static inline void single_job(fixture *f, single *s, uint64_t *seed, int64_t classes, double tolerance, job *j)
{
    *j = (job){.f = f,
               .p = &s->p,
               .arena_elements = s->elements,
               .seed = seed,
               .classes = classes,
               .tolerance = tolerance,
               .random = {random_bits(seed), random_bits(seed)}};
    job_open(j);
}

/* Twice each, set and added: the second run of a range is a graph's. */
static inline void job_check_all(job *j)
{
    job_run_and_check(j);
    job_run_and_check(j);
    job_close(j);
}

#define T(kind, dtype, rank, ...)                                                                                      \
    {                                                                                                                  \
        DDP_VALUE_##kind, rank, {__VA_ARGS__}, dtype                                                                   \
    }
#define VEC(kind, a)          T(kind, DDP_F32, 1, a)
#define MAT(kind, a, b)       T(kind, DDP_F32, 2, a, b)
#define SEQ(kind, a, b, c)    T(kind, DDP_F32, 3, a, b, c)
#define IMG(kind, a, b, c, d) T(kind, DDP_F32, 4, a, b, c, d)
#define LABELS(a)             T(INPUT, DDP_I64, 1, a)

/* Runs the tests; with DDP_TEST_SHARE=K/N in the environment every Nth of them from number K on, of 1 to N, so that N
 * processes run all of them side by side. */
static inline int cuda_run_tests(const char *name, const struct CMUnitTest *tests, size_t count)
{
    const char *given = getenv("DDP_TEST_SHARE");
    struct CMUnitTest *some = calloc(count, sizeof(*some));
    size_t from = 1, step = 1, n = 0;
    int failed;

    assert_non_null(some);
    if (given && (sscanf(given, "%zu/%zu", &from, &step) != 2 || from < 1 || step < from)) {
        (void)printf("DDP_TEST_SHARE = %s: not K/N with K of 1 to N\n", given);
        free(some);
        return 2;
    }
    for (size_t i = from - 1; i < count; i += step) some[n++] = tests[i];
    failed = _cmocka_run_group_tests(name, some, n, NULL, NULL);
    free(some);
    return failed;
}
