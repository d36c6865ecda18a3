/* session/stages/cuts.c -- see cuts.h. best[s][j]: the largest of stages 0 to s, where stage s ends at point j. */
#include "session/stages/cuts.h"
#include <math.h>
#include <stdlib.h>

/* Points are node 0, the cuts, and the end. */
typedef struct plan {
    const session_costs *c;
    const uint32_t *cuts;
    uint32_t points;
    double *time, *params, *activations; /* sums of all nodes before a point */
    double *best;
    uint32_t *from; /* the point before it */
    double limit;   /* of a stage's time; INFINITY: the time itself is to be least */
} plan;

static uint32_t node_at(const plan *p, uint32_t point)
{
    if (point == 0) return 0;
    return point + 1 == p->points ? p->c->nodes : p->cuts[point - 1];
}

static double time_of(const plan *p, uint32_t stage, uint32_t from, uint32_t to)
{
    return (p->time[to] - p->time[from]) * p->c->speed[stage];
}

/* A stage has activations of all its micro-batches in flight. */
static double memory_of(const plan *p, uint32_t stage, uint32_t from, uint32_t to)
{
    return p->params[to] - p->params[from] +
           (p->activations[to] - p->activations[from]) * (double)(p->c->stages - stage);
}

static double cost_of(const plan *p, uint32_t stage, uint32_t from, uint32_t to)
{
    double time = time_of(p, stage, from, to);

    if (isinf(p->limit)) return time;
    return time > p->limit ? INFINITY : memory_of(p, stage, from, to);
}

static double *best_of(const plan *p, uint32_t stage, uint32_t point)
{
    return &p->best[(size_t)stage * p->points + point];
}

/* Returns the largest stage's cost. */
static double solve(plan *p)
{
    for (uint32_t s = 0; s < p->c->stages; s++)
        for (uint32_t to = 0; to < p->points; to++) {
            double *best = best_of(p, s, to);

            *best = INFINITY;
            for (uint32_t from = s; from < to; from++) {
                double before = s == 0 ? (from == 0 ? 0.0 : INFINITY) : *best_of(p, s - 1, from);
                double worst = fmax(before, cost_of(p, s, from, to));

                if (worst >= *best) continue;
                *best = worst;
                p->from[(size_t)s * p->points + to] = from;
            }
        }
    return *best_of(p, p->c->stages - 1, p->points - 1);
}

static void sum_up(plan *p)
{
    double time = 0.0, params = 0.0, activations = 0.0;

    for (uint32_t point = 0; point < p->points; point++) {
        p->time[point] = time;
        p->params[point] = params;
        p->activations[point] = activations;
        for (uint32_t n = node_at(p, point); point + 1 < p->points && n < node_at(p, point + 1); n++) {
            time += p->c->time[n];
            params += p->c->params[n];
            activations += p->c->activations[n];
        }
    }
}

static void read_back(const plan *p, uint32_t *first, double *slowest)
{
    uint32_t to = p->points - 1;
    double sum = 0.0, most = 0.0;

    for (uint32_t s = p->c->stages; s-- > 0;) {
        uint32_t from = p->from[(size_t)s * p->points + to];

        sum += time_of(p, s, from, to);
        most = fmax(most, time_of(p, s, from, to));
        first[s] = node_at(p, from);
        to = from;
    }
    *slowest = sum > 0.0 ? most * (double)p->c->stages / sum : 1.0;
}

bool session_cut(const session_costs *c, const uint32_t *cuts, uint32_t count, uint32_t *first, double *slowest,
                 ddp_err *err)
{
    plan p = {.c = c, .cuts = cuts, .points = count + 2, .limit = INFINITY};
    size_t cells = (size_t)c->stages * p.points;
    double *room = NULL;
    bool found = false;

    if (count + 1 < c->stages) return false;
    room = ddp_alloc((3 * (size_t)p.points + cells) * sizeof(*room), err);
    p.from = ddp_alloc(cells * sizeof(*p.from), err);
    if (room != NULL && p.from != NULL) {
        p.time = room;
        p.params = room + p.points;
        p.activations = room + 2 * (size_t)p.points;
        p.best = room + 3 * (size_t)p.points;
        sum_up(&p);
        p.limit = solve(&p) * 1.03;
        (void)solve(&p);
        read_back(&p, first, slowest);
        found = true;
    }
    free(room);
    free(p.from);
    return found;
}
