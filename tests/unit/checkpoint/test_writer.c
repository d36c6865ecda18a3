/* test_writer.c -- checkpoints that are written beside the caller: who may touch what and when, what is told, and what
 * a disk that is slow, full or broken leaves. Under ThreadSanitizer this is the test of the handover. */
#include "support/checkpoint_util.h"

#include "checkpoint/writer.h"
#include <errno.h>
#include <semaphore.h>

enum { ELEMENTS = 600000 }; /* over two pieces of a megabyte */

/* ---- the disk ---------------------------------------------------------------------------------------------------- */
enum { CALL_FSYNC, CALL_WRITE, CALL_RENAME, CALL_MKDIR, CALL_OPEN, CALLS };
static const char *const call_names[CALLS] = {"fsync", "write", "rename", "mkdir", "open"};

/* Of the thread that saves: calls of the test's own are let through. */
static struct {
    atomic_int armed;  /* the call that fails; -1: none */
    atomic_int number; /* the how-manieth of it from now on, from 1 */
    atomic_int error;
    atomic_int calls; /* made since */
    atomic_bool held; /* the next fsync waits for `go` and posts `there` */
    atomic_int most;  /* bytes that a write takes at most; 0: all */
    sem_t there, go;
    pthread_t test;
} disk;

static bool fails(int call)
{
    if (pthread_equal(pthread_self(), disk.test) || atomic_load(&disk.armed) != call ||
        atomic_fetch_add(&disk.calls, 1) + 1 != atomic_load(&disk.number))
        return false;
    errno = atomic_load(&disk.error);
    return true;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    if (!pthread_equal(pthread_self(), disk.test) && atomic_exchange(&disk.held, false)) {
        (void)sem_post(&disk.there);
        while (sem_wait(&disk.go) != 0) continue;
    }
    return fails(CALL_FSYNC) ? -1 : __real_fsync(fd);
}

ssize_t __real_write(int fd, const void *data, size_t length);
ssize_t __wrap_write(int fd, const void *data, size_t length);
ssize_t __wrap_write(int fd, const void *data, size_t length)
{
    size_t most = (size_t)atomic_load(&disk.most);

    if (pthread_equal(pthread_self(), disk.test)) return __real_write(fd, data, length);
    if (fails(CALL_WRITE)) return -1;
    return __real_write(fd, data, most > 0 && length > most ? most : length);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) { return fails(CALL_RENAME) ? -1 : __real_rename(from, to); }

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
    return strstr(path, ".tmp") != NULL && fails(CALL_MKDIR) ? -1 : __real_mkdir(path, mode);
}

int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode)
{
    return (flags & O_EXCL) != 0 && fails(CALL_OPEN) ? -1 : __real_open(path, flags, mode);
}

