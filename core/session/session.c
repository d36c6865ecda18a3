/* session/session.c -- see session.h. */
#include "session/session.h"
#include <inttypes.h>
#include <string.h>

uint64_t ddp_session_steps(const ddp_session *s)
{
    uint64_t steps = (uint64_t)s->config->train->epochs * s->steps_per_epoch,
             most = (uint64_t)s->config->train->max_steps;

    return most > 0 && most < steps ? most : steps;
}

const char *ddp_session_precision(const ddp_session *s)
{
    return s->config->train->precision == DDP_PRECISION_BF16 ? "bf16" : "f32";
}

uint32_t ddp_optimizer_states(const ddp_config *c)
{
    if (c->optimizer->algorithm == DDP_ALGORITHM_SGD) return c->optimizer->momentum != 0.0 ? 1 : 0;
    return 2;
}

ddp_status session_at_key(const ddp_session *s, const char *section, const char *key, ddp_err *err)
{
    const ddp_setting *t = ddp_settings_find(&s->config->settings, section, key);

    if (t == NULL || strcmp(t->where, "default") == 0) return err->status;
    return ddp_fail_context(err, "%s", t->where);
}

ddp_status session_schedule_check(const struct ddp_optimizer_config *o, uint64_t total, ddp_err *err)
{
    uint64_t length = o->schedule_steps > 0 ? (uint64_t)o->schedule_steps : total;

    if (o->schedule == DDP_SCHEDULE_ONE_CYCLE && length < 2)
        return ddp_fail(err, DDP_ERR_CONFIG, "[optimizer] schedule = one_cycle needs at least 2 steps, %s has %" PRIu64,
                        o->schedule_steps > 0 ? "schedule_steps" : "the run", length);
    if (o->schedule != DDP_SCHEDULE_LINEAR && o->schedule != DDP_SCHEDULE_COSINE) return DDP_OK;
    if ((uint64_t)o->warmup_steps < length) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "[optimizer] warmup_steps = %" PRId64 " leaves nothing of the %" PRIu64
                    " steps of %s to the schedule; lower it, or train longer",
                    o->warmup_steps, length, o->schedule_steps > 0 ? "schedule_steps" : "the run");
}

ddp_status session_noise_check(const ddp_session *s, ddp_err *err)
{
    if (!s->config->train->noise_scale || s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    if (ddp_session_stages(s) > 1)
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] noise_scale looks at the gradient of one micro-batch, and with parallel = model or pipeline those of several are under way at a time; leave it out");
    else if (ddp_session_parts(s) * (uint64_t)s->batches.accumulate == 1)
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] noise_scale compares the gradient of a micro-batch with that of the global batch, which are the same here; train on several ranks, or set accumulate");
    else
        return DDP_OK;
    return session_at_key(s, "train", "noise_scale", err);
}
