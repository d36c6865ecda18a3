/* session/report/report.c -- what a session says of itself: the plan for people (--check), and the lines that ranks
 * agree on. */
#include "session/stages/head.h"
#include "session/stages/place.h"
#include "session/report/report.h"
#include "session/affinity.h"
#include "session/groups.h"
#include "session/fields.h"
#include "session/plugins.h"
#include "session/variants.h"
#include <inttypes.h>

static void shape_text(uint32_t rank, const int64_t *dims, char *buf, size_t capacity)
{
    size_t used = 0;

    buf[0] = '\0';
    for (uint32_t i = 0; i < rank && used < capacity; i++)
        used += (size_t)snprintf(buf + used, capacity - used, "%s%" PRId64, i == 0 ? "" : "x", dims[i]);
    if (rank == 0) (void)snprintf(buf, capacity, "scalar");
}

/* ---- agreement ------------------------------------------------------------------------------------------------- */
static void source_lines(const ddp_source *src, const char *section, ddp_text *out)
{
    ddp_text_printf(out, "%s.length = %" PRIu64 "\tdataset %s\n", section, src->length, src->plugin->desc.name);
    ddp_text_printf(out, "%s.fingerprint = %016" PRIx64 "\tcontent of dataset %s\n", section,
                    src->ops->fingerprint(src->dataset), src->plugin->desc.name);
}

void ddp_session_agreement(const ddp_session *s, ddp_text *out)
{
    char shape[128];

    ddp_settings_agreement(&s->config->settings, out);
    ddp_text_printf(out, "train.global_batch (resolved) = %" PRId64 "\tbatch_size x accumulate x world_size\n",
                    s->batches.global_batch);
    if (s->train.plugin != NULL) source_lines(&s->train, "data", out);
    if (s->eval.plugin != NULL) source_lines(&s->eval, "eval", out);
    for (uint32_t i = 0; i < s->model.param_count; i++) {
        shape_text(s->model.params[i].rank, s->model.params[i].dims, shape, sizeof(shape));
        ddp_text_printf(out, "parameter %s = %s\tmodel %s\n", s->model.params[i].name, shape,
                        s->model.plugin->desc.name);
    }
    for (uint32_t i = 0; i < s->model.buffer_count; i++) {
        shape_text(s->model.buffers[i].rank, s->model.buffers[i].dims, shape, sizeof(shape));
        ddp_text_printf(out, "buffer %s = %s %s\tmodel %s\n", s->model.buffers[i].name,
                        ddp_dtype_name(s->model.buffers[i].dtype), shape, s->model.plugin->desc.name);
    }
    for (uint32_t i = 0; i < ddp_graph_operations(s->model.graph); i++) {
        ddp_text_printf(out, "operation %u = ", i + 1);
        ddp_graph_operation_text(s->model.graph, i, out);
        ddp_text_printf(out, "\tmodel %s\n", s->model.plugin->desc.name);
    }
    for (uint32_t i = 0; s->config->ddp->bucket_size > 0 && i < s->model.layout->bucket_count; i++)
        ddp_text_printf(out, "bucket %u = %" PRIu64 " elements\tmodel %s\n", i, s->model.layout->buckets[i].count,
                        s->model.plugin->desc.name);
    ddp_text_printf(out, "train.loss_mean (resolved) = %s\twhether the data has labels that are ignored\n",
                    s->train.mean.by_token ? "token" : "batch");
    /* as many micro-steps in every step, the last of an epoch too: each rank divides its sum by their number */
    if (s->train.sampler_plugin == NULL) return;
    ddp_text_printf(out, "micro-batches an epoch = %" PRIu64 "\tsampler %s\n", s->batches_per_epoch,
                    s->train.sampler_plugin->desc.name);
}

