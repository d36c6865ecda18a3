/* session/affinity.c -- [train] pin: decides which processors the compute threads of this rank keep to. Binding them
 * is the device's work, which knows its threads; threads that the core starts have all processors (ddp_thread_start).
 */
#include "session/affinity.h"
#include "base/sys.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool same_processors(const ddp_pin_rank *a, const ddp_pin_rank *b)
{
    return a->mask == b->mask && a->processors == b->processors;
}

/* Every rank of the host was started with the same processors: they share them out in the order of the ranks. */
static ddp_status share_out(const ddp_pin_case *c, ddp_affinity *out, ddp_err *err)
{
    uint64_t before = 0, threads = 0;
    uint32_t processors = c->ranks[c->own].processors;

    for (uint32_t r = 0; r < c->count; r++) {
        if (r < c->own) before += c->ranks[r].threads;
        threads += c->ranks[r].threads;
    }
    if (c->wish == DDP_AFFINITY_YES && threads > processors)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] pin = yes gives each compute thread a processor of its own, but %u rank%s on this host with %llu thread%s in all may use %u processor%s; lower [train] threads, start fewer ranks here, or set pin = auto",
            c->count, c->count == 1 ? "" : "s", (unsigned long long)threads, threads == 1 ? "" : "s", processors,
            processors == 1 ? "" : "s");
    if (c->wish == DDP_AFFINITY_AUTO && threads != processors) return DDP_OK;
    *out = (ddp_affinity){.pinned = true, .first = (uint32_t)before};
    return DDP_OK;
}

ddp_status session_pin_choose(const ddp_pin_case *c, ddp_affinity *out, ddp_err *err)
{
    const ddp_pin_rank *own = &c->ranks[c->own];
    uint32_t alike = 0;

    *out = (ddp_affinity){.pinned = false};
    if (c->wish == DDP_AFFINITY_NO || own->processors == 0) return DDP_OK;
    if (c->wish == DDP_AFFINITY_AUTO && c->bound) return DDP_OK;
    for (uint32_t r = 0; r < c->count; r++) alike += same_processors(&c->ranks[r], own);
    if (alike == c->count) return share_out(c, out, err);
    if (c->wish == DDP_AFFINITY_AUTO) return DDP_OK;
    /* a launcher has given the ranks processors, as mpirun --bind-to core does */
    if (alike == 1 && own->processors == own->threads)
        *out = (ddp_affinity){.pinned = true, .first = 0};
    else
        out->left_alone = true;
    return DDP_OK;
}

/* ---- this rank ------------------------------------------------------------------------------------------------- */
static ddp_pin_rank own_rank(const ddp_session *s)
{
    const int32_t *list;
    size_t count = ddp_processors(&list);

    return (ddp_pin_rank){.mask = ddp_hash64(list, count * sizeof(*list), 0),
                          .processors = (uint32_t)count,
                          .threads = s->device.threads * ddp_session_devices(s)};
}

static ddp_status choose(ddp_session *s, const ddp_pin_rank *ranks, uint32_t own, uint32_t count, ddp_err *err)
{
    ddp_pin_case c = {.wish = (ddp_pin_wish)s->config->train->pin, .ranks = ranks, .own = own, .count = count};
    const ddp_setting *set = ddp_settings_find(&s->config->settings, "train", "pin");

    c.bound = (long)ranks[own].processors < sysconf(_SC_NPROCESSORS_ONLN) || !ddp_processors_are_own();
    if (session_pin_choose(&c, &s->pin, err) == DDP_OK) return DDP_OK;
    (void)ddp_fail_as(err, DDP_EXIT_CONFIG);
    return ddp_fail_context(err, "%s", set->where);
}

