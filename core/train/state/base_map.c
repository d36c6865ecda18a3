/* train/state/base_map.c -- what lies below adapters is the same on all ranks and never written by a step: where they
 * train on the CPU, the ranks of a host have it in their memory once.
 *
 * A rank's parameters are one arena, in which what is not trained comes last and begins a page. That part of it is a
 * mapping of a memfd that the host's first rank has made, and that the others open by /proc/PID/fd/N. Who cannot, in
 * another container for example, has memory of its own, as without this file. Whoever writes there, at the start or
 * after a failure, writes the same bytes, and no step runs meanwhile.
 *
 * What rounds is held in bf16 where the device takes it so. It comes in f32, which rank 0 reads, all get and compare,
 * and is made half as long in its place.
 *
 * Where each rank updates a shard for all (reduce/direct.c), what is trained is in that mapping too: each would write
 * the same bytes to the others' copies. */
#include "train/state/memory.h"
#include "control/group.h"
#include "control/request.h"
#include "net/identity.h"
#include "train/reduce/shards.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a host's first rank tells; the same program runs on all ranks, so a struct is its own wire format. */
typedef struct offer {
    uint64_t token, bytes; /* bytes 0: there is none */
    int32_t pid, fd, half; /* half: its device wants a part in bf16 */
} offer;

enum { NAME = 64, LINK = 256 };

static void name_of(uint64_t token, char name[NAME])
{
    (void)snprintf(name, NAME, "ddpengine-base-%016" PRIx64, token);
}

/* ---- the host's first rank --------------------------------------------------------------------------------------- */
static int32_t first_of_host(const ddp_group *g)
{
    int32_t r = 0;

    while (!ddp_group_same_host(g, r)) r++; /* this rank is, at last */
    return r;
}

/* -1: there is no memory for it. */
static int make(uint64_t bytes, offer *out)
{
    char name[NAME];
    ddp_err ignored = {0};
    int fd;

    if (ddp_secret_random(&out->token, sizeof(out->token), &ignored) != DDP_OK) return -1;
    name_of(out->token, name);
    fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)bytes) != 0 || posix_fallocate(fd, 0, (off_t)bytes) != 0) {
        (void)close(fd);
        return -1;
    }
    out->pid = (int32_t)getpid();
    out->fd = fd;
    out->bytes = bytes;
    return fd;
}

/* ---- the others -------------------------------------------------------------------------------------------------- */
/* A process of that number may be another one where it is counted otherwise: the token is in the memory's name. */
static int open_offered(const offer *o, uint64_t bytes)
{
    char path[NAME], target[LINK], name[NAME], want[LINK];
    struct stat facts;
    ssize_t length;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId32 "/fd/%" PRId32, o->pid, o->fd);
    name_of(o->token, name);
    (void)snprintf(want, sizeof(want), "/memfd:%s", name);
    length = readlink(path, target, sizeof(target) - 1);
    if (length < 0 || strncmp(target, want, strlen(want)) != 0) return -1;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &facts) == 0 && (uint64_t)facts.st_size == bytes) return fd;
    (void)close(fd);
    return -1;
}

/* ---- the arena --------------------------------------------------------------------------------------------------- */
static uint64_t round_bytes(uint64_t elements) { return ddp_round_up(elements, DDP_FROZEN_ALIGNMENT) * sizeof(float); }

