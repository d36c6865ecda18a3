/* conform/device/optimizer.c -- updates of parameters against PyTorch's formulas in double: torch.optim.SGD, Adam,
 * AdamW. */
#include "conform/device/optimizer.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 5003, STEPS = 3, ARRAYS = 4 };

typedef struct trial {
    ddp_rank_process *a;
    const ddp_device_ops *ops;
    ddp_device *d;
    float *host[ARRAYS], *device[ARRAYS]; /* parameters, states 1 and 2, gradients */
    double *want[ARRAYS];
} trial;

static const ddp_optim optims[] = {
    {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .grad_scale = 1},
    {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .weight_decay = 0.01, .grad_scale = 0.25},
    {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .momentum = 0.9, .grad_scale = 1},
    {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .momentum = 0.9, .nesterov = 1, .weight_decay = 0.01, .grad_scale = 0.5},
    {.algorithm = DDP_OPTIM_ADAM, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale = 1},
    {.algorithm = DDP_OPTIM_ADAM,
     .lr = 1e-2,
     .beta1 = 0.8,
     .beta2 = 0.99,
     .eps = 1e-6,
     .weight_decay = 0.1,
     .grad_scale = 0.5},
    {.algorithm = DDP_OPTIM_ADAMW,
     .lr = 1e-2,
     .beta1 = 0.9,
     .beta2 = 0.999,
     .eps = 1e-8,
     .weight_decay = 0.1,
     .grad_scale = 1},
};

static void reference(const ddp_optim *o, double *p, double *m, double *v, double g)
{
    double d = g * o->grad_scale;

    if (o->algorithm == DDP_OPTIM_SGD) {
        d += o->weight_decay * *p;
        *m = o->step == 1 ? d : o->momentum * *m + d;
        *p -= o->lr * (o->momentum <= 0 ? d : o->nesterov != 0 ? d + o->momentum * *m : *m);
        return;
    }
    if (o->algorithm == DDP_OPTIM_ADAMW)
        *p *= 1 - o->lr * o->weight_decay;
    else
        d += o->weight_decay * *p;
    *m = o->beta1 * *m + (1 - o->beta1) * d;
    *v = o->beta2 * *v + (1 - o->beta2) * d * d;
    *p -= o->lr * (*m / (1 - pow(o->beta1, (double)o->step))) /
          (sqrt(*v / (1 - pow(o->beta2, (double)o->step))) + o->eps);
}

static bool states_of(const ddp_optim *o, uint32_t array)
{
    if (array == 0 || array == 3) return true;
    return o->algorithm != DDP_OPTIM_SGD || (array == 1 && o->momentum > 0);
}

static bool copy(const trial *t, uint32_t array, uint32_t direction)
{
    ddp_err err = {0};
    bool in = direction == DDP_COPY_TO_DEVICE;
    ddp_status st = t->ops->copy(t->d, in ? t->device[array] : t->host[array], in ? t->host[array] : t->device[array],
                                 COUNT * sizeof(float), direction, &err);

    return st == DDP_OK || ddp_rank_process_fail_call(t->a, "copy", st, &err);
}

static bool step(trial *t, ddp_optim *o, uint32_t which)
{
    const ddp_optim_slice s = {.grad_dtype = DDP_F32,
                               .state_dtype = DDP_F32,
                               .param = t->device[0],
                               .state1 = states_of(o, 1) ? t->device[1] : NULL,
                               .state2 = states_of(o, 2) ? t->device[2] : NULL,
                               .grad = t->device[3],
                               .count = COUNT};
    ddp_err err = {0};
    ddp_status st = t->ops->optim_step(t->d, o, &s, &err);

    if (st != DDP_OK) return ddp_rank_process_fail_call(t->a, "optim_step", st, &err);
    for (uint32_t k = 0; k < 3; k++) {
        if (!copy(t, k, DDP_COPY_TO_HOST)) return false;
        for (size_t i = 0; i < COUNT && states_of(o, k); i++)
            if (!DDP_EXPECT(t->a, fabs((double)t->host[k][i] - t->want[k][i]) <= 1e-5 * (0.1 + fabs(t->want[k][i])),
                            "setting %u, step %llu: %s[%zu] is %.9g, not %.9g", which, (unsigned long long)o->step,
                            k == 0 ? "parameter" : "state", i, (double)t->host[k][i], t->want[k][i]))
                return false;
    }
    return true;
}

static bool run(trial *t, uint32_t which)
{
    ddp_optim o = optims[which];
    uint64_t random = which + 1;

    o.struct_size = sizeof(o);
    for (uint32_t k = 0; k < ARRAYS; k++)
        for (size_t i = 0; i < COUNT; i++) {
            t->host[k][i] = k == 0 ? (float)ddp_next_random(&random, 2000) / 1000 - 1 : 0;
            t->want[k][i] = (double)t->host[k][i];
        }
    for (uint32_t k = 0; k < ARRAYS; k++)
        if (!copy(t, k, DDP_COPY_TO_DEVICE)) return false;
    for (o.step = 1; o.step <= STEPS; o.step++) {
        for (size_t i = 0; i < COUNT; i++) {
            t->host[3][i] = (float)ddp_next_random(&random, 2000) / 500 - 2;
            reference(&o, &t->want[0][i], &t->want[1][i], &t->want[2][i], (double)t->host[3][i]);
        }
        if (!copy(t, 3, DDP_COPY_TO_DEVICE) || !step(t, &o, which)) return false;
    }
    return true;
}

void ddp_device_optimizer(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d)
{
    trial t = {.a = a, .ops = ops, .d = d};
    ddp_err err = {0};
    bool good = true;

    for (uint32_t k = 0; k < ARRAYS && good; k++) {
        void *p = NULL;

        t.host[k] = ddp_alloc(COUNT * sizeof(float), &err);
        t.want[k] = ddp_alloc(COUNT * sizeof(double), &err);
        good = t.host[k] != NULL && t.want[k] != NULL && ops->alloc(d, COUNT * sizeof(float), &p, &err) == DDP_OK;
        t.device[k] = p;
    }
    if (!good) (void)ddp_rank_process_fail_call(a, "alloc", err.status, &err);
    for (uint32_t i = 0; i < DDP_COUNT(optims) && good; i++) good = run(&t, i);
    for (uint32_t k = 0; k < ARRAYS; k++) {
        if (t.device[k] != NULL) ops->free(d, t.device[k]);
        free(t.want[k]);
        free(t.host[k]);
    }
}
