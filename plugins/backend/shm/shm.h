/* plugins/backend/shm/shm.h -- the inside of backend shm: what lies in shared memory, what a rank knows of it, which
 * file does what.
 *
 * segment.c     anonymous memory that other processes open through /proc: create, open, reserve, map
 * connect.c     how the ranks of a communicator come to share its control segment, and part from it
 * process.c     whether another process still runs; which processors this one may use
 * wait.c        the one way to wait: spin, sleep, and every reason to give up
 * memory.c      mem_alloc, mem_free, and whose memory an address is
 * collective.c  the collectives; staged.c those of other memory; message.c send and recv
 * ../common     sums of many vectors into many, over kernels of the best instruction set; the checks of arguments
 *
 * Every collective begins with a *phase*: each rank fills its own slot, stores the phase's number into it, and waits
 * until the slots of all others carry that number. A rank has two slots and uses them in turn. It can refill one
 * only after the phase in between, which each other rank has entered after its last look at what the slot held
 * before. */
#pragma once

#include "common/reduce.h"
#include <ddpengine/backend.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
    SHM_MAX_WORLD = 64,
    SHM_INLINE = 2048,       /* bytes of a rank in a collective that takes one phase: they travel in the slot */
    SHM_TEXT = 400,          /* of an error that one rank sends the others */
    SHM_CPU_WORDS = 16,      /* masks of 1024 processors */
    SHM_LINE = 64,           /* of the caches */
    SHM_SHARE_FROM = 4,      /* world from which staged sums are divided among the ranks */
    SHM_CALL_ALLOC = 1000,   /* beside enum shm_what in shm_slot.call */
    SHM_AFTER_LOSS = 1 << 16 /* in shm_header.aborted: a rank had been found lost before, which is the first cause */
};

enum shm_what {
    SHM_ALL_REDUCE = 1,
    SHM_BROADCAST,
    SHM_ALL_GATHER,
    SHM_REDUCE_SCATTER,
    SHM_BARRIER,
    SHM_REDUCE,
    SHM_GATHER,
    SHM_SCATTER,
    SHM_ALL_TO_ALL,
    SHM_WHAT_END
};

/* ---- in shared memory -------------------------------------------------------------------------------------------- */
/* A number that one rank writes and others wait for: a futex. */
typedef struct shm_word {
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers; /* so many may sleep: the writer has to wake them */
} shm_word;

/* Where a buffer lies: in the memory of mem_alloc, or in nobody's but the rank's own (region 0). */
typedef struct shm_address {
    uint64_t region, offset;
} shm_address;

/* What a rank says in a phase. The first line has all of a short message. */
typedef struct shm_slot {
    _Alignas(SHM_LINE) shm_word phase;
    uint32_t call;       /* what, dtype, op and root in one: equal on all ranks */
    uint32_t unreadable; /* 1: peers cannot read the buffer at `send` even if it has an address */
    uint64_t count;
    union {
        struct {
            shm_address send, recv;
        };
        unsigned char payload[SHM_INLINE + SHM_LINE - 24]; /* whole lines, an odd number of them */
    };
} shm_slot;

/* Messages of send: one at a time under way from a rank, in pieces, through its two outboxes. */
typedef struct shm_channel {
    _Alignas(SHM_LINE) shm_word put; /* pieces put, by the sender */
    _Atomic uint32_t to;
    uint32_t dtype;
    uint64_t count;
    _Alignas(SHM_LINE) shm_word taken; /* by the receiver `to` */
    _Atomic uint32_t refused;          /* 1: by the receiver, until the sender has seen that it is */
} shm_channel;

typedef struct shm_rank {
    _Alignas(SHM_LINE) uint32_t pid;
    _Atomic uint32_t left; /* its communicator is destroyed */
    _Atomic uint32_t cpu;  /* where it ran when it last had to wait */
    uint64_t cpus[SHM_CPU_WORDS];
    shm_channel channel;
    shm_slot slot[2];
} shm_rank;

