/* ddpengine/sampler.h -- kind `sampler`: which samples this rank sees in an epoch, and in which order.
 * All calls of one handle come from one thread. */
#ifndef DDPENGINE_SAMPLER_H
#define DDPENGINE_SAMPLER_H

#include <ddpengine/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_SAMPLER_ABI 1u

typedef struct ddp_sampler ddp_sampler; /* defined by the plugin */

typedef struct ddp_sampler_params {
    uint32_t struct_size, rank, world_size, reserved0;
    uint64_t seed;   /* [train] seed */
    uint64_t length; /* of the dataset */
} ddp_sampler_params;

typedef struct ddp_sampler_ops {
    uint32_t struct_size, reserved0;
    /* A length that it cannot share out is DDP_ERR_CONFIG with the reason. Training needs equal counts, none of them
     * 0, on all ranks; a sampler for evaluation may leave a rank with count 0. */
    ddp_status (*open)(const ddp_host *host, const void *config, const ddp_sampler_params *p, ddp_sampler **out,
                       ddp_err *err);
    void (*close)(ddp_sampler *s);
    uint64_t (*count)(const ddp_sampler *s); /* samples of this rank in an epoch */
    ddp_status (*indices)(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err); /* writes count(s) indices */
} ddp_sampler_ops;

/* The tables that the engine hands to a plugin of this kind. */
#define DDP_SAMPLER_SERVICES (sizeof(ddp_host) + sizeof(ddp_sampler_params))

#ifdef __cplusplus
}
#endif
#endif
