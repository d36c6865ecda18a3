/* tests/unit/launch/test_identify.c -- who a process is: every source of rank and world, which one wins, and what
 * contradicts. */
#include "launch/identify.h"
#include "support/environment_util.h"
#include "net/nodes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h> /* last: it has a macro `fail` */

#define TORCH "RANK=1 WORLD_SIZE=4 "
#define OMPI  "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
#define PMI   "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=3 "
#define STEP  "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=1(x2),2 "
#define BATCH "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=9 "
#define SHELL "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 "

/* [group] holds `group`, lines separated by ';'. */
static ddp_status resolve(const char *variables, const char *group, int32_t nproc, ddp_launch *out, ddp_err *err)
{
    char path[] = "/tmp/ddpengine-unit-XXXXXX", text[1024];
    const ddp_args args = {.config_path = path, .nproc = nproc};
    int fd = mkstemp(path), length;
    ddp_config c;
    ddp_status status;

    assert_true(fd >= 0);
    length = snprintf(text, sizeof(text), "[group]\n%s\n[model]\nplugin = mlp\n[data]\nplugin = synthetic\n", group);
    for (char *at = text; *at != '\0'; at++)
        if (*at == ';') *at = '\n';
    assert_int_equal(write(fd, text, (size_t)length), length);
    (void)close(fd);
    environment_set(variables);
    status = ddp_config_load(path, NULL, 0, &c, err);
    assert_int_equal(unlink(path), 0);
    if (status != DDP_OK) fail_msg("%s", err->msg);
    status = ddp_launch_resolve(&args, &c, out, err);
    ddp_config_free(&c);
    return status;
}

