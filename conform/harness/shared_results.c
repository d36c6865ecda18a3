/* conform/harness/shared_results.c -- the shared memory of a run of ranks; see shared_results.h. */
#include "conform/harness/shared_results.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ddp_status map_fd(int fd, size_t bytes, ddp_shared_results **out, ddp_err *err)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED) return ddp_fail_errno(err, "cannot map %zu bytes of shared memory", bytes);
    *out = p;
    return DDP_OK;
}

ddp_status ddp_shared_results_create(uint32_t world, const ddp_case *cases, uint32_t count, ddp_shared_results **out,
                                     int *fd, ddp_err *err)
{
    size_t head = ddp_round_up(sizeof(ddp_shared_results) + count * sizeof(*cases), 64);
    size_t bytes = head + (size_t)world * count * sizeof(ddp_check_result);
    ddp_shared_results *s = NULL;
    int file = memfd_create("ddpengine-conform", MFD_CLOEXEC);

    if (file < 0) return ddp_fail_errno(err, "cannot create a memory file");
    if (ftruncate(file, (off_t)bytes) != 0) {
        (void)ddp_fail_errno(err, "cannot make the memory file %zu bytes long", bytes);
        (void)close(file);
        return err->status;
    }
    if (map_fd(file, bytes, &s, err) != DDP_OK) {
        (void)close(file);
        return err->status;
    }
    s->world = world;
    s->case_count = count;
    s->results_offset = head;
    s->bytes = bytes;
    memcpy(s->cases, cases, count * sizeof(*cases));
    *out = s;
    *fd = file;
    return DDP_OK;
}

ddp_status harness_shared_results_map(const char *path, ddp_shared_results **out, ddp_err *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    ddp_status status;

    if (fd < 0) return ddp_fail_errno(err, "cannot open %s, which the parent shares", path);
    if (fstat(fd, &st) != 0 || st.st_size < (off_t)sizeof(ddp_shared_results))
        status = ddp_fail(err, DDP_ERR_INVALID, "%s is not what a parent shares with its ranks", path);
    else
        status = map_fd(fd, (size_t)st.st_size, out, err);
    (void)close(fd);
    return status;
}

void ddp_shared_results_free(ddp_shared_results *s, int fd)
{
    if (s != NULL) (void)munmap(s, s->bytes);
    if (fd >= 0) (void)close(fd);
}

ddp_check_result *ddp_shared_results_get(ddp_shared_results *s, uint32_t rank, uint32_t c)
{
    return (ddp_check_result *)((char *)s + s->results_offset) + (size_t)rank * s->case_count + c;
}

/* Whether all ranks that have hashed their output have the same. */
static bool same_bits(ddp_shared_results *s, uint32_t c, char *text)
{
    uint32_t first = s->world;

    for (uint32_t r = 0; r < s->world; r++) {
        const ddp_check_result *v = ddp_shared_results_get(s, r, c);

        if (!v->hashed) continue;
        if (first == s->world) first = r;
        if (v->hash == ddp_shared_results_get(s, first, c)->hash) continue;
        (void)snprintf(text, 256, "ranks %u and %u have results of different bits", first, r);
        return false;
    }
    return true;
}

int ddp_shared_results_check(ddp_shared_results *s, uint32_t c, char *text)
{
    const ddp_check_result *first = NULL; /* that is not a pass: what others say after it is often an echo */
    bool all = true;

    text[0] = '\0';
    for (uint32_t r = 0; r < s->world; r++) {
        const ddp_check_result *v = ddp_shared_results_get(s, r, c);
        int state = atomic_load(&v->state);

        all = all && state == DDP_PASSED;
        if ((state != DDP_FAILED && state != DDP_SKIPPED) || (first != NULL && first->order <= v->order)) continue;
        first = v;
        if (state == DDP_FAILED)
            (void)snprintf(text, 256, "rank %u: %.231s", r, v->text);
        else
            ddp_copy_text(text, 256, v->text);
    }
    if (first != NULL) return atomic_load(&first->state);
    if (!all) return DDP_NOT_CHECKED;
    return same_bits(s, c, text) ? DDP_PASSED : DDP_FAILED;
}
