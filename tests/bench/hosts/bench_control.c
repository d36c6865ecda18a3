/* tests/bench/hosts/bench_control.c -- the control plane with many ranks: N real processes join, agree, gather and
 * leave, and where one is killed, how long it takes until all the others name it. Each rank is a process of its own
 * that executes this program again, and is in the group as a rank of ddpengine is; it has no model and no backend.
 *
 * make tests/bench/hosts/bench_control; tests/bench/hosts/bench_control --ranks 1024 --hub 32 --secret --kill 33. With
 * --apart the ranks but the first block are in another network namespace, as hosts behind a link: --at 10.0.0.1:0
 * --apart NAME.
 * Exit code 1: a rank did not do what it was to do. */
#include "base/sys.h"
#include "control/group.h"
#include "net/endpoint.h"
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS      120000
#define GATHER_BYTES 512 /* of each rank: what the ranks say of their processors has about as many */
#define SECRET       "a secret of the benchmark, 32 bytes or more of it"
#define AGREEMENT    40 /* lines, as many as a usual config has */
#define PEER_TIMEOUT 10000

enum { STARTED, MET, AGREED, GATHERED, TOGETHER, NAMED, LEFT, PHASES };
static const char *const phase_names[PHASES] = {"start", "join", "agree", "gather", "barrier", "name", "leave"};

/* Shared between the parent and the ranks. */
typedef struct rank_record {
    int64_t at_ns[PHASES];
    int wrong;    /* line of this file */
    int named;    /* the rank that the failure names, + 1 */
    int measured; /* record 0: the parent has looked at the memory */
} rank_record;

typedef struct options {
    int32_t ranks, hub, victim;
    bool secret;
    const char *apart; /* network namespace of the ranks from `hub`, or of 32, on; or NULL */
    char endpoint[DDP_ENDPOINT_MAX];
} options;

/* ---- a rank ------------------------------------------------------------------------------------------------------ */
static void fail_at(rank_record *r, int line) { r->wrong = r->wrong == 0 ? line : r->wrong; }
#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) fail_at(own, __LINE__);                                                                      \
    } while (0)

static void note(rank_record *r, int phase) { __atomic_store_n(&r->at_ns[phase], ddp_now_ns(), __ATOMIC_SEQ_CST); }

static void gather_all(ddp_group *g, const options *o, int32_t rank, rank_record *own)
{
    const void **parts = calloc((size_t)o->ranks, sizeof(*parts));
    size_t *lengths = calloc((size_t)o->ranks, sizeof(*lengths));
    unsigned char mine[GATHER_BYTES];
    void *block = NULL;
    ddp_err err;

    memset(mine, rank & 255, sizeof(mine));
    if (parts == NULL || lengths == NULL ||
        ddp_group_gather(g, "all", mine, sizeof(mine), &block, parts, lengths, WAIT_MS, &err) != DDP_OK) {
        fail_at(own, __LINE__);
    } else {
        for (int32_t r = 0; r < o->ranks; r++)
            NEED(lengths[r] == sizeof(mine) && ((const unsigned char *)parts[r])[7] == (r & 255));
    }
    free(block);
    free(parts);
    free(lengths);
}

static void wait_for_failure(ddp_group *g, rank_record *own)
{
    ddp_failure f;
    ddp_err err;

    NEED(ddp_group_barrier(g, "never", WAIT_MS, &err) != DDP_OK);
    if (ddp_group_failed(g, &f)) own->named = f.rank + 1;
    note(own, NAMED);
}

