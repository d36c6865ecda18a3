/* tests/unit/device/test_device_flat.c -- the CPU device's kernels by themselves: every variant gives the same bits;
 * updates give PyTorch's bits; reductions are right for any length and thread count; exp and gelu are accurate. */
#include <ddpengine/isa.h>
#include "plugins/device/cpu/kernels/kernels.h"
#include "support/device_util.h"
#include "device_torch.h"
#include <sched.h>

enum { N = 1037, ROWS = 17, COLS = 61 }; /* ROWS x COLS = N, all odd */

static uint64_t seed;
static const cpu_kernels *const *variants;
static int variant_count;

static void fill(float *x, int64_t n, double scale)
{
    for (int64_t i = 0; i < n; i++) x[i] = random_float(&seed) * (float)scale;
}

static void same(const char *what, int variant, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0)
        fail_msg("%s: %s and %s differ", what, variants[variant]->isa, variants[variant_count - 1]->isa);
}

/* ---- variants ---------------------------------------------------------------------------------------------------- */
typedef struct results {
    float act[4][N], slope[4][N], bias[4][COLS], sum[N], entropy_grad[N], mse_grad[N], weighted_grad[N];
    float pair_grad[3][N];
    double entropy, mse, weighted, pair[3], squares;
    int64_t right, finite;
} results;

static void compute(const cpu_kernels *k, const float *x, const float *y, const int64_t *label, results *r)
{
    cpu_entropy entropy = {.classes = COLS, .ignored = 3, .scale = 1.0f / ROWS};

    memset(r, 0, sizeof(*r));
    for (uint32_t act = 0; act < 4; act++) {
        float copy[N];
        memcpy(copy, x, sizeof(copy));
        k->bias_act(act == CPU_ACT_NONE ? copy : r->act[act], copy, y, ROWS, COLS, act);
        if (act == CPU_ACT_NONE) memcpy(r->act[act], copy, sizeof(copy));
        k->act_grad(r->slope[act], x, y, r->bias[act], ROWS, COLS, 0, COLS, act, false);
    }
    k->add(r->sum, x, y, N);
    r->entropy = k->cross_entropy(r->entropy_grad, x, label, ROWS, COLS, &entropy);
    entropy.weight = y; /* any numbers */
    entropy.weight_sum = 3.0;
    entropy.smoothing = 0.1f;
    r->weighted = k->cross_entropy(r->weighted_grad, x, label, ROWS, COLS, &entropy);
    for (uint32_t loss = 0; loss < 3; loss++)
        r->pair[loss] = k->pair_loss(r->pair_grad[loss], x, y, N, 0.01f, loss, 0.5f);
    r->mse = k->mse(r->mse_grad, x, y, N, 0.01f);
    r->right = k->accuracy(x, label, ROWS, COLS);
    r->finite = k->first_not_finite(x, N);
    r->squares = k->sum_squares(x, N);
}

static void test_variants_agree(void **state)
{
    static float x[N], y[N];
    static results want, got;
    int64_t label[ROWS];

    (void)state;
    for (int round = 0; round < 40; round++) {
        fill(x, N, round % 2 ? 2 : 30);
        fill(y, N, round % 3 ? 2 : 12);
        for (int i = 0; i < ROWS; i++) label[i] = (int64_t)(random_bits(&seed) % COLS);
        if (round == 7) x[random_bits(&seed) % N] = INFINITY;
        compute(variants[variant_count - 1], x, y, label, &want);
        for (int v = 0; v + 1 < variant_count; v++) {
            compute(variants[v], x, y, label, &got);
            same("activations", v, got.act, want.act, sizeof(got.act));
            same("gradients of activations", v, got.slope, want.slope, sizeof(got.slope));
            same("bias gradients", v, got.bias, want.bias, sizeof(got.bias));
            same("add", v, got.sum, want.sum, sizeof(got.sum));
            same("cross-entropy", v, got.entropy_grad, want.entropy_grad, sizeof(got.entropy_grad));
            same("cross-entropy with weights", v, got.weighted_grad, want.weighted_grad, sizeof(got.weighted_grad));
            same("other losses", v, got.pair_grad, want.pair_grad, sizeof(got.pair_grad));
            same("mse", v, got.mse_grad, want.mse_grad, sizeof(got.mse_grad));
            same("reductions", v, &got.entropy, &want.entropy, sizeof(got) - offsetof(results, entropy));
        }
    }
}

