/* plugin/gate.c -- checks a plugin file before any of its code can run: who could have written it, and what it is.
 *
 * Constructors run inside dlopen, so everything here works on the opened descriptor, which is the one that is loaded
 * later. "Others" are everyone but root, the effective user and the owner of the ddpengine executable (root may run
 * another user's checkout). A folder above the file may also belong to whoever owns a folder above the executable,
 * for he can replace the program itself. A group counts as others unless it is root's or nobody else is in it
 * (Debian gives each user a group of his own, and umask 002). What the file's words mean is left to kinds.c. */
#include "plugin/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Cuts the last component off an absolute path; false when nothing is left above it. */
static bool cut_last(char *absolute)
{
    char *slash = strrchr(absolute, '/');

    if (slash == NULL || absolute[1] == '\0') return false;
    slash[slash == absolute] = '\0'; /* "/lib" becomes "/" */
    return true;
}

static bool is_trusted(uid_t uid)
{
    struct stat st;

    return uid == 0 || uid == geteuid() || (stat("/proc/self/exe", &st) == 0 && st.st_uid == uid);
}

/* True for the owners of the folders above the executable as well. */
static bool is_trusted_with_folders(uid_t uid)
{
    char path[PATH_MAX];
    struct stat st;
    ssize_t n;

    if (is_trusted(uid)) return true;
    n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (n <= 0 || path[0] != '/') return false;
    path[n] = '\0';
    while (cut_last(path))
        if (stat(path, &st) == 0 && st.st_uid == uid) return true;
    return false;
}

/* Looks through the local users: is `name` (or, with name NULL, anyone whose own group is gid) somebody to distrust?
 * A member that /etc/passwd does not know is. */
static bool someone_else(const char *name, gid_t gid, uid_t owner)
{
    char buf[4096];
    struct passwd pw, *entry;
    bool other = name != NULL;
    FILE *file = fopen("/etc/passwd", "re");

    if (file == NULL) return true;
    while (fgetpwent_r(file, &pw, buf, sizeof(buf), &entry) == 0) {
        bool trusted = pw.pw_uid == owner || is_trusted(pw.pw_uid);
        if (name != NULL && strcmp(pw.pw_name, name) == 0) other = !trusted;
        if (name == NULL && pw.pw_gid == gid && !trusted) other = true;
    }
    (void)fclose(file);
    return other;
}

/* A group in which nobody but the owner and trusted users are. Local files only: no name service runs in the gate. */
static bool group_is_private(gid_t gid, uid_t owner)
{
    char buf[16384];
    struct group gr, *entry = NULL;
    FILE *file;
    bool found = false, others = false;

    if (gid == 0) return true;
    file = fopen("/etc/group", "re");
    if (file == NULL) return false;
    while (!found && fgetgrent_r(file, &gr, buf, sizeof(buf), &entry) == 0) found = gr.gr_gid == gid;
    (void)fclose(file);
    if (!found) return gid == owner; /* a user that only a directory service or a container knows */
    for (char **member = gr.gr_mem; *member != NULL && !others; member++) others = someone_else(*member, gid, owner);
    return !others && !someone_else(NULL, gid, owner);
}

/* Who besides the owner may write: NULL for nobody, else the words and the chmod that takes it away. */
static const char *other_writers(const struct stat *st, const char **remedy)
{
    if ((st->st_mode & S_IWOTH) != 0) {
        *remedy = "o-w";
        return "everyone";
    }
    if ((st->st_mode & S_IWGRP) != 0 && !group_is_private(st->st_gid, st->st_uid)) {
        *remedy = "g-w";
        return "its group";
    }
    return NULL;
}

static ddp_status check_file(int fd, const char *path, ddp_err *err)
{
    struct stat st;
    const char *who, *remedy;

    if (fstat(fd, &st) != 0) return ddp_fail_errno(err, "%s cannot be read", path);
    if (!S_ISREG(st.st_mode))
        return ddp_fail(err, DDP_ERR_INVALID, "%s is not a regular file: a plugin is a shared object", path);
    if (!is_trusted(st.st_uid))
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s belongs to user %u, who is neither root, nor you, nor the owner of ddpengine: its code is not run. If you trust it, make it yours with chown",
            path, (unsigned)st.st_uid);
    who = other_writers(&st, &remedy);
    if (who != NULL)
        return ddp_fail(err, DDP_ERR_INVALID, "%s is writable by %s (mode %04o): its code is not run. chmod %s %s",
                        path, who, (unsigned)(st.st_mode & 07777), remedy, path);
    return DDP_OK;
}

static ddp_status check_folder(const char *folder, const char *path, ddp_err *err)
{
    struct stat st;
    const char *who, *remedy;

    if (stat(folder, &st) != 0) return ddp_fail_errno(err, "%s: folder %s cannot be examined", path, folder);
    if (!is_trusted_with_folders(st.st_uid))
        return ddp_fail(
            err, DDP_ERR_INVALID,
            "%s lies in %s, which belongs to user %u, who is neither root, nor you, nor the owner of ddpengine: its code is not run. Move it, or chown the folder",
            path, folder, (unsigned)st.st_uid);
    if ((st.st_mode & S_ISVTX) != 0) return DDP_OK; /* /tmp: nobody can replace what is not his */
    who = other_writers(&st, &remedy);
    if (who != NULL)
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s lies in %s, which is writable by %s (mode %04o): its code is not run. chmod %s %s", path,
                        folder, who, (unsigned)(st.st_mode & 07777), remedy, folder);
    return DDP_OK;
}

/* The folder and every one above it; `folder` is absolute, free of links, and used up. */
static ddp_status check_folders(char *folder, const char *path, ddp_err *err)
{
    do {
        DDP_TRY(check_folder(folder, path, err));
    } while (cut_last(folder));
    return DDP_OK;
}

/* The folder that the file is in, and where a link led to it the folder of that link: who writes there chooses what is
 * loaded. */
static ddp_status check_place(int fd, const char *path, ddp_err *err)
{
    char real[PATH_MAX], named[PATH_MAX];
    char *slash;

    DDP_TRY(plugin_fd_path(fd, real, err));
    if (!cut_last(real)) return ddp_fail(err, DDP_ERR_INVALID, "%s has no folder: was it moved just now?", path);
    DDP_TRY(check_folders(real, path, err));
    ddp_copy_text(named, sizeof(named), path);
    slash = strrchr(named, '/');
    if (slash == NULL)
        ddp_copy_text(named, sizeof(named), ".");
    else
        slash[slash == named] = '\0';
    if (realpath(named, real) == NULL) return ddp_fail_errno(err, "%s: its folder cannot be examined", path);
    return check_folders(real, path, err);
}

ddp_status plugin_fd_path(int fd, char *out, ddp_err *err)
{
    char link[DDP_PROC_FD_MAX];
    ssize_t n;

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, out, PATH_MAX - 1);
    if (n < 0) return ddp_fail_errno(err, "%s cannot be read (is /proc mounted?)", link);
    out[n] = '\0';
    return DDP_OK;
}

ddp_status ddp_gate_open(const char *path, int *out, ddp_gate_facts *facts, ddp_err *err)
{
    ddp_status status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO without a writer must not block */

    if (fd < 0) return ddp_fail_errno(err, "%s cannot be opened", path);
    status = check_file(fd, path, err);
    if (status == DDP_OK) status = check_place(fd, path, err);
    if (status == DDP_OK) status = plugin_elf_read_facts(fd, path, facts, err);
    if (status != DDP_OK) {
        (void)close(fd);
        return status;
    }
    *out = fd;
    return DDP_OK;
}
