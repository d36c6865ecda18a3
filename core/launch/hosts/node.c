/* launch/hosts/node.c -- see node.h. One thread; the ranks are those of the child, which is this program again with
 * --nproc, and has its supervisor. */
#include "launch/hosts/node.h"
#include "base/sys.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 512, LINE_MAX_BYTES = 65536, END_MS = 60000 };

typedef struct node {
    char line[LINE_MAX_BYTES];
    size_t length;
    bool overlong;
    char *arguments[ARGUMENTS_MAX];
    size_t argument_count;
    int secret_fd; /* or -1 */
    pid_t pid;     /* 0: not started */
    sigset_t before;
    bool gone;         /* the launcher is */
    int64_t killed_at; /* ms; 0: not to be killed yet */
    int code;          /* of what cannot be started; 0: go on */
    ddp_log *log;
} node;

/* One that nobody listens at now. */
static int free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t length = sizeof(a);

    if (fd < 0) return 0;
    if (bind(fd, (const struct sockaddr *)&a, length) == 0 && getsockname(fd, (struct sockaddr *)&a, &length) == 0)
        port = ntohs(a.sin_port);
    (void)close(fd);
    return port;
}

/* ---- what to run ------------------------------------------------------------------------------------------------- */
static void refuse(node *n, const char *what, const char *detail)
{
    ddp_log_line(n->log, DDP_LOG_ERROR, "%s%s", what, detail);
    n->code = DDP_EXIT_CONFIG;
}

/* In memory that has no name; the mode is what a secret_file must have. */
static void take_secret(node *n, const char *hex)
{
    ddp_err err;

    n->secret_fd = memfd_create("ddpengine secret", 0);
    if (n->secret_fd < 0 || fchmod(n->secret_fd, 0600) != 0 ||
        ddp_write_all(n->secret_fd, hex, strlen(hex), "the secret of the run", &err) != DDP_OK)
        refuse(n, "cannot make memory for the secret of the run", "");
}

static void add_argument(node *n, const char *word)
{
    ddp_err err;

    if (n->argument_count + 1 >= ARGUMENTS_MAX)
        refuse(n, "too many arguments", "");
    else if ((n->arguments[n->argument_count++] = ddp_strdup(word, &err)) == NULL)
        refuse(n, "out of memory", "");
}

static void start(node *n)
{
    char set[64];

    if (n->secret_fd >= 0) {
        (void)snprintf(set, sizeof(set), "group.secret_file=/proc/self/fd/%d", n->secret_fd);
        add_argument(n, "--set");
        add_argument(n, set);
    }
    if (n->code != 0) return;
    n->pid = fork();
    if (n->pid < 0) {
        refuse(n, "cannot start a process: ", strerror(errno));
        n->pid = 0;
    }
    if (n->pid != 0) return;
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)sigprocmask(SIG_SETMASK, &n->before, NULL);
    (void)close(STDIN_FILENO); /* the program opens it again */
    (void)execv("/proc/self/exe", n->arguments);
    _exit(127);
}

static void take_line(node *n, char *line)
{
    char *value = strchr(line, ' ');

    if (value != NULL) *value++ = '\0';
    if (n->code != 0) return;
    if (strcmp(line, "kill") == 0 && n->pid > 0) {
        (void)kill(n->pid, SIGKILL);
    } else if (strcmp(line, "signal") == 0 && value != NULL && n->pid > 0) {
        (void)kill(n->pid, atoi(value));
    } else if (strcmp(line, "end") == 0 && n->pid == 0) {
        start(n);
    } else if (value == NULL || n->pid > 0) {
        return;
    } else if (strcmp(line, "arg") == 0) {
        add_argument(n, value);
    } else if (strcmp(line, "variable") == 0 && strchr(value, '=') != NULL) {
        *strchr(value, '=') = '\0';
        (void)setenv(value, value + strlen(value) + 1, 1);
    } else if (strcmp(line, "secret") == 0) {
        take_secret(n, value);
    } else if (strcmp(line, "dir") == 0 && chdir(value) != 0) {
        ddp_log_line(n->log, DDP_LOG_ERROR,
                     "cannot go to the folder %s on this host: %s. Make it, or name another one by --chdir", value,
                     strerror(errno));
        n->code = DDP_EXIT_CONFIG;
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */
static void launcher_gone(node *n)
{
    n->gone = true;
    if (n->pid == 0) {
        n->code = n->code != 0 ? n->code : DDP_EXIT_PEER;
        return;
    }
    ddp_log_line(n->log, DDP_LOG_WARN, "the launcher is gone: the ranks of this host are asked to end");
    (void)kill(n->pid, SIGTERM);
    n->killed_at = ddp_now_ms() + END_MS;
}

static void read_lines(node *n)
{
    char *newline, *from = n->line;
    ssize_t got = read(STDIN_FILENO, n->line + n->length, sizeof(n->line) - 1 - n->length);

    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {
        launcher_gone(n);
        return;
    }
    n->length += (size_t)got;
    n->line[n->length] = '\0';
    while ((newline = memchr(from, '\n', n->length - (size_t)(from - n->line))) != NULL) {
        *newline = '\0';
        take_line(n, from);
        from = newline + 1;
    }
    n->length -= (size_t)(from - n->line);
    memmove(n->line, from, n->length + 1);
    OPENSSL_cleanse(n->line + n->length, sizeof(n->line) - n->length); /* the secret may have been there */
    if (n->length + 1 == sizeof(n->line)) refuse(n, "a line of the launcher is too long", "");
}

static void read_signals(const node *n, int fd)
{
    struct signalfd_siginfo info;

    while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        if (info.ssi_signo != SIGCHLD && n->pid > 0) (void)kill(n->pid, (int)info.ssi_signo);
}

/* The exit code of the ranks. */
static int serve(node *n, int signals)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = n->gone ? -1 : STDIN_FILENO, .events = POLLIN},
                                {.fd = signals, .events = POLLIN}};
        int status;

        if (n->pid > 0 && waitpid(n->pid, &status, WNOHANG) == n->pid)
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (n->pid == 0 && n->code != 0) return n->code;
        if (n->killed_at != 0 && ddp_now_ms() >= n->killed_at) (void)kill(n->pid, SIGKILL);
        if (poll(fds, 2, n->killed_at != 0 ? 1000 : -1) < 0 && errno != EINTR) return DDP_EXIT_INTERNAL;
        if ((fds[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_lines(n);
        if ((fds[1].revents & POLLIN) != 0) read_signals(n, signals);
    }
}

int launch_node_run(ddp_log *log)
{
    static const int watched[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    node *n = calloc(1, sizeof(*n));
    int signals, code = DDP_EXIT_INTERNAL;
    sigset_t set;

    if (n == NULL) return DDP_EXIT_INTERNAL;
    n->log = log;
    n->secret_fd = -1;
    add_argument(n, "ddpengine");
    (void)sigemptyset(&set);
    for (size_t i = 0; i < DDP_COUNT(watched); i++) (void)sigaddset(&set, watched[i]);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)sigprocmask(SIG_BLOCK, &set, &n->before);
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    (void)printf(LAUNCH_HELLO " " DDP_VERSION " %d\n", free_port());
    if (fflush(stdout) == 0 && signals >= 0) code = serve(n, signals);
    if (signals >= 0) (void)close(signals);
    if (n->secret_fd >= 0) (void)close(n->secret_fd);
    for (size_t i = 0; i < n->argument_count; i++) free(n->arguments[i]);
    OPENSSL_cleanse(n, sizeof(*n));
    free(n);
    return code;
}
