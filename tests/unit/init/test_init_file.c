/* tests/unit/init/test_init_file.c -- init method file://: who the file belongs to, dead runs, races, and two ranks
 * that find each other by it. "Elsewhere" is a machine of another name: of its runs nothing is known but the
 * heartbeat. */
#include "support/group_util.h"
#include <dirent.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/stat.h>

struct file_config { /* as in the plugin's table of options */
    const char *listen;
    int64_t heartbeat_ms;
};
static const struct file_config config = {.listen = "127.0.0.1", .heartbeat_ms = 60};

static char folder[64], path[96], url[112];
static ddp_log log_;
static ddp_host host;

static const ddp_init_ops *load(void)
{
    static const ddp_plugin *desc;
    void *so = desc != NULL ? NULL : dlopen(DDP_BUILDDIR "/.libs/init_file.so", RTLD_NOW | RTLD_LOCAL);

    if (desc == NULL && so == NULL) fail_msg("%s", dlerror());
    if (desc == NULL) desc = dlsym(so, DDP_PLUGIN_SYMBOL);
    assert_non_null(desc);
    assert_int_equal(desc->config_size, sizeof(config));
    return desc->ops;
}

static ddp_init *opened(void)
{
    ddp_init *i = NULL;
    ddp_err err = {0};

    if (load()->open(&host, &config, url, &i, &err) != DDP_OK) fail_msg("%s", err.msg);
    return i;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/ddpengine-unit-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/run", folder);
    (void)snprintf(url, sizeof(url), "file://%s", path);
    ddp_log_init(&log_);
    log_.fd = memfd_create("log", MFD_CLOEXEC);
    host = ddp_log_host(&log_);
    return 0;
}

static int teardown(void **state)
{
    ddp_err err;

    (void)state;
    (void)close(log_.fd);
    return ddp_remove_folder(folder, &err);
}

static char *read_text(const char *name)
{
    char *text = NULL;
    size_t length;
    ddp_err err = {0};

    if (ddp_file_read(name, 1 << 16, &text, &length, &err) != DDP_OK) fail_msg("%s", err.msg);
    return text;
}

/* On any thread. */
static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(name, "we");

    CHECK(f != NULL && fputs(text, f) >= 0);
    CHECK(f == NULL || fclose(f) == 0);
}

static int entries(void)
{
    DIR *d = opendir(folder);
    int count = -2; /* . and .. */

    assert_non_null(d);
    while (readdir(d) != NULL) count++;
    (void)closedir(d);
    return count;
}

/* This machine's name as a file has it; a run writes one. */
static void machine_name(char *out, size_t capacity)
{
    ddp_init *i = opened();
    ddp_err err = {0};
    char *text, *at;

    assert_int_equal(load()->publish(i, "127.0.0.1:1", &err), DDP_OK);
    text = read_text(path);
    at = strstr(text, "\nmachine ") + strlen("\nmachine ");
    at[strcspn(at, "\n")] = '\0';
    ddp_copy_text(out, capacity, at);
    free(text);
    load()->close(i);
}

#define OLD_RUN "00000000000000aa"

/* A file of another run. Process 2^22 + 5 is above what the kernel gives. */
static void leave(const char *name, const char *generation, const char *machine, uint64_t beat)
{
    char text[1024];

    (void)snprintf(
        text, sizeof(text),
        "ddpengine rendezvous 2\ngeneration %s\nendpoint 127.0.0.1:9\nhost node7\nmachine %s\npid 4194309\nstart "
        "77\nbegan 1000000000\ninterval 60\nsecret none\nbeat %020llu 00000000001000000000\n",
        generation, machine, (unsigned long long)beat);
    write_text(name, text);
}

