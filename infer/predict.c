/* infer/predict.c -- see predict.h. A file is read by the dataset of [eval], or of [data], as one more dataset: by the
 * loader, with the transforms of an evaluation. */
#include "infer/predict.h"
#include "infer/answer.h"
#include "infer/program.h"
#include "session/open.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct predictor {
    const ddp_predict_request *request;
    ddp_session *session;
    ddp_source *source; /* train or eval of the session */
    infer_model model;
    infer_program program; /* for one sample */
    infer_answers answers;
    void **outputs; /* by output; only the first is wanted */
    float *numbers;
} predictor;

/* ---- every sample of a file, in order ---------------------------------------------------------------------------- */
typedef struct in_order {
    uint64_t count;
} in_order;

static uint64_t order_count(const ddp_sampler *s) { return ((const in_order *)(const void *)s)->count; }

static ddp_status order_indices(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    (void)epoch;
    (void)err;
    for (uint64_t i = 0; i < order_count(s); i++) out[i] = i;
    return DDP_OK;
}

static const ddp_sampler_ops order_ops = {
    .struct_size = sizeof(order_ops), .count = order_count, .indices = order_indices};

/* ---- an answer --------------------------------------------------------------------------------------------------- */
/* Names of classes; of tokens that are bytes, what they look like. */
static const char *class_name(void *ctx, int64_t value)
{
    predictor *p = ctx;

    return p->answers.field == UINT32_MAX ? NULL
                                          : p->source->ops->class_name(p->source->dataset, p->answers.field, value);
}

/* Of several answers a sample, as a text has, the one whose target is not known: what comes next. */
static int64_t wanted_row(const predictor *p, const ddp_batch *batch)
{
    const ddp_value *v = &p->program.variant.program->values[p->program.variant.program->metrics[0]];
    int64_t rows = v->elements / p->answers.width, row = 0;
    const char *targets = rows > 1 && p->answers.field != UINT32_MAX ? batch->buffers[p->answers.field] : NULL;

    for (; targets != NULL && row + 1 < rows; row++) {
        int64_t target;

        memcpy(&target, targets + row * (int64_t)sizeof(target), sizeof(target));
        if (target == DDP_NO_LABEL) break;
    }
    return row;
}

static ddp_status check_finite(const float *numbers, int64_t count, const char *file, ddp_err *err)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(numbers[i])) {
            (void)ddp_fail(err, DDP_ERR_DATA, "%s: the model's output %" PRId64 " is not finite", file, i);
            return ddp_fail_as(err, DDP_EXIT_NONFINITE);
        }
    return DDP_OK;
}

