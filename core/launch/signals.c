/* launch/signals.c -- see signals.h. */
#include "launch/signals.h"
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

static const int asking[] = {SIGINT, SIGTERM, SIGHUP};
static const int crashing[] = {SIGSEGV, SIGBUS, SIGABRT};

/* "it used 398 of the 400" */
#define MAY_HAVE " MiB of memory that it may have, and probably got no more: raise the limit (ulimit -v, ulimit -d)"

/* What the handler may touch. The one variable of the program: a handler has no other way to its run. */
static struct {
    ddp_stop stop;
    bool supervised;
    ddp_cause *cause;                        /* of the supervisor, or NULL */
    _Alignas(16) unsigned char stack[65536]; /* of the handler; a frame with all vector registers takes some 11 KiB */
} asked;

enum { LOST_BYTES = 224 };

/* In the handler, with only what is safe there. On a terminal a progress line may stand, so that the line begins a
 * new one. */
static void print_signal(int sig, const char *tail)
{
    static const char head[] = "\nddpengine: error: ";
    struct termios terminal;
    size_t skip = tcgetattr(STDERR_FILENO, &terminal) == 0 ? 0 : 1;
    char line[320], *at = line;

    memcpy(at, head, sizeof(head) - 1);
    at = stpcpy(at + sizeof(head) - 1, "ended by signal ");
    if (sig >= 10) *at++ = (char)('0' + sig / 10);
    *at++ = (char)('0' + sig % 10);
    at = stpcpy(at, tail);
    *at++ = '\n';
    if (write(STDERR_FILENO, line + skip, (size_t)(at - line) - skip) < 0) { /* nobody reads it */
    }
}

/* ---- what is in memory alone ------------------------------------------------------------------------------------- */
static char *put_number(char *at, uint64_t n)
{
    char digits[20];
    size_t count = 0;

    do digits[count++] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    while (count > 0) *at++ = digits[--count];
    return at;
}

/* "steps 501 to 52763, which were in memory, are lost; .." In the handler, too. */
static void put_lost(char *at, uint64_t kept, uint64_t saved)
{
    at = put_number(stpcpy(at, "steps "), saved + 1);
    at = put_number(stpcpy(at, " to "), kept);
    at = stpcpy(at, ", which were in memory, are lost; ");
    if (saved == 0)
        at = stpcpy(at, "there is no checkpoint");
    else
        at = put_number(stpcpy(at, "the newest checkpoint is of step "), saved);
    *at = '\0';
}

/* To append to "ended by signal ..". */
static void put_lost_by_signal(char *at, uint64_t kept, uint64_t saved)
{
    put_lost(stpcpy(at, " while the ranks waited for each other: "), kept, saved);
}

/* The ranks wait for each other, and this one ends. In the handler. */
static void take_along(char tail[LOST_BYTES])
{
    uint64_t kept = atomic_load(&asked.stop.kept), saved = atomic_load(&asked.stop.saved);

    if (kept == 0) return;
    if (asked.cause != NULL) launch_cause_note_lost(asked.cause, kept, saved);
    put_lost_by_signal(tail, kept, saved);
}

void ddp_signals_note_lost(const ddp_stop *stop, ddp_cause *cause, ddp_log *log)
{
    uint64_t kept = stop == NULL ? 0 : atomic_load(&stop->kept), saved = stop == NULL ? 0 : atomic_load(&stop->saved);
    char text[LOST_BYTES];

    if (kept == 0) return;
    if (cause != NULL) launch_cause_note_lost(cause, kept, saved);
    put_lost(text, kept, saved);
    if (cause == NULL) ddp_log_line(log, DDP_LOG_WARN, "%s", text);
}

void launch_log_lost(ddp_log *log, const ddp_cause *cause)
{
    uint64_t kept, saved;
    char text[LOST_BYTES];

    if (!launch_cause_lost(cause, &kept, &saved)) return;
    put_lost(text, kept, saved);
    ddp_log_line(log, DDP_LOG_WARN, "%s", text);
}

/* ---- a signal ---------------------------------------------------------------------------------------------------- */
static void on_signal(int sig, siginfo_t *info, void *context)
{
    int none = 0;
    char lost[LOST_BYTES] = "";

    (void)context;
    if (atomic_load(&asked.stop.graceful) && atomic_compare_exchange_strong(&asked.stop.signal, &none, sig)) return;
    /* the supervisor alone ends a rank at once: what reaches a whole group of processes comes from it once more */
    if (asked.supervised && (atomic_load(&asked.stop.signal) != 0 || info->si_code == SI_KERNEL)) return;
    take_along(lost);
    if (!asked.supervised && lost[0] == '\0' && atomic_load(&asked.stop.signal) != 0)
        print_signal(sig, ", the second one: nothing more is saved");
    else if (!asked.supervised)
        print_signal(sig, lost);
    (void)signal(sig, SIG_DFL);
    (void)raise(sig); /* once the handler is left */
}

