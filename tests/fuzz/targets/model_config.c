/* fuzz/targets/model_config.c -- config.json of model `llama`, up to the finished graph. Input: the file. */
#define ddp_plugin_desc ddp_plugin_desc_llama
#include "llama/llama.c"
#include "fuzz.h"
#include "graph/graph.h"

static const ddp_field fields[] = {
    {.name = "input", .dtype = DDP_I64, .rank = 1, .dims = {8}, .min = 0, .max = 255},
    {.name = "target", .dtype = DDP_I64, .rank = 1, .dims = {8}, .min = 0, .max = 255},
};

FUZZ_TARGET(model_config)
{
    const struct config c = {.file = fuzz_file(0, data, size, 0)};
    ddp_err err = {0};
    ddp_graph *g;
    ddp_status status;
    const ddp_param_info *params;

    FUZZ_CHECK(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err) == DDP_OK);
    status = ops.build(g, &c, &err);
    if (status == DDP_OK) status = ddp_graph_finish(g, &err);
    fuzz_check_error(status, &err);
    for (const char *at = err.msg; *at != '\0'; at++) FUZZ_CHECK((unsigned char)*at >= 0x20 && *at != 0x7f);
    for (uint32_t i = 0, n = status == DDP_OK ? ddp_graph_params(g, &params) : 0; i < n; i++)
        FUZZ_CHECK(params[i].name[0] != '\0' && params[i].elements > 0);
    ddp_graph_free(g);
    return 0;
}
