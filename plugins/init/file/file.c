/* plugins/init/file/file.c -- see file.h. */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SCHEME "file://"

struct file_config {
    const char *listen;
    int64_t heartbeat_ms;
};

struct ddp_init {
    claim claim;
    watch watch;
    char listen[DDP_ENDPOINT_MAX];
    char path[PATH_LIMIT];
    char secret[HEX_MAX]; /* as it was found */
};

void file_log(const ddp_host *host, int level, int line, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    if (host == NULL) return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    host->log(host->ctx, level, __FILE__, line, "%s", text);
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static const char *check_url(const char *url)
{
    const char *path = url + strlen(SCHEME);

    if (strncmp(url, SCHEME, strlen(SCHEME)) != 0) return "it does not begin with file://";
    if (path[0] == '\0') return "the path is missing";
    if (path[0] != '/') return "the path must be absolute, for ranks may start in different folders";
    if (path[strlen(path) - 1] == '/') return "it names a folder, not a file in it";
    if (strlen(path) >= PATH_LIMIT) return "the path is too long";
    return NULL;
}

static ddp_status file_open(const ddp_host *host, const void *config, const char *url, ddp_init **out, ddp_err *err)
{
    const struct file_config *c = config;
    const char *wrong = check_url(url);
    ddp_init *i;

    if (wrong != NULL)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "init_method \"%.200s\": %s. Write it as file:///PATH, for example file:///mnt/nfs/run1", url,
                        wrong);
    i = calloc(1, sizeof(*i));
    if (i == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "init file: no memory");
    memcpy(i->path, url + strlen(SCHEME), strlen(url) - strlen(SCHEME));
    (void)snprintf(i->listen, sizeof(i->listen), "%s", c->listen);
    i->claim.host = host;
    i->claim.path = i->path;
    i->claim.fd = -1;
    if (record_of_this_run(&i->claim.self, c->heartbeat_ms, err) != DDP_OK) {
        free(i);
        return err->status;
    }
    *out = i;
    return DDP_OK;
}

static void file_close(ddp_init *i)
{
    claim_drop(&i->claim);
    free(i);
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */
static bool is_own_interface(const char *name, char *address, size_t capacity, char *all, size_t all_capacity)
{
    struct ifaddrs *list;
    bool found = false;
    size_t used = 0;

    if (getifaddrs(&list) != 0) return false;
    for (const struct ifaddrs *a = list; a != NULL; a = a->ifa_next) {
        int family = a->ifa_addr == NULL ? AF_UNSPEC : a->ifa_addr->sa_family;
        socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

        if ((family != AF_INET && family != AF_INET6) || (a->ifa_flags & IFF_UP) == 0) continue;
        if (family == AF_INET && used < all_capacity) /* once each, mostly */
            used += (size_t)snprintf(all + used, all_capacity - used, "%s%s", used == 0 ? "" : ", ", a->ifa_name);
        /* the list has IPv4 addresses first */
        if (found || strcmp(a->ifa_name, name) != 0) continue;
        found = getnameinfo(a->ifa_addr, length, address, (socklen_t)capacity, NULL, 0, NI_NUMERICHOST) == 0;
    }
    freeifaddrs(list);
    return found;
}

static ddp_status file_listen_at(ddp_init *i, char *endpoint, ddp_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    char address[DDP_ENDPOINT_MAX - 8], names[160] = "";
    struct addrinfo *found;

    if (strcmp(i->listen, "auto") == 0) {
        (void)snprintf(endpoint, DDP_ENDPOINT_MAX, ":0");
        return DDP_OK;
    }
    if (!is_own_interface(i->listen, address, sizeof(address), names, sizeof(names))) {
        if (getaddrinfo(i->listen, NULL, &hints, &found) != 0)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "[init.file] listen = %.100s is neither an address nor an interface of this host (%s)",
                            i->listen, names);
        freeaddrinfo(found);
        (void)snprintf(address, sizeof(address), "%.240s", i->listen);
    }
    (void)snprintf(endpoint, DDP_ENDPOINT_MAX, strchr(address, ':') != NULL ? "[%s]:0" : "%s:0", address);
    return DDP_OK;
}

