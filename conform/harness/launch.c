/* conform/harness/launch.c -- ranks of a backend that must be started by its own launcher: the words of its template, this program, and
 * where the board is. In the ranks: who they are, from the launcher's variables. */
#include "conform/harness/internal.h"
#include "base/launcher.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MAX_WORDS = 64 };

/* ---- the parent -------------------------------------------------------------------------------------------------------------- */
/* In the child. NAME=value in front of the words goes to the environment, where the user has not set that name. */
static void become_launcher(char *text, uint32_t world, char *program, char *board, const sigset_t *signals)
{
    char number[16], command[] = "conform", option[] = "--shared", *argv[MAX_WORDS + 5], *rest = NULL;
    size_t argc = 0;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)sigprocmask(SIG_SETMASK, signals, NULL);
    if (null >= 0) (void)dup2(null, STDIN_FILENO);
    (void)snprintf(number, sizeof(number), "%u", world);
    for (char *word = strtok_r(text, " ", &rest); word != NULL && argc < MAX_WORDS; word = strtok_r(NULL, " ", &rest)) {
        char *value = argc == 0 ? strchr(word, '=') : NULL;

        if (value != NULL) {
            *value = '\0';
            (void)setenv(word, value + 1, 0);
        } else {
            argv[argc++] = strcmp(word, "%n") == 0 ? number : word;
        }
    }
    argv[argc++] = program;
    argv[argc++] = command;
    argv[argc++] = option;
    argv[argc++] = board;
    argv[argc] = NULL;
    (void)execvp(argv[0], argv);
    _exit(DDP_EXIT_PLUGIN);
}

ddp_status ddp_launch_ranks(ddp_world *w, const sigset_t *signals, pid_t *out, ddp_err *err)
{
    char board[64], program[PATH_MAX], *text;
    pid_t parent = getpid();
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);

    if (n < 0) return ddp_fail_errno(err, "/proc/self/exe cannot be read (is /proc mounted?)");
    program[n] = '\0';
    text = ddp_strdup(w->launcher, err);
    if (text == NULL) return err->status;
    (void)snprintf(board, sizeof(board), "/proc/%d/fd/%d", (int)parent, w->board_fd);
    *out = fork();
    if (*out == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* the launcher then ends the ranks */
        if (getppid() != parent) _exit(DDP_EXIT_INTERNAL);
        become_launcher(text, w->board->world, program, board, signals);
    }
    free(text);
    return *out < 0 ? ddp_fail_errno(err, "cannot start a process") : DDP_OK;
}

/* ---- a rank -------------------------------------------------------------------------------------------------------------------- */
int ddp_conform_rank(const char *path, ddp_log *log)
{
    ddp_launcher who;
    ddp_shared_results *b = NULL;
    ddp_err err = {0};
    int code;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ddp_shared_results_map(path, &b, &err) != DDP_OK || ddp_launcher_find(false, &who, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    } else if (who.kind == DDP_LAUNCHER_NONE || who.world != (int32_t)b->world || who.rank < 0 ||
               who.rank >= who.world) {
        ddp_log_line(log, DDP_LOG_ERROR, "the launcher does not say which of %u ranks this is", b->world);
    } else {
        atomic_store(&b->pids[who.rank], (int)getpid());
        code = ddp_rank_process_run(b, (uint32_t)who.rank, -1, NULL);
        atomic_store(&b->pids[who.rank], 0);
        if (code != DDP_EXIT_OK) _exit(code); /* something may stand in the plugin still */
        ddp_shared_results_free(b, -1);
        return code;
    }
    ddp_shared_results_free(b, -1);
    return DDP_EXIT_INTERNAL;
}
