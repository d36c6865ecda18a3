/* control/state.h -- the struct behind ddp_group: parts, each written by the one file that is named with it. No
 * functions.
 *
 * Every rank, rank 0 too, speaks to the server on rank 0 by frames; those of rank 0 pass no socket. */
#pragma once

#include "base/sys.h"
#include "control/hub/state.h"
#include "control/params.h"
#include "control/peer.h"
#include "control/times/state.h"

#define DDP_MAX_WORLD   4096
#define DDP_MAX_HELPERS 64
#define DDP_NAME_LIMIT  1024u /* bytes of a key or of the name of a wait */
#define DDP_FOREVER_NS  INT64_MAX
#define DDP_ANSWER_MS   2000 /* how much longer than its own deadline a rank waits for rank 0's answer */
#define DDP_LEAVE_MS    10000
#define DDP_RETURN_MS   30000 /* to take down a generation of the run */
#define DDP_EXPIRE_MS   1000
#define DDP_WHERE_MAX   160

/* `ms` from `now`; a time-out of years is none. */
static inline int64_t ddp_deadline_ns(int64_t now, int64_t ms)
{
    return ms > (DDP_FOREVER_NS - now) / 1000000 ? DDP_FOREVER_NS : now + ms * 1000000;
}

/* What a request asks of rank 0. */
enum {
    DDP_ASK_SET = 1, /* name: key; data: value */
    DDP_ASK_GET,
    DDP_ASK_ADD, /* data: delta i64; the reply the sum i64 */
    DDP_ASK_REMOVE,
    DDP_ASK_BARRIER,
    DDP_ASK_GATHER,   /* the reply: a length u32 for each rank, then the blocks */
    DDP_ASK_AGREEMENT /* data: exit code i32, lines */
};

/* A rank as all others know it: set at the rendezvous, constant afterwards. */
typedef struct ddp_rank_info {
    uint32_t pid; /* 0: not known yet */
    int32_t home; /* its rank by its config: differs from the one in this generation where ranks are missing */
    char host_id[128], host[128];
} ddp_rank_info;

/* group.c and rendezvous.c, before the control thread begins; constant afterwards. */
typedef struct ddp_group_self {
    char endpoint[DDP_ENDPOINT_MAX]; /* where rank 0 listens */
    char url[DDP_ENDPOINT_MAX + 64], address[64], interface[64];
    char world_where[DDP_WHERE_MAX]; /* " (node1.ini:4)" or empty */
    char secret_where[DDP_WHERE_MAX];
    int64_t began_ns, timeout_ms, report_ms; /* report: between two lines about who is missing */
    char timeout_name[32];
    bool rejoins; /* see params.h; and the next three */
    int32_t rank;
    ddp_quorum quorum;
    int32_t shares;      /* the world_size of the config */
    ddp_rank_info info;  /* of this rank */
    uint32_t generation; /* until `met`, the highest that has been heard of; control thread */
    uint64_t start;      /* and the latest */
    bool restarted;      /* see params.h; and: */
    bool displaced;
    char *agreement;
    ddp_identity identity;
    ddp_tls *tls;   /* NULL: in clear */
    bool auth_none; /* [group] auth = none: in clear anyone may join who reaches rank 0 */
    bool loopback;  /* this rank's end of the control plane is a loopback address */
    int listen_fd;  /* rank 0, or -1 */
} ddp_group_self;

/* Where the rank of a config is in a group that has not met yet: the server comes first. */
static inline int32_t control_slot(const ddp_group_self *s, int32_t home)
{
    return home == s->quorum.server ? 0 : home < s->quorum.server ? home + 1 : home;
}

/* A generation of the run was complete once, or may have been. */
static inline bool control_has_begun(const ddp_group_self *s)
{
    return s->rejoins && (s->generation > 0 || s->restarted);
}

/* A frame on its way to the server. */
typedef struct ddp_post {
    struct ddp_post *next;
    uint32_t type;
    size_t length;
    unsigned char data[];
} ddp_post;

/* Who is called once when the run has failed; fn NULL: nobody. */
typedef struct ddp_run_listener {
    void (*fn)(void *ctx);
    void *ctx;
    bool called, running;
} ddp_run_listener;
enum { DDP_RUN_LISTENERS = 64 };

/* run.c: what this rank knows of the run. Under `lock`, but for the atomics; signalled by `changed`. */
typedef struct ddp_run_state {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ddp_failure failure;
    int64_t failed_ns;
    bool met;      /* the rendezvous is complete: ranks are known and stay as they are */
    bool goodbye;  /* this rank has sent it */
    bool farewell; /* rank 0 has */
    bool leaving;  /* the owner is on its way out by itself */
    bool stop;     /* the control thread is to end */
    bool expired_called;
    ddp_run_listener listeners[DDP_RUN_LISTENERS];
    void (*expired)(void *ctx, const ddp_failure *cause);
    void *expired_ctx;
    char warning[320];
    atomic_bool has_warning;       /* `warning` has not been taken yet */
    const atomic_int *stop_signal; /* of this process; may be NULL */
    atomic_int stop_asked;         /* the signal that some rank was asked to end by, 0: none */
    atomic_bool grows;             /* the ranks leave to join again with others */
    ddp_post *posts, **posts_end;
    int event_fd; /* wakes the control thread */
} ddp_run_state;

