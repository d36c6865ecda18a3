/* tests/unit/cuda/test_cuda_step.c -- whole steps on the CUDA device, over its doubles or on a GPU: the bits of the
 * calls that they stand for, waited for or not; what is not finite; refusals; failures of the runtime. */
#include "cuda_net.h"

enum { STEPS = 6, SLICES = 2 };
#ifdef DDP_CUDA_REAL
enum { COUNTED = false };
#else
enum { COUNTED = true }; /* launches and allocations */
#endif

/* The net's arenas in two slices, a batch for each step, and what the host is told of it. */
typedef struct stepper {
    net n;
    ddp_optim optim;
    ddp_optim_slice slices[SLICES];
    float *state, *losses, *loss;
    int64_t *tokens;
    void *inputs[2];
    uint64_t *bad;
    double *norms;
    ddp_flat_result *squares;
} stepper;

static void *host(fixture *f, size_t bytes)
{
    void *p;

    OK(f, f->ops->host_alloc(f->device, bytes, &p, &f->err));
    return p;
}

static void stepper_open(fixture *f, stepper *s, uint32_t algorithm)
{
    uint64_t all, cut;

    net_open(f, &s->n);
    all = s->n.layout->elements;
    cut = all / 3 / 16 * 16;
    s->optim = (ddp_optim){.struct_size = sizeof(s->optim),
                           .algorithm = algorithm,
                           .momentum = 0.9,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .grad_scale = 1.0};
    OK(f, f->ops->alloc(f->device, 2 * all * 4, (void **)&s->state, &f->err));
    for (int i = 0; i < SLICES; i++) {
        uint64_t from = i == 0 ? 0 : cut;
        s->slices[i] = (ddp_optim_slice){.grad_dtype = DDP_F32,
                                         .state_dtype = DDP_F32,
                                         .param = (float *)(uintptr_t)s->n.j.bind.params + from,
                                         .grad = s->n.j.bind.grads + from,
                                         .state1 = s->state + from,
                                         .state2 = s->state + all + from,
                                         .count = i == 0 ? cut : all - cut};
    }
    s->losses = host(f, STEPS * sizeof(*s->losses));
    s->tokens = host(f, STEPS * 8 * sizeof(*s->tokens));
    s->bad = host(f, STEPS * SLICES * sizeof(*s->bad));
    s->norms = host(f, STEPS * sizeof(*s->norms));
    s->squares = host(f, SLICES * sizeof(*s->squares));
    for (int64_t k = 0; k < STEPS * 8; k++) s->tokens[k] = (3 * (k / 8) + k % 8) % 11;
    s->inputs[1] = s->n.j.inputs[1];
    s->loss = (float *)(void *)((char *)s->n.j.bind.arena + s->n.j.planned->plan.value_offset[s->n.p->loss]);
}

static void stepper_close(stepper *s)
{
    fixture *f = s->n.j.f;
    void *const mine[] = {s->losses, s->tokens, s->bad, s->norms, s->squares};

    f->ops->free(f->device, s->state);
    for (size_t i = 0; i < DDP_COUNT(mine); i++) f->ops->host_free(f->device, mine[i]);
    net_close(&s->n);
}

/* Each has a batch and numbers of its own. */
static ddp_run begin_step(stepper *s, int step)
{
    s->optim.step = (uint64_t)step + 1;
    s->optim.lr = 0.1 / (step + 1);
    s->inputs[0] = s->tokens + (ptrdiff_t)8 * step;
    return (ddp_run){.struct_size = sizeof(ddp_run), .inputs = s->inputs};
}

static ddp_status step_at_once(stepper *s, int step, int slot, double max_norm)
{
    fixture *f = s->n.j.f;
    ddp_update u = {.struct_size = sizeof(u),
                    .slice_count = SLICES,
                    .optim = &s->optim,
                    .slice_size = sizeof(s->slices[0]),
                    .slices = s->slices,
                    .not_finite = &s->bad[SLICES * slot],
                    .loss = s->loss,
                    .loss_out = &s->losses[slot],
                    .max_norm = max_norm,
                    .norm = max_norm != 0.0 ? &s->norms[slot] : NULL};
    ddp_run r = begin_step(s, step);

    for (int i = 0; i < SLICES; i++) u.not_finite[i] = u.slices[i].count;
    return f->ops->step(s->n.j.instance, &r, &u, &f->err);
}

