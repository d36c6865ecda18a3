"""LoRA and frozen parameters against PEFT and PyTorch (make_lora.py): the loss of each of 100 AdamW steps, the first adapter, logits of
a trained one; adapters and merged models both ways."""
import array
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402
from harness import BUILD, SRC, Case, Skip  # noqa: E402
from support.infer_library import Model  # noqa: E402

FILES = SRC / "tests/parity/vectors/lora"
STORED = json.loads((FILES / "lora.json").read_text())
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
GPT2 = {"model": {"plugin": "gpt2"}, "model.gpt2": {"layers": 2, "width": 32, "heads": 2, "context": 32, "vocabulary": 256},
        "data": {"plugin": "tokens"}, "data.tokens": {"files": TEXT, "context": 32},
        "train": {"batch_size": 8, "epochs": 100, "seed": STORED["seed"]},
        "optimizer": {"algorithm": "adamw", "lr": STORED["lr"], "weight_decay": 0.01, "momentum": None},
        "checkpoint": {"init_from": FILES / "gpt2"}}
NOT_BASE = {"model.mlp": None, "data.synthetic": None}
LORA = {"lora": {"rank": 8, "alpha": 16}}
PLUS = {"lora": {"rank": 4, "alpha": 8, "rslora": "yes", "target": "c_attn, mlp.c_fc", "modules_to_save": "ln_f", "plus_ratio": 4}}
FREEZE = {"train": {"freeze": "*wte*, *wpe*, *.h.0.*, *ln_1.bias"}}


def tensors(path):
    """name -> (dtype, shape, floats) of a safetensors file of F32 and BF16."""
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack("<Q", data[:8])
    out = {}
    for name, t in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        raw = data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        out[name] = t["dtype"], t["shape"], array.array("f", raw)
    return out


def logits(ini, weights):
    """Those of the stored window, by libddpinfer."""
    model = Model(BUILD, ini, weights)
    inputs = [array.array("q", STORED["input"]) if t.name == b"input" else array.array("q", [0] * len(STORED["input"])) for t in model.inputs]
    got = list(model.run(1, *inputs))
    model.close()
    return got


