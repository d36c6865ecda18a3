/* conform/harness/rank_process.c -- see rank_process.h. */
#include "conform/harness/rank_process.h"
#include "comm/hierarchy/hierarchy.h"
#include <string.h>

enum { BARRIER_MS = 60000 };

/* ---- results ----------------------------------------------------------------------------------------------------- */
bool harness_rank_process_write(ddp_rank_process *a, int state, bool breaks, const char *fmt, ...)
{
    int none = DDP_NOT_CHECKED;
    va_list ap;

    a->broken = a->broken || breaks;
    if (!atomic_compare_exchange_strong(&a->v->state, &none, DDP_WRITING)) return false; /* the first one counts */
    va_start(ap, fmt);
    (void)vsnprintf(a->v->text, sizeof(a->v->text), fmt, ap);
    va_end(ap);
    a->v->order = atomic_fetch_add(&a->shared->failures, 1);
    atomic_store(&a->v->state, state);
    return false;
}

bool ddp_rank_process_fail_call(ddp_rank_process *a, const char *call, ddp_status st, const ddp_err *err)
{
    return DDP_FAIL(a, "%s: \"%s\": %.150s", call, ddp_status_text(st),
                    err->msg[0] != '\0' ? err->msg : "no reason given: ddp_fail() was not called");
}

bool ddp_rank_process_barrier(ddp_rank_process *a, const char *name)
{
    char wait[96];
    ddp_err err = {0};

    (void)snprintf(wait, sizeof(wait), "case %u: %s", (unsigned)(a->c - a->shared->cases), name);
    if (ddp_group_barrier(a->group, wait, BARRIER_MS, &err) == DDP_OK) return true;
    return DDP_BREAK(a, "another rank has ended: %.180s", err.msg);
}

/* ---- plugin and options ------------------------------------------------------------------------------------------ */
/* The settings, "key=value" a line, as --set would give them to `section`. */
static ddp_status take_settings(ddp_rank_process *a, const char *section, const char *settings, ddp_err *err)
{
    char line[4400];

    DDP_TRY(ddp_ini_load("/dev/null", &a->ini, err));
    while (*settings != '\0') {
        size_t length = strcspn(settings, "\n");

        (void)snprintf(line, sizeof(line), "%s.%.*s", section, (int)length, settings);
        DDP_TRY(ddp_ini_set(a->ini, line, err));
        settings += length + (settings[length] == '\n');
    }
    return DDP_OK;
}

static ddp_status parse_section(ddp_rank_process *a, const char *kind, const ddp_plugin *d, const void **config,
                                ddp_err *err)
{
    char section[128];

    (void)snprintf(section, sizeof(section), "%s.%s", kind, d->name);
    return ddp_options_parse(a->ini, section, d->options, d->option_count, d->option_size, d->config_size, &a->settings,
                             config, err);
}

static ddp_status parse_settings(ddp_rank_process *a, const char *settings, ddp_err *err)
{
    const char *kind = a->plugin->kind == DDP_KIND_DATASET ? "data" : ddp_kind_name(a->plugin->kind);
    char section[128];

    (void)snprintf(section, sizeof(section), "%s.%s", kind, a->plugin->desc.name);
    DDP_TRY(take_settings(a, section, settings, err));
    return parse_section(a, kind, &a->plugin->desc, &a->config, err);
}

/* A backend of two, whose settings are "NAME.key=value" of one of them. */
static ddp_status load_hierarchy(ddp_rank_process *a, const char *const names[2], const char *settings, ddp_err *err)
{
    ddp_half halves[2];

    DDP_TRY(take_settings(a, "backend", settings, err));
    for (size_t i = 0; i < DDP_COUNT(halves); i++) {
        DDP_TRY(ddp_registry_load(a->registry, DDP_KIND_BACKEND, names[i], &halves[i].plugin, err));
        DDP_TRY(parse_section(a, "backend", &halves[i].plugin->desc, &halves[i].config, err));
    }
    DDP_TRY(ddp_hierarchy_make(halves[0], halves[1], &a->hierarchy, &a->config, err));
    a->plugin = a->hierarchy;
    return DDP_OK;
}

ddp_status ddp_rank_process_load(ddp_rank_process *a, uint32_t kind, const char *plugin, const char *settings,
                                 ddp_err *err)
{
    static const ddp_list no_paths = {0};
    char local[DDP_HALF_MAX], remote[DDP_HALF_MAX];

    DDP_TRY(ddp_registry_open(&a->log, &no_paths, &a->registry, err));
    if (kind == DDP_KIND_BACKEND && ddp_config_halves(plugin, local, remote))
        return load_hierarchy(a, (const char *const[2]){local, remote}, settings, err);
    DDP_TRY(ddp_registry_load(a->registry, kind, plugin, &a->plugin, err));
    return parse_settings(a, settings, err);
}

void ddp_rank_process_unload(ddp_rank_process *a)
{
    ddp_settings_free(&a->settings);
    ddp_ini_free(a->ini);
    ddp_hierarchy_free(a->hierarchy);
    a->hierarchy = NULL;
    if (a->registry != NULL) ddp_registry_close(a->registry);
}
