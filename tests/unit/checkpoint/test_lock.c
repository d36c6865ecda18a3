/* test_lock.c -- one run at a time writes in a checkpoint folder, and none says of a checkpoint that it is durable when
 * another process has taken it away. rename and fcntl are wrapped: what others do meanwhile, and file systems without
 * locks. */
#include "support/checkpoint_util.h"

#include "checkpoint/checkpoint.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* What happens within the next call, then no more. */
static void (*at_lock)(const struct place *p), (*after_rename)(const struct place *p);
static const struct place *place;
static int lock_errno; /* 0: as the system has it */

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);

int __wrap_rename(const char *from, const char *to)
{
    int result = __real_rename(from, to);
    void (*then)(const struct place *) = after_rename;

    after_rename = NULL;
    if (then != NULL) then(place);
    return result;
}

int __wrap_fcntl(int fd, int command, ...)
{
    void (*then)(const struct place *) = at_lock;
    void *lock;
    va_list ap;

    va_start(ap, command);
    lock = va_arg(ap, void *);
    va_end(ap);
    if (command != F_OFD_SETLK) return __real_fcntl(fd, command, lock);
    at_lock = NULL;
    if (then != NULL) then(place);
    if (lock_errno == 0) return __real_fcntl(fd, command, lock);
    errno = lock_errno;
    return -1;
}

static int setup(void **state)
{
    int result = place_setup(state);

    place = *state;
    lock_errno = 0;
    at_lock = after_rename = NULL;
    return result;
}

static ddp_checkpoint_lock *take(struct place *p)
{
    ddp_checkpoint_lock *lock = NULL;
    ddp_err err = {0};

    if (ddp_checkpoint_lock_take(in(p, "ck"), &p->log, &lock, &err) != DDP_OK) fail_msg("%s", err.msg);
    return lock;
}

/* Nobody gets it; the message. */
static const char *refused(struct place *p)
{
    static ddp_err err;
    ddp_checkpoint_lock *lock = NULL;

    err = (ddp_err){0};
    assert_int_equal(ddp_checkpoint_lock_take(in(p, "ck"), &p->log, &lock, &err), DDP_ERR_SYSTEM);
    assert_null(lock);
    assert_int_equal(ddp_err_exit_code(&err), DDP_EXIT_CHECKPOINT);
    assert_contains(err.msg, in(p, "ck"));
    assert_contains(err.msg, "set [checkpoint] dir to another folder, or end that run first");
    return err.msg;
}

/* "process 12 on host a" of this process. */
static const char *myself(void)
{
    static char text[320];
    char host[256] = "";

    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    (void)snprintf(text, sizeof(text), "process %ld on host %s", (long)getpid(), host);
    return text;
}

static void one_at_a_time(void **state)
{
    struct place *p = *state;
    ddp_checkpoint_lock *lock = take(p);
    char *line;

    assert_contains(refused(p), myself());
    ddp_checkpoint_lock_release(lock);
    assert_true(exists(in(p, "ck/.lock")));
    line = slurp(in(p, "ck/.lock"), NULL);
    assert_string_equal(line, ""); /* nobody is named any more */
    free(line);
    lock = take(p);
    assert_contains(refused(p), myself());
    ddp_checkpoint_lock_release(lock);
    ddp_checkpoint_lock_release(NULL);
    assert_int_equal(logged(p, "warning"), 0);
}

