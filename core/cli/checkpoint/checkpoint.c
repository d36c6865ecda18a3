/* cli/checkpoint/checkpoint.c -- `ddpengine checkpoint`: lists, verifies and removes checkpoints. Comparing two is in
 * diff.c, writing one without shards in merge.c. */
#include "checkpoint/inspect.h"
#include "cli/checkpoint/diff.h"
#include "cli/checkpoint/merge.h"
#include "cli/cli.h"
#include "cli/options.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct request {
    int32_t keep, keep_every; /* 0: not given */
    bool dry_run;
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"ls", "DIR", "lists the checkpoints of a folder, without reading their tensors", DDP_TAKES_ROW, .most = 0},
    {"verify", "PATH", "reads a checkpoint, or all of a folder, and compares every hash", DDP_TAKES_ROW, .most = 0},
    {"diff", "A B", "compares two checkpoints: settings, and tensors element by element", DDP_TAKES_ROW, .most = 0},
    {"merge", "A DIR", "writes a checkpoint that is in shards into another folder, with whole files", DDP_TAKES_ROW,
     .most = 0},
    {"prune", "DIR", "removes all but the newest valid ones, as a run with [checkpoint] keep = N would", DDP_TAKES_ROW,
     .most = 0},
    {"--keep", "N", "of prune: how many of the newest stay", DDP_TAKES_COUNT, .most = INT32_MAX, FIELD(keep)},
    {"--keep-every", "N", "of prune: those whose step is a multiple of N stay, too", DDP_TAKES_COUNT, .most = INT32_MAX,
     FIELD(keep_every)},
    {"--dry-run", NULL, "of prune: only prints what would be removed", DDP_TAKES_NOTHING, FIELD(dry_run)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_checkpoint_usage = {
    .name = "checkpoint",
    .usage = "usage: ddpengine checkpoint ls DIR\n"
             "       ddpengine checkpoint verify PATH\n"
             "       ddpengine checkpoint diff A B\n"
             "       ddpengine checkpoint merge A DIR\n"
             "       ddpengine checkpoint prune DIR --keep N [--keep-every N] [--dry-run]\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "\nexit codes: 0 done, 1 output could not be written, 2 usage,\n"
              "            8 a checkpoint is damaged or cannot be read, or a run writes to the\n"
              "            folder that is to be changed\n",
    .example = "ddpengine checkpoint prune ckpt --keep 3 --dry-run",
};

/* Lines are printed as they come: reading gigabytes takes its time. */
static int flush_output(ddp_log *log)
{
    bool before = ferror(stdout) != 0;

    if (fflush(stdout) == 0 && !before) return DDP_EXIT_OK;
    ddp_log_line(log, DDP_LOG_ERROR, "cannot write to standard output: %s",
                 before ? "an earlier line has failed" : strerror(errno));
    return DDP_EXIT_INTERNAL;
}

static int failed(ddp_err *err, ddp_log *log)
{
    (void)ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
    return cli_print_error(err, log);
}

/* ---- ls ---------------------------------------------------------------------------------------------------------- */
static void list_row(void *ctx, const ddp_checkpoint_entry *e)
{
    static const char *const states[] = {"valid", "valid, set aside", "unfinished"};
    bool *any = ctx;
    ddp_err why = e->why;
    char size[32];

    if (!*any)
        (void)printf("%-20s %8s %8s %10s %6s  %-8s  %s\n", "checkpoint", "epoch", "cursor", "size", "ranks", "finished",
                     "manifest");
    *any = true;
    ddp_clean_text(why.msg);
    if (e->valid)
        (void)printf("%-20s %8" PRIu64 " %8" PRIu64 " %10s %6" PRIu64 "  %-8s  %s\n", e->name, e->meta.epoch,
                     e->meta.cursor, ddp_format_bytes(e->bytes, size, sizeof(size)), e->meta.world_size,
                     e->meta.finished ? "yes" : "no", states[e->kind]);
    else
        (void)printf("%-20s %8s %8s %10s %6s  %-8s  %s\n", e->name, "-", "-", "-", "-", "-",
                     e->kind == DDP_ENTRY_UNFINISHED ? states[e->kind] : why.msg);
}

static int ls(const char *dir, ddp_log *log)
{
    ddp_err err = {0};
    bool any = false;

    if (ddp_checkpoint_list(dir, list_row, &any, &err) != DDP_OK) return failed(&err, log);
    if (!any) (void)printf("no checkpoints in %s\n", dir);
    return flush_output(log);
}

/* ---- verify ------------------------------------------------------------------------------------------------------ */
struct verification {
    const char *dir;
    size_t good, bad;
};

static ddp_status verify_one(const char *path, ddp_err *err)
{
    ddp_checkpoint c;

    DDP_TRY(ddp_checkpoint_open(path, &c, err));
    ddp_checkpoint_close(&c);
    (void)printf("%s: valid\n", path);
    return DDP_OK;
}

static void verify_entry(void *ctx, const ddp_checkpoint_entry *e)
{
    struct verification *v = ctx;
    ddp_err err = e->why;
    char path[4096];
    bool good;

    if (e->kind != DDP_ENTRY_SAVED) return;
    (void)snprintf(path, sizeof(path), "%s/%s", v->dir, e->name); /* of an entry that is valid it fits */
    good = e->valid && verify_one(path, &err) == DDP_OK;
    ddp_clean_text(err.msg);
    if (!good) (void)printf("%s: not valid: %s\n", path, err.msg);
    (void)fflush(stdout);
    v->good += good;
    v->bad += !good;
}

static int verify(const char *path, ddp_log *log)
{
    struct verification v = {.dir = path};
    ddp_err err = {0};
    int code;

    if (ddp_checkpoint_is_one(path)) return verify_one(path, &err) == DDP_OK ? flush_output(log) : failed(&err, log);
    if (ddp_checkpoint_list(path, verify_entry, &v, &err) != DDP_OK) return failed(&err, log);
    if ((code = flush_output(log)) != DDP_EXIT_OK || (v.good > 0 && v.bad == 0)) return code;
    if (v.bad == 0)
        ddp_log_line(log, DDP_LOG_ERROR, "%s is no checkpoint and holds none; name one, or a [checkpoint] dir", path);
    else
        ddp_log_line(log, DDP_LOG_ERROR,
                     "%zu of the %zu checkpoints in %s do not verify; a run resumes from the newest that does", v.bad,
                     v.good + v.bad, path);
    return DDP_EXIT_CHECKPOINT;
}

/* ---- prune ------------------------------------------------------------------------------------------------------- */
/* With the lock, NULL for a dry run. */
static ddp_status prune_folder(const char *dir, const request *q, const ddp_checkpoint_lock *lock, ddp_err *err)
{
    const ddp_retention keep = {.newest = (uint64_t)q->keep, .every = (uint64_t)q->keep_every};
    uint64_t *steps = NULL;
    size_t count = 0;
    ddp_status st = ddp_checkpoint_removable(dir, UINT64_MAX, &keep, &steps, &count, err);

    for (size_t i = 0; i < count && st == DDP_OK; i++) {
        if (lock != NULL) st = ddp_checkpoint_remove(lock, steps[i], err);
        if (st == DDP_OK) (void)printf("%s step-%08" PRIu64 "\n", lock != NULL ? "removed" : "would remove", steps[i]);
    }
    if (st == DDP_OK && count == 0) (void)printf("nothing to remove in %s\n", dir);
    free(steps);
    return st;
}

static int prune(const char *dir, const request *q, ddp_log *log)
{
    ddp_checkpoint_lock *lock = NULL;
    ddp_err err = {0};
    ddp_status st = DDP_OK;

    if (q->keep == 0)
        return cli_usage_error(&cli_checkpoint_usage, "prune needs --keep N, how many of the newest stay", "");
    if (access(dir, F_OK) != 0) st = ddp_fail_errno(&err, "cannot read the checkpoint folder %s", dir);
    if (st == DDP_OK && !q->dry_run) st = ddp_checkpoint_lock_take(dir, log, &lock, &err); /* would create it */
    if (st == DDP_OK) st = prune_folder(dir, q, lock, &err);
    ddp_checkpoint_lock_release(lock);
    return st == DDP_OK ? flush_output(log) : failed(&err, log);
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */
static int run(const request *q, int count, char **words, ddp_log *log)
{
    static const struct {
        const char *name;
        int operands;
    } actions[] = {{"ls", 1}, {"verify", 1}, {"diff", 2}, {"merge", 2}, {"prune", 1}};
    size_t i = 0;

    if (count == 0)
        return cli_usage_error(&cli_checkpoint_usage, "what is to be done? ls, verify, diff, merge or prune", "");
    while (i < DDP_COUNT(actions) && strcmp(actions[i].name, words[0]) != 0) i++;
    if (i == DDP_COUNT(actions))
        return cli_usage_error(&cli_checkpoint_usage, "it can be ls, verify, diff, merge or prune, not ", words[0]);
    if (count - 1 < actions[i].operands)
        return cli_usage_error(&cli_checkpoint_usage,
                               actions[i].operands == 1 ? "name a folder after "
                               : i == 2                 ? "name two checkpoints after "
                                                        : "name a checkpoint and a folder after ",
                               words[0]);
    if (count - 1 > actions[i].operands)
        return cli_usage_error(&cli_checkpoint_usage, "too many arguments: ", words[actions[i].operands + 1]);
    if (i != 4 && (q->keep > 0 || q->keep_every > 0 || q->dry_run))
        return cli_usage_error(&cli_checkpoint_usage, "--keep, --keep-every and --dry-run go with prune, not with ",
                               words[0]);
    switch (i) {
    case 0: return ls(words[1], log);
    case 1: return verify(words[1], log);
    case 2: return cli_checkpoint_diff(words[1], words[2], log);
    case 3: return cli_checkpoint_merge(words[1], words[2], log);
    default: return prune(words[1], q, log);
    }
}

int cli_command_checkpoint(int argc, char **argv, ddp_log *log)
{
    request q = {0};
    int next, code = cli_parse_options(&cli_checkpoint_usage, argc, argv, &q, &next);

    return code >= 0 ? code : run(&q, argc - next, argv + next, log);
}
