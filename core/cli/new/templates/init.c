/* init_@FILE@.c -- init method "@NAME@": ranks find rank 0 by a file that all of them see, @NAME@:///shared/FILE.
 *
 * It only discovers: the engine opens the port that listen_at names, and connects to what find says. Another method,
 * such as a service of your cluster, replaces publish and find. */
#include <ddpengine/init.h>

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- options: the section [init.@NAME@] of the INI file, which the engine parses --------------------------------- */
struct config {
    const char *listen;
};

static const ddp_option options[] = {
    {"listen", "127.0.0.1", NULL, "Address of this host that rank 0 listens at; other hosts must reach it.",
     DDP_OPT_STRING, DDP_OPT_F_PER_RANK, offsetof(struct config, listen)},
};

/* ---- a handle ---------------------------------------------------------------------------------------------------- */
struct ddp_init {
    const struct config *config;
    int published;
    char path[1024], part[1032];
};

static ddp_status init_open(const ddp_host *host, const void *config, const char *url, ddp_init **out, ddp_err *err)
{
    static const char scheme[] = "@NAME@:///";
    ddp_init *i = calloc(1, sizeof(*i));

    (void)host;
    if (i == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "@NAME@: out of memory");
    if (strncmp(url, scheme, sizeof(scheme) - 1) != 0 || strlen(url) - sizeof(scheme) >= sizeof(i->path)) {
        free(i);
        return ddp_fail(err, DDP_ERR_CONFIG, "init_method \"%.100s\": write it as @NAME@:///FOLDER/FILE", url);
    }
    i->config = config;
    (void)snprintf(i->path, sizeof(i->path), "%s", url + sizeof(scheme) - 2); /* with its first slash */
    (void)snprintf(i->part, sizeof(i->part), "%s.part", i->path);
    *out = i; /* outputs are written last, and only on success */
    return DDP_OK;
}

static void init_close(ddp_init *i)
{
    if (i->published) (void)unlink(i->path);
    free(i);
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */
static ddp_status listen_at(ddp_init *i, char *endpoint, ddp_err *err)
{
    (void)err;
    (void)snprintf(endpoint, DDP_ENDPOINT_MAX, "%s:0", i->config->listen); /* port 0: any that is free */
    return DDP_OK;
}

/* Renamed into place, so that nobody reads half of it. */
static ddp_status publish(ddp_init *i, const char *endpoint, ddp_err *err)
{
    FILE *f = fopen(i->part, "w");
    int good = f != NULL && fprintf(f, "%s\n", endpoint) > 0;

    good = f != NULL && fclose(f) == 0 && good;
    if (!good || rename(i->part, i->path) != 0)
        return ddp_fail(err, DDP_ERR_SYSTEM, "@NAME@: cannot write %s: %s", i->path, strerror(errno));
    i->published = 1;
    return DDP_OK;
}

/* ---- the other ranks --------------------------------------------------------------------------------------------- */
/* What a run that was killed has left is tried as well; the engine asks again until somebody answers there. */
static ddp_status find(ddp_init *i, char *endpoint, ddp_err *err)
{
    FILE *f = fopen(i->path, "r");
    const char *line = f != NULL ? fgets(endpoint, DDP_ENDPOINT_MAX, f) : NULL;

    if (f != NULL) (void)fclose(f);
    if (line == NULL) return ddp_fail(err, DDP_IN_PROGRESS, "@NAME@: %s is not there yet", i->path);
    endpoint[strcspn(endpoint, "\n")] = '\0';
    return DDP_OK;
}

static const ddp_init_ops ops = {.struct_size = sizeof(ops),
                                 .open = init_open,
                                 .close = init_close,
                                 .listen_at = listen_at,
                                 .publish = publish,
                                 .find = find};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(INIT, 0),
    DDP_PLUGIN_TAIL("@NAME@", "1.0", "rank 0 is found by a file", DDP_OPTIONS(options, struct config), ops),
};
