/* tests/doubles/cuda_capture_double.cpp -- of the double of the CUDA runtime: what streams capture, and the graphs
 * that come of it. */
#include "cuda_parts.h"

namespace cuda_double
{
static std::set<std::shared_ptr<capture>> captures; /* that have not ended */
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* As cudaThreadExchangeStreamCaptureMode is documented. */
cudaError_t allowed(const char *call)
{
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    for (const auto &c : captures) {
        const bool here = c->thread == std::this_thread::get_id();

        if (c->mode == cudaStreamCaptureModeRelaxed) continue;
        if (!here && (thread_mode != cudaStreamCaptureModeGlobal || c->mode != cudaStreamCaptureModeGlobal)) continue;
        c->invalid = true;
        return misused(cudaErrorStreamCaptureUnsupported, "%s while a stream is captured", call);
    }
    return cudaSuccess;
}

cudaError_t add_node(CUstream_st *s, action run)
{
    const std::shared_ptr<capture> c = s->capturing;

    if (c->invalid) return cudaErrorStreamCaptureInvalidated;
    c->into->nodes.push_back(node{std::move(run), s->after});
    s->after = {c->into->nodes.size() - 1};
    return cudaSuccess;
}

cudaError_t broken(CUstream_st *s, const char *call)
{
    s->capturing->invalid = true;
    return misused(cudaErrorStreamCaptureUnsupported, "%s on a stream that is captured", call);
}

/* Whether the last work of every stream that joined lies before that of the origin. */
static bool all_joined(const capture &c)
{
    std::set<size_t> before = c.origin->after;
    const std::vector<node> &nodes = c.into->nodes;

    for (size_t i = nodes.size(); i-- > 0;)
        if (before.count(i) != 0) before.insert(nodes[i].after.begin(), nodes[i].after.end());
    for (const CUstream_st *s : c.streams)
        for (size_t i : s->after)
            if (before.count(i) == 0) return false;
    return true;
}

/* The nodes are in an order that will do; the other extreme shows a dependency that was forgotten. */
static void run_newest_first(const graph &g)
{
    std::vector<size_t> missing(g.nodes.size());
    std::vector<std::vector<size_t>> next(g.nodes.size());
    std::set<size_t> ready;

    for (size_t i = 0; i < g.nodes.size(); i++) {
        missing[i] = g.nodes[i].after.size();
        for (size_t before : g.nodes[i].after) next[before].push_back(i);
        if (missing[i] == 0) ready.insert(i);
    }
    while (!ready.empty()) {
        const size_t i = *ready.rbegin();
        ready.erase(i);
        g.nodes[i].run();
        for (size_t n : next[i])
            if (--missing[n] == 0) ready.insert(n);
    }
}

static void run_graph(const graph &g)
{
    if (newest_first) {
        run_newest_first(g);
        return;
    }
    for (const node &n : g.nodes) n.run();
}
} // namespace cuda_double
using namespace cuda_double;

struct CUgraph_st {
    std::shared_ptr<graph> what;
};
struct CUgraphExec_st {
    std::shared_ptr<graph> what;
    std::shared_ptr<std::mutex> running; /* it never overlaps with itself */
};

extern "C" {
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    static unsigned long long ids;
    guard held(lock);
    CUstream_st *s = stream_of(held, stream);
    const cudaError_t e = fails() ? cudaErrorUnknown : usable();

    if (e != cudaSuccess) return said(e);
    if (s == nullptr) return said(misused(cudaErrorInvalidResourceHandle, "the capture of a stream that is not there"));
    if (s != stream) return said(misused(cudaErrorStreamCaptureUnsupported, "the capture of the default stream"));
    if (s->capturing != nullptr)
        return said(misused(cudaErrorIllegalState, "the capture of a stream that is captured"));
    s->capturing = std::make_shared<capture>(
        capture{++ids, mode, std::this_thread::get_id(), s, false, std::make_shared<graph>(), {s}});
    s->after.clear();
    captures.insert(s->capturing);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    guard held(lock);
    CUstream_st *s = stream_of(held, stream);
    cudaError_t e = fails() ? cudaErrorUnknown : cudaSuccess;

    *out = nullptr;
    if (s == nullptr || s->capturing == nullptr)
        return said(misused(cudaErrorIllegalState, "the end of a capture that was not begun"));
    const std::shared_ptr<capture> c = s->capturing;
    if (c->origin != s)
        return said(misused(cudaErrorStreamCaptureUnmatched, "the end of a capture in another stream than its first"));
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
        return said(
            misused(cudaErrorStreamCaptureWrongThread, "the end of a capture in another thread than its first"));
    if (c->invalid)
        e = cudaErrorStreamCaptureInvalidated;
    else if (!all_joined(*c))
        e = misused(cudaErrorStreamCaptureUnjoined,
                    "the end of a capture that a stream joined and did not come back from");
    for (CUstream_st *other : c->streams) {
        other->capturing = nullptr;
        other->after.clear();
    }
    c->origin = nullptr;
    captures.erase(c);
    if (e != cudaSuccess) return said(e);
    counts.graphs++;
    *out = new CUgraph_st{c->into};
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    guard held(lock);
    const CUstream_st *s = stream_of(held, stream);

    if (s == nullptr) return said(cudaErrorInvalidResourceHandle);
    *status = s->capturing == nullptr ? cudaStreamCaptureStatusNone
              : s->capturing->invalid ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

/* What came before in the capture has no handles here: nobody may ask for it. */
static cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id)
{
    const cudaError_t e = cudaStreamIsCapturing(stream, status);
    guard held(lock);

    if (e == cudaSuccess && id != nullptr && stream_of(held, stream)->capturing != nullptr)
        *id = stream_of(held, stream)->capturing->id;
    return e;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph_out, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count)
{
    (void)edges;
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph_out, const cudaGraphNode_t **dependencies, size_t *count)
{
#endif
    if (graph_out != nullptr || dependencies != nullptr || count != nullptr) return said(cudaErrorNotSupported);
    return capture_info(stream, status, id);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *count)
{
    guard held(lock);

    if (g == nullptr || nodes != nullptr) return said(cudaErrorInvalidValue);
    *count = g->what->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorMemoryAllocation : allowed("cudaGraphInstantiate");

    (void)flags;
    *out = nullptr;
    if (e != cudaSuccess || g == nullptr) return said(e != cudaSuccess ? e : cudaErrorInvalidValue);
    counts.graphs++;
    *out = new CUgraphExec_st{g->what, std::make_shared<std::mutex>()};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t e, cudaStream_t s)
{
    (void)s;
    return said(e == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    {
        guard held(lock);
        CUstream_st *s = stream_of(held, stream);
        const cudaError_t e = fails() ? cudaErrorLaunchFailure : cudaSuccess;

        if (e != cudaSuccess) return said(e);
        if (s == nullptr || exec == nullptr)
            return said(misused(cudaErrorInvalidValue, "the launch of no graph, or on no stream"));
        if (s->capturing != nullptr) return said(broken(s, "cudaGraphLaunch"));
        counts.graph_launches++;
    }
    const std::shared_ptr<graph> what = exec->what;
    const std::shared_ptr<std::mutex> running = exec->running;
    return said(submit(
        stream,
        [what, running] {
            std::lock_guard<std::mutex> alone(*running);
            run_graph(*what);
        },
        TOUCHES_MEMORY));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    guard held(lock);

    if (e == nullptr) return said(cudaErrorInvalidValue);
    delete e;
    counts.graphs--;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    guard held(lock);

    if (g == nullptr) return said(cudaErrorInvalidValue);
    delete g;
    counts.graphs--;
    return cudaSuccess;
}
}
