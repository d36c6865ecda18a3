/* fuzz/targets/hook_state.c -- what a checkpoint holds for a hook, taken by a run of two ranks whose hook remembers
 * one array for each rank and one for all. Input: world_size, hook_version and which hook of the checkpoint, a byte
 * each, then hook.safetensors. */
#include "comm/communicator.h"
#include "fuzz.h"
#include "train/reduce/hook_state.h"
#include "train/reduce/hooked.h"
#include "train/state/resume_hook.h"

enum { OWN = 5, SHARED = 3, WORLD = 2, VERSION = 1 };

FUZZ_TARGET(hook_state)
{
    static ddp_trainer t;
    static ddp_session session;
    float own[OWN] = {0}, shared[SHARED] = {0};
    ddp_hook_state states[] = {{.name = "bucket0.error", .data = own, .elements = OWN, .dtype = DDP_F32},
                               {.name = "q", .data = shared, .elements = SHARED, .shared = 1, .dtype = DDP_F32}};
    const ddp_hook_ops ops = {.state_version = VERSION};
    ddp_loaded plugin = {.desc = {.name = "carry"}};
    ddp_hooked hooked = {.ops = &ops, .states = states, .state_count = 2, .group = {.rank = 0, .world_size = WORLD}};
    fuzz_input in = {data, size};
    ddp_checkpoint c = {.path = "step-00000001"};
    bool fits = false;
    ddp_err err = {0};

    c.meta.world_size = fuzz_u8(&in);
    if (c.meta.world_size == 255) c.meta.world_size = UINT64_MAX;
    c.meta.hook_version = fuzz_u8(&in);
    ddp_copy_text(c.meta.hook, sizeof(c.meta.hook), fuzz_u8(&in) == 0 ? "carry" : "other");
    session.log = fuzz_log();
    session.hook = &plugin;
    session.launch.world = WORLD;
    t.s = &session;
    t.reduce.hooked = &hooked;
    if (in.left > 0 && ddp_safetensors_open(fuzz_file(0, in.at, in.left, 0), &c.parts[DDP_PART_HOOK], &err) != DDP_OK)
        return 0;
    fuzz_check_error(state_trainer_fill_hook(&t, &c, &fits, &err), &err);
    if (fits) FUZZ_CHECK(c.parts[DDP_PART_HOOK] != NULL && c.meta.world_size > 0);
    ddp_hooked_drop(&hooked);
    ddp_checkpoint_close(&c);
    return 0;
}
