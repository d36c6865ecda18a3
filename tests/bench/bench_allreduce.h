/* bench_allreduce.h -- the core's side of bench_allreduce.cc, in C: two forked ranks, a store that they share (the
 * tests' double), the plugin's slot and a communicator over a real group; of two hosts the slot alone. */
#pragma once

#include <stddef.h>

int bench_start(void);                                                        /* the rank */
int bench_start_hosts(const char *const address[2], const char *rank1_netns); /* the same; rank 1 goes there first */
int bench_end(int rank);
int bench_agree(int rank, int rounds); /* rank 0's */
void bench_store_set(const char *key, const void *data, size_t bytes);
size_t bench_store_get(const char *key, void *data, size_t capacity);
void bench_slot(float *x, size_t n);
void bench_queue(float *x, size_t n);
