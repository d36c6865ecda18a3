"""[data] mixup and cutmix in the real program; what they make of pixels and labels is compared with torchvision in
tests/parity/test_augment.c, the loss of mixed labels with torch in tests/parity/test_ops.c."""
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case  # noqa: E402

IMAGES = {"samples": 96, "shape": "1, 28, 28", "classes": 4}
LENET = {"model": {"plugin": "lenet"}, "model.mlp": None, "model.lenet": {"classes": 4}, "data.synthetic": IMAGES,
         "train": {"batch_size": 8, "max_steps": 6, "epochs": 3}}
BOTH = {"data": {"mixup": 0.4, "cutmix": 1}}


class Mixing(Case):
    def losses(self, *layers, **more):
        return [m["loss"] for m in self.metrics(self.train(LENET, *layers, **more).dir, "step")]

    def test_the_same_whoever_makes_the_batches(self):
        plain, mixed = self.losses(name="p"), self.losses(BOTH, name="m")
        self.check(plain != mixed, mixed)
        for name, layer in (("w0", {"loader": {"workers": 0}}), ("w3", {"loader": {"workers": 3, "prefetch": 6}})):
            self.equal(self.losses(BOTH, layer, name=name), mixed)
        dp = self.losses(BOTH, {"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}, "sampler.distributed": {"shuffle": "no"}}, nproc=0, name="dp")
        self.check(all(math.isfinite(v) for v in dp) and len(dp) == 6, dp)
        for name, layer in (("up", {"data": {"mixup": 0.4}}), ("cut", {"data": {"cutmix": 1}})):
            self.check(self.losses(layer, name=name) not in (plain, mixed), name)

    def test_resumes_with_the_same_bits(self):
        ck = {"checkpoint": {"dir": self.dir / "ck", "every": 3}}
        whole = self.train(LENET, BOTH, name="whole").summary["parameter_sha256"]
        self.train(LENET, BOTH, ck, {"train": {"max_steps": 4}}, name="begun")
        self.equal(self.train(LENET, BOTH, ck, name="goes-on").summary["parameter_sha256"], whole)

    def test_the_loss_is_that_of_both_labels(self):
        """Halves of two classes: no net gets below the entropy of the targets, and the evaluation, which mixes nothing, does."""
        (self.dir / "n.net").write_text("[flatten]\n[linear] out = 64\n[relu]\n[linear] out = 4\n[loss] type = cross_entropy\n[metric] type = accuracy\n")
        small = {"samples": 64, "shape": "1, 4, 4", "seed": 3}
        r = self.train(LENET, {"data": {"mixup": 1000}, "train": {"max_steps": 300, "epochs": 80, "eval_every": 0}, "optimizer": {"lr": 0.1},
                               "model": {"plugin": "layers"}, "model.lenet": None, "model.layers": {"net": self.dir / "n.net"},
                               "data.synthetic": small, "eval": {"plugin": "synthetic"}, "eval.synthetic": {**IMAGES, **small}})
        last = [m["loss"] for m in self.metrics(r.dir, "step")][-30:]
        # of neighbours in a batch of 4 classes about one in four is of the same class, whose target has no entropy
        self.check(sum(last) / 30 > 0.3, last)
        self.check(r.summary["eval_loss"] < 0.5 * sum(last) / 30 and r.summary["eval_accuracy"] > 0.95, (r.summary, last))

    def test_an_alpha_next_to_0(self):
        """Beta(0, 0) in the limit: an image or the other one."""
        for key in ("mixup", "cutmix"):
            r = self.train(LENET, {"data": {key: 1e-320}, "train": {"max_steps": 10}}, name=key)
            self.check(0.0 < r.summary["final_loss"] < 10.0, r.summary)

    def test_check_and_refusals(self):
        out = self.run("-c", self.ini("c.ini", LENET, BOTH), "--check").out
        self.check(" -> mixup 0.4 or cutmix 1\n" in out, out)
        toy = {"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu"},
               "data.synthetic": {"shape": 10, "classes": 0, "outputs": 5}, "data": {"mixup": 0.2}}
        self.fails(self.run("-c", self.ini("t.ini", toy), "--check"), 2, 'no field "image"', "mixup")
        (self.dir / "n.net").write_text("[flatten]\n[linear] out = 4\n[loss] type = cross_entropy, weight = 1, 2, 1, 1\n")
        net = {"model": {"plugin": "layers"}, "model.lenet": None, "model.layers": {"net": self.dir / "n.net"}}
        self.fails(self.run("-c", self.ini("w.ini", LENET, BOTH, net), "--check"), 2, "class weights and mixed labels", "n.net:3:")
        self.fails(self.run("-c", self.ini("e.ini", LENET, {"eval": {"plugin": "synthetic", "mixup": 1}}), "--check"), 2, "e.ini:", "mixup")


if __name__ == "__main__":
    sys.exit(harness.main(Mixing))
