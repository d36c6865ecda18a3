/* cli/aggregate/setup.c -- see setup.h. */
#include "cli/aggregate/setup.h"
#include "config/defaults.h"
#include "launch/secret.h"
#include "net/endpoint.h"
#include "net/interface.h"
#include "net/nodes.h"
#include <openssl/crypto.h>
#include <string.h>

static const char *where_of(const ddp_config *c, const char *key)
{
    const ddp_setting *s = ddp_settings_find(&c->settings, "group", key);

    return s != NULL ? s->where : "default";
}

/* ---- where the ranks are ----------------------------------------------------------------------------------------- */
static ddp_status from_nodes(const ddp_config *c, ddp_launch *l, ddp_err *err)
{
    char host[256];
    int32_t first;

    if (ddp_nodes_world(&c->group->nodes, &l->world, err) != DDP_OK ||
        ddp_nodes_at(&c->group->nodes, 0, host, sizeof(host), &first, err) != DDP_OK)
        return ddp_fail_context(err, "%s", where_of(c, "nodes"));
    l->world_where = where_of(c, "nodes");
    if (l->url[0] == '\0') (void)snprintf(l->url, sizeof(l->url), DDP_NODES_URL, host, DDP_NODES_PORT);
    return DDP_OK;
}

static ddp_status find_ranks(const ddp_config *c, ddp_launch *l, ddp_err *err)
{
    *l = (ddp_launch){.world = (int32_t)c->group->world_size, .world_where = where_of(c, "world_size")};
    ddp_copy_text(l->url, sizeof(l->url), c->group->init_method);
    if (c->group->nodes.count > 0) DDP_TRY(from_nodes(c, l, err));
    if (l->url[0] == '\0' || strncmp(l->url, DDP_LAUNCHER_URL, strlen(DDP_LAUNCHER_URL)) == 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: an aggregator must know where rank 0 is: write [group] init_method = tcp://HOST:PORT as on the ranks, or nodes",
            where_of(c, "init_method"));
    if (l->world == 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: an aggregator must know how many ranks there are: write [group] world_size, which does not count aggregators",
            where_of(c, "world_size"));
    if (l->world == 1)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: [group] world_size = 1: a single rank exchanges nothing",
                        where_of(c, "world_size"));
    return ddp_secret_load(c, NULL, l, err);
}

/* ---- plugins ----------------------------------------------------------------------------------------------------- */
static ddp_status load(aggregate_setup *s, uint32_t kind, const char *name, ddp_loaded **out, const void **config,
                       ddp_err *err)
{
    char section[128];

    if (ddp_registry_load(s->registry, kind, name, out, err) != DDP_OK) return ddp_fail_as(err, DDP_EXIT_PLUGIN);
    (void)snprintf(section, sizeof(section), "%s.%s", ddp_kind_name(kind), (*out)->desc.name);
    return ddp_config_plugin(&s->config, section, &(*out)->desc, config, err);
}

/* Of two, the one between hosts. */
static ddp_status load_backend(aggregate_setup *s, ddp_err *err)
{
    char local[DDP_HALF_MAX], remote[DDP_HALF_MAX];
    const char *name = s->config.group->backend;

    s->halves = ddp_config_halves(name, local, remote);
    if (s->halves) name = remote;
    if (strcmp(name, "auto") != 0) DDP_TRY(load(s, DDP_KIND_BACKEND, name, &s->backend, &s->backend_config, err));
    if (s->backend != NULL) s->helper = ((const ddp_backend_ops *)s->backend->ops)->helper;
    if (s->backend == NULL || s->helper == NULL)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] backend = %s takes no help from other hosts; write backend = %s, on the ranks too",
                        where_of(&s->config, "backend"), s->config.group->backend, DDP_HELPED_BACKEND);
    if (s->helper->struct_size < sizeof(*s->helper) || s->helper->count == NULL || s->helper->gain == NULL ||
        s->helper->serve == NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "the plugin %s is not built for this ddpengine: its helper is incomplete",
                        s->backend->path);
    if (s->helper->count(s->backend_config) == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "[backend.%s] wants no aggregators, so the ranks wait for none; raise aggregators there",
                        s->backend->desc.name);
    return DDP_OK;
}

