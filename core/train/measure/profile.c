/* train/measure/profile.c -- counters of `--profile`: kernels of one name are one row. */
#include "train/measure/profile.h"
#include "base/sys.h"
#include <stdlib.h>
#include <string.h>

/* ---- opening --------------------------------------------------------------------------------------------------- */
static uint32_t find_row(ddp_profile *p, const char *name)
{
    uint32_t i = DDP_ROW_KERNELS;

    while (i < p->row_count && strcmp(p->early.rows[i].name, name) != 0) i++;
    p->early.rows[i].name = p->later.rows[i].name = name;
    p->row_count = DDP_MAX_OF(p->row_count, i + 1);
    return i;
}

static ddp_status plan_variant(ddp_profile *p, uint32_t i, ddp_err *err)
{
    const ddp_variant *v = &p->s->programs.variants[i];
    ddp_profile_cost *costs = ddp_alloc(v->lowered->kernel_count * sizeof(*costs), err);

    p->costs[i] = costs;
    if (costs == NULL) return err->status;
    for (uint32_t k = 0; k < v->lowered->kernel_count; k++) {
        const ddp_kernel *kernel = ddp_kernel_at(v->lowered, k);

        costs[k] = (ddp_profile_cost){.row = find_row(p, kernel->name),
                                      .flops = (double)ddp_kernel_flops(v->program, kernel),
                                      .bytes = (double)ddp_kernel_bytes(v->program, v->lowered, kernel)};
    }
    return DDP_OK;
}

static ddp_status plan_rows(ddp_profile *p, ddp_err *err)
{
    static const char *const names[DDP_ROW_KERNELS] = {"update", "wait", "data", "other"};
    const ddp_session *s = p->s;
    uint32_t most = DDP_ROW_KERNELS;

    for (uint32_t i = 0; i < s->programs.count; i++) most += s->programs.variants[i].lowered->kernel_count;
    p->early.rows = ddp_alloc(most * sizeof(ddp_profile_row), err);
    p->later.rows = ddp_alloc(most * sizeof(ddp_profile_row), err);
    if (p->early.rows == NULL || p->later.rows == NULL) return err->status;
    for (uint32_t i = 0; i < DDP_ROW_KERNELS; i++) p->early.rows[i].name = p->later.rows[i].name = names[i];
    p->row_count = DDP_ROW_KERNELS;
    p->now = &p->early;
    for (uint32_t i = 0; i < s->programs.count; i++)
        if (s->programs.variants[i].training) DDP_TRY(plan_variant(p, i, err));
    return DDP_OK;
}

static ddp_status measure(ddp_profile *p, ddp_err *err)
{
    ddp_status st;

    p->peaks.struct_size = sizeof(p->peaks);
    st = p->s->device.ops->measure(p->s->device.device, &p->peaks, err);
    if (st == DDP_OK || st == DDP_ERR_UNSUPPORTED) return DDP_OK;
    return ddp_fail_as(err, DDP_EXIT_PLUGIN);
}

ddp_status ddp_profile_open(const ddp_session *s, bool direct, ddp_profile **out, ddp_err *err)
{
    ddp_profile *p;
    double states = ddp_optimizer_states(s->config), ranks = direct ? (double)ddp_session_shards(s) : 1.0;
    ddp_status st;

    if (!s->launch.profile || s->launch.rank != 0) return DDP_OK;
    p = ddp_alloc(sizeof(*p), err);
    if (p == NULL) return err->status;
    p->s = s;
    p->sync = ddp_device_can(&s->device, DDP_DEVICE_CAP_OVERLAP);
    /* every rank's gradient is read and every rank's parameter written where they are shared, else this rank's */
    p->update_bytes = sizeof(float) * (2.0 * ranks + 1.0 + 2.0 * states);
    p->waits = direct ? 2 : s->model.layout->bucket_count;
    st = plan_rows(p, err);
    if (st == DDP_OK) st = measure(p, err);
    if (st == DDP_OK)
        *out = p;
    else
        ddp_profile_close(p);
    return st;
}

void ddp_profile_close(ddp_profile *p)
{
    if (p == NULL) return;
    for (size_t i = 0; i < DDP_COUNT(p->costs); i++) free(p->costs[i]);
    free(p->early.rows);
    free(p->later.rows);
    free(p);
}

/* ---- in a step ------------------------------------------------------------------------------------------------- */
static void add(ddp_profile_row *r, uint64_t calls, int64_t ns, double flops, double bytes)
{
    r->calls += calls;
    r->ns += ns;
    r->flops += flops;
    r->bytes += bytes;
}

static ddp_status finish_call(const ddp_profile *p, ddp_err *err)
{
    return p->sync ? ddp_device_sync(&p->s->device, err) : DDP_OK;
}

ddp_status ddp_profile_run(ddp_profile *p, const ddp_session *s, const ddp_variant *v, const ddp_run *run,
                           uint32_t first, uint32_t last, ddp_err *err)
{
    const ddp_profile_cost *costs;
    int64_t from, to;

    if (p == NULL) return ddp_device_run(&s->device, v->instance, run, first, last, err);
    costs = p->costs[v - s->programs.variants];
    DDP_TRY(finish_call(p, err));
    from = ddp_now_ns();
    for (uint32_t k = first; k < last; k++, from = to) {
        DDP_TRY(ddp_device_run(&s->device, v->instance, run, k, k + 1, err));
        DDP_TRY(finish_call(p, err));
        to = ddp_now_ns();
        add(&p->now->rows[costs[k].row], 1, to - from, costs[k].flops, costs[k].bytes);
    }
    return DDP_OK;
}

int64_t ddp_profile_begin(const ddp_profile *p) { return p == NULL ? 0 : ddp_now_ns(); }

/* A bucket that is sent wakes another thread, which may have to take this one's processor for its work. */
void ddp_profile_sent(ddp_profile *p, int64_t from)
{
    if (p != NULL) add(&p->now->rows[DDP_ROW_WAIT], 0, ddp_now_ns() - from, 0.0, 0.0);
}

ddp_status ddp_profile_updated(ddp_profile *p, int64_t from, uint64_t calls, double elements, ddp_err *err)
{
    if (p == NULL) return DDP_OK;
    DDP_TRY(finish_call(p, err));
    add(&p->now->rows[DDP_ROW_UPDATE], calls, ddp_now_ns() - from, 0.0, elements * p->update_bytes);
    return DDP_OK;
}

void ddp_profile_step(ddp_profile *p, int64_t from, int64_t data_ns, uint64_t micros, double wait_ms)
{
    ddp_profile_totals *t;

    if (p == NULL) return;
    t = p->now;
    add(&t->rows[DDP_ROW_WAIT], p->waits, (int64_t)(wait_ms * 1e6), 0.0, 0.0);
    add(&t->rows[DDP_ROW_DATA], micros, data_ns, 0.0, 0.0);
    t->rows[DDP_ROW_OTHER].calls++;
    t->ns += ddp_now_ns() - from;
    if (++t->steps == DDP_PROFILE_WARM_UP && t == &p->early) p->now = &p->later;
}
