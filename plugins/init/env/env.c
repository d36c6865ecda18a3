/* plugins/init/env/env.c -- see env.h.
 *
 * MASTER_ADDR and MASTER_PORT say where rank 0 is, as torchrun sets them. Without them: the ranks that Open MPI has
 * started on one host find each other through a file in the job's own session folder, which mpirun removes and no
 * other user can read, so that the secret of the run is there too; a step
 * of Slurm has a first node and a number to derive a port from. What cannot be known is asked for. */
#include "env.h"
#include "base/launcher.h"
#include "common/hex.h"
#include "common/write.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_LIMIT = 3800 };

struct ddp_init {
    ddp_launcher launcher;
    char listen[DDP_ENDPOINT_MAX], endpoint[DDP_ENDPOINT_MAX]; /* endpoint: empty where rank 0 publishes it in `file` */
    char file[FILE_LIMIT];
    char secret[HEX_MAX]; /* to be published, or as it was found; "": none */
    bool published;
};

/* ---- MASTER_ADDR and MASTER_PORT --------------------------------------------------------------------------------- */
static void endpoint_text(char out[DDP_ENDPOINT_MAX], const char *host, int64_t port)
{
    (void)snprintf(out, DDP_ENDPOINT_MAX, strchr(host, ':') != NULL ? "[%.240s]:%d" : "%.240s:%d", host, (int)port);
}

static ddp_status check_address(const char *address, ddp_err *err)
{
    size_t length = strlen(address);

    if (length <= 240 && strcspn(address, " \t/@[]") == length) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "the environment has MASTER_ADDR=%.100s, which is no host name and no address (an IPv6 address stands there without brackets)",
        address);
}

/* torchrun keeps MASTER_PORT to itself when its agent serves a store there, and the workers take the next one. */
static int64_t free_port(int64_t port)
{
    const char *agent = ddp_env_text("TORCHELASTIC_USE_AGENT_STORE");

    return agent != NULL && strcmp(agent, "True") == 0 && port < 65535 ? port + 1 : port;
}

static bool is_loopback_name(const char *host)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    bool all = true;

    if (getaddrinfo(host, NULL, &hints, &list) != 0) return false;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        if (a->ai_family == AF_INET)
            all = all && ntohl(((const struct sockaddr_in *)(const void *)a->ai_addr)->sin_addr.s_addr) >> 24 == 127;
        else
            all = all && a->ai_family == AF_INET6 &&
                  IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a->ai_addr)->sin6_addr);
    }
    freeaddrinfo(list);
    return all;
}

/* ---- the launchers without them ---------------------------------------------------------------------------------- */
static ddp_status within_slurm(ddp_init *i, int64_t port, ddp_err *err)
{
    char host[DDP_ENDPOINT_MAX] = "";
    int64_t at;

    if (slurm_endpoint(port, host, &at, err) != DDP_OK) return err->status;
    endpoint_text(i->endpoint, host, at);
    memcpy(i->listen, i->endpoint, sizeof(i->listen));
    /* many hosts give their own name a loopback address, which the other nodes cannot reach: the core knows better */
    if (strcmp(host, "127.0.0.1") != 0 && is_loopback_name(host))
        (void)snprintf(i->listen, sizeof(i->listen), ":%d", (int)at);
    return DDP_OK;
}

