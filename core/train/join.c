/* train/join.c -- see join.h. */
#include "train/join.h"
#include "config/defaults.h"
#include "net/nodes.h"
#include "session/plugins.h"
#include "session/report/report.h"
#include "train/state/survivor.h"
#include <fcntl.h>
#include <string.h>

enum { ATTEMPT_MS = 1000, PROBE_MS = 1200, PAUSE_MS = 50 };

/* ---- one attempt ------------------------------------------------------------------------------------------------- */
/* Rank 0's listener of a supervisor, which another generation needs again. */
static int take_listener(const ddp_trainer *t, bool rejoins)
{
    int fd = t->s->launch.listen_fd;

    if (!rejoins) t->s->launch.listen_fd = -1;
    return rejoins && fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : fd;
}

static ddp_group_params params_of(ddp_trainer *t, uint32_t generation)
{
    const ddp_session *s = t->s;
    bool rejoins = ddp_trainer_rejoins(t), again = generation > 0;

    return (ddp_group_params){
        .rank = s->launch.home,
        .world = ddp_session_ranks(s),
        .quorum = {.min_world = rejoins ? (int32_t)s->config->run->min_world : 0,
                   .enough = t->survivor->expected,
                   .rejoin_ms = rejoins ? s->config->run->rejoin_timeout_ms : 0},
        .world_where = s->launch.world_where,
        .url = s->init.url,
        .init_ops = s->init.ops,
        .init = s->init.handle,
        .listen_fd = take_listener(t, rejoins),
        .endpoint = s->launch.endpoint,
        .timeout_ms = again ? s->config->run->rejoin_timeout_ms : s->config->group->rendezvous_timeout_ms,
        .timeout_name = again ? "rejoin_timeout" : NULL,
        .past = {.generation = generation, .start = t->survivor->start, .restarted = s->launch.restarted},
        .rejoins = rejoins,
        .peer_timeout_ms = s->config->group->peer_timeout_ms,
        .secret = s->launch.secret_length > 0 ? s->launch.secret : NULL,
        .secret_length = s->launch.secret_length,
        .secret_where = s->config->group->secret_file[0] != '\0' ? s->config->group->secret_file : "--nproc",
        .auth_none = s->config->group->auth == 1,
        .interface = s->config->group->interface,
        .ranks_per_hub = (int32_t)s->config->group->ranks_per_hub,
        .stop_signal = s->launch.stop == NULL ? NULL : &s->launch.stop->signal,
        .log = s->log,
        .expired_ctx = t};
}

/* ---- a server on any of the nodes -------------------------------------------------------------------------------- */
/* A rank that looks for the others. */
struct search {
    ddp_trainer *t;
    ddp_group_params *p;
    size_t nodes, own; /* own: this rank's node; of a spare that of the rank whose place it has */
    size_t last;       /* the one that served the last generation, or where a server was found since */
    bool first;        /* this rank is the first one of it, and on that host */
    bool displaced;    /* see control/params.h */
    bool knows;        /* of a server: `last` is not only where one would begin */
    int64_t from_ms;   /* since when no server was found */
};

/* Whether the server may be another one than rank 0: only where the ranks that are left are more than half of all, for
 * a rank 0 that is cut off may live, and would go on with the others of its half. */
static bool moves(const ddp_trainer *t)
{
    const ddp_session *s = t->s;

    return ddp_trainer_rejoins(t) && s->launch.on_nodes && 2 * s->config->run->min_world > s->shares.count;
}

static ddp_status find_own(struct search *x, ddp_err *err)
{
    const ddp_list *nodes = &x->t->s->config->group->nodes;
    const ddp_launch *l = &x->t->s->launch;
    char host[256];
    int32_t first;

    x->nodes = nodes->count;
    for (size_t i = 0; i < nodes->count; i++) {
        DDP_TRY(ddp_nodes_at(nodes, i, host, sizeof(host), &first, err));
        if (first <= l->home) x->own = i;
        if (first <= l->home) x->first = first == l->home && !l->spare;
        if (first <= x->t->survivor->server) x->last = i;
    }
    return DDP_OK;
}

/* One attempt at node `i`: as the server, or to find it there. */
static ddp_status join_at(struct search *x, size_t i, bool serves, int64_t attempt_ms, ddp_failure *failure,
                          ddp_err *err)
{
    ddp_session *s = x->t->s;
    ddp_group_params p = *x->p;
    char host[256], url[sizeof(host) + 32];
    int32_t first;
    ddp_status st;

    DDP_TRY(ddp_nodes_at(&s->config->group->nodes, i, host, sizeof(host), &first, err));
    (void)snprintf(url, sizeof(url), DDP_NODES_URL, host, DDP_NODES_PORT);
    DDP_TRY(s->init.ops->open(&s->host, s->init.config, url, &p.init, err));
    p.url = url;
    p.past.displaced = &x->displaced;
    p.quorum.server = serves ? p.rank : -1;
    p.quorum.attempt_ms = serves ? 0 : attempt_ms;
    st = ddp_group_join(&p, &x->t->group, failure, err);
    s->init.ops->close(p.init);
    return st;
}

