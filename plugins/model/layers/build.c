/* plugins/model/layers/build.c -- see build.h: names, references between layers, [repeat], and where an error was
 * made. What a layer is, kinds.c says. */
#include "build.h"
#include <stdlib.h>
#include <string.h>

void build_fail(net_builder *b, const char *fmt, ...)
{
    char message[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    ddp_graph_fail(b->g, message);
}

/* ---- references -------------------------------------------------------------------------------------------------- */
/* "h.0.mlp." becomes "h.0.", the part before the last dot but one. */
static void shorten(char *prefix)
{
    size_t length = strlen(prefix);

    if (length > 0) prefix[length - 1] = '\0';
    while (length > 0 && prefix[length - 1] != '.') length--;
    prefix[length] = '\0';
}

static const net_point *point_called(const net_builder *b, const char *name)
{
    for (uint32_t i = b->point_count; i-- > 0;)
        if (strcmp(b->points[i].name, name) == 0) return &b->points[i];
    return NULL;
}

static void unknown_point(net_builder *b, const char *key, const char *name)
{
    enum { LAST = 200 };
    const char *names[LAST];
    uint32_t count = 0;
    char near[96];

    for (uint32_t i = b->point_count; i-- > 0 && count < LAST;) names[count++] = b->points[i].name;
    build_fail(b, "%s = %s: no layer above it has this name%s", key, name,
               net_nearest(name, names, count, near, sizeof(near)));
}

const net_point *build_find(net_builder *b, const char *key, const char *name)
{
    char prefix[BUILT_NAME_MAX + 1], full[2 * BUILT_NAME_MAX + 2];
    const net_point *p;

    (void)snprintf(prefix, sizeof(prefix), "%s", b->prefix);
    for (;;) {
        (void)snprintf(full, sizeof(full), "%s%s", prefix, name);
        p = point_called(b, full);
        if (p != NULL) return p;
        if (prefix[0] == '\0') break;
        shorten(prefix);
    }
    unknown_point(b, key, name);
    return NULL;
}

/* ---- first values ------------------------------------------------------------------------------------------------ */
static void add_draw(net_builder *b, double std)
{
    net_draw *draws = net_grown(b->draws, &b->draw_capacity, b->draw_count, sizeof(*draws));

    if (draws == NULL) {
        build_fail(b, "out of memory");
        return;
    }
    b->draws = draws;
    b->draws[b->draw_count++] = (net_draw){b->weight, std};
}

static void one_draw(net_builder *b, const char *item, double fan_out)
{
    double std;

    if (strcmp(item, "kaiming_normal") == 0 && fan_out > 0)
        add_draw(b, sqrt(2.0) / sqrt(fan_out)); /* torch's, of fan_out and relu */
    else if (strncmp(item, "normal ", 7) == 0 && net_number(item + 7, &std) && std >= 0 && std <= 1000)
        add_draw(b, std);
    else
        build_fail(b, "init = %.60s: write normal STD, for example normal 0.02%s", item,
                   fan_out > 0 ? ", or kaiming_normal" : "");
}

void build_init(net_builder *b, const net_layer *l, double fan_out)
{
    char item[64];

    for (const char *at = l->init; *at != '\0';) {
        size_t length = strcspn(at, ",");

        (void)snprintf(item, sizeof(item), "%.*s", (int)length, at);
        for (size_t n = strlen(item); n > 0 && (item[n - 1] == ' ' || item[n - 1] == '\t'); n--) item[n - 1] = '\0';
        one_draw(b, item, fan_out);
        at += length + (at[length] == ',');
        at += strspn(at, " \t");
    }
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */
/* Puts file, line and layer in front of the graph's complaint, if there is one. */
static ddp_status located(const net_builder *b, const net_layer *l, const char *name, ddp_err *err)
{
    ddp_err inner = {0};
    char layer[BUILT_NAME_MAX + 16] = "", quoted[BUILT_NAME_MAX + 3];
    ddp_status st = ddp_graph_status(b->g, &inner);

    if (st == DDP_OK) return DDP_OK;
    (void)snprintf(quoted, sizeof(quoted), "\"%s\"", name);
    if (name[0] != '\0' && strstr(inner.msg, quoted) == NULL)
        (void)snprintf(layer, sizeof(layer), "layer %s: ", quoted);
    return ddp_fail(err, st, "%s:%u: [%s] %s%s", b->path, l->line, l->kind->name, layer, inner.msg);
}

/* The layer's name with the prefix: its own, else its number, as torch.nn.Sequential has it. */
static ddp_status name_of(net_builder *b, const net_layer *l, char *out, ddp_err *err)
{
    char number[16];
    size_t before = strlen(b->prefix);
    const char *own = l->name;
    const net_point *taken;

    if (own[0] == '\0') {
        (void)snprintf(number, sizeof(number), "%u", b->index);
        own = number;
    }
    b->index++;
    if (before + strlen(own) > BUILT_NAME_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: [%s] the name \"%s%s\" is longer than %d bytes", b->path, l->line,
                        l->kind->name, b->prefix, own, BUILT_NAME_MAX);
    memcpy(out, b->prefix, before);
    memcpy(out + before, own, strlen(own) + 1);
    taken = point_called(b, out);
    if (taken == NULL) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s:%u: [%s] the name \"%s\" is that of the layer in line %u; "
                    "take another, or give the [repeat] around it a name",
                    b->path, l->line, l->kind->name, out, taken->line);
}

static ddp_status count_built(net_builder *b, const net_layer *l, ddp_err *err)
{
    if (b->built++ < BUILT_MAX) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: [%s] the net has more than %d layers", b->path, l->line, l->kind->name,
                    BUILT_MAX);
}