static ddp_status answer(predictor *p, const char *file, uint64_t row, uint64_t rows, const ddp_batch *batch,
                         ddp_err *err)
{
    const ddp_predict_request *q = p->request;
    float *numbers = p->numbers;
    ddp_text line = {0}, where = {0};
    ddp_status st = DDP_OK;

    DDP_TRY(infer_program_run(&p->model, &p->program, (const void *const *)batch->buffers, p->outputs, err));
    numbers += wanted_row(p, batch) * p->answers.width;
    DDP_TRY(check_finite(numbers, p->answers.width, file, err));
    ddp_text_printf(&where, "%s", file);
    if (rows > 1) ddp_text_printf(&where, ":%" PRIu64, row);
    if (q->json)
        st = infer_answer_json(&p->answers, numbers, q->top, class_name, p, file, row, &line, err);
    else if (!where.failed)
        infer_answer_text(&p->answers, numbers, q->top, class_name, p, where.data, &line);
    if (st == DDP_OK && (line.failed || where.failed)) st = ddp_fail(err, DDP_ERR_NOMEM, "out of memory for an answer");
    if (st == DDP_OK && fputs(line.data, stdout) == EOF) st = ddp_fail_errno(err, "cannot write to standard output");
    ddp_text_free(&where);
    ddp_text_free(&line);
    return st;
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */
static ddp_status answer_all(predictor *p, const char *file, ddp_loader *loader, uint64_t rows, ddp_err *err)
{
    ddp_batch batch;
    ddp_status st;

    DDP_TRY(ddp_loader_begin(loader, 0, 0, err));
    while ((st = ddp_loader_next(loader, &batch, err)) == DDP_OK)
        DDP_TRY(answer(p, file, batch.position + 1, rows, &batch, err));
    return st == DDP_IN_PROGRESS ? DDP_OK : ddp_fail_context(err, "%s", file);
}

static ddp_status predict_file(predictor *p, const char *file, ddp_err *err)
{
    ddp_source *src = p->source;
    ddp_loader_params params = {.dataset_ops = src->ops,
                                .transform = src->transform,
                                .sampler_ops = &order_ops,
                                .batch_size = 1,
                                .prefetch = 1};
    ddp_dataset *data = NULL;
    ddp_loader *loader = NULL;
    in_order order;
    ddp_status st;

    if (src->ops->open_file(src->dataset, file, &data, err) != DDP_OK) {
        (void)ddp_fail_as(err, err->status == DDP_ERR_UNSUPPORTED ? DDP_EXIT_CONFIG : DDP_EXIT_DATA);
        return err->status == DDP_ERR_UNSUPPORTED ? ddp_fail_context(err, "dataset %s", src->plugin->desc.name)
                                                  : err->status;
    }
    order.count = src->ops->length(data);
    params.dataset = data;
    params.sampler = (ddp_sampler *)(void *)&order;
    st = ddp_loader_open(&params, &loader, err);
    if (st == DDP_OK) st = answer_all(p, file, loader, order.count, err);
    if (loader != NULL) ddp_loader_close(loader);
    src->ops->close(data);
    return st == DDP_OK ? st : ddp_fail_as(err, DDP_EXIT_DATA);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */
static ddp_status find_answers(predictor *p, ddp_err *err)
{
    const ddp_session_model *m = &p->session->model;
    const ddp_program *outputs = p->program.variant.program;
    ddp_program *evaluation;

    DDP_TRY(ddp_program_create(m->graph, m->layout, 1, false, &evaluation, err));
    infer_answers_find(evaluation, outputs, &p->answers);
    ddp_program_free(evaluation);
    p->outputs = ddp_alloc(outputs->metric_count * sizeof(*p->outputs), err);
    p->numbers = ddp_alloc(infer_value_bytes(&outputs->values[outputs->metrics[0]]), err);
    if (p->outputs == NULL || p->numbers == NULL) return err->status;
    p->outputs[0] = p->numbers;
    return DDP_OK;
}

static ddp_status open_predictor(predictor *p, ddp_err *err)
{
    ddp_session *s = p->session;
    const ddp_variant *v = &p->program.variant;

    p->source = s->eval.plugin != NULL ? &s->eval : &s->train;
    p->model.t.s = s;
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, infer_program_plan(s, &p->program, 1, err));
    DDP_TRY(infer_model_read_folded(&p->model, v->folds, v->fold_count, err));
    DDP_TRY_AS(DDP_EXIT_INTERNAL, err, infer_program_bind(&p->model, &p->program, err));
    return find_answers(p, err);
}

static void close_predictor(predictor *p)
{
    infer_program_close(p->session, &p->program);
    infer_model_close(&p->model);
    free(p->outputs);
    free(p->numbers);
}

static ddp_status predict_all(predictor *p, ddp_err *err)
{
    DDP_TRY(open_predictor(p, err));
    for (size_t i = 0; i < p->request->file_count; i++) DDP_TRY(predict_file(p, p->request->files[i], err));
    return fflush(stdout) == EOF ? ddp_fail_errno(err, "cannot write to standard output") : DDP_OK;
}

int ddp_predict_files(const ddp_predict_request *q, ddp_config *config, ddp_log *log)
{
    const ddp_launch launch = {.purpose = DDP_TO_PREDICT,
                               .weights = q->weights,
                               .world = 1,
                               .local_size = 1,
                               .nproc = 1,
                               .rank_where = "predict",
                               .world_where = "predict",
                               .listen_fd = -1};
    ddp_session session;
    predictor p = {.request = q, .session = &session};
    ddp_err err = {.rank = -1};
    ddp_status st = ddp_session_open(&session, log, config, &launch, &err);

    if (st == DDP_OK) {
        st = predict_all(&p, &err);
        close_predictor(&p);
        ddp_session_close(&session);
    }
    if (st == DDP_OK) return DDP_EXIT_OK;
    ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    return ddp_err_exit_code(&err);
}
