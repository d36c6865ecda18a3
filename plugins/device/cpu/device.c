/* plugins/device/cpu/device.c -- the plugin: its descriptor, open, memory, copy, describe. What a program does is in
 * lower.c and exec.c. */
#include "cpu.h"
#include <ddpengine/isa.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT  64
#define HUGE_BYTES (2u << 20) /* from this size on, memory is aligned to and asked for in huge pages */

/* Three eighths of the second cache, in rows of 256 numbers. Changes no bit. */
static int64_t block_rows(void)
{
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); /* 0 or -1: not known */
    const int64_t rows = (bytes > 0 ? bytes : 512 << 10) / 8 * 3 / (256 * (int64_t)sizeof(float));

    return rows < 128 ? 128 : rows > 1024 ? 1024 : rows;
}

static ddp_status cpu_open(const ddp_host *host, const void *config, const ddp_device_params *p, ddp_device **out,
                           ddp_err *err)
{
    ddp_device *d;
    ddp_status status;

    (void)config;
    if (p->precision != DDP_PRECISION_F32 && p->precision != DDP_PRECISION_BF16)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "device \"cpu\" does not know precision %u; set [train] precision to f32", p->precision);
    if (p->threads == 0 || p->threads > 4096)
        return ddp_fail(err, DDP_ERR_CONFIG, "device \"cpu\": threads is %u; set [train] threads to 1 or more",
                        p->threads);
    d = calloc(1, sizeof(*d));
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory at open");
    d->host = host;
    d->threads = p->threads;
    d->kernels = cpu_kernels_variants[ddp_isa_best()];
    d->bf16 = p->precision == DDP_PRECISION_BF16;
    if (d->bf16) d->half = cpu_half_available();
    d->block_rows = block_rows();
    status = cpu_library_open(p->threads, &d->library, err);
    if (status != DDP_OK) {
        free(d);
        return status;
    }
    *out = d;
    return DDP_OK;
}

static void cpu_close(ddp_device *d)
{
    if (d == NULL) return;
    cpu_unpin(d->threads, &d->pins);
    cpu_library_close(d->library);
    free(d);
}

/* The model name of the first CPU; "CPU" where the kernel does not say, as on some ARM machines. */
static void cpu_model(char *name, size_t capacity)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");

    (void)snprintf(name, capacity, "CPU");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (value == NULL) continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        (void)snprintf(name, capacity, "%s", value);
        break;
    }
    if (f != NULL) (void)fclose(f);
}

static void cpu_describe(ddp_device *d, ddp_device_info *out)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    char model[64];

    cpu_model(model, sizeof(model));
    out->memory_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    (void)snprintf(out->name, sizeof(out->name), "%s, %s%s%s%s", model, d->kernels->isa,
                   d->library == NULL ? ", no oneDNN" : "",
                   d->half != NULL ? ", products in bf16"
                   : d->bf16       ? ", bf16 no faster than f32"
                                   : "",
                   ddp_isa_limit() >= 0 ? " (DDPENGINE_CPU)" : "");
    cpu_library_version(out->library, sizeof(out->library));
}

ddp_status cpu_alloc(ddp_device *d, size_t bytes, void **out, ddp_err *err)
{
    bool huge = bytes >= HUGE_BYTES;
    size_t alignment = huge ? HUGE_BYTES : ALIGNMENT;
    void *memory = NULL;

    (void)d;
    if (bytes > SIZE_MAX - alignment || posix_memalign(&memory, alignment, bytes != 0 ? bytes : 1) != 0)
        return ddp_fail(err, DDP_ERR_NOMEM,
                        "device \"cpu\": %zu bytes of memory could not be allocated; "
                        "use a smaller batch or model",
                        bytes);
    if (huge) (void)madvise(memory, bytes, MADV_HUGEPAGE); /* a wish: without huge pages it is only slower */
    memset(memory, 0, bytes);                              /* touches the pages here, not in a step */
    *out = memory;
    return DDP_OK;
}

