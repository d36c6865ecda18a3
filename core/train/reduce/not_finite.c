/* train/reduce/not_finite.c -- see not_finite.h. */
#include "train/reduce/not_finite.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

ddp_status ddp_not_finite(ddp_trainer *t, const char *device, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group), guilty = 0;
    const void *texts[world];
    size_t lengths[world];
    size_t used;
    char own[256], name[64], msg[512];
    void *block = NULL;

    ddp_reducer_culprit(t->reduce.reducer, own, sizeof(own));
    used = strlen(own);
    if (device != NULL) (void)snprintf(own + used, sizeof(own) - used, " on %s", device);
    (void)snprintf(name, sizeof(name), "not finite at step %" PRIu64, t->progress.step + 1);
    DDP_TRY_AS(DDP_EXIT_NONFINITE, err,
               ddp_group_gather(t->group, name, own, strlen(own), &block, texts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    while (guilty < world && lengths[guilty] == 0) guilty++;
    if (guilty == world) /* each is finite and their sum is not */
        (void)snprintf(msg, sizeof(msg),
                       "step %" PRIu64 ": the mean of the ranks' gradients is not finite; lower [optimizer] lr",
                       t->progress.step + 1);
    else
        (void)snprintf(msg, sizeof(msg),
                       "step %" PRIu64
                       ": %.*s of rank %d is not finite; lower [optimizer] lr, or look at the data of that step",
                       t->progress.step + 1, (int)lengths[guilty], (const char *)texts[guilty], guilty);
    free(block);
    ddp_group_abort(t->group, DDP_EXIT_NONFINITE, msg);
    (void)ddp_fail(err, DDP_ERR_DATA, "%s", msg);
    return ddp_fail_as(err, DDP_EXIT_NONFINITE);
}

ddp_status ddp_not_finite_here(ddp_trainer *t, ddp_err *err)
{
    DDP_TRY(ddp_reducer_scan(t->reduce.reducer, t->mem.grads, err));
    return ddp_not_finite(t, NULL, err);
}
