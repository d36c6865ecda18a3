/* conform/device/trial.h -- a small network on a device and on the references: device_program.c sets it up, device_step.c too runs it. */
#ifndef DDP_DEVICE_TRIAL_H
#define DDP_DEVICE_TRIAL_H

#include "conform/harness/internal.h"
#include "graph/graph.h"

enum { DDP_TRIAL_FIELDS = 2 };

typedef struct ddp_device_trial {
    ddp_rank_process *a;
    const char *network;
    const ddp_device_ops *ops;
    ddp_device *d;
    const ddp_program *p;
    const ddp_layout *layout;
    ddp_ref_tensor *ref; /* by value */
    void *inputs[DDP_TRIAL_FIELDS];
    float *params, *grads, *buffers, *arena; /* of the device */
    float *host, *before;                    /* layout->elements each */
    float *buffers_host;
    uint64_t buffer_elements;
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_exec *exec;
    ddp_instance *instance;
    uint64_t random;
    ddp_err err;
} ddp_device_trial;

/* Fails the case, and is false, where `is` is further from `want` than f32's sums are. */
bool ddp_device_near(ddp_device_trial *t, const char *what, const char *name, int64_t e, double is, double want);
/* The device's `step`, where it has one; false: the case has failed. */
bool ddp_device_step(ddp_device_trial *t);

#endif
