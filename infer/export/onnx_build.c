/* infer/export/onnx_build.c -- see onnx_build.h. */
#include "infer/export/onnx_build.h"
#include <stdlib.h>
#include <string.h>

void *onnx_alloc(onnx_build *b, size_t bytes)
{
    void *p = b->status == DDP_OK ? ddp_pool_alloc(&b->pool, bytes, b->err) : NULL;

    if (p == NULL && b->status == DDP_OK) b->status = b->err->status;
    return p;
}

const char *onnx_text(onnx_build *b, const char *fmt, ...)
{
    char text[512], *out;
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    out = onnx_alloc(b, strlen(text) + 1);
    if (out != NULL) memcpy(out, text, strlen(text) + 1);
    return out;
}

void onnx_fail(onnx_build *b, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (b->status != DDP_OK) return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    b->status = ddp_fail(b->err, DDP_ERR_UNSUPPORTED, "%s", text);
}

/* Room for one more pointer; the old array stays in the pool. */
static bool grow(onnx_build *b, void *array, size_t count, size_t *room)
{
    void **list, **longer;

    memcpy(&list, array, sizeof(list));
    if (b->status == DDP_OK && count < *room) return true;
    longer = onnx_alloc(b, (2 * *room + 64) * sizeof(*longer));
    if (longer == NULL) return false;
    if (count > 0) memcpy(longer, list, count * sizeof(*longer));
    *room = 2 * *room + 64;
    memcpy(array, &longer, sizeof(longer));
    return true;
}

Onnx__NodeProto *onnx_node(onnx_build *b, const char *type, const char *out, const char *const *in)
{
    Onnx__NodeProto *n = onnx_alloc(b, sizeof(*n));
    char **names = onnx_alloc(b, (ONNX_MOST_IN + 1) * sizeof(*names));

    if (n == NULL || names == NULL || !grow(b, &b->nodes, b->node_count, &b->node_room)) return NULL;
    onnx__node_proto__init(n);
    for (; n->n_input < ONNX_MOST_IN && in[n->n_input] != NULL; n->n_input++)
        names[n->n_input] = (char *)in[n->n_input];
    n->input = names;
    names[ONNX_MOST_IN] = (char *)out;
    n->output = &names[ONNX_MOST_IN];
    n->n_output = 1;
    n->op_type = (char *)type;
    n->name = (char *)out;
    b->nodes[b->node_count++] = n;
    return n;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */
enum { MOST_ATTRIBUTES = 8 };

static Onnx__AttributeProto *add_attribute(onnx_build *b, Onnx__NodeProto *n, const char *name,
                                           Onnx__AttributeProto__AttributeType type)
{
    Onnx__AttributeProto *a = onnx_alloc(b, sizeof(*a));

    if (n == NULL || a == NULL) return NULL;
    if (n->attribute == NULL) n->attribute = onnx_alloc(b, MOST_ATTRIBUTES * sizeof(*n->attribute));
    if (n->attribute == NULL || n->n_attribute == MOST_ATTRIBUTES) return NULL;
    onnx__attribute_proto__init(a);
    a->name = (char *)name;
    a->has_type = 1;
    a->type = type;
    n->attribute[n->n_attribute++] = a;
    return a;
}

void onnx_attr_int(onnx_build *b, Onnx__NodeProto *n, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = add_attribute(b, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);

    if (a == NULL) return;
    a->has_i = 1;
    a->i = value;
}

void onnx_attr_ints(onnx_build *b, Onnx__NodeProto *n, const char *name, const int64_t *values, size_t count)
{
    Onnx__AttributeProto *a = add_attribute(b, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);

    if (a == NULL || (a->ints = onnx_alloc(b, count * sizeof(*values))) == NULL) return;
    memcpy(a->ints, values, count * sizeof(*values));
    a->n_ints = count;
}

void onnx_attr_float(onnx_build *b, Onnx__NodeProto *n, const char *name, double value)
{
    Onnx__AttributeProto *a = add_attribute(b, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);

    if (a == NULL) return;
    a->has_f = 1;
    a->f = (float)value;
}

/* ---- constants --------------------------------------------------------------------------------------------------- */
static bool is_there(const onnx_build *b, const char *name)
{
    for (size_t i = 0; i < b->constant_count; i++)
        if (strcmp(b->constants[i]->name, name) == 0) return true;
    return false;
}

static Onnx__TensorProto *add_constant(onnx_build *b, const char *name, int32_t type, const int64_t *dims,
                                       uint32_t rank)
{
    Onnx__TensorProto *t = onnx_alloc(b, sizeof(*t));

    if (t == NULL || name == NULL || is_there(b, name) || !grow(b, &b->constants, b->constant_count, &b->constant_room))
        return NULL;
    onnx__tensor_proto__init(t);
    if (rank > 0 && (t->dims = onnx_alloc(b, rank * sizeof(*dims))) == NULL) return NULL;
    if (rank > 0) memcpy(t->dims, dims, rank * sizeof(*dims));
    t->n_dims = rank;
    t->name = (char *)name;
    t->has_data_type = 1;
    t->data_type = type;
    t->has_raw_data = 1;
    b->constants[b->constant_count++] = t;
    return t;
}

const char *onnx_floats(onnx_build *b, const char *name, const float *data, const int64_t *dims, uint32_t rank)
{
    Onnx__TensorProto *t = add_constant(b, name, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT, dims, rank);
    size_t elements = 1;

    for (uint32_t i = 0; i < rank; i++) elements *= (size_t)dims[i];
    if (t != NULL) t->raw_data = (ProtobufCBinaryData){.len = elements * sizeof(*data), .data = (uint8_t *)data};
    return name;
}

const char *onnx_scalar(onnx_build *b, const char *name, double value)
{
    float *data = onnx_alloc(b, sizeof(*data));

    if (data == NULL) return NULL;
    *data = (float)value;
    return onnx_floats(b, name, data, NULL, 0);
}

const char *onnx_ints(onnx_build *b, const char *name, const int64_t *values, size_t count)
{
    int64_t *data = onnx_alloc(b, count * sizeof(*data)), dim = (int64_t)count;
    Onnx__TensorProto *t = data == NULL ? NULL : add_constant(b, name, ONNX__TENSOR_PROTO__DATA_TYPE__INT64, &dim, 1);

    if (t == NULL) return name;
    memcpy(data, values, count * sizeof(*data));
    t->raw_data = (ProtobufCBinaryData){.len = count * sizeof(*data), .data = (uint8_t *)data};
    return name;
}
