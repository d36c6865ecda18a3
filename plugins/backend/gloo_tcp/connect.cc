/* plugins/backend/gloo_tcp/connect.cc -- how a mesh comes to be: device, addresses by the store, connections,
 * greetings, sizes agreed on.
 *
 * Gloo's event thread accepts and connects. watch.cc ends all waits at one common deadline. */
#include "sockets.h"
#include "watch.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <unistd.h>

namespace ddp_gloo_mesh
{
namespace
{
using Bytes = std::vector<char>;

constexpr size_t kTokenBytes = 16;
constexpr tp::tcp::sequence_number_t kNoNumber = tp::tcp::Address::kSequenceNumberUnset;
constexpr int64_t kYearMs = INT64_C(1000) * 60 * 60 * 24 * 365;

/* What is said first on each connection: proves that both ends belong to this communicator. Padded to the largest
 * message, so that Gloo, which sizes the socket's buffer by the largest message so far, never shrinks it again. */
struct Greeting {
    char token[kTokenBytes];
    uint32_t rank, world;
};

void store_set(const ddp_gloo &g, const std::string &key, const void *data, size_t bytes)
{
    ddp_err err{};
    if (g.p.store->set(g.p.store->ctx, key.c_str(), data, bytes, &err) != DDP_OK) throw Failure(err.status, err.msg);
}

/* "30 s", of all of connecting. */
std::string patience(const ddp_gloo &g)
{
    char seconds[32];
    (void)snprintf(seconds, sizeof seconds, "%.3g s", (double)g.p.connect_timeout_ms / 1e3);
    return seconds;
}

Bytes store_get(const ddp_gloo &g, const std::string &key, size_t capacity, const std::string &what)
{
    Bytes data(capacity);
    size_t length = 0;
    ddp_err err{};
    const ddp_status st =
        g.p.store->get(g.p.store->ctx, key.c_str(), data.data(), capacity, &length, g.left_ms(), &err);
    if (st == DDP_ERR_TIMEOUT)
        throw Failure(st, "rank " + std::to_string(g.p.rank) + " has waited for " + what + " until " + patience(g) +
                              " (rendezvous_timeout, after a loss rejoin_timeout) were over");
    if (st != DDP_OK) throw Failure(st, "waiting for " + what + ": " + err.msg);
    data.resize(length);
    return data;
}

/* Removes keys that their readers have read: the store outlives the communicator, and a run may open many. */
void store_remove(const ddp_gloo &g, const std::string &key)
{
    ddp_err err{};
    if (g.p.store->remove(g.p.store->ctx, key.c_str(), &err) != DDP_OK) throw Failure(err.status, err.msg);
}

std::string key_of(uint32_t rank, const std::string &what) { return "gloo/" + std::to_string(rank) + "/" + what; }

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

/* A link-local address comes with the interface number of the other host; here it gets this rank's own. */
Bytes seen_from_here(const Bytes &theirs, const sockaddr_storage &mine)
{
    const tp::tcp::Address address(theirs);
    sockaddr_storage a = address.getSockaddr();
    auto &v6 = reinterpret_cast<sockaddr_in6 &>(a);
    if (a.ss_family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) return theirs;
    v6.sin6_scope_id = reinterpret_cast<const sockaddr_in6 &>(mine).sin6_scope_id;
    return tp::tcp::Address(a, address.getSeq()).bytes();
}

/* "192.0.2.7:40123"; Gloo's own text has the bytes of the port in another order, and depends on its version. */
std::string endpoint(const Bytes &address)
{
    const sockaddr_storage a = tp::tcp::Address(address).getSockaddr();
    const bool v6 = a.ss_family == AF_INET6;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo(reinterpret_cast<const sockaddr *>(&a), v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), host,
                    sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "unknown address";
    return (v6 ? "[" + std::string(host) + "]:" : std::string(host) + ":") + port;
}

std::string name_of(uint32_t rank, const Bytes &host, const Bytes &address)
{
    return "rank " + std::to_string(rank) + " on host " + std::string(host.begin(), host.end()) + " (" +
           endpoint(address) + ")";
}

/* Gloo's text without the line of its source. */
std::string reason(const std::exception &e)
{
    const std::string text = e.what();
    const size_t end = text.find("] ");
    return text[0] == '[' && end != std::string::npos ? text.substr(end + 2) : text;
}

std::string both(const ddp_gloo &g, uint32_t peer) { return g.peers[g.p.rank].name + " and " + g.peers[peer].name; }

Failure cannot_connect(const ddp_gloo &g, uint32_t peer, const std::string &why)
{
    return Failure(
        DDP_ERR_PEER,
        both(g, peer) + " cannot connect to each other within " + patience(g) +
            " (rendezvous_timeout, after a loss rejoin_timeout): " + why +
            ". Let a firewall between them pass TCP, or name in [group] interface the network that they share");
}

/* Why `peer` failed: because the watch had ended its connection, or Gloo's own reason. */
Failure lost(const ddp_gloo &g, uint32_t peer, const Watch &watch, const std::exception &e)
{
    switch (watch.state()) {
    case Watch::Aborted:
        return Failure(DDP_ERR_ABORTED, "the run was aborted while connecting to " + g.peers[peer].name);
    case Watch::Late: return cannot_connect(g, peer, "the time is over");
    default: return cannot_connect(g, peer, reason(e));
    }
}

Failure socket_not_found(const ddp_gloo &g, uint32_t peer)
{
    return Failure(DDP_ERR_INTERNAL,
                   "an abort could not wake a wait between " + both(g, peer) +
                       ": the socket of their connection is not in /proc/self/fd. "
                       "Mount /proc. If it is mounted, take backend mpi, and report the version of Gloo");
}

/* Until May 2023 each pair had a port of its own, and a connection did not have to say which pair it is for. */
Failure other_generation(const ddp_gloo &g, uint32_t peer)
{
    return Failure(DDP_ERR_CONFIG,
                   both(g, peer) +
                       " have versions of Gloo that do not understand each other: one from before May 2023, one later. "
                       "Install the same version of Gloo on all hosts");
}

void connect_one(ddp_gloo &g, uint32_t peer, const Bytes &theirs, const Watch &watch)
{
    auto &pair = g.context->getPair((int)peer);
    const tp::tcp::Address mine(pair->address().bytes());
    const Bytes address = seen_from_here(theirs, mine.getSockaddr());
    const tp::tcp::Address other(address);
    if (mine.getSockaddr().ss_family != other.getSockaddr().ss_family)
        throw cannot_connect(g, peer, "one has an IPv4 address and the other an IPv6 address");
    if ((mine.getSeq() == kNoNumber) != (other.getSeq() == kNoNumber)) throw other_generation(g, peer);
    int fd = -1;
    try {
        pair->connect(address);
        /* a pair that the watch has closed looks connected; setSync would note a failure in it, and where Gloo's thread
         * has to note one in the same pair it ends the process */
        if (watch.state() != Watch::Going) throw Failure(DDP_ERR_PEER, "the watch has closed the pair");
        const tp::tcp::Address self(pair->address().bytes());
        PairSocket socket(self.getSockaddr());
        pair->setSync(true, false);
        fd = socket.take(other.getSockaddr());
    } catch (const std::exception &e) {
        throw lost(g, peer, watch, e);
    }
    if (fd < 0) throw socket_not_found(g, peer);
    limit_waits(fd, g.p.connect_timeout_ms);
    std::lock_guard<std::mutex> lock(g.fds);
    g.peers[peer].fd = fd;
}

/* Makes the pairs, one a peer, and publishes this rank's host and their addresses. */
void publish(ddp_gloo &g)
{
    Bytes host(256), address;
    if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
    host.resize(strlen(host.data()));
    store_set(g, key_of(g.p.rank, "host"), host.data(), host.size());
    for (uint32_t peer = 0; peer < g.p.world; peer++) {
        if (peer == g.p.rank) continue;
        address = g.context->createPair((int)peer)->address().bytes();
        g.peers[peer].port = tp::tcp::Address(address).getSockaddr();
        store_set(g, key_of(g.p.rank, std::to_string(peer)), address.data(), address.size());
    }
    g.peers[g.p.rank].name = name_of(g.p.rank, host, address);
}

/* Connects each pair to its counterpart. */
void connect_all(ddp_gloo &g, Watch &watch)
{
    const std::string own = std::to_string(g.p.rank);
    for (uint32_t peer = 0; peer < g.p.world; peer++) {
        if (peer == g.p.rank) continue;
        const std::string who = "rank " + std::to_string(peer);
        watch.waits_for(who);
        const Bytes host = store_get(g, key_of(peer, "host"), 256, "the name of " + who + "'s host");
        const Bytes address = store_get(g, key_of(peer, own), tp::Address::kMaxByteSize, who + "'s address");
        store_remove(g, key_of(peer, own)); /* it was for this rank alone */
        g.peers[peer].name = name_of(peer, host, address);
        watch.waits_for(g.peers[peer].name);
        connect_one(g, peer, address, watch);
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
void greet(ddp_gloo &g, const Bytes &token, Watch &watch)
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
        watch.waits_for(peer.name);
        try {
            if (g.p.rank < rank) send_to(peer, DDP_GLOO_INBOX, 0, out.data(), out.size());
            peer.from_inbox->waitRecv();
            if (g.p.rank > rank) send_to(peer, DDP_GLOO_INBOX, 0, out.data(), out.size());
        } catch (const std::exception &e) {
            throw lost(g, rank, watch, e);
        }
        Greeting theirs;
        memcpy(&theirs, peer.inbox.get(), sizeof theirs);
        if (memcmp(theirs.token, hello.token, kTokenBytes) != 0 || theirs.rank != rank || theirs.world != g.p.world)
            throw Failure(DDP_ERR_PEER, "what connected in the place of " + peer.name +
                                            " does not belong to communicator \"" + g.group + "\"");
        const size_t room = make_room(peer.fd);
        if (g.room == 0 || room < g.room) g.room = room;
    }
}

/* Every rank takes the least room of all: chunks must be cut the same way everywhere. */
void agree_on_room(ddp_gloo &g, Watch &watch)
{
    const uint64_t mine = g.room;
    uint32_t rank = 0;
    try {
        for (; rank < g.p.world; rank++)
            if (rank != g.p.rank) send_to(g.peers[rank], DDP_GLOO_INBOX, 0, &mine, sizeof mine);
        for (rank = 0; rank < g.p.world; rank++) {
            if (rank == g.p.rank) continue;
            uint64_t theirs;
            watch.waits_for(g.peers[rank].name);
            g.peers[rank].from_inbox->waitRecv();
            memcpy(&theirs, g.peers[rank].inbox.get(), sizeof theirs);
            if (theirs < g.room) g.room = theirs;
        }
    } catch (const std::exception &e) {
        throw lost(g, rank, watch, e);
    }
}

std::shared_ptr<tp::Device> make_device(const ddp_gloo_params &p)
{
    ThreadName name("ddp-gloo-events");
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
    g.p.connect_timeout_ms = std::min(g.p.connect_timeout_ms, kYearMs);
    g.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(g.p.connect_timeout_ms);
    if (g.p.inbox_bytes < sizeof(Greeting)) g.p.inbox_bytes = sizeof(Greeting);
    g.peers.resize(g.p.world);
    g.device = make_device(g.p);
    g.context = g.device->createContext((int)g.p.rank, (int)g.p.world);
    /* Gloo waits five times this long for a connection */
    g.context->setTimeout(std::chrono::milliseconds(g.p.connect_timeout_ms / 5 + 1));
    const Bytes token = agree_on_token(g);
    publish(g);
    Watch watch(g);
    connect_all(g, watch);
    make_buffers(g);
    greet(g, token, watch);
    agree_on_room(g, watch);
    watch.end();
    /* a rank that has sent its room has also read the keys that all read */
    store_remove(g, key_of(g.p.rank, "host"));
    if (g.p.rank == 0) store_remove(g, "gloo/token");
    for (Peer &peer : g.peers)
        if (peer.fd >= 0) limit_waits(peer.fd, g.p.timeout_ms);
    shut_out_strangers(g);
}
} // namespace ddp_gloo_mesh
