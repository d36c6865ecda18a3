/* conform/harness/report.c -- what people read: a line for each suite and world, each failure, what was covered and
 * what was skipped. */
#include "conform/harness/report.h"
#include <string.h>

enum { FAILURES_SHOWN = 5 }; /* of one suite in one world */

void ddp_report_begin(ddp_report *r, const ddp_probe *p, const ddp_conform_params *params)
{
    r->out = params->out;
    (void)fprintf(r->out, "%s \"%s\" %s (%s)%s\n", ddp_kind_name(p->kind), p->name, p->version, p->path,
                  params->quick ? ", quick" : "");
    (void)fflush(r->out);
}

void ddp_report_skip(ddp_report *r, uint32_t cases, const char *fmt, ...)
{
    char text[320], line[328];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)snprintf(line, sizeof(line), "  %s\n", text);
    r->skipped += cases;
    if (r->reasons.data == NULL || strstr(r->reasons.data, line) == NULL)
        ddp_text_append(&r->reasons, line, strlen(line)); /* once */
}

/* ---- coverage ---------------------------------------------------------------------------------------------------- */
static void cover(ddp_report *r, ddp_shared_results *s, uint32_t c)
{
    const ddp_case *k = &s->cases[c];
    uint64_t bytes = k->count * ddp_dtype_size(k->dtype);

    if (k->suite != DDP_SUITE_RESULTS) return;
    if (ddp_shared_results_get(s, 0, c)->refused) {
        r->refused[k->dtype] |= 1u << k->op;
        return;
    }
    r->slots[k->slot].cases++;
    r->slots[k->slot].dtypes |= 1u << k->dtype;
    r->slots[k->slot].ops |= 1u << k->op;
    r->slots[k->slot].worlds |= 1u << s->world;
    r->slots[k->slot].in_place = r->slots[k->slot].in_place || k->in_place;
    r->slots[k->slot].largest = DDP_MAX_OF(r->slots[k->slot].largest, bytes);
}

/* The members of a set, by number where `name` is NULL. */
static void set_names(FILE *out, uint32_t set, uint32_t first, uint32_t end, const char *(*name)(uint32_t))
{
    for (uint32_t i = first; i < end; i++) {
        if ((set & 1u << i) == 0) continue;
        if (name == NULL)
            (void)fprintf(out, " %u", i);
        else
            (void)fprintf(out, " %s", name(i));
    }
}

static void slot_row(ddp_report *r, uint32_t slot)
{
    const ddp_slot_info *s = ddp_slot_info_of(slot);
    char size[32];

    (void)fprintf(r->out, "  %-15s %4u cases, worlds", s->name, r->slots[slot].cases);
    set_names(r->out, r->slots[slot].worlds, 1, DDP_CONFORM_MAX_WORLD + 1, NULL);
    if (slot != DDP_SLOT_BARRIER) {
        (void)fprintf(r->out, "; 0 to %s;", ddp_format_bytes(r->slots[slot].largest, size, sizeof(size)));
        set_names(r->out, r->slots[slot].dtypes, DDP_F32, DDP_DTYPE_END_, ddp_dtype_name);
        if (s->reduces) (void)fprintf(r->out, ";");
        if (s->reduces) set_names(r->out, r->slots[slot].ops, DDP_SUM, DDP_REDUCE_OP_END_, ddp_op_text);
        if (r->slots[slot].in_place) (void)fprintf(r->out, "; in place");
    }
    (void)fprintf(r->out, "\n");
}

static void coverage(ddp_report *r, const ddp_probe *p)
{
    uint32_t cases = 0;

    for (uint32_t slot = 0; slot < DDP_SLOT_END; slot++) cases += r->slots[slot].cases;
    if (p->kind != DDP_KIND_BACKEND || cases == 0) return;
    (void)fprintf(r->out, "covered, with right results:\n");
    for (uint32_t slot = 0; slot < DDP_SLOT_END; slot++)
        if (r->slots[slot].cases > 0) slot_row(r, slot);
    for (uint32_t d = DDP_F32; d < DDP_DTYPE_END_; d++) {
        if (r->refused[d] == 0) continue;
        (void)fprintf(r->out, "  refused as `supports` says: %s", ddp_dtype_name(d));
        set_names(r->out, r->refused[d], DDP_SUM, DDP_REDUCE_OP_END_, ddp_op_text);
        (void)fprintf(r->out, "\n");
    }
}

/* ---- suites ------------------------------------------------------------------------------------------------------ */
typedef struct tally {
    uint32_t passed, failed, skipped;
    int64_t us; /* of the slowest rank of each case */
} tally;

static void failure(ddp_report *r, const ddp_shared_results *s, uint32_t c, const char *why)
{
    char what[200];

    harness_case_describe(&s->cases[c], what, sizeof(what));
    (void)fprintf(r->out, "FAILED world %u, %s: %s\n", s->world, what, why);
}

static void count_case(ddp_report *r, ddp_shared_results *s, uint32_t c, tally *t)
{
    char why[256], what[200];
    int64_t us = 0;

    for (uint32_t i = 0; i < s->world; i++) us = DDP_MAX_OF(us, ddp_shared_results_get(s, i, c)->us);
    t->us += us;
    switch (ddp_shared_results_check(s, c, why)) {
    case DDP_PASSED:
        t->passed++;
        cover(r, s, c);
        break;
    case DDP_FAILED:
        if (t->failed++ < FAILURES_SHOWN) failure(r, s, c, why);
        break;
    default:
        harness_case_describe(&s->cases[c], what, sizeof(what));
        t->skipped++;
        if (strncmp(why, "not run", 7) == 0)
            ddp_report_skip(r, 0, "world %u: %s", s->world, why);
        else
            ddp_report_skip(r, 0, "%s: %s", what, why[0] != '\0' ? why : "the run was ended");
    }
}

void ddp_report_world(ddp_report *r, ddp_shared_results *s)
{
    for (uint32_t suite = 0; suite < DDP_SUITE_END; suite++) {
        tally t = {0};

        for (uint32_t c = 0; c < s->case_count; c++)
            if (s->cases[c].suite == suite) count_case(r, s, c, &t);
        if (t.passed + t.failed + t.skipped == 0) continue;
        if (t.failed > FAILURES_SHOWN) (void)fprintf(r->out, "FAILED %u more\n", t.failed - FAILURES_SHOWN);
        (void)fprintf(r->out, "  world %u  %-10s %5u passed", s->world, ddp_suite_name(suite), t.passed);
        if (t.failed > 0) (void)fprintf(r->out, ", %u failed", t.failed);
        if (t.skipped > 0) (void)fprintf(r->out, ", %u skipped", t.skipped);
        (void)fprintf(r->out, "; %.1f s\n", (double)t.us / 1e6);
        r->passed += t.passed;
        r->failed += t.failed;
        r->skipped += t.skipped;
    }
    (void)fflush(r->out);
}

void ddp_report_end(ddp_report *r, const ddp_probe *p)
{
    coverage(r, p);
    if (r->reasons.length > 0) (void)fprintf(r->out, "skipped:\n%s", r->reasons.data);
    (void)fprintf(r->out, "%u passed, %u failed, %u skipped\n", r->passed, r->failed, r->skipped);
    (void)fflush(r->out);
    ddp_text_free(&r->reasons);
}
