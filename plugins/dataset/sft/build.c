/* plugins/dataset/sft/build.c -- see build.h. */
#include "build.h"
#include "common/split.h"
#include "common/temp.h"
#include "pack.h"
#include "source.h"
#include <inttypes.h>

typedef struct builder {
    build *b;
    cache_entry *to;
    temp_file index; /* where each sample begins, until it goes behind the tokens */
    conversation conversation;
    sample_scratch scratch;
    /* rows that are packed together */
    numbers tokens, begins, taken, sample;
    pack_entry *entries;
    size_t entry_capacity;
    uint64_t rows;
} builder;

/* ---- writing ----------------------------------------------------------------------------------------------------- */
static ddp_status write_begin(builder *w, ddp_err *err)
{
    uint8_t raw[8];

    for (size_t k = 0; k < 8; k++) raw[k] = (uint8_t)(w->b->counts.tokens >> 8 * k);
    return temp_write(&w->index, raw, sizeof(raw), "an index may have", err);
}

/* In place. */
static ddp_status write_sample(builder *w, uint32_t *tokens, size_t count, ddp_err *err)
{
    uint8_t *out = (uint8_t *)tokens;

    DDP_TRY(write_begin(w, err));
    for (size_t i = 0; i < count; i++) {
        uint32_t token = tokens[i];

        if ((token & (LABEL_ID | LABEL_EOS)) != 0) w->b->counts.trained++;
        for (size_t k = 0; k < 4; k++) out[4 * i + k] = (uint8_t)(token >> 8 * k);
    }
    w->b->counts.samples++;
    w->b->counts.tokens += count;
    return entry_write(w->to, tokens, 4 * count, err);
}

static ddp_status write_index(builder *w, ddp_err *err)
{
    uint8_t piece[4096];

    DDP_TRY(write_begin(w, err));
    for (uint64_t at = 0; at < w->index.file.size; at += sizeof(piece)) {
        uint64_t left = w->index.file.size - at;
        size_t size = left < sizeof(piece) ? (size_t)left : sizeof(piece);

        DDP_TRY(data_file_read(&w->index.file, piece, size, at, err));
        DDP_TRY(entry_write(w->to, piece, size, err));
    }
    return DDP_OK;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */
static uint32_t end_of(const builder *w, size_t i)
{
    return i + 1 < w->begins.size ? w->begins.data[i + 1] : (uint32_t)w->tokens.size;
}

static ddp_status write_packed(builder *w, ddp_err *err)
{
    w->sample.size = 0;
    for (size_t k = 0; k < w->taken.size; k++) {
        uint32_t i = w->taken.data[k], begin = w->begins.data[i], count = end_of(w, i) - begin;

        DDP_TRY(numbers_reserve(&w->sample, count, err));
        if (count > 0) memcpy(w->sample.data + w->sample.size, w->tokens.data + begin, count * sizeof(uint32_t));
        w->sample.size += count;
    }
    return write_sample(w, w->sample.data, w->sample.size, err);
}

/* A packed sample ends with padding, as LLaMA-Factory's. */
static uint64_t room_of(const sft_config *c) { return c->length - (c->packing != PACKING_NO); }

static ddp_status pack_group(builder *w, ddp_err *err)
{
    size_t count = w->begins.size;

    DDP_TRY(buffer_grow((void **)&w->entries, &w->entry_capacity, sizeof(*w->entries), count, err));
    for (size_t i = 0; i < count; i++) w->entries[i] = (pack_entry){end_of(w, i) - w->begins.data[i], (uint32_t)i};
    pack_sort(w->entries, count);
    while (count > 0) {
        DDP_TRY(pack_next(w->entries, &count, room_of(w->b->config), &w->taken, err));
        DDP_TRY(write_packed(w, err));
    }
    return DDP_OK;
}

/* Texts one after the other, cut into samples; what is left over is not used. */
static ddp_status cut_group(builder *w, ddp_err *err)
{
    size_t length = (size_t)w->b->config->length;

    for (size_t at = 0; at + length <= w->tokens.size; at += length)
        DDP_TRY(write_sample(w, w->tokens.data + at, length, err));
    return DDP_OK;
}

static ddp_status end_group(builder *w, ddp_err *err)
{
    if (w->begins.size > 0) DDP_TRY(w->b->config->format == FORMAT_TEXT ? cut_group(w, err) : pack_group(w, err));
    w->tokens.size = w->begins.size = 0;
    w->rows = 0;
    return DDP_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
static ddp_status make_text(builder *w, bool *truncated, ddp_err *err)
{
    const turn *m = &w->conversation.turns[0];
    const sft_config *c = w->b->config;
    size_t begin = w->tokens.size;

    DDP_TRY(template_encode_text(w->b->template, m->text, m->size, &w->tokens, err));
    *truncated = c->packing == PACKING_NO && w->tokens.size - begin > c->length;
    if (*truncated) w->tokens.size = begin + (size_t)c->length;
    for (size_t i = begin; i < w->tokens.size; i++) w->tokens.data[i] |= LABEL_ID;
    if (w->tokens.size > begin) w->tokens.data[begin] |= SEGMENT_BEGIN;
    return DDP_OK;
}

static ddp_status take_row(builder *w, ddp_err *err)
{
    const sft_config *c = w->b->config;
    const sample_rules rules = {room_of(c), c->train_on_prompt != 0, c->mask_history != 0};
    bool truncated;

    if (w->tokens.size > UINT32_MAX / 2)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset sft: more tokens in pack_rows = %" PRIu64 " rows than are supported; "
                        "choose a smaller pack_rows",
                        c->pack_rows);
    DDP_TRY(numbers_add(&w->begins, (uint32_t)w->tokens.size, err));
    if (c->format == FORMAT_TEXT)
        DDP_TRY(make_text(w, &truncated, err));
    else
        DDP_TRY(sample_make(w->b->template, &w->conversation, &rules, &w->scratch, &w->tokens, &truncated, err));
    if (truncated) w->b->counts.truncated++;
    if (c->packing != PACKING_NO) return DDP_OK;
    DDP_TRY(write_sample(w, w->tokens.data, w->tokens.size, err));
    w->tokens.size = w->begins.size = 0;
    return DDP_OK;
}

static ddp_status refuse(builder *w, const source *s, uint64_t line, const char *why, ddp_err *err)
{
    build *b = w->b;

    if (b->config->skip_bad) {
        if (b->counts.bad++ == 0)
            (void)snprintf(b->first_bad, sizeof(b->first_bad), "%.150s:%" PRIu64 ": %.200s", s->file.path, line, why);
        return DDP_OK;
    }
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset sft: %s:%" PRIu64 ": %s; mend it, or leave such rows out: skip_bad = yes", s->file.path,
                    line, why);
}

