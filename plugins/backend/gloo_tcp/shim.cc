/* shim.cc -- the only file that sees Gloo: devices, pairs and buffers behind extern "C", every exception caught.
 *
 * Threads: all calls come from one thread (the core's queue thread), but ddp_gloo_abort. Gloo adds one event thread for
 * each communicator, which only accepts and connects; while connecting, a watch thread waits for the run to be aborted. */
#include "shim.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <gloo/common/error.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#pragma GCC diagnostic pop

#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/random.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{
namespace tp = gloo::transport;
using Bytes = std::vector<char>;

constexpr size_t kTokenBytes = 16;
constexpr int kSocketBuffer = 2 << 20; /* asked for; the kernel's net.core.wmem_max bounds it */

/* A ddp_status with its text, on its way to the extern "C" function. */
struct Failure : std::runtime_error {
    ddp_status status;
    Failure(ddp_status s, const std::string &text) : std::runtime_error(text), status(s) {}
};

struct Peer {
    int fd = -1; /* a duplicate of the pair's socket, for shutdown(2) and options; ours to close */
    std::unique_ptr<char[]> inbox;
    std::unique_ptr<tp::Buffer> to_inbox, to_region; /* over the whole address space: send() takes absolute addresses */
    std::unique_ptr<tp::Buffer> from_inbox, from_region;
};

/* What is said first on each connection: proves that both ends belong to this communicator. Padded to the largest message,
 * so that Gloo, which sizes the socket's buffer by the largest message so far, never shrinks it again. */
struct Greeting {
    char token[kTokenBytes];
    uint32_t rank, world;
};

/* Threads that Gloo starts inherit the mask: no signal of the process is theirs. */
class SignalsBlocked
{
  public:
    SignalsBlocked()
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};
} // namespace

struct ddp_gloo {
    ddp_gloo_params p{};
    std::string group;
    std::shared_ptr<tp::Device> device;
    std::shared_ptr<tp::Context> context; /* holds the device; its pairs outlive the buffers in `peers` */
    std::vector<Peer> peers;              /* by rank; that of this rank is empty */
    std::atomic<bool> aborted{false};
    size_t room = 0;
    std::mutex fds; /* guards Peer::fd against ddp_gloo_abort in another thread */
    bool broken = false;
    ddp_err cause{}; /* why, once broken */

    ~ddp_gloo()
    {
        for (Peer &peer : peers) {
            peer.from_region.reset();
            peer.from_inbox.reset();
            peer.to_region.reset();
            peer.to_inbox.reset();
        }
        SignalsBlocked guard;
        context.reset();
        device.reset();
        for (Peer &peer : peers)
            if (peer.fd >= 0) ::close(peer.fd);
    }
};

namespace
{
void store_set(const ddp_gloo &g, const std::string &key, const void *data, size_t bytes)
{
    ddp_err err{};
    if (g.p.store->set(g.p.store->ctx, key.c_str(), data, bytes, &err) != DDP_OK) throw Failure(err.status, err.msg);
}

Bytes store_get(const ddp_gloo &g, const std::string &key, size_t capacity, const std::string &what)
{
    Bytes data(capacity);
    size_t length = 0;
    ddp_err err{};
    if (g.p.store->get(g.p.store->ctx, key.c_str(), data.data(), capacity, &length, g.p.timeout_ms, &err) != DDP_OK)
        throw Failure(err.status, "waiting for " + what + ": " + err.msg);
    data.resize(length);
    return data;
}

/* A secret of this communicator, drawn by rank 0 and spread over the authenticated store. */
Bytes agree_on_token(const ddp_gloo &g)
{
    Bytes token(kTokenBytes);
    if (g.p.rank != 0) return store_get(g, "gloo/token", kTokenBytes, "rank 0's token");
    if (getrandom(token.data(), token.size(), 0) != (ssize_t)token.size())
        throw Failure(DDP_ERR_SYSTEM, std::string("getrandom: ") + strerror(errno));
    store_set(g, "gloo/token", token.data(), token.size());
    return token;
}

bool same_endpoint(const sockaddr_storage &a, const sockaddr_storage &b)
{
    if (a.ss_family != b.ss_family) return false;
    if (a.ss_family == AF_INET) {
        const auto &x = reinterpret_cast<const sockaddr_in &>(a), &y = reinterpret_cast<const sockaddr_in &>(b);
        return x.sin_port == y.sin_port && x.sin_addr.s_addr == y.sin_addr.s_addr;
    }
    const auto &x = reinterpret_cast<const sockaddr_in6 &>(a), &y = reinterpret_cast<const sockaddr_in6 &>(b);
    return x.sin6_port == y.sin6_port && memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0;
}

/* A duplicate of the connected socket between `self` and, where several share that local port, `other`. Gloo keeps its
 * descriptor to itself (and Debian's package lacks the header of its Pair), so it is found by its addresses. */
int duplicate_socket(const sockaddr_storage &self, const sockaddr_storage &other)
{
    std::unique_ptr<DIR, int (*)(DIR *)> dir(opendir("/proc/self/fd"), closedir);
    if (!dir) throw Failure(DDP_ERR_SYSTEM, std::string("/proc/self/fd: ") + strerror(errno));
    int found = -1;
    while (const dirent *entry = readdir(dir.get())) {
        int fd = entry->d_name[0] == '.' ? -1 : fcntl(atoi(entry->d_name), F_DUPFD_CLOEXEC, 3);
        if (fd < 0) continue;
        sockaddr_storage local{}, remote{};
        socklen_t local_size = sizeof local, remote_size = sizeof remote;
        if (getsockname(fd, reinterpret_cast<sockaddr *>(&local), &local_size) != 0 || !same_endpoint(local, self) ||
            getpeername(fd, reinterpret_cast<sockaddr *>(&remote), &remote_size) != 0) {
            ::close(fd);
            continue;
        }
        if (found >= 0) ::close(found);
        found = fd;
        if (same_endpoint(remote, other)) break;
    }
    if (found < 0) throw Failure(DDP_ERR_INTERNAL, "the socket of a connected pair is not among /proc/self/fd");
    return found;
}

/* Room for what is under way, and time-outs of the length asked for (the pair was made with a fifth, see connect_all). */
void tune_socket(ddp_gloo &g, int fd)
{
    const int asked = kSocketBuffer, one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &asked, sizeof asked);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    timeval limit{};
    limit.tv_sec = g.p.timeout_ms / 1000;
    limit.tv_usec = (g.p.timeout_ms % 1000) * 1000;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    int got = 0;
    socklen_t size = sizeof got;
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &got, &size) != 0) got = 0;
    /* the kernel's figure counts its own overhead, about as much again */
    const size_t room = (size_t)(got > 0 ? got : 0) / 2;
    if (g.room == 0 || room < g.room) g.room = room;
}

