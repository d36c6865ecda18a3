/* infer/export/export.c -- see export.h. */
#include "infer/export/export.h"
#include "session/open.h"

int infer_export(const ddp_export_request *q, ddp_config *config, ddp_log *log, infer_writer write)
{
    ddp_session session;
    infer_model model = {0};
    ddp_pool pool = {0};
    ddp_err err = {.rank = -1};
    ddp_status st = q->check != NULL ? q->check(q, &err) : DDP_OK;

    if (st == DDP_OK) st = infer_session_open(&session, log, config, q->weights, "export", &pool, &err);
    if (st == DDP_OK) {
        model.t.s = &session;
        st = infer_model_read(&model, &err);
        if (st == DDP_OK) st = write(&model, q, &err);
        infer_model_close(&model);
        ddp_session_close(&session);
    }
    ddp_pool_free(&pool);
    if (st == DDP_OK) return DDP_EXIT_OK;
    (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
    ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    return ddp_err_exit_code(&err);
}
