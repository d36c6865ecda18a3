/* plugins/device/cpu/kernels/kernels_portable.c -- the kernels in plain C for any CPU. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <ddpengine/device.h>
#include <ddpengine/isa.h>
#include "kernels.h"

#define CPU_ISA_NAME  DDP_ISA_PORTABLE_NAME
#define CPU_ISA_TABLE cpu_kernels_portable
#define CPU_VECTOR    4
#include "kernels_body.h"
