/* plugins/dataset/common/dataset.c -- see dataset.h. */
#include "dataset.h"
#include <inttypes.h>
#include <stdlib.h>

static const data_base *base_of(const ddp_dataset *d) { return (const data_base *)(const void *)d; }

ddp_status data_no_memory(const char *plugin, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_NOMEM, "dataset %s: out of memory", plugin);
}

ddp_status data_open(const char *plugin, size_t size,
                     ddp_status (*fill)(ddp_dataset *d, const void *config, ddp_err *err),
                     void (*close)(ddp_dataset *d), const void *config, ddp_dataset **out, ddp_err *err)
{
    void *d = calloc(1, size);
    ddp_status status;

    if (d == NULL) return data_no_memory(plugin, err);
    ((data_base *)d)->plugin = plugin;
    status = fill(d, config, err);
    if (status != DDP_OK)
        close(d);
    else
        *out = d;
    return status;
}

ddp_status data_check_index(const ddp_dataset *d, uint64_t index, ddp_err *err)
{
    const data_base *b = base_of(d);

    if (index < b->length) return DDP_OK;
    return ddp_fail(err, DDP_ERR_INVALID, "dataset %s: there is no sample %" PRIu64 " of %" PRIu64, b->plugin, index,
                    b->length);
}

uint64_t data_length(const ddp_dataset *d) { return base_of(d)->length; }

uint32_t data_fields(const ddp_dataset *d, const ddp_field **out)
{
    const data_base *b = base_of(d);

    *out = b->fields;
    return b->field_count != 0 ? b->field_count : 2;
}

uint64_t data_fingerprint(const ddp_dataset *d) { return base_of(d)->fingerprint; }

void data_describe_images(data_base *b, int64_t side, int64_t classes)
{
    b->fields[0] = (ddp_field){.name = "image", .dtype = DDP_U8, .rank = 3, .dims = {3, side, side}, .max = UINT8_MAX};
    b->fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .max = classes - 1};
}

void data_name_bytes(char names[256][8])
{
    for (int i = 0; i < 256; i++)
        if (i == '\n' || i == '\t' || i == '\r')
            (void)snprintf(names[i], sizeof(names[i]), "\\%c", i == '\n' ? 'n' : i == '\t' ? 't' : 'r');
        else
            (void)snprintf(names[i], sizeof(names[i]), i == ' ' ? "'%c'" : i > ' ' && i < 127 ? "%c" : "\\x%02x", i);
}

void data_describe_tokens(data_base *b, uint64_t context, uint64_t vocabulary)
{
    b->fields[0] = (ddp_field){
        .name = "input", .dtype = DDP_I64, .rank = 1, .dims = {(int64_t)context}, .max = (int64_t)vocabulary - 1};
    b->fields[1] = b->fields[0];
    b->fields[1].name = "target";
}
