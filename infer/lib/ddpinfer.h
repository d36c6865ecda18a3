/* ddpinfer.h -- a model that ddpengine has trained, in a program of yours: open it, run batches, close it.
 *
 *     ddp_infer *model;
 *     ddp_infer_error error;
 *
 *     if (ddp_infer_open("mnist.ini", "ckpt", NULL, &model, &error) != DDP_INFER_OK) puts(error.text);
 *     ddp_infer_run(model, 1, (const void *[]){pixels}, (void *[]){logits}, &error);
 *     ddp_infer_close(model);
 *
 * The library loads plugins of a device and of a model, and no backend. Where the checkpoint does not say what the
 * model reads (a safetensors file alone does not) it opens the dataset of [data] too. It prints nothing, ends no
 * process, installs no signal handler and starts no thread, but for the compute threads that ddp_infer_options.threads
 * asks for.
 *
 * Threads: each function says from which thread it may be called. Different models are independent of each other: each
 * may have a thread of its own. With more than one compute thread, use a model from the thread that has opened it: that
 * thread is one of them. */
#ifndef DDPINFER_H
#define DDPINFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_INFER_API __attribute__((visibility("default")))

typedef struct ddp_infer ddp_infer;

/* What a function returns: 0, or why it has failed; the numbers are the exit codes of ddpengine. */
enum {
    DDP_INFER_OK = 0,
    DDP_INFER_INTERNAL = 1, /* out of memory, or a defect of the library */
    DDP_INFER_CONFIG = 2,   /* the INI, an argument of the call, or a model that it does not suit */
    DDP_INFER_PLUGIN = 3,   /* a plugin is missing or refused */
    DDP_INFER_WEIGHTS = 8,  /* the checkpoint is missing, damaged, or of another model */
    DDP_INFER_DATA = 10     /* what was put in, or the dataset's files */
};

/* Owned by the caller. One line, and what to do next; set only by a call that fails. Wherever one is taken it may be
 * NULL. */
typedef struct ddp_infer_error {
    char text[512];
} ddp_infer_error;

typedef struct ddp_infer_options {
    size_t struct_size;     /* sizeof(ddp_infer_options) */
    int threads;            /* compute threads, the caller's among them; 0: 1 */
    const char *device;     /* a plugin, as of [train] device; NULL: "cpu", whatever the INI says */
    const char *plugins;    /* a folder to look for plugins in first; NULL: as ddpengine does */
    const char *const *set; /* "section.key=value", as of --set; may be NULL */
    size_t set_count;
    /* Gets each line that ddpengine would print on standard error, without its newline; the calls come from within a
     * call of the library. NULL: they are dropped. */
    void (*log)(void *ctx, int level, const char *line); /* level: 0 debug, 1 information, 2 warning, 3 error */
    void *log_ctx;
} ddp_infer_options;

/* What the model reads or gives for one sample: a batch of n is n of them, one behind the other, row-major. */
typedef struct ddp_infer_tensor {
    const char *name; /* "image", "logits"; lives until the model is closed */
    int dtype;        /* DDP_INFER_F32 or DDP_INFER_I64 */
    int rank;
    int64_t dims[8]; /* without the batch dimension; rank 0: one number */
    size_t bytes;    /* of one sample */
} ddp_infer_tensor;

enum { DDP_INFER_F32 = 1, DDP_INFER_I64 = 2 };

/* Any thread. "0.1.0" */
DDP_INFER_API const char *ddp_infer_version(void);

/* Any thread. Reads the INI that the model was trained with, and weights: a checkpoint, a folder of checkpoints (the
 * newest valid one), or a safetensors file; NULL: the newest of [checkpoint] dir, else [checkpoint] init_from. All
 * files are checked, and closed again when it returns. `options` NULL: the defaults. *out is set only on success. */
DDP_INFER_API int ddp_infer_open(const char *ini, const char *weights, const ddp_infer_options *options,
                                 ddp_infer **out, ddp_infer_error *error);

/* One thread at a time; afterwards nobody may use it. NULL does nothing. */
DDP_INFER_API void ddp_infer_close(ddp_infer *model);

/* Any thread. What the model reads, in the order of ddp_infer_run, and what it gives. Images are f32 as the model sees
 * them: from 0 to 1, resized and normalised as [eval] says. DDP_INFER_CONFIG: there is no such index. */
DDP_INFER_API int ddp_infer_inputs(const ddp_infer *model);
DDP_INFER_API int ddp_infer_input(const ddp_infer *model, int index, ddp_infer_tensor *out);
DDP_INFER_API int ddp_infer_outputs(const ddp_infer *model);
DDP_INFER_API int ddp_infer_output(const ddp_infer *model, int index, ddp_infer_tensor *out);

/* One thread at a time. Makes ready for batches of this many samples, which the first ddp_infer_run of a size does
 * otherwise. The last four sizes stay ready; running one of them again allocates nothing. */
DDP_INFER_API int ddp_infer_prepare(ddp_infer *model, int64_t batch, ddp_infer_error *error);

/* One thread at a time. `inputs` and `outputs` have a pointer for each input and output, to `batch` samples; an output
 * may be NULL where it is not wanted. Inputs whose address is a multiple of 64 are read where they are, others are
 * copied first. They are the caller's again when it returns. The same bits for the same batch on the same machine. */
DDP_INFER_API int ddp_infer_run(ddp_infer *model, int64_t batch, const void *const *inputs, void *const *outputs,
                                ddp_infer_error *error);

#ifdef __cplusplus
}
#endif
#endif