/* While the ranks connect, no communicator exists that could be aborted: this thread waits for a key that is set when
 * connecting is over, and a get ends at once when the run is aborted. Closing the pairs then wakes Pair::connect. */
class Watch
{
  public:
    explicit Watch(ddp_gloo &g) : g_(g), key_("gloo/connected/" + std::to_string(g.p.rank)), thread_([this] { run(); })
    {
    }
    ~Watch()
    {
        ddp_err err{};
        (void)g_.p.store->set(g_.p.store->ctx, key_.c_str(), "1", 1, &err);
        thread_.join();
        (void)g_.p.store->remove(g_.p.store->ctx, key_.c_str(), &err);
    }
    bool fired() const { return fired_; }

  private:
    void run()
    {
        char value;
        size_t length = 0;
        ddp_err err{};
        if (g_.p.store->get(g_.p.store->ctx, key_.c_str(), &value, 1, &length, g_.p.timeout_ms, &err) == DDP_OK) return;
        fired_ = true;
        for (uint32_t peer = 0; peer < g_.p.world; peer++)
            if (peer != g_.p.rank) g_.context->getPair((int)peer)->close();
    }
    ddp_gloo &g_;
    const std::string key_;
    std::atomic<bool> fired_{false};
    std::thread thread_;
};

/* Publishes the addresses of this rank's pairs, one a peer, and connects each to its counterpart. */
void connect_all(ddp_gloo &g)
{
    const std::string mine = "gloo/" + std::to_string(g.p.rank) + "/";
    for (uint32_t peer = 0; peer < g.p.world; peer++) {
        if (peer == g.p.rank) continue;
        const Bytes address = g.context->createPair((int)peer)->address().bytes();
        store_set(g, mine + std::to_string(peer), address.data(), address.size());
    }
    Watch watch(g);
    for (uint32_t peer = 0; peer < g.p.world; peer++) {
        if (peer == g.p.rank) continue;
        const std::string who = "rank " + std::to_string(peer);
        const Bytes address = store_get(g, "gloo/" + std::to_string(peer) + "/" + std::to_string(g.p.rank),
                                        tp::Address::kMaxByteSize, who + "'s address");
        auto &pair = g.context->getPair((int)peer);
        try {
            pair->connect(address);
            const tp::tcp::Address self(pair->address().bytes()), other(address);
            pair->setSync(true, false);
            g.peers[peer].fd = duplicate_socket(self.getSockaddr(), other.getSockaddr());
        } catch (const std::exception &e) {
            if (watch.fired()) throw Failure(DDP_ERR_ABORTED, "the run was aborted while connecting to " + who);
            throw Failure(DDP_ERR_PEER, "no connection to " + who + " at " + tp::tcp::Address(address).str() + ": " +
                                            e.what() + "; check that the network lets these hosts connect");
        }
    }
}