static bool logged(const char *part)
{
    char text[8192] = "";

    assert_true(pread(log_.fd, text, sizeof(text) - 1, 0) >= 0);
    return contains(text, part);
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */
static void test_publish_and_find(void **state)
{
    char at[DDP_ENDPOINT_MAX] = "", found[DDP_ENDPOINT_MAX] = "";
    ddp_init *a = opened(), *b = opened();
    ddp_err err = {0};

    (void)state;
    assert_int_equal(load()->listen_at(a, at, &err), DDP_OK);
    assert_string_equal(at, "127.0.0.1:0");
    assert_int_equal(load()->find(b, found, &err), DDP_IN_PROGRESS);
    assert_contains(err.msg, "not there yet");
    assert_int_equal(load()->publish(a, "127.0.0.1:4711", &err), DDP_OK);
    assert_int_equal(load()->find(b, found, &err), DDP_OK);
    assert_string_equal(found, "127.0.0.1:4711");
    assert_int_equal(entries(), 1);
    load()->close(b);
    assert_int_equal(entries(), 1); /* not its to remove */
    load()->close(a);
    assert_int_equal(entries(), 0);
}

/* A handle has one address; who needs another opens another handle, whatever the first one has left. */
static void test_publish_once(void **state)
{
    char found[DDP_ENDPOINT_MAX] = "";
    ddp_init *a = opened(), *b = opened();
    ddp_err err = {0};

    (void)state;
    assert_int_equal(load()->publish(a, "127.0.0.1:4711", &err), DDP_OK);
    assert_int_equal(load()->publish(a, "127.0.0.1:4712", &err), DDP_ERR_INVALID);
    assert_contains(err.msg, "has published 127.0.0.1:4711");
    assert_int_equal(load()->find(b, found, &err), DDP_OK);
    assert_string_equal(found, "127.0.0.1:4711");
    load()->close(a);
    a = opened();
    assert_int_equal(load()->publish(a, "127.0.0.1:4712", &err), DDP_OK);
    assert_int_equal(load()->find(b, found, &err), DDP_OK);
    assert_string_equal(found, "127.0.0.1:4712");
    load()->close(b);
    load()->close(a);
    assert_int_equal(entries(), 0);
}

/* It removes what it wrote where it cannot open that, and leaves what another run has put there. */
static void test_close_without_descriptors(void **state)
{
    struct rlimit before, none;

    (void)state;
    for (int foreign = 0; foreign < 2; foreign++) {
        ddp_init *i = opened();
        ddp_err err = {0};

        assert_int_equal(load()->publish(i, "127.0.0.1:4711", &err), DDP_OK);
        if (foreign) {
            assert_int_equal(unlink(path), 0);
            write_text(path, "of somebody else");
        }
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        load()->close(i);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(entries(), foreign);
    }
}

static void test_heartbeat(void **state)
{
    ddp_init *i = opened();
    ddp_err err = {0};
    char *first, *now;
    bool moved = false;

    (void)state;
    assert_int_equal(load()->publish(i, "127.0.0.1:4711", &err), DDP_OK);
    first = read_text(path);
    for (int n = 0; n < 1000 && !moved; n++) {
        (void)usleep(10000);
        now = read_text(path);
        moved = strcmp(first, now) != 0;
        assert_int_equal(strlen(first), strlen(now));
        free(now);
    }
    assert_true(moved);
    free(first);
    load()->close(i);
}

/* The plugin's thread has a name, takes no signals, and is gone after close. */
static int count_threads(const char *name, bool *signals_blocked)
{
    DIR *d = opendir("/proc/self/task");
    int count = 0;

    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char file[300], *text = NULL, *mask;
        size_t length;
        ddp_err err;

        (void)snprintf(file, sizeof(file), "/proc/self/task/%s/status", e->d_name);
        if (e->d_name[0] == '.' || ddp_file_read(file, 1 << 16, &text, &length, &err) != DDP_OK) continue;
        if (contains(text, name)) {
            count++;
            mask = strstr(text, "SigBlk:");
            /* SIGKILL, SIGSTOP and the C library's own two cannot be blocked */
            *signals_blocked = mask != NULL && (strtoull(mask + 8, NULL, 16) | 0x180040100ull) == ~0ull;
        }
        free(text);
    }
    (void)closedir(d);
    return count;
}

static void test_thread(void **state)
{
    ddp_init *i = opened();
    ddp_err err = {0};
    bool blocked = false;

    (void)state;
    assert_int_equal(count_threads("ddp-init-file", &blocked), 0);
    assert_int_equal(load()->publish(i, "127.0.0.1:4711", &err), DDP_OK);
    UNTIL(count_threads("ddp-init-file", &blocked) != 0);
    assert_int_equal(count_threads("ddp-init-file", &blocked), 1);
    assert_true(blocked);
    load()->close(i);
    assert_int_equal(count_threads("ddp-init-file", &blocked), 0);
}

