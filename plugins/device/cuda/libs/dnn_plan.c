/* plugins/device/cuda/libs/dnn_plan.c -- the plan of a graph: what cuDNN's heuristics propose, which of it may be
 * taken, and its execution. */
#include "dnn_graph.h"
#include <pthread.h>
#include <string.h>

enum { MAX_CONFIGS = 64 /* of one mode: 9.19 has up to 58 */, MAX_NAMES = 64 };

/* Mode B of the heuristics is not safe in several threads at once, and each device has one of its own. */
static pthread_mutex_t mode_b_lock = PTHREAD_MUTEX_INITIALIZER;

/* What a search has seen so far. */
typedef struct search {
    const cu_dnn_search *how;
    char names[MAX_NAMES][CU_ALGORITHM_NAME]; /* of the plans that were looked at: several modes propose the same */
    uint32_t name_count, tried;               /* tried: of this mode */
    cudnnStatus_t why;                        /* of the last that failed */
    size_t wanted;                            /* the least workspace that was too much; 0: none */
    bool done, failed;
} search;

static cudnnStatus_t get(const cu_dnn_graph *g, cu_dnn_node n, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values)
{
    return g->d->l->cudnnBackendGetAttribute(n, name, type, room, count, values);
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */
/* All bits where the engine does not say. */
static uint32_t notes_of(const cu_dnn_graph *g, cu_dnn_node engine)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    uint32_t bits = 0;

    if (get(g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
            &count, notes) != CUDNN_STATUS_SUCCESS)
        return UINT32_MAX;
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        if ((uint32_t)notes[i] < 32) bits |= 1u << (uint32_t)notes[i];
    return bits;
}

/* "-kTYPE.VALUE" of each knob that the configuration sets. */
static bool add_knobs(const cu_dnn_graph *g, const cu_dnn_node *knobs, int64_t count, char *name)
{
    size_t n = strlen(name);

    for (int64_t i = 0; i < count; i++) {
        cudnnBackendKnobType_t type;
        int64_t value, one;
        if (get(g, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one, &type) !=
                CUDNN_STATUS_SUCCESS ||
            get(g, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &one, &value) !=
                CUDNN_STATUS_SUCCESS)
            return false;
        n += (size_t)snprintf(name + n, CU_ALGORITHM_NAME - n, "-k%d.%lld", (int)type, (long long)value);
        if (n >= CU_ALGORITHM_NAME) return false;
    }
    return true;
}

/* The same for the same configuration, in every process; "" where cuDNN does not say enough. */
static void name_of(cu_dnn_graph *g, cu_dnn_node config, cu_dnn_node engine, char *name)
{
    cu_dnn_node knobs[CUDNN_KNOB_TYPE_COUNTS];
    int64_t index, one, count = 0, made = 0;
    const cu_libraries *l = g->d->l;
    bool ok = get(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one, &index) == CUDNN_STATUS_SUCCESS;

    while (ok && made < CUDNN_KNOB_TYPE_COUNTS)
        if (l->cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &knobs[made]) == CUDNN_STATUS_SUCCESS)
            made++;
        else
            ok = false;
    ok = ok && get(g, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &count, knobs) ==
                   CUDNN_STATUS_SUCCESS;
    if (ok) (void)snprintf(name, CU_ALGORITHM_NAME, "engine-%lld", (long long)index);
    if (!ok || !add_knobs(g, knobs, count < made ? count : made, name)) name[0] = '\0';
    while (made > 0) (void)l->cudnnBackendDestroyDescriptor(knobs[--made]);
}

/* Whether it has none of the refused notes; its name. */
static bool look(cu_dnn_graph *g, const cu_dnn_search *how, cu_dnn_node config, char *name)
{
    cu_dnn_node engine = NULL;
    int64_t count = 0;
    bool ok;

    name[0] = '\0';
    if (g->d->l->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS)
        return false;
    ok = get(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) ==
             CUDNN_STATUS_SUCCESS &&
         (how->refused == 0 || (notes_of(g, engine) & how->refused) == 0);
    if (ok) name_of(g, config, engine, name);
    (void)g->d->l->cudnnBackendDestroyDescriptor(engine);
    return ok;
}

