/* graph/initial.c -- the parameters' first values: those of torch.manual_seed(seed) and the modules' constructors, bit for
 * bit, since both draw in order of declaration from one mt19937. */
#include "base/mt19937.h"
#include "graph/graph.h"
#include <string.h>

void ddp_initial_params(const ddp_graph *g, const ddp_layout *l, uint64_t seed, float *arena)
{
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(g, &params);
    ddp_mt19937 generator;

    memset(arena, 0, l->elements * sizeof(*arena));
    ddp_mt19937_seed(&generator, seed);
    for (uint32_t i = 0; i < count; i++) {
        float *at = arena + l->offset[i];

        if (params[i].init.kind == DDP_INIT_UNIFORM)
            ddp_mt19937_uniform(&generator, at, params[i].elements, params[i].init.a, params[i].init.b);
        else
            for (uint64_t k = 0; k < params[i].elements; k++) at[k] = (float)params[i].init.a;
    }
}
