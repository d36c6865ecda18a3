/* The public headers as an ABI: no member moves, no number changes, every header stands alone in C99, C11 and C++,
 * no plugin exports more than its descriptor, no status has two names. */
#include "plugin_fixture.h"

#include <dirent.h>

#define HEADERS                    DDP_SRCDIR "/core/include"
#define HEADER(NAME, name, number) #name,
static const char *const headers[] = {"plugin", "random", "program", "graph", "layers", "reduce", DDP_KIND_MAP(HEADER)};

static void no_member_moved(void **state)
{
    int moved = 0;

    (void)state;
#if UINTPTR_MAX == UINT64_MAX
#define OFFSET(type, member, at)                                                                                       \
    if (offsetof(type, member) != (at)) {                                                                              \
        print_error(#type "." #member " is at %zu, was at " #at "\n", offsetof(type, member));                         \
        moved++;                                                                                                       \
    }
#define SIZE(type, bytes)                                                                                              \
    if (sizeof(type) != (bytes)) {                                                                                     \
        print_error(#type " has %zu bytes, had " #bytes "\n", sizeof(type));                                           \
        moved++;                                                                                                       \
    }
#define VALUE(name, number)                                                                                            \
    if ((long long)(name) != (number)) {                                                                               \
        print_error(#name " is %lld, was " #number "\n", (long long)(name));                                           \
        moved++;                                                                                                       \
    }
#include "abi_golden.h"
    if (moved != 0) fail_msg("%d members, sizes or numbers changed: see tests/unit/plugin/abi_golden.h", moved);
#else
    (void)moved;
    skip();
#endif
}

/* Compiles a program that includes one header, twice, and nothing else. */
static void compile(const char *compiler, const char *flags, const char *header)
{
    char command[2 * PATH_MAX];

    (void)snprintf(
        command, sizeof(command),
        "printf '#include <ddpengine/%s.h>\\n#include <ddpengine/%s.h>\\n' | %s %s -Wall -Wextra -Wconversion "
        "-Wpedantic -Werror -fsyntax-only -I'" HEADERS "' -",
        header, header, compiler, flags);
    if (system(command) != 0) fail_msg("does not compile: %s", command);
}

static void headers_stand_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < DDP_COUNT(headers); i++) {
        compile(DDP_CC, "-x c -std=c99", headers[i]);
        compile(DDP_CC, "-x c -std=c11", headers[i]);
        compile(DDP_CXX, "-x c++ -std=c++14", headers[i]);
    }
}

/* "nm -D --defined-only" of every plugin that was built. */
static void plugins_export_one_symbol(void **state)
{
    DIR *dir = opendir(DDP_BUILDDIR "/.libs");
    struct dirent *entry;
    char name[NAME_MAX + 1];
    uint32_t kind;
    int seen = 0;

    (void)state;
    if (dir == NULL || system("nm --version > /dev/null 2>&1") != 0) skip();
    while ((entry = readdir(dir)) != NULL) {
        char command[PATH_MAX], line[256] = "", more[256];
        FILE *nm;

        if (!plugin_search_parse(entry->d_name, &kind, name, sizeof(name))) continue;
        (void)snprintf(command, sizeof(command), "nm -D --defined-only '" DDP_BUILDDIR "/.libs/%s'", entry->d_name);
        nm = popen(command, "r");
        assert_non_null(nm);
        if (fgets(line, sizeof(line), nm) == NULL || strstr(line, " " DDP_PLUGIN_SYMBOL "\n") == NULL ||
            fgets(more, sizeof(more), nm) != NULL)
            fail_msg("%s exports something else than " DDP_PLUGIN_SYMBOL ": %s", entry->d_name, line);
        (void)pclose(nm);
        seen++;
    }
    (void)closedir(dir);
    if (seen == 0) skip();
}

/* "DDP_CAP_", "DDP_OP_" and what else plugins and engine tell each other by number: each has its line. */
static void every_number_is_fixed(void **state)
{
    static const char missing[] =
        "cat " HEADERS
        "/ddpengine/*.h | grep -oE '(DDP_CAP|DDP_DEVICE_CAP|DDP_OP|DDP_OPT|DDP_OPT_F|DDP_PLUGIN_F|DDP_ERR|DDP_VALUE|"
        "DDP_OPTIM|DDP_FLAT|DDP_COPY|DDP_QUEUE|DDP_REACH|DDP_INIT|DDP_LOG|DDP_PRECISION|DDP_RUN|DDP_FINDING)_[A-Z0-9_]+' | "
        "grep -vE '_$|_H$|_ABI$|_SERVICES$' | sort -u | while read -r name; do "
        "grep -q \"(${name},\" " DDP_SRCDIR "/tests/unit/plugin/abi_golden.h || echo \"$name\"; done";
    char names[1024];
    FILE *f = popen(missing, "r");
    size_t n;

    (void)state;
    assert_non_null(f);
    n = fread(names, 1, sizeof(names) - 1, f);
    names[n] = '\0';
    (void)pclose(f);
    if (n > 0) fail_msg("numbers without a line in abi_golden.h:\n%s", names);
}

static void statuses_are_unique(void **state)
{
#define ROW(name, value, text) {#name, value, text},
    static const struct {
        const char *name;
        int value;
        const char *text;
    } rows[] = {DDP_STATUS_MAP(ROW)};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(rows); i++)
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(rows[i].value, rows[k].value);
            assert_string_not_equal(rows[i].text, rows[k].text);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_member_moved),     cmocka_unit_test(every_number_is_fixed),
        cmocka_unit_test(headers_stand_alone), cmocka_unit_test(plugins_export_one_symbol),
        cmocka_unit_test(statuses_are_unique),
    };

    return cmocka_run_group_tests_name("abi", tests, NULL, NULL);
}
