/* train/devices.h -- [train] device and parallel: which devices this process uses, and how. */
#ifndef DDP_DEVICES_H
#define DDP_DEVICES_H

#include "train/session.h"

/* Fills device_name, ordinals, device_count and replicas of the session from the config; refuses what does not go together, with the
 * place of the key. Nothing is loaded. */
ddp_status ddp_session_find_devices(ddp_session *s, ddp_err *err);
/* With parallel = model, once the graph is built: every device has layers of the model, and every layer a device. */
ddp_status ddp_session_check_places(ddp_session *s, ddp_err *err);

#endif
