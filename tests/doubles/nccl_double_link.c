/* tests/doubles/nccl_double_link.c -- of the double of NCCL: the memory that ranks share, and the channels in it. A
 * channel has one sender and one receiver, and counts for each how often it was filled and emptied; nobody holds a
 * lock that a rank could die with. */
#include "nccl_double_parts.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct name { /* what a unique id is */
    int process, file;
    uint64_t number;
} name;

static size_t size_of(int world) { return sizeof(double_link) + (size_t)(world * world) * sizeof(double_channel); }

bool double_link_name(ncclUniqueId *out)
{
    static atomic_uint made;
    name n = {.process = (int)getpid(), .file = memfd_create("nccl double", MFD_CLOEXEC)};
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    n.number = (uint64_t)t.tv_sec << 32 | (uint64_t)t.tv_nsec << 8 | (atomic_fetch_add(&made, 1) & 0xff);
    if (n.file < 0 || pwrite(n.file, &n.number, sizeof(n.number), offsetof(double_link, number)) < 0) return false;
    memset(out, 0x77, sizeof(*out));
    memcpy(out->internal, &n, sizeof(n));
    return true;
}

void double_link_forget(const ncclUniqueId *id)
{
    name n;

    memcpy(&n, id->internal, sizeof(n));
    (void)close(n.file);
}

/* All ranks give it the same size: what they agree on is looked at in ncclCommInitRankConfig. */
static double_link *map(int file, int world)
{
    void *at;

    if (ftruncate(file, (off_t)size_of(world)) != 0) return NULL;
    at = mmap(NULL, size_of(world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return at == MAP_FAILED ? NULL : at;
}

double_link *double_link_join(const ncclUniqueId *id, int world)
{
    char path[64];
    name n;
    double_link *l;
    int file, expected = 0;

    memcpy(&n, id->internal, sizeof(n));
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", n.process, n.file);
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    l = map(file, world);
    (void)close(file);
    if (l == NULL || l->number == n.number) {
        if (l != NULL && !atomic_compare_exchange_strong(&l->world, &expected, world) && expected != world)
            cuda_double_misused("ranks that do not agree on how many they are");
        return l;
    }
    double_link_leave(l, world);
    return NULL;
}

void double_link_leave(double_link *l, int world) { (void)munmap(l, size_of(world)); }

/* ---- messages ---------------------------------------------------------------------------------------------------- */
static bool ready(const double_transfer *t)
{
    uint64_t filled = atomic_load(&t->channel->filled), emptied = atomic_load(&t->channel->emptied);

    return !t->ended && (t->sends ? filled == emptied : filled != emptied);
}

/* A send has ended when all of it was received. */
static void send_piece(double_transfer *t)
{
    double_channel *c = t->channel;

    if (t->begun && t->done == t->letter.bytes) {
        t->ended = true;
        return;
    }
    c->letter = t->letter;
    c->bytes = t->letter.bytes - t->done < DOUBLE_PIECE ? t->letter.bytes - t->done : DOUBLE_PIECE;
    memcpy(c->data, t->at + t->done, c->bytes);
    t->done += c->bytes;
    t->begun = true;
    (void)atomic_fetch_add(&c->filled, 1);
}

static void receive_piece(double_transfer *t)
{
    double_channel *c = t->channel;
    size_t room = t->letter.bytes - t->done;

    if (memcmp(&c->letter, &t->letter, sizeof(t->letter)) != 0)
        cuda_double_misused(t->letter.kind != 0 ? "ranks that call different collectives"
                                                : "a send and a receive of different sizes");
    memcpy(t->at + t->done, c->data, c->bytes < room ? c->bytes : room);
    t->done += c->bytes < room ? c->bytes : room;
    t->ended = t->done == t->letter.bytes;
    (void)atomic_fetch_add(&c->emptied, 1);
}

/* Messages of one channel go one after the other. */
static bool is_next(const double_transfer *t, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (!t[i].ended && t[i].channel == t[index].channel) return false;
    return ready(&t[index]);
}

bool double_transfer_all(double_transfer *t, size_t count)
{
    bool moved = false;

    for (size_t i = 0; i < count; i++) {
        if (!is_next(t, i)) continue;
        if (!moved) cuda_double_open();
        moved = true;
        if (t[i].sends)
            send_piece(&t[i]);
        else
            receive_piece(&t[i]);
    }
    if (moved) cuda_double_close();
    return moved;
}
