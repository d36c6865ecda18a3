/* connect.cc -- how a mesh comes to be: device, addresses by the store, connections, greetings, sizes agreed on.
 *
 * Gloo's event thread accepts and connects. While connecting, a watch thread waits for the run to be aborted. */
#include "mesh.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace ddp_gloo_mesh
{
namespace
{
using Bytes = std::vector<char>;

constexpr size_t kTokenBytes = 16;
constexpr int kSocketBuffer = 2 << 20; /* asked for; the kernel's net.core.wmem_max bounds it */

/* What is said first on each connection: proves that both ends belong to this communicator. Padded to the largest message,
 * so that Gloo, which sizes the socket's buffer by the largest message so far, never shrinks it again. */
struct Greeting {
    char token[kTokenBytes];
    uint32_t rank, world;
};

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

void connect(ddp_gloo &g)
{
    SignalsBlocked guard;
    if (g.p.inbox_bytes < sizeof(Greeting)) g.p.inbox_bytes = sizeof(Greeting);
    g.peers.resize(g.p.world);
    g.device = make_device(g.p);
    g.context = g.device->createContext((int)g.p.rank, (int)g.p.world);
    /* Gloo waits five times this long for a connection; receives get the whole in tune_socket */
    g.context->setTimeout(std::chrono::milliseconds(g.p.timeout_ms / 5 + 1));
    const Bytes token = agree_on_token(g);
    connect_all(g);
    make_buffers(g);
    greet(g, token);
    agree_on_room(g);
}
} // namespace ddp_gloo_mesh
