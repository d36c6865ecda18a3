/* train/head/pieces.c -- see pieces.h. */
#include "train/head/pieces.h"
#include "train/state/memory.h"
#include <string.h>

enum { GET = 1, PUT, DRAW, DONE };

/* A message of rank 0; the same program runs on all ranks, so a struct is its own wire format. */
typedef struct message {
    uint64_t what, which, first, count;
} message;

static ddp_status pass(ddp_trainer *t, uint32_t what, int32_t peer, void *data, uint64_t bytes, ddp_err *err)
{
    ddp_task task = {.what = what,
                     .coll = {.struct_size = sizeof(ddp_coll),
                              .dtype = DDP_U8,
                              .op = DDP_SUM,
                              .root = (uint32_t)peer,
                              .send = data,
                              .recv = data,
                              .count = bytes}};

    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_run(t->comm, &task, err));
    return DDP_OK;
}

static float *arena_of(const ddp_trainer *t, uint64_t which)
{
    float *const all[] = {t->mem.params, t->mem.state1, t->mem.state2};

    return which < DDP_COUNT(all) ? all[which] : NULL;
}

/* ---- who has what ---------------------------------------------------------------------------------------------- */
/* The rank that has element `at`, and the end of what it has there. */
static int32_t owner_of(const ddp_trainer *t, uint64_t at, uint64_t *end)
{
    const ddp_head *of = &t->s->model.head.of;
    const ddp_layout *l = t->s->model.layout;
    uint64_t weight = l->offset[of->weight], width = (uint64_t)of->features, base = weight;
    int32_t r = 0;

    if (at < weight || at >= weight + (uint64_t)of->classes * width) {
        base = l->offset[of->bias];
        width = 1;
    }
    while (at >= base + (uint64_t)ddp_session_head_first(t->s, r + 1) * width) r++;
    *end = base + (uint64_t)ddp_session_head_first(t->s, r + 1) * width;
    return r;
}

static bool is_in(const ddp_trainer *t, uint32_t param, uint64_t at)
{
    uint64_t first = t->s->model.layout->offset[param];

    return at >= first && at < first + t->s->model.params[param].elements;
}

bool head_finds(const ddp_trainer *t, const void *data, uint32_t *which, uint64_t *first)
{
    const ddp_head *of = &t->s->model.head.of;

    for (uint32_t k = 0; t->local.head != NULL && data != NULL && k < 3; k++) {
        const float *arena = arena_of(t, k), *at = data;

        if (arena == NULL || (uintptr_t)at < (uintptr_t)arena ||
            (uintptr_t)at >= (uintptr_t)(arena + t->s->model.layout->elements))
            continue;
        *which = k;
        *first = (uint64_t)(at - arena);
        return is_in(t, of->weight, *first) || (of->bias >= 0 && is_in(t, (uint32_t)of->bias, *first));
    }
    return false;
}

/* ---- rank 0 ---------------------------------------------------------------------------------------------------- */
static ddp_status ask(ddp_trainer *t, uint64_t what, uint32_t which, uint64_t first, uint64_t count, int32_t rank,
                      ddp_err *err)
{
    message m = {what, which, first, count};

    return pass(t, DDP_COLL_SEND, rank, &m, sizeof(m), err);
}

/* Between rank 0's `data` and whoever has the elements. */
static ddp_status move(ddp_trainer *t, uint64_t what, uint32_t which, uint64_t first, uint64_t count, float *data,
                       ddp_err *err)
{
    float *own = arena_of(t, which);
    uint64_t n, end;

    for (uint64_t at = first; at < first + count; at += n, data += n) {
        int32_t rank = owner_of(t, at, &end);

        n = DDP_MIN_OF(DDP_MIN_OF(end, first + count) - at, (uint64_t)HEAD_PIECE);
        if (rank == 0) {
            memcpy(what == GET ? data : own + at, what == GET ? own + at : data, n * sizeof(*data));
            continue;
        }
        DDP_TRY(ask(t, what, which, at, n, rank, err));
        DDP_TRY(pass(t, what == GET ? DDP_COLL_RECV : DDP_COLL_SEND, rank, data, n * sizeof(*data), err));
    }
    return DDP_OK;
}

ddp_status head_get(ddp_trainer *t, uint32_t which, uint64_t first, uint64_t count, float *out, ddp_err *err)
{
    return move(t, GET, which, first, count, out, err);
}

ddp_status head_put(ddp_trainer *t, uint32_t which, uint64_t first, uint64_t count, const float *from, ddp_err *err)
{
    return move(t, PUT, which, first, count, (float *)from, err);
}

ddp_status head_done(ddp_trainer *t, ddp_err *err)
{
    for (int32_t r = 1; r < t->s->launch.world; r++) DDP_TRY(ask(t, DONE, 0, 0, 0, r, err));
    return DDP_OK;
}

static void draw(ddp_trainer *t)
{
    const ddp_split_head *h = t->local.head;
    const ddp_head *of = &t->s->model.head.of;
    uint64_t width = (uint64_t)of->features;
    ddp_kept_elements kept[2] = {{of->weight, (uint64_t)h->first * width, (uint64_t)h->end * width},
                                 {(uint32_t)DDP_MAX_OF(of->bias, 0), (uint64_t)h->first, (uint64_t)h->end}};

    ddp_initial_params_kept(t->s->model.graph, t->s->model.layout, t->s->config->train->seed, kept,
                            of->bias >= 0 ? 2 : 1, t->mem.params);
}

