"""[lora] on models of the engine: what checkpoints hold, resumes after kill -9, bases that are another, every way of an update, and what is
said of names that do not exist. Numbers against PEFT are in tests/parity/test_lora.py."""
import json
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from checkpoint_files import read_safetensors  # noqa: E402
from harness import Case, seldom, until  # noqa: E402

ADAMW = {"algorithm": "adamw", "lr": 0.003, "momentum": None}
LORA = {"lora": {"rank": 3, "dropout": 0.1}, "optimizer": ADAMW}
A, B = "base_model.model.{}.lora_A.weight", "base_model.model.{}.lora_B.weight"
SHAPES = {A.format("fc1"): [3, 12], B.format("fc1"): [24, 3], A.format("fc2"): [3, 24], B.format("fc2"): [17, 3]}
WAYS = {"direct": {}, "all_reduce": {"ddp": {"shard_update": "no"}}, "zero": {"ddp": {"zero": 1}}}


class Lora(Case):
    def saved(self, *layers, folder="ck", nproc=2, **more):
        return self.train({"checkpoint": {"dir": self.dir / folder, "every": 20}}, LORA, *layers, nproc=nproc, **more)

    def newest(self, folder="ck"):
        return max((self.dir / folder).glob("step-????????"))

    def test_a_checkpoint_holds_the_adapters(self):
        """Not the model; the output layer has none."""
        self.saved()
        folder = self.newest()
        self.equal({n: t[1] for n, t in read_safetensors(folder / "model.safetensors").items()}, SHAPES)
        self.equal(set(read_safetensors(folder / "optimizer.safetensors")),
                   {f"{n}.{k}" for n in SHAPES for k in ("exp_avg", "exp_avg_sq")})
        self.equal(len(json.loads((folder / "MANIFEST.json").read_text())["base_hash"]), 32)

    def test_targets(self):
        one = {"lora": {"target": "fc1", "modules_to_save": "fc3"}}
        self.saved(one)
        names = set(read_safetensors(self.newest() / "model.safetensors"))
        self.equal(names, {A.format("fc1"), B.format("fc1"), "fc3.weight", "fc3.bias"})
        self.saved({"lora": {"target": "all-linear, fc3"}}, folder="all")
        self.equal(len(read_safetensors(self.newest("all") / "model.safetensors")), 6)

    def test_resumed_after_kill_9(self):
        whole = self.saved(folder="whole", name="whole.ini")
        path = self.ini("run.ini", {"checkpoint": {"dir": self.dir / "ck", "every": 7}}, LORA, {"output": {"dir": self.dir / "out"}})
        p = self.start("-c", path, "--nproc", 2)
        until(lambda: p.poll() is not None or list((self.dir / "ck").glob("step-????????")), "no checkpoint comes")
        for pid in [p.pid, *(harness.children_of(p.pid) if p.poll() is None else [])]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.finish(p)
        self.no_processes_left(path)
        r = self.run("-c", path, "--nproc", 2)
        self.equal(r.code, 0, r)
        self.equal((self.newest() / "model.safetensors").read_bytes(), (self.newest("whole") / "model.safetensors").read_bytes())
        summary = json.loads((self.dir / "out/summary.json").read_text())
        self.equal(summary["parameter_sha256"], whole.summary["parameter_sha256"])

    def training(self, folder, *layers):
        """Two ranks that train, and their processes."""
        path = self.ini("run.ini", {"checkpoint": {"dir": self.dir / folder, "every": 100}}, LORA, {"output": {"dir": self.dir / "out"}},
                        {"train": {"epochs": 60}}, *layers)
        p = self.start("-c", path, "--nproc", 2)
        until(lambda: p.poll() is not None or list((self.dir / folder).glob("step-????????")), "no checkpoint comes")
        return p, self.children(p, 2)

    def resident(self, folder, *layers):
        """KiB of the base that a rank of two has in memory."""
        p, ranks = self.training(folder, {"train": {"epochs": 1000000}}, *layers)
        text = pathlib.Path(f"/proc/{ranks[0]}/smaps").read_text()
        rss = int(text[text.index("/memfd:ddpengine-base-"):].split("Rss:")[1].split()[0])
        os.kill(p.pid, signal.SIGTERM)
        self.equal(self.finish(p).code, 128 + signal.SIGTERM)
        return rss

    def mapped(self, folder, *layers):
        """Bytes of the mapping that both ranks of a run have, shared; then the run ends."""
        p, ranks = self.training(folder, {"train": {"epochs": 1000000}}, *layers)
        seen = set()
        for pid in ranks:
            lines = [x.split() for x in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines() if "/memfd:ddpengine-base-" in x]
            self.equal(len(lines), 1, lines)
            first, last = (int(x, 16) for x in lines[0][0].split("-"))
            seen.add((lines[0][4], last - first))
            self.check("s" in lines[0][1], lines)
        os.kill(p.pid, signal.SIGTERM)
        self.equal(self.finish(p).code, 128 + signal.SIGTERM)
        self.equal(len(seen), 1, seen)
        return seen.pop()[1]

    def test_a_host_has_the_base_once(self):
        """Every rank of it maps the same memory for what is not trained, and for the adapters where each updates a shard for all."""
        base = self.mapped("no", {"ddp": {"shard_update": "no"}})
        self.check(self.mapped("auto") > base, base)
        self.equal(self.mapped("ema", {"optimizer": {"ema": 0.9}}), base)

    def test_base_in_bf16(self):
        """Held in bf16 it has the bits of one that is rounded and held in f32, as where ranks may be lost; in every way of an update."""
        half = {"train": {"precision": "bf16", "max_steps": 20}}
        shas = {name: self.saved(half, way, folder=name, name=f"{name}.ini").summary["parameter_sha256"]
                for name, way in {**WAYS, "f32": {"run": {"restarts": 1}}, "ema": {"optimizer": {"ema": 0.9}}}.items()}
        self.equal(len(set(shas.values())), 1, shas)
        whole = self.saved({"train": {"precision": "bf16"}}, folder="whole", name="whole.ini")
        again = self.saved({"train": {"precision": "bf16"}}, folder="direct", name="direct.ini")
        self.check("resuming from" in again.err, again)
        self.equal(again.summary["parameter_sha256"], whole.summary["parameter_sha256"])
        self.fails(self.saved({"train": {"precision": "bf16", "seed": 4, "max_steps": 80}}, folder="direct", nproc=0, expect=8), 8,
                   "are of another base")

    def test_base_in_bf16_is_used(self):
        """`eval` has the run's numbers in either precision, and a merged model those of the base's file."""
        data = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 64, "shape": 12, "classes": 4, "seed": 1}}
        half = {"train": {"precision": "bf16"}, "optimizer": {"lr": 1e-30}}
        r = self.saved(data, half, nproc=0)
        e = self.run("eval", "-c", self.dir / "run.ini")
        self.check(f"{r.summary['eval_loss']:.6g}"[:6] in e.out, (r.summary, e))
        e = self.run("eval", "-c", self.dir / "run.ini", "--set", "train.precision=f32")
        self.equal(e.code, 0, e)
        r = self.run("merge", "-c", self.dir / "run.ini", self.dir / "merged")
        self.equal(r.code, 0, r)
        self.train({"checkpoint": {"dir": self.dir / "plain"}, "optimizer": {"lr": 1e-30}, "train": {"max_steps": 1}}, name="plain.ini")
        merged, plain = (read_safetensors(x / "model.safetensors") for x in (self.dir / "merged", self.newest("plain")))
        self.equal(merged, plain)

    @seldom
    def test_memory_of_a_base_in_bf16(self):
        wide = {"model.mlp": {"hidden": "1024, 1024"}}
        held = {p: self.resident(p, wide, {"train": {"precision": p}}) for p in ("f32", "bf16")}
        self.check(held["bf16"] < 0.75 * held["f32"], held)

    @seldom
    def test_a_rank_is_lost(self):
        """The others go on with it from memory or a checkpoint, on a base that is mapped again."""
        long = {"train": {"epochs": 60}}
        whole = self.saved(long, folder="whole", name="whole.ini")
        for rank in (0, 1):
            p, ranks = self.training(f"lost{rank}", {"run": {"restarts": 2, "restart_delay": "0s"}, "group": {"peer_timeout": "1s"}})
            os.kill(ranks[rank], signal.SIGKILL)
            r = self.finish(p)
            self.equal(r.code, 0, r)
            summary = json.loads((self.dir / "out/summary.json").read_text())
            self.equal(summary["parameter_sha256"], whole.summary["parameter_sha256"], r)

    def test_every_way_of_an_update(self):
        shas = {}
        for name, way in WAYS.items():
            r = self.saved(way, {"lora": {"plus_ratio": 4}, "train": {"max_steps": 20}}, folder=name, name=f"{name}.ini")
            shas[name] = r.summary["parameter_sha256"]
        self.equal(len(set(shas.values())), 1, shas)

    def test_several_devices(self):
        """Replicas, and stages that share out the layers: as one device, but for the order of sums."""
        quiet = {"lora": {"dropout": 0, "target": "fc1, fc2"}, "train": {"max_steps": 20, "batch_size": 32}, "model": {"plugin": "toy"},
                 "model.mlp": None, "model.toy": {}, "data.synthetic": {"shape": 10, "classes": 0, "outputs": 2}}
        two = {"device": "cpu:0, cpu:1"}
        one = self.saved(quiet, folder="one", nproc=0)
        for name, way in {"dp": {"train": {"parallel": "dp", **two, "batch_size": 16}},
                          "model": {"train": {"parallel": "model", **two}, "model.toy": {"place": "fc1:0, fc2:1"}}}.items():
            r = self.saved(quiet, way, folder=name, nproc=0)
            self.check(abs(r.summary["final_loss"] / one.summary["final_loss"] - 1) < 1e-5, (name, r.summary, one.summary))

    def test_another_base(self):
        self.saved({"train": {"max_steps": 20}})
        more = {"train": {"max_steps": 30}}
        r = self.saved(more, {"train": {"max_steps": 30, "seed": 4}}, nproc=0, expect=8)
        self.fails(r, 8, "the adapters of checkpoint", "are of another base", "init_from")
        self.fails(self.saved(more, {"lora": {"rank": 0}}, nproc=0, expect=8), 8, "has adapters alone, and this run has none")
        self.fails(self.saved(more, {"lora": {"rank": 4}}, nproc=0, expect=8), 8, "f32 3x12 there and f32 4x12")
        self.saved({"lora": None}, {"lora": {"rank": 0}}, folder="whole", nproc=0)
        self.fails(self.saved({"train": {"epochs": 3}}, folder="whole", nproc=0, expect=8), 8, "has a whole model, and this run has some",
                   "init_from")

    def test_evaluates_as_it_trained(self):
        """`eval` puts the adapters on the base again; without the section there is nothing to put them on."""
        data = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 64, "shape": 12, "classes": 4, "seed": 1}}
        r = self.saved(data, nproc=0)
        loss = r.summary["eval_loss"]
        e = self.run("eval", "-c", self.dir / "run.ini")
        self.equal(e.code, 0, e)
        self.check(f"{loss:.6g}"[:6] in e.out, (loss, e))
        self.fails(self.run("eval", "-c", self.dir / "run.ini", "--set", "lora.rank=0"), 8, "adapters alone")

    def test_average_of_adapters(self):
        """A checkpoint has the average of what is trained; a resumed run evaluates the same average on the same base."""
        ema = {"optimizer": {"ema": 0.9}, "eval": {"plugin": "synthetic"},
               "eval.synthetic": {"samples": 64, "shape": 12, "classes": 4, "seed": 1}}
        whole = self.saved(ema, folder="whole")
        self.equal({n: t[1] for n, t in read_safetensors(self.newest("whole") / "ema.safetensors").items()}, SHAPES)
        self.saved(ema, {"train": {"max_steps": 25}})
        r = self.saved(ema)
        self.check("resuming from" in r.err, r)
        self.equal(r.summary["eval_loss"], whole.summary["eval_loss"])
        self.equal((self.newest() / "ema.safetensors").read_bytes(), (self.newest("whole") / "ema.safetensors").read_bytes())

    def test_names_that_are_not_there(self):
        self.fails(self.saved({"lora": {"target": "q_proj"}}, nproc=0, expect=2), 2, "run.ini:", "[lora] target",
                   '"q_proj" names no linear layer; there are fc1, fc2, fc3')
        self.fails(self.saved({"lora": {"modules_to_save": "fc9"}}, nproc=0, expect=2), 2, "[lora] modules_to_save", '"fc9" names no layer')
        for pattern in ("*", "*lora_A*"):
            self.fails(self.saved({"train": {"freeze": pattern}}, nproc=0, expect=2), 2, "[train] freeze", "of an adapter", "[lora] target")
        self.fails(self.saved({"lora": {"rnk": 1}}, nproc=0, expect=2), 2, "rnk", "rank")

    def test_keys_without_a_rank(self):
        """Adapters were wanted; rank = 0 by itself says that there are none."""
        r = self.train({"lora": {"alpha": 16, "target": "fc1"}}, nproc=0, expect=2, name="x.ini")
        self.fails(r, 2, "x.ini:", "[lora] alpha is set and rank is not", "set [lora] rank")
        self.train({"lora": {"alpha": 16, "rank": 0}, "train": {"max_steps": 1}}, nproc=0)

    def test_used_with_another_scale(self):
        """What the tensors of a checkpoint do not say."""
        self.saved(nproc=0)
        self.equal(self.run("merge", "-c", "run.ini", "--set", "lora.alpha=6", self.dir / "merged").code, 0)
        for command in (("merge",), ("export", "peft"), ("export", "torch")):
            for change in ("alpha=7", "rslora=yes"):
                r = self.run(*command, "-c", "run.ini", "--set", f"lora.{change}", self.dir / "out")
                self.fails(r, 8, "were trained with [lora] alpha 6, rslora no", "set them as they were")

    def test_values_with_which_nothing_learns(self):
        self.fails(self.saved({"lora": {"dropout": 1}}, nproc=0, expect=2), 2, "run.ini:", "[lora] dropout", "less than 1")
        self.fails(self.saved({"lora": {"plus_ratio": 0}}, nproc=0, expect=2), 2, "run.ini:", "[lora] plus_ratio", "never learn", "16 for LoRA+")

    def merge(self, *args, code=0):
        r = self.run("merge", "-c", "run.ini", *args, self.dir / "out")
        self.equal(r.code, code, r)
        return r

    def weights(self):
        return sorted(p.name for p in (self.dir / "out").glob("model*"))

    def test_merged_over_an_earlier_model(self):
        """The earlier one stays until the new one is whole, and nothing of it stays then."""
        self.saved(nproc=0)
        self.merge()
        whole = (self.dir / "out/model.safetensors").read_bytes()
        self.equal(self.weights(), ["model.safetensors"])
        (self.dir / "out/model-00001-of-00002.safetensors").mkdir()
        self.fails(self.merge("--shard-size", "2KB", code=8), 8, "model-00001-of-00002.safetensors")
        self.equal((self.dir / "out/model.safetensors").read_bytes(), whole, "a merge that fails takes nothing away")
        (self.dir / "out/model-00001-of-00002.safetensors").rmdir()
        self.equal(self.weights(), ["model.safetensors"], "nor leaves a part")
        self.merge("--shard-size", "1KB")
        self.equal(len(self.weights()), 5, self.weights())
        (self.dir / "out/model-00007-of-00009.safetensors.new").write_bytes(b"of a merge that was killed")
        (self.dir / "out/model-best.safetensors").write_bytes(b"not one of these files")
        self.merge("--shard-size", "2KB")
        self.equal(self.weights(), ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model-best.safetensors",
                                    "model.safetensors.index.json"])
        self.merge()
        self.equal(self.weights(), ["model-best.safetensors", "model.safetensors"])
        self.equal((self.dir / "out/model.safetensors").read_bytes(), whole)

    def test_a_damaged_config_of_the_base(self):
        self.train({"checkpoint": {"dir": self.dir / "base"}}, nproc=0)
        r = self.run("export", "torch", "-c", "run.ini", self.dir / "hf")
        self.equal(r.code, 0, r)
        self.saved({"checkpoint": {"init_from": self.dir / "hf"}}, nproc=0)
        (self.dir / "hf/config.json").write_text('{"architectures": [')
        for command in (("merge",), ("export", "peft")):
            r = self.run(*command, "-c", "run.ini", self.dir / "out")
            self.fails(r, 8, "hf/config.json", "[checkpoint] init_from", "no JSON object", "repair it")
            self.check(not (self.dir / "out").exists(), "nothing is written")

    def test_adapter_of_another_scale(self):
        folder = self.dir / "peft"
        self.saved(nproc=0)
        r = self.run("export", "peft", "-c", "run.ini", folder)
        self.equal(r.code, 0, r)
        started = {"lora": {"init_from": folder}, "checkpoint": {"dir": self.dir / "more"}, "train": {"max_steps": 1}}
        self.saved(started, nproc=0, folder="more")
        for change in ({"alpha": 7}, {"rslora": "yes"}):
            r = self.saved(started, {"lora": change, "checkpoint": {"resume": "never"}}, folder="more", nproc=0, expect=8)
            self.fails(r, 8, "[lora] init_from", "alpha 6, rslora no")
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
        r = self.saved(started, {"checkpoint": {"resume": "never"}}, folder="more", nproc=0, expect=8)
        self.fails(r, 8, '"use_dora" asks for what is not plain LoRA')


if __name__ == "__main__":
    sys.exit(harness.main(Lora))
