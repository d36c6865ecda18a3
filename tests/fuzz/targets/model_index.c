/* fuzz/targets/model_index.c -- model.safetensors.index.json of a model in two files: a.safetensors has "x" [2] and
 * "y" [3], b.safetensors "z" [1]. Input: the index. */
#include "checkpoint/safetensors.h"
#include "fuzz.h"

enum { INDEX = 9, A, B };

static void write_part(unsigned number, const ddp_named_tensor *tensors, size_t count, size_t floats)
{
    static const float zeros[5];
    ddp_text file = {0};
    char *head;
    size_t length;
    ddp_err err = {0};

    FUZZ_CHECK(checkpoint_safetensors_header(tensors, count, NULL, &head, &length, &err) == DDP_OK);
    ddp_text_append(&file, head, length);
    ddp_text_append(&file, (const char *)zeros, floats * sizeof(float));
    FUZZ_CHECK(!file.failed);
    (void)fuzz_file(number, file.data, file.length, 0);
    ddp_text_free(&file);
    free(head);
}

static void write_parts(void)
{
    const ddp_named_tensor a[] = {{.name = "x", .dtype = DDP_F32, .rank = 1, .dims = {2}},
                                  {.name = "y", .dtype = DDP_F32, .rank = 1, .dims = {3}}};
    const ddp_named_tensor b = {.name = "z", .dtype = DDP_F32, .rank = 1, .dims = {1}};

    write_part(A, a, 2, 5);
    write_part(B, &b, 1, 1);
}

/* All tensors are found, in the file that has them, and read. */
static void read_all(const ddp_safetensors *s)
{
    float sum = 0;

    FUZZ_CHECK(ddp_safetensors_count(s) >= 1 && ddp_safetensors_count(s) <= 3);
    for (size_t i = 0; i < ddp_safetensors_count(s); i++) {
        const ddp_named_tensor *t = ddp_safetensors_at(s, i);

        FUZZ_CHECK(ddp_safetensors_find(s, t->name) == t);
        FUZZ_CHECK(strstr(checkpoint_safetensors_path(s, t), t->name[0] == 'z' ? "/b." : "/a.") != NULL);
        for (int64_t e = 0; e < t->dims[0]; e++) {
            float value;

            memcpy(&value, (const char *)t->data + e * 4, sizeof(value));
            sum += value;
        }
        checkpoint_safetensors_release(s, t);
    }
    FUZZ_CHECK(sum == 0.0f);
}

FUZZ_TARGET(model_index)
{
    static const char *const names[] = {"model.safetensors.index.json", "a.safetensors", "b.safetensors"};
    static const char *folder;
    char path[256];
    ddp_safetensors *s;
    ddp_err err = {0};
    ddp_status status;

    write_parts();
    (void)fuzz_file(INDEX, data, size, 0);
    if (folder == NULL) folder = fuzz_folder(INDEX, names, 3);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, names[0]);
    status = checkpoint_safetensors_open_model(path, &s, &err);
    fuzz_check_error(status, &err);
    if (status != DDP_OK) return 0;
    read_all(s);
    ddp_safetensors_close(s);
    return 0;
}
