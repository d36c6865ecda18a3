/* plugins/backend/shm/connect.c -- how ranks come to share a control segment.
 *
 * Rank 0 makes it and sets "control" in the store: its process, descriptor and a nonce. The others open it through
 * /proc, check the nonce, write who they are into it and set "attached/RANK"; rank 0 waits for them all and sets
 * "go". A text instead of success is an error, which reaches every rank in this way. All waiting is the store's,
 * which an abort of the run ends. */
#include "shm.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { RESULT_MS = 1000 }; /* the others wait so much longer than rank 0, which knows who is missing */

typedef struct invitation { /* the value of "control" */
    uint32_t pid;
    int32_t fd;
    uint64_t bytes, staging;
    unsigned char nonce[16];
    char text[SHM_TEXT]; /* why there is none, "" when there is */
} invitation;

static size_t segment_bytes(uint32_t world, uint64_t staging, size_t *stages)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), head = sizeof(shm_header) + world * sizeof(shm_rank);

    *stages = (head + page - 1) / page * page;
    return *stages + (size_t)world * 4 * (size_t)staging;
}

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* One of the waits of a rendezvous that ends at `deadline` as a whole. */
static ddp_status get(const ddp_comm_params *p, const char *key, void *buf, size_t capacity, size_t *length,
                      int64_t deadline, ddp_err *err)
{
    int64_t left = deadline - now_ms();

    return p->store->get(p->store->ctx, key, buf, capacity, length, left > 0 ? left : 0, err);
}

/* Takes and removes a key that is for this rank alone: the store outlives the communicator, and a run may open many. */
static ddp_status take(const ddp_comm_params *p, const char *key, void *buf, size_t capacity, size_t *length,
                       int64_t deadline, ddp_err *err)
{
    ddp_status st = get(p, key, buf, capacity, length, deadline, err);

    return st == DDP_OK ? p->store->remove(p->store->ctx, key, err) : st;
}

static ddp_status not_come(const ddp_comm *c, const ddp_comm_params *p, uint32_t rank, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_TIMEOUT, "shm: rank %u has not come to connect to rank %u within %g s", rank, c->rank,
                   (double)p->connect_timeout_ms * 1e-3);
    err->rank = (int32_t)rank;
    return DDP_ERR_TIMEOUT;
}

/* Maps the control segment that has this nonce (NULL on rank 0, which sets it). A segment of another run is left as
 * it is. */
static ddp_status map_control(ddp_comm *c, int fd, size_t bytes, uint64_t staging, const unsigned char *nonce,
                              ddp_err *err)
{
    size_t stages;
    void *p;
    ddp_status st;

    if (segment_bytes(c->world, staging, &stages) != bytes)
        return ddp_fail(err, DDP_ERR_CONFIG, "shm: rank %u and rank 0 were not built alike", c->rank);
    st = ddp_shm_map(fd, bytes, &p, err);
    if (st != DDP_OK) return st;
    if (nonce != NULL && memcmp(((const shm_header *)p)->nonce, nonce, sizeof(c->header->nonce)) != 0) {
        (void)munmap(p, bytes);
        return ddp_fail(
            err, DDP_ERR_SYSTEM,
            "shm: rank %u finds the memory of another run in the place of rank 0's: another host or pid namespace? "
            "Run all ranks in the same one, or use gloo-tcp",
            c->rank);
    }
    c->header = p;
    c->header_bytes = bytes;
    c->stages = (char *)p + stages;
    c->staging = (size_t)staging;
    return DDP_OK;
}

/* Who this rank is, for those who will wait for it. */
static void introduce(ddp_comm *c)
{
    shm_rank *own = ddp_shm_rank(c, c->rank);

    own->pid = ddp_shm_self();
    ddp_shm_cpus(own->cpus);
    atomic_store(&own->cpu, UINT32_MAX);
}

