"""State of a model beside its parameters: buffers, from the first step to a resumed run."""
import hashlib
import json
import struct
import subprocess
import sys

import harness
from harness import SRC, Case, seldom
from checkpoint_files import read_safetensors

# 640 samples, 2 ranks x 16: 20 steps an epoch
BUFFERED = {"model": {"plugin": "buffered"}, "model.mlp": None, "model.buffered": {}}
EVAL = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 203, "shape": 12, "classes": 4, "seed": 1}}


class State(Case):
    def trained(self, *layers, **named):
        plugins = self.dir / "plugins"
        if not plugins.exists():
            plugins.mkdir()
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", f"-I{SRC}/core/include",
                            f"{SRC}/tests/integration/support/buffered_model.c", "-o", plugins / "model_buffered.so", "-lm"], check=True)
        return self.train({"plugins": {"path": plugins}}, BUFFERED, *layers, **named)

    def newest(self, folder="ckpt"):
        return sorted((self.dir / folder).glob("step-????????"))[-1]

    def model(self, folder="ckpt"):
        return read_safetensors(self.newest(folder) / "model.safetensors")

    def micro_steps(self, folder):
        return json.loads((self.newest(folder) / "MANIFEST.json").read_text())["micro_steps"]

    def test_saved_in_state_dict_order_and_hashed(self):
        r = self.trained({"checkpoint": {"dir": self.dir / "ckpt"}, "train": {"accumulate": 2}})
        model = self.model()
        # within one element size the order is state_dict's
        self.equal([n for n, t in model.items() if t[0] == "F32"],
                   ["fc1.weight", "fc1.bias", "scale", "fc2.weight", "fc2.bias"])
        self.equal(model["calls"], ("I64", [], struct.pack("<q", 40)), "two epochs of 20 micro-steps")
        self.equal(model["scale"], ("F32", [2, 3], struct.pack("<6f", *[0.25] * 6)))
        self.equal(r.summary["buffer_sha256"], hashlib.sha256(model["scale"][2] + model["calls"][2]).hexdigest())
        params = b"".join(model[n][2] for n in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"))
        self.equal(r.summary["parameter_sha256"], hashlib.sha256(params).hexdigest())
        self.equal(self.micro_steps("ckpt"), 40)

    def test_none_is_null(self):
        self.equal(self.train().summary["buffer_sha256"], None)

    def resumed(self, *extra):
        """k steps + resume + the rest = N steps, parameters and buffers bit for bit, also in the middle of accumulation's epoch."""
        save = {"checkpoint": {"every": 10, "keep": 2}, "train": {"accumulate": 3}}
        whole = self.trained(save, EVAL, *extra, {"checkpoint": {"dir": self.dir / "whole"}}, name="whole.ini").summary
        for steps in (3, 7, 11):
            at = {"checkpoint": {"dir": self.dir / f"part{steps}"}}
            self.trained(save, EVAL, *extra, at, {"train": {"max_steps": steps}}, name="part.ini")
            r = self.trained(save, EVAL, *extra, at, {"train": {"max_steps": 0}}, name="part.ini")
            self.check("resuming from" in r.err, r)
            for key in ("parameter_sha256", "buffer_sha256", "eval_loss", "eval_accuracy", "steps"):
                self.equal(r.summary[key], whole[key], (steps, key))
            self.equal(self.micro_steps(f"part{steps}"), self.micro_steps("whole"))

    def test_resumed_is_the_uninterrupted_run(self):
        self.resumed()

    NORM = {"model.buffered": {"norm": "yes"}}

    def test_running_statistics_resume(self):
        self.resumed(self.NORM)

    def test_running_statistics_are_those_of_rank_0(self):
        """Rank 0 keeps those of its own batch, not of all ranks'."""
        only = {"train": {"max_steps": 1}, "optimizer": {"lr": 0}, "sampler": {"plugin": "distributed"},
                "sampler.distributed": {"shuffle": "no"}}
        at = {"checkpoint": {"dir": self.dir / "ckpt", "resume": "never"}}
        self.trained(at, only, self.NORM)
        two = self.model()
        self.equal(two["bn1.num_batches_tracked"][2], struct.pack("<q", 1))
        mean = struct.unpack("<17f", two["bn1.running_mean"][2])
        self.check(any(abs(x) > 1e-4 for x in mean), mean)
        self.trained(at, only, self.NORM, nproc=1, args=["--set", "train.batch_size=32"])
        one = struct.unpack("<17f", self.model()["bn1.running_mean"][2])
        self.check(any(abs(a - b) > 1e-4 for a, b in zip(mean, one, strict=True)), "a batch of its own")

    def test_advice_leaves_running_statistics(self):
        """What advice = full computes before step 0 changes nothing of the run."""
        at = {"train": {"max_steps": 3}}
        plain, advised = (self.trained(self.NORM, at, {"output": {"advice": a}}, name=f"{a}.ini").summary for a in ("no", "full"))
        for key in ("parameter_sha256", "buffer_sha256"):
            self.equal(advised[key], plain[key], key)

    def test_broadcast_buffers(self):
        """yes: all ranks evaluate with rank 0's, as one process with rank 0's checkpoint does; no: each with its own."""
        at = {"checkpoint": {"dir": self.dir / "ckpt", "resume": "never"}}
        loss = {}
        for wish in ("yes", "no"):
            r = self.trained(EVAL, self.NORM, at, {"ddp": {"broadcast_buffers": wish}})
            alone = self.run("eval", "-c", self.dir / "run.ini", "--nproc", 1)
            loss[wish] = r.summary["eval_loss"], float(alone.out.split("loss ")[1].split(",")[0])
        self.check(abs(loss["yes"][0] - loss["yes"][1]) < 1e-6, loss)
        self.check(abs(loss["no"][0] - loss["no"][1]) > 1e-5, loss)
        self.equal(loss["yes"][1], loss["no"][1], "training does not look at them")

    def test_checkpoint_of_an_earlier_version(self):
        """Without micro_steps in its manifest: they follow from the position."""
        at = {"checkpoint": {"dir": self.dir / "ckpt", "every": 100}}
        self.trained(at, {"train": {"max_steps": 13}})
        path = self.newest() / "MANIFEST.json"
        manifest = json.loads(path.read_text())
        del manifest["micro_steps"], manifest["checksum"]
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        manifest["checksum"] = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(json.dumps(manifest))
        self.trained(at)
        self.equal(self.micro_steps("ckpt"), 40)

    def test_resumed_with_other_ranks_counts_on(self):
        at = {"checkpoint": {"dir": self.dir / "ckpt"}}
        self.trained(at, {"train": {"epochs": 1}})
        self.trained(at, nproc=4)
        self.equal(self.micro_steps("ckpt"), 20 + 10)

    def test_checkpoint_without_the_buffers_is_of_another_model(self):
        at = {"checkpoint": {"dir": self.dir / "ckpt"}}
        self.trained(at, {"train": {"max_steps": 1}, "model.buffered": {"norm": "no"}})
        r = self.train(at, {"model.mlp": {"hidden": 17}, "checkpoint": {"resume": "auto"}}, expect=8, name="other.ini")
        self.fails(r, 8, "another model", "calls is i64 there and absent")

    def test_evaluated_alone(self):
        r = self.trained(EVAL, {"checkpoint": {"dir": self.dir / "ckpt"}})
        r2 = self.run("eval", "-c", self.dir / "run.ini", "--nproc", 2)
        self.check(f"eval loss {r.summary['eval_loss']:.9g}," in r2.out, (r.summary, r2))

    # ---- init_from -----------------------------------------------------------------------------------------------------
    def write(self, name, tensors):
        """{name: (dtype, shape, bytes)} as a safetensors file, as others lay it out: in the order given."""
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for key, (dtype, shape, raw) in tensors.items():
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
            at += len(raw)
        text = json.dumps(header).encode()
        (self.dir / name).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
        return self.dir / name

    def taken(self, path, *layers, expect=0, first="fc1"):
        """The model after a step at a learning rate of 0: what it was initialised to, but for the count."""
        r = self.trained({"checkpoint": {"dir": self.dir / "fresh", "init_from": path, "resume": "never"},
                          "optimizer": {"lr": 0, "momentum": 0}, "train": {"max_steps": 1}, "model.buffered": {"first": first}},
                         *layers, name="fresh.ini", expect=expect)
        return r if expect else self.model("fresh")

    def source(self, seed=9):
        self.trained({"checkpoint": {"dir": self.dir / "source", "resume": "never"}, "train": {"max_steps": 5, "seed": seed}})
        return self.model("source")

    def test_init_from_checkpoint(self):
        model = self.source()
        for path in (self.newest("source"), self.newest("source") / "model.safetensors"):
            taken = self.taken(path)
            self.equal(taken.pop("calls")[2], struct.pack("<q", 6), "a count goes on")
            self.equal(taken, {n: t for n, t in model.items() if n != "calls"})

    def test_init_from_is_for_the_start(self):
        """A checkpoint to resume from comes first."""
        other = self.write("other.safetensors", self.source())
        at = {"checkpoint": {"dir": self.dir / "ckpt", "init_from": other, "every": 100}}
        whole = self.trained(at, {"checkpoint": {"dir": self.dir / "whole"}}).summary
        self.trained(at, {"train": {"max_steps": 7}})
        r = self.trained(at)
        self.check("resuming from" in r.err, r)
        self.equal(r.summary["parameter_sha256"], whole["parameter_sha256"])
        self.check(whole["parameter_sha256"] != self.trained(name="plain.ini").summary["parameter_sha256"])

    def test_init_from_other_dtypes_and_prefixes(self):
        model = self.source()
        weight = struct.unpack(f"<{17 * 12}f", model["fc1.weight"][2])
        values = [0.0, -0.0, 6e-8, -5.9e-5, 6.1e-5, 65504.0, 1 / 3, -2.5] + list(weight[8:])
        bf16 = b"".join(struct.pack("<f", v)[2:] for v in values)
        cases = {"F16": (struct.pack(f"<{len(values)}e", *values), lambda raw: struct.unpack(f"<{len(values)}e", raw)),
                 "BF16": (bf16, lambda raw: [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]),
                 "F64": (struct.pack(f"<{len(values)}d", *values), lambda raw: struct.unpack(f"<{len(values)}d", raw))}
        for prefix, (dtype, (raw, read)) in zip(("", "module.", "module.transformer."), cases.items(), strict=True):
            # an odd byte in front, so that nothing is aligned
            tensors = {"h.0.attn.bias": ("BOOL", [1, 1, 1, 1], b"\1"), **model, "fc1.weight": (dtype, [17, 12], raw)}
            del tensors["calls"]  # a count that older files lack starts at 0
            taken = self.taken(self.write("x.safetensors", {prefix + n: t for n, t in tensors.items()}))
            self.equal(taken["fc1.weight"][2], struct.pack(f"<{len(values)}f", *read(raw)), dtype)
            self.equal(taken["calls"][2], struct.pack("<q", 1))
            self.equal(taken["fc2.bias"], model["fc2.bias"])

    def test_init_from_tied_output_layer(self):
        model = {n.replace("fc1", "wte"): t for n, t in self.source().items()}
        tied = {**model, "lm_head.weight": model["wte.weight"], "h.0.attn.bias": ("U8", [1, 1, 2, 2], b"\1\0\1\1"),
                "h.0.attn.masked_bias": ("F32", [], struct.pack("<f", -1e4))}
        self.equal(self.taken(self.write("tied.safetensors", tied), first="wte")["wte.weight"], model["wte.weight"])
        untied = {**tied, "lm_head.weight": ("F32", [17, 12], bytes(17 * 12 * 4))}
        self.fails(self.taken(self.write("untied.safetensors", untied), first="wte", expect=8), 8, "1 unexpected (lm_head.weight)")

    @seldom
    def test_init_from_several_files(self):
        """A folder as Hugging Face's save_pretrained splits it: an index, and files in the dtypes of others."""
        model = {n: t for n, t in self.source().items() if n != "calls"}
        folder = self.dir / "split"
        folder.mkdir()
        where = {n: f"model-{i % 3 + 1:05}-of-00003.safetensors" for i, n in enumerate(model)}

        def split(change=lambda index: None, **more):
            for file in set(where.values()):
                self.write("split/" + file, {n: t for n, t in {**model, **more}.items() if where.get(n, file) == file})
            index = {"metadata": {"total_size": 1}, "weight_map": dict(where)}
            change(index)
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            return folder
        for path in (split(), folder / "model.safetensors.index.json"):
            taken = self.taken(path)
            self.equal({n: t for n, t in taken.items() if n != "calls"}, model)
        name, file = next(iter(where.items()))
        other = next(f for f in where.values() if f != file)
        for change, *parts in (
                (lambda i: i["weight_map"].update({"fc1.weight": "../x.safetensors"}), '"fc1.weight"', "../x.safetensors"),
                (lambda i: i["weight_map"].update({"extra": file}), f'{file} has no tensor "extra"'),
                (lambda i: i["weight_map"].update({name: other}), f'{other} has no tensor "{name}"'),
                (lambda i: i["weight_map"].pop(name), f'tensor "{name}" of {file}', "not in weight_map"),
                (lambda i: i["weight_map"].update({"extra": "absent.safetensors"}), "cannot open", "absent.safetensors"),
                (lambda i: i["weight_map"].clear(), "no weight_map"), (lambda i: i.update({"weight_map": 3}), "no weight_map")):
            self.fails(self.taken(split(change), expect=8), 8, "init_from", "model.safetensors.index.json", *parts)
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {')
        self.fails(self.taken(folder, expect=8), 8, "model.safetensors.index.json:1: not JSON")
        split(scale=("F32", [3, 2], model["scale"][2]))
        self.fails(self.taken(folder, expect=8), 8, f"scale: f32 3x2 there in {where['scale']}, f32 2x3 here")

    def test_init_from_another_model(self):
        model = self.source()
        wrong = {n: t for n, t in model.items() if n not in ("fc1.bias", "fc2.weight")}
        wrong |= {"scale": ("F32", [3, 2], model["scale"][2]), "calls": ("I32", [], bytes(4)), "fc2.weights": model["fc2.weight"]}
        wrong |= {f"extra.{i}": ("F32", [1], bytes(4)) for i in range(5)}
        r = self.taken(self.write("wrong.safetensors", wrong), expect=8)
        self.fails(r, 8, "2 missing (fc1.bias, fc2.weight)",
                   "2 of another shape or dtype (scale: f32 3x2 there, f32 2x3 here, calls: i32 there, i64 here)",
                   "6 unexpected (fc2.weights, extra.0, extra.1, ..)", "wrong.safetensors")
        self.check("extra.4 is unexpected: f32 1 in the file, absent in the model" in r.err, r)
        self.fails(self.taken(self.dir / "nowhere.safetensors", expect=8), 8, "init_from", "nowhere.safetensors")
        (self.dir / "text.safetensors").write_text("not a file of tensors at all")
        self.fails(self.taken(self.dir / "text.safetensors", expect=8), 8, "init_from", "text.safetensors", "damaged")


if __name__ == "__main__":
    sys.exit(harness.main(State))
