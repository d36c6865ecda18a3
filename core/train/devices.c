/* train/devices.c -- see devices.h. */
#include "train/devices.h"
#include "train/plugins.h"
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
        return ddp_fail(err, DDP_ERR_CONFIG, "[train] device = %s is not a device; write \"cpu\" or \"cpu:1\"", text);
    memcpy(name, text, length);
    name[length] = '\0';
    *ordinal = (uint32_t)n;
    return DDP_OK;
}

static ddp_status add_device(ddp_session *s, const char *text, ddp_err *err)
{
    char name[sizeof(s->device_name)];
    uint32_t ordinal = 0;

    if (s->device_count == DDP_MAX_DEVICES)
        return ddp_fail(err, DDP_ERR_CONFIG, "[train] device names more than %d devices", DDP_MAX_DEVICES);
    DDP_TRY(split_device(text, name, sizeof(name), &ordinal, err));
    if (s->device_count == 0) ddp_copy_text(s->device_name, sizeof(s->device_name), name);
    if (strcmp(name, s->device_name) != 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "[train] device names \"%s\" and \"%s\"; the devices of one process are of one plugin, as in "
                        "cpu:0, cpu:1",
                        s->device_name, name);
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->ordinals[i] == ordinal)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "[train] device names %s:%u twice; each device is one replica, write for example %s:%u, "
                            "%s:%u",
                            name, ordinal, name, ordinal, name, ordinal + 1);
    s->ordinals[s->device_count++] = ordinal;
    return DDP_OK;
}

static ddp_status check_ddp(ddp_session *s, ddp_err *err)
{
    if (s->device_count == 1) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[train] device names %u devices, and a rank of parallel = ddp has one; write parallel = dp to train "
        "a replica on each within one process, or one device and --nproc %u",
        s->device_count, s->device_count);
    return ddp_at_key(s, "train", "device", err);
}

/* A hook stands between ranks that send their gradients. */
static ddp_status check_hook(ddp_session *s, ddp_err *err)
{
    if (s->config->hook[0] == '\0' || s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[hook] plugin = %s compresses what ranks send each other, and within one process nothing is sent; "
                   "leave it out, or write [train] parallel = ddp",
                   s->config->hook);
    return ddp_at_key(s, "hook", "plugin", err);
}

static ddp_status check_dp(ddp_session *s, ddp_err *err)
{
    if (s->launch.world > 1) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "[train] parallel = dp is one process with several devices, but there are %d ranks (%s); start "
                       "one, or write parallel = ddp",
                       s->launch.world, s->launch.world_where != NULL ? s->launch.world_where : "world_size");
        return ddp_at_key(s, "train", "parallel", err);
    }
    if (s->device_count > 1) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[train] parallel = dp trains a replica on each of several devices, but device = %s is one; write "
                   "for example device = %s:0, %s:1, or parallel = ddp",
                   s->device_text, s->device_name, s->device_name);
    return ddp_at_key(s, "train", "parallel", err);
}

ddp_status ddp_session_find_devices(ddp_session *s, ddp_err *err)
{
    const ddp_list *list = &s->config->train->device;
    const char *const *items = list->items;

    s->phase = DDP_EXIT_CONFIG;
    s->device_text = ddp_settings_find(&s->config->settings, "train", "device")->value;
    s->device_count = 0;
    s->replicas = s->stages = 1;
    for (size_t i = 0; i < list->count; i++)
        if (add_device(s, items[i], err) != DDP_OK) return ddp_at_key(s, "train", "device", err);
    if (s->launch.purpose == DDP_TO_GENERATE) return DDP_OK; /* on the first one, alone */
    if (s->config->train->parallel != DDP_PARALLEL_DP) return check_ddp(s, err);
    DDP_TRY(check_dp(s, err));
    s->replicas = s->device_count;
    return check_hook(s, err);
}