typedef struct shm_header {
    unsigned char nonce[16]; /* proves that this is the memory that rank 0 means */
    uint32_t world, reserved0;
    uint64_t staging;                            /* bytes of one stage */
    _Alignas(SHM_LINE) _Atomic uint32_t aborted; /* 1 + the first rank that has aborted; SHM_AFTER_LOSS */
    _Atomic uint32_t lost;                       /* 1 + the first rank found dead or gone */
    shm_rank ranks[]; /* world; after them 4 stages for each rank: 2 of collectives, 2 outboxes */
} shm_header;

/* ---- in a rank --------------------------------------------------------------------------------------------------- */
typedef struct shm_region { /* memory of one mem_alloc */
    uint64_t id;            /* the same on all ranks, never used twice */
    char *base;             /* of rank 0's slice; rank r's is at base + r * stride */
    size_t stride, bytes;   /* bytes that the caller has asked for */
    size_t mapped;
} shm_region;

struct ddp_backend {
    const ddp_host *host;
    uint64_t staging, spin_us;
};

struct ddp_comm {
    uint32_t rank, world;
    atomic_bool aborted; /* from any thread */
    bool broken;
    ddp_err cause; /* why, once broken */
    shm_header *header;
    size_t header_bytes; /* of the whole segment */
    char *stages;
    size_t staging;
    uint32_t phase; /* the last one begun */
    uint32_t half;  /* which stage the next piece goes to */
    int64_t timeout_ns, spin_ns;
    int64_t deadline_ns; /* of the running call; 0: nothing has had to sleep yet */
    uint64_t calls;      /* begun; numbers them in messages */
    const char *name;    /* of the running call, with its bytes */
    size_t name_bytes;
    const ddp_kernels *kernels;
    size_t stream_bytes; /* larger all_reduces that are not in place store past the caches */
    shm_region *regions;
    uint32_t region_count, region_capacity;
    uint64_t regions_made;
    /* ddp_shm_started of each rank, which distinguishes it from a later process with the same pid */
    uint64_t started[SHM_MAX_WORLD];
    const void *in[SHM_MAX_WORLD];
    void *out[SHM_MAX_WORLD];
};

static inline shm_rank *ddp_shm_rank(const ddp_comm *c, uint32_t rank) { return &c->header->ranks[rank]; }
/* Of the phase that has been exchanged last. */
static inline shm_slot *ddp_shm_slot(const ddp_comm *c, uint32_t rank)
{
    return &ddp_shm_rank(c, rank)->slot[c->phase & 1];
}
/* This rank's own of the next phase, to be filled before ddp_shm_exchange. */
static inline shm_slot *ddp_shm_next(const ddp_comm *c) { return &ddp_shm_rank(c, c->rank)->slot[(c->phase + 1) & 1]; }
/* Stages 0 and 1 carry collectives, 2 and 3 are the outboxes. */
static inline char *ddp_shm_stage(const ddp_comm *c, uint32_t rank, uint32_t stage)
{
    return c->stages + ((size_t)rank * 4 + stage) * c->staging;
}

/* ---- segment.c: every function that fails leaves nothing open ---------------------------------------------------- */
/* A descriptor of fresh memory of that size, which nobody can resize; nothing of it is reserved yet. */
ddp_status ddp_shm_create(size_t bytes, int *fd, ddp_err *err);
/* The same memory, of process `pid` that has it open as `number`. */
ddp_status ddp_shm_open(const ddp_comm *c, uint32_t pid, int number, size_t bytes, int *fd, ddp_err *err);
/* DDP_ERR_NOMEM with both numbers when the machine cannot have so much left. */
ddp_status ddp_shm_room(uint64_t bytes, ddp_err *err);
ddp_status ddp_shm_reserve(int fd, size_t offset, size_t bytes, ddp_err *err);
ddp_status ddp_shm_map(int fd, size_t bytes, void **out, ddp_err *err);
ddp_status ddp_shm_errno(ddp_err *err, const char *what); /* DDP_ERR_SYSTEM or DDP_ERR_NOMEM, of errno */

