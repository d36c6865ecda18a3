/* plugins/device/cpu/onednn/none.c -- in place of library.c and conv.c where oneDNN is not: the device has no
 * library, and so asks for none of its convolutions. */
#include "conv.h"

#include <stdio.h>

ddp_status cpu_library_open(uint32_t threads, cpu_library **out, ddp_err *err)
{
    (void)threads;
    (void)err;
    *out = NULL;
    return DDP_OK;
}

void cpu_library_close(cpu_library *lib) { (void)lib; }
void cpu_library_version(char *text, size_t capacity) { (void)snprintf(text, capacity, "no oneDNN"); }

ddp_status cpu_conv_create(cpu_library *lib, int what, const cpu_conv_shape *s, cpu_conv **out, ddp_err *err)
{
    (void)lib;
    (void)what;
    (void)s;
    (void)out;
    return ddp_fail(err, DDP_ERR_INTERNAL, "device \"cpu\": built without oneDNN, and yet asked for its convolution");
}

uint64_t cpu_conv_scratch(const cpu_conv *c)
{
    (void)c;
    return 0;
}

ddp_status cpu_conv_build(cpu_conv *c, ddp_err *err)
{
    (void)c;
    (void)err;
    return DDP_OK;
}

void cpu_conv_free(cpu_conv *c) { (void)c; }

ddp_status cpu_conv_bind(const cpu_conv *c, void *scratch, cpu_conv_bound **out, ddp_err *err)
{
    (void)c;
    (void)scratch;
    (void)err;
    *out = NULL;
    return DDP_OK;
}

ddp_status cpu_conv_run(cpu_conv_bound *b, const void *x, const float *w, const float *bias, const void *y, bool add,
                        ddp_err *err)
{
    (void)b;
    (void)x;
    (void)w;
    (void)bias;
    (void)y;
    (void)add;
    (void)err;
    return DDP_OK;
}

void cpu_conv_bound_free(cpu_conv_bound *b) { (void)b; }
