/* plugins/backend/mpi/leftovers.c -- see leftovers.h. Names as of Open MPI 4:
 *
 *   TMPDIR/ompi.HOST.UID/pid.PID/               mpirun's session folder, PID being mpirun's
 *   TMPDIR/ompi.HOST.UID/pid.PID/contact.txt    begins with its job's number: FAMILY * 65536, in decimal
 *   /dev/shm/vader_segment.HOST.UID.JOB.RANK    JOB in hexadecimal: FAMILY * 65536 + 1
 *
 * A segment is removed only where the folder, which names PID, belongs to this family. An MPI that names its files
 * otherwise keeps them. */
#include "leftovers.h"
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

enum { DEPTH = 8 }; /* of folders in the session's; it has 3 */

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

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

static const char *temporary_folder(void)
{
    static const char *const names[] = {"OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (variable(names[i]) != NULL) return variable(names[i]);
    return "/tmp";
}

/* `name` is BEFORE.HOST.UID and what `tail` then says: whether host and user are ours. Open MPI cuts the host's name
 * at its first dot, unless it is told not to. */
static bool is_ours(const char *name, const char *before, const char **tail)
{
    char host[256] = "", text[300];

    (void)gethostname(host, sizeof(host) - 1);
    for (int whole = 1; whole >= 0; whole--) {
        if (whole == 0) host[strcspn(host, ".")] = '\0';
        (void)snprintf(text, sizeof(text), "%s.%s.%u", before, host, (unsigned)geteuid());
        *tail = name + strlen(text);
        if (strncmp(name, text, strlen(text)) == 0 && (**tail == '\0' || **tail == '.')) return true;
    }
    return false;
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

/* The job family of mpirun in folder `session`; 0: not known, for Open MPI has none of that number with ranks. */
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

/* In TMPDIR/ompi.HOST.UID. */
static uint32_t remove_session(int top, uint64_t pid)
{
    char name[32];
    uint32_t family;
    int session;

    (void)snprintf(name, sizeof(name), "pid.%" PRIu64, pid);
    session = own(top, name, S_IFDIR) ? open_folder(top, name) : -1;
    if (session < 0) return 0;
    family = family_in(session, pid);
    (void)close(session);
    remove_tree(top, name, DEPTH);
    return family;
}

static uint32_t remove_sessions(uint64_t pid)
{
    DIR *base = opendir(temporary_folder());
    struct dirent *entry;
    uint32_t family = 0;

    while (base != NULL && (entry = readdir(base)) != NULL) {
        const char *tail;
        uint32_t found;
        int top;

        if (!is_ours(entry->d_name, "ompi", &tail) || *tail != '\0' || !own(dirfd(base), entry->d_name, S_IFDIR))
            continue;
        top = open_folder(dirfd(base), entry->d_name);
        if (top < 0) continue;
        found = remove_session(top, pid);
        if (found != 0) family = found;
        (void)close(top);
        (void)unlinkat(dirfd(base), entry->d_name, AT_REMOVEDIR); /* when it was the last: as mpirun does */
    }
    if (base != NULL) (void)closedir(base);
    return family;
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */
static void remove_segments(uint32_t family)
{
    const char *folder = variable("OMPI_MCA_btl_vader_backing_directory");
    DIR *shm = opendir(folder != NULL ? folder : "/dev/shm");
    struct dirent *entry;

    while (shm != NULL && (entry = readdir(shm)) != NULL) {
        const char *tail;
        char *end;

        if (!is_ours(entry->d_name, "vader_segment", &tail) || *tail != '.') continue;
        if (strtoul(tail + 1, &end, 16) >> 16 == family && *end == '.' && own(dirfd(shm), entry->d_name, S_IFREG))
            (void)unlinkat(dirfd(shm), entry->d_name, 0);
    }
    if (shm != NULL) (void)closedir(shm);
}

void ddp_mpi_clean(uint64_t pid)
{
    uint32_t family = remove_sessions(pid);

    if (family != 0) remove_segments(family);
}
