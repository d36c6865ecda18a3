/* plugins/backend/gloo_tcp/sockets.cc -- see sockets.h. */
#include "sockets.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

namespace ddp_gloo_mesh
{
namespace
{
constexpr int kSocketBuffer = 2 << 20; /* asked for; the kernel's net.core.wmem_max bounds it */
constexpr int kStrangerRounds = 200; /* of a millisecond: until Gloo's thread has noticed the end of its connections */

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

bool same_socket(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool local_of(int fd, sockaddr_storage *address)
{
    socklen_t size = sizeof *address;
    return getsockname(fd, reinterpret_cast<sockaddr *>(address), &size) == 0 &&
           (address->ss_family == AF_INET || address->ss_family == AF_INET6);
}

bool remote_is(int fd, const sockaddr_storage &other)
{
    sockaddr_storage remote{};
    socklen_t size = sizeof remote;
    return getpeername(fd, reinterpret_cast<sockaddr *>(&remote), &size) == 0 && same_endpoint(remote, other);
}

bool blocks(int fd) { return (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0; }

int option(int fd, int level, int name)
{
    int value = 0;
    socklen_t size = sizeof value;
    return getsockopt(fd, level, name, &value, &size) == 0 ? value : 0;
}

bool is_socket(DIR *dir, const char *name)
{
    static const char prefix[] = "socket:";
    char target[sizeof prefix];
    return readlinkat(dirfd(dir), name, target, sizeof target) >= (ssize_t)sizeof prefix - 1 &&
           memcmp(target, prefix, sizeof prefix - 1) == 0;
}

/* Calls visit(fd, local address) for a duplicate of each socket of this process: another thread may close its own
 * meanwhile. Closes the duplicate unless `visit` returns true. Other files are left alone: closing a duplicate would
 * end the process's locks on them. */
template <typename Visit> void each_socket(Visit visit)
{
    std::unique_ptr<DIR, int (*)(DIR *)> dir(opendir("/proc/self/fd"), closedir);
    if (!dir) return;
    while (const dirent *entry = readdir(dir.get())) {
        const int fd = is_socket(dir.get(), entry->d_name) ? fcntl(atoi(entry->d_name), F_DUPFD_CLOEXEC, 3) : -1;
        if (fd < 0) continue;
        sockaddr_storage local{};
        if (!local_of(fd, &local) || !visit(fd, local)) ::close(fd);
    }
}

/* At one of the addresses that this rank has published. */
bool at_own_port(const ddp_gloo &g, const sockaddr_storage &local)
{
    for (const Peer &peer : g.peers)
        if (peer.port.ss_family != AF_UNSPEC && same_endpoint(peer.port, local)) return true;
    return false;
}

bool of_a_pair(const ddp_gloo &g, int fd)
{
    for (const Peer &peer : g.peers)
        if (peer.fd >= 0 && same_socket(peer.fd, fd)) return true;
    return false;
}

/* A filter that lets no packet through: Gloo owns the socket, so it cannot be closed here. Connections that it has
 * accepted before have none. Some kernels refuse it to who is not root: packets then have to come with a TTL of 255,
 * which shuts out whoever comes by mistake or over a router, and not who asks for it on this host or link. */
void deafen(int fd)
{
    const int most = 255;
    sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    const sock_fprog filter = {1, &nothing};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0) return;
    (void)setsockopt(fd, IPPROTO_IP, IP_MINTTL, &most, sizeof most);
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_MINHOPCOUNT, &most, sizeof most);
}

/* One round; returns whether there was a connection to end. */
bool end_strangers(const ddp_gloo &g)
{
    bool any = false;
    each_socket([&](int fd, const sockaddr_storage &local) {
        if (!at_own_port(g, local) || of_a_pair(g, fd)) return false;
        if (option(fd, SOL_SOCKET, SO_ACCEPTCONN) != 0) {
            deafen(fd);
        } else {
            any = true;
            (void)shutdown(fd, SHUT_RDWR);
        }
        return false;
    });
    return any;
}

/* Asked for, not answered. Its remote address cannot be read yet, and the local one is whichever the route has. But
 * Gloo sets SO_REUSEADDR for each of its sockets, which nothing else in this process does for one that connects. */
bool is_half_open(int fd)
{
    tcp_info info{};
    socklen_t size = sizeof info;
    return option(fd, SOL_SOCKET, SO_REUSEADDR) != 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           info.tcpi_state == TCP_SYN_SENT;
}
} // namespace

/* What is kept of each_socket is among those that come, and so is what another thread duplicates at this moment. */
PairSocket::PairSocket(const sockaddr_storage &self)
{
    each_socket([&](int fd, const sockaddr_storage &local) {
        if (!same_endpoint(local, self) || blocks(fd) || option(fd, SOL_SOCKET, SO_ACCEPTCONN) != 0) return false;
        for (int other : candidates_)
            if (same_socket(fd, other)) return false;
        candidates_.push_back(fd);
        return true;
    });
}

PairSocket::~PairSocket()
{
    for (int fd : candidates_) ::close(fd);
}

int PairSocket::take(const sockaddr_storage &other)
{
    int count = 0, *found = nullptr, *exact = nullptr;
    for (int &fd : candidates_) {
        if (!blocks(fd)) continue;
        found = &fd;
        count++;
        if (remote_is(fd, other)) exact = &fd;
    }
    if (exact == nullptr && count == 1) exact = found;
    if (exact == nullptr) return -1;
    const int fd = *exact;
    candidates_.erase(candidates_.begin() + (exact - candidates_.data()));
    return fd;
}

void limit_waits(int fd, int64_t ms)
{
    timeval limit{};
    limit.tv_sec = ms / 1000;
    limit.tv_usec = (ms % 1000) * 1000;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

size_t make_room(int fd)
{
    const int asked = kSocketBuffer, one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &asked, sizeof asked);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* the kernel's figure counts its own overhead, about as much again */
    return (size_t)option(fd, SOL_SOCKET, SO_SNDBUF) / 2;
}

void shut_out_strangers(const ddp_gloo &g) noexcept
{
    for (int i = 0; i < kStrangerRounds && end_strangers(g); i++) (void)usleep(1000);
}

bool end_half_open() noexcept
{
    bool any = false;
    each_socket([&](int fd, const sockaddr_storage &) {
        if (!is_half_open(fd)) return false;
        any = true;
        (void)shutdown(fd, SHUT_RDWR);
        return false;
    });
    return any;
}
} // namespace ddp_gloo_mesh
