"""ddpengine predict on the files of each dataset that reads some, and libddpinfer in the example of docs/examples."""
import array
import io
import json
import pathlib
import re
import shutil
import struct
import sys
import tarfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import BUILD, SANITIZED, SRC, Case, Skip  # noqa: E402

NO_MLP = {"model.mlp": None}


class Predict(Case):
    def needs(self, name):
        if f"dataset  {name} " not in self.run("plugins").out:
            raise Skip(f"dataset {name} is not built")

    def predict(self, *args, code=0):
        r = self.run("predict", "-c", "run.ini", *args)
        self.equal(r.code, code, r)
        return r

    def objects(self, *args):
        return [json.loads(line) for line in self.predict("--json", *args).out.splitlines()]

    def trained(self, *layers, **keys):
        return self.train({"checkpoint": {"dir": self.dir / "ckpt"}, "data.synthetic": None}, *layers, nproc=0, **keys)

    # ---- images ------------------------------------------------------------------------------------------------------
    @staticmethod
    def idx(dims, data):
        return bytes([0, 0, 8, len(dims)]) + struct.pack(f">{len(dims)}I", *dims) + bytes(data)

    def squares(self, count=96):
        """Images of 6 x 6: one quarter is bright, which is the label."""
        images, labels = [], []
        for i in range(count):
            label = i * 7 % 4
            labels.append(label)
            images += [200 + i % 50 if (y // 3) * 2 + x // 3 == label else i % 30 for y in range(6) for x in range(6)]
        return images, labels

    def train_squares(self, **options):
        images, labels = self.squares()
        (self.dir / "images").write_bytes(self.idx((96, 6, 6), images))
        (self.dir / "labels").write_bytes(self.idx((96,), labels))
        self.trained({"data": {"plugin": "idx", **options}, "data.idx": {"images": "images", "labels": "labels"},
                      "model.mlp": {"input": "image"}, "train": {"epochs": 12}})
        return images, labels

    def test_images(self):
        images, labels = self.train_squares()
        found = self.objects("images")
        self.equal([f["predictions"][0]["index"] for f in found], labels)
        self.equal([(f["file"], f["row"]) for f in found[:2]], [("images", 1), ("images", 2)])
        for f in found:
            p = [x["probability"] for x in f["predictions"]]
            self.equal(p, sorted(p, reverse=True))
            self.check(abs(sum(p) - 1) < 1e-6, f)
        (self.dir / "one").write_bytes(self.idx((1, 6, 6), images[36:72]))
        r = self.predict("--top", 2, "one", "one")
        match = re.fullmatch(r"one: (\d) ([01]\.\d{4}), \d [01]\.\d{4}\n", "".join(r.out.splitlines(True)[:1]))
        self.check(match and int(match[1]) == labels[1], r)
        self.equal(len(r.out.splitlines()), 2)
        self.check(abs(float(match[2]) - found[1]["predictions"][0]["probability"]) < 1e-4, r)
        (self.dir / "wide").write_bytes(self.idx((1, 3, 12), images[:36]))
        self.fails(self.predict("wide", code=10), 10, "wide", "3 x 12", "6 x 6")
        self.fails(self.predict("one", "nowhere", code=10), 10, "nowhere")

    def test_images_are_not_augmented(self):
        """Without [eval] the transforms are those of [data] but for chance: an image has one answer, whatever the seed."""
        self.train_squares(random_crop=4, padding=1, flip=0.5, random_erasing=0.9, mixup=0.1)
        a, b = (self.predict("images", "--set", f"train.seed={seed}").out for seed in (1, 2))
        self.equal(a, b)

    def test_the_example_of_the_library(self):
        """What docs/examples has, compiled against the library of the build tree; the data are gone by then."""
        if SANITIZED or shutil.which("cc") is None:
            raise Skip("no cc, or a library under the sanitizers")
        images, labels = self.train_squares()
        source = SRC / "docs/examples/infer-example/classify.c"
        r = self.finish(self.spawn(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{SRC}/infer/lib", source,
                                    f"-L{BUILD}/.libs", "-lddpinfer", f"-Wl,-rpath,{BUILD}/.libs", "-o", "classify"]))
        self.equal(r.code, 0, r)
        (self.dir / "images").unlink()
        for i in range(4):
            pixels = array.array("f", [x / 255 for x in images[36 * i:36 * i + 36]])
            (self.dir / "pixels").write_bytes(pixels.tobytes())
            with open(self.dir / "pixels") as stdin:
                r = self.finish(self.spawn([self.dir / "classify", "run.ini", "ckpt"], stdin=stdin,
                                           env={"DDPENGINE_PLUGIN_PATH": str(BUILD / ".libs")}))
            self.equal((r.code, r.out, r.err), (0, f"class {labels[i]}\n", ""), r)

    @staticmethod
    def png(side, colour):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(
            b"IDAT", zlib.compress((b"\0" + bytes(colour) * side) * side)) + chunk(b"IEND", b"")

    def test_photographs(self):
        """Of any size, by the names of their folders."""
        self.needs("folder")
        for i in range(48):
            for name, colour in (("red", (200 + i, 40, i)), ("green", (i, 180 + i, 60)), ("blue", (30, i, 190 + i))):
                (self.dir / "photos" / name).mkdir(parents=True, exist_ok=True)
                (self.dir / "photos" / name / f"{i}.png").write_bytes(self.png(8 + i % 5, colour))
        self.trained({"data": {"plugin": "folder", "resize": "6, 6", "flip": 0.5}, "data.folder": {"path": "photos"},
                      "model.mlp": {"input": "image", "classes": 3}, "train": {"epochs": 10}})
        (self.dir / "new.png").write_bytes(self.png(21, (20, 30, 220)))
        found = self.objects("new.png", "photos/red/3.png", "photos/green/7.png")
        self.equal([f["predictions"][0]["class"] for f in found], ["blue", "red", "green"])
        with tarfile.open(self.dir / "photos.tar", "w") as t:
            for i in range(24):
                for data, end in ((self.png(6, [(200, 40, i), (i, 180, 60)][i % 2]), "png"), (b"%d" % (i % 2), "cls")):
                    info = tarfile.TarInfo(f"{i}.{end}")
                    info.size = len(data)
                    t.addfile(info, io.BytesIO(data))
        if "dataset  tar " in self.run("plugins").out:
            shutil.rmtree(self.dir / "ckpt")
            self.trained({"data": {"plugin": "tar", "resize": "6, 6"}, "data.tar": {"files": "photos.tar"},
                          "model.mlp": {"input": "image", "classes": 2}, "train": {"epochs": 10}})
            self.equal([f["predictions"][0]["index"] for f in self.objects("photos/red/3.png", "photos/green/7.png")], [0, 1])
        (self.dir / "bad.png").write_bytes(self.png(21, (20, 30, 220))[:60])
        self.fails(self.predict("bad.png", code=10), 10, "bad.png")
        self.fails(self.predict("none.png", code=10), 10, "none.png")

    # ---- tables ------------------------------------------------------------------------------------------------------
    def table(self, target):
        lines = ["size,colour,price"]
        for i in range(240):
            size, colour = i % 17 / 4, "red green blue".split()[i % 3]
            lines.append(f"{size},{colour},{target(size, colour)}")
        (self.dir / "t.csv").write_text("\n".join(lines) + "\n")
        return lines

    def test_table_with_classes(self):
        self.needs("csv")
        lines = self.table(lambda size, colour: "dear" if colour == "red" else "cheap" if size < 2 else "fair")
        self.trained({"data": {"plugin": "csv"}, "data.csv": {"path": "t.csv", "target": "price"},
                      "model.mlp": {"classes": 3}, "train": {"epochs": 30}})
        found = self.objects("t.csv")
        right = [line.rsplit(",", 1)[1] for line in lines[1:]]
        self.equal([f["predictions"][0]["class"] for f in found], right)
        # without the target, and with one that nobody has seen
        (self.dir / "new.csv").write_text("size,colour\n3.5,red\n0.25,blue\n")
        self.check(re.fullmatch(r"new.csv:1: dear [01].\d{4}, .*\nnew.csv:2: cheap [01].\d{4}, .*\n", self.predict("new.csv").out))
        (self.dir / "new.csv").write_text("size,colour,price\n3.5,red,\n0.25,blue,?\n")
        self.equal([f["predictions"][0]["class"] for f in self.objects("new.csv")], ["dear", "cheap"])
        (self.dir / "new.csv").write_text("size,colour\nbig,red\n")
        self.fails(self.predict("new.csv", code=10), 10, "new.csv:2", "size", "big")
        (self.dir / "new.csv").write_text("colour,size\nred,1\n")
        self.fails(self.predict("new.csv", code=10), 10, "new.csv:1", "colour", "size")
        (self.dir / "new.csv").write_text("size,colour\n")
        self.fails(self.predict("new.csv", code=10), 10, "new.csv")

    def test_table_with_numbers(self):
        """A net of one layer, trained to the end, is the linear function that made the table."""
        self.needs("csv")
        self.table(lambda size, colour: 2 * size + (3 if colour == "red" else 1))
        (self.dir / "x.net").write_text("[input] field = input\n[linear] out = 1\n[loss] type = mse\n")
        self.trained(NO_MLP, {"data": {"plugin": "csv"}, "data.csv": {"path": "t.csv", "target": "price", "target_type": "number"},
                              "model": {"plugin": "layers"}, "model.layers": {"net": "x.net"}, "train": {"epochs": 60}})
        (self.dir / "new.csv").write_text("size,colour\n3.5,red\n0.25,blue\n")
        for f, right in zip(self.objects("new.csv"), (10, 1.5)):
            self.check(abs(f["values"][0] - right) < 0.01, f)
        self.check(re.fullmatch(r"(new.csv:\d: [\d.]+\n){2}", self.predict("new.csv").out))

    def test_table_with_a_probability(self):
        """The loss bce_with_logits: a number from 0 to 1."""
        self.needs("csv")
        self.table(lambda size, colour: int(size > 2))
        (self.dir / "x.net").write_text("[input] field = input\n[linear] out = 1\n[loss] type = bce_with_logits\n")
        self.trained(NO_MLP, {"data": {"plugin": "csv"}, "data.csv": {"path": "t.csv", "target": "price", "target_type": "number"},
                              "model": {"plugin": "layers"}, "model.layers": {"net": "x.net"}, "train": {"epochs": 60}})
        (self.dir / "new.csv").write_text("size,colour\n4,red\n0.25,blue\n")
        high, low = (f["values"][0] for f in self.objects("new.csv"))
        self.check(0.9 < high < 1 and 0 < low < 0.1, (high, low))

    # ---- arrays ------------------------------------------------------------------------------------------------------
    @staticmethod
    def npy(shape, values, code="f"):
        descr = {"f": "<f4", "q": "<i8"}[code]
        text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
        return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + struct.pack(f"<{len(values)}{code}", *values)

    def test_arrays(self):
        self.needs("npy")
        rows = [[(i * 13 + k * 5) % 11 / 5 - 1 for k in range(3)] for i in range(128)]
        labels = [int(r[0] > 0) + int(r[1] > 0) for r in rows]
        (self.dir / "x.npy").write_bytes(self.npy((128, 3), sum(rows, [])))
        (self.dir / "y.npy").write_bytes(self.npy((128,), labels, "q"))
        self.trained({"data": {"plugin": "npy"}, "data.npy": {"input": "x.npy", "label": "y.npy"}, "model.mlp": {"classes": 3},
                      "train": {"epochs": 20}})
        found = [f["predictions"] for f in self.objects("x.npy")]
        self.equal([p[0]["index"] for p in found], labels)
        (self.dir / "one.npy").write_bytes(self.npy("(3,)", rows[5]))
        self.equal([f["predictions"] for f in self.objects("one.npy")], [found[5]])
        (self.dir / "bad.npy").write_bytes(self.npy("(1, 4)", [0.0] * 4))
        self.fails(self.predict("bad.npy", code=10), 10, "bad.npy", "x.npy")

    # ---- text --------------------------------------------------------------------------------------------------------
    def test_text(self):
        """The next byte after a text that is shorter than the context, and longer."""
        (self.dir / "text.txt").write_bytes(b"abc" * 400)
        self.trained(NO_MLP, {"model": {"plugin": "gpt2"}, "data": {"plugin": "tokens"},
                              "model.gpt2": {"preset": "bytes", "layers": 1, "heads": 2, "width": 32},
                              "optimizer": {"algorithm": "adamw", "lr": 0.02, "momentum": 0}, "train": {"epochs": 20, "batch_size": 8},
                              "data.tokens": {"files": "text.txt", "context": 8}})
        for text, following in ((b"a", "b"), (b"abc", "a"), (b"abc" * 5 + b"ab", "c"), (b"bca", "b")):
            (self.dir / "new.txt").write_bytes(text)
            (f,) = self.objects("new.txt")
            self.equal((f["predictions"][0]["class"], f["row"]), (following, 1), text)
            self.check(f["predictions"][0]["probability"] > 0.5, f)
        self.check(re.fullmatch(r"new.txt: b [01]\.\d{4}\n", self.predict("new.txt", "--top", 1).out))

    def test_json_lines(self):
        """An answer for each text, as for a file of it alone: an empty one too, and those longer than the context."""
        def lines(name, texts):
            (self.dir / name).write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))

        lines("train.jsonl", ["abc" * 40] * 10)
        self.trained(NO_MLP, {"model": {"plugin": "gpt2"}, "data": {"plugin": "jsonl"},
                              "model.gpt2": {"preset": "bytes", "layers": 1, "heads": 2, "width": 32},
                              "optimizer": {"algorithm": "adamw", "lr": 0.02, "momentum": 0}, "train": {"epochs": 20, "batch_size": 8},
                              "data.jsonl": {"files": "train.jsonl", "context": 8, "separator": "none"}})
        texts = ["a", "abc", "abc" * 5 + "ab", "bca", "", "abc" * 3000 + "a"]
        lines("new.jsonl", texts)
        found = self.objects("new.jsonl")
        self.equal([f["row"] for f in found], [1, 2, 3, 4, 5, 6])
        self.equal([found[i]["predictions"][0]["class"] for i in (0, 1, 2, 3, 5)], ["b", "a", "c", "b", "b"])
        lines("one.jsonl", texts[2:3])
        (f,) = self.objects("one.jsonl")
        self.equal(f["predictions"], found[2]["predictions"])
        (self.dir / "none.jsonl").write_text("\n")
        self.fails(self.predict("none.jsonl", code=10), 10, 'none.jsonl has no text under the key "text"')
        (self.dir / "bad.jsonl").write_text('{"text": "a"}\n{"txt": "a"}\n')
        self.fails(self.predict("bad.jsonl", code=10), 10, "bad.jsonl:2:", "no object with a text")

    # ---- mistakes ----------------------------------------------------------------------------------------------------
    def test_errors(self):
        self.train({"checkpoint": {"dir": self.dir / "ckpt"}, "data.synthetic": {"samples": 32}}, nproc=0)
        self.fails(self.run("predict", "x"), 2, "no config file")
        self.fails(self.run("predict", "-c", "run.ini"), 2, "no file")
        self.fails(self.predict("x", code=2), 2, "dataset synthetic", "reads no files")
        self.fails(self.predict("x", "--checkpoint", "nowhere", code=8), 8, "nowhere")


if __name__ == "__main__":
    sys.exit(harness.main(Predict))
