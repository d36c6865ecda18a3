/* plugins/device/cpu/onednn/library.h -- oneDNN, which has the convolutions (conv.h). Calls come from the device's one
 * thread. */
#pragma once

#include <ddpengine/device.h>

typedef struct cpu_library cpu_library; /* oneDNN's engine and stream */
ddp_status cpu_library_open(uint32_t threads, cpu_library **out, ddp_err *err);
void cpu_library_close(cpu_library *lib);
void cpu_library_version(char *text, size_t capacity); /* "oneDNN 2.6.3" */
