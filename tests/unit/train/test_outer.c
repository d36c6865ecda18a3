/* tests of train/outer/outer.c: the outer step against the formula of torch.optim.SGD, on the CPU device */
#include "support/device_util.h"
#include "train/outer/outer.h"

enum { N = 203, ROUNDS = 6 };

static uint64_t seed = 7;

/* torch.optim.SGD(lr, momentum, nesterov=True), dampening 0, written for one number. */
typedef struct scalar {
    double param, momentum;
    bool begun;
} scalar;

static void torch_sgd(scalar *s, double gradient, double lr, double momentum)
{
    if (momentum == 0.0) {
        s->param -= lr * gradient;
        return;
    }
    s->momentum = s->begun ? momentum * s->momentum + gradient : gradient; /* it clones the first one */
    s->begun = true;
    s->param -= lr * (gradient + momentum * s->momentum);
}

static void moves_as_torch(fixture *f, double outer_lr, double outer_momentum, double expected_lr)
{
    const struct ddp_ddp_config config = {.local_steps = 4, .outer_lr = outer_lr, .outer_momentum = outer_momentum};
    const ddp_optim o = ddp_outer_optimizer(&config);
    _Alignas(64) float param[N], gradient[N], momentum[N] = {0};
    scalar want[N] = {0};
    const ddp_optim_slice slice = {.param = param,
                                   .grad = gradient,
                                   .state1 = outer_momentum > 0.0 ? momentum : NULL,
                                   .count = N,
                                   .grad_dtype = DDP_F32,
                                   .state_dtype = DDP_F32};

    for (int i = 0; i < N; i++) want[i].param = param[i] = random_float(&seed);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) gradient[i] = random_float(&seed);
        OK(f, f->ops->optim_step(f->device, &o, &slice, &f->err));
        for (int i = 0; i < N; i++) {
            torch_sgd(&want[i], (double)gradient[i], expected_lr, outer_momentum);
            assert_true(fabs((double)param[i] - want[i].param) < 1e-5);
            if (outer_momentum > 0.0) assert_true(fabs((double)momentum[i] - want[i].momentum) < 1e-5);
        }
    }
}

static void outer_step(void **state)
{
    fixture *f = *state;

    moves_as_torch(f, 0.0, 0.9, 0.7); /* auto: DiLoCo's */
    moves_as_torch(f, 0.0, 0.0, 1.0); /* auto: the average */
    moves_as_torch(f, 0.5, 0.9, 0.5);
    moves_as_torch(f, 1.0, 0.3, 1.0);
}

/* The step that moves all the way is the average itself, up to rounding. */
static void the_average(void **state)
{
    const struct ddp_ddp_config config = {.local_steps = 4};
    const ddp_optim o = ddp_outer_optimizer(&config);
    _Alignas(64) float param[N], gradient[N];
    float mean[N];
    fixture *f = *state;
    const ddp_optim_slice slice = {
        .param = param, .grad = gradient, .count = N, .grad_dtype = DDP_F32, .state_dtype = DDP_F32};

    for (int i = 0; i < N; i++) {
        float a = random_float(&seed), b = random_float(&seed);

        param[i] = random_float(&seed);
        mean[i] = 0.5f * (a + b);
        gradient[i] = 0.5f * ((param[i] - a) + (param[i] - b));
    }
    OK(f, f->ops->optim_step(f->device, &o, &slice, &f->err));
    for (int i = 0; i < N; i++) assert_true(fabsf(param[i] - mean[i]) < 1e-6f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(outer_step, open_one, close_device),
        cmocka_unit_test_setup_teardown(the_average, open_one, close_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
