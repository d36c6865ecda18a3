/* cli/import/datasets.c -- see datasets.h; after LLaMA-Factory's data/parser.py. */
#include "cli/import/datasets.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

enum { COLUMNS = 7, TAGS = 7 };
static const char *const columns[COLUMNS] = {"prompt", "query", "response", "history", "system", "messages", "tools"};
static const char *const tags[TAGS] = {"role_tag",        "content_tag",  "user_tag",  "assistant_tag",
                                       "observation_tag", "function_tag", "system_tag"};
/* What LLaMA-Factory takes where an entry has no columns and tags, and what [data.sft] does, by its format. */
static const char *const their_columns[COLUMNS] = {"instruction", "input", "output", "", "", "conversations", ""};
static const char *const their_tags[TAGS] = {"from", "value", "human", "gpt", "observation", "function_call", "system"};
static const struct {
    const char *name, *columns[COLUMNS], *tags[TAGS];
} formats[] = {
    {"alpaca", {"instruction", "input", "output", "history", "system", "", "tools"}, {0}},
    {"sharegpt",
     {"", "", "", "", "system", "conversations", "tools"},
     {"from", "value", "human", "gpt", "observation", "function_call", "system"}},
    {"messages",
     {"", "", "", "", "system", "messages", "tools"},
     {"role", "content", "user", "assistant", "tool", "function_call", "system"}},
    {"text", {"text", "", "", "", "", "", ""}, {0}},
};

typedef struct lookup {
    converter *c;
    const import_entry *entry; /* of dataset or eval_dataset */
    const char *folder;
    json_t *info;
    ddp_text files, how; /* how: format, columns, tags and limit, equal for all */
} lookup;

static ddp_status fail_dataset(const lookup *l, const char *name, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%" PRIu64 ": dataset \"%.80s\": %s; change that, or name another dataset",
                    l->c->yaml->path, l->entry->line, convert_shown(name), what);
}

/* ---- an entry ---------------------------------------------------------------------------------------------------- */
/* The name of a column or tag; "": none. Where an entry has `group`, what it does not name there is none for columns
 * and tags alike. */
static const char *name_of(const json_t *entry, const char *group, const char *key, const char *without)
{
    const json_t *names = json_object_get(entry, group);
    const char *name = json_string_value(json_object_get(names, key));

    if (!json_is_object(names)) return without;
    return name != NULL ? name : "";
}

/* false: a name that cannot stand in a list. */
static bool add_names(ddp_text *out, const char *option, const json_t *entry, const char *group,
                      const char *const *keys, const char *const *theirs, const char *const *ours, size_t count)
{
    bool any = false;

    for (size_t i = 0; i < count; i++) {
        const char *name = name_of(entry, group, keys[i], theirs[i]);

        if (ours[i][0] == '\0' || strcmp(name, ours[i]) == 0) continue; /* "": a format without it */
        if (!convert_fits_list(name)) return false;
        ddp_text_printf(out, "%s%s:%s", any ? ", " : option, keys[i], name);
        any = true;
    }
    if (any) ddp_text_printf(out, "\n");
    return true;
}

static size_t format_of(const lookup *l, const json_t *entry)
{
    const char *stage = convert_value(l->c, "stage");
    const char *formatting = json_string_value(json_object_get(entry, "formatting"));

    if (stage != NULL && strcmp(stage, "pt") == 0) return 3;
    if (formatting == NULL || strcmp(formatting, "alpaca") == 0) return 0;
    if (strcmp(formatting, "openai") == 0) return 2;
    return strcmp(name_of(entry, "tags", "role_tag", "from"), "role") == 0 ? 2 : 1;
}

static ddp_status describe(const lookup *l, const char *name, const json_t *entry, ddp_text *how, ddp_err *err)
{
    size_t f = format_of(l, entry);
    json_int_t limit = json_integer_value(json_object_get(entry, "num_samples"));
    const char *most = convert_value(l->c, "max_samples");
    double value = 0;

    ddp_text_printf(how, "format = %s\n", formats[f].name);
    if (!add_names(how, "columns = ", entry, "columns", columns, their_columns, formats[f].columns, COLUMNS) ||
        (formats[f].tags[0] != NULL &&
         !add_names(how, "tags = ", entry, "tags", tags, their_tags, formats[f].tags, TAGS)))
        return fail_dataset(l, name, "the name of a column or tag has a comma or another text that no INI can hold",
                            err);
    if (most != NULL && convert_is_number(most, &value))
        ddp_text_printf(how, "limit = %.0f\n", value);
    else if (limit > 0)
        ddp_text_printf(how, "limit = %" JSON_INTEGER_FORMAT "\n", limit);
    return DDP_OK;
}

