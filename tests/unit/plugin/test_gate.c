/* The gate: who may have written a plugin, and what its bytes say, before any of its code runs. */
#include "plugin_fixture.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/wait.h>

static char *folder; /* of the running test */
static char file[PATH_MAX], trace[PATH_MAX];

static int set_up(void **state)
{
    (void)state;
    folder = make_folder();
    (void)snprintf(file, sizeof(file), "%s/sampler_good.so", folder);
    (void)snprintf(trace, sizeof(trace), "%s/trace", folder);
    copy_file(FIXTURES "/sampler_good.so", file);
    (void)setenv("DDP_FIXTURE_TRACE", trace, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

static ddp_status gate(const char *path, ddp_err *err)
{
    ddp_gate_facts facts;
    int fd = -1;
    ddp_status status = ddp_gate_open(path, &fd, &facts, err);

    if (status == DDP_OK) {
        assert_int_not_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
        assert_int_equal(close(fd), 0);
    } else {
        assert_int_equal(fd, -1);
    }
    assert_int_not_equal(access(trace, F_OK), 0); /* nothing of it ran */
    return status;
}
#define PASSES(path)                                                                                                   \
    do {                                                                                                               \
        ddp_err err_;                                                                                                  \
        if (gate(path, &err_) != DDP_OK) fail_msg("%s", err_.msg);                                                     \
    } while (0)
#define REFUSED(path, ...)                                                                                             \
    do {                                                                                                               \
        ddp_err err_;                                                                                                  \
        assert_int_not_equal(gate(path, &err_), DDP_OK);                                                               \
        SAYS(&err_, path, __VA_ARGS__);                                                                                \
    } while (0)

static void reads_the_words(void **state)
{
    static const char *const files[] = {"sampler_good.so", "sampler_sysv.so", "sampler_kindabi.so"};
    ddp_gate_facts facts;
    ddp_err err;
    int fd;

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(files); i++) {
        (void)snprintf(file, sizeof(file), FIXTURES "/%s", files[i]);
        assert_int_equal(ddp_gate_open(file, &fd, &facts, &err), DDP_OK);
        assert_int_equal(facts.magic, DDP_MAGIC);
        assert_int_equal(facts.abi, DDP_ABI);
        assert_int_equal(facts.struct_size, sizeof(ddp_plugin));
        assert_int_equal(facts.kind, DDP_KIND_SAMPLER);
        assert_int_equal(facts.kind_abi, i == 2 ? 9 : DDP_SAMPLER_ABI);
        assert_int_equal(facts.flags, 0);
        assert_int_equal(facts.services, DDP_SAMPLER_SERVICES);
        assert_null(facts.name);
        (void)close(fd);
    }
}

/* A shared object may come without its section headers. */
static void needs_no_sections(void **state)
{
    ddp_err err;
    char *data;
    size_t length;

    (void)state;
    assert_int_equal(ddp_file_read(file, 1u << 24, &data, &length, &err), DDP_OK);
    memset(data + offsetof(Elf64_Ehdr, e_shoff), 0, sizeof(Elf64_Off));
    memset(data + offsetof(Elf64_Ehdr, e_shentsize), 0, 6);
    write_file(file, data, length);
    free(data);
    PASSES(file);
}

static void refuses_what_is_no_file(void **state)
{
    char path[PATH_MAX + 8];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s.fifo", file);
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)alarm(20); /* opening it must not wait for a writer */
    REFUSED(path, "is not a regular file");
    (void)alarm(0);
    REFUSED(folder, "is not a regular file");
    (void)snprintf(path, sizeof(path), "%s.none", file);
    REFUSED(path, "cannot be opened: No such file or directory");
}

static void refuses_what_is_no_plugin(void **state)
{
    static const char text[] = "[group]\nworld_size = 2\n";

    (void)state;
    write_file(file, text, sizeof(text) - 1);
    REFUSED(file, "is not an ELF file");
    write_file(file, "", 0);
    REFUSED(file, "is not an ELF file");
    REFUSED(FIXTURES "/sampler_hidden.so", "does not define ddp_plugin_desc", "DDP_PLUGIN_EXPORT");
    REFUSED(FIXTURES "/sampler_behind.so", "does not define ddp_plugin_desc");
    REFUSED(FIXTURES "/sampler_function.so", "something else than data", "const ddp_plugin");
    REFUSED(FIXTURES "/sampler_bss.so", "ddp_plugin_desc is not in the file's data");
}

