/* infer/export/base.c -- see base.h. */
#include "infer/export/base.h"
#include "base/sys.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_MOST = 4 << 20, FILE_MOST = 256 << 20 };

static const char *const beside[] = {"tokenizer.json",
                                     "tokenizer_config.json",
                                     "tokenizer.model",
                                     "vocab.json",
                                     "merges.txt",
                                     "added_tokens.json",
                                     "chat_template.jinja",
                                     "generation_config.json",
                                     "special_tokens_map.json"};

void export_base_folder(const ddp_config *config, char out[EXPORT_PATH])
{
    const char *path = config->checkpoint->init_from, *slash = strrchr(path, '/');
    struct stat facts;

    ddp_copy_text(out, EXPORT_PATH, path);
    if (path[0] == '\0' || (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode))) return;
    ddp_copy_text(out, slash == NULL ? 2 : DDP_MIN_OF((size_t)EXPORT_PATH, (size_t)(slash - path) + 1),
                  slash == NULL ? "." : path);
}

static bool name_file(char out[EXPORT_PATH], const char *folder, const char *name)
{
    return folder[0] != '\0' && (size_t)snprintf(out, EXPORT_PATH, "%s/%s", folder, name) < EXPORT_PATH;
}

ddp_status export_base_config(const char *base, json_t **out, ddp_err *err)
{
    char path[EXPORT_PATH], *data = NULL;
    size_t length = 0;
    json_error_t why;

    *out = NULL;
    if (!name_file(path, base, "config.json") || access(path, F_OK) != 0) return DDP_OK;
    DDP_TRY(ddp_file_read(path, CONFIG_MOST, &data, &length, err));
    *out = json_loadb(data, length, 0, &why);
    free(data);
    if (json_is_object(*out)) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_DATA,
                   "%s, beside the weights that the model began with ([checkpoint] init_from), is no JSON object%s%s; "
                   "repair it, or take it away to go on without",
                   path, *out != NULL ? "" : ": ", *out != NULL ? "" : why.text);
    json_decref(*out);
    *out = NULL;
    return err->status;
}

bool export_base_is_causal(const json_t *config)
{
    const json_t *item;
    bool causal = false;
    size_t i;

    json_array_foreach(json_object_get(config, "architectures"), i, item)
    {
        const char *name = json_string_value(item);

        causal |= name != NULL && (strstr(name, "ForCausalLM") != NULL || strstr(name, "LMHeadModel") != NULL);
    }
    return causal;
}

ddp_status export_base_copy(const char *base, const char *folder, ddp_err *err)
{
    char from[EXPORT_PATH], to[EXPORT_PATH], *data;
    size_t length;
    ddp_status st;

    for (size_t i = 0; i < DDP_COUNT(beside); i++) {
        if (!name_file(from, base, beside[i]) || access(from, R_OK) != 0 || !name_file(to, folder, beside[i])) continue;
        DDP_TRY(ddp_file_read(from, FILE_MOST, &data, &length, err));
        st = ddp_file_replace(to, data, length, err);
        free(data);
        if (st != DDP_OK) return st;
    }
    return DDP_OK;
}
