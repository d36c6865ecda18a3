/* plugins/dataset/common/split.c -- see split.h. */
#include "split.h"
#include <stdbool.h>
#include <string.h>

static ddp_status differ(const char *plugin, const char *what, const char *key, const char *a, const char *b,
                         ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "\"%.150s\" is divided by %s = %.40s in [data.%.9s] and by %s = %.40s in [eval.%.9s]. "
                    "Write the same %s in both, so that both have the same parts",
                    what, key, a, plugin, key, b, plugin, key);
}

ddp_status data_split_agrees(const ddp_host *host, const char *plugin, const char *what, const data_split *data,
                             const data_split *eval, ddp_err *err)
{
    bool whole = data->part == SPLIT_ALL;
    char a[32], b[32];

    if (data->part == SPLIT_ALL && eval->part == SPLIT_ALL) return DDP_OK;
    if (whole || eval->part == SPLIT_ALL) {
        if (host == NULL) return DDP_OK;
        host->log(host->ctx, DDP_LOG_WARN, __FILE__, __LINE__,
                  "\"%.300s\": [%s.%s] reads all of it, [%s.%s] a part, so they have samples in common. "
                  "Set split = %s in [%s.%s] to keep them apart",
                  what, whole ? "data" : "eval", plugin, whole ? "eval" : "data", plugin,
                  whole ? "train" : "validation", whole ? "data" : "eval", plugin);
        return DDP_OK;
    }
    (void)snprintf(a, sizeof(a), "%.12g", data->validation);
    (void)snprintf(b, sizeof(b), "%.12g", eval->validation);
    if (data->validation < eval->validation || data->validation > eval->validation)
        return differ(plugin, what, "validation", a, b, err);
    if (strcmp(data->id, eval->id) != 0)
        return differ(plugin, what, "id", data->id[0] != '\0' ? data->id : "(none)",
                      eval->id[0] != '\0' ? eval->id : "(none)", err);
    return DDP_OK;
}
