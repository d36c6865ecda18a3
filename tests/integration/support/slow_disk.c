/* tests/integration/support/slow_disk.c -- preloaded by test_async.py: a disk that is slow, full or broken for the
 * thread "ddp-save" alone, or where there is a file "every" for each one, as files in the folder SLOW_DISK say:
 *
 *   hold    fsync waits until the file is gone        held    is made while it waits
 *   broken  fsync fails with EIO                      full    write fails with ENOSPC
 *   short   write takes 100 bytes at a time
 *
 * of those of fsync, where the path of the file that is flushed has their text;
 *
 * and for every thread: meminfo is read in the place of /proc/meminfo. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char *path_of(const char *name, char path[512])
{
    (void)snprintf(path, 512, "%s/%s", getenv("SLOW_DISK"), name);
    return path;
}

static int is_there(const char *name)
{
    char thread[16] = "", path[512];

    if (getenv("SLOW_DISK") == NULL || prctl(PR_GET_NAME, thread) != 0) return 0;
    if (strcmp(thread, "ddp-save") != 0 && access(path_of("every", path), F_OK) != 0) return 0;
    return access(path_of(name, path), F_OK) == 0;
}

/* The switch is on for the file of this descriptor: its text is in that one's path. */
static int is_on(const char *name, int fd)
{
    char link[64], path[512] = "", part[512] = "";
    FILE *f;

    if (!is_there(name) || (f = fopen(path_of(name, path), "re")) == NULL) return 0;
    (void)!fgets(part, sizeof(part), f);
    (void)fclose(f);
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    memset(path, 0, sizeof(path));
    return readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, part) != NULL;
}

int fsync(int fd)
{
    static int (*real)(int);
    char path[512];

    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    if (is_on("hold", fd)) {
        (void)close(open(path_of("held", path), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
        while (is_there("hold")) (void)usleep(2000);
    }
    if (!is_on("broken", fd)) return real(fd);
    errno = EIO;
    return -1;
}

int open(const char *path, int flags, ...)
{
    static int (*real)(const char *, int, ...);
    char other[512];
    unsigned mode;
    va_list ap;

    va_start(ap, flags);
    mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(ap, unsigned) : 0;
    va_end(ap);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "open");
    if (strcmp(path, "/proc/meminfo") == 0 && getenv("SLOW_DISK") != NULL &&
        access(path_of("meminfo", other), F_OK) == 0)
        path = other;
    return real(path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t length)
{
    static ssize_t (*real)(int, const void *, size_t);

    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "write");
    if (fd > 2 && is_there("full")) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, data, fd > 2 && length > 100 && is_there("short") ? 100 : length);
}
