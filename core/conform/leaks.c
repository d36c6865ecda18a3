/* conform/leaks.c -- the same a hundred times: threads, descriptors and memory stay what they were.
 *
 * The second half decides, against the first: what leaks does so every time, while a library that allocates when it first needs to
 * comes to an end with it. */
#include "conform/internal.h"
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
    SLOWEST_OPENS = 10,
    END_MS = 1000, /* that a thread which has been joined may still be seen */
    END_TICK_US = 1000,
    HEAP_SLACK = 8192, /* bytes, however many opens */
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

/* More than is allowed in the second half, and no less than half of what it was in the first. */
static bool leaks(size_t first, size_t second, size_t allowed) { return second > allowed && second >= first / 2; }

static void compare(ddp_actor *a, const usage at[3], uint32_t opens, size_t allowed)
{
    uint32_t half = opens / 2, descriptors = (uint32_t)growth(at[1].descriptors, at[2].descriptors),
             threads = (uint32_t)growth(at[1].threads, at[2].threads);
    size_t heap = growth(at[1].heap, at[2].heap), mapped = growth(at[1].mapped, at[2].mapped);

    (void)(DDP_EXPECT(a, !leaks(growth(at[0].descriptors, at[1].descriptors), descriptors, 0),
                      "%u descriptors more after the last %u of %u opens", descriptors, half, opens) &&
           DDP_EXPECT(a, !leaks(growth(at[0].threads, at[1].threads), threads, 0),
                      "%u threads more after the last %u of %u opens", threads, half, opens) &&
           DDP_EXPECT(a, DDP_SANITIZED || !leaks(growth(at[0].heap, at[1].heap), heap, HEAP_SLACK + half * allowed),
                      "%zu KiB of memory more after the last %u of %u opens", heap >> 10, half, opens) &&
           DDP_EXPECT(a, DDP_SANITIZED || !leaks(growth(at[0].mapped, at[1].mapped), mapped, (size_t)half * MAP_BYTES),
                      "%zu KiB of address space more after the last %u of %u opens", mapped >> 10, half, opens));
}

/* How often, by what the second one took: the first may load and start what stays. */
static void choose(int64_t ms, uint32_t *warm, uint32_t *opens)
{
    if (ms <= SLOW_MS) return;
    *warm = ms > SLOWEST_MS ? SLOWEST_WARM : WARM;
    *opens = ms > SLOWEST_MS ? SLOWEST_OPENS : SLOW_OPENS;
}

void ddp_leaks_check(ddp_actor *a, bool (*once)(ddp_actor *a, uint32_t i), size_t heap)
{
    static const char *const names[] = {"warm", "half", "opened"};
    uint32_t warm = WARM, opens = OPENS, taken = 0;
    usage at[3] = {{0}};

    for (uint32_t i = 0; i <= warm + opens; i++) {
        int64_t begin = ddp_now_ms();

        if (i == warm + taken * (opens / 2)) {
            if (a->group != NULL && !ddp_actor_meet(a, names[taken])) return;
            at[taken] = taken == 0 ? measure() : measure_after(&at[0]);
            taken++;
        }
        if (i == warm + opens) break;
        if (!once(a, i)) return;
        if (i == 1 && a->group == NULL && a->world == 1) choose(ddp_now_ms() - begin, &warm, &opens);
    }
    compare(a, at, opens, heap);
}
