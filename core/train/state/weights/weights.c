/* train/state/weights/weights.c -- which weights a run starts with, and which an evaluation or a generation uses: of
 * files of other programs, of a checkpoint, or drawn. */
#include "train/state/weights/weights.h"
#include "base/log.h"
#include "checkpoint/peft/adapter_config.h"
#include "train/state/resume_settings.h"
#include "train/head/pieces.h"
#include "train/state/weights/fit.h"
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* PATH/NAME where PATH is a folder that has it. */
static bool inside(const char *path, const char *name, char *out, size_t capacity)
{
    struct stat facts;

    return (size_t)snprintf(out, capacity, "%s/%s", path, name) < capacity && stat(out, &facts) == 0;
}

/* The model of a folder, in one file or in several. */
static bool has_model(const char *path, char *out, size_t capacity)
{
    return inside(path, "model.safetensors", out, capacity) ||
           inside(path, "model.safetensors.index.json", out, capacity);
}

static ddp_status init_from(ddp_trainer *t, const char *path, ddp_err *err)
{
    char file[4096];
    struct stat facts;

    if (!has_model(path, file, sizeof(file))) {
        if (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode))
            return ddp_fail(
                err, DDP_ERR_DATA,
                "[checkpoint] init_from: the folder %s holds no model.safetensors and no model.safetensors.index.json; name one checkpoint's folder, such as %s/step-..., a safetensors file, or a folder of Hugging Face's",
                path, path);
        ddp_copy_text(file, sizeof(file), path);
    }
    if (weights_open_and_take(t, file, STATE_BASE, err) != DDP_OK)
        return ddp_fail_context(err, "[checkpoint] init_from");
    return DDP_OK;
}

/* What adapters lie on, and the whole model where there are none. */
static ddp_status first_base(ddp_trainer *t, ddp_err *err)
{
    const char *path = t->s->config->checkpoint->init_from;

    if (t->local.head != NULL)
        DDP_TRY(head_draw(t, err));
    else
        ddp_initial_params(t->s->model.graph, t->s->model.layout, t->s->config->train->seed, t->mem.host.params);
    if (t->mem.buffers != NULL) ddp_initial_buffers(t->s->model.graph, t->mem.host.buffers);
    if (path[0] == '\0') return DDP_OK;
    DDP_TRY(init_from(t, path, err));
    if (t->s->launch.rank == 0) ddp_log_line(t->s->log, DDP_LOG_INFO, "the first parameters are those of %s", path);
    return DDP_OK;
}

/* What an adapter's result is multiplied by is not in its tensors. */
static ddp_status check_adapter_config(const ddp_trainer *t, const char *path, ddp_err *err)
{
    const struct ddp_lora_config *own = t->s->config->lora;
    double alpha = own->alpha > 0.0 ? own->alpha : 2.0 * (double)own->rank;
    ddp_adapter_config c;

    DDP_TRY(ddp_adapter_config_read(path, &c, err));
    if (c.rank == (double)own->rank && c.alpha == alpha && c.rslora == (own->rslora != 0)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s is of rank %g, alpha %g, rslora %s, and [lora] has %" PRId64
                    ", %g, %s; set these as they are there",
                    path, c.rank, c.alpha, c.rslora ? "yes" : "no", own->rank, alpha, own->rslora ? "yes" : "no");
}

/* PEFT's, in a folder or by itself. */
static ddp_status take_adapters(ddp_trainer *t, const char *path, ddp_err *err)
{
    char file[4096];

    if (inside(path, "adapter_config.json", file, sizeof(file))) DDP_TRY(check_adapter_config(t, file, err));
    if (!inside(path, "adapter_model.safetensors", file, sizeof(file))) ddp_copy_text(file, sizeof(file), path);
    return weights_open_and_take(t, file, STATE_SAVED, err);
}

