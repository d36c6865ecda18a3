/* launch/signals.c -- see signals.h. */
#include "launch/signals.h"
#include <string.h>
#include <termios.h>
#include <unistd.h>

static const int asking[] = {SIGINT, SIGTERM, SIGHUP};

/* What the handler may touch. The one variable of the program: a handler has no other way to its run. */
static struct {
    ddp_stop stop;
    bool supervised;
    _Alignas(16) unsigned char stack[65536]; /* of the handler; a frame with all vector registers takes some 11 KiB */
} asked;

/* In the handler, with only what is safe there. On a terminal a progress line may stand, so that the line begins a
 * new one. */
static void print_signal(int sig, const char *tail)
{
    static const char head[] = "\nddpengine: error: ";
    struct termios terminal;
    size_t skip = tcgetattr(STDERR_FILENO, &terminal) == 0 ? 0 : 1;
    char line[160], *at = line;

    memcpy(at, head, sizeof(head) - 1);
    at = stpcpy(at + sizeof(head) - 1, "ended by signal ");
    if (sig >= 10) *at++ = (char)('0' + sig / 10);
    *at++ = (char)('0' + sig % 10);
    at = stpcpy(at, tail);
    *at++ = '\n';
    if (write(STDERR_FILENO, line + skip, (size_t)(at - line) - skip) < 0) { /* nobody reads it */
    }
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
    int none = 0;

    (void)context;
    if (atomic_load(&asked.stop.graceful) && atomic_compare_exchange_strong(&asked.stop.signal, &none, sig)) return;
    /* the supervisor alone ends a rank at once: what reaches a whole group of processes comes from it once more */
    if (asked.supervised && (atomic_load(&asked.stop.signal) != 0 || info->si_code == SI_KERNEL)) return;
    if (!asked.supervised)
        print_signal(sig, atomic_load(&asked.stop.signal) == 0 ? "" : ", the second one: nothing more is saved");
    (void)signal(sig, SIG_DFL);
    (void)raise(sig); /* once the handler is left */
}

/* On a stack of its own: the kernels of oneDNN's sgemm point the stack pointer of the calling thread, which is the
 * main thread and so the one that gets the signals, into memory of the heap. What the system writes below it there
 * is someone else's. */
ddp_stop *ddp_handle_signals(bool supervised)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK}, now;
    const stack_t stack = {.ss_sp = asked.stack, .ss_size = sizeof(asked.stack)};

    asked.supervised = supervised;
    (void)sigaltstack(&stack, NULL);
    for (size_t i = 0; i < DDP_COUNT(asking); i++)
        if (sigaction(asking[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            (void)sigaction(asking[i], &action, NULL);
    return &asked.stop;
}

void launch_choose_signals(sigset_t *watched)
{
    struct sigaction now;

    (void)signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would hide how a rank ended */
    (void)sigemptyset(watched);
    (void)sigaddset(watched, SIGCHLD);
    for (size_t i = 0; i < DDP_COUNT(asking); i++)
        if (sigaction(asking[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) (void)sigaddset(watched, asking[i]);
}

void launch_log_asked_to_end(ddp_log *log, int sig)
{
    ddp_log_line(log, DDP_LOG_INFO, "signal %d (%s): the ranks are asked to end; a second one ends them at once", sig,
                 strsignal(sig));
}

int ddp_log_ended_by(ddp_log *log, int sig)
{
    ddp_log_line(log, DDP_LOG_ERROR, "ended by signal %d (%s)", sig, strsignal(sig));
    return 128 + sig;
}

const char *launch_killed_hint(int sig)
{
    return sig == SIGKILL ? "; the kernel does that when memory runs out (dmesg shows it)" : "";
}
