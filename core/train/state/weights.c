/* train/state/weights.c -- weights from a safetensors file or from several with an index, as torchvision, Hugging Face
 * or a checkpoint of ours has them: the start of a run, or what an evaluation and a generation use.
 *
 * Tensors are matched by name; one that wrappers put in front ("module.", "transformer.") may be there or not. All
 * that does not fit is reported at once: what is missing, what has another shape, what the model does not have. */
#include "train/state/weights.h"
#include "base/log.h"
#include "checkpoint/peft/adapter_config.h"
#include "train/state/tensors.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* DistributedDataParallel, torch.compile, Hugging Face's models with a head, PEFT. */
static const char *const prefixes[] = {"module.", "_orig_mod.", "transformer.", "model.", "base_model."};

enum { SHOWN = 3, LOGGED = 40 }; /* names in the error, lines in the log */

enum { MISSING, MISSHAPED, UNEXPECTED, PROBLEMS };

struct fit {
    ddp_trainer *t;
    const char *path;
    const ddp_safetensors *file;
    state_which which; /* of the model's tensors */
    ddp_views views;
    const ddp_named_tensor **from; /* by view: the tensor of the file */
    bool *used;                    /* by tensor of the file, in its order */
    size_t problems[PROBLEMS], lines;
    char part[112];
    ddp_text names[PROBLEMS];
};

/* ---- names ----------------------------------------------------------------------------------------------------- */
static const char *bare(const char *name)
{
    for (size_t i = 0; i < DDP_COUNT(prefixes); i++) {
        size_t length = strlen(prefixes[i]);

        if (strncmp(name, prefixes[i], length) != 0) continue;
        name += length;
        i = (size_t)-1; /* they may be nested */
    }
    return name;
}

static bool ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), m = strlen(tail);

    return n >= m && strcmp(name + n - m, tail) == 0;
}

/* The tensor of the file that is meant by `name`: of that very name, else of the same without prefixes. */
static const ddp_named_tensor *lookup(const ddp_safetensors *file, const char *name)
{
    const ddp_named_tensor *exact = ddp_safetensors_find(file, name);

    for (size_t i = 0; exact == NULL && i < ddp_safetensors_count(file); i++) {
        const ddp_named_tensor *t = ddp_safetensors_at(file, i);

        if (strcmp(bare(t->name), bare(name)) == 0) return t;
    }
    return exact;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */
static float from_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu, bits;
    float out = ldexpf((float)mantissa, -24); /* of a number below the normal ones */

    if (exponent == 0) return sign != 0 ? -out : out;
    bits = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | mantissa << 13;
    memcpy(&out, &bits, sizeof(out));
    return out;
}

static bool is_float(uint32_t dtype)
{
    return dtype == DDP_F32 || dtype == DDP_F64 || dtype == DDP_BF16 || dtype == DDP_FILE_F16;
}

/* The file's bytes may lie anywhere. */
static void convert(float *to, const ddp_named_tensor *from)
{
    uint64_t count = state_tensor_elements(from);
    const char *at = from->data;

    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        double wide;

        if (from->dtype == DDP_F64) {
            memcpy(&wide, at + i * 8, 8);
            to[i] = (float)wide;
        } else if (from->dtype == DDP_F32) {
            memcpy(&to[i], at + i * 4, 4);
        } else {
            uint32_t bits;

            memcpy(&half, at + i * 2, 2);
            bits = (uint32_t)half << 16;
            if (from->dtype == DDP_BF16)
                memcpy(&to[i], &bits, 4);
            else
                to[i] = from_half(half);
        }
    }
}

/* " in model-00002-of-00003.safetensors" of a tensor of a model in several files; else "". */
static const char *part_name(struct fit *f, const ddp_named_tensor *there)
{
    const char *file = checkpoint_safetensors_path(f->file, there), *slash = strrchr(file, '/');

    if (strcmp(file, f->path) == 0) return "";
    (void)snprintf(f->part, sizeof(f->part), " in %.100s", slash != NULL ? slash + 1 : file);
    return f->part;
}

/* ---- what does not fit ----------------------------------------------------------------------------------------- */
static void problem(struct fit *f, int which, const char *name, const ddp_named_tensor *there,
                    const ddp_named_tensor *here)
{
    static const char *const words[] = {"missing", "of another shape or dtype", "unexpected"};
    char a[128], b[128];

    state_tensor_text(there, a, sizeof(a));
    state_tensor_text(here, b, sizeof(b));
    if (f->problems[which]++ < SHOWN) {
        ddp_text_printf(&f->names[which], "%s%.100s", f->problems[which] > 1 ? ", " : "", name);
        if (which == MISSHAPED) ddp_text_printf(&f->names[which], ": %s there%s, %s here", a, part_name(f, there), b);
    }
    if (f->lines++ < LOGGED)
        ddp_log_line(f->t->s->log, DDP_LOG_INFO, "%s is %s: %s in the file, %s in the model", name, words[which], a, b);
}

