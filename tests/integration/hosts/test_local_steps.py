"""[ddp] local_steps: what they compute, against plain DDP and against a computation by hand; checkpoints, resumes, hooks, refusals."""
import json
import math
import os
import pathlib
import shutil
import signal
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from checkpoint_files import read_safetensors  # noqa: E402
from harness import Case  # noqa: E402

SGD = {"optimizer": {"algorithm": "sgd", "lr": 0.1, "momentum": 0}}
ADAM = {"optimizer": {"algorithm": "adamw", "lr": 0.01, "momentum": None}, "ddp": {"local_steps": 6}}  # 20 steps an epoch
EVAL = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 160, "shape": 12, "classes": 4, "seed": 1}}
SMALL_BUCKETS = {"ddp": {"first_bucket_size": "256", "bucket_size": "1KiB"}}
GLOO = {"group": {"backend": "gloo-tcp"}}
HOOKS = {"bf16": {"hook": {"plugin": "bf16"}}, "int8": {"hook": {"plugin": "int8"}},
         "powersgd": {"hook": {"plugin": "powersgd"}, "hook.powersgd": {"start_step": 0, "rank": 2}, "model.mlp": {"hidden": "64, 48"}}}


def numbers(path):
    """Name -> its floats."""
    return {n: struct.unpack(f"<{len(body) // 4}f", body) for n, (dtype, _, body) in read_safetensors(path).items() if dtype == "F32"}


