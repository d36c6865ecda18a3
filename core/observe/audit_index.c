/* observe/audit_index.c -- which records of an audit count, and whether any is missing.
 *
 * Runs are ordered by (run, generation). A run that begins after step S has made the later steps again: those of all
 * runs before it do not count. What is left must be one row of steps, each with a record of every rank; only at its
 * end a run that was killed may lack what some ranks had not written yet. */
#include "observe/audit_index.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- files ------------------------------------------------------------------------------------------------------- */
/* One more element of a growing array; NULL: no memory. */
static void *grow(void *array, size_t count, size_t *capacity, size_t size, ddp_err *err)
{
    size_t more = *capacity * 2 + 16;
    void *out;

    if (count < *capacity) return array;
    out = more > SIZE_MAX / size ? NULL : realloc(array, more * size);
    if (out == NULL) {
        (void)ddp_fail(err, DDP_ERR_NOMEM, "out of memory for %zu records of an audit", more);
        return NULL;
    }
    *capacity = more;
    return out;
}

static ddp_status add_file(ddp_audit_index *x, const char *path, ddp_err *err)
{
    ddp_audit_reader *files = grow(x->files, x->file_count, &x->file_capacity, sizeof(*files), err), *f;

    if (files == NULL) return err->status;
    x->files = files;
    f = &files[x->file_count];
    *f = (ddp_audit_reader){.path = ddp_strdup(path, err), .fd = -1};
    if (f->path == NULL) return err->status;
    x->file_count++;
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    return f->fd >= 0 ? DDP_OK : ddp_fail_errno(err, "cannot open %s", path);
}

static int is_audit(const struct dirent *e)
{
    size_t length = strlen(e->d_name);

    return strncmp(e->d_name, "audit-rank", 10) == 0 && length > 4 && strcmp(e->d_name + length - 4, ".bin") == 0;
}

static ddp_status add_folder(ddp_audit_index *x, const char *path, ddp_err *err)
{
    struct dirent **names = NULL;
    int count = scandir(path, &names, is_audit, alphasort);
    ddp_status st = DDP_OK;
    char file[4096];

    if (count < 0) return ddp_fail_errno(err, "cannot read %s", path);
    if (count == 0)
        st = ddp_fail(err, DDP_ERR_CONFIG,
                      "%s has no audit-rankN.bin; train with [output] audit = yes, or name the run's [output] dir",
                      path);
    for (int i = 0; i < count; i++) {
        if (st == DDP_OK && (size_t)snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name) >= sizeof(file))
            st = ddp_fail(err, DDP_ERR_CONFIG, "%.200s...: the name is too long", path);
        if (st == DDP_OK) st = add_file(x, file, err);
        free(names[i]);
    }
    free(names);
    return st;
}

