/* cli/preflight/checks.h -- what is looked at before a run, each file a part. A check adds its lines to the findings
 * and goes on: all of them run, whatever one has found. */
#pragma once

#include "cli/preflight/findings.h"
#include "launch/args.h"
#include "session/session.h"

typedef struct ddp_preflight_run {
    ddp_findings findings;
    const ddp_args *args;
    ddp_config *config;
    ddp_launch launch;
    bool launch_known;      /* who this process is; else `launch` is a single rank */
    ddp_session *session;   /* NULL: it cannot be opened */
    ddp_rendezvous *method; /* the init method, open; NULL: there is none, or it cannot be opened */
} ddp_preflight_run;

/* plugins.c: what plugins say themselves; those of a run whose session cannot be opened, one by one. */
void preflight_plugins(ddp_preflight_run *r);
/* files.c: folders that are written to, and room for the checkpoints. */
void preflight_files(ddp_preflight_run *r);
/* host.c: how many files may be open, which comes first since all else opens some; then memory, processors. */
void preflight_open_files(ddp_preflight_run *r);
void preflight_host(ddp_preflight_run *r);
/* rendezvous.c: interface, port, secret, how many ranks are started where. */
void preflight_rendezvous(ddp_preflight_run *r);

/* owner.c: "python3 (pid 77)" that listens at this port, "" where it is not known. Returns buf. */
const char *preflight_port_owner(uint16_t port, char *buf, size_t capacity);

/* Plugins of a run whose session cannot be opened; open until `close`. */
typedef struct ddp_preflight_parts {
    ddp_registry *registry;
    ddp_config config; /* read again, so that options of plugins are not there twice */
    ddp_host host;
    ddp_rendezvous method;
} ddp_preflight_parts;
void preflight_parts_open(ddp_preflight_parts *p, ddp_preflight_run *r, ddp_log *log);
void preflight_parts_close(ddp_preflight_parts *p);
