/* checkpoint/shards_join.c -- the optimiser's state of a checkpoint in shards, put together in memory. */
#include "checkpoint/folder.h"
#include "checkpoint/safetensors/format.h"
#include "checkpoint/shards.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Some elements of a tensor. */
typedef struct piece {
    const ddp_named_tensor *part; /* "NAME:START" */
    size_t name_length;
    uint64_t start, count;
} piece;

typedef struct joining {
    const char *folder;
    const ddp_safetensors *model;
    ddp_safetensors **files;
    uint32_t file_count;
    piece *pieces; /* by name and start */
    size_t count;
    ddp_named_tensor *whole;
    size_t whole_count;
    uint64_t elements;
    ddp_pool pool;
} joining;

static ddp_status bad(const joining *j, const char *name, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "%s: the shards of the optimiser's state do not fit together: %.100s %s",
                    j->folder, name, what);
}

static ddp_status open_files(joining *j, const ddp_manifest *m, ddp_err *err)
{
    char name[DDP_FILE_NAME];
    ddp_path path;

    j->files = ddp_alloc(m->shard_count * sizeof(*j->files), err);
    if (j->files == NULL) return err->status;
    for (; j->file_count < m->shard_count; j->file_count++) {
        checkpoint_shard_file(name, j->file_count, m->shard_count);
        DDP_TRY(checkpoint_path_join(path.text, j->folder, name, err));
        DDP_TRY(ddp_safetensors_open(path.text, &j->files[j->file_count], err));
        j->count += ddp_safetensors_count(j->files[j->file_count]);
    }
    return DDP_OK;
}

static ddp_status read_piece(const joining *j, const ddp_named_tensor *t, piece *out, ddp_err *err)
{
    const char *colon = strrchr(t->name, ':');
    size_t digits = colon == NULL ? 0 : strspn(colon + 1, "0123456789");

    if (digits == 0 || digits > 18 || colon[1 + digits] != '\0') return bad(j, t->name, "is no piece of a tensor", err);
    if (t->dtype != DDP_F32 || t->rank != 1) return bad(j, t->name, "is not a row of F32", err);
    *out = (piece){.part = t,
                   .name_length = (size_t)(colon - t->name),
                   .start = strtoull(colon + 1, NULL, 10),
                   .count = (uint64_t)t->dims[0]};
    return DDP_OK;
}

static int compare_names(const piece *a, const piece *b)
{
    size_t n = DDP_MIN_OF(a->name_length, b->name_length);
    int c = memcmp(a->part->name, b->part->name, n);

    return c != 0 ? c : a->name_length < b->name_length ? -1 : a->name_length > b->name_length;
}

static int compare_pieces(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    int c = compare_names(x, y);

    return c != 0 ? c : x->start < y->start ? -1 : x->start > y->start;
}

static ddp_status list_pieces(joining *j, ddp_err *err)
{
    size_t n = 0;

    j->pieces = ddp_alloc((j->count + 1) * sizeof(*j->pieces), err);
    j->whole = j->pieces == NULL ? NULL : ddp_pool_alloc(&j->pool, (j->count + 1) * sizeof(*j->whole), err);
    if (j->whole == NULL) return err->status;
    for (uint32_t f = 0; f < j->file_count; f++)
        for (size_t i = 0; i < ddp_safetensors_count(j->files[f]); i++)
            DDP_TRY(read_piece(j, ddp_safetensors_at(j->files[f], i), &j->pieces[n++], err));
    qsort(j->pieces, j->count, sizeof(*j->pieces), compare_pieces);
    return DDP_OK;
}

/* The tensor whose pieces begin at `first`, *next those behind it: of the shape of its parameter, and all there. */
static ddp_status add_whole(joining *j, size_t first, size_t *next, ddp_err *err)
{
    const piece *p = &j->pieces[first];
    char *name = ddp_pool_printf(&j->pool, err, "%.*s", (int)p->name_length, p->part->name), *dot;
    char *of = name == NULL ? NULL : ddp_pool_printf(&j->pool, err, "%s", name);
    const ddp_named_tensor *like;
    uint64_t at = 0, bytes = 0;

    if (of == NULL) return err->status;
    dot = strrchr(of, '.');
    if (dot == NULL) return bad(j, name, "is of no parameter", err);
    *dot = '\0';
    like = ddp_safetensors_find(j->model, of);
    if (like == NULL || like->dtype != DDP_F32 || !checkpoint_safetensors_bytes(like, &bytes))
        return bad(j, name, "is of no parameter of the model", err);
    for (*next = first; *next < j->count && compare_names(p, &j->pieces[*next]) == 0; (*next)++) {
        if (j->pieces[*next].start != at) return bad(j, name, "has a piece twice, or lacks one", err);
        at += j->pieces[*next].count;
    }
    if (at != bytes / sizeof(float)) return bad(j, name, "is not whole", err);
    j->whole[j->whole_count] = *like;
    j->whole[j->whole_count++].name = name;
    j->elements += at;
    return DDP_OK;
}

static ddp_status list_whole(joining *j, ddp_err *err)
{
    for (size_t i = 0; i < j->count;) DDP_TRY(add_whole(j, i, &i, err));
    return DDP_OK;
}

/* The same bytes as those of a file of the whole. In order of the names, as the pieces are. */
static ddp_status build(joining *j, ddp_safetensors **out, ddp_err *err)
{
    char *head = NULL, *map, *to;
    size_t length = 0, bytes;

    DDP_TRY(checkpoint_safetensors_header(j->whole, j->whole_count, NULL, &head, &length, err));
    bytes = length + j->elements * sizeof(float);
    map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        free(head);
        return ddp_fail(err, DDP_ERR_NOMEM, "%s: no memory for the %" PRIu64 " bytes of the optimiser's state",
                        j->folder, j->elements * (uint64_t)sizeof(float));
    }
    memcpy(map, head, length);
    free(head);
    to = map + length;
    for (size_t i = 0; i < j->count; i++) {
        memcpy(to, j->pieces[i].part->data, j->pieces[i].count * sizeof(float));
        to += j->pieces[i].count * sizeof(float);
    }
    return checkpoint_safetensors_adopt(j->folder, map, bytes, out, err);
}

ddp_status checkpoint_shards_join(const char *folder, const ddp_manifest *m, const ddp_safetensors *model,
                                  ddp_safetensors **out, ddp_err *err)
{
    joining j = {.folder = folder, .model = model};
    ddp_status st = open_files(&j, m, err);

    if (st == DDP_OK) st = list_pieces(&j, err);
    if (st == DDP_OK) st = list_whole(&j, err);
    if (st == DDP_OK) st = build(&j, out, err);
    for (uint32_t f = 0; f < j.file_count; f++) ddp_safetensors_close(j.files[f]);
    free(j.files);
    free(j.pieces);
    ddp_pool_free(&j.pool);
    return st;
}
