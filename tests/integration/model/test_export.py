"""ddpengine export: what others read. Files of ONNX are compared with stored hashes of files that onnxruntime has computed
the same outputs from (tests/parity/make/make_onnx.py), and with onnxruntime itself where it is installed."""
import hashlib
import json
import os
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import BUILD, SANITIZED, SRC, Case, Skip, long_case  # noqa: E402

NO_MLP = {"model.mlp": None}
IMAGES = {"data.synthetic": {"shape": "3, 16, 16", "samples": 32, "classes": 10}}
NET = """[conv2d] out = 6, kernel = 3, padding = 1
[batch_norm2d]
[relu]
[max_pool2d] kernel = 3x2, stride = 2, padding = 1x0
[conv2d] out = 8, kernel = 3, groups = 2, bias = no
[gelu]
[adaptive_avg_pool2d] out = 4
[flatten]
[leaky_relu] negative_slope = 0.1
[linear] out = 24
[layer_norm] eps = 1e-3
[gelu] approximate = tanh
[dropout] p = 0.5
[linear] out = 10
[loss] type = cross_entropy
"""
SEQUENCE = """[input] field = input
[embedding] count = 256, features = 8
[position_embedding] count = 12
[identity] name = x
[layer_norm] eps = 0.001
[linear] out = 24
[attention] heads = 2, causal = no
[linear] out = 8
[add] from = x
[relu]
[linear] out = 256, bias = no
[loss] type = cross_entropy, field = target
"""
PYTHON = os.environ.get("DDP_ONNX_PYTHON", sys.executable)  # one that has onnx, onnxruntime and numpy


