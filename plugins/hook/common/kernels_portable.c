/* plugins/hook/common/kernels_portable.c -- the kernels for any CPU. */
#include <math.h>
#include <string.h>

#include <ddpengine/isa.h>
#include "kernels.h"

#define HOOK_ISA_NAME  DDP_ISA_PORTABLE_NAME
#define HOOK_ISA_TABLE hook_kernels_portable
#define HOOK_LINE      4
#include "kernels_body.h"

const hook_kernels *const hook_kernels_variants[DDP_ISA_COUNT] = {DDP_ISA_VARIANTS(hook_kernels)};
