/* plugins/device/cpu/onednn/gemm.c -- matrix products by oneDNN's C API. Hides the library: nothing of it passes
 * gemm.h.
 *
 * The rule, from measurements of matmul, inner_product and sgemm with every transposition, one and two threads (Zen 4
 * and Emerald Rapids, AVX-512):
 *   forward      matmul from 9 rows up, with the transposed weights read in place (brgemm; 1.03-1.6 times as fast as
 *                the
 *                others at 16 rows and more) and the bias in its last pass; sgemm below (2-3 times as fast at 1 to 8
 *                rows: matmul packs the weights first)
 *   the same, weights (in, out)
 *                sgemm: matmul reads them in place and takes up to twice as long where rows of the weights fall on the
 *                same lines of the cache (3072, 1024 wide); but matmul for few and short rows of weights, where it is
 *                up to 1.15 times as fast and adds the bias
 *   grad input   sgemm: equal or up to 1.25 times as fast as matmul; inner_product is the same routine with a longer
 *                way in
 *   grad weight  sgemm: within 4 % of the best at 8 rows and more, and beta = 1 accumulates without a second
 *                primitive. Small gradients in parts of 512 rows: up to 1.2 times as fast, and never slower while the
 *                gradient stays in the cache
 * matmul with a transposed destination is oneDNN's reference loop: never. Small products run on one thread. */
#include "gemm.h"
#include "onednn.h"
#include <ddpengine/isa.h>

#include <stdlib.h>
#include <sys/mman.h>

#define GENERATED   (16u << 20) /* bytes */
#define MATMUL_ROWS 9
#define SHORT_IN    512 /* few and short rows of weights (in, out) */
#define SHORT_OUT   1024
#define PART_ROWS   512 /* of a gradient of at most PART_SIZE elements */
#define PART_SIZE   1048576

struct cpu_product {
    cpu_library *lib;
    cpu_product *next; /* of the library's */
    uint32_t users;
    int64_t rows, in, out;
    int threads;
    bool transposed, matmul, bias, with_bias; /* with_bias: as it was asked for */
    dnnl_primitive_desc_t desc;               /* matmul only, as are the two below */
    dnnl_primitive_t primitive;
    cpu_desc x, w, y, b;
};

struct cpu_bound {
    const cpu_product *product;
    const void *at[5];       /* x, w, y, scratch, bias: where the memory objects point now */
    dnnl_memory_t memory[5]; /* the same; the last one only with a bias */
    dnnl_exec_arg_t args[5];
};

static ddp_status library_failed(ddp_err *err, dnnl_status_t status, const char *call, int64_t rows, int64_t in,
                                 int64_t out)
{
    ddp_status s =
        ddp_fail(err, status == dnnl_out_of_memory ? DDP_ERR_NOMEM : DDP_ERR_LIBRARY,
                 "device \"cpu\": oneDNN's %s failed with status %d for a linear layer of %lld x %lld -> %lld; "
                 "set DNNL_VERBOSE=1 to see what it tried",
                 call, (int)status, (long long)rows, (long long)in, (long long)out);
    err->lib_code = (int32_t)status;
    return s;
}

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

