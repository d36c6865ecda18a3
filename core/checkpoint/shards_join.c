/* checkpoint/shards_join.c -- the optimiser's state of a checkpoint in shards, as tensors: found and checked in the
 * headers of the files, copied to where they are wanted, or put together in memory. */
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
    const ddp_safetensors *file;
    const ddp_named_tensor *part; /* "NAME:START" */
    size_t name_length;
    uint64_t start, count;
} piece;

struct ddp_shard_files {
    ddp_safetensors **files; /* mapped */
    uint32_t file_count;
    piece *pieces; /* by name and start */
    size_t piece_count;
    ddp_named_tensor *whole; /* by name; their data are in the pieces first[i] .. first[i + 1] - 1 */
    size_t *first, whole_count;
    ddp_pool pool;
};

/* What is being opened. */
typedef struct opening {
    const char *folder;
    const ddp_safetensors *model;
    ddp_shard_files *s;
} opening;

/* ---- what is there ----------------------------------------------------------------------------------------------- */
static ddp_status bad(const opening *o, const char *name, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "%s: the shards of the optimiser's state do not fit together: %.100s %s",
                    o->folder, name, what);
}

static ddp_status open_files(const opening *o, const ddp_manifest *m, ddp_err *err)
{
    ddp_shard_files *s = o->s;
    char name[DDP_FILE_NAME];
    ddp_path path;

    s->files = ddp_alloc(m->shard_count * sizeof(*s->files), err);
    if (s->files == NULL) return err->status;
    for (; s->file_count < m->shard_count; s->file_count++) {
        checkpoint_shard_file(name, s->file_count, m->shard_count);
        DDP_TRY(checkpoint_path_join(path.text, o->folder, name, err));
        DDP_TRY(ddp_safetensors_open(path.text, &s->files[s->file_count], err));
        s->piece_count += ddp_safetensors_count(s->files[s->file_count]);
    }
    return DDP_OK;
}

