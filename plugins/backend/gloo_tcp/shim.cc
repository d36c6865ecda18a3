/* plugins/backend/gloo_tcp/shim.cc -- messages between connected ranks, abort and errors: Gloo's buffers behind extern
 * "C", every exception caught.
 *
 * All calls come from one thread (the core's queue thread), but ddp_gloo_abort. Connecting is in connect.cc. */
#include "mesh.h"

#include <new>
#include <pthread.h>
#include <sys/socket.h>

namespace mesh = ddp_gloo_mesh;
using mesh::Failure;
using mesh::Peer;
using mesh::send_to;

void mesh::send_to(Peer &peer, uint32_t where, size_t at, const void *data, size_t bytes)
{
    auto &buffer = where == DDP_GLOO_INBOX ? peer.to_inbox : peer.to_region;
    buffer->send(reinterpret_cast<size_t>(data), bytes, at);
    buffer->waitSend();
}

namespace
{
void hang_up(ddp_gloo &g)
{
    std::lock_guard<std::mutex> lock(g.fds);
    for (const Peer &peer : g.peers)
        if (peer.fd >= 0) (void)shutdown(peer.fd, SHUT_RDWR);
}

/* Notes the first failure and ends all connections, so that the peers learn of it too. Called from a catch block. */
ddp_status broke(ddp_gloo &g, int peer, ddp_err *err)
{
    ddp_status status = DDP_ERR_LIBRARY;
    std::string text = "unknown exception";
    try {
        throw;
    } catch (const Failure &e) {
        status = e.status, text = e.what();
    } catch (const gloo::IoException &e) {
        text = e.what();
        status = text.find("imeout") != std::string::npos ? DDP_ERR_TIMEOUT : DDP_ERR_PEER;
    } catch (const std::bad_alloc &) {
        status = DDP_ERR_NOMEM, text = "out of memory";
    } catch (const std::exception &e) {
        text = e.what();
    } catch (...) {
    }
    if (g.aborted)
        (void)ddp_fail(err, DDP_ERR_ABORTED, "communicator \"%s\" was aborted", g.group.c_str());
    else if (peer >= 0)
        (void)ddp_fail(err, status, "gloo, rank %u, with rank %d: %s", g.p.rank, peer, text.c_str());
    else
        (void)ddp_fail(err, status, "%s", text.c_str());
    err->rank = peer;
    if (!g.broken) g.cause = *err;
    g.broken = true;
    hang_up(g);
    return err->status;
}

ddp_status refuse(const ddp_gloo &g, ddp_err *err)
{
    if (g.aborted) return ddp_fail(err, DDP_ERR_ABORTED, "communicator \"%s\" was aborted", g.group.c_str());
    *err = g.cause;
    return err->status;
}

/* Gloo writes to sockets without MSG_NOSIGNAL; the thread that makes the calls must not get SIGPIPE. */
void block_sigpipe()
{
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
}
} // namespace

ddp_status ddp_gloo_open(const ddp_gloo_params *p, ddp_gloo **out, ddp_err *err)
{
    std::unique_ptr<ddp_gloo> g(new (std::nothrow) ddp_gloo);
    if (!g) return ddp_fail(err, DDP_ERR_NOMEM, "gloo: out of memory");
    block_sigpipe();
    try {
        g->p = *p;
        g->group = p->group;
        mesh::connect(*g);
    } catch (...) {
        return broke(*g, -1, err);
    }
    g->p.group = g->p.address = nullptr;
    *out = g.release();
    return DDP_OK;
}

void ddp_gloo_abort(ddp_gloo *g)
{
    g->aborted = true;
    hang_up(*g);
}

void ddp_gloo_close(ddp_gloo *g) { delete g; }

size_t ddp_gloo_room(const ddp_gloo *g) { return g->room; }

void *ddp_gloo_inbox(const ddp_gloo *g, uint32_t peer) { return g->peers[peer].inbox.get(); }

ddp_status ddp_gloo_expect(ddp_gloo *g, void *region, size_t bytes, ddp_err *err)
{
    if (g->aborted || g->broken) return refuse(*g, err);
    try {
        for (uint32_t rank = 0; rank < g->p.world; rank++)
            if (rank != g->p.rank)
                g->peers[rank].from_region =
                    g->context->getPair((int)rank)->createRecvBuffer(DDP_GLOO_REGION, region, bytes);
    } catch (...) {
        return broke(*g, -1, err);
    }
    return DDP_OK;
}

void ddp_gloo_expect_end(ddp_gloo *g)
{
    for (Peer &peer : g->peers) peer.from_region.reset();
}

ddp_status ddp_gloo_send(ddp_gloo *g, uint32_t peer, uint32_t where, size_t at, const void *data, size_t bytes,
                         ddp_err *err)
{
    if (g->aborted || g->broken) return refuse(*g, err);
    try {
        send_to(g->peers[peer], where, at, data, bytes);
    } catch (...) {
        return broke(*g, (int)peer, err);
    }
    return DDP_OK;
}

ddp_status ddp_gloo_recv(ddp_gloo *g, uint32_t peer, uint32_t where, ddp_err *err)
{
    if (g->aborted || g->broken) return refuse(*g, err);
    try {
        Peer &from = g->peers[peer];
        (where == DDP_GLOO_INBOX ? from.from_inbox : from.from_region)->waitRecv();
    } catch (...) {
        return broke(*g, (int)peer, err);
    }
    return DDP_OK;
}
