/* train/head/rows.c -- see rows.h. */
#include "train/head/rows.h"
#include "train/state/memory.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PARTS = 4, TERMS = 2 };
enum { MAX, SUM, AT_LABEL, FIRST }; /* of the parts */

static ddp_status exchange(ddp_trainer *t, uint32_t what, const float *send, float *recv, uint64_t count, ddp_err *err)
{
    ddp_task task = ddp_task_of(what, DDP_SUM, send, recv, count);
    int64_t from = ddp_now_ns();

    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_run(t->comm, &task, err));
    t->local.head->wait_ns += ddp_now_ns() - from;
    return DDP_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */
/* Of a rank: a mark for each of its rows, and last whether it was asked to stop. */
static int64_t marks_of(const ddp_split_head *h, int64_t rank) { return rank * (h->own + 1); }

static int32_t read_mark(const ddp_split_head *h, int64_t i)
{
    int32_t mark;

    memcpy(&mark, h->marks + i, sizeof(mark));
    return mark;
}

static int32_t mark_at(const ddp_split_head *h, int64_t row)
{
    return read_mark(h, marks_of(h, row / h->own) + row % h->own);
}

static ddp_status set_marks(const ddp_trainer *t, float *marks, const int64_t *label, int64_t count, ddp_err *err)
{
    const ddp_head *of = &t->s->model.head.of;
    int32_t asked = ddp_trainer_asked_to_stop(t);

    for (int64_t r = 0; r < t->local.head->own; r++) {
        int32_t mark = -1;

        if (r < count && !(of->labels.ignores && label[r] == of->labels.ignore_index)) {
            if (label[r] < 0 || label[r] >= of->classes)
                return ddp_fail(err, DDP_ERR_DATA,
                                "label %" PRId64 " of row %" PRId64 " of the batch is not one of the model's %" PRId64
                                " classes (0 to %" PRId64
                                "); check the data set's labels against the model's number of classes",
                                label[r], r, of->classes, of->classes - 1);
            mark = (int32_t)label[r];
        }
        memcpy(marks + r, &mark, sizeof(mark));
    }
    memcpy(marks + t->local.head->own, &asked, sizeof(asked));
    return DDP_OK;
}

ddp_status head_rows_set(ddp_trainer *t, const float *features, const int64_t *label, int64_t samples, ddp_err *err)
{
    ddp_split_head *h = t->local.head;
    const ddp_head *of = &t->s->model.head.of;
    int64_t rank = ddp_group_rank(t->group), count = samples * of->labels.labels;
    float *to = h->features + rank * h->own * of->features;

    if (count > 0) memcpy(to, features, (size_t)(count * of->features) * sizeof(*to));
    memset(to + count * of->features, 0, (size_t)((h->own - count) * of->features) * sizeof(*to));
    return set_marks(t, h->marks + marks_of(h, rank), label, count, err);
}

ddp_status head_rows_gather(ddp_trainer *t, ddp_err *err)
{
    ddp_split_head *h = t->local.head;
    int64_t rank = ddp_group_rank(t->group), part = h->own * t->s->model.head.of.features;

    DDP_TRY(exchange(t, DDP_COLL_ALL_GATHER, h->features + rank * part, h->features, (uint64_t)part, err));
    DDP_TRY(exchange(t, DDP_COLL_ALL_GATHER, h->marks + marks_of(h, rank), h->marks, (uint64_t)h->own + 1, err));
    h->asked = 0;
    for (int64_t k = 0; k < t->s->launch.world && h->asked == 0; k++) h->asked = read_mark(h, marks_of(h, k) + h->own);
    for (int64_t r = 0; r < h->rows; r++) h->label[r] = mark_at(h, r) < 0 ? -1 : mark_at(h, r) - h->first;
    return DDP_OK;
}

