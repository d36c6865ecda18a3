/* tests/fuzz/fuzz.c -- see fuzz.h. */
#include "fuzz.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_FD = 200, PATH_ROOM = 32, FOLDERS = 32, FOLDER_NAMES = 8, FOLDER_ROOM = 64, NAME_ROOM = 128 };

const uint8_t *fuzz_take(fuzz_input *in, size_t length)
{
    const uint8_t *p = in->at;

    if (in->left < length) {
        in->left = 0;
        return NULL;
    }
    in->at += length;
    in->left -= length;
    return p;
}

uint8_t fuzz_u8(fuzz_input *in)
{
    const uint8_t *p = fuzz_take(in, 1);

    return p == NULL ? 0 : *p;
}

uint16_t fuzz_u16(fuzz_input *in)
{
    unsigned low = fuzz_u8(in);

    return (uint16_t)(low | (unsigned)fuzz_u8(in) << 8);
}

const uint8_t *fuzz_some(fuzz_input *in, size_t *length)
{
    *length = DDP_MIN_OF(*length, in->left);
    return fuzz_take(in, *length);
}

char *fuzz_text(fuzz_input *in, uint8_t stop)
{
    const uint8_t *end = in->left == 0 ? NULL : memchr(in->at, stop, in->left);
    size_t length = end == NULL ? in->left : (size_t)(end - in->at);
    char *text = malloc(length + 1);

    FUZZ_CHECK(text != NULL);
    if (length > 0) memcpy(text, in->at, length);
    text[length] = '\0';
    (void)fuzz_take(in, length + (end != NULL));
    return text;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
int fuzz_file_descriptor(unsigned number)
{
    int fd = FIRST_FD + (int)number, made;

    FUZZ_CHECK(number < FUZZ_FILES);
    if (fcntl(fd, F_GETFD) < 0) {
        made = memfd_create("fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(made >= 0 && dup3(made, fd, O_CLOEXEC) == fd);
        FUZZ_CHECK(close(made) == 0 && fchmod(fd, 0600) == 0);
    }
    FUZZ_CHECK(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

const char *fuzz_file(unsigned number, const void *data, size_t length, size_t size)
{
    static char paths[FUZZ_FILES][PATH_ROOM];
    int fd = fuzz_file_descriptor(number);

    FUZZ_CHECK(ftruncate(fd, 0) == 0);
    FUZZ_CHECK(length == 0 || pwrite(fd, data, length, 0) == (ssize_t)length);
    if (size > length) FUZZ_CHECK(ftruncate(fd, (off_t)size) == 0);
    (void)snprintf(paths[number], PATH_ROOM, "/proc/self/fd/%d", fd);
    return paths[number];
}

/* What is removed at the end. */
static struct {
    char path[FOLDER_ROOM];
    const char *names[FOLDER_NAMES];
    size_t count;
} folders[FOLDERS];
static size_t folder_count;

static void remove_folders(void)
{
    char path[sizeof(folders[0].path) + NAME_ROOM];

    for (size_t f = 0; f < folder_count; f++) {
        for (size_t i = 0; i < folders[f].count; i++) {
            (void)snprintf(path, sizeof(path), "%.*s/%.100s", FOLDER_ROOM, folders[f].path, folders[f].names[i]);
            (void)unlink(path);
        }
        (void)rmdir(folders[f].path);
    }
}

const char *fuzz_folder(unsigned first, const char *const *names, size_t count)
{
    size_t f = folder_count++;
    char link[256], target[PATH_ROOM];

    FUZZ_CHECK(f < FOLDERS && count <= FOLDER_NAMES);
    if (f == 0) FUZZ_CHECK(atexit(remove_folders) == 0);
    (void)snprintf(folders[f].path, sizeof(folders[f].path), "/tmp/ddpengine-fuzz-XXXXXX");
    FUZZ_CHECK(mkdtemp(folders[f].path) != NULL);
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(link, sizeof(link), "%.*s/%.100s", FOLDER_ROOM, folders[f].path, names[i]);
        (void)snprintf(target, sizeof(target), "/proc/self/fd/%d", FIRST_FD + (int)first + (int)i);
        FUZZ_CHECK(symlink(target, link) == 0);
        folders[f].names[i] = names[i];
    }
    folders[f].count = count;
    return folders[f].path;
}

/* ---- what the parsers say ---------------------------------------------------------------------------------------- */
ddp_log *fuzz_log(void)
{
    static ddp_log log;

    if (log.fd == 0) {
        ddp_log_init(&log);
        log.fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        log.level = DDP_LOG_DEBUG;
        FUZZ_CHECK(log.fd > 0);
    }
    return &log;
}

void fuzz_check_error(ddp_status status, const ddp_err *err)
{
    if (status == DDP_OK || status == DDP_IN_PROGRESS) return;
    FUZZ_CHECK(err->status == status);
    FUZZ_CHECK(err->msg[0] != '\0' && memchr(err->msg, '\0', sizeof(err->msg)) != NULL);
}
