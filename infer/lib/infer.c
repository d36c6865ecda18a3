/* infer/lib/infer.c -- see ddpinfer.h: the functions of the library over a session that infers. */
#include "infer/lib/ddpinfer.h"
#include "config/defaults.h"
#include "infer/program.h"
#include "session/open.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 4, MOST_SET = 64 };

struct ddp_infer {
    ddp_log log;
    ddp_config config;
    ddp_pool pool;
    ddp_session session;
    infer_model model;
    infer_program programs[KEPT];
    uint64_t runs;
    ddp_infer_tensor *inputs, *outputs;
    uint32_t input_count, output_count;
    uint32_t *fields;      /* by input */
    const void **by_field; /* of a run */
};

/* ---- errors ------------------------------------------------------------------------------------------------------ */
static int failed(const ddp_err *err, ddp_infer_error *to)
{
    if (to != NULL) {
        ddp_copy_text(to->text, sizeof(to->text), err->msg);
        ddp_clean_text(to->text);
    }
    return ddp_err_exit_code(err);
}

static int refused(ddp_infer_error *to, const char *text)
{
    if (to != NULL) ddp_copy_text(to->text, sizeof(to->text), text);
    return DDP_INFER_CONFIG;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status load_config(ddp_infer *m, const char *ini, const ddp_infer_options *o, ddp_err *err)
{
    const char *device = o->device != NULL ? o->device : DDP_DEFAULT_DEVICE, *all[MOST_SET + 3];
    size_t count = 0;

    if (o->set_count > MOST_SET)
        return ddp_fail(err, DDP_ERR_CONFIG, "%zu settings are more than the %d that can be set", o->set_count,
                        (int)MOST_SET);
    all[count++] = ddp_pool_printf(&m->pool, err, "train.device=%s", device);
    all[count++] = ddp_pool_printf(&m->pool, err, "train.threads=%d", o->threads > 0 ? o->threads : 1);
    if (o->plugins != NULL) all[count++] = ddp_pool_printf(&m->pool, err, "plugins.path=%s", o->plugins);
    for (size_t i = 0; i < count; i++)
        if (all[i] == NULL) return err->status;
    for (size_t i = 0; i < o->set_count; i++) all[count++] = o->set[i];
    return ddp_config_load(ini, all, count, &m->config, err);
}

static void describe_value(ddp_infer_tensor *t, const char *name, const ddp_value *v)
{
    *t = (ddp_infer_tensor){.name = name,
                            .dtype = v->dtype == DDP_I64 ? DDP_INFER_I64 : DDP_INFER_F32,
                            .rank = (int)v->rank - (v->dims[0] == 1 ? 1 : 0),
                            .bytes = infer_value_bytes(v)};
    memcpy(t->dims, v->dims + v->rank - t->rank, (size_t)t->rank * sizeof(t->dims[0]));
}

/* By the program for one sample, whose first dimension is that of the batch, or a multiple of it. */
static ddp_status describe(ddp_infer *m, ddp_err *err)
{
    const ddp_program *p = m->programs[0].variant.program;
    size_t room = p->value_count + p->metric_count + 1;

    m->inputs = ddp_pool_alloc(&m->pool, room * sizeof(*m->inputs), err);
    m->outputs = ddp_pool_alloc(&m->pool, room * sizeof(*m->outputs), err);
    m->fields = ddp_pool_alloc(&m->pool, room * sizeof(*m->fields), err);
    m->by_field = ddp_pool_alloc(&m->pool, (m->session.train.field_count + 1) * sizeof(*m->by_field), err);
    if (m->inputs == NULL || m->outputs == NULL || m->fields == NULL || m->by_field == NULL) return err->status;
    for (uint32_t i = 0; i < p->value_count; i++) {
        const ddp_value *v = &p->values[i];

        if (v->kind != DDP_VALUE_INPUT) continue;
        m->fields[m->input_count] = (uint32_t)v->index;
        describe_value(&m->inputs[m->input_count++], m->session.train.fields[v->index].name, v);
    }
    for (uint32_t i = 0; i < p->metric_count; i++) {
        const char *name = ddp_pool_strdup(&m->pool, p->metric_names[i], err);

        if (name == NULL) return err->status;
        describe_value(&m->outputs[m->output_count++], name, &p->values[p->metrics[i]]);
    }
    return DDP_OK;
}

static ddp_status open_all(ddp_infer *m, const char *ini, const char *weights, const ddp_infer_options *o, ddp_err *err)
{
    const ddp_variant *v = &m->programs[0].variant;

    DDP_TRY_AS(DDP_EXIT_CONFIG, err, load_config(m, ini, o, err));
    DDP_TRY(infer_session_open(&m->session, &m->log, &m->config, weights, "ddp_infer_open", &m->pool, err));
    m->model.t.s = &m->session;
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, infer_program_plan(&m->session, &m->programs[0], 1, err));
    DDP_TRY(infer_model_read_folded(&m->model, v->folds, v->fold_count, err));
    DDP_TRY_AS(DDP_EXIT_INTERNAL, err, infer_program_bind(&m->model, &m->programs[0], err));
    return describe(m, err);
}