static ddp_status file_put_secret(ddp_init *i, const void *secret, size_t length, ddp_err *err)
{
    if (length > DDP_SECRET_MAX) return ddp_fail(err, DDP_ERR_INVALID, "init file: a secret of %zu bytes", length);
    hex_write(secret, length, i->claim.self.secret);
    return DDP_OK;
}

static ddp_status file_publish(ddp_init *i, const char *endpoint, ddp_err *err)
{
    if (i->claim.owned)
        return ddp_fail(err, DDP_ERR_INVALID, "init file: this handle has published %s; open another one",
                        i->claim.self.endpoint);
    (void)snprintf(i->claim.self.endpoint, sizeof(i->claim.self.endpoint), "%s", endpoint);
    return claim_take(&i->claim, err);
}

/* ---- the other ranks --------------------------------------------------------------------------------------------- */
static ddp_status check_folder(const ddp_init *i, ddp_err *err)
{
    char folder[PATH_LIMIT];
    struct stat st;

    memcpy(folder, i->path, sizeof(folder));
    *(strrchr(folder, '/') + 1) = '\0';
    if (stat(folder, &st) == 0 || errno == ESTALE) return DDP_OK;
    return ddp_fail(err, DDP_ERR_SYSTEM,
                    "init_method: the folder of %.300s cannot be reached on this host: %s; create or mount it", i->path,
                    strerror(errno));
}

/* What others may have written, or can read, is no secret. */
static ddp_status unguarded(const ddp_init *i, ddp_err *err)
{
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "init_method: the secret in %.300s is not one, since that file belongs to another user or others may read it; remove it, or give all ranks the same secret_file",
        i->path);
}

static ddp_status file_find(ddp_init *i, char *endpoint, ddp_err *err)
{
    char who[224];
    record r;
    ddp_status status = record_read(i->path, &r, err);

    if (status == DDP_IN_PROGRESS) {
        i->watch = (watch){.absent = true};
        status = check_folder(i, err);
        if (status != DDP_OK) return status;
        (void)ddp_fail(err, DDP_ERR_PEER, "the file is not there yet");
        return DDP_IN_PROGRESS;
    }
    if (status != DDP_OK) return status;
    switch (record_check(&i->claim.self, &r, &i->watch)) {
    case LIVE:
        if (r.secret[0] != '\0' && !r.guarded) return unguarded(i, err);
        memcpy(endpoint, r.endpoint, sizeof(r.endpoint));
        memcpy(i->secret, r.secret, sizeof(i->secret));
        return DDP_OK;
    case DEAD:
        (void)ddp_fail(err, DDP_ERR_PEER, "the file there is of a run that has died (%s)",
                       record_who(&r, who, sizeof(who)));
        return DDP_IN_PROGRESS;
    default:
        (void)ddp_fail(err, DDP_ERR_PEER, "the run that has left the file (%s) has shown no sign of life yet",
                       record_who(&r, who, sizeof(who)));
        return DDP_IN_PROGRESS;
    }
}

static ddp_status file_get_secret(ddp_init *i, void *secret, size_t *length, ddp_err *err)
{
    if (hex_read(i->secret, secret, length)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "init_method: the secret in %.300s is damaged", i->path);
}

/* ---- --check ----------------------------------------------------------------------------------------------------- */
/* A file that an earlier run has left is no problem: rank 0 takes it over, after as long as it takes to see that it is
 * of no living one. */
