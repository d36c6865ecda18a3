/* tests/unit/init/test_init_env.c -- init method env://: each launcher's variables, and what of them is missing or
 * wrong. */
#include "support/environment_util.h"
#include "support/group_util.h"
#include "plugins/init/env/env.h"
#include <dlfcn.h>

static const ddp_init_ops *load(void)
{
    static const ddp_plugin *desc;
    void *so = desc != NULL ? NULL : dlopen(DDP_BUILDDIR "/.libs/init_env.so", RTLD_NOW | RTLD_LOCAL);

    if (desc == NULL && so == NULL) fail_msg("%s", dlerror());
    if (desc == NULL) desc = dlsym(so, DDP_PLUGIN_SYMBOL);
    assert_non_null(desc);
    assert_int_equal(desc->option_count, 0);
    return desc->ops;
}

/* ---- where rank 0 is, and who we are ----------------------------------------------------------------------------- */
#define TORCH "RANK=1 WORLD_SIZE=4 "
#define STEP  "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_ID=1000 SLURM_STEP_ID=2 "
#define OMPI  "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "

static void test_endpoints(void **state)
{
    static const struct {
        const char *variables;
        int32_t rank, world;
        const char *listen, *find;
    } cases[] = {
        {TORCH "MASTER_ADDR=192.0.2.7 MASTER_PORT=29500", 1, 4, "192.0.2.7:29500", "192.0.2.7:29500"},
        {TORCH "MASTER_ADDR=2001:db8::7 MASTER_PORT=1", 1, 4, "[2001:db8::7]:1", "[2001:db8::7]:1"},
        {"MASTER_ADDR=node1 MASTER_PORT=29500", -1, -1, "node1:29500", "node1:29500"},
        {"RANK=0 MASTER_ADDR=node1 MASTER_PORT=29500", 0, -1, "node1:29500", "node1:29500"},
        {TORCH "MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True", 1, 4, "node1:29501",
         "node1:29501"},
        {TORCH "MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=False", 1, 4, "node1:29500",
         "node1:29500"},
        {TORCH OMPI "MASTER_ADDR=node1 MASTER_PORT=29500", 1, 4, "node1:29500", "node1:29500"},
        {OMPI "MASTER_ADDR=node1 MASTER_PORT=29500", 1, 2, "node1:29500", "node1:29500"},
        {OMPI "MASTER_PORT=29500", 1, 2, "127.0.0.1:29500", "127.0.0.1:29500"},
        {"PMI_RANK=0 PMI_SIZE=3 MASTER_ADDR=node1 MASTER_PORT=29500", 0, 3, "node1:29500", "node1:29500"},
        {STEP "SLURM_STEP_NODELIST=192.0.2.[07-09]", 3, 4, "192.0.2.07:51002", "192.0.2.07:51002"},
        {STEP "SLURM_STEP_NODELIST=node[07-09] SLURM_STEP_NUM_NODES=1", 3, 4, "127.0.0.1:51002", "127.0.0.1:51002"},
        {STEP "SLURM_JOB_NODELIST=node7", 3, 4, "127.0.0.1:51002", "127.0.0.1:51002"},
        {STEP "SLURM_STEP_NODELIST=192.0.2.7,192.0.2.8 MASTER_PORT=4000", 3, 4, "192.0.2.7:4000", "192.0.2.7:4000"},
        {STEP "SLURM_STEP_NODELIST=a,b MASTER_ADDR=192.0.2.9", 3, 4, "192.0.2.9:51002", "192.0.2.9:51002"},
        /* PMI within a step of Slurm */
        {STEP "PMI_RANK=3 PMI_SIZE=4 SLURM_STEP_NODELIST=192.0.2.7,b", 3, 4, "192.0.2.7:51002", "192.0.2.7:51002"},
        /* a name that is a loopback address here: the core finds the address that others reach */
        {STEP "SLURM_STEP_NODELIST=127.0.1.1,node8", 3, 4, ":51002", "127.0.1.1:51002"},
    };

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        char at[DDP_ENDPOINT_MAX] = "", found[DDP_ENDPOINT_MAX] = "";
        int32_t rank = -2, world = -2;
        ddp_init *init = NULL;
        ddp_err err = {0};

        environment_set(cases[i].variables);
        if (load()->open(NULL, NULL, "env://", &init, &err) != DDP_OK) fail_msg("%s: %s", cases[i].variables, err.msg);
        assert_int_equal(load()->identity(init, &rank, &world, &err), DDP_OK);
        assert_int_equal(load()->listen_at(init, at, &err), DDP_OK);
        assert_int_equal(load()->publish(init, at, &err), DDP_OK);
        assert_int_equal(load()->find(init, found, &err), DDP_OK);
        if (rank != cases[i].rank || world != cases[i].world)
            fail_msg("%s: rank %d of %d", cases[i].variables, rank, world);
        assert_string_equal(at, cases[i].listen);
        assert_string_equal(found, cases[i].find);
        load()->close(init);
    }
}

