"""Device cuda in the real program: over a double of CUDA where there is no GPU, whose device memory the host cannot touch
(CUDA_DOUBLE_STRICT); and what the plugin itself says where there is none. The kernels are tested in tests/unit/test_cuda_*."""
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness import BUILD, Case, Skip

DOUBLE = BUILD / "tests/doubles/plugins/.libs/device_cuda.so"
PLUGIN = BUILD / ".libs/device_cuda.so"
CUDA = {
    "plugins": {"path": DOUBLE.parent},
    "train": {"device": "cuda", "deterministic": "yes"},  # times measured in the double would choose now this way, now that
    "device.cuda": {"cublas_library": "double", "cudnn_library": "double", "algorithm_cache": "off"},
}
STRICT = {"CUDA_DOUBLE_STRICT": "1", **({"ASAN_OPTIONS": "handle_segv=0"} if harness.SANITIZED else {})}
SHORT = {"train": {"max_steps": 12, "epochs": 3}, "data.synthetic": {"samples": 320}}
TEXT = {"files": "/usr/share/common-licenses/GPL-3", "context": 16}
GPT = {"model": {"plugin": "gpt2"}, "model.mlp": None, "data": {"plugin": "tokens"}, "data.synthetic": None, "data.tokens": TEXT,
       "model.gpt2": {"preset": "bytes", "layers": 2, "width": 32, "heads": 2},
       "train": {"batch_size": 2, "max_steps": 3, "epochs": 1},
       "optimizer": {"algorithm": "adamw", "lr": 0.0006, "momentum": None}}
LLAMA = {**GPT, "model": {"plugin": "llama"}, "model.gpt2": None,
         "model.llama": {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "intermediate": 64, "vocabulary": 256, "tied": "yes"}}
LENET = {"model": {"plugin": "lenet"}, "model.mlp": None, "model.lenet": {"classes": 4},
         "data.synthetic": {"samples": 24, "shape": "1, 28, 28", "classes": 4}, "train": {"batch_size": 4, "max_steps": 3, "epochs": 1}}


