/* cli/preflight/plugins.c -- the plugins of a run: what they look at themselves; and where the session cannot be
 * opened, which ends at the first mistake, each of them by itself. */
#include "cli/preflight/checks.h"
#include "session/plugins.h"
#include "session/report/report.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what they say themselves ------------------------------------------------------------------------------------ */
static ddp_preflight asked(const ddp_preflight_run *r, ddp_finding_sink *sink)
{
    const ddp_launch *l = &r->launch;
    ddp_preflight p = {.struct_size = sizeof(p),
                       .rank = (uint32_t)DDP_MAX_OF(l->rank, 0),
                       .world_size = (uint32_t)l->world,
                       .local_rank = (uint32_t)l->local_rank,
                       .local_size = (uint32_t)l->local_size,
                       .ctx = sink,
                       .report = preflight_report};
    ddp_memory_plan m;

    if (r->session == NULL || l->world == 1) return p;
    ddp_session_memory(r->session, &m);
    p.shared_bytes = m.params + m.grads;
    return p;
}

static void ask_method(const ddp_preflight_run *r, ddp_findings *f)
{
    ddp_finding_sink sink = {.findings = f, .exit_code = DDP_EXIT_RENDEZVOUS};
    ddp_preflight p = asked(r, &sink);

    r->method->ops->preflight(r->method->handle, &p);
}

static bool is_on_path(const char *program)
{
    const char *path = getenv("PATH");
    char full[4096];

    if (strchr(program, '/') != NULL) return access(program, X_OK) == 0;
    for (size_t length; path != NULL && *path != '\0'; path += length + (path[length] == ':')) {
        length = strcspn(path, ":");
        (void)snprintf(full, sizeof(full), "%.*s/%s", (int)length, path, program);
        if (access(full, X_OK) == 0) return true;
    }
    return false;
}

/* "A=1 mpirun -np %n": --nproc runs mpirun. */
static void check_launcher(ddp_preflight_run *r, const ddp_loaded *backend)
{
    const ddp_launcher_ops *launcher = ((const ddp_backend_ops *)backend->ops)->launcher;
    const char *at = launcher != NULL ? launcher->command : "";
    char program[64];

    if (launcher == NULL || r->launch.nproc < 2) return;
    while (strcspn(at, "=") < strcspn(at, " ")) at += strcspn(at, " ") + strspn(at + strcspn(at, " "), " ");
    (void)snprintf(program, sizeof(program), "%.*s", (int)strcspn(at, " "), at);
    if (is_on_path(program))
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "launcher", "%s is on the PATH", program);
    else
        preflight_add(&r->findings, DDP_FINDING_PROBLEM, DDP_EXIT_PLUGIN, "launcher",
                      "%s, which starts the ranks of backend %s, is not on the PATH%s%s", program, backend->desc.name,
                      launcher->install != NULL ? ": install " : "",
                      launcher->install != NULL ? launcher->install : "");
}

static void ask_session(ddp_preflight_run *r)
{
    ddp_session *s = r->session;
    ddp_finding_sink sink = {.findings = &r->findings, .exit_code = DDP_EXIT_PLUGIN};
    ddp_preflight p = asked(r, &sink);

    s->device.ops->preflight(s->device.device, &p);
    for (uint32_t i = 0; i < s->backend_count && s->launch.world > 1; i++) {
        const ddp_candidate *b = &s->backends[i];

        check_launcher(r, b->plugin);
        if (((const ddp_backend_ops *)b->plugin->ops)->launcher == NULL) p.local_size = (uint32_t)s->launch.local_size;
        ((const ddp_backend_ops *)b->plugin->ops)->preflight(&s->host, b->config, &p);
    }
}

/* ---- one by one -------------------------------------------------------------------------------------------------- */
static void report(ddp_preflight_run *r, const char *what, const ddp_err *err)
{
    if (!preflight_has(&r->findings, err->msg)) preflight_add_error(&r->findings, what, err);
}

