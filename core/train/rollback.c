/* train/rollback.c -- see rollback.h. No new rendezvous: all ranks are alive, and have decided it in the same step. */
#include "train/rollback.h"
#include "train/local/replicas.h"
#include "train/measure/audit.h"
#include "train/state/resume.h"
#include "train/state/save.h"
#include <inttypes.h>

static void report(const ddp_trainer *t)
{
    char members[96];

    if (t->observer == NULL) return;
    (void)snprintf(members, sizeof(members), "\"step\": %" PRIu64 ", \"epoch\": %" PRIu64, t->progress.step,
                   t->progress.epoch);
    ddp_observe_event(t->observer, "rollback", members, NULL);
}

ddp_status train_roll_back(ddp_trainer *t, ddp_err *err)
{
    uint64_t to = t->progress.rollback.to;

    DDP_TRY_AS(DDP_EXIT_PEER, err, t->way.parameters(t, err)); /* those that are on their way have come */
    DDP_TRY(ddp_device_sync(&t->s->device, err));
    DDP_TRY(ddp_trainer_save_pause(t, err));
    DDP_TRY(ddp_trainer_restore_again(t, err));
    DDP_TRY(ddp_trainer_save_open(t, err));
    DDP_TRY(ddp_replicas_broadcast_all(t, err));
    DDP_TRY(ddp_trainer_audit_again(t, err));
    t->progress.rollback.count = t->progress.step == to ? t->progress.rollback.count + 1 : 1;
    t->progress.rollback.to = t->progress.step;
    t->progress.rollback.wanted = false;
    report(t);
    return DDP_OK;
}
