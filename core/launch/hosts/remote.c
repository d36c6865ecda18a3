/* launch/hosts/remote.c -- see remote.h. */
#include "launch/hosts/remote.h"
#include "base/sys.h"
#include "launch/hosts/node.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_BYTES = 65536, REST_MS = 1000, SEND_MS = 10000 };

/* ---- starting ---------------------------------------------------------------------------------------------------- */
static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0) (void)close(pair[i]);
}

static void be_ssh(int in, int out, int err, char *const *argv)
{
    sigset_t none;

    (void)setpgid(0, 0); /* a terminal's Ctrl-C is the launcher's, which tells the hosts */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0) _exit(126);
    (void)execvp(argv[0], argv);
    (void)dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(errno == ENOENT ? 124 : 125);
}

ddp_status remote_start(remote *r, const launch_host *host, char *const *argv, ddp_err *err)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, error[2] = {-1, -1};

    *r = (remote){.host = host, .started_ms = ddp_now_ms(), .in = -1, .out.fd = -1, .err.fd = -1};
    r->out.line = ddp_alloc(LINE_BYTES, err);
    r->err.line = ddp_alloc(LINE_BYTES, err);
    if (r->out.line == NULL || r->err.line == NULL) return DDP_ERR_NOMEM;
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0 ||
        (r->pid = fork()) < 0) {
        (void)ddp_fail_errno(err, "cannot start %s for host %s", argv[0], host->name);
        r->pid = 0;
        close_pair(in);
        close_pair(out);
        close_pair(error);
        return err->status;
    }
    if (r->pid == 0) be_ssh(in[0], out[1], error[1], argv);
    (void)close(in[0]);
    (void)close(out[1]);
    (void)close(error[1]);
    r->in = in[1];
    r->out.fd = out[0];
    r->err.fd = error[0];
    (void)fcntl(r->in, F_SETFL, O_NONBLOCK);
    (void)fcntl(r->out.fd, F_SETFL, O_NONBLOCK);
    (void)fcntl(r->err.fd, F_SETFL, O_NONBLOCK);
    return DDP_OK;
}

void remote_send(remote *r, const char *text, size_t length)
{
    int64_t deadline = ddp_now_ms() + SEND_MS;

    while (length > 0 && r->in >= 0) {
        ssize_t n = write(r->in, text, length);
        struct pollfd p = {.fd = r->in, .events = POLLOUT};

        if (n > 0) {
            text += n;
            length -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN && ddp_now_ms() < deadline) {
            (void)poll(&p, 1, 100);
        } else if (n < 0 && errno != EINTR) {
            remote_close(r);
        }
    }
}

void remote_close(remote *r)
{
    if (r->in >= 0) (void)close(r->in);
    r->in = -1;
}

void remote_free(remote *r)
{
    remote_close(r);
    if (r->out.fd >= 0) (void)close(r->out.fd);
    if (r->err.fd >= 0) (void)close(r->err.fd);
    free(r->out.line);
    free(r->err.line);
}

/* ---- its lines --------------------------------------------------------------------------------------------------- */
static void take_hello(remote *r, const char *line)
{
    char version[64];

    if (sscanf(line, LAUNCH_HELLO " %63s %d", version, &r->port) != 2) return;
    if (strcmp(version, DDP_VERSION) != 0) {
        (void)snprintf(r->problem, sizeof(r->problem),
                       "host %s has ddpengine %s, this one %s: install the same one on all hosts", r->host->name,
                       version, DDP_VERSION);
        remote_close(r);
        return;
    }
    r->state = REMOTE_READY;
}

static void take_line(remote *r, const remote_stream *s, char *line)
{
    const char *hello = strstr(line, LAUNCH_HELLO); /* behind what a login script may have written without a newline */

    if (r->state == REMOTE_CONNECTING && s == &r->out && hello != NULL) {
        take_hello(r, hello);
        return;
    }
    line[strcspn(line, "\r")] = '\0';
    if (r->state == REMOTE_CONNECTING && line[0] != '\0') /* what ssh and a login say, shown where it goes wrong */
        ddp_copy_text(r->last, sizeof(r->last), line);
    if (r->state != REMOTE_CONNECTING)
        (void)dprintf(s == &r->out ? STDOUT_FILENO : STDERR_FILENO, "%s: %s\n", r->host->name, line);
}

/* A NUL byte that a rank writes is shown as a space: it ends no line. */
static void replace_nul(char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\0') text[i] = ' ';
}