void cpu_free(ddp_device *d, void *memory)
{
    (void)d;
    free(memory);
}

static ddp_status cpu_copy(ddp_device *d, void *dst, const void *src, size_t bytes, uint32_t direction, ddp_err *err)
{
    (void)d;
    (void)direction; /* all memory is the host's */
    (void)err;
    if (bytes > 0) memcpy(dst, src, bytes);
    return DDP_OK;
}

static ddp_status cpu_pin(ddp_device *d, const int32_t *processors, ddp_err *err)
{
    cpu_unpin(d->threads, &d->pins);
    return cpu_pin_threads(d->threads, processors, &d->pins, err);
}

static const char *who_lacks_bf16(void)
{
    return DDP_ISA_ARM64 ? "device \"cpu\" on ARM64" : ddp_isa_limit() >= 0 ? "the class of DDPENGINE_CPU" : "this CPU";
}

static void cpu_preflight(ddp_device *d, const ddp_preflight *p)
{
#if defined(__x86_64__)
    if (ddp_isa_of_cpu() > DDP_ISA_AVX2)
        p->report(
            p->ctx, DDP_FINDING_WARNING, "CPU",
            "neither AVX2 nor AVX-512: steps take several times as long; use a newer machine, or let the virtual machine have them (cpu = host)");
#endif
    if (d->bf16 && d->half == NULL)
        p->report(
            p->ctx, DDP_FINDING_WARNING, "CPU",
            "%s multiplies bf16 no faster than f32, having no instructions for it%s: set [train] precision = f32, unless a frozen base under [lora] is to take less memory",
            who_lacks_bf16(), DDP_ISA_ARM64 ? "" : " (AVX512_BF16)");
    else
        p->report(p->ctx, DDP_FINDING_OK, "CPU", "%s%s%s%s%s", d->kernels->isa,
                  DDP_ISA_ARM64 ? ", which every ARM64 has" : "", d->half != NULL ? " with bf16" : "",
                  d->library == NULL ? ", built without oneDNN: some convolutions are slower" : "",
                  ddp_isa_limit() >= 0 ? ", no more than DDPENGINE_CPU allows" : "");
}

static ddp_status cpu_sync(ddp_device *d, ddp_err *err)
{
    (void)d;
    (void)err;
    return DDP_OK; /* run returns when its kernels are done */
}

uint32_t cpu_frozen_dtypes(ddp_device *d) { return d->bf16 ? 1u << DDP_BF16 : 0; }

static const ddp_device_ops ops = {
    .struct_size = sizeof(ops),
    .caps = DDP_DEVICE_CAP_HOST_MEMORY | DDP_DEVICE_CAP_PEERS | DDP_DEVICE_CAP_BF16,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .lower = cpu_lower,
    .lowered_free = cpu_lowered_free,
    .compile = cpu_compile,
    .exec_free = cpu_exec_free,
    .instance_create = cpu_instance_create,
    .instance_free = cpu_instance_free,
    .run = cpu_run,
    .sync = cpu_sync,
    .optim_step = cpu_optim_step,
    .flat = cpu_flat,
    .measure = cpu_measure,
    .pin = cpu_pin,
    .frozen_dtypes = cpu_frozen_dtypes,
    .preflight = cpu_preflight,
};

#ifndef CPU_INSTALL /* the makefile has it where oneDNN is linked */
#define CPU_INSTALL ""
#endif

/* NO_UNLOAD: OpenMP's threads live on after close and must find their code mapped. */
DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DEVICE, DDP_PLUGIN_F_NO_UNLOAD),
    .priority = 10,
    .memory = DDP_MEMORY_HOST,
    .install = CPU_INSTALL,
    DDP_PLUGIN_TAIL("cpu", "0.1.0", "the host's CPU", DDP_NO_OPTIONS, ops),
};
