/* checkpoint_util.h -- a temporary folder, whole files, a captured log; for the tests of checkpoint/ and observe/. */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/log.h"
#include "base/sys.h"
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct place {
    char dir[256];
    ddp_log log; /* into dir.log */
    char log_path[264];
};

static inline int place_setup(void **state)
{
    static struct place p;
    const char *tmp = getenv("TMPDIR");

    memset(&p, 0, sizeof(p));
    (void)snprintf(p.dir, sizeof(p.dir), "%.200s/ddp-test-XXXXXX", tmp == NULL || tmp[0] == '\0' ? "/tmp" : tmp);
    if (mkdtemp(p.dir) == NULL) return -1;
    (void)snprintf(p.log_path, sizeof(p.log_path), "%s.log", p.dir);
    ddp_log_init(&p.log);
    p.log.terminal = false;
    p.log.fd = open(p.log_path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    *state = &p;
    return p.log.fd < 0 ? -1 : 0;
}

static inline int remove_one(const char *path, const struct stat *s, int flag, struct FTW *w)
{
    (void)s;
    (void)flag;
    (void)w;
    return remove(path);
}

static inline int place_teardown(void **state)
{
    struct place *p = *state;

    (void)close(p->log.fd);
    (void)unlink(p->log_path);
    return nftw(p->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Names below the place's folder; the result lives until the fourth call after it. */
static inline const char *in(const struct place *p, const char *name)
{
    static char buf[4][1024];
    static unsigned next;
    char *to = buf[next++ % 4];

    (void)snprintf(to, sizeof(buf[0]), "%s/%s", p->dir, name);
    return to;
}

static inline bool exists(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0;
}

static inline size_t entries(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);

    if (d == NULL) return 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) n++;
    closedir(d);
    return n;
}

static inline char *slurp(const char *path, size_t *length)
{
    char *data = NULL;
    size_t n = 0;
    ddp_err err = {0};

    if (ddp_file_read(path, (size_t)1 << 28, &data, &n, &err) != DDP_OK) fail_msg("%s", err.msg);
    if (length != NULL) *length = n;
    return data;
}

static inline void spill(const char *path, const void *data, size_t length)
{
    ddp_err err = {0};
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(ddp_write_all(fd, data, length, path, &err), DDP_OK);
    close(fd);
}

static inline void flip(const char *path, size_t at)
{
    size_t length;
    char *data = slurp(path, &length);

    assert_true(at < length);
    data[at] ^= 1;
    spill(path, data, length);
    free(data);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

static inline size_t occurrences(const char *text, const char *part)
{
    size_t n = 0, length = strlen(part);

    for (; *text != '\0'; text++)
        if (strncmp(text, part, length) == 0) n++;
    return n;
}

/* How often the log so far has `part`. */
static inline size_t logged(const struct place *p, const char *part)
{
    char *text = slurp(p->log_path, NULL);
    size_t n = occurrences(text, part);

    free(text);
    return n;
}
