/* infer/export/no_onnx.c -- in place of onnx.c where this ddpengine was built without protobuf-c. */
#include "infer/export/export.h"

ddp_status infer_export_onnx(infer_model *m, const ddp_export_request *q, ddp_err *err)
{
    (void)m;
    (void)q;
    return ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "this ddpengine was built without ONNX; install protobuf-c-compiler, libprotobuf-c-dev and libonnx-dev, then configure and build again, or use export torch");
}
