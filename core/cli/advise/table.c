/* cli/advise/table.c -- advice.json as tables. Every figure says whether it was measured or is predicted. */
#include "cli/advise/table.h"
#include <stdlib.h>

enum { MOST_REMEDIES = 32 };

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }
static int whole(const json_t *o, const char *key) { return (int)json_integer_value(json_object_get(o, key)); }
static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s != NULL ? s : "";
}

static double ms(const json_t *o, const char *key) { return number(o, key) * 1e3; }

static void link_rows(const json_t *advice, ddp_text *out)
{
    const json_t *l = json_object_get(advice, "link");

    if (json_is_null(l)) {
        ddp_text_printf(out, "%-22s ranks update each other's memory, no gradient is sent\n", "link");
        return;
    }
    if (number(l, "bytes_per_s") > 0.0)
        ddp_text_printf(out, "%-22s %.4g us, %.4g MB/s between two ranks, all at once\n", "link, measured",
                        number(l, "latency_s") * 1e6, number(l, "bytes_per_s") * 1e-6);
    ddp_text_printf(out, "%-22s %.4g us, then %.4g MB/s\n", "all_reduce, measured",
                    number(l, "all_reduce_latency_s") * 1e6, number(l, "all_reduce_bytes_per_s") * 1e-6);
}

/* Hosts that help: at two ranks in vain. */
static void helper_row(const json_t *advice, ddp_text *out)
{
    const json_t *h = json_object_get(advice, "aggregators");
    int world = whole(advice, "world_size");

    if (!json_is_object(h)) return;
    if (number(h, "gain") > 1.0)
        ddp_text_printf(out, "%-22s %d: %.2fx an all-reduce of %d ranks alone, in theory\n", "aggregators",
                        whole(h, "count"), number(h, "gain"), world);
    else
        ddp_text_printf(out, "%-22s %d, no gain: %d ranks are as fast alone\n", "aggregators", whole(h, "count"),
                        world);
}

static void head(const json_t *advice, ddp_text *out)
{
    const json_t *one = json_object_get(advice, "one_rank"), *m = json_object_get(advice, "measured"),
                 *p = json_object_get(advice, "predicted");
    int world = whole(advice, "world_size"), local = whole(advice, "ranks_per_host");

    ddp_text_printf(out, "%-22s %d, %d a host, over %s; %.4g MB of gradients in %d buckets, %d sent early\n", "ranks",
                    world, local, text(advice, "backend"), number(advice, "gradient_bytes") * 1e-6,
                    whole(advice, "buckets"), whole(advice, "early_buckets"));
    link_rows(advice, out);
    helper_row(advice, out);
    ddp_text_printf(out, "%-22s %.4g ms forward and backward; %.4g ms where one rank computes alone\n",
                    "compute, measured", ms(advice, "compute_s"), ms(one, "compute_s"));
    ddp_text_printf(out, "%-22s %.4g ms a step\n", "one rank, predicted", ms(one, "step_s"));
    if (!json_is_null(p))
        ddp_text_printf(out, "%-22s %.4g ms a step, %.4g of it wait: %.2fx one rank\n", "this run, predicted",
                        ms(p, "step_s"), ms(p, "wait_s"), number(p, "speedup"));
    ddp_text_printf(out, "%-22s %.4g ms a step, %.4g of it wait: %.2fx one rank (%d steps)\n", "this run, measured",
                    ms(m, "step_s"), ms(m, "wait_s"), number(m, "speedup"), whole(m, "steps"));
}

/* Below 1 more hosts cost time. */
static void below_one(const json_t *advice, ddp_text *out)
{
    const json_t *p = json_object_get(advice, "predicted");
    const json_t *from = json_is_null(p) ? json_object_get(advice, "measured") : p;
    int world = whole(advice, "world_size");

    if (number(from, "speedup") >= 0.995) return; /* printed as 1.00 */
    ddp_text_printf(
        out,
        "\n%d ranks are slower than one here: a step takes %.4g ms, and one rank alone computes as many samples in %.4g ms.\n",
        world, ms(from, "step_s"), world * ms(json_object_get(advice, "one_rank"), "step_s"));
}

static void worlds(const json_t *advice, ddp_text *out)
{
    const json_t *list = json_object_get(advice, "worlds");

    if (json_array_size(list) == 0) return;
    ddp_text_printf(out, "\n%9s %10s %10s %10s %12s   predicted\n", "ranks", "step ms", "wait ms", "speed-up",
                    "of linear");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i);

        ddp_text_printf(out, "%9d %10.4g %10.4g %9.2fx %10.0f %%\n", whole(w, "ranks"), ms(w, "step_s"),
                        ms(w, "wait_s"), number(w, "speedup"), 100.0 * number(w, "efficiency"));
    }
    if (whole(advice, "world_size") == whole(advice, "ranks_per_host"))
        ddp_text_printf(
            out, "All ranks were on one host: more of them are taken as hosts that are reached as these ranks are.\n");
}

static int by_gain(const void *a, const void *b)
{
    double x = number(*(const json_t *const *)a, "gain"), y = number(*(const json_t *const *)b, "gain");

    return (x < y) - (x > y);
}

static void remedies(const json_t *advice, ddp_text *out)
{
    const json_t *list = json_object_get(advice, "remedies"), *sorted[MOST_REMEDIES];
    size_t count = DDP_MIN_OF(json_array_size(list), (size_t)MOST_REMEDIES);

    for (size_t i = 0; i < count; i++) sorted[i] = json_array_get(list, i);
    if (count == 0) return;
    qsort(sorted, count, sizeof(*sorted), by_gain);
    ddp_text_printf(out, "\n%-52s %10s %8s   predicted, for this run\n", "what would change it", "step ms", "gain");
    for (size_t i = 0; i < count; i++) {
        const char *set = text(sorted[i], "set");

        ddp_text_printf(out, "%-52s %10.4g %7.2fx%s%s\n", text(sorted[i], "name"), ms(sorted[i], "step_s"),
                        number(sorted[i], "gain"), set[0] != '\0' ? "   " : "", set);
    }
}

ddp_status advise_table(const json_t *advice, ddp_text *out, ddp_err *err)
{
    if (!json_is_object(json_object_get(advice, "measured")) || !json_is_object(json_object_get(advice, "one_rank")))
        return ddp_fail(err, DDP_ERR_INVALID, "advice.json has neither \"measured\" nor \"one_rank\"");
    head(advice, out);
    below_one(advice, out);
    worlds(advice, out);
    remedies(advice, out);
    return DDP_OK;
}
