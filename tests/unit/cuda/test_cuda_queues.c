/* tests/unit/cuda/test_cuda_queues.c -- the CUDA device over its doubles, what is no op: opening and its refusals,
 * memory, queues and events, graphs, faults in the data, the optimiser with its peers, reductions, the parameters'
 * mirror in bf16. */
#include "cuda_net.h"

#include "doubles/cublaslt_double.h"
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static void refused(fixture *f, const cuda_config *c, uint32_t precision, uint32_t ordinal, ddp_status status,
                    const char *text, const char *remedy)
{
    ddp_device *d = NULL;

    assert_int_equal(cuda_open_with(f, c, precision, ordinal, true, &d), status);
    assert_null(d);
    if (strstr(f->err.msg, text) == NULL || strstr(f->err.msg, remedy) == NULL)
        fail_msg("\"%s\" and \"%s\" are not in: %s", text, remedy, f->err.msg);
}

static void test_open(void **state)
{
    fixture *f = *state;
    cuda_config c = cuda_defaults(true);
    ddp_device_info info = {0};
    ddp_device *d;

    refused(f, &c, 77, 0, DDP_ERR_UNSUPPORTED, "precision 77", "f32 or bf16");
    c.residual = 1;
    refused(f, &c, DDP_PRECISION_F32, 0, DDP_ERR_CONFIG, "residual = bf16", "precision = bf16");
    c.residual = 0;
    refused(f, &c, DDP_PRECISION_F32, 2, DDP_ERR_CONFIG, "cuda:2", "2 CUDA devices, numbered from 0");
    cuda_double_devices(0);
    refused(f, &c, DDP_PRECISION_F32, 0, DDP_ERR_LIBRARY, "no CUDA device", "device = cpu");
    cuda_double_devices(-1);
    refused(f, &c, DDP_PRECISION_F32, 0, DDP_ERR_LIBRARY, "driver", "install");
    cuda_double_devices(2);
    c.cublas_library = "libnone.so.13";
    refused(f, &c, DDP_PRECISION_F32, 0, DDP_ERR_LIBRARY, "libnone.so.13", "cublas_library");
    c = cuda_defaults(true);
    c.cudnn_library = "libnone.so.9";
    OK(f, cuda_open_with(f, &c, DDP_PRECISION_BF16, 1, true, &d));
    assert_non_null(strstr(cuda_log, "libnone.so.9"));
    f->ops->describe(d, &info);
    assert_non_null(strstr(info.library, "CUDA "));
    assert_non_null(strstr(info.library, "cuBLASLt "));
    assert_null(strstr(info.library, "cuDNN"));
    assert_non_null(strstr(info.name, "bf16"));
    assert_true(info.memory_bytes > 0);
    f->ops->close(d);
    f->ops->describe(f->device, &info);
    assert_non_null(strstr(info.library, "cuDNN "));
}