/* The node that served before has its turn at once, the others one after the other: each gets as long as ranks wait for
 * a lost one. */
static bool is_its_turn(const struct search *x)
{
    size_t before = x->own == x->last ? 0 : x->own < x->last ? x->own + 1 : x->own;

    return x->first && x->knows && ddp_now_ms() - x->from_ms >= (int64_t)before * x->p->quorum.rejoin_ms;
}

static ddp_status serve(struct search *x, ddp_failure *failure, ddp_err *err)
{
    if (x->own == x->last && x->own > 0)
        ddp_log_line(x->t->s->log, DDP_LOG_INFO, "rank %d serves the others again", x->t->s->launch.home);
    else if (x->own != x->last)
        ddp_log_line(x->t->s->log, DDP_LOG_WARN,
                     "the node that served the others is not found: rank %d serves the others from now on",
                     x->t->s->launch.home);
    return join_at(x, x->own, true, 0, failure, err);
}

/* Looks on every other node once. DDP_ERR_TIMEOUT: no server, or one that was there until now. */
static ddp_status search_once(struct search *x, int64_t attempt_ms, ddp_failure *failure, ddp_err *err)
{
    size_t from = x->last;

    for (size_t n = 0; n < x->nodes; n++) {
        size_t i = (from + n) % x->nodes;
        ddp_status st;

        if (i == x->own && x->first) continue;
        *err = (ddp_err){0};
        st = join_at(x, i, false, attempt_ms, failure, err);
        if (st == DDP_ERR_PEER && failure->exit_code == 0) {
            x->from_ms = ddp_now_ms();
            x->last = i;
            x->knows = true;
        } else if (st != DDP_ERR_TIMEOUT) {
            return st;
        }
    }
    return DDP_ERR_TIMEOUT;
}

/* Who comes back may find the others on another node than they were on; a rank 0 that finds nobody begins. */
static ddp_status search_all(struct search *x, ddp_failure *failure, ddp_err *err)
{
    int64_t most_ms = x->p->timeout_ms * (int64_t)(x->p->past.generation > 0 ? x->nodes : 1);
    bool zero = x->first && x->own == 0;

    if (zero && x->knows && x->last == 0) return serve(x, failure, err);
    for (;;) {
        ddp_status st = search_once(x, zero && !x->knows ? PROBE_MS : ATTEMPT_MS, failure, err);

        if (st != DDP_ERR_TIMEOUT) return st;
        *err = (ddp_err){0};
        *failure = (ddp_failure){0};
        if ((zero && !x->knows) || is_its_turn(x)) return serve(x, failure, err);
        if (ddp_now_ms() - x->from_ms >= most_ms) break;
        (void)nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000l}, NULL);
    }
    (void)ddp_fail(
        err, DDP_ERR_TIMEOUT,
        "no node of [group] nodes serves this run: looked on all %zu for %.3g s (%s). Look there why the ranks ended or cannot be reached",
        x->nodes, (double)(ddp_now_ms() - x->from_ms) / 1e3,
        x->p->timeout_name != NULL ? x->p->timeout_name : "rendezvous_timeout");
    return ddp_fail_as(err, DDP_EXIT_RENDEZVOUS);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */
ddp_status trainer_join(ddp_trainer *t, uint32_t generation, void (*expired)(void *ctx, const ddp_failure *cause),
                        ddp_failure *failure, ddp_err *err)
{
    ddp_group_params p = params_of(t, generation);
    struct search x = {.t = t, .p = &p, .knows = generation > 0, .from_ms = ddp_now_ms()};
    ddp_text lines = {0};
    ddp_status st;

    ddp_text_printf(&lines, "command = a run\tthe command line\n");
    ddp_session_agreement(t->s, &lines);
    p.agreement = lines.data;
    p.expired = expired;
    st = lines.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the settings that the ranks compare") : DDP_OK;
    if (st == DDP_OK && moves(t)) {
        st = find_own(&x, err);
        if (st == DDP_OK) st = search_all(&x, failure, err);
    } else if (st == DDP_OK) {
        if (generation > 0) st = ddp_session_renew_init(t->s, err); /* a handle is of one rendezvous */
        p.init = t->s->init.handle;
        if (st == DDP_OK) st = ddp_group_join(&p, &t->group, failure, err);
    }
    ddp_text_free(&lines);
    if (st == DDP_OK && t->ending->met != NULL) t->ending->met(t->ending->ctx, ddp_group_generation(t->group));
    return st;
}
