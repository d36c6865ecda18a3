/* Loading: every reason for a refusal with its message, full-size copies and stubs, unloading. */
#include "plugin_fixture.h"

#include <dirent.h>

static ddp_log log_;
static ddp_registry *registry;
static char *folder;
static char trace[PATH_MAX];

static int set_up(void **state)
{
    (void)state;
    ddp_log_init(&log_);
    (void)unsetenv("DDPENGINE_PLUGIN_PATH");
    (void)unsetenv("DDP_KEEP_PLUGINS");
    folder = make_folder();
    (void)snprintf(trace, sizeof(trace), "%s/trace", folder);
    (void)setenv("DDP_FIXTURE_TRACE", trace, 1);
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

static bool is_mapped(const char *path)
{
    char line[PATH_MAX + 128];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");

    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL) found = found || strstr(line, path) != NULL;
    (void)fclose(maps);
    return found;
}

static int open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) count++;
    (void)closedir(dir);
    return count;
}

/* ---- right ones -------------------------------------------------------------------------------------------------- */
static void loads_once(void **state)
{
    ddp_loaded *p = load(registry, DDP_KIND_SAMPLER, "good");
    int descriptors = open_descriptors();

    (void)state;
    assert_int_equal(access(trace, F_OK), 0); /* the constructor ran: the trace means something */
    assert_string_equal(p->name, "good");
    assert_string_equal(p->path, FIXTURES "/sampler_good.so");
    assert_int_equal(p->kind, DDP_KIND_SAMPLER);
    assert_ptr_equal(p->desc.ops, p->ops);
    assert_int_equal(p->desc.option_count, 2);
    assert_int_equal(p->desc.option_size, sizeof(ddp_option));
    assert_string_equal(p->desc.options[1].key, "step");
    assert_int_equal(*(const uint32_t *)p->ops, sizeof(ddp_sampler_ops));
    assert_ptr_equal(load(registry, DDP_KIND_SAMPLER, "good"), p);
    assert_ptr_equal(load(registry, DDP_KIND_SAMPLER, FIXTURES "/sampler_good.so"), p);
    assert_ptr_equal(load(registry, DDP_KIND_SAMPLER, FIXTURES "/../plugins/sampler_good.so"), p);
    assert_int_equal(open_descriptors(), descriptors);
    assert_string_equal(load(registry, DDP_KIND_SAMPLER, "two-words")->path, FIXTURES "/sampler_two_words.so");
}

static void reads_wider_rows(void **state)
{
    ddp_loaded *p = load(registry, DDP_KIND_SAMPLER, "wide");

    (void)state;
    assert_int_equal(p->desc.option_size, sizeof(ddp_option));
    assert_string_equal(p->desc.options[0].key, "count");
    assert_string_equal(p->desc.options[1].key, "step");
    assert_string_equal(p->desc.options[1].dflt, "1");
}

