/* cli/import/no_yaml.c -- in place of yaml.c where this ddpengine was built without libyaml. */
#include "cli/import/yaml.h"

ddp_status import_read(const char *path, import_file *out, ddp_err *err)
{
    (void)out;
    return ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "\"%s\": this ddpengine was built without libyaml; install libyaml-dev, then configure and build again", path);
}

const import_entry *import_find(const import_file *f, const char *key)
{
    (void)f;
    (void)key;
    return NULL;
}

void import_free(import_file *f) { (void)f; }
