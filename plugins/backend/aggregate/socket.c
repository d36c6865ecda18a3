/* plugins/backend/aggregate/socket.c -- see socket.h. */
#include "socket.h"
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <time.h>

enum { MOST = 4 << 20 };

int64_t aggregate_now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void aggregate_socket_prepare(int fd, int limit)
{
    const int on = 1;

    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &limit, sizeof(limit));
}

int aggregate_under_way(double bytes_per_s, double round_trip_s, int least)
{
    double bytes = 2.0 * bytes_per_s * round_trip_s;

    if (!(bytes > least)) return least;
    return bytes < MOST ? (int)bytes : MOST;
}

/* The smallest round trip seen is one without queues. Where the limit itself holds a connection back, its rate shows
 * that, so the limit doubles with each look until the link is the bound. The kernel cuts it to net.core.wmem_max. */
void aggregate_socket_adapt(int fd, int least)
{
    struct tcp_info i = {0};
    socklen_t length = sizeof(i);
    int under_way;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &length) != 0) return;
    if (length < offsetof(struct tcp_info, tcpi_delivery_rate) + sizeof(i.tcpi_delivery_rate)) return;
    under_way = aggregate_under_way((double)i.tcpi_delivery_rate, i.tcpi_min_rtt * 1e-6, least);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &under_way, sizeof(under_way));
}