static void fills_holes_with_stubs(void **state)
{
    ddp_loaded *p = load(registry, DDP_KIND_BACKEND, "short");
    const ddp_backend_ops *b = p->ops;
    const ddp_init_ops *i;
    char endpoint[DDP_ENDPOINT_MAX] = "";
    int32_t rank = 7, world = 7;
    void *memory = &rank;
    ddp_err err;

    (void)state;
    assert_int_equal(b->struct_size, sizeof(*b));
#define STUB(slot, call)                                                                                               \
    assert_int_equal(call, DDP_ERR_UNSUPPORTED);                                                                       \
    SAYS(&err, "this backend", slot)
    STUB("all_reduce", b->all_reduce(NULL, NULL, NULL, &err));
    STUB("broadcast", b->broadcast(NULL, NULL, NULL, &err));
    STUB("all_gather", b->all_gather(NULL, NULL, NULL, &err));
    STUB("reduce_scatter", b->reduce_scatter(NULL, NULL, NULL, &err));
    STUB("barrier", b->barrier(NULL, NULL, &err));
    STUB("reduce", b->reduce(NULL, NULL, NULL, &err));
    STUB("gather", b->gather(NULL, NULL, NULL, &err));
    STUB("scatter", b->scatter(NULL, NULL, NULL, &err));
    STUB("all_to_all", b->all_to_all(NULL, NULL, NULL, &err));
    STUB("send", b->send(NULL, NULL, NULL, &err));
    STUB("recv", b->recv(NULL, NULL, NULL, &err));
    STUB("memory", b->mem_alloc(NULL, 8, &memory, &err));
    STUB("work_test", b->work_test(NULL, &err));
    STUB("work_wait", b->work_wait(NULL, 0, &err));
    STUB("stream", b->work_stream_wait(NULL, NULL, &err));
    b->comm_abort(NULL);
    b->mem_free(NULL, NULL);
    b->work_free(NULL);
    assert_ptr_equal(memory, &rank);

    b = load(registry, DDP_KIND_BACKEND, "whole")->ops;
    assert_int_equal(b->all_reduce(NULL, NULL, NULL, &err), DDP_OK);
    assert_int_equal(b->broadcast(NULL, NULL, NULL, &err), DDP_ERR_UNSUPPORTED);

    i = load(registry, DDP_KIND_INIT, "bare")->ops;
    assert_int_equal(i->identity(NULL, &rank, &world, &err), DDP_OK);
    assert_true(rank == -1 && world == -1);
    assert_int_equal(i->publish(NULL, "host:1", &err), DDP_OK);
    assert_int_equal(i->find(NULL, endpoint, &err), DDP_ERR_UNSUPPORTED);
}