/* The folder that mpirun makes for the job, on each host, and removes. */
static const char *session_folder(void)
{
    const char *folder = ddp_env_text("PMIX_SERVER_TMPDIR");
    struct stat st;

    if (folder == NULL) folder = ddp_env_text("OMPI_MCA_orte_jobfam_session_dir");
    if (folder == NULL || stat(folder, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()) return NULL;
    return folder;
}

static ddp_status within_open_mpi(ddp_init *i, int64_t port, ddp_err *err)
{
    const char *folder = session_folder(), *job = ddp_env_text("PMIX_NAMESPACE");
    int64_t local = -1, world = -1;

    if (ddp_env_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, 65536, &local, err) != DDP_OK ||
        ddp_env_number("OMPI_COMM_WORLD_SIZE", 1, 65536, &world, err) != DDP_OK)
        return err->status;
    if (local != world)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "init_method = env://: Open MPI has started ranks on several hosts and does not say where rank 0 is; "
            "add -x MASTER_ADDR=HOST -x MASTER_PORT=29500 to mpirun, HOST being that of rank 0");
    if (port != 0) {
        endpoint_text(i->endpoint, "127.0.0.1", port);
        memcpy(i->listen, i->endpoint, sizeof(i->listen));
        return DDP_OK;
    }
    if (job == NULL) job = ddp_env_text("OMPI_MCA_ess_base_jobid");
    if (folder == NULL || job == NULL || strchr(job, '/') != NULL ||
        snprintf(i->file, sizeof(i->file), "%s/ddpengine-%s", folder, job) >= (int)sizeof(i->file))
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "init_method = env://: Open MPI does not give its session folder (PMIX_SERVER_TMPDIR) and job (PMIX_NAMESPACE); add -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 to mpirun");
    (void)snprintf(i->listen, sizeof(i->listen), "127.0.0.1:0");
    return DDP_OK;
}

static ddp_status without_address(ddp_init *i, int64_t port, ddp_err *err)
{
    if (i->launcher.kind == DDP_LAUNCHER_OPEN_MPI) return within_open_mpi(i, port, err);
    if (ddp_env_text("SLURM_STEP_NODELIST") != NULL || i->launcher.kind == DDP_LAUNCHER_SLURM)
        return within_slurm(i, port, err); /* PMI within srun is here too */
    if (i->launcher.kind == DDP_LAUNCHER_PMI)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "init_method = env://: PMI_RANK is set, but not where rank 0 is; "
                        "add -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 to mpiexec, HOST being that of rank 0");
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "init_method = env://: MASTER_ADDR is not set, so rank 0's host is not known; "
                    "export MASTER_ADDR and MASTER_PORT on all ranks, the address and a free port of rank 0's host");
}

/* ---- the slots --------------------------------------------------------------------------------------------------- */
static ddp_status settle(ddp_init *i, ddp_err *err)
{
    const char *address = ddp_env_text("MASTER_ADDR");
    int64_t port = 0;
    char host[DDP_ENDPOINT_MAX];

    if (ddp_launcher_find(true, &i->launcher, err) != DDP_OK ||
        ddp_env_number("MASTER_PORT", 1, 65535, &port, err) != DDP_OK)
        return err->status;
    if (address == NULL) return without_address(i, port, err);
    if (check_address(address, err) != DDP_OK) return err->status;
    if (port == 0 && ddp_env_text("SLURM_STEP_NODELIST") != NULL && slurm_endpoint(0, host, &port, err) != DDP_OK)
        return err->status;
    if (port == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "init_method = env://: MASTER_ADDR=%.100s is set, but MASTER_PORT is not; "
                        "export a port that is free on that host",
                        address);
    endpoint_text(i->endpoint, address, free_port(port));
    memcpy(i->listen, i->endpoint, sizeof(i->listen));
    return DDP_OK;
}

static ddp_status env_open(const ddp_host *host, const void *config, const char *url, ddp_init **out, ddp_err *err)
{
    ddp_init *i;

    (void)host;
    (void)config;
    if (strcmp(url, "env://") != 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "init_method \"%.200s\": nothing follows env://; rank, world and address come from the environment", url);
    i = calloc(1, sizeof(*i));
    if (i == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "init env: no memory");
    if (settle(i, err) != DDP_OK) {
        free(i);
        return err->status;
    }
    *out = i;
    return DDP_OK;
}

static void env_close(ddp_init *i)
{
    if (i->published) (void)unlink(i->file);
    free(i);
}

