"""What is done with a trained model: ddpengine eval, ddpengine generate, ddpengine checkpoint."""
import re
import shutil
import struct
import sys

import harness
from harness import Case, seldom
from test_state import EVAL

LINE = re.compile(r"eval loss (\S+), accuracy (\S+), (\d+) samples, step (\d+) of (\S+)\n")


class Eval(Case):
    def trained(self, *layers, **named):
        return self.train(EVAL, {"checkpoint": {"dir": self.dir / "ckpt", "every": 20, "keep": 0}}, *layers, **named)

    def evaluate(self, *args, nproc=2, name="run.ini", expect=0):
        r = self.run("eval", "-c", self.dir / name, *(["--nproc", nproc] if nproc else []), *args)
        self.equal(r.code, expect, r)
        if expect:
            return r
        match = LINE.fullmatch(r.out)
        self.check(match, r)
        return float(match[1]), float(match[2]), int(match[3]), int(match[4]), match[5]

    def test_gives_what_training_measured(self):
        r = self.trained()
        (measured,) = [m for m in self.metrics(r.dir, "eval") if m["step"] == 20]
        whole = (r.dir / "summary.json").read_text()
        for nproc in (0, 2, 3):
            for path, step, expected in ((self.dir / "ckpt", 40, r.summary), (self.dir / "ckpt/step-00000020", 20, measured)):
                loss, accuracy, samples, at, name = self.evaluate("--checkpoint", path, nproc=nproc)
                self.check(abs(loss - expected["eval_loss"]) <= (0 if nproc == 2 else 1e-6) * loss, (nproc, loss, expected))
                self.equal((accuracy, samples, at), (round(expected["eval_accuracy"], 6), 203, step))
                self.equal(name, str(self.dir / f"ckpt/step-{step:08d}"))
        rows = self.metrics(r.dir)
        self.equal([m["event"] for m in rows[-3:]], ["start", "eval", "end"])
        self.equal((rows[-3]["command"], rows[-2]["samples"], rows[-1]["exit_code"]), ("eval", 203, 0))
        self.check(any(m["event"] == "step" for m in rows), "the training's lines stay")
        self.equal((r.dir / "summary.json").read_text(), whole, "and so does its summary")

    def test_where_the_weights_come_from(self):
        self.trained()
        newest = self.evaluate()
        self.equal(newest[3:], (40, str(self.dir / "ckpt/step-00000040")))
        weights = self.dir / "ckpt/step-00000020/model.safetensors"
        by_file = self.evaluate("--checkpoint", weights)
        self.equal(by_file[3:], (0, str(weights)))
        self.equal(by_file[:3], self.evaluate("--set", f"checkpoint.init_from={weights}", "--set", "checkpoint.dir=")[:3])
        self.equal(by_file[:3], self.evaluate("--checkpoint", self.dir / "ckpt/step-00000020")[:3])
        self.fails(self.evaluate("--set", "checkpoint.dir=", expect=8), 8, "no weights", "--checkpoint")
        self.fails(self.evaluate("--set", f"checkpoint.dir={self.dir}/none", expect=8), 8, "no weights", "holds no checkpoint")
        (self.dir / "empty").mkdir()
        self.fails(self.evaluate("--checkpoint", self.dir / "empty", expect=8), 8, "--checkpoint", "empty")
        self.fails(self.evaluate("--checkpoint", self.dir / "absent", expect=8), 8, "--checkpoint", "absent")
        self.fails(self.evaluate("--set", "model.mlp.hidden=24", expect=8), 8, "not of this model", "unexpected (fc3.weight")
        self.check(not (self.dir / "none").exists(), "an evaluation makes no folder")

    def test_leaves_training_alone(self):
        """Neither the training data nor the batch that training is cut into matters, and nothing is saved."""
        self.trained()
        before = sorted(p.name for p in (self.dir / "ckpt").iterdir())
        self.evaluate("--set", "data.plugin=absent", "--set", "train.global_batch=96", "--set", "checkpoint.resume=never", nproc=3)
        self.equal(sorted(p.name for p in (self.dir / "ckpt").iterdir()), before)

    def test_usage(self):
        path = self.ini("run.ini")
        self.fails(self.run("eval", "-c", path), 2, "[eval] plugin is not set")
        self.fails(self.run("eval"), 2, "no config file")
        self.fails(self.run("eval", "-c", path, "--check"), 2, "--check")
        self.fails(self.run("eval", "more", "-c", path), 2, "too many arguments: more")
        self.fails(self.run("-c", path, "--checkpoint", "x"), 2, "--checkpoint belongs to eval")


