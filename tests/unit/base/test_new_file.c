/* tests/unit/base/test_new_file.c -- core/base/new_file.c: what it leaves alone, what it removes, several writers. */
#include "base/new_file.h"
#include "support/checkpoint_util.h"
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { PIECE = 1 << 16, TURNS = 60 };

static ddp_err err;

/* ---- names ------------------------------------------------------------------------------------------------------- */
static const char *beside(const struct place *p, const char *end)
{
    char name[80];

    (void)snprintf(name, sizeof(name), "run.html%s", end);
    return in(p, name);
}

/* Files of other names, of the user or of a writer of another file, stay; what a killed writer of this one left goes */
static void names_of_others(void **state)
{
    static const char *const stay[] = {
        ".tmp", ".1.tmp", ".ddp-0123abcd.tmp2", ".ddp-0123abc.tmp", ".ddp-0123ABCD.tmp", ".x.ddp-0123abcd.tmp"};
    struct place *p = *state;

    for (size_t i = 0; i < DDP_COUNT(stay); i++) spill(beside(p, stay[i]), "mine", 4);
    spill(in(p, "run.html.ddp-0123abcd.tmp"), "half", 4);
    assert_int_equal(symlink("run.html.tmp", in(p, "run.html.ddp-01234567.tmp")), 0);
    assert_int_equal(ddp_file_replace(in(p, "run.html"), "page", 4, &err), DDP_OK);
    assert_false(exists(in(p, "run.html.ddp-0123abcd.tmp")));
    assert_int_equal(unlink(in(p, "run.html.ddp-01234567.tmp")), 0); /* a link is not followed, and stays */
    for (size_t i = 0; i < DDP_COUNT(stay); i++) {
        size_t length;
        char *data;

        assert_int_equal(ddp_file_read(beside(p, stay[i]), 100, &data, &length, &err), DDP_OK);
        assert_string_equal(data, "mine");
        free(data);
    }
    assert_int_equal(entries(p->dir), DDP_COUNT(stay) + 1);
}

static void a_long_name(void **state)
{
    struct place *p = *state;
    char name[256], path[600];

    memset(name, 'n', 255);
    name[255] = '\0';
    (void)snprintf(path, sizeof(path), "%s/%s", p->dir, name);
    assert_int_equal(ddp_file_replace(path, "x", 1, &err), DDP_OK);
    assert_int_equal(entries(p->dir), 1);
}

static void in_the_working_folder(void **state)
{
    struct place *p = *state;
    char *before = getcwd(NULL, 0);

    assert_non_null(before);
    assert_int_equal(chdir(p->dir), 0);
    spill("file.ddp-00000000.tmp", "half", 4);
    assert_int_equal(ddp_file_replace("file", "x", 1, &err), DDP_OK);
    assert_int_equal(entries(p->dir), 1);
    assert_int_equal(chdir(before), 0);
    free(before);
}

/* ---- the life of a file ------------------------------------------------------------------------------------------ */
static void one_that_is_written_meanwhile(void **state)
{
    struct place *p = *state;
    ddp_new_file one, two, three;

    assert_int_equal(ddp_new_file_open(&one, in(p, "f"), &err), DDP_OK);
    assert_int_equal(ddp_new_file_open(&two, in(p, "f"), &err), DDP_OK);
    assert_string_not_equal(one.own, two.own);
    assert_true(exists(one.own)); /* it is locked */
    assert_int_equal(ddp_write_all(one.fd, "one", 3, "f", &err), DDP_OK);
    assert_int_equal(ddp_write_all(two.fd, "two", 3, "f", &err), DDP_OK);
    assert_int_equal(ddp_new_file_close(&two, DDP_OK, &err), DDP_OK);
    assert_int_equal(ddp_new_file_close(&one, DDP_OK, &err), DDP_OK); /* the last one stays */
    assert_int_equal(ddp_new_file_open(&three, in(p, "f"), &err), DDP_OK);
    (void)ddp_fail(&err, DDP_ERR_DATA, "no more to write");
    assert_int_equal(ddp_new_file_close(&three, DDP_ERR_DATA, &err), DDP_ERR_DATA);
    assert_string_equal(err.msg, "no more to write");
    assert_int_equal(entries(p->dir), 1);
}

static void a_folder_that_is_not_there(void **state)
{
    struct place *p = *state;
    ddp_new_file f;

    assert_int_equal(ddp_new_file_open(&f, in(p, "none/f"), &err), DDP_ERR_SYSTEM);
    assert_non_null(strstr(err.msg, "/none/f: cannot create a file beside it: No such file or directory"));
}

/* ---- several processes ------------------------------------------------------------------------------------------- */
/* Ends with 0, or 1 if a write has failed. */
static pid_t writer(const char *path, char letter, int turns)
{
    pid_t pid = fork();
    static char piece[PIECE];

    if (pid != 0) return pid;
    memset(piece, letter, sizeof(piece));
    for (int i = 0; turns < 0 || i < turns; i++)
        if (ddp_file_replace(path, piece, sizeof(piece), &err) != DDP_OK) _exit(1);
    _exit(0);
}

static void is_whole(const char *path)
{
    size_t length;
    char *data;

    assert_int_equal(ddp_file_read(path, PIECE * 2, &data, &length, &err), DDP_OK);
    assert_int_equal(length, PIECE);
    assert_true(data[0] == data[PIECE - 1] && memchr(data, data[0] == 'a' ? 'b' : 'a', PIECE) == NULL);
    free(data);
}

static void two_writers(void **state)
{
    struct place *p = *state;
    const char *path = in(p, "f");
    pid_t pids[2];
    int status;

    for (int i = 0; i < 2; i++) pids[i] = writer(path, i == 0 ? 'a' : 'b', TURNS);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    is_whole(path);
    assert_int_equal(entries(p->dir), 1);
}

/* At some call of the middle, each time another one: the file stays whole, and the next writer removes the rest. */
static void one_that_is_killed(void **state)
{
    struct place *p = *state;
    const char *path = in(p, "f");
    int left = 0, status;

    assert_int_equal(waitpid(writer(path, 'a', 1), &status, 0) > 0 && status == 0, 1);
    for (int i = 0; i < TURNS; i++) {
        struct timespec pause = {.tv_nsec = 1000000 + i * 37000};
        pid_t pid = writer(path, 'b', -1);

        (void)nanosleep(&pause, NULL);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        is_whole(path);
        assert_in_range(entries(p->dir), 1, 2);
        left += entries(p->dir) == 2;
    }
    print_message("# %d of %d left a file\n", left, TURNS);
    assert_int_equal(ddp_file_replace(path, "x", 1, &err), DDP_OK);
    assert_int_equal(entries(p->dir), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_of_others, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_long_name, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(in_the_working_folder, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(one_that_is_written_meanwhile, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_folder_that_is_not_there, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(two_writers, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(one_that_is_killed, place_setup, place_teardown),
    };

    return cmocka_run_group_tests_name("new_file", tests, NULL, NULL);
}