static ddp_status read_piece(const opening *o, const ddp_safetensors *file, size_t i, piece *out, ddp_err *err)
{
    const ddp_named_tensor *t = ddp_safetensors_at(file, i);
    const char *colon = strrchr(t->name, ':');
    size_t digits = colon == NULL ? 0 : strspn(colon + 1, "0123456789");

    if (digits == 0 || digits > 18 || colon[1 + digits] != '\0') return bad(o, t->name, "is no piece of a tensor", err);
    if (t->dtype != DDP_F32 || t->rank != 1) return bad(o, t->name, "is not a row of F32", err);
    *out = (piece){.file = file,
                   .part = t,
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

static ddp_status list_pieces(const opening *o, ddp_err *err)
{
    ddp_shard_files *s = o->s;
    size_t n = 0;

    s->pieces = ddp_alloc((s->piece_count + 1) * sizeof(*s->pieces), err);
    if (s->pieces == NULL) return err->status;
    for (uint32_t f = 0; f < s->file_count; f++)
        for (size_t i = 0; i < ddp_safetensors_count(s->files[f]); i++)
            DDP_TRY(read_piece(o, s->files[f], i, &s->pieces[n++], err));
    qsort(s->pieces, s->piece_count, sizeof(*s->pieces), compare_pieces);
    return DDP_OK;
}

/* The tensor whose pieces begin at `first`, *next those behind it: of the shape of its parameter, and all there. */
static ddp_status add_whole(const opening *o, size_t first, size_t *next, ddp_err *err)
{
    ddp_shard_files *s = o->s;
    const piece *p = &s->pieces[first];
    char *name = ddp_pool_printf(&s->pool, err, "%.*s", (int)p->name_length, p->part->name), *dot;
    char *of = name == NULL ? NULL : ddp_pool_printf(&s->pool, err, "%s", name);
    const ddp_named_tensor *like;
    uint64_t at = 0, bytes = 0;

    if (of == NULL) return err->status;
    dot = strrchr(of, '.');
    if (dot == NULL) return bad(o, name, "is of no parameter", err);
    *dot = '\0';
    like = ddp_safetensors_find(o->model, of);
    if (like == NULL || like->dtype != DDP_F32 || !checkpoint_safetensors_bytes(like, &bytes))
        return bad(o, name, "is of no parameter of the model", err);
    for (*next = first; *next < s->piece_count && compare_names(p, &s->pieces[*next]) == 0; (*next)++) {
        if (s->pieces[*next].start != at) return bad(o, name, "has a piece twice, or lacks one", err);
        at += s->pieces[*next].count;
    }
    if (at != bytes / sizeof(float)) return bad(o, name, "is not whole", err);
    s->whole[s->whole_count] = *like;
    s->whole[s->whole_count].name = name;
    s->whole[s->whole_count].data = NULL;
    s->first[s->whole_count++] = first;
    return DDP_OK;
}

static ddp_status list_whole(const opening *o, ddp_err *err)
{
    ddp_shard_files *s = o->s;

    s->whole = ddp_alloc((s->piece_count + 1) * sizeof(*s->whole), err);
    s->first = s->whole == NULL ? NULL : ddp_alloc((s->piece_count + 1) * sizeof(*s->first), err);
    if (s->first == NULL) return err->status;
    for (size_t i = 0; i < s->piece_count;) DDP_TRY(add_whole(o, i, &i, err));
    s->first[s->whole_count] = s->piece_count;
    return DDP_OK;
}

ddp_status checkpoint_shards_open(const char *folder, const ddp_manifest *m, const ddp_safetensors *model,
                                  ddp_shard_files **out, ddp_err *err)
{
    opening o = {.folder = folder, .model = model, .s = ddp_alloc(sizeof(*o.s), err)};
    ddp_status st = o.s == NULL ? err->status : open_files(&o, m, err);

    if (st == DDP_OK) st = list_pieces(&o, err);
    if (st == DDP_OK) st = list_whole(&o, err);
    if (st == DDP_OK)
        *out = o.s;
    else
        checkpoint_shards_close(o.s);
    return st;
}

void checkpoint_shards_close(ddp_shard_files *s)
{
    if (s == NULL) return;
    for (uint32_t f = 0; f < s->file_count; f++) ddp_safetensors_close(s->files[f]);
    free(s->files);
    free(s->pieces);
    free(s->whole);
    free(s->first);
    ddp_pool_free(&s->pool);
    free(s);
}

size_t checkpoint_shards_count(const ddp_shard_files *s) { return s->whole_count; }

const ddp_named_tensor *checkpoint_shards_at(const ddp_shard_files *s, size_t i)
{
    return i < s->whole_count ? &s->whole[i] : NULL;
}

static int compare_whole(const void *a, const void *b)
{
    const ddp_named_tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

const ddp_named_tensor *checkpoint_shards_find(const ddp_shard_files *s, const char *name)
{
    const ddp_named_tensor key = {.name = name};

    return s->whole_count == 0 ? NULL : bsearch(&key, s->whole, s->whole_count, sizeof(*s->whole), compare_whole);
}

/* ---- what it holds ----------------------------------------------------------------------------------------------- */
void checkpoint_shards_copy(const ddp_shard_files *s, const ddp_named_tensor *t, void *to)
{
    size_t i = (size_t)(t - s->whole);
    char *at = to;

    for (const piece *p = &s->pieces[s->first[i]]; p < &s->pieces[s->first[i + 1]]; p++) {
        memcpy(at, p->part->data, p->count * sizeof(float));
        checkpoint_safetensors_release(p->file, p->part);
        at += p->count * sizeof(float);
    }
}

ddp_status checkpoint_shards_pieces(const ddp_shard_files *s, const ddp_named_tensor *t, uint64_t most,
                                    checkpoint_take_piece take, void *ctx, ddp_err *err)
{
    size_t i = (size_t)(t - s->whole);
    uint64_t at = 0;

    for (const piece *p = &s->pieces[s->first[i]]; p < &s->pieces[s->first[i + 1]]; p++) {
        DDP_TRY(checkpoint_safetensors_pieces(p->file, p->part, at, most, take, ctx, err));
        at += p->count * sizeof(float);
    }
    return DDP_OK;
}

/* The same bytes as those of a file of the whole. */
ddp_status checkpoint_shards_join(const char *folder, const ddp_shard_files *s, ddp_safetensors **out, ddp_err *err)
{
    char *head = NULL, *map, *to;
    size_t length = 0, bytes;
    uint64_t of_one = 0;

    DDP_TRY(checkpoint_safetensors_header(s->whole, s->whole_count, NULL, &head, &length, err));
    bytes = length;
    for (size_t i = 0; i < s->piece_count; i++) bytes += s->pieces[i].count * sizeof(float);
    map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        free(head);
        return ddp_fail(err, DDP_ERR_NOMEM, "%s: no memory for the %zu bytes of the optimiser's state", folder, bytes);
    }
    memcpy(map, head, length);
    free(head);
    to = map + length;
    for (size_t i = 0; i < s->whole_count; i++) {
        checkpoint_shards_copy(s, &s->whole[i], to);
        (void)checkpoint_safetensors_bytes(&s->whole[i], &of_one);
        to += of_one;
    }
    return checkpoint_safetensors_adopt(folder, map, bytes, out, err);
}
