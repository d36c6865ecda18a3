/* train/fault.c -- see fault.h. */
#include "train/fault.h"
#include <inttypes.h>
#include <string.h>

/* Why a run that should go back does not; "" where it does. */
static void refuse(const ddp_trainer *t, const ddp_fault *f, char *why, size_t capacity)
{
    uint64_t limit = (uint64_t)t->s->config->train->rollback_limit;

    why[0] = '\0';
    if (!f->rolls_back || t->progress.rollback.count == 0) return;
    if (f->step == t->progress.rollback.failed)
        (void)snprintf(why, capacity,
                       ", as this step was before all ranks went back to step %" PRIu64 " and made it again",
                       t->progress.rollback.to);
    else if (t->progress.rollback.count >= limit)
        (void)snprintf(why, capacity,
                       ", after all ranks have gone back to step %" PRIu64 " %" PRIu64
                       " times ([train] rollback_limit)",
                       t->progress.rollback.to, t->progress.rollback.count);
}

static ddp_status end(ddp_trainer *t, const ddp_fault *f, const char *why, ddp_err *err)
{
    char msg[512];

    (void)snprintf(msg, sizeof(msg), "step %" PRIu64 ": %s%s%s", f->step, f->what, why, f->advice);
    ddp_group_abort(t->group, f->exit_code, msg);
    (void)ddp_fail(err, DDP_ERR_DATA, "%s", msg);
    return ddp_fail_as(err, f->exit_code);
}

ddp_status train_fault(ddp_trainer *t, const ddp_fault *f, ddp_err *err)
{
    char why[160], text[512], members[640];

    if (t->progress.rollback.wanted) return DDP_OK; /* of a step that was given out before it was known */
    refuse(t, f, why, sizeof(why));
    if (!f->rolls_back || why[0] != '\0') return end(t, f, why, err);
    t->progress.rollback.wanted = true;
    t->progress.rollback.failed = DDP_MAX_OF(t->progress.rollback.failed, f->step);
    if (t->s->launch.rank != 0) return DDP_OK;
    (void)snprintf(text, sizeof(text), "step %" PRIu64 ": %s, so all ranks go back to the newest checkpoint", f->step,
                   f->what);
    ddp_log_line(t->s->log, DDP_LOG_WARN, "%s", text);
    if (t->observer == NULL) return DDP_OK;
    (void)snprintf(members, sizeof(members), "\"step\": %" PRIu64 ", \"text\": \"%s\"", f->step, text);
    ddp_observe_event(t->observer, "warning", members, NULL);
    return DDP_OK;
}