def safetensors(path):
    """Its header without the metadata, and the tensors' bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return header, data[8 + length:]


def plain_weights(path, out):
    """The same tensors with values that follow from their place alone, whatever machine trained them: near 0, and variances
    near 1."""
    header, data = safetensors(path)
    data = bytearray(data)
    for name, t in header.items():
        first, last = t["data_offsets"]
        count = (last - first) // 4
        if t["dtype"] != "F32":
            continue
        base = 1.0 if name.endswith(("var", "norm.weight", "bn1.weight", "bn2.weight")) else 0.0
        fan = max(count // t["shape"][0], 1) ** 0.5
        values = [base + ((i * 7919 + len(name) * 104729) % 1021 / 1021 - 0.5) / fan for i in range(count)]
        struct.pack_into(f"<{count}f", data, first, *values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


class Export(Case):
    def nets(self):
        """name -> layers of an INI; each trains a step in no time."""
        net, text = self.dir / "x.net", self.dir / "text.txt"
        net.write_text(NET)
        (self.dir / "sequence.net").write_text(SEQUENCE)
        text.write_bytes((SRC / "README.md").read_bytes())
        return {
            "mlp": [{"model.mlp": {"activation": "gelu"}}],
            "lenet": [NO_MLP, {"model": {"plugin": "lenet"}, "data.synthetic": {"shape": "1, 20, 20", "samples": 32, "classes": 10}}],
            "resnet": [NO_MLP, {"model": {"plugin": "resnet"}, "model.resnet": {"stem": "cifar", "classes": 10, "width": 4}}, IMAGES],
            "gpt2": [NO_MLP, {"model": {"plugin": "gpt2"}, "data": {"plugin": "tokens"}, "data.synthetic": None,
                              "model.gpt2": {"preset": "bytes", "layers": 2, "heads": 2, "width": 16, "context": 16},
                              "data.tokens": {"files": text, "format": "bytes", "context": 12}}],
            "sequence": [NO_MLP, {"model": {"plugin": "layers"}, "model.layers": {"net": self.dir / "sequence.net"},
                                  "data": {"plugin": "tokens"}, "data.synthetic": None,
                                  "data.tokens": {"files": text, "format": "bytes", "context": 12}}],
            "net": [NO_MLP, {"model": {"plugin": "layers"}, "model.layers": {"net": net}}, IMAGES],
        }

    def prepare(self, name, layers):
        """An INI, and weights that are the same on every machine."""
        one_step = {"train": {"max_steps": 1, "batch_size": 2}, "checkpoint": {"dir": self.dir / f"{name}-ckpt"}}
        self.train(one_step, *layers, nproc=0, name=f"{name}.ini")
        r = self.run("export", "torch", "-c", f"{name}.ini", f"{name}-first")
        self.equal(r.code, 0, r)
        weights = self.dir / f"{name}.safetensors"
        plain_weights(self.dir / f"{name}-first/model.safetensors", weights)
        return weights

    def onnx(self, name, weights, out):
        r = self.run("export", "onnx", "-c", f"{name}.ini", "--checkpoint", weights, out)
        if "built without ONNX" in r.err:
            self.equal(r.code, 2, r)
            raise Skip("built without ONNX")
        self.equal((r.code, r.err), (0, ""), r)
        return (self.dir / out).read_bytes()

    def files(self):
        for name, layers in self.nets().items():
            weights = self.prepare(name, layers)
            yield name, weights, self.onnx(name, weights, f"{name}.onnx")

    def test_onnx_is_what_onnxruntime_has_seen(self):
        stored = json.loads((SRC / "tests/parity/vectors/onnx.json").read_text())
        found = {name: hashlib.sha256(data).hexdigest() for name, _, data in self.files()}
        self.equal(found, stored)
        self.equal(self.onnx("net", self.dir / "net.safetensors", "again.onnx"), (self.dir / "net.onnx").read_bytes())

    def live(self, name, weights):
        if SANITIZED:
            raise Skip("a library under the sanitizers is not for Python")
        if self.finish(self.spawn([PYTHON, "-c", "import onnx, onnxruntime, numpy"])).code != 0:
            raise Skip("no onnx and onnxruntime (DDP_ONNX_PYTHON names a Python that has them)")
        r = self.finish(self.spawn([PYTHON, SRC / "tests/integration/support/onnx_live.py", BUILD, f"{name}.ini", weights,
                                    f"{name}.onnx"]))
        self.equal(r.code, 0, f"{name}\n{r}")

    @long_case
    def test_onnxruntime_computes_the_same(self):
        for name, weights, _ in self.files():
            self.live(name, weights)

    @long_case
    def test_onnxruntime_computes_the_same_as_whole_models(self):
        text = self.dir / "text.txt"
        text.write_bytes((SRC / "README.md").read_bytes())
        whole = {
            "resnet": [NO_MLP, {"model": {"plugin": "resnet"}, "data.synthetic": {"shape": "3, 96, 96", "samples": 8, "classes": 1000}}],
            "gpt2": [NO_MLP, {"model": {"plugin": "gpt2"}, "model.gpt2": {"preset": "bytes"}, "data": {"plugin": "tokens"},
                              "data.synthetic": None, "data.tokens": {"files": text, "format": "bytes", "context": 64}}],
        }
        for name, layers in whole.items():
            checkpoint = self.dir / f"{name}-ckpt"
            self.train({"train": {"max_steps": 3, "batch_size": 2}, "checkpoint": {"dir": checkpoint}}, *layers, nproc=0,
                       name=f"{name}.ini")
            self.onnx(name, checkpoint, f"{name}.onnx")
            self.live(name, checkpoint)

    def test_torch(self):
        """The tensors of the checkpoint, by its names; twice the same bytes; and a run can start from it."""
        ckpt = self.dir / "ckpt"
        self.train({"checkpoint": {"dir": ckpt}, "data.synthetic": {"samples": 64}}, nproc=0)
        (self.dir / "run.ini").write_text((self.dir / "run.ini").read_text().replace("[train]", "[train]\ndevice = nowhere"))
        for out in ("a", "b", "b"):
            r = self.run("export", "torch", "-c", "run.ini", out)
            self.equal((r.code, r.out, r.err), (0, "", ""), r)
        for name in ("model.safetensors", "config.json"):
            self.equal((self.dir / "a" / name).read_bytes(), (self.dir / "b" / name).read_bytes(), name)
        (saved,) = ckpt.glob("step-*/model.safetensors")
        self.equal(safetensors(self.dir / "a/model.safetensors"), safetensors(saved))
        config = json.loads((self.dir / "a/config.json").read_text())
        self.equal((config["model"], config["options"]["hidden"], config["parameters"]), ("mlp", "24, 17", 809))
        self.equal(config["fields"][0], {"name": "input", "dtype": "f32", "shape": ["N", 12]})
        self.train({"checkpoint": {"init_from": self.dir / "a"}, "data.synthetic": {"samples": 64}}, nproc=0, name="next.ini")
        self.equal(sorted(p.name for p in (self.dir / "a").iterdir()), ["config.json", "model.safetensors"])

    def test_needs_no_data(self):
        """What the model reads is in the checkpoint."""
        text = self.dir / "text.txt"
        text.write_bytes(b"abcdefgh" * 100)
        self.train(NO_MLP, {"model": {"plugin": "gpt2"}, "data": {"plugin": "tokens"}, "data.synthetic": None,
                            "train": {"max_steps": 1, "batch_size": 2}, "checkpoint": {"dir": self.dir / "ckpt"},
                            "model.gpt2": {"preset": "bytes", "layers": 1, "heads": 2, "width": 16},
                            "data.tokens": {"files": text, "context": 12}}, nproc=0)
        text.unlink()
        r = self.run("export", "torch", "-c", "run.ini", "out")
        self.equal(r.code, 0, r)
        (weights,) = (self.dir / "ckpt").glob("step-*/model.safetensors")
        self.fails(self.run("export", "torch", "-c", "run.ini", "--checkpoint", weights, "out"), 10, "text.txt")
        self.fails(self.run("export", "torch", "-c", "run.ini", "--checkpoint", "best", "out"), 8, "no best checkpoint")

    def test_errors(self):
        self.train({"checkpoint": {"dir": self.dir / "ckpt"}, "data.synthetic": {"samples": 32}}, nproc=0)
        self.fails(self.run("export", "torch", "out"), 2, "no config file")
        self.fails(self.run("export", "-c", "run.ini", "out"), 2, "no format")
        self.fails(self.run("export", "keras", "-c", "run.ini", "out"), 2, "torch, peft, onnx or gguf, not keras")
        self.fails(self.run("export", "torch", "-c", "run.ini"), 2, "no path")
        self.fails(self.run("export", "torch", "-c", "run.ini", "a", "b"), 2, "too many arguments")
        self.fails(self.run("export", "torch", "-c", "run.ini", "--checkpoint", "nowhere", "a"), 8, "nowhere")
        self.fails(self.run("export", "torch", "-c", "run.ini", "/proc/none"), 8, "/proc/none")
        r = self.run("export", "onnx", "-c", "run.ini", "/proc/none/x.onnx")
        if "built without ONNX" not in r.err:
            self.fails(r, 2, "/proc/none/x.onnx")


if __name__ == "__main__":
    sys.exit(harness.main(Export))