static void source_settings(const ddp_source *src, const char *section, ddp_text *out)
{
    ddp_text_printf(out, "%s.length = %" PRIu64 "\n", section, src->length);
    ddp_text_printf(out, "%s.fingerprint = %016" PRIx64 "\n", section, src->ops->fingerprint(src->dataset));
    session_fields_text(src, section, out);
}

void ddp_session_settings(const ddp_session *s, ddp_text *out)
{
    ddp_settings_text(&s->config->settings, out);
    ddp_text_printf(out, "model.graph = "); /* of a net in a file, the path alone says nothing */
    ddp_graph_identity(s->model.graph, out);
    ddp_text_printf(out, "\n");
    if (s->train.plugin != NULL) source_settings(&s->train, "data", out);
    if (s->eval.plugin != NULL) source_settings(&s->eval, "eval", out);
}

/* ---- the plan -------------------------------------------------------------------------------------------------- */
static void report_params(const ddp_session *s, ddp_text *out)
{
    char shape[128], a[32], b[32];

    ddp_text_printf(out, "parameters            %s in %u tensors, %s\n",
                    ddp_format_count(s->model.param_elements, a, sizeof(a)), s->model.param_count,
                    ddp_format_bytes(s->model.param_elements * 4, b, sizeof(b)));
    for (uint32_t i = 0; i < s->model.param_count; i++) {
        shape_text(s->model.params[i].rank, s->model.params[i].dims, shape, sizeof(shape));
        ddp_text_printf(out, "  %-28s %-16s %12s%s\n", s->model.params[i].name, shape,
                        ddp_format_count(s->model.params[i].elements, a, sizeof(a)),
                        s->model.params[i].frozen ? "  frozen" : "");
    }
    if (s->model.buffer_count > 0)
        ddp_text_printf(out, "buffers               %u tensors, %s\n", s->model.buffer_count,
                        ddp_format_bytes(s->model.buffer_elements * 4, b, sizeof(b)));
}

static void report_buckets(const ddp_session *s, const ddp_variant *v, ddp_text *out)
{
    const ddp_layout *l = s->model.layout;
    char a[32];

    ddp_text_printf(out, "buckets               %u, in the order in which they are reduced\n", l->bucket_count);
    for (uint32_t i = 0; i < l->bucket_count; i++) {
        const ddp_bucket *b = &l->buckets[i];

        ddp_text_printf(out, "  %-3u %12s  complete after kernel %u of %u: %s", i,
                        ddp_format_bytes(b->count * 4, a, sizeof(a)), v->planned->bucket_ready[i],
                        v->lowered->kernel_count, s->model.params[l->order[b->first_param]].name);
        if (b->param_count > 1)
            ddp_text_printf(out, " .. %s", s->model.params[l->order[b->first_param + b->param_count - 1]].name);
        if (b->rows > 0)
            ddp_text_printf(out, ", rows %" PRId64 " to %" PRId64, b->first_row, b->first_row + b->rows - 1);
        ddp_text_printf(out, "\n");
    }
}

/* Of local steps: the parameters of all ranks, and the momentum of their moves; where rank 0 saves, the states of the
 * others. */
static uint64_t outer_arenas(const ddp_session *s)
{
    const struct ddp_ddp_config *c = s->config->ddp;
    uint64_t others = s->launch.rank == 0 && s->config->checkpoint->dir[0] != '\0' ? (uint64_t)s->launch.world - 1 : 0;

    return c->local_steps == 0 ? 0 : 1 + (uint64_t)(c->outer_momentum > 0.0) + others * ddp_optimizer_states(s->config);
}

static uint64_t head_params(const ddp_session *s)
{
    const ddp_head *h = &s->model.head.of;

    return (uint64_t)h->classes * (uint64_t)(h->features + (h->bias >= 0));
}

