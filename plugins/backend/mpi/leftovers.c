/* plugins/backend/mpi/leftovers.c -- see leftovers.h. Names of Open MPI, PID being that of mpirun:
 *
 *   version  session folder, in TMPDIR   segments, in /dev/shm               JOB, in hexadecimal: FAMILY * 65536 + 1
 *   4        ompi.HOST.UID/pid.PID       vader_segment.HOST.UID.JOB.RANK     FAMILY: begins contact.txt in the folder
 *   5        prterun.HOST.PID.UID        sm_segment.HOST.UID.JOB.RANK        FAMILY: a hash of "prterun-HOST-PID"
 *   6        ompi.PID, ompi.HOST.PID     as 5                                as 5
 *
 * A folder's name has to have the PID of this run's mpirun, and all of it has to be this user's. A segment is removed
 * only where its job's number is that of this run and no process has it open. An MPI that names its files otherwise
 * keeps them. MPICH leaves none: it removes the names of its segments while the ranks start. */
#include "leftovers.h"
#include "settings.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DEPTH = 8,     /* of folders in the session's; it has 3 */
    HOST_NAMES = 2 /* this host's: whole, and cut at its first dot, as Open MPI has it unless it is told not to */
};

typedef struct run {
    uint64_t pid; /* of mpirun */
    char hosts[HOST_NAMES][256];
    uint32_t families[1 + HOST_NAMES]; /* of jobs; 0: not known, for Open MPI has none of that number with ranks */
} run;

static bool own(int folder, const char *name, mode_t type)
{
    struct stat st;

    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_uid == geteuid() &&
           (st.st_mode & S_IFMT) == type;
}

static int open_folder(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* ---- the session's folder ---------------------------------------------------------------------------------------- */
static void remove_tree(int at, const char *name, int depth)
{
    int fd = depth > 0 ? open_folder(at, name) : -1;
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;

    if (folder == NULL && fd >= 0) (void)close(fd);
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (unlinkat(fd, entry->d_name, 0) != 0 && (errno == EISDIR || errno == EPERM))
            remove_tree(fd, entry->d_name, depth - 1);
    }
    if (folder != NULL) (void)closedir(folder);
    (void)unlinkat(at, name, AT_REMOVEDIR);
}

static void remove_own_folder(int at, const char *name)
{
    if (own(at, name, S_IFDIR)) remove_tree(at, name, DEPTH);
}

