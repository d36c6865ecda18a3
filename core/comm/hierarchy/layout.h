/* comm/hierarchy/layout.h -- which ranks share a host. */
#pragma once

#include "plugin/plugin.h"

typedef struct hierarchy_layout {
    uint32_t rank, world, hosts;
    uint32_t host, local, locals; /* of this rank: its host, its rank there, how many ranks are there */
    uint32_t channels;            /* ranks of the host that has the fewest */
    bool even;                    /* all hosts have as many */
    uint32_t *host_of, *local_of; /* by rank */
} hierarchy_layout;

/* `hosts`: a number for each rank, the same for ranks of one host, in any order; hosts are numbered by their first
 * rank. */
ddp_status hierarchy_layout_of(const uint32_t *hosts, uint32_t rank, uint32_t world, hierarchy_layout *out,
                               ddp_err *err);
/* Collective: every rank names its host in the store, rank 0 answers with the numbers. */
ddp_status hierarchy_layout_agree(const ddp_store *store, uint32_t rank, uint32_t world, int64_t timeout_ms,
                                  hierarchy_layout *out, ddp_err *err);
void hierarchy_layout_free(hierarchy_layout *l);