/* Of an output layer that is divided a rank has its classes alone, for the rows of all. */
static void take_head(const ddp_session *s, ddp_memory_plan *out)
{
    uint64_t others = head_params(s) - head_params(s) / (uint64_t)s->launch.world;
    uint64_t rows =
        (uint64_t)s->launch.world * (uint64_t)s->batches.batch_size * (uint64_t)s->model.head.of.labels.labels;

    out->params -= others * 4;
    out->grads -= others * 4;
    out->states -= ddp_optimizer_states(s->config) * others * 4;
    for (uint32_t v = 0; v < s->programs.count; v++)
        out->activations = DDP_MAX_OF(out->activations, s->programs.variants[v].planned->plan.arena_bytes);
    /* of all rows: features, marks, labels and terms, and what each rank says (train/head/head.h) */
    out->activations += rows * ((uint64_t)s->model.head.of.features * 4 + 20 + 16 * (uint64_t)s->launch.world);
}

void ddp_session_memory(const ddp_session *s, ddp_memory_plan *out)
{
    const ddp_layout *l = s->model.layout;
    uint64_t half = s->model.lora.half ? l->param_elements - l->half_first : 0;
    uint64_t saved = s->model.lora.on ? l->elements : l->param_elements;
    uint64_t parts = s->config->ddp->zero == 1 ? (uint64_t)s->launch.world : s->devices.replicas;

    *out = (ddp_memory_plan){.params = l->param_elements * 4 - half * 2,
                             .grads = ddp_session_grad_elements(s) * 4,
                             .states = ddp_optimizer_states(s->config) * l->elements * 4 / parts,
                             .average = s->config->optimizer->ema > 0.0 ? saved * 4 : 0,
                             .outer = outer_arenas(s) * l->elements * 4,
                             .activations = s->programs.arena_bytes};
    if (s->model.head.on) take_head(s, out);
    out->all = out->params + out->grads + out->states + out->average + out->outer + out->activations;
}

uint64_t ddp_session_checkpoint_bytes(const ddp_session *s)
{
    uint64_t trained = s->model.layout->elements * 4;
    /* with adapters only they are saved */
    uint64_t saved = s->model.lora.on ? trained : s->model.param_elements * 4;

    uint64_t states = ddp_optimizer_states(s->config) * trained, local = 0;

    if (s->config->ddp->local_steps > 0) /* the states of all ranks */
        local = ((uint64_t)s->launch.world - 1) * states + (s->config->ddp->outer_momentum > 0.0 ? trained : 0);
    return saved + (s->config->optimizer->ema > 0.0 ? saved : 0) + states + local + s->model.buffer_elements * 4;
}

static void report_memory(const ddp_session *s, const ddp_variant *v, ddp_text *out)
{
    char a[32], b[32], c[32], d[32], e[32], f[64] = "", g[64] = "";
    ddp_memory_plan m;

    ddp_session_memory(s, &m);
    if (m.outer > 0) (void)snprintf(g, sizeof(g), "local steps %s, ", ddp_format_bytes(m.outer, a, sizeof(a)));
    if (m.average > 0) (void)snprintf(f, sizeof(f), "average %s, ", ddp_format_bytes(m.average, a, sizeof(a)));
    ddp_text_printf(out,
                    "memory a %-7s      parameters %s, gradients %s, optimiser %s, %s%sactivations %s, in all %s\n",
                    s->devices.replicas > 1 ? "replica" : "rank", ddp_format_bytes(m.params, a, sizeof(a)),
                    ddp_format_bytes(m.grads, b, sizeof(b)), ddp_format_bytes(m.states, c, sizeof(c)), f, g,
                    ddp_format_bytes(m.activations, d, sizeof(d)), ddp_format_bytes(m.all, e, sizeof(e)));
    ddp_text_printf(out, "  activations         peak of live values %s, in kernel %u: %s\n",
                    ddp_format_bytes(v->planned->peak_bytes, a, sizeof(a)), v->planned->peak_kernel,
                    ddp_kernel_at(v->lowered, v->planned->peak_kernel)->name);
}