static ddp_loaded *try_plugin(ddp_preflight_parts *p, ddp_preflight_run *r, uint32_t kind, const char *name,
                              const char *section_kind, const void **config)
{
    char section[128];
    ddp_loaded *loaded;
    ddp_err err = {0};

    if (ddp_registry_load(p->registry, kind, name, &loaded, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_PLUGIN);
        report(r, "plugin", &err);
        return NULL;
    }
    (void)snprintf(section, sizeof(section), "%s.%s", section_kind, loaded->desc.name);
    if (ddp_config_plugin(&p->config, section, &loaded->desc, config, &err) == DDP_OK) return loaded;
    (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
    report(r, "config", &err);
    return NULL;
}

static void try_backend(ddp_preflight_parts *p, ddp_preflight_run *r, const char *name)
{
    char halves[2][DDP_HALF_MAX];
    const void *config;

    if (!ddp_config_halves(name, halves[0], halves[1])) {
        (void)try_plugin(p, r, DDP_KIND_BACKEND, name, "backend", &config);
        return;
    }
    for (size_t i = 0; i < DDP_COUNT(halves); i++)
        (void)try_plugin(p, r, DDP_KIND_BACKEND, halves[i], "backend", &config);
}

/* "cpu:1" is of plugin cpu. */
static void try_device(ddp_preflight_parts *p, ddp_preflight_run *r)
{
    const ddp_list *list = &p->config.train->device;
    const char *text = list->count > 0 ? ((const char *const *)list->items)[0] : "auto";
    const void *config;
    char name[64];

    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, ":"), text);
    if (name[0] != '\0' && strcmp(name, "auto") != 0) (void)try_plugin(p, r, DDP_KIND_DEVICE, name, "device", &config);
}

static void try_method(ddp_preflight_parts *p, ddp_preflight_run *r)
{
    const char *url = r->launch.url;
    size_t length = strcspn(url, ":");
    ddp_loaded *loaded;
    char scheme[32];
    ddp_err err = {0};

    if (!r->launch_known || r->launch.introduced || r->launch.world == 1 || length == 0 || length >= sizeof(scheme))
        return;
    (void)snprintf(scheme, sizeof(scheme), "%.*s", (int)length, url);
    loaded = try_plugin(p, r, DDP_KIND_INIT, scheme, "init", &p->method.config);
    if (loaded == NULL) return;
    p->method.ops = loaded->ops;
    if (p->method.ops->open(&p->host, p->method.config, url, &p->method.handle, &err) == DDP_OK) {
        r->method = &p->method;
    } else {
        p->method.handle = NULL;
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        report(r, "init_method", &err);
    }
}

void preflight_parts_open(ddp_preflight_parts *p, ddp_preflight_run *r, ddp_log *log)
{
    const struct {
        uint32_t kind;
        const char *name, *section;
    } plugins[] = {{DDP_KIND_MODEL, r->config->model, "model"},
                   {DDP_KIND_DATASET, r->config->data, "data"},
                   {DDP_KIND_DATASET, r->config->eval, "eval"},
                   {DDP_KIND_SAMPLER, r->config->sampler, "sampler"},
                   {DDP_KIND_HOOK, r->config->hook, "hook"}};
    const void *config;
    ddp_err err = {0};

    *p = (ddp_preflight_parts){.host = ddp_log_host(log)};
    if (ddp_config_load(r->args->config_path, r->args->overrides, r->args->override_count, &p->config, &err) !=
            DDP_OK ||
        ddp_registry_open(log, &p->config.plugin_path, &p->registry, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        report(r, "plugin", &err);
        return;
    }
    try_device(p, r);
    if (strcmp(p->config.group->backend, "auto") != 0) try_backend(p, r, p->config.group->backend);
    for (size_t i = 0; i < DDP_COUNT(plugins); i++)
        if (plugins[i].name[0] != '\0' && strcmp(plugins[i].name, "auto") != 0)
            (void)try_plugin(p, r, plugins[i].kind, plugins[i].name, plugins[i].section, &config);
    try_method(p, r);
}

void preflight_parts_close(ddp_preflight_parts *p)
{
    if (p->method.handle != NULL) p->method.ops->close(p->method.handle);
    if (p->registry != NULL) ddp_registry_close(p->registry);
    ddp_config_free(&p->config);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */
static void list_plugins(ddp_preflight_run *r)
{
    const ddp_session *s = r->session;

    preflight_add(&r->findings, DDP_FINDING_OK, 0, "plugins", "device %s, backend %s%s%s, model %s%s%s",
                  s->devices.plugin->desc.name, ddp_session_backend_name(s), s->init.plugin != NULL ? ", init " : "",
                  s->init.plugin != NULL ? s->init.plugin->desc.name : "", s->model.plugin->desc.name,
                  s->hook != NULL ? ", hook " : "", s->hook != NULL ? s->hook->desc.name : "");
    if (s->train.plugin != NULL)
        preflight_add(&r->findings, DDP_FINDING_OK, 0, "data", "%s, %llu samples%s%s", s->train.plugin->desc.name,
                      (unsigned long long)s->train.length, s->eval.plugin != NULL ? "; to evaluate " : "",
                      s->eval.plugin != NULL ? s->eval.plugin->desc.name : "");
}

void preflight_plugins(ddp_preflight_run *r)
{
    if (r->session != NULL) list_plugins(r);
    if (r->session != NULL) ask_session(r);
    if (r->method != NULL) ask_method(r, &r->findings);
}
