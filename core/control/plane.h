/* control/plane.h -- the inside of the control plane, shared by its files.
 *
 * group.c    join and leave, failure as the owner sees it     calls.c    store and named waits, as the caller sees them
 * control.c  the control thread: sockets, posts, deadlines    deliver.c  what rank 0 says to a rank
 * pulse.c    heartbeats, silence, the signal to stop       door.c     rank 0: who connects
 * pace.c     the times of steps, stragglers
 * server.c   rank 0: hello, agreement, failure, goodbye       waits.c    rank 0: store, barriers, gathers
 * meet.c     how a rank finds rank 0
 *
 * Every rank, rank 0 too, speaks to the server by frames; those of rank 0 pass no socket. */
#ifndef DDP_CONTROL_PLANE_H
#define DDP_CONTROL_PLANE_H

#include "base/sys.h"
#include "control/group.h"
#include "control/store.h"
#include "net/wire.h"
#include <ddpengine/backend.h>
#include <stdatomic.h>

#define DDP_MAX_WORLD    4096
#define DDP_NAME_LIMIT   1024u /* bytes of a key or of the name of a wait */
#define DDP_FOREVER_NS   INT64_MAX
#define DDP_REPORT_MS    5000 /* between two lines about who is missing */
#define DDP_ANSWER_MS    2000 /* how much longer than its own deadline a rank waits for rank 0's answer */
#define DDP_LEAVE_MS     10000
#define DDP_DRAIN_MS     500 /* to hand out the last frames */
#define DDP_EXPIRE_MS    1000
#define DDP_PENDING_MAX  64
#define DDP_HELLO_MS     10000
#define DDP_SUSPICION_MS 200

enum {
    DDP_ASK_SET = 1, /* name: key; data: value */
    DDP_ASK_GET,
    DDP_ASK_ADD, /* data: delta i64; the reply the sum i64 */
    DDP_ASK_REMOVE,
    DDP_ASK_BARRIER,
    DDP_ASK_GATHER,   /* the reply: a length u32 for each rank, then the blocks */
    DDP_ASK_AGREEMENT /* data: exit code i32, lines */
};

/* A frame on its way to the server. */
typedef struct ddp_post {
    struct ddp_post *next;
    uint32_t type;
    size_t length;
    unsigned char data[];
} ddp_post;

/* A request that waits for its reply; lives on the stack of the waiting thread. */
typedef struct ddp_request {
    struct ddp_request *next;
    uint64_t id;
    bool done; /* the rest is set */
    ddp_status status;
    unsigned char *reply;
    size_t length;
} ddp_request;

enum {
    DDP_PEER_NEW = 1, /* has not said hello */
    DDP_PEER_HEARD,   /* its rank is known, its agreement lines are to come */
    DDP_PEER_JOINED,
    DDP_PEER_REFUSED /* has been told why; gone as soon as it closes */
};

#define DDP_WHERE_MAX 160

/* One connection; the control thread's. */
typedef struct ddp_peer {
    struct ddp_peer *next;
    ddp_wire wire;
    int state;
    int32_t rank;         /* -1: not known */
    int64_t since_ns;     /* when it came, or was refused */
    int64_t heard_ns;     /* when the last byte came, on the clock of g->pulse */
    uint32_t events;      /* asked of epoll */
    bool goodbye;         /* it may close */
    bool mute;            /* it takes no more bytes: what it still sends is read */
    bool silent;          /* the run ended for its silence: nobody waits until it has heard that */
    bool dead;            /* freed at the end of the round */
    unsigned char net[8]; /* of its address: IPv4, or the first half of IPv6 */
    char address[64];
} ddp_peer;

typedef struct ddp_rank_info {
    uint32_t pid;
    int32_t goodbye;
    ddp_peer *peer; /* on rank 0 only; NULL: not here */
    char host_id[128], host[128];
} ddp_rank_info;

typedef struct ddp_wait ddp_wait;
typedef struct ddp_get ddp_get;