/* Before each call of sgemm: the first one generates its code. */
static ddp_status room_for_sgemm(cpu_library *lib, ddp_err *err)
{
    if (lib->generated) return DDP_OK;
    lib->generated = true;
    return cpu_library_room(err);
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

static int set_threads(const cpu_library *lib, int64_t rows, int64_t in, int64_t out)
{
    return cpu_threads_for(lib, 2.0 * (double)rows * (double)in * (double)out);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static dnnl_status_t describe(cpu_product *p)
{
    dnnl_dims_t x = {p->rows, p->in}, w = {p->in, p->out}, y = {p->rows, p->out}, b = {1, p->out};
    dnnl_dims_t w_strides = {p->transposed ? p->out : 1, p->transposed ? 1 : p->in};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = cpu_desc_by_tag(&p->x, 2, x, dnnl_f32, dnnl_ab);

    if (status == dnnl_success) status = cpu_desc_by_strides(&p->w, 2, w, dnnl_f32, w_strides);
    if (status == dnnl_success) status = cpu_desc_by_tag(&p->y, 2, y, dnnl_f32, dnnl_ab);
    if (status == dnnl_success) status = cpu_desc_by_tag(&p->b, 2, b, dnnl_f32, dnnl_ab);
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = cpu_matmul_describe(&(cpu_matmul_call){.x = p->x, .w = p->w, .bias = p->bias ? p->b : NULL, .y = p->y},
                                     p->lib->engine, attr, &p->desc);
    if (attr != NULL) (void)dnnl_primitive_attr_destroy(attr);
    return status;
}

static cpu_product *find(cpu_library *lib, int64_t rows, int64_t in, int64_t out, bool transposed, bool bias)
{
    for (cpu_product *p = lib->products; p != NULL; p = p->next)
        if (p->rows == rows && p->in == in && p->out == out && p->transposed == transposed && p->with_bias == bias)
            return p;
    return NULL;
}

ddp_status cpu_product_create(cpu_library *lib, int64_t rows, int64_t in, int64_t out, bool transposed, bool bias,
                              cpu_product **product, ddp_err *err)
{
    cpu_product *p = find(lib, rows, in, out, transposed, bias);
    dnnl_status_t status = dnnl_success;

    if (p != NULL) {
        p->users++;
        *product = p;
        return DDP_OK;
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while lowering");
    p->lib = lib;
    p->users = 1;
    p->next = lib->products;
    lib->products = p;
    p->rows = rows;
    p->in = in;
    p->out = out;
    p->transposed = transposed;
    p->threads = set_threads(lib, rows, in, out);
    p->matmul = rows >= MATMUL_ROWS && (!transposed || (in <= SHORT_IN && out < SHORT_OUT));
    p->with_bias = bias;
    p->bias = bias && p->matmul;
    if (p->matmul) status = describe(p);
    if (status != dnnl_success) {
        cpu_product_free(p);
        return library_failed(err, status, "matmul description", rows, in, out);
    }
    *product = p;
    return DDP_OK;
}

bool cpu_product_adds_bias(const cpu_product *p) { return p->bias; }

uint64_t cpu_product_scratch(const cpu_product *p)
{
    cpu_desc_view md = p->matmul ? dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0) : NULL;

    return md != NULL ? (uint64_t)dnnl_memory_desc_get_size(md) : 0;
}

ddp_status cpu_product_build(cpu_product *p, ddp_err *err)
{
    dnnl_status_t status;

    if (!p->matmul || p->primitive != NULL) return DDP_OK;
    DDP_TRY(cpu_library_room(err));
    omp_set_num_threads(p->threads);
    status = dnnl_primitive_create(&p->primitive, p->desc);
    return status == dnnl_success ? DDP_OK : library_failed(err, status, "matmul creation", p->rows, p->in, p->out);
}

void cpu_product_free(cpu_product *p)
{
    cpu_product **at;

    if (p == NULL || --p->users > 0) return;
    for (at = &p->lib->products; *at != p;) at = &(*at)->next;
    *at = p->next;
    if (p->primitive != NULL) (void)dnnl_primitive_destroy(p->primitive);
    if (p->desc != NULL) (void)dnnl_primitive_desc_destroy(p->desc);
    cpu_desc_free(p->x);
    cpu_desc_free(p->w);
    cpu_desc_free(p->y);
    cpu_desc_free(p->b);
    free(p);
}

static int arguments(const cpu_product *p) { return p->bias ? 5 : 4; }

static dnnl_status_t bind_memory(cpu_bound *b, void *scratch)
{
    const cpu_product *p = b->product;
    cpu_desc_view desc[5] = {p->x, p->w, p->y, NULL, p->b};
    const int arg[5] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS};

    desc[3] = dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    for (int i = 0; i < arguments(p); i++) { /* the matrices come with the first run */
        dnnl_status_t status = dnnl_memory_create(&b->memory[i], desc[i], p->lib->engine, i == 3 ? scratch : NULL);
        if (status != dnnl_success) return status;
        b->args[i].arg = arg[i];
        b->args[i].memory = b->memory[i];
    }
    b->at[3] = scratch;
    return dnnl_success;
}

ddp_status cpu_product_bind(const cpu_product *p, void *scratch, cpu_bound **out, ddp_err *err)
{
    cpu_bound *b = calloc(1, sizeof(*b));
    dnnl_status_t status = dnnl_success;

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory for an instance");
    b->product = p;
    if (p->matmul) status = bind_memory(b, scratch);
    if (status != dnnl_success) {
        cpu_bound_free(b);
        return library_failed(err, status, "memory creation", p->rows, p->in, p->out);
    }
    *out = b;
    return DDP_OK;
}

void cpu_bound_free(cpu_bound *b)
{
    if (b == NULL) return;
    for (int i = 0; i < 5; i++)
        if (b->memory[i] != NULL) (void)dnnl_memory_destroy(b->memory[i]);
    free(b);
}

ddp_status cpu_bound_run(cpu_bound *b, const float *x, const float *w, const float *bias, float *y, ddp_err *err)
{
    const cpu_product *p = b->product;
    const void *at[5] = {x, w, y, b->at[3], bias};
    dnnl_status_t status = dnnl_success;

    if (!p->matmul) DDP_TRY(room_for_sgemm(p->lib, err));
    omp_set_num_threads(p->threads);
    if (!p->matmul) {
        status = dnnl_sgemm('N', p->transposed ? 'N' : 'T', p->rows, p->out, p->in, 1.0f, x, p->in, w,
                            p->transposed ? p->out : p->in, 0.0f, y, p->out);
    } else {
        for (int i = 0; i < arguments(p) && status == dnnl_success; i++) {
            /* oneDNN takes void *, const memory is only read */
            if (at[i] != b->at[i]) status = dnnl_memory_set_data_handle(b->memory[i], (void *)at[i]);
            b->at[i] = at[i];
        }
        if (status == dnnl_success)
            status = dnnl_primitive_execute(p->primitive, p->lib->stream, arguments(p), b->args);
    }
    return status == dnnl_success ? DDP_OK : library_failed(err, status, "matmul", p->rows, p->in, p->out);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */
ddp_status cpu_grad_input(cpu_library *lib, int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                          const float *w, float *dx, ddp_err *err)
{
    dnnl_status_t status;

    DDP_TRY(room_for_sgemm(lib, err));
    (void)set_threads(lib, rows, in, out);
    status =
        dnnl_sgemm('N', transposed ? 'T' : 'N', rows, in, out, 1.0f, dy, out, w, transposed ? out : in, 0.0f, dx, in);
    return status == dnnl_success ? DDP_OK : library_failed(err, status, "sgemm (grad input)", rows, in, out);
}

ddp_status cpu_grad_weight(cpu_library *lib, int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                           const float *x, float *dw, bool add, ddp_err *err)
{
    int64_t part = in * out <= PART_SIZE ? PART_ROWS : rows;
    dnnl_status_t status = dnnl_success;

    DDP_TRY(room_for_sgemm(lib, err));
    (void)set_threads(lib, rows, in, out);
    for (int64_t r = 0; r < rows && status == dnnl_success; r += part) {
        int64_t count = rows - r < part ? rows - r : part;
        float beta = add || r > 0 ? 1.0f : 0.0f;
        const float *g = dy + r * out, *from = x + r * in;
        if (transposed)
            status = dnnl_sgemm('T', 'N', in, out, count, 1.0f, from, in, g, out, beta, dw, out);
        else
            status = dnnl_sgemm('T', 'N', out, in, count, 1.0f, g, out, from, in, beta, dw, in);
    }
    return status == dnnl_success ? DDP_OK : library_failed(err, status, "sgemm (grad weight)", rows, in, out);
}
