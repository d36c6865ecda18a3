/* cli/import/convert.c -- see convert.h; what a single key becomes is in mapping.c. */
#include "cli/import/convert.h"
#include "cli/import/check.h"
#include "cli/import/datasets.h"
#include "cli/import/mapping.h"
#include "cli/import/merge.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const names[SECTIONS] = {
    [SECTION_MODEL] = "model",   [SECTION_MODEL_LLAMA] = "model.llama", [SECTION_LORA] = "lora",
    [SECTION_DATA] = "data",     [SECTION_DATA_SFT] = "data.sft",       [SECTION_DATA_SYNTHETIC] = "data.synthetic",
    [SECTION_EVAL] = "eval",     [SECTION_EVAL_SFT] = "eval.sft",       [SECTION_LOADER] = "loader",
    [SECTION_TRAIN] = "train",   [SECTION_OPTIMIZER] = "optimizer",     [SECTION_CHECKPOINT] = "checkpoint",
    [SECTION_OUTPUT] = "output",
};

/* ---- values ------------------------------------------------------------------------------------------------------ */
/* Of a key that is off, whatever it takes. */
static bool is_off(const char *text)
{
    static const char *const list[] = {"none", "None", "", NULL};

    return convert_is_false(text) || convert_is_in(text, list);
}

static import_section section_of(const char *name)
{
    import_section s = SECTION_MODEL;

    while (s < SECTIONS - 1 && strcmp(names[s], name) != 0) s++;
    return s;
}

static ddp_status set_list(converter *c, import_section section, const char *key, const import_entry *e, ddp_err *err)
{
    ddp_text all = {0};

    for (size_t i = 0; i < e->count; i++) {
        if (e->is_list && (e->values[i][0] == '\0' || strchr(e->values[i], ',') != NULL)) {
            ddp_text_free(&all);
            return convert_fail(c, e, "an item is empty or has a comma, which no list of an INI can hold", err);
        }
        ddp_text_printf(&all, "%s%s", i > 0 ? ", " : "", e->values[i]);
    }
    if (all.failed) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    convert_set_text(c, e, section, key, all.data != NULL ? all.data : "");
    ddp_text_free(&all);
    return DDP_OK;
}

/* ---- keys that take more than their own value ------------------------------------------------------------------ */
static bool is_merge(const converter *c) { return convert_value(c, "export_dir") != NULL; }

static ddp_status convert_method(converter *c, ddp_err *err)
{
    const import_entry *stage = import_find(c->yaml, "stage"), *type = import_find(c->yaml, "finetuning_type");
    const char *kind = convert_value(c, "finetuning_type"), *target = convert_value(c, "lora_target");
    bool is_lora = kind == NULL ? convert_value(c, "stage") != NULL : strcmp(kind, "lora") == 0;

    if (convert_value(c, "stage") != NULL && strcmp(stage->values[0], "sft") != 0 &&
        strcmp(stage->values[0], "pt") != 0)
        return convert_fail(c, stage, "only the stages sft and pt are supported", err);
    if (kind != NULL && !is_lora && strcmp(kind, "full") != 0)
        return convert_fail(c, type, "only lora and full are supported", err);
    if (!is_lora || is_merge(c)) return DDP_OK;
    if (convert_value(c, "lora_rank") != NULL)
        convert_set_count(c, import_find(c->yaml, "lora_rank"), SECTION_LORA, "rank");
    else
        convert_set(c, SECTION_LORA, "rank", "8");
    if (target == NULL || strcmp(target, "all") == 0)
        convert_set(c, SECTION_LORA, "target", "all-linear");
    else
        DDP_TRY(set_list(c, SECTION_LORA, "target", import_find(c->yaml, "lora_target"), err));
    return DDP_OK;
}

