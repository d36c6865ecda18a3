"""[run] min_world and [group] rank = spare: a run goes on without some of its ranks, takes them in again, and each sample is
used exactly once an epoch whoever is there."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, Skip, long_case, until  # noqa: E402

# 640 samples, 4 ranks x 16: 10 steps an epoch. The last epoch begins when the test says so.
EPOCHS = 40
COMMON = {"train": {"epochs": EPOCHS}, "optimizer": {"lr": 0.01}, "checkpoint": {"every": 50}, "output": {"log_every": 5, "audit": "yes"},
          "group": {"backend": "gloo-tcp", "world_size": 4, "peer_timeout": "1s"},
          "run": {"restarts": 9, "restart_delay": "0s", "rejoin_timeout": "1s", "min_world": 3}}


class Missing(Case):
    def __init__(self):
        super().__init__()
        self.gate, self.inis = self.dir / "gate", 0
        sampler = self.dir / "sampler_paced.so"
        subprocess.run([*os.environ.get("CC", "cc").split(), "-std=c11", "-fPIC", "-shared", "-w", f"-I{harness.SRC}/core/include", "-o",
                        str(sampler), str(harness.SRC / "tests/reliability/paced_sampler.c")], check=True)
        sampler.chmod(0o755)
        self.paced = {"sampler": {"plugin": sampler}, "sampler.paced": {"gate": self.gate, "pause": 20, "last": EPOCHS - 1}}

    def whole(self, *more, ranks):
        """The losses of the run that loses nobody."""
        self.gate.touch()
        r = self.train(COMMON, self.paced, *more, {"run": {"restarts": 0, "min_world": 0}, "output": {"audit": "no", "log_every": 5}},
                       nproc=ranks, name="whole.ini")
        self.losses = {m["step"]: m["loss"] for m in self.metrics(r.dir, "step")}
        self.gate.unlink()

    def begin(self, *more, ranks=4):
        """The ranks of a run, each started by hand."""
        self.whole(*more, ranks=ranks)
        self.port, self.more = harness.free_port(), more
        p = [self.rank(r) for r in range(ranks)]
        self.trained_a_while(p[0])
        return p

    def rank(self, rank, *more):
        self.inis += 1
        ini = self.ini(f"{rank}-{self.inis}.ini", COMMON, self.paced, {"group": {"rank": rank, "init_method": f"tcp://127.0.0.1:{self.port}"},
                                               "output": {"dir": self.dir / f"out-{rank}"},
                                               "checkpoint": {"dir": self.dir / "saved"}}, *self.more, *more)
        return self.start("-c", ini)

    def reads(self, p, *parts):
        """Its lines, up to one that has all of the parts."""
        lines = []
        while not (lines and all(part in lines[-1] for part in parts)):
            lines.append(p.stderr.readline())
            self.check(lines[-1], f"ended early, before {parts}\n{''.join(lines)}")
        return "".join(lines)

    def all_of_it(self, processes, out, generations):
        """They end well, the losses are those of the run that lost nobody, and the audit proves each sample once."""
        self.gate.touch()
        results = [self.finish(p) for p in processes]
        self.equal([r.code for r in results], [0] * len(results), results)
        outs = [self.dir / o for o in out.split()]  # of each rank that was 0 of a generation
        steps = sorted((m for o in outs for m in self.metrics(o, "step")), key=lambda m: m["step"])
        for m in steps:
            want = self.losses[m["step"]]
            self.check(abs(m["loss"] - want) <= 1e-5 * max(1, abs(want)), f"step {m['step']}: {m['loss']}, not {want}\n{results}")
        self.equal(steps[-1]["step"], max(self.losses))
        starts = {m["generation"]: m["world_size"] for o in outs for m in self.metrics(o, "start")}
        self.equal([starts[g] for g in sorted(starts)][-len(generations):], generations, results)
        r = self.run("audit", *sorted(self.dir.glob("out-*")))
        self.equal(r.code, 0, r)
        self.equal(r.out.count("exactly once"), EPOCHS, r)
        return results

    def test_goes_on_without_a_rank_and_takes_it_in_again(self):
        p = self.begin()
        p[2].kill()
        lines = self.reads(p[0], "3 of 4 ranks are there")
        self.check("rank 2 of world_size 4 did not come within 1 s (rejoin_timeout)" in lines, lines)
        self.trained_a_while(p[0])
        p[2].wait()
        p[2] = self.rank(2)
        self.reads(p[0], "rank 2 at", "is there")
        self.all_of_it(p, "out-0", [4, 3, 4])

    @long_case
    def test_a_spare_takes_the_place_of_a_lost_rank(self):
        """Rank 3 by SIGKILL, then rank 1 by SIGSTOP: that one must not come back beside the spare."""
        p = self.begin({"run": {"min_world": 0, "rejoin_timeout": "20s"}})
        spares = [self.rank("spare", {"output": {"dir": self.dir / f"out-s{i}"}}) for i in range(3)]
        for s in spares[:2]:
            self.reads(s, "this spare waits")
        p[3].kill()
        self.reads(p[0], "training mlp")
        self.trained_a_while(p[0])
        os.kill(p[1].pid, signal.SIGSTOP)
        self.reads(p[0], "training mlp")
        p[3].wait()
        p[1].kill()
        self.trained_a_while(p[0])
        results = self.all_of_it([p[0], p[2], *spares], "out-0", [4, 4, 4])
        self.equal(sum("the run has ended, and has not needed this spare" in r.err for r in results), 1, results)

    @long_case
    def test_one_of_two_goes_on_alone(self):
        """A rank that is alone has no copy of the state in another one's memory: it saves before it takes the other in."""
        p = self.begin({"group": {"world_size": 2}, "run": {"min_world": 1}}, ranks=2)
        p[1].kill()
        self.reads(p[0], "1 of 2 ranks are there")
        self.trained_a_while(p[0])
        p[1].wait()
        p[1] = self.rank(1)
        self.reads(p[0], "rank 1 at", "is there")
        self.all_of_it(p, "out-0", [2, 1, 2])

    @long_case
    def test_sharded_state(self):
        """zero = 1: states of the optimiser are divided among as many ranks as there are."""
        p = self.begin({"ddp": {"zero": 1}, "optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}})
        until(lambda: list((self.dir / "saved").glob("step-????????/MANIFEST.json")), "no checkpoint")
        p[1].kill()
        self.reads(p[0], "3 of 4 ranks are there")
        self.trained_a_while(p[0])
        p[1].wait()
        p[1] = self.rank(1)
        self.all_of_it(p, "out-0", [4, 3, 4])

    @long_case
    def test_fewer_than_min_world(self):
        p = self.begin()
        for lost in p[2:]:
            lost.kill()
        r = self.finish(p[0])
        self.fails(r, 4, "ranks 2, 3 of world_size 4 did not come", "(rejoin_timeout)")

    @long_case
    def test_the_next_node_serves_when_rank_0_is_lost(self):
        """Two hosts as network namespaces: rank 0 on one, ranks 1 and 2 on the other, which goes on alone."""
        names = [f"ddpm-{os.getpid()}-{side}" for side in "ab"]
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Skip("not root, or no ip (iproute2): cannot make network namespaces")
        try:
            for name in names:
                if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
                    raise Skip("no network namespaces here")
            subprocess.run(["ip", "-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1]], check=True)
            for i, name in enumerate(names, 1):
                subprocess.run(["ip", "-n", name, "addr", "add", f"10.78.0.{i}/24", "dev", "eth0"], check=True)
                for device in ("lo", "eth0"):
                    subprocess.run(["ip", "-n", name, "link", "set", device, "up"], check=True)
            self.two_nodes(names)
        finally:
            for name in names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def two_nodes(self, names):
        world = {"group": {"world_size": 3}, "run": {"min_world": 2}, "train": {"batch_size": 20}}
        nodes = {"group": {"nodes": "10.78.0.1:1, 10.78.0.2:2", "rank": "auto", "auth": "none", "world_size": None}}
        self.whole(world, ranks=3)

        def node(i):
            self.inis += 1
            ini = self.ini(f"node-{self.inis}.ini", COMMON, self.paced, world, nodes,
                           {"output": {"dir": self.dir / f"out-{i}"}, "checkpoint": {"dir": self.dir / "saved"}})
            return self.spawn(["ip", "netns", "exec", names[i], harness.ENGINE, "-c", ini])

        p = [node(0), node(1)]
        self.trained_a_while(p[0])
        p[0].kill()
        lines = self.reads(p[1], "2 of 3 ranks are there")
        self.check("rank 1 serves the others from now on" in lines, lines)
        self.trained_a_while(p[1])
        p[0].wait()
        p[0] = node(0)
        self.reads(p[1], "rank 0 at", "is there")
        self.all_of_it(p, "out-0 out-1", [2, 3])  # what rank 0 has not written yet is lost with it

    def test_mistakes(self):
        for group, run, *parts in (({}, {"restarts": 0, "min_world": 2}, "[run] min_world", "restarts"),
                                   ({}, {"min_world": 9}, "min_world = 9 is more than world_size = 4"),
                                   ({"rank": "spare", "init_method": None}, {}, "rank = spare needs nodes, or an init_method"),
                                   ({"rank": "spare", "world_size": None}, {}, "world_size is not set"),
                                   ({"rank": "spare"}, {"restarts": 0, "min_world": 0}, "[group] rank", "restarts")):
            layer = {"output": {"dir": self.dir / "out"}, "group": {"init_method": "tcp://127.0.0.1:1", **group}, "run": run,
                     "checkpoint": {"dir": self.dir / "saved"}}
            self.fails(self.run("-c", self.ini("x.ini", COMMON, layer)), 2, *parts)
        layer = {"output": {"dir": self.dir / "out"}, "checkpoint": {"dir": self.dir / "saved"}, "group": {"world_size": 2},
                 "run": {"min_world": 1}, "hook": {"plugin": "int8"}}
        self.fails(self.run("-c", self.ini("x.ini", COMMON, layer), "--nproc", 2), 2, "[run] min_world: hook", "keeps no state")


if __name__ == "__main__":
    sys.exit(harness.main(Missing))
