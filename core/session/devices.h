/* session/devices.h -- [train] device and parallel: which devices this process uses, and how. */
#pragma once

#include "session/session.h"

/* [train] device = auto, which find_devices is not to see: the name of a plugin has to be found first. */
bool session_device_is_auto(const ddp_session *s);
/* Fills device_name, ordinals, device_count and replicas of the session from the config; refuses what does not go
 * together, with the position of the key. Nothing is loaded. `found`: instead of auto; else NULL. */
ddp_status session_find_devices(ddp_session *s, const char *found, ddp_err *err);
/* With parallel = model, once the graph is built: every device has layers of the model, and every layer a device. */
ddp_status session_check_places(ddp_session *s, ddp_err *err);
