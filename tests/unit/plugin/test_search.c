/* Where plugins are looked for, what is said when a name is nowhere, and the list of all. */
#include "plugin_fixture.h"

#include <sys/wait.h>

static ddp_log log_;
static ddp_registry *registry;
static char *folder;

static int set_up(void **state)
{
    (void)state;
    ddp_log_init(&log_);
    (void)unsetenv("DDPENGINE_PLUGIN_PATH");
    (void)unsetenv("DDP_KEEP_PLUGINS");
    folder = make_folder();
    registry = open_registry(&log_, FIXTURES);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ddp_registry_close(registry);
    remove_tree(folder);
    return 0;
}

/* ---- search ------------------------------------------------------------------------------------------------------ */
static void says_what_was_not_found(void **state)
{
    ddp_registry *r;
    ddp_loaded *p;
    ddp_err err;

    (void)state;
    assert_int_not_equal(ddp_registry_load(registry, DDP_KIND_SAMPLER, "goood", &p, &err), DDP_OK);
    SAYS(&err, "sampler \"goood\": no such plugin", "Did you mean \"good\"?", "sampler_goood.so", FIXTURES,
         "([plugins] path)");
    assert_int_not_equal(ddp_registry_load(registry, DDP_KIND_SAMPLER, "two-wods", &p, &err), DDP_OK);
    SAYS(&err, "Did you mean \"two-words\"?", "sampler_two_wods.so");
    assert_int_not_equal(ddp_registry_load(registry, DDP_KIND_BACKEND, "good", &p, &err), DDP_OK);
    SAYS(&err, "There is a sampler of that name", FIXTURES "/sampler_good.so");
    assert_int_not_equal(ddp_registry_load(registry, DDP_KIND_BACKEND, "quite-different", &p, &err), DDP_OK);
    SAYS(&err, "There is \"cap\", \"launched\"");
    assert_int_not_equal(ddp_registry_load(registry, DDP_KIND_BACKEND, "", &p, &err), DDP_OK);
    assert_int_not_equal(ddp_registry_load(registry, DDP_KIND_BACKEND, "/none/backend_x.so", &p, &err), DDP_OK);
    SAYS(&err, "/none/backend_x.so cannot be opened: No such file or directory");

    (void)setenv("DDPENGINE_PLUGIN_PATH", folder, 1);
    r = open_registry(&log_, "/none/such");
    assert_int_not_equal(ddp_registry_load(r, DDP_KIND_DATASET, "idx", &p, &err), DDP_OK);
    SAYS(&err, "No plugin of kind dataset is there at all", "/none/such ([plugins] path: no such folder)", folder,
         "(DDPENGINE_PLUGIN_PATH)", DDP_PLUGIN_DIR, "(the installation");
    ddp_registry_close(r);
}

/* "packages" beside the plugins: what the system calls those that are not there. */
static void names_the_package(void **state)
{
    static const char text[] =
        "backend_two_words.so thing-two\nbackend_good.so thing-good\nsampler_good.so thing-there\n"
        "dataset_x.so thing-x\nnonsense\nbackend_../x.so thing-bad\n";
    char path[PATH_MAX + 64];
    ddp_text packages = {0};
    ddp_registry *r;
    ddp_loaded *p;
    ddp_err err;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/packages", folder);
    write_file(path, text, sizeof(text) - 1);
    (void)snprintf(path, sizeof(path), "%s/sampler_good.so", folder);
    copy_file(FIXTURES "/sampler_good.so", path);
    r = open_registry(&log_, folder);
    assert_int_not_equal(ddp_registry_load(r, DDP_KIND_BACKEND, "two-words", &p, &err), DDP_OK);
    SAYS(&err, "no such plugin. It is in the package thing-two: install that.", "Looked for backend_two_words.so");
    assert_int_not_equal(ddp_registry_load(r, DDP_KIND_BACKEND, "x", &p, &err), DDP_OK);
    assert_null(strstr(err.msg, "package"));
    ddp_registry_packages(r, DDP_KIND_BACKEND, &packages);
    assert_string_equal(packages.data, "thing-two, thing-good");
    ddp_text_free(&packages);
    ddp_registry_packages(r, DDP_KIND_SAMPLER, &packages);
    assert_null(packages.data); /* it is there */
    ddp_registry_close(r);
}

