/* plugins/dataset/csv/csv.c -- tables as CSV: a row is a sample.
 *
 * A sample is "input", f32 (F): numbers as they are or standardised, categories one-hot; and "label", i64 (), for a
 * target of classes, or "target", f32 (1), for a number. The file is read twice at the start, once to find out what its
 * columns are (fit.c) and once for its values, which stay in memory, 4 bytes for a number and as many for a category.
 * table.c takes the file apart, scan.c leaves out what is no good row. */
#include "agree.h"
#include "common/dataset.h"
#include "describe.h"
#include "fit.h"
#include "scan.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 2 /* into the fingerprint: bump it when the same files and options give other samples */ };

struct ddp_dataset {
    data_base base;
    columns columns;
    uint32_t *words; /* by row: the class or the target's bits, then for each used column its bits, NaN: missing, or its
                        category, TEXTS_NONE: none of them */
    size_t stride, used, room; /* in words */
    uint64_t bad, bad_line, unknown;
    char *description, bad_why[200];
    const char *path;
    const ddp_host *host; /* for a warning; may be NULL */
    bool is_file;         /* of open_file: the columns are the other dataset's */
};

static const ddp_option options[] = {
    {.key = "path",
     .dflt = "",
     .doc = "CSV file: rows of cells, in quotes where needed, in UTF-8.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(csv_config, path)},
    {.key = "fit",
     .dflt = "",
     .doc = "File from which types, categories, classes, mean and std of the columns are taken; empty: path. "
            "For a separate test file in [eval.csv], write the training file here.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(csv_config, fit)},
    {.key = "target",
     .dflt = "",
     .doc = "Column to predict. Here and below, a column is its name, or its number from 1 if none has that name.",
     .type = DDP_OPT_STRING,
     .offset = offsetof(csv_config, target)},
    {.key = "target_type",
     .dflt = "auto",
     .range = "auto|class|number",
     .doc = "class: label from 0, classes sorted by value or by bytes; number: target f32. "
            "auto: class for texts and for whole numbers of at most 100 different values.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(csv_config, target_type)},
    {.key = "header",
     .dflt = "yes",
     .doc = "Whether the first row has the names of the columns; without it they are called 1, 2, ..",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(csv_config, header)},
    {.key = "delimiter",
     .dflt = "comma",
     .range = "comma|semicolon|tab|pipe",
     .doc = "What separates the cells.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(csv_config, delimiter)},
    {.key = "ignore",
     .dflt = "",
     .doc = "Columns that are no input.",
     .type = DDP_OPT_STRING,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(csv_config, ignore)},
    {.key = "categorical",
     .dflt = "",
     .doc = "Columns that are categories although they hold numbers.",
     .type = DDP_OPT_STRING,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(csv_config, categorical)},
    {.key = "numeric",
     .dflt = "",
     .doc = "Columns that must hold numbers: a row with a text there is a bad row.",
     .type = DDP_OPT_STRING,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(csv_config, numeric)},
    {.key = "max_categories",
     .dflt = "1000",
     .range = "2..65536",
     .doc = "Most different values of a column of categories; each is one input.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(csv_config, max_categories)},
    {.key = "missing",
     .dflt = "error",
     .range = "error|mean|zero",
     .doc = "What a missing value is. error: the row is a bad row; mean, zero: that number, and no category. "
            "Standardised after that.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(csv_config, missing)},
    {.key = "na_values",
     .dflt = "",
     .doc = "Texts that stand for a missing value, beside an empty cell, NA, N/A, NaN, null and None.",
     .type = DDP_OPT_STRING,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(csv_config, na_values)},
    {.key = "indicator",
     .dflt = "no",
     .doc = "Whether a number that is missing in some rows is followed by one more input, 1 where it is missing.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(csv_config, indicator)},
    {.key = "standardize",
     .dflt = "yes",
     .doc = "Whether numbers are shifted and scaled to mean 0 and standard deviation 1 over the training rows.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(csv_config, standardize)},
    {.key = "split",
     .dflt = "all",
     .range = "all|train|validation",
     .doc = "Which rows to read; a hash of the row, or of its id, says to which part it belongs.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(csv_config, split)},
    {.key = "validation",
     .dflt = "0",
     .range = "0..1",
     .doc = "Share of the rows that is the validation part. Write the same in [data.csv] and [eval.csv]: "
            "mean and std are of the other rows.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(csv_config, validation)},
    {.key = "id",
     .dflt = "",
     .doc = "Column whose value decides about the part instead of the whole row; it is no input.",
     .type = DDP_OPT_STRING,
     .offset = offsetof(csv_config, id)},
    {.key = "skip_bad",
     .dflt = "no",
     .doc = "Whether bad rows are left out, with one warning, instead of ending the run.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(csv_config, skip_bad)},
};

/* ---- open: values ------------------------------------------------------------------------------------------------ */
static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static ddp_status grow(ddp_dataset *d, ddp_err *err)
{
    size_t room;
    void *words;

    if (d->room - d->used >= d->stride) return DDP_OK;
    if (d->room > SIZE_MAX / 8 / sizeof(*d->words)) return data_no_memory("csv", err);
    room = d->room * 2 + 64 * d->stride;
    words = realloc(d->words, room * sizeof(*d->words));
    if (words == NULL)
        return ddp_fail(err, DDP_ERR_NOMEM, "dataset csv: %s: no memory for the values of more than %zu rows", d->path,
                        d->used / d->stride);
    d->words = words;
    d->room = room;
    return DDP_OK;
}

static ddp_status store_target(ddp_dataset *d, scan *s, uint32_t *word, bool *good, ddp_err *err)
{
    const columns *c = &d->columns;
    const column *k = &c->list[c->target];
    const scan_cell *cell = &s->cells[c->target];
    char room[32];
    table_cell name;

    *good = true;
    if (k->kind == COLUMN_TARGET && cell->what == CELL_NUMBER) {
        *word = bits_of((float)cell->number);
        return DDP_OK;
    }
    name = column_class_name(&cell->cell, cell->what == CELL_NUMBER, cell->number, room);
    *word = k->kind == COLUMN_CLASS ? texts_find(&k->values, name.text, name.length) : TEXTS_NONE;
    if (s->predicts && k->kind != COLUMN_CLASS) *word = bits_of(NAN);
    *good = *word != TEXTS_NONE || s->predicts;
    if (*good) return DDP_OK;
    return scan_refuse(s, err, "the target, column %.60s, is \"%.40s\", which %s", k->name, cell->cell.text,
                       k->kind == COLUMN_CLASS ? "is no class of the file that fit names" : "is no number");
}

static ddp_status store_input(ddp_dataset *d, scan *s, uint32_t i, uint32_t *word, bool *good, ddp_err *err)
{
    const columns *c = &d->columns;
    const column *k = &c->list[i];
    const scan_cell *cell = &s->cells[i];

    if (k->kind == COLUMN_CATEGORY) {
        *word = TEXTS_NONE;
        if (cell->what == CELL_MISSING) return DDP_OK;
        *word = texts_find(&k->values, cell->cell.text, cell->cell.length);
        if (*word == TEXTS_NONE) d->unknown++;
        return DDP_OK;
    }
    if (cell->what == CELL_TEXT) {
        *good = false;
        return scan_refuse(s, err, "column %.60s is \"%.40s\", which is no number", k->name, cell->cell.text);
    }
    *word = cell->what == CELL_MISSING ? bits_of(NAN) : bits_of((float)column_scale(c, k, cell->number));
    return DDP_OK;
}

static ddp_status store_row(ddp_dataset *d, scan *s, ddp_err *err)
{
    const columns *c = &d->columns;
    int32_t split = c->config->split;
    uint32_t *row;
    bool good;

    if (!s->predicts && split != SPLIT_ALL && s->validation != (split == SPLIT_VALIDATION)) return DDP_OK;
    DDP_TRY(grow(d, err));
    row = d->words + d->used;
    DDP_TRY(store_target(d, s, row, &good, err));
    for (uint32_t i = 0; i < c->used_count && good; i++)
        DDP_TRY(store_input(d, s, c->used[i], row + 1 + i, &good, err));
    if (!good) return DDP_OK;
    d->used += d->stride;
    d->base.length++;
    return DDP_OK;
}

static ddp_status load(ddp_dataset *d, ddp_err *err)
{
    columns *c = &d->columns;
    scan s;
    bool more = true;
    ddp_status status = d->is_file ? scan_open_file(&s, d->path, c, err) : scan_open(&s, d->path, c->config, c, err);

    d->stride = 1 + (size_t)c->used_count;
    while (status == DDP_OK && more) {
        status = scan_next(&s, &more, err);
        if (status == DDP_OK && more) status = store_row(d, &s, err);
    }
    if (status == DDP_OK && d->base.length == 0 && d->is_file)
        status = ddp_fail(err, DDP_ERR_DATA, "dataset csv: %s holds no row to predict", d->path);
    else if (status == DDP_OK && d->base.length == 0)
        status = ddp_fail(err, DDP_ERR_DATA,
                          "dataset csv: %s: none of its %" PRIu64 " good rows is left for this split; "
                          "look at split, validation = %g and id",
                          d->path, s.rows, c->config->validation);
    d->bad = s.bad;
    d->bad_line = s.bad_line;
    memcpy(d->bad_why, s.bad_why, sizeof(d->bad_why));
    scan_close(&s);
    return status;
}

/* ---- open: the rest ---------------------------------------------------------------------------------------------- */
static void describe_fields(ddp_dataset *d)
{
    const column *k = &d->columns.list[d->columns.target];

    d->base.fields[0] =
        (ddp_field){.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {(int64_t)d->columns.inputs}, .min = 1};
    d->base.fields[1] = k->kind == COLUMN_CLASS
                            ? (ddp_field){.name = "label", .dtype = DDP_I64, .max = (int64_t)k->values.count - 1}
                            : (ddp_field){.name = "target", .dtype = DDP_F32, .rank = 1, .dims = {1}, .min = 1};
}

static void hash_column(XXH3_state_t *hash, const columns *c, const column *k)
{
    double numbers[4] = {k->kind, k->indicator, column_scale(c, k, 0.0), column_scale(c, k, 1.0)};

    if (k->kind == COLUMN_NUMBER) (void)XXH3_64bits_update(hash, numbers, sizeof(numbers));
    for (uint32_t i = 0; i < k->values.count && (k->kind == COLUMN_CATEGORY || k->kind == COLUMN_CLASS); i++)
        (void)XXH3_64bits_update(hash, k->values.entries[i].text, (size_t)k->values.entries[i].length + 1);
}

static uint64_t hash_all(const ddp_dataset *d)
{
    const columns *c = &d->columns;
    uint64_t head[] = {FORMAT, d->base.length, c->inputs, c->used_count, (uint64_t)c->config->missing};
    XXH3_state_t hash;

    data_hash_begin(&hash, 0);
    (void)XXH3_64bits_update(&hash, head, sizeof(head));
    hash_column(&hash, c, &c->list[c->target]);
    for (uint32_t i = 0; i < c->used_count; i++) hash_column(&hash, c, &c->list[c->used[i]]);
    (void)XXH3_64bits_update(&hash, d->words, d->used * sizeof(*d->words));
    return XXH3_64bits_digest(&hash);
}

static void dataset_close(ddp_dataset *d)
{
    if (!d->is_file) columns_free(&d->columns);
    free(d->words);
    free(d->description);
    free(d);
}

static ddp_status check_config(const csv_config *c, ddp_err *err)
{
    if (c->path[0] == '\0') return ddp_fail(err, DDP_ERR_CONFIG, "dataset csv: path is not set; name a CSV file");
    if (c->target[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset csv: target is not set; name the column to predict");
    if (c->split != SPLIT_ALL && c->validation <= 0.0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset csv: split = %s needs the share of the validation part, as in validation = 0.1",
                        c->split == SPLIT_TRAIN ? "train" : "validation");
    return DDP_OK;
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const csv_config *c = config;
    void *words;

    DDP_TRY(check_config(c, err));
    d->path = c->path;
    DDP_TRY(columns_fit(&d->columns, c, err));
    DDP_TRY(load(d, err));
    words = realloc(d->words, d->used * sizeof(*d->words));
    if (words != NULL) d->words = words;
    describe_fields(d);
    d->base.fingerprint = hash_all(d);
    d->description = columns_describe(&d->columns, c->path, d->base.length, d->bad);
    return d->description != NULL ? DDP_OK : data_no_memory("csv", err);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    ddp_dataset *d;

    DDP_TRY(data_open("csv", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err));
    d = *out;
    d->host = host;
    if (host == NULL) return DDP_OK;
    if (d->bad > 0)
        host->log(host->ctx, DDP_LOG_WARN, __FILE__, __LINE__,
                  "dataset csv: %s: %" PRIu64 " bad row%s left out; the first is line %" PRIu64 ": %s", d->path, d->bad,
                  d->bad == 1 ? " is" : "s are", d->bad_line, d->bad_why);
    if (d->unknown > 0)
        host->log(host->ctx, DDP_LOG_WARN, __FILE__, __LINE__,
                  "dataset csv: %s: %" PRIu64 " cells have a category that %s does not have; they count as none",
                  d->path, d->unknown, d->columns.config->fit);
    return DDP_OK;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
static float *write_input(const ddp_dataset *d, const column *k, uint32_t word, float *x)
{
    float value = float_of(word);

    if (k->kind == COLUMN_CATEGORY) {
        memset(x, 0, k->values.count * sizeof(*x));
        if (word != TEXTS_NONE) x[word] = 1.0f;
        return x + k->values.count;
    }
    if (isnan(value))
        value = (float)column_scale(&d->columns, k, d->columns.config->missing == MISSING_MEAN ? k->mean : 0.0);
    *x++ = value;
    if (k->indicator) *x++ = isnan(float_of(word)) ? 1.0f : 0.0f;
    return x;
}

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    const columns *c = &d->columns;
    const uint32_t *row;
    float *x = buffers[0];
    int64_t label;

    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    row = d->words + index * d->stride;
    for (uint32_t i = 0; i < c->used_count; i++) x = write_input(d, &c->list[c->used[i]], row[1 + i], x);
    label = row[0] != TEXTS_NONE ? (int64_t)row[0] : DDP_NO_LABEL;
    if (c->list[c->target].kind == COLUMN_CLASS)
        memcpy(buffers[1], &label, sizeof(label));
    else
        memcpy(buffers[1], row, sizeof(*row));
    return DDP_OK;
}

static const char *dataset_describe(const ddp_dataset *d) { return d->description; }

static ddp_status dataset_agrees(const ddp_dataset *d, const ddp_dataset *eval, ddp_err *err)
{
    DDP_TRY(columns_split_agrees(d->host, &d->columns, &eval->columns, err));
    return columns_agree(&d->columns, &eval->columns, err);
}

static const char *dataset_class_name(const ddp_dataset *d, uint32_t field, int64_t value)
{
    const column *k = &d->columns.list[d->columns.target];

    if (field != 1 || k->kind != COLUMN_CLASS || value < 0 || value >= (int64_t)k->values.count) return NULL;
    return k->values.entries[value].text;
}

static ddp_status dataset_open_file(const ddp_dataset *d, const char *path, ddp_dataset **out, ddp_err *err)
{
    ddp_dataset *f = calloc(1, sizeof(*f));

    if (f == NULL) return data_no_memory("csv", err);
    f->base = d->base;
    f->base.length = 0;
    f->columns = d->columns;
    f->path = path;
    f->is_file = true;
    if (load(f, err) != DDP_OK) {
        dataset_close(f);
        return err->status;
    }
    *out = f;
    return DDP_OK;
}

static const ddp_dataset_ops ops = {DATA_OPS,
                                    .open = dataset_open,
                                    .close = dataset_close,
                                    .read = dataset_read,
                                    .describe = dataset_describe,
                                    .agrees = dataset_agrees,
                                    .class_name = dataset_class_name,
                                    .open_file = dataset_open_file};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    .install = "Debian package libcsv3",
    DDP_PLUGIN_TAIL("csv", "0.1.0", "tables as CSV: numbers and categories, a class or a number to predict",
                    DDP_OPTIONS(options, csv_config), ops),
};
