"""Between the gradients and the wire: hooks and what they remember, buckets cut out of large parameters, their size by the link,
frozen parameters, and the trace of a step."""
import json
import subprocess
import sys

import harness
from harness import SRC, Case
from checkpoint_files import read_safetensors

# 640 samples, 2 ranks x 16: 20 steps an epoch; 64 x 48 is the matrix that powersgd compresses
WIDE = {"model.mlp": {"hidden": "64, 48"}, "data.synthetic": {"shape": 60}, "optimizer": {"lr": 0.02}}
PSGD = {"hook": {"plugin": "powersgd"}, "hook.powersgd": {"start_step": 5, "rank": 2}}
HOOKS = {"bf16": {"hook": {"plugin": "bf16"}}, "int8": {"hook": {"plugin": "int8"}}, "powersgd": PSGD}
SMALL_BUCKETS = {"ddp": {"first_bucket_size": "1KiB", "bucket_size": "4KiB"}}


class Hooks(Case):
    def newest(self, folder):
        return sorted((self.dir / folder).glob("step-????????"))[-1]

    def manifest(self, folder):
        return json.loads((self.newest(folder) / "MANIFEST.json").read_text())

    def test_every_hook_on_every_backend_trains_and_keeps_replicas_equal(self):
        whole = self.train(WIDE, name="whole.ini").summary
        for name, hook in HOOKS.items():
            hashes = set()
            for backend in ("shm", "gloo-tcp"):
                r = self.train(WIDE, hook, SMALL_BUCKETS, {"group": {"backend": backend}, "train": {"check_replicas_every": 1}},
                               name=f"{name}-{backend}.ini").summary
                self.check(abs(r["final_loss"] - whole["final_loss"]) < 0.25 * whole["final_loss"], (name, backend, r, whole))
                self.check(r["parameter_sha256"] != whole["parameter_sha256"], f"{name} changed nothing")
                hashes.add(r["parameter_sha256"])
            self.equal(len(hashes), 1, f"{name}: backends differ")

    def test_three_ranks_with_overlap(self):
        for name, hook in HOOKS.items():
            self.train(WIDE, hook, SMALL_BUCKETS, {"ddp": {"overlap": "yes"}, "train": {"check_replicas_every": 1, "epochs": 1}},
                       nproc=3, name=f"{name}.ini")

    def test_one_rank(self):
        for name, hook in HOOKS.items():
            self.train(WIDE, hook, {"train": {"epochs": 1}}, nproc=1, name=f"{name}.ini")

    def test_stopped_and_resumed_is_the_uninterrupted_run(self):
        for name, hook in HOOKS.items():
            save = {"checkpoint": {"every": 1000}}
            whole = self.train(WIDE, hook, SMALL_BUCKETS, save, {"checkpoint": {"dir": self.dir / f"{name}.whole"}},
                               name=f"{name}.whole.ini").summary
            part = {"checkpoint": {"dir": self.dir / f"{name}.part"}}
            self.train(WIDE, hook, SMALL_BUCKETS, save, part, {"train": {"max_steps": 13}}, name=f"{name}.ini")
            r = self.train(WIDE, hook, SMALL_BUCKETS, save, part, name=f"{name}.ini")
            self.check("resuming from" in r.err and "from scratch" not in r.err, r)
            self.equal(r.summary["parameter_sha256"], whole["parameter_sha256"], name)
            self.equal(self.manifest(f"{name}.part")["hook"], name)

    def test_what_hooks_remember_is_in_the_checkpoint(self):
        self.train(WIDE, PSGD, {"checkpoint": {"dir": self.dir / "ckpt"}})
        saved = read_safetensors(self.newest("ckpt") / "hook.safetensors")
        own = [n for n in saved if n.startswith("rank")]
        self.equal(sorted({n.split(".")[0] for n in own}), ["rank0", "rank1"])
        shared = [n for n in saved if not n.startswith("rank")]
        self.check(shared and all(n.endswith(".q") for n in shared), saved.keys())
        name = own[0].split(".", 1)[1]
        self.check(saved[f"rank0.{name}"][2] != saved[f"rank1.{name}"][2], "both ranks remember the same")
        self.train(WIDE, {"checkpoint": {"dir": self.dir / "none"}}, name="none.ini")
        self.check(not (self.newest("none") / "hook.safetensors").exists())

    def test_another_number_of_ranks_shares_what_is_remembered(self):
        for name in ("int8", "powersgd"):
            at = {"checkpoint": {"dir": self.dir / name}}
            self.train(WIDE, HOOKS[name], at, {"train": {"epochs": 1}}, name=f"{name}.ini")
            r = self.train(WIDE, HOOKS[name], at, nproc=4, name=f"{name}.ini")
            self.check("resuming from" in r.err and "from scratch" not in r.err, r)

    def test_other_ranks_and_other_buckets_start_from_scratch(self):
        at = {"checkpoint": {"dir": self.dir / "ckpt"}}
        self.train(WIDE, PSGD, at, {"train": {"epochs": 1}})
        r = self.train(WIDE, PSGD, SMALL_BUCKETS, at, nproc=4)
        self.check('hook "powersgd" starts from scratch' in r.err and "other buckets" in r.err, r)
        r = self.train(WIDE, PSGD, at, {"train": {"epochs": 3}}, nproc=4)  # the file has more than this run would have
        self.check('hook "powersgd" starts from scratch' in r.err and "other buckets" in r.err, r)

    def test_another_hook_start_from_scratch(self):
        at = {"checkpoint": {"dir": self.dir / "ckpt"}}
        self.train(WIDE, HOOKS["int8"], at, {"train": {"epochs": 1}})
        r = self.train(WIDE, PSGD, at, {"train": {"epochs": 2}})
        self.check('hook "powersgd" starts from scratch' in r.err and "another hook" in r.err, r)
        r = self.train(WIDE, {"hook.powersgd": {"rank": 3, "start_step": 5}, "hook": {"plugin": "powersgd"}}, at, {"train": {"epochs": 3}})
        self.check('hook "powersgd" starts from scratch' in r.err and "options" in r.err, r)
        r = self.train(WIDE, at, {"train": {"epochs": 4}})
        self.check("dropped" in r.err and '"powersgd"' in r.err, r)

    def test_refusals(self):
        r = self.run("-c", self.ini("x.ini", {"hook": {"plugin": "nosuch"}}))
        self.fails(r, 3, "x.ini:", '"nosuch"', "bf16", "int8", "powersgd")
        r = self.run("-c", self.ini("x.ini", HOOKS["int8"], {"ddp": {"zero": 1}}), "--nproc", 2)
        self.fails(r, 2, "x.ini:", "zero = 1", "[hook] plugin")
        r = self.run("-c", self.ini("x.ini", PSGD, {"hook.powersgd": {"rank": 99}}))
        self.fails(r, 2, "x.ini:", "rank", "1..32")

    def test_a_state_that_is_no_f32_is_the_plugins_fault(self):
        subprocess.run(["cc", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-shared", "-DBREAK=20", f"-I{SRC}/core/include",
                        f"-I{SRC}/docs/examples/hook-skeleton", str(SRC / "tests/fixtures/plugins/broken_hook.c"),
                        "-o", str(self.dir / "hook_faulty.so")], check=True)
        r = self.run("-c", self.ini("x.ini", WIDE, {"hook": {"plugin": "faulty"}, "plugins": {"path": self.dir}}), "--nproc", 2)
        self.fails(r, 3, 'hook "faulty"', "is not f32")

    def test_not_finite_is_named_through_a_hook(self):
        r = self.run("-c", self.ini("x.ini", WIDE, HOOKS["int8"], {"optimizer": {"lr": 1e30}}), "--nproc", 2)
        self.fails(r, 7, "is not finite", "rank")


