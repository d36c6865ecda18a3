/* train/step.c -- one update: forward and backward of its micro-batches, the gradients of all ranks, the optimiser.
 * How each is done was chosen before step 0 (ways.c). Nothing here allocates, opens or compares strings. */
#include "train/step.h"
#include "train/ema.h"
#include "train/measure/advice/advice.h"
#include "train/measure/audit.h"
#include "train/measure/histograms.h"
#include "train/measure/noise.h"
#include "train/measure/profile.h"
#include "train/state/buffer_sync.h"
#include <math.h>

static void record_step(ddp_trainer *t, const ddp_step *s)
{
    double step_s = (double)(ddp_now_ns() - s->began_ns) * 1e-9;
    ddp_step_record r = {.step = t->progress.step,
                         .epoch = t->progress.epoch + 1,
                         .loss = t->result.loss,
                         .lr = t->optim.lr,
                         .grad_norm = t->result.grad_norm,
                         .noise_scale = measure_noise_scale(t),
                         .step_ms = step_s * 1e3,
                         .data_ms = (double)s->data_ns * 1e-6,
                         .wait_ms = s->wait_ms,
                         .samples_per_s = s->samples * t->s->shares.count / t->s->shares.own / step_s};

    ddp_trainer_record(t, &r, (double)s->update_ns * 1e-6);
    measure_advice_step(t, &r, (double)s->update_ns * 1e-6);
}

ddp_status train_step_run(ddp_trainer *t, uint64_t micros, ddp_err *err)
{
    ddp_step s = {.micros = micros, .began_ns = ddp_now_ns()};

    ddp_trace_step(t->trace, t->progress.step + 1);
    DDP_TRY(ddp_trainer_buffers_keep(t, err));
    DDP_TRY(t->way.micro_steps(t, &s, err));
    ddp_trainer_begin_update(t, micros);
    ddp_reducer_set_own(t->reduce.reducer, s.loss_sum, s.counted, ddp_trainer_asked_to_stop(t));
    DDP_TRY(ddp_trainer_audit_ahead(t, &s, t->progress.step + 1, t->progress.epoch + 1, err));
    DDP_TRY(t->way.update(t, &s, err));
    if (s.reduced.finite) {
        t->progress.left_out = 0;
        DDP_TRY(train_ema_update(t, err));
        DDP_TRY(measure_noise_step(t, s.samples * t->s->shares.count / t->s->shares.own, err));
    } else {
        DDP_TRY(ddp_trainer_buffers_undo(t, micros, err));
    }
    t->result.loss = s.reduced.finite ? s.reduced.loss : NAN;
    t->progress.stopping = s.reduced.stop;
    t->progress.step++;
    t->progress.cursor += micros;
    DDP_TRY(ddp_trainer_audit_step(t, &s, t->progress.step, t->progress.epoch + 1, err));
    DDP_TRY(measure_histograms_step(t, err));
    record_step(t, &s);
    ddp_profile_step(t->profile, s.began_ns, s.data_ns, micros, s.wait_ms);
    return DDP_OK;
}

ddp_status trainer_step(ddp_trainer *t, ddp_err *err)
{
    uint64_t left = t->s->batches_per_epoch - t->progress.cursor;

    if (left == 0) return DDP_IN_PROGRESS;
    return t->way.step(t, DDP_MIN_OF((uint64_t)t->s->batches.accumulate, left), err);
}
