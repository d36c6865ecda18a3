/* plugins/model/layers/keys.h -- a section of a .net file as a typed layer, by the table of kinds: which keys a kind of
 * layer has, their ranges and defaults. */
#pragma once

#include "file.h"
#include <ddpengine/layers.h>
#include <stdbool.h>

/* `choice` of a [loss], and the metrics in the order of theirs. */
enum { LOSS_CROSS_ENTROPY, LOSS_MSE, LOSS_L1, LOSS_SMOOTH_L1, LOSS_BCE_WITH_LOGITS };
#define METRIC_TYPES "accuracy|top5|f1|confusion|mae|r2"
enum { NET_NAME_MAX = 96 /* of a name that a layer is given */, NET_REPEAT_DEPTH = 8 };

/* The values of all keys that there are; a layer has those of its kind. */
typedef struct net_layer {
    const struct net_kind *kind;
    uint32_t line, end;                                /* end: of a [repeat], the index of its [end] */
    const char *name, *from, *tied, *field;            /* "": not given */
    const char *init;                                  /* draws, "normal 0.02, normal 0.01" */
    const char *weight;                                /* of the classes, "1, 2.5, 1" */
    int64_t kernel[2], stride[2], padding[2], size[2]; /* height, width; size: of adaptive_avg_pool2d */
    int64_t out, groups, count, features, heads, times, classes, ignore_index;
    double p, std, label_smoothing, beta, eps, momentum, slope;
    int32_t bias, causal, choice; /* choice: of the kind's one key with alternatives */
} net_layer;

struct net_builder;
/* Adds the layer to the graph: x is what it reads, `name` what its parameters are called. Complains through the
 * graph, or by build_fail(). */
typedef ddp_tensor (*net_build)(struct net_builder *b, const net_layer *l, ddp_tensor x, const char *name);

enum { NET_INPUT = 1, NET_LAYER, NET_REPEAT, NET_END, NET_LOSS, NET_METRIC };
enum { KEY_INT = 1, KEY_PAIR /* "3" or "3x5" */, KEY_REAL, KEY_YES, KEY_CHOICE, KEY_NAME, KEY_TEXT };

typedef struct net_key {
    const char *key, *dflt; /* dflt NULL: required; "": absent, which leaves 0 or "" */
    uint32_t type;
    size_t offset;      /* into net_layer */
    double least, most; /* of a number */
    const char *range;  /* of a choice: "a|b" */
} net_key;

typedef struct net_kind {
    const char *name;
    uint32_t role;
    const net_key *keys; /* ends with a key NULL */
    net_build build;     /* of a NET_LAYER */
} net_kind;

/* kinds.c: the table, which ends with a name NULL; and keys that every NET_LAYER has besides its own. */
extern const net_kind net_kinds[];
extern const net_key net_common_keys[];

/* Every section of the file; free() the result. [repeat] and [end] are matched, and sections are where they may be. */
ddp_status net_layers_read(const net_file *f, net_layer **out, ddp_err *err);

/* A number, all of the text; false where it is none. Not that of the locale. */
bool net_number(const char *text, double *out);
/* "; did you mean \"X\"?", or "" where no candidate is near. */
const char *net_nearest(const char *word, const char *const *candidates, size_t count, char *buf, size_t capacity);