class Generate(Case):
    TEXT = "The quick brown fox jumps over the lazy dog; so it goes.\n"

    def gpt(self, text=None, **model):
        """A GPT of a few thousand parameters that has learnt one line by heart."""
        path = self.dir / "text"
        path.write_bytes((text or self.TEXT.encode()) * 60)
        return {"model": {"plugin": "gpt2"}, "model.mlp": None,
                "model.gpt2": {"preset": "bytes", "layers": 2, "heads": 2, "width": 32, "context": 32, **model},
                "data": {"plugin": "tokens"}, "data.synthetic": None, "data.tokens": {"files": path, "context": 32},
                "train": {"epochs": 40, "batch_size": 8}, "optimizer": {"algorithm": "adamw", "lr": 0.01, "momentum": None},
                "checkpoint": {"dir": self.dir / "ckpt"}}

    def generate(self, *args, expect=0, **run):
        r = self.run("generate", "-c", self.dir / "run.ini", *args, **run)
        self.equal(r.code, expect, r)
        return r if expect else r.out

    @seldom
    def test_text(self):
        self.train(self.gpt())
        said = self.generate("--prompt", "The quick", "--tokens", 120, "--temperature", 0)
        self.equal(said, (self.TEXT * 3)[:9 + 120] + "\n", "greedy, and far beyond the context of 32")
        # nothing but the last 32 tokens counts
        long = (self.TEXT * 3)[-70:]
        a = self.generate("--prompt", "Nothing of it. " + long[:-32] + long[-32:], "--tokens", 20, "--temperature", 0)
        b = self.generate("--prompt", long[-32:], "--tokens", 20, "--temperature", 0)
        self.equal(a[-21:], b[-21:])
        self.equal(self.generate("--prompt", "The", "--tokens", 9, "--top-k", 1), "The quick brown"[:12] + "\n")

    @seldom
    def test_keeps_what_it_has_computed(self):
        """A text does not depend on what was computed before: a prompt of any length, up to the end of the context and beyond, goes on
        as the text did that it is the beginning of. What is drawn from several shows more than what was learnt by heart."""
        self.train(self.gpt(context=80), {"data.tokens": {"context": 80}, "train": {"epochs": 30}, "optimizer": {"lr": 0.02}})
        lengths = (*range(5, 14), 40, 63, 64, 65, 66, 67, 68, 70, 78, 79, 80, 81, 90, 270)
        for how, prompts in ((("--temperature", 0), lengths), (("--temperature", 3, "--top-k", 4, "--seed", 3), lengths[::4])):
            ids = [int(x) for x in self.generate("--prompt-tokens", "84,104,101,32,113", "--tokens", 300, *how).split()]
            self.check(len(set(ids)) > 3, ids)
            for n in prompts:
                r = self.run("generate", "-c", self.dir / "run.ini", "--prompt-tokens", ",".join(map(str, ids[:n])), "--tokens", 9, *how)
                self.equal([int(x) for x in r.out.split()], ids[:n + 9])
                self.check("whole context" not in r.err, r)

    def test_top_p(self):
        """A share that the likeliest token has alone is greedy; after top-k, and of all it is as without."""
        self.train(self.gpt(), {"train": {"max_steps": 20}})
        args = ("--prompt", "The ", "--tokens", 30)
        self.equal(self.generate(*args, "--top-p", 1e-9, "--temperature", 3), self.generate(*args, "--temperature", 0))
        drawn = self.generate(*args, "--temperature", 3, "--seed", 4)
        self.equal(self.generate(*args, "--temperature", 3, "--seed", 4, "--top-p", 1), drawn)
        self.check(self.generate(*args, "--temperature", 3, "--seed", 4, "--top-p", 0.2) != drawn)
        for bad in ("0", "1.5", "-1", "nan", "x", ""):
            self.fails(self.generate("--top-p", bad, expect=2), 2, "--top-p takes a number above 0 and at most 1")

    def test_seed_makes_the_choice(self):
        self.train(self.gpt(), {"train": {"max_steps": 20}})
        args = ("--prompt", "T", "--tokens", 40, "--temperature", 1.5)
        texts = [self.generate(*args, "--seed", seed) for seed in (1, 1, 2)]
        self.equal(texts[0], texts[1])
        self.check(texts[0] != texts[2], texts)
        self.check(texts[0] != self.generate(*args, "--seed", 1, "--top-k", 2))
        # one that is longer begins with the shorter one
        self.equal(self.generate(*args[:2], "--tokens", 10, *args[4:], "--seed", 1)[:-1], texts[0][:11])

    def test_numbers(self):
        """Tokens as numbers: those of bytes by wish, others always; padding rows are never chosen."""
        self.train(self.gpt(), {"train": {"max_steps": 20}})
        text = self.generate("--prompt", "The ", "--tokens", 12, "--temperature", 0)
        ids = self.generate("--prompt-tokens", "84,104,101,32", "--tokens", 12, "--temperature", 0)
        self.equal([int(x) for x in ids.split()], list(text.encode("latin-1"))[:-1])
        (self.dir / "t.bin").write_bytes(struct.pack("<256i", 20240520, 1, 4000, *[0] * 253) + struct.pack("<4000H", *[7, 299] * 2000))
        other = ("--set", "data.tokens.vocabulary=300", "--set", "model.gpt2.vocabulary=300", "--set", f"data.tokens.files={self.dir}/t.bin")
        self.fails(self.generate(*other, "--prompt", "x", expect=2), 2, "300 tokens", "tokenizer", "--prompt-tokens")
        padded = self.generate("--set", "model.gpt2.padded_vocabulary=4000", "--prompt-tokens", "84", "--tokens", 64,
                               "--temperature", 50)
        self.check(len(padded.split()) == 65 and max(int(x) for x in padded.split()) < 256, padded)
        for bad in ("1,256", "-1", "1,,2", "", "x"):
            self.fails(self.generate("--prompt-tokens", bad, expect=2), 2, "--prompt-tokens")
        self.fails(self.generate("--prompt", "", expect=2), 2, "--prompt is empty")

    def test_weights(self):
        self.train(self.gpt(), {"train": {"max_steps": 8}, "checkpoint": {"every": 4, "keep": 0}})
        args = ("--prompt", "T", "--tokens", 30, "--seed", 5)
        newest = self.generate(*args)
        first = self.generate(*args, "--checkpoint", self.dir / "ckpt/step-00000004")
        self.check(newest != first)
        weights = self.dir / "ckpt/step-00000008/model.safetensors"
        self.equal(self.generate(*args, "--set", "checkpoint.dir=", "--set", f"checkpoint.init_from={weights}"), newest)
        self.fails(self.generate(*args, "--checkpoint", self.dir / "none", expect=8), 8, "--checkpoint")

    def test_a_group_in_the_config_does_not_matter(self):
        self.train(self.gpt(), {"train": {"max_steps": 8}})
        args = ("--prompt", "T", "--tokens", 10)
        group = ("--set", "group.world_size=4", "--set", "group.rank=3", "--set", "group.init_method=tcp://192.0.2.1:9",
                 "--set", "train.global_batch=64")
        self.equal(self.generate(*args, *group), self.generate(*args))

    @seldom
    def test_dropout_resumes(self):
        """k steps + resume + the rest: the same elements are dropped."""
        net = self.gpt(dropout=0.2)
        short = {"train": {"epochs": 2, "accumulate": 2}, "checkpoint": {"every": 3}}
        whole = self.train(net, short, {"checkpoint": {"dir": self.dir / "whole"}}, name="whole.ini").summary
        for steps in (3, 5):
            at = {"checkpoint": {"dir": self.dir / f"part{steps}"}}
            self.train(net, short, at, {"train": {"max_steps": steps}}, name="part.ini")
            r = self.train(net, short, at, {"train": {"max_steps": 0}}, name="part.ini")
            self.check("resuming from" in r.err, r)
            self.equal(r.summary["parameter_sha256"], whole["parameter_sha256"], steps)

    def test_usage(self):
        path = self.ini("run.ini")
        for args, part in ((("--tokens", "0"), "--tokens takes"), (("--temperature", "-1"), "--temperature takes"),
                           (("--top-k", "x"), "--top-k takes"), (("--seed", "-3"), "--seed takes"), (("more",), "too many"),
                           (("--prompt", "a", "--prompt-tokens", "1"), "not both"), (("--nproc", "2"), "unknown option")):
            self.fails(self.run("generate", "-c", path, *args), 2, part)
        self.fails(self.run("generate"), 2, "no config file")
        self.check("--prompt-tokens" in self.run("generate", "--help").out)

    def test_model_without_text(self):
        r = self.run("generate", "-c", self.ini("run.ini"))
        self.fails(r, 2, 'model "mlp"', "generates no text", "field of tokens")