/* Each slot has a place of its own in the full-size table, and the table has no slot that kinds.c forgot. */
static void knows_every_slot(void **state)
{
    (void)state;
    for (uint32_t kind = DDP_KIND_BACKEND; kind < DDP_KIND_END_; kind++) {
        const ddp_kind_table *t = plugin_kind_find(kind);
        size_t first = kind == DDP_KIND_BACKEND || kind == DDP_KIND_DEVICE ? 16 /* two words, capabilities */
                       : kind == DDP_KIND_HOOK                             ? 24 /* and two words */
                                                                           : 8;

        assert_int_equal(t->size, first + t->slot_count * sizeof(void *));
        for (size_t i = 0; i < t->slot_count; i++)
            for (size_t k = 0; k < i; k++) assert_int_not_equal(t->slots[i].offset, t->slots[k].offset);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
typedef struct refusal {
    uint32_t kind;
    const char *name;
    bool ran; /* its constructor may have run: only memory could tell */
    const char *parts[4];
} refusal;

static const refusal refusals[] = {
    {DDP_KIND_SAMPLER, "magic", false, {"is not a plugin of ddpengine", "0x21212121"}},
    {DDP_KIND_SAMPLER,
     "abi",
     false,
     {"was built for plugin ABI 7, this ddpengine needs 1", "Rebuild it against the installed ddpengine/plugin.h",
      "ddpengine --version shows both numbers"}},
    {DDP_KIND_SAMPLER, "desc", false, {"descriptor of 80 bytes", "sizeof(ddp_plugin)"}},
    {DDP_KIND_SAMPLER, "kind", false, {"is a plugin of kind model, not sampler"}},
    {DDP_KIND_SAMPLER,
     "kindabi",
     false,
     {"was built for sampler ABI 9, this ddpengine needs 1", "Rebuild it against the installed ddpengine/plugin.h"}},
    {DDP_KIND_SAMPLER,
     "services",
     false,
     {"built for a newer ddpengine", "64 bytes, this one's 56", "ddpengine/sampler.h"}},
    {DDP_KIND_SAMPLER, "hidden", false, {"does not define ddp_plugin_desc"}},
    {DDP_KIND_SAMPLER, "behind", false, {"does not define ddp_plugin_desc"}},
    {DDP_KIND_SAMPLER, "function", false, {"something else than data"}},
    {DDP_KIND_SAMPLER, "undefined", false, {"undefined symbol: nobody_defines_this", "-Wl,-z,defs"}},
    {DDP_KIND_SAMPLER, "missing", false, {"needs the library libddpfixture.so.1, which is not found", "Install it"}},
    {DDP_KIND_SAMPLER,
     "nogloo",
     false,
     {"needs the library libgloo.so.99, which is not found", "Install the Debian package libgloo0",
      "No such file or directory"}},
    {DDP_KIND_SAMPLER, "name", true, {"calls itself \"someone\"", "\"name\" was asked for", "sampler_someone.so"}},
    {DDP_KIND_SAMPLER, "nullname", true, {"name of its descriptor is NULL"}},
    {DDP_KIND_SAMPLER, "noversion", true, {"version of its descriptor is NULL"}},
    {DDP_KIND_SAMPLER, "noops", true, {"ops of its descriptor is NULL"}},
    {DDP_KIND_SAMPLER, "noopsize", true, {"function table without its struct_size"}},
    {DDP_KIND_SAMPLER, "nooptions", true, {"options of its descriptor is NULL"}},
    {DDP_KIND_SAMPLER, "manyoptions", true, {"option_count of its descriptor is 4000000000"}},
    {DDP_KIND_SAMPLER, "narrow", true, {"option_size of its descriptor is 40", "sizeof(ddp_option)"}},
    {DDP_KIND_SAMPLER, "nodoc", true, {"count", "doc"}},
    {DDP_KIND_SAMPLER, "baddefault", true, {"count", "many"}},
    {DDP_KIND_SAMPLER, "hole", true, {"leaves the mandatory function indices NULL"}},
    {DDP_KIND_BACKEND, "cap", true, {"sets DDP_CAP_ALL_REDUCE but leaves its function all_reduce NULL"}},
    {DDP_KIND_BACKEND, "slot", true, {"has the function all_reduce but does not set DDP_CAP_ALL_REDUCE"}},
    {DDP_KIND_BACKEND, "nolauncher", true, {"sets DDP_PLUGIN_F_LAUNCHER but leaves launcher NULL"}},
    {DDP_KIND_BACKEND, "noflag", true, {"has a launcher but does not set DDP_PLUGIN_F_LAUNCHER"}},
    {DDP_KIND_BACKEND, "nomem", true, {"which kind of memory it reduces", ".memory = DDP_MEMORY_HOST"}},
    {DDP_KIND_BACKEND, "noreach", true, {"how far it reaches", ".reach = DDP_REACH_NETWORK"}},
    {DDP_KIND_DEVICE, "notsaid", true, {"which kind of memory it has"}},
    {DDP_KIND_DEVICE, "mixed", true, {"memory of kind \"acme\" and sets DDP_DEVICE_CAP_HOST_MEMORY"}},
    {DDP_KIND_DEVICE, "nomem", true, {"sets neither DDP_DEVICE_CAP_HOST_MEMORY nor DDP_DEVICE_CAP_QUEUES"}},
    {DDP_KIND_DEVICE, "step", true, {"has the function step but does not set DDP_DEVICE_CAP_QUEUES"}},
};

static void refuses_with_a_reason(void **state)
{
    int descriptors = open_descriptors();

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(refusals); i++) {
        const refusal *r = &refusals[i];
        char who[64], path[PATH_MAX];
        ddp_loaded *p = (ddp_loaded *)&log_;
        ddp_err err;

        assert_int_not_equal(ddp_registry_load(registry, r->kind, r->name, &p, &err), DDP_OK);
        assert_ptr_equal(p, &log_);
        (void)snprintf(who, sizeof(who), "%s \"%s\": ", ddp_kind_name(r->kind), r->name);
        (void)snprintf(path, sizeof(path), FIXTURES "/%s_%s.so", ddp_kind_name(r->kind), r->name);
        assert_memory_equal(err.msg, who, strlen(who));
        SAYS(&err, path);
        assert_says(&err, r->parts);
        if (!r->ran && access(trace, F_OK) == 0) fail_msg("code of \"%s\" ran", r->name);
        assert_false(is_mapped(path));
        (void)unlink(trace);
    }
    assert_int_equal(open_descriptors(), descriptors);
}

/* What a file says of itself is known before it is loaded. */
static void reads_facts_of_files(void **state)
{
    const ddp_launcher_ops *launcher;
    ddp_gate_facts facts;
    ddp_err err;

    (void)state;
    assert_int_equal(ddp_registry_facts(registry, DDP_KIND_BACKEND, "launched", &facts, &err), DDP_OK);
    assert_int_equal(facts.flags, DDP_PLUGIN_F_LAUNCHER);
    assert_false(is_mapped("/backend_launched.so"));
    assert_int_equal(ddp_registry_facts(registry, DDP_KIND_BACKEND, FIXTURES "/backend_whole.so", &facts, &err),
                     DDP_OK);
    assert_int_equal(facts.flags, 0);
    assert_int_not_equal(ddp_registry_facts(registry, DDP_KIND_BACKEND, "absent", &facts, &err), DDP_OK);
    launcher = ((const ddp_backend_ops *)load(registry, DDP_KIND_BACKEND, "launched")->ops)->launcher;
    assert_string_equal(launcher->command, "A=1 run -n %n");
    assert_int_equal(launcher->struct_size, sizeof(*launcher));
}

/* Built against the headers of an engine that has appended a member to one of the tables that plugins are given. */
static void refuses_plugins_of_a_newer_engine(void **state)
{
    static const struct {
        uint32_t kind;
        const char *table;
    } newer[] = {{DDP_KIND_INIT, "ddp_host"},
                 {DDP_KIND_BACKEND, "ddp_store"},
                 {DDP_KIND_BACKEND, "ddp_comm_params"},
                 {DDP_KIND_BACKEND, "ddp_coll"},
                 {DDP_KIND_DEVICE, "ddp_device_params"},
                 {DDP_KIND_DEVICE, "ddp_optim_slice"},
                 {DDP_KIND_DEVICE, "ddp_program"},
                 {DDP_KIND_MODEL, "ddp_graph_api"},
                 {DDP_KIND_SAMPLER, "ddp_sampler_params"},
                 {DDP_KIND_HOOK, "ddp_hook_group"},
                 {DDP_KIND_HOOK, "ddp_hook_params"}};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(newer); i++) {
        char path[PATH_MAX], says[64];
        ddp_loaded *p;
        ddp_err err;

        (void)snprintf(path, sizeof(path), FIXTURES "/%s_newer_%s.so", ddp_kind_name(newer[i].kind), newer[i].table);
        if (access(path, F_OK) != 0) fail_msg("%s was not built", path);
        if (ddp_registry_load(registry, newer[i].kind, path, &p, &err) == DDP_OK) fail_msg("%s is loaded", path);
        (void)snprintf(says, sizeof(says), "installed ddpengine/%s.h", ddp_kind_name(newer[i].kind));
        SAYS(&err, path, "was built for a newer ddpengine", "Update ddpengine", says);
        assert_false(is_mapped(path));
    }
}

