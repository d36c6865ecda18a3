/* conform/harness/leaks.c -- the same a hundred times: threads, descriptors and memory stay what they were.
 *
 * The second half decides, and for memory both of its quarters: what leaks does so every time, while a library that
 * allocates when it first needs to comes to an end with it. */
#include "conform/harness/leaks.h"
#include <dirent.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WARM = 10, /* what libraries allocate once */
    OPENS = 100,
    SLOW_MS = 100, /* where the second one takes longer, alone in its process: */
    SLOW_OPENS = 20,
    SLOWEST_MS = 1000, /* and longer than that: a dataset that reads its files, say */
    SLOWEST_WARM = 2,
    SLOWEST_OPENS = 8,
    ROUNDS = 3,    /* of opens, where memory seems to leak: what malloc keeps of threads that ended does not go on */
    PARTS = 4,     /* after each of which it is measured: a divisor of the above */
    END_MS = 1000, /* that a thread which has been joined may still be seen */
    END_TICK_US = 1000,
    HEAP_SLACK = 4096, /* bytes, however many opens */
    MAP_BYTES = 16384  /* per open */
};

typedef struct usage {
    uint32_t threads, descriptors;
    size_t heap, mapped; /* bytes in use of malloc; of the address space */
} usage;

static uint32_t entries_of(const char *folder)
{
    DIR *d = opendir(folder);
    uint32_t n = 0;

    if (d == NULL) return 0;
    while (readdir(d) != NULL) n++;
    (void)closedir(d);
    return n;
}

static size_t mapped_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    char line[128] = "";

    if (f == NULL) return 0;
    if (fgets(line, sizeof(line), f) == NULL) line[0] = '\0';
    (void)fclose(f);
    return strtoull(line, NULL, 10) * 4096;
}

static usage measure(void)
{
    struct mallinfo2 m = mallinfo2();

    return (usage){.threads = entries_of("/proc/self/task"),
                   .descriptors = entries_of("/proc/self/fd"),
                   .heap = m.uordblks + m.hblkhd,
                   .mapped = mapped_bytes()};
}

/* The kernel takes a thread off its list a moment after pthread_join has returned. */
static usage measure_after(const usage *before)
{
    int64_t deadline = ddp_now_ms() + END_MS;

    while (entries_of("/proc/self/task") > before->threads && ddp_now_ms() < deadline) (void)usleep(END_TICK_US);
    return measure();
}

static size_t growth(size_t from, size_t to) { return to > from ? to - from : 0; }

/* What leaks does so in each of the last two quarters; `allowed` in one. */
static bool leaks(const size_t at[PARTS + 1], size_t allowed)
{
    return growth(at[PARTS - 2], at[PARTS - 1]) > allowed && growth(at[PARTS - 1], at[PARTS]) > allowed;
}

static bool heap_leaks(const usage at[PARTS + 1], size_t allowed)
{
    size_t heap[PARTS + 1];

    for (uint32_t i = 0; i <= PARTS; i++) heap[i] = at[i].heap;
    return leaks(heap, allowed);
}

static void compare(ddp_rank_process *a, const usage at[PARTS + 1], uint32_t opens, size_t allowed)
{
    uint32_t half = opens / 2, part = opens / PARTS;
    size_t mapped[PARTS + 1];
    const usage *middle = &at[PARTS / 2], *end = &at[PARTS];

    for (uint32_t i = 0; i <= PARTS; i++) mapped[i] = at[i].mapped;
    (void)(DDP_EXPECT(a, end->descriptors <= middle->descriptors, "%u descriptors more after the last %u of %u opens",
                      end->descriptors - middle->descriptors, half, opens) &&
           DDP_EXPECT(a, end->threads <= middle->threads, "%u threads more after the last %u of %u opens",
                      end->threads - middle->threads, half, opens) &&
           DDP_EXPECT(a, DDP_SANITIZED || !heap_leaks(at, HEAP_SLACK + part * allowed),
                      "%zu KiB of memory more after the last %u of %u opens", growth(middle->heap, end->heap) >> 10,
                      half, opens) &&
           DDP_EXPECT(a, DDP_SANITIZED || !leaks(mapped, (size_t)part * MAP_BYTES),
                      "%zu KiB of address space more after the last %u of %u opens",
                      growth(middle->mapped, end->mapped) >> 10, half, opens));
}

/* How often, by what the second one took: the first may load and start what stays. */
static void choose(int64_t ms, uint32_t *warm, uint32_t *opens)
{
    if (ms <= SLOW_MS) return;
    *warm = ms > SLOWEST_MS ? SLOWEST_WARM : WARM;
    *opens = ms > SLOWEST_MS ? SLOWEST_OPENS : SLOW_OPENS;
}

/* `opens` times from number `first` on, measured PARTS + 1 times. */
static bool measure_opens(ddp_rank_process *a, bool (*once)(ddp_rank_process *a, uint32_t i), uint32_t first,
                          uint32_t opens, usage at[PARTS + 1])
{
    static const char *const names[] = {"warm", "quarter", "half", "most", "opened"};

    for (uint32_t i = 0, taken = 0; i <= opens; i++) {
        if (i == taken * (opens / PARTS)) {
            if (a->group != NULL && !ddp_rank_process_barrier(a, names[taken])) return false;
            at[taken] = taken == 0 ? measure() : measure_after(&at[0]);
            taken++;
        }
        if (i < opens && !once(a, first + i)) return false;
    }
    return true;
}

void ddp_leaks_check(ddp_rank_process *a, bool (*once)(ddp_rank_process *a, uint32_t i), size_t heap)
{
    uint32_t warm = WARM, opens = OPENS, first;
    usage at[PARTS + 1] = {{0}};

    for (first = 0; first < warm; first++) {
        int64_t begin = ddp_now_ms();

        if (!once(a, first)) return;
        if (first == 1 && a->group == NULL && a->world == 1) choose(ddp_now_ms() - begin, &warm, &opens);
    }
    for (uint32_t round = 1; round <= ROUNDS; round++, first += opens) {
        if (!measure_opens(a, once, first, opens, at)) return;
        /* ranks of a group would have to agree */
        if (a->group != NULL || !heap_leaks(at, HEAP_SLACK + opens / PARTS * heap)) break;
    }
    compare(a, at, opens, heap);
}