static void test_update_variants_agree(void **state)
{
    static float start[4][N], got[3][N], want[3][N];

    (void)state;
    for (int round = 0; round < 60; round++) {
        cpu_update u = {.algorithm = DDP_OPTIM_SGD + (uint32_t)round % 3,
                        .nesterov = round % 2,
                        .first = round % 5 == 0,
                        .momentum_on = round % 7 != 0,
                        .grad_scale = 0.3f,
                        .weight_decay = 0.01f,
                        .minus_lr = -0.1f,
                        .momentum = 0.9f,
                        .shrink = 0.999f,
                        .beta1 = 0.9f,
                        .one_minus_beta1 = 0.1f,
                        .beta2 = 0.999f,
                        .one_minus_beta2 = 0.001f,
                        .minus_step = -0.01f,
                        .root_bias2 = 0.2f,
                        .eps = 1e-8f};
        for (int i = 0; i < 4; i++) fill(start[i], N, 1);
        for (int i = 0; i < N; i++) start[2][i] = fabsf(start[2][i]); /* a second moment */
        memcpy(want, start, sizeof(want));
        variants[variant_count - 1]->update(&u, want[0], want[1], want[2], start[3], N);
        for (int v = 0; v + 1 < variant_count; v++) {
            memcpy(got, start, sizeof(got));
            variants[v]->update(&u, got[0], got[1], got[2], start[3], N);
            same("update", v, got, want, sizeof(got));
        }
    }
}

/* ---- accuracy ---------------------------------------------------------------------------------------------------- */
static void check_relative(const char *what, float x, double got, double want, double limit)
{
    if (!(fabs(got - want) <= limit * fabs(want) + 1e-44))
        fail_msg("%s(%.9g) is %.9g, should be %.9g: off by %.3g", what, (double)x, got, want,
                 fabs(got - want) / fabs(want));
}

static void test_accuracy(void **state)
{
    static float x[4000], y[4000], one[4000], slope[4000];

    (void)state;
    for (int i = 0; i < 4000; i++) {
        x[i] = (float)(i - 2000) * 0.0045f + random_float(&seed) * 0.004f; /* -9 .. 9 */
        one[i] = 1.0f;
    }
    for (int v = 0; v < variant_count; v++) {
        variants[v]->bias_act(y, x, NULL, 1, 4000, CPU_ACT_GELU_ERF);
        variants[v]->act_grad(slope, one, x, NULL, 1, 4000, 0, 4000, CPU_ACT_GELU_ERF, false);
        for (int i = 0; i < 4000; i++) {
            double d = x[i], phi = 0.5 * erfc(-d * sqrt(0.5)), g = exp(-0.5 * d * d) * 0.3989422804014327;
            check_relative("gelu", x[i], y[i], d * phi, 1e-6);
            assert_true(fabs(slope[i] - (phi + d * g)) < 3e-7);
        }
        variants[v]->bias_act(y, x, NULL, 1, 4000, CPU_ACT_GELU_TANH);
        variants[v]->act_grad(slope, one, x, NULL, 1, 4000, 0, 4000, CPU_ACT_GELU_TANH, false);
        for (int i = 0; i < 4000; i++) {
            double d = x[i], u = 0.7978845608028654 * (d + 0.044715 * d * d * d), s = 1 / (1 + exp(-2 * u));
            double du = 0.7978845608028654 * (1 + 3 * 0.044715 * d * d);
            check_relative("gelu (tanh)", x[i], y[i], d * s, 1e-6 + 4e-7 * fabs(2 * u)); /* exp magnifies */
            assert_true(fabs(slope[i] - (s + 2 * d * s * (1 - s) * du)) < 4e-7);
        }
    }
}

