/* train/state/weights/check.c -- see check.h. As resume.c and weights.c load it, but for the values. */
#include "train/state/weights/check.h"
#include "train/state/resume.h"
#include "train/state/resume_settings.h"
#include "train/state/weights/weights.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* DDP_IN_PROGRESS: there is none. */
static ddp_status open_checkpoint(const ddp_session *s, ddp_checkpoint *out, ddp_err *err)
{
    const struct ddp_checkpoint_config *c = s->config->checkpoint;
    struct stat facts;

    if (strcmp(c->resume, "never") == 0) return DDP_IN_PROGRESS;
    if (strcmp(c->resume, "auto") == 0)
        return c->dir[0] != '\0' && stat(c->dir, &facts) == 0 ? ddp_checkpoint_newest(c->dir, out, s->log, err)
                                                              : DDP_IN_PROGRESS;
    if (ddp_checkpoint_open(c->resume, out, err) == DDP_OK) return DDP_OK;
    return ddp_fail_context(err, "[checkpoint] resume, which takes auto, never or a checkpoint");
}

static ddp_status check(ddp_trainer *t, char *from, size_t capacity, uint64_t *step, ddp_err *err)
{
    const char *base = t->s->config->checkpoint->init_from, *adapters = t->s->config->lora->init_from;
    ddp_checkpoint c;
    ddp_status st = open_checkpoint(t->s, &c, err);

    if (st == DDP_IN_PROGRESS) {
        ddp_copy_text(from, capacity, adapters[0] != '\0' ? adapters : base);
        return weights_check_first(t, err);
    }
    if (st != DDP_OK) return st;
    ddp_copy_text(from, capacity, c.path);
    *step = c.meta.step;
    st = state_keep_batch_of(t, &c, err);
    if (st == DDP_OK) st = state_check_model(t, &c, err);
    ddp_checkpoint_close(&c);
    return st;
}

ddp_status ddp_start_check(ddp_session *s, char *from, size_t capacity, uint64_t *step, ddp_err *err)
{
    ddp_trainer *t = ddp_alloc_aligned(sizeof(*t), err); /* nothing of it but the session is used */
    ddp_status st;

    from[0] = '\0';
    *step = 0;
    if (t == NULL) return err->status;
    t->s = s;
    st = check(t, from, capacity, step, err);
    free(t);
    return st;
}