static bool is_read(const char *name)
{
    const char *end = strrchr(name, '.');

    return end != NULL && (strcmp(end, ".json") == 0 || strcmp(end, ".jsonl") == 0);
}

static ddp_status add_file(lookup *l, const char *name, const json_t *entry, ddp_err *err)
{
    const char *file = json_string_value(json_object_get(entry, "file_name"));
    char path[4096];
    struct stat info;

    if (json_object_get(entry, "hf_hub_url") != NULL || json_object_get(entry, "ms_hub_url") != NULL ||
        json_object_get(entry, "om_hub_url") != NULL || json_object_get(entry, "script_url") != NULL ||
        json_object_get(entry, "cloud_file_name") != NULL)
        return fail_dataset(
            l, name, "it is on a hub or made by a script; save it as a .jsonl file and name that as file_name", err);
    if (json_is_true(json_object_get(entry, "ranking")))
        return fail_dataset(l, name, "it has chosen and rejected answers, and preferences are not supported", err);
    if (file == NULL) return fail_dataset(l, name, "its entry in dataset_info.json has no file_name", err);
    (void)snprintf(path, sizeof(path), "%.2000s/%.2000s", l->folder, file);
    if (!convert_fits_list(path))
        return fail_dataset(l, name, "the path of its file has a comma or another text that no INI can hold", err);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        ddp_text_printf(&l->files, "%s%s/*.json*", l->files.length > 0 ? ", " : "", path);
        return DDP_OK;
    }
    if (!is_read(file)) return fail_dataset(l, name, "only .json and .jsonl files are read", err);
    ddp_text_printf(&l->files, "%s%s", l->files.length > 0 ? ", " : "", path);
    return DDP_OK;
}

static ddp_status add_dataset(lookup *l, const char *name, ddp_err *err)
{
    const json_t *entry = json_object_get(l->info, name);
    ddp_text how = {0};
    ddp_status status = DDP_OK;

    if (!json_is_object(entry)) return fail_dataset(l, name, "dataset_info.json has no entry of this name", err);
    DDP_TRY(add_file(l, name, entry, err));
    status = describe(l, name, entry, &how, err);
    if (status == DDP_OK && l->how.length > 0 && strcmp(l->how.data, how.data != NULL ? how.data : "") != 0)
        status = fail_dataset(
            l, name, "its columns or format are not those of the one before; give each a run, or the same form", err);
    if (l->how.length == 0) ddp_text_append(&l->how, how.data, how.length);
    ddp_text_free(&how);
    return status;
}

/* ---- all of a key ------------------------------------------------------------------------------------------------ */
static ddp_status add_names_of(lookup *l, const char *text, ddp_err *err)
{
    char name[256];

    while (*text != '\0') {
        size_t length = strcspn(text, ","), begin = strspn(text, " \t"), end = length;

        while (end > begin && (text[end - 1] == ' ' || text[end - 1] == '\t')) end--;
        if (end > begin && end - begin >= sizeof(name))
            return fail_dataset(l, text + begin, "a name has at most 255 bytes", err);
        if (end > begin) {
            (void)snprintf(name, sizeof(name), "%.*s", (int)(end - begin), text + begin);
            DDP_TRY(add_dataset(l, name, err));
        }
        text += length + (text[length] == ',');
    }
    return DDP_OK;
}

static ddp_status fail_info(const lookup *l, const char *path, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%" PRIu64 ": %.200s%.150s; dataset_dir is the folder that has it",
                    l->c->yaml->path, l->entry->line, convert_shown(path), what);
}

static ddp_status read_info(lookup *l, ddp_err *err)
{
    json_error_t error;
    char path[4096], what[200];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%.4000s/dataset_info.json", l->folder);
    file = fopen(path, "re");
    if (file == NULL) {
        (void)snprintf(what, sizeof(what), ": %s", strerror(errno));
        return fail_info(l, path, what, err);
    }
    l->info = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    (void)fclose(file);
    if (json_is_object(l->info)) return DDP_OK;
    (void)snprintf(what, sizeof(what), ":%d: %.150s", l->info != NULL || error.line < 1 ? 1 : error.line,
                   l->info != NULL ? "no object" : error.text);
    return fail_info(l, path, what, err);
}

static ddp_status look_up(lookup *l, ddp_err *err)
{
    ddp_status status = read_info(l, err);

    for (size_t i = 0; i < l->entry->count && status == DDP_OK; i++) status = add_names_of(l, l->entry->values[i], err);
    json_decref(l->info);
    return status;
}