static ddp_status add_path(ddp_audit_index *x, const char *path, ddp_err *err)
{
    struct stat facts;

    if (stat(path, &facts) != 0) {
        (void)ddp_fail_errno(err, "cannot look at %s", path);
        err->status = DDP_ERR_CONFIG;
        return err->status;
    }
    return S_ISDIR(facts.st_mode) ? add_folder(x, path, err) : add_file(x, path, err);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */
static ddp_status add_entry(ddp_audit_index *x, uint32_t file, const ddp_audit_record *r, uint32_t run, ddp_err *err)
{
    ddp_audit_entry *entries = grow(x->entries, x->entry_count, &x->entry_capacity, sizeof(*entries), err);
    size_t bytes = ddp_audit_bytes(r->count);

    if (entries == NULL) return err->status;
    x->entries = entries;
    entries[x->entry_count++] = (ddp_audit_entry){.step = r->step,
                                                  .epoch = r->epoch,
                                                  .length = r->length,
                                                  .share = r->share,
                                                  .position = r->position,
                                                  .offset = x->files[file].offset - bytes,
                                                  .hash = ddp_hash64(x->files[file].record, bytes, 0),
                                                  .run = run,
                                                  .file = file,
                                                  .rank = r->rank,
                                                  .count = r->count,
                                                  .left_out = r->kind == DDP_AUDIT_LEFT_OUT};
    return DDP_OK;
}

static int compare_runs(const void *a, const void *b)
{
    const ddp_audit_run *x = a, *y = b;

    if (x->run != y->run) return x->run < y->run ? -1 : 1;
    return x->generation < y->generation ? -1 : x->generation > y->generation;
}

/* The run of a record, -1: no rank has said that it begins. */
static int64_t run_of(const ddp_audit_index *x, const ddp_audit_record *r)
{
    ddp_audit_run key = {.run = r->run, .generation = r->generation}, *found;

    found = x->run_count == 0 ? NULL : bsearch(&key, x->runs, x->run_count, sizeof(key), compare_runs);
    return found == NULL ? -1 : found - x->runs;
}

static ddp_status add_run(ddp_audit_index *x, const ddp_audit_record *r, ddp_err *err)
{
    ddp_audit_run *runs = grow(x->runs, x->run_count, &x->run_capacity, sizeof(*runs), err);

    if (runs == NULL) return err->status;
    x->runs = runs;
    runs[x->run_count++] = (ddp_audit_run){
        .run = r->run, .generation = r->generation, .world = r->world, .start = r->step, .limit = UINT64_MAX};
    return DDP_OK;
}

/* All records of all files: first the runs alone, then their steps. */
static ddp_status read_all(ddp_audit_index *x,
                           ddp_status (*take)(ddp_audit_index *x, uint32_t file, const ddp_audit_record *r,
                                              ddp_err *err),
                           ddp_err *err)
{
    ddp_audit_record r;
    bool torn;

    for (uint32_t i = 0; i < x->file_count; i++) {
        ddp_status st;

        x->files[i].offset = 0;
        while ((st = observe_audit_next(&x->files[i], &r, &torn, err)) == DDP_OK) DDP_TRY(take(x, i, &r, err));
        if (st != DDP_IN_PROGRESS) return st; /* half a record at the end was never whole */
    }
    return DDP_OK;
}

static ddp_status take_begin(ddp_audit_index *x, uint32_t file, const ddp_audit_record *r, ddp_err *err)
{
    (void)file;
    return r->kind == DDP_AUDIT_BEGIN ? add_run(x, r, err) : DDP_OK;
}

static ddp_status take_step(ddp_audit_index *x, uint32_t file, const ddp_audit_record *r, ddp_err *err)
{
    int64_t run = run_of(x, r);
    ddp_audit_run *k;

    if (r->kind == DDP_AUDIT_BEGIN) return DDP_OK;
    if (run < 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "%s: step %" PRIu64 " is of a run whose beginning no rank has recorded; a file is missing",
                        x->files[file].path, r->step);
    k = &x->runs[run];
    if (r->world != k->world || r->step < k->start || (r->kind != DDP_AUDIT_END && r->step == k->start))
        return ddp_fail(err, DDP_ERR_DATA,
                        "%s: step %" PRIu64 " of %u ranks is in a run of %u ranks that began after step %" PRIu64,
                        x->files[file].path, r->step, r->world, k->world, k->start);
    if (r->kind == DDP_AUDIT_END) {
        k->end = r->step;
        return DDP_OK;
    }
    if (r->step <= k->limit) return add_entry(x, file, r, (uint32_t)run, err);
    x->superseded++;
    return DDP_OK;
}

/* Each run once, in order, and up to where its steps count. */
static ddp_status order_runs(ddp_audit_index *x, ddp_err *err)
{
    size_t kept = 0;

    if (x->run_count == 0) return ddp_fail(err, DDP_ERR_DATA, "the files of the audit have no record of a run");
    qsort(x->runs, x->run_count, sizeof(*x->runs), compare_runs);
    for (size_t i = 1; i < x->run_count; i++) {
        const ddp_audit_run *a = &x->runs[kept], *b = &x->runs[i];

        if (compare_runs(a, b) != 0)
            x->runs[++kept] = *b;
        else if (a->world != b->world || a->start != b->start)
            return ddp_fail(err, DDP_ERR_DATA,
                            "two ranks of one run say that it began after step %" PRIu64
                            " with %u ranks and after step %" PRIu64 " with %u",
                            a->start, a->world, b->start, b->world);
    }
    x->run_count = kept + 1;
    for (size_t i = x->run_count - 1; i-- > 0;)
        x->runs[i].limit = DDP_MIN_OF(x->runs[i + 1].limit, x->runs[i + 1].start);
    return DDP_OK;
}

/* ---- the row of steps -------------------------------------------------------------------------------------------- */
static int compare_entries(const void *a, const void *b)
{
    const ddp_audit_entry *x = a, *y = b;

    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->left_out == y->left_out ? 0 : x->left_out ? -1 : 1;
}

/* A step that was recorded before its update and again when that was left out counts as what it became. The same file
 * may have been given twice, from two folders. */
static ddp_status drop_copies(ddp_audit_index *x, ddp_err *err)
{
    size_t kept = 0;

    for (size_t i = 1; i < x->entry_count; i++) {
        const ddp_audit_entry *a = &x->entries[kept], *b = &x->entries[i];

        if (a->step != b->step || a->rank != b->rank)
            x->entries[++kept] = *b;
        else if (a->hash != b->hash && (a->run != b->run || a->left_out == b->left_out))
            return ddp_fail(err, DDP_ERR_DATA,
                            "step %" PRIu64
                            ", rank %u: two different records, in %s and in %s; they are of different runs",
                            a->step, a->rank, x->files[a->file].path, x->files[b->file].path);
    }
    if (x->entry_count > 0) x->entry_count = kept + 1;
    return DDP_OK;
}

/* The entries from `first` on that are of one step; *missing: the first rank that has none, UINT32_MAX: all have. */
static size_t one_step(const ddp_audit_index *x, size_t first, uint32_t *missing)
{
    const ddp_audit_entry *e = &x->entries[first];
    size_t n = 0;

    *missing = UINT32_MAX;
    while (first + n < x->entry_count && e[n].step == e->step) {
        if (*missing == UINT32_MAX && e[n].rank != n) *missing = (uint32_t)n;
        n++;
    }
    if (*missing == UINT32_MAX && n < x->runs[e->run].world) *missing = (uint32_t)n;
    return n;
}

static ddp_status missing_step(const ddp_audit_index *x, uint64_t step, uint64_t next, ddp_err *err)
{
    if (step == 1 && next == x->runs[0].start + 1)
        return ddp_fail(err, DDP_ERR_DATA,
                        "the steps before %" PRIu64 " have no record: the first run of these files went on from there. "
                        "Was [output] audit off before, or is a folder missing?",
                        next);
    return ddp_fail(err, DDP_ERR_DATA, "step %" PRIu64 " has no record of any rank; a file is missing or cut", step);
}

/* Steps 1, 2, .. with all their ranks; sets `steps`, and leaves out the end of a run that was killed. */
static ddp_status check_row(ddp_audit_index *x, ddp_err *err)
{
    const ddp_audit_run *last = &x->runs[x->run_count - 1];
    uint64_t open_step = 0, must = DDP_MAX_OF(last->start, last->end);
    uint32_t missing = UINT32_MAX, open_rank = 0;
    size_t kept = 0;

    for (size_t i = 0, n; i < x->entry_count; i += n) {
        uint64_t step = x->entries[i].step;

        n = one_step(x, i, &missing);
        if (open_step == 0 && step != x->steps + 1) return missing_step(x, x->steps + 1, step, err);
        if (missing != UINT32_MAX && open_step == 0) {
            open_step = step;
            open_rank = missing;
        }
        if (open_step != 0 && (missing == UINT32_MAX || step <= must)) break;
        if (open_step != 0) {
            x->open_steps++;
            continue;
        }
        x->steps = step;
        kept = i + n;
    }
    if (open_step != 0 && (missing == UINT32_MAX || open_step <= must))
        return ddp_fail(err, DDP_ERR_DATA, "step %" PRIu64 ": rank %u has no record; its file is missing or cut",
                        open_step, open_rank);
    if (x->steps < must) return missing_step(x, x->steps + 1, 0, err);
    x->entry_count = kept;
    return DDP_OK;
}

ddp_status observe_audit_index(const char *const *paths, size_t count, ddp_audit_index *x, ddp_err *err)
{
    for (size_t i = 0; i < count; i++) DDP_TRY(add_path(x, paths[i], err));
    DDP_TRY(read_all(x, take_begin, err));
    DDP_TRY(order_runs(x, err));
    DDP_TRY(read_all(x, take_step, err));
    if (x->entry_count > 0) qsort(x->entries, x->entry_count, sizeof(*x->entries), compare_entries);
    DDP_TRY(drop_copies(x, err));
    return check_row(x, err);
}

ddp_status observe_audit_entry(ddp_audit_index *x, const ddp_audit_entry *e, const uint8_t **record, ddp_err *err)
{
    ddp_audit_reader *f = &x->files[e->file];
    ddp_audit_record r;
    bool torn;
    ddp_status st;

    f->offset = e->offset;
    st = observe_audit_next(f, &r, &torn, err);
    if (st == DDP_OK && (r.step != e->step || r.count != e->count)) st = DDP_IN_PROGRESS;
    if (st == DDP_IN_PROGRESS) return ddp_fail(err, DDP_ERR_DATA, "%s has changed while it was read", f->path);
    *record = f->record;
    return st;
}

void observe_audit_index_free(ddp_audit_index *x)
{
    for (size_t i = 0; i < x->file_count; i++) {
        free(x->files[i].path);
        observe_audit_reader_free(&x->files[i]);
    }
    free(x->files);
    free(x->runs);
    free(x->entries);
}