static ddp_status build_layer(net_builder *b, const net_layer *l, ddp_err *err)
{
    char name[BUILT_NAME_MAX + 1];
    ddp_tensor x = b->x;
    const net_point *from;
    net_point *points;

    DDP_TRY(count_built(b, l, err));
    DDP_TRY(name_of(b, l, name, err));
    if (l->from[0] != '\0') {
        from = build_find(b, "from", l->from);
        if (from == NULL) return located(b, l, name, err);
        x = from->out;
    }
    b->weight = (ddp_tensor){-1};
    x = l->kind->build(b, l, x, name);
    points = net_grown(b->points, &b->point_capacity, b->point_count, sizeof(*points));
    if (points == NULL)
        return ddp_fail(err, DDP_ERR_NOMEM, "%s:%u: [%s] out of memory", b->path, l->line, l->kind->name);
    b->points = points;
    points[b->point_count] = (net_point){.line = l->line, .out = x, .weight = b->weight};
    memcpy(points[b->point_count++].name, name, sizeof(name));
    b->x = x;
    return located(b, l, name, err);
}

/* ---- loss and metrics -------------------------------------------------------------------------------------------- */
enum { WEIGHTS_MAX = NET_LINE_MAX / 2 }; /* numbers that one line has room for */

/* "1, 2.5, 1"; how many there are. */
static uint32_t read_weights(net_builder *b, const char *text, float *out)
{
    uint32_t count = 0;
    double value;
    char item[32];

    while (*text != '\0') {
        size_t length = strcspn(text, ",");

        (void)snprintf(item, sizeof(item), "%.*s", (int)length, text);
        for (size_t n = strlen(item); n > 0 && (item[n - 1] == ' ' || item[n - 1] == '\t'); n--) item[n - 1] = '\0';
        if (count == WEIGHTS_MAX || !net_number(item, &value) || value < 0 || value > 1e30) {
            build_fail(b, "weight = %s: write a number from 0 for each class, with commas between them", item);
            return 0;
        }
        out[count++] = (float)value;
        text += length + (text[length] == ',');
        text += strspn(text, " \t");
    }
    return count;
}

static void entropy_loss(net_builder *b, const net_layer *l, ddp_tensor label)
{
    float weight[WEIGHTS_MAX];
    ddp_cross_entropy_spec spec = {.classes = l->classes,
                                   .ignore_index = l->ignore_index,
                                   .label_smoothing = l->label_smoothing,
                                   .weight = weight,
                                   .weights = read_weights(b, l->weight, weight)};

    ddp_loss(b->g, ddp_cross_entropy_with(b->g, b->x, label, &spec));
    ddp_output(b->g, "logits", b->x);
}

static ddp_tensor pair_loss(net_builder *b, const net_layer *l, ddp_tensor target)
{
    switch (l->choice) {
    case LOSS_MSE: return ddp_mse(b->g, b->x, target);
    case LOSS_L1: return ddp_l1(b->g, b->x, target);
    case LOSS_SMOOTH_L1: return ddp_smooth_l1(b->g, b->x, target, l->beta);
    default: return ddp_bce_with_logits(b->g, b->x, target);
    }
}

