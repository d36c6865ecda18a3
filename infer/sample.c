/* infer/sample.c -- see sample.h. Top-k and top-p keep the likeliest in a heap, so that nobody sorts a vocabulary. */
#include "infer/sample.h"
#include <math.h>
#include <string.h>

/* A heap of candidates; at its root the least likely one, or the likeliest. */
typedef struct candidates {
    const float *logits;
    int64_t *order;
    int64_t count;
    bool likeliest;
} candidates;

static bool comes_before(const float *logits, int64_t a, int64_t b)
{
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

/* a may stand above b */
static bool above(const candidates *c, int64_t a, int64_t b)
{
    return c->likeliest ? comes_before(c->logits, a, b) : comes_before(c->logits, b, a);
}

/* Moves candidate `at` of the heap to its position. */
static void sift(const candidates *c, int64_t at)
{
    for (int64_t child = 2 * at + 1; child < c->count; child = 2 * at + 1) {
        int64_t held = c->order[at];

        if (child + 1 < c->count && above(c, c->order[child + 1], c->order[child])) child++;
        if (!above(c, c->order[child], held)) return;
        c->order[at] = c->order[child];
        c->order[child] = held;
        at = child;
    }
}

static void make_heap(const candidates *c)
{
    for (int64_t i = c->count / 2; i-- > 0;) sift(c, i);
}

/* Of the n in `order`, by number, those that `last` and what is likelier are; returns how many. */
static int64_t keep_until(const float *logits, int64_t *order, int64_t n, int64_t last)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < n; i++)
        if (order[i] == last || comes_before(logits, order[i], last)) order[kept++] = order[i];
    return kept;
}

/* The `k` likeliest of those in `order`, by number. */
static int64_t choose_top_k(const float *logits, int64_t *order, int64_t n, int64_t k)
{
    candidates c = {.logits = logits, .order = order + n, .count = k};

    memcpy(c.order, order, (size_t)k * sizeof(*order));
    make_heap(&c);
    for (int64_t i = k; i < n; i++) {
        if (!comes_before(logits, order[i], c.order[0])) continue;
        c.order[0] = order[i];
        sift(&c, 0);
    }
    return keep_until(logits, order, n, c.order[0]);
}

static double weight_of(const ddp_sampling *how, const float *logits, int64_t token, int64_t best)
{
    return exp(((double)logits[token] - (double)logits[best]) / how->temperature);
}

/* The fewest likeliest of those in `order`, by number, that have the share top_p of all their weight. */
static int64_t choose_top_p(const ddp_sampling *how, const float *logits, int64_t *order, int64_t n, int64_t best)
{
    candidates c = {.logits = logits, .order = order + n, .count = n, .likeliest = true};
    double all = 0.0, sum = weight_of(how, logits, best, best);

    for (int64_t i = 0; i < n; i++) all += weight_of(how, logits, order[i], best);
    memcpy(c.order, order, (size_t)n * sizeof(*order));
    make_heap(&c);
    while (sum < how->top_p * all && c.count > 1) {
        c.order[0] = c.order[--c.count];
        sift(&c, 0);
        sum += weight_of(how, logits, c.order[0], best);
    }
    return keep_until(logits, order, n, c.order[0]);
}

static int64_t largest(const float *logits, int64_t count)
{
    int64_t best = 0;

    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

int64_t infer_sample(const ddp_sampling *how, const float *logits, int64_t count, double uniform, int64_t *order)
{
    int64_t best = largest(logits, count), n = count, chosen = best;
    bool by_k = how->top_k > 0 && how->top_k<count, by_p = how->top_p> 0.0 && how->top_p < 1.0;
    double sum = 0.0, at = 0.0;

    if (how->temperature == 0.0) return best;
    for (int64_t i = 0; i < count && (by_k || by_p); i++) order[i] = i;
    if (by_k) n = choose_top_k(logits, order, n, how->top_k);
    if (by_p) n = choose_top_p(how, logits, order, n, best);
    for (int64_t i = 0; i < n; i++) sum += weight_of(how, logits, n < count ? order[i] : i, best);
    for (int64_t i = 0; i < n; i++) {
        chosen = n < count ? order[i] : i;
        at += weight_of(how, logits, chosen, best);
        if (at > uniform * sum) break;
    }
    return chosen;
}