/* ---- the others ------------------------------------------------------------------------------------------------ */
static bool is_own(const ddp_trainer *t, const message *m)
{
    uint64_t end;

    return arena_of(t, m->which) != NULL && m->count > 0 && m->first < t->local.head->elements &&
           owner_of(t, m->first, &end) == t->s->launch.rank && m->count <= end - m->first;
}

ddp_status head_serve(ddp_trainer *t, ddp_err *err)
{
    message m = {0};

    for (;;) {
        DDP_TRY(pass(t, DDP_COLL_RECV, 0, &m, sizeof(m), err));
        if (m.what == DONE) return DDP_OK;
        if (m.what == DRAW) {
            draw(t);
            continue;
        }
        if ((m.what != GET && m.what != PUT) || !is_own(t, &m))
            return ddp_fail(err, DDP_ERR_INTERNAL, "rank 0 asks for classes that rank %d does not have",
                            (int)t->s->launch.home);
        DDP_TRY(pass(t, m.what == GET ? DDP_COLL_SEND : DDP_COLL_RECV, 0, arena_of(t, m.which) + m.first,
                     m.count * sizeof(float), err));
    }
}

/* ---- a checkpoint that is read --------------------------------------------------------------------------------- */
typedef struct loading {
    ddp_trainer *t;
    uint32_t which;
    uint64_t first;
} loading;

static ddp_status take_piece(void *ctx, uint64_t at, const void *data, uint64_t bytes, ddp_err *err)
{
    const loading *l = ctx;
    float *piece = l->t->local.head->piece; /* in a file they may lie anywhere */

    memcpy(piece, data, bytes);
    return head_put(l->t, l->which, l->first + at / sizeof(float), bytes / sizeof(float), piece, err);
}

ddp_status head_load(ddp_trainer *t, const ddp_checkpoint *c, int part, const ddp_named_tensor *from, void *to,
                     ddp_err *err)
{
    loading l = {.t = t};

    if (!head_finds(t, to, &l.which, &l.first))
        return ddp_fail(err, DDP_ERR_INTERNAL, "%s is no parameter of the output layer", from->name);
    return ddp_checkpoint_pieces(c, part, from, HEAD_PIECE * sizeof(float), take_piece, &l, err);
}

/* ---- a save ---------------------------------------------------------------------------------------------------- */
/* Bytes of a tensor, at most HEAD_PIECE elements; valid until the next call. */
static ddp_status read_piece(void *ctx, const void *at, uint64_t bytes, const void **out, ddp_err *err)
{
    ddp_trainer *t = ctx;
    uint64_t first;
    uint32_t which;

    if (!head_finds(t, at, &which, &first))
        return ddp_fail(err, DDP_ERR_INTERNAL, "a piece of the output layer is of none of its parameters");
    *out = t->local.head->piece;
    return head_get(t, which, first, bytes / sizeof(float), t->local.head->piece, err);
}

void head_set_reader(const ddp_trainer *t, ddp_views *v)
{
    uint64_t first;
    uint32_t which;

    for (size_t i = 0; t->local.head != NULL && i < v->count; i++)
        if (head_finds(t, v->data[i], &which, &first))
            v->tensors[i].reader =
                (ddp_tensor_reader){.read = read_piece, .ctx = (void *)t, .bytes = HEAD_PIECE * sizeof(float)};
}

/* ---- the start, and the end ------------------------------------------------------------------------------------ */
ddp_status head_draw(ddp_trainer *t, ddp_err *err)
{
    for (int32_t r = 1; r < t->s->launch.world; r++) DDP_TRY(ask(t, DRAW, 0, 0, 0, r, err));
    draw(t);
    return DDP_OK;
}

ddp_status head_spread(ddp_trainer *t, bool states, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    uint64_t first = t->local.head->elements;

    for (uint32_t k = 0; k < (states ? 3u : 1u); k++) {
        uint64_t end = k == 0 ? l->param_elements : l->elements;
        ddp_task task;

        if (arena_of(t, k) == NULL) continue;
        task = ddp_task_of(DDP_COLL_BROADCAST, DDP_SUM, NULL, arena_of(t, k) + first, end - first);
        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_run(t->comm, &task, err));
    }
    return DDP_OK;
}

static ddp_status hash_param(ddp_trainer *t, uint32_t p, ddp_sha256 *h, ddp_err *err)
{
    uint64_t at = t->s->model.layout->offset[p], elements = t->s->model.params[p].elements, ignored;
    uint32_t which;

    if (!head_finds(t, t->mem.params + at, &which, &ignored)) {
        ddp_sha256_add(h, t->mem.params + at, elements * sizeof(float));
        return DDP_OK;
    }
    for (uint64_t done = 0, n; done < elements; done += n) {
        n = DDP_MIN_OF(elements - done, (uint64_t)HEAD_PIECE);
        DDP_TRY(head_get(t, 0, at + done, n, t->local.head->piece, err));
        ddp_sha256_add(h, t->local.head->piece, n * sizeof(float));
    }
    return DDP_OK;
}

ddp_status head_hash(ddp_trainer *t, ddp_err *err)
{
    ddp_sha256 h;

    if (t->local.head == NULL) return DDP_OK;
    if (t->s->launch.rank != 0) return head_serve(t, err);
    DDP_TRY(ddp_sha256_begin(&h, err));
    for (uint32_t p = 0; p < t->s->model.param_count; p++) DDP_TRY(hash_param(t, p, &h, err));
    ddp_sha256_end(&h, t->local.head->sha256);
    return head_done(t, err);
}