/* Whatever fails while it opens: it says so and leaves nothing behind, or it does without. */
static void test_open_fails(void **state)
{
    fixture *f = *state;
    cuda_config c = cuda_defaults(true);
    cuda_double_counts before, after;
    uint64_t failures = 0, calls;
    ddp_device *d;

    cuda_double_count(&before);
    OK(f, cuda_open_with(f, &c, DDP_PRECISION_F32, 1, true, &d));
    cuda_double_count(&after);
    f->ops->close(d);
    calls = after.calls - before.calls;
    for (uint64_t n = 1; n <= calls; n++) {
        f->err.msg[0] = '\0';
        cuda_double_fail_at(n);
        if (cuda_open_with(f, &c, DDP_PRECISION_F32, 1, true, &d) == DDP_OK) {
            f->ops->close(d);
        } else {
            failures++;
            if (f->err.msg[0] == '\0') fail_msg("call %llu fails without a word", (unsigned long long)n);
        }
        cuda_double_fail_at(0);
        cuda_double_count(&after);
        assert_int_equal(after.device_memory, before.device_memory);
        assert_int_equal(after.host_memory, before.host_memory);
        assert_int_equal(after.streams, before.streams);
        assert_int_equal(after.events, before.events);
    }
    assert_true(failures > 10);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static void test_memory(void **state)
{
    static const size_t bytes[] = {0, 1, 1000, 3u << 20};
    fixture *f = *state;
    char data[100], back[100];
    void *p, *h;

    memset(data, 7, sizeof(data));
    for (size_t i = 0; i < DDP_COUNT(bytes); i++) {
        OK(f, f->ops->alloc(f->device, bytes[i], &p, &f->err));
        OK(f, f->ops->host_alloc(f->device, bytes[i], &h, &f->err));
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_int_equal((uintptr_t)h % 64, 0);
        if (bytes[i] > 0) OK(f, f->ops->copy(f->device, h, p, bytes[i], DDP_COPY_TO_HOST, &f->err));
        for (size_t b = 0; b < bytes[i]; b++) assert_int_equal(((char *)h)[b], 0);
        if (bytes[i] >= sizeof(data)) {
            OK(f, f->ops->copy(f->device, p, data, sizeof(data), DDP_COPY_TO_DEVICE, &f->err));
            OK(f, f->ops->copy(f->device, back, p, sizeof(back), DDP_COPY_TO_HOST, &f->err));
            assert_memory_equal(data, back, sizeof(data));
        }
        f->ops->free(f->device, p);
        f->ops->host_free(f->device, h);
    }
    cuda_double_memory(1 << 20);
    assert_int_equal(f->ops->alloc(f->device, 123456789, &p, &f->err), DDP_ERR_NOMEM);
    cuda_double_memory((size_t)8 << 30);
    assert_non_null(strstr(f->err.msg, "123456789 bytes"));
    assert_non_null(strstr(f->err.msg, "accumulate"));
    OK(f, f->ops->sync(f->device, &f->err));
}

static void test_queues(void **state)
{
    fixture *f = *state;
    const ddp_device_ops *o = f->ops;
    enum { COUNT = 5000 };
    float *a, *b, *from, *to;

    OK(f, o->alloc(f->device, COUNT * 4, (void **)&a, &f->err));
    OK(f, o->alloc(f->device, COUNT * 4, (void **)&b, &f->err));
    OK(f, o->host_alloc(f->device, COUNT * 4, (void **)&from, &f->err));
    OK(f, o->host_alloc(f->device, COUNT * 4, (void **)&to, &f->err));
    OK(f, o->events(f->device, 3, &f->err));
    OK(f, o->event_wait(f->device, DDP_QUEUE_COMM, 2, &f->err)); /* never recorded: past */
    for (int i = 0; i < COUNT; i++) from[i] = (float)i;
    OK(f, o->copy_async(f->device, DDP_QUEUE_COMPUTE, a, from, COUNT * 4, DDP_COPY_TO_DEVICE, &f->err));
    OK(f, o->scale(f->device, a, COUNT, 2.0, &f->err));
    OK(f, o->event_record(f->device, DDP_QUEUE_COMPUTE, 0, &f->err));
    OK(f, o->event_wait(f->device, DDP_QUEUE_COMM, 0, &f->err));
    OK(f, o->copy_async(f->device, DDP_QUEUE_COMM, b, a, COUNT * 4, DDP_COPY_ON_DEVICE, &f->err));
    OK(f, o->copy_async(f->device, DDP_QUEUE_COMM, to, b, COUNT * 4, DDP_COPY_TO_HOST, &f->err));
    OK(f, o->event_record(f->device, DDP_QUEUE_COMM, 1, &f->err));
    OK(f, o->event_sync(f->device, 1, &f->err));
    for (int i = 0; i < COUNT; i++) assert_true(to[i] == 2.0f * (float)i);
    assert_int_equal(o->event_record(f->device, DDP_QUEUE_COMM, 3, &f->err), DDP_ERR_INVALID);
    assert_int_equal(o->event_record(f->device, 2, 0, &f->err), DDP_ERR_INVALID);
    assert_non_null(o->stream(f->device, DDP_QUEUE_COMPUTE));
    assert_ptr_not_equal(o->stream(f->device, DDP_QUEUE_COMPUTE), o->stream(f->device, DDP_QUEUE_COMM));
    o->free(f->device, a);
    o->free(f->device, b);
    o->host_free(f->device, from);
    o->host_free(f->device, to);
}

/* ---- reductions and the optimiser -------------------------------------------------------------------------------- */
static void test_flat(void **state)
{
    fixture *f = *state;
    const ddp_device_ops *o = f->ops;
    enum { COUNT = 70001 };
    float *x, *host;
    ddp_flat_result r = {0}, *later;
    double want = 0.0;

    OK(f, o->alloc(f->device, COUNT * 4, (void **)&x, &f->err));
    OK(f, o->host_alloc(f->device, COUNT * 4, (void **)&host, &f->err));
    OK(f, o->host_alloc(f->device, 2 * sizeof(*later), (void **)&later, &f->err));
    for (int i = 0; i < COUNT; i++) {
        host[i] = random_float(&net_seed);
        want += (double)host[i] * (double)host[i];
    }
    OK(f, o->copy(f->device, x, host, COUNT * 4, DDP_COPY_TO_DEVICE, &f->err));
    OK(f, o->flat(f->device, DDP_FLAT_FINITE, x, COUNT, &r, &f->err));
    assert_int_equal(r.index, COUNT);
    OK(f, o->flat(f->device, DDP_FLAT_SUM_SQUARES, x, COUNT, &r, &f->err));
    assert_true(fabs(r.value - want) < 1e-9 * want);
    host[77] = NAN;
    OK(f, o->copy(f->device, x, host, COUNT * 4, DDP_COPY_TO_DEVICE, &f->err));
    OK(f, o->flat_async(f->device, DDP_FLAT_FINITE, x, COUNT, &later[0], &f->err));
    OK(f, o->flat_async(f->device, DDP_FLAT_SUM_SQUARES, x, 77, &later[1], &f->err));
    OK(f, o->sync(f->device, &f->err));
    assert_int_equal(later[0].index, 77);
    assert_true(later[1].value > 0.0 && later[1].value < want);
    assert_int_equal(o->flat(f->device, 99, x, 1, &r, &f->err), DDP_ERR_UNSUPPORTED);
    o->free(f->device, x);
    o->host_free(f->device, host);
    o->host_free(f->device, later);
}

/* Two ranks that see each other's memory; one gradient that is not finite. */
static void test_peers(void **state)
{
    fixture *f = *state;
    const ddp_device_ops *o = f->ops;
    enum { COUNT = 1000 };
    float *mem[4], *host;
    const void *grads[2];
    float *params[2];
    uint64_t *bad;
    ddp_optim_peers peers = {.struct_size = sizeof(peers), .count = 2, .grads = grads, .params = params};
    ddp_optim u = {.struct_size = sizeof(u), .algorithm = DDP_OPTIM_SGD, .step = 1, .lr = 0.5, .grad_scale = 1.0};
    ddp_optim_slice s = {.grad_dtype = DDP_F32, .state_dtype = DDP_F32, .count = COUNT};

    OK(f, o->host_alloc(f->device, COUNT * 4, (void **)&host, &f->err));
    OK(f, o->host_alloc(f->device, 2 * sizeof(*bad), (void **)&bad, &f->err));
    bad[0] = COUNT;
    bad[1] = 400;
    for (int i = 0; i < 4; i++) {
        OK(f, o->alloc(f->device, COUNT * 4, (void **)&mem[i], &f->err));
        for (int e = 0; e < COUNT; e++) host[e] = (float)(i + e);
        if (i == 1) host[500] = INFINITY;
        OK(f, o->copy(f->device, mem[i], host, COUNT * 4, DDP_COPY_TO_DEVICE, &f->err));
    }
    grads[0] = mem[0];
    grads[1] = mem[1];
    params[0] = s.param = mem[2];
    params[1] = mem[3];
    u.peers = &peers;
    peers.not_finite = &bad[0];
    OK(f, o->optim_step(f->device, &u, &s, &f->err));
    s.count = 400;
    peers.not_finite = &bad[1];
    u.lr = 0.0;
    OK(f, o->optim_step(f->device, &u, &s, &f->err));
    OK(f, o->sync(f->device, &f->err));
    assert_int_equal(bad[0], 500);
    assert_int_equal(bad[1], 400);
    for (int i = 2; i < 4; i++) {
        OK(f, o->copy(f->device, host, mem[i], COUNT * 4, DDP_COPY_TO_HOST, &f->err));
        for (int e = 0; e < 400; e++) assert_true(host[e] == (float)(2 + e) - 0.5f * ((float)e + 0.5f));
    }
    peers.count = 17;
    assert_int_equal(o->optim_step(f->device, &u, &s, &f->err), DDP_ERR_UNSUPPORTED);
    peers.count = 2;
    u.step = 0;
    assert_int_equal(o->optim_step(f->device, &u, &s, &f->err), DDP_ERR_INVALID);
    for (int i = 0; i < 4; i++) o->free(f->device, mem[i]);
    o->host_free(f->device, bad);
    o->host_free(f->device, host);
}

/* The first run starts kernels, later ones a graph, with new fields of the batch. */
static void test_graphs(void **state)
{
    fixture *f = *state;
    cuda_double_counts before, after;
    float first, second;
    net n;

    net_open(f, &n);
    OK(f, run_all(&n, 0));
    first = net_loss(&n);
    cuda_double_count(&before);
    OK(f, run_all(&n, 0));
    cuda_double_count(&after);
    assert_int_equal(after.launches, before.launches);
    assert_int_equal(after.graph_launches, before.graph_launches + 1);
    assert_int_equal(after.mallocs, before.mallocs);
    assert_int_equal(after.pageable, before.pageable);
    assert_true(net_loss(&n) == first);
    for (uint32_t v = 0; v < n.p->value_count; v++)
        for (int i = 0; n.p->values[v].kind == DDP_VALUE_INPUT && n.p->values[v].index == 0 && i < 8; i++)
            n.j.ref[v].data[i] = (double)(((int64_t *)(void *)n.j.inputs[0])[i] = 10 - (int64_t)n.j.ref[v].data[i]);
    OK(f, run_all(&n, 0));
    second = net_loss(&n);
    assert_true(second != first);
    job_check_all(&n.j);
    n.j.arena_elements = 0; /* closed */
    ddp_program_free(n.p);
    ddp_layout_free(n.layout);
    ddp_graph_free(n.g);
}

static void test_without_graphs(void **state)
{
    fixture *f = *state;
    cuda_config c = cuda_defaults(true);
    ddp_device *kept = f->device;
    cuda_double_counts before, after;
    net n;

    c.graphs = 0;
    OK(f, cuda_open_with(f, &c, DDP_PRECISION_F32, 0, true, &f->device));
    net_open(f, &n);
    cuda_double_count(&before);
    OK(f, run_all(&n, 0));
    OK(f, run_all(&n, 0));
    cuda_double_count(&after);
    assert_int_equal(after.graph_launches, before.graph_launches);
    net_close(&n);
    f->ops->close(f->device);
    f->device = kept;
}

static void hold(void *released)
{
    while (atomic_load(*(atomic_int **)released) == 0) (void)sched_yield();
}

/* Three runs, each with a batch of its own, whose losses come back behind them. */
static void run_three(net *n, int64_t *const batches[3], float *losses, bool wait)
{
    fixture *f = n->j.f;
    const ddp_run r = {.struct_size = sizeof(r), .inputs = (void *const *)(void *)n->j.inputs};
    char *loss = (char *)n->j.bind.arena + n->j.planned->plan.value_offset[n->p->loss];
    float *kept = n->j.inputs[0];

    for (int i = 0; i < 3; i++) {
        n->j.inputs[0] = (float *)(void *)batches[i];
        OK(f, f->ops->run(n->j.instance, &r, 0, n->j.lowered->kernel_count, &f->err));
        OK(f, f->ops->copy_async(f->device, DDP_QUEUE_COMPUTE, &losses[i], loss, sizeof(float), DDP_COPY_TO_HOST,
                                 &f->err));
        if (wait) OK(f, f->ops->sync(f->device, &f->err));
    }
    n->j.inputs[0] = kept;
}

/* The host is two runs ahead: the third batch waits until the first has left its stage. */
static void test_stages(void **state)
{
    fixture *f = *state;
    atomic_int released = 0, *at = &released;
    int64_t *batches[3];
    float *losses, alone[3];
    net n;

    net_open(f, &n);
    OK(f, f->ops->host_alloc(f->device, sizeof(alone), (void **)&losses, &f->err));
    for (int i = 0; i < 3; i++) {
        OK(f, f->ops->host_alloc(f->device, 8 * sizeof(int64_t), (void **)&batches[i], &f->err));
        for (int k = 0; k < 8; k++) batches[i][k] = (3 * i + k) % 11;
    }
    run_three(&n, batches, losses, true);
    memcpy(alone, losses, sizeof(alone));
    assert_true(alone[0] != alone[2]);
    assert_int_equal(
        cuda_double_enqueue(f->ops->stream(f->device, DDP_QUEUE_COMPUTE), hold, (const void *)&at, sizeof(at)),
        cudaSuccess);
    run_three(&n, batches, losses, false);
    (void)usleep(20000); /* what waits for nothing goes on */
    atomic_store(&released, 1);
    OK(f, f->ops->sync(f->device, &f->err));
    assert_memory_equal(alone, losses, sizeof(alone));
    for (int i = 0; i < 3; i++) f->ops->host_free(f->device, batches[i]);
    f->ops->host_free(f->device, losses);
    net_close(&n);
}

/* Whichever call of the first run fails: where it was one of the capture's, the range runs on, kernel by kernel. */
static void test_uncapturable(void **state)
{
    fixture *f = *state;
    cuda_double_counts before, after;
    bool found = false;
    float first;
    net n;

    for (uint64_t call = 1; !found; call++) {
        ddp_status status;
        net_open(f, &n);
        cuda_double_fail_at(call);
        status = run_all(&n, 0);
        cuda_double_fail_at(0);
        found = strstr(cuda_log, "one by one") != NULL;
        if (found) assert_int_equal(status, DDP_OK);
        assert_true(found || status != DDP_OK);
        if (!found) net_close(&n);
    }
    first = net_loss(&n);
    cuda_double_count(&before);
    OK(f, run_all(&n, 0));
    cuda_double_count(&after);
    assert_true(net_loss(&n) == first);
    assert_int_equal(after.graph_launches, before.graph_launches);
    net_close(&n);
}

static void test_faults(void **state)
{
    static const int64_t bad[] = {11, -1, INT64_MAX, INT64_MIN};
    fixture *f = *state;
    char text[96];
    net n;

    net_open(f, &n);
    for (size_t i = 0; i < 2 * DDP_COUNT(bad); i++) {
        int64_t *x = (int64_t *)(void *)n.j.inputs[i % 2], was = x[5];
        x[5] = bad[i / 2];
        assert_int_equal(run_all(&n, 0), DDP_ERR_DATA);
        (void)snprintf(text, sizeof(text), i % 2 == 0 ? "index %lld at position 5 " : "label %lld of row 5 ",
                       (long long)bad[i / 2]);
        assert_non_null(strstr(f->err.msg, text));
        assert_non_null(strstr(f->err.msg, i % 2 == 0 ? "11 rows (0 to 10) of layer \"wte\"" : "11 classes (0 to 10)"));
        x[5] = was;
        OK(f, run_all(&n, 0)); /* it is told once */
    }
    net_close(&n);
}

/* ---- the mirror -------------------------------------------------------------------------------------------------- */
/* The loss shows what products read: parameters of zero give log(11). */
static void test_mirror(void **state)
{
    fixture *f = *state;
    const ddp_device_ops *o = f->ops;
    ddp_optim u = {.struct_size = sizeof(u), .algorithm = DDP_OPTIM_SGD, .step = 1, .lr = 1.0, .grad_scale = 1.0};
    size_t bytes;
    float *zeros, first;
    float *params;
    net n;

    net_open(f, &n);
    bytes = n.layout->elements * 4;
    params = (float *)(uintptr_t)n.j.bind.params;
    OK(f, run_all(&n, 0));
    first = net_loss(&n);
    OK(f, o->host_alloc(f->device, bytes, (void **)&zeros, &f->err));
    OK(f, o->copy(f->device, params, zeros, bytes, DDP_COPY_TO_DEVICE, &f->err)); /* copy makes the mirror again */
    OK(f, run_all(&n, 0));
    assert_true(fabsf(net_loss(&n) - logf(11.0f)) < 1e-3f);
    OK(f, o->copy_async(f->device, DDP_QUEUE_COMPUTE, params, n.j.params, bytes, DDP_COPY_TO_DEVICE, &f->err));
    OK(f, o->params_changed(f->device, params, n.layout->elements, &f->err)); /* as its caller is to do */
    OK(f, run_all(&n, 0));
    assert_true(net_loss(&n) == first);
    /* an update whose gradient is the parameter itself makes zeros of all but the padding */
    OK(f, o->optim_step(f->device, &u,
                        &(ddp_optim_slice){.grad_dtype = DDP_F32,
                                           .state_dtype = DDP_F32,
                                           .param = params,
                                           .grad = params,
                                           .count = n.layout->elements},
                        &f->err));
    OK(f, run_all(&n, 0));
    assert_true(fabsf(net_loss(&n) - logf(11.0f)) < 1e-3f);
    OK(f, o->copy(f->device, params, n.j.params, bytes, DDP_COPY_TO_DEVICE, &f->err));
    OK(f, o->scale(f->device, params, n.layout->elements, 0.0, &f->err));
    OK(f, run_all(&n, 0));
    assert_true(fabsf(net_loss(&n) - logf(11.0f)) < 1e-3f);
    o->host_free(f->device, zeros);
    net_close(&n);
}

/* Each epilogue that the library refuses has a way round it. */
static void test_refused_epilogues(void **state)
{
    static const uint32_t refuse[] = {4, 36, 32, 164, 132, 192, 256, 512}; /* CUBLASLT_EPILOGUE_* */
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(refuse); i++) {
        net n;
        cublaslt_double()->refused = refuse[i];
        net_open(f, &n);
        job_run_and_check(&n.j);
        net_close(&n);
    }
    cublaslt_double()->refused = 0;
}

static void test_measure(void **state)
{
    fixture *f = *state;
    ddp_device_peaks peaks = {.struct_size = sizeof(peaks)};

    OK(f, f->ops->measure(f->device, &peaks, &f->err));
    assert_true(peaks.flops_per_s > 0.0 && isfinite(peaks.flops_per_s)); /* of a product that the double calls slow */
    assert_true(peaks.bytes_per_s > 0.0 && isfinite(peaks.bytes_per_s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {F32(test_open),
                                       F32(test_open_fails),
                                       F32(test_memory),
                                       F32(test_queues),
                                       F32(test_flat),
                                       F32(test_peers),
                                       F32(test_graphs),
                                       BF16(test_graphs),
                                       F32(test_without_graphs),
                                       F32(test_uncapturable),
                                       F32(test_stages),
                                       F32(test_faults),
                                       BF16(test_faults),
                                       F32(test_mirror),
                                       BF16(test_mirror),
                                       F32(test_refused_epilogues),
                                       BF16(test_refused_epilogues),
                                       F32(test_measure)};

    net_seed = test_seed();
    return cmocka_run_group_tests_name("queues of the CUDA device", tests, NULL, NULL);
}
