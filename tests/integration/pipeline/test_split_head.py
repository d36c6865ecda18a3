"""An output layer whose classes are divided among the ranks, [train] split_head: it trains what whole replicas train, and what is
saved is the same file."""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, merged  # noqa: E402

CLASSES = 11  # neither 2 nor 3 divides it
SPLIT = {"train": {"split_head": "yes"}}
DATA = {"samples": 325, "shape": 12, "classes": CLASSES, "seed": 1}
MLP = {"model.mlp": {"classes": CLASSES, "hidden": "24"}, "data.synthetic": DATA, "eval": {"plugin": "synthetic"},
       "eval.synthetic": merged({"x": DATA}, {"x": {"samples": 61}})["x"], "sampler.distributed": {"shuffle": "no"},
       "train": {"epochs": 9, "max_steps": 14, "even_batches": "yes"}, "optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}}


class SplitHead(Case):
    def tensors(self, path):
        """Names, shapes, and values of a file of f32."""
        raw = pathlib.Path(path).read_bytes()
        length = int.from_bytes(raw[:8], "little")
        head, out = json.loads(raw[8:8 + length]), {}
        for name, t in head.items():
            if name != "__metadata__":
                first, end = t["data_offsets"]
                out[name] = (t["shape"], memoryview(raw)[8 + length + first:8 + length + end].cast("f"))
        return raw[:8 + length], out

    def same(self, folder, other, tolerance=1e-6):
        """The files of two checkpoints: names and places of tensors are the same, and the values nearly."""
        for name in ("model.safetensors", "optimizer.safetensors"):
            (head, a), (head2, b) = self.tensors(next(folder.glob(f"step-*/{name}"))), self.tensors(next(other.glob(f"step-*/{name}")))
            self.equal(head, head2, name)
            for key, (_, x) in a.items():
                scale = max(map(abs, b[key][1]))
                worst = max(abs(p - q) for p, q in zip(x, b[key][1], strict=True))
                self.check(worst <= tolerance * max(scale, 1e-3), (name, key, worst, scale))

    def alike(self, r, plain, tolerance=1e-6):
        for x, y in zip(self.metrics(r.dir, "step"), self.metrics(plain.dir, "step"), strict=True):
            self.check(abs(x["loss"] / y["loss"] - 1) < tolerance, (x, y))
            if "grad_norm" in y:
                self.check(abs(x["grad_norm"] / y["grad_norm"] - 1) < 3 * tolerance, (x, y))
        self.check(abs(r.summary["eval_loss"] / plain.summary["eval_loss"] - 1) < tolerance, (r.summary, plain.summary))
        self.equal(r.summary["eval_accuracy"], plain.summary["eval_accuracy"])

    def test_it_trains_what_whole_replicas_train(self):
        """Loss, norm, evaluation and both files of the checkpoint; uneven classes, a smaller last batch, micro-batches."""
        for ranks, backend, extra in ((2, "shm", {"train": {"accumulate": 2}}), (3, "gloo-tcp", {"optimizer": {"clip_norm": 0.5}})):
            runs = []
            for way in ({}, SPLIT):
                folder = self.dir / f"{ranks}-{len(runs)}"
                layers = (MLP, extra, way, {"group": {"backend": backend}, "checkpoint": {"dir": folder}, "ddp": {"shard_update": "no"}})
                runs.append((folder, self.train(*layers, nproc=ranks, name=f"{ranks}-{len(runs)}.ini")))
            (plain_folder, plain), (folder, r) = runs
            self.alike(r, plain)
            self.same(folder, plain_folder, 2e-6)
            self.check(r.summary["parameter_sha256"] != "", r)

    def test_it_goes_on_with_another_number_of_ranks_and_back(self):
        """Two ranks, one, three: each goes on from the files of the one before, as one run of whole replicas does."""
        def go(folder, name, ranks, steps, way):
            return self.train(MLP, way, {"train": {"max_steps": steps, "batch_size": 12 // ranks, "even_batches": None}, "checkpoint": {"dir": self.dir / folder}},
                              nproc=ranks, name=name)

        for ranks, steps in ((2, 4), (1, 32), (3, 62)): # batches of other sizes, and at the end of an epoch ranks without a sample
            r, plain = go("split", "x.ini", ranks, steps, SPLIT), go("plain", "y.ini", ranks, steps, {})
            self.check(steps == 4 or "resuming from" in r.err, r)
            self.check(abs(r.summary["eval_loss"] / plain.summary["eval_loss"] - 1) < 1e-6, (r.summary, plain.summary))
        again = go("split", "x.ini", 3, 62, SPLIT)
        self.check("already complete" in again.err and again.code == 0, again)

    def test_rows_that_do_not_count_and_weights_of_a_file(self):
        """A language model: several labels a sample; it begins with the weights of a file."""
        text = {"files": "/usr/share/common-licenses/GPL-3", "context": 32}
        gpt = {"model": {"plugin": "gpt2"}, "model.mlp": None, "data": {"plugin": "tokens"}, "data.synthetic": None, "data.tokens": text,
               "model.gpt2": {"preset": "bytes", "width": 32, "heads": 4, "layers": 2, "tied": "no", "dropout": 0.1},
               "train": {"batch_size": 2, "max_steps": 4}, "optimizer": {"algorithm": "adamw", "lr": 0.0006, "momentum": None},
               "sampler.distributed": {"shuffle": "no"}}
        first = self.dir / "first"
        self.train(gpt, {"train": {"max_steps": 1}, "checkpoint": {"dir": first}}, nproc=1, name="first.ini")
        start = {"checkpoint": {"init_from": next(first.glob("step-*")) / "model.safetensors"}, "train": {"loss_mean": "token"}}
        plain, r = (self.train(gpt, start, way, nproc=2, name=f"{i}.ini") for i, way in enumerate(({}, SPLIT)))
        for x, y in zip(self.metrics(r.dir, "step"), self.metrics(plain.dir, "step"), strict=True):
            self.check(abs(x["loss"] / y["loss"] - 1) < 1e-6, (x, y))

    def largest(self, ranks, *layers):
        """Of the ranks' processes, the most memory that one has had, in KiB."""
        address = f"tcp://127.0.0.1:{harness.free_port()}"
        group = {"group": {"backend": "gloo-tcp", "init_method": address, "world_size": ranks, "auth": "none"}}
        running = [self.start("-c", self.ini(f"r{r}.ini", MLP, *layers, group, {"group": {"rank": r}})) for r in range(ranks)]
        most = 0
        for p in running:
            _, status, used = os.wait4(p.pid, 0)
            self.equal(status, 0, p.stderr.read())
            p.returncode, most = status, max(most, used.ru_maxrss)
        return most

    @harness.long_case
    def test_no_rank_ever_has_the_whole_layer(self):
        """Nor at the start, at a save, or where it goes on: 60 MB of weights, which one rank has twice."""
        large = {"model.mlp": {"hidden": "512", "classes": 30000}, "train": {"max_steps": 1, "batch_size": 3},
                 "optimizer": {"algorithm": "sgd", "momentum": 0}, "eval": None, "eval.synthetic": None}
        whole = self.largest(1, large, {"checkpoint": {"dir": self.dir / "one"}})
        for steps in (1, 2):
            r = self.largest(3, large, SPLIT, {"train": {"max_steps": steps, "batch_size": 1}, "checkpoint": {"dir": self.dir / "ck"}})
            self.check(r < 0.6 * whole, (r, whole))

    def test_check_tells_the_plan(self):
        r = self.run("-c", self.ini("x.ini", MLP, SPLIT), "--nproc", 2, "--check")
        self.equal(r.code, 0, r)
        self.check("output layer" in r.out and "classes 0 to 4 of 11" in r.out, r)

    def test_a_loss_that_is_not_finite(self):
        self.fails(self.run("-c", self.ini("x.ini", MLP, SPLIT, {"optimizer": {"algorithm": "sgd", "lr": 1e38}}), "--nproc", 2), 7,
                   "not finite", "rank")

    def test_a_signal_ends_an_evaluation(self):
        """Which would take minutes, and whose step is the last."""
        p = self.start("-c", self.ini("x.ini", MLP, SPLIT, {"train": {"max_steps": 1}, "eval.synthetic": {"samples": 3000000}, "output": {"log_every": 1}}), "--nproc", 2)
        line = " "
        while line and "step 1/1 " not in line:
            line = p.stderr.readline()
        p.terminate()
        r = self.finish(p)
        self.equal(r.code, 143, r)
        self.check(line and "eval loss" not in r.err, r)

    def test_refusals(self):
        for layers, parts in (
                ({"hook": {"plugin": "bf16"}}, ("[hook] plugin", "split_head", "leave it out")),
                ({"ddp": {"zero": 1}}, ("[ddp] zero", "split_head", "zero = 0")),
                ({"train": {"parallel": "pipeline", "stages": 2}}, ("[train] parallel", "split_head", "parallel = ddp")),
                ({"optimizer": {"ema": 0.9}}, ("[optimizer] ema", "split_head")),
                ({"run": {"restarts": 1}, "checkpoint": {"dir": "ck", "every": 2}}, ("[run] restarts", "split_head")),
                ({"train": {"freeze": "fc2.*"}}, ("split_head", "frozen")),
                ({"eval": {"metrics": "top5"}}, ("split_head", "top5")),
                ({"train": {"global_batch": 5, "even_batches": None, "loss_mean": "batch"}}, ("[train] loss_mean", "split_head", "auto")),
                ({"ddp": {"wire_order": "forward"}}, ("wire_order", "split_head")),
                ({"model.mlp": {"hidden": ""}}, ("split_head", "no layer before it")),
                ({"model.mlp": None, "model": {"plugin": "toy"}, "model.toy": {"net": "relu"}, "data.synthetic": {"classes": 0, "shape": 10}, "eval": None,
                  "eval.synthetic": None}, ("split_head", "not a cross_entropy"))):
            r = self.run("-c", self.ini("x.ini", MLP, SPLIT, layers), "--nproc", 2)
            self.fails(r, 2, "x.ini:", *parts)


if __name__ == "__main__":
    harness.main(SplitHead)