static void arm(int call, int number, int error)
{
    atomic_store(&disk.calls, 0);
    atomic_store(&disk.number, number);
    atomic_store(&disk.error, error);
    atomic_store(&disk.armed, call);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */
static float weight[ELEMENTS];
static const ddp_named_tensor model = {
    .name = "fc1.weight", .dtype = DDP_F32, .rank = 1, .dims = {ELEMENTS}, .data = weight};
static ddp_checkpoint_contents what; /* what the thread is given; a step changes it when the thread is done with it */

struct run {
    struct place *p;
    ddp_checkpoint_lock *lock;
    ddp_checkpoint_writer *writer;
};

static int setup(void **state)
{
    disk.test = pthread_self();
    atomic_store(&disk.armed, -1);
    atomic_store(&disk.held, false);
    atomic_store(&disk.most, 0);
    if (sem_init(&disk.there, 0, 0) != 0 || sem_init(&disk.go, 0, 0) != 0) return -1;
    return place_setup(state);
}

static int teardown(void **state)
{
    (void)sem_destroy(&disk.there);
    (void)sem_destroy(&disk.go);
    return place_teardown(state);
}

static struct run start(struct place *p, uint64_t keep)
{
    struct run r = {.p = p};
    ddp_err err = {0};

    if (ddp_checkpoint_lock_take(in(p, "ck"), &p->log, &r.lock, &err) != DDP_OK ||
        ddp_checkpoint_writer_open(r.lock, NULL, &(ddp_retention){.newest = keep}, &p->log, &r.writer, &err) != DDP_OK)
        fail_msg("%s", err.msg);
    return r;
}

static void end(struct run *r)
{
    ddp_checkpoint_writer_close(r->writer);
    ddp_checkpoint_lock_release(r->lock);
}

/* Every element is the step. */
static void begin(struct run *r, uint64_t step)
{
    for (size_t i = 0; i < ELEMENTS; i++) weight[i] = (float)step;
    what = (ddp_checkpoint_contents){.meta = {.step = step, .epoch = 3, .model = "mlp", .config_hash = "0"},
                                     .settings = "train.seed = 1\n",
                                     .parts = {{&model, 1}, {NULL, 0}}};
    ddp_checkpoint_writer_begin(r->writer, &what);
}

static void wait_for(struct run *r) { assert_true(ddp_checkpoint_writer_wait(r->writer, INT64_MAX)); }

static ddp_checkpoint_outcome outcome(struct run *r)
{
    ddp_checkpoint_outcome o = {0};

    wait_for(r);
    assert_true(ddp_checkpoint_writer_take(r->writer, &o));
    return o;
}

static uint64_t newest(struct place *p)
{
    ddp_err err = {0};
    ddp_checkpoint c;
    ddp_status st = ddp_checkpoint_newest(in(p, "ck"), &c, &p->log, &err);
    const ddp_named_tensor *t;
    uint64_t step;

    if (st == DDP_IN_PROGRESS) return 0;
    if (st != DDP_OK) fail_msg("%s", err.msg);
    step = c.meta.step;
    t = ddp_safetensors_find(c.parts[DDP_PART_MODEL], "fc1.weight");
    for (size_t i = 0; i < ELEMENTS; i++) assert_true(((const float *)t->data)[i] == (float)step);
    ddp_checkpoint_close(&c);
    return step;
}

static size_t contents(const struct place *p) { return entries(in(p, "ck")) - 1; } /* without .lock */

/* ---- the tests --------------------------------------------------------------------------------------------------- */
/* The caller goes on while the disk works; nothing is said to be durable before it is. */
static void beside_the_caller(void **state)
{
    struct place *p = *state;
    struct run r = start(p, 0);
    ddp_checkpoint_outcome o;

    atomic_store(&disk.held, true);
    begin(&r, 5);
    while (sem_wait(&disk.there) != 0) continue;
    assert_false(ddp_checkpoint_writer_wait(r.writer, 0));
    assert_false(ddp_checkpoint_writer_take(r.writer, &o));
    assert_int_equal(newest(p), 0);
    assert_int_equal(logged(p, "durable"), 0);
    (void)sem_post(&disk.go);
    o = outcome(&r);
    assert_int_equal(o.err.status, DDP_OK);
    assert_int_equal(o.step, 5);
    assert_int_equal(o.epoch, 3);
    assert_true(o.write_ms > 0);
    assert_false(ddp_checkpoint_writer_take(r.writer, &o)); /* once */
    assert_int_equal(logged(p, "step-00000005 is durable"), 1);
    assert_int_equal(newest(p), 5);
    end(&r);
}

/* What the thread was given is the caller's again after the wait, and its changes are what the next save has. */
static void one_after_the_other(void **state)
{
    struct place *p = *state;
    struct run r = start(p, 2);

    for (uint64_t step = 1; step <= 12; step++) {
        begin(&r, step);
        assert_int_equal(outcome(&r).err.status, DDP_OK);
        if (step % 4 == 0) assert_int_equal(newest(p), step);
    }
    assert_int_equal(contents(p), 2);
    begin(&r, 12);
    assert_int_equal(outcome(&r).err.status, DDP_OK);
    assert_int_equal(logged(p, "step-00000012 is there already"), 1);
    end(&r);
}

/* A write that fails says why and leaves nothing; what was there stays, and the next save may be well. */
static void failures(void **state)
{
    static const struct {
        int call, number, error;
        const char *message;
    } cases[] = {{CALL_MKDIR, 1, ENOSPC, "cannot create the checkpoint folder"},
                 {CALL_OPEN, 1, EMFILE, "step-00000009.tmp/model.safetensors"},
                 {CALL_WRITE, 1, ENOSPC, "step-00000009.tmp/model.safetensors"},
                 {CALL_WRITE, 2, EIO, "step-00000009.tmp/model.safetensors"},
                 {CALL_FSYNC, 1, EIO, "cannot flush"},
                 {CALL_FSYNC, 2, ENOSPC, "step-00000009.tmp/optimizer.safetensors"},
                 {CALL_FSYNC, 3, EIO, "step-00000009.tmp/MANIFEST.json"},
                 {CALL_FSYNC, 4, EIO, "step-00000009.tmp"},
                 {CALL_RENAME, 1, EIO, "cannot rename"}};
    struct place *p = *state;
    struct run r = start(p, 1);

    begin(&r, 7);
    assert_int_equal(outcome(&r).err.status, DDP_OK);
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        ddp_checkpoint_outcome o;

        arm(cases[i].call, cases[i].number, cases[i].error);
        begin(&r, 9);
        o = outcome(&r);
        arm(-1, 0, 0);
        if (o.err.status != DDP_ERR_SYSTEM || o.err.sys_errno != cases[i].error)
            fail_msg("%s %d: status %d, errno %d", call_names[cases[i].call], cases[i].number, o.err.status,
                     o.err.sys_errno);
        assert_contains(o.err.msg, cases[i].message);
        assert_int_equal(contents(p), 1);
        assert_int_equal(newest(p), 7);
    }
    assert_int_equal(logged(p, "durable"), 1);
    atomic_store(&disk.most, 1000); /* of each write */
    begin(&r, 9);
    assert_int_equal(outcome(&r).err.status, DDP_OK);
    assert_int_equal(newest(p), 9);
    assert_int_equal(contents(p), 1);
    end(&r);
}

