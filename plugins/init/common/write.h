/* init/common/write.h -- a text into a file that ranks read. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

/* All of it, also where the system takes a part at a time; false: errno says why. */
static inline bool write_all(int fd, const char *text, size_t length, off_t at)
{
    while (length > 0) {
        ssize_t n = pwrite(fd, text, length, at);

        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; /* takes nothing and gives no reason: as if it were full */
        if (n <= 0) return false;
        text += n;
        at += n;
        length -= (size_t)n;
    }
    return true;
}