static ddp_status convert_model(converter *c, ddp_err *err)
{
    const char *path = convert_value(c, "model_name_or_path");
    const import_entry *e = import_find(c->yaml, "model_name_or_path");

    if (path == NULL)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s:1: there is no model_name_or_path, so that it is no run of LLaMA-Factory; add it, or name another file",
            c->yaml->path);
    convert_set(c, SECTION_MODEL, "plugin", "llama");
    convert_set_text(c, e, SECTION_MODEL_LLAMA, "config", path);
    convert_set_text(c, e, SECTION_CHECKPOINT, "init_from", path);
    return DDP_OK;
}

static void convert_schedule(converter *c)
{
    static const char *const known[] = {"linear", "cosine", NULL}, *const constant[] = {"constant",
                                                                                        "constant_with_warmup", NULL};
    const import_entry *e = import_find(c->yaml, "lr_scheduler_type"), *ratio = import_find(c->yaml, "warmup_ratio");
    const char *type = convert_value(c, "lr_scheduler_type"), *steps = convert_value(c, "max_steps");
    double share = 0, most = 0;
    char text[32];

    if (type == NULL || convert_is_in(type, known))
        convert_set(c, SECTION_OPTIMIZER, "schedule", type != NULL ? type : "linear");
    else if (!convert_is_in(type, constant))
        convert_refuse(c, e, "such a schedule is not supported; see [optimizer] schedule");
    if (ratio == NULL || ratio->count == 0 || !convert_is_number(ratio->values[0], &share)) return;
    if (share == 0 || convert_value(c, "warmup_steps") != NULL) return;
    if (steps == NULL || !convert_is_number(steps, &most) || most <= 0) {
        convert_refuse(c, ratio, "set [optimizer] warmup_steps to this share of the steps that --check names");
        return;
    }
    (void)snprintf(text, sizeof(text), "%.0f", ceil(share * most));
    convert_set(c, SECTION_OPTIMIZER, "warmup_steps", text);
}

static void convert_optimizer(converter *c)
{
    static const char *const adamw[] = {"adamw_torch", "adamw_torch_fused", "adamw_hf", NULL};
    const char *optim = convert_value(c, "optim"), *clip = convert_value(c, "max_grad_norm");
    double norm = 0;
    const char *beta1 = convert_value(c, "adam_beta1"), *beta2 = convert_value(c, "adam_beta2");
    char text[200];

    if (optim != NULL && !convert_is_in(optim, adamw))
        convert_refuse(c, import_find(c->yaml, "optim"), "the optimiser is adamw here; see [optimizer] algorithm");
    convert_set(c, SECTION_OPTIMIZER, "algorithm", "adamw");
    if (convert_value(c, "learning_rate") == NULL) convert_set(c, SECTION_OPTIMIZER, "lr", "5e-5");
    if (convert_value(c, "weight_decay") == NULL) convert_set(c, SECTION_OPTIMIZER, "weight_decay", "0");
    if (clip != NULL && convert_is_number(clip, &norm) && norm <= 0) clip = "0"; /* off, as there */
    convert_set(c, SECTION_OPTIMIZER, "clip_norm", clip != NULL ? clip : "1.0");
    if (beta1 != NULL || beta2 != NULL) {
        (void)snprintf(text, sizeof(text), "%.80s, %.80s", beta1 != NULL ? beta1 : "0.9",
                       beta2 != NULL ? beta2 : "0.999");
        convert_set(c, SECTION_OPTIMIZER, "betas", text);
    }
    convert_schedule(c);
}

static void convert_epochs(converter *c)
{
    const import_entry *epochs = import_find(c->yaml, "num_train_epochs"), *steps = import_find(c->yaml, "max_steps");
    double value = 3, most = 0;

    if (steps != NULL && steps->count > 0) (void)convert_is_number(steps->values[0], &most);
    if (epochs != NULL && epochs->count > 0) (void)convert_is_number(epochs->values[0], &value);
    if (most > 0) { /* the steps alone count */
        convert_set_count(c, steps, SECTION_TRAIN, "max_steps");
        convert_set(c, SECTION_TRAIN, "epochs", "1000000");
    } else if (epochs == NULL || epochs->count == 0)
        convert_set(c, SECTION_TRAIN, "epochs", "3");
    else if (value != floor(value) || value < 1 || value > 1e9)
        convert_refuse(c, epochs, "set [train] epochs to a whole number, and max_steps to where the run ends");
    else
        convert_set_count(c, epochs, SECTION_TRAIN, "epochs");
}

