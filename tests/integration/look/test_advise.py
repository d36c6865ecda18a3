"""`ddpengine advise` and the line of a run: what they print and what is in it, never how long anything takes. Hosts are made of one
by DDPENGINE_HOST_ID."""
import json
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, Skip, seldom  # noqa: E402


SMALL = {"bucket_size": "1KiB", "first_bucket_size": 256}  # several buckets of a small net


class Advise(Case):
    def advise(self, *args, nproc=2, layers=()):
        path = self.ini("a.ini", {"group": {"backend": "gloo-tcp"}, "ddp": SMALL, "output": {"dir": self.dir / "out"}, "checkpoint": {"dir": self.dir / "ck", "every": 1}}, *layers)
        return self.run("advise", "-c", path, *(("--nproc", nproc) if nproc else ()), *args)

    def advice(self, *args, **more):
        r = self.advise("--json", *args, **more)
        self.equal((r.code, r.err.count("error")), (0, 0), r)
        return json.loads(r.out)

    def near(self, a, b):
        self.check(abs(a - b) <= 1e-6 * abs(b), (a, b))

    def test_json(self):
        a = self.advice("--steps", 5)
        self.equal((a["world_size"], a["ranks_per_host"], a["backend"], a["measured"]["steps"]), (2, 2, "gloo-tcp", 3), a)
        self.check(all(v > 0 for v in a["link"].values()), a["link"])
        self.check(0 < a["one_rank"]["compute_s"] <= a["one_rank"]["step_s"] and a["compute_s"] > 0, a)
        self.equal([w["ranks"] for w in a["worlds"]], [2 ** i for i in range(1, 11)])
        for w in a["worlds"]:
            self.near(w["speedup"], w["ranks"] * a["one_rank"]["step_s"] / w["step_s"])
            self.near(w["efficiency"], w["speedup"] / w["ranks"])
            self.check(0 <= w["wait_s"] <= w["step_s"] and w["wait_s"] <= w["wire_s"] + 1e-9, w)
        self.equal(a["predicted"], a["worlds"][0])
        self.near(a["measured"]["speedup"], 2 * a["one_rank"]["step_s"] / a["measured"]["step_s"])
        for before, after in zip(a["worlds"], a["worlds"][1:]):
            self.check(after["wire_s"] > before["wire_s"], (before, after))

    @seldom
    def test_remedies(self):
        """Each is for this run, against its predicted step; a hook's bytes are its own."""
        wide = [{"model.mlp": {"hidden": "256, 256"}, "ddp": {"bucket_size": "64KiB", "first_bucket_size": "16KiB"}}]
        a = self.advice("--set", "ddp.overlap=no", layers=wide)
        found = {r["set"]: r for r in a["remedies"]}
        self.equal({"ddp.overlap=yes", "hook.plugin=bf16", "hook.plugin=int8", "hook.plugin=powersgd", "ddp.zero=1", "train.accumulate=4"} - set(found), set())
        step = a["predicted"]["step_s"]
        for key, r in found.items():
            self.near(r["gain"], (4 if key == "train.accumulate=4" else 1) * step / r["step_s"])
        ratio = {h["name"]: h["ratio"] for h in a["hooks"]}
        self.check(abs(ratio["bf16"] - 0.5) < 1e-3 and abs(ratio["int8"] - 0.254) < 2e-3 and ratio["powersgd"] < 0.5, ratio)
        self.check(found["ddp.overlap=yes"]["step_s"] > 0, found)  # longer than it is, where both share the processors
        for setting, *gone in (("ddp.overlap=yes", "ddp.overlap=yes"), ("ddp.zero=1", "ddp.zero=1"), ("hook.plugin=int8", "hook.plugin=bf16"),
                               ("ddp.wire_order=forward", "ddp.zero=1", "hook.plugin=bf16")):
            a = self.advice("--set", setting, "--steps", 3)
            self.check(not {r["set"] for r in a["remedies"]} & set(gone) and a["remedies"], (setting, a))
        uneven = [{"train": {"batch_size": None, "global_batch": 9, "loss_mean": "batch"}}]
        self.check("ddp.overlap=yes" not in {r["set"] for r in self.advice("--steps", 3, layers=uneven)["remedies"]}, "weighed after the backward pass")

    @seldom
    def test_the_remedies_run(self):
        """What is to be set can be set."""
        for r in self.advice("--steps", 3)["remedies"]:
            if r["set"] and "NAME" not in r["set"] and "+" not in r["set"]:
                self.equal(self.advise("--steps", 3, "--set", r["set"]).code, 0, r)

    def test_tables(self):
        r = self.advise()
        self.equal(r.code, 0, r)
        for line in (r"^ranks +2, 2 a host, over gloo-tcp; \d", r"^link, measured +[\d.e+]+ us, [\d.e+]+ MB/s", r"^compute, measured +[\d.]+ ms",
                     r"^one rank, predicted +[\d.]+ ms a step", r"^this run, predicted .*x one rank$", r"^this run, measured .*x one rank \(8 steps\)$",
                     r"^ +1024 +[\d.e+]+ +[\d.e+]+ +[\d.]+x +\d+ %$", r"^what would change it .* predicted, for this run$", r"^All ranks were on one host"):
            self.check(re.search(line, r.out, re.M), f"no {line} in\n{r}")
        below = re.search(r"this run, predicted .*: ([\d.]+)x", r.out)[1]
        if float(below) != 1:
            self.equal("2 ranks are slower than one here" in r.out, float(below) < 1, r)

    def test_more_buckets_than_may_be_pending(self):
        a = self.advice("--steps", 3, layers=[{"model.mlp": {"hidden": "256, 256"}, "ddp": {"bucket_size": "1KiB"}}])
        self.check(a["buckets"] > 256 and a["predicted"]["step_s"] > 0 and (a["exchanges"], a["crowding"]) == (0, 1), a)

    @seldom
    def test_exchanges_are_measured(self):
        """Of a run that does not send beside its pass, too: what is said of overlap = yes counts with them."""
        for overlap in ("yes", "no"):
            a = self.advice("--steps", 3, "--set", f"ddp.overlap={overlap}")
            self.check(3 <= a["exchanges"] <= 64 and 1 <= a["crowding"] <= 8, a)

    def test_leaves_nothing(self):
        """Neither its own files nor those that the INI asks of a run."""
        before = set(os.listdir("/tmp"))
        self.equal(self.advise(layers=[{"output": {"prometheus": self.dir / "run.prom", "dir": self.dir / "out"}}]).code, 0)
        self.equal(sorted(p.name for p in self.dir.iterdir()), ["a.ini"])
        self.equal([n for n in set(os.listdir("/tmp")) - before if n.startswith("ddpengine-advise-")], [])

    @seldom
    def test_started_by_mpirun(self):
        """The launcher says how many ranks there are, not the INI."""
        if shutil.which("mpirun") is None or not (harness.BUILD / "backend_mpi.la").exists():
            raise Skip("no mpirun, or no backend mpi in this build")
        path = self.ini("m.ini", {"group": {"backend": "mpi", "world_size": None}})
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **harness.MPI_LEAKS}
        r = self.finish(self.spawn(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", 2, harness.ENGINE, "advise", "-c", path], root))
        self.equal(r.code, 0, r)
        self.check("2 a host, over mpi" in r.out, r)

    @seldom
    def test_schedules(self):
        """A schedule that does not fit into so few steps, or looks at evaluations, is left out."""
        for o in ({"schedule": "cosine", "warmup_steps": 50}, {"schedule": "linear", "warmup_steps": 10}, {"schedule": "plateau", "gamma": 0.5},
                  {"schedule": "one_cycle"}):
            r = self.advise("--steps", 3, layers=[{"optimizer": o, "eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 64, "shape": 12, "classes": 4, "seed": 1}}])
            self.equal(r.code, 0, f"{o}: {r}")

    def test_no_sample_to_compute(self):
        """A run that is taken up at the last step of an epoch, for which one of two ranks has none: the steps tell."""
        layer = {"train": {"batch_size": None, "global_batch": 9, "max_steps": 71}, "group": {"backend": "gloo-tcp"}, "checkpoint": {"dir": self.dir / "ck"}}
        self.train(layer)
        r = self.train(layer, {"train": {"max_steps": 76}, "output": {"advice": "full"}})
        self.equal(r.summary["steps"], 76, r)
        a = json.loads((r.dir / "advice.json").read_text())
        self.equal((a["measured"]["steps"], a["one_rank"]["compute_s"], a["crowding"]), (3, a["compute_s"], 1), a)
        self.check(a["compute_s"] > 0 and a["predicted"]["step_s"] > 0, a)

    @seldom
    def test_shared_memory(self):
        """No gradient is sent: nothing is predicted, and what was measured is said."""
        a = self.advice(layers=[{"group": {"backend": "shm"}}])
        self.equal((a["link"], a["predicted"], a["worlds"], a["remedies"], a["hooks"]), (None, None, [], [], []), a)
        self.check(a["measured"]["speedup"] > 0 and a["compute_s"] > 0, a)
        r = self.advise(layers=[{"group": {"backend": "shm"}}])
        self.check("update each other's memory" in r.out and "what would change it" not in r.out, r)

    def on_two_hosts(self, *args):
        group = {"group": {"world_size": 2, "init_method": f"tcp://127.0.0.1:{harness.free_port()}", "backend": "gloo-tcp", "rendezvous_timeout": "20s"}}
        started = [self.start(*args, "-c", self.ini(f"{r}.ini", group, {"ddp": SMALL}, {"group": {"rank": r}, "output": {"dir": self.dir / f"out{r}"}}),
                              env={"DDPENGINE_HOST_ID": str(r)}) for r in range(2)]
        return [self.finish(p) for p in started]

    def test_two_hosts(self):
        zero, one = self.on_two_hosts("advise", "--json")
        self.equal((zero.code, one.code, one.out), (0, 0, ""), f"{zero}{one}")
        a = json.loads(zero.out)
        self.equal((a["ranks_per_host"], a["early_buckets"]), (1, a["buckets"] - 1), a)
        self.check(a["buckets"] > 1, a)

    def test_mistakes(self):
        ini = self.ini("a.ini")
        for args, *parts in (([], "no config file"), (["-c", ini], "one rank has nobody", "--nproc N"), (["-c", ini, "--nproc", "2", "now"], "too many arguments: now"),
                             (["-c", ini, "--nproc", "2", "--steps", "2"], "--steps"), (["-c", self.dir / "none.ini", "--nproc", "2"], "none.ini"),
                             (["-c", ini, "--nproc", "2", "--set", "group.bakend=shm"], "bakend", "backend"),
                             (["-c", ini, "--nproc", "2", "--set", "output.advice=maybe"], "advice"),
                             (["-c", ini, "--set", "train.parallel=dp"], "parallel", "train.parallel=ddp")):
            self.fails(self.run("advise", *args), 2, *parts)

    # ---- the line of a run ---------------------------------------------------------------------------------------------
    LINE = re.compile(r"^ddpengine\[0\]: advice: a step of 2 ranks takes (.*) of it compute, (.*) wait: ([\d.]+)x one rank(.*)$")

    def line_of(self, started):
        """Reads rank 0's log until it says the line; the match, and how many steps were made by then at most."""
        line, steps = "", 0
        while "advice:" not in line:
            line = started.stderr.readline()
            self.check(line, "ended without the line")
            steps = max(steps, *map(int, re.findall(r"step (\d+)", line)), 0)
        found = self.LINE.match(line)
        self.check(found, line)
        return found, steps

    def end(self, *started):
        for p in started:
            p.terminate()
        for p in started:
            self.check(self.finish(p).code in (128 + 15, -15))  # -15: it was ending, since the other rank was asked before

    def test_line(self):
        path = self.ini("run.ini", {"train": {"epochs": 1000000}, "output": {"log_every": 1, "progress": "plain"}})
        p = self.start("-c", path, "--nproc", 2)
        found, steps = self.line_of(p)
        self.check("by the link" not in found[1], found[0])  # of one host nothing is measured before
        self.equal("slower than one here" in found[4], float(found[3]) < 1, found[0])
        self.end(p)
        r = self.run("-c", path, "--nproc", 2, "--set", f"train.max_steps={steps}", "--set", "output.advice=no", "--set", "output.log_every=1000")
        self.check(r.code == 0 and "advice:" not in r.err, r)

    @seldom
    def test_line_of_two_hosts(self):
        """It has the link, by which a step is predicted."""
        group = {"world_size": 2, "init_method": f"tcp://127.0.0.1:{harness.free_port()}", "backend": "gloo-tcp", "rendezvous_timeout": "20s"}
        ranks = [self.start("-c", self.ini(f"{r}.ini", {"group": {**group, "rank": r}, "train": {"epochs": 1000000}}), env={"DDPENGINE_HOST_ID": str(r)})
                 for r in range(2)]
        found, _ = self.line_of(ranks[0])
        self.check(re.search(r"by the link \([\d.e+]+ (us|ms), [\d.e+]+ MB/s\) ", found[1]), found[0])
        self.end(*ranks)


if __name__ == "__main__":
    harness.main(Advise)
