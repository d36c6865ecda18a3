/* plugins/backend/aggregate/shares.c -- see shares.h.
 *
 * n workers, k aggregators, a buffer of 1, every link full duplex. An aggregator that sums x receives n x and sends
 * n x.
 * A worker that sums y sends k x to the aggregators, and to each other worker that one's part and the sum of its own:
 * k x + 2 (n - 1) y, and receives as much. Both are equal, and k x + n y = 1, for
 *     x = 2 (n - 1) / (n^2 + k (n - 2)),  y = (n - k) / (n^2 + k (n - 2)).
 * With k = n nothing is left for the workers; more aggregators share the same, and the workers' links are the bound. */
#include "shares.h"

enum { LINE = 64 }; /* bytes: pieces begin at multiples of so many in their part */

aggregate_weights aggregate_weigh(uint32_t workers, uint32_t aggregators)
{
    if (workers <= 2 || aggregators == 0) return (aggregate_weights){.worker = 1};
    if (aggregators >= workers) return (aggregate_weights){.aggregator = 1};
    return (aggregate_weights){.aggregator = 2 * ((uint64_t)workers - 1), .worker = workers - aggregators};
}

double aggregate_gain(uint32_t workers, uint32_t aggregators)
{
    double n = workers, k = aggregators < workers ? aggregators : workers;

    return workers > 2 ? 1.0 + k * (n - 2.0) / (n * n) : 1.0;
}

static size_t divide_up(size_t a, size_t b) { return a / b + (a % b != 0); }

/* The part that ends where part `index` begins, of all `total` weights; at a multiple of a line. */
static size_t begin_of(const aggregate_division *d, uint32_t index)
{
    const aggregate_weights *w = &d->weights;
    uint64_t total = d->aggregators * w->aggregator + d->workers * w->worker;
    uint64_t before = index <= d->aggregators ? index * w->aggregator
                                              : d->aggregators * w->aggregator + (index - d->aggregators) * w->worker;
    size_t at = d->count / total * before + d->count % total * before / total;

    return before == total ? d->count : at / d->line * d->line;
}

void aggregate_divide(uint32_t workers, uint32_t aggregators, size_t count, size_t size, size_t chunk,
                      aggregate_division *out)
{
    size_t longest = 0;

    *out = (aggregate_division){.weights = aggregate_weigh(workers, aggregators),
                                .workers = workers,
                                .aggregators = aggregators,
                                .count = count,
                                .pieces = 1,
                                .line = LINE / size};
    for (uint32_t i = 0; i < aggregators + workers; i++) {
        size_t n = begin_of(out, i + 1) - begin_of(out, i);

        longest = n > longest ? n : longest;
    }
    if (longest > 0) out->pieces = divide_up(longest, chunk / LINE * LINE / size);
}

aggregate_part aggregate_part_of(const aggregate_division *d, uint32_t index)
{
    aggregate_part p = {.first = begin_of(d, index)};

    p.count = begin_of(d, index + 1) - p.first;
    p.piece = divide_up(divide_up(p.count, d->pieces), d->line) * d->line;
    return p;
}