class LocalSteps(Case):
    def saves(self, folder, **more):
        return {"checkpoint": {"dir": self.dir / folder, "keep": 0, **more}}

    def steps(self, folder):
        return [int(p.name[5:]) for p in sorted((self.dir / folder).glob("step-????????"))]

    def file(self, folder, name, step=40):
        return self.dir / folder / f"step-{step:08}" / f"{name}.safetensors"

    def same_files(self, a, b, *names):
        for name in names:
            self.equal(self.file(a, name).read_bytes(), self.file(b, name).read_bytes(), f"{name} of {a} and {b}")

    def near(self, path, name, want):
        got = numbers(path)[name]
        self.check(max(abs(a - b) for a, b in zip(got, want, strict=True)) < 1e-5, (path, got, want))

    # ---- what is computed -----------------------------------------------------------------------------------------
    def test_one_step_without_momentum_is_ddp(self):
        one = {"ddp": {"local_steps": 1, "outer_momentum": 0}}
        for backend in ("shm", "gloo-tcp"):
            for name, layer in (("plain", {"ddp": {"shard_update": "no"}}), ("local", one)):
                self.train(SGD, SMALL_BUCKETS, layer, {"group": {"backend": backend}}, self.saves(name + backend), name=f"{name}.ini")
            plain, local = (numbers(self.file(n + backend, "model")) for n in ("plain", "local"))
            for key, values in plain.items():
                far = max(abs(a - b) for a, b in zip(values, local[key], strict=True))
                self.check(far < 2e-5, f"{backend}, {key}: {far}")

    def data(self):
        """64 samples of three numbers and one of two classes, read in order: rank r of 2 has every other one."""
        rows, x = [], 5
        for _ in range(64):
            row = []
            for _ in range(3):
                x = x * 1103515245 + 12345 & 0xFFFFFFFF
                row.append((x >> 16 & 1023) / 256 - 2)
            rows.append((row, int(row[0] + row[1] > 0.3)))
        path = self.dir / "t.csv"
        path.write_text("\n".join(["a,b,c,kind"] + [f"{a},{b},{c},{'no yes'.split()[y]}" for (a, b, c), y in rows]) + "\n")
        return rows, {"data": {"plugin": "csv"}, "data.synthetic": None, "data.csv": {"path": path, "target": "kind", "standardize": "no"},
                      "model.mlp": {"input": "input", "classes": 2, "hidden": "", "bias": "no"}, "train": {"batch_size": 4, "epochs": 2},
                      "sampler.distributed": {"shuffle": "no"}}

    @staticmethod
    def gradient(weights, batch):
        """Of the mean cross-entropy of a linear layer: (softmax - one-hot) x, by class and input."""
        g = [[0.0] * 3 for _ in range(2)]
        for x, y in batch:
            z = [math.exp(sum(w * v for w, v in zip(row, x, strict=True))) for row in weights]
            for k in range(2):
                for i in range(3):
                    g[k][i] += (z[k] / sum(z) - (k == y)) * x[i] / len(batch)
        return g

    def by_hand(self, rows, start, lr, outer_lr, momentum, steps, decay):
        """Parameters, momentum, and the average that [optimizer] ema keeps of the former."""
        outer, velocity = [list(r) for r in start], [[0.0] * 3 for _ in range(2)]
        ranks, made, average = [[list(r) for r in start] for _ in range(2)], 0, None
        for step in range(16):
            for rank, w in enumerate(ranks):
                first = step % 8 * 8
                g = self.gradient(w, [rows[first + 2 * i + rank] for i in range(4)])
                for k in range(2):
                    for i in range(3):
                        w[k][i] -= lr * g[k][i]
            made += 1
            if made < steps and step < 15:
                continue
            for k in range(2):
                for i in range(3):
                    d = outer[k][i] - sum(w[k][i] for w in ranks) / 2
                    velocity[k][i] = momentum * velocity[k][i] + d
                    outer[k][i] -= outer_lr * (d + momentum * velocity[k][i] if momentum else d)
            ranks, flat, keep = [[list(r) for r in outer] for _ in range(2)], outer[0] + outer[1], decay ** made
            average = flat if average is None else [keep * a + (1 - keep) * b for a, b in zip(average, flat, strict=True)]
            made = 0
        return outer[0] + outer[1], velocity[0] + velocity[1], average

    def test_as_computed_by_hand(self):
        rows, layer = self.data()
        self.train(SGD, layer, {"optimizer": {"lr": 0}, "train": {"max_steps": 1}}, self.saves("first"), name="first.ini")
        at = self.file("first", "model", 1)
        flat = numbers(at)["fc1.weight"]
        for name, momentum, outer_lr, steps in (("diloco", 0.9, 0.7, 4), ("average", 0, 1, 6)):
            r = self.train(SGD, {"optimizer": {"lr": 0.3, "ema": 0.8}}, layer, {"ddp": {"local_steps": steps, "outer_momentum": momentum}},
                           self.saves(name, init_from=at), name=f"{name}.ini")
            self.equal(r.summary["steps"], 16, r)
            want, velocity, average = self.by_hand(rows, (flat[:3], flat[3:]), 0.3, outer_lr, momentum, steps, 0.8)
            self.near(self.file(name, "model", 16), "fc1.weight", want)
            self.near(self.file(name, "ema", 16), "fc1.weight", average)
            self.check(max(abs(a - b) for a, b in zip(want, flat, strict=True)) > 0.1, "nothing is learned")
            self.equal(self.file(name, "local_steps", 16).exists(), momentum > 0, name)
            if momentum:
                self.near(self.file(name, "local_steps", 16), "fc1.weight.outer_momentum", velocity)

    # ---- checkpoints ----------------------------------------------------------------------------------------------
    def test_a_resume_has_the_same_bits(self):
        """Saves come with the first outer step that follows; each rank goes on with its own optimiser's state."""
        ema = {"optimizer": {"ema": 0.9}}
        whole = self.train(ADAM, EVAL, ema, SMALL_BUCKETS, self.saves("whole", every=10), name="whole.ini")
        self.equal(self.steps("whole"), [12, 20, 32, 40])  # an epoch of 20 that is evaluated ends its round
        held = numbers(self.file("whole", "local_steps", 12))
        own = numbers(self.file("whole", "optimizer", 12))
        self.equal({n.split(".")[0] for n in held if n.endswith("exp_avg")}, {"rank1"})
        self.check(held["rank1.fc1.weight.exp_avg"] != own["fc1.weight.exp_avg"], "both ranks have the same state")
        for step, way in ((12, {}), (32, {"checkpoint": {"async": "no"}}), (20, GLOO)):
            name = f"from{step}"
            shutil.copytree(self.dir / "whole" / f"step-{step:08}", self.dir / name / f"step-{step:08}")
            r = self.train(ADAM, EVAL, ema, SMALL_BUCKETS, self.saves(name, every=10), way, name=f"{name}.ini")
            self.check("resuming from" in r.err and "begins with that of rank 0" not in r.err, r)
            self.same_files("whole", name, "model", "optimizer", "local_steps", "ema")
            self.equal(r.summary["eval_loss"], whole.summary["eval_loss"])

    def test_stopped_and_resumed(self):
        """A signal is answered by an outer step; what a hook remembers goes on too."""
        long = {"train": {"epochs": 60}, "output": {"log_every": 1}, "ddp": {"local_steps": 7}}
        layers = (ADAM, HOOKS["int8"], long)
        whole = self.train(*layers, {"output": {"log_every": 1000}}, name="whole.ini")
        path = self.ini("part.ini", *layers, self.saves("part"), {"output": {"dir": self.dir / "part.out"}})
        p = self.start("-c", path, "--nproc", 2)
        self.trained_a_while(p)
        p.send_signal(signal.SIGTERM)
        r = self.finish(p)
        self.equal(r.code, 143, r)
        self.equal(len(self.steps("part")), 1)
        at = self.steps("part")[0]
        self.check(at % 7 == 0 and at < 1200, at)
        r = self.train(*layers, self.saves("part"), {"output": {"log_every": 1000}}, name="part.ini")
        self.equal(r.summary["parameter_sha256"], whole.summary["parameter_sha256"], r)

    def test_the_loss_of_a_rank(self):
        """No rank has all of the state: the others go on from a checkpoint."""
        long = {"train": {"epochs": 40}, "run": {"restarts": 3, "restart_delay": "0s"}, **GLOO}
        whole = self.train(ADAM, {"train": {"epochs": 40}}, GLOO, name="whole.ini")
        p = self.start("-c", self.ini("lost.ini", ADAM, long, self.saves("lost", every=30),
                                      {"output": {"dir": self.dir / "lost.out", "log_every": 1}}), "--nproc", 2)
        self.trained_a_while(p)
        os.kill(self.children(p, 2)[1], signal.SIGKILL)
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.equal(json.loads((self.dir / "lost.out/summary.json").read_text())["parameter_sha256"], whole.summary["parameter_sha256"], r)

    def test_other_ranks_and_plain_runs(self):
        self.train(ADAM, self.saves("ck"), {"train": {"max_steps": 18}}, name="two.ini")
        for nproc in (3, 1):
            shutil.copytree(self.dir / "ck/step-00000018", self.dir / f"of{nproc}/step-00000018")
            r = self.train(ADAM, self.saves(f"of{nproc}"), nproc=nproc, name=f"of{nproc}.ini")
            self.check(nproc == 1 or "has not the optimiser's state of 3 ranks: each begins with that of rank 0" in r.err, r)
            self.equal(r.summary["steps"], 40)
        off = self.train(ADAM, self.saves("ck"), {"ddp": {"local_steps": 0}}, name="off.ini")
        self.check("local_steps is 0" in off.err, off)
        on = self.train(ADAM, self.saves("ck"), {"train": {"epochs": 3}}, name="on.ini")
        self.check("has no outer momentum" in on.err and "optimiser's state of 2 ranks" in on.err, on)
        self.equal(self.run("checkpoint", "verify", self.dir / "ck").code, 0)

    # ---- with other features ----------------------------------------------------------------------------------------
    def test_replicas_are_equal_after_an_outer_step(self):
        """With each hook, and where gradients are clipped."""
        hashes = set()
        for name, hook in {"none": {"optimizer": {"clip_norm": 0.5}, "train": {"accumulate": 2}}, **HOOKS}.items():
            r = self.train(ADAM, EVAL, hook, SMALL_BUCKETS, {"train": {"check_replicas_every": 1}}, name=f"{name}.ini")
            self.check(r.summary["eval_accuracy"] > 0.4, r.summary)
            hashes.add(r.summary["parameter_sha256"])
        self.equal(len(hashes), 1 + len(HOOKS), "a hook changes nothing")

    def test_a_rank_without_samples(self):
        """The last step of an epoch has one sample, of one rank."""
        r = self.train(ADAM, GLOO, {"train": {"batch_size": None, "global_batch": 9, "max_steps": 150}, "ddp": {"local_steps": 3}})
        self.equal(r.summary["steps"], 144)
        rows = self.metrics(r.dir, "step")
        self.check(all(row["loss"] is not None for row in rows), rows)

    def test_not_finite_is_named(self):
        r = self.run("-c", self.ini("x.ini", SGD, {"optimizer": {"lr": 1e30}, "ddp": {"local_steps": 5}}), "--nproc", 2)
        self.fails(r, 7, "step ", "is not finite", " of rank ")

    def test_what_check_shows(self):
        path = self.ini("x.ini", ADAM, self.saves("ck"))
        r = self.run("-c", path, "--nproc", 2, "--check")
        self.check("local steps 14 KiB, " in r.out, r)

    def test_refusals(self):
        for section, key, value in (("ddp", "zero", 1), ("train", "non_finite", "skip"), ("train", "noise_scale", "yes"),
                                    ("train", "parallel", "dp"), ("train", "split_head", "yes"), ("run", "min_world", 1), ("optimizer", "schedule", "lr_range")):
            more = {"run": {"restarts": 1}, "checkpoint": {"dir": self.dir / "c"}} if section == "run" else {}
            r = self.run("-c", self.ini("x.ini", ADAM, more, {section: {key: value}}, {"optimizer": {"min_lr": 1e-4}}), "--check")
            self.fails(r, 2, "x.ini:", "[ddp] local_steps", f"[{section}] {key}")
        r = self.run("-c", self.ini("x.ini", ADAM, {"ddp": {"wire_order": "forward"}}), "--check")
        self.fails(r, 2, "x.ini:", "wire_order = forward", "[ddp] local_steps")
        self.fails(self.run("-c", self.ini("x.ini", ADAM, {"ddp": {"outer_momentum": 1}}), "--check"), 2, "outer_momentum", "below 1")


if __name__ == "__main__":
    sys.exit(harness.main(LocalSteps))
