/* cli/preflight/net.h -- `--check --net`: all ranks join and agree as for a run, see whether their hosts reach each
 * other, measure each pair, and leave. */
#pragma once

#include "cli/preflight/findings.h"
#include "comm/communicator.h"
#include "launch/args.h"
#include "launch/cause.h"
#include "session/session.h"

/* Rank 0 prints; the exit code, the same on all ranks. */
int preflight_net(const ddp_args *args, ddp_session *s, ddp_cause *cause, ddp_log *log);

/* The ranks that have joined. */
typedef struct ddp_preflight_ranks {
    ddp_session *session;
    ddp_group *group;
    int32_t rank, world;
    int32_t *first_of; /* world: the lowest rank on the host of each */
} ddp_preflight_ranks;

/* Every rank's `size` bytes, in the order of the ranks, to `all`. */
ddp_status preflight_gather(const ddp_preflight_ranks *m, const char *name, const void *own, size_t size, void *all,
                            ddp_err *err);

/* reach.c: hosts that cannot connect to each other at a port that anyone may take, as a backend does. The same findings
 * on all ranks. */
ddp_status preflight_reach(const ddp_preflight_ranks *m, ddp_findings *f, ddp_err *err);
/* The clocks of the hosts, to about a millisecond. */
ddp_status preflight_clocks(const ddp_preflight_ranks *m, ddp_findings *f, ddp_err *err);

/* pairs.c */
typedef struct ddp_pairs {
    int32_t world;
    const int32_t *first_of;
    double *us, *mbps; /* world x world, symmetric; bandwidth of 1 MiB messages, 10^6 bytes a second */
} ddp_pairs;

ddp_status preflight_measure(const ddp_preflight_ranks *m, ddp_communicator *c, ddp_pairs *out, ddp_err *err);
void preflight_pairs_free(ddp_pairs *p);
/* Whom `rank` has in this round, -1: nobody. `in_turn`: one pair a round, world (world - 1) / 2 rounds; else disjoint
 * pairs, in world - 1 rounds, or world where that is odd. */
int32_t preflight_partner(int32_t world, int32_t round, int32_t rank, bool in_turn);
/* Less than half the median bandwidth of the pairs that are of one host, or between two, as this one is; `median` (may
 * be NULL) is that. */
bool preflight_is_slow(const ddp_pairs *p, int32_t a, int32_t b, double *median);
/* The table, and a warning for each slow pair. */
void preflight_pairs_report(const ddp_pairs *p, const char *backend, bool by_broadcast, ddp_text *table,
                            ddp_findings *f);
