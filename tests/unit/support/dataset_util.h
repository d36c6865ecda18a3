/* tests/unit/support/dataset_util.h -- for the tests of datasets: files in a folder of the test, and a plugin that
 * opens them or says why not. */
#pragma once

#include "support/data_util.h"
#include <ddpengine/dataset.h>
#include <errno.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[256];

/* ---- files ------------------------------------------------------------------------------------------------------- */
static inline const char *path_of(const char *name)
{
    static char path[2][512];
    static int turn;

    turn = !turn;
    (void)snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
    return path[turn];
}

static inline void write_file(const char *name, const void *data, size_t size)
{
    FILE *f = fopen(path_of(name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline void change_byte(const char *name, long at, unsigned char value)
{
    FILE *f = fopen(path_of(name), "r+b");

    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(value, f), value);
    assert_int_equal(fclose(f), 0);
}

static inline int set_up(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    (void)snprintf(folder, sizeof(folder), "%s/ddp-data-XXXXXX", tmp != NULL ? tmp : "/tmp");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static inline int tear_down(void **state)
{
    char command[300];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r '%s'", folder);
    return system(command);
}

/* ---- one plugin under test --------------------------------------------------------------------------------------- */
typedef struct subject {
    const ddp_plugin *plugin;
    const ddp_dataset_ops *ops;
    void *config;
} subject;

static inline subject begin(const char *name)
{
    subject s = {.plugin = plugin_open(name)};

    s.ops = s.plugin->ops;
    s.config = config_new(s.plugin);
    return s;
}

static inline void end(subject *s) { config_free(s->plugin, s->config); }

static inline ddp_dataset *open_ok(subject *s)
{
    ddp_dataset *d = NULL;
    ddp_err err = {0};

    if (s->ops->open(NULL, s->config, &d, &err) != DDP_OK) fail_msg("%s", err.msg);
    return d;
}

static inline void expect_parts(const ddp_err *err, const char *part, const char *other)
{
    if (strstr(err->msg, part) == NULL) fail_msg("\"%s\" lacks \"%s\"", err->msg, part);
    if (strstr(err->msg, other) == NULL) fail_msg("\"%s\" lacks \"%s\"", err->msg, other);
    assert_null(strchr(err->msg, '\n'));
}

static inline void expect_error(subject *s, ddp_status status, const char *part, const char *other)
{
    ddp_dataset *d = NULL;
    ddp_err err = {0};

    assert_int_equal(s->ops->open(NULL, s->config, &d, &err), status);
    assert_null(d);
    expect_parts(&err, part, other);
}

static inline uint64_t fingerprint(subject *s)
{
    ddp_dataset *d = open_ok(s);
    uint64_t mark = s->ops->fingerprint(d);

    s->ops->close(d);
    return mark;
}

/* The file is cut to `size` while it is open: samples before that come, `index` is an error that names it. */
static inline void expect_cut(subject *s, const char *name, off_t size, uint64_t index, void *first, void *second)
{
    ddp_dataset *d = open_ok(s);
    void *buffers[2] = {first, second};
    ddp_err err = {0};

    assert_int_equal(truncate(path_of(name), size), 0);
    assert_int_equal(s->ops->read(d, 0, 0, buffers, &err), DDP_OK);
    assert_int_equal(s->ops->read(d, index, 0, buffers, &err), DDP_ERR_DATA);
    expect_parts(&err, path_of(name), "Something has truncated it since");
    s->ops->close(d);
}

static inline void expect_no_sample(subject *s, const ddp_dataset *d, uint64_t index)
{
    ddp_err err = {0};

    assert_int_equal(s->ops->read(d, index, 0, (void *[2]){NULL, NULL}, &err), DDP_ERR_INVALID);
    expect_parts(&err, "there is no sample", s->plugin->name);
}