static void refuses_other_machines(void **state)
{
    ddp_err err;
    Elf64_Ehdr *h;
    char *data;
    size_t length;

    (void)state;
    assert_int_equal(ddp_file_read(file, 1u << 24, &data, &length, &err), DDP_OK);
    h = (Elf64_Ehdr *)data;
    h->e_machine = h->e_machine == EM_AARCH64 ? EM_X86_64 : EM_AARCH64;
    write_file(file, data, length);
    REFUSED(file, "is built for", "aarch64", "x86-64", "rebuild it");
    h->e_type = ET_EXEC;
    h->e_machine = EM_386;
    h->e_ident[EI_CLASS] = ELFCLASS32;
    write_file(file, data, length);
    REFUSED(file, "is a 32-bit ELF file", "rebuild it");
    h->e_ident[EI_CLASS] = ELFCLASS64;
    h->e_ident[EI_DATA] = (unsigned char)(ELFDATA2LSB + ELFDATA2MSB - h->e_ident[EI_DATA]);
    write_file(file, data, length);
    REFUSED(file, "has the other byte order");
    free(data);
    REFUSED("/proc/self/exe", ""); /* a program */
}

static void refuses_what_was_cut_short(void **state)
{
    ddp_err err;
    char *data;
    size_t length;

    (void)state;
    assert_int_equal(ddp_file_read(file, 1u << 24, &data, &length, &err), DDP_OK);
    for (size_t keep = EI_NIDENT; keep < 4096; keep += 60) {
        write_file(file, data, keep);
        REFUSED(file, "is damaged or cut short", "build or copy it again");
    }
    free(data);
}

/* Counts that would run past a table of the reader, in a file that is long enough to serve them. */
static void refuses_absurd_counts(void **state)
{
    ddp_err err;
    char *data, *longer;
    size_t length, more = 8u << 20;

    (void)state;
    assert_int_equal(ddp_file_read(file, 1u << 24, &data, &length, &err), DDP_OK);
    longer = calloc(1, more);
    assert_non_null(longer);
    memcpy(longer, data, length);
    ((Elf64_Ehdr *)longer)->e_phnum = 0xffff;
    write_file(file, longer, more);
    REFUSED(file, "is damaged or cut short (its program headers make no sense)");
    free(longer);
    free(data);
}

/* Bytes changed at random, in the headers above all: no read outside the file (the sanitizers watch), no endless
 * loop, and a message whenever it is refused. */
static void survives_damage(void **state)
{
    static const uint64_t values[] = {
        0, 1, 0xff, 0x7fffffff, 0xffffffff, 0x8000000000000000u, UINT64_MAX, UINT64_MAX - 63};
    ddp_err err;
    char *data;
    size_t length;
    uint64_t random = 88172645463325252u; /* xorshift64 */
    int fd = memfd_create("damaged", 0), passed = 0, refused = 0;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(ddp_file_read(file, 1u << 24, &data, &length, &err), DDP_OK);
    (void)alarm(300);
    for (int round = 0; round < 6000; round++) {
        size_t changes = 1 + (size_t)round % 3;
        ddp_gate_facts facts;

        assert_int_equal(pwrite(fd, data, length, 0), length);
        for (size_t i = 0; i < changes; i++) {
            size_t at, size = 1u << (round % 4);
            uint64_t value;

            for (int k = 0; k < 3; k++) random ^= k == 1 ? random >> 7 : random << (k == 0 ? 13 : 17);
            at = (size_t)(random >> 8) % (round % 2 ? length : 2048) / size * size;
            value = random % 3 == 0 ? random : values[random % DDP_COUNT(values)];
            if (at + size <= length) assert_int_equal(pwrite(fd, &value, size, (off_t)at), size);
        }
        if (round % 16 == 15) assert_int_equal(ftruncate(fd, (off_t)(random % length)), 0);
        err.msg[0] = '\0';
        if (plugin_elf_read_facts(fd, "damaged.so", &facts, &err) == DDP_OK) {
            passed++;
        } else {
            SAYS(&err, "damaged.so");
            refused++;
        }
    }
    (void)alarm(0);
    assert_true(passed > 100 && refused > 100);
    (void)close(fd);
    free(data);
}