/* Of Open MPI 4: the family of the job of mpirun in folder `session`. */
static uint32_t family_in(int session, uint64_t pid)
{
    int fd = openat(session, "contact.txt", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    char text[1024], *second;
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (fd >= 0) (void)close(fd);
    if (n <= 0) return 0;
    text[n] = '\0';
    second = strchr(text, '\n');
    if (second == NULL || strtoull(second + 1, NULL, 10) != pid) return 0;
    return (uint32_t)strtoul(text, NULL, 10) >> 16;
}

/* Of Open MPI 4: in TMPDIR/ompi.HOST.UID, which goes when it was the last session there, as mpirun does. */
static void remove_nested(int base, const char *name, run *r)
{
    int top = own(base, name, S_IFDIR) ? open_folder(base, name) : -1, session;
    char inner[32];

    if (top < 0) return;
    (void)snprintf(inner, sizeof(inner), "pid.%" PRIu64, r->pid);
    session = own(top, inner, S_IFDIR) ? open_folder(top, inner) : -1;
    if (session >= 0) {
        r->families[HOST_NAMES] = family_in(session, r->pid);
        (void)close(session);
        remove_tree(top, inner, DEPTH);
    }
    (void)close(top);
    (void)unlinkat(base, name, AT_REMOVEDIR);
}

static void remove_sessions(run *r)
{
    int base = open_folder(AT_FDCWD, ddp_mpi_temporary_folder());
    unsigned uid = (unsigned)geteuid();
    char name[512];

    if (base < 0) return;
    (void)snprintf(name, sizeof(name), "ompi.%" PRIu64, r->pid);
    remove_own_folder(base, name);
    for (int i = 0; i < HOST_NAMES; i++) {
        (void)snprintf(name, sizeof(name), "ompi.%s.%" PRIu64, r->hosts[i], r->pid);
        remove_own_folder(base, name);
        (void)snprintf(name, sizeof(name), "prterun.%s.%" PRIu64 ".%u", r->hosts[i], r->pid, uid);
        remove_own_folder(base, name);
        (void)snprintf(name, sizeof(name), "ompi.%s.%u", r->hosts[i], uid);
        remove_nested(base, name, r);
    }
    (void)close(base);
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */
/* Of Open MPI 5 and later, which make a number of 16 bits of the name of the job's family by Jenkins' hash. */
static uint32_t family_of(const char *host, uint64_t pid)
{
    char name[512];
    uint32_t hash = 0;

    (void)snprintf(name, sizeof(name), "prterun-%s-%" PRIu64, host, pid);
    for (const char *c = name; *c != '\0'; c++) {
        hash += (uint32_t)(unsigned char)*c;
        hash += hash << 10;
        hash ^= hash >> 6;
    }
    hash += hash << 3;
    hash ^= hash >> 11;
    hash += hash << 15;
    return (hash >> 16 ^ hash) & 0xffff;
}

/* Whether `name` is BEFORE.HOST.UID.JOB.RANK, with a JOB of this run. */
static bool is_segment(const run *r, const char *name, const char *before)
{
    for (int i = 0; i < HOST_NAMES; i++) {
        char text[512], *end;
        size_t length = (size_t)snprintf(text, sizeof(text), "%s.%s.%u.", before, r->hosts[i], (unsigned)geteuid());
        uint32_t family;

        if (strncmp(name, text, length) != 0) continue;
        family = (uint32_t)strtoul(name + length, &end, 16) >> 16;
        for (size_t k = 0; k < sizeof(r->families) / sizeof(r->families[0]); k++)
            if (*end == '.' && family != 0 && family == r->families[k]) return true;
    }
    return false;
}

/* The kernel gives a lease only on a file that nobody has open for writing; a segment that is mapped counts as open. */
static bool is_in_use(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool used = fd >= 0 && fcntl(fd, F_SETLEASE, F_RDLCK) != 0 && errno == EAGAIN;

    if (fd >= 0) (void)close(fd); /* and the lease with it */
    return used;
}

static void remove_segments(const run *r)
{
    DIR *shm = opendir(ddp_mpi_segment_folder());
    struct dirent *entry;

    while (shm != NULL && (entry = readdir(shm)) != NULL) {
        const char *name = entry->d_name;

        if (!is_segment(r, name, "vader_segment") && !is_segment(r, name, "sm_segment")) continue;
        if (own(dirfd(shm), name, S_IFREG) && !is_in_use(dirfd(shm), name)) (void)unlinkat(dirfd(shm), name, 0);
    }
    if (shm != NULL) (void)closedir(shm);
}

void ddp_mpi_clean(uint64_t pid)
{
    run r = {.pid = pid};

    for (int i = 0; i < HOST_NAMES; i++) {
        (void)gethostname(r.hosts[i], sizeof(r.hosts[i]) - 1);
        if (i > 0) r.hosts[i][strcspn(r.hosts[i], ".")] = '\0';
        r.families[i] = family_of(r.hosts[i], pid);
    }
    remove_sessions(&r);
    remove_segments(&r);
}

/* ---- without a launcher ------------------------------------------------------------------------------------------ */
void ddp_mpi_enter_folder(ddp_mpi_folder *f)
{
    const char *before = getenv("TMPDIR");
    int length = snprintf(f->path, sizeof(f->path), "%s/ddpengine-mpi-XXXXXX", ddp_mpi_temporary_folder());

    f->before = before != NULL ? strdup(before) : NULL;
    if ((before != NULL && f->before == NULL) || length >= (int)sizeof(f->path) || mkdtemp(f->path) == NULL)
        f->path[0] = '\0';
    else
        (void)setenv("TMPDIR", f->path, 1);
}

void ddp_mpi_leave_folder(ddp_mpi_folder *f)
{
    if (f->path[0] != '\0') {
        if (f->before != NULL)
            (void)setenv("TMPDIR", f->before, 1);
        else
            (void)unsetenv("TMPDIR");
        remove_tree(AT_FDCWD, f->path, DEPTH);
    }
    free(f->before);
}