/* The result for those who wait for `key`: "" or why not. Returns it, or why it could not be sent. */
static ddp_status send_result(const ddp_comm_params *p, const char *key, ddp_status st, ddp_err *err)
{
    char text[SHM_TEXT] = "";
    ddp_err ignored;
    ddp_status sent;

    if (st != DDP_OK) (void)snprintf(text, sizeof(text), "%.*s", SHM_TEXT - 1, err->msg);
    sent = p->store->set(p->store->ctx, key, text, strlen(text) + 1, st == DDP_OK ? err : &ignored);
    return st == DDP_OK ? sent : st;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */
static ddp_status make_control(ddp_comm *c, uint64_t staging, int *fd, invitation *i, ddp_err *err)
{
    size_t stages;
    ddp_status st;

    i->staging = staging;
    i->bytes = segment_bytes(c->world, staging, &stages);
    st = ddp_shm_room(i->bytes, err);
    if (st == DDP_OK) st = ddp_shm_create(i->bytes, fd, err);
    if (st == DDP_OK) st = ddp_shm_reserve(*fd, 0, i->bytes, err);
    if (st == DDP_OK) st = map_control(c, *fd, i->bytes, staging, NULL, err);
    if (st != DDP_OK) return st;
    if (getrandom(i->nonce, sizeof(i->nonce), 0) != (ssize_t)sizeof(i->nonce)) return ddp_shm_errno(err, "getrandom");
    memcpy(c->header->nonce, i->nonce, sizeof(i->nonce));
    c->header->world = c->world;
    c->header->staging = staging;
    i->pid = ddp_shm_self();
    i->fd = *fd;
    introduce(c);
    return DDP_OK;
}

static ddp_status wait_attached(const ddp_comm *c, const ddp_comm_params *p, ddp_err *err)
{
    const int64_t deadline = now_ms() + p->connect_timeout_ms;
    char key[32], text[SHM_TEXT];

    for (uint32_t r = 1; r < c->world; r++) {
        size_t length = 0;
        ddp_status st;

        (void)snprintf(key, sizeof(key), "attached/%u", r);
        st = take(p, key, text, sizeof(text), &length, deadline, err);
        if (st == DDP_ERR_TIMEOUT) return not_come(c, p, r, err);
        if (st != DDP_OK) return st;
        if (length <= 1) continue;
        text[length - 1] = '\0';
        (void)ddp_fail(err, DDP_ERR_SYSTEM, "%s", text);
        err->rank = (int32_t)r;
        return DDP_ERR_SYSTEM;
    }
    return p->store->remove(p->store->ctx, "control", err); /* all have read it */
}

/* The result, to each in a key of its own, which it removes. Returns it, or why it could not be sent. */
static ddp_status send_results(const ddp_comm *c, const ddp_comm_params *p, ddp_status st, ddp_err *err)
{
    char key[32];

    for (uint32_t r = 1; r < c->world; r++) {
        (void)snprintf(key, sizeof(key), "go/%u", r);
        st = send_result(p, key, st, err);
    }
    return st;
}

static ddp_status invite(ddp_comm *c, const ddp_comm_params *p, invitation *i, ddp_status st, ddp_err *err)
{
    ddp_err ignored;
    ddp_status sent;

    if (st != DDP_OK) (void)snprintf(i->text, sizeof(i->text), "%.*s", SHM_TEXT - 1, err->msg);
    sent = p->store->set(p->store->ctx, "control", i, sizeof(*i), st == DDP_OK ? err : &ignored);
    if (st != DDP_OK) return st;
    if (sent != DDP_OK) return sent;
    return send_results(c, p, wait_attached(c, p, err), err);
}

static ddp_status host_ranks(ddp_comm *c, const ddp_comm_params *p, const ddp_backend *b, ddp_err *err)
{
    invitation i = {.fd = -1};
    int fd = -1;
    ddp_status st = make_control(c, b->staging, &fd, &i, err);

    if (c->world > 1) st = invite(c, p, &i, st, err);
    if (fd >= 0) (void)close(fd); /* all have mapped it */
    return st;
}

/* ---- the others -------------------------------------------------------------------------------------------------- */
static ddp_status attach(ddp_comm *c, const invitation *i, ddp_err *err)
{
    int fd = -1;
    ddp_status st = ddp_shm_open(c, i->pid, i->fd, (size_t)i->bytes, &fd, err);

    if (st == DDP_OK) st = map_control(c, fd, (size_t)i->bytes, i->staging, i->nonce, err);
    if (fd >= 0) (void)close(fd);
    if (st == DDP_OK) introduce(c);
    return st;
}

static ddp_status join_rank_0(ddp_comm *c, const ddp_comm_params *p, ddp_err *err)
{
    const int64_t deadline = now_ms() + p->connect_timeout_ms;
    char key[32], text[SHM_TEXT];
    invitation i;
    size_t length = 0;
    ddp_status st = get(p, "control", &i, sizeof(i), &length, deadline, err);

    if (st == DDP_ERR_TIMEOUT) return not_come(c, p, 0, err);
    if (st != DDP_OK) return st;
    if (length != sizeof(i)) return ddp_fail(err, DDP_ERR_INTERNAL, "shm: rank 0 has sent %zu bytes", length);
    i.text[sizeof(i.text) - 1] = '\0';
    if (i.text[0] != '\0') return ddp_fail(err, DDP_ERR_SYSTEM, "%s (on rank 0)", i.text);
    (void)snprintf(key, sizeof(key), "attached/%u", c->rank);
    st = send_result(p, key, attach(c, &i, err), err);
    if (st != DDP_OK) return st;
    (void)snprintf(key, sizeof(key), "go/%u", c->rank);
    st = take(p, key, text, sizeof(text), &length, deadline + RESULT_MS, err);
    if (st != DDP_OK || length <= 1) return st;
    text[length - 1] = '\0';
    return ddp_fail(err, DDP_ERR_SYSTEM, "%s", text);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */
/* With fewer processors than ranks a rank that spins keeps another one from computing what it waits for. */
static bool a_processor_each(const ddp_comm *c)
{
    uint32_t count = 0;

    for (int w = 0; w < SHM_CPU_WORDS; w++) {
        uint64_t any = 0;

        for (uint32_t r = 0; r < c->world; r++) any |= ddp_shm_rank(c, r)->cpus[w];
        count += (uint32_t)__builtin_popcountll(any);
    }
    return count >= c->world;
}

ddp_status ddp_shm_connect(ddp_comm *c, const ddp_comm_params *p, const ddp_backend *b, ddp_err *err)
{
    ddp_status st = c->rank == 0 ? host_ranks(c, p, b, err) : join_rank_0(c, p, err);

    if (st != DDP_OK) return st;
    for (uint32_t r = 0; r < c->world; r++) c->started[r] = ddp_shm_started(ddp_shm_rank(c, r)->pid);
    c->spin_ns = a_processor_each(c) ? (int64_t)b->spin_us * 1000 : 0;
    return DDP_OK;
}

void ddp_shm_disconnect(ddp_comm *c)
{
    while (c->region_count > 0) ddp_shm_mem_free(c, c->regions[0].base + c->rank * c->regions[0].stride);
    free(c->regions);
    if (c->header == NULL) return;
    atomic_store(&ddp_shm_rank(c, c->rank)->left, 1);
    ddp_shm_wake_all(c); /* who still waits for this rank waits in vain */
    (void)munmap(c->header, c->header_bytes);
}