/* As a device that holds it in bf16 has it: every device, and every purpose, then computes with the same numbers. */
static void round_base(ddp_trainer *t)
{
    for (uint32_t p = 0; t->s->model.lora.rounds && p < t->s->model.param_count; p++) {
        float *x = t->mem.host.params + t->s->model.layout->offset[p];

        for (uint64_t i = 0; t->s->model.params[p].rounds && i < t->s->model.params[p].elements; i++)
            x[i] = state_rounded(x[i]);
    }
}

ddp_status state_trainer_first(ddp_trainer *t, ddp_err *err)
{
    const char *path = t->s->config->lora->init_from;

    DDP_TRY(first_base(t, err));
    round_base(t);
    if (!t->s->model.lora.on || path[0] == '\0') return DDP_OK;
    if (take_adapters(t, path, err) != DDP_OK) return ddp_fail_context(err, "[lora] init_from");
    if (t->s->launch.rank == 0) ddp_log_line(t->s->log, DDP_LOG_INFO, "the first adapters are those of %s", path);
    return DDP_OK;
}

ddp_status weights_check_first(ddp_trainer *t, ddp_err *err)
{
    const char *base = t->s->config->checkpoint->init_from, *adapters = t->s->config->lora->init_from;

    if (base[0] != '\0') DDP_TRY(init_from(t, base, err));
    if (t->s->model.lora.on && adapters[0] != '\0' && take_adapters(t, adapters, err) != DDP_OK)
        return ddp_fail_context(err, "[lora] init_from");
    return DDP_OK;
}

/* The run that wrote it may have rounded the base, and this one not, or the other way round. */
static ddp_status compare_base(ddp_trainer *t, const char *path, const char *there, ddp_err *err)
{
    char hex[DDP_XXH128_HEX];

    for (int rounded = 0; rounded <= 1; rounded++) {
        DDP_TRY(state_base_hash(t, t->mem.host.params, rounded != 0, hex, err));
        if (strcmp(hex, there) == 0) return DDP_OK;
    }
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "the adapters of checkpoint %s are of another base: its hash is %s there and %s in this run; set [checkpoint] init_from, and [train] seed where it is drawn, as they were",
        path, there, hex);
}

ddp_status state_trainer_base(ddp_trainer *t, const char *path, const ddp_checkpoint_meta *meta, ddp_err *err)
{
    bool adapters = meta->base_hash[0] != '\0';

    if (adapters != t->s->model.lora.on)
        return ddp_fail(err, DDP_ERR_CONFIG, "checkpoint %s has %s, and this run has %s ([lora] rank); %s", path,
                        adapters ? "adapters alone" : "a whole model", adapters ? "none" : "some",
                        adapters ? "set [lora] as it was" : "give the model to them with [checkpoint] init_from");
    if (!adapters) return DDP_OK;
    DDP_TRY(first_base(t, err));
    DDP_TRY(compare_base(t, path, meta->base_hash, err));
    round_base(t);
    return DDP_OK;
}

/* ---- weights to use -------------------------------------------------------------------------------------------- */
static ddp_status take_checkpoint(ddp_trainer *t, ddp_checkpoint *c, ddp_weights *out, ddp_err *err)
{
    bool averaged = c->parts[DDP_PART_EMA] != NULL && t->s->config->optimizer->ema > 0.0 &&
                    t->s->config->eval_data->weights == DDP_WEIGHTS_EMA;
    ddp_status st = state_trainer_base(t, c->path, &c->meta, err);

    if (st == DDP_OK) st = state_check_adapters(t, c, err);
    if (st == DDP_OK)
        st = weights_take(t, c->path, c->parts[averaged ? DDP_PART_EMA : DDP_PART_MODEL], STATE_SAVED, err);
    (void)snprintf(out->path, sizeof(out->path), "%.480s%s", c->path, averaged ? "/ema.safetensors" : "");
    out->meta = c->meta;
    ddp_checkpoint_close(c);
    return st;
}

