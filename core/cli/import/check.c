/* cli/import/check.c -- see check.h. */
#include "cli/import/check.h"
#include <math.h>
#include <string.h>

static const double most = 1e15; /* a double holds each whole number up to it */

static const struct {
    double low, high;
    bool is_number, is_whole;
    const char *what;
} ranges[] = {
    [TAKES_NUMBER] = {-HUGE_VAL, HUGE_VAL, true, false, "no number"},
    [TAKES_FROM_0] = {0, HUGE_VAL, true, false, "no number from 0 on"},
    [TAKES_SHARE] = {0, 1, true, false, "no number from 0 to 1"},
    [TAKES_DECAY] = {0, 1, true, false, "no number from 0 to below 1"},
    [TAKES_INTEGER] = {-HUGE_VAL, HUGE_VAL, true, true, "no whole number"},
    [TAKES_COUNT] = {0, HUGE_VAL, true, true, "no whole number from 0 on"},
    [TAKES_POSITIVE] = {1, HUGE_VAL, true, true, "no whole number from 1 on"},
    [TAKES_WHEN_BEST] = {0},
};

static bool is_number(import_takes takes, const char *text)
{
    double value;

    if (!convert_is_number(text, &value) || value < ranges[takes].low || value > ranges[takes].high) return false;
    if (takes == TAKES_DECAY && value >= 1) return false;
    return !ranges[takes].is_whole || (value == floor(value) && fabs(value) <= most);
}

static bool is_when(const char *text)
{
    return convert_is_false(text) || strcmp(text, "steps") == 0 || strcmp(text, "epoch") == 0;
}

ddp_status convert_check(const converter *c, const import_entry *e, const import_mapping *m, ddp_err *err)
{
    const char *text = e->count > 0 ? e->values[0] : NULL;

    if (m->takes == TAKES_ANY) return DDP_OK;
    if (e->is_map) return convert_fail(c, e, "a mapping where a value has to be", err);
    if (m->takes == TAKES_LIST) return DDP_OK;
    if (e->is_list) return convert_fail(c, e, "a list where one value has to be", err);
    if (text == NULL) return DDP_OK;
    if (ranges[m->takes].is_number && !is_number(m->takes, text)) return convert_fail(c, e, ranges[m->takes].what, err);
    if (m->takes == TAKES_BOOL && !convert_is_true(text) && !convert_is_false(text))
        return convert_fail(c, e, "neither true nor false", err);
    if (m->takes == TAKES_WHEN && !is_when(text)) return convert_fail(c, e, "none of no, steps, epoch", err);
    if (m->takes == TAKES_WHEN_BEST && !is_when(text) && strcmp(text, "best") != 0)
        return convert_fail(c, e, "none of no, steps, epoch, best", err);
    return DDP_OK;
}