class Buckets(Case):
    def plan(self, *layers):
        r = self.run("-c", self.ini("x.ini", WIDE, *layers), "--nproc", 2, "--check")
        self.equal(r.code, 0, r)
        lines = r.out.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("buckets"))
        return lines[first + 1:first + 1 + int(lines[first].split()[1].rstrip(","))]

    def test_a_large_parameter_is_cut(self):
        plan = self.plan(SMALL_BUCKETS)  # fc1.weight has 64 x 60 x 4 = 15360 bytes, fc2.weight 48 x 64 x 4 = 12288
        self.equal(sum("fc1.weight, rows" in line for line in plan), 4, plan)
        self.equal(sum("fc2.weight, rows" in line for line in plan), 3, plan)
        self.check(not any("rows" in line for line in self.plan()), "cut though it is small")

    def test_more_buckets_than_can_be_pending(self):
        many = {"model.mlp": {"hidden": "700, 24"}, "ddp": {"first_bucket_size": "64B", "bucket_size": "64B"}, "train": {"max_steps": 3},
                "group": {"backend": "gloo-tcp"}}
        hashes = {self.train(many, way, name=f"{i}.ini").summary["parameter_sha256"]
                  for i, way in enumerate(({}, {"ddp": {"zero": 1}}, {"ddp": {"zero": 1, "overlap": "yes"}}))}
        self.equal(len(hashes), 1)
        self.train(many, HOOKS["bf16"], name="hook.ini")

    def test_cut_or_not_the_same_training(self):
        hashes = {self.train(WIDE, extra, {"ddp": {"shard_update": shard}}, name=f"{i}{shard}.ini").summary["parameter_sha256"]
                  for i, extra in enumerate(({}, SMALL_BUCKETS)) for shard in ("auto", "no")}
        self.equal(len(hashes), 1)

    def test_auto_is_recorded_and_kept(self):
        auto = {"ddp": {"bucket_size": "auto"}, "checkpoint": {"dir": self.dir / "ckpt"}}
        r = self.train(WIDE, auto, {"train": {"epochs": 1}})
        self.check("bucket_size = auto: an all_reduce takes" in r.err, r)
        path = sorted((self.dir / "ckpt").glob("step-????????"))[-1] / "MANIFEST.json"
        size = json.loads(path.read_text())["bucket_size"]
        self.check(size % (1 << 20) == 0 and 1 <= size >> 20 <= 64, size)
        r = self.train(WIDE, auto)
        self.check("bucket_size = auto" not in r.err and "resuming from" in r.err, "measured again")
        r = self.run("-c", self.ini("x.ini", {"ddp": {"bucket_size": "auto"}, "train": {"deterministic": "yes"}}))
        self.fails(r, 2, "x.ini:", "bucket_size = auto", "deterministic")

    def test_trace(self):
        out = self.dir / "traced"
        r = self.train(WIDE, SMALL_BUCKETS, {"ddp": {"overlap": "yes"}, "output": {"dir": out, "trace_steps": "5-6"}})
        self.equal(r.code, 0)
        for rank in (0, 1):
            events = json.loads((out / f"trace-rank{rank}.json").read_text())["traceEvents"]
            spans = [e for e in events if e["ph"] == "X"]
            self.equal({e["args"]["step"] for e in spans}, {5, 6})
            self.equal({e["pid"] for e in spans}, {rank})
            reduced = [e for e in spans if e["name"].startswith("all_reduce") and e["args"]["step"] == 5]
            computed = [e for e in spans if e["name"] == "compute" and e["args"]["step"] == 5]
            self.check(len(reduced) > 5 and len(computed) > 2, spans)
            self.equal([e["args"]["bucket"] for e in reduced], list(range(len(reduced))), "not in index order")
            self.check(all(a["ts"] + a["dur"] <= b["ts"] for a, b in zip(reduced, reduced[1:])), "two buckets at once")
            self.equal(len([e for e in spans if e["name"].startswith("update")]), 2 * len(reduced))
        (out / "no" / "trace-rank1.json").mkdir(parents=True)
        r = self.train(WIDE, {"output": {"dir": out / "no", "trace_steps": "19-100"}}, name="no.ini")
        self.check("no trace:" in r.err and "trace-rank1.json" in r.err, r)
        self.check("steps 19 to 40" in r.err, r)
        direct = json.loads((out / "no" / "trace-rank0.json").read_text())["traceEvents"]
        self.equal({e["name"] for e in direct if e["ph"] == "X"}, {"compute", "wait", "update"}, "shared memory")
        for bad in ("6-5", "0-3", "x", "3"):
            r = self.run("-c", self.ini("x.ini", {"output": {"dir": out, "trace_steps": bad}}))
            self.fails(r, 2, "x.ini:", "trace_steps", "10-12")
        self.fails(self.run("-c", self.ini("x.ini", {"output": {"trace_steps": "1-2"}})), 2, "x.ini:", "[output] dir")


