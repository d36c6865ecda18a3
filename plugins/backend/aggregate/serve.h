/* plugins/backend/aggregate/serve.h -- an aggregator: `ddpengine aggregate`, or a process of conform. */
#pragma once

#include "mesh.h"

#define AGGREGATE_RANK_KEY "place of rank %u" /* of a rank; private to the communicator */
#define AGGREGATE_KEY      "/aggregate/%u"    /* in the store: the place of an aggregator, by its number */

extern const ddp_helper_ops aggregate_helper;
