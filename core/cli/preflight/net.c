/* cli/preflight/net.c -- see net.h. The order is that of a run: rendezvous, agreement, backend; where one of them fails
 * all ranks hear the first cause and leave. */
#include "cli/preflight/net.h"
#include "cli/cli.h"
#include "launch/relay.h"
#include "session/plugins.h"
#include "session/report/report.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAIT_MS = 60000 };

/* What the control thread needs to end a rank that does not leave. */
typedef struct expiry {
    ddp_cause *cause;
    ddp_log *log;
    const char *relay;
} expiry;

static void expired(void *ctx, const ddp_failure *f)
{
    const expiry *e = ctx;

    ddp_cause_print(e->cause, e->log, f->exit_code, f->msg);
    ddp_relay_leave(e->relay, f->exit_code);
    _exit(f->exit_code);
}

static ddp_status join(ddp_session *s, expiry *e, ddp_group **out, ddp_failure *failure, ddp_err *err)
{
    const struct ddp_group_config *c = s->config->group;
    ddp_text lines = {0};
    ddp_group_params p = {.rank = s->launch.home,
                          .world = ddp_session_ranks(s),
                          .world_where = s->launch.world_where,
                          .url = s->init.url,
                          .init_ops = s->init.ops,
                          .init = s->init.handle,
                          .listen_fd = s->launch.listen_fd,
                          .endpoint = s->launch.endpoint,
                          .timeout_ms = c->rendezvous_timeout_ms,
                          .peer_timeout_ms = c->peer_timeout_ms,
                          .secret = s->launch.secret_length > 0 ? s->launch.secret : NULL,
                          .secret_length = s->launch.secret_length,
                          .secret_where = c->secret_file[0] != '\0' ? c->secret_file : "--nproc",
                          .auth_none = c->auth == 1,
                          .interface = c->interface,
                          .ranks_per_hub = (int32_t)c->ranks_per_hub,
                          .log = s->log,
                          .expired = expired,
                          .expired_ctx = e};
    ddp_status st = DDP_OK;

    s->launch.listen_fd = -1; /* the group's from now on */
    ddp_text_printf(&lines, "command = --check --net\tthe command line\n");
    ddp_session_agreement(s, &lines);
    p.agreement = lines.data;
    if (lines.failed) st = ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the settings that the ranks compare");
    if (st == DDP_OK) st = ddp_group_join(&p, out, failure, err);
    ddp_text_free(&lines);
    return st;
}

ddp_status preflight_gather(const ddp_preflight_ranks *m, const char *name, const void *own, size_t size, void *all,
                            ddp_err *err)
{
    const void **parts = ddp_alloc((size_t)m->world * sizeof(*parts), err);
    size_t *lengths = ddp_alloc((size_t)m->world * sizeof(*lengths), err);
    void *block = NULL;
    ddp_status st = parts == NULL || lengths == NULL ? DDP_ERR_NOMEM : DDP_OK;

    if (st == DDP_OK) st = ddp_group_gather(m->group, name, own, size, &block, parts, lengths, WAIT_MS, err);
    for (int32_t r = 0; st == DDP_OK && r < m->world; r++) {
        if (lengths[r] != size)
            st = ddp_fail(err, DDP_ERR_PEER, "%s: rank %d is of another version of ddpengine", name, r);
        else
            memcpy((char *)all + (size_t)r * size, parts[r], size);
    }
    free(block);
    free(parts);
    free(lengths);
    return st;
}

/* ---- what is found ----------------------------------------------------------------------------------------------- */
static ddp_status find_hosts(ddp_preflight_ranks *m, ddp_err *err)
{
    int32_t own = 0;

    while (own < m->rank && !ddp_group_same_host(m->group, own)) own++;
    m->first_of = ddp_alloc((size_t)m->world * sizeof(*m->first_of), err);
    if (m->first_of == NULL) return err->status;
    return preflight_gather(m, "preflight hosts", &own, sizeof(own), m->first_of, err);
}

static void report_rendezvous(const ddp_preflight_ranks *m, ddp_findings *f)
{
    int32_t hosts = 0;

    for (int32_t r = 0; r < m->world; r++) hosts += m->first_of[r] == r;
    preflight_add(f, DDP_FINDING_OK, 0, "rendezvous", "%d ranks on %d host%s are there, and their settings agree",
                  m->world, hosts, hosts == 1 ? "" : "s");
}

