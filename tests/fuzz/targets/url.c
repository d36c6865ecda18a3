/* fuzz/targets/url.c -- init_method of tcp://. */
#define ddp_plugin_desc ddp_plugin_desc_tcp
#include "tcp/tcp.c"
#include "fuzz.h"

FUZZ_TARGET(url)
{
    fuzz_input in = {data, size};
    char *url = fuzz_text(&in, 0), endpoint[DDP_ENDPOINT_MAX];
    ddp_err err = {0};
    ddp_init *i;
    ddp_status status = ops.open(NULL, NULL, url, &i, &err);

    if (status == DDP_OK) {
        FUZZ_CHECK(ops.find(i, endpoint, &err) == DDP_OK);
        FUZZ_CHECK(strchr(endpoint, ':') != NULL && strlen(endpoint) + strlen("tcp://") == strlen(url));
        ops.close(i);
    }
    free(url);
    return 0;
}