static void look_at_file(ddp_init *i, const ddp_preflight *p)
{
    char who[224];
    ddp_err err = {0};
    watch w = {0};
    record r;
    ddp_status status = record_read(i->path, &r, &err);

    if (status == DDP_IN_PROGRESS) {
        p->report(p->ctx, DDP_FINDING_OK, "init_method", "%.300s is not there yet, rank 0 will write it", i->path);
        return;
    }
    if (status != DDP_OK) {
        p->report(p->ctx, DDP_FINDING_PROBLEM, "init_method", "%s", err.msg);
        return;
    }
    switch (record_check(&i->claim.self, &r, &w)) {
    case LIVE:
        p->report(p->ctx, p->rank == 0 ? DDP_FINDING_PROBLEM : DDP_FINDING_OK, "init_method",
                  p->rank == 0 ? "%.300s is in use by a run (%s): end that one, or give this one another file"
                               : "%.300s: rank 0 is there (%s)",
                  i->path, record_who(&r, who, sizeof(who)));
        break;
    case DEAD:
        p->report(p->ctx, DDP_FINDING_WARNING, "init_method",
                  "%.300s was left by a run that has died (%s); rank 0 takes it over: rm it to save the wait", i->path,
                  record_who(&r, who, sizeof(who)));
        break;
    default:
        p->report(p->ctx, DDP_FINDING_WARNING, "init_method",
                  "%.300s was left by a run of another host (%s): if that one has ended, rm it to save the wait",
                  i->path, record_who(&r, who, sizeof(who)));
    }
}

/* The file system types of linux/magic.h that no other host sees. */
static bool is_of_this_host(const char *folder)
{
    static const unsigned long local[] = {0x01021994 /* tmpfs */, 0x858458f6 /* ramfs */, 0x794c7630 /* overlayfs */};
    struct statfs fs;

    if (statfs(folder, &fs) != 0) return false;
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        if ((unsigned long)fs.f_type == local[i]) return true;
    return false;
}

static void file_preflight(ddp_init *i, const ddp_preflight *p)
{
    char folder[PATH_LIMIT], own[PATH_LIMIT + 32];
    int fd;

    memcpy(folder, i->path, sizeof(folder));
    *(strrchr(folder, '/') + 1) = '\0';
    (void)snprintf(own, sizeof(own), "%s.ddpengine-check-%d", folder, (int)getpid());
    fd = p->rank == 0 ? open(own, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : open(folder, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        p->report(p->ctx, DDP_FINDING_PROBLEM, "init_method",
                  "cannot %s %.300s: %s; name a folder that all hosts share and this user may write",
                  p->rank == 0 ? "write into" : "read", folder, strerror(errno));
        return;
    }
    (void)close(fd);
    if (p->rank == 0) (void)unlink(own);
    if (p->local_size < p->world_size && is_of_this_host(folder))
        p->report(
            p->ctx, DDP_FINDING_WARNING, "init_method",
            "%.300s is in a file system of this host alone: ranks of other hosts will not see it; name a folder that all mount, or use tcp://",
            folder);
    look_at_file(i, p);
}

static const ddp_option options[] = {
    {"listen", "auto", NULL,
     "Where rank 0 listens: an address or a network interface of its host. "
     "auto: the address of [group] interface, or of the default route. Set 127.0.0.1 where all ranks are on one host.",
     DDP_OPT_STRING, DDP_OPT_F_PER_RANK, offsetof(struct file_config, listen)},
    {"heartbeat", "1s", "50ms..60s",
     "Time between two heartbeats that rank 0 writes into the file; "
     "a run on another host that misses five counts as dead.",
     DDP_OPT_DURATION, 0, offsetof(struct file_config, heartbeat_ms)},
};

static const ddp_init_ops ops = {
    .struct_size = sizeof(ops),
    .open = file_open,
    .close = file_close,
    .listen_at = file_listen_at,
    .publish = file_publish,
    .find = file_find,
    .put_secret = file_put_secret,
    .get_secret = file_get_secret,
    .preflight = file_preflight,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(INIT, 0),
    DDP_PLUGIN_TAIL("file", "0.1.0",
                    "rank 0 writes its address into a file that all hosts see: file:///mnt/nfs/sharedfile",
                    DDP_OPTIONS(options, struct file_config), ops),
};
