/* plugins/model/layers/keys.c -- see keys.h. */
#include "keys.h"
#include <stdlib.h>

enum { WORD_MAX = 48, CANDIDATES = 64 };

/* ---- words ------------------------------------------------------------------------------------------------------- */
/* Levenshtein's distance, row by row; both words are shorter than WORD_MAX. */
static size_t distance(const char *a, const char *b)
{
    size_t row[WORD_MAX], n = strlen(b), before, above;

    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        before = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t least = before + (a[i - 1] != b[j - 1]);

            above = row[j];
            if (above + 1 < least) least = above + 1;
            if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
            before = above;
            row[j] = least;
        }
    }
    return row[n];
}

const char *net_nearest(const char *word, const char *const *candidates, size_t count, char *buf, size_t capacity)
{
    size_t length = strlen(word), best = 4, d;
    const char *nearest = NULL;

    buf[0] = '\0';
    for (size_t i = 0; i < count && length > 0 && length < WORD_MAX; i++) {
        if (strlen(candidates[i]) >= WORD_MAX) continue;
        d = distance(word, candidates[i]);
        if (d >= best || d >= length) continue;
        best = d;
        nearest = candidates[i];
    }
    if (nearest != NULL) (void)snprintf(buf, capacity, "; did you mean \"%s\"?", nearest);
    return buf;
}

bool net_number(const char *text, double *out)
{
    char *end;

    if (text[0] == '\0' || text[strspn(text, "0123456789+-.eE")] != '\0') return false; /* no hex, inf or nan */
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */
typedef struct place {
    const net_file *file;
    const net_section *section;
    const net_entry *entry;
} place;

static ddp_status bad_value(const place *at, const char *want, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: [%s] %s = %.60s; it must be %s", at->file->path, at->entry->line,
                    at->section->kind, at->entry->key, at->entry->value, want);
}

static bool whole_number(const char *text, const net_key *k, int64_t *out)
{
    double value;

    if (!net_number(text, &value) || value < k->least || value > k->most || value != floor(value)) return false;
    *out = (int64_t)value;
    return true;
}

/* "3x5", height and width; one number is both. */
static ddp_status put_pair(const place *at, const net_key *k, char *field, ddp_err *err)
{
    const char *cross = strchr(at->entry->value, 'x');
    int64_t pair[2];
    char first[32], want[96];

    (void)snprintf(first, sizeof(first), "%.*s", (int)strcspn(at->entry->value, "x"), at->entry->value);
    if (whole_number(first, k, &pair[0]) && whole_number(cross != NULL ? cross + 1 : first, k, &pair[1])) {
        memcpy(field, pair, sizeof(pair));
        return DDP_OK;
    }
    (void)snprintf(want, sizeof(want), "a whole number from %.10g to %.10g, or two as in 3x5: height, width", k->least,
                   k->most);
    return bad_value(at, want, err);
}

static ddp_status put_number(const place *at, const net_key *k, char *field, ddp_err *err)
{
    bool whole = k->type == KEY_INT;
    double value;
    int64_t integer;
    char want[96];

    if (whole && whole_number(at->entry->value, k, &integer)) {
        memcpy(field, &integer, sizeof(integer));
        return DDP_OK;
    }
    if (!whole && net_number(at->entry->value, &value) && value >= k->least && value <= k->most) {
        memcpy(field, &value, sizeof(value));
        return DDP_OK;
    }
    (void)snprintf(want, sizeof(want), "%s from %.10g to %.10g", whole ? "a whole number" : "a number", k->least,
                   k->most);
    return bad_value(at, want, err);
}

/* The index of the value in "a|b|c". */
static ddp_status put_choice(const place *at, const char *range, char *field, ddp_err *err)
{
    const char *value = at->entry->value, *item = range;
    char want[96] = "one of ";
    size_t used = strlen(want);

    for (int32_t i = 0;; i++) {
        size_t length = strcspn(item, "|");

        if (strlen(value) == length && strncmp(item, value, length) == 0) {
            memcpy(field, &i, sizeof(i));
            return DDP_OK;
        }
        if (item[length] == '\0') break;
        item += length + 1;
    }
    for (; *range != '\0' && used + 3 < sizeof(want); range++)
        used += (size_t)snprintf(want + used, sizeof(want) - used, *range == '|' ? ", " : "%c", *range);
    return bad_value(at, want, err);
}