/* Whether it is new and the search wants it; its name. */
static bool wants(cu_dnn_graph *g, search *s, cu_dnn_node config, char *name)
{
    if (!look(g, s->how, config, name)) return false;
    if (s->how->only != NULL) return strcmp(name, s->how->only) == 0;
    for (uint32_t i = 0; i < s->name_count; i++)
        if (name[0] != '\0' && strcmp(s->names[i], name) == 0) return false;
    if (s->name_count < MAX_NAMES) (void)snprintf(s->names[s->name_count++], CU_ALGORITHM_NAME, "%s", name);
    return true;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */
static void drop(const cu_dnn_graph *g, cu_dnn_node *n)
{
    if (*n != NULL) (void)g->d->l->cudnnBackendDestroyDescriptor(*n);
    *n = NULL;
}

/* NULL where it cannot be made or is too big. */
static cu_dnn_node make_plan(const cu_dnn_graph *g, search *s, cu_dnn_node config, size_t *bytes)
{
    const cu_libraries *l = g->d->l;
    int64_t workspace = 0, count = 0;
    cu_dnn_node plan = NULL;
    cudnnStatus_t status = l->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);

    if (status == CUDNN_STATUS_SUCCESS)
        status =
            l->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->d->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnBackendFinalize(plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = get(g, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &workspace);
    *bytes = (size_t)workspace;
    if (status == CUDNN_STATUS_SUCCESS && workspace >= 0 && (uint64_t)workspace <= s->how->limit) return plan;
    if (status != CUDNN_STATUS_SUCCESS)
        s->why = status;
    else if (s->wanted == 0 || (uint64_t)workspace < s->wanted)
        s->wanted = (size_t)workspace;
    drop(g, &plan);
    return NULL;
}

/* The plan of one configuration: g's where that is the choice, else g's is what it was before. */
static void try_config(cu_dnn_graph *g, search *s, cu_dnn_node config, ddp_err *err)
{
    const cu_dnn_node old_plan = g->plan, old_config = g->config;
    const size_t old_bytes = g->workspace;
    char name[CU_ALGORITHM_NAME];
    cu_plan_choice choice = CU_PLAN_TAKE;
    cu_dnn_node plan;
    size_t bytes;

    if (!wants(g, s, config, name) || (plan = make_plan(g, s, config, &bytes)) == NULL) return;
    g->plan = plan, g->config = config, g->workspace = bytes;
    if (s->how->check != NULL) choice = s->how->check(s->how->ctx, g, name, err);
    s->failed = choice == CU_PLAN_FAIL;
    s->done = choice >= CU_PLAN_TAKE;
    s->tried++;
    if (choice == CU_PLAN_BEST || choice == CU_PLAN_TAKE) {
        plan = old_plan;
        (void)snprintf(g->name, sizeof(g->name), "%s", name);
    } else {
        g->plan = old_plan, g->config = old_config, g->workspace = old_bytes;
    }
    drop(g, &plan);
}

static int64_t ask(cu_dnn_graph *g, cudnnBackendHeurMode_t mode, cu_dnn_node configs[MAX_CONFIGS])
{
    static const char what[] = "the heuristics";
    cu_dnn_node heuristics = dnn_create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
    int64_t count = 0;

    dnn_set_node(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->whole, what);
    dnn_set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
    if (mode == CUDNN_HEUR_MODE_B) (void)pthread_mutex_lock(&mode_b_lock);
    dnn_finish(g, heuristics, what);
    if (mode == CUDNN_HEUR_MODE_B) (void)pthread_mutex_unlock(&mode_b_lock);
    for (int i = 0; i < MAX_CONFIGS; i++) configs[i] = dnn_create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    if (g->status == CUDNN_STATUS_SUCCESS)
        dnn_step(g,
                 get(g, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &count,
                     configs),
                 what);
    return g->status != CUDNN_STATUS_SUCCESS ? 0 : count < MAX_CONFIGS ? count : MAX_CONFIGS;
}

/* What the heuristics of one mode propose, best first; a mode that fails proposes nothing, and says why. */
static void try_mode(cu_dnn_graph *g, search *s, cudnnBackendHeurMode_t mode, ddp_err *err)
{
    const uint32_t before = g->made_count;
    cu_dnn_node configs[MAX_CONFIGS], kept = g->config;
    int64_t count = ask(g, mode, configs);

    if (g->status != CUDNN_STATUS_SUCCESS) {
        s->why = g->status;
        g->status = CUDNN_STATUS_SUCCESS;
        g->failed = NULL;
    }
    s->tried = 0;
    for (int64_t i = 0; i < count && !s->done && (s->how->most == 0 || s->tried < s->how->most); i++)
        try_config(g, s, configs[i], err);
    dnn_release(g, before);
    if (kept != g->config) drop(g, &kept);
}

static void finish_graph(cu_dnn_graph *g)
{
    static const char what[] = "the graph";

    if (g->whole != NULL) return;
    g->whole = dnn_create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
    dnn_set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->d->handle, what);
    dnn_set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->op_count, g->ops, what);
    dnn_finish(g, g->whole, what);
}