/* A hash of the row decides, so that equal rows are in the same part. */
static bool is_wanted(const sft_config *c, const bytes *row)
{
    double at = (double)(XXH3_64bits(row->data, row->size) >> 11) * 0x1p-53;

    return c->split == SPLIT_ALL || (at < c->validation) == (c->split == SPLIT_VALIDATION);
}

static ddp_status read_row(builder *w, const source *s, ddp_err *err)
{
    char why[ROW_WHY];
    json_error_t error;
    json_t *row = json_loadb((const char *)s->row.data, s->row.size,
                             JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    ddp_status status;

    if (row == NULL) {
        (void)snprintf(why, sizeof(why), "no JSON: %.150s", error.text);
        return refuse(w, s, s->row_line + (uint64_t)(error.line > 0 ? error.line - 1 : 0), why, err);
    }
    status = row_read(w->b->format, row, &w->conversation, why, err);
    if (status == DDP_OK) status = why[0] != '\0' ? refuse(w, s, s->row_line, why, err) : take_row(w, err);
    json_decref(row);
    return status;
}

static ddp_status read_file(builder *w, const char *path, ddp_err *err)
{
    const sft_config *c = w->b->config;
    source *s = malloc(sizeof(*s));
    bool more = true;
    ddp_status status;

    if (s == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset sft: out of memory");
    status = source_open(s, path, c->max_row, err);
    for (uint64_t n = 0; status == DDP_OK && (c->limit == 0 || n < c->limit); n++) {
        status = source_next(s, &more, err);
        if (status != DDP_OK || !more) break;
        if (!is_wanted(c, &s->row)) continue;
        w->b->counts.rows++;
        status = read_row(w, s, err);
        if (status == DDP_OK && ++w->rows == c->pack_rows) status = end_group(w, err);
    }
    source_close(s);
    free(s);
    return status;
}

static ddp_status run(builder *w, ddp_err *err)
{
    DDP_TRY(temp_open(&w->index, "sft", w->b->paths[0], UINT64_MAX, err));
    for (size_t i = 0; i < w->b->count; i++) DDP_TRY(read_file(w, w->b->paths[i], err));
    DDP_TRY(end_group(w, err));
    return write_index(w, err);
}

ddp_status build_run(build *b, cache_entry *to, ddp_err *err)
{
    builder w = {.b = b, .to = to, .index.file.fd = -1};
    ddp_status status;

    b->counts = (tokens_counts){0};
    status = run(&w, err);
    temp_close(&w.index);
    conversation_free(&w.conversation);
    sample_scratch_free(&w.scratch);
    free(w.tokens.data);
    free(w.begins.data);
    free(w.taken.data);
    free(w.sample.data);
    free(w.entries);
    return status;
}