static void refuses_what_others_can_write(void **state)
{
    char moved[PATH_MAX + 32], above[PATH_MAX + 32];

    (void)state;
    assert_int_equal(chmod(file, 0757), 0);
    REFUSED(file, "is writable by everyone (mode 0757)", "its code is not run", "chmod o-w");
    assert_int_equal(chmod(file, 0755), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    REFUSED(file, "lies in", folder, "writable by everyone (mode 0777)", "chmod o-w");
    assert_int_equal(chmod(folder, 01777), 0); /* as /tmp is */
    PASSES(file);

    (void)snprintf(above, sizeof(above), "%s/above", folder);
    assert_int_equal(mkdir(above, 0755), 0);
    (void)snprintf(moved, sizeof(moved), "%s/above/sampler_good.so", folder);
    assert_int_equal(rename(file, moved), 0);
    PASSES(moved);
    assert_int_equal(chmod(folder, 0777), 0);
    REFUSED(moved, "lies in", "writable by everyone");
    assert_int_equal(chmod(folder, 0755), 0);
}

/* A link is followed, and both its own folder and the target's count. */
static void follows_links(void **state)
{
    char sub[PATH_MAX + 8], link[PATH_MAX + 32];

    (void)state;
    (void)snprintf(sub, sizeof(sub), "%s/sub", folder);
    (void)snprintf(link, sizeof(link), "%s/sampler_link.so", sub);
    assert_int_equal(mkdir(sub, 0755), 0);
    assert_int_equal(symlink(file, link), 0);
    PASSES(link);
    assert_int_equal(chmod(sub, 0777), 0);
    REFUSED(link, "lies in", sub, "writable by everyone");
    assert_int_equal(chmod(sub, 0755), 0);
    assert_int_equal(chmod(file, 0777), 0);
    REFUSED(link, "is writable by everyone");
    assert_int_equal(unlink(file), 0);
    REFUSED(link, "cannot be opened");
}

/* A group that somebody else is in, other than root's; 0 when this system has none. */
static gid_t shared_group(void)
{
    struct passwd *pw;
    gid_t gid = 0;

    setpwent();
    while (gid == 0 && (pw = getpwent()) != NULL)
        if (pw->pw_uid != 0 && pw->pw_uid != geteuid() && pw->pw_gid != 0) {
            struct group *gr = getgrgid(pw->pw_gid);
            if (gr != NULL) gid = gr->gr_gid;
        }
    endpwent();
    return gid;
}

static void checks_groups(void **state)
{
    gid_t shared = shared_group();

    (void)state;
    assert_int_equal(chmod(file, 0775), 0);
    if (getegid() == 0) PASSES(file);
    if (geteuid() != 0 || shared == 0) skip();
    if (chown(file, 0, shared) != 0) skip(); /* a user namespace without other users */
    assert_int_equal(chmod(file, 0775), 0);
    REFUSED(file, "is writable by its group (mode 0775)", "chmod g-w");
    assert_int_equal(chmod(file, 0755), 0);
    PASSES(file);
    assert_int_equal(chown(folder, 0, shared), 0);
    assert_int_equal(chmod(folder, 0775), 0);
    REFUSED(file, "lies in", folder, "writable by its group");
    assert_int_equal(chown(file, 54321, 54321), 0); /* a group of the owner's own, unknown here */
    assert_int_equal(chown(folder, 0, 0), 0);
    REFUSED(file, "belongs to user 54321");
}

/* Runs a copy of this program, owned by `owner`, on `file`; its exit status. */
static int gate_as_program_of(uid_t owner)
{
    char exe[PATH_MAX], program[PATH_MAX + 16];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    int status;
    pid_t pid;

    assert_true(n > 0);
    exe[n] = '\0';
    (void)snprintf(program, sizeof(program), "%s/program", folder);
    copy_file(exe, program);
    assert_int_equal(chown(program, owner, owner), 0);
    pid = fork();
    if (pid == 0) {
        (void)execl(program, program, "--gate", file, (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void checks_owners(void **state)
{
    (void)state;
    if (geteuid() != 0 || chown(file, 54321, 54321) != 0) skip();
    REFUSED(file, "belongs to user 54321", "its code is not run", "chown");
    /* root runs another user's checkout: program, folder and plugin are his, made under umask 002 */
    assert_int_equal(chown(folder, 54321, 54321), 0);
    assert_int_equal(chmod(file, 0775), 0);
    assert_int_equal(gate_as_program_of(54321), 0);
    assert_int_equal(gate_as_program_of(54322), 1);
    /* root's own file in a folder that somebody else can rearrange */
    assert_int_equal(chown(file, 0, 0), 0);
    REFUSED(file, "lies in", folder, "belongs to user 54321");
    assert_int_equal(gate_as_program_of(0), 0); /* unless he could rearrange the program just as well */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_the_words, set_up, tear_down),
        cmocka_unit_test_setup_teardown(needs_no_sections, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_what_is_no_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_what_is_no_plugin, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_other_machines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_what_was_cut_short, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_absurd_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(survives_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_what_others_can_write, set_up, tear_down),
        cmocka_unit_test_setup_teardown(follows_links, set_up, tear_down),
        cmocka_unit_test_setup_teardown(checks_groups, set_up, tear_down),
        cmocka_unit_test_setup_teardown(checks_owners, set_up, tear_down),
    };

    if (argc == 3 && strcmp(argv[1], "--gate") == 0) {
        ddp_gate_facts facts;
        ddp_err err;
        int fd;
        return ddp_gate_open(argv[2], &fd, &facts, &err) == DDP_OK ? 0 : 1;
    }
    return cmocka_run_group_tests_name("gate", tests, NULL, NULL);
}
