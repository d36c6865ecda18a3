/* tests/unit/launch/test_relay.c -- what ranks say past their launcher: lines, who they are, exit codes; by processes
 * of this test's own, which open the supervisor's pipes as ranks do. */
#include "launch/relay.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { ROOM = 4, NEVER = -1 };

static int saved[2] = {-1, -1}; /* the test's own standard streams, while a case has others in their place */

static void replace(int stream, int fd)
{
    saved[stream - 1] = fcntl(stream, F_DUPFD_CLOEXEC, 3);
    assert_true(saved[stream - 1] >= 0 && dup2(fd, stream) == stream);
}

static void restore(int stream)
{
    assert_int_equal(dup2(saved[stream - 1], stream), stream);
    (void)close(saved[stream - 1]);
}

static void opened(launch_relay *r, char *argument)
{
    ddp_err err;

    if (launch_relay_open(r, ROOM, &err) != DDP_OK) fail_msg("%s", err.msg);
    launch_relay_argument(r, argument);
}

static void say(int fd, const char *text) { assert_int_equal(write(fd, text, strlen(text)), strlen(text)); }

static pid_t ended(pid_t pid)
{
    int status;

    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return pid;
}

static pid_t child_that_ends(void)
{
    pid_t pid = fork();

    if (pid == 0) _exit(0);
    return pid;
}

/* A rank that joins, says `line` to standard output and error, and leaves with `code`, or, NEVER, without a word. */
static pid_t rank(const char *argument, const char *line, int code)
{
    pid_t pid = fork();

    if (pid == 0) {
        ddp_relay_join(argument);
        if (line != NULL &&
            (write(STDOUT_FILENO, line, strlen(line)) < 0 || write(STDERR_FILENO, line, strlen(line)) < 0))
            _exit(1);
        if (code != NEVER) ddp_relay_leave(argument, code);
        _exit(0);
    }
    return ended(pid);
}

static void same_text(int fd, const char *expected)
{
    char text[256];
    ssize_t n = read(fd, text, sizeof(text) - 1);

    assert_true(n >= 0);
    text[n] = '\0';
    assert_string_equal(text, expected);
}

static void test_lines_and_codes_reach_the_supervisor(void **state)
{
    char argument[LAUNCH_RELAY_ARGUMENT_MAX];
    int out[2], errs[2];
    launch_relay r;
    pid_t first, second, third;

    (void)state;
    assert_true(pipe2(out, O_CLOEXEC) == 0 && pipe2(errs, O_CLOEXEC) == 0);
    opened(&r, argument);
    first = rank(argument, "a line\n", 0);
    second = rank(argument, NULL, 3);
    third = rank(argument, NULL, 4);
    assert_false(r.has_spoken);
    replace(STDOUT_FILENO, out[1]);
    replace(STDERR_FILENO, errs[1]);
    launch_relay_pass(&r, true);
    restore(STDOUT_FILENO);
    restore(STDERR_FILENO);
    assert_true(r.has_spoken);
    same_text(out[0], "a line\n");
    same_text(errs[0], "a line\n");
    assert_true(launch_relay_is_rank(&r, first) && launch_relay_is_rank(&r, second) && launch_relay_is_rank(&r, third));
    assert_false(launch_relay_is_rank(&r, getpid()));
    assert_true(r.given[0] && r.given[3] && r.given[4] && !r.given[1]);
    assert_int_equal(r.first, 3);
    assert_false(launch_relay_lost_one(&r));
    launch_relay_close(&r);
    for (int i = 0; i < 2; i++) assert_true(close(out[i]) == 0 && close(errs[i]) == 0);
}

static void test_a_rank_without_a_code_is_lost(void **state)
{
    char argument[LAUNCH_RELAY_ARGUMENT_MAX];
    launch_relay r;

    (void)state;
    opened(&r, argument);
    (void)rank(argument, NULL, 0);
    launch_relay_pass(&r, true);
    assert_false(launch_relay_lost_one(&r));
    (void)rank(argument, NULL, NEVER);
    launch_relay_pass(&r, true);
    assert_true(launch_relay_lost_one(&r));
    assert_int_equal(r.first, 0);
    launch_relay_close(&r);
}

/* Whoever says more than there are ranks, or a code that is none, is not written past the end. */
static void test_more_ranks_and_codes_than_there_are(void **state)
{
    char argument[LAUNCH_RELAY_ARGUMENT_MAX];
    launch_relay r;

    (void)state;
    opened(&r, argument);
    for (int i = 0; i < ROOM + 2; i++) (void)rank(argument, NULL, 1000 + i);
    launch_relay_pass(&r, true);
    assert_int_equal(r.rank_count, ROOM);
    assert_int_equal(r.first, 1000);
    for (size_t i = 0; i < DDP_COUNT(r.given); i++) assert_false(r.given[i]);
    launch_relay_close(&r);
}

