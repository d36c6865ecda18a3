/* conform/device/step.h -- a device's `step`. */
#ifndef DDP_CONFORM_DEVICE_STEP_H
#define DDP_CONFORM_DEVICE_STEP_H

#include "conform/device/trial.h"

/* Fails the case, and is false, where `is` is further from `want` than f32's sums are. */
bool ddp_device_near(ddp_device_trial *t, const char *what, const char *name, int64_t e, double is, double want);
/* The device's `step`, where it has one; false: the case has failed. */
bool ddp_device_step(ddp_device_trial *t);

#endif