/* ---- other runs -------------------------------------------------------------------------------------------------- */
static void assert_taken_over(void)
{
    ddp_init *i = opened(), *other = opened();
    char found[DDP_ENDPOINT_MAX] = "";
    ddp_err err = {0};

    if (load()->publish(i, "127.0.0.1:4712", &err) != DDP_OK) fail_msg("%s", err.msg);
    assert_true(logged("is of a run that has died (host node7, pid 4194309, last sign of life "));
    assert_int_equal(load()->find(other, found, &err), DDP_OK);
    assert_string_equal(found, "127.0.0.1:4712");
    assert_int_equal(entries(), 1);
    load()->close(other);
    load()->close(i);
    assert_int_equal(entries(), 0);
}

static void test_dead_run_here(void **state)
{
    char machine[160], found[DDP_ENDPOINT_MAX] = "";
    ddp_init *i;
    ddp_err err = {0};

    (void)state;
    machine_name(machine, sizeof(machine));
    leave(path, OLD_RUN, machine, 5);
    i = opened();
    assert_int_equal(load()->find(i, found, &err), DDP_IN_PROGRESS);
    assert_contains(err.msg, "of a run that has died (host node7, pid 4194309, since 2001-09-09 01:46:40 UTC)");
    load()->close(i);
    assert_taken_over();
    assert_false(logged("looking for a sign of life"));
}

/* The number of a dead process is given again: its start time is another. */
static void test_pid_used_again(void **state)
{
    char machine[160], text[1024], found[DDP_ENDPOINT_MAX] = "";
    ddp_init *i;
    ddp_err err = {0};

    (void)state;
    machine_name(machine, sizeof(machine));
    (void)snprintf(text, sizeof(text),
                   "ddpengine rendezvous 2\ngeneration " OLD_RUN
                   "\nendpoint 127.0.0.1:9\nhost node7\nmachine %s\npid %d\nstart "
                   "77\nbegan 1000000000\ninterval 60\nsecret none\nbeat %020d %020d\n",
                   machine, (int)getpid(), 1, 1);
    write_text(path, text);
    i = opened();
    assert_int_equal(load()->find(i, found, &err), DDP_IN_PROGRESS);
    assert_contains(err.msg, "has died");
    load()->close(i);
}

static void test_dead_run_elsewhere(void **state)
{
    char found[DDP_ENDPOINT_MAX] = "";
    ddp_status status = DDP_OK;
    ddp_err err = {0};
    ddp_init *i = opened();

    (void)state;
    leave(path, OLD_RUN, "elsewhere/1", 5);
    assert_int_equal(load()->find(i, found, &err), DDP_IN_PROGRESS);
    assert_contains(err.msg, "has shown no sign of life yet");
    UNTIL((status = load()->find(i, found, &err)) != DDP_IN_PROGRESS || contains(err.msg, "has died"));
    assert_int_equal(status, DDP_IN_PROGRESS);
    load()->close(i);
    assert_taken_over();
    assert_true(logged("looking for a sign of life for 0.3 s"));
}

struct beating {
    atomic_bool stop;
    pthread_t thread;
};

static void *beat_main(void *arg)
{
    struct beating *b = arg;

    for (uint64_t beat = 6; !atomic_load(&b->stop); beat++) {
        char next[128];

        (void)snprintf(next, sizeof(next), "%s.beating", path);
        leave(next, OLD_RUN, "elsewhere/1", beat);
        CHECK(rename(next, path) == 0);
        (void)usleep(40000);
    }
    return NULL;
}