static void report_recomputed(const ddp_variant *v, ddp_text *out)
{
    char a[32], b[32];

    if (v->blocks == 0) return;
    ddp_text_printf(out, "  recompute           %u of %u blocks, activations of a micro-batch %s instead of %s\n",
                    v->recomputed, v->blocks, ddp_format_bytes(v->planned->plan.arena_bytes, a, sizeof(a)),
                    ddp_format_bytes(v->kept_bytes, b, sizeof(b)));
}

/* "cpu:1", "rank 1", "ranks 2 to 3" */
static void stage_text(const ddp_session *s, uint32_t stage, char *buf, size_t capacity)
{
    uint32_t replicas = ddp_session_stage_replicas(s), first = stage * replicas;

    if (s->devices.rank_stages == 1)
        (void)snprintf(buf, capacity, "%s:%u", s->devices.name, s->devices.ordinals[stage]);
    else if (replicas == 1)
        (void)snprintf(buf, capacity, "rank %u", first);
    else
        (void)snprintf(buf, capacity, "ranks %u to %u", first, first + replicas - 1);
}

static uint64_t stage_params(const ddp_session *s, const ddp_stages *cut, uint32_t stage)
{
    uint64_t count = 0;

    for (uint32_t p = 0; p < s->model.param_count; p++)
        if (cut->param_stage[p] == stage) count += s->model.params[p].elements;
    return count;
}

/* Both ways: the features of all rows come, and a part of their gradients goes to each rank. */
static void report_head(const ddp_session *s, ddp_text *out)
{
    const ddp_head *h = &s->model.head.of;
    uint64_t rows = (uint64_t)(s->batches.batch_size * h->labels.labels * s->launch.world);
    char a[32];

    if (!s->model.head.on) return;
    ddp_text_printf(out,
                    "output layer          %s: classes %" PRId64 " to %" PRId64 " of %" PRId64
                    " on this rank, of %" PRIu64 " rows; features are %s each way a micro-batch\n",
                    h->layer, ddp_session_head_first(s, s->launch.rank),
                    ddp_session_head_first(s, s->launch.rank + 1) - 1, h->classes, rows,
                    ddp_format_bytes(rows * (uint64_t)h->features * 4, a, sizeof(a)));
}

/* Of a model that is divided. The lines of kernels and memory are of the whole model on one device. */
static void report_stages(const ddp_session *s, const ddp_variant *v, ddp_text *out)
{
    char a[32], b[32], where[96];

    for (uint32_t g = 0; v->stages != NULL && !s->model.head.on && g < v->stages->count; g++) {
        const ddp_program *p = v->stages->programs[g];
        uint64_t sends = 0;

        for (uint32_t i = 0; i < v->stages->crossing_count; i++)
            if (v->stages->crossings[i].from == g) sends += v->stages->crossings[i].bytes;
        stage_text(s, g, where, sizeof(where));
        ddp_text_printf(out,
                        "  stage %-3u           %s, %s parameters, %u operations, %.3f GFLOP, sends %s a micro-batch\n",
                        g, where, ddp_format_count(stage_params(s, v->stages, g), b, sizeof(b)), p->node_count,
                        (double)ddp_program_flops(p) * 1e-9, ddp_format_bytes(sends, a, sizeof(a)));
    }
}

static void report_kernels(const ddp_variant *v, ddp_text *out)
{
    ddp_text_printf(out, "kernels               %u for %u operations\n", v->lowered->kernel_count,
                    v->program->node_count);
    for (uint32_t i = 0; i < v->lowered->kernel_count; i++) {
        const ddp_kernel *k = ddp_kernel_at(v->lowered, i);
        const char *layer = k->node_count > 0 ? v->program->nodes[k->nodes[0]].name : "";

        ddp_text_printf(out, "  %-3u %-36s %s\n", i, k->name, layer);
    }
}

