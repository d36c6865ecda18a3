/* launch/hosts/hosts.h -- `ddpengine launch`: one run on several hosts, started from one of them, or from elsewhere, by
 * ssh. Each host runs a node (node.h), whose standard input is the launcher's word: nothing stays behind when that
 * ends, whatever ended it. */
#pragma once

#include "base/log.h"
#include "launch/args.h"
#include "launch/hosts/parse.h"

#define LAUNCH_ENV_MAX 64

typedef struct launch_request {
    const launch_host *hosts;
    size_t host_count;
    const char *ssh;     /* "ssh -p 22": words, separated by spaces */
    const char *program; /* of the hosts */
    const char *dir;     /* of the hosts, in which the run begins */
    const char *config_path;
    const char *sets[DDP_MAX_OVERRIDES];
    size_t set_count;
    const char *env[LAUNCH_ENV_MAX]; /* "NAME=VALUE" */
    size_t env_count;
    int64_t answer_ms;    /* in which a host must answer */
    int32_t port;         /* of rank 0; 0: one that is free there */
    bool own_init_method; /* the config has one, which the hosts use */
    bool own_secret;      /* likewise */
    bool without_loss;    /* [run] min_world: the others go on when a host is lost */
} launch_request;

int launch_hosts_run(const launch_request *q, ddp_log *log); /* the exit code: of the first host that failed */
