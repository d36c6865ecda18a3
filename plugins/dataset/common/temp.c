/* plugins/dataset/common/temp.c -- see temp.h. */
#include "temp.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *folder(void)
{
    const char *name = getenv("TMPDIR");

    return name != NULL && name[0] != '\0' ? name : "/tmp";
}

static ddp_status fail_errno(const temp_file *t, const char *what, ddp_err *err)
{
    int number = errno;
    ddp_status status = ddp_fail(
        err, DDP_ERR_DATA, "dataset %s: \"%s\" is unpacked to a file in %s, which %s: %s; set TMPDIR to another folder",
        t->file.plugin, t->file.path, folder(), what, strerror(number));

    err->sys_errno = number;
    return status;
}

/* O_TMPFILE where the file system has it. */
static int open_unnamed(void)
{
    char name[4096];
    int fd = open(folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
    if ((size_t)snprintf(name, sizeof(name), "%s/ddpengine-XXXXXX", folder()) >= sizeof(name)) return -1;
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0) (void)unlink(name);
    return fd;
}

ddp_status temp_open(temp_file *t, const char *plugin, const char *source, uint64_t limit, ddp_err *err)
{
    *t = (temp_file){.file = {.plugin = plugin, .path = strdup(source), .fd = -1}, .limit = limit};
    if (t->file.path == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset %s: out of memory", plugin);
    t->file.fd = open_unnamed();
    if (t->file.fd >= 0) return DDP_OK;
    (void)fail_errno(t, "cannot be made", err);
    free(t->file.path);
    *t = (temp_file){.file = {.fd = -1}};
    return err->status;
}

ddp_status temp_write(temp_file *t, const void *data, size_t size, const char *advice, ddp_err *err)
{
    size_t done = 0;

    if (size > t->limit - t->file.size)
        return ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\" unpacks to more than the %" PRIu64 " bytes that %s",
                        t->file.plugin, t->file.path, t->limit, advice);
    while (done < size) {
        ssize_t n = write(t->file.fd, (const char *)data + done, size - done);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(t, "cannot be written", err);
        done += (size_t)n;
    }
    t->file.size += size;
    return DDP_OK;
}

void temp_close(temp_file *t) { data_file_close(&t->file); }
