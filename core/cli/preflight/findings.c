/* cli/preflight/findings.c -- see findings.h. */
#include "cli/preflight/findings.h"
#include <string.h>

static void add(ddp_findings *f, int finding, int exit_code, const char *what, const char *fmt, va_list ap)
{
    static const char *const names[] = {"ok", "warning", "problem"};
    char text[sizeof(f->first)];

    (void)vsnprintf(text, sizeof(text), fmt, ap);
    ddp_clean_text(text);
    if (finding == DDP_FINDING_PROBLEM && f->count[DDP_FINDING_PROBLEM] == 0) {
        ddp_copy_text(f->first, sizeof(f->first), text);
        f->exit_code = exit_code != DDP_EXIT_OK ? exit_code : DDP_EXIT_INTERNAL;
    }
    f->count[finding]++;
    ddp_text_printf(&f->lines, "  %-8s %-14s %s\n", names[finding], what, text);
}

void preflight_add(ddp_findings *f, int finding, int exit_code, const char *what, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add(f, finding, exit_code, what, fmt, ap);
    va_end(ap);
}

void preflight_report(void *sink, int finding, const char *what, const char *fmt, ...)
{
    const ddp_finding_sink *s = sink;
    va_list ap;

    va_start(ap, fmt);
    add(s->findings, finding < DDP_FINDING_OK || finding > DDP_FINDING_PROBLEM ? DDP_FINDING_PROBLEM : finding,
        s->exit_code, what, fmt, ap);
    va_end(ap);
}

void preflight_add_error(ddp_findings *f, const char *what, const ddp_err *err)
{
    int code = ddp_err_exit_code(err);

    if (what == NULL)
        what = code == DDP_EXIT_CONFIG   ? "config"
               : code == DDP_EXIT_PLUGIN ? "plugin"
               : code == DDP_EXIT_DATA   ? "data"
                                         : "start";
    preflight_add(f, DDP_FINDING_PROBLEM, code, what, "%s", err->msg);
}

bool preflight_has(const ddp_findings *f, const char *text)
{
    char part[200]; /* of a long one the end may have been cut off */

    ddp_copy_text(part, sizeof(part), text);
    ddp_clean_text(part);
    return f->lines.data != NULL && strstr(f->lines.data, part) != NULL;
}

void preflight_free(ddp_findings *f)
{
    ddp_text_free(&f->lines);
    *f = (ddp_findings){0};
}
