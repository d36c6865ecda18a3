/* session/devices.c -- see devices.h. */
#include "session/devices.h"
#include "session/stages/head.h"
#include "session/stages/pipeline.h"
#include <stdlib.h>
#include <string.h>

/* "cpu:1" -> "cpu" and 1 */
static ddp_status split_device(const char *text, char *name, size_t capacity, uint32_t *ordinal, ddp_err *err)
{
    const char *colon = strchr(text, ':');
    size_t length = colon == NULL ? strlen(text) : (size_t)(colon - text);
    char *end = NULL;
    unsigned long n = 0;

    if (colon != NULL) n = strtoul(colon + 1, &end, 10);
    if (length == 0 || length >= capacity || (colon != NULL && (end == colon + 1 || *end != '\0' || n > 1023)))
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] device = %s is not a device; write the name of a plugin, one of its devices as in NAME:1, or auto",
            text);
    memcpy(name, text, length);
    name[length] = '\0';
    *ordinal = (uint32_t)n;
    return DDP_OK;
}

/* A device with memory of its own is hardware: of a name without a number each rank of a host has its own. Nothing
 * is loaded. */
static bool one_for_each_rank(ddp_session *s, const char *name)
{
    ddp_gate_facts facts;
    ddp_err err;

    return ddp_registry_facts(s->registry, DDP_KIND_DEVICE, name, &facts, &err) == DDP_OK &&
           strcmp(facts.memory, DDP_MEMORY_HOST) != 0;
}

static ddp_status add_device(ddp_session *s, const char *text, ddp_err *err)
{
    char name[sizeof(s->devices.name)];
    uint32_t ordinal = 0;

    if (s->devices.count == DDP_MAX_DEVICES)
        return ddp_fail(err, DDP_ERR_CONFIG, "[train] device names more than %d devices", DDP_MAX_DEVICES);
    DDP_TRY(split_device(text, name, sizeof(name), &ordinal, err));
    if (strchr(text, ':') == NULL && one_for_each_rank(s, name)) {
        ordinal = (uint32_t)s->launch.local_rank;
        (void)snprintf(s->devices.found, sizeof(s->devices.found), "%s:%u", name, ordinal);
    }
    if (s->devices.count == 0) ddp_copy_text(s->devices.name, sizeof(s->devices.name), name);
    if (strcmp(name, s->devices.name) != 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] device names \"%s\" and \"%s\"; the devices of one process are of one plugin, as in %s:0, %s:1",
            s->devices.name, name, s->devices.name, s->devices.name);
    for (uint32_t i = 0; i < s->devices.count; i++)
        if (s->devices.ordinals[i] == ordinal)
            return ddp_fail(
                err, DDP_ERR_CONFIG,
                "[train] device names %s:%u twice; each device is one replica, write for example %s:%u, %s:%u", name,
                ordinal, name, ordinal, name, ordinal + 1);
    s->devices.ordinals[s->devices.count++] = ordinal;
    return DDP_OK;
}

static ddp_status check_ddp(ddp_session *s, ddp_err *err)
{
    if (s->devices.count == 1) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[train] device names %u devices, and a rank of parallel = ddp has one; write parallel = dp to train a replica on each within one process, or one device and --nproc %u",
        s->devices.count, s->devices.count);
    return session_at_key(s, "train", "device", err);
}

/* A hook stands between ranks that send their gradients. */
static ddp_status check_hook(ddp_session *s, ddp_err *err)
{
    if (s->config->hook[0] == '\0' || s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[hook] plugin = %s compresses what ranks send each other, and within one process nothing is sent; "
                   "leave it out, or write [train] parallel = ddp",
                   s->config->hook);
    return session_at_key(s, "hook", "plugin", err);
}