void make_buffers(ddp_gloo &g)
{
    for (uint32_t rank = 0; rank < g.p.world; rank++) {
        if (rank == g.p.rank) continue;
        Peer &peer = g.peers[rank];
        auto &pair = g.context->getPair((int)rank);
        peer.inbox.reset(new char[g.p.inbox_bytes]());
        peer.from_inbox = pair->createRecvBuffer(DDP_GLOO_INBOX, peer.inbox.get(), g.p.inbox_bytes);
        peer.to_inbox = pair->createSendBuffer(DDP_GLOO_INBOX, nullptr, SIZE_MAX);
        peer.to_region = pair->createSendBuffer(DDP_GLOO_REGION, nullptr, SIZE_MAX);
    }
}

void send_to(Peer &peer, uint32_t where, size_t at, const void *data, size_t bytes)
{
    auto &buffer = where == DDP_GLOO_INBOX ? peer.to_inbox : peer.to_region;
    buffer->send(reinterpret_cast<size_t>(data), bytes, at);
    buffer->waitSend();
}

/* Exchanges greetings with every peer, the lower rank first: no two ranks wait for each other's reading. */
void greet(ddp_gloo &g, const Bytes &token)
{
    std::vector<char> out(g.p.inbox_bytes);
    Greeting hello{};
    memcpy(hello.token, token.data(), kTokenBytes);
    hello.rank = g.p.rank;
    hello.world = g.p.world;
    memcpy(out.data(), &hello, sizeof hello);
    for (uint32_t rank = 0; rank < g.p.world; rank++) {
        if (rank == g.p.rank) continue;
        Peer &peer = g.peers[rank];
        if (g.p.rank < rank) send_to(peer, DDP_GLOO_INBOX, 0, out.data(), out.size());
        peer.from_inbox->waitRecv();
        if (g.p.rank > rank) send_to(peer, DDP_GLOO_INBOX, 0, out.data(), out.size());
        Greeting theirs;
        memcpy(&theirs, peer.inbox.get(), sizeof theirs);
        if (memcmp(theirs.token, hello.token, kTokenBytes) != 0 || theirs.rank != rank || theirs.world != g.p.world)
            throw Failure(DDP_ERR_PEER, "what connected in the place of rank " + std::to_string(rank) +
                                            " does not belong to communicator \"" + g.group + "\"");
        tune_socket(g, peer.fd);
    }
}

/* Every rank takes the least room of all: chunks must be cut the same way everywhere. */
void agree_on_room(ddp_gloo &g)
{
    const uint64_t mine = g.room;
    for (uint32_t rank = 0; rank < g.p.world; rank++)
        if (rank != g.p.rank) send_to(g.peers[rank], DDP_GLOO_INBOX, 0, &mine, sizeof mine);
    for (uint32_t rank = 0; rank < g.p.world; rank++) {
        if (rank == g.p.rank) continue;
        uint64_t theirs;
        g.peers[rank].from_inbox->waitRecv();
        memcpy(&theirs, g.peers[rank].inbox.get(), sizeof theirs);
        if (theirs < g.room) g.room = theirs;
    }
}

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
        (void)ddp_fail(err, status, "gloo, rank %u: %s", g.p.rank, text.c_str());
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

std::shared_ptr<tp::Device> make_device(const ddp_gloo_params &p)
{
    tp::tcp::attr attr;
    attr.hostname = p.address;
    try {
        return tp::tcp::CreateDevice(attr);
    } catch (const std::exception &e) {
        throw Failure(DDP_ERR_CONFIG, std::string("cannot bind to ") + p.address + ": " + e.what());
    }
}
} // namespace

ddp_status ddp_gloo_open(const ddp_gloo_params *p, ddp_gloo **out, ddp_err *err)
{
    std::unique_ptr<ddp_gloo> g(new (std::nothrow) ddp_gloo);
    if (!g) return ddp_fail(err, DDP_ERR_NOMEM, "gloo: out of memory");
    block_sigpipe();
    try {
        SignalsBlocked guard;
        g->p = *p;
        g->group = p->group;
        if (g->p.inbox_bytes < sizeof(Greeting)) g->p.inbox_bytes = sizeof(Greeting);
        g->peers.resize(p->world);
        g->device = make_device(*p);
        g->context = g->device->createContext((int)p->rank, (int)p->world);
        /* Gloo waits five times this long for a connection; receives get the whole in tune_socket */
        g->context->setTimeout(std::chrono::milliseconds(p->timeout_ms / 5 + 1));
        const Bytes token = agree_on_token(*g);
        connect_all(*g);
        make_buffers(*g);
        greet(*g, token);
        agree_on_room(*g);
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

const void *ddp_gloo_inbox(const ddp_gloo *g, uint32_t peer) { return g->peers[peer].inbox.get(); }

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
