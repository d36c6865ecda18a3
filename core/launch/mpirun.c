/* launch/mpirun.c -- `--nproc N` with a backend that brings a launcher of its own, as mpi brings mpirun: the launcher starts
 * this program once for each rank, and this process looks after the launcher (tend.c). Which launcher, only the plugin knows. */
#include "base/sys.h"
#include "cli/cli.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_WORDS = 64 };

/* Programs of the backends that are known, and what to install. */
static const struct {
    const char *program, *package;
} known_programs[] = {{"mpirun", "openmpi-bin"}};

typedef struct launcher {
    char *text;                                              /* owns the words of the template */
    char *settings[MAX_WORDS + 1];                           /* NAME=value, for the environment */
    const char *argv[MAX_WORDS + 2 * DDP_MAX_OVERRIDES + 9]; /* the launcher, this program, its arguments */
    size_t setting_count, argc;
    char number[16], program[PATH_MAX], one_rank[80];
    int held; /* socket that keeps the port of the meeting for rank 0, or -1 */
    ddp_launched started;
} launcher;

/* ---- the command --------------------------------------------------------------------------------------------------------- */
/* "A=1 mpirun -np %n": settings in front, as a shell has them, then the words. */
static ddp_status split_template(launcher *l, const char *text, int32_t nproc, ddp_err *err)
{
    char *rest = NULL;

    l->text = strdup(text);
    if (l->text == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for the launcher's words");
    (void)snprintf(l->number, sizeof(l->number), "%d", nproc);
    for (char *word = strtok_r(l->text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        if (l->setting_count + l->argc == MAX_WORDS)
            return ddp_fail(err, DDP_ERR_INVALID, "its launcher has more than %d words", MAX_WORDS);
        if (l->argc == 0 && strchr(word, '=') != NULL)
            l->settings[l->setting_count++] = word;
        else
            l->argv[l->argc++] = strcmp(word, "%n") == 0 ? l->number : word;
    }
    l->started.name = l->argv[0];
    return l->argc > 0 ? DDP_OK : ddp_fail(err, DDP_ERR_INVALID, "its launcher names no program");
}

/* A port of loopback for the ranks to meet at. The socket stays bound, not listening, until the run ends, so that the port is
 * given to nobody else; rank 0 may bind it as well, since both sides set SO_REUSEADDR. */
static ddp_status choose_meeting(launcher *l, ddp_err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(a);
    int one = 1;

    l->held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->held < 0 || setsockopt(l->held, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(l->held, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        getsockname(l->held, (struct sockaddr *)&a, &length) != 0)
        return ddp_fail_errno(err, "cannot take a port of 127.0.0.1");
    (void)snprintf(l->one_rank, sizeof(l->one_rank), "--one-rank=tcp://127.0.0.1:%u", (unsigned)ntohs(a.sin_port));
    return DDP_OK;
}

static void add(launcher *l, const char *word) { l->argv[l->argc++] = word; }

/* The same arguments with --one-rank for --nproc: the launcher's variables tell each rank who it is, whatever rank the config
 * has. */
static ddp_status build_command(launcher *l, const ddp_args *args, const ddp_launch *first, ddp_err *err)
{
    ssize_t n = readlink("/proc/self/exe", l->program, sizeof(l->program) - 1);

    if (n < 0) return ddp_fail_errno(err, "/proc/self/exe cannot be read (is /proc mounted?)");
    l->program[n] = '\0';
    add(l, l->program);
    if (args->eval) add(l, "eval");
    if (args->profile) add(l, "--profile");
    if (args->checkpoint != NULL) {
        add(l, "--checkpoint");
        add(l, args->checkpoint);
    }
    add(l, "-c");
    add(l, args->config_path);
    for (size_t i = 0; i < args->override_count; i++) {
        add(l, "--set");
        add(l, args->overrides[i]);
    }
    ddp_copy_text(l->one_rank, sizeof(l->one_rank), "--one-rank");
    if (first->url[0] == '\0') DDP_TRY(choose_meeting(l, err));
    add(l, l->one_rank);
    return DDP_OK;
}

/* ---- the launcher's process ---------------------------------------------------------------------------------------------- */
/* In the child. A group of its own: a key of the terminal reaches this program's parent alone, which asks the ranks itself. */
static void child(const launcher *l, pid_t parent, const sigset_t *signals, int report)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(DDP_EXIT_INTERNAL); /* it died before the line above */
    (void)sigprocmask(SIG_SETMASK, signals, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (null >= 0) (void)dup2(null, STDIN_FILENO);
    for (size_t i = 0; i < l->setting_count; i++) {
        char *value = strchr(l->settings[i], '=');

        *value = '\0';
        (void)setenv(l->settings[i], value + 1, 0); /* what the user has set stays */
    }
    (void)execvp(l->argv[0], (char *const *)l->argv);
    if (write(report, &errno, sizeof(errno)) < 0) { /* the parent sees the exit code then */
    }
    _exit(DDP_EXIT_PLUGIN);
}

static ddp_status not_started(const char *program, int error, ddp_err *err)
{
    for (size_t i = 0; i < DDP_COUNT(known_programs) && error == ENOENT; i++)
        if (strcmp(program, known_programs[i].program) == 0)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "%s is not on the PATH, but starts the ranks of this backend: install the Debian package "
                            "%s, or name another backend",
                            program, known_programs[i].package);
    errno = error;
    return ddp_fail_errno(err, "%s, which starts the ranks of this backend, cannot be run", program);
}

static ddp_status start(launcher *l, const sigset_t *signals, ddp_err *err)
{
    int report[2], error = 0;
    pid_t parent = getpid(), pid;
    ssize_t n;

    if (pipe2(report, O_CLOEXEC) != 0) return ddp_fail_errno(err, "cannot open a pipe");
    ddp_mpirun_prepare(&l->started);
    pid = l->started.pid = fork();
    if (pid == 0) child(l, parent, signals, report[1]);
    (void)close(report[1]);
    if (pid < 0) (void)ddp_fail_errno(err, "cannot start %s", l->argv[0]);
    do n = pid < 0 ? 0 : read(report[0], &error, sizeof(error)); /* ends when the program has begun */
    while (n < 0 && errno == EINTR);
    (void)close(report[0]);
    if (n != (ssize_t)sizeof(error)) return pid < 0 ? err->status : DDP_OK;
    (void)waitpid(pid, NULL, 0);
    return not_started(l->argv[0], error, err);
}

static int run(const ddp_backend_ops *ops, const ddp_args *args, const ddp_launch *first, ddp_log *log)
{
    launcher *l = calloc(1, sizeof(*l));
    sigset_t watched, before;
    ddp_err err = {0};
    int code = DDP_EXIT_PLUGIN;

    if (l == NULL) return DDP_EXIT_INTERNAL;
    l->held = -1;
    l->started = (ddp_launched){.nproc = first->nproc, .clean = ops->launcher_clean};
    ddp_choose_signals(&watched);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    if (split_template(l, ops->launcher, first->nproc, &err) == DDP_OK &&
        build_command(l, args, first, &err) == DDP_OK && start(l, &before, &err) == DDP_OK)
        code = ddp_mpirun_supervise(&l->started, &watched, log);
    else
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    if (l->held >= 0) (void)close(l->held);
    free(l->text);
    free(l);
    return code;
}

/* ---- which way -------------------------------------------------------------------------------------------------------------- */
/* The chosen backend where it has a launcher; *out is NULL where it has none, or cannot be found, which the ranks will say.
 * Only the bytes of the file are read unless they say that it has one. */
static ddp_status find_launcher(ddp_registry *r, const char *backend, const ddp_backend_ops **out, ddp_err *err)
{
    ddp_gate_facts facts;
    ddp_loaded *loaded;

    *out = NULL;
    if (ddp_registry_facts(r, DDP_KIND_BACKEND, backend, &facts, err) != DDP_OK) return DDP_OK;
    if ((facts.flags & DDP_PLUGIN_F_LAUNCHER) == 0) return DDP_OK;
    DDP_TRY(ddp_registry_load(r, DDP_KIND_BACKEND, backend, &loaded, err));
    *out = loaded->ops;
    return DDP_OK;
}

static int refuse_part(const ddp_launch *first, const char *backend, ddp_log *log)
{
    ddp_log_line(
        log, DDP_LOG_ERROR,
        "backend \"%s\" starts all ranks at once by a launcher of its own, so --nproc must be world_size (%d, %s), "
        "not %d; for ranks on several hosts run that launcher yourself, without --nproc",
        backend, first->world, first->world_where, first->nproc);
    return DDP_EXIT_CONFIG;
}

int ddp_start_ranks(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_log *log)
{
    const char *backend = config->group->backend;
    const ddp_backend_ops *ops = NULL;
    ddp_registry *r = NULL;
    ddp_err err = {0};
    int code;

    if (ddp_registry_open(log, &config->plugin_path, &r, &err) != DDP_OK ||
        find_launcher(r, backend, &ops, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
        code = DDP_EXIT_PLUGIN;
    } else if (ops == NULL) {
        ddp_registry_close(r); /* nothing was loaded: the ranks inherit nothing */
        return ddp_supervise(args, config, first, log);
    } else {
        code = first->nproc == first->world ? run(ops, args, first, log) : refuse_part(first, backend, log);
    }
    if (r != NULL) ddp_registry_close(r);
    return code;
}
