"""The engine's loss curves of a convolutional net, a ResNet and a GPT against PyTorch's stored ones (make_model_curves.py),
from the same first parameters (test_models.c compares these to the last bit), with the same batches, 100 steps.

All steps are within 1e-5 relative, or 3 times the largest difference that PyTorch has from itself where another BLAS kernel,
number of threads or instruction set rounds differently. For the resnet that says little: its runs part after 4 to 15 steps
whoever makes them, a change of 6e-8 in PyTorch's own first parameters is enough. The first 3 steps of each run are therefore
within 2e-6, or 3 times what PyTorch is from itself in these."""
import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402
from harness import FASHION, SRC, Case, Skip, long_case, seldom  # noqa: E402

STORED = json.loads((SRC / "tests/parity/vectors/model_curves.json").read_text())
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
EARLY = 3
TORCH_PYTHON = "/usr/bin/python3"

IMAGES = {"data": {"plugin": "idx"}, "data.idx": {"split": "train", "mean": 0.286, "std": 0.353}}
SGD = {"algorithm": "sgd", "momentum": 0}
TWO_CONV = {**IMAGES, "model": {"plugin": "lenet"}, "model.lenet": {"variant": "two_conv", "dropout1": 0, "dropout2": 0},
            "train": {"batch_size": 32}, "optimizer": {**SGD, "lr": 0.01}}
RESNET = {**IMAGES, "model": {"plugin": "resnet"}, "model.resnet": {"stem": "cifar", "width": 8, "classes": 10},
          "train": {"batch_size": 16}, "optimizer": {**SGD, "lr": 0.001}}
GPT2 = {"model": {"plugin": "gpt2"}, "model.gpt2": {"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 256},
        "data": {"plugin": "tokens"}, "data.tokens": {"files": TEXT, "context": 64}, "train": {"batch_size": 8},
        "optimizer": {"algorithm": "adamw", "lr": 0.0003, "betas": "0.9, 0.95", "weight_decay": 0.1, "momentum": None}}
NOT_BASE = {"model.mlp": None, "data.synthetic": None}


class ModelCurve(Case):
    environ = {}

    def curve(self, name, needed, config):
        if not needed.exists():
            raise Skip(f"{needed} is not there: install its package")
        ref = STORED[name]
        common = {"train": {"seed": ref["seed"], "epochs": 100, "max_steps": len(ref["losses"])}}
        r = self.train(NOT_BASE, config, common, nproc=1)
        ours = [m["loss"] for m in self.metrics(r.dir, "step")]
        self.equal(len(ours), len(ref["losses"]))
        apart = [abs(a - b) / abs(b) for a, b in zip(ours, ref["losses"], strict=True)]
        for steps, least, own in ((EARLY, 2e-6, ref["early_difference"]), (len(apart), 1e-5, ref["self_difference"])):
            worst, bound = max(apart[:steps]), max(least, 3 * own)
            print(f"# {name}, {steps} steps: the engine from PyTorch {worst:.1e}, PyTorch from itself {own:.1e}, bound {bound:.1e}")
            self.check(worst <= bound, (steps, worst))

    @seldom
    def test_two_conv(self):
        self.curve("two_conv", FASHION, TWO_CONV)

    @seldom
    def test_resnet(self):
        self.curve("resnet", FASHION, RESNET)

    def test_gpt2(self):
        self.curve("gpt2", TEXT, GPT2)

    @long_case
    def test_evaluation_of_gpt2(self):
        """The same weights, in PyTorch and float64, on windows that are no multiple of the batch, for several numbers of ranks. The
        mean of the batches' means, and a softmax over padding, are far enough off that this would find either."""
        if subprocess.run([TORCH_PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
            raise Skip("python3-torch is not installed")
        if not TEXT.exists():
            raise Skip(f"{TEXT} is not there: install its package")
        sizes = {**GPT2["model.gpt2"], "padded_vocabulary": 384}
        held_out = {"model.gpt2": sizes, "data.tokens": {"to": 0.8}, "eval": {"plugin": "tokens"}, "checkpoint": {"dir": self.dir / "ck"},
                    "eval.tokens": {"files": TEXT, "context": 64, "from": 0.8}, "train": {"max_steps": 20, "epochs": 100}}
        self.train(NOT_BASE, GPT2, held_out, nproc=1)
        weights = next((self.dir / "ck").glob("step-*")) / "model.safetensors"
        r = subprocess.run([TORCH_PYTHON, str(SRC / "tests/parity/torch_eval.py"), str(weights), json.dumps(sizes), "--data", str(TEXT),
                            "--context", "64", "--from", "0.8", "--batch", "8"], capture_output=True, text=True)
        self.equal(r.returncode, 0, r.stderr)
        theirs = json.loads(r.stdout)
        self.check(theirs["samples"] % 8 != 0 and theirs["samples"] > 100, theirs)
        for name in ("batches", "padding"):
            self.check(abs(theirs[name] / theirs["loss"] - 1) > 1e-4, (name, theirs))
        for nproc, batch in ((1, 8), (1, 5), (2, 8), (3, 4)):
            e = self.run("eval", "-c", self.dir / "run.ini", "--nproc", nproc, "--set", f"train.batch_size={batch}")
            self.equal(e.code, 0, e)
            loss, samples = re.search(r"eval loss (\S+), (\d+) samples", e.out).groups()
            apart = abs(float(loss) / theirs["loss"] - 1)
            print(f"# {nproc} ranks x {batch}: {loss}, PyTorch in float64 {theirs['loss']:.9g}, relative difference {apart:.1e}")
            self.check(apart < 2e-7 and int(samples) == theirs["samples"], (loss, theirs))


if __name__ == "__main__":
    sys.exit(harness.main(ModelCurve))
