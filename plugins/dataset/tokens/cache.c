/* plugins/dataset/tokens/cache.c -- see cache.h. */
#include "cache.h"
#include "encode.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 2, NAME = 4096, WAIT_SECONDS = 3600 };
static const char magic[8] = "ddptoken";

typedef struct entry {
    const tokenizer *t;
    const data_file *text;
    uint64_t hash; /* of the text */
    char name[NAME], part[NAME];
} entry;

/* ---- header ------------------------------------------------------------------------------------------------------ */
static void make_header(const entry *e, uint64_t count, uint8_t out[CACHE_HEADER])
{
    const uint64_t words[5] = {VERSION, e->hash, tokenizer_hash(e->t), e->text->size, count};

    memset(out, 0, CACHE_HEADER);
    memcpy(out, magic, sizeof(magic));
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 8; k++) out[8 + 8 * i + k] = (uint8_t)(words[i] >> 8 * k);
}

/* Is the open file the whole entry? */
static bool is_whole(const entry *e, int fd, uint64_t *count)
{
    uint8_t header[CACHE_HEADER], wanted[CACHE_HEADER];
    struct stat info;

    if (fstat(fd, &info) != 0 || info.st_size < CACHE_HEADER || pread(fd, header, CACHE_HEADER, 0) != CACHE_HEADER)
        return false;
    *count = ((uint64_t)info.st_size - CACHE_HEADER) / 4;
    make_header(e, *count, wanted);
    return info.st_size % 4 == 0 && memcmp(header, wanted, CACHE_HEADER) == 0;
}

static bool find(const entry *e, data_file *out, uint64_t *count)
{
    int fd = open(e->name, O_RDONLY | O_CLOEXEC);

    if (fd < 0) return false;
    if (!is_whole(e, fd, count) || (out->path = strdup(e->name)) == NULL) {
        (void)close(fd);
        return false;
    }
    out->plugin = "tokens";
    out->fd = fd;
    out->size = CACHE_HEADER + 4 * *count;
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
static ddp_status fail_file(const char *what, const char *name, ddp_err *err)
{
    int number = errno;
    ddp_status status = ddp_fail(
        err, DDP_ERR_DATA,
        "dataset tokens: the tokens of the text go to \"%.200s\", which cannot be %s: %s; set cache to a folder that can be written",
        name, what, strerror(number));

    err->sys_errno = number;
    return status;
}

typedef struct writer {
    const entry *e;
    int fd;
} writer;

static ddp_status write_all(void *to, const void *data, size_t size, ddp_err *err)
{
    const writer *w = to;

    for (size_t done = 0; done < size;) {
        ssize_t n = write(w->fd, (const char *)data + done, size - done);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_file("written", w->e->part, err);
        done += (size_t)n;
    }
    return DDP_OK;
}

/* The name's folder knows of the name only once it is synced itself. */
static ddp_status sync_folder(const char *name, ddp_err *err)
{
    const char *slash = strrchr(name, '/');
    char folder[NAME];
    int fd, code;

    (void)snprintf(folder, sizeof(folder), "%.*s",
                   slash == NULL   ? 1
                   : slash == name ? 1
                                   : (int)(slash - name),
                   slash == NULL ? "." : name);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    code = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0) (void)close(fd);
    return code == 0 || errno == EINVAL ? DDP_OK : fail_file("synced", name, err);
}

static ddp_status write_entry(const entry *e, int fd, ddp_err *err)
{
    uint8_t header[CACHE_HEADER] = {0};
    writer to = {e, fd};
    uint64_t count = 0;

    if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0) return fail_file("written", e->part, err);
    DDP_TRY(write_all(&to, header, sizeof(header), err));
    DDP_TRY(encode_file(e->t, e->text, write_all, &to, &count, err));
    make_header(e, count, header);
    if (pwrite(fd, header, sizeof(header), 0) != (ssize_t)sizeof(header) || fsync(fd) != 0)
        return fail_file("written", e->part, err);
    if (rename(e->part, e->name) != 0) return fail_file("renamed", e->part, err);
    return sync_folder(e->name, err);
}

