/* infer/export/onnx.c -- see export.h: names and shapes of the graph, and its file. */
#include "base/new_file.h"
#include "infer/export/export.h"
#include "infer/export/onnx_build.h"
#include "train/state/memory.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IR_VERSION = 8, OPSET = 17 };
#define MOST_BYTES ((uint64_t)INT32_MAX - (1u << 20)) /* of a message of protobuf, with room for what is not weights */

/* ---- names ------------------------------------------------------------------------------------------------------- */
static const char *output_name(const ddp_program *p, int32_t value)
{
    for (uint32_t i = 0; i < p->metric_count; i++)
        if (p->metrics[i] == value) return p->metric_names[i];
    return NULL;
}

/* Of a value between two layers: that of the layer, and a number that no other has. */
static const char *inner_name(onnx_build *b, const ddp_node *n, int32_t value)
{
    const char *layer = n->name[0] != '\0' ? n->name : ddp_op_name(n->op);

    return onnx_text(b, "%s/%d", layer, value);
}

static void name_values(onnx_build *b, const ddp_session *s)
{
    b->names = onnx_alloc(b, (b->p->value_count + 1) * sizeof(*b->names));
    for (uint32_t i = 0; b->names != NULL && i < b->p->value_count; i++) {
        const ddp_value *v = &b->p->values[i];

        if (v->kind == DDP_VALUE_INPUT) b->names[i] = s->train.fields[v->index].name;
        if (v->kind == DDP_VALUE_PARAM) b->names[i] = s->model.params[v->index].name;
        if (v->kind == DDP_VALUE_BUFFER) b->names[i] = s->model.buffers[v->index].name;
    }
    for (uint32_t i = 0; b->names != NULL && i < b->p->node_count; i++) {
        int32_t v = b->p->nodes[i].out[0];
        const char *output = output_name(b->p, v);

        b->names[v] = output != NULL ? output : inner_name(b, &b->p->nodes[i], v);
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */
static bool is_read(const ddp_program *p, int32_t value)
{
    for (uint32_t i = 0; i < p->node_count; i++)
        for (uint32_t k = 0; k < p->nodes[i].in_count; k++)
            if (p->nodes[i].in[k] == value) return true;
    return false;
}

static void add_weights(onnx_build *b, const ddp_memory *mem)
{
    for (uint32_t i = 0; i < b->p->value_count; i++) {
        const ddp_value *v = &b->p->values[i];
        const float *arena = v->kind == DDP_VALUE_PARAM ? mem->host.params : mem->host.buffers;

        if ((v->kind == DDP_VALUE_PARAM || v->kind == DDP_VALUE_BUFFER) && is_read(b->p, (int32_t)i))
            (void)onnx_floats(b, b->names[i], arena + v->offset, v->dims, v->rank);
    }
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */
static Onnx__TensorShapeProto__Dimension *dimension_of(onnx_build *b, int32_t value, uint32_t k)
{
    const ddp_value *v = onnx_value(b, value);
    Onnx__TensorShapeProto__Dimension *d = onnx_alloc(b, sizeof(*d));

    if (d == NULL) return NULL;
    onnx__tensor_shape_proto__dimension__init(d);
    if (k == 0 && onnx_is_batched(b, value)) {
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
        d->dim_param = (char *)(v->dims[0] == 1 ? "N" : onnx_text(b, "%lldN", (long long)v->dims[0]));
    } else {
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        d->dim_value = v->dims[k];
    }
    return d;
}

static Onnx__ValueInfoProto *describe_value(onnx_build *b, int32_t value)
{
    const ddp_value *v = onnx_value(b, value);
    Onnx__ValueInfoProto *info = onnx_alloc(b, sizeof(*info));
    Onnx__TypeProto *type = onnx_alloc(b, sizeof(*type));
    Onnx__TypeProto__Tensor *tensor = onnx_alloc(b, sizeof(*tensor));
    Onnx__TensorShapeProto *shape = onnx_alloc(b, sizeof(*shape));

    if (info == NULL || type == NULL || tensor == NULL || shape == NULL) return NULL;
    onnx__value_info_proto__init(info);
    onnx__type_proto__init(type);
    onnx__type_proto__tensor__init(tensor);
    onnx__tensor_shape_proto__init(shape);
    info->name = (char *)b->names[value];
    info->type = type;
    type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    type->tensor_type = tensor;
    tensor->has_elem_type = 1;
    tensor->elem_type =
        v->dtype == DDP_I64 ? ONNX__TENSOR_PROTO__DATA_TYPE__INT64 : ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    tensor->shape = shape;
    shape->dim = onnx_alloc(b, (v->rank + 1) * sizeof(*shape->dim));
    for (uint32_t k = 0; shape->dim != NULL && k < v->rank; k++) shape->dim[shape->n_dim++] = dimension_of(b, value, k);
    return info;
}

static void add_ends(onnx_build *b, Onnx__GraphProto *g)
{
    g->input = onnx_alloc(b, b->p->value_count * sizeof(*g->input));
    g->output = onnx_alloc(b, b->p->metric_count * sizeof(*g->output));
    for (uint32_t i = 0; b->status == DDP_OK && i < b->p->value_count; i++)
        if (b->p->values[i].kind == DDP_VALUE_INPUT) g->input[g->n_input++] = describe_value(b, (int32_t)i);
    for (uint32_t i = 0; b->status == DDP_OK && i < b->p->metric_count; i++)
        g->output[g->n_output++] = describe_value(b, b->p->metrics[i]);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
typedef struct sink {
    ProtobufCBuffer base; /* first: protobuf-c knows no more */
    int fd;
    size_t used;
    const char *path;
    ddp_status status;
    ddp_err *err;
    uint8_t piece[1 << 16];
} sink;

static void flush_piece(sink *s)
{
    if (s->status == DDP_OK && s->used > 0) s->status = ddp_write_all(s->fd, s->piece, s->used, s->path, s->err);
    s->used = 0;
}

static void append(ProtobufCBuffer *base, size_t length, const uint8_t *data)
{
    sink *s = (sink *)(void *)base;

    if (length >= sizeof(s->piece) - s->used) flush_piece(s);
    if (length >= sizeof(s->piece)) {
        if (s->status == DDP_OK) s->status = ddp_write_all(s->fd, data, length, s->path, s->err);
        return;
    }
    memcpy(s->piece + s->used, data, length);
    s->used += length;
}

static ddp_status write_message(int fd, const char *path, const Onnx__ModelProto *model, ddp_err *err)
{
    sink *s = ddp_alloc(sizeof(*s), err);
    ddp_status st;

    if (s == NULL) return err->status;
    s->base.append = append;
    s->fd = fd;
    s->path = path;
    s->err = err;
    (void)protobuf_c_message_pack_to_buffer(&model->base, &s->base);
    flush_piece(s);
    st = s->status;
    free(s);
    return st;
}

static ddp_status write_file(const char *path, const Onnx__ModelProto *model, ddp_err *err)
{
    ddp_new_file f;

    DDP_TRY(ddp_new_file_open(&f, path, err));
    return ddp_new_file_close(&f, write_message(f.fd, f.path, model, err), err);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */
static ddp_status make(onnx_build *b, const infer_model *m, const char *path, ddp_err *err)
{
    Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
    Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
    Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT, *opsets[] = {&opset};

    name_values(b, m->t.s);
    add_weights(b, &m->t.mem);
    for (uint32_t i = 0; i < b->p->node_count; i++) onnx_emit(b, &b->p->nodes[i]);
    add_ends(b, &graph);
    if (b->status != DDP_OK) return b->status;
    graph.name = (char *)m->t.s->model.plugin->desc.name;
    graph.node = b->nodes;
    graph.n_node = b->node_count;
    graph.initializer = b->constants;
    graph.n_initializer = b->constant_count;
    opset.domain = (char *)"";
    opset.has_version = 1;
    opset.version = OPSET;
    model.has_ir_version = 1;
    model.ir_version = IR_VERSION;
    model.producer_name = (char *)"ddpengine";
    model.producer_version = (char *)DDP_VERSION;
    model.graph = &graph;
    model.opset_import = opsets;
    model.n_opset_import = 1;
    return write_file(path, &model, err);
}

static ddp_status make_programs(infer_model *m, const char *path, ddp_program **one, ddp_program **two, ddp_err *err)
{
    const ddp_session_model *model = &m->t.s->model;
    onnx_build b = {.err = err};
    ddp_status st;

    DDP_TRY(ddp_program_create_outputs(model->graph, model->layout, 1, one, err));
    DDP_TRY(ddp_program_create_outputs(model->graph, model->layout, 2, two, err));
    DDP_TRY(state_pull(&m->t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    b.p = *one;
    b.two = *two;
    st = make(&b, m, path, err);
    ddp_pool_free(&b.pool);
    ddp_staging_close(&m->t);
    return st;
}

ddp_status infer_export_onnx(infer_model *m, const ddp_export_request *q, ddp_err *err)
{
    const ddp_session_model *model = &m->t.s->model;
    ddp_program *one = NULL, *two = NULL;
    ddp_status st;

    if ((model->param_elements + model->buffer_elements) * sizeof(float) > MOST_BYTES)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "the weights are larger than the 2 GiB that an ONNX file can hold; use export torch");
    st = make_programs(m, q->path, &one, &two, err);
    ddp_program_free(one);
    ddp_program_free(two);
    return st == DDP_OK ? st : ddp_fail_context(err, "model \"%s\"", model->plugin->desc.name);
}