/* NULL: it cannot be mapped, and the arena is to be allocated. `own` bytes of it are this rank's alone. */
static void *map_arena(uint64_t own, uint64_t bytes, int fd)
{
    char *base = mmap(NULL, own + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED) return NULL;
    if (mmap(base + own, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) {
        (void)madvise(base + own, bytes, MADV_HUGEPAGE); /* a wish */
        return base;
    }
    (void)munmap(base, own + bytes);
    return NULL;
}

static bool wanted(const ddp_trainer *t)
{
    return t->s->model.lora.on && ddp_group_world(t->group) > 1 && !ddp_device_has_memory(&t->s->device);
}

/* All of a host, or none: how parameters are updated depends on it. Also says that the first rank's file is no longer
 * needed. */
static ddp_status keep_or_drop(ddp_trainer *t, ddp_err *err)
{
    const int32_t world = ddp_group_world(t->group);
    const char own = t->mem.mapped_bytes > 0;
    const void *parts[world];
    size_t lengths[world];
    void *block = NULL;
    bool all = true;
    ddp_status st = ddp_group_gather(t->group, "memory of the base mapped", &own, 1, &block, parts, lengths,
                                     t->s->config->group->step_timeout_ms, err);

    for (int32_t r = 0; st == DDP_OK && r < world; r++)
        if (ddp_group_same_host(t->group, r)) all = all && lengths[r] == 1 && *(const char *)parts[r] != 0;
    if (!all) state_base_unmap(t);
    free(block);
    return st;
}

/* Every rank takes part in both waits, whatever it has. */
static ddp_status exchange(ddp_trainer *t, uint64_t own, uint64_t bytes, ddp_err *err)
{
    const int32_t world = ddp_group_world(t->group), leader = first_of_host(t->group);
    const int64_t timeout_ms = t->s->config->group->step_timeout_ms;
    const int32_t half = t->s->model.lora.half;
    offer mine = {.fd = -1, .half = half}, theirs = {.fd = -1};
    const void *parts[world];
    size_t lengths[world];
    void *block = NULL, *base = NULL;
    ddp_status st;
    int fd = -1;

    if (leader == ddp_group_rank(t->group) && ddp_group_local_size(t->group) > 1) fd = make(bytes, &mine);
    st = ddp_group_gather(t->group, "memory of the base", &mine, sizeof(mine), &block, parts, lengths, timeout_ms, err);
    if (st == DDP_OK && lengths[leader] == sizeof(theirs)) memcpy(&theirs, parts[leader], sizeof(theirs));
    free(block);
    if (st == DDP_OK && fd < 0 && theirs.bytes == bytes && theirs.half == half) fd = open_offered(&theirs, bytes);
    if (st == DDP_OK && fd >= 0) base = map_arena(own, bytes, fd);
    if (base != NULL) {
        t->mem.params = base;
        t->mem.mapped_bytes = own + bytes;
    }
    if (st == DDP_OK) st = keep_or_drop(t, err);
    if (fd >= 0) (void)close(fd);
    return st;
}

ddp_status state_base_map(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    uint64_t own = round_bytes(l->elements), all = round_bytes(l->param_elements);
    bool one_copy = reduce_shards_need_one_copy(t);

    if (!wanted(t) || l->trained == l->param_count) return DDP_OK;
    if (one_copy) own = 0;
    DDP_TRY_AS(DDP_EXIT_PEER, err, exchange(t, own, all - own, err));
    t->mem.one_copy = one_copy && t->mem.mapped_bytes > 0;
    return DDP_OK;
}

void state_base_unmap(ddp_trainer *t)
{
    if (t->mem.mapped_bytes > 0) (void)munmap(t->mem.params, t->mem.mapped_bytes);
    if (t->mem.mapped_bytes > 0) t->mem.params = NULL;
    t->mem.mapped_bytes = 0;
    t->mem.one_copy = false;
}

/* ---- in bf16 ----------------------------------------------------------------------------------------------------- */
const void *state_base_half(const ddp_trainer *t)
{
    return t->s->model.lora.half ? t->mem.params + t->s->model.layout->half_first : NULL;
}

/* From the first element on, so that each is read before something is written there. The values are rounded. */
static void pack(float *first, uint64_t count)
{
    char *bytes = (char *)first;

    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        uint16_t half;

        memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
        half = (uint16_t)(bits >> 16);
        memcpy(bytes + i * sizeof(half), &half, sizeof(half));
    }
}

static void give_back(char *from, char *to)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), skip = ddp_round_up((uintptr_t)from, page) - (uintptr_t)from;
    const size_t bytes = (size_t)((uint64_t)(to - from) / page * page);

    if (bytes < 2 * page) return;
    /* of what is shared, else of what is this process's own */
    if (madvise(from + skip, bytes - page, MADV_REMOVE) != 0) (void)madvise(from + skip, bytes - page, MADV_DONTNEED);
}

ddp_status state_base_pack(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    const int32_t world = ddp_group_world(t->group);
    const uint64_t count = l->param_elements - l->half_first;
    float *first = t->mem.params + l->half_first;
    const void *parts[world];
    size_t lengths[world];
    void *block = NULL;
    ddp_status st;

    if (!t->s->model.lora.rounds) return DDP_OK;
    if (t->s->model.lora.half && (t->mem.mapped_bytes == 0 || first_of_host(t->group) == ddp_group_rank(t->group))) {
        pack(first, count);
        give_back((char *)first + count * sizeof(uint16_t), (char *)(first + count));
    }
    st = ddp_group_gather(t->group, "base in bf16", "", 1, &block, parts, lengths, t->s->config->group->step_timeout_ms,
                          err);
    free(block);
    return st == DDP_OK ? st : ddp_fail_as(err, DDP_EXIT_PEER);
}

void state_param_copy(const ddp_trainer *t, uint32_t p, uint64_t at, uint64_t count, float *out)
{
    const ddp_layout *l = t->s->model.layout;
    const uint16_t *half = state_base_half(t);

    if (half == NULL || !t->s->model.params[p].half) {
        memcpy(out, t->mem.host.params + l->offset[p] + at, count * sizeof(*out));
        return;
    }
    half += l->offset[p] - l->half_first + at;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)half[i] << 16;

        memcpy(&out[i], &bits, sizeof(bits));
    }
}
