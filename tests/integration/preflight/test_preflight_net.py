"""`--check --net`: the ranks join, say what is between them, and leave. One thing is planted in each case; hosts are made of
one by DDPENGINE_HOST_ID, or are network namespaces where it is about the network."""
import pathlib
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
import test_network  # noqa: E402
from harness import BUILD, SRC, Case, Skip  # noqa: E402

NET = ("--check", "--net")


class Net(Case):
    def pair(self, *layers, env=None):
        """Two processes, as on two hosts: the results of rank 0 and of the other one, which has `layers`."""
        group = {"group": {"world_size": 2, "init_method": f"tcp://127.0.0.1:{harness.free_port()}", "backend": "gloo-tcp",
                           "rendezvous_timeout": "20s"}}
        zero = self.start("-c", self.ini("0.ini", group, {"group": {"rank": 0}}), *NET, env={"DDPENGINE_HOST_ID": "a"})
        one = self.start("-c", self.ini("1.ini", group, {"group": {"rank": 1}}, *layers), *NET,
                         env={"DDPENGINE_HOST_ID": "b", **(env or {})})
        return self.finish(zero), self.finish(one)

    def has(self, r, *patterns):
        for pattern in patterns:
            self.check(re.search(pattern, r.out, re.M), f"no {pattern} in\n{r}")

    def test_one_host(self):
        for backend, world in (("gloo-tcp", 3), ("shm", 2)):
            r = self.run("-c", self.ini("x.ini", {"group": {"backend": backend}}), "--nproc", world, *NET)
            self.equal((r.code, r.err), (0, ""), r)
            self.has(r, r"^  ok +plugins ", rf"^  ok +rendezvous +{world} ranks on 1 host are there", r"^  (ok +network +at most|warning +network +ranks) ",
                     rf"^network +backend {backend}: latency in us above the diagonal, MB/s below it$")
            table = r.out.split("below it\n")[1].splitlines()
            self.equal(table[0].split(), ["rank", *map(str, range(world))])
            for rank, line in enumerate(table[1:]):
                cells = line.replace("*", "").split()
                self.equal((cells[0], cells[rank + 1], len(cells)), (str(rank), "-", world + 1), line)
                self.check(all(float(c) > 0 for i, c in enumerate(cells[1:]) if i != rank), line)
            self.equal(len(table), world + 1)

    def test_two_hosts(self):
        zero, one = self.pair()
        self.equal((zero.code, one.code), (0, 0), f"{zero}{one}")
        self.has(zero, r"^  ok +rendezvous +2 ranks on 2 hosts are there", r"^  ok +firewall +2 hosts connect to each other",
                 r"^  ok +clocks +host .* \(rank 1\) is [+-]\d+\.\d ms from host")
        self.equal(one.out, "", one)

    def test_mpi(self):
        if not (BUILD / ".libs/backend_mpi.so").exists():
            raise Skip("backend mpi is not built")
        r = self.run("-c", self.ini("x.ini", {"group": {"backend": "mpi"}}), "--nproc", 2, *NET, env=harness.MPI_LEAKS)
        if "not on the PATH" in r.err:
            raise Skip("no mpirun")
        self.equal(r.code, 0, r)
        self.has(r, r"^network +backend mpi:")

    def test_backend_without_send(self):
        """It broadcasts instead."""
        (self.dir / "plugins").mkdir()
        where = SRC / "docs/examples/backend-skeleton"
        subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{SRC}/core/include", f"-I{where}",
                        str(where / "backend_store.c"), "-o", str(self.dir / "plugins/backend_store.so")], check=True)
        r = self.run("-c", self.ini("x.ini", {"group": {"backend": "store"}, "plugins": {"path": self.dir / "plugins"}}), "--nproc",
                     3, *NET)
        self.equal(r.code, 0, r)
        self.has(r, r"^network +backend store, by broadcasts: latency")

    # ---- planted ---------------------------------------------------------------------------------------------------
    def test_same_rank_twice(self):
        group = {"group": {"world_size": 3, "init_method": f"tcp://127.0.0.1:{harness.free_port()}", "backend": "gloo-tcp"}}
        ps = [self.start("-c", self.ini(f"{i}.ini", group, {"group": {"rank": rank}}), *NET) for i, rank in enumerate((0, 1, 1))]
        for r in map(self.finish, ps):
            self.fails(r, 4, "rank 1 is already taken by host", "Give each its own rank")

    def test_settings_differ(self):
        for r in self.pair({"optimizer": {"lr": 0.1}}):
            self.fails(r, 4, "lr", "0.05", "0.1", "0.ini", "1.ini")

    def test_a_run_and_a_check(self):
        """They do not wait for each other."""
        group = {"world_size": 2, "init_method": f"tcp://127.0.0.1:{harness.free_port()}", "backend": "gloo-tcp"}
        started = [self.start("-c", self.ini(f"{r}.ini", {"group": {**group, "rank": r}}), *(NET if r == 0 else [])) for r in (0, 1)]
        for p in started:
            self.fails(self.finish(p), 4, "command", "--check --net (rank 0", "a run (rank 1")

    def test_missing_rank(self):
        group = {"group": {"world_size": 2, "rank": 0, "init_method": f"tcp://127.0.0.1:{harness.free_port()}",
                           "backend": "gloo-tcp", "rendezvous_timeout": "1s"}}
        self.fails(self.run("-c", self.ini("x.ini", group), *NET), 4, "rank 1", "rendezvous_timeout")

    def test_clock_skew(self):
        if harness.SANITIZED:
            raise Skip("a preloaded library and sanitizers")
        library = self.dir / "skewed.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", str(SRC / "tests/integration/support/skewed_clock.c"), "-o",
                        str(library)], check=True)
        zero, one = self.pair(env={"LD_PRELOAD": str(library)})
        self.equal((zero.code, one.code), (0, 0), f"{zero}{one}")
        self.has(zero, r"^  warning +clocks +the clock of host \S+ \(rank 1\) is (89\.9|90\.[01]) s ahead of that of host \S+: .*NTP")

    def test_problem_of_one_host(self):
        """It is said there, and the ranks measure all the same."""
        one = self.run("-c", self.ini("x.ini", {"output": {"dir": "/proc/x"}}), "--nproc", 2, *NET)
        self.equal(one.code, 2, one)
        self.has(one, r"^  problem +output +\[output\] dir = /proc/x", r"^network +backend ")
        self.equal(len(one.errors()), 1, one)

    def test_usage(self):
        path = self.ini("x.ini")
        self.fails(self.run("-c", path, "--net"), 2, "--net goes with --check")
        self.fails(self.run("-c", path, *NET, "--all"), 2, "leave out --net")
        r = self.run("-c", path, *NET)
        self.equal(r.code, 0, r)
        self.check("nobody to connect to" in r.err, r)


