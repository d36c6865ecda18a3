/* cli/bench.c -- `ddpengine bench all_reduce`: its arguments. What it does is conform/bench. */
#include "cli/cli.h"
#include "cli/options.h"
#include "conform/bench/plan.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SIZES "4,1KiB,16KiB,256KiB,1MiB,16MiB,64MiB"
#define LARGEST       ((uint64_t)4 << 30)

_Static_assert(DDP_CONFORM_MAX_WORLD == 8, "the usage text has the number");

typedef struct request {
    ddp_bench_params p;
    const char *backend_list, *size_list;
    char text[4096]; /* both lists, cut up */
    const char *backends[DDP_BENCH_BACKENDS];
    uint64_t sizes[DDP_BENCH_SIZES];
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--backend", "A,B,...", "measured in turn within one run (default: the one that auto takes between hosts)",
     DDP_TAKES_TEXT, FIELD(backend_list)},
    {"--sizes", "LIST", "bytes of a rank, with KiB, MiB or GiB (default " DEFAULT_SIZES ")", DDP_TAKES_TEXT,
     FIELD(size_list)},
    {"--nproc", "N", "ranks on this host, at most 8 (default 2)", DDP_TAKES_COUNT, .most = DDP_CONFORM_MAX_WORLD,
     FIELD(p.nproc)},
    {"--per-host", "N", "every N ranks count as one host, as LOCAL+REMOTE asks for (default: all are on one)",
     DDP_TAKES_COUNT, .most = DDP_CONFORM_MAX_WORLD, FIELD(p.per_host)},
    {"--rounds", "N", "1 to 101 (default 7); minimum and median are printed", DDP_TAKES_COUNT, .most = 101,
     FIELD(p.rounds)},
    {"--queue", NULL, "through the work queue, as training does, instead of calling the backend's functions",
     DDP_TAKES_NOTHING, FIELD(p.queue)},
    {"--json", NULL, "prints one JSON document instead of a table", DDP_TAKES_NOTHING, FIELD(p.json)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_bench_usage = {
    .name = "bench",
    .usage = "usage: ddpengine bench all_reduce [--backend A,B,...] [--sizes LIST]\n"
             "                                  [--nproc N] [--per-host N] [--rounds N]\n"
             "                                  [--queue] [--json]\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine bench all_reduce --sizes 4,1MiB --nproc 4",
};

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

static int add_backend(request *q, const char *s)
{
    if (q->p.backend_count == DDP_BENCH_BACKENDS) return cli_usage_error(&cli_bench_usage, "too many backends: ", s);
    q->backends[q->p.backend_count++] = s;
    return -1;
}

static int add_size(request *q, const char *s)
{
    if (q->p.size_count == DDP_BENCH_SIZES) return cli_usage_error(&cli_bench_usage, "too many sizes: ", s);
    if (parse_size(s, &q->sizes[q->p.size_count++])) return -1;
    return cli_usage_error(&cli_bench_usage, "--sizes takes multiples of 4 up to 4GiB, such as 4,64KiB,1MiB, not ", s);
}

/* The parts of a list with commas; they stay in q->text from `at` on. */
static int split(request *q, const char *option, const char *list, size_t at, int (*add)(request *q, const char *s))
{
    char *rest = NULL;
    bool any = false;
    int code;

    if (at + strlen(list) >= sizeof(q->text)) return cli_usage_error(&cli_bench_usage, option, " is too long");
    ddp_copy_text(q->text + at, sizeof(q->text) - at, list);
    for (char *s = strtok_r(q->text + at, ",", &rest); s != NULL; s = strtok_r(NULL, ",", &rest)) {
        any = true;
        if ((code = add(q, s)) >= 0) return code;
    }
    return any ? -1 : cli_usage_error(&cli_bench_usage, option, " names none");
}

static int parse(int argc, char **argv, request *q)
{
    int next, code = cli_parse_options(&cli_bench_usage, argc, argv, q, &next);

    if (code >= 0) return code;
    if (next == argc || strcmp(argv[next], "all_reduce") != 0)
        return cli_usage_error(&cli_bench_usage, "what is to be measured? It can be all_reduce, not ",
                               next == argc ? "nothing" : argv[next]);
    if (++next < argc) return cli_usage_error(&cli_bench_usage, "too many arguments: ", argv[next]);
    if ((code = split(q, "--sizes", q->size_list, 0, add_size)) >= 0) return code;
    if (q->backend_list == NULL) return -1;
    return split(q, "--backend", q->backend_list, strlen(q->size_list) + 1, add_backend);
}

int cli_command_bench(int argc, char **argv, ddp_log *log)
{
    request q = {.p = {.nproc = 2, .rounds = 7, .log = log}, .size_list = DEFAULT_SIZES};
    int code;

    q.p.backends = q.backends;
    q.p.sizes = q.sizes;
    code = parse(argc, argv, &q);
    return code >= 0 ? code : ddp_bench(&q.p);
}
