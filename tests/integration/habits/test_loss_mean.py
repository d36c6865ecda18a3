"""[train] loss_mean: with labels that are ignored, the loss of a step is the mean over all of its labels that count, however they are
spread over micro-batches and ranks, as with transformers' num_items_in_batch."""
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SRC, Case  # noqa: E402
from test_groups import tensors, write_npy  # noqa: E402

STORED = json.loads((SRC / "tests/parity/vectors/loss_mean.json").read_text())
NET = "[input] field = input\n[embedding] count = 11, features = 6\n[linear] out = 9\n[gelu]\n[layer_norm]\n[linear] out = 11\n[loss] type = cross_entropy, field = target%s\n"
SAMPLES, STEPS = len(STORED["train"][0]), len(STORED["runs"]["sgd"]["losses"])


class LossMean(Case):
    def source(self, name, data):
        out = {}
        for key, rows in zip(("input", "label"), data, strict=True):
            out[key] = self.dir / f"{name}-{key}.npy"
            write_npy(out[key], "<i8", (len(rows), len(rows[0])), b"".join(struct.pack(f"<{len(r)}q", *r) for r in rows))
        return out

    def layers(self, name="sgd", accumulate=1, ranks=1, weight="", **train):
        (self.dir / "n.net").write_text(NET % (f", weight = {weight}" if weight else ""))
        return [{"train": {"batch_size": None, "global_batch": SAMPLES, "accumulate": accumulate, "epochs": STEPS, "eval_every": 0,
                           "seed": STORED["seed"], **train},
                 "data": {"plugin": "npy"}, "data.npy": self.source("train", STORED["train"]), "data.synthetic": None,
                 "eval": {"plugin": "npy"}, "eval.npy": self.source("eval", STORED["eval"]),
                 "model": {"plugin": "layers"}, "model.mlp": None, "model.layers": {"net": self.dir / "n.net"},
                 "checkpoint": {"dir": self.dir / "ck", "resume": "never"},
                 "optimizer": {"algorithm": name, "momentum": None, **STORED["optimizers"][name]}}]

    def compare(self, r, want, what, tolerance=1e-6, norms=False):
        steps = self.metrics(r.dir, "step")
        worst = max(abs(m["loss"] - b) / max(abs(b), 1) for m, b in zip(steps, want["losses"], strict=True))
        last = max(abs(a - b) for n, values in want["parameters"].items()
                   for a, b in zip(tensors(self.dir / f"ck/step-{STEPS:08d}/model.safetensors")[n], values, strict=True))
        evaluated = abs(r.summary["eval_loss"] - want["eval_loss"]) / max(want["eval_loss"], 1)
        print(f"# {what}: largest difference of a loss {worst:.1e}, of a parameter {last:.1e}, of the evaluation {evaluated:.1e}")
        self.check(max(worst, last, evaluated) <= tolerance, (what, worst, last, evaluated))
        if norms:
            worst = max(abs(m["grad_norm"] - b) / b for m, b in zip(steps, want["grad_norms"], strict=True))
            self.check(worst <= tolerance * 10, (what, worst))

    def test_as_transformers(self):
        """Accumulate 1, 2 and 4, one rank and two."""
        for name in STORED["runs"]:
            for accumulate in (1, 2, 4):
                for ranks in (0, 2):
                    r = self.train(*self.layers(name, accumulate), nproc=ranks)
                    self.compare(r, STORED["runs"][name], f"{name}, accumulate {accumulate}, {max(ranks, 1)} ranks")

    WAYS = {"all_reduce": {"group": {"backend": "shm"}, "ddp": {"shard_update": "no"}},
            "overlap": {"group": {"backend": "shm"}, "ddp": {"overlap": "yes"}},
            "gloo": {"group": {"backend": "gloo-tcp"}},
            "zero": {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}},
            "shm-zero": {"group": {"backend": "shm"}, "ddp": {"zero": 1}},
            "skip": {"train": {"non_finite": "skip"}},
            "clip": {"group": {"backend": "shm"}, "optimizer": {"clip_norm": 1e9}},
            "clip-gloo": {"group": {"backend": "gloo-tcp"}, "optimizer": {"clip_norm": 1e9}}}
    SMALL = {"ddp": {"bucket_size": "256", "first_bucket_size": "128"}}  # several buckets, of which early ones wait for the last

    def test_every_way_of_an_update(self):
        for name, way in self.WAYS.items():
            r = self.train(*self.layers(accumulate=2), self.SMALL, way, nproc=2)
            self.compare(r, STORED["runs"]["sgd"], name, norms="clip" in name)
        for accumulate in (1, 2):
            r = self.train(*self.layers(accumulate=accumulate, parallel="dp", device="cpu:0, cpu:1"), nproc=0)
            self.compare(r, STORED["runs"]["sgd"], f"dp, accumulate {accumulate}")
        r = self.train(*self.layers(accumulate=2), {"ddp": {"shard_update": "no"}}, nproc=0)
        self.compare(r, STORED["runs"]["sgd"], "one rank, no shards")

    def test_stages(self):
        """A language model on one device, on two as stages, and in parts of micro-batches."""
        gpt = [{"model": {"plugin": "gpt2"}, "model.layers": None, "train": {"epochs": 4},
                "model.gpt2": {"preset": "bytes", "vocabulary": STORED["vocabulary"], "context": 10, "layers": 2, "width": 16, "heads": 2}}]
        stages = {"model.gpt2": {"place": "0:0, 1:1"}, "train": {"parallel": "model", "device": "cpu:0, cpu:1"}}
        runs = [[m["loss"] for m in self.metrics(self.train(*self.layers(accumulate=n), *gpt, layer, nproc=0, name=f"{i}").dir, "step")]
                for i, (n, layer) in enumerate(((1, {}), (1, stages), (4, stages), (4, {"model.gpt2": {"place": "0:0, 1:1"}})))]
        for other in runs[1:]:
            self.check(all(abs(a - b) <= 1e-6 * a for a, b in zip(runs[0], other, strict=True)), runs)
        self.check(runs[0][0] > 2.0 and runs[0][-1] != runs[0][0], runs)

    def test_three_ranks_whose_parts_differ(self):
        """Micro-batches of 3, and of 2 at an epoch's end: the ways agree."""
        runs = [self.train(*self.layers(accumulate=3), {"train": {"global_batch": 27, "epochs": 5}}, way, nproc=3, name=f"{n}").summary
                for n, way in enumerate((self.WAYS["gloo"], self.WAYS["zero"], {"group": {"backend": "shm"}}))]
        self.equal(len({r["parameter_sha256"] for r in runs}), 1, runs)

    def test_class_weights(self):
        """The divisor is the sum of the weights of the labels that count."""
        for accumulate, ranks in ((1, 0), (4, 2)):
            r = self.train(*self.layers(accumulate=accumulate, weight=", ".join(map(str, STORED["weight"]))), nproc=ranks)
            self.compare(r, STORED["weighted"], f"weights, accumulate {accumulate}, {max(ranks, 1)} ranks")

    def close_to_exact(self, layer):
        """Close to the exact run, as with a mean of means: what is compressed is the sum of a rank, the division comes after it."""
        exact = STORED["runs"]["sgd"]["losses"]
        r = self.train(*self.layers(accumulate=2), layer, nproc=2)
        first = self.metrics(r.dir, "step")[0]["loss"]
        self.check(abs(first - exact[0]) <= 0.02 * exact[0], (layer, first, exact[0]))
        self.check(abs(r.summary["final_loss"] - exact[-1]) <= 0.15, (layer, r.summary["final_loss"], exact[-1]))

    def test_hooks(self):
        for name in ("bf16", "int8", "powersgd"):
            self.close_to_exact({"hook": {"plugin": name}})

    def test_bf16(self):
        self.close_to_exact({"train": {"precision": "bf16"}})

    def test_auto_and_batch(self):
        """Data without ignored labels keep the mean of means, with the same bits; batch keeps it for others."""
        plain = [self.train({"train": {"loss_mean": v, "accumulate": 2}}, name=v).summary["parameter_sha256"] for v in ("auto", "batch")]
        self.equal(plain[0], plain[1])
        token = self.train({"train": {"loss_mean": "token", "accumulate": 2, "batch_size": 8}}, name="token")
        batch = self.train({"train": {"accumulate": 2, "batch_size": 8}}, name="same")
        for a, b in zip(self.metrics(token.dir, "step"), self.metrics(batch.dir, "step"), strict=True):
            self.check(abs(a["loss"] - b["loss"]) <= 1e-5 * abs(b["loss"]), (a, b))
        one, two = (self.train(*self.layers(accumulate=n, loss_mean="batch"), name=f"b{n}").summary["final_loss"] for n in (1, 4))
        self.check(abs(one - two) > 1e-3, (one, two))
        out = self.run("-c", self.ini("c.ini", *self.layers()), "--check").out
        self.check("loss                  the mean over all labels of a step that count\n" in out, out)

    def test_a_loss_without_labels(self):
        toy = {"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu"}, "data.synthetic": {"shape": 10, "classes": 0, "outputs": 5},
               "train": {"loss_mean": "token"}}
        r = self.run("-c", self.ini("t.ini", toy), "--check")
        self.fails(r, 2, "t.ini:", "loss_mean = token", 'that of model "toy" is not; write loss_mean = batch')

    def test_a_step_in_which_nothing_counts(self):
        nothing = (STORED["train"][0], [[-100] * len(r) for r in STORED["train"][1]][:-1] + [STORED["train"][1][-1]])
        for way in ("all_reduce", "zero", "clip"):
            layers = self.layers()
            layers[0]["data.npy"] = self.source("none", nothing)
            r = self.run("-c", self.ini("n.ini", *layers, self.WAYS[way], {"train": {"global_batch": 8, "epochs": 1}, "sampler.distributed": {"shuffle": "no"}}),
                         "--nproc", "2")
            self.fails(r, 7, "loss (no label of the step counts)", "step 1", "all its labels are ignored")

    def test_an_evaluation_in_which_nothing_counts(self):
        """By itself it is an error; training goes on, and says so."""
        layers = self.layers(epochs=2, eval_every=1)
        layers[0]["eval.npy"] = self.source("none", (STORED["eval"][0], [[-100] * len(r) for r in STORED["eval"][1]]))
        samples = len(STORED["eval"][0])
        r = self.train(*layers, nproc=2)
        self.check(f"no label of its {samples} samples counts" in r.err and "look at the data of [eval]" in r.err and "-nan" not in r.err, r)
        self.equal([m["eval_loss"] for m in self.metrics(r.dir, "eval")], [None, None])
        self.equal(sum("no label" in m["text"] for m in self.metrics(r.dir, "warning")), 2)
        for nproc in ("1", "2"):
            self.fails(self.run("eval", "-c", self.dir / "run.ini", "--nproc", nproc), 10, f"no label of its {samples} samples counts", "[eval]", "ignored")

    def test_evaluation_alone(self):
        r = self.train(*self.layers())
        alone = self.run("eval", "-c", self.dir / "run.ini", "--nproc", "2")
        shown = float(alone.out.split()[2].rstrip(","))
        self.check(abs(shown - r.summary["eval_loss"]) <= 1e-6, (r.summary["eval_loss"], alone.out))


if __name__ == "__main__":
    sys.exit(harness.main(LossMean))
