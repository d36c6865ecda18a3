/* tests/integration/support/failing_backend.c -- the example backend, but one call of one rank fails once, as if
 * a connection had broken between two buckets of a step; the process goes on, and connects again without the fault.
 *
 *   FAIL=RANK:CALL             the CALL-th all-reduce of rank RANK, from 1
 *   FAIL_BROADCAST=RANK:CALL   the CALL-th broadcast
 *   FAIL_CONNECT=RANK:CALL     the CALL-th communicator: the others do not come in time
 *
 * With :FILE behind it the process makes FILE and is killed in that call; while FILE is there, none is.
 *
 *   HANG=RANK:CALL:FILE        the CALL-th all-reduce makes FILE and never returns, whatever is aborted; while FILE is
 *                              there, all return */
#include <ddpengine/backend.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ddp_plugin_desc whole_desc
#include "backend_store.c"
#undef ddp_plugin_desc

static long all_reduces, broadcasts, connects; /* of the process, over all its communicators */

/* Whether this is the call that `variable` names. */
static bool fails(uint32_t own, const char *variable, long *calls, ddp_err *err)
{
    const char *text = getenv(variable);
    long rank = -1, call = 0;
    char file[4096] = "";

    if (text != NULL) (void)sscanf(text, "%ld:%ld:%4095s", &rank, &call, file);
    if (++*calls != call || (long)own != rank) return false;
    if (file[0] != '\0' && open(file, O_WRONLY | O_CREAT | O_EXCL, 0600) >= 0) (void)raise(SIGKILL);
    if (file[0] != '\0') return false;
    err->status = DDP_ERR_PEER;
    (void)snprintf(err->msg, sizeof(err->msg), "%s: call %ld fails on purpose", variable, call);
    return true;
}

static void hangs(uint32_t own)
{
    const char *text = getenv("HANG");
    static long calls;
    long rank = -1, call = 0;
    char file[4096] = "";

    if (text != NULL) (void)sscanf(text, "%ld:%ld:%4095s", &rank, &call, file);
    if (++calls != call || (long)own != rank || open(file, O_WRONLY | O_CREAT | O_EXCL, 0600) < 0) return;
    for (;;) (void)pause();
}

static ddp_status failing(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    hangs(c->rank);
    return fails(c->rank, "FAIL", &all_reduces, err) ? err->status : all_reduce(c, a, out, err);
}

static ddp_status failing_broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    return fails(c->rank, "FAIL_BROADCAST", &broadcasts, err) ? err->status : broadcast(c, a, out, err);
}

static ddp_status failing_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    if (!fails(p->rank, "FAIL_CONNECT", &connects, err)) return comm_create(b, p, out, err);
    return err->status = DDP_ERR_TIMEOUT;
}

static const ddp_backend_ops failing_ops = {
    .struct_size = sizeof(failing_ops),
    .caps = DDP_CAP_ABORT | DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER |
            DDP_CAP_BARRIER,
    .open = store_open,
    .close = store_close,
    .comm_create = failing_create,
    .comm_abort = comm_abort,
    .comm_destroy = comm_destroy,
    .supports = supports,
    .all_reduce = failing,
    .broadcast = failing_broadcast,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .barrier = barrier,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, 0),
    .reach = DDP_REACH_HOST,
    .memory = DDP_MEMORY_HOST,
    DDP_PLUGIN_TAIL("failing", "1.0", "a fixture: one all-reduce fails", DDP_OPTIONS(options, struct store_config),
                    failing_ops),
};
