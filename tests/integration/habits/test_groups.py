"""Parameter groups by name: [optimizer] no_decay and lr_factor are torch's parameter groups, in every way of an update."""
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SRC, Case, seldom  # noqa: E402

STORED = json.loads((SRC / "tests/parity/vectors/groups.json").read_text())
NET = "[input] field = input\n[linear] out = 9\n[gelu]\n[layer_norm]\n[linear] out = 3\n[loss] type = cross_entropy\n[metric] type = accuracy\n"


def write_npy(path, descr, shape, data):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)


def tensors(path):
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = struct.unpack(f"<{(b - a) // 4}f", raw[8 + size + a:8 + size + b])
    return out


class Groups(Case):
    def torch_layers(self, name):
        """The run of make_groups.py: all samples are in every batch."""
        x, y = STORED["x"], STORED["y"]
        write_npy(self.dir / "x.npy", "<f4", (len(x), len(x[0])), b"".join(struct.pack(f"<{len(r)}f", *r) for r in x))
        write_npy(self.dir / "y.npy", "<i8", (len(y),), struct.pack(f"<{len(y)}q", *y))
        (self.dir / "n.net").write_text(NET)
        source = {"input": self.dir / "x.npy", "label": self.dir / "y.npy"}
        return [{"train": {"batch_size": None, "global_batch": len(x), "epochs": 100, "eval_every": 0, "seed": STORED["seed"]},
                 "data": {"plugin": "npy"}, "data.npy": source, "data.synthetic": None,
                 "eval": {"plugin": "npy"}, "eval.npy": source,
                 "model": {"plugin": "layers"}, "model.mlp": None, "model.layers": {"net": self.dir / "n.net"},
                 "checkpoint": {"dir": self.dir / "ck", "resume": "never"},
                 "optimizer": {"algorithm": name, "momentum": None, **STORED["optimizers"][name],
                               "no_decay": ", ".join(STORED["no_decay"]),
                               "lr_factor": ", ".join(f"{p}:{f}" for p, f in STORED["factors"])}}]

    def compare(self, ours, theirs, what):
        worst = max(abs(a - b) for n, values in theirs.items() for a, b in zip(ours[n], values, strict=True))
        print(f"# {what}: largest difference {worst:.1e}")
        self.check(worst <= 1e-6, (what, worst))

    def test_as_torch(self):
        for name in STORED["runs"]:
            for ranks in (0, 2):
                r = self.train(*self.torch_layers(name), nproc=ranks)
                want = STORED["runs"][name]
                for step, (a, b) in enumerate(zip([m["loss"] for m in self.metrics(r.dir, "step")], want["losses"], strict=True)):
                    self.check(abs(a - b) <= 1e-6 * max(abs(b), 1), (name, step, a, b))
                self.compare(tensors(self.dir / "ck/step-00000100/model.safetensors"), want["parameters"], f"{name}, {ranks} ranks")

    @seldom
    def test_noise_scale(self):
        """[train] noise_scale at the first parameters, which stay: in every way of an update, and without any effect."""
        still = {"optimizer": {"lr": 0}, "sampler.distributed": {"shuffle": "no"}, "train": {"noise_scale": "yes", "epochs": 3},
                 "ddp": {"bucket_size": "256", "first_bucket_size": "128"}}
        for ranks, accumulate, want in STORED["noise"]:
            for name, way in self.WAYS.items():
                if name == "zero" and ranks == 1:
                    continue
                r = self.train(*self.torch_layers("sgd"), still, {"train": {"accumulate": accumulate}}, way, nproc=ranks)
                got = [m["noise_scale"] for m in self.metrics(r.dir, "step")]
                self.check(all(abs(v - want) <= 1e-4 * want for v in got), (name, ranks, accumulate, got, want))
        dp = self.train(*self.torch_layers("sgd"), still, {"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}}, nproc=0)
        self.check(all(m["noise_scale"] is None or m["noise_scale"] > 0 for m in self.metrics(dp.dir, "step")))
        on, off = (self.train({"train": {"noise_scale": v, "accumulate": 2}}, name=v) for v in ("yes", "no"))
        self.equal(on.summary["parameter_sha256"], off.summary["parameter_sha256"])
        self.check("noise_scale" not in self.metrics(off.dir, "step")[0] and "noise_scale" in self.metrics(on.dir, "step")[0])
        for layers, part in (([], "set accumulate"), ([{"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"place": "net1:0, net2:1"},
                             "data.synthetic": {"shape": 10, "classes": 0, "outputs": 5}, "train": {"parallel": "model", "device": "cpu:0, cpu:1"}}],
                             "parallel = model")):
            self.fails(self.run("-c", self.ini("x.ini", {"train": {"noise_scale": "yes"}}, *layers), "--check"), 2, "[train] noise_scale", part)

    WAYS = {"direct": {"group": {"backend": "shm"}}, "all_reduce": {"group": {"backend": "shm"}, "ddp": {"shard_update": "no"}},
            "overlap": {"group": {"backend": "shm"}, "ddp": {"overlap": "yes"}},
            "zero": {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}},
            "clip": {"group": {"backend": "shm"}, "optimizer": {"clip_norm": 1e9}}}
    GROUPS = {"optimizer": {"algorithm": "adamw", "lr": 0.01, "momentum": None, "weight_decay": 0.1, "no_decay": "auto",
                            "lr_factor": "fc3.*:3, fc1.weight:0.25"},
              "ddp": {"bucket_size": "1KiB", "first_bucket_size": "256"}}

    def test_all_ways_have_the_same_bits(self):
        sums = {n: self.train(self.GROUPS, way, name=n).summary["parameter_sha256"] for n, way in self.WAYS.items()}
        self.equal(len(set(sums.values())), 1, sums)
        plain = self.train({"optimizer": {**self.GROUPS["optimizer"], "no_decay": None, "lr_factor": None}, "ddp": self.GROUPS["ddp"]}, name="p")
        self.check(plain.summary["parameter_sha256"] not in sums.values())

    def test_stages_and_one_rank(self):
        toy = {"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu", "place": "net1:0, net2:1"},
               "data.synthetic": {"shape": 10, "classes": 0, "outputs": 5}, "train": {"max_steps": 50, "epochs": 9},
               "optimizer": {"lr_factor": "net2.*:3"}}
        stages = {"train": {"parallel": "model", "device": "cpu:0, cpu:1"}}
        sums = [self.train(self.GROUPS, toy, layer, nproc=0, name=f"{n}").summary["parameter_sha256"]
                for n, layer in enumerate(({}, {"ddp": {"shard_update": "no"}}, stages))]
        self.equal(len(set(sums)), 1, sums)

    def test_replicas(self):
        """Plain SGD, samples in order: the mean of two replicas' means is that of two ranks."""
        plain = {"optimizer": {"momentum": 0, "lr": 0.01, "weight_decay": 0.1, "no_decay": "auto", "lr_factor": "fc3.*:3"},
                 "sampler.distributed": {"shuffle": "no"}}
        dp, ddp = (self.train(plain, layer, nproc=n, name=f"{n}") for n, layer in
                   ((0, {"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}}), (2, {})))
        for x, y in zip(self.metrics(dp.dir, "step"), self.metrics(ddp.dir, "step"), strict=True):
            self.check(abs(x["loss"] - y["loss"]) <= 1e-5 * abs(y["loss"]), (x, y))

    def test_a_factor_is_that_of_lr(self):
        """All parameters by 4 is four times the rate; by 0 they stay."""
        a = self.train({"optimizer": {"lr_factor": "*:4", "lr": 0.01}}, name="a")
        b = self.train({"optimizer": {"lr": 0.04}}, name="b")
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])
        a = self.train({"optimizer": {"weight_decay": 0.1, "no_decay": "*"}}, name="c")
        b = self.train({"optimizer": {"weight_decay": 0}}, name="d")
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])

    def test_check_prints_them(self):
        path = self.ini("c.ini", self.GROUPS)
        out = self.run("-c", path, "--check").out
        for part in ("groups                5, as [optimizer] no_decay and lr_factor say", "  lr 0.01 x 0.25, weight_decay 0.1: 288 in 1 tensor, fc1.weight\n",
                     "  lr 0.01 x 3, weight_decay 0: 4 in 1 tensor, fc3.bias\n", "  lr 0.01 x 1, weight_decay 0: 41 in 2 tensors, fc1.bias, fc2.bias\n"):
            self.check(part in out, (part, out))
        self.check("groups  " not in self.run("-c", self.ini("d.ini"), "--check").out)

    def test_mistakes(self):
        path = self.ini("m.ini", {"optimizer": {"no_decay": "*bais"}})
        self.fails(self.run("-c", path, "--check"), 2, f"{path}:", "[optimizer] no_decay: \"*bais\" names no parameter", "near are fc1.bias, fc2.bias")
        path = self.ini("n.ini")
        for setting, *parts in (("no_decay=*norm*", "there are fc1.weight"), ("lr_factor=fc9.*:2", "near are fc1.weight"),
                                ("lr_factor=fc1.*", "write for example head.*:10"), ("lr_factor=fc1.*:-1", "write for example"),
                                ("lr_factor=:2", "write for example"), ("lr_factor=fc1.*:2x", "write for example")):
            self.fails(self.run("-c", path, "--check", "--set", f"optimizer.{setting}"), 2, *parts)


if __name__ == "__main__":
    sys.exit(harness.main(Groups))