/* ---- connect.c --------------------------------------------------------------------------------------------------- */
ddp_status ddp_shm_connect(ddp_comm *c, const ddp_comm_params *p, const ddp_backend *b, ddp_err *err);
void ddp_shm_disconnect(ddp_comm *c); /* whatever a connect has left, also a failed one */

/* ---- process.c --------------------------------------------------------------------------------------------------- */
/* When process `pid` was started; 0 when it has ended (reaped or not), UINT64_MAX when that cannot be known. */
uint64_t ddp_shm_started(uint32_t pid);
uint32_t ddp_shm_self(void); /* this process's number in /proc */
void ddp_shm_cpus(uint64_t mask[SHM_CPU_WORDS]);

/* ---- wait.c ------------------------------------------------------------------------------------------------------ */
/* Names a call in messages and starts its clock; fails when the communicator is aborted or broken. */
ddp_status ddp_shm_begin(ddp_comm *c, const char *name, size_t bytes, ddp_err *err);
/* One phase: publishes what ddp_shm_next holds, returns when ddp_shm_slot of every rank can be read. */
ddp_status ddp_shm_exchange(ddp_comm *c, ddp_err *err);
void ddp_shm_set(shm_word *w, uint32_t value);
/* Until the word, which `peer` writes, is no longer `old`. What ends it otherwise breaks the communicator. */
ddp_status ddp_shm_wait(ddp_comm *c, shm_word *w, uint32_t old, uint32_t peer, ddp_err *err);
void ddp_shm_wake_all(ddp_comm *c); /* any thread */

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
ddp_status ddp_shm_mem_alloc(ddp_comm *c, size_t bytes, void **out, ddp_err *err);
void ddp_shm_mem_free(ddp_comm *c, void *p);
ddp_status ddp_shm_mem_peer(ddp_comm *c, const void *p, uint32_t rank, void **out, ddp_err *err);
/* Where a buffer of this rank lies. */
shm_address ddp_shm_address(const ddp_comm *c, const void *p, size_t bytes);
/* A peer's buffer as this rank sees it; NULL when the address is of no region that is there. */
char *ddp_shm_at(const ddp_comm *c, uint32_t rank, shm_address address, size_t bytes);

/* ---- collective.c ------------------------------------------------------------------------------------------------ */
typedef struct shm_job { /* one collective */
    uint32_t what, dtype, op, root;
    size_t count, element; /* of one block; bytes of an element */
    size_t blocks;         /* in what a rank gives: 1, or world where each goes to another rank */
    const char *send;      /* of a rank that gives nothing: not used */
    char *recv;
} shm_job;

ddp_status ddp_shm_collective(ddp_comm *c, uint32_t what, const ddp_coll *a, ddp_err *err);
/* True when this rank's input is part of the job. */
bool ddp_shm_gives(const shm_job *j, uint32_t rank);
/* Elements first .. first + count - 1 of every block, from c->in[] by rank: there they begin at the block's start, with
 * blocks `stride` elements apart. */
void ddp_shm_take(ddp_comm *c, const shm_job *j, size_t stride, size_t first, size_t count);
/* Part `rank` of `count` elements divided among all: its first one, and how many. */
size_t ddp_shm_share(const ddp_comm *c, const shm_job *j, uint32_t rank, size_t count, size_t *first);

/* ---- staged.c, message.c ----------------------------------------------------------------------------------------- */
ddp_status ddp_shm_staged(ddp_comm *c, const shm_job *j, ddp_err *err);
/* Copies this rank's elements first .. first + count - 1 of every block to `to`, blocks `stride` elements apart. */
void ddp_shm_give(const ddp_comm *c, const shm_job *j, char *to, size_t stride, size_t first, size_t count);
ddp_status ddp_shm_send(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_shm_recv(ddp_comm *c, const ddp_coll *a, ddp_err *err);
