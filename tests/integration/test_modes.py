"""Several devices in one process: [train] parallel = dp and model. What they train is what ddp, or one device, trains."""
import subprocess
import sys

import harness
from harness import SRC, Case

DP = {"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}}
DP3 = {"train": {"parallel": "dp", "device": "cpu:0, cpu:1, cpu:2"}}
# Plain SGD, samples in order: the mean of two replicas' means is the mean of the whole batch.
PLAIN = {"optimizer": {"momentum": 0, "lr": 0.01}, "sampler.distributed": {"shuffle": "no"}, "train": {"max_steps": 50, "epochs": 4}}
# Two stages of the toy, and of a small GPT, whose token embedding is of both.
MODEL = {"train": {"parallel": "model", "device": "cpu:0, cpu:1"}}
TOY = {"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu", "place": "net1:0, net2:1"},
       "data.synthetic": {"shape": 10, "classes": 0, "outputs": 5}, "train": {"max_steps": 50, "epochs": 9, "accumulate": 3}}
TEXT = {"files": "/usr/share/common-licenses/GPL-3", "context": 32}
GPT = {"model": {"plugin": "gpt2"}, "model.mlp": None, "data": {"plugin": "tokens"}, "data.synthetic": None, "data.tokens": TEXT,
       "model.gpt2": {"preset": "bytes", "width": 32, "heads": 4, "place": "0:0, 2:1"},
       "train": {"accumulate": 4, "batch_size": 4, "max_steps": 8},
       "optimizer": {"algorithm": "adamw", "lr": 0.0006, "momentum": None}}
