/* launch/launcher_command.c -- see launcher_command.h. */
#include "launch/launcher_command.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

void ddp_launcher_command_add(ddp_launcher_command *c, const char *argument) { c->argv[c->argc++] = argument; }

void ddp_launcher_command_free(ddp_launcher_command *c) { free(c->text); }

ddp_status ddp_launcher_command_make(ddp_launcher_command *c, const char *text, const char *install, int32_t nproc,
                                     ddp_err *err)
{
    char *rest = NULL;
    ssize_t n;

    *c = (ddp_launcher_command){.text = ddp_strdup(text, err), .install = install};
    if (c->text == NULL) return err->status;
    n = readlink("/proc/self/exe", c->program, sizeof(c->program) - 1);
    if (n < 0) return ddp_fail_errno(err, "/proc/self/exe cannot be read (is /proc mounted?)");
    c->program[n] = '\0';
    (void)snprintf(c->number, sizeof(c->number), "%d", nproc);
    for (char *word = strtok_r(c->text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        if (c->setting_count + c->argc == DDP_LAUNCHER_WORDS)
            return ddp_fail(err, DDP_ERR_INVALID, "its launcher has more than %d words", DDP_LAUNCHER_WORDS);
        if (c->argc == 0 && strchr(word, '=') != NULL)
            c->settings[c->setting_count++] = word;
        else
            c->argv[c->argc++] = strcmp(word, "%n") == 0 ? c->number : word;
    }
    if (c->argc == 0) return ddp_fail(err, DDP_ERR_INVALID, "its launcher names no program");
    ddp_launcher_command_add(c, c->program);
    return DDP_OK;
}

/* In the child. */
static void become_launcher(const ddp_launcher_command *c, const sigset_t *signals, int output, ddp_log *log)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), own = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int error;

    (void)sigprocmask(SIG_SETMASK, signals, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (null >= 0) (void)dup2(null, STDIN_FILENO);
    for (size_t i = 0; i < c->setting_count; i++) {
        char *value = strchr(c->settings[i], '=');

        *value = '\0';
        (void)setenv(c->settings[i], value + 1, 0); /* what the user has set stays */
    }
    if (output >= 0) (void)dup2(output, STDOUT_FILENO);
    if (output >= 0) (void)dup2(output, STDERR_FILENO);
    (void)execvp(c->argv[0], (char *const *)c->argv);
    error = errno;
    (void)dup2(own, STDERR_FILENO); /* this line is to be seen */
    if (error == ENOENT)
        ddp_log_line(log, DDP_LOG_ERROR,
                     "%s is not on the PATH, but starts the ranks of this backend: install %s, or name another backend",
                     c->argv[0], c->install != NULL ? c->install : "it");
    else
        ddp_log_line(log, DDP_LOG_ERROR, "%s, which starts the ranks of this backend, cannot be run: %s", c->argv[0],
                     strerror(error));
    _exit(DDP_EXIT_PLUGIN);
}

ddp_status ddp_launcher_command_start(const ddp_launcher_command *c, bool own_group, const sigset_t *signals,
                                      int output, ddp_log *log, pid_t *out, ddp_err *err)
{
    pid_t parent = getpid();

    *out = fork();
    if (*out == 0) {
        if (own_group) (void)setpgid(0, 0);
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);            /* the launcher then ends the ranks */
        if (getppid() != parent) _exit(DDP_EXIT_INTERNAL); /* it died before the line above */
        become_launcher(c, signals, output, log);
    }
    return *out < 0 ? ddp_fail_errno(err, "cannot start %s", c->argv[0]) : DDP_OK;
}