static void test_sources(void **state)
{
    static const struct {
        const char *variables, *group;
        int32_t nproc;
        int32_t rank, world, processes, local_rank, local_size;
        const char *url;
    } cases[] = {
        /* the config and --nproc */
        {"", "", 0, 0, 1, 1, 0, 1, ""},
        {"", "", 3, 0, 3, 3, 0, 3, ""},
        {"", "rank=1;world_size=2;init_method=tcp://192.0.2.7:1", 0, 1, 2, 1, 0, 1, "tcp://192.0.2.7:1"},
        {"", "rank=1;world_size=2;init_method=tcp://127.0.0.1:1", 0, 1, 2, 1, 1, 2, "tcp://127.0.0.1:1"},
        {"", "rank=2;world_size=4;init_method=tcp://192.0.2.7:1", 2, 2, 4, 2, 0, 2, "tcp://192.0.2.7:1"},
        {"MASTER_ADDR=127.0.0.1", "rank=1;world_size=2;init_method=env://", 0, 1, 2, 1, 1, 2, "env://"},
        {"MASTER_ADDR=192.0.2.7", "rank=1;world_size=2;init_method=env://", 0, 1, 2, 1, 0, 1, "env://"},
        {"", "world_size=2;init_method=env://", 2, 0, 2, 2, 0, 2, "env://"},
        /* RANK means something only where it is asked for */
        {TORCH, "", 0, 0, 1, 1, 0, 1, ""},
        {TORCH, "rank=0;world_size=2;init_method=tcp://192.0.2.7:1", 0, 0, 2, 1, 0, 1, "tcp://192.0.2.7:1"},
        {TORCH, "init_method=env://", 0, 1, 4, 1, 0, 1, "env://"},
        {TORCH "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "init_method=env://", 0, 1, 4, 1, 1, 2, "env://"},
        {TORCH, "rank=auto", 0, 1, 4, 1, 0, 1, "env://"},
        {TORCH, "rank=1;world_size=4;init_method=env://", 0, 1, 4, 1, 0, 1, "env://"},
        {"RANK=1", "world_size=4;init_method=env://", 0, 1, 4, 1, 0, 1, "env://"},
        /* a launcher's ranks, whatever the method */
        {OMPI, "", 0, 1, 4, 1, 1, 2, "env://"},
        {OMPI, "rank=auto;init_method=tcp://192.0.2.7:1", 0, 1, 4, 1, 1, 2, "tcp://192.0.2.7:1"},
        {OMPI, "rank=1;world_size=4;init_method=file:///x", 0, 1, 4, 1, 1, 2, "file:///x"},
        {PMI, "", 0, 2, 4, 1, 0, 3, "env://"},
        {STEP, "", 0, 3, 4, 1, 1, 2, "env://"},
        {STEP, "rank=auto", 1, 3, 4, 1, 1, 2, "env://"},
        /* the order */
        {TORCH OMPI PMI STEP, "init_method=env://", 0, 1, 4, 1, 0, 1, "env://"},
        {OMPI PMI STEP, "rank=auto", 0, 1, 4, 1, 1, 2, "env://"},
        {PMI STEP, "rank=auto", 0, 2, 4, 1, 0, 3, "env://"},
        {OMPI, "rank=auto;nodes=127.0.0.1:4", 0, 1, 4, 1, 1, 2, "env://"},
        {"", "rank=auto;nodes=127.0.0.1:4", 0, 0, 4, 4, 0, 4, ""},
        /* no ranks: a batch script, a shell within a step, --nproc within mpirun */
        {BATCH, "", 0, 0, 1, 1, 0, 1, ""},
        {SHELL, "", 0, 0, 1, 1, 0, 1, ""},
        {SHELL, "rank=1;world_size=2;init_method=tcp://192.0.2.7:1", 0, 1, 2, 1, 0, 1, "tcp://192.0.2.7:1"},
        {OMPI, "", 2, 0, 2, 2, 0, 2, ""},
        /* nodes */
        {"", "nodes=127.0.0.1:4", 0, 0, 4, 4, 0, 4, ""},
        {"", "nodes=127.0.0.1:4;rank=auto", 4, 0, 4, 4, 0, 4, ""},
        {"", "nodes=192.0.2.250:3, 127.0.0.1:1;rank=auto", 0, 3, 4, 1, 0, 1, "tcp://192.0.2.250:29500"},
        {"", "nodes=[2001:db8::7]:3, [::1]:2, 192.0.2.250:1", 0, 3, 6, 2, 0, 2, "tcp://[2001:db8::7]:29500"},
        {"", "nodes=192.0.2.250:3, 127.0.0.1:1;init_method=file:///x", 0, 3, 4, 1, 0, 1, "file:///x"},
        {"", "nodes=127.0.0.1:3, 192.0.2.250:1;init_method=file:///x", 0, 0, 4, 3, 0, 3, "file:///x"},
        {"", "nodes=127.0.0.1:4;rank=2;world_size=4;init_method=file:///x", 0, 2, 4, 1, 0, 1, "file:///x"},
    };

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        ddp_launch l;
        ddp_err err = {0};

        if (resolve(cases[i].variables, cases[i].group, cases[i].nproc, &l, &err) != DDP_OK)
            fail_msg("case %zu: %s", i, err.msg);
        if (l.rank != cases[i].rank || l.world != cases[i].world || l.nproc != cases[i].processes ||
            l.local_rank != cases[i].local_rank || l.local_size != cases[i].local_size ||
            strcmp(l.url, cases[i].url) != 0 ||
            l.introduced != (l.nproc == l.world && l.url[0] == '\0' && (cases[i].nproc > 0 || l.nproc > 1)))
            fail_msg("case %zu (%s | %s): rank %d of %d, %d here, local %d of %d, %s%s", i, cases[i].variables,
                     cases[i].group, l.rank, l.world, l.nproc, l.local_rank, l.local_size, l.url,
                     l.introduced ? ", introduced" : "");
    }
}