static ddp_status env_identity(ddp_init *i, int32_t *rank, int32_t *world, ddp_err *err)
{
    (void)err;
    *rank = i->launcher.kind == DDP_LAUNCHER_NONE ? -1 : i->launcher.rank;
    *world = i->launcher.kind == DDP_LAUNCHER_NONE ? -1 : i->launcher.world;
    return DDP_OK;
}

static ddp_status env_listen_at(ddp_init *i, char *endpoint, ddp_err *err)
{
    (void)err;
    memcpy(endpoint, i->listen, sizeof(i->listen));
    return DDP_OK;
}

/* Written under another name first, so that who sees the file sees all of it. */
static bool write_file(const char *own, const char *name, const char *text)
{
    int fd = open(own, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool written;

    if (fd < 0) return false;
    written = write_all(fd, text, strlen(text), 0);
    if (close(fd) != 0 || !written || rename(own, name) != 0) {
        int error = errno;

        (void)unlink(own);
        errno = error;
        return false;
    }
    return true;
}

static ddp_status env_publish(ddp_init *i, const char *endpoint, ddp_err *err)
{
    char own[FILE_LIMIT + 8], text[DDP_ENDPOINT_MAX + HEX_MAX + 2];

    if (i->file[0] == '\0') return DDP_OK;
    (void)snprintf(own, sizeof(own), "%s.new", i->file);
    (void)snprintf(text, sizeof(text), "%s\n%s\n", endpoint, i->secret);
    i->published = write_file(own, i->file, text);
    if (i->published) return DDP_OK;
    return ddp_fail(err, DDP_ERR_SYSTEM,
                    "init_method = env://: cannot write %.250s in mpirun's session folder: %s; "
                    "add -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 to mpirun",
                    own, strerror(errno));
}

static ddp_status env_find(ddp_init *i, char *endpoint, ddp_err *err)
{
    char text[DDP_ENDPOINT_MAX + HEX_MAX + 2] = "", *secret;
    ssize_t n;
    int fd;

    if (i->file[0] == '\0') {
        memcpy(endpoint, i->endpoint, sizeof(i->endpoint));
        return DDP_OK;
    }
    fd = open(i->file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) return DDP_IN_PROGRESS;
    n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0) (void)close(fd);
    if (n <= 0)
        return ddp_fail(err, DDP_ERR_SYSTEM, "init_method = env://: cannot read %.300s: %s", i->file,
                        n == 0 ? "it is empty" : strerror(errno));
    secret = strchr(text, '\n');
    if (secret == NULL || secret - text >= DDP_ENDPOINT_MAX)
        return ddp_fail(err, DDP_ERR_DATA, "init_method = env://: %.300s holds something else", i->file);
    *secret++ = '\0';
    secret[strcspn(secret, "\n")] = '\0';
    memcpy(endpoint, text, strlen(text) + 1);
    (void)snprintf(i->secret, sizeof(i->secret), "%s", secret);
    return DDP_OK;
}

static ddp_status env_put_secret(ddp_init *i, const void *secret, size_t length, ddp_err *err)
{
    if (i->file[0] == '\0' || length > DDP_SECRET_MAX)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "init env: nothing is published");
    hex_write(secret, length, i->secret);
    return DDP_OK;
}

static ddp_status env_get_secret(ddp_init *i, void *secret, size_t *length, ddp_err *err)
{
    if (hex_read(i->secret, secret, length)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "init_method = env://: the secret in %.300s is damaged", i->file);
}

static const ddp_init_ops ops = {
    .struct_size = sizeof(ops),
    .open = env_open,
    .close = env_close,
    .identity = env_identity,
    .listen_at = env_listen_at,
    .publish = env_publish,
    .find = env_find,
    .put_secret = env_put_secret,
    .get_secret = env_get_secret,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(INIT, 0),
    DDP_PLUGIN_TAIL("env", "0.1.0", "the environment variables that torchrun, mpirun or srun set: env://",
                    DDP_NO_OPTIONS, ops),
};