/* Of the files of a folder, those that `auto` may take: what the gate lets in and has a priority, the highest first. */
static void offers_by_priority(void **state)
{
    static ddp_offer offers[DDP_MAX_OFFERS];
    size_t count = ddp_registry_offers(registry, DDP_KIND_BACKEND, offers, DDP_MAX_OFFERS);

    (void)state;
    assert_int_equal(count, 3);
    assert_string_equal(offers[0].name, "offer-b");
    assert_string_equal(offers[1].name, "offer-a");
    assert_string_equal(offers[2].name, "offer-c"); /* as high as a, and later in the alphabet */
    assert_int_equal(offers[0].facts.priority, 9);
    assert_int_equal(offers[0].facts.reach, DDP_REACH_NETWORK);
    assert_string_equal(offers[0].facts.memory, "acme host");
    assert_false(is_mapped("/backend_offer_b.so"));
    assert_int_equal(ddp_registry_offers(registry, DDP_KIND_DEVICE, offers, DDP_MAX_OFFERS), 0);
}

static void memory_kinds_are_whole_words(void **state)
{
    (void)state;
    assert_true(ddp_memory_has("host", "host"));
    assert_true(ddp_memory_has("acme host", "host"));
    assert_true(ddp_memory_has("hosts acmehost host", "host"));
    assert_false(ddp_memory_has("hosts acmehost", "host"));
    assert_false(ddp_memory_has("acme", ""));
    assert_false(ddp_memory_has("", "host"));
}

static void refuses_kinds_it_has_not(void **state)
{
    ddp_loaded *p;
    ddp_err err;

    (void)state;
    assert_int_equal(ddp_registry_load(registry, 99, "x", &p, &err), DDP_ERR_UNSUPPORTED);
}