static void test_gelu_far_out(void **state)
{
    float x[16] = {0, -0.0f, 20, -20, 1e4f, -1e4f, 1e18f, -1e18f, NAN, 14, -14, 1e30f, -1e38f, 1e-30f, -1e-30f, 5};
    float y[16], slope[16], one[16];

    (void)state;
    for (int i = 0; i < 16; i++) one[i] = 1;
    for (int v = 0; v < variant_count; v++)
        for (uint32_t act = CPU_ACT_GELU_ERF; act <= CPU_ACT_GELU_TANH; act++) {
            variants[v]->bias_act(y, x, NULL, 1, 16, act);
            variants[v]->act_grad(slope, one, x, NULL, 1, 16, 0, 16, act, false);
            for (int i = 0; i < 16; i++) {
                if (isnan(x[i])) {
                    assert_true(isnan(y[i]) && isnan(slope[i]));
                    continue;
                }
                if (fabsf(x[i]) < 10) continue;
                assert_true(x[i] > 0 ? y[i] == x[i] : fabsf(y[i]) < 1e-9f);
                assert_true(fabsf(slope[i] - (x[i] > 0 ? 1.0f : 0.0f)) < 1e-9f);
            }
            assert_true(y[0] == 0 && slope[0] == 0.5f && slope[13] == 0.5f);
        }
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */
static uint32_t bits(float x)
{
    uint32_t b;

    memcpy(&b, &x, sizeof(b));
    return b;
}

/* `copies` of PyTorch's vector side by side, so that threads and remainders take part. */
static void run_torch_case(fixture *f, const torch_case *c, uint64_t copies)
{
    uint64_t n = copies * TORCH_ELEMENTS;
    float *p = aligned(n * 4), *m = aligned(n * 4), *v = aligned(n * 4), *g = aligned(n * 4);
    ddp_optim_slice s = {
        .grad_dtype = DDP_F32, .state_dtype = DDP_F32, .param = p, .state1 = m, .state2 = v, .grad = g, .count = n};
    ddp_optim o = c->optim;

    memset(m, o.algorithm == DDP_OPTIM_SGD && o.momentum > 0 ? 0xff : 0, n * 4); /* step 1 does not read it */
    memset(v, 0, n * 4);
    o.struct_size = sizeof(o);
    o.grad_scale = 0.25; /* the gradients are four times as large: exact */
    for (uint64_t i = 0; i < n; i++) p[i] = (float)((int)(i % TORCH_ELEMENTS) - 11) * 0.37f;
    for (o.step = 1; o.step <= 3; o.step++) {
        for (uint64_t i = 0; i < n; i++)
            g[i] = (float)((7 * (int)(i % TORCH_ELEMENTS) + 3 * (int)o.step) % 11 - 5) * 0.013f * 4.0f;
        OK(f, f->ops->optim_step(f->device, &o, &s, &f->err));
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = i % TORCH_ELEMENTS;
        if (bits(p[i]) != c->after[at] || bits(m[i]) != c->state1[at] || bits(v[i]) != c->state2[at])
            fail_msg("%s: element %llu or its state differs from PyTorch's", c->name, (unsigned long long)i);
    }
    free(p);
    free(m);
    free(v);
    free(g);
}

static void test_updates_are_torchs(void **state)
{
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(torch_cases); i++) {
        run_torch_case(f, &torch_cases[i], 1);
        run_torch_case(f, &torch_cases[i], 5000);
    }
}

static void expect_update(float *const *params, uint32_t ranks, const float *plain, float *const *state1, uint64_t n,
                          uint64_t bad)
{
    for (uint32_t r = 0; r < ranks; r++)
        for (uint64_t i = 0; i < n; i++)
            if (i != bad && (bits(params[r][i]) != bits(plain[i]) || bits(state1[0][i]) != bits(state1[1][i])))
                fail_msg("%u ranks, rank %u: element %llu of %llu", ranks, r, (unsigned long long)i,
                         (unsigned long long)n);
}

