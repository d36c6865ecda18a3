/* plugins/backend/aggregate/mesh.h -- the connections of a rank: one to each other rank of the communicator, and one to
 * each aggregator. The queue thread. */
#pragma once

#include "listener.h"

enum { AGGREGATE_SLOTS_OF_PEER = 20 }; /* pieces of a peer that may be here at once */

typedef struct aggregate_config {
    uint64_t aggregators, chunk_bytes, small_bytes;
} aggregate_config;

typedef struct aggregate_peer {
    int fd;         /* -1: this rank itself, or not connected */
    char name[320]; /* "rank 1 on host b (192.0.2.7:40123)", "aggregator 0 on host c (..)" */
} aggregate_peer;

typedef struct aggregate_mesh {
    uint32_t rank, world;
    uint32_t aggregators;  /* that are connected: 0 in a world of 1 */
    aggregate_peer *peers; /* the ranks, then the aggregators */
    size_t chunk, small;   /* bytes: of a piece; of an all-reduce that takes one round */
    bool orderly;          /* aggregators are told when it closes */
    struct aggregate_engine *engine;
} aggregate_mesh;

/* Returns when this rank is connected with all; on failure everything is closed. Errors name who is missing. */
ddp_status aggregate_mesh_open(const ddp_host *host, const aggregate_config *config, const ddp_comm_params *p,
                               aggregate_mesh **out, ddp_err *err);
void aggregate_mesh_close(aggregate_mesh *m);
/* Bytes of a piece: the same on all ranks and aggregators. */
size_t aggregate_mesh_chunk(const aggregate_config *config, uint32_t world);
static inline uint32_t aggregate_mesh_count(const aggregate_mesh *m) { return m->world + m->aggregators; }

/* Bytes that the socket takes or has now: DDP_OK, *moved maybe 0. Else DDP_ERR_PEER that names the other end. */
ddp_status aggregate_mesh_send(const aggregate_mesh *m, uint32_t peer, const void *data, size_t bytes, size_t *moved,
                               ddp_err *err);
ddp_status aggregate_mesh_recv(const aggregate_mesh *m, uint32_t peer, void *data, size_t bytes, size_t *moved,
                               ddp_err *err);
