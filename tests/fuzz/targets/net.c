/* fuzz/targets/net.c -- the file of model `layers`, up to the finished graph. Input: the file. */
#define ddp_plugin_desc ddp_plugin_desc_layers
#include "layers/layers.c"
#include "fuzz.h"
#include "graph/graph.h"

static const ddp_field fields[] = {
    {.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {3, 8, 8}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = 3},
    {.name = "input", .dtype = DDP_I64, .rank = 1, .dims = {8}, .min = 0, .max = 255},
    {.name = "target", .dtype = DDP_I64, .rank = 1, .dims = {8}, .min = 0, .max = 255},
    {.name = "numbers", .dtype = DDP_F32, .rank = 1, .dims = {4}, .min = 1, .max = 0},
};

/* A complaint of the plugin has the file's name, and a line in it where a line is at fault. */
static void check_place(const char *path, const ddp_err *err)
{
    const char *rest = err->msg + strlen(path);

    if (strncmp(err->msg, "net = ", 6) == 0 || err->status == DDP_ERR_NOMEM) return;
    FUZZ_CHECK(strncmp(err->msg, path, strlen(path)) == 0);
    FUZZ_CHECK((rest[0] == ':' && rest[1] > '0' && rest[1] <= '9') || strncmp(rest, " has no ", 8) == 0);
}

FUZZ_TARGET(net)
{
    const struct config c = {.net = fuzz_file(0, data, size, 0)};
    ddp_err err = {0};
    ddp_graph *g;
    ddp_status status;
    const ddp_param_info *params;

    FUZZ_CHECK(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err) == DDP_OK);
    status = ops.build(g, &c, &err);
    fuzz_check_error(status, &err);
    if (status != DDP_OK) {
        check_place(c.net, &err);
    } else {
        status = ddp_graph_finish(g, &err);
        fuzz_check_error(status, &err);
        for (uint32_t i = 0, n = ddp_graph_params(g, &params); i < n; i++)
            FUZZ_CHECK(params[i].name[0] != '\0' && params[i].elements > 0);
    }
    ddp_graph_free(g);
    return 0;
}
