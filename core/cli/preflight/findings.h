/* cli/preflight/findings.h -- what the checks of a run have found, one line each: ok, warning, problem with its fix. */
#pragma once

#include "base/log.h"

typedef struct ddp_findings {
    ddp_text lines;
    uint32_t count[DDP_FINDING_PROBLEM + 1]; /* by DDP_FINDING_* */
    int exit_code;                           /* that of the first problem, 0: there is none */
    char first[512];                         /* its text */
} ddp_findings;

/* `exit_code`: what the run would end with because of a problem. `what`: at most 13 characters. */
void preflight_add(ddp_findings *f, int finding, int exit_code, const char *what, const char *fmt, ...)
    DDP_PRINTF_(5, 6);
/* A problem from an error, with the error's exit code; `what` NULL: chosen by that. */
void preflight_add_error(ddp_findings *f, const char *what, const ddp_err *err);
/* Whether a problem says this already, maybe behind where it stands: "x.ini:3: TEXT". */
bool preflight_has(const ddp_findings *f, const char *text);
void preflight_free(ddp_findings *f);

/* For a plugin's preflight(): `ctx` is a ddp_finding_sink. */
typedef struct ddp_finding_sink {
    ddp_findings *findings;
    int exit_code;
} ddp_finding_sink;
void preflight_report(void *sink, int finding, const char *what, const char *fmt, ...) DDP_PRINTF_(4, 5);
