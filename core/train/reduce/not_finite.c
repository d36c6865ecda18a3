/* train/reduce/not_finite.c -- see not_finite.h. */
#include "train/reduce/not_finite.h"
#include "train/fault.h"
#include "train/reduce/shards.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a rank says of itself: its gradients have it; only its shard has it, which is the mean of all ranks. */
enum { OWN = 'o', SHARED = 's' };

/* ---- what becomes of the step ---------------------------------------------------------------------------------- */
static ddp_status end(ddp_trainer *t, const char *what, ddp_err *err)
{
    char text[384], advice[256];
    ddp_fault fault = {.exit_code = DDP_EXIT_NONFINITE,
                       .step = t->progress.step + 1,
                       .rolls_back = t->s->config->train->non_finite == DDP_NON_FINITE_ROLLBACK,
                       .what = text,
                       .advice = advice};
    int used = 0;

    (void)snprintf(text, sizeof(text), "%s is not finite", what);
    if (t->progress.left_out > 0)
        used = snprintf(advice, sizeof(advice),
                        ", and the %" PRIu64 " updates before it were left out ([train] non_finite_limit)",
                        t->progress.left_out);
    (void)snprintf(advice + used, sizeof(advice) - (size_t)used, "; %s%s",
                   strstr(what, "no label") != NULL ? "look at the data: all its labels are ignored"
                                                    : "lower [optimizer] lr",
                   strstr(what, " of rank ") != NULL ? ", or look at the data of that step" : "");
    ddp_reducer_forget(t->reduce.reducer);
    return train_fault(t, &fault, err);
}

static void leave_out(ddp_trainer *t, const char *what)
{
    char text[448], members[512];

    t->progress.left_out++;
    t->result.grad_norm = NAN;
    ddp_reducer_forget(t->reduce.reducer);
    if (t->s->launch.rank != 0) return;
    (void)snprintf(text, sizeof(text),
                   "step %" PRIu64 ": %s is not finite, so all ranks leave this update out (%" PRIu64
                   " of at most %" PRId64 " in a row)",
                   t->progress.step + 1, what, t->progress.left_out, t->s->config->train->non_finite_limit);
    ddp_log_line(t->s->log, DDP_LOG_WARN, "%s", text);
    if (t->observer == NULL) return;
    (void)snprintf(members, sizeof(members), "\"step\": %" PRIu64 ", \"text\": \"%s\"", t->progress.step + 1, text);
    ddp_observe_event(t->observer, "warning", members, NULL);
}

/* The one place that decides; all ranks have the same `what`, configuration and count, and so decide the same. */
static ddp_status decide(ddp_trainer *t, const char *what, ddp_err *err)
{
    const struct ddp_train_config *c = t->s->config->train;

    if (c->non_finite == DDP_NON_FINITE_SKIP && t->progress.left_out < (uint64_t)c->non_finite_limit) {
        leave_out(t, what);
        return DDP_OK;
    }
    return end(t, what, err);
}

/* ---- who has it ------------------------------------------------------------------------------------------------ */
static int32_t first_with(const void *const *texts, const size_t *lengths, int32_t world, char kind)
{
    int32_t r = 0;

    while (r < world && (lengths[r] == 0 || *(const char *)texts[r] != kind)) r++;
    return r;
}

static ddp_status tell(ddp_trainer *t, const char *device, char kind, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group), guilty;
    const void *texts[world];
    size_t lengths[world], used;
    char own[256], name[64], what[320];
    void *block = NULL;

    own[0] = kind;
    ddp_reducer_culprit(t->reduce.reducer, own + 1, sizeof(own) - 1);
    if (strncmp(own + 1, "loss", 4) == 0) own[0] = OWN;
    used = strlen(own);
    if (device != NULL) (void)snprintf(own + used, sizeof(own) - used, " on %s", device);
    (void)snprintf(name, sizeof(name), "not finite at step %" PRIu64, t->progress.step + 1);
    DDP_TRY_AS(DDP_EXIT_NONFINITE, err,
               ddp_group_gather(t->group, name, own, used > 1 ? strlen(own) : 0, &block, texts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    guilty = first_with(texts, lengths, world, OWN);
    if (guilty == world) guilty = first_with(texts, lengths, world, SHARED); /* nobody else can have brought it */
    if (guilty == world)                                                     /* each is finite and their sum is not */
        ddp_copy_text(what, sizeof(what), "the mean of the ranks' gradients");
    else
        (void)snprintf(what, sizeof(what), "%.*s of rank %d", (int)lengths[guilty] - 1, (const char *)texts[guilty] + 1,
                       (int)ddp_group_home(t->group, guilty));
    free(block);
    return decide(t, what, err);
}

ddp_status ddp_not_finite_alone(ddp_trainer *t, ddp_err *err)
{
    char own[256], what[320];

    ddp_reducer_culprit(t->reduce.reducer, own, sizeof(own));
    (void)snprintf(what, sizeof(what), "%s of rank %d", own[0] != '\0' ? own : "the norm of the gradients",
                   t->s->launch.rank);
    return end(t, what, err);
}

ddp_status ddp_not_finite(ddp_trainer *t, const char *device, ddp_err *err) { return tell(t, device, OWN, err); }

ddp_status ddp_not_finite_scan(ddp_trainer *t, const ddp_trainer *device, bool *shared, ddp_err *err)
{
    uint32_t shard = 0, of = 1;

    if (t->reduce.clip != NULL) ddp_shards_own(device, &shard, &of);
    return ddp_reducer_scan(t->reduce.reducer, device->mem.grads, shard, of, shared, err);
}

ddp_status ddp_not_finite_here(ddp_trainer *t, ddp_err *err)
{
    bool shared;

    DDP_TRY(ddp_not_finite_scan(t, t, &shared, err));
    return tell(t, NULL, shared ? SHARED : OWN, err);
}