static void test_live_run_elsewhere(void **state)
{
    char found[DDP_ENDPOINT_MAX] = "";
    struct beating b = {.stop = false};
    ddp_init *i = opened(), *second = opened();
    ddp_err err = {0};
    ddp_status status;

    (void)state;
    leave(path, OLD_RUN, "elsewhere/1", 5);
    status = load()->find(i, found, &err);
    assert_int_equal(status, DDP_IN_PROGRESS);
    assert_int_equal(pthread_create(&b.thread, NULL, beat_main, &b), 0);
    UNTIL((status = load()->find(i, found, &err)) != DDP_IN_PROGRESS);
    assert_int_equal(status, DDP_OK);
    assert_string_equal(found, "127.0.0.1:9");
    assert_int_equal(load()->publish(second, "127.0.0.1:1", &err), DDP_ERR_PEER);
    assert_contains(err.msg, "is in use by another run (host node7, pid 4194309, since 2001-09-09 01:46:40 UTC)");
    assert_contains(err.msg, "this one (host ");
    atomic_store(&b.stop, true);
    assert_int_equal(until_joined(b.thread), 0);
    assert_no_wrongs();
    load()->close(i);
    load()->close(second);
    assert_int_equal(access(path, F_OK), 0);
}

/* A file that comes while a rank looks on is of a run that lives. */
static void test_new_run_elsewhere(void **state)
{
    char found[DDP_ENDPOINT_MAX] = "";
    ddp_init *i = opened();
    ddp_err err = {0};

    (void)state;
    assert_int_equal(load()->find(i, found, &err), DDP_IN_PROGRESS);
    leave(path, OLD_RUN, "elsewhere/1", 0);
    assert_int_equal(load()->find(i, found, &err), DDP_OK);
    leave(path, "00000000000000ab", "elsewhere/1", 0); /* taken over */
    assert_int_equal(load()->find(i, found, &err), DDP_OK);
    load()->close(i);
}

/* Who was taking a dead run's file over has died over it. */
static void test_dead_taker(void **state)
{
    char machine[160], lock[128];

    (void)state;
    machine_name(machine, sizeof(machine));
    leave(path, OLD_RUN, machine, 5);
    (void)snprintf(lock, sizeof(lock), "%s." OLD_RUN, path);
    leave(lock, "00000000000000bb", machine, 0);
    assert_taken_over();
}

struct racer {
    pthread_t thread;
    pthread_barrier_t *start;
    ddp_init *init;
    ddp_status status;
    ddp_err err;
};

static void *race_main(void *arg)
{
    struct racer *r = arg;

    (void)pthread_barrier_wait(r->start);
    r->status = load()->publish(r->init, "127.0.0.1:1", &r->err);
    return NULL;
}

static void race(const char *machine)
{
    struct racer r[6] = {0};
    pthread_barrier_t start;
    int won = 0;

    (void)pthread_barrier_init(&start, NULL, DDP_COUNT(r));
    if (machine != NULL) leave(path, OLD_RUN, machine, 5);
    for (size_t i = 0; i < DDP_COUNT(r); i++) {
        r[i].start = &start;
        r[i].init = opened();
        assert_int_equal(pthread_create(&r[i].thread, NULL, race_main, &r[i]), 0);
    }
    for (size_t i = 0; i < DDP_COUNT(r); i++) assert_int_equal(until_joined(r[i].thread), 0);
    for (size_t i = 0; i < DDP_COUNT(r); i++) {
        won += r[i].status == DDP_OK;
        if (r[i].status != DDP_OK) assert_contains(r[i].err.msg, "is in use by another run (host ");
    }
    assert_int_equal(won, 1);
    assert_int_equal(entries(), 1);
    for (size_t i = 0; i < DDP_COUNT(r); i++) load()->close(r[i].init);
    assert_int_equal(entries(), 0);
    (void)pthread_barrier_destroy(&start);
}

static void test_race(void **state)
{
    char machine[160];

    (void)state;
    machine_name(machine, sizeof(machine));
    for (int round = 0; round < 40; round++) race(round % 2 == 0 ? machine : NULL);
    race("elsewhere/1");
}