/* ---- unloading --------------------------------------------------------------------------------------------------- */
static void unloads(void **state)
{
    int descriptors = open_descriptors();
    ddp_registry *r;

    (void)state;
    for (int round = 0; round < 100; round++) {
        r = open_registry(&log_, FIXTURES);
        (void)load(r, DDP_KIND_SAMPLER, "good");
        (void)load(r, DDP_KIND_BACKEND, "whole");
        assert_true(is_mapped("/sampler_good.so"));
        ddp_registry_close(r);
        assert_false(is_mapped("/sampler_good.so"));
        assert_false(is_mapped("/backend_whole.so"));
    }
    assert_int_equal(open_descriptors(), descriptors);
}

/* What stays mapped is found again under its old descriptor; another plugin is never taken for it. */
static void keeps_what_must_stay(void **state)
{
    int descriptors = 0;
    ddp_registry *r;

    (void)state;
    for (int round = 0; round < 20; round++) {
        r = open_registry(&log_, FIXTURES);
        assert_string_equal(load(r, DDP_KIND_SAMPLER, "stays")->name, "stays");
        assert_string_equal(load(r, DDP_KIND_SAMPLER, "sysv")->name, "sysv");
        ddp_registry_close(r);
        assert_true(is_mapped("/sampler_stays.so"));
        assert_false(is_mapped("/sampler_sysv.so"));
        if (round == 0) descriptors = open_descriptors();
        assert_int_equal(open_descriptors(), descriptors);
    }
    (void)setenv("DDP_KEEP_PLUGINS", "1", 1);
    r = open_registry(&log_, FIXTURES);
    (void)load(r, DDP_KIND_BACKEND, "whole");
    ddp_registry_close(r);
    assert_true(is_mapped("/backend_whole.so"));
    (void)unsetenv("DDP_KEEP_PLUGINS");
}

static void two_registries_share(void **state)
{
    int descriptors = open_descriptors();
    ddp_registry *a = open_registry(&log_, FIXTURES), *b = open_registry(&log_, FIXTURES);
    ddp_loaded *p = load(a, DDP_KIND_SAMPLER, "good"), *q = load(b, DDP_KIND_SAMPLER, "good");

    (void)state;
    assert_ptr_not_equal(p, q);
    ddp_registry_close(a);
    assert_true(is_mapped("/sampler_good.so"));
    assert_string_equal(q->name, "good");
    assert_string_equal(load(b, DDP_KIND_SAMPLER, "wide")->name, "wide");
    ddp_registry_close(b);
    assert_false(is_mapped("/sampler_good.so"));
    assert_int_equal(open_descriptors(), descriptors);
}

static void names_survivors(void **state)
{
    int ends[2];
    char text[1024] = "";
    ddp_registry *r = open_registry(&log_, FIXTURES);
    static ddp_loaded *kept; /* stays reachable for leak checkers */

    (void)state;
    assert_int_equal(pipe(ends), 0);
    log_.fd = ends[1];
    kept = load(r, DDP_KIND_SAMPLER, "wide");
    kept->live = 2;
    ddp_registry_close(r);
    log_.fd = 2;
    (void)close(ends[1]);
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    (void)close(ends[0]);
    assert_non_null(strstr(text, "sampler \"wide\": 2 of its objects are not closed"));
    assert_true(is_mapped("/sampler_wide.so"));
    assert_int_equal(((const ddp_sampler_ops *)kept->ops)->count(NULL), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(refuses_plugins_of_a_newer_engine),
        TEST(offers_by_priority),
        TEST(memory_kinds_are_whole_words),
        TEST(loads_once),
        TEST(reads_wider_rows),
        TEST(fills_holes_with_stubs),
        TEST(knows_every_slot),
        TEST(refuses_with_a_reason),
        TEST(refuses_kinds_it_has_not),
        TEST(unloads),
        TEST(keeps_what_must_stay),
        TEST(two_registries_share),
        TEST(names_survivors),
        TEST(reads_facts_of_files),
    };

    return cmocka_run_group_tests_name("plugin", tests, NULL, NULL);
}
