/* plugins/device/cuda/libs/algorithms.c -- the table of measured algorithms, and its file.
 *
 * The file: a line of its version, the GPU, the library, then "key name nanoseconds" for each shape, then "end count".
 * A name is one that only the same version of the library understands. A file that differs in any way is ignored as a
 * whole: what was measured is measured again. */
#include "algorithms.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BYTES = 4 << 20, MAX_ENTRIES = 16384, MAX_PATH = 1024 };

typedef struct entry {
    char key[CU_ALGORITHM_KEY], name[CU_ALGORITHM_NAME];
    uint64_t nanoseconds;
} entry;

struct cu_algorithms {
    const ddp_host *host;
    const char *library;
    char path[MAX_PATH]; /* "": no file */
    char head[256];      /* the lines before the first entry */
    entry *entries;
    size_t count, capacity;
    bool changed;
};

static void say(const cu_algorithms *a, int level, int line, const char *what, const char *why)
{
    if (a->host != NULL && a->host->log != NULL)
        a->host->log(a->host->ctx, level, __FILE__, line, "algorithms of %s: %s %s: %s", a->library, a->path, what,
                     why);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */
static entry *entry_of(const cu_algorithms *a, const char *key)
{
    for (size_t i = 0; i < a->count; i++)
        if (strcmp(a->entries[i].key, key) == 0) return &a->entries[i];
    return NULL;
}

const char *cu_algorithms_find(const cu_algorithms *a, const char *key, uint64_t *nanoseconds)
{
    const entry *e = entry_of(a, key);

    if (e == NULL) return NULL;
    *nanoseconds = e->nanoseconds;
    return e->name;
}

static entry *new_entry(cu_algorithms *a)
{
    if (a->count == MAX_ENTRIES) return NULL;
    if (a->count == a->capacity) {
        size_t capacity = a->capacity > 0 ? 2 * a->capacity : 64;
        entry *grown = realloc(a->entries, capacity * sizeof(*grown));
        if (grown == NULL) return NULL;
        a->entries = grown;
        a->capacity = capacity;
    }
    return &a->entries[a->count++];
}

void cu_algorithms_put(cu_algorithms *a, const char *key, const char *name, uint64_t nanoseconds)
{
    entry *e = entry_of(a, key);

    if (e == NULL) e = new_entry(a);
    if (e == NULL) return;
    *e = (entry){.nanoseconds = nanoseconds};
    (void)snprintf(e->key, sizeof(e->key), "%s", key);
    (void)snprintf(e->name, sizeof(e->name), "%s", name);
    a->changed = true;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
/* Of a line, one of its words, which ends at a blank; NULL where there is none that fits. */
static char *parse_word(char *text, char *word, size_t room)
{
    char *end = strchr(text, ' ');

    if (end == NULL || end == text || (size_t)(end - text) >= room) return NULL;
    memcpy(word, text, (size_t)(end - text));
    word[end - text] = '\0';
    return end + 1;
}

/* "key name nanoseconds", cut at its end already. */
static bool parse_entry(char *line, entry *out)
{
    char *name = parse_word(line, out->key, sizeof(out->key)), *end;
    char *time = name != NULL ? parse_word(name, out->name, sizeof(out->name)) : NULL;

    if (time == NULL) return false;
    out->nanoseconds = strtoull(time, &end, 10);
    return end != time && *end == '\0';
}

/* All of the text or nothing of it; what this process has measured stays. */
static bool parse(cu_algorithms *a, char *text)
{
    const size_t head = strlen(a->head), before = a->count;
    size_t lines = 0;
    char end[32];

    if (strncmp(text, a->head, head) != 0) return false;
    for (char *line = text + head, *next; *line != '\0'; line = next) {
        entry e;
        next = strchr(line, '\n');
        if (next == NULL) break;
        *next++ = '\0';
        (void)snprintf(end, sizeof(end), "end %zu", lines);
        if (*next == '\0' && strcmp(line, end) == 0) return true;
        if (!parse_entry(line, &e)) break;
        lines++;
        if (entry_of(a, e.key) != NULL) continue;
        entry *fresh = new_entry(a);
        if (fresh == NULL) break;
        *fresh = e;
    }
    a->count = before;
    return false;
}

/* The whole file as text; NULL, with *why, where it cannot be had. Another user's file is not trusted. */
static char *read_all(const char *path, const char **why)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat s;
    char *text = NULL;
    ssize_t got = 0;
    size_t size = 0;

    *why = NULL;
    if (file < 0) {
        if (errno != ENOENT) *why = strerror(errno);
        return NULL;
    }
    if (fstat(file, &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != geteuid() || s.st_size > MAX_BYTES)
        *why = "it is not a file of this user's of a likely size";
    else if ((text = malloc((size_t)s.st_size + 1)) == NULL)
        *why = "out of memory";
    while (text != NULL && size < (size_t)s.st_size && (got = read(file, text + size, (size_t)s.st_size - size)) > 0)
        size += (size_t)got;
    if (text != NULL) text[size] = '\0';
    (void)close(file);
    return text;
}

static void load(cu_algorithms *a)
{
    const char *why;
    char *text = read_all(a->path, &why);

    if (why != NULL) say(a, DDP_LOG_WARN, __LINE__, "cannot be read, and what it holds is measured again", why);
    if (text != NULL && !parse(a, text))
        say(a, DDP_LOG_WARN, __LINE__, "is ignored, and written again", "it is damaged, or of another version");
    free(text);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
static bool write_text(const cu_algorithms *a, FILE *f)
{
    (void)fputs(a->head, f);
    for (size_t i = 0; i < a->count; i++)
        (void)fprintf(f, "%s %s %" PRIu64 "\n", a->entries[i].key, a->entries[i].name, a->entries[i].nanoseconds);
    (void)fprintf(f, "end %zu\n", a->count);
    return fflush(f) == 0 && !ferror(f) && fsync(fileno(f)) == 0;
}

static bool save_at(const cu_algorithms *a, char *temporary)
{
    int file = mkstemp(temporary); /* of mode 0600 */
    FILE *f;
    bool ok;

    if (file < 0) return false;
    f = fdopen(file, "w");
    if (f == NULL) {
        (void)close(file);
    } else {
        ok = write_text(a, f);
        ok = fclose(f) == 0 && ok;
        if (ok && rename(temporary, a->path) == 0) return true;
    }
    int error = errno;
    (void)unlink(temporary);
    errno = error;
    return false;
}

static void save(cu_algorithms *a)
{
    char temporary[MAX_PATH + 8];
    const char *why;
    char *text = read_all(a->path, &why); /* what others have measured since */

    if (text != NULL) (void)parse(a, text);
    free(text);
    (void)snprintf(temporary, sizeof(temporary), "%s.XXXXXX", a->path);
    if (!save_at(a, temporary)) say(a, DDP_LOG_WARN, __LINE__, "cannot be written", strerror(errno));
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
/* `path` up to its last slash, and the folders before it. */
static bool make_folders(char *path)
{
    struct stat s = {.st_mode = S_IFDIR};

    for (char *at = path + 1; *at != '\0'; at++)
        if (*at == '/') {
            *at = '\0';
            bool there = mkdir(path, 0700) == 0 || (errno == EEXIST && stat(path, &s) == 0);
            *at = '/';
            if (there && !S_ISDIR(s.st_mode)) errno = ENOTDIR;
            if (!there || !S_ISDIR(s.st_mode)) return false;
        }
    return true;
}

/* Of a name: small letters, digits and dashes. */
static void sanitise(char *text)
{
    for (; *text != '\0'; text++) {
        if (*text >= 'A' && *text <= 'Z') *text = (char)(*text - 'A' + 'a');
        if (!((*text >= 'a' && *text <= 'z') || (*text >= '0' && *text <= '9'))) *text = '-';
    }
}

cu_algorithms *cu_algorithms_open(const ddp_host *host, const char *dir, const char *gpu, const char *library,
                                  size_t version)
{
    cu_algorithms *a = calloc(1, sizeof(*a));
    char name[128];
    int n;

    if (a == NULL) return NULL;
    a->host = host;
    a->library = library;
    (void)snprintf(name, sizeof(name), "%s", gpu);
    sanitise(name);
    (void)snprintf(a->head, sizeof(a->head), "ddpengine %s algorithms 1\ngpu %s\n%s %zu\n", library, name, library,
                   version);
    if (dir[0] == '\0') return a;
    n = snprintf(a->path, sizeof(a->path), "%s/%s-%s-%zu.txt", dir, name, library, version);
    if (n < 0 || (size_t)n >= sizeof(a->path)) {
        say(a, DDP_LOG_WARN, __LINE__, "is not used", "the path is too long");
        a->path[0] = '\0';
    } else if (!make_folders(a->path)) {
        say(a, DDP_LOG_WARN, __LINE__, "is not used: its folder cannot be made", strerror(errno));
        a->path[0] = '\0';
    } else {
        load(a);
    }
    return a;
}

void cu_algorithms_close(cu_algorithms *a)
{
    if (a == NULL) return;
    if (a->changed && a->path[0] != '\0') save(a);
    free(a->entries);
    free(a);
}
