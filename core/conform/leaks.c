/* conform/leaks.c -- the same a hundred times: threads, descriptors and memory stay what they were. */
#include "conform/internal.h"
#include <dirent.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WARM = 10, /* what libraries allocate once */
    OPENS = 100,
    SLOW_MS = 100, /* where one takes longer, alone in its process: */
    SLOW_WARM = 2,
    SLOW_OPENS = 10,
    END_MS = 1000, /* that a thread which has been joined may still be seen */
    END_TICK_US = 1000,
    HEAP_SLACK = 16384, /* bytes, however many opens */
    MAP_BYTES = 16384   /* per open */
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

static void compare(ddp_actor *a, const usage *before, const usage *after, uint32_t opens, size_t allowed)
{
    size_t heap = after->heap > before->heap ? after->heap - before->heap : 0;
    size_t mapped = after->mapped > before->mapped ? after->mapped - before->mapped : 0;

    (void)(DDP_EXPECT(a, after->descriptors <= before->descriptors, "%u descriptors more after %u opens",
                      after->descriptors - before->descriptors, opens) &&
           DDP_EXPECT(a, after->threads <= before->threads, "%u threads more after %u opens",
                      after->threads - before->threads, opens) &&
           DDP_EXPECT(a, DDP_SANITIZED || heap <= HEAP_SLACK + opens * allowed, "%zu KiB of memory more after %u opens",
                      heap >> 10, opens) &&
           DDP_EXPECT(a, DDP_SANITIZED || mapped <= (size_t)opens * MAP_BYTES,
                      "%zu KiB of address space more after %u opens", mapped >> 10, opens));
}

void ddp_leaks_check(ddp_actor *a, bool (*once)(ddp_actor *a, uint32_t i), size_t heap)
{
    int64_t begin = ddp_now_ms();
    uint32_t warm = WARM, opens = OPENS;
    usage before = {0}, after;

    for (uint32_t i = 0; i < warm + opens; i++) {
        if (i == warm && a->group != NULL && !ddp_actor_meet(a, "warm")) return;
        if (i == warm) before = measure();
        if (!once(a, i)) return;
        if (i == 0 && a->group == NULL && a->world == 1 &&
            ddp_now_ms() - begin > SLOW_MS) { /* a dataset that reads its files, say */
            warm = SLOW_WARM;
            opens = SLOW_OPENS;
        }
    }
    if (a->group != NULL && !ddp_actor_meet(a, "opened")) return;
    after = measure_after(&before);
    compare(a, &before, &after, opens, heap);
}