/* Given up in the middle: nothing of it stays, not even when the thread is told while it waits for the disk. */
static void cancelled(void **state)
{
    struct place *p = *state;
    struct run r = start(p, 1);
    ddp_checkpoint_outcome o;

    begin(&r, 1);
    assert_int_equal(outcome(&r).err.status, DDP_OK);
    atomic_store(&disk.held, true); /* after model.safetensors; the optimiser's file comes after it */
    begin(&r, 2);
    while (sem_wait(&disk.there) != 0) continue;
    ddp_checkpoint_writer_cancel(r.writer);
    (void)sem_post(&disk.go);
    o = outcome(&r);
    assert_int_equal(o.err.status, DDP_ERR_ABORTED);
    assert_contains(o.err.msg, "step-00000002.tmp/");
    assert_contains(o.err.msg, "the run has failed");
    assert_int_equal(contents(p), 1);
    assert_int_equal(newest(p), 1);
    assert_int_equal(logged(p, "durable"), 1);
    end(&r);
}

/* Who closes right away loses nothing, and the folder is free for the next one. */
static void close_waits(void **state)
{
    struct place *p = *state;

    for (uint64_t step = 1; step <= 3; step++) {
        struct run r = start(p, 1);

        begin(&r, step);
        end(&r);
        assert_int_equal(newest(p), step);
        assert_int_equal(contents(p), 1);
    }
    ddp_checkpoint_writer_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(beside_the_caller, setup, teardown),
        cmocka_unit_test_setup_teardown(one_after_the_other, setup, teardown),
        cmocka_unit_test_setup_teardown(failures, setup, teardown),
        cmocka_unit_test_setup_teardown(cancelled, setup, teardown),
        cmocka_unit_test_setup_teardown(close_waits, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
