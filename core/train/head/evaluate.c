/* train/head/evaluate.c -- an evaluation with a divided output layer: all ranks go through as many batches as the one
 * that has most, those without samples to compute the others' rows of their classes. */
#include "train/head/rows.h"
#include "session/metrics.h"

/* Of a batch; an accuracy is one of samples or of rows. */
static void add_metrics(const ddp_trainer *t, const ddp_variant *v, const head_result *own, ddp_sums *sums)
{
    double *to = sums->metrics;
    ddp_metric_info m;

    for (uint32_t i = 0; i < v->program->metric_count; i++, to += m.sums) {
        ddp_metric_of(v->program, i, &m);
        if (m.op == DDP_OP_TOP_K) {
            to[0] += own->right;
            to[1] += own->counted;
        } else {
            to[0] += own->right / (double)t->s->model.head.of.labels.labels;
        }
    }
}

static ddp_status evaluate_batch(ddp_trainer *t, const ddp_batch *batch, ddp_sums *sums, ddp_err *err)
{
    ddp_run run = {.struct_size = sizeof(run)};
    uint32_t variant = 0;
    head_result own;

    DDP_TRY(head_forward(t, false, batch, &run, &variant, err));
    DDP_TRY(head_rows_gather(t, err));
    DDP_TRY(head_rows_parts(t, err));
    head_rows_combine(t, &t->s->eval.mean, &own);
    if (batch == NULL) return DDP_OK;
    add_metrics(t, &t->s->programs.variants[variant], &own, sums);
    sums->loss += head_loss(&own, &t->s->eval.mean, batch->count);
    sums->counted += ddp_loss_counted(&t->s->eval.mean, batch);
    sums->samples += (double)batch->count;
    return DDP_OK;
}

/* All hear in the same batch that one of them was asked to stop. */
ddp_status head_evaluate(ddp_trainer *t, ddp_sums *sums, ddp_err *err)
{
    ddp_loader *loader = t->eval_loaders[0];
    ddp_status st = DDP_OK;

    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_begin(loader, 0, 0, err));
    for (uint64_t i = 0; i < t->local.head->eval_batches; i++) {
        ddp_batch batch;

        DDP_TRY(ddp_trainer_still_runs(t, err));
        if (st == DDP_OK) st = ddp_loader_next(loader, &batch, err);
        if (st != DDP_OK && st != DDP_IN_PROGRESS) return ddp_fail_as(err, DDP_EXIT_DATA);
        DDP_TRY(evaluate_batch(t, st == DDP_OK ? &batch : NULL, sums, err));
        if ((sums->stop = t->local.head->asked) != 0) break;
    }
    return DDP_OK;
}
