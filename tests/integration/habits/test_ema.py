"""[optimizer] ema: an average of the parameters, as torch's AveragedModel; evaluations use it, checkpoints hold it."""
import os
import pathlib
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
from test_groups import STORED, Groups as OfTorch, tensors  # noqa: E402

EMA = {"optimizer": {"algorithm": "adamw", "lr": 0.01, "momentum": None, "ema": 0.95}, "eval": {"plugin": "synthetic"},
       "eval.synthetic": {"samples": 160, "shape": 12, "classes": 4, "seed": 1}, "train": {"epochs": 2},
       "ddp": {"bucket_size": "1KiB", "first_bucket_size": "256"}}


class Ema(harness.Case):
    torch_layers, compare = OfTorch.torch_layers, OfTorch.compare

    def saves(self, folder, **more):
        return {"checkpoint": {"dir": self.dir / folder, "every": 7, "keep": 0, **more}}

    def ema(self, folder, step=40):
        return (self.dir / folder / f"step-{step:08}" / "ema.safetensors").read_bytes()

    def test_as_torch(self):
        for name, want in STORED["runs"].items():
            for ranks in (0, 2):
                r = self.train(*self.torch_layers(name), {"optimizer": {"ema": STORED["decay"]}}, nproc=ranks)
                self.compare(tensors(self.dir / "ck/step-00000100/ema.safetensors"), want["ema"], f"{name}, {ranks} ranks")
                self.compare(tensors(self.dir / "ck/step-00000100/model.safetensors"), want["parameters"], f"{name}, {ranks} ranks")
                self.check(abs(r.summary["eval_loss"] - want["eval_loss"]) <= 1e-6, (r.summary["eval_loss"], want["eval_loss"]))

    def test_all_ways_have_the_same_bits(self):
        whole = {n: self.train(EMA, way, self.saves(f"{n}.ck"), name=n) for n, way in OfTorch.WAYS.items()}
        want = self.ema("direct.ck")
        for name, r in whole.items():
            self.equal(self.ema(f"{name}.ck"), want, name)
            self.equal(r.summary["eval_loss"], whole["direct"].summary["eval_loss"], name)
        plain = self.train(EMA, {"optimizer": {"ema": 0}}, self.saves("plain"), name="plain.ini")
        self.equal(plain.summary["parameter_sha256"], whole["direct"].summary["parameter_sha256"])
        self.check(plain.summary["eval_loss"] != whole["direct"].summary["eval_loss"], plain.summary)
        self.check(not (self.dir / "plain/step-00000040/ema.safetensors").exists())
        own = self.train(EMA, {"eval": {"weights": "model"}}, name="own")
        self.equal(own.summary["eval_loss"], plain.summary["eval_loss"])

    def test_replicas_and_stages(self):
        for layers in ([{"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}}],
                       [{"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu", "place": "net1:0, net2:1"},
                         "data.synthetic": {"shape": 10, "classes": 0, "outputs": 5}, "eval.synthetic": {"shape": 10, "classes": 0, "outputs": 5},
                         "train": {"parallel": "model", "device": "cpu:0, cpu:1"}}]):
            r = self.train(EMA, *layers, self.saves("ck", resume="never"), nproc=0)
            loss = r.summary["eval_loss"]
            for path, same in (("ema", True), ("model", False)):
                # one device evaluates the file
                e = self.run("eval", "-c", self.ini("e.ini", EMA, *layers, {"train": {"parallel": "ddp", "device": "cpu"}}),
                             "--checkpoint", self.dir / f"ck/step-{r.summary['steps']:08}/{path}.safetensors")
                self.equal(e.code, 0, e)
                self.equal(abs(float(e.out.split()[2].rstrip(",")) - loss) <= 1e-6 * loss, same, e)

    def test_a_resume_has_the_same_bits(self):
        whole = self.train(EMA, self.saves("whole"), name="whole.ini")
        for step, nproc, way in ((7, 2, {}), (21, 2, {"ddp": {"shard_update": "no"}}), (35, 2, {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}})):
            name = f"from{step}"
            shutil.copytree(self.dir / "whole" / f"step-{step:08}", self.dir / name / f"step-{step:08}")
            r = self.train(EMA, way, self.saves(name), nproc=nproc, name=f"{name}.ini")
            self.equal(self.ema(name), self.ema("whole"), step)
            self.equal(r.summary["eval_loss"], whole.summary["eval_loss"], step)
        off = self.train(EMA, {"optimizer": {"ema": 0}, "train": {"epochs": 3}}, self.saves("whole"), name="off.ini")
        self.check("average of the parameters, which is left out" in off.err, off)
        on = self.train(EMA, {"train": {"epochs": 4}}, self.saves("whole"), name="on.ini")
        self.check("has no average of the parameters: [optimizer] ema begins with the next update" in on.err, on)

    def test_eval_and_check(self):
        r = self.train(EMA, self.saves("ck"))
        path = self.dir / "run.ini"
        e = self.run("eval", "-c", path)
        self.check(f"eval loss {r.summary['eval_loss']:.9g}," in e.out and e.out.rstrip().endswith("step-00000040/ema.safetensors"), e)
        m = self.run("eval", "-c", path, "--set", "eval.weights=model")
        self.check(m.out.rstrip().endswith("step-00000040") and m.out.split()[2] != e.out.split()[2], m)
        self.check("average 3.4 KiB, " in self.run("-c", path, "--check").out, self.run("-c", path, "--check"))
        self.equal(self.run("checkpoint", "verify", self.dir / "ck").code, 0)
        self.fails(self.run("-c", path, "--set", "optimizer.ema=1", "--check"), 2, "[optimizer] ema = 1", "as in 0.999")
        again = self.train(EMA, {"checkpoint": {"init_from": self.dir / "ck/step-00000040/ema.safetensors"}}, name="again")
        self.equal(again.summary["steps"], 40)

    def test_the_loss_of_a_rank(self):
        """The others go on from the memory of one that has the average, or from a checkpoint."""
        slow = {"train": {"epochs": 40}, "run": {"restarts": 3, "restart_delay": "0s"}, "group": {"backend": "gloo-tcp"},
                "output": {"log_every": 1}}
        whole = self.train(EMA, {"train": {"epochs": 40}}, self.saves("whole", every=0), name="whole.ini")
        p = self.start("-c", self.ini("lost.ini", EMA, slow, self.saves("lost", every=50), {"output": {"dir": self.dir / "lost.out"}}), "--nproc", 2)
        self.trained_a_while(p)
        os.kill(self.children(p, 2)[1], signal.SIGKILL)
        r = self.finish(p)
        self.equal(r.code, 0, r)
        end = whole.summary["steps"]
        self.equal(self.ema("lost", end), self.ema("whole", end), r)


if __name__ == "__main__":
    sys.exit(harness.main(Ema))
