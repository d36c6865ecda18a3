/* train/measure/evaluated.h -- what an evaluation adds up, and what comes of it: the values of the model's metrics, as
 * text, as JSON and as a table. */
#pragma once

#include "train/trainer.h"

/* Room for the sums of this session's metrics, all 0; nothing where it does not evaluate. */
ddp_status ddp_sums_open(const ddp_session *s, ddp_sums *out, ddp_err *err);
void ddp_sums_clear(ddp_sums *sums);
void ddp_sums_add(ddp_sums *to, const ddp_sums *from);
void ddp_sums_close(ddp_sums *sums); /* of zeroes too */

/* Takes the sums over, which are those of all ranks. */
void ddp_evaluated_set(ddp_evaluated *e, const ddp_session *s, ddp_sums *sums);
void ddp_evaluated_close(ddp_evaluated *e);
/* The value of a metric of the last evaluation; NaN where it has none of this name. */
double ddp_evaluated_value(const ddp_evaluated *e, const char *name);

/* ", accuracy 0.8512, top5 0.9911": those that are a finite number, with so many digits. */
void ddp_evaluated_text(const ddp_evaluated *e, int digits, ddp_text *out);
/* ", \"eval_top5\": 0.9911": all but accuracy, inside of a JSON object. With `whole` also eval_f1_by_class and
 * eval_confusion, else only a confusion matrix that the table shows as well. */
void ddp_evaluated_members(const ddp_evaluated *e, bool whole, ddp_text *out);
/* The confusion matrix for people, its lines after a newline; of many classes the most frequent mistakes. "": none.
 * With the names that the dataset has for them. */
void ddp_evaluated_table(const ddp_evaluated *e, const ddp_source *source, ddp_text *out);
