/* cli/run.c -- one rank in this process: session, then training; and how its failure is printed. */
#include "cli/cli.h"
#include "cli/preflight/preflight.h"
#include "launch/relay.h"
#include "launch/signals.h"
#include "session/open.h"
#include "train/train.h"
#include <unistd.h>

struct expiry {
    ddp_cause *cause;
    ddp_log *log;
    const char *relay;
};

/* Control thread: the run has failed and a plugin's call does not return. */
static void expired(void *ctx, int exit_code, const char *message)
{
    struct expiry *e = ctx;

    if (message[0] != '\0') ddp_cause_print(e->cause, e->log, exit_code, message);
    ddp_relay_leave(e->relay, exit_code);
    _exit(exit_code);
}

static void met(void *ctx, uint32_t generation) { ddp_cause_met(((struct expiry *)ctx)->cause, generation); }

static void rejoining(void *ctx, uint32_t generation, const char *message)
{
    const struct expiry *e = ctx;

    ddp_cause_print_rejoin(e->cause, e->log, generation, message);
}

static int print_line(const char *line, ddp_log *log)
{
    ddp_text text = {0};

    ddp_text_printf(&text, "%s\n", line);
    return cli_print_text(&text, log);
}

int cli_run_rank(const ddp_args *args, ddp_config *config, const ddp_launch *launch, ddp_log *log, ddp_cause *cause)
{
    struct expiry expiry = {.cause = cause, .log = log, .relay = args->relay};
    ddp_ending ending = {.expired = expired, .met = met, .rejoining = rejoining, .ctx = &expiry};
    ddp_session session;
    ddp_err err = {0};
    int code;

    if (launch->world > 1 && launch->rank >= 0) log->rank = launch->rank;
    if (ddp_session_open(&session, log, config, launch, &err) != DDP_OK) {
        ddp_cause_print(cause, log, ddp_err_exit_code(&err), err.msg);
        return ddp_err_exit_code(&err);
    }
    if (args->check) {
        code = cli_preflight_rank(args, &session, cause, log);
        ddp_session_close(&session);
        return code;
    }
    code = ddp_train(&session, &ending);
    if (code != DDP_EXIT_OK) ddp_signals_note_lost(launch->stop, cause, log);
    if (code != DDP_EXIT_OK) ddp_cause_print(cause, log, code, ending.message);
    if (code == DDP_EXIT_OK && ending.result[0] != '\0') code = print_line(ending.result, log);
    ddp_session_close(&session);
    return code;
}
