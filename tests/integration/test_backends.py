"""One INI, every backend, every init method: the same bits for two ranks, and for more ranks the same in every run. And
`ddpengine bench all_reduce`: the table, the document, what it refuses; no figure decides a test."""
import json
import pathlib
import re
import shutil
import subprocess
import sys

import harness
from harness import SRC, Case, Skip, long_case

RUN = {"train": {"epochs": 2}, "optimizer": {"algorithm": "adamw", "momentum": None}, "data.synthetic": {"samples": 650},
       "ddp": {"first_bucket_size": "1KiB", "bucket_size": "2KiB", "overlap": "yes"},
       # no address of its own is asked for: all ranks are here
       "init.file": {"listen": "127.0.0.1"}}


ROW = re.compile(r"^ +(\d+) +(\d+) +f32 +sum +(\S+) +" + " +".join([r"([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)"] * 2) + " *$", re.M)


def built(backend):
    return (harness.BUILD / ".libs" / f"backend_{backend.replace('-', '_')}.so").exists()


class Backends(Case):
    runs = 0

    def run_together(self, backend, method, world):
        """The parameters' hash of a run of `world` ranks that are started one by one."""
        Backends.runs += 1
        name = f"run{Backends.runs}"
        port = harness.free_port()
        url = {"tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{self.dir}/{name}.rendezvous", "env": "env://"}[method]
        path = self.ini(f"{name}.ini", RUN, {"group": {"backend": backend, "init_method": url, "world_size": world, "rank": "auto"},
                                              "output": {"dir": self.dir / name, "log_every": 1000}})
        if backend == "mpi":
            if shutil.which("mpirun") is None:
                raise Skip("mpirun is not installed")
            env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **harness.MPI_LEAKS}
            argv = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(world), str(harness.ENGINE), "-c", str(path)]
            r = self.finish(self.spawn(argv, env))
            self.equal(r.code, 0, r)
        else:
            ranks = []
            for rank in range(world):
                env = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                given = () if method == "env" else ("--set", f"group.rank={rank}")
                ranks.append(self.start("-c", path, *given, env=env if method == "env" else {}))
            for p in ranks:
                r = self.finish(p)
                self.equal(r.code, 0, r)
        summary = json.loads((self.dir / name / "summary.json").read_text())
        self.equal(summary["backend"], backend)
        return summary["parameter_sha256"]

    def test_two_ranks_have_the_same_bits_everywhere(self):
        hashes = {}
        for backend in ("gloo-tcp", "mpi", "shm"):
            for method in ("tcp", "file", "env"):
                if not built(backend):
                    raise Skip(f"backend {backend} is not built")
                hashes[backend, method] = self.run_together(backend, method, 2)
        self.equal(len(hashes), 9)
        self.equal(len(set(hashes.values())), 1, hashes)

    def test_more_ranks_give_the_same_bits_in_every_run(self):
        self.more_ranks("gloo-tcp", "shm")

    @long_case
    def test_more_ranks_over_mpi(self):
        """They spin where they wait, beside each other on a few processors."""
        self.more_ranks("mpi")

    def more_ranks(self, *backends):
        for backend in backends:
            if not built(backend):
                raise Skip(f"backend {backend} is not built")
            for world in (3, 5):
                hashes = {self.run_together(backend, method, world) for method in ("tcp", "file")}
                self.equal(len(hashes), 1, (backend, world))

    def test_shares_of_the_update_change_no_bit(self):
        """Over shm each rank updates a share of the parameters; a checkpoint holds the whole state, whoever goes on from it."""
        if not built("shm"):
            raise Skip("backend shm is not built")
        adam = {"optimizer": {"algorithm": "adamw", "momentum": None}, "data.synthetic": {"samples": 650}, "train": {"epochs": 3}}
        for world in (2, 3):
            hashes, states = {}, {}
            for shards, backend in (("auto", "shm"), ("no", "shm"), ("auto", "gloo-tcp")):
                name = f"{backend}-{shards}-{world}"
                run = {**adam, "group": {"backend": backend}, "ddp": {"shard_update": shards},
                       "checkpoint": {"dir": self.dir / f"{name}.ck", "every": 0}}
                first = self.train(run, {"train": {"max_steps": 4}}, nproc=world)
                self.equal(first.code, 0, first)
                states[name] = next(pathlib.Path(self.dir / f"{name}.ck").glob("step-*4/optimizer.safetensors")).read_bytes()
                other = {"shm": "gloo-tcp", "gloo-tcp": "shm"}[backend]
                hashes[name] = self.train(run, {"group": {"backend": other}}, nproc=world).summary["parameter_sha256"]
            if world == 2:  # of more ranks each backend adds in its own order
                self.equal(len(set(hashes.values())), 1, hashes)
                self.equal(len(set(states.values())), 1)
            else:
                self.equal(states[f"shm-auto-{world}"], states[f"shm-no-{world}"])

    def test_auto_is_shared_memory_on_one_host_and_tcp_across_hosts(self):
        for ids, expected in ((("a", "a"), "shm"), (("a", "b"), "gloo-tcp")):
            port = harness.free_port()
            ranks = [self.start("-c", self.ini(f"{expected}{r}.ini", {
                "group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2, "rank": r},
                "output": {"dir": self.dir / expected if r == 0 else None}}), env={"DDPENGINE_HOST_ID": ids[r]}) for r in (0, 1)]
            for p in ranks:
                r = self.finish(p)
                self.equal(r.code, 0, r)
            summary = json.loads((self.dir / expected / "summary.json").read_text())
            self.equal(summary["backend"], expected)
        r = self.train({}, nproc=2)
        self.equal(r.summary["backend"], "shm")
        self.check("over shm on" in r.err, r)

    def test_more_ranks_than_shared_memory_holds(self):
        """Said before any rank is started; `auto` does without it."""
        def check(world, **group):
            return self.run("-c", self.ini("many.ini", {"group": group}), "--nproc", world, "--check")
        for world, backend in ((64, "shm"), (65, "gloo-tcp")):
            r = check(world)
            self.equal(r.code, 0, r)
            self.check(f"backend {backend}" in r.out, r)
        self.fails(check(65, backend="shm"), 3, "world_size 65", "at most 64 ranks", "gloo-tcp")
        self.fails(check(4097), 2, "4096")