static ddp_status complain(struct fit *f, ddp_err *err)
{
    static const char *const words[] = {"missing", "of another shape or dtype", "unexpected"};
    ddp_text all = {0};

    for (int i = 0; i < PROBLEMS; i++)
        if (f->problems[i] > 0)
            ddp_text_printf(&all, "%s%zu %s (%s%s)", all.length > 0 ? ", " : "", f->problems[i], words[i],
                            f->names[i].data != NULL ? f->names[i].data : "", f->problems[i] > SHOWN ? ", .." : "");
    if (f->lines > LOGGED) ddp_log_line(f->t->s->log, DDP_LOG_INFO, "and %zu tensors more", f->lines - LOGGED);
    (void)ddp_fail(err, DDP_ERR_CONFIG, "%.150s is not of this model: %s", f->path,
                   all.data != NULL ? all.data : "out of memory");
    ddp_text_free(&all);
    return err->status;
}

/* ---- matching -------------------------------------------------------------------------------------------------- */
/* A count that older files lack starts at 0, as in PyTorch; adapters of others come without the base's buffers. */
static bool may_be_absent(const struct fit *f, const ddp_named_tensor *here)
{
    const ddp_session_model *m = &f->t->s->model;

    if (here->dtype == DDP_I64) return true;
    for (uint32_t b = 0; m->lora.on && f->which == STATE_SAVED && b < m->buffer_count; b++)
        if (strcmp(m->buffers[b].name, here->name) == 0) return true;
    return false;
}

static bool same_dims(const ddp_named_tensor *a, const ddp_named_tensor *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

/* A token embedding with more rows than there are tokens: the rows after them are zero. */
static bool has_padded_rows(const ddp_named_tensor *there, const ddp_named_tensor *here)
{
    return strcmp(bare(here->name), "wte.weight") == 0 && here->rank == 2 && there->rank == 2 &&
           there->dims[1] == here->dims[1] && there->dims[0] < here->dims[0];
}

static void match(struct fit *f, size_t i)
{
    const ddp_named_tensor *here = &f->views.tensors[i], *there = lookup(f->file, here->name);
    bool fits;

    if (there == NULL) {
        if (!may_be_absent(f, here)) problem(f, MISSING, here->name, NULL, here);
        return;
    }
    fits = (same_dims(there, here) || has_padded_rows(there, here)) &&
           (here->dtype == DDP_I64 ? there->dtype == DDP_I64 : is_float(there->dtype));
    if (!fits) problem(f, MISSHAPED, here->name, there, here);
    f->from[i] = there;
    for (size_t k = 0; k < ddp_safetensors_count(f->file); k++)
        if (ddp_safetensors_at(f->file, k) == there) f->used[k] = true;
}

/* Masks of GPT-2 and frequencies of LLaMA, which Hugging Face's models keep as buffers and older versions save. */
static bool is_constant(const ddp_named_tensor *t)
{
    return ends_with(t->name, ".rotary_emb.inv_freq") || (ends_with(t->name, ".attn.bias") && t->rank == 4) ||
           ends_with(t->name, ".attn.masked_bias");
}

/* An output layer that is the token embedding once more. */
static bool is_tied_copy(const struct fit *f, const ddp_named_tensor *t)
{
    const ddp_named_tensor *wte;

    if (strcmp(bare(t->name), "lm_head.weight") != 0) return false;
    wte = lookup(f->file, "wte.weight");
    if (wte == NULL) wte = lookup(f->file, "model.embed_tokens.weight");
    return wte != NULL && state_tensor_alike(t, wte) &&
           memcmp(t->data, wte->data, state_tensor_elements(t) * ddp_safetensors_dtype_size(t->dtype)) == 0;
}

static void match_all(struct fit *f)
{
    for (size_t i = 0; i < f->views.count; i++) match(f, i);
    for (size_t k = 0; k < ddp_safetensors_count(f->file); k++) {
        const ddp_named_tensor *t = ddp_safetensors_at(f->file, k);

        if (!f->used[k] && !is_constant(t) && !is_tied_copy(f, t)) problem(f, UNEXPECTED, t->name, t, NULL);
    }
}

static void fill(const struct fit *f)
{
    for (size_t i = 0; i < f->views.count; i++) {
        const ddp_named_tensor *from = f->from[i];

        if (from == NULL) continue;
        if (state_tensor_elements(from) < state_tensor_elements(&f->views.tensors[i]))
            memset(f->views.data[i], 0, state_tensor_elements(&f->views.tensors[i]) * sizeof(float));
        if (from->dtype == DDP_I64)
            memcpy(f->views.data[i], from->data, sizeof(int64_t));
        else
            convert(f->views.data[i], from);
        checkpoint_safetensors_release(f->file, from);
    }
}

static ddp_status take(struct fit *f, ddp_err *err)
{
    const ddp_state_arenas a = state_arenas(f->t);

    DDP_TRY(state_model_views(f->t, &a, f->which, &f->views, err));
    f->from = ddp_alloc((f->views.count + 1) * sizeof(*f->from), err);
    f->used = ddp_alloc(ddp_safetensors_count(f->file) + 1, err);
    if (f->from == NULL || f->used == NULL) return err->status;
    match_all(f);
    if (f->lines > 0) return complain(f, err);
    fill(f);
    return DDP_OK;
}

static ddp_status take_file(ddp_trainer *t, const char *path, const ddp_safetensors *file, state_which which,
                            ddp_err *err)
{
    struct fit f = {.t = t, .path = path, .file = file, .which = which};
    ddp_status st = take(&f, err);

    for (int i = 0; i < PROBLEMS; i++) ddp_text_free(&f.names[i]);
    state_views_free(&f.views);
    free(f.from);
    free(f.used);
    return st;
}

static ddp_status open_and_take(ddp_trainer *t, const char *path, state_which which, ddp_err *err)
{
    ddp_safetensors *file = NULL;
    ddp_status st;

    DDP_TRY(checkpoint_safetensors_open_model(path, &file, err));
    st = take_file(t, path, file, which, err);
    ddp_safetensors_close(file);
    return st;
}

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
    if (open_and_take(t, file, STATE_BASE, err) != DDP_OK) return ddp_fail_context(err, "[checkpoint] init_from");
    if (t->s->launch.rank == 0) ddp_log_line(t->s->log, DDP_LOG_INFO, "the first parameters are those of %s", path);
    return DDP_OK;
}