/* The same by the calls that a step stands for. */
static void step_apart(stepper *s, int step, int slot, double max_norm)
{
    fixture *f = s->n.j.f;
    const ddp_device_ops *o = f->ops;
    ddp_run r = begin_step(s, step);
    double sum = 0.0;

    s->optim.grad_scale = 1.0;
    OK(f, o->run(s->n.j.instance, &r, 0, s->n.j.lowered->kernel_count, &f->err));
    OK(f, o->copy_async(f->device, DDP_QUEUE_COMPUTE, &s->losses[slot], s->loss, 4, DDP_COPY_TO_HOST, &f->err));
    for (int i = 0; i < SLICES; i++)
        OK(f, o->flat_async(f->device, DDP_FLAT_SUM_SQUARES, s->slices[i].grad, s->slices[i].count, &s->squares[i],
                            &f->err));
    OK(f, o->sync(f->device, &f->err));
    for (int i = 0; i < SLICES; i++) sum += s->squares[i].value;
    s->norms[slot] = sqrt(sum);
    if (max_norm != 0.0 && max_norm / (s->norms[slot] + 1e-6) < 1.0)
        s->optim.grad_scale = max_norm / (s->norms[slot] + 1e-6);
    for (int i = 0; i < SLICES; i++) OK(f, o->optim_step(f->device, &s->optim, &s->slices[i], &f->err));
    OK(f, o->sync(f->device, &f->err));
    s->optim.grad_scale = 1.0;
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */
static void open_pair(fixture *f, stepper *a, stepper *b, uint32_t algorithm)
{
    stepper_open(f, a, algorithm);
    stepper_open(f, b, algorithm);
    memcpy(b->n.j.inputs[1], a->n.j.inputs[1], 8 * sizeof(int64_t));
    OK(f, f->ops->copy(f->device, (void *)(uintptr_t)b->n.j.bind.params, a->n.j.bind.params, a->n.layout->elements * 4,
                       DDP_COPY_ON_DEVICE, &f->err));
}

static void close_pair(stepper *a, stepper *b)
{
    size_t bytes = a->n.layout->elements * 4;

    job_down(&a->n.j, a->n.j.params, a->n.j.bind.params, bytes);
    job_down(&b->n.j, b->n.j.params, b->n.j.bind.params, bytes);
    assert_memory_equal(a->n.j.params, b->n.j.params, bytes);
    stepper_close(b);
    stepper_close(a);
}

static void check_told(const stepper *a, const stepper *b, int slot, double max_norm)
{
    assert_memory_equal(&a->losses[slot], &b->losses[slot], sizeof(float));
    if (max_norm != 0.0) assert_memory_equal(&a->norms[slot], &b->norms[slot], sizeof(double));
    for (int i = 0; i < SLICES; i++) assert_int_equal(a->bad[SLICES * slot + i], a->slices[i].count);
}

static void take_counts(uint64_t counts[3])
{
#ifdef DDP_CUDA_REAL
    memset(counts, 0, 3 * sizeof(*counts));
#else
    cuda_double_counts c;

    cuda_double_count(&c);
    counts[0] = c.launches;
    counts[1] = c.mallocs;
    counts[2] = c.graph_launches;
#endif
}

/* `slots` places for what the host is told take turns; with two each has its graph from the third step on. */
static void compare_steps(fixture *f, uint32_t algorithm, double max_norm, int slots)
{
    uint64_t before[3], after[3];
    stepper a, b;

    open_pair(f, &a, &b, algorithm);
    for (int step = 0; step < STEPS; step++) {
        take_counts(before);
        OK(f, step_at_once(&a, step, step % slots, max_norm));
        take_counts(after);
        if (slots == 2 && step >= 2 && COUNTED) {
            assert_int_equal(after[0], before[0]);
            assert_int_equal(after[1], before[1]);
            assert_int_equal(after[2], before[2] + 1);
        }
        OK(f, f->ops->sync(f->device, &f->err));
        step_apart(&b, step, step % slots, max_norm);
        check_told(&a, &b, step % slots, max_norm);
    }
    close_pair(&a, &b);
}

/* More places than there are graphs for are slower, and right. */
static void test_steps(void **state)
{
    static const uint32_t algorithms[] = {DDP_OPTIM_SGD, DDP_OPTIM_ADAM, DDP_OPTIM_ADAMW};

    for (size_t i = 0; i < DDP_COUNT(algorithms); i++)
        for (int slots = 2; slots <= STEPS; slots += 2) {
            compare_steps(*state, algorithms[i], 0.0, slots);
            compare_steps(*state, algorithms[i], 0.01, slots);
            compare_steps(*state, algorithms[i], 1e6, slots);
        }
}

/* All are given out before the first is looked at. */
static void test_steps_ahead(void **state)
{
    fixture *f = *state;
    stepper a, b;

    for (double max_norm = 0.0; max_norm < 0.1; max_norm += 0.05) {
        open_pair(f, &a, &b, DDP_OPTIM_ADAM);
        for (int step = 0; step < STEPS; step++) OK(f, step_at_once(&a, step, step, max_norm));
        OK(f, f->ops->sync(f->device, &f->err));
        for (int step = 0; step < STEPS; step++) {
            step_apart(&b, step, step, max_norm);
            check_told(&a, &b, step, max_norm);
        }
        close_pair(&a, &b);
    }
}

/* ---- what is wrong ----------------------------------------------------------------------------------------------- */
static void test_steps_not_finite(void **state)
{
    fixture *f = *state;
    float *moments;
    stepper s;

    stepper_open(f, &s, DDP_OPTIM_ADAM);
    moments = host(f, 8 * sizeof(*moments));
    for (int i = 0; i < 3; i++) OK(f, step_at_once(&s, i, i % 2, 1.0));
    OK(f, f->ops->sync(f->device, &f->err));
    s.slices[1].grad = s.slices[1].state1; /* which the program does not write */
    moments[7] = NAN;
    OK(f, f->ops->copy(f->device, s.slices[1].state1, moments, 8 * sizeof(*moments), DDP_COPY_TO_DEVICE, &f->err));
    OK(f, step_at_once(&s, 3, 1, 0.0));
    OK(f, f->ops->sync(f->device, &f->err));
    assert_int_equal(s.bad[SLICES], s.slices[0].count);
    assert_int_equal(s.bad[SLICES + 1], 7);
    f->ops->host_free(f->device, moments);
    stepper_close(&s);
}

static void test_steps_refused(void **state)
{
    fixture *f = *state;
    ddp_run r;
    stepper s;

    stepper_open(f, &s, DDP_OPTIM_ADAM);
    s.slices[1].state2 = NULL;
    assert_int_equal(step_at_once(&s, 4, 0, 0.0), DDP_ERR_INVALID);
    s.slices[1].state2 = s.slices[1].state1;
    s.slices[1].count = 0;
    assert_int_equal(step_at_once(&s, 4, 0, 0.0), DDP_ERR_INVALID);
    s.optim.algorithm = DDP_OPTIM_MEAN;
    assert_int_equal(step_at_once(&s, 4, 0, 0.0), DDP_ERR_INVALID);
    r = begin_step(&s, 4);
    assert_int_equal(
        f->ops->step(s.n.j.instance, &r, &(ddp_update){.struct_size = sizeof(ddp_update), .optim = &s.optim}, &f->err),
        DDP_ERR_INVALID);
    stepper_close(&s);
}

#ifndef DDP_CUDA_REAL
/* A device that fails at whichever call of the first steps says so, or goes on without a graph; nothing is left. */
static void test_steps_fail(void **state)
{
    fixture *f = *state;
    int failed = 0;
    stepper s;

    for (uint64_t call = 1; call < 200; call++) {
        ddp_status status = DDP_OK;
        stepper_open(f, &s, DDP_OPTIM_SGD);
        cuda_double_fail_at(call);
        for (int i = 0; i < 3 && status == DDP_OK; i++) status = step_at_once(&s, i, i % 2, 1.0);
        cuda_double_fail_at(0);
        failed += status != DDP_OK;
        stepper_close(&s);
    }
    assert_true(failed > 10);
    assert_true(failed < 190);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        F32(test_steps),        BF16(test_steps),           F32(test_steps_ahead),
        BF16(test_steps_ahead), F32(test_steps_not_finite), F32(test_steps_refused),
#ifndef DDP_CUDA_REAL
        F32(test_steps_fail),
#endif
    };

    net_seed = test_seed();
    return cuda_run_tests("cuda_step", tests, DDP_COUNT(tests));
}
