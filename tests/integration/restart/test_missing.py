"""[run] min_world and [group] rank = spare: a run goes on without some of its ranks, takes them in again, and each sample is
used exactly once an epoch whoever is there."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, Skip, long_case, until  # noqa: E402
from checkpoint_files import read_safetensors  # noqa: E402

# 640 samples, 4 ranks x 16: 10 steps an epoch. The last epoch begins when the test says so.
EPOCHS = 40
COMMON = {"train": {"epochs": EPOCHS}, "optimizer": {"lr": 0.01}, "checkpoint": {"every": 50}, "output": {"log_every": 5, "audit": "yes"},
          "group": {"backend": "gloo-tcp", "world_size": 4, "peer_timeout": "1s"},
          "run": {"restarts": 9, "restart_delay": "0s", "rejoin_timeout": "1s", "min_world": 3}}
# Three ranks on two hosts.
THREE = {"group": {"world_size": 3}, "run": {"min_world": 2}, "train": {"batch_size": 20}}
HOSTS = ("10.78.0.1", "10.78.0.2")
NODES = {"nodes": f"{HOSTS[0]}:1, {HOSTS[1]}:2", "auth": "none", "world_size": None}
EVAL = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 203, "shape": 12, "classes": 4, "seed": 1}}


class Missing(Case):
    def __init__(self):
        super().__init__()
        self.gate, self.inis, self.of_rank_0, self.env_of = self.dir / "gate", 0, {}, {}
        sampler = self.plugin("sampler_paced.so", "tests/reliability/paced_sampler.c")
        self.paced = {"sampler": {"plugin": sampler}, "sampler.paced": {"gate": self.gate, "pause": 20, "last": EPOCHS - 1}}

    def plugin(self, name, source, *flags):
        plugin = self.dir / name
        subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-fPIC", "-shared", "-w", f"-I{harness.SRC}/core/include", *flags,
                        "-o", str(plugin), str(harness.SRC / source)], check=True)
        plugin.chmod(0o755)
        return plugin

    def slow(self, section, pause=0):
        """Samples that take their time: a rank that waits for the gate instead cannot leave when it loses the others."""
        plugin = self.dir / "dataset_slow.so"
        if not plugin.exists():
            self.plugin(plugin.name, "tests/reliability/slow_dataset.c")
        return {section: {"plugin": plugin}, f"{section}.synthetic": None,
                f"{section}.slow": {"pause": pause, "until": self.gate}}

    def whole(self, *more, ranks):
        """The losses of the run that loses nobody."""
        self.gate.touch()
        r = self.train(COMMON, self.paced, *more, {"run": {"restarts": 0, "min_world": 0}, "output": {"audit": "no", "log_every": 5},
                                                   "checkpoint": {"dir": self.dir / "whole"}}, nproc=ranks, name="whole.ini")
        self.losses = {m["step"]: m["loss"] for m in self.metrics(r.dir, "step")}
        self.evals = {m["step"]: m["eval_loss"] for m in self.metrics(r.dir, "eval")}
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
        ini = self.ini(f"{rank}-{self.inis}.ini", COMMON, self.paced,
                       {"group": {"rank": rank, "init_method": f"tcp://127.0.0.1:{self.port}"},
                        "output": {"dir": self.dir / f"out-{rank}"}, "checkpoint": {"dir": self.dir / "saved"}},
                       *self.more, self.of_rank_0 if rank == 0 else {}, *more)
        return self.start("-c", ini, env=self.env_of.get(rank))

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
        for event, key, wanted in (("step", "loss", self.losses), ("eval", "eval_loss", self.evals)):
            got = [(m["step"], m[key]) for o in outs for m in self.metrics(o, event)]
            for step, value in got:
                want = wanted[step]
                self.check(abs(value - want) <= 1e-5 * max(1, abs(want)), f"{event} {step}: {value}, not {want}\n{results}")
            self.equal(max((step for step, _ in got), default=0), max(wanted, default=0), event)
        starts = {m["generation"]: m["world_size"] for o in outs for m in self.metrics(o, "start")}
        self.equal([starts[g] for g in sorted(starts)[len(starts) - len(generations):]], generations, results)
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
        # one with another INI is refused, and nobody else: twice the right one would be refused as well
        wrong = self.finish(self.rank(2, {"optimizer": {"lr": 0.02}}))
        self.fails(wrong, 4, "rank 0 and rank 2 differ in optimizer.lr: 0.01 (rank 0,", "against 0.02 (rank 2,")
        lines = self.reads(p[0], "differ in optimizer.lr")
        self.check("is there" not in lines and ": error: " not in lines, lines)
        p[2] = self.rank(2)
        self.reads(p[0], "rank 2 at", "is there")
        results = self.all_of_it(p, "out-0", [4, 3, 4])
        self.equal(sum("differ in" in r.err for r in results), 0, results)
        rows = [json.loads(line) for line in (self.dir / "out-0/ranks.jsonl").read_text().splitlines()]
        self.equal([r["ranks"] for r in rows if r["event"] == "start"], [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3]])
        world = {r["generation"]: r["world_size"] for r in rows if r["event"] == "start"}
        self.check(all(len(r["step_ms"]) == world[r["generation"]] for r in rows if r["event"] == "ranks"), rows)
        self.equal({r["generation"] for r in rows if r["event"] == "ranks"}, set(world))

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

    def wakes(self, successor):
        """Rank 1 stands still until another process has its place, and wakes when that one trains: it waits, and is not needed."""
        p = self.begin({"run": {"min_world": 0, "rejoin_timeout": "60s"}})
        new = self.rank(successor, {"output": {"dir": self.dir / "out-new"}}) if successor == "spare" else None
        if new:
            self.reads(new, "this spare waits")
        self.stand_still(p[1].pid)
        new = new or self.rank(successor, {"output": {"dir": self.dir / "out-new"}})
        self.reads(p[0], "training mlp")
        self.trained_a_while(p[0])
        os.kill(p[1].pid, signal.SIGCONT)
        self.reads(p[1], f"rank 1 is host {socket.gethostname()}, pid {new.pid}", "this process waits at")
        results = self.all_of_it([*p, new], "out-0", [4, 4])
        self.equal([i for i, r in enumerate(results) if "has not needed this" in r.err], [1], results)
        self.check("the run has ended, and has not needed this rank" in results[1].err, results)
        self.equal(*(json.loads((self.dir / d / "summary.json").read_text())["parameter_sha256"] for d in ("out-0", "whole.ini.out")))

    @long_case
    def test_a_stopped_rank_wakes_when_a_spare_has_its_place(self):
        self.wakes("spare")

    @long_case
    def test_a_stopped_rank_wakes_when_it_was_started_again(self):
        self.wakes(1)

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
    def test_backend_auto_is_one_for_all(self):
        """One of two hosts is lost, and a rank of the other is started again: it takes the backend that the run has, not the one for
        ranks that are all on one host."""
        self.env_of = {rank: {"DDPENGINE_HOST_ID": host} for rank, host in enumerate("aab")}
        p = self.begin({"group": {"world_size": 3, "backend": "auto"}, "run": {"min_world": 1}, "train": {"batch_size": 20}}, ranks=3)
        p[2].kill()
        self.reads(p[0], "training mlp", "with 2 ranks", "over gloo-tcp")
        for rank in (1, 2):
            p[rank].kill()
            p[rank].wait()
            p[rank] = self.rank(rank)
            self.reads(p[0], "training mlp", f"with {rank + 1} ranks", "over gloo-tcp")
        self.all_of_it(p, "out-0", [3])

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

    def knock_in_an_evaluation(self, *more):
        """The missing rank comes while rank 0 waits for samples of an evaluation; how it went, and the evaluations since it was lost."""
        hold, self.of_rank_0 = self.dir / "hold", {"eval.slow": {"hold": self.dir / "hold"}}
        p = self.begin(self.slow("eval"), *more)
        until(lambda: list((self.dir / "saved").glob("step-????????/MANIFEST.json")), "no checkpoint")
        p[2].kill()
        self.reads(p[0], "3 of 4 ranks are there")
        self.trained_a_while(p[0])
        p[2].wait()
        hold.touch()
        self.gate.touch()  # so that an evaluation comes, if only the last one
        until((self.dir / "hold.held").exists, "no evaluation")
        p[2] = self.rank(2)
        self.reads(p[0], "rank 2 at", "is there")
        hold.unlink()
        results = self.all_of_it(p, "out-0", [])
        rows = self.metrics(self.dir / "out-0")
        lost = next(i for i, m in enumerate(rows) if m["event"] == "start" and m["world_size"] == 3)
        since = [m["epoch"] for m in rows[lost:] if m["event"] == "eval"]
        self.equal(since, list(range(since[0], EPOCHS + 1)), results)
        return results, rows

    @long_case
    def test_an_evaluation_that_is_cut_short_is_made_again(self):
        results, rows = self.knock_in_an_evaluation()
        self.equal([m["epoch"] for m in rows if m["event"] == "eval"], list(range(1, EPOCHS + 1)), results)
        self.equal([m["world_size"] for m in rows if m["event"] == "start"], [4, 3, 4], results)

    @long_case
    def test_each_epoch_is_evaluated(self):
        """Ranks are lost and come back where an epoch ends: of these each has one step."""
        one = {"data.synthetic": {"samples": 64}, "checkpoint": {"every": 1}, **EVAL}
        for name, more in (("memory", {}), ("checkpoint", {"ddp": {"zero": 1}})):
            for d in [*self.dir.glob("out-*"), *self.dir.glob("saved")]:
                shutil.rmtree(d)
            p = self.begin(one, more)
            p[2].kill()
            self.reads(p[0], "3 of 4 ranks are there")
            self.trained_a_while(p[0])
            p[2].wait()
            p[2] = self.rank(2)
            results = self.all_of_it(p, "out-0", [3, 4])
            rows = self.metrics(self.dir / "out-0")
            lost = next(i for i, m in enumerate(rows) if m["event"] == "start" and m["world_size"] == 3)
            # a checkpoint does not tell whether the evaluation after it was made
            epochs = [m["epoch"] for m in rows[0 if name == "memory" else lost:] if m["event"] == "eval"]
            self.equal(epochs, list(range(1 if name == "memory" else epochs[0], EPOCHS + 1)), results)

    @long_case
    def test_an_evaluation_that_nothing_would_remember_is_not_cut_short(self):
        """Where the next generation begins with a checkpoint."""
        self.knock_in_an_evaluation({"ddp": {"zero": 1}})

    @long_case
    def test_rank_0_is_lost_while_the_ranks_join_again(self):
        """The others have the state in memory, and look for the next rank 0."""
        p = self.begin({"run": {"rejoin_timeout": "9s"}})
        p[2].kill()
        self.reads(p[0], "waiting at", "for rank 2 of world_size 4")
        p[0].kill()
        self.reads(p[1], "rank 0", "before all ranks had met again: this rank looks for it")
        for r in (0, 2):
            p[r].wait()
            p[r] = self.rank(r)
        results = self.all_of_it(p, "out-0", [4])
        self.check("going on from the memory of rank 1" in results[0].err, results)

    @long_case
    def test_a_process_of_an_earlier_start(self):
        """A rank was suspended while the run was started again: it is no news to that one, takes the place of the rank that is lost
        then, and what it has in memory is not used."""
        p = self.begin({"group": {"world_size": 2}, "run": {"min_world": 0, "rejoin_timeout": "60s"}}, ranks=2)
        until(lambda: list((self.dir / "saved").glob("step-????????/MANIFEST.json")), "no checkpoint")
        old = p[1]
        os.kill(old.pid, signal.SIGSTOP)
        p[0].kill()
        p[0].wait()
        p = [self.rank(0), self.rank(1, {"output": {"dir": self.dir / "out-1-again"}})]
        self.reads(p[0], "training mlp")
        self.trained_a_while(p[0])
        os.kill(old.pid, signal.SIGCONT)
        self.reads(old, "rank 1 is host", "this process waits at")
        p[1].kill()
        self.reads(old, "the run has been started again since this rank was in it")
        self.reads(p[0], "going on from the memory of rank 0")
        p[1].wait()
        self.all_of_it([p[0], old], "out-0", [2, 2])

    def fails_late(self, switch, until_closed):
        """Rank 1 fails, not by a loss, in the update of the step after which all join again with rank 2. Nobody joins again: all end with
        that failure, rank 2 too, which waits. `until_closed`: when it may fail."""
        late = self.dir / "late"
        device = self.plugin("device_late.so", "tests/integration/support/late_device.c", "-D_GNU_SOURCE",
                             f'-DREAL_DEVICE="{harness.BUILD}/.libs/device_cpu.so"')
        self.env_of = {0: {"LATE": f"closes:{late}"}, 1: {"LATE": f"fails:{late}"}}
        p = self.begin({"train": {"device": device}, "checkpoint": {"every": 1000}})
        p[2].kill()
        self.reads(p[0], "3 of 4 ranks are there")
        self.trained_a_while(p[0])
        p[2].wait()
        switch.touch()
        (self.dir / "late.late").touch()
        p[2] = self.rank(2)
        until_closed(p)
        switch.unlink()
        for r in map(self.finish, p):
            self.fails(r, 1, "rank 1: ", "device late: fails on purpose")

    @long_case
    def test_a_failure_that_is_no_loss_while_rank_0_closes(self):
        """And rank 3 has closed: both are about to join again."""
        self.fails_late(self.dir / "late.hold", lambda p: (p[1].wait(harness.PATIENCE), p[2].wait(harness.PATIENCE)))

    @long_case
    def test_a_failure_that_is_no_loss_when_the_others_have_closed(self):
        """They wait for rank 1's goodbye."""
        def threads(pid):
            for comm in pathlib.Path(f"/proc/{pid}/task").glob("*/comm"):
                try:
                    yield comm.read_text().strip()
                except OSError:  # ended meanwhile
                    continue

        def closed(p):  # the communicator's thread ends last
            return not any("ddp-queue" in threads(q.pid) for q in (p[0], p[3]))

        self.fails_late(self.dir / "late.wait", lambda p: until(lambda: closed(p), "they do not close"))

    @long_case
    def test_fewer_than_min_world(self):
        p = self.begin()
        for lost in p[2:]:
            lost.kill()
        r = self.finish(p[0])
        self.fails(r, 4, "ranks 2, 3 of world_size 4 did not come", "(rejoin_timeout)")

    # ---- two hosts --------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def hosts(self):
        """Two of them, as network namespaces."""
        self.names = [f"ddpm-{os.getpid()}-{side}" for side in "ab"]
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Skip("not root, or no ip (iproute2): cannot make network namespaces")
        try:
            for name in self.names:
                if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
                    raise Skip("no network namespaces here")
            self.ip(0, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
            for host, address in enumerate(HOSTS):
                self.ip(host, "addr", "add", f"{address}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    self.ip(host, "link", "set", device, "up")
            yield
        finally:
            for p in self.started:
                if p.poll() is None:
                    p.kill()
            for name in self.names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def ip(self, host, *command):
        subprocess.run(["ip", "-n", self.names[host], *command], check=True)

    def node(self, host, *more, rank="auto", out=None):
        """What one of them starts: rank 0 on the first, ranks 1 and 2 on the second one, which goes on alone."""
        self.inis += 1
        ini = self.ini(f"node-{self.inis}.ini", COMMON, self.paced, THREE, *more,
                       {"group": {**NODES, "rank": rank}, "output": {"dir": self.dir / f"out-{out or host}"},
                        "checkpoint": {"dir": self.dir / "saved"}})
        return self.spawn(["ip", "netns", "exec", self.names[host], harness.ENGINE, "-c", ini])

    def on_two_hosts(self, *more):
        self.whole(THREE, *more, ranks=3)
        p = [self.node(0, *more), self.node(1, *more)]
        self.trained_a_while(p[0])
        return p

    def taken_over(self, p, *there):
        p[0].kill()
        lines = self.reads(p[1], there[0])
        lines += "".join(self.reads(p[1], part) for part in there[1:])
        self.check("rank 1 serves the others from now on" in lines, lines)
        self.trained_a_while(p[1])
        p[0].wait()
        return lines

    @long_case
    def test_the_next_node_serves_when_rank_0_is_lost(self):
        with self.hosts():
            p = self.on_two_hosts()
            self.taken_over(p, "2 of 3 ranks are there")
            os.kill(self.children(p[1], 2)[1], signal.SIGKILL)
            self.reads(p[1], "rank 1 serves the others again")  # and does not wait for rank 0 once more
            self.trained_a_while(p[1])
            p[0] = self.node(0)
            self.reads(p[1], "rank 0 at", "is there")
            self.all_of_it(p, "out-0 out-1", [2, 2, 3])  # what rank 0 has not written yet is lost with it

    @long_case
    def test_a_spare_follows_to_the_next_node(self):
        """It knows the nodes alone, and takes the place of rank 0, on the host of the others."""
        with self.hosts():
            p = self.on_two_hosts()
            spare = self.node(1, rank="spare", out="s")
            self.reads(spare, "this spare waits at")
            lines = self.taken_over(p, "training mlp")
            if "2 of 3 ranks are there" in lines:  # it was too late for that generation
                self.reads(p[1], "rank 0 at", "is there")
            self.all_of_it([p[1], spare], "out-1", [3])

    @long_case
    def test_running_statistics_after_a_takeover(self):
        """They are those of the rank that has the state, wherever that is among the others. Rank 0 is lost: a checkpoint has them.
        It comes back while nobody can be reached, and serves; then the others lose each other, and find it: rank 1 has them."""
        model = {"model": {"plugin": self.plugin("model_buffered.so", "tests/integration/support/buffered_model.c")}, "model.mlp": None,
                 "model.buffered": {"norm": "yes"}, "checkpoint": {"every": 10}, "run": {"rejoin_timeout": "2s"}, **self.slow("data", 5000)}
        with self.hosts():
            p = self.on_two_hosts(model, EVAL)
            until(lambda: list((self.dir / "saved").glob("step-????????/MANIFEST.json")), "no checkpoint")
            self.check("resuming from" in self.taken_over(p, "2 of 3 ranks are there", "training"))
            self.ip(0, "route", "add", "unreachable", HOSTS[1])
            p[0] = self.node(0, model, EVAL)
            self.reads(p[0], "waiting at", "for ranks 1, 2")
            self.ip(0, "route", "del", "unreachable", HOSTS[1])
            os.kill(self.children(p[1], 2)[1], signal.SIGKILL)
            self.reads(p[0], "going on from the memory of rank 1")
            self.all_of_it(p, "out-0 out-1", [3])
        want, got = (read_safetensors(sorted((self.dir / d).glob("step-????????"))[-1] / "model.safetensors") for d in ("whole", "saved"))
        for name in ("calls", "bn1.num_batches_tracked"):
            self.equal(got[name], want[name])
        for name in ("bn1.running_mean", "bn1.running_var"):
            pairs = [struct.unpack(f"<{len(t[name][2]) // 4}f", t[name][2]) for t in (got, want)]
            self.check(all(abs(a - b) <= 1e-4 * max(1, abs(b)) for a, b in zip(*pairs)), (name, pairs))

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
