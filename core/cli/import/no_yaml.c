/* cli/import/no_yaml.c -- `ddpengine import-yaml` of a program that was built without libyaml. */
#include "cli/cli.h"

int cli_command_import_yaml(int argc, char **argv, ddp_log *log)
{
    (void)argc;
    (void)argv;
    ddp_log_line(
        log, DDP_LOG_ERROR,
        "import-yaml: this program was built without libyaml; apt-get install libyaml-dev, configure and make again");
    return DDP_EXIT_CONFIG;
}
