/* graph/state.c -- what a model declares to keep: parameters, buffers, and how they start.
 *
 * A parameter's first values come from draws, in the order of the calls: a parameter that is declared with an
 * initialisation is drawn there, and may be drawn again later, as torch.nn.init.*_ does over what a module's
 * constructor drew. */
#include "base/mt19937.h"
#include "graph/internal.h"
#include <math.h>
#include <string.h>

static const ddp_tensor failed = {-1};

/* ---- checks ------------------------------------------------------------------------------------------------------ */
static bool usable_init(const ddp_init_spec *init)
{
    if (!isfinite(init->a) || !isfinite(init->b)) return false;
    switch (init->kind) {
    case DDP_INIT_CONSTANT: return true;
    case DDP_INIT_UNIFORM: return init->a <= init->b;
    case DDP_INIT_NORMAL: return init->b >= 0.0;
    default: return false;
    }
}

static ddp_status check_init(ddp_graph_core *c, const char *prefix, const char *name, const ddp_init_spec *init)
{
    if (usable_init(init)) return DDP_OK;
    return ddp_fail(&c->err, DDP_ERR_CONFIG, "parameter \"%s%s\": no such initialisation (kind %u, %g, %g)", prefix,
                    name, init->kind, init->a, init->b);
}

static bool is_named(const ddp_graph_core *c, const char *declared, const char *name)
{
    size_t prefix = strlen(c->prefix);

    return strncmp(declared, c->prefix, prefix) == 0 && strcmp(declared + prefix, name) == 0;
}

/* `what`: "parameter" or "buffer" */
static ddp_status check_state(ddp_graph_core *c, const char *what, const char *name, uint32_t rank, const int64_t *dims)
{
    char shape[DDP_SHAPE_TEXT];

    if (name[0] == '\0') return ddp_fail(&c->err, DDP_ERR_CONFIG, "a %s in scope \"%s\" has no name", what, c->prefix);
    if (rank > DDP_MAX_DIMS)
        return ddp_fail(&c->err, DDP_ERR_CONFIG, "%s \"%s%s\": %u dimensions, at most %d are possible", what, c->prefix,
                        name, rank, DDP_MAX_DIMS);
    (void)ddp_dims_text(rank, dims, shape, sizeof(shape));
    for (uint32_t i = 0; i < rank; i++)
        if (dims[i] < 0)
            return ddp_fail(&c->err, DDP_ERR_CONFIG,
                            "%s \"%s%s\" of shape %s would depend on the batch; "
                            "reshape the layer's input to (N, features)",
                            what, c->prefix, name, shape);
    if (!graph_countable(rank, dims))
        return ddp_fail(&c->err, DDP_ERR_CONFIG, "%s \"%s%s\": the shape %s has no usable size", what, c->prefix, name,
                        shape);
    for (uint32_t i = 0; i < c->param_count + c->buffer_count; i++) {
        const char *declared = i < c->param_count ? c->params[i].name : c->buffers[i - c->param_count].name;

        if (is_named(c, declared, name))
            return ddp_fail(&c->err, DDP_ERR_CONFIG,
                            "%s \"%s\" is declared twice; "
                            "give the layer another name, or use the tensor again to share it",
                            what, declared);
    }
    return DDP_OK;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */
static ddp_status add_draw(ddp_graph_core *c, int32_t param, const ddp_init_spec *init)
{
    DDP_TRY(graph_grow(&c->draws, &c->draw_capacity, c->draw_count, sizeof(*c->draws), &c->err));
    c->draws[c->draw_count++] = (ddp_graph_draw){.param = param, .init = *init};
    return DDP_OK;
}

ddp_tensor graph_param(ddp_graph *g, const char *name, uint32_t rank, const int64_t *dims, const ddp_init_spec *init)
{
    ddp_graph_core *c = ddp_graph_of(g);
    ddp_param_info p = {.rank = rank, .elements = 1, .first_use = UINT32_MAX};
    ddp_graph_value v = {.kind = DDP_VALUE_PARAM, .index = (int32_t)c->param_count, .node = -1};

    if (ddp_graph_broken(c) || check_state(c, "parameter", name, rank, dims) != DDP_OK ||
        check_init(c, c->prefix, name, init) != DDP_OK)
        return failed;
    v.name = p.name = graph_name(c, name);
    if (p.name == NULL || graph_grow(&c->params, &c->param_capacity, c->param_count, sizeof(p), &c->err) != DDP_OK ||
        add_draw(c, v.index, init) != DDP_OK)
        return failed;
    v.shape = (ddp_shape){.dtype = DDP_F32, .rank = rank};
    for (uint32_t i = 0; i < rank; i++) {
        v.shape.dims[i] = p.dims[i] = dims[i];
        p.elements *= (uint64_t)dims[i];
    }
    c->params[c->param_count++] = p;
    return graph_add_value(c, &v);
}

void graph_init(ddp_graph *g, ddp_tensor param, const ddp_init_spec *init)
{
    ddp_graph_core *c = ddp_graph_of(g);
    const ddp_graph_value *v;

    if (ddp_graph_broken(c)) return;
    v = ddp_graph_is_tensor(c, param) ? &c->values[param.id] : NULL;
    if (v == NULL || v->kind != DDP_VALUE_PARAM) {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG, "only a parameter can be initialised, and tensor %d is none", param.id);
        return;
    }
    if (check_init(c, "", v->name, init) == DDP_OK) (void)add_draw(c, v->index, init);
}

