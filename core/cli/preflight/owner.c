/* cli/preflight/owner.c -- which process listens at a port, from /proc. */
#include "base/sys.h"
#include "cli/preflight/checks.h"
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LISTENS = 0x0A }; /* TCP_LISTEN */

/* The number of the socket, 0: none listens. */
static uint64_t socket_at(const char *table, uint16_t port)
{
    FILE *f = fopen(table, "re");
    char line[512];
    uint64_t found = 0;

    while (f != NULL && found == 0 && fgets(line, sizeof(line), f) != NULL) {
        const char *local = strchr(line, ':'), *colon;
        unsigned at, state;
        unsigned long inode;

        if (local == NULL || (colon = strchr(local + 1, ':')) == NULL) continue;
        if (sscanf(colon + 1, "%x %*s %x %*s %*s %*s %*s %*s %lu", &at, &state, &inode) == 3 && at == port &&
            state == LISTENS)
            found = inode;
    }
    if (f != NULL) (void)fclose(f);
    return found;
}

static bool has_socket(const char *pid, uint64_t inode)
{
    char path[64], wanted[64], target[64];
    struct dirent *entry;
    bool found = false;
    DIR *fds;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
    (void)snprintf(wanted, sizeof(wanted), "socket:[%" PRIu64 "]", inode);
    fds = opendir(path);
    while (fds != NULL && !found && (entry = readdir(fds)) != NULL) {
        ssize_t n = readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1);

        if (n <= 0) continue;
        target[n] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    if (fds != NULL) (void)closedir(fds);
    return found;
}

static void describe(const char *pid, char *buf, size_t capacity)
{
    char path[64], *name = NULL;
    size_t length;
    ddp_err ignored;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
    if (ddp_file_read(path, 256, &name, &length, &ignored) == DDP_OK) name[strcspn(name, "\n")] = '\0';
    (void)snprintf(buf, capacity, "%.64s (pid %.20s)", name != NULL ? name : "a process", pid);
    free(name);
}

const char *preflight_port_owner(uint16_t port, char *buf, size_t capacity)
{
    uint64_t inode = socket_at("/proc/net/tcp", port);
    struct dirent *entry;
    DIR *proc;

    buf[0] = '\0';
    if (inode == 0) inode = socket_at("/proc/net/tcp6", port);
    proc = inode != 0 ? opendir("/proc") : NULL;
    while (proc != NULL && buf[0] == '\0' && (entry = readdir(proc)) != NULL)
        if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name) && has_socket(entry->d_name, inode))
            describe(entry->d_name, buf, capacity);
    if (proc != NULL) (void)closedir(proc);
    return buf;
}