static void a_dead_holder_is_no_obstacle(void **state)
{
    struct place *p = *state;
    ddp_checkpoint_lock *lock;
    pid_t child = fork();
    char *line, dead[32];
    int status;

    if (child == 0) {
        (void)take(p);
        (void)kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    (void)snprintf(dead, sizeof(dead), " %ld\n", (long)child);
    line = slurp(in(p, "ck/.lock"), NULL);
    assert_contains(line, dead);
    free(line);
    lock = take(p);
    assert_contains(refused(p), myself());
    ddp_checkpoint_lock_release(lock);
}

/* Of a longer line nothing stays behind the shorter one; and what a stranger wrote there reaches no terminal. */
static void what_the_file_says(void **state)
{
    static const char *const strange[] = {"", "\n", "host", "\x1b[31mhost 12\n", "a-host 12 more\n"};
    struct place *p = *state;
    ddp_checkpoint_lock *lock = take(p);
    char longer[280];
    char *line;

    ddp_checkpoint_lock_release(lock);
    memset(longer, 'x', sizeof(longer));
    spill(in(p, "ck/.lock"), longer, sizeof(longer));
    lock = take(p);
    line = slurp(in(p, "ck/.lock"), NULL);
    assert_true(strlen(line) < sizeof(longer));
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    free(line);
    for (size_t i = 0; i < DDP_COUNT(strange); i++) {
        const char *message;

        spill(in(p, "ck/.lock"), strange[i], strlen(strange[i]));
        message = refused(p);
        assert_null(strchr(message, '\x1b'));
        assert_null(strchr(message, '\n'));
        if (i < 3) assert_contains(message, "another run writes its checkpoints into");
    }
    assert_contains(refused(p), "(process 12 on host a-host)");
    ddp_checkpoint_lock_release(lock);
}

static void another_file_takes_its_place(const struct place *p)
{
    assert_int_equal(unlink(in(p, "ck/.lock")), 0);
    spill(in(p, "ck/.lock"), "", 0);
}

/* Between open and lock: a lock on a file that nobody else will open is none. */
static void the_file_is_removed_meanwhile(void **state)
{
    struct place *p = *state;
    ddp_checkpoint_lock *lock;

    ddp_checkpoint_lock_release(take(p));
    at_lock = another_file_takes_its_place;
    lock = take(p);
    assert_contains(refused(p), myself());
    ddp_checkpoint_lock_release(lock);
}

static void no_link_is_followed(void **state)
{
    struct place *p = *state;
    ddp_checkpoint_lock *lock = NULL;
    ddp_err err = {0};

    assert_int_equal(mkdir(in(p, "ck"), 0755), 0);
    spill(in(p, "precious"), "text", 4);
    assert_int_equal(symlink("../precious", in(p, "ck/.lock")), 0);
    assert_int_equal(ddp_checkpoint_lock_take(in(p, "ck"), &p->log, &lock, &err), DDP_ERR_SYSTEM);
    assert_int_equal(err.sys_errno, ELOOP);
    assert_contains(err.msg, in(p, "ck/.lock"));
}

static ddp_status save(struct place *p, const ddp_checkpoint_lock *lock, uint64_t step, ddp_err *err)
{
    static const float value = 1.0f;
    const ddp_named_tensor tensor = {.name = "w", .dtype = DDP_F32, .rank = 0, .data = &value};
    const ddp_checkpoint_contents what = {.meta = {.step = step, .model = "mlp", .config_hash = "hash"},
                                          .settings = "train.seed = 3\n",
                                          .parts = {{&tensor, 1}, {&tensor, 1}}};

    return ddp_checkpoint_save(lock, &what, &(ddp_retention){0}, &p->log, err);
}

static void a_file_system_without_locks(void **state)
{
    static const int numbers[] = {ENOLCK, ENOTSUP, ENOSYS};
    struct place *p = *state;
    ddp_err err = {0};

    for (size_t i = 0; i < DDP_COUNT(numbers); i++) {
        ddp_checkpoint_lock *lock;

        lock_errno = numbers[i];
        lock = take(p);
        assert_int_equal(logged(p, "has no locks ("), i + 1);
        assert_int_equal(save(p, lock, i, &err), DDP_OK);
        ddp_checkpoint_lock_release(lock);
    }
    assert_int_equal(logged(p, "warning"), DDP_COUNT(numbers));
    assert_int_equal(logged(p, "make sure that no second run uses this folder"), DDP_COUNT(numbers));
    assert_int_equal(logged(p, strerror(ENOLCK)), 1);
    lock_errno = EIO; /* which says nothing of that kind */
    assert_int_equal(ddp_checkpoint_lock_take(in(p, "ck"), &p->log, &(ddp_checkpoint_lock *){NULL}, &err),
                     DDP_ERR_SYSTEM);
    assert_contains(err.msg, "ck/.lock: Input/output error");
}

static void left_overs_go(void **state)
{
    static const char *const dead[] = {"ck/step-00000004.tmp", "ck/step-123456789.tmp"}, *const others[] = {
                                                                                             "ck/notes.tmp",
                                                                                             "ck/step-4.tmp",
                                                                                             "ck/step-00000004.old"};
    struct place *p = *state;

    assert_int_equal(mkdir(in(p, "ck"), 0755), 0);
    for (size_t i = 0; i < DDP_COUNT(dead); i++) assert_int_equal(mkdir(in(p, dead[i]), 0755), 0);
    for (size_t i = 0; i < DDP_COUNT(others); i++) assert_int_equal(mkdir(in(p, others[i]), 0755), 0);
    spill(in(p, "ck/step-00000004.tmp/model.safetensors"), "half", 4);
    spill(in(p, "ck/step-00000009.tmp"), "no folder", 9);
    ddp_checkpoint_lock_release(take(p));
    for (size_t i = 0; i < DDP_COUNT(dead); i++) assert_false(exists(in(p, dead[i])));
    for (size_t i = 0; i < DDP_COUNT(others); i++) assert_true(exists(in(p, others[i])));
    assert_false(exists(in(p, "ck/step-00000009.tmp")));
    assert_int_equal(logged(p, "warning"), 0);
}

/* One that cannot be removed takes room, no more; the others go all the same. */
static void a_left_over_that_stays(void **state)
{
    struct place *p = *state;
    ddp_checkpoint_lock *lock;
    ddp_err err = {0};

    assert_int_equal(mkdir(in(p, "ck"), 0755), 0);
    assert_int_equal(mkdir(in(p, "ck/step-00000004.tmp"), 0755), 0);
    assert_int_equal(mkdir(in(p, "ck/step-00000004.tmp/below"), 0755), 0); /* a folder within: not ours */
    for (int i = 5; i < 9; i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "ck/step-0000000%d.tmp", i);
        assert_int_equal(mkdir(in(p, name), 0755), 0);
    }
    lock = take(p);
    assert_int_equal(logged(p, "stays: "), 1);
    assert_int_equal(entries(in(p, "ck")), 2);
    assert_int_equal(save(p, lock, 5, &err), DDP_OK);
    ddp_checkpoint_lock_release(lock);
}