/* A run that was taken for dead, stopped perhaps, leaves its successor's file alone. */
static void test_no_longer_ours(void **state)
{
    ddp_init *i = opened();
    ddp_err err = {0};
    char *text, next[128];

    (void)state;
    assert_int_equal(load()->publish(i, "127.0.0.1:1", &err), DDP_OK);
    (void)snprintf(next, sizeof(next), "%s.next", path);
    leave(next, OLD_RUN, "elsewhere/1", 5);
    assert_int_equal(rename(next, path), 0);
    UNTIL(logged("has been taken over by another run (host node7"));
    assert_true(logged("has been taken over by another run (host node7"));
    load()->close(i);
    text = read_text(path);
    assert_contains(text, "generation " OLD_RUN);
    assert_contains(text, "beat 00000000000000000005 ");
    free(text);
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */
static void assert_bad_url(const char *bad, const char *why)
{
    ddp_init *i = NULL;
    ddp_err err = {0};

    assert_int_equal(load()->open(&host, &config, bad, &i, &err), DDP_ERR_CONFIG);
    assert_null(i);
    assert_contains(err.msg, why);
    assert_contains(err.msg, "for example file:///mnt/nfs/run1");
}

static void test_urls(void **state)
{
    char long_url[5000] = "file:///";

    (void)state;
    memset(long_url + 8, 'x', sizeof(long_url) - 9);
    assert_bad_url("tcp://x:1", "does not begin with file://");
    assert_bad_url("file://", "the path is missing");
    assert_bad_url("file://run", "the path must be absolute");
    assert_bad_url("file:///mnt/", "names a folder");
    assert_bad_url(long_url, "the path is too long");
}

static void test_listen(void **state)
{
    const struct {
        const char *listen, *endpoint;
    } good[] = {{"auto", ":0"}, {"lo", "127.0.0.1:0"}, {"192.0.2.7", "192.0.2.7:0"}, {"::1", "[::1]:0"}};
    ddp_init *i = NULL;
    ddp_err err = {0};

    (void)state;
    for (size_t n = 0; n <= DDP_COUNT(good); n++) {
        const struct file_config c = {.listen = n < DDP_COUNT(good) ? good[n].listen : "no such thing",
                                      .heartbeat_ms = 60};
        char endpoint[DDP_ENDPOINT_MAX] = "";

        assert_int_equal(load()->open(&host, &c, url, &i, &err), DDP_OK);
        if (n < DDP_COUNT(good)) {
            assert_int_equal(load()->listen_at(i, endpoint, &err), DDP_OK);
            assert_string_equal(endpoint, good[n].endpoint);
        } else {
            assert_int_equal(load()->listen_at(i, endpoint, &err), DDP_ERR_CONFIG);
            assert_contains(err.msg, "neither an address nor an interface of this host (");
            assert_contains(err.msg, "lo");
        }
        load()->close(i);
    }
}

static void test_damaged(void **state)
{
    static const char *const texts[] = {"", "x", "ddpengine rendezvous 1\n", "ddpengine rendezvous 2\n",
                                        "ddpengine rendezvous 2\ngeneration 00000000000000aa\n"};
    char found[DDP_ENDPOINT_MAX] = "", slow[2048], *whole, *tail;
    ddp_init *i = opened();
    ddp_err err = {0};

    (void)state;
    for (size_t n = 0; n < DDP_COUNT(texts); n++) {
        write_text(path, texts[n]);
        assert_int_equal(load()->find(i, found, &err), DDP_ERR_DATA);
        assert_int_equal(load()->publish(i, "127.0.0.1:1", &err), DDP_ERR_DATA);
        assert_contains(err.msg, path);
        assert_int_equal(entries(), 1);
    }
    leave(path, OLD_RUN, "elsewhere/1", 5);
    whole = read_text(path);
    /* a heartbeat that nobody can have set: waiting for five of them would take hours */
    tail = strstr(whole, "interval 60\n");
    assert_non_null(tail);
    (void)snprintf(slow, sizeof(slow), "%.*sinterval 600000%s", (int)(tail - whole), whole,
                   tail + strlen("interval 60"));
    write_text(path, slow);
    assert_int_equal(load()->publish(i, "127.0.0.1:1", &err), DDP_ERR_DATA);
    assert_contains(err.msg, "is damaged");
    for (size_t length = strlen(whole) - 1; length > 0; length--) { /* cut anywhere */
        whole[length] = '\0';
        write_text(path, whole);
        assert_int_equal(load()->find(i, found, &err), DDP_ERR_DATA);
    }
    free(whole);
    load()->close(i);
}

/* ---- the secret of a run ----------------------------------------------------------------------------------------- */
static mode_t mode_of(const char *name)
{
    struct stat st;

    assert_int_equal(stat(name, &st), 0);
    return st.st_mode & 0777;
}

/* With a secret the file is its user's alone; without one others may read it as before. */
static void test_secret(void **state)
{
    static const unsigned char secret[] = {0, 1, 0x7f, 0x80, 0xff};
    unsigned char found[DDP_SECRET_MAX];
    char endpoint[DDP_ENDPOINT_MAX] = "", *text;
    ddp_init *first = opened(), *second = opened();
    size_t length = 7;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(load()->put_secret(first, secret, sizeof(secret), &err), DDP_OK);
    assert_int_equal(load()->publish(first, "127.0.0.1:1", &err), DDP_OK);
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(load()->find(second, endpoint, &err), DDP_OK);
    assert_int_equal(load()->get_secret(second, found, &length, &err), DDP_OK);
    assert_int_equal(length, sizeof(secret));
    assert_memory_equal(found, secret, sizeof(secret));
    text = read_text(path);
    assert_contains(text, "\nsecret 00017f80ff\nbeat ");
    free(text);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(load()->find(second, endpoint, &err), DDP_ERR_CONFIG);
    assert_contains(err.msg, path);
    assert_contains(err.msg, "belongs to another user or others may read it");
    assert_int_equal(chmod(path, 0600), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_int_equal(load()->find(second, endpoint, &err), DDP_ERR_CONFIG);
        assert_contains(err.msg, "secret_file");
    }
    load()->close(first);
    first = opened();
    assert_int_equal(load()->publish(first, "127.0.0.1:1", &err), DDP_OK);
    assert_int_equal(mode_of(path), 0644);
    assert_int_equal(load()->find(second, endpoint, &err), DDP_OK);
    assert_int_equal(load()->get_secret(second, found, &length, &err), DDP_OK);
    assert_int_equal(length, 0);
    load()->close(first);
    load()->close(second);
}

/* Seen from another user: the message says whose fault it is not. */
static void test_secret_of_another_user(void **state)
{
    int how = 0;
    pid_t child;

    (void)state;
    if (geteuid() != 0) skip(); /* needs root to be another user */
    assert_int_equal(chmod(folder, 0755), 0);
    write_text(path, "whatever it holds");
    assert_int_equal(chmod(path, 0600), 0);
    (void)load();
    child = fork();
    if (child == 0) {
        char endpoint[DDP_ENDPOINT_MAX];
        ddp_init *i = opened();
        ddp_err err = {0};

        if (setuid(65534) != 0) _exit(1);
        _exit(load()->find(i, endpoint, &err) == DDP_ERR_SYSTEM && strstr(err.msg, path) != NULL &&
                      strstr(err.msg, "cannot be read by this user") != NULL && strstr(err.msg, "secret_file") != NULL
                  ? 0
                  : 2);
    }
    assert_int_equal(until_exited(child, &how), child);
    assert_int_equal(how, 0);
}

/* ---- with the core ----------------------------------------------------------------------------------------------- */
static void *join_by_file(void *arg)
{
    member *m = arg;
    ddp_group_params p = {.rank = m->rank,
                          .world = 2,
                          .url = url,
                          .init_ops = load(),
                          .listen_fd = -1,
                          .timeout_ms = LONG_MS,
                          .log = &m->log};

    m->status = p.init_ops->open(&host, &config, p.url, &p.init, &m->err);
    if (m->status != DDP_OK) return NULL;
    m->status = ddp_group_join(&p, &m->group, &m->failure, &m->err);
    p.init_ops->close(p.init);
    if (m->status == DDP_OK) ddp_group_leave(m->group, NULL);
    return NULL;
}

static void test_rendezvous(void **state)
{
    member m[2];

    (void)state;
    (void)load();
    for (int32_t r = 1; r >= 0; r--) {
        member_init(&m[r], NULL, r, 2);
        assert_int_equal(pthread_create(&m[r].thread, NULL, join_by_file, &m[r]), 0);
        if (r == 1) (void)usleep(100000);
    }
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    members_close(m, 2);
    assert_int_equal(entries(), 0);
}

/* Whoever reaches rank 0's port without having read the file is refused. */
static void test_rendezvous_has_a_secret(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", *text;
    ddp_init *i = opened();
    ddp_err err = {0};
    ddp_frame f;
    member m[2];
    ddp_wire w;

    (void)state;
    for (int32_t r = 0; r < 2; r++) member_init(&m[r], NULL, r, 2);
    assert_int_equal(pthread_create(&m[0].thread, NULL, join_by_file, &m[0]), 0);
    UNTIL(load()->find(i, endpoint, &err) == DDP_OK);
    assert_int_equal(mode_of(path), 0600);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){1, 3, DDP_VERSION}, "");
    f = raw_next(&w);
    assert_int_equal(f.type, DDP_FRAME_FAILURE);
    ddp_wire_close(&w);
    assert_int_equal(pthread_create(&m[1].thread, NULL, join_by_file, &m[1]), 0);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    for (int32_t r = 0; r < 2; r++)
        if (m[r].status != DDP_OK) fail_msg("rank %d: %s", r, m[r].err.msg);
    text = member_log(&m[0]);
    assert_contains(text, "differ in their secret");
    free(text);
    members_close(m, 2);
    load()->close(i);
    assert_int_equal(entries(), 0);
}

