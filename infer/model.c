/* infer/model.c -- see model.h. */
#include "infer/model.h"
#include "session/fields.h"
#include "session/open.h"
#include "train/state/buffer_sync.h"
#include "train/state/memory.h"
#include <stdlib.h>
#include <unistd.h>

/* What the model reads, as the checkpoint has it; nothing where that does not say it. */
static ddp_status find_fields(const char *weights, const ddp_config *config, ddp_pool *pool, ddp_launch *launch,
                              ddp_err *err)
{
    bool given = weights != NULL && access(weights, F_OK) == 0; /* "best" is in [checkpoint] dir */
    const char *path = given ? weights : config->checkpoint->dir;
    char *settings = NULL;
    ddp_status st;

    if (path[0] == '\0' || ddp_checkpoint_settings_of(path, &settings, err) != DDP_OK) {
        *err = (ddp_err){.rank = -1};
        return DDP_OK; /* what is wrong with it shows when it is read */
    }
    st = settings == NULL ? DDP_OK
                          : session_fields_parse(settings, "data", pool, &launch->fields, &launch->field_count, err);
    free(settings);
    if (launch->field_count == 0) launch->fields = NULL;
    return st;
}

ddp_status infer_session_open(ddp_session *s, ddp_log *log, ddp_config *config, const char *weights, const char *who,
                              ddp_pool *pool, ddp_err *err)
{
    ddp_launch launch = {.purpose = DDP_TO_INFER,
                         .weights = weights,
                         .world = 1,
                         .local_size = 1,
                         .nproc = 1,
                         .rank_where = who,
                         .world_where = who,
                         .listen_fd = -1};

    DDP_TRY_AS(DDP_EXIT_CHECKPOINT, err, find_fields(weights, config, pool, &launch, err));
    return ddp_session_open(s, log, config, &launch, err);
}

static ddp_status allocate(ddp_trainer *t, ddp_err *err)
{
    const ddp_session *s = t->s;

    DDP_TRY(ddp_device_alloc(&s->device, s->model.layout->param_elements * sizeof(float), &t->mem.params, err));
    return ddp_trainer_buffers_open(t, err);
}

static ddp_status read_weights(infer_model *m, const ddp_fold *folds, uint32_t count, ddp_err *err)
{
    ddp_trainer *t = &m->t;

    DDP_TRY(ddp_staging_open(t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    DDP_TRY(ddp_trainer_read_weights(t, &m->weights, err));
    for (uint32_t i = 0; i < count; i++) ddp_fold_params(&folds[i], t->mem.host.params, t->mem.host.buffers);
    DDP_TRY(ddp_push(t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    ddp_staging_close(t);
    return DDP_OK;
}

ddp_status infer_model_read_folded(infer_model *m, const ddp_fold *folds, uint32_t count, ddp_err *err)
{
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, allocate(&m->t, err));
    DDP_TRY_AS(DDP_EXIT_CHECKPOINT, err, read_weights(m, folds, count, err));
    return DDP_OK;
}

ddp_status infer_model_read(infer_model *m, ddp_err *err) { return infer_model_read_folded(m, NULL, 0, err); }

void infer_model_close(infer_model *m)
{
    ddp_trainer *t = &m->t;
    void *own[] = {t->mem.params, t->mem.activations, t->mem.buffers};

    ddp_staging_close(t);
    for (size_t i = 0; i < DDP_COUNT(own); i++) ddp_device_free(&t->s->device, own[i]);
    free(t->mem.counts);
    t->mem = (ddp_memory){0};
}