uint32_t ddp_graph_params(const ddp_graph *g, const ddp_param_info **out)
{
    *out = ddp_graph_view(g)->params;
    return ddp_graph_view(g)->param_count;
}

/* A constructor's draw that an initialisation replaces only moves the generator on. */
static bool drawn_again(const ddp_graph_core *c, uint32_t draw)
{
    for (uint32_t i = draw + 1; i < c->draw_count; i++)
        if (c->draws[i].param == c->draws[draw].param) return true;
    return false;
}

static void skip_draw(ddp_mt19937 *generator, uint32_t kind, uint64_t count)
{
    if (kind == DDP_INIT_UNIFORM) ddp_mt19937_skip(generator, count);
    if (kind == DDP_INIT_NORMAL) ddp_mt19937_skip_normal(generator, count);
}

static void fill(ddp_mt19937 *generator, const ddp_init_spec *init, float *at, uint64_t count)
{
    if (init->kind == DDP_INIT_UNIFORM)
        ddp_mt19937_uniform(generator, at, count, init->a, init->b);
    else if (init->kind == DDP_INIT_NORMAL)
        ddp_mt19937_normal(generator, at, count, init->a, init->b);
    else
        for (uint64_t k = 0; k < count; k++) at[k] = (float)init->a;
}

/* Elements of parameter `param` that are wanted. */
static ddp_kept_elements wanted(const ddp_kept_elements *kept, uint32_t kept_count, uint32_t param, uint64_t elements)
{
    for (uint32_t i = 0; i < kept_count; i++)
        if (kept[i].param == param) return kept[i];
    return (ddp_kept_elements){.param = param, .end = elements};
}

/* A piece at a time. The last one has a whole block of normals at least, which the end of a draw needs. */
enum { DRAW_PIECE = 64 * DDP_NORMAL_BLOCK };

static void fill_some(ddp_mt19937 *generator, const ddp_init_spec *init, const ddp_kept_elements *k, float *at,
                      uint64_t count)
{
    float piece[DRAW_PIECE + DDP_NORMAL_BLOCK];
    uint64_t n;

    for (uint64_t from = 0; from < count; from += n) {
        uint64_t first = DDP_MAX_OF(from, k->first), end;

        n = count - from < DRAW_PIECE + DDP_NORMAL_BLOCK ? count - from : DRAW_PIECE;
        end = DDP_MIN_OF(from + n, k->end);
        fill(generator, init, piece, n);
        if (first < end) memcpy(at + first, piece + (first - from), (end - first) * sizeof(*at));
    }
}

/* The model's own parameters, or those of adapters, which are drawn as after another torch.manual_seed(seed): a model
 * that comes from a file has drawn nothing. */
static void draw_params(const ddp_graph_core *c, const ddp_layout *l, uint64_t seed, bool adapters,
                        const ddp_kept_elements *kept, uint32_t kept_count, float *arena)
{
    ddp_mt19937 generator;

    ddp_mt19937_seed(&generator, seed);
    for (uint32_t i = 0; i < c->draw_count; i++) {
        const ddp_init_spec *init = &c->draws[i].init;
        float *at = arena + l->offset[c->draws[i].param];
        uint64_t count = c->params[c->draws[i].param].elements;
        ddp_kept_elements k = wanted(kept, kept_count, (uint32_t)c->draws[i].param, count);

        if (c->params[c->draws[i].param].adapter != adapters) continue;
        if (drawn_again(c, i))
            skip_draw(&generator, init->kind, count);
        else if (k.first == 0 && k.end == count)
            fill(&generator, init, at, count);
        else
            fill_some(&generator, init, &k, at, count);
    }
}