/* A slice of `n` under `ranks` ranks, each with its gradients: the bits of the mean's update, on all of them. */
static void run_peers(fixture *f, uint32_t ranks, uint64_t n, uint64_t bad)
{
    float *grads[5], *params[5], *state1[2], *plain = aligned(n * 4), *mean = aligned(n * 4);
    uint64_t not_finite = 0;
    ddp_optim_peers peers = {.struct_size = sizeof(peers),
                             .count = ranks,
                             .grads = (const void *const *)grads,
                             .params = params,
                             .not_finite = &not_finite};
    ddp_optim o = {
        .struct_size = sizeof(o), .algorithm = DDP_OPTIM_SGD, .step = 2, .lr = 0.1, .momentum = 0.9, .grad_scale = 0.5};
    ddp_optim_slice s = {.grad_dtype = DDP_F32, .state_dtype = DDP_F32, .param = plain, .grad = mean, .count = n};

    for (uint32_t r = 0; r < ranks; r++) {
        grads[r] = aligned(n * 4);
        params[r] = aligned(n * 4);
        for (uint64_t i = 0; i < n; i++) grads[r][i] = (float)((i * 7 + r * 13) % 101) * 0.37f - 17;
        memset(params[r], 0xff, n * 4);
    }
    for (int k = 0; k < 2; k++) state1[k] = aligned(n * 4);
    for (uint64_t i = 0; i < n; i++) {
        mean[i] = grads[0][i];
        for (uint32_t r = 1; r < ranks; r++) mean[i] += grads[r][i];
        mean[i] /= (float)ranks;
        plain[i] = params[1][i] = (float)(i % 97) * 0.11f;
        state1[0][i] = state1[1][i] = (float)(i % 31) * 0.01f;
    }
    if (bad < n) grads[ranks - 1][bad] = INFINITY;
    s.state1 = state1[0];
    OK(f, f->ops->optim_step(f->device, &o, &s, &f->err));
    s.param = params[1];
    s.state1 = state1[1];
    s.grad = NULL;
    o.peers = &peers;
    OK(f, f->ops->optim_step(f->device, &o, &s, &f->err));
    assert_int_equal(not_finite, bad < n ? bad : n);
    expect_update(params, ranks, plain, state1, n, bad);
    /* in two passes: the mean in the place of one of the gradients, then the update of all from there */
    for (uint64_t i = 0; i < n; i++) {
        params[1][i] = (float)(i % 97) * 0.11f;
        state1[1][i] = (float)(i % 31) * 0.01f;
        params[0][i] = NAN;
    }
    not_finite = 12345678;
    o.algorithm = DDP_OPTIM_MEAN;
    OK(f,
       f->ops->optim_step(
           f->device, &o,
           &(ddp_optim_slice){.grad_dtype = DDP_F32, .state_dtype = DDP_F32, .param = grads[1], .count = n}, &f->err));
    assert_int_equal(not_finite, bad < n ? bad : n);
    o.algorithm = DDP_OPTIM_SGD;
    peers.grads = NULL;
    s.grad = grads[1];
    not_finite = 12345678;
    OK(f, f->ops->optim_step(f->device, &o, &s, &f->err));
    assert_int_equal(not_finite, 12345678);
    expect_update(params, ranks, plain, state1, n, bad);
    for (uint32_t r = 0; r < ranks; r++) {
        free(grads[r]);
        free(params[r]);
    }
    for (int k = 0; k < 2; k++) free(state1[k]);
    free(plain);
    free(mean);
}

static void test_update_with_peers(void **state)
{
    for (uint32_t ranks = 2; ranks <= 5; ranks++) {
        run_peers(*state, ranks, 48, UINT64_MAX);
        run_peers(*state, ranks, 5003, 4999);
        run_peers(*state, ranks, 300016, 150001);
    }
}