static void report_images(const char *section, const ddp_source *src, ddp_text *out)
{
    if (src->transform == NULL) return;
    ddp_text_printf(out, "images of [%s]      ", section);
    ddp_transform_describe(src->transform, out);
    ddp_text_printf(out, "\n");
}

/* What a dataset has found in its files: the first line beside the title, the others below. */
static void report_source(const char *section, const ddp_source *src, ddp_text *out)
{
    const char *line = src->plugin != NULL ? src->ops->describe(src->dataset) : NULL;

    if (line == NULL || line[0] == '\0') return;
    ddp_text_printf(out, "samples of [%s]     ", section);
    while (line[0] != '\0') {
        int length = (int)strcspn(line, "\n");

        ddp_text_printf(out, "%.*s\n", length, line);
        line += length + (line[length] == '\n');
        if (line[0] != '\0') ddp_text_printf(out, "  ");
    }
}

void ddp_session_report(const ddp_session *s, ddp_text *out)
{
    const ddp_variant *v = &s->programs.variants[0]; /* training, the full batch (or what there is) */
    char a[32];

    ddp_text_printf(out, "model                 %s on %s (%s, %s), %u thread%s, ", s->model.plugin->desc.name,
                    s->devices.text, s->device.info.name, s->device.info.library, s->device.threads,
                    s->device.threads == 1 ? "" : "s");
    ddp_session_pin_text(s, out);
    ddp_text_printf(out, "\n");
    ddp_text_printf(out, "group                 world_size %d, backend %s", s->launch.world,
                    ddp_session_backend_name(s));
    if (s->devices.replicas > 1) ddp_text_printf(out, ", %u replicas on %s", s->devices.replicas, s->devices.text);
    if (s->devices.stages > 1) ddp_text_printf(out, ", %u stages on %s", s->devices.stages, s->devices.text);
    if (s->devices.rank_stages > 1)
        ddp_text_printf(out, ", %u stages, %u rank%s each%s", s->devices.rank_stages, ddp_session_stage_replicas(s),
                        ddp_session_stage_replicas(s) == 1 ? "" : "s",
                        ddp_session_stages_measured(s) ? ", to be placed by measured times" : "");
    if (s->address[0] != '\0') ddp_text_printf(out, ", interface %s (%s)", s->config->group->interface, s->address);
    if (s->hook != NULL) ddp_text_printf(out, ", hook %s", s->hook->desc.name);
    ddp_text_printf(out, "\n");
    ddp_text_printf(out,
                    "data                  %s, %s samples; batch %s%" PRId64 " x accumulate %" PRId64 " x %" PRIu64
                    " %s%s%" PRId64 ", %" PRIu64 " steps an epoch\n",
                    s->train.plugin->desc.name, ddp_format_count(s->train.length, a, sizeof(a)),
                    s->batches.uneven ? "at most " : "", s->batches.batch_size, s->batches.accumulate,
                    ddp_session_parts(s), s->devices.replicas > 1 ? "replicas" : "ranks",
                    s->batches.uneven ? " for a step of " : " = ", s->batches.global_batch, s->steps_per_epoch);
    if (s->train.mean.by_token)
        ddp_text_printf(out, "loss                  the mean over all labels of a step that count\n");
    report_source("data", &s->train, out);
    report_source("eval", &s->eval, out);
    report_stages(s, v, out);
    report_head(s, out);
    report_images("data", &s->train, out);
    report_images("eval", &s->eval, out);
    report_params(s, out);
    session_groups_report(s, out);
    report_buckets(s, v, out);
    report_memory(s, v, out);
    report_recomputed(v, out);
    ddp_text_printf(out, "a step, batch %-7" PRId64 " %.3f GFLOP, %s read and written if nothing were fused\n",
                    v->batch, (double)ddp_program_flops(v->program) * 1e-9,
                    ddp_format_bytes(ddp_program_bytes(v->program), a, sizeof(a)));
    report_kernels(v, out);
}
