/* train/state/weights/fit.c -- see fit.h. As torchvision, Hugging Face or a checkpoint of ours have them.
 *
 * Tensors are matched by name; one that wrappers put in front ("module.", "transformer.") may be there or not. All
 * that does not fit is reported at once: what is missing, what has another shape, what the model does not have. */
#include "train/state/weights/fit.h"
#include "base/log.h"
#include "train/head/pieces.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    if (f->lines++ < LOGGED && f->t->mem.host.params != NULL)
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
    if (f->lines > LOGGED && f->t->mem.host.params != NULL)
        ddp_log_line(f->t->s->log, DDP_LOG_INFO, "and %zu tensors more", f->lines - LOGGED);
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

/* Of an output layer that no rank has all of: what the file lacks of it is 0. */
static ddp_status fill_head(const struct fit *f, uint32_t which, uint64_t first, const ddp_named_tensor *from,
                            uint64_t elements, ddp_err *err)
{
    uint64_t there = state_tensor_elements(from), size = ddp_safetensors_dtype_size(from->dtype);
    float *piece = f->t->local.head->piece;

    for (uint64_t at = 0, n; at < elements; at += n) {
        ddp_named_tensor part = {.dtype = from->dtype, .rank = 1, .data = (const char *)from->data + at * size};

        n = DDP_MIN_OF((at < there ? there : elements) - at, (uint64_t)HEAD_PIECE);
        part.dims[0] = (int64_t)n;
        if (at < there)
            convert(piece, &part);
        else
            memset(piece, 0, n * sizeof(*piece));
        DDP_TRY(head_put(f->t, which, first + at, n, piece, err));
        if (at < there) checkpoint_safetensors_release(f->file, &part);
    }
    return DDP_OK;
}

static ddp_status fill(const struct fit *f, ddp_err *err)
{
    uint64_t first;
    uint32_t which;

    for (size_t i = 0; i < f->views.count; i++) {
        const ddp_named_tensor *from = f->from[i];

        if (from == NULL) continue;
        if (head_finds(f->t, f->views.data[i], &which, &first)) {
            DDP_TRY(fill_head(f, which, first, from, state_tensor_elements(&f->views.tensors[i]), err));
            continue;
        }
        if (state_tensor_elements(from) < state_tensor_elements(&f->views.tensors[i]))
            memset(f->views.data[i], 0, state_tensor_elements(&f->views.tensors[i]) * sizeof(float));
        if (from->dtype == DDP_I64)
            memcpy(f->views.data[i], from->data, sizeof(int64_t));
        else
            convert(f->views.data[i], from);
        checkpoint_safetensors_release(f->file, from);
    }
    return DDP_OK;
}

static ddp_status fit_all(struct fit *f, ddp_err *err)
{
    const ddp_state_arenas a = state_arenas(f->t);

    DDP_TRY(state_model_views(f->t, &a, f->which, &f->views, err));
    f->from = ddp_alloc((f->views.count + 1) * sizeof(*f->from), err);
    f->used = ddp_alloc(ddp_safetensors_count(f->file) + 1, err);
    if (f->from == NULL || f->used == NULL) return err->status;
    match_all(f);
    if (f->lines > 0) return complain(f, err);
    return f->t->mem.host.params != NULL ? fill(f, err) : DDP_OK;
}

ddp_status weights_take(ddp_trainer *t, const char *path, const ddp_safetensors *file, state_which which, ddp_err *err)
{
    struct fit f = {.t = t, .path = path, .file = file, .which = which};
    ddp_status st = fit_all(&f, err);

    for (int i = 0; i < PROBLEMS; i++) ddp_text_free(&f.names[i]);
    state_views_free(&f.views);
    free(f.from);
    free(f.used);
    return st;
}

ddp_status weights_open_and_take(ddp_trainer *t, const char *path, state_which which, ddp_err *err)
{
    ddp_safetensors *file = NULL;
    ddp_status st;

    DDP_TRY(checkpoint_safetensors_open_model(path, &file, err));
    st = weights_take(t, path, file, which, err);
    ddp_safetensors_close(file);
    return st;
}
