/* base/failpoint.c -- makes one allocation or system call of this process fail, for tests. Built with
 * --enable-failpoints alone: the linker then gives every call of the names below, in the program and in its plugins, to
 * __wrap_NAME here (ld --wrap). Calls that libraries make are not touched.
 *
 *   DDPENGINE_FAILPOINT=NAME:N[:ERRNO]   the N-th call of NAME in this process fails once, with that errno or the usual
 *                                        one of NAME. "alloc" is any of malloc, calloc, realloc, strdup ..
 *   DDPENGINE_FAILPOINT=NAME:N:SHORT     that call of write or pwrite takes half of its bytes
 *   DDPENGINE_FAILPOINT=NAME:N:KILL      the process is killed (SIGKILL) when it is about to make that call
 *   DDPENGINE_FAILPOINT_HIT=FILE         is made when that call has failed
 *   DDPENGINE_FAILPOINT_LIST=FILE        a line for each call: "NAME N WHERE", the point's name and number, and the
 *                                        places that led there, innermost first, as "MODULE+OFFSET"
 *
 * A child that is forked goes on counting from where its parent was. tests/reliability/failpoints.py has every point
 * of a small run fail in turn. */
#include <ddpengine/plugin.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Points, and the errno that each fails with where none is asked for. */
#define POINTS(X)                                                                                                      \
    X(alloc, ENOMEM)                                                                                                   \
    X(open, EMFILE)                                                                                                    \
    X(openat, EMFILE)                                                                                                  \
    X(fopen, EMFILE)                                                                                                   \
    X(opendir, EMFILE)                                                                                                 \
    X(scandir, ENOMEM)                                                                                                 \
    X(fdopendir, ENOMEM)                                                                                               \
    X(read, EIO)                                                                                                       \
    X(pread, EIO)                                                                                                      \
    X(write, ENOSPC)                                                                                                   \
    X(pwrite, ENOSPC)                                                                                                  \
    X(close, EIO)                                                                                                      \
    X(fsync, EIO)                                                                                                      \
    X(fdatasync, EIO)                                                                                                  \
    X(ftruncate, ENOSPC)                                                                                               \
    X(fallocate, ENOSPC)                                                                                               \
    X(rename, EIO)                                                                                                     \
    X(renameat2, EIO)                                                                                                  \
    X(link, EIO)                                                                                                       \
    X(unlink, EIO)                                                                                                     \
    X(unlinkat, EIO)                                                                                                   \
    X(mkdir, ENOSPC)                                                                                                   \
    X(rmdir, EIO)                                                                                                      \
    X(stat, EIO)                                                                                                       \
    X(lstat, EIO)                                                                                                      \
    X(fstat, EIO)                                                                                                      \
    X(access, EIO)                                                                                                     \
    X(readlink, EIO)                                                                                                   \
    X(realpath, EIO)                                                                                                   \
    X(mmap, ENOMEM)                                                                                                    \
    X(madvise, ENOMEM)                                                                                                 \
    X(memfd_create, EMFILE)                                                                                            \
    X(socket, EMFILE)                                                                                                  \
    X(bind, EADDRINUSE)                                                                                                \
    X(listen, EADDRINUSE)                                                                                              \
    X(accept4, EMFILE)                                                                                                 \
    X(connect, ENETUNREACH)                                                                                            \
    X(send, ECONNRESET)                                                                                                \
    X(recv, ECONNRESET)                                                                                                \
    X(setsockopt, ENOBUFS)                                                                                             \
    X(getsockopt, ENOBUFS)                                                                                             \
    X(getsockname, ENOBUFS)                                                                                            \
    X(getpeername, ENOTCONN)                                                                                           \
    X(getaddrinfo, EMFILE)                                                                                             \
    X(getifaddrs, ENOMEM)                                                                                              \
    X(poll, ENOMEM)                                                                                                    \
    X(epoll_create1, EMFILE)                                                                                           \
    X(epoll_ctl, ENOSPC)                                                                                               \
    X(epoll_wait, EINTR)                                                                                               \
    X(eventfd, EMFILE)                                                                                                 \
    X(fcntl, EINVAL)                                                                                                   \
    X(fork, EAGAIN)                                                                                                    \
    X(pthread_create, EAGAIN)                                                                                          \
    X(getrandom, ENOSYS)                                                                                               \
    X(gethostname, ENAMETOOLONG)                                                                                       \
    X(dlopen, ENOMEM)                                                                                                  \
    X(sched_getaffinity, EINVAL)                                                                                       \
    X(sched_setaffinity, EINVAL)                                                                                       \
    X(getrlimit, EPERM)                                                                                                \
    X(setrlimit, EPERM)                                                                                                \
    X(process_vm_readv, EPERM)

