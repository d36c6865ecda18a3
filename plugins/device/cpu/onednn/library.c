/* plugins/device/cpu/onednn/library.c -- oneDNN's engine and stream, its version, and what it needs before it generates
 * code. Hides the library: nothing of it passes library.h and conv.h. */
#include "library.h"
#include "onednn.h"
#include <ddpengine/isa.h>

#include <stdlib.h>
#include <sys/mman.h>

#define GENERATED (16u << 20) /* bytes */

ddp_status cpu_library_room(ddp_err *err)
{
    void *room = mmap(NULL, GENERATED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (room == MAP_FAILED)
        return ddp_fail(
            err, DDP_ERR_NOMEM,
            "device \"cpu\": oneDNN generates code and needs memory for it, but less than %u MiB are left; raise the limit that ulimit -v shows, or use a smaller batch or model",
            GENERATED >> 20);
    (void)munmap(room, GENERATED);
    return DDP_OK;
}

/* DDPENGINE_CPU limits oneDNN too, which takes a limit once, before its first primitive; it has none off x86. */
static void limit_instructions(void)
{
    switch (ddp_isa_limit()) {
    case DDP_ISA_AVX512: (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core); break;
    case DDP_ISA_AVX2: (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2); break;
    case DDP_ISA_PORTABLE: (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41); break;
    default: break;
    }
}

ddp_status cpu_library_open(uint32_t threads, cpu_library **out, ddp_err *err)
{
    cpu_library *lib = calloc(1, sizeof(*lib));
    dnnl_status_t status;

    if (lib == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory at open");
    lib->threads = (int)threads;
    limit_instructions();
    omp_set_num_threads(lib->threads);
    status = dnnl_engine_create(&lib->engine, dnnl_cpu, 0);
    if (status == dnnl_success) status = dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        cpu_library_close(lib);
        ddp_fail(
            err, DDP_ERR_LIBRARY,
            "device \"cpu\": oneDNN's CPU engine does not start, status %d; check that its CPU runtime is installed",
            (int)status);
        err->lib_code = (int32_t)status;
        return DDP_ERR_LIBRARY;
    }
    *out = lib;
    return DDP_OK;
}

void cpu_library_close(cpu_library *lib)
{
    if (lib == NULL) return;
    if (lib->stream != NULL) (void)dnnl_stream_destroy(lib->stream);
    if (lib->engine != NULL) (void)dnnl_engine_destroy(lib->engine);
    free(lib);
}

void cpu_library_version(char *text, size_t capacity)
{
    const dnnl_version_t *v = dnnl_version();

    (void)snprintf(text, capacity, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
}