/* Sums since the start. */
typedef struct ddp_step_times {
    uint64_t steps, data_us, compute_us, wait_us;
    uint64_t collectives; /* begun */
} ddp_step_times;

/* The same, written by any thread. */
typedef struct ddp_step_time_sums {
    atomic_ullong steps, data_us, compute_us, wait_us, collectives;
} ddp_step_time_sums;

/* Of all ranks, on rank 0. */
typedef struct ddp_straggler_watch {
    ddp_step_times *latest, *begin; /* a rank each: now, at the begin of the window */
    int64_t window_ns, told_ns;     /* begin of the window; of the last line */
    int32_t suspect, windows;       /* the clearly slowest rank, -1: none, and for how many windows in a row */
    int32_t told;                   /* whom the last line was about, -1: none yet */
} ddp_straggler_watch;

/* Rank 0's part; the control thread's. */
typedef struct ddp_server {
    ddp_table *table;
    ddp_wait *waits;
    ddp_get *gets;
    int32_t joined, goodbyes, told; /* ranks, rank 0 among the first two; told: of the failure */
    bool failed, farewell;
    ddp_failure failure;
    int64_t report_ns;
    int stop_signal;        /* that a rank was asked to end by, 0: none */
    uint64_t strangers;     /* connections without a right hello */
    uint64_t other_secrets; /* and ranks, as it seems, of which this run knows nothing; where the last came from: */
    char other_secret[64];
    uint64_t chance;
    int64_t accept_again_ns; /* out of descriptors until then, or 0 */
    bool short_said;
    /* "A peer is lost" of a rank, kept for a moment: what that rank saw is mostly the end of another one, whose own
     * connection tells it better. */
    ddp_failure held;
    int64_t held_ns; /* 0: none */
    ddp_straggler_watch paces;
} ddp_server;

/* The control thread's, but for stop_signal. */
typedef struct ddp_heartbeat {
    int64_t timeout_ns, every_ns;  /* peer_timeout and the time between two beats; 0: none */
    int64_t lived_ns;              /* for how long this thread has run: the clock that silence is measured on */
    int64_t round_ns, beat_ns;     /* begin of the last round, time of the next beat */
    const atomic_int *stop_signal; /* may be NULL */
    bool stop_told;
} ddp_heartbeat;

struct ddp_group {
    int32_t rank, world, local_rank, local_size;
    char endpoint[DDP_ENDPOINT_MAX], url[DDP_ENDPOINT_MAX + 64], address[64];
    char world_where[DDP_WHERE_MAX]; /* " (node1.ini:4)" or empty */
    int64_t began_ns, timeout_ms, report_ms;
    char *agreement;
    ddp_identity identity;
    char secret_where[DDP_WHERE_MAX];
    ddp_log *log;
    void (*expired)(void *ctx, const ddp_failure *cause);
    void *expired_ctx;
    char interface[64];
    atomic_llong step; /* -1: none yet */
    atomic_ullong ids;
    ddp_step_time_sums pace;
    atomic_bool has_warning; /* `warning` has not been taken yet */
    atomic_int stop_asked;   /* the signal that some rank was asked to end by */
    bool loopback;           /* this rank's end of the control plane is a loopback address */

    pthread_mutex_t lock; /* over the block below */
    pthread_cond_t changed;
    ddp_post *posts, **posts_end;
    ddp_request *calls;
    ddp_failure failure;
    int64_t failed_ns;
    bool met;      /* members are known and stay as they are */
    bool goodbye;  /* this rank has said it */
    bool farewell; /* rank 0 has */
    bool leaving;  /* the owner is on its way out by itself */
    bool stop;
    bool expired_called, listener_called, listener_running;
    void (*listener)(void *ctx);
    void *listener_ctx;
    struct ddp_store_scope *scopes;
    char warning[320];

    bool thread_started;
    pthread_t thread;

