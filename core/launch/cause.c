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
    atomic_bool printed;       /* `first` is written */
    atomic_uint generations;   /* that have begun */
    atomic_uint rejoined;      /* of them, those whose end has been printed */
    atomic_ullong used, limit; /* bytes, of a rank that has crashed; limit 0: of none */
    atomic_ullong kept, saved; /* steps, of what is lost with a rank that has ended; kept 0: nothing */
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
    atomic_init(&c->generations, 0);
    atomic_init(&c->rejoined, 0);
    atomic_init(&c->used, 0);
    atomic_init(&c->limit, 0);
    atomic_init(&c->kept, 0);
    atomic_init(&c->saved, 0);
    return c;
}

void launch_cause_note_memory(ddp_cause *cause, uint64_t used, uint64_t limit)
{
    atomic_store(&cause->used, used);
    atomic_store(&cause->limit, limit);
}

bool launch_cause_memory(const ddp_cause *cause, uint64_t *used, uint64_t *limit)
{
    *used = atomic_load(&cause->used);
    *limit = atomic_load(&cause->limit);
    return *limit != 0;
}

void launch_cause_note_lost(ddp_cause *cause, uint64_t kept, uint64_t saved)
{
    atomic_store(&cause->saved, saved);
    atomic_store(&cause->kept, kept);
}

bool launch_cause_lost(const ddp_cause *cause, uint64_t *kept, uint64_t *saved)
{
    *kept = atomic_load(&cause->kept);
    *saved = atomic_load(&cause->saved);
    return *kept != 0;
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

void ddp_cause_forget(ddp_cause *cause)
{
    atomic_store(&cause->printed, false);
    atomic_store(&cause->limit, 0);
    atomic_store(&cause->kept, 0);
    atomic_flag_clear(&cause->taken);
}

/* True for the first who raises it above `generation`. */
static bool raise(atomic_uint *count, uint32_t generation)
{
    uint32_t seen = atomic_load(count);

    while (seen <= generation)
        if (atomic_compare_exchange_weak(count, &seen, generation + 1)) return true;
    return false;
}

void ddp_cause_met(ddp_cause *cause, uint32_t generation)
{
    if (cause != NULL) (void)raise(&cause->generations, generation);
}

void ddp_cause_print_rejoin(ddp_cause *cause, ddp_log *log, uint32_t generation, const char *message)
{
    if (cause == NULL || raise(&cause->rejoined, generation)) ddp_log_line(log, DDP_LOG_WARN, "%s", message);
}

uint32_t ddp_cause_generations(const ddp_cause *cause) { return atomic_load(&cause->generations); }