class Checkpoints(Case):
    """ddpengine checkpoint ls, verify, diff, prune; merge is in save/test_sharded.py."""

    def trained(self, *layers, name="run.ini", folder="ckpt"):
        self.train({"checkpoint": {"dir": self.dir / folder, "every": 10, "keep": 0}, "train": {"max_steps": 45}}, *layers,
                   nproc=1, name=name)

    def command(self, *args, expect=0):
        r = self.run("checkpoint", *args)
        self.equal(r.code, expect, r)
        return r

    def names(self, folder="ckpt"):
        return sorted(p.name for p in (self.dir / folder).iterdir())

    def test_ls_and_verify(self):
        self.trained()
        ckpt = self.dir / "ckpt"
        (ckpt / "step-00000050.tmp").mkdir()
        (ckpt / "step-00000020").rename(ckpt / "step-00000020.old")
        before = self.names()
        rows = self.command("ls", ckpt).out.splitlines()
        self.equal(rows[0].split(), ["checkpoint", "epoch", "cursor", "size", "ranks", "finished", "manifest"])
        self.equal([row.split()[0] for row in rows[1:]], ["step-00000010", "step-00000030", "step-00000040", "step-00000045",
                                                          "step-00000020.old", "step-00000050.tmp"])
        self.check(re.fullmatch(r"step-00000045 +1 +5 +[0-9.]+ KiB +1 +yes +valid", rows[4]), rows)
        self.check(rows[5].endswith("valid, set aside") and rows[6].endswith("unfinished"), rows)
        r = self.command("verify", ckpt)
        self.equal(r.out.splitlines(), [f"{ckpt}/step-000000{n}: valid" for n in (10, 30, 40, 45)])
        path = ckpt / "step-00000040/optimizer.safetensors"
        raw = bytearray(path.read_bytes())
        raw[-5] ^= 1
        path.write_bytes(raw)
        (ckpt / "step-00000010/model.safetensors").unlink()
        rows = self.command("ls", ckpt).out.splitlines()
        self.check("model.safetensors: No such file" in rows[1] and rows[3].endswith(" valid"), rows)
        r = self.command("verify", ckpt, expect=8)
        self.fails(r, 8, "2 of the 4 checkpoints in", ckpt)
        self.check(f"step-00000040: not valid: {path} is damaged" in r.out and "step-00000045: valid" in r.out, r)
        self.equal(self.command("verify", ckpt / "step-00000030").out, f"{ckpt}/step-00000030: valid\n")
        self.fails(self.command("verify", path.parent, expect=8), 8, f"{path} is damaged")
        self.equal(self.names(), before)

    def test_diff(self):
        self.trained()
        self.trained({"optimizer": {"lr": 0.1}, "model.mlp": {"hidden": "24, 9, 17"}}, name="other.ini", folder="other")
        a, b = self.dir / "ckpt/step-00000020", self.dir / "ckpt/step-00000040"
        out = self.command("diff", a, b).out
        self.check(out.startswith(f"A = {a}\nB = {b}\nposition: 4 differ\nsettings: 0 differ\n"
                                  "tensors: 12 in both, of which 12 differ; "), out)
        self.check(re.search(r"^  epoch +0 \| 1$", out, re.M), out)
        self.check(re.search(r"^  model +fc1.weight F32 \[24, 12\]: 288 of 288 elements differ, max abs [0-9.e-]+$", out, re.M), out)
        largest = [float(x) for x in re.findall("max abs ([0-9.e-]+)", out)]
        self.equal((len(largest), largest), (12, sorted(largest, reverse=True)), out)
        out = self.command("diff", a, a).out
        self.check("position: 0 differ\nsettings: 0 differ\ntensors: 12 in both, of which 0 differ" in out, out)
        self.equal(len(out.splitlines()), 5, out)
        out = self.command("diff", a, self.dir / "other/step-00000020").out
        self.check(re.search(r"^  optimizer.lr +0.05 \| 0.1$", out, re.M), out)
        self.check(re.search(r"^  model.mlp.hidden +24, 17 \| 24, 9, 17$", out, re.M), out)
        self.check("fc4.weight F32 [4, 17]: only in B" in out and "fc2.weight F32 [17, 24] | F32 [9, 24]" in out, out)
        (a / "model.safetensors").write_bytes(b"")
        self.fails(self.command("diff", a, b, expect=8), 8, a / "model.safetensors")
        self.fails(self.command("diff", b, self.dir / "ckpt", expect=8), 8, "name one of them, such as")

    def test_prune(self):
        self.trained()
        ckpt = self.dir / "ckpt"
        shutil.copytree(ckpt, self.dir / "copy")
        (ckpt / "step-00000045/model.safetensors").write_bytes(b"")
        before = self.names()
        r = self.command("prune", ckpt, "--keep", 1, "--dry-run")
        self.equal(r.out.splitlines(), [f"would remove step-000000{n}" for n in (30, 20, 10)])
        self.equal(self.names(), before)
        r = self.command("prune", ckpt, "--keep", 1, "--keep-every", 20)
        self.equal(r.out.splitlines(), ["removed step-00000030", "removed step-00000010"])
        self.equal(self.names(), [".lock", "step-00000020", "step-00000040", "step-00000045"])
        self.equal(self.command("prune", ckpt, "--keep", 9).out, f"nothing to remove in {ckpt}\n")
        # a run writes there: it alone removes
        path = self.ini("x.ini", {"train": {"epochs": 100000}, "output": {"log_every": 1}, "checkpoint": {"dir": self.dir / "copy"}})
        p = self.start("-c", path)
        self.trained_a_while(p)
        self.stand_still(p.pid)
        r = self.command("prune", self.dir / "copy", "--keep", 1, expect=8)
        self.fails(r, 8, f"process {p.pid} on host", self.dir / "copy")
        self.check("would remove step-00000040" in self.command("prune", self.dir / "copy", "--keep", 1, "--dry-run").out)
        p.kill()

    def test_usage(self):
        (self.dir / "empty").mkdir()
        for args, part in (((), "ls, verify, diff, merge or prune"), (("rm", "x"), "not rm"), (("ls",), "name a folder"),
                           (("diff", "a"), "two checkpoints"), (("merge", "a"), "a checkpoint and a folder"),
                           (("verify", "a", "b"), "too many arguments: b"),
                           (("ls", "a", "--dry-run"), "go with prune"), (("prune", "a"), "--keep N"),
                           (("prune", "a", "--keep", "0"), "--keep takes")):
            r = self.command(*args, expect=2)
            self.fails(r, 2, part, "ddpengine checkpoint --help")
        for args in (("ls", "absent"), ("verify", "absent"), ("prune", "absent", "--keep", "1"), ("diff", "absent", "absent"),
                     ("merge", "absent", "x")):
            self.fails(self.command(*args, expect=8), 8, "absent")
        self.fails(self.command("verify", "empty", expect=8), 8, "is no checkpoint and holds none")
        self.equal(self.command("ls", "empty").out, "no checkpoints in empty\n")
        self.equal(self.command("prune", "empty", "--keep", "1", "--dry-run").out, "nothing to remove in empty\n")
        self.equal(sorted(p.name for p in self.dir.iterdir()), ["empty"])
        self.check("prune DIR --keep N" in self.command("--help").out)


if __name__ == "__main__":
    sys.exit(harness.main(Eval, Generate, Checkpoints))
