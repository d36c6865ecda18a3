/* test_available.c -- how much memory is left, and how many processors are allowed, from files as Linux has them: of
 * the host, of a control group, of the groups around it; and what is not there, or is no number. */
#include "support/checkpoint_util.h"

#include <math.h>

static void put(const struct place *p, const char *path, const char *text)
{
    char folder[1024];
    ddp_err err = {0};

    (void)snprintf(folder, sizeof(folder), "%s", in(p, path));
    *strrchr(folder, '/') = '\0';
    assert_int_equal(ddp_make_folders(folder, &err), DDP_OK);
    spill(in(p, path), text, strlen(text));
}

static void host_and_groups(void **state)
{
    struct place *p = *state;

    assert_true(base_memory_available_at(p->dir) == UINT64_MAX);
    put(p, "proc/meminfo", "MemTotal:       8000 kB\nMemFree:     100 kB\nMemAvailable:    2000 kB\nBuffers: 1 kB\n");
    assert_int_equal(base_memory_available_at(p->dir), 2000 * 1024);
    put(p, "proc/self/cgroup", "12:memory:/old\n0::/job/step\n");
    assert_int_equal(base_memory_available_at(p->dir), 2000 * 1024); /* no such files: version 1, or no groups */
    put(p, "sys/fs/cgroup/job/step/memory.max", "max\n");
    put(p, "sys/fs/cgroup/job/step/memory.current", "700000\n");
    assert_int_equal(base_memory_available_at(p->dir), 2000 * 1024);
    put(p, "sys/fs/cgroup/job/memory.max", "1000000\n");
    put(p, "sys/fs/cgroup/job/memory.current", "900000\n");
    assert_int_equal(base_memory_available_at(p->dir), 100000);
    put(p, "sys/fs/cgroup/job/memory.stat", "anon 500000\nfile 300000\nkernel 1\n"); /* a cache gives way */
    assert_int_equal(base_memory_available_at(p->dir), 400000);
    put(p, "sys/fs/cgroup/job/step/memory.max", "710000\n");
    assert_int_equal(base_memory_available_at(p->dir), 10000);
    put(p, "sys/fs/cgroup/job/step/memory.max", "600000\n"); /* lowered below what is used */
    assert_int_equal(base_memory_available_at(p->dir), 0);
    put(p, "proc/self/cgroup", "0::/\n"); /* within a container */
    put(p, "sys/fs/cgroup/memory.max", "5000\n");
    put(p, "sys/fs/cgroup/memory.current", "1000\n");
    assert_int_equal(base_memory_available_at(p->dir), 4000);
    assert_true(ddp_memory_available() > 0);
}

static void quota_of_processors(void **state)
{
    struct place *p = *state;

    assert_true(isinf(base_processors_allowed_at(p->dir)));
    put(p, "proc/self/cgroup", "0::/job/step\n");
    put(p, "sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    assert_true(isinf(base_processors_allowed_at(p->dir)));
    put(p, "sys/fs/cgroup/job/cpu.max", "150000 100000\n"); /* of the group around it */
    assert_float_equal(base_processors_allowed_at(p->dir), 1.5, 1e-9);
    put(p, "sys/fs/cgroup/job/step/cpu.max", "50000 100000\n");
    assert_float_equal(base_processors_allowed_at(p->dir), 0.5, 1e-9);
    put(p, "sys/fs/cgroup/job/step/cpu.max", "50000 0\n"); /* no number that can be used */
    assert_float_equal(base_processors_allowed_at(p->dir), 1.5, 1e-9);
    assert_true(ddp_processors_allowed() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(host_and_groups, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(quota_of_processors, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
