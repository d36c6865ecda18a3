/* plugins/init/file/record.c -- see file.h. */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEAD    "ddpengine rendezvous "
#define VERSION "2"

/* What a heartbeat may be: as the option's range, so that nobody waits for hours for the next one. */
enum { INTERVAL_LEAST_MS = 50, INTERVAL_MOST_MS = 60000 };

#define UNKNOWN_START UINT64_MAX
#define NO_SECRET     "none"

int64_t file_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- this process ------------------------------------------------------------------------------------------------ */
/* The first bytes of a small file of /proc; false when it cannot be read. */
static bool read_small(const char *path, char *buf, size_t capacity)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, capacity - 1);

    if (fd >= 0) (void)close(fd);
    if (n <= 0) return false;
    buf[n] = '\0';
    return true;
}

/* When process `pid` was started, in clock ticks since boot; 0 when it is not there, or has ended and only waits to
 * be reaped. UNKNOWN_START: it is there, but /proc does not show it: another user's where that is mounted with
 * hidepid. */
static uint64_t start_of(int64_t pid)
{
    char path[64], text[1024], *at;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
    if (!read_small(path, text, sizeof(text)))
        return pid > 0 && pid <= INT_MAX && (kill((pid_t)pid, 0) == 0 || errno != ESRCH) ? UNKNOWN_START : 0;
    at = strrchr(text, ')'); /* the name before it may hold anything */
    if (at == NULL || at[1] == '\0' || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int field = 2; field < 22 && at != NULL; field++) at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

static void machine_of_this_process(char *buf, size_t capacity)
{
    char boot[64] = "";
    struct stat st = {0};

    if (!read_small("/proc/sys/kernel/random/boot_id", boot, sizeof(boot))) boot[0] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    (void)stat("/proc/self/ns/pid", &st);
    (void)snprintf(buf, capacity, "%s/%llu", boot[0] == '\0' ? "unknown" : boot, (unsigned long long)st.st_ino);
}

/* One word of printable letters: the file has one value a line. */
static void one_word(char *text)
{
    if (text[0] == '\0') (void)memcpy(text, "unknown", sizeof("unknown"));
    for (; *text != '\0'; text++)
        if (*text <= ' ' || *text >= 0x7f) *text = '_';
}

ddp_status record_of_this_run(record *r, int64_t interval_ms, ddp_err *err)
{
    unsigned char random[8];

    *r = (record){.pid = getpid(), .began = time(NULL), .beat_time = time(NULL), .interval_ms = interval_ms};
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return ddp_fail(err, DDP_ERR_SYSTEM, "init file: no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(random); i++) (void)snprintf(r->generation + 2 * i, 3, "%02x", random[i]);
    r->start = start_of(r->pid);
    if (r->start == UNKNOWN_START) r->start = 0; /* no /proc */
    (void)gethostname(r->host, sizeof(r->host) - 1);
    one_word(r->host);
    machine_of_this_process(r->machine, sizeof(r->machine));
    return DDP_OK;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */
size_t record_print(const record *r, char text[RECORD_MAX], size_t *beat_at)
{
    int head = snprintf(text, RECORD_MAX,
                        HEAD VERSION "\ngeneration %s\nendpoint %s\nhost %s\nmachine %s\npid %" PRId64
                                     "\nstart %" PRIu64 "\nbegan %" PRId64 "\ninterval %" PRId64 "\nsecret %s\n",
                        r->generation, r->endpoint, r->host, r->machine, r->pid, r->start, r->began, r->interval_ms,
                        r->secret[0] == '\0' ? NO_SECRET : r->secret);
    int tail =
        snprintf(text + head, RECORD_MAX - (size_t)head, "beat %020" PRIu64 " %020" PRId64 "\n", r->beat, r->beat_time);

    *beat_at = (size_t)head;
    return (size_t)head + (size_t)tail;
}

/* The next line's value when its key is `key`; *at moves past it. */
static bool take_text(const char **at, const char *key, char *out, size_t capacity)
{
    size_t key_length = strlen(key), length;
    const char *value = *at + key_length + 1;

    if (strncmp(*at, key, key_length) != 0 || (*at)[key_length] != ' ') return false;
    length = strcspn(value, "\n");
    if (value[length] != '\n' || length == 0 || length >= capacity) return false;
    memcpy(out, value, length);
    out[length] = '\0';
    *at = value + length + 1;
    return true;
}

/* The digits at *at, of at most 63 bits, and the byte `end` after them; *at moves to that. */
static bool digits(const char **at, char end, int64_t *out)
{
    const char *first = *at;
    int64_t n = 0;

    for (; **at >= '0' && **at <= '9'; (*at)++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, **at - '0', &n)) return false;
    *out = n;
    return *at != first && **at == end;
}

static bool take_number(const char **at, const char *key, int64_t *out)
{
    char text[32];
    const char *number = text;

    return take_text(at, key, text, sizeof(text)) && digits(&number, '\0', out);
}

static bool parse(const char *text, record *r)
{
    const char *at = text + strlen(HEAD VERSION "\n");
    int64_t start, beat, beat_time;
    char beats[64];
    const char *number = beats;
    unsigned char secret[DDP_SECRET_MAX];
    size_t length;

    if (!take_text(&at, "generation", r->generation, sizeof(r->generation)) ||
        strspn(r->generation, "0123456789abcdef") != sizeof(r->generation) - 1 ||
        !take_text(&at, "endpoint", r->endpoint, sizeof(r->endpoint)) ||
        !take_text(&at, "host", r->host, sizeof(r->host)) ||
        !take_text(&at, "machine", r->machine, sizeof(r->machine)) || !take_number(&at, "pid", &r->pid) ||
        !take_number(&at, "start", &start) || !take_number(&at, "began", &r->began) ||
        !take_number(&at, "interval", &r->interval_ms) || !take_text(&at, "secret", r->secret, sizeof(r->secret)) ||
        !take_text(&at, "beat", beats, sizeof(beats)))
        return false;
    if (strcmp(r->secret, NO_SECRET) == 0)
        r->secret[0] = '\0';
    else if (!hex_read(r->secret, secret, &length))
        return false;
    if (!digits(&number, ' ', &beat)) return false;
    number++;
    if (!digits(&number, '\0', &beat_time) || *at != '\0' || r->interval_ms < INTERVAL_LEAST_MS ||
        r->interval_ms > INTERVAL_MOST_MS)
        return false;
    r->start = (uint64_t)start;
    r->beat = (uint64_t)beat;
    r->beat_time = beat_time;
    one_word(r->host);
    one_word(r->endpoint);
    return true;
}

static ddp_status not_a_record(const char *path, const char *what, ddp_err *err)
{
    return ddp_fail(
        err, DDP_ERR_DATA,
        "init_method names %.300s, which %s; it is left as it is: remove it, or name a file that does not exist yet",
        path, what);
}

bool record_is_guarded(const struct stat *st) { return st->st_uid == geteuid() && (st->st_mode & 077) == 0; }

ddp_status record_read(const char *path, record *out, ddp_err *err)
{
    char text[RECORD_MAX];
    struct stat st;
    record r = {0};
    ssize_t n;
    int error;
    /* opened again each time: over NFS that is what brings the newest content; a FIFO must not block */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0 && (errno == ENOENT || errno == ESTALE)) return DDP_IN_PROGRESS;
    if (fd < 0 && errno == EACCES)
        return ddp_fail(
            err, DDP_ERR_SYSTEM,
            "init_method: %.300s cannot be read by this user: all ranks of a run must be of one user, or have a secret_file; name a file of your own if another user's run has that one",
            path);
    if (fd < 0) return ddp_fail(err, DDP_ERR_SYSTEM, "init_method: cannot read %.300s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0) st = (struct stat){.st_mode = S_IFREG | 0777}; /* over NFS, of a file that was replaced */
    if (!S_ISREG(st.st_mode)) {
        (void)close(fd);
        return not_a_record(path, S_ISDIR(st.st_mode) ? "is a folder" : "is not a plain file", err);
    }
    n = pread(fd, text, sizeof(text) - 1, 0);
    error = errno;
    (void)close(fd);
    if (n < 0 && error == ESTALE) return DDP_IN_PROGRESS; /* replaced while it was read */
    if (n < 0) return ddp_fail(err, DDP_ERR_SYSTEM, "init_method: cannot read %.300s: %s", path, strerror(error));
    text[n] = '\0';
    if (n == 0) return not_a_record(path, "is an empty file", err);
    if (strncmp(text, HEAD, strlen(HEAD)) != 0) return not_a_record(path, "holds something else", err);
    if (strncmp(text, HEAD VERSION "\n", strlen(HEAD VERSION "\n")) != 0)
        return not_a_record(path, "was written by another version of ddpengine", err);
    if (strlen(text) != (size_t)n || !parse(text, &r)) return not_a_record(path, "is damaged", err);
    r.guarded = record_is_guarded(&st);
    *out = r;
    return DDP_OK;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
/* On the same machine the process itself is looked at, where it can be seen. Elsewhere only the heartbeat does, by this
 * host's own clock; so it does for a process that is hidden, whose number may be another one's by now. */
state_of_run record_check(const record *self, const record *other, watch *w)
{
    bool here = strcmp(self->machine, other->machine) == 0 && self->start != 0 && other->start != 0;
    uint64_t start = here ? start_of(other->pid) : UNKNOWN_START;
    int64_t now = file_now_ns();

    if (start != UNKNOWN_START) return start == other->start ? LIVE : DEAD;
    if (strcmp(w->generation, other->generation) != 0) {
        w->moved = w->absent || w->generation[0] != '\0'; /* it came while we looked on */
        memcpy(w->generation, other->generation, sizeof(w->generation));
        w->beat = other->beat;
        w->since_ns = now;
    } else if (w->beat != other->beat) {
        w->moved = true;
        w->beat = other->beat;
        w->since_ns = now;
    } else if (now - w->since_ns > DEAD_BEATS * other->interval_ms * 1000000) {
        return DEAD;
    }
    return w->moved ? LIVE : UNSURE;
}

const char *record_who(const record *r, char *buf, size_t capacity)
{
    char began[32] = "";
    time_t at = (time_t)r->began;
    struct tm utc;

    if (gmtime_r(&at, &utc) != NULL) (void)strftime(began, sizeof(began), "%Y-%m-%d %H:%M:%S UTC", &utc);
    (void)snprintf(buf, capacity, "host %s, pid %" PRId64 ", since %s", r->host, r->pid, began);
    return buf;
}
