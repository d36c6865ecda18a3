/* config/defaults.h -- the plugins that a run takes where its INI names none, and the example of the manual. All that
 * the core knows of plugins by name stands here; lint sees to that. */
#pragma once

#define DDP_DEFAULT_DEVICE       "cpu"
#define DDP_DEFAULT_SAMPLER      "distributed"
#define DDP_DEFAULT_EVAL_SAMPLER "sequential" /* of an evaluation: every sample once */
#define DDP_HELPED_BACKEND       "aggregate"  /* for messages: one that takes help from other hosts */
#define DDP_LAUNCHER_URL         "env://"     /* init_method under a launcher */
#define DDP_NODES_PORT           29500
#define DDP_NODES_URL            "tcp://%.255s:%d" /* init_method with [group] nodes: host and port */
/* A whole INI, for any number of ranks. */
#define DDP_EXAMPLE_INI                                                                                                \
    "[train]\nepochs = 2\nbatch_size = 32\n\n"                                                                         \
    "[model]\nplugin = mlp\n\n[model.mlp]\nclasses = 10\n\n"                                                           \
    "[data]\nplugin = synthetic\n\n[data.synthetic]\nshape = 16\nclasses = 10\nsamples = 1024\n\n"                     \
    "[optimizer]\nlr = 0.1\n\n[output]\ndir = run\n"