static ddp_status unsupported(const cu_dnn_graph *g, cudnnStatus_t status, const char *what, const char *at,
                              ddp_err *err)
{
    (void)cu_fail_dnn(g->d->l, status, err, "%.60s by cuDNN: %.60s", what, at);
    return err->status = DDP_ERR_UNSUPPORTED;
}

ddp_status cu_dnn_graph_plan(cu_dnn_graph *g, const cu_dnn_search *how, const char *what, ddp_err *err)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};
    search s = {.how = how, .why = CUDNN_STATUS_NOT_SUPPORTED};

    finish_graph(g);
    drop(g, &g->plan);
    drop(g, &g->config);
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]) && g->status == CUDNN_STATUS_SUCCESS && !s.done; i++)
        try_mode(g, &s, modes[i], err);
    g->over_limit = g->plan == NULL && s.wanted > 0;
    if (s.failed) return err->status;
    if (g->plan != NULL) return DDP_OK;
    if (g->status != CUDNN_STATUS_SUCCESS) return unsupported(g, g->status, what, g->failed, err);
    if (g->over_limit)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "%.60s by cuDNN needs %zu bytes of workspace, more than %zu", what,
                        s.wanted, how->limit);
    return unsupported(g, s.why, what,
                       how->refused & CU_NOTE(NONDETERMINISTIC)
                           ? "no plan can be made that gives the same bits each time"
                           : "no plan can be made",
                       err);
}

/* ---- execution --------------------------------------------------------------------------------------------------- */
cudnnStatus_t cu_dnn_graph_start(const cu_dnn_graph *g, cudaStream_t s, const int64_t *uids, void *const *pointers,
                                 int64_t count, void *workspace)
{
    const cu_libraries *l = g->d->l;
    cudnnBackendDescriptor_t pack = NULL;
    cudnnStatus_t status = l->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);

    if (status != CUDNN_STATUS_SUCCESS) return status;
    status =
        l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnSetStream(g->d->handle, s);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnBackendExecute(g->d->handle, g->plan, pack);
    (void)l->cudnnBackendDestroyDescriptor(pack);
    return status;
}

ddp_status cu_dnn_graph_run(const cu_dnn_graph *g, cudaStream_t s, const int64_t *uids, void *const *pointers,
                            int64_t count, void *workspace, const char *what, ddp_err *err)
{
    cudnnStatus_t status = cu_dnn_graph_start(g, s, uids, pointers, count, workspace);

    return status == CUDNN_STATUS_SUCCESS ? DDP_OK : cu_fail_dnn(g->d->l, status, err, "%.60s by cuDNN", what);
}