/* ---- what others do meanwhile, where no lock holds them off ------------------------------------------------------ */
static void manifest_goes(const struct place *p)
{
    assert_int_equal(unlink(in(p, "ck/step-00000001/MANIFEST.json")), 0);
}

static void model_is_cut(const struct place *p)
{
    assert_int_equal(truncate(in(p, "ck/step-00000001/model.safetensors"), 9), 0);
}

static void folder_goes(const struct place *p)
{
    assert_int_equal(__real_rename(in(p, "ck/step-00000001"), in(p, "ck/step-00000001.tmp")), 0);
}

static void another_folder_is_there(const struct place *p)
{
    folder_goes(p);
    assert_int_equal(mkdir(in(p, "ck/step-00000001"), 0755), 0);
    for (int i = 0; i < 3; i++) {
        static const char *const files[] = {"MANIFEST.json", "model.safetensors", "optimizer.safetensors"};
        char from[64], to[64];

        (void)snprintf(from, sizeof(from), "ck/step-00000001.tmp/%s", files[i]);
        (void)snprintf(to, sizeof(to), "ck/step-00000001/%s", files[i]);
        assert_int_equal(__real_rename(in(p, from), in(p, to)), 0);
    }
}

static void durable_only_if_it_is_there(void **state)
{
    static void (*const what[])(const struct place *) = {manifest_goes, model_is_cut, folder_goes,
                                                         another_folder_is_there};
    struct place *p = *state;
    ddp_checkpoint_lock *lock = take(p);

    for (size_t i = 0; i < DDP_COUNT(what); i++) {
        ddp_err err = {0};

        after_rename = what[i];
        assert_int_equal(save(p, lock, 1, &err), DDP_ERR_SYSTEM);
        assert_contains(err.msg, "ck/step-00000001 was changed by another process while it was saved");
        assert_contains(err.msg, "[checkpoint] dir");
        assert_int_equal(logged(p, "is durable"), i);
        if (exists(in(p, "ck/step-00000001"))) {
            ddp_err ignored;

            (void)ddp_remove_folder(in(p, "ck/step-00000001"), &ignored);
        }
        assert_int_equal(save(p, lock, 1, &err), DDP_OK);
        assert_int_equal(logged(p, "is durable"), i + 1);
        assert_int_equal(ddp_remove_folder(in(p, "ck/step-00000001"), &err), DDP_OK);
    }
    ddp_checkpoint_lock_release(lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_at_a_time, setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_dead_holder_is_no_obstacle, setup, place_teardown),
        cmocka_unit_test_setup_teardown(what_the_file_says, setup, place_teardown),
        cmocka_unit_test_setup_teardown(the_file_is_removed_meanwhile, setup, place_teardown),
        cmocka_unit_test_setup_teardown(no_link_is_followed, setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_file_system_without_locks, setup, place_teardown),
        cmocka_unit_test_setup_teardown(left_overs_go, setup, place_teardown),
        cmocka_unit_test_setup_teardown(a_left_over_that_stays, setup, place_teardown),
        cmocka_unit_test_setup_teardown(durable_only_if_it_is_there, setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