static void read_stream(remote *r, remote_stream *s)
{
    while (s->fd >= 0) {
        ssize_t n = read(s->fd, s->line + s->length, LINE_BYTES - 1 - s->length);
        char *from = s->line, *newline;
        size_t was;

        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        was = s->length;
        s->length += n > 0 ? (size_t)n : 0;
        s->line[s->length] = '\0';
        replace_nul(s->line + was, s->length - was);
        while ((newline = strchr(from, '\n')) != NULL) {
            *newline = '\0';
            take_line(r, s, from);
            from = newline + 1;
        }
        s->length -= (size_t)(from - s->line);
        memmove(s->line, from, s->length + 1);
        if (s->length > 0 && (n <= 0 || s->length + 1 == LINE_BYTES)) {
            take_line(r, s, s->line);
            s->length = 0;
        }
        if (n > 0) continue;
        (void)close(s->fd);
        s->fd = -1;
    }
}

void remote_read(remote *r, const char *program, const char *ssh)
{
    read_stream(r, &r->err); /* first, so that what went wrong is known when it ends */
    read_stream(r, &r->out);
    remote_reap(r, program, ssh);
}

/* ---- its end ----------------------------------------------------------------------------------------------------- */
static bool says(const remote *r, const char *part) { return strstr(r->last, part) != NULL; }

/* ssh itself has failed before the node answered: 255. */
static const char *ssh_advice(const remote *r)
{
    if (says(r, "Permission denied"))
        return "no key of this user is accepted there: try `ssh-copy-id`, or name the user, USER@HOST:RANKS";
    if (says(r, "Host key verification failed") || says(r, "IDENTIFICATION HAS CHANGED"))
        return "this host does not know its key: connect once by hand";
    if (says(r, "resolve hostname")) return "correct the name in --hosts";
    return "look at its name, its sshd, and the port, --ssh \"ssh -p PORT\"";
}

static void explain_connecting(remote *r, int code, const char *program, const char *ssh)
{
    const char *last = r->last[0] != '\0' ? r->last : "no word of it";

    if (code == 124)
        (void)snprintf(r->problem, sizeof(r->problem),
                       "%.300s: install it (openssh-client), or name another one by --ssh", last);
    else if (code == 127)
        (void)snprintf(r->problem, sizeof(r->problem),
                       "host %s has no %s (%.300s): install ddpengine there, or name its path by --program",
                       r->host->name, program, last);
    else if (code == 126)
        (void)snprintf(r->problem, sizeof(r->problem), "host %s cannot run %s: %.300s", r->host->name, program, last);
    else if (code == 255)
        (void)snprintf(r->problem, sizeof(r->problem), "host %s is not reached by %s: %.300s; %s", r->host->name, ssh,
                       last, ssh_advice(r));
    else
        (void)snprintf(
            r->problem, sizeof(r->problem),
            "host %s: %s ended with exit code %d and did not answer: %.300s; it may be another version than %s here",
            r->host->name, program, code, last, DDP_VERSION);
}

void remote_give_up(remote *r)
{
    if (r->problem[0] != '\0') return;
    (void)snprintf(r->problem, sizeof(r->problem),
                   "host %s has not answered for %.0f s ([group] rendezvous_timeout): %.300s; log in there by hand",
                   r->host->name, (double)(ddp_now_ms() - r->started_ms) / 1000,
                   r->last[0] != '\0' ? r->last : "no word of it");
    remote_close(r);
    if (!r->reaped) (void)kill(r->pid, SIGTERM);
}

void remote_reap(remote *r, const char *program, const char *ssh)
{
    int code;

    if (r->state == REMOTE_ENDED) return;
    if (!r->reaped && waitpid(r->pid, &r->status, WNOHANG) == r->pid) {
        r->reaped = true;
        r->reaped_ms = ddp_now_ms();
    }
    /* a process that was left behind may hold the pipes */
    if (!r->reaped || ((r->out.fd >= 0 || r->err.fd >= 0) && ddp_now_ms() - r->reaped_ms < REST_MS)) return;
    code = WIFSIGNALED(r->status) ? 255 : WEXITSTATUS(r->status);
    r->code = code;
    if (r->state == REMOTE_CONNECTING && r->problem[0] == '\0') explain_connecting(r, code, program, ssh);
    if (r->state == REMOTE_CONNECTING) r->code = DDP_EXIT_RENDEZVOUS;
    if (r->state != REMOTE_CONNECTING && code == 255) {
        (void)snprintf(r->problem, sizeof(r->problem),
                       "the connection to host %s is lost; its ranks are asked to end there", r->host->name);
        r->code = DDP_EXIT_PEER;
    }
    r->state = REMOTE_ENDED;
    remote_close(r);
}