/* What state_dict can hold, and no part of it empty: "layer1.0.conv1". */
static bool is_name(const char *text)
{
    size_t length = strlen(text);

    if (length == 0 || length > NET_NAME_MAX || text[0] == '.' || text[length - 1] == '.') return false;
    if (strstr(text, "..") != NULL) return false;
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")] == '\0';
}

static ddp_status put_value(const place *at, const net_key *k, net_layer *l, ddp_err *err)
{
    char *field = (char *)l + k->offset;

    switch (k->type) {
    case KEY_INT:
    case KEY_REAL: return put_number(at, k, field, err);
    case KEY_PAIR: return put_pair(at, k, field, err);
    case KEY_YES: return put_choice(at, "no|yes", field, err);
    case KEY_CHOICE: return put_choice(at, k->range, field, err);
    case KEY_NAME:
        if (!is_name(at->entry->value))
            return bad_value(at, "a name of letters, digits, _ and -, with dots between its parts, of at most 96 bytes",
                             err);
        break;
    default: break;
    }
    memcpy(field, &at->entry->value, sizeof(at->entry->value));
    return DDP_OK;
}

/* ---- sections ---------------------------------------------------------------------------------------------------- */
/* The kind's own keys and, of a layer, the common ones; fewer than CANDIDATES. */
static size_t keys_of(const net_kind *kind, const net_key **out)
{
    size_t count = 0;

    for (const net_key *k = kind->keys; k != NULL && k->key != NULL; k++) out[count++] = k;
    for (const net_key *k = net_common_keys; kind->role == NET_LAYER && k->key != NULL; k++) out[count++] = k;
    return count;
}

static ddp_status unknown_key(const place *at, const net_key *const *keys, size_t count, ddp_err *err)
{
    const char *names[CANDIDATES];
    char near[96], list[256] = "no keys";
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        names[i] = keys[i]->key;
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, i == 0 ? "%s" : ", %s", names[i]);
    }
    (void)net_nearest(at->entry->key, names, count, near, sizeof(near));
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: [%s] has no key \"%.40s\"%s%s", at->file->path, at->entry->line,
                    at->section->kind, at->entry->key, near[0] != '\0' ? near : "; it has ",
                    near[0] != '\0' ? "" : list);
}

/* The key's text in the section, else its default. */
static ddp_status fill(const net_file *f, const net_section *s, const net_key *k, net_layer *l, ddp_err *err)
{
    static const char *const absent = "";
    net_entry entry = {k->key, k->dflt, s->line};

    for (uint32_t i = s->first; i < s->first + s->count; i++)
        if (strcmp(f->entries[i].key, k->key) == 0) entry = f->entries[i];
    if (entry.value == NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: [%s] needs a key \"%s\"", f->path, s->line, s->kind, k->key);
    if (entry.value[0] != '\0') return put_value(&(place){f, s, &entry}, k, l, err);
    if (k->type == KEY_NAME || k->type == KEY_TEXT) memcpy((char *)l + k->offset, &absent, sizeof(absent));
    return DDP_OK;
}

static ddp_status unknown_kind(const net_file *f, const net_section *s, ddp_err *err)
{
    const char *names[CANDIDATES];
    size_t count = 0;
    char near[96];

    for (const net_kind *k = net_kinds; k->name != NULL && count < CANDIDATES; k++) names[count++] = k->name;
    (void)net_nearest(s->kind, names, count, near, sizeof(near));
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: there is no layer [%.40s]%s%s", f->path, s->line, s->kind, near,
                    near[0] == '\0' ? "; docs/nets.md has the list of layers" : "");
}

