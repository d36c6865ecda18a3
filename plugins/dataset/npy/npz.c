/* plugins/dataset/npy/npz.c -- see npz.h. */
#include "npz.h"
#include "common/dataset.h"
#include "common/file.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zip.h>

enum { DEFLATE_MAX_RATIO = 1032 /* no deflate stream grows by more */ };

typedef struct member {
    const char *name; /* for messages */
    zip_file_t *file;
    uint64_t size, packed;
    npz_array *array;
} member;

static ddp_status fail_zip(const char *name, zip_error_t *why, ddp_err *err)
{
    ddp_status status = ddp_fail(err, zip_error_code_zip(why) == ZIP_ER_MEMORY ? DDP_ERR_NOMEM : DDP_ERR_DATA,
                                 "dataset npy: %s cannot be read: libzip says \"%s\"; write it again by numpy.savez",
                                 name, zip_error_strerror(why));

    err->lib_code = zip_error_code_zip(why);
    return status;
}

/* ---- one member -------------------------------------------------------------------------------------------------- */
/* Exactly `bytes` of them. */
static ddp_status read_bytes(const member *m, void *out, uint64_t bytes, ddp_err *err)
{
    uint64_t done = 0;

    while (done < bytes) {
        zip_int64_t n = zip_fread(m->file, (char *)out + done, bytes - done);

        if (n < 0) return fail_zip(m->name, zip_file_get_error(m->file), err);
        if (n == 0)
            return ddp_fail(err, DDP_ERR_DATA, "dataset npy: %s is truncated; write it again by numpy.savez", m->name);
        done += (uint64_t)n;
    }
    return DDP_OK;
}

static ddp_status read_header(const member *m, size_t *length, ddp_err *err)
{
    uint8_t start[NPY_START] = {0};
    size_t have = m->size < NPY_START ? (size_t)m->size : NPY_START, at, bytes;
    char *text;
    ddp_status status;

    DDP_TRY(read_bytes(m, start, have, err));
    DDP_TRY(npy_header_start(m->name, start, have, &at, &bytes, err));
    *length = at + bytes;
    if (*length > m->size || *length < have)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s is truncated within its header; write it again by numpy.savez", m->name);
    text = malloc(*length + 1);
    if (text == NULL) return data_no_memory("npy", err);
    memcpy(text, start, have);
    status = read_bytes(m, text + have, *length - have, err);
    if (status == DDP_OK) status = npy_header_parse(m->name, text + at, bytes, &m->array->header, err);
    free(text);
    return status;
}

static ddp_status check_size(const member *m, size_t header, ddp_err *err)
{
    uint64_t bytes = m->array->header.bytes;

    if (m->size - header != bytes)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s: its header promises %" PRIu64 " bytes of elements, the zip file has %" PRIu64
                        "; write it again by numpy.savez",
                        m->name, bytes, m->size - header);
    if (m->size / DEFLATE_MAX_RATIO > m->packed)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s: %" PRIu64 " bytes cannot be packed into %" PRIu64
                        "; the file is damaged, write it again by numpy.savez",
                        m->name, m->size, m->packed);
    return DDP_OK;
}

/* The elements, and that nothing follows them: at the end libzip compares the checksum. */
static ddp_status read_elements(const member *m, ddp_err *err)
{
    npz_array *a = m->array;
    uint8_t beyond;
    zip_int64_t n;

    a->map = mmap(NULL, a->header.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->map == MAP_FAILED) {
        a->map = NULL;
        return ddp_fail(err, DDP_ERR_NOMEM,
                        "dataset npy: %s: no memory for its %" PRIu64
                        " bytes; write the array by numpy.save, which is read where it is",
                        m->name, a->header.bytes);
    }
    if (read_bytes(m, a->map, a->header.bytes, err) != DDP_OK) goto unmap;
    n = zip_fread(m->file, &beyond, 1);
    if (n == 0) return DDP_OK;
    if (n < 0)
        (void)fail_zip(m->name, zip_file_get_error(m->file), err);
    else
        (void)ddp_fail(err, DDP_ERR_DATA, "dataset npy: %s is too long; write it again by numpy.savez", m->name);
unmap:
    munmap(a->map, a->header.bytes);
    a->map = NULL;
    return err->status;
}

