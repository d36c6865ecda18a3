/* cli/preflight/table.c -- the pairs of ranks: in which order they are measured, as a table, which are slow. */
#include "cli/preflight/net.h"
#include <stdlib.h>

enum { SHOWN = 16 /* most ranks of a table */, NAMED = 8 /* most slow pairs */ };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* In turn a round is one pair; else it is that of the circle method, in which the last of an even number stands still
 * and an odd one out has nobody. */
int32_t preflight_partner(int32_t world, int32_t round, int32_t rank, bool in_turn)
{
    int32_t even = world + world % 2, other;

    if (!in_turn) {
        if (rank == even - 1)
            other = round % (even - 1) * (even / 2) % (even - 1);
        else
            other = (round - rank + 2 * (even - 1)) % (even - 1);
        if (rank != even - 1 && other == rank) other = even - 1;
        return other < world ? other : -1;
    }
    for (int32_t a = 0; a < world; a++)
        for (int32_t b = a + 1; b < world; b++)
            if (round-- == 0) return rank == a ? b : rank == b ? a : -1;
    return -1;
}

static bool is_of_one_host(const ddp_pairs *p, int32_t a, int32_t b) { return p->first_of[a] == p->first_of[b]; }

/* Of the pairs of one host, or of those between two: a network is slower than memory, and no fault. */
static double median(const ddp_pairs *p, bool one_host)
{
    double *x = malloc((size_t)p->world * (size_t)p->world * sizeof(*x)), found = 0.0;
    size_t n = 0;

    for (int32_t a = 0; x != NULL && a < p->world; a++)
        for (int32_t b = a + 1; b < p->world; b++)
            if (is_of_one_host(p, a, b) == one_host) x[n++] = p->mbps[a * p->world + b];
    if (n > 0) qsort(x, n, sizeof(*x), by_size);
    if (n > 0) found = x[n / 2];
    free(x);
    return found;
}

bool preflight_is_slow(const ddp_pairs *p, int32_t a, int32_t b, double *of)
{
    double m = median(p, is_of_one_host(p, a, b));

    if (of != NULL) *of = m;
    return p->mbps[a * p->world + b] < 0.5 * m;
}

/* "  1234 " and "   110*" */
static void cell(const ddp_pairs *p, int32_t row, int32_t column, ddp_text *out)
{
    int32_t at = row * p->world + column;

    if (row == column)
        ddp_text_printf(out, "       - ");
    else if (row < column)
        ddp_text_printf(out, " %7.*f ", p->us[at] < 10 ? 1 : 0, p->us[at]);
    else
        ddp_text_printf(out, " %7.0f%c", p->mbps[at], preflight_is_slow(p, row, column, NULL) ? '*' : ' ');
}

static void print(const ddp_pairs *p, const char *backend, bool by_broadcast, ddp_text *out)
{
    ddp_text_printf(out, "network               backend %s%s: latency in us above the diagonal, MB/s below it\n",
                    backend, by_broadcast ? ", by broadcasts" : "");
    ddp_text_printf(out, "  rank ");
    for (int32_t b = 0; b < p->world; b++) ddp_text_printf(out, " %7d ", b);
    for (int32_t a = 0; a < p->world; a++) {
        ddp_text_printf(out, "\n  %4d ", a);
        for (int32_t b = 0; b < p->world; b++) cell(p, a, b, out);
    }
    ddp_text_printf(out, "\n");
}

void preflight_pairs_report(const ddp_pairs *p, const char *backend, bool by_broadcast, ddp_text *table,
                            ddp_findings *f)
{
    double least = 0.0, longest = 0.0, m;
    int32_t named = 0;

    for (int32_t a = 0; a < p->world; a++)
        for (int32_t b = a + 1; b < p->world; b++) {
            double mbps = p->mbps[a * p->world + b];

            least = least == 0.0 ? mbps : DDP_MIN_OF(least, mbps);
            longest = DDP_MAX_OF(longest, p->us[a * p->world + b]);
            if (!preflight_is_slow(p, a, b, &m) || named++ >= NAMED) continue;
            preflight_add(
                f, DDP_FINDING_WARNING, 0, "network",
                "ranks %d and %d: %.0f MB/s, less than half of the median %.0f; look for what else uses that link or host, its cable and switch port, or name another network in [group] interface",
                a, b, mbps, m);
        }
    if (named == 0)
        preflight_add(f, DDP_FINDING_OK, 0, "network", "at most %.3g us and at least %.0f MB/s between two ranks",
                      longest, least);
    if (p->world <= SHOWN) print(p, backend, by_broadcast, table);
}