static ddp_status read_layer(const net_file *f, const net_section *s, net_layer *l, ddp_err *err)
{
    const net_key *keys[CANDIDATES];
    const net_kind *kind = net_kinds;
    size_t count;

    while (kind->name != NULL && strcmp(kind->name, s->kind) != 0) kind++;
    if (kind->name == NULL) return unknown_kind(f, s, err);
    *l = (net_layer){
        .kind = kind, .line = s->line, .name = "", .from = "", .tied = "", .field = "", .init = "", .weight = ""};
    count = keys_of(kind, keys);
    for (uint32_t i = s->first; i < s->first + s->count; i++) {
        size_t k = 0;

        while (k < count && strcmp(keys[k]->key, f->entries[i].key) != 0) k++;
        if (k == count) return unknown_key(&(place){f, s, &f->entries[i]}, keys, count, err);
    }
    for (size_t k = 0; k < count; k++) DDP_TRY(fill(f, s, keys[k], l, err));
    return DDP_OK;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */
typedef struct order {
    const net_file *file;
    net_layer *layers;
    uint32_t open[NET_REPEAT_DEPTH], depth;
    const net_layer *loss;
} order;

static ddp_status misplaced(const order *o, const net_layer *l, const char *why, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: [%s] %s", o->file->path, l->line, l->kind->name, why);
}

static ddp_status close_repeat(order *o, uint32_t i, ddp_err *err)
{
    const net_layer *l = &o->layers[i];

    if (o->depth == 0) return misplaced(o, l, "without a [repeat] above it", err);
    if (o->open[--o->depth] + 1 == i)
        return misplaced(o, l, "directly below its [repeat]; write the layers between", err);
    o->layers[o->open[o->depth]].end = i;
    return DDP_OK;
}

static ddp_status put_in_order(order *o, uint32_t i, ddp_err *err)
{
    net_layer *l = &o->layers[i];

    switch (l->kind->role) {
    case NET_INPUT: return i == 0 ? DDP_OK : misplaced(o, l, "must be the first section", err);
    case NET_END: return close_repeat(o, i, err);
    case NET_REPEAT:
        if (o->depth == NET_REPEAT_DEPTH) return misplaced(o, l, "is nested more than 8 deep", err);
        o->open[o->depth++] = i;
        break;
    case NET_LOSS:
        if (o->depth > 0) return misplaced(o, l, "is inside a [repeat]; write the [end] before it", err);
        if (i == 0 || (i == 1 && l[-1].kind->role == NET_INPUT))
            return misplaced(o, l, "has no layer above it; write the layers between [input] and [loss]", err);
        if (o->loss != NULL) return misplaced(o, l, "is there for the second time; a net has one", err);
        o->loss = l;
        return DDP_OK;
    case NET_METRIC: return o->loss != NULL ? DDP_OK : misplaced(o, l, "is before [loss]; write it below", err);
    default: break;
    }
    return o->loss == NULL ? DDP_OK : misplaced(o, l, "is below [loss]; layers end before it", err);
}

static ddp_status check_order(const net_file *f, net_layer *layers, ddp_err *err)
{
    order o = {.file = f, .layers = layers};

    for (uint32_t i = 0; i < f->section_count; i++) DDP_TRY(put_in_order(&o, i, err));
    if (o.depth > 0) return misplaced(&o, &layers[o.open[o.depth - 1]], "has no [end]", err);
    if (o.loss == NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s has no [loss]; end it with: [loss] type = cross_entropy", f->path);
    return DDP_OK;
}

ddp_status net_layers_read(const net_file *f, net_layer **out, ddp_err *err)
{
    net_layer *layers = calloc(f->section_count, sizeof(*layers));
    ddp_status st = DDP_OK;

    if (layers == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory", f->path);
    for (uint32_t i = 0; i < f->section_count && st == DDP_OK; i++)
        st = read_layer(f, &f->sections[i], &layers[i], err);
    if (st == DDP_OK) st = check_order(f, layers, err);
    if (st != DDP_OK) {
        free(layers);
        return st;
    }
    *out = layers;
    return DDP_OK;
}
