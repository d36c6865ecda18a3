"""[group] backend = LOCAL+REMOTE: one backend within each host and another one between them. Hosts are ranks with the same
DDPENGINE_HOST_ID."""
import json
import os
import pathlib
import re
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, Skip, long_case, seldom, until  # noqa: E402

BOTH = "shm+gloo-tcp"
RUN = {"train": {"epochs": 2, "batch_size": 8}, "ddp": {"first_bucket_size": "1KiB", "bucket_size": "2KiB"},
       "model.mlp": {"hidden": "200, 100"}, "output": {"log_every": 10}, "group": {"peer_timeout": "1s"}}


class Hierarchy(Case):
    def begin(self, hosts, *layers, backend=BOTH, name="run"):
        """A rank for each letter, on the host of that name."""
        port = harness.free_port()
        return [self.start("-c", self.ini(f"{name}{r}.ini", RUN, {"group": {
            "backend": backend, "init_method": f"tcp://127.0.0.1:{port}", "world_size": len(hosts), "rank": r},
            "output": {"dir": self.dir / name if r == 0 else None}}, *layers), env={"DDPENGINE_HOST_ID": host})
            for r, host in enumerate(hosts)]

    def ended(self, ranks, name="run"):
        """What rank 0 wrote, and its summary."""
        results = [self.finish(p) for p in ranks]
        for r in results:
            self.equal(r.code, 0, r)
        return results[0].err, json.loads((self.dir / name / "summary.json").read_text())

    def losses(self, name):
        return [m["loss"] for m in self.metrics(self.dir / name, "step")]

    @seldom
    def test_hosts_with_as_many_ranks_and_with_fewer(self):
        """The same training as by one backend, but for the order of sums; the same bits when it is repeated. Replicas that differ
        would end it."""
        check = {"train": {"check_replicas_every": 7}}
        for hosts, says in (("aabb", "4 ranks on 2 hosts; 2 of each host reduce between hosts"),
                            ("abab", "4 ranks on 2 hosts; 2 of each host reduce between hosts"),
                            ("aab", "3 ranks on 2 hosts; 1 of each host reduces between hosts, and take parts in turn")):
            said, first = self.ended(self.begin(hosts, check, name=hosts), hosts)
            self.check(f"backend {BOTH}: {says}" in said, said)
            self.equal(first["backend"], BOTH)
            _, flat = self.ended(self.begin(hosts, check, backend="gloo-tcp", name="flat"), "flat")
            self.equal(flat["backend"], "gloo-tcp")
            for a, b in zip(self.losses(hosts), self.losses("flat"), strict=True):
                self.check(abs(a - b) < 1e-4, (hosts, a, b))
        _, again = self.ended(self.begin("aab", check, name="again"), "again")
        self.equal(again["parameter_sha256"], first["parameter_sha256"])

    @seldom
    def test_sharded_state(self):
        """zero = 1: reduce_scatter and all_gather of ranks that lie anywhere. The bits are those of all_reduce."""
        more = {"optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}}
        hashes = set()
        for zero in (0, 1):
            _, summary = self.ended(self.begin("abba", more, {"ddp": {"zero": zero}}, name=f"zero{zero}"), f"zero{zero}")
            hashes.add(summary["parameter_sha256"])
        self.equal(len(hashes), 1)

    def test_one_of_the_two_is_enough(self):
        for hosts, says, chosen in (("aa", "all ranks are on one host, so shm alone", "shm"),
                                    ("ab", "no two ranks share a host, so gloo-tcp alone", "gloo-tcp")):
            said, summary = self.ended(self.begin(hosts, name=hosts), hosts)
            self.check(f"backend = {BOTH}: {says}" in said, said)
            self.equal(summary["backend"], chosen)

    def test_options_of_both_sections_and_hooks(self):
        said, _ = self.ended(self.begin("aab", {"backend.shm": {"spin": 0, "staging": "4KiB"}, "backend.gloo-tcp": {"chunk": "8KiB", "small": 0},
                                               "hook": {"plugin": "bf16"}}))
        self.check("not used" not in said, said)

    def test_what_cannot_be_a_pair(self):
        def run(name, *more):
            return self.run("-c", self.ini("x.ini", {"group": {"backend": name}}, *more), "--nproc", 2)
        for name in ("shm+", "+gloo-tcp", "shm+gloo-tcp+mpi", "shm+shm", "auto+gloo-tcp"):
            self.fails(run(name), 2, f"[group] backend = {name} is not LOCAL+REMOTE", "x.ini:")
        self.fails(run("gloo-tcp+shm"), 2, "\"shm\" does not reach other hosts", "x.ini:")
        self.fails(run("sham+glue-tcp"), 3, "\"sham\"", "\"glue-tcp\"", "gloo-tcp", "shm")
        self.fails(run("shm+glue-tcp"), 3, "\"glue-tcp\"")
        self.fails(run(BOTH, {"backend.shm": {"spins": 1}}), 2, "spins", "spin")
        r = self.run("-c", self.ini("x.ini", {"group": {"backend": "sham+glue-tcp"}}), "--nproc", 2, "--check")
        self.check("sham" in r.out + r.err and "glue-tcp" in r.out + r.err, r)

    def test_mpi_between_hosts(self):
        """Its launcher starts the ranks; each of its communicators has some of them."""
        if not (harness.BUILD / ".libs/backend_mpi.so").exists() or shutil.which("mpirun") is None:
            raise Skip("no MPI here")
        r = self.train(RUN, {"group": {"backend": "shm+mpi"}}, nproc=2)
        self.equal(r.summary["backend"], "shm")
        self.check("all ranks are on one host, so shm alone" in r.err, r)
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **harness.MPI_LEAKS}
        run = self.ini("mpi.ini", RUN, {"group": {"backend": "shm+mpi"}, "output": {"dir": self.dir / "mpi"}})
        # one command for all: Open MPI 5.0.7 crashes over several where it finds no /sys
        as_host = 'case $OMPI_COMM_WORLD_RANK in 2) host=b ;; *) host=a ;; esac; DDPENGINE_HOST_ID=$host exec "$@"'
        r = self.finish(self.spawn(["mpirun", "--bind-to", "none", "--oversubscribe", "-np", 3, "sh", "-c", as_host, "sh",
                                    harness.ENGINE, "-c", run], env))
        self.equal(r.code, 0, r)
        self.check("backend shm+mpi: 3 ranks on 2 hosts" in r.err, r)
        self.equal(json.loads((self.dir / "mpi/summary.json").read_text())["backend"], "shm+mpi")

    def test_a_rank_that_dies_is_named_by_all(self):
        for hosts, dies in (("aabb", 1), ("aab", 2)):
            ranks = self.begin(hosts, {"train": {"epochs": 100000}}, name=hosts)
            self.trained_a_while(ranks[0])
            os.kill(ranks[dies].pid, signal.SIGKILL)
            for r, p in enumerate(ranks):
                if r != dies:
                    self.fails(self.finish(p), 5, f"rank {dies}")

    def test_a_rank_that_stops_is_named_by_all(self):
        ranks = self.begin("aabb", {"train": {"epochs": 100000}})
        self.trained_a_while(ranks[0])
        self.stand_still(ranks[2].pid)
        for r in (0, 1, 3):
            self.fails(self.finish(ranks[r]), 6, "rank 2")

    @seldom
    def test_conform_passes_it(self):
        """Three ranks, two on one host and one on another."""
        r = self.run("conform", BOTH, "--quick", "--per-host", 2, "--nproc", 3, "--set", "shm.spin=0", timeout=240)
        self.equal(r.code, 0, r)
        self.check(re.search(r"^\d+ passed, 0 failed, 0 skipped$", r.out, re.M), r)
        self.fails(self.run("conform", "shm+glue-tcp"), 3, "\"glue-tcp\"")

    def test_it_is_measured_beside_others(self):
        r = self.run("bench", "all_reduce", "--backend", f"gloo-tcp,{BOTH}", "--nproc", 4, "--per-host", 2, "--sizes", "4,400KiB", "--rounds", 2)
        self.equal(r.code, 0, r)
        rows = re.findall(r"^ +(\d+) .* sum +(\S+) .* (\d+) *$", r.out, re.M)
        self.equal(rows, [(str(size), b, "0") for size in (4, 409600) for b in ("gloo-tcp", BOTH)], r)

    @long_case
    def test_ranks_that_come_back_find_the_others(self):
        """A rank that is lost is started again; meanwhile, and after, the ranks are together on their hosts as before."""
        ranks = self.begin("aabb", {"run": {"restarts": 2, "restart_delay": "0s", "rejoin_timeout": "60s"},
                                    "checkpoint": {"dir": self.dir / "saved", "every": 20}, "train": {"epochs": 30}})
        until(lambda: list((self.dir / "saved").glob("step-*/MANIFEST.json")), "no checkpoint")
        os.kill(ranks[3].pid, signal.SIGKILL)
        ranks[3].wait()
        ranks[3] = self.start("-c", self.dir / "run3.ini", env={"DDPENGINE_HOST_ID": "b"})
        said, summary = self.ended(ranks)
        self.equal(summary["backend"], BOTH)
        self.equal(said.count(f"backend {BOTH}: 4 ranks on 2 hosts"), 2, said)


if __name__ == "__main__":
    sys.exit(harness.main(Hierarchy))
