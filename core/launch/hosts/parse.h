/* launch/hosts/parse.h -- the hosts of `ddpengine launch`. */
#pragma once

#include "base/base.h"

#define LAUNCH_HOSTS_MAX 1024

typedef struct launch_host {
    char login[256]; /* what ssh is given: "user@host" */
    char name[256];  /* the host alone, in brackets if it is an IPv6 address: in endpoints, and in front of its lines */
    int32_t first_rank, ranks;
} launch_host;

/* "[user@]host:ranks", separated by commas; frees nothing on failure, *out is the caller's to free. */
ddp_status launch_hosts_parse(const char *text, launch_host **out, size_t *count, ddp_err *err);
/* The same of [group] nodes: a list of const char *. */
ddp_status launch_hosts_from_nodes(const ddp_list *nodes, launch_host **out, size_t *count, ddp_err *err);
/* Appends `text` as one word of a POSIX shell. */
void launch_shell_quote(ddp_text *out, const char *text);