ddp_status session_plan_pin(ddp_session *s, ddp_err *err)
{
    const ddp_launch *l = &s->launch;
    uint32_t count = (uint32_t)l->local_size;
    ddp_pin_rank *ranks;
    ddp_status st;

    if (ddp_purpose_is_alone(l->purpose)) return DDP_OK; /* alone, and not for long */
    ranks = ddp_alloc(count * sizeof(*ranks), err);
    if (ranks == NULL) return err->status;
    for (uint32_t r = 0; r < count; r++) ranks[r] = own_rank(s);
    st = choose(s, ranks, (uint32_t)l->local_rank, count, err);
    free(ranks);
    if (st != DDP_ERR_CONFIG || l->nproc == l->local_size) return st;
    s->pin = (ddp_affinity){.pinned = false}; /* ranks that this process does not start: they will report theirs */
    *err = (ddp_err){.status = DDP_OK};
    return DDP_OK;
}

void ddp_session_pin_text(const ddp_session *s, ddp_text *out)
{
    const int32_t *list;
    uint32_t threads = s->device.threads * ddp_session_devices(s);

    if (!s->pin.pinned || ddp_processors(&list) == 0) {
        ddp_text_printf(out, "not pinned");
        return;
    }
    list += s->pin.first;
    ddp_text_printf(out, "pinned to processor%s ", threads == 1 ? "" : "s");
    for (uint32_t i = 0, end; i < threads; i = end) {
        for (end = i + 1; end < threads && list[end] == list[end - 1] + 1;) end++;
        ddp_text_printf(out, "%s%d", i == 0 ? "" : ", ", list[i]);
        if (end > i + 1) ddp_text_printf(out, "-%d", list[end - 1]);
    }
}

/* ---- after the rendezvous -------------------------------------------------------------------------------------- */
/* Those of this host report theirs to each other; every rank takes part, whatever it wishes. */
static ddp_status decide(ddp_session *s, ddp_group *group, ddp_err *err)
{
    int32_t world = ddp_group_world(group);
    const void *parts[world];
    size_t lengths[world];
    ddp_pin_rank ranks[world];
    const ddp_pin_rank mine = own_rank(s);
    uint32_t own = 0, count = 0;
    void *block;

    ranks[0] = mine;
    DDP_TRY_AS(DDP_EXIT_RENDEZVOUS, err,
               ddp_group_gather(group, "processors of the ranks", &mine, sizeof(mine), &block, parts, lengths,
                                s->config->group->step_timeout_ms, err));
    for (int32_t r = 0; r < world; r++) {
        if (lengths[r] != sizeof(mine) || !ddp_group_same_host(group, r)) continue;
        if (r == ddp_group_rank(group)) own = count;
        memcpy(&ranks[count++], parts[r], sizeof(mine));
    }
    free(block);
    if (count !=
        (uint32_t)s->launch.local_size) { /* hosts that are one by another name: who shares what is not known */
        s->pin = (ddp_affinity){.left_alone = s->config->train->pin == DDP_AFFINITY_YES};
        return DDP_OK;
    }
    return choose(s, ranks, own, count, err);
}

ddp_status ddp_session_pin(ddp_session *s, ddp_group *group, ddp_err *err)
{
    const int32_t *list;
    size_t count = ddp_processors(&list);

    DDP_TRY(decide(s, group, err));
    if (s->pin.left_alone)
        ddp_log_line(
            s->log, DDP_LOG_INFO,
            "[train] pin = yes: left as it is, for the ranks of this host were started with processors of their own, and this one with %zu for %u compute thread%s",
            count, s->device.threads, s->device.threads == 1 ? "" : "s");
    if (!s->pin.pinned || ddp_device_pin(&s->device, list + s->pin.first, err) == DDP_OK) return DDP_OK;
    s->pin.pinned = false;
    if (s->config->train->pin == DDP_AFFINITY_YES) {
        (void)ddp_fail_as(err, DDP_EXIT_CONFIG);
        return ddp_fail_context(err, "[train] pin = yes, device = %s", s->devices.text);
    }
    if (err->status != DDP_ERR_UNSUPPORTED) ddp_log_line(s->log, DDP_LOG_INFO, "not pinned: %s", err->msg);
    *err = (ddp_err){.status = DDP_OK};
    return DDP_OK;
}
