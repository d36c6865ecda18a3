/* launch/secret.c -- the run's secret: read from [group] secret_file, made by the supervisor of --nproc, or written
 * to a new file for the user. It goes to the control plane and nowhere else: no line of a log or of an error shows
 * it, no command line and no environment. */
#include "launch/secret.h"
#include "base/sys.h"
#include "net/identity.h"
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MADE_BYTES = 32, LEAST_BYTES = 16, FILE_LIMIT = 256 };

ddp_status launch_secret_make(ddp_launch *l, ddp_err *err)
{
    DDP_TRY(ddp_secret_random(l->secret, MADE_BYTES, err));
    l->secret_length = MADE_BYTES;
    return DDP_OK;
}

/* ---- a file to read ---------------------------------------------------------------------------------------------- */
/* Of an open file, so that what was checked is what is read. */
static ddp_status check_file(int fd, const char *path, ddp_err *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0) return ddp_fail_errno(err, "cannot stat it");
    if (!S_ISREG(st.st_mode)) return ddp_fail(err, DDP_ERR_CONFIG, "it is not a regular file");
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "it belongs to user %u, who can read it; make your own copy",
                        (unsigned)st.st_uid);
    if ((st.st_mode & 077) != 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "users other than its owner may read or write it (mode %04o): run chmod 600 %s",
                        (unsigned)st.st_mode & 07777u, path);
    return DDP_OK;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* Hex digits and nothing else but white space after them. */
static ddp_status parse(const char *text, size_t length, ddp_launch *l, ddp_err *err)
{
    size_t n = 0;

    while (length > 0 && is_space(text[length - 1])) length--;
    for (; n < length && digit(text[n]) >= 0; n++)
        if (n / 2 < sizeof(l->secret))
            l->secret[n / 2] = (unsigned char)(n % 2 == 0 ? digit(text[n]) << 4 : l->secret[n / 2] | digit(text[n]));
    if (n == length && n % 2 == 0 && n >= (size_t)LEAST_BYTES * 2 && n / 2 <= sizeof(l->secret)) {
        l->secret_length = n / 2;
        return DDP_OK;
    }
    OPENSSL_cleanse(l->secret, sizeof(l->secret));
    return ddp_fail(err, DDP_ERR_CONFIG, "it does not hold a secret: one line of %d to %zu hex digits, an even number",
                    LEAST_BYTES * 2, sizeof(l->secret) * 2);
}

/* One that this process was started with, once it has been read: what a rank starts need not have it. */
static void keep_from_children(const char *path)
{
    int fd = -1, length = 0;

    if (sscanf(path, "/proc/self/fd/%d%n", &fd, &length) == 1 && path[length] == '\0' && fd > STDERR_FILENO)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static ddp_status load(const char *path, ddp_launch *l, ddp_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    char text[FILE_LIMIT];
    ddp_status status;
    ssize_t n;

    if (fd < 0) return ddp_fail_errno(err, "cannot open it");
    status = check_file(fd, path, err);
    if (status != DDP_OK) goto close_file;
    do n = read(fd, text, sizeof(text));
    while (n < 0 && errno == EINTR);
    status = n < 0 ? ddp_fail_errno(err, "cannot read it") : parse(text, (size_t)n, l, err);
    OPENSSL_cleanse(text, sizeof(text));
    keep_from_children(path);

close_file:
    (void)close(fd);
    return status;
}

ddp_status ddp_secret_load(const ddp_config *c, const char *of_supervisor, ddp_launch *l, ddp_err *err)
{
    const char *path = c->group->secret_file;
    const ddp_setting *s = ddp_settings_find(&c->settings, "group", "secret_file");

    if (path[0] == '\0' && of_supervisor != NULL && load(of_supervisor, l, err) != DDP_OK)
        return ddp_fail_context(err, "the secret of this run's --nproc, at %s", of_supervisor);
    if (path[0] == '\0' || load(path, l, err) == DDP_OK) return DDP_OK;
    (void)ddp_fail_context(err, "%s: [group] secret_file = %s", s == NULL ? "default" : s->where, path);
    if (err->sys_errno == ENOENT)
        (void)snprintf(err->msg + strlen(err->msg), sizeof(err->msg) - strlen(err->msg),
                       "; ddpengine --gen-secret FILE writes one, to be copied to all hosts");
    return err->status;
}

/* ---- a file to write --------------------------------------------------------------------------------------------- */
static ddp_status write_new(const char *path, const char *text, size_t length, ddp_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    ddp_status status;

    if (fd < 0 && errno == EEXIST)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s exists, and a secret that is in use must not be overwritten: "
                        "choose another name, or remove it first",
                        path);
    if (fd < 0) return ddp_fail_errno(err, "cannot create %s", path);
    status = ddp_write_all(fd, text, length, path, err);
    if (status == DDP_OK && fsync(fd) != 0 && errno != EINVAL) status = ddp_fail_errno(err, "cannot write %s", path);
    if (close(fd) != 0 && status == DDP_OK) status = ddp_fail_errno(err, "cannot write %s", path);
    if (status != DDP_OK) (void)unlink(path);
    return status;
}

/* A new one, as a file has it. */
static ddp_status make_text(char text[2 * MADE_BYTES + 2], ddp_err *err)
{
    ddp_launch l = {0};
    ddp_status status = launch_secret_make(&l, err);

    for (size_t i = 0; i < l.secret_length; i++) (void)snprintf(text + 2 * i, 3, "%02x", l.secret[i]);
    (void)snprintf(text + 2 * l.secret_length, 2, "\n");
    OPENSSL_cleanse(&l, sizeof(l));
    return status;
}

ddp_status launch_secret_share(int *fd, char *path, ddp_err *err)
{
    char text[2 * MADE_BYTES + 2];
    ddp_status status = make_text(text, err);

    *fd = status == DDP_OK ? memfd_create("ddpengine secret", MFD_CLOEXEC) : -1;
    if (status == DDP_OK && (*fd < 0 || fchmod(*fd, 0600) != 0)) /* what check_file demands of any secret */
        status = ddp_fail_errno(err, "cannot make memory for the secret of the run");
    if (status == DDP_OK) status = ddp_write_all(*fd, text, strlen(text), "the secret of the run", err);
    OPENSSL_cleanse(text, sizeof(text));
    (void)snprintf(path, DDP_SECRET_PATH_MAX, "/proc/%d/fd/%d", (int)getpid(), *fd);
    return status;
}

ddp_status ddp_secret_write(const char *path, ddp_err *err)
{
    char text[2 * MADE_BYTES + 2];
    ddp_status status = make_text(text, err);

    if (status == DDP_OK)
        status = path != NULL ? write_new(path, text, strlen(text), err)
                              : ddp_write_all(STDOUT_FILENO, text, strlen(text), "standard output", err);
    OPENSSL_cleanse(text, sizeof(text));
    return status;
}
