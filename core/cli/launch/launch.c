/* cli/launch/launch.c -- `ddpengine launch`: its arguments. What it does is launch/hosts/hosts.c. */
#include "cli/cli.h"
#include "cli/options.h"
#include "launch/hosts/hosts.h"
#include "launch/hosts/node.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct request {
    launch_request launch;
    const char *hosts;
    bool node;
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--hosts", "HOST:N,...", "the hosts and their ranks, as in node1:2,me@node2:2; without it [group] nodes",
     DDP_TAKES_TEXT, FIELD(hosts)},
    {"--config", "FILE", "the run's INI file, at the same path on all hosts", DDP_TAKES_TEXT, .letter = 'c',
     FIELD(launch.config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(launch.sets), .count_offset = offsetof(request, launch.set_count)},
    {"--ssh", "COMMAND", "what reaches a host (default ssh), as in \"ssh -p 2222 -i key\"", DDP_TAKES_TEXT,
     FIELD(launch.ssh)},
    {"--program", "PATH", "ddpengine on the hosts; default: the path of this one", DDP_TAKES_TEXT,
     FIELD(launch.program)},
    {"--chdir", "DIR", "the folder on the hosts in which the run begins; default: the one here", DDP_TAKES_TEXT,
     FIELD(launch.dir)},
    {"--env", "NAME[=VALUE]", "a variable for the ranks, by default with its value here; may be repeated",
     DDP_TAKES_LIST, .most = LAUNCH_ENV_MAX, FIELD(launch.env), .count_offset = offsetof(request, launch.env_count)},
    {"--port", "N", "the port of rank 0; default: one that is free on its host", DDP_TAKES_COUNT, .most = 65535,
     FIELD(launch.port)},
    {"--node", NULL, NULL, DDP_TAKES_NOTHING, FIELD(node)}, /* given by the launcher, on a host */
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_launch_usage = {
    .name = "launch",
    .usage = "usage: ddpengine launch --hosts HOST:RANKS,... -c FILE\n"
             "                        [--set section.key=value]... [--ssh COMMAND]\n"
             "                        [--program PATH] [--chdir DIR]\n"
             "                        [--env NAME[=VALUE]]... [--port N]\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "Starts a run on several hosts by ssh, and shows their lines here. The ranks are\n"
              "numbered in the order of the hosts. The exit code is that of the first host that\n"
              "fails; Ctrl-C ends all.\n",
    .example = "ddpengine launch --hosts node1:2,node2:2 -c train.ini",
};

/* ---- what the hosts are told ------------------------------------------------------------------------------------- */
/* "NAME" becomes "NAME=VALUE", and each is a line. -1: go on. */
static int complete_env(request *q, ddp_text *texts)
{
    for (size_t i = 0; i < q->launch.env_count; i++) {
        const char *given = q->launch.env[i], *value = getenv(given);

        if (given[0] == '=' || strchr(given, '\n') != NULL || (value != NULL && strchr(value, '\n') != NULL))
            return cli_usage_error(&cli_launch_usage, "--env is NAME or NAME=VALUE, in one line, not ", given);
        if (strchr(given, '=') != NULL) continue;
        if (value == NULL)
            return cli_usage_error(&cli_launch_usage, "--env names a variable that is not set here: ", given);
        ddp_text_printf(&texts[i], "%s=%s", given, value);
        if (!texts[i].failed) q->launch.env[i] = texts[i].data;
    }
    return -1;
}

static int check_lines(const request *q)
{
    for (size_t i = 0; i < q->launch.set_count; i++)
        if (strchr(q->launch.sets[i], '\n') != NULL)
            return cli_usage_error(&cli_launch_usage, "--set has more than one line: ", q->launch.sets[i]);
    if (strchr(q->launch.config_path, '\n') != NULL || strchr(q->launch.dir, '\n') != NULL)
        return cli_usage_error(&cli_launch_usage, "a path has more than one line: ", q->launch.config_path);
    return -1;
}

static int find_hosts(request *q, const ddp_config *c, launch_host **hosts, ddp_log *log)
{
    ddp_err err = {0};
    ddp_status status;

    if (q->hosts == NULL && c->group->nodes.count == 0)
        return cli_usage_error(&cli_launch_usage, "no hosts: give --hosts HOST:RANKS,..., or write [group] nodes", "");
    status = q->hosts != NULL ? launch_hosts_parse(q->hosts, hosts, &q->launch.host_count, &err)
                              : launch_hosts_from_nodes(&c->group->nodes, hosts, &q->launch.host_count, &err);
    q->launch.hosts = *hosts;
    if (status == DDP_OK) return -1;
    (void)ddp_fail_as(&err, status == DDP_ERR_CONFIG ? DDP_EXIT_CONFIG : DDP_EXIT_INTERNAL);
    return cli_print_error(&err, log);
}

static int launch(request *q, ddp_log *log)
{
    ddp_text env[LAUNCH_ENV_MAX] = {{0}};
    launch_host *hosts = NULL;
    ddp_config config = {0};
    int code = cli_load_config(q->launch.config_path, q->launch.sets, q->launch.set_count, &config, log);

    if (code >= 0) return code;
    log->level = config.output->log_level;
    q->launch.answer_ms = config.group->rendezvous_timeout_ms;
    q->launch.own_init_method = config.group->init_method[0] != '\0';
    q->launch.own_secret = config.group->secret_file[0] != '\0' || config.group->auth == 1;
    q->launch.without_loss = config.run->min_world > 0;
    code = complete_env(q, env);
    if (code < 0) code = check_lines(q);
    if (code < 0) code = find_hosts(q, &config, &hosts, log);
    if (code < 0) code = launch_hosts_run(&q->launch, log);
    free(hosts);
    for (size_t i = 0; i < DDP_COUNT(env); i++) ddp_text_free(&env[i]);
    ddp_config_free(&config);
    return code;
}

int cli_command_launch(int argc, char **argv, ddp_log *log)
{
    request q = {.launch = {.ssh = "ssh"}};
    int next, code = cli_parse_options(&cli_launch_usage, argc, argv, &q, &next);
    char program[4096] = "", dir[4096];

    if (code >= 0) return code;
    if (q.node) return launch_node_run(log);
    if (next < argc) return cli_usage_error(&cli_launch_usage, "too many arguments: ", argv[next]);
    if (q.launch.config_path == NULL) return cli_usage_error(&cli_launch_usage, "no config file: give -c FILE", "");
    if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0)
        ddp_copy_text(program, sizeof(program), "ddpengine");
    if (q.launch.program == NULL) q.launch.program = program;
    if (getcwd(dir, sizeof(dir)) == NULL) ddp_copy_text(dir, sizeof(dir), "/");
    if (q.launch.dir == NULL) q.launch.dir = dir;
    return launch(&q, log);
}