static ddp_status measure(const ddp_preflight_ranks *m, ddp_text *table, ddp_findings *f, ddp_err *err)
{
    ddp_session *s = m->session;
    ddp_communicator *c = NULL;
    ddp_pairs pairs = {0};
    ddp_status st;

    ddp_session_choose_backend(s, ddp_group_local_size(m->group) == m->world);
    ddp_session_simplify_backend(s, ddp_group_hosts(m->group), m->world);
    DDP_TRY_AS(DDP_EXIT_RENDEZVOUS, err,
               ddp_communicator_open(m->group, s->backend->plugin, &s->host, s->backend->config,
                                     ddp_session_device_ordinal(s, s->backend->plugin),
                                     s->config->group->step_timeout_ms, &c, err));
    st = preflight_measure(m, c, &pairs, err);
    if (st == DDP_OK)
        preflight_pairs_report(&pairs, s->backend->name, (ddp_communicator_caps(c) & DDP_CAP_SEND_RECV) == 0, table, f);
    preflight_pairs_free(&pairs);
    (void)ddp_communicator_close(c);
    return st;
}

static ddp_status look(ddp_preflight_ranks *m, ddp_text *table, ddp_findings *f, ddp_err *err)
{
    DDP_TRY(find_hosts(m, err));
    report_rendezvous(m, f);
    DDP_TRY(preflight_clocks(m, f, err));
    DDP_TRY(preflight_reach(m, f, err));
    /* the backend would wait for what cannot be reached */
    return f->exit_code == DDP_EXIT_OK ? measure(m, table, f, err) : DDP_OK;
}

/* The first failure of any rank, which is not always this one's. */
static int failed(const ddp_preflight_ranks *m, const ddp_err *err, char *message, size_t capacity)
{
    ddp_failure f = {.exit_code = ddp_err_exit_code(err)};

    (void)snprintf(f.msg, sizeof(f.msg), "rank %d: %.450s", m->rank, err->msg);
    ddp_group_abort(m->group, f.exit_code, f.msg);
    (void)ddp_group_failed(m->group, &f);
    ddp_copy_text(message, capacity, f.msg);
    return f.exit_code;
}

int preflight_net(const ddp_args *args, ddp_session *s, ddp_cause *cause, ddp_log *log)
{
    expiry e = {.cause = cause, .log = log, .relay = args->relay};
    ddp_preflight_ranks m = {.session = s};
    ddp_findings f = {0};
    ddp_failure failure = {0};
    ddp_text table = {0};
    char message[512] = "";
    ddp_err err = {0};
    int code;

    if (ddp_session_ranks(s) == 1 || s->launch.spare) {
        ddp_log_line(log, DDP_LOG_INFO, "%s",
                     s->launch.spare ? "a spare takes no part in --check --net"
                                     : "one rank: there is nobody to connect to");
        return DDP_EXIT_OK;
    }
    if (join(s, &e, &m.group, &failure, &err) != DDP_OK) {
        code = failure.exit_code != DDP_EXIT_OK ? failure.exit_code : DDP_EXIT_RENDEZVOUS;
        ddp_cause_print(cause, log, code, failure.exit_code != DDP_EXIT_OK ? failure.msg : err.msg);
        return code;
    }
    m.rank = ddp_group_rank(m.group);
    m.world = ddp_group_world(m.group);
    code = look(&m, &table, &f, &err) == DDP_OK ? f.exit_code : failed(&m, &err, message, sizeof(message));
    ddp_group_leave(m.group, &failure);
    if (m.rank == 0) ddp_text_append(&f.lines, table.data, table.length);
    if (m.rank == 0 && cli_print_text(&f.lines, log) != DDP_EXIT_OK && code == DDP_EXIT_OK) code = DDP_EXIT_INTERNAL;
    ddp_text_free(&table);
    if (code != DDP_EXIT_OK) ddp_cause_print(cause, log, code, message[0] != '\0' ? message : f.first);
    preflight_free(&f);
    free(m.first_of);
    return code;
}
