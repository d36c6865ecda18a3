/* cli/audit.c -- `ddpengine audit RUN...`: its arguments. What it does is observe/audit_check.c. */
#include "cli/cli.h"
#include "cli/options.h"
#include "observe/audit.h"

static const ddp_cli_option options[] = {
    {"RUN", NULL, "[output] dir of a run, or its audit-rankN.bin; of several hosts, all of them", DDP_TAKES_ROW,
     .most = 0},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_audit_usage = {
    .name = "audit",
    .usage = "usage: ddpengine audit RUN...\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "\nexit codes: 0 each sample was used exactly once in each epoch, 2 usage,\n"
              "            10 it was not, or cannot be proven\n",
    .example = "ddpengine audit runs/quickstart",
};

int cli_command_audit(int argc, char **argv, ddp_log *log)
{
    ddp_text lines = {0};
    char none; /* what the options would fill */
    ddp_err err = {0};
    int next, code = cli_parse_options(&cli_audit_usage, argc, argv, &none, &next), printed;

    if (code >= 0) return code;
    if (next == argc) return cli_usage_error(&cli_audit_usage, "which run? Name its [output] dir", "");
    if (ddp_audit_check((const char *const *)(argv + next), (size_t)(argc - next), &lines, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, err.status == DDP_ERR_DATA     ? DDP_EXIT_DATA
                                : err.status == DDP_ERR_CONFIG ? DDP_EXIT_CONFIG
                                                               : DDP_EXIT_INTERNAL);
        code = cli_print_error(&err, log);
    }
    printed = cli_print_text(&lines, log);
    return code > 0 ? code : printed;
}