void ddp_initial_params_kept(const ddp_graph *g, const ddp_layout *l, uint64_t seed, const ddp_kept_elements *kept,
                             uint32_t kept_count, float *arena)
{
    draw_params(ddp_graph_view(g), l, seed, false, kept, kept_count, arena);
    draw_params(ddp_graph_view(g), l, seed, true, kept, kept_count, arena);
}

void ddp_initial_params(const ddp_graph *g, const ddp_layout *l, uint64_t seed, float *arena)
{
    memset(arena, 0, l->param_elements * sizeof(*arena));
    ddp_initial_params_kept(g, l, seed, NULL, 0, arena);
}

bool ddp_initial_equal(const ddp_graph *a, const ddp_graph *b)
{
    const ddp_graph_core *x = ddp_graph_view(a), *y = ddp_graph_view(b);

    if (x->draw_count != y->draw_count) return false;
    for (uint32_t i = 0; i < x->draw_count; i++) {
        const ddp_graph_draw *p = &x->draws[i], *q = &y->draws[i];

        if (p->param != q->param || p->init.kind != q->init.kind || p->init.a != q->init.a || p->init.b != q->init.b)
            return false;
    }
    return true;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */
enum { ALIGNMENT = 16 }; /* elements: 64 bytes of f32 */

ddp_tensor graph_buffer(ddp_graph *g, const char *name, uint32_t dtype, uint32_t rank, const int64_t *dims,
                        double initial)
{
    ddp_graph_core *c = ddp_graph_of(g);
    ddp_buffer_info b = {.dtype = dtype, .rank = rank, .elements = 1, .initial = initial};
    ddp_graph_value v = {.kind = DDP_VALUE_BUFFER, .index = (int32_t)c->buffer_count, .node = -1};

    if (ddp_graph_broken(c) || check_state(c, "buffer", name, rank, dims) != DDP_OK) return failed;
    if ((dtype != DDP_F32 && (dtype != DDP_I64 || rank != 0 || initial != 0.0)) || !isfinite(initial)) {
        (void)ddp_fail(&c->err, DDP_ERR_CONFIG,
                       "buffer \"%s%s\": it must be f32, or an i64 scalar that starts at 0 and counts steps", c->prefix,
                       name);
        return failed;
    }
    v.name = b.name = graph_name(c, name);
    if (b.name == NULL || graph_grow(&c->buffers, &c->buffer_capacity, c->buffer_count, sizeof(b), &c->err) != DDP_OK)
        return failed;
    v.shape = (ddp_shape){.dtype = dtype, .rank = rank};
    for (uint32_t i = 0; i < rank; i++) {
        v.shape.dims[i] = b.dims[i] = dims[i];
        b.elements *= (uint64_t)dims[i];
    }
    b.offset = c->buffer_elements;
    b.after_param = c->param_count;
    if (dtype == DDP_F32) c->buffer_elements += ddp_round_up(b.elements, ALIGNMENT);
    c->buffers[c->buffer_count++] = b;
    return graph_add_value(c, &v);
}

uint32_t ddp_graph_buffers(const ddp_graph *g, const ddp_buffer_info **out)
{
    *out = ddp_graph_view(g)->buffers;
    return ddp_graph_view(g)->buffer_count;
}

uint64_t ddp_graph_buffer_elements(const ddp_graph *g) { return ddp_graph_view(g)->buffer_elements; }

void ddp_initial_buffers(const ddp_graph *g, float *arena)
{
    const ddp_graph_core *c = ddp_graph_view(g);

    memset(arena, 0, c->buffer_elements * sizeof(*arena));
    for (uint32_t i = 0; i < c->buffer_count; i++)
        for (uint64_t k = 0; c->buffers[i].dtype == DDP_F32 && k < c->buffers[i].elements; k++)
            arena[c->buffers[i].offset + k] = (float)c->buffers[i].initial;
}