class Bench(Case):
    def test_backends_alternate_in_one_table(self):
        backends = [b for b in ("gloo-tcp", "shm") if re.search(rf"^backend +{b} ", self.run("plugins").out, re.M)]
        for extra in ((), ("--queue",)):
            r = self.run("bench", "all_reduce", "--backend", ",".join(backends), "--sizes", "4,60KiB", "--rounds", 2, *extra)
            self.equal(r.code, 0, r)
            rows = ROW.findall(r.out)
            self.equal([(int(x[0]), int(x[1]), x[2]) for x in rows],
                       [(size, size // 4, b) for size in (4, 61440) for b in backends], r)
            for x in rows:
                for at in (3, 8):  # out of place, in place
                    least, median, algbw, busbw, wrong = map(float, x[at:at + 5])
                    self.check(0 < least <= median and wrong == 0, x)
                    self.equal(algbw, busbw, x)  # 2 (n - 1) / n is 1 for two ranks
                    self.check(abs(algbw - int(x[0]) / median / 1e3) <= 0.01 + 0.01 * algbw, x)
            self.check(("work queue" in r.out) == bool(extra), r)

    def test_document(self):
        r = self.run("bench", "all_reduce", "--sizes", "1KiB", "--rounds", 1, "--nproc", 3, "--json")
        self.equal(r.code, 0, r)
        d = json.loads(r.out)
        self.equal((d["collective"], d["world_size"], d["through"], d["rounds"]), ("all_reduce", 3, "slots", 1))
        self.equal([(x["backend"], x["size"], x["count"], x["in_place"], x["wrong"]) for x in d["results"]],
                   [("gloo-tcp", 1024, 256, False, 0), ("gloo-tcp", 1024, 256, True, 0)])
        for x in d["results"]:
            self.check(x["iterations"] >= 1 and 0 < x["min_us"] <= x["time_us"], x)
            self.check(abs(x["busbw_gbps"] - x["algbw_gbps"] * 4 / 3) < 1e-3 * x["busbw_gbps"], x)

    def test_wrong_values_are_counted(self):
        out = self.dir / "backend_faulty.so"
        subprocess.run(["cc", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-shared", "-DBREAK=1", '-DNAME="faulty"',
                        f"-I{SRC}/core/include", f"-I{SRC}/docs/examples/backend-skeleton",
                        str(SRC / "tests/fixtures/plugins/broken_backend.c"), "-o", str(out), "-lpthread"], check=True)
        r = self.run("bench", "all_reduce", "--backend", out, "--sizes", "4,12", "--rounds", 1)
        self.fails(r, 3, "faulty", "wrong values")
        self.equal([(x[0], x[7], x[12]) for x in ROW.findall(r.out)], [("4", "0", "0"), ("12", "1", "1")], r)

    def test_usage(self):
        for args, part in (((), "all_reduce"), (("all_gather",), "all_gather"), (("all_reduce", "--sizes", "3"), "multiples of 4"),
                           (("all_reduce", "--sizes", "1KB"), "1KB"), (("all_reduce", "--sizes", ""), "--sizes"),
                           (("all_reduce", "--nproc", "9"), "1 to 8"), (("all_reduce", "--rounds", "0"), "--rounds"),
                           (("all_reduce", "--backend", "init.tcp"), "not a backend"), (("all_reduce", "--nonsense"), "--nonsense")):
            self.fails(self.run("bench", *args), 2, part)
        self.fails(self.run("bench", "all_reduce", "--backend", "nonsense"), 3, "nonsense")
        with open("/dev/full", "w") as full:
            r = subprocess.run([harness.ENGINE, "bench", "all_reduce", "--sizes", "4", "--rounds", "1"], stdout=full,
                               stderr=subprocess.PIPE, text=True, cwd=self.dir)
        self.equal(r.returncode, 1, r)
        self.check("cannot write to standard output" in r.stderr, r)



if __name__ == "__main__":
    sys.exit(harness.main(Backends, Bench))
