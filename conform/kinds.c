/* conform/kinds.c -- the cases of all kinds but backend: most need no ranks beside each other, init brings them
 * together, and a hook works between them. */
#include "conform/kinds.h"
#include "conform/suites.h"

/* LONG: leaks open and close a hundred times, a hook has hundreds of updates between its ranks, a device may compute on
 * a processor that others use. */
enum { CASE_MS = 30000, LONG_MS = 120000 };

static const ddp_case table[] = {
    {.slot = DDP_KIND_INIT, .suite = DDP_SUITE_RENDEZVOUS, .fresh = true},
    {.slot = DDP_KIND_INIT, .suite = DDP_SUITE_REFUSALS},
    {.slot = DDP_KIND_INIT, .suite = DDP_SUITE_LEAKS, .fresh = true},
    {.slot = DDP_KIND_DEVICE, .suite = DDP_SUITE_OPEN},
    {.slot = DDP_KIND_DEVICE, .suite = DDP_SUITE_MEMORY},
    {.slot = DDP_KIND_DEVICE, .suite = DDP_SUITE_RESULTS, .variant = DDP_TOPIC_FLAT},
    {.slot = DDP_KIND_DEVICE, .suite = DDP_SUITE_RESULTS, .variant = DDP_TOPIC_OPTIMIZER},
    {.slot = DDP_KIND_DEVICE, .suite = DDP_SUITE_RESULTS, .variant = DDP_TOPIC_PROGRAM},
    {.slot = DDP_KIND_DEVICE, .suite = DDP_SUITE_LEAKS, .fresh = true},
    {.slot = DDP_KIND_MODEL, .suite = DDP_SUITE_RESULTS, .variant = DDP_TOPIC_GRAPH},
    {.slot = DDP_KIND_MODEL, .suite = DDP_SUITE_REFUSALS},
    {.slot = DDP_KIND_MODEL, .suite = DDP_SUITE_LEAKS, .fresh = true},
    {.slot = DDP_KIND_SAMPLER, .suite = DDP_SUITE_RESULTS, .variant = DDP_TOPIC_INDICES},
    {.slot = DDP_KIND_SAMPLER, .suite = DDP_SUITE_REFUSALS},
    {.slot = DDP_KIND_SAMPLER, .suite = DDP_SUITE_LEAKS, .fresh = true},
    {.slot = DDP_KIND_DATASET, .suite = DDP_SUITE_OPEN},
    {.slot = DDP_KIND_DATASET, .suite = DDP_SUITE_RESULTS, .variant = DDP_TOPIC_SAMPLES},
    {.slot = DDP_KIND_DATASET, .suite = DDP_SUITE_THREADS},
    {.slot = DDP_KIND_DATASET, .suite = DDP_SUITE_LEAKS, .fresh = true},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_OPEN},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_RESULTS, .variant = DDP_TOPIC_MEAN},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_RESULTS, .variant = DDP_TOPIC_ZERO},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_ORDER},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_STATE},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_MEMORY},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_REFUSALS},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_GROWTH},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_PAIR},
    {.slot = DDP_KIND_HOOK, .suite = DDP_SUITE_LEAKS, .fresh = true},
};

/* In the table `slot` is the kind. */
ddp_status conform_kind_cases(ddp_case_list *l, uint32_t kind, uint32_t suite, ddp_err *err)
{
    for (size_t i = 0; i < DDP_COUNT(table); i++) {
        ddp_case c = table[i];

        if (c.slot != kind || (suite != DDP_SUITE_END && c.suite != suite)) continue;
        c.slot = 0;
        c.deadline_ms =
            c.suite == DDP_SUITE_LEAKS || kind == DDP_KIND_HOOK || kind == DDP_KIND_DEVICE ? LONG_MS : CASE_MS;
        DDP_TRY(ddp_case_add(l, c, err));
    }
    return DDP_OK;
}

void ddp_kind_case(ddp_rank_process *a)
{
    switch (a->plugin->kind) {
    case DDP_KIND_INIT: conform_init_case(a); break;
    case DDP_KIND_DEVICE: ddp_device_case(a); break;
    case DDP_KIND_MODEL: conform_model_case(a); break;
    case DDP_KIND_SAMPLER: ddp_sampler_case(a); break;
    case DDP_KIND_DATASET: ddp_dataset_case(a); break;
    case DDP_KIND_HOOK: ddp_hook_case(a); break;
    default: DDP_SKIP(a, "no suite for kind %s", ddp_kind_name(a->plugin->kind));
    }
}
