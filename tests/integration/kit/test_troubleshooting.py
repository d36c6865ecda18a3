"""docs/troubleshooting.md quotes messages, each as a heading: every one is in the source, and those that a single process or
two can be made to say are said, with the exit code that the page gives."""
import pathlib
import re
import shutil
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import SRC, Case, Skip  # noqa: E402

PAGE = SRC / "docs/troubleshooting.md"
ENTRY = re.compile(r"^### `(.*?)`\n+\*\*(?:Exit code (\d+)|A warning)\.\*\*", re.M)
PIECES = re.compile(r'"(?:\\.|[^"\\\n])*"(?:(?:\s|\\\n|PRI[a-zA-Z0-9]+|[A-Z]+_[A-Z_]+)*"(?:\\.|[^"\\\n])*")*')
CONVERSION = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[diouxXeEfgGcsp]|%m|%(?=$|[^%a-zA-Z])|%")
TWO = ("--nproc", 2)


def shown(literal):
    """A C string as it is printed, what is put in shown as an ellipsis."""
    literal = re.sub(r'"\s*PRI[a-zA-Z0-9]+\s*"', "d", literal)
    text = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', literal))
    return re.sub(r"…+", "…", CONVERSION.sub("…", text.replace('\\"', '"').replace("\\\\", "\\").replace("%%", "%")))


def pattern(message):
    return ".*".join(map(re.escape, message.split("…")))


def sources():
    for folder in ("core", "conform", "infer", "plugins", "models", "samplers"):
        for file in (*(SRC / folder).rglob("*.c"), *(SRC / folder).rglob("*.cc")):
            yield file.read_text()


class Troubleshooting(Case):
    def test_every_quoted_message_is_in_the_source(self):
        entries = ENTRY.findall(PAGE.read_text())
        self.equal(len(entries), PAGE.read_text().count("\n### "), "an entry without its exit code")
        self.check(len(entries) >= 40, len(entries))
        all_of_it = "\n".join({shown(m[0]) for text in sources() for m in PIECES.finditer(text)})
        for message, code in entries:
            self.check(re.search(pattern(message), all_of_it), f"no source says: {message}")
            self.check(not code or re.search(rf"^\| {code} \|", (SRC / "docs/exit-codes.md").read_text(), re.M), code)

    # ---- those that can be had quickly --------------------------------------------------------------------------------
    def said(self):
        """What is started, in the order of the page: message -> arguments."""
        base = self.ini("x.ini")

        def ini(name, *layers, text=None):
            return ("-c", self.ini(f"{name}.ini", *layers, text=text))

        def group(**keys):
            return {"group": keys}

        taken = socket.create_server(("127.0.0.1", 0))
        self.taken = taken  # until the end of the case
        with socket.create_server(("127.0.0.1", 0)) as other:
            free = other.getsockname()[1]
        port = taken.getsockname()[1]
        (self.dir / "text").write_text("no data of this kind, and longer than a header\n")
        (self.dir / "empty").mkdir()
        (self.dir / "t.csv").write_text("a,b,c\n1,2,x\n3,4\n")
        idx = {"model.mlp": {"input": "image"}, "data": {"plugin": "idx"}, "data.synthetic": None}
        save = {"checkpoint": {"dir": self.dir / "ckpt"}}
        weights = {"checkpoint": {"init_from": self.dir / "empty"}}
        yield "no such file; give the path", ("-c", self.dir / "none.ini")
        yield "unknown key", ini("key", {"train": {"bach_size": 3}})
        yield "unknown section", ini("section", {"trian": {"seed": 3}})
        yield "expected section.key=value", ("-c", base, "--set", "seed=3")
        yield "needs the key", ini("needs", text="[train]\nseed = 1\n")
        yield "no such plugin", ini("plugin", {"model": {"plugin": "resnet50"}})
        yield "batch_size x accumulate", (*ini("batch", {"train": {"batch_size": 16, "accumulate": 1, "global_batch": 100}}), *TWO)
        yield "is not a URL", ini("url", group(init_method="127.0.0.1:29500", world_size=2))
        yield "init_method is not set", ini("method", group(world_size=2, rank=0))
        yield "the rank is not known", ini("auto", group(rank="auto"))
        yield "none of nodes", ini("nodes", group(nodes="198.51.100.1:1, 198.51.100.2:1", rank="auto"))
        yield "the port is in use", ini("port", group(init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=0, rendezvous_timeout="1s"))
        yield "not an address of this host", ini("address", group(init_method="tcp://198.51.100.1:29500", world_size=2, rank=0, auth="none",
                                                                  rendezvous_timeout="1s"))
        yield "was not found at", ini("found", group(init_method="tcp://127.0.0.1:1", world_size=2, rank=1, rendezvous_timeout="1s"))
        yield "anyone who reaches it", ini("secret", group(init_method="tcp://198.51.100.1:29500", world_size=2, rank=1))
        yield "did not come to rank 0", ini("come", group(init_method=f"tcp://127.0.0.1:{free}", world_size=2, rank=0, rendezvous_timeout="1s"))
        yield "this host has no network", ini("interface", group(interface="eth99", init_method="tcp://127.0.0.1:1", world_size=2, rank=1,
                                                          rendezvous_timeout="1s"))
        yield "leaves nothing", (*ini("few", {"data.synthetic": {"samples": 1}, "sampler.distributed": {"drop_last": "yes"}}), *TWO)
        yield "not finite", ini("nan", {"optimizer": {"lr": "1e30"}})
        yield "it is no IDX file", ini("idx", idx, {"data.idx": {"images": self.dir / "text", "labels": self.dir / "text"}})
        yield "holds no folder", ini("folder", {"data": {"plugin": "folder"}, "data.synthetic": None,
                                                "data.folder": {"path": self.dir / "empty"}})
        yield "correct the row", ini("csv", {"data": {"plugin": "csv"}, "data.synthetic": None,
                                             "data.csv": {"path": self.dir / "t.csv", "target": "c"}})
        yield "no .npy file", ini("npy", {"data": {"plugin": "npy"}, "data.synthetic": None,
                                          "data.npy": {"input": self.dir / "text", "label": self.dir / "text"}})
        yield "has no field", ini("field", {"data": {"resize": 8}})
        yield "holds no model.safetensors", ini("weights", weights)
        yield "of another", None, ini("one", save), ini("other", save, {"model.mlp": {"hidden": "5"}})
        yield "nothing to evaluate on", ("eval", *ini("eval"))
        yield "no weights to use", ("eval", *ini("no", {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 8, "shape": 12, "classes": 4}}))

    def test_what_the_page_quotes_is_said(self):
        entries = ENTRY.findall(PAGE.read_text())
        for part, *commands in self.said():
            quoted = [e for e in entries if part in e[0]]
            self.equal(len(quoted), 1, f"{part}: {quoted}")
            message, code = quoted[0]
            *before, last = [c for c in commands if c]
            for command in before:
                self.equal(self.run(*command).code, 0)
            r = self.run(*last)
            if "no such plugin" in r.err and part != "no such plugin":
                continue  # of a library that this build lacks
            self.equal(r.code, int(code), f"{message}\n{r}")
            self.check(re.search(pattern(message), r.err), f"{message}\n{r}")


if __name__ == "__main__":
    import harness
    sys.exit(harness.main(Troubleshooting))
