/* session/affinity.h -- [train] pin: which processors the compute threads of a rank keep to. */
#pragma once

#include "control/group.h"
#include "session/session.h"

/* What a rank says of itself to the others of its host. */
typedef struct ddp_pin_rank {
    uint64_t mask;       /* hash of the numbers of the processors that it was started with */
    uint32_t processors; /* how many those are */
    uint32_t threads;    /* compute threads */
} ddp_pin_rank;

typedef struct ddp_pin_case {
    ddp_pin_wish wish;
    bool bound;                /* something has bound this rank already: it has not all processors of the host */
    const ddp_pin_rank *ranks; /* those of this host, in the order of their ranks */
    uint32_t own, count;       /* this rank is ranks[own], of `count` */
} ddp_pin_case;

/* Decides, from this alone: thread i of the rank is to keep to processor number first + i of its own list. Ranks that
 * were started with the same processors share them out; one whose processors are another's in no part keeps to its
 * own. DDP_ERR_CONFIG: `yes` where there are fewer processors than threads. */
ddp_status session_pin_choose(const ddp_pin_case *c, ddp_affinity *out, ddp_err *err);

/* s->pin as it will be if all ranks of this host are as this one; it fails where that is certain. */
ddp_status session_plan_pin(ddp_session *s, ddp_err *err);
/* After the rendezvous: has the device bind its compute threads where [train] pin says so; s->pin tells. */
ddp_status ddp_session_pin(ddp_session *s, ddp_group *group, ddp_err *err);
/* "pinned to processors 0-3", "not pinned" */
void ddp_session_pin_text(const ddp_session *s, ddp_text *out);