/* The first folder that has the file decides, also when its file is refused. */
static void searches_in_order(void **state)
{
    char copy[PATH_MAX + 64], second[PATH_MAX], list[4 * PATH_MAX];
    ddp_registry *r;
    ddp_loaded *p;
    ddp_err err;

    (void)state;
    (void)snprintf(second, sizeof(second), "%s/second", folder);
    (void)snprintf(copy, sizeof(copy), "%s/sampler_good.so", second);
    assert_int_equal(mkdir(second, 0755), 0);
    copy_file(FIXTURES "/sampler_good.so", copy);
    (void)snprintf(list, sizeof(list), "%s::%s:%s", folder, second, FIXTURES);
    (void)setenv("DDPENGINE_PLUGIN_PATH", list, 1);
    r = open_registry(&log_, folder);
    assert_string_equal(load(r, DDP_KIND_SAMPLER, "good")->path, copy);
    assert_string_equal(load(r, DDP_KIND_SAMPLER, "sysv")->path, FIXTURES "/sampler_sysv.so");
    ddp_registry_close(r);

    write_file(copy, "no plugin", 9);
    r = open_registry(&log_, folder);
    assert_int_not_equal(ddp_registry_load(r, DDP_KIND_SAMPLER, "good", &p, &err), DDP_OK);
    SAYS(&err, copy, "is not an ELF file");
    assert_int_equal(unlink(copy), 0);
    assert_int_equal(symlink("/none/such", copy), 0);
    assert_int_not_equal(ddp_registry_load(r, DDP_KIND_SAMPLER, "good", &p, &err), DDP_OK);
    SAYS(&err, copy, "cannot be opened");
    ddp_registry_close(r);
}

/* A program beside a config.status takes its plugins from .libs, and no others. */
static void runs_from_the_build_tree(void **state)
{
    char exe[PATH_MAX], program[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    int status;
    pid_t pid;

    (void)state;
    assert_true(n > 0);
    exe[n] = '\0';
    (void)snprintf(program, sizeof(program), "%s/program", folder);
    copy_file(exe, program);
    (void)snprintf(path, sizeof(path), "%s/.libs", folder);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/.libs/sampler_good.so", folder);
    copy_file(FIXTURES "/sampler_good.so", path);
    for (int beside = 0; beside < 2; beside++) {
        pid = fork();
        if (pid == 0) {
            (void)execl(program, program, "--load", path, (char *)NULL);
            _exit(99);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : 98, beside ? 0 : 1);
        (void)snprintf(exe, sizeof(exe), "%s/config.status", folder);
        write_file(exe, "", 0);
    }
}

/* ---- list -------------------------------------------------------------------------------------------------------- */
typedef struct listed {
    int good, refused;
    bool saw_good, saw_name, saw_text;
} listed;

static void visit(void *ctx, const char *path, const ddp_loaded *p, const ddp_err *err)
{
    listed *l = ctx;

    assert_true((p == NULL) != (err == NULL));
    if (p != NULL) l->good++;
    if (err != NULL) l->refused++;
    if (strcmp(path, FIXTURES "/sampler_good.so") == 0) l->saw_good = strcmp(p->name, "good") == 0;
    if (strcmp(path, FIXTURES "/sampler_name.so") == 0) {
        SAYS(err, path, "calls itself \"someone\"", "rename the file to sampler_someone.so");
        l->saw_name = true;
    }
    if (strstr(path, "/model_text.so") != NULL) {
        SAYS(err, path, "is not an ELF file");
        l->saw_text = true;
    }
}

static void lists_everything(void **state)
{
    char path[PATH_MAX + 64];
    listed l = {0};
    ddp_registry *r;
    ddp_err err;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/model_text.so", folder);
    write_file(path, "text", 4);
    (void)snprintf(path, sizeof(path), "%s/nothing_of_ours.so", folder);
    write_file(path, "text", 4);
    (void)setenv("DDPENGINE_PLUGIN_PATH", folder, 1);
    r = open_registry(&log_, FIXTURES);
    assert_int_equal(ddp_registry_list(r, visit, &l, &err), DDP_OK);
    assert_true(l.saw_good && l.saw_name && l.saw_text);
    assert_int_equal(l.good, 12);
    assert_int_equal(l.refused, 46); /* every wrong fixture, and the text */
    ddp_registry_close(r);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(says_what_was_not_found),  TEST(names_the_package), TEST(searches_in_order),
        TEST(runs_from_the_build_tree), TEST(lists_everything),
    };

    if (argc == 3 && strcmp(argv[1], "--load") == 0) {
        ddp_registry *r;
        ddp_status status;
        ddp_loaded *p;
        ddp_err err;
        bool same;

        ddp_log_init(&log_);
        if (ddp_registry_open(&log_, NULL, &r, &err) != DDP_OK) return 2;
        status = ddp_registry_load(r, DDP_KIND_SAMPLER, "good", &p, &err);
        same = status == DDP_OK && strcmp(p->path, argv[2]) == 0;
        ddp_registry_close(r);
        return status != DDP_OK ? 1 : same ? 0 : 3;
    }
    return cmocka_run_group_tests_name("search", tests, NULL, NULL);
}