    /* the control thread's, once it runs */
    ddp_rank_info *members; /* world */
    ddp_peer *peers;        /* of a rank other than 0: the one to rank 0 */
    ddp_server *server;
    ddp_heartbeat pulse;
    ddp_tls *tls;     /* NULL: in clear */
    int64_t drain_ns; /* 0: not stopping */
    int epoll_fd, event_fd, listen_fd;
};

/* `ms` from `now`; a time-out of years is none. */
static inline int64_t ddp_deadline_ns(int64_t now, int64_t ms)
{
    return ms > (DDP_FOREVER_NS - now) / 1000000 ? DDP_FOREVER_NS : now + ms * 1000000;
}

/* ---- control.c ------------------------------------------------------------------------------------------------------ */
/* Wakes the control thread. Any thread. */
void ddp_control_wake(ddp_group *g);
void *ddp_control_main(void *arg); /* the control thread */
ddp_status ddp_control_add_peer(ddp_group *g, const ddp_wire *wire, ddp_peer **out, ddp_err *err);
/* Reads what has come over a connection and acts on it. */
void ddp_control_read(ddp_group *g, ddp_peer *p);
/* The connection is of no more use. */
void ddp_control_lost(ddp_group *g, ddp_peer *p, const ddp_err *why);
/* A frame to be sent at the end of the round; without memory for it the connection is given up. */
void ddp_control_put(ddp_peer *p, uint32_t type, const void *data, size_t length);

/* ---- calls.c -------------------------------------------------------------------------------------------------------- */
struct ddp_store_scope;
/* Queues a frame for the server; the payload is taken over. Any thread. */
ddp_status ddp_post_frame(ddp_group *g, uint32_t type, ddp_text *payload, ddp_err *err);
void ddp_scopes_free(ddp_group *g);

/* ---- deliver.c ------------------------------------------------------------------------------------------------------ */
/* A frame from rank 0; false when it is malformed. */
bool ddp_client_dispatch(ddp_group *g, const ddp_frame *f);
/* The first failure stays; ends all calls. Any thread. */
void ddp_client_failure(ddp_group *g, const ddp_failure *f);
/* The members are known: the meeting is over. */
void ddp_client_met(ddp_group *g);
/* Rank 0 is silent: the failure, which it reads when it wakes. */
void ddp_client_silence(ddp_group *g, const ddp_failure *f);
/* " at step 17", " before all ranks had met" or nothing. */
void ddp_when(const ddp_group *g, char *buf, size_t capacity);
/* Words the loss of the connection to a rank. */
void ddp_lost_failure(ddp_group *g, int32_t rank, const ddp_err *why, ddp_failure *out);

/* ---- pulse.c, the control thread ------------------------------------------------------------------------------------- */
void ddp_heartbeat_open(ddp_group *g, const ddp_group_params *p);
void ddp_heartbeat_start(ddp_group *g);
/* At the begin of a round, before anything that has come is read. */
void ddp_heartbeat_round(ddp_group *g, int64_t now);
void ddp_heartbeat_heard(ddp_group *g, ddp_peer *p);
/* Rank 0: a rank, maybe itself, was asked to end. False: no frame of that kind. */
bool ddp_heartbeat_stop(ddp_group *g, const ddp_frame *f);
/* Rank 0: tells a rank which signal that was, if there was one. */
void ddp_heartbeat_tell_stop(ddp_group *g, int32_t rank);
/* After what has come was read: beats, judges, returns the next deadline. */
int64_t ddp_heartbeat_tick(ddp_group *g, int64_t now);

/* ---- pace.c, the control thread -------------------------------------------------------------------------------------- */
void ddp_straggler_pack(ddp_group *g, ddp_text *out); /* this rank's sums, for a heartbeat */
/* The others on rank 0 alone. */
ddp_status ddp_straggler_open(ddp_group *g, ddp_err *err);
void ddp_straggler_close(ddp_group *g);
bool ddp_straggler_frame(ddp_group *g, int32_t from, const ddp_frame *f); /* false: malformed */
void ddp_straggler_tick(ddp_group *g, int64_t now);
/* Adds to the time-out of a collective on rank `from` who had not come to it at the last heartbeat. */
void ddp_straggler_blame(ddp_group *g, int32_t from, ddp_failure *f);

