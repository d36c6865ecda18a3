/* plugins/backend/aggregate/shares.h -- which part of a buffer an aggregator sums and which a worker, and in what
 * pieces. Pure arithmetic, the same on all ranks; docs/design/backends.md derives it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Of n workers and k aggregators: parts are to each other as these weights. `aggregator` 0: those have no use. */
typedef struct aggregate_weights {
    uint64_t aggregator, worker;
} aggregate_weights;
aggregate_weights aggregate_weigh(uint32_t workers, uint32_t aggregators);

/* How many times as fast as between the workers alone: 1 + k (n - 2) / n^2 for k up to n, not more beyond; 1 for two
 * workers. */
double aggregate_gain(uint32_t workers, uint32_t aggregators);

/* Elements first .. first + count - 1 are summed by one host, in pieces of `piece`, the last one shorter. */
typedef struct aggregate_part {
    size_t first, count, piece;
} aggregate_part;

/* How `count` elements of `size` bytes are divided: parts 0 .. aggregators - 1 are the aggregators', those behind them
 * the workers'. All parts have the same number of pieces, each of at most `chunk` bytes. */
typedef struct aggregate_division {
    aggregate_weights weights;
    uint32_t workers, aggregators;
    size_t count, pieces, line; /* line: elements that a boundary is a multiple of */
} aggregate_division;
void aggregate_divide(uint32_t workers, uint32_t aggregators, size_t count, size_t size, size_t chunk,
                      aggregate_division *out);
aggregate_part aggregate_part_of(const aggregate_division *d, uint32_t index);

/* Piece `i` of a part: how many elements, from `first` of the whole buffer on. */
static inline size_t aggregate_piece(const aggregate_part *p, size_t i, size_t *first)
{
    size_t at = i * p->piece;

    *first = p->first + at;
    if (at >= p->count) return 0;
    return p->count - at < p->piece ? p->count - at : p->piece;
}
