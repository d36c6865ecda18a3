/* train/reduce/comm_stream.h -- collectives where the gradients are in a device's own memory.
 *
 * A backend that takes that memory (nccl) works on it in the order of streams: it begins after what the device was
 * given to do before, and what the device is given afterwards waits for it; the host waits for neither. For one that
 * takes the host's (gloo-tcp, mpi, shm) the queue thread copies what is to be sent into a staging buffer in
 * page-locked memory, and what came back, beside the device's computing.
 *
 * The trainer's thread owns a stream; a task's copies are made by the queue thread between its submit and its ticket.
 */
#pragma once

#include "comm/communicator.h"
#include "session/session.h"

typedef struct ddp_comm_stream ddp_comm_stream;

/* A collective of f32; `root` is rank 0. */
static inline ddp_task ddp_task_of(uint32_t what, uint32_t op, const void *send, void *recv, size_t count)
{
    return (ddp_task){
        .what = what,
        .coll = {
            .struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = op, .send = send, .recv = recv, .count = count}};
}

/* For tasks 0 .. count - 1, each of which is pending once at most. `arena`: of the device, `elements` floats, in
 * which all sends and receives lie; elements 0: there are none. */
typedef struct ddp_comm_stream_params {
    ddp_device_handle *device;
    ddp_communicator *comm;
    float *arena;
    uint64_t elements;
    uint32_t count;
} ddp_comm_stream_params;
ddp_status ddp_comm_stream_open(const ddp_comm_stream_params *p, ddp_comm_stream **out, ddp_err *err);
void ddp_comm_stream_close(ddp_comm_stream *l);           /* takes NULL; the queue thread has ended */
bool reduce_comm_stream_direct(const ddp_comm_stream *l); /* the backend takes the device's memory */
float *ddp_comm_stream_staging(const ddp_comm_stream *l); /* of the arena, host memory; NULL where it is direct */

/* Submits task `index`, whose addresses are the device's. `task->before` comes when the device has made what is sent,
 * and that is in the staging buffer (or, direct, at once: the device may still be computing it). */
ddp_status reduce_comm_stream_submit(ddp_comm_stream *l, uint32_t index, const ddp_task *task, uint64_t *ticket,
                                     ddp_err *err);
/* The same for a few numbers in host_alloc memory, DDP_COMM_STREAM_SCALARS bytes at most, that are reduced in place
 * and are there when the ticket is done; `task->before` comes just before they are read. */
enum { DDP_COMM_STREAM_SCALARS = 256 };
ddp_status reduce_comm_stream_submit_scalars(ddp_comm_stream *l, uint32_t index, const ddp_task *task, uint64_t *ticket,
                                             ddp_err *err);
/* Once the ticket is done, of scalars too, whose copies may have failed: what the device is given from now on sees
 * what was received. */
ddp_status reduce_comm_stream_take(ddp_comm_stream *l, uint32_t index, ddp_err *err);

/* Between the arena and the staging buffer, beside no task: waits. */
ddp_status reduce_comm_stream_fetch(ddp_comm_stream *l, uint64_t first, uint64_t count, ddp_err *err);
ddp_status reduce_comm_stream_store(ddp_comm_stream *l, uint64_t first, uint64_t count, ddp_err *err);
/* Queue thread: until the device has done all that it had been given when task `index` was submitted. */
ddp_status reduce_comm_stream_reached(ddp_comm_stream *l, uint32_t index, ddp_err *err);

/* submit and wait for a task whose addresses are the host's, whatever memory the backend takes; not while others are
 * pending. */
ddp_status ddp_host_collective(const ddp_device_handle *d, ddp_communicator *c, const ddp_task *task, ddp_err *err);