#define X(name, number) POINT_##name,
enum { POINTS(X) POINT_COUNT };
#undef X

static const struct {
    const char *name;
    int number;
} points[] = {
#define X(name, number) {#name, number},
    POINTS(X)
#undef X
};

/* ---- what is asked for ------------------------------------------------------------------------------------------- */
static atomic_ulong counts[POINT_COUNT];
static struct {
    int point; /* -1: none */
    unsigned long n;
    int number;
    bool kills, cuts; /* cuts: half of the bytes are taken */
    int list_fd;      /* -1: none */
    const char *hit;  /* NULL: none */
} wish = {.point = -1, .list_fd = -1};
static _Thread_local bool inside; /* a call that this file makes itself */

/* 0: there is no such error. */
static int errno_of(const char *text)
{
    static const struct {
        const char *name;
        int number;
    } names[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EINTR", EINTR},   {"EAGAIN", EAGAIN},
                 {"EACCES", EACCES}, {"ENOENT", ENOENT}, {"EMFILE", EMFILE}, {"ECONNRESET", ECONNRESET},
                 {"EPIPE", EPIPE},   {"ENOMEM", ENOMEM}, {"EROFS", EROFS},   {"ESTALE", ESTALE},
                 {"EDQUOT", EDQUOT}, {"EINVAL", EINVAL}};
    char *end;
    long number = strtol(text, &end, 10);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i].name, text) == 0) return names[i].number;
    return *end == '\0' && number > 0 && number < 4096 ? (int)number : 0;
}

static void refuse(const char *text)
{
    (void)fprintf(
        stderr,
        "DDPENGINE_FAILPOINT=%s is not NAME:N, NAME:N:ERRNO, NAME:N:KILL, or write:N:SHORT or pwrite:N:SHORT. Look up names of calls and errors in core/base/failpoint.c; an error may be a number\n",
        text);
    _exit(2);
}

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *data, size_t length);

