/* session/plugins.c -- every plugin that the config names, with its options; of backends those that the run may use.
 * What fails is the configuration's fault unless the error says otherwise. */
#include "comm/communicator.h"
#include "comm/hierarchy/hierarchy.h"
#include "session/plugins.h"
#include "config/defaults.h"
#include "base/sys.h"
#include "net/interface.h"
#include "session/devices.h"
#include <stdlib.h>
#include <string.h>

/* ---- plugins and their options --------------------------------------------------------------------------------- */
/* The same for the key that names a plugin. */
static ddp_status at_choice(const ddp_session *s, uint32_t kind, const char *section_kind, ddp_err *err)
{
    switch (kind) {
    case DDP_KIND_BACKEND: return session_at_key(s, "group", "backend", err);
    case DDP_KIND_INIT: return session_at_key(s, "group", "init_method", err);
    case DDP_KIND_DEVICE: return session_at_key(s, "train", "device", err);
    default: return session_at_key(s, section_kind, "plugin", err);
    }
}

static ddp_status load_plugin(ddp_session *s, uint32_t kind, const char *name, const char *section_kind,
                              ddp_loaded **out, const void **config, ddp_err *err)
{
    char section[128];
    ddp_loaded *p;

    if (ddp_registry_load(s->registry, kind, name, &p, err) != DDP_OK) {
        (void)ddp_fail_as(err, DDP_EXIT_PLUGIN);
        return at_choice(s, kind, section_kind, err);
    }
    (void)snprintf(section, sizeof(section), "%s.%s", section_kind, p->desc.name);
    DDP_TRY(ddp_config_plugin(s->config, section, &p->desc, config, err));
    *out = p;
    return DDP_OK;
}

/* ---- the backend ----------------------------------------------------------------------------------------------- */
static ddp_status load_backend(ddp_session *s, const char *name, ddp_err *err)
{
    ddp_candidate *b = &s->backends[s->backend_count];

    DDP_TRY(load_plugin(s, DDP_KIND_BACKEND, name, "backend", &b->plugin, &b->config, err));
    b->name = b->plugin->desc.name;
    s->backend_count++;
    return DDP_OK;
}

/* Both halves are tried, so that one message names all that is wrong. */
static ddp_status load_halves(ddp_session *s, const char *const names[2], ddp_err *err)
{
    ddp_err second = {0};
    ddp_status st[2];

    for (size_t i = 0; i < DDP_COUNT(st); i++) {
        ddp_candidate *b = &s->backends[1 + i];
        ddp_err *e = i == 0 ? err : &second;

        st[i] = load_plugin(s, DDP_KIND_BACKEND, names[i], "backend", &b->plugin, &b->config, e);
        if (st[i] == DDP_OK) b->name = b->plugin->desc.name;
    }
    if (st[0] == DDP_OK && st[1] != DDP_OK) *err = second;
    if (st[0] != DDP_OK && st[1] != DDP_OK)
        (void)snprintf(err->msg + strlen(err->msg), sizeof(err->msg) - strlen(err->msg), "; %s", second.msg);
    return st[0] != DDP_OK ? st[0] : st[1];
}

static ddp_status load_hierarchy(ddp_session *s, const char *const names[2], ddp_err *err)
{
    ddp_candidate *b = &s->backends[0];
    ddp_half halves[2];

    DDP_TRY(load_halves(s, names, err));
    for (size_t i = 0; i < DDP_COUNT(halves); i++) halves[i] = (ddp_half){b[1 + i].plugin, b[1 + i].config};
    if (ddp_hierarchy_make(halves[0], halves[1], &b->plugin, &b->config, err) != DDP_OK) {
        if (err->status == DDP_ERR_UNSUPPORTED) (void)ddp_fail_as(err, DDP_EXIT_CONFIG);
        return at_choice(s, DDP_KIND_BACKEND, "backend", err);
    }
    b->name = b->plugin->desc.name;
    s->backend_count = 1;
    return DDP_OK;
}

static bool has_hierarchy(const ddp_session *s)
{
    return s->backend_count > 0 && s->backends[0].plugin->halves[0] != NULL;
}

void session_free_hierarchy(ddp_session *s)
{
    if (has_hierarchy(s)) ddp_hierarchy_free(s->backends[0].plugin);
}

bool session_takes_device(const ddp_session *s, const ddp_loaded *backend)
{
    const char *kind = s->devices.plugin->desc.memory;

    return strcmp(kind, DDP_MEMORY_HOST) != 0 && ddp_memory_has(backend->desc.memory, kind);
}

