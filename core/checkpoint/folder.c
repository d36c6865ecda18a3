/* checkpoint/folder.c -- names of checkpoint folders, listing and sweeping [checkpoint] dir, comparing a file with
 * its hash. */
#include "checkpoint/folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ddp_status checkpoint_path_join(char out[DDP_PATH_CAPACITY], const char *dir, const char *name, ddp_err *err)
{
    int n = snprintf(out, DDP_PATH_CAPACITY, "%s/%s", dir, name);

    if (n < 0 || n >= DDP_PATH_CAPACITY)
        return ddp_fail(err, DDP_ERR_INVALID, "the path %.200s.../%s is too long", dir, name);
    return DDP_OK;
}

void checkpoint_step_name(char name[DDP_STEP_NAME], uint64_t step)
{
    (void)snprintf(name, DDP_STEP_NAME, "step-%08" PRIu64, step);
}

ddp_status checkpoint_step_path(ddp_path *out, const char *dir, uint64_t step, const char *suffix, ddp_err *err)
{
    char name[DDP_STEP_NAME], full[DDP_STEP_NAME + 4];

    checkpoint_step_name(name, step);
    (void)snprintf(full, sizeof(full), "%s%s", name, suffix);
    return checkpoint_path_join(out->text, dir, full, err);
}

/* True for exactly the names that checkpoint_step_name gives. */
static bool parse_step(const char *name, uint64_t *step)
{
    char again[DDP_STEP_NAME];

    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return false;
    *step = strtoull(name + 5, NULL, 10);
    checkpoint_step_name(again, *step);
    return strcmp(name, again) == 0;
}

/* step-STEPSUFFIX; the suffix may be empty. */
static bool parse_step_with(const char *name, const char *suffix, uint64_t *step)
{
    char base[DDP_STEP_NAME];
    size_t n = strlen(name), tail = strlen(suffix);

    if (n <= tail || n - tail >= sizeof(base) || strcmp(name + n - tail, suffix) != 0) return false;
    memcpy(base, name, n - tail);
    base[n - tail] = '\0';
    return parse_step(base, step);
}

