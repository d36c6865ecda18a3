/* control/trust.c -- see trust.h. */
#include "control/trust.h"
#include "control/state.h"
#include "net/address.h"
#include "net/user.h"
#include <openssl/crypto.h>
#include <unistd.h>

enum { MADE_BYTES = 32 };

#define WHAT_TO_DO                                                                                                     \
    "Give all ranks the same secret_file (ddpengine --gen-secret FILE writes one), or write auth = none in [group]"

ddp_status control_trust_secret(ddp_group *g, const void *secret, size_t length, ddp_err *err)
{
    ddp_group_self *s = &g->self;

    ddp_tls_close(s->tls);
    s->tls = NULL;
    DDP_TRY(
        ddp_identity_make(s->rank < 0 ? g->world : s->rank, g->world, s->agreement, secret, length, &s->identity, err));
    if (length == 0 || g->world == 1) return DDP_OK;
    return ddp_tls_open(secret, length, &s->identity, s->rank == s->quorum.server, &s->tls, err);
}

ddp_status control_trust_init_method(ddp_group *g, const ddp_group_params *p, ddp_err *err)
{
    const ddp_init_ops *ops = p->init_ops;
    unsigned char secret[DDP_SECRET_MAX];
    size_t length = 0;
    ddp_status st;

    if (p->secret_length > 0 || p->auth_none || ops->put_secret == NULL || ops->get_secret == NULL) return DDP_OK;
    if (g->self.rank == g->self.quorum.server) {
        DDP_TRY(ddp_secret_random(secret, MADE_BYTES, err));
        st = ops->put_secret(p->init, secret, MADE_BYTES, err);
        length = st == DDP_OK ? MADE_BYTES : 0;
    } else {
        st = ops->get_secret(p->init, secret, &length, err);
        if (st == DDP_OK && length > sizeof(secret))
            st = ddp_fail(err, DDP_ERR_INVALID, "the init method gives a secret of %zu bytes", length);
    }
    ddp_copy_text(g->self.secret_where, sizeof(g->self.secret_where), g->self.url);
    if (st == DDP_ERR_UNSUPPORTED) st = DDP_OK;
    if (st == DDP_OK) st = control_trust_secret(g, secret, length, err);
    OPENSSL_cleanse(secret, sizeof(secret));
    return st;
}

/* Of whose process the other end is, where the kernel knows: over loopback. */
static ddp_status check(int fd, ddp_err *err)
{
    uid_t other;

    if (!ddp_address_of_loopback(fd)) return DDP_OK;
    DDP_TRY(ddp_peer_user(fd, &other, err));
    if (other == geteuid()) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "it is a process of user %u, this one is of user %u, and without a secret all must be of one user. " WHAT_TO_DO,
        (unsigned)other, (unsigned)geteuid());
}

ddp_status ddp_trust_check_user(const ddp_group *g, int fd, ddp_err *err)
{
    ddp_status st = g->self.tls != NULL || g->self.auth_none ? DDP_OK : check(fd, err);

    if (st == DDP_ERR_UNSUPPORTED)
        return ddp_fail(
            err, st,
            "this system does not say whose process it is: it has neither sock_diag nor /proc/net. " WHAT_TO_DO);
    return st;
}

bool ddp_trust_is_of_another_user(int fd)
{
    ddp_err err;

    return check(fd, &err) == DDP_ERR_CONFIG;
}