/* As mpiexec of MPICH has one: the launcher starts it, and it starts the ranks. */
static void test_a_process_between(void **state)
{
    char argument[LAUNCH_RELAY_ARGUMENT_MAX];
    launch_relay r;
    pid_t between;

    (void)state;
    opened(&r, argument);
    between = fork();
    if (between == 0) {
        (void)rank(argument, NULL, 0);
        _exit(0);
    }
    (void)ended(between);
    launch_relay_pass(&r, true);
    assert_int_equal(r.rank_count, 1);
    assert_true(launch_relay_stands_between(&r, between));
    assert_false(launch_relay_is_rank(&r, between));
    assert_false(launch_relay_stands_between(&r, r.ranks[0].pid));
    launch_relay_close(&r);
}

/* A reader who does not read holds up no supervisor, and gets all of it later. */
static void test_a_full_stream_is_not_waited_for(void **state)
{
    static const char block[4096] = {0};
    char argument[LAUNCH_RELAY_ARGUMENT_MAX], text[sizeof(block)];
    launch_relay r;
    int out[2];

    (void)state;
    opened(&r, argument);
    (void)rank(argument, "later\n", 0);
    assert_true(pipe2(out, O_CLOEXEC) == 0 && fcntl(out[1], F_SETFL, O_NONBLOCK) == 0);
    while (write(out[1], block, sizeof(block)) > 0) {}
    assert_int_equal(fcntl(out[1], F_SETFL, 0), 0);
    replace(STDOUT_FILENO, out[1]);
    replace(STDERR_FILENO, out[1]);
    launch_relay_pass(&r, false); /* would not come back */
    assert_int_equal(fcntl(out[0], F_SETFL, O_NONBLOCK), 0);
    while (read(out[0], text, sizeof(text)) > 0) {}
    launch_relay_pass(&r, true);
    restore(STDOUT_FILENO);
    restore(STDERR_FILENO);
    same_text(out[0], "later\nlater\n");
    launch_relay_close(&r);
    assert_true(close(out[0]) == 0 && close(out[1]) == 0);
}

static void test_what_the_launcher_says_is_held(void **state)
{
    char argument[LAUNCH_RELAY_ARGUMENT_MAX];
    launch_relay r;
    int errs[2];

    (void)state;
    opened(&r, argument);
    assert_false(launch_relay_holds(&r));
    say(r.held, "not enough slots\n");
    say(r.held, "ORTE has ended\n");
    assert_true(launch_relay_holds(&r));
    assert_int_equal(pipe2(errs, O_CLOEXEC), 0);
    for (int i = 0; i < 2; i++) { /* it is shown whole each time */
        replace(STDERR_FILENO, errs[1]);
        launch_relay_show_held(&r);
        restore(STDERR_FILENO);
        same_text(errs[0], "not enough slots\nORTE has ended\n");
    }
    launch_relay_close(&r);
    assert_true(close(errs[0]) == 0 && close(errs[1]) == 0);
}

/* No relay, nonsense, a supervisor that has gone: the streams stay those of the launcher. */
static void test_a_supervisor_that_cannot_be_reached(void **state)
{
    char gone[LAUNCH_RELAY_ARGUMENT_MAX];
    const char *arguments[] = {NULL, "", "1:2", "a:b:c:d", gone};
    int out[2];

    (void)state;
    (void)snprintf(gone, sizeof(gone), "%d:0:1:2", (int)ended(child_that_ends()));
    assert_true(pipe2(out, O_CLOEXEC) == 0 && fcntl(out[0], F_SETFL, O_NONBLOCK) == 0);
    for (size_t i = 0; i < DDP_COUNT(arguments); i++) {
        replace(STDOUT_FILENO, out[1]);
        replace(STDERR_FILENO, out[1]);
        (void)rank(arguments[i], "to the launcher\n", 5);
        restore(STDOUT_FILENO);
        restore(STDERR_FILENO);
        same_text(out[0], "to the launcher\nto the launcher\n");
    }
    assert_true(close(out[0]) == 0 && close(out[1]) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_and_codes_reach_the_supervisor),
        cmocka_unit_test(test_a_rank_without_a_code_is_lost),
        cmocka_unit_test(test_more_ranks_and_codes_than_there_are),
        cmocka_unit_test(test_a_process_between),
        cmocka_unit_test(test_a_full_stream_is_not_waited_for),
        cmocka_unit_test(test_what_the_launcher_says_is_held),
        cmocka_unit_test(test_a_supervisor_that_cannot_be_reached),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