/* ---- server.c, rank 0's control thread ------------------------------------------------------------------------------ */
ddp_status ddp_server_open(ddp_group *g, ddp_err *err);
void ddp_server_close(ddp_group *g);
/* A frame from a connection, or from rank 0 itself (from 0, peer NULL); false when it is malformed or out of place. */
bool ddp_server_frame(ddp_group *g, ddp_peer *peer, const ddp_frame *f);
/* A hello of another protocol version. */
void ddp_server_other_version(ddp_group *g, ddp_peer *p, const ddp_err *why);
void ddp_server_fail(ddp_group *g, int exit_code, int32_t rank, const char *fmt, ...) DDP_PRINTF_(4, 5);
void ddp_server_lost(ddp_group *g, ddp_peer *p, const ddp_err *why);
void ddp_server_damaged(ddp_group *g, ddp_peer *p, const char *why);
void ddp_server_send(ddp_group *g, int32_t rank, uint32_t type, const ddp_text *payload);
/* Tells all ranks that rank 0 leaves. */
void ddp_server_farewell(ddp_group *g);
void ddp_server_missing_goodbyes(const ddp_group *g, char *buf, size_t capacity);
/* Acts on deadlines that have passed; returns the next one. */
int64_t ddp_server_tick(ddp_group *g, int64_t now);
/* All that there is to say has been said. */
bool ddp_server_done(const ddp_group *g);

/* Tells why, and waits until it closes. `is_rank`: one of the ranks that are to hear of a failed meeting. */
void ddp_server_turn_away(ddp_group *g, ddp_peer *p, const ddp_failure *f, bool is_rank);

/* ---- door.c, rank 0's control thread -------------------------------------------------------------------------------- */
void ddp_listener_open(ddp_group *g);
void ddp_listener_accept(ddp_group *g);
int64_t ddp_listener_tick(ddp_group *g, int64_t now);
void ddp_listener_stranger(ddp_group *g, const ddp_peer *p, const char *why);
/* p->wire.presented is of a rank with another secret, or that of a stranger who says so. A hostile one must not be able to end
 * the meeting: only who knows the settings does. */
void ddp_listener_other_secret(ddp_group *g, ddp_peer *p);

/* ---- waits.c, rank 0's control thread ------------------------------------------------------------------------------- */
bool ddp_pending_request(ddp_group *g, int32_t from, const ddp_frame *f);
void ddp_pending_goodbye(ddp_group *g, int32_t rank);
int64_t ddp_pending_tick(ddp_group *g, int64_t now);
void ddp_pending_free(ddp_group *g);

/* ---- meet.c --------------------------------------------------------------------------------------------------------- */
/* Who this process is, into members[rank]. */
void ddp_rendezvous_identify(ddp_group *g);
/* Rank 0: the listener. */
ddp_status ddp_rendezvous_listen(ddp_group *g, const ddp_group_params *p, ddp_failure *failure, ddp_err *err);
/* Other ranks, on the calling thread: finds rank 0, says hello and waits until it is heard. *failure is set when rank 0
 * has answered with the run's failure. */
ddp_status ddp_rendezvous_find_rank0(ddp_group *g, const ddp_group_params *p, ddp_wire *out, ddp_failure *failure,
                                     ddp_err *err);
/* "rank 3", "ranks 1, 2"; lists at most 16 */
void ddp_rank_list(char *buf, size_t capacity, const bool *missing, int32_t world);
/* Reads the payload of a FAILURE frame. */
bool ddp_failure_unpack(const ddp_frame *f, ddp_failure *out);

#endif