static void convert_train(converter *c)
{
    convert_epochs(c);
    if (convert_value(c, "per_device_train_batch_size") == NULL) convert_set(c, SECTION_TRAIN, "batch_size", "8");
    if (convert_value(c, "seed") != NULL)
        convert_set_count(c, import_find(c->yaml, "seed"), SECTION_TRAIN, "seed");
    else
        convert_set(c, SECTION_TRAIN, "seed", "42");
    if (convert_is_true(convert_value(c, "bf16")) || convert_is_true(convert_value(c, "pure_bf16")))
        convert_set(c, SECTION_TRAIN, "precision", "bf16");
}

static void convert_saves(converter *c)
{
    const char *strategy = convert_value(c, "save_strategy"), *every = convert_value(c, "save_steps");
    const import_entry *e = import_find(c->yaml, "save_strategy");

    if (strategy != NULL && strcmp(strategy, "epoch") == 0)
        convert_refuse(c, e, "checkpoints are written by steps: [checkpoint] every");
    else if (strategy != NULL && strcmp(strategy, "best") == 0)
        convert_refuse(c, e, "see [checkpoint] keep_best");
    else if (strategy != NULL && strcmp(strategy, "steps") != 0)
        return;
    else if (every != NULL)
        convert_set_count(c, import_find(c->yaml, "save_steps"), SECTION_CHECKPOINT, "every");
    else
        convert_set(c, SECTION_CHECKPOINT, "every", "500");
}

static void convert_reports(converter *c)
{
    const import_entry *e = import_find(c->yaml, "report_to");
    bool any = false;

    for (size_t i = 0; e != NULL && i < e->count; i++) {
        if (strcmp(e->values[i], "tensorboard") == 0)
            any = true;
        else if (!is_off(e->values[i]))
            convert_refuse(c, e, "metrics.jsonl is written, and [output] tensorboard");
    }
    if (any) convert_set(c, SECTION_OUTPUT, "tensorboard", "yes");
}

static void convert_output(converter *c)
{
    const char *resume = convert_value(c, "resume_from_checkpoint"), *dir = convert_value(c, "output_dir");
    const import_entry *e = import_find(c->yaml, "output_dir");
    char text[4096];

    if (dir != NULL) {
        (void)snprintf(text, sizeof(text), "%.4000s/checkpoints", dir);
        convert_set_text(c, e, SECTION_CHECKPOINT, "dir", text);
        convert_set_text(c, e, SECTION_OUTPUT, "dir", dir);
    }
    convert_saves(c);
    if (convert_value(c, "save_total_limit") == NULL) convert_set(c, SECTION_CHECKPOINT, "keep", "0");
    if (resume != NULL && !is_off(resume) && !convert_is_true(resume))
        convert_set_text(c, import_find(c->yaml, "resume_from_checkpoint"), SECTION_CHECKPOINT, "resume", resume);
    convert_reports(c);
}

static void convert_eval(converter *c)
{
    const import_entry *strategy = import_find(c->yaml, "eval_strategy");
    const import_entry *steps = import_find(c->yaml, "eval_steps");

    if (strategy == NULL) strategy = import_find(c->yaml, "evaluation_strategy");
    if (strategy == NULL || strategy->count == 0 || c->sections[SECTION_EVAL].length == 0) return;
    convert_set(c, SECTION_TRAIN, "eval_every", convert_is_false(strategy->values[0]) ? "0" : "1");
    if (steps != NULL && steps->count > 0 && strcmp(strategy->values[0], "steps") == 0)
        convert_refuse(c, steps, "evaluations are at the ends of epochs: [train] eval_every");
}