static ddp_status run(ddp_trainer *t, bool adds, bool back, ddp_err *err)
{
    ddp_split_head *h = t->local.head;
    void *inputs[DDP_HEAD_FIELDS] = {
        [DDP_HEAD_FEATURES] = h->features, [DDP_HEAD_LABEL] = h->label, [DDP_HEAD_TERMS] = h->terms};
    ddp_run r = {.struct_size = sizeof(r), .flags = adds ? DDP_RUN_GRAD_ADD : 0, .inputs = inputs};

    return head_run_kernels(t, &h->head, h->program->program, h->arena, &r, back, err);
}

ddp_status head_rows_parts(ddp_trainer *t, ddp_err *err)
{
    ddp_split_head *h = t->local.head;
    uint64_t count = (uint64_t)h->rows * PARTS;
    float *own = h->parts + (uint64_t)ddp_group_rank(t->group) * count;

    DDP_TRY(run(t, false, false, err));
    memcpy(own, h->arena + h->head.planned->plan.value_offset[h->program->parts], count * sizeof(*own));
    return exchange(t, DDP_COLL_ALL_GATHER, own, h->parts, count, err);
}

/* ---- what follows from the parts ------------------------------------------------------------------------------- */
typedef struct row_result {
    double log_sum, at_label;
    int64_t best; /* class of the first largest logit */
} row_result;

static row_result look_at(const ddp_trainer *t, int64_t row)
{
    const ddp_split_head *h = t->local.head;
    row_result out = {.at_label = -INFINITY};
    double max = -INFINITY, sum = 0.0;

    for (int32_t k = 0; k < t->s->launch.world; k++) {
        const float *p = h->parts + (k * h->rows + row) * PARTS;

        if (!((double)p[MAX] <= max)) {
            max = (double)p[MAX];
            out.best = ddp_session_head_first(t->s, k) + (int64_t)p[FIRST];
        }
        if (!((double)p[AT_LABEL] <= out.at_label)) out.at_label = (double)p[AT_LABEL];
    }
    for (int32_t k = 0; k < t->s->launch.world; k++) {
        const float *p = h->parts + (k * h->rows + row) * PARTS;

        sum += (double)p[SUM] * exp((double)p[MAX] - max);
    }
    out.log_sum = max + log(sum);
    return out;
}

static double counted_of(const ddp_split_head *h, int64_t first)
{
    double n = 0.0;

    for (int64_t r = first; r < first + h->own; r++) n += mark_at(h, r) >= 0;
    return n;
}

void head_rows_combine(const ddp_trainer *t, const ddp_loss_mean *mean, head_result *own)
{
    ddp_split_head *h = t->local.head;
    double world = (double)t->s->launch.world;

    *own = (head_result){0};
    for (int64_t k = 0; k < t->s->launch.world; k++) {
        double counted = counted_of(h, k * h->own), divisor = mean->by_token ? mean->divisor : counted;

        for (int64_t r = k * h->own; r < (k + 1) * h->own; r++) {
            row_result row = look_at(t, r);
            bool counts = mark_at(h, r) >= 0;

            h->terms[r * TERMS] = (float)row.log_sum;
            h->terms[r * TERMS + 1] = counts ? (float)(1.0 / (divisor * world)) : 0.0f;
            if (k != ddp_group_rank(t->group) || !counts) continue;
            own->loss += row.log_sum - row.at_label;
            own->right += row.best == (int64_t)mark_at(h, r);
            own->counted += 1.0;
        }
    }
}

/* The features of a rank are those of its own mean, the terms of that over all ranks. */
ddp_status head_rows_backward(ddp_trainer *t, bool adds, float **out, ddp_err *err)
{
    ddp_split_head *h = t->local.head;
    float *all = (float *)(void *)(h->arena + h->head.planned->plan.value_offset[h->program->dfeatures]);
    uint64_t part = (uint64_t)(h->own * t->s->model.head.of.features);

    DDP_TRY(run(t, adds, true, err));
    *out = all + (uint64_t)ddp_group_rank(t->group) * part;
    DDP_TRY(exchange(t, DDP_COLL_REDUCE_SCATTER, all, *out, part, err));
    return ddp_scale_floats(t, *out, part, (double)t->s->launch.world, err);
}
