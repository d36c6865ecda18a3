/* session/groups.c -- see groups.h. */
#include "session/groups.h"
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN = 256, NEAR_SHOWN = 4, SHOWN = 8, WORDS = 512, NAME = 128 };

/* ---- what a pattern could have meant ----------------------------------------------------------------------------- */
/* "h.0.ln_1.weight" as "h.*.ln_1.weight", which stands for those of all layers. */
static void generalise(const char *name, char out[NAME])
{
    size_t n = 0;

    while (*name != '\0' && n + 2 < NAME) {
        size_t length = strcspn(name, "."), digits = strspn(name, "0123456789");

        if (length > 0 && digits == length)
            out[n++] = '*';
        else
            for (size_t i = 0; i < length && n + 2 < NAME; i++) out[n++] = name[i];
        name += length;
        if (*name == '.') out[n++] = *name++;
    }
    out[n] = '\0';
}

/* Whether an earlier parameter has the same general name. */
static bool was_before(const ddp_session *s, uint32_t p)
{
    char own[NAME], other[NAME];

    generalise(s->model.params[p].name, own);
    for (uint32_t i = 0; i < p; i++) {
        generalise(s->model.params[i].name, other);
        if (strcmp(own, other) == 0) return true;
    }
    return false;
}

/* `part` NULL: all; else those that have this between their dots. */
static void list_names(const ddp_session *s, const char *part, size_t most, ddp_text *out)
{
    size_t shown = 0;

    for (uint32_t p = 0; p < s->model.param_count; p++) {
        char name[NAME];

        if (was_before(s, p)) continue;
        generalise(s->model.params[p].name, name);
        if (part != NULL && strstr(name, part) == NULL) continue;
        if (shown++ < most) ddp_text_printf(out, "%s%s", shown > 1 ? ", " : "", name);
    }
    if (shown > most) ddp_text_printf(out, ", ..");
}

/* What stands between the dots of a name and is nearest to the pattern; NULL. */
static const char *nearest_part(const ddp_session *s, const char *pattern, char buf[NAME])
{
    const char *parts[WORDS];
    char word[NAME], *held = calloc(WORDS, NAME);
    size_t n = 0, length = 0;
    const char *near;

    if (held == NULL) return NULL;
    for (; *pattern != '\0' && length + 1 < NAME; pattern++)
        if (strchr("*?[]", *pattern) == NULL && !(length == 0 && *pattern == '.')) word[length++] = *pattern;
    while (length > 0 && word[length - 1] == '.') length--;
    word[length] = '\0';
    for (uint32_t p = 0; p < s->model.param_count; p++)
        for (const char *at = s->model.params[p].name; n < WORDS && *at != '\0'; at += strspn(at, ".")) {
            size_t part = strcspn(at, ".");

            (void)snprintf(held + n * NAME, NAME, "%.*s", (int)part, at);
            parts[n] = held + n * NAME;
            n++;
            at += part;
        }
    near = ddp_nearest(word, parts, n);
    if (near != NULL) ddp_copy_text(buf, NAME, near);
    free(held);
    return near != NULL ? buf : NULL;
}

static ddp_status fits_nothing(const ddp_session *s, const char *pattern, ddp_err *err)
{
    char buf[NAME];
    const char *near = nearest_part(s, pattern, buf);
    ddp_text names = {0};

    list_names(s, near, near != NULL ? NEAR_SHOWN : SHOWN, &names);
    (void)ddp_fail(err, DDP_ERR_CONFIG, "\"%s\" names no parameter; %s %s; * is any text", pattern,
                   near != NULL ? "near are" : "there are", names.data != NULL ? names.data : "none");
    ddp_text_free(&names);
    return err->status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
/* What PyTorch's users leave without weight decay: biases, and the scale and shift of norms. */
static bool is_vector(const ddp_param_info *p) { return p->rank < 2; }

static ddp_status no_decay(ddp_session *s, const char *pattern, ddp_err *err)
{
    bool automatic = strcmp(pattern, "auto") == 0, fits = automatic;

    for (uint32_t p = 0; p < s->model.param_count; p++) {
        const ddp_param_info *i = &s->model.params[p];

        if (automatic ? !is_vector(i) : fnmatch(pattern, i->name, 0) != 0) continue;
        s->model.groups[p].weight_decay = 0.0;
        fits = true;
    }
    return fits ? DDP_OK : fits_nothing(s, pattern, err);
}

/* "*.head.*:10"; of several patterns that fit a parameter the first one counts. */
static ddp_status lr_factor(ddp_session *s, const char *text, bool *taken, ddp_err *err)
{
    const char *colon = strrchr(text, ':');
    char pattern[PATTERN], *end = NULL;
    bool fits = false;
    double factor;

    factor = colon != NULL && colon[1] != '\0' ? strtod(colon + 1, &end) : NAN;
    if (end == NULL || *end != '\0' || !(factor >= 0.0 && factor <= 1e9) || colon == text ||
        (size_t)(colon - text) >= sizeof(pattern))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "\"%s\" is no pattern and factor; write for example head.*:10, or embed*:0.1", text);
    ddp_copy_text(pattern, DDP_MIN_OF(sizeof(pattern), (size_t)(colon - text) + 1), text);
    for (uint32_t p = 0; p < s->model.param_count; p++) {
        if (fnmatch(pattern, s->model.params[p].name, 0) != 0) continue;
        fits = true;
        if (!taken[p]) s->model.groups[p].lr_factor = factor;
        taken[p] = true;
    }
    return fits ? DDP_OK : fits_nothing(s, pattern, err);
}