static void test_update_refusals(void **state)
{
    fixture *f = *state;
    float x[16] = {0};
    ddp_optim o = {.struct_size = sizeof(o), .algorithm = 99, .step = 1};
    ddp_optim_slice s = {.grad_dtype = DDP_F32, .state_dtype = DDP_F32, .param = x, .grad = x, .count = 16};

    assert_int_equal(f->ops->optim_step(f->device, &o, &s, &f->err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(f->err.msg, "99"));
    o.algorithm = DDP_OPTIM_ADAM;
    assert_int_equal(f->ops->optim_step(f->device, &o, &s, &f->err), DDP_ERR_INVALID);
    o.algorithm = DDP_OPTIM_SGD;
    o.momentum = 0.9;
    assert_int_equal(f->ops->optim_step(f->device, &o, &s, &f->err), DDP_ERR_INVALID);
    o.momentum = 0;
    o.peers = &(ddp_optim_peers){.struct_size = sizeof(ddp_optim_peers), .count = 1000};
    assert_int_equal(f->ops->optim_step(f->device, &o, &s, &f->err), DDP_ERR_UNSUPPORTED);
    o.struct_size = offsetof(ddp_optim, peers); /* of an engine that knew no peers: what lies behind is not read */
    assert_int_equal(f->ops->optim_step(f->device, &o, &s, &f->err), DDP_OK);
    o.struct_size = sizeof(o);
    o.peers = NULL;
    o.algorithm = DDP_OPTIM_MEAN;
    assert_int_equal(f->ops->optim_step(f->device, &o, &s, &f->err), DDP_ERR_INVALID);
    o.algorithm = DDP_OPTIM_SGD;
    o.step = 0;
    assert_int_equal(f->ops->optim_step(f->device, &o, &s, &f->err), DDP_ERR_INVALID);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */
static void test_finite(void **state)
{
    static const uint64_t counts[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, 70000};
    static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    fixture *f = *state;
    float *x = aligned((size_t)70001 * 4);
    ddp_flat_result r;

    for (size_t c = 0; c < DDP_COUNT(counts); c++) {
        uint64_t n = counts[c];
        fill(x, (int64_t)n, 3e38);
        x[n] = NAN; /* just behind the end */
        OK(f, f->ops->flat(f->device, DDP_FLAT_FINITE, x, n, &r, &f->err));
        assert_int_equal(r.index, n);
        for (int round = 0; round < 20 && n > 0; round++) {
            uint64_t first = round == 0 ? 0 : round == 1 ? n - 1 : random_bits(&seed) % n, second = first;
            float kept = x[first];
            if (round > 2) second = first + random_bits(&seed) % (n - first);
            x[first] = bad[round % 4];
            OK(f, f->ops->flat(f->device, DDP_FLAT_FINITE, x, n, &r, &f->err));
            assert_int_equal(r.index, first);
            x[second] = NAN;
            OK(f, f->ops->flat(f->device, DDP_FLAT_FINITE, x, n, &r, &f->err));
            assert_int_equal(r.index, first);
            x[first] = x[second] = kept;
        }
    }
    assert_int_equal(f->ops->flat(f->device, 77, x, 1, &r, &f->err), DDP_ERR_UNSUPPORTED);
    free(x);
}

/* The order that kernels.h and flat.c promise, written out: chunks of 65536, lanes of 16. */
static double sum_in_order(const float *x, uint64_t n)
{
    double sum = 0.0;

    for (uint64_t c = 0; c < n; c += 65536) {
        double lane[16] = {0}, part = 0.0;
        for (uint64_t i = c; i < n && i < c + 65536; i++) lane[i % 16] += (double)x[i] * (double)x[i];
        for (int l = 0; l < 16; l++) part += lane[l];
        sum += part;
    }
    return sum;
}

static void test_sum_squares(void **state)
{
    static const uint64_t counts[] = {0, 1, 15, 16, 17, 65535, 65536, 65537, 5000011};
    fixture *f = *state;
    float *x = aligned((size_t)5000011 * 4);
    ddp_flat_result r;

    fill(x, 5000011, 100);
    for (size_t c = 0; c < DDP_COUNT(counts); c++) {
        double want = sum_in_order(x, counts[c]);
        OK(f, f->ops->flat(f->device, DDP_FLAT_SUM_SQUARES, x, counts[c], &r, &f->err));
        assert_memory_equal(&r.value, &want, sizeof(want));
    }
    free(x);
}

/* Of the calling thread; tests/integration/test_affinity.py looks at the others. */
static void test_pin(void **state)
{
    cpu_set_t before, now;
    int32_t list[2];
    uint32_t count = 0;
    fixture f;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    for (int32_t cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++)
        if (CPU_ISSET((size_t)cpu, &before)) list[count++] = cpu;
    if (count < 2) skip();
    fixture_open(&f, 2);
    OK(&f, f.ops->pin(f.device, list, &f.err));
    assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
    assert_true(CPU_COUNT(&now) == 1 && CPU_ISSET((size_t)list[0], &now));
    list[0] = list[1];
    OK(&f, f.ops->pin(f.device, list, &f.err));
    assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
    assert_true(CPU_COUNT(&now) == 1 && CPU_ISSET((size_t)list[1], &now));
    list[0] = 60000; /* there is none */
    assert_int_equal(f.ops->pin(f.device, list, &f.err), DDP_ERR_SYSTEM);
    assert_non_null(strstr(f.err.msg, "cannot be bound"));
    assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
    assert_true(CPU_EQUAL(&now, &before));
    list[0] = list[1];
    OK(&f, f.ops->pin(f.device, list, &f.err));
    fixture_close(&f);
    assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
    assert_true(CPU_EQUAL(&now, &before));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants_agree),
        cmocka_unit_test(test_update_variants_agree),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_gelu_far_out),
        BOTH(test_updates_are_torchs),
        BOTH(test_sum_squares),
        ONE(test_finite),
        ONE(test_update_with_peers),
        ONE(test_update_refusals),
        cmocka_unit_test(test_pin),
    };

    seed = test_seed();
    variants = cpu_kernels_variants + ddp_isa_best();
    variant_count = DDP_ISA_COUNT - ddp_isa_best();
    (void)printf("# %d variants, the best is %s\n", variant_count, variants[0]->isa);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