/* ---- all --------------------------------------------------------------------------------------------------------- */
static ddp_status convert_entry(converter *c, const import_entry *e, ddp_err *err)
{
    const import_mapping *m = import_mapping_of(e->key);
    const char *value = e->count > 0 ? e->values[0] : NULL;

    if (m == NULL) return convert_refuse(c, e, "this key is not known here"), DDP_OK;
    if (m->kind == IMPORT_NOTHING) {
        ddp_text_printf(&c->nothing, "line %" PRIu64 ": %s: %s\n", e->line, e->key, m->why);
        return DDP_OK;
    }
    if (m->kind == IMPORT_REFUSED) {
        if (e->is_map || e->count > 1 || (value != NULL && !is_off(value))) convert_refuse(c, e, m->why);
        return DDP_OK;
    }
    if (value == NULL) return DDP_OK;
    switch (m->kind) {
    case IMPORT_COUNT: convert_set_count(c, e, section_of(m->section), m->to); break;
    case IMPORT_LIST: return set_list(c, section_of(m->section), m->to, e, err);
    case IMPORT_BOOL: convert_set(c, section_of(m->section), m->to, convert_is_true(value) ? "yes" : "no"); break;
    case IMPORT_TEXT:
    case IMPORT_NUMBER: convert_set_text(c, e, section_of(m->section), m->to, value); break;
    default: break;
    }
    return DDP_OK;
}

static ddp_status check_all(const converter *c, ddp_err *err)
{
    for (size_t i = 0; i < c->yaml->count; i++) {
        const import_mapping *m = import_mapping_of(c->yaml->all[i].key);

        if (m != NULL) DDP_TRY(convert_check(c, &c->yaml->all[i], m, err));
    }
    return DDP_OK;
}

ddp_status convert(converter *c, ddp_err *err)
{
    DDP_TRY(check_all(c, err));
    DDP_TRY(convert_model(c, err));
    DDP_TRY(convert_method(c, err));
    for (size_t i = 0; i < c->yaml->count; i++) DDP_TRY(convert_entry(c, &c->yaml->all[i], err));
    if (is_merge(c)) return convert_merge(c), DDP_OK;
    DDP_TRY(convert_data(c, err));
    convert_train(c);
    convert_optimizer(c);
    convert_output(c);
    convert_eval(c);
    return DDP_OK;
}

static void print_lines(const char *title, const ddp_text *lines, ddp_text *out)
{
    const char *at = lines->data;

    if (lines->length == 0) return;
    ddp_text_printf(out, "# %s\n", title);
    while (*at != '\0') {
        int length = (int)strcspn(at, "\n");

        ddp_text_printf(out, "#   %.*s\n", length, at);
        at += length + 1;
    }
}

static void print_command(const converter *c, ddp_text *out)
{
    const char *size = convert_value(c, "export_size"), *dir = convert_value(c, "export_dir");
    double gigabytes = 5;

    if (size != NULL) (void)convert_is_number(size, &gigabytes);
    ddp_text_printf(out, "# The merged model: ddpengine merge -c THIS_FILE --shard-size %.0fGB ", gigabytes);
    ddp_text_shell_path(out, convert_has_control(dir) ? "DIR" : dir);
    ddp_text_printf(out, "\n");
}

void convert_print(const converter *c, ddp_text *out)
{
    ddp_text_printf(out, "# From %s, by ddpengine import-yaml.\n", convert_shown(c->yaml->path));
    if (is_merge(c)) print_command(c, out);
    print_lines("Not taken over:", &c->refused, out);
    print_lines("Nothing had to be written for:", &c->nothing, out);
    for (int s = 0; s < SECTIONS; s++)
        if (c->sections[s].length > 0) ddp_text_printf(out, "\n[%s]\n%s", names[s], c->sections[s].data);
    out->failed = out->failed || c->refused.failed || c->nothing.failed;
    for (int s = 0; s < SECTIONS; s++) out->failed = out->failed || c->sections[s].failed;
}

void convert_free(converter *c)
{
    for (int s = 0; s < SECTIONS; s++) ddp_text_free(&c->sections[s]);
    ddp_text_free(&c->refused);
    ddp_text_free(&c->nothing);
}