static ddp_status newest(ddp_trainer *t, const char *dir, ddp_weights *out, ddp_err *err)
{
    ddp_checkpoint c;
    ddp_status st = ddp_checkpoint_newest(dir, &c, t->s->log, err);

    return st == DDP_OK ? take_checkpoint(t, &c, out, err) : st;
}

/* A file that another program has written, of adapters where the model has them. */
static ddp_status take_on_base(ddp_trainer *t, const char *path, ddp_err *err)
{
    if (!t->s->model.lora.on) return weights_open_and_take(t, path, STATE_ALL, err);
    DDP_TRY(first_base(t, err));
    round_base(t);
    return take_adapters(t, path, err);
}

static ddp_status given(ddp_trainer *t, const char *path, ddp_weights *out, ddp_err *err)
{
    char file[4096];
    struct stat facts;
    ddp_checkpoint c;
    ddp_status st;

    if (inside(path, "MANIFEST.json", file, sizeof(file))) {
        DDP_TRY(ddp_checkpoint_open(path, &c, err));
        return take_checkpoint(t, &c, out, err);
    }
    ddp_copy_text(out->path, sizeof(out->path), path);
    if (t->s->model.lora.on && inside(path, "adapter_model.safetensors", file, sizeof(file)))
        return take_on_base(t, path, err);
    if (has_model(path, file, sizeof(file))) return take_on_base(t, file, err);
    if (stat(path, &facts) != 0 || !S_ISDIR(facts.st_mode)) return take_on_base(t, path, err);
    st = newest(t, path, out, err);
    return st == DDP_IN_PROGRESS
               ? ddp_fail(err, DDP_ERR_DATA,
                          "%s holds no checkpoint that can be used; name a folder that does, or a safetensors file",
                          path)
               : st;
}

/* "best" and the like: in [checkpoint] dir, where there is no such path. */
static const char *in_folder(const ddp_trainer *t, const char *path, char *buf, size_t capacity)
{
    const char *dir = t->s->config->checkpoint->dir;
    struct stat facts;

    if (stat(path, &facts) == 0 || strchr(path, '/') != NULL || dir[0] == '\0') return path;
    return inside(dir, path, buf, capacity) ? buf : path;
}

static ddp_status no_best(const ddp_trainer *t, ddp_err *err)
{
    const char *dir = t->s->config->checkpoint->dir;

    if (dir[0] == '\0') return ddp_fail(err, DDP_ERR_CONFIG, "best: [checkpoint] dir is not set");
    return ddp_fail(err, DDP_ERR_CONFIG, "%s has no best checkpoint; a run with [checkpoint] keep_best saves one", dir);
}

static ddp_status use_given(ddp_trainer *t, const char *wanted, ddp_weights *out, ddp_err *err)
{
    char buf[4096];
    const char *path = in_folder(t, wanted, buf, sizeof(buf));
    struct stat facts;

    if (strcmp(path, "best") == 0 && stat(path, &facts) != 0) return no_best(t, err);
    return given(t, path, out, err);
}

ddp_status ddp_trainer_read_weights(ddp_trainer *t, ddp_weights *out, ddp_err *err)
{
    const struct ddp_checkpoint_config *c = t->s->config->checkpoint;
    ddp_status st = DDP_IN_PROGRESS;

    *out = (ddp_weights){0};
    if (t->s->launch.weights != NULL) {
        st = use_given(t, t->s->launch.weights, out, err);
        return st == DDP_OK ? st : ddp_fail_context(err, "--checkpoint");
    }
    if (c->dir[0] != '\0') st = newest(t, c->dir, out, err);
    if (st != DDP_IN_PROGRESS) return st;
    if (c->init_from[0] == '\0' && t->s->config->lora->init_from[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "no weights to use: %s%s; name a checkpoint or a safetensors file with --checkpoint",
                        c->dir[0] == '\0' ? "[checkpoint] dir is not set" : c->dir,
                        c->dir[0] == '\0' ? "" : " holds no checkpoint");
    ddp_copy_text(out->path, sizeof(out->path), c->init_from);
    return state_trainer_first(t, err);
}
