/* tests/doubles/cuda_parts.h -- what the files of the double of the CUDA runtime share. */
#pragma once

#include "cuda_runtime_double.h"
#include "simt_double.h"
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace cuda_double
{
/* One lock for all of the double's state. What is queued runs without it. */
typedef std::unique_lock<std::mutex> guard;
extern std::mutex lock;
extern std::condition_variable &changed; /* work was done, an event came to pass */

typedef std::function<void(void)> action;

struct node {
    action run;
    std::set<size_t> after;
};
struct graph {
    std::vector<node> nodes;
};
struct capture {
    unsigned long long id;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    CUstream_st *origin;
    bool invalid;
    std::shared_ptr<graph> into;
    std::set<CUstream_st *> streams;
};

struct event_state {
    uint64_t recorded, completed;
    double seconds, ahead;             /* when it came to pass last, and the stream's `ahead` of then */
    std::shared_ptr<capture> captured; /* recorded in it last, after these nodes */
    std::set<size_t> after;
};

/* settings and counts */
extern cuda_double_counts counts;
extern bool strict, late, newest_first;
extern int device_count;
extern size_t memory_bytes;
extern thread_local int current_device;
cudaError_t said(cudaError_t e); /* for cudaGetLastError */
__attribute__((format(printf, 2, 3))) cudaError_t misused(cudaError_t e, const char *format, ...);
bool fails(void);         /* whether this call is the one to fail */
cudaError_t usable(void); /* whether there is a device at all */
double seconds_now(void);

/* streams. What they are given they do later, each in its order. */
enum manner { TOUCHES_MEMORY, TOUCHES_NONE, WITH_LOCK /* `run` is called with it held */ };
cudaError_t submit(cudaStream_t s, action run, manner how);
cudaError_t wait_for(guard &held, CUstream_st *s);
void wait_for_device(guard &held, int device);
CUstream_st *stream_of(guard &held, cudaStream_t s); /* NULL: that of the current device; nullptr: no such stream */

/* capture, `lock` held. allowed: whether this thread may make a call that capture forbids. */
cudaError_t allowed(const char *call);
cudaError_t add_node(CUstream_st *s, action run);
cudaError_t broken(CUstream_st *s, const char *call); /* `call` cannot be captured */
bool joined(const capture &c, CUstream_st *s);

/* memory */
void open_memory(void);
void close_memory(void);
} // namespace cuda_double

struct CUstream_st {
    int device;
    unsigned flags;
    int priority;
    bool stop, busy;
    uint64_t queued, done;
    double ahead; /* of the clock, in seconds: what its work pretended to take */
    struct work {
        cuda_double::action run;
        cuda_double::manner how;
    };
    std::deque<work> queue;
    std::condition_variable wake;
    std::thread worker;
    std::shared_ptr<cuda_double::capture> capturing;
    std::set<size_t> after; /* nodes that the next one follows */
};

struct CUevent_st {
    int device;
    unsigned flags;
    std::shared_ptr<cuda_double::event_state> state;
};