static int be_rank(const options *o, int32_t rank, int listen_fd, rank_record *own, const int *measured)
{
    ddp_text lines = {0};
    ddp_log log;
    ddp_group_params p;
    ddp_failure failure;
    ddp_group *g;
    ddp_err err;

    note(own, STARTED);
    ddp_log_init(&log);
    log.level = DDP_LOG_ERROR; /* with many ranks some wait long enough to say so */
    for (int i = 0; i < AGREEMENT; i++) ddp_text_printf(&lines, "section.key_%d = value of this key\tx.ini:%d\n", i, i);
    p = (ddp_group_params){.rank = rank,
                           .world = o->ranks,
                           .listen_fd = rank == 0 ? listen_fd : -1,
                           .endpoint = rank == 0 ? NULL : o->endpoint,
                           .timeout_ms = WAIT_MS,
                           .peer_timeout_ms = PEER_TIMEOUT,
                           .agreement = lines.data,
                           .secret = o->secret ? SECRET : NULL,
                           .secret_length = o->secret ? strlen(SECRET) : 0,
                           .interface = "",
                           .ranks_per_hub = o->hub,
                           .log = &log};
    if (rank != 0) (void)close(listen_fd);
    if (ddp_group_join(&p, &g, &failure, &err) != DDP_OK) {
        (void)fprintf(stderr, "rank %d: %s\n", (int)rank, err.msg);
        fail_at(own, __LINE__);
        return 1;
    }
    note(own, MET);
    NEED(ddp_group_agree(g, "parameters", "sum = 17\there\n", DDP_EXIT_CHECKPOINT, WAIT_MS, &err) == DDP_OK);
    note(own, AGREED);
    gather_all(g, o, rank, own);
    note(own, GATHERED);
    NEED(ddp_group_barrier(g, "together", WAIT_MS, &err) == DDP_OK);
    note(own, TOGETHER);
    while (rank == 0 && __atomic_load_n(measured, __ATOMIC_SEQ_CST) == 0) (void)usleep(1000);
    NEED(ddp_group_barrier(g, "measured", WAIT_MS, &err) == DDP_OK);
    while (o->victim == rank) (void)pause();
    if (o->victim >= 0) wait_for_failure(g, own);
    ddp_group_leave(g, NULL);
    note(own, LEFT);
    ddp_text_free(&lines);
    return own->wrong == 0 ? 0 : 1;
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */
typedef struct many {
    options o;
    rank_record *records;
    int records_fd, listen_fd;
    pid_t *pids;
    const char *at; /* where rank 0 listens */
} many;

static void start(const many *m, int32_t rank)
{
    char text[6][DDP_ENDPOINT_MAX];
    char *argv[] = {
        (char *)"bench_control", (char *)"rank", text[0], text[1], text[2], text[3], text[4], text[5], NULL};

    m->pids[rank] = fork();
    if (m->pids[rank] != 0) return;
    (void)snprintf(text[0], sizeof(text[0]), "%d", (int)rank);
    (void)snprintf(text[1], sizeof(text[1]), "%d", (int)m->o.ranks);
    (void)snprintf(text[2], sizeof(text[2]), "%d,%d", m->records_fd, m->listen_fd);
    (void)snprintf(text[3], sizeof(text[3]), "%s", m->o.endpoint);
    (void)snprintf(text[4], sizeof(text[4]), "%d", (int)m->o.hub);
    (void)snprintf(text[5], sizeof(text[5]), "%d,%d", m->o.secret, (int)m->o.victim);
    if (m->o.apart != NULL && rank >= (m->o.hub > 0 ? m->o.hub : 32)) {
        char path[300];
        int fd;

        (void)snprintf(path, sizeof(path), "/var/run/netns/%s", m->o.apart);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) _exit(126);
    }
    (void)execv("/proc/self/exe", argv);
    _exit(127);
}

/* Bytes of the line `key` of /proc/PID/`file`. */
static double kib(pid_t pid, const char *file, const char *key)
{
    char path[64], line[256];
    double value = 0.0;
    FILE *f;

    if (pid > 0)
        (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    else
        (void)snprintf(path, sizeof(path), "/proc/%s", file);
    f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, key, strlen(key)) == 0) value = strtod(line + strlen(key) + 1, NULL);
    if (f != NULL) (void)fclose(f);
    return value;
}

/* Waits until all ranks but the victim have been there; 0 when they have not. */
static int64_t wait_phase(const many *m, int phase, bool but_victim)
{
    int64_t deadline = ddp_now_ns() + 2 * WAIT_MS * 1000000ll, last = 0;

    for (int32_t r = 0; r < m->o.ranks; r++) {
        int64_t at;

        if (but_victim && r == m->o.victim) continue;
        while ((at = __atomic_load_n(&m->records[r].at_ns[phase], __ATOMIC_SEQ_CST)) == 0) {
            int status;

            if (ddp_now_ns() > deadline || (r != m->o.victim && waitpid(m->pids[r], &status, WNOHANG) == m->pids[r] &&
                                            m->records[r].at_ns[phase] == 0)) {
                (void)printf("rank %d has not come to \"%s\"\n", (int)r, phase_names[phase]);
                return 0;
            }
            (void)usleep(2000);
        }
        last = DDP_MAX_OF(last, at);
    }
    return last;
}

static void print_memory(const many *m, double available_before)
{
    double pss = 0.0, most = 0.0;

    for (int32_t r = 0; r < m->o.ranks; r++) {
        double own = kib(m->pids[r], "smaps_rollup", "Pss:");

        pss += own;
        most = DDP_MAX_OF(most, own);
    }
    (void)printf(
        "  memory: %.2f GiB less available, PSS %.2f GiB in all, %.2f MiB a rank, rank 0 %.1f MiB, most %.1f MiB\n",
        (available_before - kib(0, "meminfo", "MemAvailable:")) / 1048576.0, pss / 1048576.0, pss / 1024.0 / m->o.ranks,
        kib(m->pids[0], "smaps_rollup", "Pss:") / 1024.0, most / 1024.0);
}