class Firewall(Case):
    def __init__(self):
        super().__init__()
        self.network = test_network.Network()

    def close(self):
        self.network.close()
        super().close()

    def test_only_the_port_of_rank_0_is_open(self):
        """Host b lets out what goes to that port; so neither reaches the other at the ports that a backend takes."""
        n = self.network
        n.setup()
        for rule in (("pref", "10", "ipproto", "tcp", "dport", str(test_network.PORT), "lookup", "main"),
                     ("pref", "11", "to", "10.77.0.1", "ipproto", "tcp", "unreachable")):
            if test_network.ip("-n", n.b, "rule", "add", *rule, check=False).returncode != 0:
                raise Skip("no rules by port here")
        ranks = [n.rank(where, i, args=NET, backend="gloo-tcp") for i, where in enumerate((n.a, n.b))]
        results = [n.finish(p) for p in ranks]
        for r in results:
            self.fails(r, 4, "cannot connect to rank", "open all ports between these hosts")
            self.check("  ok       plugins " in r.out, r)
        lines = [line for line in results[0].out.splitlines() if line.startswith("  problem")]
        self.equal(len(lines), 2, results[0])
        self.check(re.search(r"rank 0 \(host \S+\) cannot connect to rank 1 \(host \S+\) at 10\.77\.0\.2:\d+: Connection timed out",
                             lines[0]), lines)
        self.check(re.search(r"rank 1 .* to rank 0 .* at 10\.77\.0\.1:\d+: ", lines[1]), lines)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that namespaces are removed
    sys.exit(harness.main(Net, Firewall))