/* What adapters lie on, and the whole model where there are none. */
static ddp_status first_base(ddp_trainer *t, ddp_err *err)
{
    const char *path = t->s->config->checkpoint->init_from;

    ddp_initial_params(t->s->model.graph, t->s->model.layout, t->s->config->train->seed, t->mem.host.params);
    if (t->mem.buffers != NULL) ddp_initial_buffers(t->s->model.graph, t->mem.host.buffers);
    return path[0] == '\0' ? DDP_OK : init_from(t, path, err);
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
    return open_and_take(t, file, STATE_SAVED, err);
}

ddp_status state_trainer_first(ddp_trainer *t, ddp_err *err)
{
    const char *path = t->s->config->lora->init_from;

    DDP_TRY(first_base(t, err));
    if (!t->s->model.lora.on || path[0] == '\0') return DDP_OK;
    if (take_adapters(t, path, err) != DDP_OK) return ddp_fail_context(err, "[lora] init_from");
    if (t->s->launch.rank == 0) ddp_log_line(t->s->log, DDP_LOG_INFO, "the first adapters are those of %s", path);
    return DDP_OK;
}

ddp_status state_trainer_base(ddp_trainer *t, const char *path, const ddp_checkpoint_meta *meta, ddp_err *err)
{
    char hex[DDP_XXH128_HEX];
    bool adapters = meta->base_hash[0] != '\0';

    if (adapters != t->s->model.lora.on)
        return ddp_fail(err, DDP_ERR_CONFIG, "checkpoint %s has %s, and this run has %s ([lora] rank); %s", path,
                        adapters ? "adapters alone" : "a whole model", adapters ? "none" : "some",
                        adapters ? "set [lora] as it was" : "give the model to them with [checkpoint] init_from");
    if (!adapters) return DDP_OK;
    DDP_TRY(first_base(t, err));
    DDP_TRY(state_base_hash(t, t->mem.host.params, hex, err));
    if (strcmp(hex, meta->base_hash) == 0) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "the adapters of checkpoint %s are of another base: its hash is %s there and %s in this run; set [checkpoint] init_from, and [train] seed where it is drawn, as they were",
        path, meta->base_hash, hex);
}

/* ---- weights to use -------------------------------------------------------------------------------------------- */
static ddp_status take_checkpoint(ddp_trainer *t, ddp_checkpoint *c, ddp_weights *out, ddp_err *err)
{
    bool averaged = c->parts[DDP_PART_EMA] != NULL && t->s->config->optimizer->ema > 0.0 &&
                    t->s->config->eval_data->weights == DDP_WEIGHTS_EMA;
    ddp_status st = state_trainer_base(t, c->path, &c->meta, err);

    if (st == DDP_OK) st = take_file(t, c->path, c->parts[averaged ? DDP_PART_EMA : DDP_PART_MODEL], STATE_SAVED, err);
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
    if (!t->s->model.lora.on) return open_and_take(t, path, STATE_ALL, err);
    DDP_TRY(first_base(t, err));
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