static ddp_status read_member(zip_t *zip, zip_int64_t index, const char *name, npz_array *out, ddp_err *err)
{
    member m = {.name = name, .array = out};
    zip_stat_t st;
    size_t header;
    ddp_status status;

    if (zip_stat_index(zip, (zip_uint64_t)index, 0, &st) != 0) return fail_zip(name, zip_get_error(zip), err);
    if (st.comp_method != ZIP_CM_STORE && st.comp_method != ZIP_CM_DEFLATE)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset npy: %s is packed by method %u; write it by numpy.savez or numpy.savez_compressed",
                        name, st.comp_method);
    m.size = st.size;
    m.packed = st.comp_size;
    m.file = zip_fopen_index(zip, (zip_uint64_t)index, 0);
    if (m.file == NULL) return fail_zip(name, zip_get_error(zip), err);
    status = read_header(&m, &header, err);
    if (status == DDP_OK) status = check_size(&m, header, err);
    if (status == DDP_OK) status = read_elements(&m, err);
    (void)zip_fclose(m.file);
    return status;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
/* "x, y", as far as they fit, without .npy. */
static const char *list_members(zip_t *zip, char *room, size_t size)
{
    zip_int64_t count = zip_get_num_entries(zip, 0);
    size_t used = 0;

    room[0] = '\0';
    for (zip_int64_t i = 0; i < count && used < size; i++) {
        const char *name = zip_get_name(zip, (zip_uint64_t)i, 0);
        size_t length = name != NULL ? strlen(name) : 0;

        if (length > 4 && strcmp(name + length - 4, ".npy") == 0) length -= 4;
        used += (size_t)snprintf(room + used, size - used, "%s%.*s", i > 0 ? ", " : "",
                                 (int)(length < 40 ? length : 40), name != NULL ? name : "");
    }
    return room;
}

static ddp_status find(zip_t *zip, const char *path, const char *option, const char *wanted, zip_int64_t *index,
                       ddp_err *err)
{
    size_t size = strlen(wanted) + 5;
    char *name = malloc(size), room[200];

    if (name == NULL) return data_no_memory("npy", err);
    (void)snprintf(name, size, "%s.npy", wanted);
    *index = zip_name_locate(zip, name, 0);
    if (*index < 0) *index = zip_name_locate(zip, wanted, 0);
    free(name);
    if (*index >= 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "dataset npy: %s = %.60s: \"%s\" has no such array; it has: %s", option,
                    wanted, path, list_members(zip, room, sizeof(room)));
}

static ddp_status open_zip(const char *path, zip_t **out, ddp_err *err)
{
    data_file file;
    zip_error_t why;
    int fd, code = 0;

    DDP_TRY(data_file_open(&file, "npy", path, "; set path to your .npz file", err));
    fd = fcntl(file.fd, F_DUPFD_CLOEXEC, 0);
    data_file_close(&file);
    if (fd < 0) return ddp_fail(err, DDP_ERR_SYSTEM, "dataset npy: no further file can be opened; raise ulimit -n");
    *out = zip_fdopen(fd, 0, &code); /* has the descriptor where it works */
    if (*out != NULL) return DDP_OK;
    close(fd);
    zip_error_init_with_code(&why, code);
    (void)fail_zip(path, &why, err);
    zip_error_fini(&why);
    return err->status;
}

ddp_status npz_read(const char *path, const char *option, const char *wanted, const char *name, npz_array *out,
                    ddp_err *err)
{
    zip_t *zip;
    zip_int64_t index = -1;
    ddp_status status;

    DDP_TRY(open_zip(path, &zip, err));
    status = find(zip, path, option, wanted, &index, err);
    if (status == DDP_OK) status = read_member(zip, index, name, out, err);
    zip_discard(zip);
    return status;
}