/* Whoever names the endpoint: without a secret it must be a loopback address, on both ends. */
static void test_secret_or_consent(void **state)
{
    for (int32_t rank = 0; rank < 2; rank++) {
        ddp_group_params p = {.rank = rank,
                              .world = 2,
                              .url = "test://published",
                              .init_ops = &published_ops,
                              .listen_fd = -1,
                              .timeout_ms = 200,
                              .log = &log_};
        ddp_failure failure;
        ddp_group *g = NULL;
        ddp_err err = {0};
        published b;

        (void)state;
        published_init(&b, "192.0.2.7:0");
        ddp_copy_text(b.endpoint, sizeof(b.endpoint), "192.0.2.7:29500");
        p.init = (ddp_init *)&b;
        assert_int_equal(ddp_group_join(&p, &g, &failure, &err), DDP_ERR_CONFIG);
        assert_int_equal(failure.exit_code, DDP_EXIT_CONFIG);
        assert_contains(failure.msg, "rank 0 at 192.0.2.7:");
        assert_contains(failure.msg, "auth = none");
        p.auth_none = true;
        assert_int_not_equal(ddp_group_join(&p, &g, &failure, &err), DDP_OK);
        assert_int_equal(failure.exit_code, DDP_EXIT_RENDEZVOUS);
    }
}