/* What is equal for training and evaluation. */
static void set_common(converter *c, import_section section)
{
    static const struct {
        const char *key, *to;
    } flags[] = {{"train_on_prompt", "train_on_prompt"}, {"mask_history", "mask_history"}},
      counts[] = {{"cutoff_len", "length"}, {"preprocessing_batch_size", "pack_rows"}};
    const char *stage = convert_value(c, "stage"), *template = convert_value(c, "template");
    const char *packing = convert_value(c, "packing"), *system = convert_value(c, "default_system");
    bool is_pt = stage != NULL && strcmp(stage, "pt") == 0;

    if (!is_pt && template != NULL)
        convert_set_text(c, import_find(c->yaml, "template"), section, "template", template);
    else if (!is_pt)
        convert_set(c, section, "template", "default");
    convert_set_text(c, import_find(c->yaml, "model_name_or_path"), section, "tokenizer",
                     convert_value(c, "model_name_or_path"));
    for (size_t i = 0; i < DDP_COUNT(flags); i++)
        if (convert_value(c, flags[i].key) != NULL)
            convert_set(c, section, flags[i].to, convert_is_true(convert_value(c, flags[i].key)) ? "yes" : "no");
    for (size_t i = 0; i < DDP_COUNT(counts); i++)
        if (convert_value(c, counts[i].key) != NULL)
            convert_set_count(c, import_find(c->yaml, counts[i].key), section, counts[i].to);
    if (system != NULL) convert_set_text(c, import_find(c->yaml, "default_system"), section, "default_system", system);
    if (convert_is_true(convert_value(c, "neat_packing")))
        convert_set(c, section, "packing", "separate");
    else if (convert_is_true(packing) || (is_pt && packing == NULL))
        convert_set(c, section, "packing", "yes");
    convert_set(c, section, "skip_bad", "yes");
}

static ddp_status set_section(converter *c, import_section section, const char *key, ddp_err *err)
{
    const char *folder = convert_value(c, "dataset_dir");
    lookup l = {.c = c, .entry = import_find(c->yaml, key), .folder = folder != NULL ? folder : "data"};
    ddp_status status;

    if (l.entry == NULL || l.entry->count == 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s:1: there is no dataset; add dataset: NAME, of dataset_info.json",
                        c->yaml->path);
    status = look_up(&l, err);
    if (status == DDP_OK && (l.files.failed || l.how.failed || l.files.data == NULL || l.how.data == NULL))
        status = ddp_fail(err, DDP_ERR_CONFIG, "%s:%" PRIu64 ": %s names nothing; write the name of a dataset",
                          c->yaml->path, l.entry->line, key);
    if (status == DDP_OK) {
        convert_set_text(c, l.entry, section, "files", l.files.data);
        ddp_text_append(&c->sections[section], l.how.data, l.how.length);
        set_common(c, section);
    }
    ddp_text_free(&l.files);
    ddp_text_free(&l.how);
    return status;
}

static const char *known_template(const char *name)
{
    static const char *const known[] = {"default", "alpaca", "chatml",        "llama2",
                                        "llama3",  "qwen",   "qwen3_nothink", "smollm2"};

    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (name == NULL || strcmp(known[i], name) == 0) return name;
    return NULL;
}

ddp_status convert_data(converter *c, ddp_err *err)
{
    const import_entry *size = import_find(c->yaml, "val_size"), *mix = import_find(c->yaml, "mix_strategy");
    const import_entry *template = import_find(c->yaml, "template");
    const char *share = convert_value(c, "val_size");
    double value = 0;
    char text[32];

    if (share != NULL) (void)convert_is_number(share, &value);
    convert_set(c, SECTION_DATA, "plugin", "sft");
    DDP_TRY(set_section(c, SECTION_DATA_SFT, "dataset", err));
    if (template != NULL && template->count > 0 && known_template(template->values[0]) == NULL)
        convert_refuse(c, template,
                       "there is no such template; write it as a file, as conf/templates has them, and name its path");
    if (mix != NULL && mix->count > 0 && strcmp(mix->values[0], "concat") != 0)
        convert_refuse(c, mix, "the datasets follow each other, and the sampler shuffles all");
    if (value >= 1) convert_refuse(c, size, "set validation in [data.sft] and [eval.sft] to a share of the rows");
    if (convert_value(c, "eval_dataset") != NULL) {
        convert_set(c, SECTION_EVAL, "plugin", "sft");
        return set_section(c, SECTION_EVAL_SFT, "eval_dataset", err);
    }
    if (!(value > 0 && value < 1)) return DDP_OK;
    convert_set(c, SECTION_EVAL, "plugin", "sft");
    DDP_TRY(set_section(c, SECTION_EVAL_SFT, "dataset", err));
    (void)snprintf(text, sizeof(text), "%.9g", value);
    convert_set(c, SECTION_DATA_SFT, "split", "train");
    convert_set(c, SECTION_DATA_SFT, "validation", text);
    convert_set(c, SECTION_EVAL_SFT, "split", "validation");
    convert_set(c, SECTION_EVAL_SFT, "validation", text);
    return DDP_OK;
}
