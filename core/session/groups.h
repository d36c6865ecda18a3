/* session/groups.h -- parameter groups, as those of torch.optim: [optimizer] no_decay and lr_factor; which parameters
 * are trained: [train] freeze, [lora]. */
#pragma once

#include "session/session.h"

/* Fills s->model.groups. A pattern that names no parameter is DDP_ERR_CONFIG, with the names that are nearest. */
ddp_status session_groups_choose(ddp_session *s, ddp_err *err);
/* lora.c: which layers of this model, which has no adapters, get one; fills s->model.lora. DDP_ERR_CONFIG: a pattern
 * fits none. */
ddp_status session_lora_choose(ddp_session *s, const ddp_graph *plain, ddp_err *err);
/* Marks what is not trained in the model with adapters. */
ddp_status session_lora_freeze(ddp_session *s, ddp_err *err);
/* DDP_ERR_CONFIG: [lora] has keys and no rank. */
ddp_status session_lora_check(const ddp_session *s, ddp_err *err);
/* With the device open, before there are programs: s->model.lora.rounds and half. */
void session_lora_hold_half(ddp_session *s);
void session_lora_free(ddp_session *s);
void session_groups_free(ddp_session *s);
/* The groups that there are, for --check; nothing where there is one. */
void session_groups_report(const ddp_session *s, ddp_text *out);
