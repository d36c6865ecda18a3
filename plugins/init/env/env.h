/* plugins/init/env/env.h -- init method env://: the environment says who this process is and where rank 0 listens.
 *
 *   env.c     the slots, and where rank 0 is under each launcher
 *   slurm.c   what Slurm's variables say of nodes and port */
#pragma once

#include <ddpengine/init.h>

/* The first host of a node list as Slurm writes it, "rack[1-2]n[03-04,7],login" -> "rack1n03". False when it is
 * none. */
int slurm_first_host(const char *list, char *host, size_t capacity);
/* A port that the ranks of a step derive alike: 20000 to 59999. */
unsigned slurm_port(uint64_t job, uint64_t step);
/* The endpoint of this step; `port` is MASTER_PORT, 0: not given. `host` is "127.0.0.1" on a single node. */
ddp_status slurm_endpoint(int64_t port, char host[DDP_ENDPOINT_MAX], int64_t *out_port, ddp_err *err);
