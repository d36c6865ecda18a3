"""Training with the real program: two to four ranks, one INI or one for each node, every model, the files that a run leaves."""
import json
import pathlib
import re
import sys

import harness
from harness import Case, FASHION, Skip


class Train(Case):
    def test_more_buckets_than_the_queue_holds(self):
        many = {"model.mlp": {"hidden": ", ".join(["3"] * 140)}, "ddp": {"bucket_size": 1, "first_bucket_size": 1},
                "train": {"epochs": 1, "max_steps": 3}}
        hashes = [self.train(many, {"ddp": {"overlap": overlap}}, name=overlap).summary["parameter_sha256"]
                  for overlap in ("yes", "no")]
        self.equal(hashes[0], hashes[1])

    def test_two_ranks_learn(self):
        r = self.train({"train": {"epochs": 8}, "eval": {"plugin": "synthetic"},
                        "eval.synthetic": {"samples": 203, "shape": 12, "classes": 4, "seed": 1}})
        s = r.summary
        self.check(s["eval_accuracy"] > 0.6, s)
        steps = self.metrics(r.dir, "step")
        self.equal([x["step"] for x in steps], list(range(1, 161)))
        self.check(steps[-1]["loss"] < 0.7 * steps[0]["loss"], (steps[0], steps[-1]))
        self.equal((s["world_size"], s["backend"], s["device"], s["steps"], s["epochs"], s["exit_code"]),
                   (2, "shm", "cpu", 160, 8, 0))

    def test_summary_and_metrics_have_the_promised_names(self):
        r = self.train()
        self.equal(set(r.summary) - {"event"}, {
            "steps", "epochs", "final_loss", "eval_loss", "eval_accuracy", "parameters", "parameter_sha256", "buffer_sha256",
            "first_step_s", "median_step_ms", "samples_per_s", "peak_rss_bytes", "peak_pss_bytes", "backend", "device",
            "precision", "world_size", "exit_code", "best", "stopped_early"})
        self.equal(r.summary["parameters"], 12 * 24 + 24 + 24 * 17 + 17 + 17 * 4 + 4)
        step = self.metrics(r.dir, "step")[0]
        for key in ("step", "epoch", "loss", "lr", "step_ms", "data_ms", "wait_ms", "samples_per_s"):
            self.check(key in step, step)
        events = [m["event"] for m in self.metrics(r.dir)]
        self.equal((events[0], events[-1]), ("start", "end"))
        self.check(0 < r.summary["first_step_s"] < 60, r.summary)

    def test_same_seed_same_bits_and_another_seed_others(self):
        a, b = self.train(name="a.ini"), self.train(name="b.ini")
        c = self.train({"train": {"seed": 4}}, name="c.ini")
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])
        self.check(a.summary["parameter_sha256"] != c.summary["parameter_sha256"])

    def test_workers_and_prefetch_do_not_change_the_data(self):
        a = self.train({"loader": {"workers": 0}}, name="a.ini")
        b = self.train({"loader": {"workers": 3, "prefetch": 5}}, name="b.ini")
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])

    def test_overlap_does_not_change_the_bits(self):
        small = {"ddp": {"bucket_size": "1KiB", "first_bucket_size": "1KiB", "overlap": "yes"}}
        a = self.train(small, name="a.ini")
        b = self.train(small, {"ddp": {"overlap": "no"}}, name="b.ini")
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])

    def test_three_and_four_ranks_uneven_data(self):
        for nproc in (3, 4):
            r = self.train({"data.synthetic": {"samples": 131}}, nproc=nproc, name=f"{nproc}.ini")
            self.equal(r.summary["world_size"], nproc)

    def test_two_ranks_equal_one_rank_with_the_global_batch(self):
        """Plain SGD: the average of two ranks' means is the mean of the global batch."""
        plain = {"optimizer": {"momentum": 0, "lr": 0.01}, "sampler": {"plugin": "distributed"},
                 "sampler.distributed": {"shuffle": "no"}, "train": {"epochs": 1}}
        one = self.train(plain, {"train": {"batch_size": 32}}, nproc=1, name="one.ini")
        two = self.train(plain, {"train": {"batch_size": 16}}, nproc=2, name="two.ini")
        for a, b in zip(self.metrics(one.dir, "step"), self.metrics(two.dir, "step"), strict=True):
            self.check(abs(a["loss"] - b["loss"]) <= 1e-5 * abs(a["loss"]), (a, b))

    def test_accumulation_equals_the_larger_batch(self):
        plain = {"optimizer": {"momentum": 0, "lr": 0.01}, "train": {"epochs": 1},
                 "sampler.distributed": {"shuffle": "no"}}
        one = self.train(plain, {"train": {"batch_size": 32}}, nproc=1, name="one.ini")
        two = self.train(plain, {"train": {"batch_size": 8, "accumulate": 4}}, nproc=1, name="two.ini")
        a, b = self.metrics(one.dir, "step"), self.metrics(two.dir, "step")
        self.equal(len(a), len(b))
        for x, y in zip(a, b, strict=True):
            self.check(abs(x["loss"] - y["loss"]) <= 1e-5 * abs(x["loss"]), (x, y))

    def test_toy_models(self):
        for net, inputs in (("linear", 10), ("relu", 10)):
            outputs = 2 if net == "linear" else 5
            r = self.train({"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": net},
                            "train": {"epochs": 6},
                            "data.synthetic": {"shape": inputs, "classes": 0, "outputs": outputs}}, name=f"{net}.ini")
            steps = self.metrics(r.dir, "step")
            self.check(steps[-1]["loss"] < steps[0]["loss"], (net, steps[0], steps[-1]))

    def test_adamw_and_gelu(self):
        r = self.train({"optimizer": {"algorithm": "adamw", "lr": 0.003, "weight_decay": 0.01, "momentum": None},
                        "model.mlp": {"activation": "gelu"}, "train": {"epochs": 4}})
        steps = self.metrics(r.dir, "step")
        self.check(steps[-1]["loss"] < 0.9 * steps[0]["loss"], (steps[0], steps[-1]))

    def test_cpu_class(self):
        """DDPENGINE_CPU limits our kernels, and oneDNN whatever its own variable says; a word that it does not know is refused."""
        harness.needs_onednn()
        lenet = {"model": {"plugin": "lenet"}, "model.mlp": None, "model.lenet": {"classes": 4},
                 "data.synthetic": {"shape": "1, 20, 20", "classes": 4}}
        for word, ours, library in (("portable", "portable (DDPENGINE_CPU)", "SSE4.1"), ("avx2", "AVX2 (DDPENGINE_CPU)", "AVX2")):
            if word == "avx2" and " avx2 " not in pathlib.Path("/proc/cpuinfo").read_text():
                raise Skip("this CPU has no AVX2")
            r = self.run("-c", self.ini("x.ini", lenet), env={"DDPENGINE_CPU": word, "DNNL_VERBOSE": "1", "ONEDNN_MAX_CPU_ISA": "ALL"})
            self.equal(r.code, 0, r)
            self.check(ours in r.out + r.err, r)
            self.check(re.search(rf"cpu,isa:Intel {library}$", r.out, re.M), r)
        r = self.run("-c", self.ini("x.ini"), env={"DDPENGINE_CPU": "avx3"})
        self.fails(r, 2, "DDPENGINE_CPU", '"avx3"', "portable, avx2, avx512 and native", "unset it")

    def test_precision_bf16(self):
        plain = self.train({"train": {"epochs": 4}}, nproc=2)
        half = self.train({"train": {"epochs": 4, "precision": "bf16"}, "checkpoint": {"dir": self.dir / "ck"}}, nproc=2)
        self.equal((plain.summary["precision"], half.summary["precision"]), ("f32", "bf16"))
        self.check(plain.summary["parameter_sha256"] != half.summary["parameter_sha256"])
        self.check(abs(plain.summary["final_loss"] / half.summary["final_loss"] - 1) < 0.15, (plain.summary, half.summary))
        again = self.train({"train": {"epochs": 4, "precision": "bf16"}}, nproc=2)
        self.equal(again.summary["parameter_sha256"], half.summary["parameter_sha256"])
        # its checkpoint goes on in f32
        r = self.train({"train": {"epochs": 5}, "checkpoint": {"dir": self.dir / "ck"}}, nproc=2)
        self.equal((r.summary["precision"], r.summary["epochs"]), ("f32", 5))

    def test_precision_is_agreed_on(self):
        port = harness.free_port()
        ranks = [self.start("-c", self.ini(f"r{r}.ini", {
            "group": {"backend": "gloo-tcp", "init_method": f"tcp://127.0.0.1:{port}", "world_size": 2, "rank": r},
            "train": {"precision": ("f32", "bf16")[r]}})) for r in (0, 1)]
        for p in ranks:
            self.fails(self.finish(p), 4, "precision", "bf16", "f32")
        self.fails(self.run("-c", self.ini("x.ini"), "--set", "train.precision=half"), 2, "precision", "f32|bf16")

    def test_two_nodes_by_two_files(self):
        port = harness.free_port()
        group = {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2}}
        out = self.dir / "out"
        self.ini("common.ini", group)
        a = self.ini("node1.ini", text=f"include = common.ini\n[group]\nrank = 0\n[output]\ndir = {out}\n")
        b = self.ini("node2.ini", text="include = common.ini\n[group]\nrank = 1\n")
        second = self.start("-c", b)
        first = self.start("-c", a)
        for p in (first, second):
            r = self.finish(p)
            self.equal(r.code, 0, r)
        summary = json.loads((out / "summary.json").read_text())
        one_file = self.train()
        self.equal(summary["parameter_sha256"], one_file.summary["parameter_sha256"])

    def test_fashion_mnist(self):
        if not FASHION.exists():
            raise Skip("dataset-fashion-mnist is not installed")
        r = self.train({"train": {"epochs": 1, "batch_size": 64}, "model.mlp": {"hidden": "128", "classes": 10, "input": "image"},
                        "data": {"plugin": "idx"}, "data.idx": {"split": "train", "mean": 0.286, "std": 0.353, "limit": 12800},
                        "eval": {"plugin": "idx"}, "eval.idx": {"split": "test", "mean": 0.286, "std": 0.353}})
        self.check(r.summary["eval_accuracy"] > 0.75, r.summary)

    def test_relative_paths_and_no_output(self):
        path = self.ini("x.ini")
        r = self.run("-c", path, "--nproc", 2)
        self.equal(r.code, 0, r)
        self.equal(sorted(p.name for p in self.dir.iterdir()), ["x.ini"])


if __name__ == "__main__":
    sys.exit(harness.main(Train))
