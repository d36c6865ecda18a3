/* bench_hosts.h -- the core's side of bench_hosts.cc, in C: a real group of ranks, a communicator for each backend. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct hosts_args {
    int rank, world;
    const char *endpoint;  /* where rank 0 listens, "10.0.0.1:29500" */
    const char *interface; /* "eth0"; "": as the routes choose */
} hosts_args;

void hosts_join(const hosts_args *a);
void hosts_leave(void);
/* Of a host that helps: joins as one, serves until the ranks have left. rank is not used. */
void hosts_help(const hosts_args *a, const char *backend);
/* "gloo-tcp", "shm+gloo-tcp", "aggregate:aggregators=2:chunk=1MiB": opens the next one */
void hosts_open(const char *backend);
void hosts_reduce(uint32_t backend, float *x, size_t count); /* sum in place, of the backend opened as number so many */
float *hosts_buffer(uint32_t backend, size_t count);         /* of its own memory, where it has some */
double hosts_slowest(double value);                          /* the largest of all ranks' */
void hosts_barrier(void);
void hosts_set(const char *key, const void *data, size_t bytes);
size_t hosts_get(const char *key, void *data, size_t capacity);