static void test_mistakes(void **state)
{
    static const struct {
        const char *variables, *why;
    } cases[] = {
        {"", "MASTER_ADDR is not set"},
        {TORCH, "MASTER_ADDR is not set"},
        {TORCH "MASTER_PORT=29500", "MASTER_ADDR is not set"},
        {TORCH "MASTER_ADDR=node1", "MASTER_ADDR=node1 is set, but MASTER_PORT is not"},
        {TORCH "MASTER_ADDR=node1 MASTER_PORT=0", "MASTER_PORT=0, which is no number from 1 to 65535"},
        {TORCH "MASTER_ADDR=node1 MASTER_PORT=29500+", "MASTER_PORT=29500 , which is no number"},
        {TORCH "MASTER_ADDR=[::1] MASTER_PORT=29500", "MASTER_ADDR=[::1], which is no host name"},
        {"RANK=-1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "RANK=-1, which is no number from 0 to 65535"},
        {"RANK=0 WORLD_SIZE=99999999999999999999 MASTER_ADDR=a MASTER_PORT=1", "WORLD_SIZE=99999999999999999999"},
        {"RANK=4 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1", "RANK=4 and WORLD_SIZE=4"},
        {"OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=x"},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1", "-x MASTER_ADDR=HOST"},
        {OMPI, "session folder"},
        {OMPI "PMIX_SERVER_TMPDIR=/dev/null/none PMIX_NAMESPACE=7", "session folder"},
        {"PMI_RANK=0 PMI_SIZE=2", "-genv MASTER_ADDR HOST"},
        {STEP, "SLURM_STEP_NODELIST and SLURM_JOB_NODELIST are not set"},
        {STEP "SLURM_STEP_NODELIST=node[", "SLURM_STEP_NODELIST=node[ is no list of nodes"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=a,b", "SLURM_JOB_ID is not set"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=a,b SLURM_JOB_ID=x", "SLURM_JOB_ID=x"},
    };
    ddp_err err = {0};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        ddp_init *init = NULL;

        environment_set(cases[i].variables);
        if (load()->open(NULL, NULL, "env://", &init, &err) != DDP_ERR_CONFIG)
            fail_msg("%s: no error", cases[i].variables);
        assert_null(init);
        assert_contains(err.msg, cases[i].why);
    }
    environment_set(TORCH "MASTER_ADDR=node1 MASTER_PORT=29500");
    assert_int_equal(load()->open(NULL, NULL, "env://node1", &(ddp_init *){NULL}, &err), DDP_ERR_CONFIG);
    assert_contains(err.msg, "nothing follows env://");
}

/* Ranks of mpirun on one host find each other through a file in the job's own folder. */
static void test_session_folder(void **state)
{
    char folder[] = "/tmp/ddpengine-unit-XXXXXX", variables[512], at[DDP_ENDPOINT_MAX] = "",
         found[DDP_ENDPOINT_MAX] = "";
    ddp_init *a, *b;
    ddp_err err = {0};

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(variables, sizeof(variables), OMPI "PMIX_SERVER_TMPDIR=%s PMIX_NAMESPACE=77", folder);
    environment_set(variables);
    assert_int_equal(load()->open(NULL, NULL, "env://", &a, &err), DDP_OK);
    assert_int_equal(load()->open(NULL, NULL, "env://", &b, &err), DDP_OK);
    assert_int_equal(load()->listen_at(a, at, &err), DDP_OK);
    assert_string_equal(at, "127.0.0.1:0");
    assert_int_equal(load()->find(b, found, &err), DDP_IN_PROGRESS);
    assert_int_equal(load()->publish(a, "127.0.0.1:4711", &err), DDP_OK);
    assert_int_equal(load()->find(b, found, &err), DDP_OK);
    assert_string_equal(found, "127.0.0.1:4711");
    load()->close(a);
    load()->close(b);
    assert_int_equal(rmdir(folder), 0); /* nothing is left in it */
}

/* ---- Slurm's texts ----------------------------------------------------------------------------------------------- */
static void test_node_lists(void **state)
{
    static const struct {
        const char *list, *first;
    } good[] = {{"node7", "node7"},
                {"node7,node9", "node7"},
                {"node[01-04,7]", "node01"},
                {"node[7]", "node7"},
                {"node[12,14-16],login", "node12"},
                {"rack[1-2]n[03-04,7]-ib.example", "rack1n03-ib.example"},
                {"a-b[009-100]", "a-b009"}};
    static const char *const bad[] = {"", ",", "node[", "node[]", "node[x]", "node]", "node[1", "no de", "[", "a:b"};
    char host[32];

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(good); i++) {
        if (!slurm_first_host(good[i].list, host, sizeof(host))) fail_msg("%s", good[i].list);
        assert_string_equal(host, good[i].first);
    }
    for (size_t i = 0; i < DDP_COUNT(bad); i++)
        if (slurm_first_host(bad[i], host, sizeof(host))) fail_msg("\"%s\" is taken for %s", bad[i], host);
    assert_false(slurm_first_host("a-name-that-is-longer-than-the-buffer-is", host, sizeof(host)));
    assert_false(slurm_first_host("node[00000000000000000000000000000000000001]", host, sizeof(host)));
}

static void test_ports(void **state)
{
    (void)state;
    for (uint64_t job = 0; job < 100000; job += 7)
        for (uint64_t step = 0; step < 3; step++) {
            assert_in_range(slurm_port(job, step), 20000, 59999);
            assert_int_not_equal(slurm_port(job, step), slurm_port(job + 1, step));
            assert_int_not_equal(slurm_port(job, step), slurm_port(job, step + 1));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_endpoints),  cmocka_unit_test(test_mistakes), cmocka_unit_test(test_session_folder),
        cmocka_unit_test(test_node_lists), cmocka_unit_test(test_ports),
    };

    return cmocka_run_group_tests_name("init env", tests, NULL, NULL);
}
