/* launch/hosts/hosts.c -- see hosts.h. One thread. */
#include "launch/hosts/hosts.h"
#include "base/sys.h"
#include "launch/hosts/node.h"
#include "launch/hosts/remote.h"
#include "launch/signals.h"
#include "net/identity.h"
#include <errno.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* After the first failure the ranks of the other hosts end by themselves, as they hear of it; those that wait for a
 * host at the rendezvous do not. Then they are asked, and at last the connection is closed, which ends them too. */
enum { GRACE_MS = 2000, TERM_MS = 15000, TICK_MS = 200, SAY_MS = 10000, SSH_WORDS_MAX = 64 };

typedef struct launcher {
    const launch_request *q;
    remote *remotes;
    char secret[LAUNCH_SECRET_HEX + 1];
    char *ssh_words; /* argv points into it */
    char *argv[SSH_WORDS_MAX + 8];
    size_t host_word; /* of argv */
    int code;         /* of the first failure */
    int64_t failed_ms;
    int asked; /* stages of ending them: 0 none, 1 asked, 2 closed */
    int signal;
    bool said; /* which host is awaited */
    ddp_log *log;
} launcher;

/* ---- what ssh is given ------------------------------------------------------------------------------------------- */
static ddp_status build_command(launcher *l, ddp_text *command, ddp_err *err)
{
    size_t n = 0;
    char *rest;

    l->ssh_words = ddp_strdup(l->q->ssh, err);
    if (l->ssh_words == NULL) return DDP_ERR_NOMEM;
    for (char *word = strtok_r(l->ssh_words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        if (n == SSH_WORDS_MAX) return ddp_fail(err, DDP_ERR_CONFIG, "--ssh has too many words");
        l->argv[n++] = word;
    }
    if (n == 0) return ddp_fail(err, DDP_ERR_CONFIG, "--ssh is empty: it is the command that reaches a host, as ssh");
    /* of the user's own options for the same the first counts */
    l->argv[n++] = (char *)"-oBatchMode=yes";
    l->argv[n++] = (char *)"-oConnectTimeout=15";
    l->argv[n++] = (char *)"-oServerAliveInterval=15";
    l->argv[n++] = (char *)"-T";
    l->argv[n++] = (char *)"--"; /* what follows is no option */
    l->host_word = n++;
    ddp_text_append(command, "exec ", 5);
    launch_shell_quote(command, l->q->program);
    ddp_text_printf(command, " launch --node");
    l->argv[n++] = command->data;
    l->argv[n] = NULL;
    return command->failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory") : DDP_OK;
}

static ddp_status make_secret(launcher *l, ddp_err *err)
{
    unsigned char bytes[LAUNCH_SECRET_HEX / 2];

    if (l->q->own_secret) return DDP_OK;
    DDP_TRY(ddp_secret_random(bytes, sizeof(bytes), err));
    for (size_t i = 0; i < sizeof(bytes); i++) (void)snprintf(l->secret + 2 * i, 3, "%02x", bytes[i]);
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return DDP_OK;
}

/* By itself, so that no text that grows leaves copies of it. */
static void send_secret(const launcher *l, remote *r)
{
    char line[LAUNCH_SECRET_HEX + 16];
    int n = snprintf(line, sizeof(line), "secret %s\n", l->secret);

    if (l->secret[0] != '\0') remote_send(r, line, (size_t)n);
    OPENSSL_cleanse(line, sizeof(line));
}

/* Everything by standard input: a command line is seen by all users of the host. */
static void send_task(launcher *l, remote *r, int port)
{
    const launch_request *q = l->q;
    const launch_host *h = r->host;
    ddp_text t = {0};

    ddp_text_printf(&t, "dir %s\n", q->dir);
    for (size_t i = 0; i < q->env_count; i++) ddp_text_printf(&t, "variable %s\n", q->env[i]);
    ddp_text_printf(&t, "arg -c\narg %s\n", q->config_path);
    for (size_t i = 0; i < q->set_count; i++) ddp_text_printf(&t, "arg --set\narg %s\n", q->sets[i]);
    ddp_text_printf(&t, "arg --set\narg group.nodes=\narg --set\narg group.rank=%d\n", (int)h->first_rank);
    ddp_text_printf(&t, "arg --set\narg group.world_size=%d\n",
                    (int)(q->hosts[q->host_count - 1].first_rank + q->hosts[q->host_count - 1].ranks));
    if (!q->own_init_method)
        ddp_text_printf(&t, "arg --set\narg group.init_method=tcp://%s:%d\n", q->hosts[0].name, port);
    if (h->ranks == 1)
        ddp_text_printf(&t, "arg --supervise\n");
    else
        ddp_text_printf(&t, "arg --nproc\narg %d\n", (int)h->ranks);
    ddp_text_printf(&t, "end\n");
    if (!t.failed) {
        send_secret(l, r);
        remote_send(r, t.data, t.length);
    }
    ddp_text_free(&t);
    r->state = REMOTE_RUNNING;
}

/* Rank 0's host says which port is free there. */
static void send_tasks(launcher *l)
{
    const remote *first = &l->remotes[0];

    if (first->state == REMOTE_CONNECTING || l->failed_ms != 0 || l->signal != 0) return;
    for (size_t i = 0; i < l->q->host_count; i++)
        if (l->remotes[i].state == REMOTE_READY)
            send_task(l, &l->remotes[i], l->q->port > 0 ? l->q->port : first->port);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */
static void fail(launcher *l, int code)
{
    if (l->failed_ms != 0) return;
    l->code = code;
    l->failed_ms = ddp_now_ms();
}

/* `had_ranks`: it was told what to run. */
static void host_ended(launcher *l, const remote *r, bool had_ranks)
{
    if (r->problem[0] != '\0' && l->signal == 0) ddp_log_line(l->log, DDP_LOG_ERROR, "%s", r->problem);
    if (r->code == DDP_EXIT_OK) return;
    if (l->signal != 0 && !had_ranks) {
        fail(l, 128 + l->signal);
        return;
    }
    if (l->q->without_loss && ddp_exit_is_loss(r->code) && l->signal == 0) {
        ddp_log_line(l->log, DDP_LOG_WARN, "host %s has ended with exit code %d: the others go on (min_world)",
                     r->host->name, r->code);
        l->code = l->code == 0 ? r->code : l->code; /* unless others end well */
        return;
    }
    fail(l, r->code);
}

static void send_signal(launcher *l, int sig)
{
    char line[32];
    int n = snprintf(line, sizeof(line), "signal %d\n", sig);

    for (size_t i = 0; i < l->q->host_count; i++) {
        remote *r = &l->remotes[i];

        if (r->state == REMOTE_RUNNING)
            remote_send(r, line, (size_t)n);
        else
            remote_close(r);
        if (r->state == REMOTE_CONNECTING && !r->reaped) (void)kill(r->pid, SIGTERM);
    }
}

static void end_others(launcher *l)
{
    int64_t since = ddp_now_ms() - l->failed_ms;

    if (l->failed_ms == 0) return;
    if (l->asked == 0 && since >= GRACE_MS) {
        l->asked = 1;
        send_signal(l, SIGTERM);
    } else if (l->asked == 1 && since >= GRACE_MS + TERM_MS) {
        l->asked = 2;
        for (size_t i = 0; i < l->q->host_count; i++) {
            remote_send(&l->remotes[i], "kill\n", 5);
            remote_close(&l->remotes[i]);
        }
    } else if (l->asked == 2 && since >= GRACE_MS + 2 * TERM_MS) {
        for (size_t i = 0; i < l->q->host_count; i++)
            if (!l->remotes[i].reaped) (void)kill(l->remotes[i].pid, SIGKILL);
    }
}

/* An ssh that neither answers nor ends, as a login that asks for something. */
static void watch_connecting(launcher *l)
{
    const int64_t now = ddp_now_ms(), say = DDP_MIN_OF((int64_t)SAY_MS, l->q->answer_ms / 2);
    const remote *awaited = NULL;
    size_t more = 0;

    for (size_t i = 0; i < l->q->host_count; i++) {
        remote *r = &l->remotes[i];

        if (r->state != REMOTE_CONNECTING) continue;
        if (now - r->started_ms >= l->q->answer_ms) {
            remote_give_up(r);
            fail(l, DDP_EXIT_RENDEZVOUS);
        } else if (now - r->started_ms >= say) {
            more += awaited != NULL;
            awaited = awaited != NULL ? awaited : r;
        }
    }
    if (awaited == NULL || l->said || l->failed_ms != 0 || l->signal != 0) return;
    l->said = true;
    ddp_log_line(l->log, DDP_LOG_WARN, "waiting for %zu of %zu hosts to answer, host %s first: %s", more + 1,
                 l->q->host_count, awaited->host->name, awaited->last[0] != '\0' ? awaited->last : "no word of it");
}

/* Asked once, they finish the step and leave; asked again, they are killed. */
static void take_signals(launcher *l, int fd)
{
    struct signalfd_siginfo info;

    while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (l->signal == 0) {
            l->signal = (int)info.ssi_signo;
            launch_log_asked_to_end(l->log, l->signal);
            send_signal(l, l->signal);
            continue;
        }
        for (size_t i = 0; i < l->q->host_count; i++) {
            remote *r = &l->remotes[i];

            remote_send(r, "kill\n", 5);
            remote_close(r);
            if (r->state == REMOTE_CONNECTING && !r->reaped) (void)kill(r->pid, SIGKILL);
        }
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */
static size_t left(const launcher *l)
{
    size_t n = 0;

    for (size_t i = 0; i < l->q->host_count; i++) n += l->remotes[i].state != REMOTE_ENDED;
    return n;
}

static void look(launcher *l)
{
    for (size_t i = 0; i < l->q->host_count; i++) {
        remote *r = &l->remotes[i];
        bool had_ranks = r->state == REMOTE_RUNNING;

        if (r->state == REMOTE_ENDED) continue;
        remote_read(r, l->q->program, l->argv[0]);
        if (r->state == REMOTE_ENDED) host_ended(l, r, had_ranks);
    }
    send_tasks(l);
    watch_connecting(l);
    end_others(l);
}

static int serve(launcher *l, int signals, struct pollfd *fds)
{
    bool well = false;

    while (left(l) > 0) {
        nfds_t n = 0;

        fds[n++] = (struct pollfd){.fd = signals, .events = POLLIN};
        for (size_t i = 0; i < l->q->host_count; i++) {
            fds[n++] = (struct pollfd){.fd = l->remotes[i].out.fd, .events = POLLIN};
            fds[n++] = (struct pollfd){.fd = l->remotes[i].err.fd, .events = POLLIN};
        }
        if (poll(fds, n, TICK_MS) < 0 && errno != EINTR) return DDP_EXIT_INTERNAL;
        take_signals(l, signals);
        look(l);
    }
    for (size_t i = 0; i < l->q->host_count; i++) well = well || l->remotes[i].code == DDP_EXIT_OK;
    if (l->q->without_loss && well && l->failed_ms == 0) return DDP_EXIT_OK;
    return l->code;
}

static ddp_status start_all(launcher *l, ddp_err *err)
{
    for (size_t i = 0; i < l->q->host_count; i++) {
        l->argv[l->host_word] = (char *)l->q->hosts[i].login;
        DDP_TRY(remote_start(&l->remotes[i], &l->q->hosts[i], l->argv, err));
    }
    return DDP_OK;
}

static ddp_status open_launcher(launcher *l, ddp_text *command, struct pollfd **fds, ddp_err *err)
{
    DDP_TRY(make_secret(l, err));
    DDP_TRY(build_command(l, command, err));
    l->remotes = ddp_alloc(l->q->host_count * sizeof(*l->remotes), err);
    *fds = ddp_alloc((2 * l->q->host_count + 1) * sizeof(**fds), err);
    if (l->remotes == NULL || *fds == NULL) return DDP_ERR_NOMEM;
    for (size_t i = 0; i < l->q->host_count; i++)
        l->remotes[i] = (remote){.in = -1, .out.fd = -1, .err.fd = -1, .state = REMOTE_ENDED};
    return DDP_OK;
}

int launch_hosts_run(const launch_request *q, ddp_log *log)
{
    launcher l = {.q = q, .log = log};
    struct pollfd *fds = NULL;
    ddp_text command = {0};
    sigset_t set, before;
    int signals;
    ddp_err err = {0};

    launch_choose_signals(&set);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) (void)ddp_fail_errno(&err, "cannot watch for signals");
    if (signals >= 0 && open_launcher(&l, &command, &fds, &err) == DDP_OK && start_all(&l, &err) == DDP_OK) {
        l.code = serve(&l, signals, fds);
    } else {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
        l.code = err.status == DDP_ERR_CONFIG ? DDP_EXIT_CONFIG : DDP_EXIT_INTERNAL;
    }
    for (size_t i = 0; l.remotes != NULL && i < q->host_count; i++) remote_free(&l.remotes[i]);
    free(l.remotes);
    free(fds);
    free(l.ssh_words);
    ddp_text_free(&command);
    OPENSSL_cleanse(l.secret, sizeof(l.secret));
    if (signals >= 0) (void)close(signals);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return l.code;
}
