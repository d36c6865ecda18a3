/* tests/doubles/cuda_stream_double.cpp -- of the double of the CUDA runtime: streams, events, launches. Each stream
 * is a thread with a queue. */
#include "cuda_parts.h"
#include <signal.h>
#include <stdlib.h>
#include <map>
#include <new>

void simt_run(const simt_launch *l);

namespace cuda_double
{
static std::set<CUstream_st *> streams;
static std::map<int, CUstream_st *> default_streams;
static unsigned waiters;                  /* threads of the host that wait for something */
static thread_local CUstream_st *at_work; /* the stream that this thread is */

static void wake_all(void)
{
    for (CUstream_st *s : streams) s->wake.notify_all();
}

/* While one is alive, what is queued may start: CUDA_DOUBLE_LATE. `lock` held. */
struct waiting {
    waiting()
    {
        waiters++;
        counts.waits++;
        if (late) wake_all();
    }
    ~waiting() { waiters--; }
};

static void run_queue(CUstream_st *s)
{
    guard held(lock);

    at_work = s;
    for (;;) {
        s->wake.wait(held, [s] { return s->queue.empty() ? s->stop : s->stop || !late || waiters > 0; });
        if (s->queue.empty()) return;
        CUstream_st::work w = std::move(s->queue.front());
        s->queue.pop_front();
        s->busy = true;
        if (w.how == WITH_LOCK) {
            w.run();
        } else {
            held.unlock();
            if (w.how == TOUCHES_MEMORY) open_memory();
            w.run();
            if (w.how == TOUCHES_MEMORY) close_memory();
            w.run = nullptr;
            held.lock();
        }
        s->busy = false;
        s->done++;
        changed.notify_all();
    }
}

/* At the end of the program, before what the threads use is gone. */
struct last_rites {
    ~last_rites()
    {
        guard held(lock);

        for (CUstream_st *s : streams) {
            s->queue.clear();
            s->stop = true;
        }
        wake_all();
        for (const auto &d : default_streams) {
            held.unlock();
            d.second->worker.join();
            held.lock();
            streams.erase(d.second);
            delete d.second;
        }
        for (int i = 0; i < 500; i++) {
            bool busy = false;
            for (CUstream_st *s : streams) busy = busy || s->busy;
            if (!busy) return;
            held.unlock();
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            held.lock();
        }
    }
};

/* `lock` held */
static CUstream_st *create(int device, unsigned flags, int priority)
{
    static last_rites at_end;
    CUstream_st *s = new CUstream_st{};
    sigset_t all, before;

    s->device = device;
    s->flags = flags;
    s->priority = priority;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    s->worker = std::thread(run_queue, s);
    (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
    streams.insert(s);
    return s;
}

CUstream_st *stream_of(guard &, cudaStream_t s)
{
    if (s != nullptr && s != cudaStreamLegacy && s != cudaStreamPerThread) return streams.count(s) == 0 ? nullptr : s;
    CUstream_st *&d = default_streams[current_device];
    if (d == nullptr) d = create(current_device, cudaStreamDefault, 0);
    return d;
}

cudaError_t submit(cudaStream_t stream, action run, manner how)
{
    guard held(lock);
    CUstream_st *s = stream_of(held, stream);

    if (s == nullptr) return misused(cudaErrorInvalidResourceHandle, "work for a stream that is not there");
    if (s->capturing != nullptr) return add_node(s, std::move(run));
    s->queue.push_back(CUstream_st::work{std::move(run), how});
    s->queued++;
    s->wake.notify_all();
    return cudaSuccess;
}

cudaError_t wait_for(guard &held, CUstream_st *s)
{
    const waiting here;
    const uint64_t until = s->queued;

    changed.wait(held, [s, until] { return s->done >= until; });
    return cudaSuccess;
}

void wait_for_device(guard &held, int device)
{
    const std::set<CUstream_st *> all = streams;

    for (CUstream_st *s : all)
        if (streams.count(s) != 0 && (device < 0 || s->device == device)) (void)wait_for(held, s);
}
} // namespace cuda_double
using namespace cuda_double;

/* ---- launches ---------------------------------------------------------------------------------------------------- */
cudaError_t simt_submit(const simt_launch *l, cudaStream_t s)
{
    simt_launch mine = *l;
    {
        guard held(lock);
        CUstream_st *on = stream_of(held, s);
        cudaError_t e = fails() ? cudaErrorLaunchFailure : usable();

        if (e == cudaSuccess && on == nullptr)
            e = misused(cudaErrorInvalidResourceHandle, "a launch on a stream that is not there");
        if (e == cudaSuccess && on->device != current_device)
            e = misused(cudaErrorInvalidResourceHandle, "a launch on a stream of device %d while %d is the current one",
                        on->device, current_device);
        if (e != cudaSuccess) return said(e);
        if (on->capturing == nullptr) counts.launches++;
    }
    const std::shared_ptr<void> arguments(l->copy(l->arguments), l->drop);
    mine.arguments = arguments.get();
    return said(submit(
        s,
        [mine, arguments] {
            simt_run(&mine);
            guard held(lock);
            counts.kernels++;
        },
        TOUCHES_MEMORY));
}

extern "C" {
cudaError_t cuda_double_enqueue(cudaStream_t s, void (*run)(void *argument), const void *argument, size_t bytes)
{
    const std::shared_ptr<void> mine(malloc(bytes + 1), free);

    memcpy(mine.get(), argument, bytes);
    return said(submit(
        s, [run, mine] { run(mine.get()); }, TOUCHES_MEMORY));
}

void cuda_double_takes(double seconds)
{
    guard held(lock);

    at_work->ahead += seconds;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *data)
{
    return said(submit(
        s, [fn, data] { fn(data); }, TOUCHES_NONE));
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorMemoryAllocation : usable();

    *out = nullptr;
    if (e != cudaSuccess) return said(e);
    if (flags != cudaStreamNonBlocking)
        (void)misused(cudaSuccess, "a stream that the default stream waits for, which the double does not do");
    counts.streams++;
    *out = create(current_device, flags, priority);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0); }

/* What is queued still runs, as CUDA promises. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    guard held(lock);

    if (s == nullptr || stream_of(held, s) == nullptr)
        return said(misused(cudaErrorInvalidResourceHandle, "cudaStreamDestroy of a stream that is not there"));
    if (s->capturing != nullptr) return said(broken(s, "cudaStreamDestroy"));
    {
        const waiting here;
        s->stop = true;
        s->wake.notify_all();
        held.unlock();
        s->worker.join();
        held.lock();
    }
    streams.erase(s);
    delete s;
    counts.streams--;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard held(lock);
    CUstream_st *s = stream_of(held, stream);

    if (fails()) return said(cudaErrorLaunchFailure);
    if (s == nullptr)
        return said(misused(cudaErrorInvalidResourceHandle, "cudaStreamSynchronize of a stream that is not there"));
    if (s->capturing != nullptr) return said(broken(s, "cudaStreamSynchronize"));
    const cudaError_t e = allowed("cudaStreamSynchronize");
    return said(e != cudaSuccess ? e : wait_for(held, s));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    guard held(lock);
    CUstream_st *s = stream_of(held, stream);

    if (fails()) return said(cudaErrorLaunchFailure);
    if (s == nullptr)
        return said(misused(cudaErrorInvalidResourceHandle, "cudaStreamQuery of a stream that is not there"));
    if (s->capturing != nullptr) return said(broken(s, "cudaStreamQuery"));
    const cudaError_t e = allowed("cudaStreamQuery");
    if (e == cudaSuccess && late && s->done < s->queued) {
        const waiting here;
        (void)changed.wait_for(held, std::chrono::milliseconds(1));
    }
    return said(e != cudaSuccess ? e : s->done < s->queued ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority)
{
    guard held(lock);

    if (stream_of(held, s) == nullptr) return said(cudaErrorInvalidResourceHandle);
    *priority = stream_of(held, s)->priority;
    return cudaSuccess;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorMemoryAllocation : usable();

    *out = nullptr;
    if (e != cudaSuccess) return said(e);
    counts.events++;
    if ((flags & cudaEventDisableTiming) == 0) counts.timed++;
    *out = new CUevent_st{current_device, flags, std::make_shared<event_state>()};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    guard held(lock);

    if (e == nullptr) return said(cudaErrorInvalidResourceHandle);
    delete e;
    counts.events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    guard held(lock);
    CUstream_st *s = stream_of(held, stream);

    if (fails()) return said(cudaErrorInvalidResourceHandle);
    if (s == nullptr || e == nullptr || s->device != e->device)
        return said(misused(cudaErrorInvalidResourceHandle,
                            "cudaEventRecord of an event and a stream that are not of one device"));
    const std::shared_ptr<event_state> state = e->state;
    state->captured = s->capturing;
    state->after = s->after;
    if (s->capturing != nullptr) return said(s->capturing->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    const uint64_t at = ++state->recorded;
    held.unlock();
    return said(submit(
        s,
        [state, at] {
            if (state->completed < at) state->completed = at;
            state->ahead = at_work->ahead;
            state->seconds = seconds_now() + state->ahead;
            changed.notify_all();
        },
        WITH_LOCK));
}

/* `lock` held: one of the two takes part in a capture. */
static cudaError_t wait_captured(CUstream_st *s, const event_state &e)
{
    if (e.captured == nullptr) {
        s->capturing->invalid = true;
        return misused(cudaErrorStreamCaptureIsolation,
                       "a stream that is captured waits for an event from outside of the capture");
    }
    if (e.captured->origin == nullptr)
        return misused(cudaErrorCapturedEvent, "a wait for an event of a capture that has ended");
    if (s->capturing != nullptr && s->capturing != e.captured) {
        s->capturing->invalid = e.captured->invalid = true;
        return misused(cudaErrorStreamCaptureMerge, "a stream that is captured waits for an event of another capture");
    }
    if (e.captured->invalid) return cudaErrorStreamCaptureInvalidated;
    if (s->capturing == nullptr && s->flags != cudaStreamNonBlocking)
        return misused(cudaErrorStreamCaptureImplicit, "the default stream waits for an event of a capture");
    s->capturing = e.captured;
    s->capturing->streams.insert(s);
    s->after.insert(e.after.begin(), e.after.end());
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    guard held(lock);
    CUstream_st *s = stream_of(held, stream);

    if (fails()) return said(cudaErrorInvalidResourceHandle);
    if (s == nullptr || e == nullptr || flags != 0)
        return said(
            misused(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent of a stream or an event that is not there"));
    const std::shared_ptr<event_state> state = e->state;
    if (s->capturing != nullptr || state->captured != nullptr) return said(wait_captured(s, *state));
    const uint64_t at = state->recorded;
    held.unlock();
    return said(submit(
        s,
        [state, at] {
            guard again(lock);
            changed.wait(again, [&] { return state->completed >= at; });
            if (at_work->ahead < state->ahead) at_work->ahead = state->ahead;
        },
        TOUCHES_NONE));
}

static cudaError_t finished(guard &held, cudaEvent_t e, const char *call)
{
    cudaError_t result = fails() ? cudaErrorLaunchFailure : allowed(call);

    if (result != cudaSuccess) return result;
    if (e == nullptr) return misused(cudaErrorInvalidResourceHandle, "%s of an event that is not there", call);
    if (e->state->captured != nullptr) return misused(cudaErrorCapturedEvent, "%s of an event that was captured", call);
    if (late && e->state->completed < e->state->recorded) {
        const waiting here;
        (void)changed.wait_for(held, std::chrono::milliseconds(1));
    }
    return e->state->completed < e->state->recorded ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    guard held(lock);

    return said(finished(held, e, "cudaEventQuery"));
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    guard held(lock);
    cudaError_t result = finished(held, e, "cudaEventSynchronize");

    if (result != cudaErrorNotReady) return said(result);
    const waiting here;
    const std::shared_ptr<event_state> state = e->state;
    const uint64_t at = state->recorded;
    changed.wait(held, [&] { return state->completed >= at; });
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    guard held(lock);

    if (from == nullptr || to == nullptr || ((from->flags | to->flags) & cudaEventDisableTiming) != 0 ||
        from->state->recorded == 0 || to->state->recorded == 0)
        return said(misused(cudaErrorInvalidResourceHandle,
                            "cudaEventElapsedTime of events that were not recorded, or take no times"));
    if (from->state->completed < from->state->recorded || to->state->completed < to->state->recorded)
        return said(cudaErrorNotReady);
    *ms = static_cast<float>((to->state->seconds - from->state->seconds) * 1e3);
    return cudaSuccess;
}
}
