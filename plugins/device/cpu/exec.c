/* exec.c -- compiles a lowered program, binds instances to memory, runs kernels.
 *
 * An instance resolves every value to a pointer once; fields of the batch are the only pointers that change between runs.
 * cpu_run is a straight line over kernels: no allocation, no lookup. */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

#define GRAIN 16384 /* elements of an elementwise kernel for which another thread pays */

struct ddp_exec {
    ddp_device *device;
    const ddp_program *program;
    const cpu_lowered *lowered;
    const ddp_plan *plan;
};

typedef struct input_slot {
    int32_t value; /* an INPUT or a view of one */
    int32_t field;
} input_slot;

struct ddp_instance {
    ddp_exec *exec;
    void **at; /* by value: where it lies; NULL for an inner one */
    input_slot *inputs;
    uint32_t input_count;
    cpu_bound **bound; /* by kernel, of CPU_LINEAR */
    void **scratch;    /* by kernel; NULL for none */
};

ddp_status cpu_compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan, ddp_exec **out,
                       ddp_err *err)
{
    const cpu_lowered *own = l->device_data;
    ddp_exec *e;

    for (uint32_t i = 0; i < own->kernel_count; i++) {
        ddp_status status = own->kernels[i].product != NULL ? cpu_product_build(own->kernels[i].product, err) : DDP_OK;
        if (status != DDP_OK) return status;
    }
    e = calloc(1, sizeof(*e));
    if (e == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while compiling");
    *e = (ddp_exec){d, p, own, plan};
    *out = e;
    return DDP_OK;
}

void cpu_exec_free(ddp_exec *e) { free(e); }

/* ---- instances ------------------------------------------------------------------------------------------------------ */
/* The value whose memory v uses: v itself, or the end of its chain of views. */
static int32_t root_of(const ddp_exec *e, int32_t v)
{
    while (e->lowered->storage[v].alias_of >= 0) v = e->lowered->storage[v].alias_of;
    return v;
}

static void resolve(ddp_instance *in, const ddp_bind *bind)
{
    const ddp_exec *e = in->exec;

    for (uint32_t v = 0; v < e->program->value_count; v++) {
        int32_t root = root_of(e, (int32_t)v);
        const ddp_value *value = cpu_value(e->program, root);
        uint64_t offset = e->plan->value_offset[root];
        switch (value->kind) {
        case DDP_VALUE_INPUT: in->inputs[in->input_count++] = (input_slot){(int32_t)v, value->index}; break;
        case DDP_VALUE_PARAM: /* only read; the table of pointers is shared with what is written */
            in->at[v] = (void *)(bind->params + value->offset);
            break;
        case DDP_VALUE_GRAD: in->at[v] = bind->grads != NULL ? bind->grads + value->offset : NULL; break;
        default: in->at[v] = offset == DDP_NO_OFFSET ? NULL : (char *)bind->arena + offset; break;
        }
    }
}

/* Where a linear kernel's product goes: the pre-activation's storage, or the activation's when the former is inner. */
static float *product_target(const ddp_instance *in, const cpu_kernel *k)
{
    return in->at[k->out] != NULL ? in->at[k->out] : in->at[k->act_out];
}

static ddp_status bind_products(ddp_instance *in, const ddp_bind *bind, ddp_err *err)
{
    const ddp_exec *e = in->exec;

    for (uint32_t i = 0; i < e->lowered->kernel_count; i++) {
        const cpu_kernel *k = &e->lowered->kernels[i];
        uint64_t offset = e->plan->scratch_offset[i];
        ddp_status status;
        in->scratch[i] = offset == DDP_NO_OFFSET ? NULL : (char *)bind->arena + offset;
        if (k->product == NULL) continue;
        status = cpu_product_bind(k->product, in->at[k->b], product_target(in, k), in->scratch[i], &in->bound[i], err);
        if (status != DDP_OK) return status;
    }
    return DDP_OK;
}

ddp_status cpu_instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err)
{
    ddp_instance *in = calloc(1, sizeof(*in));
    size_t values = e->program->value_count, kernels = e->lowered->kernel_count;
    ddp_status status;

    if (in == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory for an instance");
    in->exec = e;
    in->at = calloc(values + 1, sizeof(void *));
    in->inputs = calloc(values + 1, sizeof(*in->inputs));
    in->bound = calloc(kernels + 1, sizeof(void *));
    in->scratch = calloc(kernels + 1, sizeof(void *));
    if (in->at == NULL || in->inputs == NULL || in->bound == NULL || in->scratch == NULL) {
        status = ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory for an instance");
    } else {
        resolve(in, bind);
        status = bind_products(in, bind, err);
    }
    if (status != DDP_OK) {
        cpu_instance_free(in);
        return status;
    }
    *out = in;
    return DDP_OK;
}

void cpu_instance_free(ddp_instance *in)
{
    if (in == NULL) return;
    for (uint32_t i = 0; in->bound != NULL && i < in->exec->lowered->kernel_count; i++) cpu_bound_free(in->bound[i]);
    free(in->bound);
    free(in->scratch);
    free(in->inputs);
    free(in->at);
    free(in);
}

/* ---- kernels -------------------------------------------------------------------------------------------------------- */
typedef struct piece { /* of an elementwise kernel, for cpu_parallel */
    const cpu_kernels *f;
    const cpu_kernel *k;
    float *out, *bias, *a;
    const float *b;
    bool add;
} piece;

static float *at(const ddp_instance *in, int32_t v) { return v >= 0 ? in->at[v] : NULL; }

static void act_piece(void *ctx, int64_t first, int64_t last)
{
    const piece *p = ctx;

    p->f->bias_act(p->out + first, p->a + first, NULL, 1, last - first, p->k->act);
}

static void bias_piece(void *ctx, int64_t first, int64_t last) /* rows */
{
    const piece *p = ctx;
    int64_t from = first * p->k->cols;

    p->f->bias_act(p->out + from, p->a + from, p->b, last - first, p->k->cols, p->k->act);
}

static void add_piece(void *ctx, int64_t first, int64_t last)
{
    const piece *p = ctx;

    p->f->add(p->out + first, p->a + first, p->b + first, last - first);
}

static void grad_piece(void *ctx, int64_t first, int64_t last) /* columns */
{
    const piece *p = ctx;

    p->f->act_grad(p->out, p->a, p->b, p->bias, p->k->rows, p->k->cols, first, last, p->k->act, p->add);
}

static ddp_status run_linear(const ddp_instance *in, const cpu_kernel *k, uint32_t index, ddp_err *err)
{
    const ddp_device *d = in->exec->device;
    float *y = product_target(in, k);
    piece p = {.f = d->kernels, .k = k, .out = k->act_out >= 0 ? at(in, k->act_out) : y, .a = y, .b = at(in, k->c)};
    ddp_status status = cpu_bound_run(in->bound[index], at(in, k->a), err);

    if (status != DDP_OK || (k->c < 0 && k->act == CPU_ACT_NONE)) return status;
    cpu_parallel(d->threads, k->rows, (GRAIN + k->cols - 1) / k->cols, bias_piece, &p);
    return DDP_OK;
}

/* Also the bias gradient alone, with act NONE. */
static void run_act_grad(const ddp_instance *in, const cpu_kernel *k, bool bias_add)
{
    const ddp_device *d = in->exec->device;
    piece p = {.f = d->kernels,
               .k = k,
               .out = at(in, k->out),
               .bias = at(in, k->bias_out),
               .a = at(in, k->a),
               .b = at(in, k->b),
               .add = bias_add};
    int64_t grain = (GRAIN / k->rows + 128) / 128 * 128; /* whole tiles of columns */

    cpu_parallel(d->threads, k->cols, grain, grad_piece, &p);
}

static void run_view(const ddp_instance *in, const cpu_kernel *k, bool accumulate)
{
    float *to = at(in, k->out), *from = at(in, k->a);

    if (to == from) return;
    if (accumulate)
        in->exec->device->kernels->add(to, to, from, k->rows * k->cols);
    else
        memcpy(to, from, (size_t)(k->rows * k->cols) * sizeof(*to));
}

static ddp_status check_labels(const cpu_kernel *k, const int64_t *label, ddp_err *err)
{
    for (int64_t r = 0; r < k->rows; r++)
        if (label[r] < 0 || label[r] >= k->cols)
            return ddp_fail(
                err, DDP_ERR_DATA,
                "device \"cpu\": label %lld of row %lld of the batch is not one of the model's %lld classes (0 "
                "to %lld); check the data set's labels against the model's number of classes",
                (long long)label[r], (long long)r, (long long)k->cols, (long long)(k->cols - 1));
    return DDP_OK;
}

static ddp_status run_loss(const ddp_instance *in, const cpu_kernel *k, ddp_err *err)
{
    const cpu_kernels *f = in->exec->device->kernels;
    const void *b = in->at[k->b];
    double n = (double)k->rows, sum;
    ddp_status status = k->kind != CPU_MSE ? check_labels(k, b, err) : DDP_OK;

    if (status != DDP_OK) return status;
    if (k->kind == CPU_CROSS_ENTROPY) {
        sum = f->cross_entropy(at(in, k->grad_out), at(in, k->a), b, k->rows, k->cols, (float)(1.0 / n)) / n;
    } else if (k->kind == CPU_MSE) {
        n *= (double)k->cols;
        sum = f->mse(at(in, k->grad_out), at(in, k->a), b, k->rows * k->cols, (float)(2.0 / n)) / n;
    } else {
        sum = (double)f->accuracy(at(in, k->a), b, k->rows, k->cols);
    }
    if (k->out >= 0) *at(in, k->out) = (float)sum;
    return DDP_OK;
}

/* Whether kernel k adds to value v: the run's flag counts for the gradient arena alone. */
static bool adds(const ddp_instance *in, int32_t v, bool node_adds, uint32_t flags)
{
    return node_adds ||
           ((flags & DDP_RUN_GRAD_ADD) != 0 && v >= 0 && cpu_value(in->exec->program, v)->kind == DDP_VALUE_GRAD);
}

static ddp_status run_kernel(const ddp_instance *in, uint32_t index, uint32_t flags, ddp_err *err)
{
    const cpu_kernel *k = &in->exec->lowered->kernels[index];
    ddp_device *d = in->exec->device;
    piece p = {.f = d->kernels, .k = k, .out = at(in, k->out), .a = at(in, k->a), .b = at(in, k->b)};

    switch (k->kind) {
    case CPU_LINEAR: return run_linear(in, k, index, err);
    case CPU_GRAD_INPUT:
        return cpu_grad_input(d->library, k->rows, k->in, k->cols, at(in, k->a), at(in, k->b), at(in, k->out), err);
    case CPU_GRAD_WEIGHT:
        return cpu_grad_weight(d->library, k->rows, k->in, k->cols, at(in, k->a), at(in, k->b), at(in, k->out),
                               adds(in, k->out, k->add, flags), err);
    case CPU_GRAD_BIAS:
    case CPU_ACT_GRAD: run_act_grad(in, k, adds(in, k->bias_out, k->bias_add, flags)); return DDP_OK;
    case CPU_ACT: cpu_parallel(d->threads, k->rows * k->cols, GRAIN, act_piece, &p); return DDP_OK;
    case CPU_ADD: cpu_parallel(d->threads, k->rows * k->cols, GRAIN, add_piece, &p); return DDP_OK;
    case CPU_VIEW: run_view(in, k, adds(in, k->out, k->add, flags)); return DDP_OK;
    default: return run_loss(in, k, err);
    }
}

/* A kernel that can only set, whose gradient is to be added: into scratch, then on top of the slice. */
static ddp_status run_staged(const ddp_instance *in, uint32_t index, uint32_t flags, ddp_err *err)
{
    const cpu_kernel *k = &in->exec->lowered->kernels[index];
    float *slice = at(in, k->staged), *scratch = in->scratch[index];
    ddp_status status;

    in->at[k->staged] = scratch;
    status = run_kernel(in, index, flags, err);
    in->at[k->staged] = slice;
    if (status == DDP_OK)
        in->exec->device->kernels->add(slice, slice, scratch, cpu_value(in->exec->program, k->staged)->elements);
    return status;
}

ddp_status cpu_run(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err)
{
    const cpu_lowered *l = in->exec->lowered;

    if (first > last || last > l->kernel_count)
        return ddp_fail(err, DDP_ERR_INVALID, "device \"cpu\": run of kernels %u to %u, but the program has %u", first,
                        last, l->kernel_count);
    for (uint32_t i = 0; i < in->input_count; i++) in->at[in->inputs[i].value] = r->inputs[in->inputs[i].field];
    for (uint32_t i = first; i < last; i++) {
        const cpu_kernel *k = &l->kernels[i];
        bool staged = k->staged >= 0 && adds(in, k->staged, k->add, r->flags);
        ddp_status status = staged ? run_staged(in, i, r->flags, err) : run_kernel(in, i, r->flags, err);
        if (status != DDP_OK) return status;
    }
    return DDP_OK;
}
