/* plugins/backend/shm/segment.c -- memory that the ranks of a host share. It has no name: the kernel frees it with
 * its last descriptor and mapping, however the processes end. A peer opens it by the owner's descriptor,
 * /proc/PID/fd/N; no socket listens. */
#include "shm.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "ddpengine-shm"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

ddp_status ddp_shm_errno(ddp_err *err, const char *what)
{
    int code = errno;
    ddp_status st = code == ENOMEM || code == ENOSPC ? DDP_ERR_NOMEM : DDP_ERR_SYSTEM;

    errno = code;
    (void)ddp_fail(err, st, "shm: %s: %m%s", what, code == EMFILE ? "; raise the limit that ulimit -n shows" : "");
    err->sys_errno = code;
    return st;
}

/* A resize by a process that has it open would turn a read into SIGBUS: sealed. */
ddp_status ddp_shm_create(size_t bytes, int *fd, ddp_err *err)
{
    int f = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    ddp_status st;

    if (f < 0 && errno == EINVAL) f = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (f < 0) return ddp_shm_errno(err, "memfd_create");
    if (ftruncate(f, (off_t)bytes) != 0) {
        st = ddp_shm_errno(err, "size of the shared memory");
        goto close_memory;
    }
    if (fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        st = ddp_shm_errno(err, "seal of the shared memory");
        goto close_memory;
    }
    *fd = f;
    return DDP_OK;

close_memory:
    (void)close(f);
    return st;
}

/* The pid may belong to another process by now, whose descriptor may be anything: what is no such memory is not
 * opened. */
static bool looks_ours(const char *path)
{
    char target[64] = "";

    return readlink(path, target, sizeof(target) - 1) > 0 &&
           strncmp(target, "/memfd:" NAME, sizeof("/memfd:" NAME) - 1) == 0;
}

static bool is_ours(int fd, size_t bytes)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    struct stat s;

    return fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && (size_t)s.st_size == bytes &&
           (fcntl(fd, F_GET_SEALS) & seals) == seals;
}

static ddp_status cannot_open(const ddp_comm *c, uint32_t pid, ddp_err *err)
{
    int code = errno;

    (void)ddp_fail(err, DDP_ERR_SYSTEM,
                   "shm: rank %u cannot open the memory of rank 0 (process %u): %m; "
                   "run all ranks as the same user in the same pid namespace, or use gloo-tcp",
                   c->rank, pid);
    err->sys_errno = code;
    return DDP_ERR_SYSTEM;
}

ddp_status ddp_shm_open(const ddp_comm *c, uint32_t pid, int number, size_t bytes, int *fd, ddp_err *err)
{
    char path[64];
    int f = -1;

    (void)snprintf(path, sizeof(path), "/proc/%u/fd/%d", pid, number);
    errno = 0;
    if (looks_ours(path)) f = open(path, O_RDWR | O_CLOEXEC);
    if (f < 0 && errno != 0) return cannot_open(c, pid, err);
    if (f < 0 || !is_ours(f, bytes)) {
        if (f >= 0) (void)close(f);
        return ddp_fail(
            err, DDP_ERR_SYSTEM,
            "shm: rank %u finds no memory of rank 0 at descriptor %d of process %u: another host or pid namespace? "
            "Run all ranks in the same one, or use gloo-tcp",
            c->rank, number, pid);
    }
    *fd = f;
    return DDP_OK;
}

/* MemAvailable of the host, UINT64_MAX when it does not say. */
static uint64_t available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char row[128];
    uint64_t kib = UINT64_MAX;

    if (f == NULL) return UINT64_MAX;
    while (kib == UINT64_MAX && fgets(row, sizeof(row), f) != NULL)
        if (strncmp(row, "MemAvailable:", 13) == 0) kib = strtoull(row + 13, NULL, 10);
    (void)fclose(f);
    return kib == UINT64_MAX ? UINT64_MAX : kib * 1024;
}

/* Checked before anything is allocated: a host without memory kills processes rather than refuse a page. */
ddp_status ddp_shm_room(uint64_t bytes, ddp_err *err)
{
    uint64_t left = available();
    struct rlimit size;

    if (bytes > left)
        return ddp_fail(err, DDP_ERR_NOMEM, "shm: %" PRIu64 " MiB of shared memory, the host has %" PRIu64 " MiB left",
                        bytes >> 20, left >> 20);
    /* a larger ftruncate would end the process by SIGXFSZ */
    if (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY && bytes > size.rlim_cur)
        return ddp_fail(err, DDP_ERR_NOMEM,
                        "shm: %" PRIu64 " MiB of shared memory are more than the limit of a file's size: ulimit -f",
                        bytes >> 20);
    return DDP_OK;
}

ddp_status ddp_shm_reserve(int fd, size_t offset, size_t bytes, ddp_err *err)
{
    int rc;

    do {
        rc = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    return rc == 0 ? DDP_OK : ddp_shm_errno(err, "no room for the shared memory");
}

ddp_status ddp_shm_map(int fd, size_t bytes, void **out, ddp_err *err)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED) return ddp_shm_errno(err, "mapping of the shared memory");
    *out = p;
    return DDP_OK;
}