/* request.c, under run.lock but for `ids`. */
typedef struct ddp_requests {
    struct ddp_request *first; /* those that wait for their reply */
    struct ddp_store_scope *scopes;
    atomic_ullong ids;
} ddp_requests;

/* straggler.c: this rank's sums since the start, written by any thread. */
typedef struct ddp_step_time_sums {
    atomic_llong step; /* the last one, -1: none yet */
    atomic_ullong steps, data_us, compute_us, wait_us, collectives;
} ddp_step_time_sums;

typedef struct ddp_step_times {
    uint64_t steps, data_us, compute_us, wait_us;
    uint64_t collectives; /* begun */
} ddp_step_times;

/* straggler.c: of all ranks, on rank 0; control thread. */
typedef struct ddp_straggler_watch {
    ddp_step_times *latest, *begin; /* a rank each: now, at the begin of the window */
    int64_t window_ns, reported_ns; /* begin of the window; of the last line */
    int32_t suspect, windows;       /* the clearly slowest rank, -1: none, and for how many windows in a row */
    int32_t reported;               /* whom the last line was about, -1: none yet */
} ddp_straggler_watch;

/* heartbeat.c; control thread. */
typedef struct ddp_heartbeat {
    int64_t timeout_ns, every_ns; /* peer_timeout and the time between two beats; 0: none */
    int64_t lived_ns;             /* for how long this thread has run: the clock that silence is measured on */
    int64_t round_ns, beat_ns;    /* begin of the last round, time of the next beat */
    bool stop_sent;               /* this process's signal to stop has been passed on */
    int stop_relayed;             /* rank 0: the signal that all ranks were sent, 0: none */
} ddp_heartbeat;

/* ---- rank 0's part; control thread ------------------------------------------------------------------------------- */
/* rank0/announce.c: the failure as it was sent to all. */
typedef struct ddp_announced {
    bool failed;
    ddp_failure failure;
    int32_t reached; /* ranks that it was sent to */
} ddp_announced;

/* rank0/accept.c */
typedef struct ddp_accepting {
    uint64_t strangers; /* connections without a right hello */
    uint64_t refused;   /* and those with one that were told why they cannot be in this run */
    /* where the last one came from that has another secret: */
    char other_secret[64];
    uint64_t chance;  /* state of the random choice */
    int64_t again_ns; /* out of descriptors until then, or 0 */
    bool short_logged;
} ddp_accepting;

/* rank0/pending.c */
typedef struct ddp_pending {
    struct ddp_table *table;
    struct ddp_wait *waits;
    struct ddp_get *gets;
} ddp_pending;

typedef struct ddp_server_rank {
    ddp_peer *peer; /* NULL: not here, or behind a hub; of rank 0 always */
    int32_t hub;    /* rank0/relay.c: the rank behind which it is, 0: none */
    bool goodbye;
} ddp_server_rank;

/* rank0/helpers.c */
typedef struct ddp_server_helper {
    ddp_peer *peer; /* NULL: none of this number */
    char host[128];
} ddp_server_helper;

/* rank0/server.c, but for the parts */
typedef struct ddp_server {
    ddp_server_rank *ranks;   /* world */
    int32_t joined, goodbyes; /* ranks, rank 0 among them */
    bool farewell;
    atomic_int knocks;     /* rank0/waiting.c: ranks that wait for the next generation; any thread reads it */
    int32_t ranks_per_hub; /* 0: no hubs */
    atomic_int relayed;    /* rank0/relay.c: ranks behind hubs; any thread reads it */
    ddp_server_helper helpers[DDP_MAX_HELPERS];
    int64_t report_ns;
    /* "A peer is lost" of a rank, kept for a moment: what that rank saw is mostly the end of another one, whose own
     * connection shows it better. */
    ddp_failure held;
    int64_t held_ns; /* 0: none */
    ddp_announced announced;
    ddp_accepting accepting;
    ddp_pending pending;
    ddp_straggler_watch stragglers;
} ddp_server;

struct ddp_group {
    /* Of the generation, once it has met: 0 is the server, and nobody is missing. Until then those of the config, but
     * that the server has 0; see control_slot. */
    int32_t rank, world;
    ddp_log *log;
    ddp_rank_info *ranks; /* world */
    ddp_group_self self;
    ddp_run_state run;
    ddp_requests requests;
    ddp_step_time_sums sums;
    ddp_times_state times; /* times/ */
    /* the control thread's, once it runs */
    bool thread_started; /* the owner's */
    pthread_t thread;
    ddp_peers peers;
    ddp_peer *up;      /* of a rank other than 0: the one to rank 0, or to its hub */
    ddp_peer *next_up; /* the one to its hub, while that has not let it in; or NULL */
    ddp_hub hub;
    ddp_heartbeat heartbeat;
    ddp_server *server; /* rank 0, or NULL */
    int64_t drain_ns;   /* 0: not stopping */
};
