/* ddpengine/init.h -- kind `init`: how a rank finds rank 0, chosen by the scheme of [group] init_method.
 * It only discovers. It opens no port: the core listens at the endpoint that listen_at names.
 * A handle is of one rendezvous: before the ranks join again ([run] restarts) the core closes it and opens another.
 * So `publish` is called at most once, and what it has written stays until `close`.
 * All calls of one handle come from one thread. Endpoints are text, "host:port" or "[v6]:port", at most 255 bytes. */
#ifndef DDPENGINE_INIT_H
#define DDPENGINE_INIT_H

#include <ddpengine/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_INIT_ABI     1u
#define DDP_ENDPOINT_MAX 256
#define DDP_SECRET_MAX   64u /* bytes */

typedef struct ddp_init ddp_init; /* defined by the plugin */

typedef struct ddp_init_ops {
    uint32_t struct_size, reserved0;
    /* `url` is the whole init_method, valid for the call; a mistake in it is DDP_ERR_CONFIG. */
    ddp_status (*open)(const ddp_host *host, const void *config, const char *url, ddp_init **out, ddp_err *err);
    void (*close)(ddp_init *i);
    /* Optional. Rank and world where the method knows them, -1 where not. */
    ddp_status (*identity)(ddp_init *i, int32_t *rank, int32_t *world, ddp_err *err);
    /* Rank 0: where to listen. Port 0 asks the core to take a free one, an empty host (":29500") to take the address of
     * [group] interface or of the default route. `endpoint` holds DDP_ENDPOINT_MAX bytes. */
    ddp_status (*listen_at)(ddp_init *i, char *endpoint, ddp_err *err);
    /* Optional. Rank 0, once it listens: the endpoint with its real port. */
    ddp_status (*publish)(ddp_init *i, const char *endpoint, ddp_err *err);
    /* Other ranks: where rank 0 is. DDP_IN_PROGRESS: not known yet, the core asks again until its own deadline;
     * err->msg may say why. Asked before each attempt to connect, so that an endpoint may change. */
    ddp_status (*find)(ddp_init *i, char *endpoint, ddp_err *err);
    /* Optional, both or neither: a secret of this run goes the way of the endpoint, and the control plane is encrypted
     * without a file that users hand out. Only where no other user can read what `publish` writes, or write what `find`
     * reads. Rank 0, before publish: keeps it for that; DDP_ERR_UNSUPPORTED where this handle publishes nothing. */
    ddp_status (*put_secret)(ddp_init *i, const void *secret, size_t length, ddp_err *err);
    /* Others, after find: what has come with the endpoint, *length 0 for none. `secret` holds DDP_SECRET_MAX bytes. */
    ddp_status (*get_secret)(ddp_init *i, void *secret, size_t *length, ddp_err *err);
    /* Optional. Looks at what would be in the way of a rendezvous, and reports it; writes nothing that stays. */
    void (*preflight)(ddp_init *i, const ddp_preflight *p);
} ddp_init_ops;

/* The tables that the engine hands to a plugin of this kind. */
#define DDP_INIT_SERVICES (sizeof(ddp_host) + sizeof(ddp_preflight))

#ifdef __cplusplus
}
#endif
#endif