class Frozen(Case):
    def model(self, folder):
        return read_safetensors(sorted((self.dir / folder).glob("step-????????"))[-1] / "model.safetensors")

    def test_frozen_parameters_stay_and_the_others_train(self):
        """Under every way to update; a resumed run too."""
        adam = {"optimizer": {"algorithm": "adamw", "momentum": None, "weight_decay": 0.1}}
        freeze = {"train": {"freeze": "fc1.*, *.bias"}}
        self.train(adam, {"train": {"max_steps": 1}, "optimizer": {"lr": 0}, "checkpoint": {"dir": self.dir / "first"}}, name="f.ini")
        first, hashes = self.model("first"), set()
        for i, way in enumerate(({"ddp": {"shard_update": "auto"}}, {"ddp": {"shard_update": "no"}},
                                 {"ddp": {"zero": 1}, "group": {"backend": "gloo-tcp"}})):
            at = {"checkpoint": {"dir": self.dir / f"way{i}"}}
            self.train(adam, freeze, way, at, {"train": {"max_steps": 7}}, name=f"{i}.ini")
            hashes.add(self.train(adam, freeze, way, at, name=f"{i}.ini").summary["parameter_sha256"])
            trained = self.model(f"way{i}")
            for name, tensor in trained.items():
                frozen = name.startswith("fc1.") or name.endswith(".bias")
                self.equal(tensor == first[name], frozen, name)
            state = read_safetensors(sorted((self.dir / f"way{i}").glob("step-*"))[-1] / "optimizer.safetensors")
            self.equal({n.rsplit(".", 1)[0] for n in state}, {"fc2.weight", "fc3.weight"})
        self.equal(len(hashes), 1)

    def test_refusals(self):
        r = self.run("-c", self.ini("x.ini", {"train": {"freeze": "conv*"}}))
        self.fails(r, 2, "x.ini:", "[train] freeze", '"conv*"', "fc1.weight")
        self.fails(self.run("-c", self.ini("x.ini", {"train": {"freeze": "*"}})), 2, "[train] freeze", "nothing is left")


if __name__ == "__main__":
    sys.exit(harness.main(Hooks, Buckets, Frozen))
