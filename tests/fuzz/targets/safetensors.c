/* fuzz/targets/safetensors.c -- a whole safetensors file. */
#include "checkpoint/safetensors.h"
#include "fuzz.h"

/* What opens can be read to its last byte, and every tensor is found by its name. */
static void read_all(const ddp_safetensors *s)
{
    unsigned sum = 0;

    for (size_t i = 0; i < ddp_safetensors_count(s); i++) {
        const ddp_named_tensor *t = ddp_safetensors_at(s, i);
        const unsigned char *bytes = t->data;
        uint64_t size = ddp_safetensors_dtype_size(t->dtype);

        for (uint32_t d = 0; d < t->rank; d++) size *= (uint64_t)t->dims[d];
        for (uint64_t b = 0; b < size; b++) sum += bytes[b];
        FUZZ_CHECK(ddp_safetensors_dtype_name(t->dtype) != NULL);
        FUZZ_CHECK(ddp_safetensors_find(s, t->name) == t);
    }
    FUZZ_CHECK(sum < UINT32_MAX);
    FUZZ_CHECK(ddp_safetensors_at(s, ddp_safetensors_count(s)) == NULL);
    (void)ddp_safetensors_find(s, "a name that is not there");
}

FUZZ_TARGET(safetensors)
{
    ddp_safetensors *s;
    ddp_err err = {0};
    ddp_status status = ddp_safetensors_open(fuzz_file(0, data, size, 0), &s, &err);

    fuzz_check_error(status, &err);
    if (status != DDP_OK) return 0;
    read_all(s);
    ddp_safetensors_close(s);
    return 0;
}
