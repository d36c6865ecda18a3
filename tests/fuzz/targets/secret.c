/* fuzz/targets/secret.c -- [group] secret_file. */
#include "fuzz.h"
#include "launch/secret.h"

FUZZ_TARGET(secret)
{
    struct ddp_group_config group = {.secret_file = fuzz_file(0, data, size, 0)};
    const ddp_config config = {.group = &group};
    ddp_launch launch = {0};
    ddp_err err = {0};
    ddp_status status = ddp_secret_load(&config, NULL, &launch, &err);

    fuzz_check_error(status, &err);
    FUZZ_CHECK(status == DDP_OK ? launch.secret_length >= 16 && launch.secret_length <= sizeof(launch.secret)
                                : launch.secret_length == 0);
    return 0;
}
