/* What the tests of core/plugin share: where the fixtures are, temporary folders, and asserting parts of a message. */
#pragma once

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"
#include "plugin/internal.h"

#include <cmocka.h> /* last: its fail() is a macro, and graph.h has a member of that name */

#define FIXTURES DDP_BUILDDIR "/tests/fixtures/plugins"

/* Every part must stand in the message, which is one line. */
static inline void assert_says(const ddp_err *err, const char *const *parts)
{
    assert_null(strchr(err->msg, '\n'));
    for (; *parts != NULL; parts++)
        if (strstr(err->msg, *parts) == NULL) fail_msg("\"%s\" is not in: %s", *parts, err->msg);
}
#define SAYS(err, ...) assert_says(err, (const char *const[]){__VA_ARGS__, NULL})

static inline char *make_folder(void)
{
    const char *base = getenv("TMPDIR");
    char *folder = NULL;

    assert_true(asprintf(&folder, "%s/ddp-plugin-XXXXXX", base != NULL ? base : "/tmp") > 0);
    assert_non_null(mkdtemp(folder));
    return folder;
}

static inline void remove_tree(char *folder)
{
    char command[PATH_MAX + 32];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    free(folder);
}

static inline void write_file(const char *path, const void *data, size_t length)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0755), 0);
}

static inline void copy_file(const char *from, const char *to)
{
    ddp_err err;
    char *data;
    size_t length;

    assert_int_equal(ddp_file_read(from, 256u << 20, &data, &length, &err), DDP_OK);
    write_file(to, data, length);
    free(data);
}

/* A registry whose [plugins] path is one folder. */
static inline ddp_registry *open_registry(ddp_log *log, const char *path)
{
    const ddp_list paths = {1, &path};
    ddp_registry *r;
    ddp_err err;

    assert_int_equal(ddp_registry_open(log, &paths, &r, &err), DDP_OK);
    return r;
}

static inline ddp_loaded *load(ddp_registry *r, uint32_t kind, const char *name)
{
    ddp_loaded *p = NULL;
    ddp_err err;

    if (ddp_registry_load(r, kind, name, &p, &err) != DDP_OK) fail_msg("%s", err.msg);
    return p;
}
