/* plugins/device/cpu/onednn/gemm.h -- matrix products by oneDNN. The only file that includes its header is gemm.c, so
 * that another version of the library is a change of one file.
 *
 * All matrices are plain row-major f32. Which call is used for which shape is a fixed rule (gemm.c), never a timing:
 * the same configuration gives the same bits in every run. Calls come from the device's one thread. */
#pragma once

#include <ddpengine/device.h>
#include <stdbool.h>

typedef struct cpu_library cpu_library; /* oneDNN's engine and stream */
ddp_status cpu_library_open(uint32_t threads, cpu_library **out, ddp_err *err);
void cpu_library_close(cpu_library *lib);
void cpu_library_version(char *text, size_t capacity); /* "oneDNN 2.6.3" */

/* y (rows, out) = x (rows, in) w^T, w (out, in), or transposed (in, out). Described when a program is lowered, built
 * when it is compiled, bound to memory for each instance. With `bias` the bias is added too, where the call that is
 * chosen does it for nothing: cpu_product_adds_bias(). Layers of one shape have one product, which oneDNN describes
 * in 18 KB: each create wants its free. */
typedef struct cpu_product cpu_product;
typedef struct cpu_bound cpu_bound;
ddp_status cpu_product_create(cpu_library *lib, int64_t rows, int64_t in, int64_t out, bool transposed, bool bias,
                              cpu_product **product, ddp_err *err);
bool cpu_product_adds_bias(const cpu_product *p);
uint64_t cpu_product_scratch(const cpu_product *p); /* bytes, 0 for none */
ddp_status cpu_product_build(cpu_product *p, ddp_err *err);
void cpu_product_free(cpu_product *p);
ddp_status cpu_product_bind(const cpu_product *p, void *scratch, cpu_bound **out, ddp_err *err);
/* bias (out), read only where it is added */
ddp_status cpu_bound_run(cpu_bound *b, const float *x, const float *w, const float *bias, float *y, ddp_err *err);
void cpu_bound_free(cpu_bound *b);

/* dx (rows, in) = dy (rows, out) w (out, in), or transposed (in, out). */
ddp_status cpu_grad_input(cpu_library *lib, int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                          const float *w, float *dx, ddp_err *err);
/* dw (out, in) = or += dy^T x; transposed: (in, out). */
ddp_status cpu_grad_weight(cpu_library *lib, int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                           const float *x, float *dw, bool add, ddp_err *err);
