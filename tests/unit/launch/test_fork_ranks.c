/* tests/unit/launch/test_fork_ranks.c -- a lost rank that the system does not let start: it is tried again, and where
 * that does not help the others end in good order. fork fails as often as a case wants (ld --wrap), and the clock of
 * this program runs a hundred times as fast. */
#include "base/sys.h"
#include "launch/fork_ranks.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { RANKS = 2, MANY = 1000 };

static struct {
    int forks, fails_from, fails, error; /* `fails` forks fail, from number `fails_from` on */
} wish;

/* What the ranks have seen, in memory that they share with this process. */
struct seen {
    atomic_int started_again, asked;
};
static struct seen *seen;

pid_t __real_fork(void);
pid_t __wrap_fork(void);
pid_t __wrap_fork(void)
{
    int n = wish.forks++;

    if (n < wish.fails_from || n >= wish.fails_from + wish.fails) return __real_fork();
    errno = wish.error;
    return -1;
}

int64_t __real_ddp_now_ns(void);
int64_t __wrap_ddp_now_ns(void);
int64_t __wrap_ddp_now_ns(void) { return __real_ddp_now_ns() * 100; }

/* Rank 1 is lost once, by a signal; rank 0 works until that one is back, or until it is asked to end. */
static int rank_main(const ddp_args *args, ddp_config *config, const ddp_launch *launch, ddp_log *log, ddp_cause *cause)
{
    (void)args;
    (void)config;
    (void)log;
    (void)cause;
    if (launch->rank == 1 && launch->restarted) atomic_store(&seen->started_again, 1);
    if (launch->rank == 1 && launch->restarted) _exit(0);
    atomic_store(&launch->stop->graceful, true);
    if (launch->rank == 1) (void)kill(getpid(), SIGKILL);
    while (atomic_load(&seen->started_again) == 0 && atomic_load(&launch->stop->signal) == 0) (void)usleep(1000);
    if (atomic_load(&launch->stop->signal) == 0) _exit(0);
    (void)usleep(100000); /* it saves */
    atomic_store(&seen->asked, atomic_load(&launch->stop->signal));
    _exit(128 + SIGTERM);
}

/* The exit code; `text`: what was logged. */
static int supervise(int fails, int error, char text[8192])
{
    const struct ddp_group_config group = {.peer_timeout_ms = 10000};
    const struct ddp_run_config run = {.restarts = 3, .restart_window_ms = 3600000};
    const ddp_args args = {.nproc = RANKS};
    const ddp_launch first = {.nproc = RANKS, .world = RANKS};
    ddp_config config = {.group = &group, .run = &run};
    ddp_log log;
    sigset_t mask;
    ssize_t n;
    int code;

    (void)sigprocmask(SIG_SETMASK, NULL, &mask);
    ddp_log_init(&log);
    log.fd = memfd_create("log", MFD_CLOEXEC);
    wish.forks = 0;
    wish.fails_from = RANKS;
    wish.fails = fails;
    wish.error = error;
    memset(seen, 0, sizeof(*seen));
    code = launch_fork_ranks(&args, &config, &first, rank_main, &log);
    (void)sigprocmask(SIG_SETMASK, &mask, NULL); /* a supervisor ends with its run */
    n = pread(log.fd, text, 8191, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    (void)close(log.fd);
    return code;
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part)) n++;
    return n;
}

static void test_a_start_fails_and_the_next_does_not(void **state)
{
    char text[8192];

    (void)state;
    for (int fails = 1; fails < 4; fails++) {
        assert_int_equal(supervise(fails, ENOMEM, text), 0);
        assert_int_equal(atomic_load(&seen->started_again), 1);
        assert_int_equal(atomic_load(&seen->asked), 0);
        assert_int_equal(count(text, "warning: cannot start rank 1: Cannot allocate memory; give this host"),
                         (size_t)fails);
        assert_int_equal(count(text, "it is tried again in"), (size_t)fails);
        assert_non_null(strstr(text, "it is tried again in 0.25 s (try 2 of 9)"));
        assert_int_equal(count(text, "error: "), 0);
    }
}

static void test_no_start_works(void **state)
{
    char text[8192];

    (void)state;
    assert_int_equal(supervise(MANY, EAGAIN, text), DDP_EXIT_INTERNAL);
    assert_int_equal(wish.forks, RANKS + 9);
    assert_int_equal(atomic_load(&seen->asked), SIGTERM); /* it was let save, and not killed */
    assert_int_equal(count(text, "it is tried again in"), 8);
    assert_int_equal(count(text, "error: "), 1);
    assert_non_null(strstr(text, "error: cannot start rank 1: Resource temporarily unavailable; raise the limit of "
                                 "processes (ulimit -u, pids.max of the container) (tried 9 times): the run ends"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_start_fails_and_the_next_does_not),
                                       cmocka_unit_test(test_no_start_works)};

    seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED) return 99;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