static ddp_status load_init(aggregate_setup *s, ddp_err *err)
{
    const char *url = s->launch.url;
    size_t length = strcspn(url, ":");
    ddp_loaded *plugin = NULL;
    const void *config = NULL;
    char scheme[32];

    if (length == 0 || length >= sizeof(scheme) || strncmp(url + length, "://", 3) != 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] init_method = %s is not a URL; write for example tcp://host:port",
                        where_of(&s->config, "init_method"), url);
    memcpy(scheme, url, length);
    scheme[length] = '\0';
    DDP_TRY(load(s, DDP_KIND_INIT, scheme, &plugin, &config, err));
    s->init_ops = plugin->ops;
    return s->init_ops->open(&s->host, config, url, &s->init, err);
}

/* What joining the run would refuse, as far as it is known without the ranks. */
static ddp_status check_auth(const aggregate_setup *s, ddp_err *err)
{
    unsigned char secret[DDP_SECRET_MAX];
    char endpoint[DDP_ENDPOINT_MAX];
    size_t length = 0;
    ddp_err unknown;
    ddp_status st;

    if (s->launch.secret_length > 0 || s->config.group->auth == 1 ||
        s->init_ops->find(s->init, endpoint, &unknown) != DDP_OK || ddp_endpoint_is_loopback(endpoint))
        return DDP_OK;
    st = s->init_ops->get_secret == NULL ? DDP_ERR_UNSUPPORTED
                                         : s->init_ops->get_secret(s->init, secret, &length, &unknown);
    OPENSSL_cleanse(secret, sizeof(secret));
    if (st != DDP_ERR_UNSUPPORTED && (st != DDP_OK || length > 0)) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "%s: rank 0 at %s is not at a loopback address, and anyone who reaches it could join the run; give all hosts the secret_file that ddpengine --gen-secret FILE writes, or on a private network write auth = none in [group]",
        where_of(&s->config, "init_method"), endpoint);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */
/* Of [group] and of the backend. */
static void collect_agreement(aggregate_setup *s)
{
    const ddp_settings *all = &s->config.settings;
    char section[128];

    (void)snprintf(section, sizeof(section), "backend.%s", s->backend->desc.name);
    for (size_t i = 0; i < all->count; i++) {
        const ddp_setting *t = &all->items[i];

        if (ddp_option_is_compared(t->option) && (strcmp(t->section, "group") == 0 || strcmp(t->section, section) == 0))
            ddp_text_printf(&s->agreement, "%s.%s = %s\t%s\n", t->section, t->key, t->value, t->where);
    }
}

static ddp_status open_all(aggregate_setup *s, const char *path, const char *const *overrides, size_t count,
                           ddp_log *log, ddp_err *err)
{
    char address[64];

    DDP_TRY(ddp_config_load(path, overrides, count, &s->config, err));
    log->level = s->config.output->log_level;
    DDP_TRY(find_ranks(&s->config, &s->launch, err));
    if (s->config.group->interface[0] != '\0')
        DDP_TRY(ddp_interface_check(s->config.group->interface, address, sizeof(address), err));
    DDP_TRY(ddp_registry_open(log, &s->config.plugin_path, &s->registry, err));
    DDP_TRY(load_backend(s, err));
    DDP_TRY(load_init(s, err));
    DDP_TRY(check_auth(s, err));
    collect_agreement(s);
    return s->agreement.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the settings that are compared")
                               : DDP_OK;
}

ddp_status aggregate_setup_open(aggregate_setup *s, const char *path, const char *const *overrides, size_t count,
                                ddp_log *log, ddp_err *err)
{
    *s = (aggregate_setup){.host = ddp_log_host(log)};
    if (open_all(s, path, overrides, count, log, err) == DDP_OK) return DDP_OK;
    return ddp_fail_as(err, DDP_EXIT_CONFIG);
}

void aggregate_setup_close(aggregate_setup *s)
{
    if (s->init != NULL) s->init_ops->close(s->init);
    ddp_text_free(&s->agreement);
    OPENSSL_cleanse(s->launch.secret, sizeof(s->launch.secret));
    if (s->registry != NULL) ddp_registry_close(s->registry);
    ddp_config_free(&s->config);
}
