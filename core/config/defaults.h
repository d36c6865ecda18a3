/* config/defaults.h -- the plugins that a run takes where its INI names none. All that the core knows of plugins by
 * name stands here; lint sees to that. */
#pragma once

#define DDP_DEFAULT_DEVICE       "cpu"
#define DDP_DEFAULT_SAMPLER      "distributed"
#define DDP_DEFAULT_EVAL_SAMPLER "sequential" /* of an evaluation: every sample once */
#define DDP_LAUNCHER_URL         "env://"     /* init_method under a launcher */
#define DDP_NODES_PORT           29500
#define DDP_NODES_URL            "tcp://%.255s:%d" /* init_method with [group] nodes: host and port */
