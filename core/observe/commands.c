/* observe/commands.c -- what to do next with a run that has ended: commands to copy from the terminal. */
#include "observe/internal.h"
#include <string.h>

/* "WHAT  ddpengine COMMAND PATH" and FILE in PATH; `more`: words behind it. */
static void command(const ddp_progress *g, const char *what, const char *of, const char *path, const char *more)
{
    ddp_text line = {0};

    ddp_text_printf(&line, "%-9s ddpengine %s", what, of);
    ddp_text_shell_path(&line, path);
    if (!line.failed) ddp_log_line(g->p.log, DDP_LOG_INFO, "%s%s", line.data, more);
    ddp_text_free(&line);
}

void observe_commands(const ddp_progress *g, const ddp_summary *s)
{
    char settings[4096];
    ddp_text more = {0};

    if (g->p.dir[0] == '\0' || s->checkpoint == NULL) return;
    (void)snprintf(settings, sizeof(settings), "%s/settings.ini", g->p.dir);
    if (s->evaluates) {
        ddp_text_printf(&more, " --checkpoint ");
        ddp_text_shell_path(&more, s->checkpoint);
        if (!more.failed) command(g, "evaluate", "eval -c ", settings, more.data);
        ddp_text_free(&more);
    }
    if (s->exit_code != DDP_EXIT_OK && s->again != NULL) command(g, "resume", "-c ", settings, s->again);
}
