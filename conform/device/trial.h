/* conform/device/trial.h -- a small network on a device and on the references: program.c sets it up and runs it,
 * step.c runs it too. */
#ifndef DDP_DEVICE_TRIAL_H
#define DDP_DEVICE_TRIAL_H

#include "conform/harness/rank_process.h"
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

#endif
