/* tests/doubles/simt_parts.h -- what the files of the machinery behind simt_double.h share: simt_double.cpp starts
 * threads, blocks and launches, simt_warp_double.cpp does what threads do together. */
#pragma once

#include "simt_double.h"
#include "simt_fiber.h"
#include <vector>

namespace simt_double
{
enum { MAX_THREADS = 1024, MAX_WARPS = 32, MAX_SITES = 64 };
enum { AREA = 256 * 1024 }; /* for dynamic shared memory, and behind it for static */
enum waits { RUNS = 0, AT_BARRIER, AT_WARP, ENDED };
typedef const void *operands[3];

struct async_copy {
    void *to;
    const void *from;
    bool valid;
    unsigned group;
};

struct fiber {
    simt_stack *stack;
    uint3 index;
    unsigned lane, warp;
    waits state;
    fiber *next; /* in the queue of those that are ready, or wait */
    uint64_t in, out;
    unsigned from;
    const operands *matrix;
    void *result;
    unsigned group; /* of cp.async, that is being filled */
    std::vector<async_copy> copies;
};

/* Lanes that wait for each other: at most as many gatherings as there are lanes. */
struct gathering {
    unsigned mask, arrived;
    simt_kind kind;
};
struct warp {
    unsigned alive, gathering_count;
    gathering gatherings[32];
};
struct queue {
    fiber *first, *last;
};

struct engine {
    simt_stack host = {};
    simt_stack *running = &host, *came_from = nullptr;
    std::vector<simt_stack *> idle;
    unsigned stacks = 0;
    std::vector<fiber> fibers;
    fiber *now = nullptr;
    warp warps[MAX_WARPS];
    queue ready = {nullptr, nullptr}, barrier = {nullptr, nullptr};
    unsigned threads = 0, started = 0, alive = 0, at_barrier = 0;
    const simt_launch *launch = nullptr;
    simt_place place = {};
    struct {
        const void *key;
        size_t at, bytes;
    } sites[MAX_SITES];
    unsigned site_count = 0;
    size_t static_used = 0, static_end = 0; /* without the fences, and with them */
    bool reverse = false;
    char *shared = nullptr; /* dynamic, and behind it static */

    engine();
    ~engine();
    void run(const simt_launch *l);
    void run_block(void);
    void check_fences(void);
    void start(fiber *f);
    void end(fiber *f);
    void wait(void);
    void hand_on(bool for_good);
    void go(simt_stack *to, bool for_good);
    void release_barrier(void);
    void complete(warp *w, gathering *m);
};

/* The engine of the launch that this thread of the host runs; ends the program where it runs none. */
engine *inside(const char *what);
[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *format, ...);
void finish_copies(fiber *f, unsigned before);

static inline void push(queue *q, fiber *f)
{
    f->next = nullptr;
    if (q->first == nullptr)
        q->first = f;
    else
        q->last->next = f;
    q->last = f;
}

static inline fiber *pop(queue *q)
{
    fiber *f = q->first;

    if (f != nullptr) q->first = f->next;
    return f;
}
} // namespace simt_double