/* Until no other process holds the file: it goes on when that has written it, or was killed. */
static ddp_status lock(const entry *e, int fd, ddp_err *err)
{
    const struct timespec pause = {.tv_nsec = 50000000L};

    for (int i = 0; i < WAIT_SECONDS * 20; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return DDP_OK;
        if (errno != EWOULDBLOCK && errno != EINTR) return fail_file("locked", e->part, err);
        (void)nanosleep(&pause, NULL);
    }
    return ddp_fail(
        err, DDP_ERR_DATA,
        "dataset tokens: another process has been writing \"%.200s\" for %d minutes; end it, or set cache to another folder",
        e->part, WAIT_SECONDS / 60);
}

/* The file without its name still may be the one that another process has just renamed: then the entry is there. */
static ddp_status make(const entry *e, data_file *out, uint64_t *count, ddp_err *err)
{
    int fd = open(e->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ddp_status status;

    if (fd < 0) return fail_file("made", e->part, err);
    status = lock(e, fd, err);
    if (status == DDP_OK && find(e, out, count)) {
        (void)unlink(e->part);
    } else if (status == DDP_OK) {
        status = write_entry(e, fd, err);
        if (status == DDP_OK && !find(e, out, count)) {
            errno = EIO;
            status = fail_file("read back", e->name, err);
        }
    }
    (void)close(fd);
    return status;
}

static ddp_status name_entry(entry *e, const char *folder, ddp_err *err)
{
    XXH3_state_t hash;
    uint64_t key[2];

    data_hash_begin(&hash, 0);
    DDP_TRY(data_file_hash(e->text, 0, e->text->size, &hash, err));
    e->hash = XXH3_64bits_digest(&hash);
    key[0] = e->hash;
    key[1] = tokenizer_hash(e->t);
    key[0] = XXH3_64bits(key, sizeof(key));
    if (snprintf(e->name, NAME, "%s%s%016" PRIx64 ".tokens", folder[0] != '\0' ? folder : e->text->path,
                 folder[0] != '\0' ? "/" : ".", key[0]) >= NAME - 8)
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset tokens: the path of cache is too long");
    (void)snprintf(e->part, NAME, "%.4080s.part", e->name);
    return DDP_OK;
}

ddp_status cache_open(const tokenizer *t, const char *folder, const char *path, data_file *out, uint64_t *count,
                      ddp_err *err)
{
    data_file text;
    entry *e = calloc(1, sizeof(*e));
    ddp_status status;

    if (e == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset tokens: out of memory");
    status = data_file_open(&text, "tokens", path, "; set files to the text", err);
    if (status == DDP_OK) {
        e->t = t;
        e->text = &text;
        if (folder[0] != '\0') (void)mkdir(folder, 0777);
        status = name_entry(e, folder, err);
        if (status == DDP_OK && !find(e, out, count)) status = make(e, out, count, err);
        data_file_close(&text);
    }
    free(e);
    return status;
}

/* ---- without a name ---------------------------------------------------------------------------------------------- */
static ddp_status write_temp(void *to, const void *data, size_t size, ddp_err *err)
{
    return temp_write(to, data, size, "a text for a prediction may have", err);
}

ddp_status cache_open_once(const tokenizer *t, const char *path, data_file *out, uint64_t *count, ddp_err *err)
{
    const uint8_t header[CACHE_HEADER] = {0};
    data_file text;
    temp_file temp;
    ddp_status status;

    DDP_TRY(data_file_open(&text, "tokens", path, "", err));
    status = temp_open(&temp, "tokens", path, UINT64_C(1) << 32, err);
    if (status == DDP_OK) {
        status = write_temp(&temp, header, sizeof(header), err);
        if (status == DDP_OK) status = encode_file(t, &text, write_temp, &temp, count, err);
        if (status == DDP_OK)
            *out = temp.file;
        else
            temp_close(&temp);
    }
    data_file_close(&text);
    return status;
}