__attribute__((constructor)) static void read_wish(void)
{
    const char *text = getenv("DDPENGINE_FAILPOINT"), *list = getenv("DDPENGINE_FAILPOINT_LIST");
    size_t length = text == NULL ? 0 : strcspn(text, ":");
    char *end;

    wish.hit = getenv("DDPENGINE_FAILPOINT_HIT");
    if (list != NULL) wish.list_fd = __real_open(list, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (text == NULL || text[0] == '\0') return;
    for (int i = 0; i < POINT_COUNT; i++)
        if (strlen(points[i].name) == length && memcmp(points[i].name, text, length) == 0) wish.point = i;
    if (wish.point < 0 || text[length] != ':') refuse(text);
    wish.n = strtoul(text + length + 1, &end, 10);
    if (wish.n == 0 || (*end != '\0' && *end != ':')) refuse(text);
    wish.kills = strcmp(end, ":KILL") == 0;
    wish.cuts = strcmp(end, ":SHORT") == 0;
    if (wish.cuts && wish.point != POINT_write && wish.point != POINT_pwrite) refuse(text);
    wish.number = *end == '\0' || wish.kills || wish.cuts ? points[wish.point].number : errno_of(end + 1);
    if (wish.number == 0) refuse(text);
}

/* "alloc 17 ddpengine+1f20 ddpengine+8830 backend_shm.so+1a0" */
static void list_call(int point, unsigned long n)
{
    enum { FRAMES = 10, OWN = 3 }; /* OWN: this function, fails(), __wrap_NAME */
    void *frames[FRAMES];
    char line[512];
    int count, used = snprintf(line, sizeof(line), "%s %lu", points[point].name, n);

    inside = true;
    count = backtrace(frames, FRAMES);
    for (int i = OWN; i < count && used < (int)sizeof(line) - 80; i++) {
        const char *slash;
        Dl_info where;

        if (dladdr(frames[i], &where) == 0 || where.dli_fname == NULL) break;
        slash = strrchr(where.dli_fname, '/');
        used += snprintf(line + used, 64, " %.40s+%lx", slash == NULL ? where.dli_fname : slash + 1,
                         (unsigned long)((const char *)frames[i] - (const char *)where.dli_fbase));
    }
    line[used++] = '\n';
    (void)!__real_write(wish.list_fd, line, (size_t)used);
    inside = false;
}

/* Counts a call; true, and errno set: it is the one that is to fail. */
__attribute__((noinline)) static bool fails(int point)
{
    unsigned long n;

    if (inside) return false;
    n = atomic_fetch_add(&counts[point], 1) + 1;
    if (wish.list_fd >= 0) list_call(point, n);
    if (point != wish.point || n != wish.n) return false;
    if (wish.hit != NULL) (void)__real_close(__real_open(wish.hit, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (wish.kills) (void)kill(getpid(), SIGKILL);
    errno = wish.number;
    return true;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */
/* Plugins find these in the program. */
#define SHOWN __attribute__((visibility("default"), noinline))
#define WRAP_AS(point, type, name, failed, params, args)                                                               \
    type __real_##name params;                                                                                         \
    SHOWN type __wrap_##name params;                                                                                   \
    type __wrap_##name params                                                                                          \
    {                                                                                                                  \
        if (fails(POINT_##point)) return failed;                                                                       \
        return __real_##name args;                                                                                     \
    }
#define WRAP(type, name, failed, params, args) WRAP_AS(name, type, name, failed, params, args)

WRAP_AS(alloc, void *, malloc, NULL, (size_t size), (size))
WRAP_AS(alloc, void *, calloc, NULL, (size_t count, size_t size), (count, size))
WRAP_AS(alloc, void *, realloc, NULL, (void *p, size_t size), (p, size))
WRAP_AS(alloc, void *, aligned_alloc, NULL, (size_t alignment, size_t size), (alignment, size))
WRAP_AS(alloc, int, posix_memalign, errno, (void **out, size_t alignment, size_t size), (out, alignment, size))
WRAP_AS(alloc, char *, strdup, NULL, (const char *text), (text))

WRAP(FILE *, fopen, NULL, (const char *path, const char *mode), (path, mode))
WRAP(DIR *, opendir, NULL, (const char *path), (path))
WRAP(int, scandir, -1,
     (const char *path, struct dirent ***out, int (*chosen)(const struct dirent *),
      int (*order)(const struct dirent **, const struct dirent **)),
     (path, out, chosen, order))
WRAP(DIR *, fdopendir, NULL, (int fd), (fd))
WRAP(ssize_t, read, -1, (int fd, void *data, size_t length), (fd, data, length))
WRAP(ssize_t, pread, -1, (int fd, void *data, size_t length, off_t at), (fd, data, length, at))
WRAP(ssize_t, write, wish.cuts ? __real_write(fd, data, (length + 1) / 2) : -1,
     (int fd, const void *data, size_t length), (fd, data, length))
WRAP(ssize_t, pwrite, wish.cuts ? __real_pwrite(fd, data, (length + 1) / 2, at) : -1,
     (int fd, const void *data, size_t length, off_t at), (fd, data, length, at))
WRAP(int, fsync, -1, (int fd), (fd))
WRAP(int, fdatasync, -1, (int fd), (fd))
WRAP(int, ftruncate, -1, (int fd, off_t length), (fd, length))
WRAP(int, fallocate, -1, (int fd, int mode, off_t at, off_t length), (fd, mode, at, length))
WRAP(int, rename, -1, (const char *from, const char *to), (from, to))
WRAP(int, renameat2, -1, (int from_folder, const char *from, int to_folder, const char *to, unsigned flags),
     (from_folder, from, to_folder, to, flags))
WRAP(int, link, -1, (const char *from, const char *to), (from, to))
WRAP(int, unlink, -1, (const char *path), (path))
WRAP(int, unlinkat, -1, (int fd, const char *path, int flags), (fd, path, flags))
WRAP(int, mkdir, -1, (const char *path, mode_t mode), (path, mode))
WRAP(int, rmdir, -1, (const char *path), (path))
WRAP(int, stat, -1, (const char *path, struct stat *out), (path, out))
WRAP(int, lstat, -1, (const char *path, struct stat *out), (path, out))
WRAP(int, fstat, -1, (int fd, struct stat *out), (fd, out))
WRAP(int, access, -1, (const char *path, int mode), (path, mode))
WRAP(ssize_t, readlink, -1, (const char *path, char *out, size_t length), (path, out, length))
WRAP(char *, realpath, NULL, (const char *path, char *out), (path, out))
WRAP(void *, mmap, MAP_FAILED, (void *at, size_t length, int protection, int flags, int fd, off_t offset),
     (at, length, protection, flags, fd, offset))
WRAP(int, madvise, -1, (void *at, size_t length, int advice), (at, length, advice))
WRAP(int, memfd_create, -1, (const char *name, unsigned flags), (name, flags))
WRAP(int, socket, -1, (int domain, int type, int protocol), (domain, type, protocol))
WRAP(int, bind, -1, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
WRAP(int, listen, -1, (int fd, int most), (fd, most))
WRAP(int, accept4, -1, (int fd, struct sockaddr *address, socklen_t *length, int flags), (fd, address, length, flags))
WRAP(int, connect, -1, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
WRAP(ssize_t, send, -1, (int fd, const void *data, size_t length, int flags), (fd, data, length, flags))
WRAP(ssize_t, recv, -1, (int fd, void *data, size_t length, int flags), (fd, data, length, flags))
WRAP(int, setsockopt, -1, (int fd, int level, int name, const void *value, socklen_t length),
     (fd, level, name, value, length))
WRAP(int, getsockopt, -1, (int fd, int level, int name, void *value, socklen_t *length),
     (fd, level, name, value, length))
WRAP(int, getsockname, -1, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
WRAP(int, getpeername, -1, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
WRAP(int, getaddrinfo, EAI_SYSTEM,
     (const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out),
     (host, service, hints, out))
WRAP(int, getifaddrs, -1, (struct ifaddrs * *out), (out))
WRAP(int, poll, -1, (struct pollfd * fds, nfds_t count, int ms), (fds, count, ms))
WRAP(int, epoll_create1, -1, (int flags), (flags))
WRAP(int, epoll_ctl, -1, (int epoll, int op, int fd, struct epoll_event *event), (epoll, op, fd, event))
WRAP(int, epoll_wait, -1, (int epoll, struct epoll_event *events, int most, int ms), (epoll, events, most, ms))
WRAP(int, eventfd, -1, (unsigned value, int flags), (value, flags))
WRAP(pid_t, fork, -1, (void), ())
WRAP(int, pthread_create, errno,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument),
     (thread, attributes, start, argument))
WRAP(ssize_t, getrandom, -1, (void *out, size_t length, unsigned flags), (out, length, flags))
WRAP(int, gethostname, -1, (char *out, size_t length), (out, length))
WRAP(void *, dlopen, NULL, (const char *path, int flags), (path, flags))
WRAP(int, sched_getaffinity, -1, (pid_t pid, size_t size, cpu_set_t *out), (pid, size, out))
WRAP(int, sched_setaffinity, -1, (pid_t pid, size_t size, const cpu_set_t *set), (pid, size, set))
WRAP(int, getrlimit, -1, (int resource, struct rlimit *out), (resource, out))
WRAP(int, setrlimit, -1, (int resource, const struct rlimit *limit), (resource, limit))
WRAP(ssize_t, process_vm_readv, -1,
     (pid_t pid, const struct iovec *here, unsigned long here_count, const struct iovec *there,
      unsigned long there_count, unsigned long flags),
     (pid, here, here_count, there, there_count, flags))

/* The descriptor is closed all the same, as Linux does it. */
SHOWN int __wrap_close(int fd);
int __wrap_close(int fd)
{
    bool failed = fails(POINT_close);
    int rc = __real_close(fd);

    if (!failed) return rc;
    errno = wish.number;
    return -1;
}

/* Those with an argument that may be there or not. */
static unsigned mode_of(int flags, va_list ap)
{
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(ap, unsigned) : 0;
}

SHOWN int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    unsigned mode;
    va_list ap;

    va_start(ap, flags);
    mode = mode_of(flags, ap);
    va_end(ap);
    return fails(POINT_open) ? -1 : __real_open(path, flags, mode);
}

int __real_openat(int folder, const char *path, int flags, ...);
SHOWN int __wrap_openat(int folder, const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...)
{
    unsigned mode;
    va_list ap;

    va_start(ap, flags);
    mode = mode_of(flags, ap);
    va_end(ap);
    return fails(POINT_openat) ? -1 : __real_openat(folder, path, flags, mode);
}

/* Every command in use takes a number or nothing. */
int __real_fcntl(int fd, int command, ...);
SHOWN int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
    long argument;
    va_list ap;

    va_start(ap, command);
    argument = va_arg(ap, long);
    va_end(ap);
    return fails(POINT_fcntl) ? -1 : __real_fcntl(fd, command, argument);
}
