/* tests/unit/cuda/cuda_net.h -- for tests of runs and steps on the CUDA device: a small net over tokens, and its
 * job. */
#pragma once

#include "cuda_device_util.h"

static uint64_t net_seed;

typedef struct net {
    ddp_graph *g;
    ddp_layout *layout;
    ddp_program *p;
    job j;
} net;

static inline void net_open(fixture *f, net *n)
{
    static const ddp_field fields[] = {{.name = "token", .dtype = DDP_I64, .rank = 1, .dims = {4}, .max = 10},
                                       {.name = "label", .dtype = DDP_I64, .rank = 1, .dims = {4}, .max = 10}};
    ddp_tensor table, x;

    OK(f, ddp_graph_create(fields, 2, &n->g, &f->err));
    x = ddp_embedding(n->g, ddp_input(n->g, "token"), 11, 8, 1.0, &table, "wte");
    x = ddp_gelu(n->g, ddp_linear(n->g, x, 16, 1, "fc"), 1);
    x = ddp_linear(n->g, x, 11, 1, "head");
    ddp_loss(n->g, ddp_cross_entropy(n->g, x, ddp_input(n->g, "label")));
    OK(f, ddp_graph_finish(n->g, &f->err));
    OK(f, ddp_layout_create(n->g, 256, 1024, 1, &n->layout, &f->err));
    OK(f, ddp_program_create(n->g, n->layout, 2, true, &n->p, &f->err));
    n->j = (job){.f = f,
                 .p = n->p,
                 .layout = n->layout,
                 .arena_elements = n->layout->elements,
                 .seed = &net_seed,
                 .classes = 11,
                 .scale = 0.5,
                 .tolerance = f->half ? 5e-2 : 1e-4,
                 .by_scale = !f->half,
                 .by_norm = f->half};
    job_open(&n->j);
}

static inline void net_close(net *n)
{
    job_close(&n->j);
    ddp_program_free(n->p);
    ddp_layout_free(n->layout);
    ddp_graph_free(n->g);
}

static inline float net_loss(net *n)
{
    uint64_t at = n->j.planned->plan.value_offset[n->p->loss];
    float loss;

    job_down(&n->j, &loss, (char *)n->j.bind.arena + at, sizeof(loss));
    return loss;
}

static inline ddp_status run_all(net *n, uint32_t flags)
{
    const fixture *f = n->j.f;
    const ddp_run r = {.struct_size = sizeof(r), .flags = flags, .inputs = (void *const *)(void *)n->j.inputs};
    ddp_status status = f->ops->run(n->j.instance, &r, 0, n->j.lowered->kernel_count, &n->j.f->err);

    return status == DDP_OK ? f->ops->sync(f->device, &n->j.f->err) : status;
}
