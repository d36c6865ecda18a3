/* cli/checkpoint/diff.c -- see diff.h. How tensors are compared is checkpoint/tensor_compare.c. */
#include "cli/checkpoint/diff.h"
#include "checkpoint/settings_compare.h"
#include "checkpoint/tensor_compare.h"
#include "cli/cli.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { MOST_SETTINGS = 100, MOST_TENSORS = 20 };

/* Rows of a comparison of texts. */
struct rows {
    ddp_text text;
    size_t count;
};

/* From there on: names and values of files are printed. */
static void clean_from(ddp_text *out, size_t from)
{
    if (!out->failed) ddp_clean_text(out->data + from);
}

static void add_row(void *ctx, const char *key, const char *a, const char *b)
{
    struct rows *r = ctx;
    size_t from = r->text.length;

    if (r->count++ >= MOST_SETTINGS) return;
    ddp_text_printf(&r->text, "  %-32s %s | %s", key, a != NULL ? a : "(absent)", b != NULL ? b : "(absent)");
    clean_from(&r->text, from);
    ddp_text_append(&r->text, "\n", 1);
}

/* The position and the like, in the form of settings. */
static void meta_text(const ddp_checkpoint_meta *m, ddp_text *out)
{
    ddp_text_printf(out, "step = %" PRIu64 "\nepoch = %" PRIu64 "\ncursor = %" PRIu64 "\nmicro_steps = %" PRIu64 "\n",
                    m->step, m->epoch, m->cursor, m->micro_steps);
    ddp_text_printf(
        out, "world_size = %" PRIu64 "\nbatch_size = %" PRIu64 "\naccumulate = %" PRIu64 "\nseed = %" PRIu64 "\n",
        m->world_size, m->batch_size, m->accumulate, m->seed);
    ddp_text_printf(out, "bucket_size = %" PRIu64 "\nmodel = %s\nhook = %s\nfinished = %s\n", m->bucket_size, m->model,
                    m->hook, m->finished ? "yes" : "no");
}

static ddp_status compare_meta(const ddp_checkpoint *a, const ddp_checkpoint *b, struct rows *rows, ddp_err *err)
{
    ddp_text x = {0}, y = {0};
    ddp_status st;

    meta_text(&a->meta, &x);
    meta_text(&b->meta, &y);
    st = x.failed || y.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory")
                              : ddp_checkpoint_compare_settings(x.data, y.data, add_row, rows, err);
    ddp_text_free(&y);
    ddp_text_free(&x);
    return st;
}

static void append_shape(ddp_text *out, const ddp_named_tensor *t)
{
    ddp_text_printf(out, "%s [", ddp_safetensors_dtype_name(t->dtype));
    for (uint32_t i = 0; i < t->rank; i++) ddp_text_printf(out, "%s%" PRId64, i > 0 ? ", " : "", t->dims[i]);
    ddp_text_append(out, "]", 1);
}

static void tensor_row(const ddp_tensor_difference *d, ddp_text *out)
{
    static const char *const parts[DDP_PARTS] = {"model", "optimizer", "hook", "ema", "local"};
    const ddp_named_tensor *t = d->a != NULL ? d->a : d->b;
    size_t from = out->length;

    ddp_text_printf(out, "  %-9s %s ", parts[d->part], t->name);
    clean_from(out, from);
    append_shape(out, t);
    if (!d->comparable && d->a != NULL && d->b != NULL) {
        ddp_text_printf(out, " | ");
        append_shape(out, d->b);
    } else if (!d->comparable) {
        ddp_text_printf(out, ": only in %s", d->a != NULL ? "A" : "B");
    } else {
        ddp_text_printf(out, ": %" PRIu64 " of %" PRIu64 " elements differ", d->differing, d->elements);
        if (!isnan(d->largest)) ddp_text_printf(out, ", max abs %.6g", d->largest);
        if (d->not_finite > 0) ddp_text_printf(out, ", %" PRIu64 " not finite", d->not_finite);
    }
    ddp_text_append(out, "\n", 1);
}

static void more_row(size_t count, size_t most, ddp_text *out)
{
    if (count > most) ddp_text_printf(out, "  ... and %zu more\n", count - most);
}

static void print_rows(const char *title, const struct rows *r, ddp_text *out)
{
    if (r->count == 0) return;
    ddp_text_printf(out, "\n%s\n", title);
    ddp_text_append(out, r->text.data, r->text.length);
    more_row(r->count, MOST_SETTINGS, out);
}

static void print_tensors(const ddp_tensor_differences *d, ddp_text *out)
{
    if (d->count == 0) return;
    ddp_text_printf(out, "\ntensors, the largest difference first\n");
    for (size_t i = 0; i < d->count && i < MOST_TENSORS; i++) tensor_row(&d->items[i], out);
    more_row(d->count, MOST_TENSORS, out);
}

static ddp_status compare(const ddp_checkpoint *a, const ddp_checkpoint *b, ddp_text *out, ddp_err *err)
{
    struct rows position = {0}, settings = {0};
    ddp_tensor_differences tensors = {0};
    bool both = a->settings != NULL && b->settings != NULL;
    ddp_status st = compare_meta(a, b, &position, err);

    if (st == DDP_OK && both) st = ddp_checkpoint_compare_settings(a->settings, b->settings, add_row, &settings, err);
    if (st == DDP_OK) st = ddp_checkpoint_compare_tensors(a, b, &tensors, err);
    if (st == DDP_OK) {
        ddp_text_printf(out, "A = %s\nB = %s\nposition: %zu differ\n", a->path, b->path, position.count);
        if (both)
            ddp_text_printf(out, "settings: %zu differ\n", settings.count);
        else
            ddp_text_printf(out, "settings: not compared, %s has none\n", a->settings == NULL ? "A" : "B");
        ddp_text_printf(
            out,
            "tensors: %zu in both, of which %zu differ; %zu of another dtype or shape, %zu only in A, %zu only in B\n",
            tensors.common, tensors.differing, tensors.misfits, tensors.only_a, tensors.only_b);
        print_rows("position: A | B", &position, out);
        print_rows("settings: A | B", &settings, out);
        print_tensors(&tensors, out);
        out->failed |= position.text.failed || settings.text.failed;
    }
    ddp_tensor_differences_free(&tensors);
    ddp_text_free(&settings.text);
    ddp_text_free(&position.text);
    return st;
}

int cli_checkpoint_diff(const char *a, const char *b, ddp_log *log)
{
    ddp_checkpoint x, y = {0};
    ddp_text out = {0};
    ddp_err err = {0};
    ddp_status st = ddp_checkpoint_open(a, &x, &err);

    if (st == DDP_OK) {
        st = ddp_checkpoint_open(b, &y, &err);
        if (st == DDP_OK) st = ddp_checkpoint_join(&x, &err);
        if (st == DDP_OK) st = ddp_checkpoint_join(&y, &err);
        if (st == DDP_OK) st = compare(&x, &y, &out, &err);
        ddp_checkpoint_close(&y);
        ddp_checkpoint_close(&x);
    }
    if (st == DDP_OK) return cli_print_text(&out, log);
    ddp_text_free(&out);
    (void)ddp_fail_as(&err, DDP_EXIT_CHECKPOINT);
    return cli_print_error(&err, log);
}