int ddp_infer_open(const char *ini, const char *weights, const ddp_infer_options *options, ddp_infer **out,
                   ddp_infer_error *error)
{
    ddp_infer_options o = {.struct_size = sizeof(o)};
    ddp_err err = {.rank = -1};
    ddp_infer *m;
    int code;

    if (ini == NULL || out == NULL) return refused(error, "ddp_infer_open: ini and out must not be NULL");
    if (options != NULL && options->struct_size != 0)
        memcpy(&o, options, DDP_MIN_OF(options->struct_size, sizeof(o)));
    else if (options != NULL)
        return refused(error, "ddp_infer_open: options->struct_size is 0; set it to sizeof(ddp_infer_options)");
    m = ddp_alloc(sizeof(*m), &err);
    if (m == NULL) return failed(&err, error);
    base_log_init_sink(&m->log, o.log, o.log_ctx);
    if (open_all(m, ini, weights, &o, &err) == DDP_OK) {
        *out = m;
        return DDP_INFER_OK;
    }
    code = failed(&err, error);
    ddp_infer_close(m);
    return code;
}

void ddp_infer_close(ddp_infer *m)
{
    if (m == NULL) return;
    if (m->model.t.s != NULL) { /* the session is open */
        for (size_t i = 0; i < KEPT; i++) infer_program_close(&m->session, &m->programs[i]);
        infer_model_close(&m->model);
        ddp_session_close(&m->session);
    }
    ddp_config_free(&m->config);
    ddp_pool_free(&m->pool);
    free(m);
}

/* ---- what it reads and gives ------------------------------------------------------------------------------------- */
const char *ddp_infer_version(void) { return DDP_VERSION; }

static int give(const ddp_infer_tensor *from, uint32_t count, int index, ddp_infer_tensor *out)
{
    if (index < 0 || (uint32_t)index >= count) return DDP_INFER_CONFIG;
    *out = from[index];
    return DDP_INFER_OK;
}

int ddp_infer_inputs(const ddp_infer *m) { return (int)m->input_count; }

int ddp_infer_input(const ddp_infer *m, int index, ddp_infer_tensor *out)
{
    return give(m->inputs, m->input_count, index, out);
}

int ddp_infer_outputs(const ddp_infer *m) { return (int)m->output_count; }

int ddp_infer_output(const ddp_infer *m, int index, ddp_infer_tensor *out)
{
    return give(m->outputs, m->output_count, index, out);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */
static infer_program *longest_unused(ddp_infer *m)
{
    infer_program *found = &m->programs[0];

    for (size_t i = 1; i < KEPT; i++)
        if (m->programs[i].used < found->used || m->programs[i].variant.batch == 0) found = &m->programs[i];
    return found;
}

static ddp_status find_program(ddp_infer *m, int64_t batch, infer_program **out, ddp_err *err)
{
    infer_program *p;

    if (batch < 1) return ddp_fail(err, DDP_ERR_CONFIG, "a batch has 1 sample or more, not %" PRId64, batch);
    for (size_t i = 0; i < KEPT; i++)
        if (m->programs[i].variant.batch == batch) {
            *out = &m->programs[i];
            return DDP_OK;
        }
    p = longest_unused(m);
    infer_program_close(&m->session, p);
    if (infer_program_plan(&m->session, p, batch, err) != DDP_OK || infer_program_bind(&m->model, p, err) != DDP_OK) {
        infer_program_close(&m->session, p);
        return ddp_fail_context(err, "a batch of %" PRId64, batch);
    }
    *out = p;
    return DDP_OK;
}

int ddp_infer_prepare(ddp_infer *m, int64_t batch, ddp_infer_error *error)
{
    ddp_err err = {.rank = -1};
    infer_program *p;

    if (m == NULL) return refused(error, "ddp_infer_prepare: the model is NULL");
    if (find_program(m, batch, &p, &err) == DDP_OK) {
        p->used = ++m->runs;
        return DDP_INFER_OK;
    }
    (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
    return failed(&err, error);
}

int ddp_infer_run(ddp_infer *m, int64_t batch, const void *const *inputs, void *const *outputs, ddp_infer_error *error)
{
    ddp_err err = {.rank = -1};
    infer_program *p;

    if (m == NULL || inputs == NULL || outputs == NULL)
        return refused(error, "ddp_infer_run: neither the model nor inputs nor outputs may be NULL");
    for (uint32_t i = 0; i < m->input_count; i++) {
        if (inputs[i] == NULL) return refused(error, "ddp_infer_run: an input is NULL; the model reads all of them");
        m->by_field[m->fields[i]] = inputs[i];
    }
    if (find_program(m, batch, &p, &err) == DDP_OK &&
        infer_program_run(&m->model, p, m->by_field, outputs, &err) == DDP_OK) {
        p->used = ++m->runs;
        return DDP_INFER_OK;
    }
    (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
    return failed(&err, error);
}
