/* tests/fuzz/replay.c -- runs every target on the inputs that are kept in corpus/NAME/, as TAP: a case a target. Any
 * compiler will do. An input that ends the process is named before.
 *
 * replay [FOLDER [NAME]]: the folder that has the corpora, and one target alone. */
#include "fuzz.h"
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int target_main(const uint8_t *data, size_t size);
#define TARGET(name) target_main fuzz_##name;
#include "targets.h"
#undef TARGET

static const struct {
    const char *name;
    target_main *run;
} targets[] = {
#define TARGET(name) {#name, fuzz_##name},
#include "targets.h"
#undef TARGET
};

static char current[4096]; /* the input that runs, with a newline */

static void on_signal(int sig)
{
    (void)!write(STDERR_FILENO, "# with the input ", 17);
    (void)!write(STDERR_FILENO, current, strlen(current));
    (void)signal(sig, SIG_DFL);
    (void)raise(sig);
}

static void run_file(target_main *run, const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    struct stat facts;
    size_t size;

    FUZZ_CHECK(file != NULL && fstat(fileno(file), &facts) == 0);
    size = (size_t)facts.st_size;
    data = malloc(size > 0 ? size : 1); /* of just this size: what reads behind it is seen */
    FUZZ_CHECK(data != NULL && fread(data, 1, size, file) == size);
    (void)fclose(file);
    (void)run(data, size);
    free(data);
}

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* How many inputs there were. */
static int run_folder(target_main *run, const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_visible, alphasort);

    for (int i = 0; i < count; i++) {
        (void)snprintf(current, sizeof(current), "%s/%s\n", folder, entries[i]->d_name);
        current[strlen(current) - 1] = '\0';
        run_file(run, current);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    return count;
}

int main(int argc, char **argv)
{
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    const char *folder = argc > 1 ? argv[1] : DDP_SRCDIR "/tests/fuzz/corpus";
    char path[3000];
    int failed = 0, number = 0;

    for (size_t i = 0; i < DDP_COUNT(deadly); i++) (void)signal(deadly[i], on_signal);
    (void)printf("1..%zu\n", argc > 2 ? (size_t)1 : DDP_COUNT(targets));
    for (size_t i = 0; i < DDP_COUNT(targets); i++) {
        int count;

        if (argc > 2 && strcmp(argv[2], targets[i].name) != 0) continue;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, targets[i].name);
        count = run_folder(targets[i].run, path);
        failed += count <= 0;
        (void)printf("%sok %d - %s: %d inputs\n", count > 0 ? "" : "not ", ++number, targets[i].name,
                     DDP_MAX_OF(count, 0));
        (void)fflush(stdout);
    }
    return failed == 0 && number > 0 ? 0 : 1;
}
