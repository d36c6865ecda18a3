/* launch/cause.c -- see cause.h. */
#include "launch/cause.h"
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* How long the loss of a peer waits for a better line; the supervisor looks for dead ranks every 100 ms. */
enum { ECHO_MS = 500 };

struct ddp_cause {
    atomic_flag taken;
    atomic_bool printed; /* `first` is written */
    char first[512];
};

ddp_cause *launch_cause_create(ddp_err *err)
{
    ddp_cause *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (c == MAP_FAILED) {
        (void)ddp_fail_errno(err, "cannot map shared memory");
        return NULL;
    }
    atomic_flag_clear(&c->taken);
    atomic_init(&c->printed, false);
    return c;
}

static bool printed_within(ddp_cause *c, int ms)
{
    for (int i = 0; i < ms && !atomic_load(&c->printed); i++) (void)usleep(1000);
    return atomic_load(&c->printed);
}

void ddp_cause_print(ddp_cause *cause, ddp_log *log, int exit_code, const char *message)
{
    if (cause != NULL) {
        if (exit_code == DDP_EXIT_PEER && printed_within(cause, ECHO_MS)) return;
        if (!atomic_flag_test_and_set(&cause->taken)) {
            ddp_copy_text(cause->first, sizeof(cause->first), message);
            atomic_store(&cause->printed, true);
        } else if (printed_within(cause, 50) && strncmp(cause->first, message, sizeof(cause->first) - 1) == 0) {
            return; /* another rank has printed the same: only something else is worth a line */
        }
    }
    ddp_log_line(log, DDP_LOG_ERROR, "%s", message);
}
