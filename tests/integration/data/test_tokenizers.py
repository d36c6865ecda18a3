"""[data.tokens] tokenizer: ddpengine tokenize, the cache of a text's tokens, generate with text."""
import json
import pathlib
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, long_case, seldom  # noqa: E402

VECTORS = harness.SRC / "tests/parity/vectors/tokenizers"
TEXT = "The quick brown fox jumps over the lazy dog; so it goes.\n"


class Tokenizers(Case):
    def gpt(self, name="llama3", text=TEXT * 60, **data):
        path = self.dir / "text"
        path.write_text(text)
        return {"model": {"plugin": "gpt2"}, "model.mlp": None,
                "model.gpt2": {"preset": "bytes", "layers": 2, "heads": 2, "width": 32, "context": 16, "vocabulary": 512},
                "data": {"plugin": "tokens"}, "data.synthetic": None,
                "data.tokens": {"files": path, "context": 16, "tokenizer": VECTORS / f"{name}.json", **data},
                "train": {"epochs": 20, "batch_size": 8}, "optimizer": {"algorithm": "adamw", "lr": 0.01, "momentum": None},
                "checkpoint": {"dir": self.dir / "ckpt"}}

    def tokens(self):
        (path,) = self.dir.glob("text.*.tokens")
        data = path.read_bytes()
        return path, list(struct.unpack(f"<{(len(data) - 64) // 4}I", data[64:]))

    def ids(self, *args, **run):
        r = self.run("tokenize", "-c", self.dir / "run.ini", "--ids", *args, **run)
        self.equal(r.code, 0, r)
        return [int(x) for x in r.out.split(",")]

    def test_the_example(self):
        """conf/text-tokenizer.ini with a small model and a small tokenizer; then its tokens are there."""
        model = {"layers": 1, "heads": 2, "width": 16, "context": 32, "vocabulary": 512}
        data = {"tokenizer": VECTORS / "gpt2.json", "context": 32, "cache": self.dir / "tokens"}
        sets = {**{f"model.gpt2.{k}": v for k, v in model.items()}, **{f"{s}.tokens.{k}": v for s in ("data", "eval") for k, v in data.items()},
                "train.max_steps": 2, "checkpoint.dir": self.dir / "ckpt", "output.dir": self.dir / "run"}
        r = self.run("-c", harness.SRC / "conf/text-tokenizer.ini", *[x for k, v in sets.items() for x in ("--set", f"{k}={v}")])
        self.equal(r.code, 0, r)
        self.check(any(p.suffix == ".tokens" for p in (self.dir / "tokens").iterdir()), list((self.dir / "tokens").iterdir()))

    def test_tokenize(self):
        self.ini("run.ini", self.gpt())
        case = next(c for c in json.loads((VECTORS / "llama3.cases").read_text()) if "THEY" in c[0])
        (self.dir / "one").write_text(case[0])
        self.equal(self.ids(self.dir / "one"), case[2])
        r = self.run("tokenize", "-c", self.dir / "run.ini", self.dir / "one")
        self.equal(r.out, f"{len(case[2])} tokens of {len(case[0])} bytes, {len(case[0]) / len(case[2]):.2f} bytes a token\n")
        (self.dir / "two").write_text("a\n\t b<s>")
        r = self.run("tokenize", "-c", self.dir / "run.ini", "--pieces", self.dir / "two")
        self.equal("".join(line.split("\t", 1)[1] for line in r.out.splitlines()), "a\\n\\t b<s>", r)
        r = self.run("tokenize", "-c", self.dir / "run.ini", "--set", "data.tokens.tokenizer=", self.dir / "two")
        self.equal(r.out, "8 tokens of 8 bytes, 1.00 bytes a token\n", "bytes")
        self.fails(self.run("tokenize", "-c", self.dir / "run.ini", self.dir / "none"), 10, "none", "cannot be opened")
        self.fails(self.run("tokenize", self.dir / "two"), 2, "no config file")
        (self.dir / "bad.json").write_text('{"model": {"type": "WordPiece"}}')
        self.fails(self.run("tokenize", "-c", self.dir / "run.ini", "--set", f"data.tokens.tokenizer={self.dir}/bad.json"), 10,
                   "bad.json", 'model of type "WordPiece" is not supported')

    def test_text_is_tokenized_once(self):
        first = self.train(self.gpt(), nproc=2)
        path, ids = self.tokens()
        self.equal(ids, self.ids(self.dir / "text"))
        self.equal(sorted(p.name for p in self.dir.glob("text*")), ["text", path.name], "nothing else stays")
        before = path.stat()
        again = self.train(self.gpt(), nproc=2, name="again.ini")
        self.equal((path.stat().st_ino, path.stat().st_mtime_ns), (before.st_ino, before.st_mtime_ns))
        self.equal(first.summary["parameter_sha256"], again.summary["parameter_sha256"])
        # a pattern that matches the file of tokens too is of the text alone
        same = self.train({**self.gpt(), "data.tokens": {**self.gpt()["data.tokens"], "files": f"{self.dir}/text*"}}, nproc=2, name="pattern.ini")
        self.equal(first.summary["parameter_sha256"], same.summary["parameter_sha256"])
        self.equal(sorted(p.name for p in self.dir.glob("text*")), ["text", path.name])
        cache = self.dir / "of" / "tokens" / "cache"
        self.train(self.gpt(cache=cache), name="elsewhere.ini")
        (other,) = cache.iterdir()
        self.equal(other.read_bytes(), path.read_bytes())
        self.train(self.gpt("qwen2", cache=cache), name="qwen2.ini")
        self.equal(len(list(cache.iterdir())), 2, "another tokenizer, other tokens")

    @long_case
    def test_what_a_killed_process_leaves(self):
        text = (harness.SRC / "docs/datasets.md").read_text() * 300
        ini = self.ini("run.ini", self.gpt(text=text))
        command = [str(harness.ENGINE), "tokenize", "-c", str(ini), str(ini)]
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while p.poll() is None and not any(f.stat().st_size > 0 for f in self.dir.glob("text.*.part")):
            self.check(time.monotonic() < deadline, "nothing is written")
        p.send_signal(signal.SIGKILL)
        self.equal(p.wait(), -signal.SIGKILL, "it was at work")
        self.equal(list(self.dir.glob("text.*.tokens")), [])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        path, ids = self.tokens()
        self.equal(list(self.dir.glob("text.*.part")), [])
        self.equal(ids, self.ids(self.dir / "text"), "cut into parts, the same as the whole")
        whole = path.read_bytes()
        path.write_bytes(whole[:-100])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.equal(path.read_bytes(), whole, "a file that was cut is made again")

    @seldom
    def test_generate(self):
        for name in ("llama3", "llama2"):
            self.train(self.gpt(name), name="run.ini")
            r = self.run("generate", "-c", self.dir / "run.ini", "--prompt", "The quick", "--tokens", 24, "--temperature", 0)
            self.equal(r.code, 0, r)
            self.check(r.out.startswith("The quick brown fox jumps over"), r)
            self.check((TEXT * 3).startswith(r.out.rstrip("\n")) or r.out.rstrip("\n") in TEXT * 3, r)
            for p in self.dir.glob("ckpt/*/*"):
                p.unlink()
            for p in self.dir.glob("ckpt/*"):
                p.rmdir() if p.is_dir() else p.unlink()


if __name__ == "__main__":
    sys.exit(harness.main(Tokenizers))
