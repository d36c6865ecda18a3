/* graph/metrics.c -- the engine's metrics by name: the op whose result an evaluation adds up over its batches, and what
 * becomes of the sums once they are those of all batches and ranks. */
#include "graph/internal.h"
#include <math.h>
#include <string.h>

/* ---- by name ----------------------------------------------------------------------------------------------------- */
/* One that a loss can have. */
typedef struct measure {
    uint32_t loss, op;
    uint32_t k; /* of TOP_K */
} measure;

static const struct {
    const char *name;
    measure of[4]; /* ends with op 0 */
} metrics[] = {
    {"accuracy", {{DDP_OP_CROSS_ENTROPY, DDP_OP_TOP_K, 1}, {DDP_OP_BCE_WITH_LOGITS, DDP_OP_BINARY_CONFUSION, 0}}},
    {"top5", {{DDP_OP_CROSS_ENTROPY, DDP_OP_TOP_K, 5}}},
    {"f1", {{DDP_OP_CROSS_ENTROPY, DDP_OP_CONFUSION, 0}, {DDP_OP_BCE_WITH_LOGITS, DDP_OP_BINARY_CONFUSION, 0}}},
    {"confusion", {{DDP_OP_CROSS_ENTROPY, DDP_OP_CONFUSION, 0}, {DDP_OP_BCE_WITH_LOGITS, DDP_OP_BINARY_CONFUSION, 0}}},
    {"mae",
     {{DDP_OP_MSE, DDP_OP_REGRESSION, 0}, {DDP_OP_L1, DDP_OP_REGRESSION, 0}, {DDP_OP_SMOOTH_L1, DDP_OP_REGRESSION, 0}}},
    {"r2",
     {{DDP_OP_MSE, DDP_OP_REGRESSION, 0}, {DDP_OP_L1, DDP_OP_REGRESSION, 0}, {DDP_OP_SMOOTH_L1, DDP_OP_REGRESSION, 0}}},
};

static const measure *measure_of(size_t metric, uint32_t loss)
{
    for (uint32_t i = 0; i < DDP_COUNT(metrics[metric].of); i++)
        if (metrics[metric].of[i].op != 0 && metrics[metric].of[i].loss == loss) return &metrics[metric].of[i];
    return NULL;
}

static void add_to(char *list, size_t capacity, const char *between, const char *name)
{
    size_t at = strlen(list);

    (void)snprintf(list + at, capacity - at, "%s%s", at > 0 ? between : "", name);
}

/* With the losses that there are, and the metrics that they have. */
static void refuse(ddp_graph_core *c, const char *name, const char *why)
{
    char names[128] = "", losses[96] = "";

    for (size_t m = 0; m < DDP_COUNT(metrics); m++)
        for (uint32_t i = 0; i < c->node_count; i++) {
            if (!c->nodes[i].row->loss || measure_of(m, c->nodes[i].row->op) == NULL) continue;
            add_to(names, sizeof(names), ", ", metrics[m].name);
            break;
        }
    for (uint32_t i = 0; i < c->node_count; i++)
        if (c->nodes[i].row->loss) add_to(losses, sizeof(losses), " and ", c->nodes[i].row->name);
    if (losses[0] == '\0')
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "metric \"%s\": there is no loss before it", name);
    else
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "metric \"%s\" %s; loss %s has %s", name, why, losses, names);
}

/* The op's result on what the loss reads; the same node where there is one already. */
static ddp_tensor counted(ddp_graph_core *c, const ddp_graph_node *loss, const measure *m)
{
    const ddp_tensor in[2] = {{loss->in[0]}, {loss->in[1]}};
    ddp_attrs attrs;

    memset(&attrs, 0, sizeof(attrs));
    if (loss->row->op == DDP_OP_CROSS_ENTROPY) {
        attrs.metric.ignores = loss->attrs.cross_entropy.ignores;
        attrs.metric.ignore_index = loss->attrs.cross_entropy.ignore_index;
        attrs.metric.classes = loss->attrs.cross_entropy.classes;
        attrs.metric.k = m->k;
    }
    for (uint32_t i = 0; i < c->node_count; i++) {
        const ddp_graph_node *n = &c->nodes[i];

        if (n->row->op == m->op && n->in[0] == in[0].id && n->in[1] == in[1].id && n->attrs.metric.k == m->k)
            return (ddp_tensor){n->out[0]};
    }
    return c->head.api->op(&c->head, m->op, &attrs, 2, in, "");
}

static void measure_named(ddp_graph_core *c, size_t metric)
{
    const char *name = metrics[metric].name;
    uint32_t before = c->device;
    ddp_tensor t;

    for (uint32_t i = 0; i < c->node_count; i++) {
        const ddp_graph_node *loss = &c->nodes[i];
        const measure *m = loss->row->loss ? measure_of(metric, loss->row->op) : NULL;

        if (m == NULL) continue;
        c->device = loss->device;
        t = counted(c, loss, m);
        c->device = before;
        if (t.id < 0)
            (void)ddp_fail_context(&c->err, "metric \"%s\"", name);
        else
            graph_add_metric(c, name, t);
        return;
    }
    refuse(c, name, "is not for this loss");
}