ADAMW = {"optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}}


class Modes(Case):
    def alike(self, a, b, steps=None, within=1e-5):
        a, b = self.metrics(a.dir, "step"), self.metrics(b.dir, "step")
        self.equal(len(a), len(b))
        self.check(steps is None or len(a) == steps, (len(a), steps))
        for x, y in zip(a, b, strict=True):
            self.check(abs(x["loss"] - y["loss"]) <= within * abs(y["loss"]), (x, y))

    def buffered(self):
        """The model of buffered_model.c with a batch norm and dropout."""
        plugins = self.dir / "plugins"
        plugins.mkdir(exist_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", f"-I{SRC}/core/include", f"{SRC}/tests/integration/support/buffered_model.c", "-o",
                        plugins / "model_buffered.so", "-lm"], check=True)
        return {"plugins": {"path": plugins}, "model": {"plugin": "buffered"}, "model.mlp": None,
                "model.buffered": {"classes": 4, "norm": "yes", "dropout": 0.2}}

    def test_dp_trains_what_ddp_and_one_device_train(self):
        for name, extra in (("plain", {}), ("accumulate", {"train": {"accumulate": 2, "epochs": 6}})):
            dp = self.train(PLAIN, extra, DP, nproc=1, name=f"{name}-dp")
            self.check("with 2 replicas" in dp.err, dp)
            self.alike(dp, self.train(PLAIN, extra, nproc=2, name=f"{name}-ddp"), 50)
            self.alike(dp, self.train(PLAIN, extra, {"train": {"batch_size": 32}}, nproc=1, name=f"{name}-one"), 50)

    def test_dp_with_an_uneven_last_batch(self):
        """One sample more on a replica, a replica without any, and such a batch at the end of some that are added up."""
        for samples in (609, 577, 603):
            for accumulate in (1, 3):
                extra = {"data.synthetic": {"samples": samples}, "train": {"accumulate": accumulate}}
                dp = self.train(PLAIN, extra, DP3, nproc=1, name="dp")
                self.alike(dp, self.train(PLAIN, extra, {"train": {"batch_size": 48}}, nproc=1, name="one"))

    def test_dp_clips_by_the_norm_of_all_gradients(self):
        extra = {"optimizer": {"clip_norm": 0.1, "schedule": "cosine", "warmup_steps": 5}}
        dp = self.train(PLAIN, extra, DP, nproc=1, name="dp")
        one = self.train(PLAIN, extra, {"train": {"batch_size": 32}}, nproc=1, name="one")
        self.alike(dp, one)
        for x, y in zip(self.metrics(dp.dir, "step"), self.metrics(one.dir, "step"), strict=True):
            self.check(abs(x["grad_norm"] / y["grad_norm"] - 1) < 1e-4 and x["grad_norm"] > 0.1, (x, y))

    def test_dp_same_bits_every_time(self):
        a, b = (self.train(ADAMW, DP3, {"train": {"threads": 2}}, nproc=1, name=name) for name in "ab")
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])

    def test_dp_stopped_and_resumed_is_the_uninterrupted_run(self):
        model = self.buffered()

        def run(folder, *layers):
            return self.train(ADAMW, model, DP, {"checkpoint": {"dir": self.dir / folder}}, *layers, nproc=1, name=f"{folder}.ini")

        whole = run("whole")
        for steps in (7, 20, 31):
            run(f"part{steps}", {"train": {"max_steps": steps}})
            r = run(f"part{steps}")
            self.check("resuming from" in r.err, r)
            for key in ("parameter_sha256", "buffer_sha256", "steps"):
                self.equal(r.summary[key], whole.summary[key])

    def test_dp_and_ddp_go_on_from_each_others_checkpoints(self):
        """In the middle of an epoch too: two replicas stand where two ranks do."""
        for first, second in ((DP, {}), ({}, DP)):
            ck = {"checkpoint": {"dir": self.dir / ("dp" if first else "ddp")}, "optimizer": {"momentum": 0.9}}
            nproc = {True: 1, False: 2}
            self.train(PLAIN, ck, first, {"train": {"max_steps": 13}}, nproc=nproc[bool(first)], name="x.ini")
            r = self.train(PLAIN, ck, second, nproc=nproc[bool(second)], name="x.ini")
            self.check("resuming from" in r.err and "step 13" in r.err, r)
            whole = self.train(PLAIN, {"optimizer": {"momentum": 0.9}}, nproc=2, name="whole.ini")
            self.check(abs(r.summary["final_loss"] / whole.summary["final_loss"] - 1) < 1e-5, (r.summary, whole.summary))

    def test_dp_evaluates_with_the_buffers_of_replica_0(self):
        """As the command eval does, which is given them alone."""
        extra = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 203, "shape": 12, "classes": 4, "seed": 1},
                 "checkpoint": {"dir": self.dir / "ck"}}
        r = self.train(extra, self.buffered(), DP3, nproc=1)
        alone = self.run("eval", "-c", self.ini("one.ini", extra, self.buffered(), {"train": {"batch_size": 203}}))
        both = self.run("eval", "-c", self.ini("dp.ini", extra, self.buffered(), DP3))
        for x in (alone, both):
            self.equal(x.code, 0, x)
            words = x.out.replace(",", "").split()
            self.check(abs(float(words[2]) / r.summary["eval_loss"] - 1) < 1e-6, (x, r.summary))
            self.check(abs(float(words[4]) - r.summary["eval_accuracy"]) < 1e-6, (x, r.summary))

    def test_dp_replicas_draw_their_own_random_numbers(self):
        """With dropout alone two replicas are two ranks: the streams are those of the ranks, so the same seed drops the same."""
        same = {"data.synthetic": {"samples": 2}, "train": {"batch_size": 1, "epochs": 1}, "sampler.distributed": {"shuffle": "no"},
                "optimizer": {"momentum": 0}}
        model = self.buffered()
        model["model.buffered"] = {"classes": 4, "dropout": 0.5}
        dp = self.train(same, model, DP, nproc=1, name="dp")
        ddp = self.train(same, model, nproc=2, name="ddp")
        self.equal(dp.summary["parameter_sha256"], ddp.summary["parameter_sha256"])

    def test_dp_compares_and_profiles(self):
        r = self.train(DP, {"train": {"check_replicas_every": 1}}, nproc=1)
        p = self.train(DP, nproc=1, args=["--profile"], name="p.ini")
        self.equal(p.summary["parameter_sha256"], r.summary["parameter_sha256"])

    def test_dp_check_tells_the_plan(self):
        r = self.run("-c", self.ini("x.ini", DP), "--check")
        self.equal(r.code, 0, r)
        self.check("2 replicas on cpu:0, cpu:1" in r.out and "x 2 replicas = 32" in r.out and "memory a replica" in r.out, r)

    def test_dp_ends_where_the_loss_is_not_finite(self):
        r = self.run("-c", self.ini("x.ini", DP, {"optimizer": {"lr": 1e30}}))
        self.fails(r, 7, "not finite")

    def test_model_trains_what_one_device_trains(self):
        clipped = {"optimizer": {"clip_norm": 0.5}, "model.gpt2": {"dropout": 0.1}}
        three = {"train": {"device": "cpu:0, cpu:1, cpu:2"}, "model.gpt2": {"place": "0:0, 1:1, 2:2"}}
        for name, extra, placed in (("toy", TOY, {}), ("gpt", GPT, {}), ("clip", harness.merged(GPT, clipped), {}), ("three", GPT, three),
                                    ("few", harness.merged(GPT, {"train": {"accumulate": 1}}), three)):
            one = self.train(extra, nproc=1, name=f"{name}-one")
            two = self.train(extra, MODEL, placed, nproc=1, name=f"{name}-two")
            self.check("stages" in two.err, two)
            self.alike(two, one, extra["train"]["max_steps"], within=1e-6)
            for x, y in zip(self.metrics(two.dir, "step"), self.metrics(one.dir, "step"), strict=True):
                self.check(name != "clip" or abs(x["grad_norm"] / y["grad_norm"] - 1) < 1e-3, (x, y))

    def test_model_with_an_uneven_last_batch(self):
        extra = harness.merged(TOY, {"data.synthetic": {"samples": 337}, "train": {"accumulate": 4}})
        self.alike(self.train(extra, MODEL, nproc=1, name="two"), self.train(extra, nproc=1, name="one"), 50, within=1e-6)

    def test_model_same_bits_every_time(self):
        a, b = (self.train(GPT, MODEL, {"train": {"threads": 2, "max_steps": 8}}, nproc=1, name=name) for name in "ab")
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])

    def test_model_stopped_and_resumed_is_the_uninterrupted_run(self):
        extra = harness.merged(GPT, {"model.gpt2": {"dropout": 0.1}, "train": {"max_steps": 12}})
        whole = self.train(extra, MODEL, {"checkpoint": {"dir": self.dir / "whole"}}, nproc=1, name="whole.ini")
        ck = {"checkpoint": {"dir": self.dir / "part"}}
        self.train(extra, MODEL, ck, {"train": {"max_steps": 7}}, nproc=1, name="x.ini")
        r = self.train(extra, MODEL, ck, nproc=1, name="x.ini")
        self.check("resuming from" in r.err, r)
        self.equal(r.summary["parameter_sha256"], whole.summary["parameter_sha256"])

    def test_model_and_one_device_go_on_from_each_others_checkpoints(self):
        whole = self.train(GPT, nproc=1, name="whole.ini")
        for first, second in ((MODEL, {}), ({}, MODEL)):
            ck = {"checkpoint": {"dir": self.dir / ("model" if first else "one")}}
            self.train(GPT, ck, first, {"train": {"max_steps": 3}}, nproc=1, name="x.ini")
            r = self.train(GPT, ck, second, nproc=1, name="x.ini")
            self.check("resuming from" in r.err and "step 3" in r.err, r)
            self.check(abs(r.summary["final_loss"] / whole.summary["final_loss"] - 1) < 1e-6, (r.summary, whole.summary))

    def test_model_evaluates(self):
        extra = {"eval": {"plugin": "tokens"}, "eval.tokens": {**TEXT, "files": "/usr/share/common-licenses/GPL-2"}}
        extra = harness.merged(GPT, extra, {"train": {"max_steps": 5}, "checkpoint": {"dir": self.dir / "ck"}})
        r = self.train(extra, MODEL, nproc=1, name="x.ini")
        e = self.run("eval", "-c", self.dir / "x.ini")
        self.equal(e.code, 0, e)
        self.check(abs(float(e.out.split()[2].rstrip(",")) / r.summary["eval_loss"] - 1) < 1e-7, (e, r.summary))
        g = self.run("generate", "-c", self.dir / "x.ini", "--prompt", "The", "--tokens", 3)
        self.equal(g.code, 0, g)

    def test_model_a_failing_stage_ends_the_run_with_its_words(self):
        """A sample that stage 0 cannot read, a token that it has no row for, a loss that is not finite on the last one."""
        text = self.dir / "text"
        text.write_bytes(bytes(range(128)) * 40 + b"\xff" + bytes(range(128)) * 40)
        small = harness.merged(GPT, {"model.gpt2": {"vocabulary": 128}, "data.tokens": {"files": text}})
        r = self.run("-c", self.ini("x.ini", small, MODEL))
        self.fails(r, 10, "255")
        r = self.run("-c", self.ini("y.ini", GPT, MODEL, {"optimizer": {"lr": 1e30}}))
        self.fails(r, 7, "not finite")

    def test_model_check_tells_the_plan(self):
        r = self.run("-c", self.ini("x.ini", GPT, MODEL), "--check")
        self.equal(r.code, 0, r)
        for part in ("2 stages on cpu:0, cpu:1", "stage 0", "stage 1", "sends"):
            self.check(part in r.out, r)

    def test_model_refusals(self):
        def gpt(place, devices="cpu:0, cpu:1"):
            return {"model.gpt2": {"place": place}, "train": {"device": devices}}

        def toy(place):
            return {**TOY, "model.toy": {"net": "relu", "place": place}}

        for layers, args, parts in (
                ((GPT, MODEL), ["--nproc", 2], ("parallel = model", "x.ini:", "2 ranks")),
                ((GPT, MODEL, {"train": {"device": "cpu"}}), [], ("parallel = model", "x.ini:", "device = cpu:0, cpu:1")),
                ((GPT, MODEL, {"train": {"device": "cpu:1,cpu:1"}}), [], ("cpu:1 twice", "x.ini:")),
                ((MODEL,), [], ('model "mlp" does not say', "x.ini:", "place")),
                ((GPT, MODEL, {"model.gpt2": {"place": ""}}), [], ('model "gpt2" does not say', "x.ini:")),
                ((GPT, MODEL, gpt("0:0, 2:1", "cpu:0, cpu:1, cpu:2")), [], ("no layer on device 2 (cpu:2)", "x.ini:")),
                ((GPT, MODEL, gpt("0:1")), [], ("no layer on device 0 (cpu:0)", "x.ini:")),
                ((GPT, MODEL, gpt("0:0, 2:2")), [], ("devices 0 to 1", "device 2", "x.ini:")),
                ((GPT, MODEL, gpt("0:0, 4:1")), [], ('"4:1" names a block that is not there', "0 to 3", "gpt2")),
                ((GPT, MODEL, gpt("0:0, h2:1")), [], ('"h2:1" is no block', "gpt2")),
                ((GPT, MODEL, gpt("0:1, 2:0")), [], ("device 0 and reads", "later layers need", "h.2.")),
                ((GPT, MODEL, gpt("0:0, 2:1, 1:1")), [], ('"1:1" goes backwards', "block 2")),
                ((GPT, MODEL, gpt("1:0, 2:1")), [], ('"1:0" is the first item', "0:0")),
                ((toy("net1:0, net3:1"), MODEL), [], ('"net3:1" is no layer', "net1 and net2")),
                ((toy("net1:1, net2:0"), MODEL), [], ("later layers need", "net2")),
                ((toy("net1:0, net2:"), MODEL), [], ('"net2:" is no layer', "net1 and net2")),
                ((GPT, MODEL, {"hook": {"plugin": "bf16"}}), [], ("[hook] plugin = bf16", "x.ini:"))):
            for more in ([], ["--check"]):
                self.fails(self.run("-c", self.ini("x.ini", *layers), *args, *more), 2, *parts)
        self.fails(self.run("-c", self.ini("x.ini", GPT, MODEL), "--profile"), 2, "--profile", "parallel = model")

    def test_refusals(self):
        for layers, args, parts in (
                ((DP,), ["--nproc", 2], ("parallel = dp", "x.ini:", "2 ranks", "parallel = ddp")),
                (({"train": {"parallel": "dp", "device": "cpu:0,cpu:0"}},), [], ("cpu:0 twice", "x.ini:", "cpu:0, cpu:1")),
                (({"train": {"parallel": "dp", "device": "cpu, cpu:0"}},), [], ("cpu:0 twice", "x.ini:")),
                (({"train": {"device": "cpu:0,cpu:1"}},), [], ("2 devices", "x.ini:", "parallel = dp", "--nproc 2")),
                (({"train": {"parallel": "dp"}},), [], ("parallel = dp", "x.ini:", "device = cpu:0, cpu:1")),
                (({"train": {"parallel": "dp", "device": "cpu:0, cuda:1"}},), [], ('"cpu" and "cuda"', "x.ini:")),
                (({"train": {"parallel": "dp", "device": "cpu:0, cpu:x"}},), [], ("cpu:x is not a device", "x.ini:")),
                ((DP, {"hook": {"plugin": "bf16"}}), [], ("[hook] plugin = bf16", "x.ini:", "parallel = ddp")),
                ((DP, {"train": {"global_batch": 33}}), [], ("33", "each device counts as a rank"))):
            for more in ([], ["--check"]):
                r = self.run("-c", self.ini("x.ini", *layers), *args, *more)
                self.fails(r, 2, *parts)


if __name__ == "__main__":
    sys.exit(harness.main(Modes))
