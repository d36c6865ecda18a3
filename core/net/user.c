/* net/user.c -- see user.h.
 *
 * What is asked about is the other end's socket, found by the two addresses of the connection, which while it is
 * established belong to that pair of sockets alone. It counts only in the state "established" and with an inode: the
 * kernel says user 0 of a socket that its process has closed, and of one that nobody has accepted yet. */
#include "net/user.h"
#include "net/address.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MS = 1000, LONGEST_ROW = 512 };

typedef struct ends {
    struct sockaddr_storage own, peer;
} ends;

static ddp_status no_answer(const char *why, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this system does not say whose the other end of a connection is: %s",
                    why);
}

static ddp_status nobody(ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_PEER, "no process has the other end of the connection");
    return DDP_IN_PROGRESS;
}

static ddp_status ends_of(int fd, ends *e, ddp_err *err)
{
    socklen_t length = sizeof(e->own);

    *e = (ends){0};
    if (getsockname(fd, (struct sockaddr *)&e->own, &length) != 0) return nobody(err);
    length = sizeof(e->peer);
    if (getpeername(fd, (struct sockaddr *)&e->peer, &length) != 0) return nobody(err);
    return DDP_OK;
}

static ddp_status check_state(unsigned state, unsigned long long inode, uid_t user, uid_t *out, ddp_err *err)
{
    if (state != TCP_ESTABLISHED || inode == 0) return nobody(err);
    *out = user;
    return DDP_OK;
}

/* ---- a question about one socket: sock_diag(7) ------------------------------------------------------------------- */
static void put_end(const struct sockaddr_storage *a, __be16 *port, __be32 address[4])
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a;

    *port = a->ss_family == AF_INET ? v4->sin_port : v6->sin6_port;
    if (a->ss_family == AF_INET)
        memcpy(address, &v4->sin_addr, sizeof(v4->sin_addr));
    else
        memcpy(address, &v6->sin6_addr, sizeof(v6->sin6_addr));
}

typedef struct question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 what;
} question;

static ddp_status ask(int netlink, const ends *e, uid_t *out, ddp_err *err)
{
    question q = {.head = {.nlmsg_len = sizeof(q), .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
                  .what = {.sdiag_family = (__u8)e->own.ss_family,
                           .sdiag_protocol = IPPROTO_TCP,
                           .idiag_states = ~0u,
                           .id.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}};
    union {
        struct nlmsghdr head;
        char bytes[4096];
    } answer;
    struct inet_diag_msg found;
    ssize_t n;

    put_end(&e->peer, &q.what.id.idiag_sport, q.what.id.idiag_src);
    put_end(&e->own, &q.what.id.idiag_dport, q.what.id.idiag_dst);
    if (send(netlink, &q, sizeof(q), 0) != (ssize_t)sizeof(q)) return no_answer(strerror(errno), err);
    do n = recv(netlink, &answer, sizeof(answer), 0);
    while (n < 0 && errno == EINTR);
    if (n < (ssize_t)NLMSG_LENGTH(sizeof(found)) || answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return no_answer("sock_diag knows no such socket", err);
    memcpy(&found, NLMSG_DATA(&answer.head), sizeof(found));
    return check_state(found.idiag_state, found.idiag_inode, found.idiag_uid, out, err);
}

ddp_status net_user_asked(int fd, uid_t *out, ddp_err *err)
{
    const struct timeval patience = {.tv_sec = ANSWER_MS / 1000};
    int netlink;
    ddp_status st;
    uid_t own;
    ends e, turned;

    DDP_TRY(ends_of(fd, &e, err));
    turned = (ends){.own = e.peer, .peer = e.own};
    netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (netlink < 0) return no_answer(strerror(errno), err);
    (void)setsockopt(netlink, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    st = ask(netlink, &e, out, err);
    /* ENOENT is the answer about a socket that is not there, and also of a kernel without this: which, our own shows */
    if (st == DDP_ERR_UNSUPPORTED && ask(netlink, &turned, &own, err) == DDP_OK) st = nobody(err);
    (void)close(netlink);
    return st;
}

/* ---- a list of all: /proc/net/tcp, /proc/net/tcp6 ---------------------------------------------------------------- */
/* "0100007F:7342", as a row has an address: words of the machine's own byte order. */
static void row_address(const struct sockaddr_storage *a, char *out, size_t capacity)
{
    uint32_t word[4] = {0};
    uint16_t port;

    put_end(a, &port, word);
    if (a->ss_family == AF_INET)
        (void)snprintf(out, capacity, "%08X:%04X", word[0], ntohs(port));
    else
        (void)snprintf(out, capacity, "%08X%08X%08X%08X:%04X", word[0], word[1], word[2], word[3], ntohs(port));
}

/* "  5: LOCAL REMOTE STATE TX:RX TIMER:WHEN RETRANSMITS UID TIMEOUT INODE ..." */
static bool parse_row(const char *row, char local[48], char remote[48], unsigned *state, unsigned *user,
                      unsigned long long *inode)
{
    return sscanf(row, " %*u: %47[0-9A-F:] %47[0-9A-F:] %x %*x:%*x %*x:%*x %*x %u %*u %llu", local, remote, state, user,
                  inode) == 5;
}

ddp_status net_user_listed(int fd, uid_t *out, ddp_err *err)
{
    char own[48], peer[48], row[LONGEST_ROW], local[48], remote[48];
    unsigned state, user;
    unsigned long long inode;
    bool found = false;
    FILE *list;
    ends e;

    DDP_TRY(ends_of(fd, &e, err));
    row_address(&e.own, own, sizeof(own));
    row_address(&e.peer, peer, sizeof(peer));
    list = fopen(e.own.ss_family == AF_INET ? "/proc/self/net/tcp" : "/proc/self/net/tcp6", "re");
    if (list == NULL) return no_answer("/proc/self/net/tcp cannot be read", err);
    while (!found && fgets(row, sizeof(row), list) != NULL)
        found = parse_row(row, local, remote, &state, &user, &inode) && strcmp(local, peer) == 0 &&
                strcmp(remote, own) == 0;
    (void)fclose(list);
    return found ? check_state(state, inode, user, out, err) : nobody(err);
}

ddp_status ddp_peer_user(int fd, uid_t *out, ddp_err *err)
{
    ddp_status st = net_user_asked(fd, out, err);

    return st == DDP_ERR_UNSUPPORTED ? net_user_listed(fd, out, err) : st;
}