int32_t ddp_session_device_ordinal(const ddp_session *s, const ddp_loaded *backend)
{
    return session_takes_device(s, backend) ? (int32_t)s->devices.ordinals[0] : -1;
}

/* What `auto` takes for ranks that are this far from each other: of the backends that reduce the device's memory,
 * the one with the highest priority. One rank has nothing to send, and needs no more than the host's. */
static ddp_status load_offered(ddp_session *s, uint32_t reach, ddp_err *err)
{
    const char *kind = s->launch.world > 1 ? s->devices.plugin->desc.memory : DDP_MEMORY_HOST;
    ddp_offer offers[DDP_MAX_OFFERS];
    size_t count = ddp_registry_offers(s->registry, DDP_KIND_BACKEND, offers, DDP_MAX_OFFERS);
    ddp_text packages = {0};

    for (size_t i = 0; i < count; i++)
        if (offers[i].facts.reach >= reach && ddp_memory_has(offers[i].facts.memory, kind))
            return load_backend(s, offers[i].name, err);
    ddp_registry_packages(s->registry, DDP_KIND_BACKEND, &packages);
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[group] backend = auto: no plugin here reduces memory of kind \"%s\" between the ranks of %s; "
                   "`ddpengine plugins` lists those that there are, name one or install another%s%s%s",
                   kind, reach == DDP_REACH_NETWORK ? "several hosts" : "one host",
                   packages.length > 0 ? " (packages: " : "", packages.length > 0 ? packages.data : "",
                   packages.length > 0 ? ")" : "");
    ddp_text_free(&packages);
    return ddp_fail_as(err, DDP_EXIT_PLUGIN);
}

/* `auto`: where the ranks are known to share a host, the best for one; where that shows at the rendezvous, that or
 * the best that reaches others. */
static ddp_status load_backends(ddp_session *s, ddp_err *err)
{
    const char *name = s->config->group->backend;
    char local[DDP_HALF_MAX], remote[DDP_HALF_MAX];
    bool one_host = s->launch.introduced || s->launch.world == 1;

    if (ddp_config_halves(name, local, remote)) {
        DDP_TRY(load_hierarchy(s, (const char *const[2]){local, remote}, err));
    } else if (strcmp(name, "auto") != 0) {
        DDP_TRY(load_backend(s, name, err));
    } else {
        DDP_TRY(load_offered(s, DDP_REACH_HOST, err));
        if (!one_host && s->backends[0].plugin->desc.reach < DDP_REACH_NETWORK)
            DDP_TRY(load_offered(s, DDP_REACH_NETWORK, err));
    }
    if (s->backend_count == 1)
        s->backend = &s->backends[0];
    else
        (void)snprintf(s->backend_text, sizeof(s->backend_text), "%s or %s", s->backends[0].name, s->backends[1].name);
    return DDP_OK;
}

/* Whether this process could take part at all, before any rendezvous; then whether training can do with the backend. */
static ddp_status check_backend(ddp_session *s, const ddp_candidate *b, ddp_err *err)
{
    const ddp_backend_ops *ops = b->plugin->ops;
    const ddp_comm_params p = {.struct_size = sizeof(p),
                               .rank = (uint32_t)s->launch.rank,
                               .world_size = (uint32_t)s->launch.world,
                               .interface = s->config->group->interface,
                               .device_ordinal = ddp_session_device_ordinal(s, b->plugin)};

    if (!(s->launch.planning && ops->launcher != NULL) && /* it has not started what is only planned */
        ops->check(&s->host, b->config, &p, err) != DDP_OK) {
        (void)ddp_fail_as(err, err->status == DDP_ERR_CONFIG ? DDP_EXIT_CONFIG : DDP_EXIT_PLUGIN);
        (void)ddp_fail_context(err, "backend \"%s\"", b->name);
        return at_choice(s, DDP_KIND_BACKEND, "backend", err);
    }
    DDP_TRY_AS(DDP_EXIT_PLUGIN, err, ddp_backend_check(b->plugin, session_takes_device(s, b->plugin), err));
    return DDP_OK;
}

/* Where the best for one host cannot do what is asked, `auto` goes on without it. */
static ddp_status check_backends(ddp_session *s, ddp_err *err)
{
    bool automatic = strcmp(s->config->group->backend, "auto") == 0;
    ddp_status st = check_backend(s, &s->backends[0], err);

    if (st == DDP_ERR_UNSUPPORTED && automatic && s->backends[0].plugin->desc.reach < DDP_REACH_NETWORK) {
        if (s->backend_count == 1) DDP_TRY(load_offered(s, DDP_REACH_NETWORK, err));
        s->backends[0] = s->backends[1];
        s->backend_count = 1;
        s->backend = &s->backends[0];
        st = check_backend(s, s->backend, err);
    }
    if (st == DDP_OK && s->backend_count > 1) st = check_backend(s, &s->backends[1], err);
    return st;
}