static int finish(const many *m, int64_t begin, int64_t killed)
{
    struct rusage used;
    int wrong = 0;
    int64_t before = begin;

    if (m->o.victim >= 0) {
        int64_t named = wait_phase(m, NAMED, true);

        for (int32_t r = 0; r < m->o.ranks; r++) wrong += r != m->o.victim && m->records[r].named != m->o.victim + 1;
        (void)printf("  rank %d killed: named by all others %.2f s later, %d name another or none\n", (int)m->o.victim,
                     (double)(named - killed) * 1e-9, wrong);
    }
    (void)wait_phase(m, LEFT, m->o.victim >= 0);
    for (int32_t r = 0; r < m->o.ranks; r++) {
        (void)waitpid(m->pids[r], NULL, 0);
        if (m->records[r].wrong != 0 && wrong++ < 3) (void)printf("  rank %d: line %d\n", (int)r, m->records[r].wrong);
    }
    (void)printf(" ");
    for (int k = STARTED; k < PHASES; k++) {
        int64_t last = 0;

        for (int32_t r = 0; r < m->o.ranks; r++) last = DDP_MAX_OF(last, m->records[r].at_ns[k]);
        if (last == 0) continue;
        (void)printf(" %s %.2f", phase_names[k], (double)(last - before) * 1e-9);
        before = last;
    }
    (void)getrusage(RUSAGE_CHILDREN, &used);
    (void)printf(" s: %.2f s in all, processors %.2f s user, %.2f s system\n", (double)(before - begin) * 1e-9,
                 (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec * 1e-6,
                 (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec * 1e-6);
    return wrong;
}

static int run(many *m)
{
    size_t bytes = (size_t)m->o.ranks * sizeof(*m->records);
    double available;
    int64_t begin, killed = 0;
    ddp_err err;

    m->records_fd = memfd_create("records", 0);
    m->pids = calloc((size_t)m->o.ranks, sizeof(*m->pids));
    if (m->records_fd < 0 || m->pids == NULL || ftruncate(m->records_fd, (off_t)bytes) != 0) return 1;
    m->records = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->records_fd, 0);
    if (m->records == MAP_FAILED) return 1;
    if (ddp_endpoint_listen(m->at, &m->listen_fd, m->o.endpoint, &err) != DDP_OK) return 1;
    (void)fcntl(m->listen_fd, F_SETFD, 0);
    available = kib(0, "meminfo", "MemAvailable:");
    begin = ddp_now_ns();
    for (int32_t r = 0; r < m->o.ranks; r++) start(m, r);
    (void)close(m->listen_fd);
    (void)printf("%d ranks, %s%s\n", (int)m->o.ranks, m->o.secret ? "TLS" : "in clear", m->o.hub > 0 ? ", hubs" : "");
    if (wait_phase(m, TOGETHER, false) == 0) return 1;
    print_memory(m, available);
    __atomic_store_n(&m->records[0].measured, 1, __ATOMIC_SEQ_CST);
    if (m->o.victim >= 0) {
        (void)usleep(500000);
        killed = ddp_now_ns();
        (void)kill(m->pids[m->o.victim], SIGKILL);
    }
    return finish(m, begin, killed);
}

static int rank_main(char **argv)
{
    options o = {0};
    int32_t rank = atoi(argv[2]);
    rank_record *records;
    int fds[2], numbers[2];

    o.ranks = atoi(argv[3]);
    if (sscanf(argv[4], "%d,%d", &fds[0], &fds[1]) != 2 || sscanf(argv[7], "%d,%d", &numbers[0], &numbers[1]) != 2)
        return 1;
    ddp_copy_text(o.endpoint, sizeof(o.endpoint), argv[5]);
    o.hub = atoi(argv[6]);
    o.secret = numbers[0] != 0;
    o.victim = numbers[1];
    records = mmap(NULL, (size_t)o.ranks * sizeof(*records), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (records == MAP_FAILED) return 1;
    return be_rank(&o, rank, fds[1], &records[rank], &records[0].measured);
}

int main(int argc, char **argv)
{
    static const struct option known[] = {{"ranks", required_argument, NULL, 'n'},
                                          {"hub", required_argument, NULL, 'h'},
                                          {"secret", no_argument, NULL, 's'},
                                          {"kill", required_argument, NULL, 'k'},
                                          {"at", required_argument, NULL, 'a'},
                                          {"apart", required_argument, NULL, 'p'},
                                          {0}};
    many m = {.o = {.ranks = 64, .victim = -1}, .at = "127.0.0.1:0"};
    int c;

    if (argc == 8 && strcmp(argv[1], "rank") == 0) return rank_main(argv);
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (c) {
        case 'n': m.o.ranks = atoi(optarg); break;
        case 'h': m.o.hub = atoi(optarg); break;
        case 's': m.o.secret = true; break;
        case 'k': m.o.victim = atoi(optarg); break;
        case 'a': m.at = optarg; break;
        case 'p': m.o.apart = optarg; break;
        default: return 2;
        }
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    return run(&m) == 0 ? 0 : 1;
}
