/* plugins/device/cuda/libs/dnn.c -- a device's handle of cuDNN, and what convolutions need to be measured. */
#include "dnn_graph.h"
#include <stdlib.h>

ddp_status cu_dnn_open(const cu_dnn_params *p, cu_dnn **out, ddp_err *err)
{
    const cu_libraries *l = p->libraries;
    cu_dnn *d;
    cudnnStatus_t said;
    cudaError_t result;
    ddp_status status;

    if (l->dnn == NULL) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "cuDNN is not there: %.200s", l->dnn_missing);
    d = calloc(1, sizeof(*d));
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for cuDNN");
    d->l = l;
    d->host = p->host;
    d->tf32 = p->tf32;
    d->deterministic = p->deterministic;
    said = l->cudnnCreate(&d->handle);
    if (said != CUDNN_STATUS_SUCCESS) {
        d->handle = NULL;
        status = cu_fail_dnn(l, said, err, "cudnnCreate");
        goto failed;
    }
    result = cu_timer_open(&d->timer, p->stream);
    if (result != cudaSuccess) {
        status = cu_fail(result, err, "events that time convolutions");
        goto failed;
    }
    d->known = cu_algorithms_open(p->host, p->deterministic ? "" : p->cache_dir, p->gpu, "cudnn", l->cudnnGetVersion());
    if (d->known == NULL) {
        status = ddp_fail(err, DDP_ERR_NOMEM, "out of memory for cuDNN");
        goto failed;
    }
    *out = d;
    return DDP_OK;

failed:
    cu_dnn_close(d);
    return status;
}

void cu_dnn_close(cu_dnn *d)
{
    if (d == NULL) return;
    cu_algorithms_close(d->known);
    cu_timer_close(&d->timer);
    if (d->handle != NULL) (void)d->l->cudnnDestroy(d->handle);
    free(d);
}
