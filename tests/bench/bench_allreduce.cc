/* bench_allreduce.cc -- all-reduce between two processes on one host, three ways in turn: Gloo's own all-reduce called
 * directly (fastest of ring and bcube, options and buffers kept between calls), the plugin's slot, and the
 * communicator's queue. Prints median, minimum and 90th percentile in microseconds, and the processor time of one rank.
 *
 *   bench_allreduce [SECONDS_A_ROW]     default 1
 *
 * Or of one size between two hosts, the plugin's slot alone; the hosts are network namespaces, rank 0's the one it is
 * started in:
 *
 *   bench_allreduce SECONDS BYTES RANK0_ADDRESS RANK1_ADDRESS RANK1_NETNS_FILE */
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

extern "C" {
#include "bench_allreduce.h"
}

namespace
{
/* Gloo's rendezvous over the store that both processes share. */
class SharedStore : public gloo::rendezvous::Store
{
  public:
    void set(const std::string &key, const std::vector<char> &data) override
    {
        bench_store_set(("direct/" + key).c_str(), data.data(), data.size());
    }
    std::vector<char> get(const std::string &key) override
    {
        std::vector<char> data(512);
        data.resize(bench_store_get(("direct/" + key).c_str(), data.data(), data.size()));
        return data;
    }
    void wait(const std::vector<std::string> &keys) override
    {
        for (const auto &key : keys) (void)get(key);
    }
    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override { wait(keys); }
};

void add(void *out, const void *a, const void *b, size_t n)
{
    float *o = static_cast<float *>(out);
    const float *x = static_cast<const float *>(a), *y = static_cast<const float *>(b);
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++) o[i] = x[i] + y[i];
}

double now(clockid_t clock)
{
    timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* How often at least: the first calls, those that tell how long one takes, those that count. */
struct Least {
    int first, trial, rounds;
};

/* As many rounds as the slower rank needs for the time given: rank 0 decides. */
void measure(int rank, size_t bytes, const char *name, double seconds, const std::function<void()> &call,
             Least least = {3, 5, 10})
{
    std::vector<double> times;
    for (int i = 0; i < least.first; i++) call();
    double once = now(CLOCK_MONOTONIC);
    for (int i = 0; i < least.trial; i++) call();
    once = (now(CLOCK_MONOTONIC) - once) / least.trial;
    const int rounds = bench_agree(rank, std::max(least.rounds, std::min(5000, (int)(seconds * 1e6 / once))));
    const double began = now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < rounds; i++) {
        const double t = now(CLOCK_MONOTONIC);
        call();
        times.push_back(now(CLOCK_MONOTONIC) - t);
    }
    const double cpu = (now(CLOCK_PROCESS_CPUTIME_ID) - began) / rounds;
    std::sort(times.begin(), times.end());
    if (rank == 0)
        std::printf("%10zu B  %-12s median %9.1f  min %9.1f  p90 %9.1f  cpu %9.1f us  (%d rounds)\n", bytes, name,
                    times[times.size() / 2], times[0], times[times.size() * 9 / 10], cpu, rounds);
    std::fflush(stdout);
}

int hosts(double seconds, size_t bytes, const char *const address[2], const char *rank1_netns)
{
    const int rank = bench_start_hosts(address, rank1_netns);
    std::vector<float> x(bytes / 4);
    measure(rank, bytes, "slot", seconds, [&] { bench_slot(x.data(), x.size()); }, {0, 1, 3});
    return bench_end(rank);
}
} // namespace

int main(int argc, char **argv)
{
    if (argc == 6) return hosts(std::atof(argv[1]), std::strtoul(argv[2], nullptr, 10), argv + 3, argv[5]);
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    const int rank = bench_start(); /* forks: 0 or 1 */
    gloo::transport::tcp::attr attr("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
    SharedStore store;
    context->connectFullMesh(store, device);

    for (size_t bytes : {4ul, 1024ul, 65536ul, 1048576ul, 2700000ul, 26214400ul}) {
        const size_t n = bytes / 4;
        std::vector<float> x(n);
        for (int algorithm = 1; algorithm <= 2; algorithm++) {
            gloo::AllreduceOptions options(context);
            options.setOutput(x.data(), n);
            options.setAlgorithm(static_cast<gloo::AllreduceOptions::Algorithm>(algorithm));
            options.setReduceFunction(add);
            measure(rank, bytes, algorithm == 1 ? "gloo ring" : "gloo bcube", seconds,
                    [&] { gloo::allreduce(options); });
        }
        measure(rank, bytes, "slot", seconds, [&] { bench_slot(x.data(), n); });
        measure(rank, bytes, "queue", seconds, [&] { bench_queue(x.data(), n); });
    }
    return bench_end(rank);
}
