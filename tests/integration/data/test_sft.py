"""[data] plugin = sft: training on conversations, the file of its samples, rows that cannot be used."""
import json
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, long_case, seldom  # noqa: E402

VECTORS = harness.SRC / "tests/parity/vectors/sft"


class Sft(Case):
    def gpt(self, rows=None, **data):
        path = self.dir / "rows.jsonl"
        rows = rows or [{"instruction": f"{n} say {n % 4}", "output": "abcd"[n % 4] * 9} for n in range(80)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"model": {"plugin": "gpt2"}, "model.mlp": None,
                "model.gpt2": {"preset": "bytes", "layers": 1, "heads": 2, "width": 32, "context": 48, "vocabulary": 512},
                "data": {"plugin": "sft"}, "data.synthetic": None,
                "data.sft": {"files": path, "length": 48, "tokenizer": VECTORS / "llama3", **data},
                "train": {"epochs": 6, "batch_size": 8}, "optimizer": {"algorithm": "adamw", "lr": 0.01, "momentum": None}}

    def test_it_is_tokenized_once_and_learned(self):
        layer = self.gpt(split="train", validation=0.2)
        layer["eval"], layer["eval.sft"] = layer["data"], {**layer["data.sft"], "split": "validation"}
        first = self.train(layer, nproc=2)
        self.check(first.summary["eval_loss"] < 0.5, first.summary)
        made = sorted(self.dir.glob("rows.jsonl.*"))
        self.equal([p.suffix for p in made], [".sft", ".sft"], "a file for each part, nothing else stays")
        before = [(p.stat().st_ino, p.stat().st_mtime_ns) for p in made]
        again = self.train(layer, nproc=2, name="again.ini")
        self.equal([(p.stat().st_ino, p.stat().st_mtime_ns) for p in made], before)
        self.equal(first.summary["parameter_sha256"], again.summary["parameter_sha256"])
        self.check("80 rows" in self.run("-c", self.ini("all.ini", self.gpt()), "--check").out, "described")
        layer["eval.sft"] = {**layer["eval.sft"], "validation": 0.3}
        self.fails(self.run("-c", self.ini("parts.ini", layer)), 2, "is divided by validation = 0.2", "0.3")
        (self.dir / "more.jsonl").write_text(json.dumps({"instruction": "x", "output": "y"}) + "\n")
        more = layer["data.sft"]["files"].with_name("more.jsonl")
        both = {**layer, "eval.sft": {**layer["eval.sft"], "files": f"{more}, {layer['data.sft']['files']}"}}
        self.fails(self.run("-c", self.ini("parts.ini", both)), 2, "rows.jsonl", "is divided by validation = 0.2", "0.3")

    @seldom
    def test_the_loss_is_that_of_all_answers(self):
        """Answers of 1 to 40 letters: a step is the mean over all their tokens, however they are divided."""
        rows = [{"instruction": f"{n} say {n % 4}", "output": "abcd"[n % 4] * (1 + n * n % 40)} for n in range(64)]
        self.check("the mean over all labels of a step that count" in self.run("-c", self.ini("c.ini", self.gpt(rows)), "--check").out)
        runs = {}
        for accumulate, ranks in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)):
            layer = harness.merged(self.gpt(rows), {"train": {"batch_size": None, "global_batch": 16, "accumulate": accumulate, "epochs": 2}})
            r = self.train(layer, nproc=ranks, name=f"{accumulate}-{ranks}.ini")
            runs[accumulate, ranks] = [m["loss"] for m in self.metrics(r.dir, "step")]
        first = runs[1, 1]
        for split, losses in runs.items():
            self.check(all(abs(a - b) <= 1e-6 * a for a, b in zip(first, losses, strict=True)), (split, first, losses))

    def test_packed_separately(self):
        """A conversation has the same loss by itself and beside others that it does not see."""
        losses = {}
        for packing in ("no", "separate", "yes"):
            layer = self.gpt(packing=packing, length=160)
            layer["model"], layer["model.gpt2"] = {"plugin": "llama"}, None
            layer["model.llama"] = {"vocabulary": 512, "width": 32, "intermediate": 64, "layers": 2, "heads": 2, "context": 160}
            layer["eval"], layer["eval.sft"] = layer["data"], layer["data.sft"]
            layer["train"] = {"epochs": 1, "max_steps": 1, "batch_size": 2}
            layer["optimizer"] = {"algorithm": "sgd", "lr": 0, "momentum": None}
            losses[packing] = self.train(layer, name=f"{packing}.ini").summary["eval_loss"]
        self.check(abs(losses["separate"] - losses["no"]) < 1e-5 * losses["no"], losses)
        self.check(abs(losses["yes"] - losses["no"]) > 1e-5 * losses["no"], losses)

    def test_bad_rows(self):
        layer = self.gpt([{"instruction": "a", "output": "b"}] * 20 + [{"instruction": "a", "output": None}])
        self.fails(self.run("-c", self.ini("bad.ini", layer), "--nproc", 2), 10, f"{self.dir}/rows.jsonl:21: no text under",
                   "skip_bad = yes")
        self.equal(list(self.dir.glob("rows.*.part")), [], "what is not finished goes with its failure")
        layer["data.sft"]["skip_bad"] = "yes"
        r = self.train(layer, name="skip.ini")
        self.check("1 bad row is left out; the first is" in r.err, r.err)
        layer["data.sft"]["packing"] = "separate"
        self.fails(self.run("-c", self.ini("apart.ini", layer)), 2, 'model "gpt2" on [data] plugin = sft', "must not see each other")
        layer["data.sft"]["packing"] = "no"
        layer["data.sft"]["template"] = "lama3"
        self.fails(self.run("-c", self.ini("name.ini", layer)), 2, "template = lama3", "write one of alpaca, chatml, default")

    @seldom
    def test_packed_apart(self):
        """Model llama on packed samples that do not see each other: learned, with its blocks recomputed too; text from it."""
        layer = self.gpt(packing="separate")
        del layer["model.gpt2"]
        layer |= {"model": {"plugin": "llama"}, "checkpoint": {"dir": self.dir / "ckpt"},
                  "model.llama": {"vocabulary": 512, "width": 32, "intermediate": 48, "layers": 2, "heads": 4, "kv_heads": 2}}
        layer["train"] |= {"epochs": 20, "batch_size": 2}
        kept = self.train(layer)
        self.check(kept.summary["final_loss"] < 0.7, kept.summary)
        r = self.train(layer, {"train": {"recompute": "blocks"}, "checkpoint": {"dir": self.dir / "again"}}, name="again.ini")
        self.equal(r.summary["parameter_sha256"], kept.summary["parameter_sha256"])
        r = self.run("generate", "-c", self.dir / "run.ini", "--prompt", "7 say 3", "--tokens", 12, "--temperature", 0)
        self.equal(r.code, 0, r)
        self.check("whole context" not in r.err, "keys and values are kept, segments and positions are not asked for")

    @long_case
    def test_what_a_killed_process_leaves(self):
        rows = [{"instruction": f"say {n} " * 30, "output": "abcd"[n % 4] * 9} for n in range(60000)]
        command = [str(harness.ENGINE), "-c", str(self.ini("run.ini", self.gpt(rows))), "--check"]
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while p.poll() is None and not any(f.stat().st_size > 0 for f in self.dir.glob("rows.*.part")):
            self.check(time.monotonic() < deadline, "nothing is written")
        p.send_signal(signal.SIGKILL)
        self.equal(p.wait(), -signal.SIGKILL, "it was at work")
        self.equal(list(self.dir.glob("rows.*.sft")), [])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.equal(list(self.dir.glob("rows.*.part")), [])
        (path,) = self.dir.glob("rows.*.sft")
        whole = path.read_bytes()
        path.write_bytes(whole[:-100])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.equal(path.read_bytes(), whole, "a file that was cut is made again")


if __name__ == "__main__":
    sys.exit(harness.main(Sft))
