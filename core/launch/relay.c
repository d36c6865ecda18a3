/* launch/relay.c -- see relay.h. Ranks do not inherit the pipes, since launchers close all that they would: they open
 * them as files of the supervisor, which the kernel lets processes of the same user do. */
#include "launch/relay.h"
#include "base/sys.h"
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { JOINED = -1 };

/* One write to the pipe, which keeps it whole. */
typedef struct news {
    int32_t pid, parent, code; /* code JOINED: the rank begins */
} news;

/* ---- the supervisor ---------------------------------------------------------------------------------------------- */
ddp_status launch_relay_open(launch_relay *r, int32_t nproc, ddp_err *err)
{
    *r = (launch_relay){.held = -1, .rank_room = (size_t)nproc};
    for (int i = 0; i < LAUNCH_RELAY_PIPES; i++) r->pipes[i][0] = r->pipes[i][1] = -1;
    r->ranks = calloc((size_t)nproc, sizeof(*r->ranks));
    if (r->ranks == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for what %d ranks say", (int)nproc);
    for (int i = 0; i < LAUNCH_RELAY_PIPES; i++)
        if (pipe2(r->pipes[i], O_CLOEXEC) != 0 || fcntl(r->pipes[i][0], F_SETFL, O_NONBLOCK) != 0)
            return ddp_fail_errno(err, "cannot make a pipe for what the ranks say");
    r->held = memfd_create("ddpengine launcher", MFD_CLOEXEC);
    if (r->held < 0 || fcntl(r->held, F_SETFL, O_APPEND) != 0)
        return ddp_fail_errno(err, "cannot make memory for what the launcher says");
    return DDP_OK;
}

void launch_relay_close(launch_relay *r)
{
    for (int i = 0; i < LAUNCH_RELAY_PIPES; i++)
        for (int end = 0; end < 2; end++)
            if (r->pipes[i][end] >= 0) (void)close(r->pipes[i][end]);
    if (r->held >= 0) (void)close(r->held);
    free(r->ranks);
}

void launch_relay_argument(const launch_relay *r, char *text)
{
    (void)snprintf(text, LAUNCH_RELAY_ARGUMENT_MAX, "%d:%d:%d:%d", (int)getpid(), r->pipes[LAUNCH_RELAY_OUT][1],
                   r->pipes[LAUNCH_RELAY_ERR][1], r->pipes[LAUNCH_RELAY_NEWS][1]);
}

/* A pipe that can be written to has room for PIPE_BUF bytes, so that a write of so many does not wait. */
static bool is_writable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};

    return poll(&p, 1, 0) == 1;
}

static void pass(launch_relay *r, int from, int to, bool all)
{
    char text[PIPE_BUF];
    ddp_err ignored = {0};
    ssize_t n;

    while ((all || is_writable(to)) && (n = read(r->pipes[from][0], text, sizeof(text))) > 0) {
        r->has_spoken = true;
        (void)ddp_write_all(to, text, (size_t)n, "what a rank says", &ignored); /* as a rank whose reader has gone */
    }
}

static void take(launch_relay *r, const news *n)
{
    if (n->code == JOINED) {
        if (r->rank_count < r->rank_room)
            r->ranks[r->rank_count++] = (launch_relay_rank){.pid = n->pid, .parent = n->parent};
        return;
    }
    for (size_t i = 0; i < r->rank_count; i++)
        if (r->ranks[i].pid == n->pid) r->ranks[i].ended = true;
    if (n->code >= 0 && n->code < (int)DDP_COUNT(r->given)) r->given[n->code] = true;
    if (r->first == 0) r->first = n->code;
}

void launch_relay_pass(launch_relay *r, bool all)
{
    news n;

    pass(r, LAUNCH_RELAY_OUT, STDOUT_FILENO, all);
    pass(r, LAUNCH_RELAY_ERR, STDERR_FILENO, all);
    while (read(r->pipes[LAUNCH_RELAY_NEWS][0], &n, sizeof(n)) == (ssize_t)sizeof(n)) take(r, &n);
}

bool launch_relay_holds(const launch_relay *r) { return lseek(r->held, 0, SEEK_END) > 0; }

void launch_relay_show_held(const launch_relay *r)
{
    char text[PIPE_BUF];
    ddp_err ignored = {0};
    off_t at = 0;
    ssize_t n;

    for (; (n = pread(r->held, text, sizeof(text), at)) > 0; at += n)
        (void)ddp_write_all(STDERR_FILENO, text, (size_t)n, "what the launcher says", &ignored);
}

bool launch_relay_is_rank(const launch_relay *r, pid_t pid)
{
    for (size_t i = 0; i < r->rank_count; i++)
        if (r->ranks[i].pid == pid) return true;
    return false;
}

bool launch_relay_stands_between(const launch_relay *r, pid_t pid)
{
    for (size_t i = 0; i < r->rank_count; i++)
        if (r->ranks[i].parent == pid) return !launch_relay_is_rank(r, pid);
    return false;
}

bool launch_relay_lost_one(const launch_relay *r)
{
    for (size_t i = 0; i < r->rank_count; i++)
        if (!r->ranks[i].ended) return true;
    return false;
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */
/* One of the supervisor's pipes, to be written to; -1: it cannot be reached. */
static int open_pipe(const char *argument, int which)
{
    int pid, fds[LAUNCH_RELAY_PIPES];
    char path[64];

    if (argument == NULL || sscanf(argument, "%d:%d:%d:%d", &pid, &fds[0], &fds[1], &fds[2]) != 1 + LAUNCH_RELAY_PIPES)
        return -1;
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fds[which]);
    return open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
}

static void become(const char *argument, int which, int stream)
{
    int fd = open_pipe(argument, which);

    if (fd < 0) return;
    (void)dup2(fd, stream);
    (void)close(fd);
}

static void tell(const char *argument, int code)
{
    news n = {.pid = (int32_t)getpid(), .parent = (int32_t)getppid(), .code = code};
    int fd = open_pipe(argument, LAUNCH_RELAY_NEWS);

    if (fd < 0) return;
    if (write(fd, &n, sizeof(n)) < 0) {
        /* the supervisor has gone: nobody is left to be told */
    }
    (void)close(fd);
}

void ddp_relay_join(const char *argument)
{
    become(argument, LAUNCH_RELAY_OUT, STDOUT_FILENO);
    become(argument, LAUNCH_RELAY_ERR, STDERR_FILENO);
    tell(argument, JOINED);
}

void ddp_relay_leave(const char *argument, int exit_code) { tell(argument, exit_code); }
