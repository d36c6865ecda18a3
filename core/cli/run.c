/* cli/run.c -- one rank in this process: session, then plan (--check) or training; and how its failure is said. */
#include "base/sys.h"
#include "cli/cli.h"
#include "train/trainer.h"
#include <signal.h>
#include <stdatomic.h>
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

/* Signal handler: only what is safe there, and nothing of the program's state. A terminal may show a progress line. */
static void say_signal(int sig)
{
    static const char head[] = "\nddpengine: error: ended by signal ";
    struct termios terminal;
    size_t skip = tcgetattr(STDERR_FILENO, &terminal) == 0 ? 0 : 1;
    char line[sizeof(head) + 3];
    size_t length = sizeof(head) - 1;

    memcpy(line, head, length);
    if (sig >= 10) line[length++] = (char)('0' + sig / 10);
    line[length++] = (char)('0' + sig % 10);
    line[length++] = '\n';
    if (write(STDERR_FILENO, line + skip, length - skip) < 0) { /* nobody to tell */
    }
    (void)raise(sig); /* its default, once the handler is left */
}

void ddp_say_signals(void)
{
    static const int asking[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction say = {.sa_handler = say_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction now;

    for (size_t i = 0; i < DDP_COUNT(asking); i++)
        if (sigaction(asking[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) (void)sigaction(asking[i], &say, NULL);
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

static int print_plan(const ddp_session *s, ddp_log *log)
{
    ddp_text text = {0};

    ddp_session_report(s, &text);
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
        ddp_cause_print(cause, log, session.phase, err.msg);
        return session.phase;
    }
    if (args->check) {
        code = print_plan(&session, log);
    } else {
        code = ddp_train(&session, &ending);
        if (code != DDP_EXIT_OK) ddp_cause_print(cause, log, code, ending.message);
    }
    ddp_session_close(&session);
    return code;
}
