/* cli/run.c -- one rank in this process: session, then plan (--check) or training; and how its failure is said. */
#include "base/sys.h"
#include "cli/cli.h"
#include "session/open.h"
#include "session/plugins.h"
#include "session/report.h"
#include "train/train.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <termios.h>
#include <unistd.h>

/* How long the loss of a peer waits for a better line; the supervisor looks for dead ranks every 100 ms. */
enum { ECHO_MS = 500 };

struct ddp_cause {
    atomic_flag taken;
    atomic_bool said; /* `first` is written */
    char first[512];
};

ddp_cause *ddp_cause_create(ddp_err *err)
{
    ddp_cause *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (c == MAP_FAILED) {
        (void)ddp_fail_errno(err, "cannot map shared memory");
        return NULL;
    }
    atomic_flag_clear(&c->taken);
    atomic_init(&c->said, false);
    return c;
}

void ddp_cause_print(ddp_cause *cause, ddp_log *log, int exit_code, const char *message)
{
    if (cause != NULL) {
        if (exit_code == DDP_EXIT_PEER) {
            for (int i = 0; i < ECHO_MS && !atomic_load(&cause->said); i++) (void)usleep(1000);
            if (atomic_load(&cause->said)) return;
        }
        if (atomic_flag_test_and_set(&cause->taken)) {
            /* another rank has spoken, or is about to: only something else is worth a line */
            for (int i = 0; i < 50 && !atomic_load(&cause->said); i++) (void)usleep(1000);
            if (atomic_load(&cause->said) && strncmp(cause->first, message, sizeof(cause->first) - 1) == 0) return;
        } else {
            ddp_copy_text(cause->first, sizeof(cause->first), message);
            atomic_store(&cause->said, true);
        }
    }
    ddp_log_line(log, DDP_LOG_ERROR, "%s", message);
}

/* ---- signals -------------------------------------------------------------------------------------------------------- */
/* What the handler may touch. The one variable of the program: a handler has no other way to its run. */
static struct {
    ddp_stop stop;
    bool supervised;
    _Alignas(16) unsigned char stack[65536]; /* of the handler; a frame with all vector registers takes some 11 KiB */
} asked;

/* In the handler, with only what is safe there. A terminal may show a progress line. */
static void say_signal(int sig, const char *tail)
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
    if (write(STDERR_FILENO, line + skip, (size_t)(at - line) - skip) < 0) { /* nobody to tell */
    }
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
    int none = 0;

    (void)context;
    if (atomic_load(&asked.stop.graceful) && atomic_compare_exchange_strong(&asked.stop.signal, &none, sig)) return;
    /* to end a rank at once is the supervisor's word: what reaches a whole group of processes comes from it once more */
    if (asked.supervised && (atomic_load(&asked.stop.signal) != 0 || info->si_code == SI_KERNEL)) return;
    if (!asked.supervised)
        say_signal(sig, atomic_load(&asked.stop.signal) == 0 ? "" : ", the second one: nothing more is saved");
    (void)signal(sig, SIG_DFL);
    (void)raise(sig); /* once the handler is left */
}

/* On a stack of its own: the kernels of oneDNN's sgemm point the stack pointer of the calling thread, which is the main thread
 * and so the one that gets the signals, into memory of the heap. What the system writes below it there is someone else's. */
ddp_stop *ddp_handle_signals(bool supervised)
{
    static const int asking[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK}, now;
    const stack_t stack = {.ss_sp = asked.stack, .ss_size = sizeof(asked.stack)};

    asked.supervised = supervised;
    (void)sigaltstack(&stack, NULL);
    for (size_t i = 0; i < DDP_COUNT(asking); i++)
        if (sigaction(asking[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            (void)sigaction(asking[i], &action, NULL);
    return &asked.stop;
}

struct expiry {
    ddp_cause *cause;
    ddp_log *log;
};

/* Control thread: the run has failed and a plugin's call does not return. */
static void expired(void *ctx, int exit_code, const char *message)
{
    struct expiry *e = ctx;

    if (message[0] != '\0') ddp_cause_print(e->cause, e->log, exit_code, message);
    _exit(exit_code);
}

static int print_plan(ddp_session *s, bool all, ddp_log *log)
{
    ddp_text text = {0};
    int code = DDP_EXIT_OK, printed;

    ddp_session_report(s, &text);
    if (all) code = ddp_session_check_unused(s, &text);
    printed = ddp_print_text(&text, log);
    return code != DDP_EXIT_OK ? code : printed;
}

static int print_line(const char *line, ddp_log *log)
{
    ddp_text text = {0};

    ddp_text_printf(&text, "%s\n", line);
    return ddp_print_text(&text, log);
}

int ddp_run_rank(const ddp_args *args, ddp_config *config, const ddp_launch *launch, ddp_log *log, ddp_cause *cause)
{
    struct expiry expiry = {.cause = cause, .log = log};
    ddp_ending ending = {.expired = expired, .ctx = &expiry};
    ddp_session session;
    ddp_err err = {0};
    int code;

    if (launch->world > 1 && !args->check) log->rank = launch->rank;
    if (ddp_session_open(&session, log, config, launch, &err) != DDP_OK) {
        ddp_cause_print(cause, log, ddp_err_exit_code(&err), err.msg);
        return ddp_err_exit_code(&err);
    }
    if (args->check) {
        code = print_plan(&session, args->check_all, log);
    } else {
        code = ddp_train(&session, &ending);
        if (code != DDP_EXIT_OK) ddp_cause_print(cause, log, code, ending.message);
        if (code == DDP_EXIT_OK && ending.result[0] != '\0') code = print_line(ending.result, log);
    }
    ddp_session_close(&session);
    return code;
}