void graph_measure(ddp_graph *g, const char *name)
{
    ddp_graph_core *c = ddp_graph_of(g);

    if (ddp_graph_broken(c)) return;
    for (size_t m = 0; m < DDP_COUNT(metrics); m++)
        if (strcmp(metrics[m].name, name) == 0) {
            measure_named(c, m);
            return;
        }
    refuse(c, name, "is not known");
}

ddp_status ddp_graph_measure(ddp_graph *g, const ddp_list *names, ddp_err *err)
{
    ddp_graph_core *c = ddp_graph_of(g);
    const char *const *items = names->items;

    for (size_t i = 0; i < names->count && !ddp_graph_broken(c); i++) {
        bool declared = false;

        for (uint32_t k = 0; k < c->metric_count; k++) declared |= strcmp(c->metrics[k].name, items[i]) == 0;
        if (!declared) graph_measure(g, items[i]);
    }
    return g->api->status(g, err);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */
void ddp_metric_of(const ddp_program *p, uint32_t i, ddp_metric_info *out)
{
    const ddp_value *v = &p->values[p->metrics[i]];

    *out = (ddp_metric_info){.name = p->metric_names[i], .value = p->metrics[i], .floats = (uint64_t)v->elements};
    for (uint32_t n = 0; n < p->node_count; n++)
        if (p->nodes[n].out[0] == p->metrics[i]) out->op = p->nodes[n].op;
    out->sums = out->op == DDP_OP_REGRESSION ? out->floats / 2 : out->floats;
    if (out->op == DDP_OP_CONFUSION || out->op == DDP_OP_BINARY_CONFUSION) out->classes = (uint64_t)v->dims[0];
}

void ddp_metric_add(const ddp_metric_info *m, const float *batch, double *sums)
{
    for (uint64_t i = 0; i < m->sums; i++) sums[i] += (double)batch[i];
    for (uint64_t i = m->sums; i < m->floats; i++) sums[i - m->sums] += (double)batch[i];
}

/* ---- values ------------------------------------------------------------------------------------------------------ */
static double share_right(const ddp_metric_info *m, const double *counts)
{
    double right = 0.0, all = 0.0;

    for (uint64_t i = 0; i < m->classes * m->classes; i++) all += counts[i];
    for (uint64_t i = 0; i < m->classes; i++) right += counts[i * m->classes + i];
    return right / all;
}

double ddp_metric_class_f1(const ddp_metric_info *m, const double *counts, uint64_t class)
{
    double both = counts[class * m->classes + class], labels = 0.0, predictions = 0.0;

    for (uint64_t i = 0; i < m->classes; i++) {
        labels += counts[class * m->classes + i];
        predictions += counts[i * m->classes + class];
    }
    return 2.0 * both / (labels + predictions); /* of a class that does not occur 0 / 0 */
}

static double macro_f1(const ddp_metric_info *m, const double *counts)
{
    double sum = 0.0, classes = 0.0;

    for (uint64_t i = 0; i < m->classes; i++) {
        double f1 = ddp_metric_class_f1(m, counts, i);

        if (isnan(f1)) continue;
        sum += f1;
        classes += 1.0;
    }
    return sum / classes;
}

static double mean_absolute_error(const ddp_metric_info *m, const double *sums)
{
    double all = 0.0, n = 0.0;

    for (uint64_t i = 0; i < m->sums; i += DDP_REGRESSION_SUMS) {
        n += sums[i];
        all += sums[i + 1];
    }
    return all / n;
}

/* sklearn's r2_score: of targets that are all equal 1 without an error, else 0; the mean over the columns. */
static double r2(const ddp_metric_info *m, const double *sums)
{
    const uint64_t columns = m->sums / DDP_REGRESSION_SUMS;
    double all = 0.0;

    for (uint64_t i = 0; i < m->sums; i += DDP_REGRESSION_SUMS) {
        double n = sums[i], left = sums[i + 2], spread = sums[i + 4] - sums[i + 3] * sums[i + 3] / n;

        if (n < 2.0) return NAN;
        if (spread <= 1e-12 * sums[i + 4]) /* rounding: a sum has 48 bits */
            all += left == 0.0 ? 1.0 : 0.0;
        else
            all += 1.0 - left / spread;
    }
    return all / (double)columns;
}

bool ddp_metric_is_number(const ddp_metric_info *m) { return m->classes == 0 || strcmp(m->name, "confusion") != 0; }

double ddp_metric_value(const ddp_metric_info *m, const double *sums, double samples)
{
    switch (m->op) {
    case DDP_OP_TOP_K: return sums[0] / sums[1];
    case DDP_OP_CONFUSION:
    case DDP_OP_BINARY_CONFUSION:
        return strcmp(m->name, "f1") == 0         ? macro_f1(m, sums)
               : strcmp(m->name, "accuracy") == 0 ? share_right(m, sums)
                                                  : NAN;
    case DDP_OP_REGRESSION: return strcmp(m->name, "mae") == 0 ? mean_absolute_error(m, sums) : r2(m, sums);
    default: return sums[0] / samples;
    }
}
