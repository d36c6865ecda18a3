/* fuzz/targets/shards.c -- the optimiser's state of a checkpoint in two shards, of a model that has "a.weight" [2, 3]
 * and "b" [4]. The input: the length of the first shard, two bytes; that file; the other one. */
#include "checkpoint/shards.h"
#include "fuzz.h"

/* safetensors of the model: header and 10 floats. */
static ddp_safetensors *model_of(void)
{
    static const float zeros[10];
    const ddp_named_tensor tensors[] = {{.name = "a.weight", .dtype = DDP_F32, .rank = 2, .dims = {2, 3}},
                                        {.name = "b", .dtype = DDP_F32, .rank = 1, .dims = {4}}};
    ddp_text file = {0};
    ddp_safetensors *s;
    char *head;
    size_t length;
    ddp_err err = {0};

    FUZZ_CHECK(checkpoint_safetensors_header(tensors, 2, NULL, &head, &length, &err) == DDP_OK);
    ddp_text_append(&file, head, length);
    ddp_text_append(&file, (const char *)zeros, sizeof(zeros));
    FUZZ_CHECK(!file.failed);
    FUZZ_CHECK(ddp_safetensors_open(fuzz_file(3, file.data, file.length, 0), &s, &err) == DDP_OK);
    ddp_text_free(&file);
    free(head);
    return s;
}

/* Every tensor is of a parameter, as large, and readable to its end; what is copied of it is what the whole has. */
static void read_all(const ddp_shard_files *shards, const ddp_safetensors *whole, const ddp_safetensors *model)
{
    float sum = 0, copy[6];

    FUZZ_CHECK(ddp_safetensors_count(whole) == checkpoint_shards_count(shards));
    for (size_t i = 0; i < ddp_safetensors_count(whole); i++) {
        const ddp_named_tensor *t = ddp_safetensors_at(whole, i);
        const ddp_named_tensor *piecewise = checkpoint_shards_find(shards, t->name);
        const size_t bytes = (t->rank == 2 ? 6 : 4) * sizeof(float);
        char name[64] = "";
        const ddp_named_tensor *like;

        ddp_copy_text(name, sizeof(name), t->name);
        *strrchr(name, '.') = '\0';
        like = ddp_safetensors_find(model, name);
        FUZZ_CHECK(like != NULL && like->rank == t->rank && memcmp(like->dims, t->dims, sizeof(t->dims)) == 0);
        for (size_t e = 0; e < bytes / sizeof(float); e++) sum += ((const float *)t->data)[e];
        FUZZ_CHECK(piecewise != NULL && piecewise->rank == t->rank);
        checkpoint_shards_copy(shards, piecewise, copy);
        FUZZ_CHECK(memcmp(copy, t->data, bytes) == 0);
    }
    FUZZ_CHECK(sum != 1.2345f);
}

FUZZ_TARGET(shards)
{
    static const char *const names[] = {"optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"};
    static const char *folder;
    static ddp_safetensors *model;
    ddp_file_facts facts[2] = {{.bytes = 1}, {.bytes = 1}};
    const ddp_manifest m = {.shards = facts, .shard_count = 2};
    fuzz_input in = {data, size};
    size_t length = fuzz_u16(&in);
    const uint8_t *first = fuzz_some(&in, &length);
    ddp_safetensors *whole;
    ddp_shard_files *shards;
    ddp_err err = {0};
    ddp_status status;

    (void)fuzz_file(4, first, length, 0);
    (void)fuzz_file(5, in.at, in.left, 0);
    if (folder == NULL) folder = fuzz_folder(4, names, 2);
    if (model == NULL) model = model_of();
    status = checkpoint_shards_open(folder, &m, model, &shards, &err);
    fuzz_check_error(status, &err);
    if (status != DDP_OK) return 0;
    FUZZ_CHECK(checkpoint_shards_join(folder, shards, &whole, &err) == DDP_OK);
    read_all(shards, whole, model);
    ddp_safetensors_close(whole);
    checkpoint_shards_close(shards);
    return 0;
}
