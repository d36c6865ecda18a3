/* plugins/dataset/sft/sft.c -- conversations for fine-tuning a language model: rows of JSON in the formats of
 * LLaMA-Factory, written by a template, tokenized, truncated and packed with its results.
 *
 * Sample i is "input", i64 (T): its tokens and padding; "target", i64 (T): the token that follows each where it
 * counts for the loss, else -100 (DDP_NO_LABEL). Packed samples have "position", i64 (T), which begins at 0 with each
 * conversation; those packed separately have "segment", i64 (T): 1, 2, .. by conversation, 0 for padding. The samples
 * lie in a file that is made once (tokens.h); of it nothing is in memory. */
#include "common/dataset.h"
#include "common/entry.h"
#include "common/split.h"
#include "common/tokenizer/text.h"
#include "sample.h"
#include "tokens.h"
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>

enum { CHUNK = 2048, INPUT = 0, TARGET, POSITION, SEGMENT, FIELDS };

struct ddp_dataset {
    data_base base;
    const ddp_host *host;
    const sft_config *config;
    tokenizer *tokenizer;
    template template;
    row_format format;
    tokens_file tokens;
    char **paths;
    size_t path_count, path_capacity;
    char description[1200];
};

static const ddp_option options[] = {
    {.key = "files",
     .dflt = "",
     .doc =
         "Files to read, in this order: a JSON array of rows, or a row in each line. A name with *, ? or [] stands for all files that match, in alphabetical order.",
     .type = DDP_OPT_PATH,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(sft_config, files)},
    {.key = "format",
     .dflt = "alpaca",
     .range = "alpaca|sharegpt|messages|text",
     .doc =
         "alpaca: instruction, input, output, system, history. sharegpt: conversations of from and value. messages: of role and content. text: texts to go on with, without a template.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(sft_config, format)},
    {.key = "template",
     .dflt = "default",
     .doc =
         "How a conversation is written: default, alpaca, chatml, llama2, llama3, qwen, qwen3_nothink, smollm2, or the path of a file as conf/templates has them.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(sft_config, template)},
    {.key = "tokenizer",
     .dflt = "",
     .doc =
         "A folder or file: tokenizer.json, vocab.json with merges.txt, or tokenizer.model. A folder's tokenizer_config.json names the tokens of begin, end and padding.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(sft_config, tokenizer)},
    {.key = "length",
     .dflt = "2048",
     .range = "2..1048576",
     .doc = "Number of tokens of a sample: longer conversations are truncated, shorter ones padded (cutoff_len).",
     .type = DDP_OPT_UINT,
     .offset = offsetof(sft_config, length)},
    {.key = "packing",
     .dflt = "no",
     .range = "no|yes|separate",
     .doc =
         "yes: several conversations share a sample. separate: and do not see each other, where the model takes the field segment (neat_packing).",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(sft_config, packing)},
    {.key = "pack_rows",
     .dflt = "1000",
     .range = "1..100000",
     .doc = "Rows among which those that share a sample are chosen (preprocessing_batch_size).",
     .type = DDP_OPT_UINT,
     .offset = offsetof(sft_config, pack_rows)},
    {.key = "train_on_prompt",
     .dflt = "no",
     .doc = "Whether the loss is on the prompts too, not on the answers alone.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(sft_config, train_on_prompt)},
    {.key = "mask_history",
     .dflt = "no",
     .doc = "Whether the loss is on the last answer of a conversation alone.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(sft_config, mask_history)},
    {.key = "default_system",
     .dflt = "",
     .doc = "The system's message of rows without one; empty: the template's.",
     .type = DDP_OPT_STRING,
     .offset = offsetof(sft_config, default_system)},
    {.key = "columns",
     .dflt = "",
     .doc =
         "Other keys of a row, as in prompt:question, response:answer; of prompt, query, response, history, system, messages, tools. NAME: alone: there is none.",
     .type = DDP_OPT_STRING,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(sft_config, columns)},
    {.key = "tags",
     .dflt = "",
     .doc =
         "Other keys and roles of a message, as in role_tag:speaker; of role_tag, content_tag, user_tag, assistant_tag, observation_tag, function_tag, system_tag.",
     .type = DDP_OPT_STRING,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(sft_config, tags)},
    {.key = "split",
     .dflt = "all",
     .range = "all|train|validation",
     .doc = "Which rows to read; a hash of the row says to which part it belongs.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(sft_config, split)},
    {.key = "validation",
     .dflt = "0",
     .range = "0..1",
     .doc = "Share of the rows that is the validation part. Write the same in [data.sft] and [eval.sft].",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(sft_config, validation)},
    {.key = "limit",
     .dflt = "0",
     .range = "0..",
     .doc = "Read at most this many rows of each file, the first ones; 0 reads all (max_samples).",
     .type = DDP_OPT_UINT,
     .offset = offsetof(sft_config, limit)},
    {.key = "skip_bad",
     .dflt = "no",
     .doc = "Whether bad rows are left out, with one warning, instead of ending the run.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(sft_config, skip_bad)},
    {.key = "max_row",
     .dflt = "16MiB",
     .range = "1..256MiB",
     .doc = "Most bytes of a row; a longer one ends the run.",
     .type = DDP_OPT_SIZE,
     .offset = offsetof(sft_config, max_row)},
    {.key = "cache",
     .dflt = "",
     .doc =
         "Folder for the samples, which are made once, 4 bytes a token; without it they lie beside the first file, as FILE.KEY.sft.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(sft_config, cache)},
};

/* ---- files ------------------------------------------------------------------------------------------------------- */
static ddp_status add_path(ddp_dataset *d, const char *path, ddp_err *err)
{
    DDP_TRY(buffer_grow((void **)&d->paths, &d->path_capacity, sizeof(*d->paths), d->path_count + 1, err));
    d->paths[d->path_count] = strdup(path);
    return d->paths[d->path_count++] != NULL ? DDP_OK : data_no_memory("sft", err);
}

static ddp_status add_matches(ddp_dataset *d, const char *pattern, ddp_err *err)
{
    glob_t found;
    ddp_status status = DDP_OK;
    int code;

    if (strpbrk(pattern, "*?[") == NULL) return add_path(d, pattern, err);
    code = glob(pattern, 0, NULL, &found);
    if (code != 0)
        return ddp_fail(err, DDP_ERR_DATA, "dataset sft: %s \"%s\"; look at files",
                        code == GLOB_NOMATCH ? "no file matches" : "nothing can be searched for by", pattern);
    for (size_t i = 0; i < found.gl_pathc && status == DDP_OK; i++)
        if (!entry_is_one(found.gl_pathv[i], "sft")) status = add_path(d, found.gl_pathv[i], err);
    globfree(&found);
    return status;
}

static ddp_status list_files(ddp_dataset *d, ddp_err *err)
{
    const char *const *patterns = d->config->files.items;

    for (size_t i = 0; i < d->config->files.count; i++) DDP_TRY(add_matches(d, patterns[i], err));
    if (d->path_count == 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset sft: files is not set; name one or more .json or .jsonl files");
    return DDP_OK;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status check_options(const sft_config *c, const template *t, ddp_err *err)
{
    if (c->mask_history && c->train_on_prompt)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset sft: mask_history and train_on_prompt do not go together; set one of them to no");
    if (c->train_on_prompt && t->efficient_eos)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "dataset sft: template \"%.100s\" has efficient_eos, with which train_on_prompt is not possible; set it to no",
            c->template);
    if (c->format == FORMAT_TEXT && c->packing == PACKING_SEPARATE)
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset sft: packing = separate is not for format = text; set it to yes");
    if (c->split != SPLIT_ALL && c->validation <= 0.0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset sft: split = %s needs the share of the validation part, as in validation = 0.1",
                        c->split == SPLIT_TRAIN ? "train" : "validation");
    return DDP_OK;
}

static ddp_status open_tokenizer(ddp_dataset *d, ddp_err *err)
{
    ddp_err why = {0};
    ddp_status status;

    if (d->config->tokenizer[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset sft: tokenizer is not set; name the folder of the model, which has tokenizer.json");
    status = tokenizer_open(d->config->tokenizer, &d->tokenizer, &why);
    if (status != DDP_OK) return ddp_fail(err, status, "dataset sft: %s", why.msg);
    if (tokenizer_vocabulary(d->tokenizer) > SAMPLE_ID)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset sft: tokenizer \"%.200s\" has token numbers beyond %d; name another",
                        d->config->tokenizer, SAMPLE_ID);
    return DDP_OK;
}

static ddp_status open_template(ddp_dataset *d, ddp_err *err)
{
    const sft_config *c = d->config;

    DDP_TRY(template_open(c->template, &d->template, err));
    if (c->default_system[0] != '\0') {
        d->template.default_system.size = 0;
        DDP_TRY(bytes_add(&d->template.default_system, c->default_system, strlen(c->default_system), err));
    }
    if (c->format != FORMAT_TEXT) return template_bind(&d->template, d->tokenizer, c->template, err);
    d->template.tokenizer = d->tokenizer;
    template_choose_pad(&d->template, tokenizer_eos(d->tokenizer));
    return tokenizer_scratch_new(&d->template.scratch, err);
}

static void describe_fields(ddp_dataset *d)
{
    static const char *const names[FIELDS] = {"input", "target", "position", "segment"};
    const sft_config *c = d->config;

    data_describe_tokens(&d->base, c->length, tokenizer_vocabulary(d->tokenizer));
    d->base.fields[TARGET].min = DDP_NO_LABEL; /* of which there are any number in a sample */
    d->base.field_count = c->packing == PACKING_NO || c->format == FORMAT_TEXT ? 2 : c->packing == PACKING_YES ? 3 : 4;
    for (uint32_t i = POSITION; i < d->base.field_count; i++) {
        d->base.fields[i] = d->base.fields[INPUT];
        d->base.fields[i].name = names[i];
        d->base.fields[i].max = (int64_t)c->length - (i == POSITION);
    }
}

static void describe(ddp_dataset *d)
{
    const tokens_counts *n = &d->tokens.counts;
    char *text = d->description;
    size_t size = sizeof(d->description), used;

    used = (size_t)snprintf(text, size,
                            "%.300s: %" PRIu64 " rows, %" PRIu64 " samples of at most %" PRIu64 " tokens, %" PRIu64
                            " tokens in all, %" PRIu64 " of them to be learned",
                            d->paths[0], n->rows, n->samples, d->config->length, n->tokens, n->trained);
    if (n->truncated > 0)
        used += (size_t)snprintf(text + used, size - used, "; %" PRIu64 " rows truncated", n->truncated);
    if (n->bad > 0) used += (size_t)snprintf(text + used, size - used, "; %" PRIu64 " bad rows left out", n->bad);
    for (char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = '?';
    (void)snprintf(text + used, size - used, "\n");
}

static ddp_status check_samples(const ddp_dataset *d, ddp_err *err)
{
    const tokens_counts *n = &d->tokens.counts;

    if (n->samples == 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset sft: %s: %" PRIu64 " rows, %" PRIu64
                        " of them bad, make no sample; look at files, split and length",
                        d->paths[0], n->rows, n->bad);
    if (n->trained == 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset sft: %s: no token counts for the loss: the prompts alone fill length = %" PRIu64
                        "; choose a greater one",
                        d->paths[0], d->config->length);
    return DDP_OK;
}

static void dataset_close(ddp_dataset *d)
{
    data_file_close(&d->tokens.file);
    template_close(&d->template);
    tokenizer_close(d->tokenizer);
    for (size_t i = 0; i < d->path_count; i++) free(d->paths[i]);
    free(d->paths);
    free(d);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const sft_config *c = config;

    d->config = c;
    DDP_TRY(list_files(d, err));
    DDP_TRY(row_format_set(&d->format, c->format, &c->columns, &c->tags, err));
    DDP_TRY(open_tokenizer(d, err));
    DDP_TRY(open_template(d, err));
    DDP_TRY(check_options(c, &d->template, err));
    DDP_TRY(tokens_open(c, &d->format, &d->template, (const char *const *)d->paths, d->path_count, &d->tokens, err));
    DDP_TRY(check_samples(d, err));
    d->base.length = d->tokens.counts.samples;
    d->base.fingerprint = d->tokens.counts.key;
    describe_fields(d);
    describe(d);
    return DDP_OK;
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    ddp_dataset *d;

    DDP_TRY(data_open("sft", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err));
    d = *out;
    d->host = host;
    if (host != NULL && d->tokens.counts.bad > 0)
        host->log(host->ctx, DDP_LOG_WARN, __FILE__, __LINE__,
                  "dataset sft: %" PRIu64 " bad row%s left out; the first is %s", d->tokens.counts.bad,
                  d->tokens.counts.bad == 1 ? " is" : "s are", d->tokens.first_bad);
    return DDP_OK;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
typedef struct place {
    int64_t *fields[FIELDS]; /* NULL: the dataset has no such field */
    uint64_t at;             /* of the next token */
    int64_t segment, position, eos;
    bool separate;
} place;

/* False: there is no such token. */
static bool put_token(const ddp_dataset *d, place *p, uint32_t token)
{
    int64_t id = token & SAMPLE_ID, label = DDP_NO_LABEL;
    bool begins = (token & SEGMENT_BEGIN) != 0;

    if ((token & LABEL_ID) != 0) label = id;
    if ((token & LABEL_EOS) != 0) label = p->eos;
    if (begins) {
        p->segment++;
        p->position = 0;
        if (p->separate) label = DDP_NO_LABEL; /* the end of one does not predict the next */
    }
    p->fields[INPUT][p->at] = id;
    if (p->at > 0) p->fields[TARGET][p->at - 1] = label;
    if (p->fields[POSITION] != NULL) p->fields[POSITION][p->at] = p->position;
    if (p->fields[SEGMENT] != NULL) p->fields[SEGMENT][p->at] = p->segment;
    p->position++;
    p->at++;
    return id <= d->base.fields[INPUT].max;
}

static void pad(const ddp_dataset *d, const place *p)
{
    uint64_t length = d->config->length;

    p->fields[TARGET][p->at > 0 ? p->at - 1 : 0] = DDP_NO_LABEL;
    for (uint64_t i = p->at; i < length; i++) {
        p->fields[INPUT][i] = d->template.pad;
        p->fields[TARGET][i] = DDP_NO_LABEL;
        if (p->fields[POSITION] != NULL) p->fields[POSITION][i] = 0;
        if (p->fields[SEGMENT] != NULL) p->fields[SEGMENT][i] = 0;
    }
}

static uint32_t word_of(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static ddp_status fail_damaged(const ddp_dataset *d, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "dataset sft: \"%s\" is damaged; remove it, it is made again",
                    d->tokens.file.path);
}

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    place p = {.fields = {buffers[INPUT], buffers[TARGET]},
               .eos = d->template.eos,
               .separate = d->config->packing == PACKING_SEPARATE};
    uint64_t begin, count;
    uint8_t raw[4 * CHUNK];

    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    for (uint32_t i = POSITION; i < d->base.field_count; i++) p.fields[i] = buffers[i];
    DDP_TRY(tokens_find(&d->tokens, index, &begin, &count, err));
    if (count > d->config->length) return fail_damaged(d, err);
    for (uint64_t done = 0; done < count; done += CHUNK) {
        uint64_t here = count - done < CHUNK ? count - done : CHUNK;

        DDP_TRY(data_file_read(&d->tokens.file, raw, (size_t)here * 4, TOKENS_HEADER + 4 * (begin + done), err));
        for (uint64_t i = 0; i < here; i++)
            if (!put_token(d, &p, word_of(raw + 4 * i))) return fail_damaged(d, err);
    }
    pad(d, &p);
    return DDP_OK;
}

static const char *dataset_describe(const ddp_dataset *d) { return d->description; }

static ddp_status dataset_agrees(const ddp_dataset *d, const ddp_dataset *eval, ddp_err *err)
{
    data_split a = {d->config->split, d->config->validation, ""},
               b = {eval->config->split, eval->config->validation, ""};

    if (tokenizer_hash(d->tokenizer) != tokenizer_hash(eval->tokenizer))
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "[data.sft] and [eval.sft] have different tokenizers, \"%.150s\" and \"%.150s\"; write the same in both",
            d->config->tokenizer, eval->config->tokenizer);
    /* a row's part follows from the row itself: the files may stand in any order, beside others */
    for (size_t i = 0; i < d->path_count; i++)
        for (size_t k = 0; k < eval->path_count; k++)
            if (data_same_file(d->paths[i], eval->paths[k]))
                return data_split_agrees(d->host, "sft", d->paths[i], &a, &b, err);
    return DDP_OK;
}

static ddp_status dataset_encode(const ddp_dataset *d, const char *text, size_t size, int64_t *ids, size_t capacity,
                                 size_t *count, ddp_err *err)
{
    return text_encode(d->tokenizer, false, text, size, ids, capacity, count, err);
}

static ddp_status dataset_decode(const ddp_dataset *d, const int64_t *ids, size_t count, char *text, size_t capacity,
                                 size_t *size, ddp_err *err)
{
    return text_decode(d->tokenizer, false, ids, count, text, capacity, size, err);
}

static const ddp_dataset_ops ops = {DATA_OPS,
                                    .open = dataset_open,
                                    .close = dataset_close,
                                    .read = dataset_read,
                                    .describe = dataset_describe,
                                    .agrees = dataset_agrees,
                                    .encode = dataset_encode,
                                    .decode = dataset_decode};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    DDP_PLUGIN_TAIL("sft", "0.1.0", "conversations for fine-tuning, by LLaMA-Factory's formats and templates",
                    DDP_OPTIONS(options, sft_config), ops),
};
