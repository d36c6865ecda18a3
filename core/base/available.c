/* base/available.c -- how much memory and processor time this process can have: of the host, and of the control groups
 * that hold it.
 * Linux gives pages that it does not have, and kills a process when they are used; so it is asked before. */
#include "base/sys.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 1 << 20, TEXT = 512 };

/* The number behind `key` at the beginning of a line; false: it is not there. */
static bool number_in(const char *root, const char *path, const char *key, uint64_t *out)
{
    char full[PATH_MAX], *data = NULL;
    const char *at;
    size_t length = 0;
    ddp_err ignored = {0};
    bool found = false;

    if ((size_t)snprintf(full, sizeof(full), "%s%s", root, path) >= sizeof(full) ||
        ddp_file_read(full, FILE_LIMIT, &data, &length, &ignored) != DDP_OK)
        return false;
    for (at = data; at != NULL && !found; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, key, strlen(key)) != 0) continue;
        at += strlen(key);
        at += strspn(at, " \t");
        found = *at >= '0' && *at <= '9'; /* "max": there is no limit */
        if (found) *out = strtoull(at, NULL, 10);
    }
    free(data);
    return found;
}

/* What the group may still use; its page cache can be taken back. */
static uint64_t left_in_group(const char *root, const char *group)
{
    char path[TEXT + 64];
    uint64_t most, used, cache = 0;

    (void)snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
    if (!number_in(root, path, "", &most)) return UINT64_MAX;
    (void)snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", group);
    if (!number_in(root, path, "", &used)) return UINT64_MAX;
    (void)snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.stat", group);
    (void)number_in(root, path, "file ", &cache);
    used -= DDP_MIN_OF(cache, used);
    return most > used ? most - used : 0;
}

/* The group of this process, "0::/a/b" of version 2, as "/a/b"; "" for the outermost one; false: nobody says. */
static bool own_group(const char *root, char group[TEXT])
{
    char path[PATH_MAX], *data = NULL;
    const char *line;
    size_t length = 0;
    ddp_err ignored = {0};

    group[0] = '\0';
    if ((size_t)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root) >= sizeof(path) ||
        ddp_file_read(path, FILE_LIMIT, &data, &length, &ignored) != DDP_OK)
        return false;
    line = strncmp(data, "0::", 3) == 0 ? data + 3 : strstr(data, "\n0::");
    if (line != NULL && *line == '\n') line += 4;
    if (line != NULL && strcspn(line, "\n") < TEXT) (void)snprintf(group, TEXT, "%.*s", (int)strcspn(line, "\n"), line);
    free(data);
    if (strcmp(group, "/") == 0) group[0] = '\0';
    return true;
}

/* That group and those around it. */
static uint64_t left_in_groups(const char *root)
{
    char group[TEXT];
    uint64_t left = UINT64_MAX;

    if (!own_group(root, group)) return UINT64_MAX;
    for (;;) {
        char *last = strrchr(group, '/');

        left = DDP_MIN_OF(left, left_in_group(root, group));
        if (last == NULL) return left;
        *last = '\0';
    }
}

uint64_t base_memory_available_at(const char *root)
{
    uint64_t kib, left = left_in_groups(root);

    if (number_in(root, "/proc/meminfo", "MemAvailable:", &kib)) left = DDP_MIN_OF(left, kib * 1024);
    return left;
}

uint64_t ddp_memory_available(void) { return base_memory_available_at(""); }

/* ---- processors -------------------------------------------------------------------------------------------------- */
/* "50000 100000" of cpu.max is half a processor, "max 100000" no limit. */
static double quota_of_group(const char *root, const char *group)
{
    char path[PATH_MAX], *data = NULL;
    unsigned long long used, period;
    size_t length = 0;
    ddp_err ignored = {0};
    double quota = HUGE_VAL;

    if ((size_t)snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s/cpu.max", root, group) >= sizeof(path) ||
        ddp_file_read(path, FILE_LIMIT, &data, &length, &ignored) != DDP_OK)
        return HUGE_VAL;
    if (sscanf(data, "%llu %llu", &used, &period) == 2 && period > 0) quota = (double)used / (double)period;
    free(data);
    return quota;
}

double base_processors_allowed_at(const char *root)
{
    char group[TEXT];
    double least = HUGE_VAL;

    if (!own_group(root, group)) return HUGE_VAL;
    for (;;) {
        char *last = strrchr(group, '/');

        least = DDP_MIN_OF(least, quota_of_group(root, group));
        if (last == NULL) return least;
        *last = '\0';
    }
}

double ddp_processors_allowed(void) { return base_processors_allowed_at(""); }