void ddp_session_choose_backend(ddp_session *s, bool one_host)
{
    if (s->backend_count > 1) s->backend = &s->backends[one_host ? 0 : 1];
}

void ddp_session_simplify_backend(ddp_session *s, int32_t hosts, int32_t world)
{
    if (!has_hierarchy(s)) return;
    s->backend = &s->backends[hosts == 1 ? 1 : hosts == world ? 2 : 0];
    if (s->backend != &s->backends[0] && s->launch.rank == 0)
        ddp_log_line(s->log, DDP_LOG_INFO, "backend = %s: %s, so %s alone", s->backends[0].name,
                     hosts == 1 ? "all ranks are on one host" : "no two ranks share a host", s->backend->name);
}

const char *ddp_session_backend_name(const ddp_session *s)
{
    return s->backend != NULL ? s->backend->name : s->backend_text;
}

/* Where the init method knows who this process is, it must be who it was started as. */
static ddp_status check_identity(const ddp_session *s, ddp_err *err)
{
    const ddp_launch *l = &s->launch;
    int32_t rank = -1, world = -1;

    DDP_TRY(s->init.ops->identity(s->init.handle, &rank, &world, err));
    if (rank >= 0 && rank != l->rank)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "init_method = %s says that this is rank %d, but it was started as rank %d (%s)", l->url, rank,
                        l->rank, l->rank_where);
    if (world >= 0 && world != l->world)
        return ddp_fail(err, DDP_ERR_CONFIG, "init_method = %s says that there are %d ranks, but world_size is %d (%s)",
                        l->url, world, l->world, l->world_where);
    return DDP_OK;
}

static ddp_status open_init(ddp_session *s, ddp_err *err)
{
    if (s->init.ops->open(&s->host, s->init.config, s->init.url, &s->init.handle, err) != DDP_OK) {
        s->init.handle = NULL;
        return session_at_key(s, "group", "init_method", err);
    }
    s->init.plugin->live++;
    return DDP_OK;
}

static ddp_status load_init(ddp_session *s, ddp_err *err)
{
    const char *url = s->launch.url;
    char scheme[32];
    size_t length = strcspn(url, ":");

    ddp_copy_text(s->init.url, sizeof(s->init.url), url);
    if (s->launch.world == 1 || s->launch.introduced) return DDP_OK;
    if (url[0] == '\0')
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "[group] init_method is not set, so the ranks cannot find each other; write for example init_method = tcp://127.0.0.1:29500, or start all ranks of one host with --nproc %d",
            s->launch.world);
    if (length == 0 || length >= sizeof(scheme) || strncmp(url + length, "://", 3) != 0) {
        (void)ddp_fail(err, DDP_ERR_CONFIG, "[group] init_method = %s is not a URL; write for example tcp://host:port",
                       url);
        return session_at_key(s, "group", "init_method", err);
    }
    memcpy(scheme, url, length);
    scheme[length] = '\0';
    DDP_TRY(load_plugin(s, DDP_KIND_INIT, scheme, "init", &s->init.plugin, &s->init.config, err));
    s->init.ops = s->init.plugin->ops;
    DDP_TRY(open_init(s, err));
    return check_identity(s, err);
}

void ddp_session_close_init(ddp_session *s)
{
    if (s->init.handle == NULL) return;
    s->init.ops->close(s->init.handle);
    s->init.handle = NULL;
    s->init.plugin->live--;
}

ddp_status ddp_session_renew_init(ddp_session *s, ddp_err *err)
{
    if (s->init.handle == NULL) return DDP_OK;
    ddp_session_close_init(s);
    return open_init(s, err);
}

