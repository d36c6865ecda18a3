/* infer/answer.h -- the numbers of an output as an answer: probabilities of classes, or values; as text and as JSON. */
#pragma once

#include "graph/graph.h"

enum { INFER_CLASSES = 1, INFER_VALUES };

/* Of which kind the answers of a model are, by its loss: of the cross entropy the output's last dimension is that of
 * classes. */
typedef struct infer_answers {
    int kind;
    uint32_t output;        /* of the program of outputs, which the loss is computed from; 0 where that is not known */
    uint32_t field;         /* that the loss compares it with; UINT32_MAX: not known */
    int64_t width, classes; /* numbers of an answer; of them, classes */
    bool sigmoid;           /* values are logits of probabilities, which are shown: the loss is bce_with_logits */
} infer_answers;

/* `evaluation` has the loss, `outputs` the outputs, both of one graph. */
void infer_answers_find(const ddp_program *evaluation, const ddp_program *outputs, infer_answers *out);

/* The name of a class; NULL: it has none, its number is shown. */
typedef const char *(*infer_name)(void *ctx, int64_t value);

/* One answer of `a->width` numbers, which are changed: the `top` likeliest classes, or the values. `where` is the file,
 * with ":ROW" behind it where it has several. One line. */
void infer_answer_text(const infer_answers *a, float *numbers, int32_t top, infer_name name, void *ctx,
                       const char *where, ddp_text *out);
/* {"file": ".cat.jpg", "row": 1, "predictions": [{"class": "cat", "index": 3, "probability": 0.97}, ..]}, or "values":
 * [0.5]. */
ddp_status infer_answer_json(const infer_answers *a, float *numbers, int32_t top, infer_name name, void *ctx,
                             const char *file, uint64_t row, ddp_text *out, ddp_err *err);
