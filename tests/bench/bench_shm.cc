/* bench_shm.cc -- all-reduce of two ranks on one host, f32 sums: backend shm's slot on memory that it has allocated and
 * on other memory, Gloo's own all-reduce (ring and bcube) and MPI_Allreduce, the same in place, and MPI_Iallreduce, all
 * called directly. The ways take turns within each round, so that a change of the machine's speed affects them all.
 * Prints the minimum and the median over the rounds, in microseconds a call, and how many times longer than shm the
 * best of each library took.
 *
 *   bench_shm [ROUNDS]     default 15; starts itself through mpirun */
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

extern "C" {
#include <ddpengine/backend.h>
#include <dlfcn.h>
}

namespace
{
int rank;

void die(const char *what, const char *why)
{
    (void)std::fprintf(stderr, "bench_shm: %s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* ---- a store for two ranks over MPI's messages: what one sets is sent to the other ------------------------------- */
std::map<std::string, std::vector<char>> table;

void store_set(const std::string &key, const char *data, size_t length)
{
    std::vector<char> message(key.begin(), key.end());
    message.push_back('\0');
    message.insert(message.end(), data, data + length);
    table[key].assign(data, data + length);
    MPI_Send(message.data(), static_cast<int>(message.size()), MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD);
}

const std::vector<char> &store_get(const std::string &key)
{
    while (table.count(key) == 0) {
        char message[4096];
        MPI_Status status;
        int length;
        MPI_Recv(message, sizeof(message), MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &length);
        const size_t name = std::strlen(message);
        table[message].assign(message + name + 1, message + length);
    }
    return table[key];
}

ddp_status set(void *, const char *key, const void *value, size_t length, ddp_err *)
{
    store_set(key, static_cast<const char *>(value), length);
    return DDP_OK;
}

ddp_status get(void *, const char *key, void *buf, size_t capacity, size_t *length, int64_t, ddp_err *err)
{
    const std::vector<char> &value = store_get(key);
    if (value.size() > capacity) return ddp_fail(err, DDP_ERR_INVALID, "bench_shm: value too long");
    std::memcpy(buf, value.data(), value.size());
    *length = value.size();
    return DDP_OK;
}

ddp_status remove(void *, const char *key, ddp_err *) /* of this rank's copy: no key comes back */
{
    table.erase(key);
    return DDP_OK;
}

class MpiStore : public gloo::rendezvous::Store
{
  public:
    void set(const std::string &key, const std::vector<char> &data) override
    {
        store_set("gloo/" + key, data.data(), data.size());
    }
    std::vector<char> get(const std::string &key) override { return store_get("gloo/" + key); }
    void wait(const std::vector<std::string> &keys) override
    {
        for (const auto &key : keys) (void)get(key);
    }
    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override { wait(keys); }
};

/* ---- shm --------------------------------------------------------------------------------------------------------- */
const ddp_backend_ops *ops;
ddp_comm *comm;

void no_log(void *, int, const char *, int, const char *, ...) {}

void check(ddp_status st, const ddp_err &err)
{
    if (st != DDP_OK) die("shm", err.msg);
}

void open_shm()
{
    static ddp_store store{};
    static ddp_host host{};
    static const uint64_t defaults[] = {131072, 20}; /* staging, spin */
    static uint64_t config[8];
    void *handle = dlopen(DDP_BUILDDIR "/.libs/backend_shm.so", RTLD_NOW | RTLD_LOCAL);
    auto *plugin = handle != nullptr ? static_cast<const ddp_plugin *>(dlsym(handle, DDP_PLUGIN_SYMBOL)) : nullptr;
    ddp_comm_params p{};
    ddp_backend *backend;
    ddp_err err;

    if (plugin == nullptr || plugin->option_count != 2) {
        die("backend_shm.so", handle == nullptr ? dlerror() : "not the plugin it knows");
        return;
    }
    for (uint32_t i = 0; i < 2; i++)
        std::memcpy(reinterpret_cast<char *>(config) + plugin->options[i].offset, &defaults[i], sizeof(defaults[i]));
    ops = static_cast<const ddp_backend_ops *>(plugin->ops);
    host.struct_size = sizeof(host);
    host.log = no_log;
    store.struct_size = sizeof(store);
    store.set = set;
    store.get = get;
    store.remove = remove;
    p.struct_size = sizeof(p);
    p.rank = p.local_rank = static_cast<uint32_t>(rank);
    p.world_size = p.local_size = 2;
    p.timeout_ms = p.connect_timeout_ms = 60000;
    p.group = "bench";
    p.address = "127.0.0.1";
    p.interface = "";
    p.device_ordinal = -1;
    p.store = &store;
    check(ops->open(&host, config, &backend, &err), err);
    check(ops->comm_create(backend, &p, &comm, &err), err);
}

void shm_all_reduce(float *x, size_t n)
{
    ddp_coll a{};
    ddp_err err;

    a.struct_size = sizeof(a);
    a.dtype = DDP_F32;
    a.op = DDP_SUM;
    a.send = a.recv = x;
    a.count = n;
    check(ops->all_reduce(comm, &a, nullptr, &err), err);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */
void add(void *out, const void *a, const void *b, size_t n)
{
    float *o = static_cast<float *>(out);
    const float *x = static_cast<const float *>(a), *y = static_cast<const float *>(b);
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++) o[i] = x[i] + y[i];
}

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

struct Way {
    const char *name;
    std::function<void()> call;
    std::vector<double> times;

    double minimum() const { return *std::min_element(times.begin(), times.end()); }
    double median() const
    {
        std::vector<double> sorted(times);
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() / 2];
    }
};

enum { SHM, STAGED, RING, BCUBE, MPI_PLAIN, MPI_PLACE, MPI_ASYNC, WAYS };

void measure(std::vector<Way> &ways, int rounds, int calls)
{
    for (Way &way : ways) way.call();
    for (int round = 0; round < rounds; round++)
        for (Way &way : ways) {
            MPI_Barrier(MPI_COMM_WORLD);
            way.call();
            const double began = now();
            for (int i = 0; i < calls; i++) way.call();
            way.times.push_back((now() - began) / calls);
        }
}

void report(const std::vector<Way> &ways, size_t bytes)
{
    const auto best = [&](int first, int last, double (Way::*what)() const) {
        double t = (ways[static_cast<size_t>(first)].*what)();
        for (int i = first; i <= last; i++) t = std::min(t, (ways[static_cast<size_t>(i)].*what)());
        return t / (ways[SHM].*what)();
    };

    std::printf("%9zu", bytes);
    for (const Way &way : ways) std::printf(" %10.2f %10.2f", way.minimum(), way.median());
    std::printf("   %5.1f %5.1f   %5.1f %5.1f\n", best(RING, BCUBE, &Way::minimum), best(RING, BCUBE, &Way::median),
                best(MPI_PLAIN, MPI_ASYNC, &Way::minimum), best(MPI_PLAIN, MPI_ASYNC, &Way::median));
    std::fflush(stdout);
}

void run(int rounds)
{
    constexpr size_t largest = 64 << 20;
    gloo::transport::tcp::attr attr("127.0.0.1");
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
    MpiStore store;
    std::vector<float> x(largest / 4), y(largest / 4);
    void *memory = nullptr;
    ddp_err err;

    auto device = gloo::transport::tcp::CreateDevice(attr);
    context->connectFullMesh(store, device);
    open_shm();
    check(ops->mem_alloc(comm, largest, &memory, &err), err);
    float *own = static_cast<float *>(memory);
    const char *names[WAYS] = {"shm", "shm staged", "gloo ring", "gloo bcube", "MPI", "MPI in place", "MPI_I"};
    if (rank == 0) {
        std::printf("    bytes");
        for (const char *name : names) std::printf("  %20s", name);
        std::printf("     Gloo / shm    MPI / shm   (min, median; us)\n");
    }
    for (size_t bytes : {4ul, 64ul, 1024ul, 4096ul, 16384ul, 65536ul, 262144ul, 1048576ul, 2700000ul, 4194304ul,
                         16777216ul, 67108864ul}) {
        const size_t n = bytes / 4;
        gloo::AllreduceOptions ring(context), bcube(context);
        std::vector<Way> ways(WAYS);

        ring.setOutput(x.data(), n);
        ring.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        ring.setReduceFunction(add);
        bcube.setOutput(x.data(), n);
        bcube.setAlgorithm(gloo::AllreduceOptions::Algorithm::BCUBE);
        bcube.setReduceFunction(add);
        for (size_t i = 0; i < WAYS; i++) ways[i].name = names[i];
        ways[SHM].call = [&] { shm_all_reduce(own, n); };
        ways[STAGED].call = [&] { shm_all_reduce(x.data(), n); };
        ways[RING].call = [&] { gloo::allreduce(ring); };
        ways[BCUBE].call = [&] { gloo::allreduce(bcube); };
        ways[MPI_PLAIN].call = [&] {
            MPI_Allreduce(x.data(), y.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        };
        ways[MPI_PLACE].call = [&] {
            MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        };
        ways[MPI_ASYNC].call = [&] {
            MPI_Request request;
            MPI_Iallreduce(MPI_IN_PLACE, x.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        };
        measure(ways, rounds, bytes <= 4096 ? 200 : bytes <= 65536 ? 50 : bytes <= 4194304 ? 5 : 1);
        if (rank == 0) report(ways, bytes);
    }
    ops->comm_destroy(comm);
}
} // namespace

int main(int argc, char **argv)
{
    if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr && std::getenv("PMI_RANK") == nullptr) {
        const char *rounds = argc > 1 ? argv[1] : "15";
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        execlp("mpirun", "mpirun", "--bind-to", "none", "-np", "2", argv[0], rounds, static_cast<char *>(nullptr));
        std::perror("bench_shm: mpirun");
        return 1;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    run(std::max(3, argc > 1 ? std::atoi(argv[1]) : 15));
    MPI_Finalize();
    return 0;
}