/* A key of another loss would change nothing. */
static void refuse_others(net_builder *b, const net_layer *l)
{
    if (l->choice != LOSS_CROSS_ENTROPY &&
        (l->label_smoothing != 0.0 || l->classes != 0 || l->weight[0] != '\0' || l->ignore_index != -100))
        build_fail(b, "label_smoothing, classes, ignore_index and weight are keys of cross_entropy alone");
    if (l->choice != LOSS_SMOOTH_L1 && l->beta != 1.0) build_fail(b, "beta is a key of smooth_l1 alone");
}

static ddp_status build_loss(net_builder *b, const net_layer *l, ddp_err *err)
{
    ddp_tensor target;

    refuse_others(b, l);
    b->label = l->field[0] != '\0' ? l->field : l->choice == LOSS_CROSS_ENTROPY ? "label" : "target";
    target = ddp_input(b->g, b->label);
    if (l->choice == LOSS_CROSS_ENTROPY) {
        entropy_loss(b, l, target);
    } else {
        ddp_loss(b->g, pair_loss(b, l, target));
        ddp_output(b->g, l->choice == LOSS_BCE_WITH_LOGITS ? "logits" : "prediction", b->x);
    }
    return located(b, l, "", err);
}

/* Of the loss; accuracy by another field is the only one that has none. */
static ddp_status build_metric(net_builder *b, const net_layer *l, ddp_err *err)
{
    static const char *const names[] = {"accuracy", "top5", "f1", "confusion", "mae", "r2"};

    if (l->field[0] == '\0' || (b->label != NULL && strcmp(l->field, b->label) == 0))
        ddp_measure(b->g, names[l->choice]);
    else if (l->choice == 0)
        ddp_metric(b->g, names[0], ddp_accuracy(b->g, b->x, ddp_input(b->g, l->field)));
    else
        build_fail(b, "field is for accuracy alone; %s is measured with the field of [loss]", names[l->choice]);
    return located(b, l, "", err);
}

static ddp_status build_range(net_builder *b, uint32_t first, uint32_t last, ddp_err *err);

/* A [repeat] with a name numbers its layers from 0 each time, below "NAME.0.", "NAME.1."; without one they go on. */
static ddp_status build_repeat(net_builder *b, uint32_t at, ddp_err *err)
{
    const net_layer *l = &b->layers[at];
    size_t outer = strlen(b->prefix);
    uint32_t index = b->index;

    for (int64_t i = 0; i < l->times; i++) { /* no pass is without a layer, and their number has a limit */
        if (l->name[0] != '\0') {
            int length = snprintf(b->prefix + outer, sizeof(b->prefix) - outer, "%s.%d.", l->name, (int)i);

            if ((size_t)length >= sizeof(b->prefix) - outer)
                return ddp_fail(err, DDP_ERR_CONFIG, "%s:%u: [repeat] the names inside are longer than %d bytes",
                                b->path, l->line, BUILT_NAME_MAX);
            b->index = 0;
        }
        DDP_TRY(build_range(b, at + 1, l->end, err));
    }
    b->prefix[outer] = '\0';
    if (l->name[0] != '\0') b->index = index + 1;
    return DDP_OK;
}

/* Layers first .. last - 1. */
static ddp_status build_range(net_builder *b, uint32_t first, uint32_t last, ddp_err *err)
{
    for (uint32_t i = first; i < last; i++) {
        const net_layer *l = &b->layers[i];

        switch (l->kind->role) {
        case NET_LAYER: DDP_TRY(build_layer(b, l, err)); break;
        case NET_LOSS: DDP_TRY(build_loss(b, l, err)); break;
        case NET_METRIC: DDP_TRY(build_metric(b, l, err)); break;
        case NET_REPEAT:
            DDP_TRY(build_repeat(b, i, err));
            i = l->end;
            break;
        default: break;
        }
    }
    return DDP_OK;
}

/* What the first layer reads. */
static ddp_status build_input(net_builder *b, ddp_err *err)
{
    const net_layer *l = &b->layers[0];

    b->x = ddp_input(b->g, l->kind->role == NET_INPUT ? l->field : "image");
    return located(b, l, "", err);
}

ddp_status net_build_graph(ddp_graph *g, const net_file *f, const net_layer *layers, ddp_err *err)
{
    net_builder b = {.g = g, .path = f->path, .layers = layers, .label = ""};
    ddp_status st = build_input(&b, err);

    if (st == DDP_OK) st = build_range(&b, 0, f->section_count, err);
    if (st == DDP_OK)
        for (uint32_t i = 0; i < b.draw_count; i++)
            ddp_init_again(g, b.draws[i].weight, DDP_INIT_NORMAL, 0.0, b.draws[i].std);
    free(b.points);
    free(b.draws);
    return st == DDP_OK ? ddp_graph_status(g, err) : st;
}
