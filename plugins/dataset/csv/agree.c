/* plugins/dataset/csv/agree.c -- whether two tables give the same inputs and the same target: [data.csv] and [eval.csv]
 * have options and files of their own, and columns of equal number may still mean something else. */
#include "agree.h"
#include "common/file.h"
#include <string.h>

static const char *kind_name(const column *k)
{
    switch (k->kind) {
    case COLUMN_NUMBER: return "a number";
    case COLUMN_CATEGORY: return "categories";
    case COLUMN_CLASS: return "a class";
    case COLUMN_TARGET: return "a number to predict";
    default: return "unused";
    }
}

static ddp_status differ(const column *k, const char *what, const char *a, const char *b, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s of column \"%.60s\" is %.60s in [data.csv] and %.60s in [eval.csv]. "
                    "Write the same fit, validation, id, target, ignore, categorical and the like in both",
                    what, k->name, a, b);
}

/* The first text that the two have not at the same place. */
static ddp_status compare_values(const column *a, const column *b, ddp_err *err)
{
    uint32_t i = 0, most = a->values.count < b->values.count ? a->values.count : b->values.count;

    while (i < most && strcmp(a->values.entries[i].text, b->values.entries[i].text) == 0) i++;
    if (i == a->values.count && i == b->values.count) return DDP_OK;
    return differ(a, a->kind == COLUMN_CLASS ? "a class" : "a category",
                  i < a->values.count ? a->values.entries[i].text : "absent",
                  i < b->values.count ? b->values.entries[i].text : "absent", err);
}

static ddp_status compare_scale(const columns *ca, const column *a, const column *b, ddp_err *err)
{
    char x[32], y[32];

    if (!ca->config->standardize || (a->mean == b->mean && a->squares == b->squares && a->counted == b->counted))
        return DDP_OK;
    (void)snprintf(x, sizeof(x), "%.9g", a->mean);
    (void)snprintf(y, sizeof(y), "%.9g", b->mean);
    return differ(a, "the mean", x, y, err);
}

static ddp_status compare_column(const columns *ca, const column *a, const column *b, ddp_err *err)
{
    if (strcmp(a->name, b->name) != 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "[data.csv] has the column \"%.60s\" where [eval.csv] has \"%.60s\"; "
                        "write the same target and ignore in both",
                        a->name, b->name);
    if (a->kind != b->kind) return differ(a, "the type", kind_name(a), kind_name(b), err);
    if (a->kind == COLUMN_CATEGORY || a->kind == COLUMN_CLASS) return compare_values(a, b, err);
    if (a->indicator != b->indicator)
        return differ(a, "the indicator", a->indicator ? "yes" : "no", b->indicator ? "yes" : "no", err);
    return a->kind == COLUMN_NUMBER ? compare_scale(ca, a, b, err) : DDP_OK;
}

/* `id` may be a name or a number; "": none. */
static const char *id_of(const columns *c) { return c->id == TEXTS_NONE ? "" : c->list[c->id].name; }

static const char *fitted(const csv_config *c) { return c->fit[0] != '\0' ? c->fit : c->path; }

ddp_status columns_split_agrees(const ddp_host *host, const columns *a, const columns *b, ddp_err *err)
{
    const csv_config *x = a->config, *y = b->config;
    data_split data = {x->split, x->validation, id_of(a)}, eval = {y->split, y->validation, id_of(b)};

    if (data_same_file(x->path, y->path)) return data_split_agrees(host, "csv", x->path, &data, &eval, err);
    if (!x->standardize || !y->standardize || !data_same_file(fitted(x), fitted(y))) return DDP_OK;
    data.part = eval.part = SPLIT_TRAIN; /* whose mean and std are those of the columns */
    return data_split_agrees(host, "csv", fitted(x), &data, &eval, err);
}

ddp_status columns_agree(const columns *a, const columns *b, ddp_err *err)
{
    if (a->config->standardize != b->config->standardize || a->config->missing != b->config->missing)
        return ddp_fail(err, DDP_ERR_CONFIG, "standardize or missing is not the same in [data.csv] and in [eval.csv]");
    DDP_TRY(compare_column(a, &a->list[a->target], &b->list[b->target], err));
    for (uint32_t i = 0; i < a->used_count && i < b->used_count; i++)
        DDP_TRY(compare_column(a, &a->list[a->used[i]], &b->list[b->used[i]], err));
    if (a->used_count == b->used_count) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "[data.csv] has %u columns for the inputs, [eval.csv] %u; write the same ignore in both",
                    a->used_count, b->used_count);
}