static void test_contradictions(void **state)
{
    static const struct {
        const char *variables, *group;
        int32_t nproc;
        const char *parts[3];
    } cases[] = {
        {"",
         "rank=auto",
         0,
         {"rank = auto, but the rank is not known: looked for RANK, OMPI_COMM_WORLD_RANK", "nodes"}},
        {TORCH, "rank=auto;init_method=tcp://a:1", 0, {"looked for OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}},
        {BATCH, "rank=auto", 0, {"the rank is not known"}},
        {"", "init_method=env://;world_size=2", 0, {"env://, but the environment has no rank", "RANK"}},
        {OMPI, "rank=0", 0, {"rank = 0", "OMPI_COMM_WORLD_RANK=1"}},
        {OMPI, "world_size=3", 0, {"world_size = 3", "OMPI_COMM_WORLD_SIZE=4"}},
        {OMPI, "rank=auto", 2, {"--nproc 2", "OMPI_COMM_WORLD_RANK=1", "Open MPI"}},
        {TORCH, "init_method=env://;rank=0", 0, {"rank = 0", "RANK=1"}},
        {TORCH, "init_method=env://", 2, {"--nproc 2", "RANK=1"}},
        {"RANK=1", "init_method=env://", 0, {"RANK=1", "WORLD_SIZE is not set"}},
        {"PMI_RANK=x PMI_SIZE=2", "", 0, {"PMI_RANK=x", "no number from 0 to 65535"}},
        {STEP, "world_size=2", 0, {"world_size = 2", "SLURM_STEP_NUM_TASKS=4"}},
        {"", "rank=auto;nodes=127.0.0.1:2;world_size=3", 0, {"world_size = 3", "2 ranks"}},
        {"", "rank=auto;nodes=127.0.0.1:2", 1, {"2 ranks", "--nproc is 1"}},
        {"", "rank=auto;nodes=127.0.0.1:1, 127.0.0.2:1", 0, {"twice, as 127.0.0.1:1 and as 127.0.0.2:1"}},
        {"", "rank=auto;nodes=192.0.2.250:1", 0, {"none of nodes is this machine, which is "}},
        {"", "rank=auto;nodes=127.0.0.1:1, 192.0.2.250:1", 0, {"127.0.0.1", "loopback address on this machine"}},
        {"", "rank=auto;nodes=a:1, b:70000", 0, {"\"b:70000\"", "HOST:RANKS"}},
        {"", "rank=auto;nodes=:1", 0, {"\":1\""}},
        {"", "rank=auto;nodes=127.0.0.1:60000, 192.0.2.250:60000", 0, {"more than 65536 ranks"}},
        {"", "rank=1", 0, {"rank = 1", "world_size is not set"}},
        {"", "rank=1;world_size=2;init_method=tcp://a:1", 2, {"ranks up to 2", "world_size is 2"}},
        {"", "world_size=4", 2, {"init_method must say where"}},
    };

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        ddp_launch l;
        ddp_err err = {0};

        if (resolve(cases[i].variables, cases[i].group, cases[i].nproc, &l, &err) != DDP_ERR_CONFIG)
            fail_msg("case %zu: no error", i);
        for (size_t p = 0; p < DDP_COUNT(cases[i].parts) && cases[i].parts[p] != NULL; p++)
            if (strstr(err.msg, cases[i].parts[p]) == NULL)
                fail_msg("case %zu: \"%s\" does not contain \"%s\"", i, err.msg, cases[i].parts[p]);
    }
}

static void test_node_by_name(void **state)
{
    char name[200] = "", entry[256];
    const char *entries[] = {"192.0.2.250:3", entry};
    const ddp_list list = {.count = 2, .items = entries};
    ddp_own_node n;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(gethostname(name, sizeof(name) - 1), 0);
    (void)snprintf(entry, sizeof(entry), "%s:2", name);
    if (ddp_nodes_find(&list, &n, &err) != DDP_OK) fail_msg("%s", err.msg);
    assert_int_equal(n.index, 1);
    assert_int_equal(n.first_rank, 3);
    assert_int_equal(n.count, 2);
    assert_int_equal(n.world, 5);
    assert_string_equal(n.first_host, "192.0.2.250");
}

static void test_own_address(void **state)
{
    char host[64] = "";
    ddp_err err = {0};

    (void)state;
    assert_int_equal(ddp_own_address("", host, sizeof(host), &err), DDP_OK);
    assert_string_not_equal(host, "");
    assert_int_equal(ddp_own_address("lo", host, sizeof(host), &err), DDP_OK);
    assert_true(strcmp(host, "127.0.0.1") == 0 || strcmp(host, "::1") == 0);
    assert_int_equal(ddp_own_address("no-such", host, sizeof(host), &err), DDP_ERR_CONFIG);
    assert_non_null(strstr(err.msg, "no-such"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_node_by_name),
        cmocka_unit_test(test_own_address),
    };

    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