static int compare_down(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

static ddp_status append(uint64_t **steps, size_t *count, size_t *capacity, uint64_t step, ddp_err *err)
{
    if (*count == *capacity) {
        size_t more = *capacity == 0 ? 16 : 2 * *capacity;
        uint64_t *grown = realloc(*steps, more * sizeof(*grown));

        if (grown == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a list of checkpoints");
        *steps = grown;
        *capacity = more;
    }
    (*steps)[(*count)++] = step;
    return DDP_OK;
}

ddp_status checkpoint_step_list(const char *dir, const char *suffix, uint64_t **steps, size_t *count, ddp_err *err)
{
    uint64_t *found = NULL, step;
    size_t n = 0, capacity = 0;
    ddp_status st = DDP_OK;
    DIR *d = opendir(dir);

    if (d == NULL && errno != ENOENT) return ddp_fail_errno(err, "cannot read the checkpoint folder %s", dir);
    while (d != NULL && st == DDP_OK) {
        const struct dirent *e;

        errno = 0;
        e = readdir(d);
        if (e == NULL && errno != 0) st = ddp_fail_errno(err, "cannot read the checkpoint folder %s", dir);
        if (e == NULL) break;
        if (parse_step_with(e->d_name, suffix, &step)) st = append(&found, &n, &capacity, step, err);
    }
    if (d != NULL) (void)closedir(d);
    if (st != DDP_OK) {
        free(found);
        return st;
    }
    if (n > 0) qsort(found, n, sizeof(*found), compare_down);
    *steps = found;
    *count = n;
    return DDP_OK;
}

ddp_status checkpoint_remove_path(const char *path, ddp_err *err)
{
    return unlink(path) == 0 ? DDP_OK : ddp_remove_folder(path, err);
}

static bool is_step_with(const char *name, const char *suffix)
{
    uint64_t step;

    return parse_step_with(name, suffix, &step);
}

/* `first`, or that and a process's number. */
static bool is_trial(const char *name, const char *first)
{
    size_t n = strlen(first);

    if (strncmp(name, first, n) != 0) return false;
    if (name[n] == '\0') return true;
    return name[n] == '-' && name[n + 1] != '\0' && name[n + 1 + strspn(name + n + 1, "0123456789")] == '\0';
}

/* Removes what `wanted` with `text` says; goes on after a failure, for the rest takes room too. */
ddp_status checkpoint_sweep_named(const char *dir, bool (*wanted)(const char *name, const char *text), const char *text,
                                  ddp_err *err)
{
    const struct dirent *e;
    ddp_status st = DDP_OK;
    ddp_err later = {0};
    ddp_path path;
    DIR *d = opendir(dir);

    if (d == NULL) return ddp_fail_errno(err, "cannot read the checkpoint folder %s", dir);
    while ((e = readdir(d)) != NULL) {
        ddp_err *to = st == DDP_OK ? err : &later;
        ddp_status one;

        if (!wanted(e->d_name, text)) continue;
        one = checkpoint_path_join(path.text, dir, e->d_name, to);
        if (one == DDP_OK) one = checkpoint_remove_path(path.text, to);
        if (st == DDP_OK) st = one;
    }
    (void)closedir(d);
    return st;
}

ddp_status checkpoint_sweep(const char *dir, const char *suffix, ddp_err *err)
{
    return checkpoint_sweep_named(dir, is_step_with, suffix, err);
}

ddp_status checkpoint_sweep_trials(const char *dir, ddp_err *err)
{
    return checkpoint_sweep_named(dir, is_trial, DDP_TRIAL_FILE, err);
}

/* read(2) rather than a mapping: a bad disk is then an error with a name, not a SIGBUS. */
static ddp_status read_file(int fd, const char *path, void (*add)(void *hash, const char *data, size_t length),
                            void *hash, ddp_err *err)
{
    const size_t capacity = (size_t)1 << 20;
    char *buffer = ddp_alloc(capacity, err);
    ddp_status st = DDP_OK;
    ssize_t n;

    if (buffer == NULL) return err->status;
    while ((n = read(fd, buffer, capacity)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0) add(hash, buffer, (size_t)n);
    if (n < 0) st = ddp_fail_errno(err, "cannot read %s", path);
    free(buffer);
    return st;
}

static void add_to_sha256(void *hash, const char *data, size_t length) { ddp_sha256_add(hash, data, length); }
static void add_to_xxh128(void *hash, const char *data, size_t length) { ddp_xxh128_add(hash, data, length); }

static ddp_status hash_file(int fd, const char *path, bool xxh128, char hex[DDP_SHA256_HEX], ddp_err *err)
{
    ddp_sha256 slow;
    ddp_xxh128 fast;
    ddp_status st;

    DDP_TRY(xxh128 ? ddp_xxh128_begin(&fast, err) : ddp_sha256_begin(&slow, err));
    st = read_file(fd, path, xxh128 ? add_to_xxh128 : add_to_sha256, xxh128 ? (void *)&fast : &slow, err);
    if (xxh128)
        ddp_xxh128_end(&fast, hex);
    else
        ddp_sha256_end(&slow, hex);
    return st;
}

static ddp_status verify_file(const char *path, const ddp_file_facts *facts, bool contents, ddp_err *err)
{
    bool xxh128 = strlen(facts->hash) == DDP_XXH128_HEX - 1;
    char hex[DDP_SHA256_HEX];
    struct stat s;
    ddp_status st = DDP_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) return ddp_fail_errno(err, "cannot open %s", path);
    if (fstat(fd, &s) != 0) {
        st = ddp_fail_errno(err, "cannot stat %s", path);
    } else if (!S_ISREG(s.st_mode) || (uint64_t)s.st_size != facts->bytes) {
        st = ddp_fail(err, DDP_ERR_DATA, "%s has %lld bytes where the manifest says %" PRIu64, path,
                      (long long)s.st_size, facts->bytes);
    } else if (contents && (st = hash_file(fd, path, xxh128, hex, err)) == DDP_OK && strcmp(hex, facts->hash) != 0) {
        st = ddp_fail(err, DDP_ERR_DATA, "%s is damaged: its %s is %.12s..., the manifest says %.12s...", path,
                      xxh128 ? "XXH128" : "SHA-256", hex, facts->hash);
    }
    (void)close(fd);
    return st;
}

ddp_status checkpoint_verify_files(const char *dir, const ddp_manifest *m, bool contents, ddp_err *err)
{
    const ddp_file_facts *f;
    char name[DDP_FILE_NAME];
    ddp_path path;

    for (int pass = 0; pass < (contents ? 2 : 1); pass++) /* sizes first: contents may be gigabytes */
        for (uint32_t i = 0; (f = checkpoint_manifest_file(m, &i, name)) != NULL;) {
            DDP_TRY(checkpoint_path_join(path.text, dir, name, err));
            DDP_TRY(verify_file(path.text, f, pass != 0, err));
        }
    return DDP_OK;
}

/* ---- the best one ------------------------------------------------------------------------------------------------ */
uint64_t checkpoint_best_step(const char *dir)
{
    char target[DDP_STEP_NAME] = "", name[DDP_STEP_NAME];
    ddp_err ignored = {0};
    ddp_path path;
    uint64_t step;

    if (checkpoint_path_join(path.text, dir, DDP_BEST_LINK, &ignored) != DDP_OK) return UINT64_MAX;
    if (readlink(path.text, target, sizeof(target) - 1) < 0 || strncmp(target, "step-", 5) != 0) return UINT64_MAX;
    step = strtoull(target + 5, NULL, 10);
    checkpoint_step_name(name, step);
    return strcmp(name, target) == 0 ? step : UINT64_MAX;
}

ddp_status checkpoint_best_set(const char *dir, uint64_t step, ddp_err *err)
{
    ddp_path folder, link, tmp;
    char name[DDP_STEP_NAME];
    struct stat facts;

    if (checkpoint_best_step(dir) == step) return DDP_OK;
    DDP_TRY(checkpoint_step_path(&folder, dir, step, "", err));
    DDP_TRY(checkpoint_path_join(link.text, dir, DDP_BEST_LINK, err));
    DDP_TRY(checkpoint_path_join(tmp.text, dir, DDP_BEST_LINK ".tmp", err));
    if (lstat(folder.text, &facts) != 0) return DDP_OK; /* its save has failed */
    checkpoint_step_name(name, step);
    (void)unlink(tmp.text);
    if (symlink(name, tmp.text) != 0) return ddp_fail_errno(err, "cannot create %s", tmp.text);
    if (rename(tmp.text, link.text) != 0) return ddp_fail_errno(err, "cannot rename %s to %s", tmp.text, link.text);
    return ddp_fsync_folder(dir, err);
}

ddp_status checkpoint_best_clear(const char *dir, ddp_err *err)
{
    ddp_path path;

    DDP_TRY(checkpoint_path_join(path.text, dir, DDP_BEST_LINK, err));
    return checkpoint_best_step(dir) == UINT64_MAX ? DDP_OK : checkpoint_remove_path(path.text, err);
}
