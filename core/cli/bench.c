/* cli/bench.c -- `ddpengine bench all_reduce`: its arguments. What it does is core/conform/bench*.c. */
#include "cli/cli.h"
#include "conform/conform.h"
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_BACKEND = 256, OPT_SIZES, OPT_NPROC, OPT_ROUNDS, OPT_JSON, OPT_QUEUE };

#define DEFAULT_SIZES   "4,1KiB,16KiB,256KiB,1MiB,16MiB,64MiB"
#define DEFAULT_BACKEND "gloo-tcp"
#define LARGEST         ((uint64_t)4 << 30)

typedef struct request {
    ddp_bench_params p;
    char backend_text[2048], size_text[1024];
    const char *backends[DDP_BENCH_BACKENDS];
    uint64_t sizes[DDP_BENCH_SIZES];
} request;

static void print_usage(FILE *to)
{
    (void)fprintf(to,
                  "usage: ddpengine bench all_reduce [--backend A,B,...] [--sizes LIST] [--nproc N] [--rounds N]\n"
                  "                                  [--queue] [--json]\n"
                  "\n"
                  "  --backend A,B,...  measured in turn within one run (default " DEFAULT_BACKEND ")\n"
                  "  --sizes LIST       bytes of a rank, with KiB, MiB or GiB (default " DEFAULT_SIZES ")\n"
                  "  --nproc N          ranks on this host, at most %d (default 2)\n"
                  "  --rounds N         1 to 101 (default 7); minimum and median are printed\n"
                  "  --queue            through the work queue, as training does; else the slots themselves\n"
                  "  --json             one document instead of a table\n",
                  DDP_CONFORM_MAX_WORLD);
}

/* "1MiB" -> bytes; false when it is no size of whole floats. */
static bool parse_size(const char *text, uint64_t *out)
{
    static const struct {
        const char *unit;
        unsigned shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    char *end;
    unsigned long long n;

    errno = 0;
    n = strtoull(text, &end, 10);
    if (end == text || text[0] == '-' || errno != 0 || n > LARGEST) return false;
    for (size_t i = 0; i < DDP_COUNT(units); i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        *out = (uint64_t)n << units[i].shift;
        return *out > 0 && *out <= LARGEST && *out % sizeof(float) == 0;
    }
    return false;
}

static int split_backends(request *q)
{
    char *rest = NULL;

    for (char *s = strtok_r(q->backend_text, ",", &rest); s != NULL; s = strtok_r(NULL, ",", &rest)) {
        if (q->p.backend_count == DDP_BENCH_BACKENDS) return ddp_usage_error("bench", "too many backends: ", s);
        q->backends[q->p.backend_count++] = s;
    }
    return q->p.backend_count > 0 ? DDP_EXIT_OK : ddp_usage_error("bench", "--backend names none", "");
}

static int split_sizes(request *q)
{
    char *rest = NULL;

    for (char *s = strtok_r(q->size_text, ",", &rest); s != NULL; s = strtok_r(NULL, ",", &rest)) {
        if (q->p.size_count == DDP_BENCH_SIZES) return ddp_usage_error("bench", "too many sizes: ", s);
        if (!parse_size(s, &q->sizes[q->p.size_count++]))
            return ddp_usage_error("bench", "--sizes takes multiples of 4 up to 4GiB, such as 4,64KiB,1MiB, not ", s);
    }
    return q->p.size_count > 0 ? DDP_EXIT_OK : ddp_usage_error("bench", "--sizes names none", "");
}

static int take_text(char *to, size_t capacity, const char *option)
{
    if (strlen(optarg) >= capacity) return ddp_usage_error("bench", option, " is too long");
    ddp_copy_text(to, capacity, optarg);
    return -1;
}

/* -1: go on; else the exit code of a command that is done. */
static int parse_option(int option, request *q)
{
    int code;

    switch (option) {
    case 'h': print_usage(stdout); return DDP_EXIT_OK;
    case OPT_JSON: q->p.json = true; return -1;
    case OPT_QUEUE: q->p.queue = true; return -1;
    case OPT_BACKEND: return take_text(q->backend_text, sizeof(q->backend_text), "--backend");
    case OPT_SIZES: return take_text(q->size_text, sizeof(q->size_text), "--sizes");
    case OPT_NPROC:
        code = ddp_parse_count("bench", "--nproc", optarg, DDP_CONFORM_MAX_WORLD, &q->p.nproc);
        return code == DDP_EXIT_OK ? -1 : code;
    case OPT_ROUNDS:
        code = ddp_parse_count("bench", "--rounds", optarg, 101, &q->p.rounds);
        return code == DDP_EXIT_OK ? -1 : code;
    default: return DDP_EXIT_INTERNAL; /* a row of the table that no case knows */
    }
}

static int parse(int argc, char **argv, request *q)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"backend", required_argument, NULL, OPT_BACKEND},
                                            {"sizes", required_argument, NULL, OPT_SIZES},
                                            {"nproc", required_argument, NULL, OPT_NPROC},
                                            {"rounds", required_argument, NULL, OPT_ROUNDS},
                                            {"json", no_argument, NULL, OPT_JSON},
                                            {"queue", no_argument, NULL, OPT_QUEUE},
                                            {NULL, 0, NULL, 0}};
    int option, code;

    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        const char *given = optind > 0 ? argv[optind - 1] : "";

        if (option == ':') return ddp_usage_error("bench", "missing value behind ", given);
        if (option == '?') return ddp_usage_error("bench", "unknown option, or one that takes no value: ", given);
        if ((code = parse_option(option, q)) >= 0) return code;
    }
    if (optind == argc || strcmp(argv[optind], "all_reduce") != 0)
        return ddp_usage_error("bench", "what is to be measured? It can be all_reduce, not ",
                               optind == argc ? "nothing" : argv[optind]);
    if (++optind < argc) return ddp_usage_error("bench", "too many arguments: ", argv[optind]);
    if ((code = split_backends(q)) != DDP_EXIT_OK || (code = split_sizes(q)) != DDP_EXIT_OK) return code;
    return -1;
}

int ddp_command_bench(int argc, char **argv, ddp_log *log)
{
    request q = {
        .p = {.nproc = 2, .rounds = 7, .log = log}, .backend_text = DEFAULT_BACKEND, .size_text = DEFAULT_SIZES};
    int code;

    q.p.backends = q.backends;
    q.p.sizes = q.sizes;
    code = parse(argc, argv, &q);
    return code >= 0 ? code : ddp_bench(&q.p);
}
