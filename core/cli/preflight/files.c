/* cli/preflight/files.c -- folders that rank 0 writes to: whether it can, and whether the checkpoints have room. What
 * is made in order to find out is removed at once. */
#include "base/sys.h"
#include "checkpoint/inspect.h"
#include "cli/preflight/checks.h"
#include "session/report/report.h"
#include "train/state/weights/check.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MANIFEST_BYTES (64u << 10) /* of a checkpoint, beside its tensors: more than it needs */

/* The folder itself, or the nearest above it that there is. */
static void existing_folder(const char *path, char out[PATH_MAX])
{
    struct stat st;

    ddp_copy_text(out, PATH_MAX, path);
    while (stat(out, &st) != 0 && strcmp(out, ".") != 0 && strcmp(out, "/") != 0) {
        char *slash = strrchr(out, '/');

        if (slash == NULL)
            (void)snprintf(out, PATH_MAX, ".");
        else
            slash[slash == out] = '\0';
    }
}

static bool can_write(const char *path, ddp_err *err)
{
    char folder[PATH_MAX], own[PATH_MAX + 40];
    struct stat st;

    existing_folder(path, folder);
    if (stat(folder, &st) == 0 && !S_ISDIR(st.st_mode)) {
        (void)ddp_fail(err, DDP_ERR_SYSTEM, "%.300s is not a folder", folder);
        return false;
    }
    (void)snprintf(own, sizeof(own), "%s/.ddpengine-check-%d", folder, (int)getpid());
    if (mkdir(own, 0700) != 0) {
        (void)ddp_fail_errno(err, "cannot write into %.300s", folder);
        return false;
    }
    (void)rmdir(own);
    return true;
}

static void check_folder(ddp_preflight_run *r, const char *what, const char *key, const char *path, int exit_code)
{
    ddp_err err = {0};

    if (path[0] == '\0') return;
    if (can_write(path, &err))
        preflight_add(&r->findings, DDP_FINDING_OK, 0, what, "%s can be written", path);
    else
        preflight_add(&r->findings, DDP_FINDING_PROBLEM, exit_code, what,
                      "%s = %s: %s; give this user write access, or name another folder", key, path, err.msg);
}

/* The files that a run of this folder, maybe another user's, has written so far: it goes on with them. */
static void check_output_files(ddp_preflight_run *r, const char *dir)
{
    static const char *const names[] = {"metrics.jsonl", "ranks.jsonl"};
    char path[PATH_MAX];
    bool shared = false;

    for (size_t i = 0; i < DDP_COUNT(names); i++) {
        int fd, number;

        if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, names[i]) >= sizeof(path)) return;
        fd = open(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 && errno != ENOENT && errno != ENOTDIR && errno != ENXIO)
            preflight_add(&r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_CONFIG, "output",
                          "%s cannot be written: %s; give this user write access, or name another [output] dir", path,
                          strerror(errno));
        number = fd >= 0 ? ddp_file_lock(fd) : 0;
        shared |= number == EAGAIN || number == EACCES;
        if (fd >= 0) (void)close(fd);
    }
    if (shared)
        preflight_add(&r->findings, DDP_FINDING_WARNING, 0, "output",
                      "another run, which has not ended, writes into %s: give one of them an [output] dir of its own",
                      dir);
}

/* ---- room -------------------------------------------------------------------------------------------------------- */
static void count_one(void *count, const ddp_checkpoint_entry *e)
{
    (void)e;
    ++*(uint64_t *)count;
}

/* How many checkpoints there are at once: those that are kept, and the one that is being written. */
static uint64_t checkpoints_at_once(const ddp_session *s)
{
    const struct ddp_checkpoint_config *c = s->config->checkpoint;
    uint64_t steps = ddp_session_steps(s), all = c->every > 0 ? steps / (uint64_t)c->every + 1 : 1;
    uint64_t kept = (uint64_t)c->keep + (c->keep_best[0] != '\0') + 1;

    if (c->keep_every > 0) kept += steps / (uint64_t)c->keep_every;
    return c->keep == 0 ? all : DDP_MIN_OF(all, kept);
}

static void check_room(ddp_preflight_run *r)
{
    const char *dir = r->config->checkpoint->dir;
    uint64_t one = ddp_session_checkpoint_bytes(r->session) + MANIFEST_BYTES, there = 0, count, room;
    char folder[PATH_MAX], a[32], b[32], c[32];
    struct statvfs fs;
    ddp_err ignored;

    existing_folder(dir, folder);
    if (statvfs(folder, &fs) != 0) return;
    room = (uint64_t)fs.f_bavail * fs.f_frsize;
    count = checkpoints_at_once(r->session);
    if (ddp_checkpoint_list(dir, count_one, &there, &ignored) != DDP_OK) there = 0;
    count -= DDP_MIN_OF(there, count - 1);
    (void)ddp_format_bytes(one, a, sizeof(a));
    (void)ddp_format_bytes(room, b, sizeof(b));
    (void)ddp_format_bytes(count * one, c, sizeof(c));
    if (room / one < count)
        preflight_add(&r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_CHECKPOINT, "disk",
                      "%s has %s left, %" PRIu64
                      " checkpoint%s of %s need%s %s: free some, lower [checkpoint] keep, or set dir to another folder",
                      dir, b, count, count == 1 ? "" : "s", a, count == 1 ? "s" : "", c);
    else
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "disk", "%s has %s left, %" PRIu64 " checkpoint%s of %s", dir, b,
                      count, count == 1 ? "" : "s", a);
}

/* ---- what it starts with ----------------------------------------------------------------------------------------- */
static void check_start(ddp_preflight_run *r)
{
    char from[PATH_MAX];
    ddp_err err = {0};
    uint64_t step;

    if (ddp_start_check(r->session, from, sizeof(from), &step, &err) != DDP_OK)
        preflight_add(&r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_CHECKPOINT, "start", "%s", err.msg);
    else if (step > 0)
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "start", "goes on from %s, step %" PRIu64, from, step);
    else if (from[0] != '\0')
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "start", "the parameters of %s fit the model", from);
}

void preflight_files(ddp_preflight_run *r)
{
    const ddp_config *c = r->config;

    if (r->launch.rank != 0 && !c->checkpoint->sharded) return;
    check_folder(r, "output", "[output] dir", c->output->dir, DDP_EXIT_CONFIG);
    if (r->launch.rank == 0 && c->output->dir[0] != '\0') check_output_files(r, c->output->dir);
    check_folder(r, "checkpoint", "[checkpoint] dir", c->checkpoint->dir, DDP_EXIT_CHECKPOINT);
    if (r->session != NULL && r->launch.rank == 0 && !r->args->eval) check_start(r);
    if (r->session != NULL && c->checkpoint->dir[0] != '\0') check_room(r);
}