static ddp_status at_key(const ddp_session *s, const char *key, ddp_err *err)
{
    (void)ddp_fail_context(err, "[optimizer] %s", key);
    return session_at_key(s, "optimizer", key, err);
}

/* LoRA+ (Hayou et al., 2024): B learns faster than A. */
static void lora_plus(ddp_session *s)
{
    const ddp_adapted *adapted;
    uint32_t count = ddp_graph_adapted(s->model.graph, &adapted);

    for (uint32_t i = 0; i < count; i++) s->model.groups[adapted[i].b].lr_factor *= s->config->lora->plus_ratio;
}

static ddp_status read_all(ddp_session *s, bool *taken, ddp_err *err)
{
    const struct ddp_optimizer_config *o = s->config->optimizer;
    const char *const *no = o->no_decay.items, *const *factors = o->lr_factor.items;

    for (uint32_t p = 0; p < s->model.param_count; p++)
        s->model.groups[p] = (ddp_param_group){.lr_factor = 1.0, .weight_decay = o->weight_decay};
    for (size_t i = 0; i < o->no_decay.count; i++)
        if (no_decay(s, no[i], err) != DDP_OK) return at_key(s, "no_decay", err);
    for (size_t i = 0; i < o->lr_factor.count; i++)
        if (lr_factor(s, factors[i], taken, err) != DDP_OK) return at_key(s, "lr_factor", err);
    lora_plus(s);
    return DDP_OK;
}

ddp_status session_groups_choose(ddp_session *s, ddp_err *err)
{
    bool *taken;
    ddp_status st;

    if (s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    taken = ddp_alloc(s->model.param_count + 1, err);
    s->model.groups = ddp_alloc((s->model.param_count + 1) * sizeof(*s->model.groups), err);
    st = taken == NULL || s->model.groups == NULL ? err->status : read_all(s, taken, err);
    free(taken);
    return st;
}

void session_groups_free(ddp_session *s)
{
    free(s->model.groups);
    s->model.groups = NULL;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */
bool ddp_same_group(const ddp_param_group *a, const ddp_param_group *b)
{
    return a->lr_factor == b->lr_factor && a->weight_decay == b->weight_decay;
}

static bool is_first_of_group(const ddp_session *s, uint32_t p)
{
    if (s->model.params[p].frozen) return false;
    for (uint32_t i = 0; i < p; i++)
        if (!s->model.params[i].frozen && ddp_same_group(&s->model.groups[i], &s->model.groups[p])) return false;
    return true;
}

static void report_group(const ddp_session *s, uint32_t first, ddp_text *out)
{
    const ddp_param_group *g = &s->model.groups[first];
    uint32_t tensors = 0;
    uint64_t elements = 0;
    char count[32];

    for (uint32_t p = first; p < s->model.param_count; p++) {
        if (s->model.params[p].frozen || !ddp_same_group(&s->model.groups[p], g)) continue;
        tensors++;
        elements += s->model.params[p].elements;
    }
    ddp_text_printf(out, "  lr %g x %g, weight_decay %g: %s in %u tensor%s,", s->config->optimizer->lr, g->lr_factor,
                    g->weight_decay, ddp_format_count(elements, count, sizeof(count)), tensors,
                    tensors == 1 ? "" : "s");
    for (uint32_t p = first, shown = 0; p < s->model.param_count && shown <= NEAR_SHOWN; p++) {
        if (s->model.params[p].frozen || !ddp_same_group(&s->model.groups[p], g)) continue;
        ddp_text_printf(out, " %s%s", shown < NEAR_SHOWN ? s->model.params[p].name : "..",
                        shown + 1 < tensors && shown < NEAR_SHOWN ? "," : "");
        shown++;
    }
    ddp_text_printf(out, "\n");
}

void session_groups_report(const ddp_session *s, ddp_text *out)
{
    uint32_t groups = 0;

    for (uint32_t p = 0; p < s->model.param_count; p++) groups += is_first_of_group(s, p);
    if (groups < 2) return;
    ddp_text_printf(out, "groups                %u, as [optimizer] no_decay and lr_factor%s say\n", groups,
                    s->model.lora.on ? ", and [lora] plus_ratio," : "");
    for (uint32_t p = 0; p < s->model.param_count; p++)
        if (is_first_of_group(s, p)) report_group(s, p, out);
}
