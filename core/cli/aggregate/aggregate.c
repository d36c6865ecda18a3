/* cli/aggregate/aggregate.c -- `ddpengine aggregate`: a host without model and data that helps the ranks of a run.
 * It joins their control plane as a helper, and the backend's plugin serves them.
 *
 * Threads: this one waits for the end of the run and for signals; "ddp-aggregate" is in the plugin. */
#include "cli/aggregate/setup.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "control/group.h"
#include "launch/signals.h"
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_MS = 100, CAUSE_MS = 1000 };

typedef struct request {
    const char *config_path;
    const char *sets[DDP_MAX_OVERRIDES];
    size_t set_count;
    bool check;
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the run's INI file, as the ranks have it", DDP_TAKES_TEXT, .letter = 'c', FIELD(config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(sets), .count_offset = offsetof(request, set_count)},
    {"--check", NULL, "reads the INI and loads the plugins, says what it would do, and waits for nobody",
     DDP_TAKES_NOTHING, FIELD(check)},
    {"--help", NULL, "prints this text", DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_aggregate_usage = {
    .name = "aggregate",
    .usage = "usage: ddpengine aggregate -c FILE [--set section.key=value]... [--check]\n"
             "sums a share of every gradient for the ranks of a run, on a host that has\n"
             "neither the model nor the data\n",
    .footer = "\nIt waits for rank 0 for [group] rendezvous_timeout, serves one run, and ends\n"
              "with it: with 0, or with the run's exit code where a rank is lost.\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .example = "ddpengine aggregate -c run.ini",
};

/* ---- the plugin's thread ----------------------------------------------------------------------------------------- */
typedef struct service {
    const aggregate_setup *s;
    ddp_helper_params p;
    pthread_t thread;
    atomic_bool done;
    ddp_status status;
    ddp_err err;
} service;

static void *service_main(void *arg)
{
    service *v = arg;

    v->status = v->s->helper->serve(&v->s->host, v->s->backend_config, &v->p, &v->err);
    atomic_store(&v->done, true);
    return NULL;
}

static ddp_status service_start(service *v, ddp_group *g, ddp_err *err)
{
    v->p = (ddp_helper_params){.struct_size = sizeof(v->p),
                               .index = (uint32_t)ddp_group_helper(g),
                               .world_size = (uint32_t)ddp_group_world(g),
                               .address = ddp_group_address(g),
                               .interface = v->s->config.group->interface,
                               .store = ddp_group_store(g, "helpers", err),
                               .stop_fd = eventfd(0, EFD_CLOEXEC)};
    if (v->p.store == NULL) return err->status;
    if (v->p.stop_fd < 0) return ddp_fail_errno(err, "cannot create an event descriptor");
    return ddp_thread_start(&v->thread, "ddp-aggregate", service_main, v, err);
}

static void service_stop(service *v)
{
    uint64_t one = 1;

    while (write(v->p.stop_fd, &one, sizeof(one)) < 0 && errno == EINTR) continue;
    (void)pthread_join(v->thread, NULL);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */
static void expired(void *ctx, const ddp_failure *cause)
{
    ddp_log_line(ctx, DDP_LOG_ERROR, "%s", cause->msg);
    _exit(cause->exit_code);
}

/* Until the run is over, a signal comes, or the plugin gives up; what ended it goes to `f`, exit code 0 for a good
 * end. */
static void wait_for_end(const aggregate_setup *s, service *v, ddp_group *g, ddp_failure *f)
{
    ddp_stop *stop = s->launch.stop;
    int sig = 0;

    while (!ddp_group_wait_over(g, LOOK_MS) && !atomic_load(&v->done) && (sig = atomic_load(&stop->signal)) == 0)
        continue;
    if (sig != 0) {
        ddp_failure_set(f, 128 + sig, -1, "aggregator %u on host %.100s was ended by signal %d (%s)", v->p.index,
                        ddp_group_host(g), sig, strsignal(sig));
        ddp_group_abort(g, DDP_EXIT_PEER, f->msg);
    } else if (atomic_load(&v->done) && !ddp_group_wait_over(g, CAUSE_MS)) { /* mostly the ranks know why */
        ddp_failure_set(f, ddp_err_exit_code(&v->err), -1, "aggregator %u on host %.100s: %.300s", v->p.index,
                        ddp_group_host(g), v->err.msg);
        ddp_group_abort(g, f->exit_code, f->msg);
    } else {
        (void)ddp_group_failed(g, f);
    }
}

static ddp_status serve(aggregate_setup *s, ddp_group *g, ddp_failure *f, ddp_err *err)
{
    service v = {.s = s};
    ddp_status st = service_start(&v, g, err);

    if (st == DDP_OK) {
        wait_for_end(s, &v, g, f);
        service_stop(&v);
    }
    if (v.p.stop_fd >= 0) (void)close(v.p.stop_fd);
    return st;
}

static ddp_group_params params_of(const aggregate_setup *s, ddp_log *log)
{
    const struct ddp_group_config *c = s->config.group;

    return (ddp_group_params){.rank = DDP_RANK_OF_HELPER,
                              .world = s->launch.world,
                              .world_where = s->launch.world_where,
                              .url = s->launch.url,
                              .init_ops = s->init_ops,
                              .init = s->init,
                              .listen_fd = -1,
                              .timeout_ms = c->rendezvous_timeout_ms,
                              .agreement = s->agreement.data,
                              .peer_timeout_ms = c->peer_timeout_ms,
                              .secret = s->launch.secret_length > 0 ? s->launch.secret : NULL,
                              .secret_length = s->launch.secret_length,
                              .secret_where = c->secret_file[0] != '\0' ? c->secret_file : NULL,
                              .auth_none = c->auth == 1,
                              .interface = c->interface,
                              .log = log,
                              .expired = expired,
                              .expired_ctx = log};
}

/* A place that the run does not have. */
static int one_too_many(const aggregate_setup *s, ddp_group *g, ddp_log *log)
{
    uint32_t count = s->helper->count(s->backend_config);

    if (ddp_group_helper(g) < (int32_t)count) return -1;
    ddp_log_line(
        log, DDP_LOG_ERROR,
        "this is aggregator %d, and the run waits for %u, number 0 to %u: start fewer, or raise [backend.%s] aggregators everywhere",
        (int)ddp_group_helper(g), count, count - 1, s->backend->desc.name);
    ddp_group_leave(g, NULL);
    return DDP_EXIT_CONFIG;
}

static int run(aggregate_setup *s, ddp_log *log)
{
    ddp_group_params p = params_of(s, log);
    ddp_failure f = {0};
    ddp_group *g;
    ddp_err err = {0};
    int code;

    ddp_log_line(log, DDP_LOG_INFO, "looking for rank 0 of %d ranks at %s", (int)s->launch.world, s->launch.url);
    if (ddp_group_join(&p, &g, &f, &err) != DDP_OK) return cli_print_error(&err, log);
    if ((code = one_too_many(s, g, log)) >= 0) return code;
    ddp_log_line(log, DDP_LOG_INFO, "this is aggregator %d of %u for %d ranks, at %s", (int)ddp_group_helper(g),
                 s->helper->count(s->backend_config), (int)ddp_group_world(g), ddp_group_address(g));
    atomic_store(&s->launch.stop->graceful, true);
    if (serve(s, g, &f, &err) != DDP_OK) {
        ddp_failure_set(&f, ddp_err_exit_code(&err), -1, "%s", err.msg);
        ddp_group_abort(g, f.exit_code, f.msg);
    }
    ddp_group_leave(g, NULL);
    if (f.exit_code != DDP_EXIT_OK)
        ddp_log_line(log, DDP_LOG_ERROR, "%s", f.msg);
    else
        ddp_log_line(log, DDP_LOG_INFO, "the run has ended");
    return f.exit_code;
}

/* ---- what it would do -------------------------------------------------------------------------------------------- */
static void describe(const aggregate_setup *s, ddp_text *out)
{
    uint32_t world = (uint32_t)s->launch.world, count = s->helper->count(s->backend_config);
    double gain = s->helper->gain(s->backend_config, world);
    const char *if_one =
        s->halves ? ", with one rank on each host: of two backends it is the number of hosts that counts" : "";

    ddp_text_printf(out, "backend      %s\n", s->backend->desc.name);
    ddp_text_printf(out, "ranks        %u, found at %s\n", world, s->launch.url);
    ddp_text_printf(out, "aggregators  %u\n", count);
    if (gain > 1.0)
        ddp_text_printf(out, "gain         %.2fx an all-reduce of the ranks alone, in theory%s\n", gain, if_one);
    else
        ddp_text_printf(out, "gain         none: %u ranks are as fast alone%s\n", world, if_one);
    ddp_text_printf(out, "secret       %s\n",
                    s->config.group->secret_file[0] != '\0' ? s->config.group->secret_file : "none");
}

int cli_command_aggregate(int argc, char **argv, ddp_log *log)
{
    request q = {0};
    int next, code = cli_parse_options(&cli_aggregate_usage, argc, argv, &q, &next);
    aggregate_setup s;
    ddp_text out = {0};
    ddp_err err = {0};

    if (code >= 0) return code;
    if (next < argc) return cli_usage_error(&cli_aggregate_usage, "too many arguments: ", argv[next]);
    if (q.config_path == NULL) return cli_usage_error(&cli_aggregate_usage, "no config file: give -c FILE", "");
    if (aggregate_setup_open(&s, q.config_path, q.sets, q.set_count, log, &err) != DDP_OK) {
        code = cli_print_error(&err, log);
    } else if (q.check) {
        describe(&s, &out);
        code = cli_print_text(&out, log);
    } else {
        s.launch.stop = ddp_handle_signals(NULL);
        code = run(&s, log);
    }
    aggregate_setup_close(&s);
    return code;
}