/* What dp and model have in common. */
static ddp_status check_several(ddp_session *s, const char *mode, const char *does, ddp_err *err)
{
    if (s->launch.world > 1) {
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] parallel = %s is one process with several devices, but there are %d ranks (%s); start one, or write parallel = ddp",
            mode, s->launch.world, s->launch.world_where != NULL ? s->launch.world_where : "world_size");
        return session_at_key(s, "train", "parallel", err);
    }
    if (s->devices.count > 1) return check_hook(s, err);
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[train] parallel = %s %s each of several devices, but device = %s is one; write for example device = %s:0, %s:1, or parallel = ddp",
        mode, does, s->devices.text, s->devices.name, s->devices.name);
    return session_at_key(s, "train", "parallel", err);
}

static ddp_status use_devices(ddp_session *s, ddp_err *err)
{
    DDP_TRY(session_head_check(s, err));
    switch (s->config->train->parallel) {
    case DDP_PARALLEL_DP:
        DDP_TRY(check_several(s, "dp", "trains a replica on", err));
        s->devices.replicas = s->devices.count;
        return DDP_OK;
    case DDP_PARALLEL_MODEL:
        if (s->launch.purpose != DDP_TO_TRAIN) return DDP_OK; /* the whole model on the first one */
        DDP_TRY(check_several(s, "model", "puts layers on", err));
        if (s->launch.profile)
            return ddp_fail(
                err, DDP_ERR_CONFIG,
                "--profile measures one device, and [train] parallel = model has %u; add --set train.parallel=ddp --set train.device=%s:%u to measure the model on one",
                s->devices.count, s->devices.name, s->devices.ordinals[0]);
        s->devices.stages = s->devices.count;
        return DDP_OK;
    case DDP_PARALLEL_PIPELINE: DDP_TRY(session_pipeline_check(s, err)); return check_ddp(s, err);
    default: return check_ddp(s, err);
    }
}

bool session_device_is_auto(const ddp_session *s)
{
    const ddp_list *list = &s->config->train->device;

    return list->count == 1 && strcmp(((const char *const *)list->items)[0], "auto") == 0;
}

ddp_status session_find_devices(ddp_session *s, const char *found, ddp_err *err)
{
    const ddp_list *list = &s->config->train->device;
    const char *const *items = found != NULL ? &found : list->items;

    s->devices.text = ddp_settings_find(&s->config->settings, "train", "device")->value;
    s->devices.count = 0;
    s->devices.replicas = s->devices.stages = 1;
    for (size_t i = 0; i < list->count; i++)
        if (add_device(s, items[i], err) != DDP_OK) return session_at_key(s, "train", "device", err);
    if (found != NULL && s->devices.found[0] == '\0')
        ddp_copy_text(s->devices.found, sizeof(s->devices.found), s->devices.name);
    if (s->devices.found[0] != '\0' && s->devices.count == 1) s->devices.text = s->devices.found;
    if (ddp_purpose_is_alone(s->launch.purpose)) return DDP_OK; /* on the first one, alone */
    return use_devices(s, err);
}

ddp_status session_check_places(ddp_session *s, ddp_err *err)
{
    uint32_t places = ddp_graph_places(s->model.graph);

    if (s->devices.rank_stages > 1) return session_pipeline_places(s, err);
    if (s->devices.stages == 1) return session_head_place(s, err);
    if (places == 0) {
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] parallel = model: model \"%s\" does not say which layers are on which device; models that can have an option place, as in: place = 0:0, 2:1",
            s->model.plugin->desc.name);
        return session_at_key(s, "train", "parallel", err);
    }
    if (places > s->devices.stages) {
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] device = %s has devices 0 to %u, and model \"%s\" places a layer on device %u; name one more, or change place",
            s->devices.text, s->devices.stages - 1, s->model.plugin->desc.name, places - 1);
        return session_at_key(s, "train", "device", err);
    }
    for (uint32_t i = 0; i < s->devices.stages; i++) {
        if (ddp_graph_place_trains(s->model.graph, i)) continue;
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] device = %s: model \"%s\" places no layer on device %u (%s:%u); name fewer devices, or give it layers with place",
            s->devices.text, s->model.plugin->desc.name, i, s->devices.name, s->devices.ordinals[i]);
        return session_at_key(s, "train", "device", err);
    }
    return DDP_OK;
}