/* An empty host is the core's to fill in. */
static void test_host_by_interface(void **state)
{
    ddp_group_params p = {.rank = 0,
                          .world = 2,
                          .init_ops = &published_ops,
                          .listen_fd = -1,
                          .interface = "lo",
                          .timeout_ms = 200,
                          .log = &log_};
    ddp_failure failure;
    ddp_group *g = NULL;
    ddp_err err = {0};
    published b;

    (void)state;
    published_init(&b, ":0");
    p.init = (ddp_init *)&b;
    assert_int_not_equal(ddp_group_join(&p, &g, &failure, &err), DDP_OK);
    assert_contains(b.endpoint, "127.0.0.1:");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_publish_and_find),
        TEST(test_publish_once),
        TEST(test_close_without_descriptors),
        TEST(test_heartbeat),
        TEST(test_thread),
        TEST(test_dead_run_here),
        TEST(test_pid_used_again),
        TEST(test_dead_run_elsewhere),
        TEST(test_live_run_elsewhere),
        TEST(test_new_run_elsewhere),
        TEST(test_dead_taker),
        TEST(test_race),
        TEST(test_no_longer_ours),
        TEST(test_urls),
        TEST(test_listen),
        TEST(test_damaged),
        TEST(test_secret),
        TEST(test_secret_of_another_user),
        TEST(test_rendezvous),
        TEST(test_rendezvous_has_a_secret),
        TEST(test_secret_or_consent),
        TEST(test_host_by_interface),
    };

    return cmocka_run_group_tests_name("init file", tests, NULL, NULL);
}
