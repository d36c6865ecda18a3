/* control/peer.c -- the connections of a rank: watched by epoll, written to, freed. What is read from them is
 * control.c's. */
#include "control/peer.h"
#include "net/address.h"
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

ddp_status control_peers_open(ddp_peers *s, ddp_err *err)
{
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return s->epoll_fd >= 0 ? DDP_OK : ddp_fail_errno(err, "cannot create the control plane's event descriptors");
}

static void peer_free(ddp_peer *p)
{
    ddp_wire_close(&p->wire);
    free(p);
}

void control_peers_close(ddp_peers *s)
{
    for (ddp_peer *p = s->first, *next; p != NULL; p = next) {
        next = p->next;
        peer_free(p);
    }
    s->first = NULL;
    if (s->epoll_fd >= 0) (void)close(s->epoll_fd);
}

ddp_status control_peers_watch(ddp_peers *s, int *fd, ddp_err *err)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = fd};

    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, *fd, &e) == 0) return DDP_OK;
    return ddp_fail_errno(err, "cannot watch the sockets of the control plane");
}

ddp_status ddp_peers_add(ddp_peers *s, const ddp_wire *wire, int64_t heard_ns, ddp_peer **out, ddp_err *err)
{
    ddp_peer *p = ddp_alloc(sizeof(*p), err);
    struct epoll_event e = {.events = EPOLLIN};

    if (p == NULL) return DDP_ERR_NOMEM;
    p->wire = *wire;
    p->state = DDP_PEER_NEW;
    p->rank = -1;
    p->events = EPOLLIN;
    p->heard_ns = heard_ns;
    e.data.ptr = p;
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, wire->fd, &e) != 0) {
        (void)ddp_fail_errno(err, "cannot watch a control connection");
        free(p);
        return DDP_ERR_SYSTEM;
    }
    ddp_address_peer(wire->fd, p->address, sizeof(p->address));
    ddp_address_net(wire->fd, p->net);
    p->next = s->first;
    s->first = p;
    *out = p;
    return DDP_OK;
}

void ddp_peer_put(ddp_peer *p, uint32_t type, const void *data, size_t length)
{
    ddp_err err;

    if (p->dead || p->mute) return;
    /* then its end of the connection says so to both sides */
    if (ddp_wire_put(&p->wire, type, data, length, &err) != DDP_OK) (void)shutdown(p->wire.fd, SHUT_RDWR);
}

static void flush(ddp_peers *s, ddp_peer *p)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    ddp_err err;

    if (p->dead || p->mute) return;
    if (ddp_wire_pending(&p->wire)) {
        ddp_status status = ddp_wire_flush(&p->wire, &err);

        /* what it sent last may still be there to be read: reading finds the end */
        p->mute = status != DDP_OK && status != DDP_IN_PROGRESS;
    }
    if (!p->mute && ddp_wire_wants_out(&p->wire)) e.events |= EPOLLOUT;
    if (e.events == p->events) return;
    p->events = e.events;
    (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, p->wire.fd, &e);
}

void control_peers_flush(ddp_peers *s)
{
    for (ddp_peer *p = s->first; p != NULL; p = p->next) flush(s, p);
}

void control_peers_free_dead(ddp_peers *s)
{
    ddp_peer **link = &s->first;

    while (*link != NULL) {
        ddp_peer *p = *link;

        if (!p->dead) {
            link = &p->next;
            continue;
        }
        *link = p->next;
        peer_free(p);
    }
}