/* ---- a crash ----------------------------------------------------------------------------------------------------- */
/* "KEY:   123 kB" of /proc/self/status, in bytes; 0 when it is not there. In the handler: no allocation, no stdio. */
static uint64_t status_bytes(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    uint64_t kilobytes = 0;

    for (at = at == NULL ? "" : at + strlen(key); *at == ' ' || *at == '\t'; at++) continue;
    for (; *at >= '0' && *at <= '9'; at++) kilobytes = kilobytes * 10 + (uint64_t)(*at - '0');
    return kilobytes * 1024;
}

/* Libraries crash where an allocation fails that they do not check, such as oneDNN's for the code it generates. A
 * single one is small against the limit, so that nearly all of that is in use then. */
static bool is_used_up(uint64_t used, __rlimit_resource_t resource, uint64_t *limit)
{
    struct rlimit r;

    if (getrlimit(resource, &r) != 0 || r.rlim_cur == RLIM_INFINITY) return false;
    *limit = r.rlim_cur;
    return used >= *limit / 4 * 3;
}

static bool is_out_of_memory(uint64_t *used, uint64_t *limit)
{
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (fd >= 0) (void)close(fd);
    if (n <= 0) return false;
    text[n] = '\0';
    *used = status_bytes(text, "\nVmPeak:");
    if (is_used_up(*used, RLIMIT_AS, limit)) return true;
    *used = status_bytes(text, "\nVmData:");
    return is_used_up(*used, RLIMIT_DATA, limit);
}

static void on_crash(int sig)
{
    uint64_t used, limit;
    char tail[256], *at = tail;

    bool out = is_out_of_memory(&used, &limit);

    if (out && asked.cause != NULL) launch_cause_note_memory(asked.cause, used, limit);
    if (out && asked.cause == NULL) {
        at = put_number(stpcpy(at, ": it used "), used >> 20);
        at = put_number(stpcpy(at, " of the "), limit >> 20);
        (void)stpcpy(at, MAY_HAVE);
        print_signal(sig, tail);
    }
    (void)signal(sig, SIG_DFL);
    (void)raise(sig); /* once the handler is left */
}

/* On a stack of its own: generated code of a library may point the stack pointer of the calling thread, which is the
 * main thread and so the one that gets the signals, into memory of the heap, as that of oneDNN's sgemm did. What the
 * system writes below it there is someone else's. */
ddp_stop *ddp_handle_signals(ddp_cause *cause)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK}, now;
    struct sigaction crash = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};
    const stack_t stack = {.ss_sp = asked.stack, .ss_size = sizeof(asked.stack)};

    asked.supervised = cause != NULL;
    asked.cause = cause;
    (void)sigaltstack(&stack, NULL);
    for (size_t i = 0; i < DDP_COUNT(asking); i++)
        if (sigaction(asking[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            (void)sigaction(asking[i], &action, NULL);
    for (size_t i = 0; i < DDP_COUNT(crashing); i++) /* a sanitizer has handlers of its own */
        if (sigaction(crashing[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            (void)sigaction(crashing[i], &crash, NULL);
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

static int log_ended_by(ddp_log *log, int sig, const char *tail)
{
    ddp_log_line(log, DDP_LOG_ERROR, "ended by signal %d (%s)%s", sig, strsignal(sig), tail);
    return 128 + sig;
}

int ddp_log_ended_by(ddp_log *log, int sig) { return log_ended_by(log, sig, ""); }

int launch_log_ended_by(ddp_log *log, int sig, const ddp_cause *cause)
{
    uint64_t kept, saved;
    char lost[LOST_BYTES] = "";

    if (launch_cause_lost(cause, &kept, &saved)) put_lost_by_signal(lost, kept, saved);
    return log_ended_by(log, sig, lost);
}

const char *launch_killed_hint(int sig, const ddp_cause *cause, char *buf)
{
    uint64_t used, limit;

    buf[0] = '\0';
    if (sig == SIGKILL)
        (void)snprintf(buf, DDP_HINT_BYTES, "; the kernel does that when memory runs out (dmesg shows it)");
    else if (cause != NULL && launch_cause_memory(cause, &used, &limit))
        (void)snprintf(buf, DDP_HINT_BYTES, ": it used %llu of the %llu" MAY_HAVE, (unsigned long long)used >> 20,
                       (unsigned long long)limit >> 20);
    return buf;
}
