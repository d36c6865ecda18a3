/* checkpoint/shards.c -- writing shards and moving them to their checkpoint. Putting them together is in
 * shards_join.c. */
#include "checkpoint/shards.h"
#include "checkpoint/folder.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOLD = sizeof(((ddp_err *)NULL)->msg) + 16 };

static const char failed_word[] = "failed ";
static const char share_it[] =
    "[checkpoint] sharded needs a dir that all ranks share: name such a folder, or set sharded = no";

/* ---- names ------------------------------------------------------------------------------------------------------- */
/* DIR/step-00000500.TOKEN-2.part */
static ddp_status part_path(ddp_path *out, const char *dir, uint64_t step, uint64_t token, uint32_t shard, ddp_err *err)
{
    char name[DDP_STEP_NAME], full[DDP_STEP_NAME + 40];

    checkpoint_step_name(name, step);
    (void)snprintf(full, sizeof(full), "%s.%016" PRIx64 "-%" PRIu32 ".part", name, token, shard);
    return checkpoint_path_join(out->text, dir, full, err);
}

/* ---- other ranks ------------------------------------------------------------------------------------------------- */
static ddp_status write_part(const char *path, const ddp_checkpoint_contents *what, ddp_file_facts *facts, ddp_err *err)
{
    const ddp_part *part = &what->parts[DDP_PART_OPTIMIZER];

    (void)unlink(path); /* of a process that this one replaces */
    return checkpoint_safetensors_write(path, part->tensors, part->count, NULL, what->cancelled, facts->hash,
                                        &facts->bytes, err);
}

/* This rank sees the folder that rank 0 has created. */
static ddp_status check_shared(const char *dir, ddp_err *err)
{
    if (dir[0] == '\0') return ddp_fail(err, DDP_ERR_SYSTEM, "[checkpoint] dir is not set on this rank; %s", share_it);
    if (access(dir, F_OK) == 0) return DDP_OK;
    if (errno != ENOENT) return ddp_fail_errno(err, "cannot look into the checkpoint folder %s", dir);
    return ddp_fail(err, DDP_ERR_SYSTEM, "%s is not there on this rank's host; %s", dir, share_it);
}

ddp_status checkpoint_shard_save(const char *dir, const ddp_checkpoint_contents *what, ddp_err *err)
{
    const ddp_shard_exchange *x = &what->exchange;
    ddp_file_facts facts = {0};
    ddp_err ignored = {0};
    char text[TOLD];
    ddp_path path;
    ddp_status st = part_path(&path, dir, what->meta.step, what->token, what->shard, err);

    if (st == DDP_OK) st = check_shared(dir, err);
    if (st == DDP_OK) st = write_part(path.text, what, &facts, err);
    if (st == DDP_OK) (void)snprintf(text, sizeof(text), "%" PRIu64 " %s", facts.bytes, facts.hash);
    if (st != DDP_OK) {
        (void)ddp_fail_context(err, "rank %" PRId32, x->rank(x->ctx, what->shard));
        (void)snprintf(text, sizeof(text), "%s%s", failed_word, err->msg);
        (void)x->tell(x->ctx, what->meta.step, what->shard, text, &ignored);
        return st;
    }
    st = x->tell(x->ctx, what->meta.step, what->shard, text, err);
    if (st != DDP_OK) checkpoint_shard_drop(dir, what->meta.step, what->token, what->shard);
    return st;
}

void checkpoint_shard_drop(const char *dir, uint64_t step, uint64_t token, uint32_t shard)
{
    ddp_err ignored = {0};
    ddp_path path;

    if (part_path(&path, dir, step, token, shard, &ignored) == DDP_OK) (void)unlink(path.text);
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */
static ddp_status hear(const ddp_checkpoint_contents *what, uint32_t shard, ddp_file_facts *facts, ddp_err *err)
{
    const ddp_shard_exchange *x = &what->exchange;
    char text[TOLD] = "";

    DDP_TRY(x->hear(x->ctx, what->meta.step, shard, text, sizeof(text), err));
    if (strncmp(text, failed_word, sizeof(failed_word) - 1) == 0)
        return ddp_fail(err, DDP_ERR_SYSTEM, "%s", text + sizeof(failed_word) - 1);
    if (sscanf(text, "%" SCNu64 " %32[0-9a-f]", &facts->bytes, facts->hash) != 2 ||
        strlen(facts->hash) != DDP_XXH128_HEX - 1)
        return ddp_fail(err, DDP_ERR_INTERNAL, "what rank %" PRId32 " says of its shard cannot be read",
                        x->rank(x->ctx, shard));
    return DDP_OK;
}

static ddp_status move(const char *from, const char *to, int32_t rank, ddp_err *err)
{
    if (rename(from, to) == 0) return DDP_OK;
    if (errno == ENOENT && access(from, F_OK) != 0)
        return ddp_fail(err, DDP_ERR_SYSTEM,
                        "%s, which rank %" PRId32 " has written, is not there on rank 0's host; %s", from, rank,
                        share_it);
    return ddp_fail_errno(err, "cannot rename %s, which rank %" PRId32 " has written, to %s", from, rank, to);
}

ddp_status checkpoint_shards_take(const char *dir, const char *folder, const ddp_checkpoint_contents *what,
                                  ddp_file_facts *facts, ddp_err *err)
{
    for (uint32_t shard = 1; shard < what->shards; shard++) {
        ddp_path from, to;
        char name[DDP_FILE_NAME];

        DDP_TRY(hear(what, shard, &facts[shard], err));
        checkpoint_shard_file(name, shard, what->shards);
        DDP_TRY(part_path(&from, dir, what->meta.step, what->token, shard, err));
        DDP_TRY(checkpoint_path_join(to.text, folder, name, err));
        DDP_TRY(move(from.text, to.text, what->exchange.rank(what->exchange.ctx, shard), err));
    }
    return DDP_OK;
}

/* "step-00000500.TOKEN-2.part", but not those that begin with `text`. */
static bool is_left(const char *name, const char *text)
{
    size_t digits = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0, length = strlen(name);

    if (digits == 0 || name[5 + digits] != '.' || length < 6 || strcmp(name + length - 5, ".part") != 0) return false;
    if (strspn(name + 5 + digits + 1, "0123456789abcdef-") != length - 5 - digits - 1 - 5) return false;
    return text[0] == '\0' || strncmp(name, text, strlen(text)) != 0;
}

ddp_status checkpoint_shards_sweep(const char *dir, const ddp_checkpoint_contents *but, ddp_err *err)
{
    char name[DDP_STEP_NAME], keep[DDP_STEP_NAME + 24] = "";

    if (but != NULL) {
        checkpoint_step_name(name, but->meta.step);
        (void)snprintf(keep, sizeof(keep), "%s.%016" PRIx64 "-", name, but->token);
    }
    return checkpoint_sweep_named(dir, is_left, keep, err);
}
