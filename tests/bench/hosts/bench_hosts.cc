/* bench_hosts.cc -- all-reduce of f32, sum, in place, between ranks that are started one by one, on hosts or in network
 * namespaces; several ways in turn in every round. Rank 0 prints a line a round, "WAY MILLISECONDS", of the slowest
 * rank.
 *
 *   bench_hosts RANK WORLD RANK0_ADDRESS:PORT OWN_ADDRESS INTERFACE BYTES ROUNDS WAY...
 *
 *   bench_hosts helper WORLD RANK0_ADDRESS:PORT INTERFACE BACKEND      a host that helps the ranks, for such a backend
 *
 * A way is a backend, as "shm+gloo-tcp", with options as in "aggregate:aggregators=2", or gloo-ring and gloo-bcube:
 * Gloo's own all-reduce called directly. */
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "bench_hosts.h"
}

namespace
{
class GroupStore : public gloo::rendezvous::Store
{
  public:
    void set(const std::string &key, const std::vector<char> &data) override
    {
        hosts_set(key.c_str(), data.data(), data.size());
    }
    std::vector<char> get(const std::string &key) override
    {
        std::vector<char> data(4096);
        data.resize(hosts_get(key.c_str(), data.data(), data.size()));
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

struct Way {
    std::string name;
    std::function<void()> call;
};

std::shared_ptr<gloo::rendezvous::Context> connect(int rank, int world, const char *address)
{
    static GroupStore store;
    gloo::transport::tcp::attr attr(address);
    auto device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, world);
    context->setTimeout(std::chrono::minutes(10));
    context->connectFullMesh(store, device);
    return context;
}

void reduce_by_gloo(const std::shared_ptr<gloo::rendezvous::Context> &context, bool ring, std::vector<float> &x)
{
    gloo::AllreduceOptions options(context);
    options.setOutput(x.data(), x.size());
    options.setAlgorithm(ring ? gloo::AllreduceOptions::Algorithm::RING : gloo::AllreduceOptions::Algorithm::BCUBE);
    options.setReduceFunction(add);
    gloo::allreduce(options);
}

void measure(int rank, const Way &way)
{
    using clock = std::chrono::steady_clock;
    hosts_barrier();
    const auto began = clock::now();
    way.call();
    const double ms = hosts_slowest(std::chrono::duration<double, std::milli>(clock::now() - began).count());
    if (rank == 0) std::printf("%s %.3f\n", way.name.c_str(), ms);
    std::fflush(stdout);
}
} // namespace

int main(int argc, char **argv)
{
    if (argc == 6 && std::strcmp(argv[1], "helper") == 0) {
        const hosts_args args = {0, std::atoi(argv[2]), argv[3], argv[4]};
        hosts_help(&args, argv[5]);
        return 0;
    }
    if (argc < 9) {
        std::fprintf(stderr,
                     "usage: bench_hosts RANK WORLD RANK0_ADDRESS:PORT OWN_ADDRESS INTERFACE BYTES ROUNDS WAY...\n");
        return 2;
    }
    const hosts_args args = {std::atoi(argv[1]), std::atoi(argv[2]), argv[3], argv[5]};
    const size_t elements = std::strtoul(argv[6], nullptr, 10) / sizeof(float);
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::vector<float> own;
    std::vector<Way> ways;
    uint32_t backends = 0;

    hosts_join(&args);
    for (int i = 8; i < argc; i++) {
        const std::string name = argv[i];
        if (name == "gloo-ring" || name == "gloo-bcube") {
            if (!context) context = connect(args.rank, args.world, argv[4]);
            own.resize(elements);
            ways.push_back({name, [&, ring = name == "gloo-ring"] { reduce_by_gloo(context, ring, own); }});
        } else {
            hosts_open(argv[i]);
            float *x = hosts_buffer(backends, elements);
            ways.push_back({name, [=] { hosts_reduce(backends, x, elements); }});
            backends++;
        }
    }
    for (int round = -1; round < std::atoi(argv[7]); round++) /* the first one warms up; its lines count for nobody */
        for (const Way &way : ways) measure(args.rank, way);
    hosts_leave();
    return 0;
}
