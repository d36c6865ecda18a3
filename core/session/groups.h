/* session/groups.h -- parameter groups, as those of torch.optim: [optimizer] no_decay and lr_factor. */
#pragma once

#include "session/session.h"

/* Fills s->model.groups. A pattern that names no parameter is DDP_ERR_CONFIG, with the names that are nearest. */
ddp_status session_groups_choose(ddp_session *s, ddp_err *err);
void session_groups_free(ddp_session *s);
/* The groups that there are, for --check; nothing where there is one. */
void session_groups_report(const ddp_session *s, ddp_text *out);
