/* checkpoint/peft/adapter_config.c -- see adapter_config.h. */
#include "checkpoint/peft/adapter_config.h"
#include "base/sys.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT ((size_t)4 << 20)

/* Keys that change what an adapter computes, and the values with which they do not. */
static bool is_plain(const char *key, const json_t *v)
{
    if (strcmp(key, "peft_type") == 0) return json_is_string(v) && strcmp(json_string_value(v), "LORA") == 0;
    if (strcmp(key, "bias") == 0) return json_is_string(v) && strcmp(json_string_value(v), "none") == 0;
    if (json_is_object(v)) return json_object_size(v) == 0;
    if (json_is_array(v)) return json_array_size(v) == 0;
    return v == NULL || json_is_null(v) || json_is_false(v);
}

static ddp_status check_keys(const char *path, const json_t *object, ddp_err *err)
{
    static const char *const keys[] = {"use_dora",
                                       "use_qalora",
                                       "lora_bias",
                                       "rank_pattern",
                                       "alpha_pattern",
                                       "layer_replication",
                                       "trainable_token_indices",
                                       "use_bdlora",
                                       "alora_invocation_tokens",
                                       "target_parameters"};
    const char *bad = NULL;

    for (size_t i = 0; i < DDP_COUNT(keys); i++)
        if (!is_plain(keys[i], json_object_get(object, keys[i]))) bad = keys[i];
    if (json_object_get(object, "bias") != NULL && !is_plain("bias", json_object_get(object, "bias"))) bad = "bias";
    if (!is_plain("peft_type", json_object_get(object, "peft_type"))) bad = "peft_type";
    if (bad == NULL) return DDP_OK;
    return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                    "%s: \"%s\" asks for what is not plain LoRA, which is all that is known here. "
                    "Export plain adapters, or merge them into the model with PEFT",
                    path, bad);
}

static const char saved[] = "; look for the folder that PEFT has saved";

static bool read_number(const json_t *v, double *out)
{
    *out = json_number_value(v);
    return json_is_number(v) && isfinite(*out) && *out > 0.0 && *out < 1e9;
}

static ddp_status read_object(const char *path, const json_t *object, ddp_adapter_config *out, ddp_err *err)
{
    ddp_adapter_config c = {.rslora = json_is_true(json_object_get(object, "use_rslora"))};

    if (!json_is_object(object)) return ddp_fail(err, DDP_ERR_DATA, "%s is no JSON object%s", path, saved);
    DDP_TRY(check_keys(path, object, err));
    if (!read_number(json_object_get(object, "r"), &c.rank))
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"r\", the rank, is missing or no number above 0%s", path, saved);
    if (!read_number(json_object_get(object, "lora_alpha"), &c.alpha))
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"lora_alpha\" is missing or no number above 0%s", path, saved);
    *out = c;
    return DDP_OK;
}

ddp_status ddp_adapter_config_parse(const char *path, const char *data, size_t length, ddp_adapter_config *out,
                                    ddp_err *err)
{
    json_error_t at;
    json_t *object = json_loadb(data, length, JSON_REJECT_DUPLICATES, &at);
    ddp_status st;

    if (object == NULL) {
        ddp_clean_text(at.text);
        return ddp_fail(err, DDP_ERR_DATA, "%s:%d: %s%s", path, at.line, at.text, saved);
    }
    st = read_object(path, object, out, err);
    json_decref(object);
    return st;
}

ddp_status ddp_adapter_config_read(const char *path, ddp_adapter_config *out, ddp_err *err)
{
    char *data = NULL;
    size_t length = 0;
    ddp_status st;

    DDP_TRY(ddp_file_read(path, LIMIT, &data, &length, err));
    st = ddp_adapter_config_parse(path, data, length, out, err);
    free(data);
    return st;
}