class Lora(Case):
    environ = {}

    def run_like(self, *config, steps=100, nproc=1, **more):
        if not TEXT.exists():
            raise Skip(f"{TEXT} is not there: install its package")
        return self.train(NOT_BASE, GPT2, *config, {"train": {"max_steps": steps}, "checkpoint": {"dir": self.dir / "ck"}}, nproc=nproc,
                          **more)

    def curve(self, name, *config, nproc=1):
        r = self.run_like(*config, nproc=nproc)
        ours, theirs = [m["loss"] for m in self.metrics(r.dir, "step")], STORED[name]["losses"]
        self.equal(len(ours), len(theirs))
        worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
        print(f"# {name}: the engine from PyTorch {worst:.1e} in {len(ours)} steps")
        self.check(worst <= 1e-6, worst)

    def near(self, ours, theirs, bound):
        self.equal(len(ours), len(theirs))
        worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        self.check(worst <= bound, worst)

    def saved(self):
        return tensors(max((self.dir / "ck").glob("step-*")) / "model.safetensors")

    def test_all_linear(self):
        self.curve("all_linear", LORA)
        theirs = tensors(FILES / "adapter/adapter_model.safetensors")
        ours = self.saved()
        self.equal(sorted(ours), sorted(theirs))
        for name, (_, shape, values) in theirs.items():
            self.equal(ours[name][1], shape)
            self.near(ours[name][2], values, 2e-5)

    def test_two_ranks(self):
        self.curve("all_linear", LORA, {"train": {"batch_size": 4}}, nproc=2)

    def test_plus(self):
        self.curve("plus", PLUS)
        self.check({"transformer.ln_f.weight", "transformer.ln_f.bias"} < set(self.saved()), self.saved().keys())

    def test_llama(self):
        """Separate q, k and v with fewer heads of k and v, a gated feed-forward layer and an output layer of its own, which has none."""
        llama = {"model": {"plugin": "llama"}, "model.gpt2": None, "model.llama": {"config": FILES / "llama"},
                 "checkpoint": {"init_from": FILES / "llama"}}
        self.curve("llama", llama, LORA)
        self.equal(len(self.saved()), 2 * 7 * 2)

    def test_freeze(self):
        self.curve("freeze", FREEZE)

    def test_first_adapter(self):
        """Drawn as PEFT draws it: the sums are torch's, to the last digit that a sum of doubles has."""
        self.run_like(LORA, {"optimizer": {"lr": 0}}, steps=1)
        ours = self.saved()
        for name, want in STORED["all_linear"]["first"].items():
            self.check(abs(sum(map(float, ours[name][2])) - want) < 1e-12, (name, want))

    def test_adapter_of_peft(self):
        want = tensors(FILES / "logits.safetensors")["logits"][2]
        adapter = {"lora": {"init_from": FILES / "adapter"}}
        self.run_like(LORA, adapter, {"optimizer": {"lr": 0}}, steps=1)
        for weights in (self.dir / "ck", FILES / "adapter"):
            self.near(logits(self.dir / "run.ini", weights), want, 1e-4)

    def test_adapter_for_peft(self):
        """export peft has PEFT's names and values, and a config that says what PEFT's own says."""
        self.run_like(LORA)
        r = self.run("export", "peft", "-c", "run.ini", "out")
        self.equal(r.code, 0, r)
        ours, theirs = tensors(self.dir / "out/adapter_model.safetensors"), tensors(FILES / "adapter/adapter_model.safetensors")
        self.equal(sorted(ours), sorted(theirs))
        self.equal({n: list(v[2]) for n, v in ours.items()}, {n: list(v[2]) for n, v in self.saved().items()})
        said, want = (json.loads((f / "adapter_config.json").read_text()) for f in (self.dir / "out", FILES / "adapter"))
        for key in said.keys() - {"base_model_name_or_path", "target_modules"}:
            self.equal(said[key], want[key], key)
        self.equal(sorted(said["target_modules"]), sorted(want["target_modules"]))

    def test_saved_modules_for_peft(self):
        self.run_like(PLUS, steps=1)
        r = self.run("export", "peft", "-c", "run.ini", "out")
        self.equal(r.code, 0, r)
        names = set(tensors(self.dir / "out/adapter_model.safetensors"))
        self.check("base_model.model.transformer.ln_f.weight" in names and len(names) == 10, names)
        said = json.loads((self.dir / "out/adapter_config.json").read_text())
        self.equal(said["modules_to_save"], ["transformer.ln_f"])
        self.check(said["use_rslora"] is True and said["r"] == 4 and said["lora_alpha"] == 8, said)

    def test_merged(self):
        """PEFT's adapter in the weights gives PEFT's logits, whole and in shards; bf16 is that rounded."""
        want = tensors(FILES / "logits.safetensors")["logits"][2]
        self.run_like(LORA, {"lora": {"init_from": FILES / "adapter"}}, {"optimizer": {"lr": 0}}, steps=1)
        plain = self.ini("plain.ini", NOT_BASE, GPT2, {"lora": {"rank": 0}})
        for name, args in {"whole": [], "shards": ["--shard-size", "30KB"], "bf16": ["--dtype", "bf16"]}.items():
            r = self.run("merge", "-c", "run.ini", *args, name)
            self.equal(r.code, 0, r)
            config = json.loads((self.dir / name / "config.json").read_text())
            base = json.loads((FILES / "gpt2/config.json").read_text())
            self.equal(config, {**base, "dtype": "bfloat16" if name == "bf16" else "float32"})
        whole = tensors(self.dir / "whole/model.safetensors")
        index = json.loads((self.dir / "shards/model.safetensors.index.json").read_text())
        files = {f: tensors(self.dir / "shards" / f) for f in set(index["weight_map"].values())}
        self.equal(sorted(files), [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)])
        self.check(len(files) > 3 and index["metadata"]["total_size"] == sum(4 * len(t[2]) for t in whole.values()), index["metadata"])
        self.equal({n: files[f][n] for n, f in index["weight_map"].items()}, whole)
        self.near(logits(plain, self.dir / "whole"), want, 1e-4)
        for name, (dtype, _, values) in tensors(self.dir / "bf16/model.safetensors").items():
            self.equal(dtype, "BF16")
            self.check(all(abs(a - b) <= abs(b) / 256 for a, b in zip(values, whole[name][2], strict=True)), name)


if __name__ == "__main__":
    sys.exit(harness.main(Lora))
