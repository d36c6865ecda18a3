/* cli/preflight/preflight.c -- `--check`: opens the session, which plans everything, and runs all checks. Where the
 * session cannot be opened, that is a problem like others, and what can be looked at without it still is. */
#include "cli/preflight/preflight.h"
#include "cli/cli.h"
#include "cli/preflight/checks.h"
#include "cli/preflight/net.h"
#include "launch/identify.h"
#include "launch/secret.h"
#include "session/open.h"
#include "session/plugins.h"
#include "session/report/report.h"

/* Who this process is; where that cannot be told, a single rank. */
static void identify(ddp_preflight_run *r)
{
    ddp_err err = {0};

    r->launch_known = ddp_launch_resolve(r->args, r->config, &r->launch, &err) == DDP_OK;
    if (!r->launch_known) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        preflight_add_error(&r->findings, "ranks", &err);
        r->launch = (ddp_launch){.world = 1, .local_size = 1, .nproc = 1, .listen_fd = -1};
    }
    err = (ddp_err){0};
    if (ddp_secret_load(r->config, r->args->secret_file, &r->launch, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        preflight_add_error(&r->findings, "secret", &err);
    }
    r->launch.planning = true;
}

static void check_all(ddp_preflight_run *r)
{
    preflight_plugins(r);
    preflight_files(r);
    preflight_host(r);
    preflight_rendezvous(r);
}

/* The plan, the checks of plugins that are not used, and the findings. */
static int print(ddp_preflight_run *r, ddp_log *log)
{
    ddp_text text = {0};
    int unused = DDP_EXIT_OK, printed;

    if (r->session != NULL && r->launch_known) ddp_session_report(r->session, &text);
    if (r->session != NULL && r->args->check_all) unused = ddp_session_check_unused(r->session, &text);
    ddp_text_printf(&text, "%schecks                %u ok, %u warning%s, %u problem%s\n", text.length > 0 ? "\n" : "",
                    r->findings.count[DDP_FINDING_OK], r->findings.count[DDP_FINDING_WARNING],
                    r->findings.count[DDP_FINDING_WARNING] == 1 ? "" : "s", r->findings.count[DDP_FINDING_PROBLEM],
                    r->findings.count[DDP_FINDING_PROBLEM] == 1 ? "" : "s");
    ddp_text_append(&text, r->findings.lines.data, r->findings.lines.length);
    if (r->findings.lines.failed) text.failed = true;
    printed = cli_print_text(&text, log);
    if (r->findings.exit_code != DDP_EXIT_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", r->findings.first);
        return r->findings.exit_code;
    }
    return unused != DDP_EXIT_OK ? unused : printed;
}

int cli_preflight(const ddp_args *args, ddp_log *log)
{
    ddp_preflight_run r = {.args = args};
    ddp_preflight_parts parts = {0};
    ddp_config config = {0};
    ddp_session session;
    ddp_err err = {0};
    int code;

    if (ddp_config_load(args->config_path, args->overrides, args->override_count, &config, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        code = cli_print_error(&err, log);
        goto free_config;
    }
    r.config = &config;
    identify(&r);
    preflight_open_files(&r);
    if (ddp_session_open(&session, log, &config, &r.launch, &err) == DDP_OK) {
        r.session = &session;
        if (session.init.handle != NULL) r.method = &session.init;
    } else {
        preflight_add_error(&r.findings, NULL, &err);
        preflight_parts_open(&parts, &r, log);
    }
    check_all(&r);
    code = print(&r, log);
    if (r.session != NULL)
        ddp_session_close(&session);
    else
        preflight_parts_close(&parts);
    preflight_free(&r.findings);

free_config:
    ddp_config_free(&config);
    return code;
}

/* ---- with the others --------------------------------------------------------------------------------------------- */
/* The first rank of a host looks at it for all of them. */
static int check_host(const ddp_args *args, ddp_session *s, ddp_cause *cause, ddp_log *log)
{
    ddp_preflight_run r = {.args = args, .config = s->config, .launch = s->launch, .launch_known = true, .session = s};
    ddp_text text = {0};
    int code;

    r.launch.nproc = s->launch.local_size;
    if (s->init.handle != NULL) r.method = &s->init;
    preflight_open_files(&r);
    check_all(&r);
    ddp_text_append(&text, r.findings.lines.data, r.findings.lines.length);
    code = cli_print_text(&text, log);
    if (r.findings.exit_code != DDP_EXIT_OK) {
        code = r.findings.exit_code;
        ddp_cause_print(cause, log, code, r.findings.first);
    }
    preflight_free(&r.findings);
    return code;
}

int cli_preflight_rank(const ddp_args *args, ddp_session *s, ddp_cause *cause, ddp_log *log)
{
    int code = s->launch.local_rank == 0 ? check_host(args, s, cause, log) : DDP_EXIT_OK;
    int with_others = preflight_net(args, s, cause, log);

    return code != DDP_EXIT_OK ? code : with_others;
}