/* Of the datasets those that are read, or whose fields the model is built on. */
static ddp_status load_sources(ddp_session *s, ddp_plugin_configs *pc, ddp_err *err)
{
    const ddp_config *c = s->config;
    ddp_purpose purpose = s->launch.purpose;

    if (purpose == DDP_TO_INFER && s->launch.fields != NULL) return DDP_OK;
    if (purpose != DDP_TO_EVALUATE && (purpose != DDP_TO_PREDICT || c->eval[0] == '\0'))
        DDP_TRY(load_plugin(s, DDP_KIND_DATASET, c->data, "data", &s->train.plugin, &pc->data, err));
    if (purpose == DDP_TO_TRAIN)
        DDP_TRY(load_plugin(s, DDP_KIND_SAMPLER, c->sampler, "sampler", &s->train.sampler_plugin, &pc->sampler, err));
    if (purpose == DDP_TO_EVALUATE && c->eval[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "[eval] plugin is not set, so there is nothing to evaluate on; write the dataset as in [data]");
    if (purpose == DDP_TO_GENERATE || purpose == DDP_TO_INFER || c->eval[0] == '\0') return DDP_OK;
    DDP_TRY(load_plugin(s, DDP_KIND_DATASET, c->eval, "eval", &s->eval.plugin, &pc->eval, err));
    if (purpose == DDP_TO_PREDICT) return DDP_OK;
    if (s->train.sampler_plugin != NULL &&
        strcmp(c->sampler, DDP_DEFAULT_EVAL_SAMPLER) == 0) { /* one plugin, one set of options */
        s->eval.sampler_plugin = s->train.sampler_plugin;
        pc->eval_sampler = pc->sampler;
        return DDP_OK;
    }
    return load_plugin(s, DDP_KIND_SAMPLER, DDP_DEFAULT_EVAL_SAMPLER, "sampler", &s->eval.sampler_plugin,
                       &pc->eval_sampler, err);
}

/* Whether a backend can do what the hook asks of the group; the error names what is missing. */
static ddp_status check_hook(const ddp_loaded *hook, const ddp_loaded *backend, ddp_err *err)
{
    static const struct {
        uint64_t bit;
        const char *name;
    } slots[] = {
        {DDP_CAP_ALL_REDUCE, "all_reduce"}, {DDP_CAP_BROADCAST, "broadcast"}, {DDP_CAP_ALL_TO_ALL, "all_to_all"}};
    uint64_t needs = ((const ddp_hook_ops *)hook->ops)->needs, caps = ((const ddp_backend_ops *)backend->ops)->caps;

    if (!ddp_memory_has(backend->desc.memory, DDP_MEMORY_HOST))
        return ddp_fail(
            err, DDP_ERR_UNSUPPORTED,
            "hook \"%s\" works in the host's memory, which backend \"%s\" does not take; name another in [group] backend, or leave [hook] plugin empty",
            hook->desc.name, backend->desc.name);

    for (size_t i = 0; i < DDP_COUNT(slots); i++)
        if ((needs & ~caps & slots[i].bit) != 0)
            return ddp_fail(
                err, DDP_ERR_UNSUPPORTED,
                "hook \"%s\" needs %s, which backend \"%s\" does not have; name another in [group] backend, or leave [hook] plugin empty",
                hook->desc.name, slots[i].name, backend->desc.name);
    return DDP_OK;
}

/* Of training alone. */
static ddp_status load_hook(ddp_session *s, ddp_err *err)
{
    if (s->config->hook[0] == '\0' || s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    DDP_TRY(load_plugin(s, DDP_KIND_HOOK, s->config->hook, "hook", &s->hook, &s->hook_config, err));
    for (uint32_t i = 0; i < s->backend_count; i++)
        if (check_hook(s->hook, s->backends[i].plugin, err) != DDP_OK) return at_choice(s, DDP_KIND_HOOK, "hook", err);
    return DDP_OK;
}

/* Whether `auto` can take this device. */
static bool device_is_there(ddp_session *s, const ddp_offer *o, ddp_err *why)
{
    char section[sizeof(o->name) + 8];
    const void *config;
    ddp_loaded *p;

    (void)snprintf(section, sizeof(section), "device.%.63s", o->name);
    return ddp_registry_load(s->registry, DDP_KIND_DEVICE, o->name, &p, why) == DDP_OK &&
           ddp_config_plugin(s->config, section, &p->desc, &config, why) == DDP_OK &&
           ((const ddp_device_ops *)p->ops)->check(&s->host, config, (uint32_t)s->launch.local_rank, why) == DDP_OK;
}

/* [train] device = auto: of those that are there the one with the highest priority. */
static ddp_status choose_device(ddp_session *s, char *found, size_t capacity, ddp_err *err)
{
    ddp_offer offers[DDP_MAX_OFFERS];
    size_t i = 0, count = ddp_registry_offers(s->registry, DDP_KIND_DEVICE, offers, DDP_MAX_OFFERS);

    (void)ddp_fail(err, DDP_ERR_CONFIG, "no plugin of a device is there");
    while (i < count && !device_is_there(s, &offers[i], err)) i++;
    if (i == count) {
        (void)ddp_fail_as(err, DDP_EXIT_PLUGIN);
        return ddp_fail_context(err, "[train] device = auto");
    }
    ddp_copy_text(found, capacity, offers[i].name);
    if (s->launch.local_rank == 0)
        ddp_log_line(s->log, DDP_LOG_INFO, "device = auto: %s%s%s", found, i > 0 ? ", for " : "",
                     i > 0 ? err->msg : "");
    return DDP_OK;
}

static ddp_status load_all(ddp_session *s, ddp_plugin_configs *pc, ddp_err *err)
{
    ddp_config *c = s->config;
    char found[sizeof(s->devices.name)] = "";

    if (c->group->interface[0] != '\0' &&
        ddp_interface_check(c->group->interface, s->address, sizeof(s->address), err) != DDP_OK)
        return session_at_key(s, "group", "interface", err);
    DDP_TRY(ddp_registry_open(s->log, &c->plugin_path, &s->registry, err));
    if (session_device_is_auto(s)) DDP_TRY(choose_device(s, found, sizeof(found), err));
    DDP_TRY(session_find_devices(s, found[0] != '\0' ? found : NULL, err));
    DDP_TRY(load_plugin(s, DDP_KIND_DEVICE, s->devices.name, "device", &s->devices.plugin, &pc->device, err));
    s->device.ops = s->devices.plugin->ops;
    if (!ddp_purpose_is_alone(s->launch.purpose)) {
        DDP_TRY(load_backends(s, err));
        DDP_TRY(load_init(s, err));
        DDP_TRY(check_backends(s, err));
    }
    DDP_TRY(load_hook(s, err));
    DDP_TRY(load_plugin(s, DDP_KIND_MODEL, c->model, "model", &s->model.plugin, &pc->model, err));
    return load_sources(s, pc, err);
}

/* ---- what the run does not use --------------------------------------------------------------------------------- */
/* "data.idx" -> kind dataset, "idx" */
static uint32_t kind_of_section(const char *section, const char **name)
{
    size_t length = strcspn(section, ".");

    *name = section + length + 1;
    if (strncmp(section, "data.", 5) == 0 || strncmp(section, "eval.", 5) == 0) return DDP_KIND_DATASET;
    for (uint32_t kind = DDP_KIND_BACKEND; ddp_kind_name(kind) != NULL; kind++)
        if (strlen(ddp_kind_name(kind)) == length && strncmp(section, ddp_kind_name(kind), length) == 0) return kind;
    return 0;
}

static int check_unused(ddp_session *s, const char *section, ddp_err *err)
{
    const char *name;
    uint32_t kind = kind_of_section(section, &name);
    const void *config;
    ddp_loaded *p;

    if (ddp_registry_load(s->registry, kind, name, &p, err) != DDP_OK) {
        (void)ddp_fail_context(err, "%s: [%s]", ddp_ini_section_where(s->config->ini, section), section);
        return DDP_EXIT_PLUGIN;
    }
    return ddp_config_plugin(s->config, section, &p->desc, &config, err) == DDP_OK ? DDP_EXIT_OK : DDP_EXIT_CONFIG;
}

int ddp_session_check_unused(ddp_session *s, ddp_text *out)
{
    int first = DDP_EXIT_OK;

    for (const char *section = NULL; (section = ddp_config_unused_section(s->config, section)) != NULL;) {
        ddp_err err = {0};
        int code = check_unused(s, section, &err);

        if (code == DDP_EXIT_OK)
            ddp_text_printf(out, "not used    [%s] (%s): in order\n", section,
                            ddp_ini_section_where(s->config->ini, section));
        else
            ddp_log_line(s->log, DDP_LOG_ERROR, "%s", err.msg);
        if (first == DDP_EXIT_OK) first = code;
    }
    return first;
}

/* One line each, of the first rank on this host: they mostly share the file. */
static void warn_deprecated(const ddp_session *s)
{
    const ddp_settings *all = &s->config->settings;

    for (size_t i = 0; i < all->count && s->launch.local_rank == 0; i++) {
        const ddp_setting *t = &all->items[i];

        if ((t->option->flags & DDP_OPT_F_DEPRECATED) != 0)
            ddp_log_line(s->log, DDP_LOG_WARN, "%s: [%s] %s is deprecated: %s", t->where, t->section, t->key,
                         t->option->doc);
    }
}

ddp_status session_plugins_load(ddp_session *s, ddp_plugin_configs *pc, ddp_err *err)
{
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, load_all(s, pc, err));
    warn_deprecated(s);
    return DDP_OK;
}

ddp_status ddp_session_load_plugins(ddp_session *s, ddp_err *err)
{
    ddp_plugin_configs pc = {0};

    return session_plugins_load(s, &pc, err);
}
