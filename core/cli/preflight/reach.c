/* cli/preflight/reach.c -- between hosts: whether each reaches the others at any port, which a firewall may forbid
 * though the port of rank 0 is open; and what their clocks say. The first rank of a host acts for it. */
#include "base/sys.h"
#include "cli/preflight/net.h"
#include "net/endpoint.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONNECT_MS = 2000, CLOCK_ROUNDS = 5, WAIT_MS = 60000 };
#define CLOCK_LIMIT_S 1.0 /* beyond it logs of two hosts cannot be laid side by side */

static bool acts(const ddp_preflight_ranks *m, int32_t rank) { return m->first_of[rank] == rank; }

/* ---- connections ------------------------------------------------------------------------------------------------- */
/* Listens at this rank's address; "" where it cannot. */
static int listen_here(const ddp_preflight_ranks *m, char endpoint[DDP_ENDPOINT_MAX])
{
    char wanted[DDP_ENDPOINT_MAX];
    ddp_comm_params p;
    ddp_err ignored;
    int fd = -1;

    endpoint[0] = '\0';
    if (!acts(m, m->rank)) return -1;
    ddp_group_comm_params(m->group, "preflight", NULL, 0, &p);
    (void)snprintf(wanted, sizeof(wanted), strchr(p.address, ':') != NULL ? "[%s]:0" : "%s:0", p.address);
    if (ddp_endpoint_listen(wanted, &fd, endpoint, &ignored) == DDP_OK) return fd;
    endpoint[0] = '\0';
    return -1;
}

/* 0, or the errno of the attempt. */
static int32_t try_connect(const ddp_preflight_ranks *m, const char *endpoint)
{
    ddp_err err = {0};
    int fd;

    if (ddp_endpoint_connect(m->session->config->group->interface, endpoint, ddp_now_ns() + CONNECT_MS * 1000000ll, &fd,
                             &err) != DDP_OK)
        return err.sys_errno != 0 ? err.sys_errno : -1;
    (void)close(fd);
    return 0;
}

static void report_reach(const ddp_preflight_ranks *m, const int32_t *tried, const char (*endpoints)[DDP_ENDPOINT_MAX],
                         ddp_findings *f)
{
    int32_t hosts = 0;
    bool all = true;

    for (int32_t a = 0; a < m->world; a++) {
        hosts += acts(m, a);
        for (int32_t b = 0; b < m->world; b++) {
            int32_t code = tried[a * m->world + b];

            if (code == 0) continue;
            all = false;
            preflight_add(
                f, DDP_FINDING_PROBLEM, DDP_EXIT_RENDEZVOUS, "firewall",
                "rank %d (host %s) cannot connect to rank %d (host %s) at %s: %s; open all ports between these hosts, or name a network that they share in [group] interface",
                a, ddp_group_host_of(m->group, a), b, ddp_group_host_of(m->group, b), endpoints[b],
                code > 0 ? strerror(code) : "it cannot be reached");
        }
    }
    if (all && hosts > 1)
        preflight_add(f, DDP_FINDING_OK, 0, "firewall", "%d hosts connect to each other at any port", hosts);
}

ddp_status preflight_reach(const ddp_preflight_ranks *m, ddp_findings *f, ddp_err *err)
{
    size_t world = (size_t)m->world;
    char own[DDP_ENDPOINT_MAX], (*endpoints)[DDP_ENDPOINT_MAX] = ddp_alloc(world * sizeof(own), err);
    int32_t *mine = ddp_alloc(world * sizeof(*mine), err), *all = ddp_alloc(world * world * sizeof(*all), err);
    ddp_status st = endpoints == NULL || mine == NULL || all == NULL ? DDP_ERR_NOMEM : DDP_OK;
    int fd = listen_here(m, own);

    if (st == DDP_OK) st = preflight_gather(m, "preflight listeners", own, sizeof(own), endpoints, err);
    for (int32_t d = 1; st == DDP_OK && acts(m, m->rank) && d < m->world; d++) {
        int32_t to = (m->rank + d) % m->world;

        if (acts(m, to) && endpoints[to][0] != '\0') mine[to] = try_connect(m, endpoints[to]);
    }
    if (st == DDP_OK) st = preflight_gather(m, "preflight connections", mine, world * sizeof(*mine), all, err);
    if (st == DDP_OK) report_reach(m, all, (const char(*)[DDP_ENDPOINT_MAX])endpoints, f);
    if (fd >= 0) (void)close(fd);
    free(endpoints);
    free(mine);
    free(all);
    return st;
}

/* ---- clocks ------------------------------------------------------------------------------------------------------ */
static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Of rank `rank`, before rank 0; the median over the rounds, since a rank may have been late in one. */
static double ahead_of_rank_0(const int64_t *all, int32_t rank)
{
    double d[CLOCK_ROUNDS];

    for (int i = 0; i < CLOCK_ROUNDS; i++)
        d[i] = (double)(all[(size_t)rank * CLOCK_ROUNDS + (size_t)i] - all[i]) * 1e-9;
    qsort(d, CLOCK_ROUNDS, sizeof(d[0]), by_size);
    return d[CLOCK_ROUNDS / 2];
}

static void report_clocks(const ddp_preflight_ranks *m, const int64_t *all, ddp_findings *f)
{
    double most = 0.0;

    for (int32_t r = 1; r < m->world; r++) {
        double s = ahead_of_rank_0(all, r);

        if (!acts(m, r)) continue;
        most = DDP_MAX_OF(most, fabs(s));
        if (fabs(s) > CLOCK_LIMIT_S)
            preflight_add(
                f, DDP_FINDING_WARNING, 0, "clocks",
                "the clock of host %s (rank %d) is %.1f s %s that of host %s: let both keep time by NTP, or their logs will not fit together",
                ddp_group_host_of(m->group, r), r, fabs(s), s > 0 ? "ahead of" : "behind",
                ddp_group_host_of(m->group, 0));
        else
            preflight_add(f, DDP_FINDING_OK, 0, "clocks", "host %s (rank %d) is %+.1f ms from host %s",
                          ddp_group_host_of(m->group, r), r, s * 1e3, ddp_group_host_of(m->group, 0));
    }
}

ddp_status preflight_clocks(const ddp_preflight_ranks *m, ddp_findings *f, ddp_err *err)
{
    int64_t own[CLOCK_ROUNDS], *all = ddp_alloc((size_t)m->world * sizeof(own), err);
    struct timespec now;
    ddp_status st = all == NULL ? DDP_ERR_NOMEM : DDP_OK;

    for (int i = 0; st == DDP_OK && i < CLOCK_ROUNDS; i++) {
        st = ddp_group_barrier(m->group, "preflight clocks", WAIT_MS, err); /* which lets all go at once */
        (void)clock_gettime(CLOCK_REALTIME, &now);
        own[i] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    if (st == DDP_OK) st = preflight_gather(m, "preflight times", own, sizeof(own), all, err);
    if (st == DDP_OK) report_clocks(m, all, f);
    free(all);
    return st;
}