class Cuda(Case):
    def needs_double(self):
        if not DOUBLE.exists():
            raise Skip("CUDA's headers were not there when this was built")

    def cuda(self, *layers, env=None, **more):
        self.needs_double()
        return self.train(CUDA, SHORT, *layers, env={**STRICT, **(env or {})}, **more)

    def losses(self, r):
        return [x["loss"] for x in self.metrics(r.dir, "step")]

    def alike(self, a, b, within):
        x, y = self.losses(a), self.losses(b)
        self.check(len(x) == len(y) > 0, (x, y))
        self.check(all(abs(i / j - 1) < within for i, j in zip(x, y, strict=True)), (x, y))

    # ---- one rank ----------------------------------------------------------------------------------------------------
    def test_trains_what_a_cpu_trains(self):
        for name, extra in (("mlp", {}), ("gpt", GPT), ("lenet", LENET)):
            gpu = self.cuda(extra, nproc=1, name=f"{name}-gpu")
            cpu = self.train(SHORT, extra, nproc=1, name=f"{name}-cpu")
            self.equal(gpu.summary["device"], "cuda:0")
            self.check("on double of a GPU" in gpu.err, gpu)
            self.alike(gpu, cpu, within=1e-4)

    def test_the_mean_over_labels_that_count(self):
        """[train] loss_mean and class weights, where the device itself updates before the host has the loss, and between ranks."""
        def write(path, shape, rows):
            head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}"
            head += " " * (-(len(head) + 11) % 64) + "\n"
            path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(rows)}q", *rows))

        x = [(7 * i + i // 6) % 11 for i in range(24 * 6)]
        write(self.dir / "x.npy", (24, 6), x)
        write(self.dir / "y.npy", (24, 6), [-100 if i % 6 < i // 6 % 6 else (v * 3 + 1) % 11 for i, v in enumerate(x)])
        (self.dir / "n.net").write_text("[input] field = input\n[embedding] count = 11, features = 6\n[linear] out = 11\n"
                                        "[loss] type = cross_entropy, field = target, weight = 1, 2, 1, 0.5, 1, 1, 3, 1, 1, 1, 0.25\n")
        layers = {"data": {"plugin": "npy"}, "data.synthetic": None, "data.npy": {"input": self.dir / "x.npy", "label": self.dir / "y.npy"},
                  "model": {"plugin": "layers"}, "model.mlp": None, "model.layers": {"net": self.dir / "n.net"},
                  "train": {"batch_size": 4, "accumulate": 3, "max_steps": 8, "epochs": 8}}
        for name, extra, ranks in (("one", {}, 1), ("clip", {"optimizer": {"clip_norm": 0.5}}, 1), ("two", {"train": {"accumulate": 2}, "group": {"backend": "gloo-tcp"}}, 2)):
            a, b = (run(layers, extra, nproc=ranks, name=f"{name}-{which}") for which, run in (("gpu", self.cuda), ("cpu", self.train)))
            self.alike(a, b, within=2e-5)
        half = self.cuda(layers, {"train": {"precision": "bf16"}}, nproc=1, name="half")
        self.alike(half, self.train(layers, nproc=1, name="whole"), within=2e-2)

    def test_mixed_samples(self):
        mixed = {"data": {"mixup": 0.4, "cutmix": 1}}
        self.alike(self.cuda(LENET, mixed, nproc=1, name="gpu"), self.train(SHORT, LENET, mixed, nproc=1, name="cpu"), within=1e-4)

    def test_bf16_trains_nearly_that(self):
        stream = {"device.cuda": {"residual": "bf16"}}
        for name, extra in (("mlp", {}), ("gpt", GPT), ("llama", LLAMA)):
            way = {"train": {"precision": "bf16"}}
            half = self.cuda(extra, way, nproc=1, name=f"{name}-half")
            cpu = self.train(SHORT, extra, nproc=1, name=f"{name}-cpu")
            self.alike(half, cpu, within=0.02)
            if name == "mlp":
                continue
            whole = self.cuda(extra, way, stream, nproc=1, name=f"{name}-stream")
            self.alike(whole, cpu, within=0.02)
            self.check(self.losses(whole) != self.losses(half), "the residual stream was not rounded")
            plans = [self.cuda(extra, way, more, nproc=1, args=["--check"], name=f"{name}-plan-{i}").out for i, more in enumerate(({}, stream))]
            live = [float(re.search(r"peak of live values ([0-9.]+) KiB", p).group(1)) for p in plans]
            self.check(live[1] < 0.9 * live[0], live)

    def test_the_same_bits_however_it_is_run(self):
        """Ahead of the host or not, by graphs or not, with streams that are late."""
        adamw = {"optimizer": {"algorithm": "adamw", "momentum": None, "clip_norm": 0.5, "weight_decay": 0.1}}
        for kind, base in (("sgd", {"optimizer": {"nesterov": "yes"}}), ("clipped", {"train": {"accumulate": 3}, **adamw}),
                           ("half", {"train": {"precision": "bf16"}, "device.cuda": {"rounding": "stochastic"}, **adamw})):
            first = self.cuda(base, nproc=1, name=f"{kind}-first")
            for name, extra, env in (("again", {}, {}), ("late", {}, {"CUDA_DOUBLE_LATE": "1"}), ("plain", {"device.cuda": {"graphs": "no"}}, {}),
                                     ("trace", {"output": {"trace_steps": "1-3"}}, {})):
                r = self.cuda(base, extra, nproc=1, name=f"{kind}-{name}", env=env)
                self.equal(r.summary["parameter_sha256"], first.summary["parameter_sha256"])
                self.equal(self.losses(r), self.losses(first))
                self.equal([x.get("grad_norm") for x in self.metrics(r.dir, "step")], [x.get("grad_norm") for x in self.metrics(first.dir, "step")])

    def test_a_second_stream_gives_the_same_bits(self):
        """Gradients of parameters beside what follows them, in either extreme of the orders that the graph allows."""
        for name, extra in (("mlp", {}), ("gpt", GPT), ("half", {**GPT, "train": {**GPT["train"], "precision": "bf16"}}), ("lenet", LENET)):
            way = {"train": {"max_steps": 6}}  # the first is by no graph
            first = self.cuda(extra, way, {"device.cuda": {"side_stream": "never"}}, nproc=1, name=f"{name}-never")
            for order in ("reverse", ""):
                r = self.cuda(extra, way, {"device.cuda": {"side_stream": "always"}}, nproc=1, name=f"{name}-always-{order}",
                              env={"CUDA_DOUBLE_ORDER": order}, args=["--log-level", "debug"])
                self.check(re.search(r"[1-9]\d* may run on a second stream", r.err), r)
                self.equal(r.summary["parameter_sha256"], first.summary["parameter_sha256"])
                self.equal(self.losses(r), self.losses(first))
        r = self.cuda({"train": {"max_steps": 300, "epochs": 300}}, nproc=1, name="measured", args=["--log-level", "debug"])
        self.check(re.search(r"ms in order, [\d.]+ with a second stream", r.err), r)

    def test_recompute_and_pieces(self):
        for precision in ("f32", "bf16"):
            way = {"train": {"precision": precision, "batch_size": 9}}  # 144 rows of logits: pieces of 128 and 16
            kept = self.cuda(GPT, way, nproc=1, name=f"kept-{precision}")
            again = self.cuda(GPT, way, {"train": {"recompute": "yes"}}, nproc=1, name=f"again-{precision}")
            self.alike(again, kept, within=1e-5 if precision == "f32" else 1e-3)  # a gelu by itself and in an epilogue round differently
            pieces = self.cuda(GPT, way, {"device.cuda": {"logits": "1KiB"}}, nproc=1, name=f"pieces-{precision}")
            self.alike(pieces, kept, within=1e-5 if precision == "f32" else 1e-3)
            plans = [self.cuda(GPT, way, extra, nproc=1, args=["--check"], name=f"plan-{precision}-{i}").out
                     for i, extra in enumerate(({}, {"train": {"recompute": "yes"}}, {"device.cuda": {"logits": "1KiB"}}))]
            live = [float(re.search(r"peak of live values ([0-9.]+) KiB", p).group(1)) for p in plans]
            self.check(live[1] < live[0], live)
            self.check("linear+cross_entropy+grads" in plans[2] and "linear+cross_entropy" not in plans[0], plans)
        cpu = [self.train(SHORT, GPT, {"train": {"recompute": r}}, nproc=1, name=f"cpu-{r}") for r in ("no", "yes")]
        self.equal(cpu[0].summary["parameter_sha256"], cpu[1].summary["parameter_sha256"])

    def test_accumulates_clips_and_evaluates(self):
        extra = {"train": {"accumulate": 2}, "optimizer": {"clip_norm": 0.5}, "eval": {"plugin": "synthetic"},
                 "eval.synthetic": {"samples": 50, "shape": 12, "classes": 4, "seed": 1}}
        gpu, cpu = self.cuda(extra, nproc=1, name="gpu"), self.train(SHORT, extra, nproc=1, name="cpu")
        self.alike(gpu, cpu, within=1e-4)
        self.check(abs(gpu.summary["eval_loss"] / cpu.summary["eval_loss"] - 1) < 1e-4, (gpu.summary, cpu.summary))
        for x, y in zip(self.metrics(gpu.dir, "step"), self.metrics(cpu.dir, "step"), strict=True):
            self.check(abs(x["grad_norm"] / y["grad_norm"] - 1) < 1e-3, (x, y))

    def test_checkpoints_go_between_devices(self):
        whole = self.cuda(nproc=1, name="whole")
        for name, first, then in (("same", True, True), ("from", True, False), ("to", False, True)):
            saved = {"checkpoint": {"dir": self.dir / name}}
            half = (self.cuda if first else lambda *x, **k: self.train(SHORT, *x, **k))
            half(saved, {"train": {"max_steps": 6}}, nproc=1, name=f"{name}-1")
            rest = (self.cuda if then else lambda *x, **k: self.train(SHORT, *x, **k))
            r = rest(saved, nproc=1, name=f"{name}-2")
            self.check("resuming from" in r.err, r)
            if name == "same":
                self.equal(r.summary["parameter_sha256"], whole.summary["parameter_sha256"])
            self.check(abs(r.summary["final_loss"] / whole.summary["final_loss"] - 1) < 1e-4, (r.summary, whole.summary))

    def test_generates_and_evaluates_alone(self):
        saved = {"checkpoint": {"dir": self.dir / "ck"}}
        self.cuda(GPT, saved, nproc=1)
        texts = []
        for layers in ((CUDA,), ()):
            r = self.run("generate", "-c", self.ini("g.ini", *layers, SHORT, GPT, saved), "--prompt", "The ", "--tokens", "12",
                         "--temperature", "0", env=STRICT)
            self.equal(r.code, 0, r)
            texts.append(r.out)
            # this device keeps no keys and values, and says so once
            warned = [line for line in r.err.splitlines() if "each token computes the whole context" in line]
            self.equal(len(warned), 1 if CUDA in layers else 0, r)
            self.check(all("position_at" in line for line in warned), r)
        self.equal(texts[0], texts[1])

    # ---- several ---------------------------------------------------------------------------------------------------
    def test_ranks_over_the_hosts_memory(self):
        """Gradients go through page-locked memory; the curves are those of CPUs, and all ways have the same bits."""
        cpu = self.train(SHORT, {"group": {"backend": "gloo-tcp"}}, name="cpu")
        seen = set()
        for name, extra in (("gloo", {"group": {"backend": "gloo-tcp"}}), ("shm", {"group": {"backend": "shm"}}),
                            ("overlap", {"group": {"backend": "gloo-tcp"}, "ddp": {"overlap": "yes", "bucket_size": "1KiB", "first_bucket_size": "1KiB"}}),
                            ("zero", {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}})):
            r = self.cuda(extra, {"train": {"device": "cuda:0", "check_replicas_every": 4}}, name=name)
            self.alike(r, cpu, within=1e-4)
            seen.add(r.summary["parameter_sha256"])
        self.equal(len(seen), 1, seen)

    def test_ranks_have_a_device_each(self):
        r = self.cuda({"group": {"backend": "gloo-tcp"}})
        self.equal(r.summary["device"], "cuda:0")
        three = self.run("-c", self.ini("x.ini", CUDA, SHORT, {"group": {"backend": "gloo-tcp"}}), "--nproc", "3", env=STRICT)
        self.equal(three.code, 2, three)
        self.check("this machine shows 2 CUDA devices" in three.err, three)

    def test_hooks(self):
        for hook in ("bf16", "int8", "powersgd"):
            extra = {"hook": {"plugin": hook}, "group": {"backend": "gloo-tcp"}}
            gpu = self.cuda(extra, name=f"{hook}-gpu")
            self.alike(gpu, self.train(SHORT, extra, name=f"{hook}-cpu"), within=1e-2)

    def test_replicas_in_one_process(self):
        """An epoch's last batch does not divide: a replica's gradients are scaled."""
        extra = {"train": {"parallel": "dp", "check_replicas_every": 3, "max_steps": 0, "epochs": 2}, "data.synthetic": {"samples": 101}}
        gpu = self.cuda(extra, {"train": {"device": "cuda:0, cuda:1"}}, nproc=1, name="gpu")
        cpu = self.train(SHORT, extra, {"train": {"device": "cpu:0, cpu:1"}}, nproc=1, name="cpu")
        self.alike(gpu, cpu, within=1e-4)
        half = self.cuda(extra, {"train": {"device": "cuda:0, cuda:1", "precision": "bf16"}, "optimizer": {"lr": 0.3}}, nproc=1, name="half")
        self.alike(half, self.train(SHORT, extra, {"optimizer": {"lr": 0.3}, "train": {"device": "cpu:0, cpu:1"}}, nproc=1, name="full"),
                   within=0.02)

    # ---- what goes wrong -----------------------------------------------------------------------------------------------
    def fails(self, code, *words, layers=(), args=(), env=None):
        r = self.run("-c", self.ini("x.ini", CUDA, SHORT, *layers), *args, env={**STRICT, **(env or {})})
        self.equal(r.code, code, r)
        self.equal(len(r.errors()), 1, r)
        self.check(all(w in r.err for w in words), (words, r))

    def test_refusals(self):
        self.needs_double()
        self.fails(3, "no CUDA device on this machine", "device = cpu", env={"CUDA_DOUBLE_DEVICES": "0"})
        self.fails(3, "no NVIDIA driver", env={"CUDA_DOUBLE_DEVICES": "-1"})
        self.fails(2, "cuda:7", "numbered from 0", layers=({"train": {"device": "cuda:7"}},))
        self.fails(2, "residual = bf16 needs [train] precision = bf16", layers=({"device.cuda": {"residual": "bf16"}},))
        self.fails(3, "cuBLASLt", "none.so", layers=({"device.cuda": {"cublas_library": "none.so"}},))
        self.fails(2, "parallel = model", "memory is the host's", layers=(
            {"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu", "place": "net1:0, net2:1"},
             "data.synthetic": {"shape": 10, "classes": 0, "outputs": 5}, "train": {"parallel": "model", "device": "cuda:0, cuda:1"}},))

    def test_losses_that_are_not_finite(self):
        self.needs_double()
        self.fails(7, "not finite", "step 2", layers=({"optimizer": {"lr": 1e38}},))

    def test_a_rollback_makes_the_same_steps_again(self):
        """Also where the next step has been given out already. The learning rate of step 7 is too high for step 8, each time."""
        wild = {"optimizer": {"lr": 0.05, "schedule": "step", "step_size": 6, "gamma": 1e38}, "train": {"non_finite": "rollback"}}
        small = {"bucket_size": "1KiB", "first_bucket_size": "256"}
        for name, nproc, extra in (("one", 1, {}), ("adamw", 1, {"optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}}),
                                   ("dp", 1, {"train": {"parallel": "dp", "device": "cuda:0, cuda:1"}}),
                                   ("all_reduce", 2, {"group": {"backend": "gloo-tcp"}, "ddp": small}),
                                   ("zero", 2, {"group": {"backend": "gloo-tcp"}, "ddp": {**small, "zero": 1}})):
            r = self.cuda(wild, extra, {"checkpoint": {"dir": self.dir / f"{name}.ck", "every": 4}}, nproc=nproc, name=name, expect=7)
            self.check("went back to step 4 and made it again" in r.err, r)
            losses = {s: [m["loss"] for m in self.metrics(r.dir, "step") if m["step"] == s] for s in range(1, 8)}
            self.check(all(len(set(x)) == 1 for x in losses.values()), losses)
            self.equal([len(losses[s]) for s in range(1, 8)], [1, 1, 1, 1, 2, 2, 2], losses)

    def test_gradients_that_are_not_finite(self):
        """The loss is finite, and of all gradients the second bias's alone is not: sums of 1e37."""
        self.needs_double()
        shapes = {"fc1": (24, 12), "fc2": (17, 24), "fc3": (4, 17)}
        header, data = {}, b""
        for name, (rows, cols) in shapes.items():
            for kind, shape, values in (("weight", [rows, cols], [0.0] * rows * cols), ("bias", [rows], [1e-37] * rows)):
                if (name, kind) == ("fc3", "weight"):
                    values = [3.3e38] * cols + [-3.3e38] * (rows - 1) * cols
                raw = struct.pack(f"<{len(values)}f", *values)
                header[f"{name}.{kind}"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
                data += raw
        text = json.dumps(header).encode()
        path = self.dir / "large.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
        start = {"checkpoint": {"init_from": path}, "ddp": {"bucket_size": "256", "first_bucket_size": "256"}}
        for extra in ({}, {"optimizer": {"clip_norm": 1}}, {"output": {"dir": self.dir / "traced", "trace_steps": "1-2"}}):
            self.fails(7, "not finite", "step 1", "gradient of fc2.bias (element 0)", layers=(start, extra))

    def test_auto(self):
        self.needs_double()
        gpu = self.cuda({"train": {"device": "auto"}}, nproc=1, name="gpu")
        self.equal(gpu.summary["device"], "cuda:0")
        cpu = self.cuda({"train": {"device": "auto"}}, nproc=1, name="cpu", env={"CUDA_DOUBLE_DEVICES": "0"})
        self.equal(cpu.summary["device"], "cpu")
        self.check("device = auto: cpu, for" in cpu.err and "no CUDA device" in cpu.err, cpu)

    def test_conform(self):
        self.needs_double()
        r = self.run("conform", DOUBLE, "--set", "cublas_library=double", "--set", "cudnn_library=double",
                     "--set", "algorithm_cache=off", env=STRICT)
        self.equal(r.code, 0, r)

    def test_the_plugin_explains_itself(self):
        """The one for GPUs, here without any."""
        if not PLUGIN.exists():
            raise Skip("nvcc was not there when this was built")
        if shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0:
            raise Skip("this machine has a GPU")
        r = self.run("plugins", "cuda")
        self.equal(r.code, 0, r)
        self.check("tf32" in r.out and "device.cuda" in r.out, r)
        r = self.run("-c", self.ini("x.ini", {"train": {"device": "cuda"}}))
        self.equal(r.code, 3, r)
        self.equal(len(r.errors()), 1, r)
        self.check("NVIDIA driver" in r.err or "no CUDA device" in r.err, r)
        symbols = subprocess.run(["nm", "-D", "--defined-only", PLUGIN], capture_output=True, text=True, check=True).stdout.split()
        self.equal(symbols[2::3], ["ddp_plugin_desc"], symbols)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    harness.main(Cuda)
