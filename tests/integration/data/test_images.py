"""Images in folders and in .tar files, and texts as JSON lines, in whole runs: the same samples give the same bits from each, what
--check shows of them, broken files, and mistakes."""
import gzip
import io
import json
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SRC, Case, Skip, long_case, seldom  # noqa: E402

STORED = SRC / "tests/parity/vectors/images"
MODEL = {"data.synthetic": None, "model.mlp": {"input": "image", "classes": 3, "hidden": 16}}
CLASSES = ("apple", "bike", "cat")


def png(width, height, pixels):
    """`pixels`: bytes of RGB."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + pixels[y * width * 3:(y + 1) * width * 3] for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Images(Case):
    def needs(self, *names):
        listed = self.run("plugins").out
        for name in names:
            if f"dataset  {name} " not in listed:
                raise Skip(f"dataset {name} is not built")

    @staticmethod
    def samples(count=96, size=(12, 10)):
        """(name, class, pixels), in the order of dataset `folder`: one color stands out, with a pattern over it."""
        width, height = size
        out = []
        for y in range(3):
            for n in range(count // 3):
                pixels = bytes((200 if c == y else 40) + (p * 7 + n * 13 + c * 5) % 50 for p in range(width * height)
                               for c in range(3))
                out.append((f"{CLASSES[y]}/{n:03}.png", y, pixels))
        return out

    def folder(self, samples=None, name="photos", **keys):
        root = self.dir / name
        for file, _, pixels in samples or self.samples():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(png(12, 10, pixels))
        return {**MODEL, "data": {"plugin": "folder", "center_crop": "10, 12"}, "data.folder": {"path": root, **keys}}

    def listed(self):
        lines = [f"{file},{CLASSES[y]}" for file, y, _ in self.samples()]
        self.folder()
        (self.dir / "photos/list.csv").write_text("\n".join(lines) + "\n")
        return {**MODEL, "data": {"plugin": "folder", "center_crop": "10, 12"},
                "data.folder": {"list": self.dir / "photos/list.csv"}}

    def tar(self, name="a.tar", names=None, **keys):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
            for file, y, pixels in self.samples():
                key = file[:-4]
                for member, data in ((f"{key}.cls", str(y).encode()), (f"{key}.png", png(12, 10, pixels)),
                                     (f"{key}.txt", b"a caption")):
                    info = tarfile.TarInfo(member)
                    info.size = len(data)
                    t.addfile(info, io.BytesIO(data))
        data = out.getvalue()
        (self.dir / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return {**MODEL, "data": {"plugin": "tar", "center_crop": "10, 12"}, "data.tar": {"files": self.dir / name, **keys}}

    def npy(self):
        samples = self.samples()
        for name, shape, code, data in (("x.npy", f"({len(samples)}, 10, 12, 3)", "|u1", b"".join(p for _, _, p in samples)),
                                        ("y.npy", f"({len(samples)},)", "|u1", bytes(y for _, y, _ in samples))):
            text = f"{{'descr': '{code}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
            (self.dir / name).write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data)
        return {**MODEL, "data": {"plugin": "npy", "center_crop": "10, 12"},
                "data.npy": {"input": self.dir / "x.npy", "label": self.dir / "y.npy"}}

    # ---- the same from each ----------------------------------------------------------------------------------------
    @seldom
    def test_the_same_samples_train_the_same_bits(self):
        self.needs("folder", "tar", "npy")
        steps = {"train": {"epochs": 100, "max_steps": 50}}
        for n, keys in enumerate(({"center_crop": "10, 12", "flip": 0.5, "mean": 0.4, "std": 0.3},
                                  {"center_crop": None, "random_resized_crop": "8, 9", "flip": 0.5, "random_erasing": 0.5,
                                   "color_jitter": "0.4, 0.4, 0.4, 0.1", "mean": 0.4})):
            layers = [self.folder(), self.listed(), self.tar(), self.tar("b.tar.gz"), self.npy()]
            sums = [self.train(layer, {"data": keys}, steps, {"loader": {"workers": k % 3, "prefetch": 3}},
                               name=f"{n}{k}.ini").summary["parameter_sha256"] for k, layer in enumerate(layers)]
            self.equal(len(set(sums)), 1, sums)

    # ---- folder ----------------------------------------------------------------------------------------------------
    def test_folder_is_learnt_and_shown(self):
        self.needs("folder")
        layer = self.folder(split="train", validation=0.25)
        (self.dir / "photos/cat/notes.txt").write_text("no image")
        evaluated = {"eval": {"plugin": "folder", "center_crop": "10, 12"},
                     "eval.folder": {**layer["data.folder"], "split": "validation"}}
        r = self.run("-c", self.ini("x.ini", layer, evaluated), "--check")
        self.equal(r.code, 0, r)
        for part in (" of 96 images of 3 classes; 1 other files are not read\n", "  apple                ", "  cat                  ",
                     "images of [data]      u8 3 x any size -> center crop 10x12 -> 0..1\n"):
            self.check(part in r.out, (part, r))
        r = self.train(layer, evaluated, {"train": {"epochs": 30}})
        self.check(r.summary["eval_accuracy"] > 0.9, r.summary)

    def test_stored_images_of_all_kinds(self):
        """Different sizes, each of the formats, resized and cropped; the number of workers changes nothing."""
        self.needs("folder")
        root = self.dir / "kinds"
        for n, file in enumerate(sorted(p for p in STORED.iterdir() if p.suffix != ".txt")):
            (root / CLASSES[n % 3]).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, root / CLASSES[n % 3])
        layer = {**MODEL, "data.folder": {"path": root},
                 "data": {"plugin": "folder", "resize": 24, "random_crop": 20, "flip": 0.5, "dct_scale": "yes"}}
        sums = [self.train(layer, {"loader": {"workers": w, "prefetch": 4}}, name=f"{w}.ini").summary["parameter_sha256"]
                for w in (0, 1, 3)]
        self.equal(len(set(sums)), 1, sums)
        layer["data"]["dct_scale"] = "no"
        sums = [self.train(layer, {"data": {"cache": c}, "loader": {"workers": 2, "prefetch": 4}}, name=f"{c}.ini")
                .summary["parameter_sha256"] for c in ("0B", "100KiB", "1GiB")]
        self.equal(len(set(sums)), 1, sums)

    @long_case
    def test_stored_pixels_are_pillows(self):
        """Of this machine's Pillow; tests/unit/dataset/test_images.c compares with what is stored."""
        for python in ("/usr/bin/python3", sys.executable):
            if subprocess.run([python, "-c", "import PIL"], capture_output=True, check=False).returncode == 0:
                r = subprocess.run([python, SRC / "tests/parity/make/make_images.py", "--compare"], capture_output=True, text=True, check=False)
                self.equal(r.returncode, 0, r)
                return
        raise Skip("Pillow is not installed (Debian: python3-pil)")

    def test_broken_images(self):
        self.needs("folder")
        layer = self.folder()
        broken = self.dir / "photos/bike/004.png"
        broken.write_bytes(broken.read_bytes()[:-30])
        (self.dir / "photos/cat/007.png").write_bytes(b"no image at all")
        r = self.run("-c", self.ini("x.ini", layer), "--nproc", 2)
        self.equal(r.code, 10, r)
        self.check(f"{self.dir}/photos/bike/004.png\" is a broken PNG" in r.err or f"{self.dir}/photos/cat/007.png\" is no JPEG" in r.err, r)
        self.check("remove it, or set skip_bad = yes" in r.err, r)
        layer["data.folder"]["skip_bad"] = "yes"
        r = self.train(layer)
        warned = [line for line in r.err.splitlines() if "warning" in line]
        self.equal(len(warned), 2, r)  # a line of each rank
        self.check("2 broken images are left out; the first: dataset folder: \"" in warned[0], r)
        self.check("photos/bike/004.png\" is a broken PNG" in warned[0] and "remove it" not in warned[0], r)

    def test_texts_of_a_png_take_no_memory(self):
        """Of 128 texts of 8 MB, in 1 MB, none is unpacked; large ones do no harm."""
        self.needs("folder")
        layer, pixels = self.folder(), self.samples()[3][2]
        plain = self.train(layer, {"train": {"epochs": 1}}, nproc=1).summary["parameter_sha256"]
        text, steps = zlib.compress(b"a" * 8_000_000, 9), {"train": {"epochs": 1}}
        for kind, data, count in ((b"zTXt", b"Comment\0\0" + text, 128), (b"iTXt", b"Comment\0\1\0\0\0" + text, 128),
                                  (b"tEXt", b"Comment\0" + b"a" * (1 << 20), 1), (b"exTr", bytes(1 << 20), 1)):
            chunk = struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            image = png(12, 10, pixels)
            (self.dir / "photos/apple/003.png").write_bytes(image[:33] + chunk * count + image[33:])
            self.equal(self.train(layer, steps, nproc=1).summary["parameter_sha256"], plain, kind)
        self.check(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 600_000, "an image has taken much memory")

    def test_classes_agree(self):
        self.needs("folder")
        layer = self.folder()
        other = self.folder([(f.replace("cat", "dog"), y, p) for f, y, p in self.samples(6)], "others")
        evaluated = {"eval": {"plugin": "folder", "center_crop": "10, 12"}, "eval.folder": other["data.folder"]}
        self.fails(self.run("-c", self.ini("x.ini", layer, evaluated), "--nproc", 2), 2, "label 2", "\"cat\" in [data]",
                   "\"dog\" in [eval]")

    def test_folder_mistakes(self):
        self.needs("folder")
        layer = self.folder()

        def wrong(code, change, *parts, section="data.folder"):
            self.fails(self.run("-c", self.ini("x.ini", layer, {section: change}), "--nproc", 2), code, *parts)

        wrong(2, {"center_crop": None}, "[data]", "differ in size", "set resize = HEIGHT, WIDTH", section="data")
        wrong(10, {"center_crop": 20}, ".png\": center_crop", "10 x 12", "center_crop = 20, 20 is larger", section="data")
        wrong(10, {"max_pixels": 100}, ".png", "has 12 x 10 pixels; max_pixels = 100")
        wrong(10, {"path": self.dir / "none"}, "No such file or directory", "a folder for each class")
        wrong(10, {"path": self.dir / "photos/cat"}, "holds no folder", "list = ")
        wrong(2, {"split": "train"}, "split = train", "validation = 0.1")
        wrong(10, {"classes": "apple, bike"}, "cat/000.png", "not one of classes")
        (self.dir / "list").write_text("cat/000.png\tcat\nno label\n")
        wrong(10, {"list": self.dir / "list"}, f"{self.dir}/list:2: no label")
        (self.dir / "photos/empty").mkdir()
        wrong(10, {}, "photos/empty", "holds no .jpg")

    def test_labels_of_lists(self):
        """One mistyped number makes no names of the others; a class is the same one in [data] and in [eval]."""
        self.needs("folder")
        layer = {**self.folder(), "model.mlp": {**MODEL["model.mlp"], "classes": 12}}

        def listed(name, *labels):
            path = self.dir / "photos" / name
            path.write_text("".join(f"{CLASSES[n % 3]}/{n:03}.png,{label}\n" for n, label in enumerate(labels)))
            return {"list": path}

        def check(data, evaluated=None):
            layers = [{"eval": {"plugin": "folder", "center_crop": "10, 12"}, "eval.folder": evaluated}] if evaluated else []
            return self.run("-c", self.ini("x.ini", {**layer, "data.folder": data}, *layers), "--check")

        numbers = listed("numbers", *(["0", "1", "2"] * 8))
        typo = listed("typo", *(["0", "1", "2"] * 7), "0", "2x", "10")
        self.fails(check(typo), 10, "\"bike/022.png\" has the label \"2x\"", "whole numbers", "classes")
        self.fails(check(numbers, typo), 10, "\"2x\"")
        self.equal(check({**typo, "classes": "0, 1, 2, 2x, 10"}).code, 0)
        padded = check(listed("padded", *(["0", "1", "01", "00"] * 6)))
        self.check("24 images of 2 classes" in padded.out, padded)
        self.equal(check(numbers, listed("eval", *(["2", "0", "1"] * 8))).code, 0)
        names = listed("names", *(["ant", "bee", "cow"] * 8))
        self.fails(check(numbers, names), 2, "label 0 is \"0\", without a name, in [data] and \"ant\" in [eval]")
        self.fails(check(names, numbers), 2, "label 0 is \"ant\" in [data] and \"0\", without a name, in [eval]")
        self.equal(check(numbers, {**numbers, "classes": "0, 1, 2"}).code, 0)

    def test_one_folder_is_divided_alike(self):
        self.needs("folder", "tar")
        for plugin, layer in (("folder", self.folder(split="train", validation=0.25)), ("tar", self.tar(split="train", validation=0.25))):
            def check(data=None, **keys):
                mine = layer[f"data.{plugin}"]
                return self.run("-c", self.ini("x.ini", {**layer, f"data.{plugin}": {**mine, **(data or {})}},
                                {"eval": {"plugin": plugin, "center_crop": "10, 12"}, "eval.synthetic": None,
                                 f"eval.{plugin}": {**mine, "split": "validation", **keys}}), "--check")
            r = check()
            self.equal((r.code, "warning" in r.err), (0, False), r)
            self.fails(check(validation=0.5), 2, f"validation = 0.25 in [data.{plugin}]", f"validation = 0.5 in [eval.{plugin}]")
            r = check({"split": "all"})
            self.check(r.code == 0 and f"[data.{plugin}] reads all of it" in r.err, r)
            self.equal(check({"split": "all"}, split="all").err, "")

    # ---- tar -------------------------------------------------------------------------------------------------------
    def members(self, name, *members):
        """members: (name, bytes, type)."""
        with tarfile.open(self.dir / name, "w") as t:
            for member, data, *kind in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                if kind:
                    info.type, info.linkname = kind[0], "/etc/passwd"
                t.addfile(info, io.BytesIO(data))
        return {**MODEL, "data": {"plugin": "tar", "resize": "10, 12"}, "data.tar": {"files": self.dir / name}}

    def test_tar_of_a_stranger(self):
        self.needs("tar")
        image = png(12, 10, self.samples()[0][2])

        def wrong(code, layer, *parts):
            self.fails(self.run("-c", self.ini("x.ini", layer), "--nproc", 2), code, *parts)

        long = "d" * 90 + "/" + "e" * 150
        good = [("/etc/absolute.png", image), ("/etc/absolute.cls", b"0"), ("../../up.jpg", image), ("../../up.cls", b" 1\n"),
                ("link.png", b"", tarfile.SYMTYPE), ("link.cls", b"2"), ("hard.png", b"", tarfile.LNKTYPE), ("hard.cls", b"2"),
                (f"{long}.png", image), (f"{long}.cls", b"2"), ("._x.png", b"of macOS"), ("x.seg.png", b"a mask")]
        r = self.run("-c", self.ini("x.ini", self.members("good.tar", *good)), "--check")
        self.equal(r.code, 0, r)
        self.check("good.tar: 3 images of 3 classes" in r.out, r)
        self.train(self.members("good.tar", *good), {"train": {"global_batch": None, "batch_size": 1}}, nproc=1)
        wrong(10, self.members("a.tar", ("a.png", image)), "a.tar", "a.png", "has no .cls member")
        wrong(10, self.members("b.tar", ("a.png", image), ("a.cls", b"0"), ("b.cls", b"0"), ("b.png", image), ("a.png", image)),
              "b.tar", "\"a\"", "comes twice")
        wrong(10, self.members("c.tar", ("a.png", image), ("a.cls", b"x" * 5000)), "a.cls", "too long for a label")
        data = (self.dir / "good.tar").read_bytes()
        (self.dir / "cut.tar").write_bytes(data[:700])
        wrong(10, {**self.members("d.tar"), "data.tar": {"files": self.dir / "cut.tar"}}, "cut.tar", "copy it again")
        (self.dir / "bomb.tar.gz").write_bytes(gzip.compress(bytes(50 << 20)))
        wrong(10, {**self.members("e.tar"), "data.tar": {"files": self.dir / "bomb.tar.gz", "unpack_limit": "1MiB"}},
              "bomb.tar.gz", "unpack_limit", "gunzip")

    def test_tar_with_json_and_names(self):
        self.needs("tar")
        image = png(12, 10, self.samples()[0][2])
        members = [m for n, name in enumerate(("zebra", "ant", "ant")) for m in
                   ((f"{n}.png", image), (f"{n}.json", json.dumps({"kind": name, "id": n}).encode()))]
        layer = self.members("j.tar", *members)
        layer["data.tar"] |= {"label": "json", "json_key": "kind"}
        r = self.run("-c", self.ini("x.ini", layer), "--check")
        self.equal(r.code, 0, r)
        self.check("  ant                  2 images\n  zebra                1 image\n" in r.out, r)

    # ---- jsonl -----------------------------------------------------------------------------------------------------
    def test_jsonl_is_the_text(self):
        """The same bytes from dataset tokens: the same parameters."""
        texts = [f"Line {n} of a text \u00e9\n with \"quotes\"." for n in range(60)]
        (self.dir / "t.jsonl").write_text("".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(texts)) + "\n")
        (self.dir / "t.txt").write_bytes("".join(t + "\n" for t in texts).encode())
        model = {"data.synthetic": None, "model": {"plugin": "gpt2"}, "model.mlp": None,
                 "model.gpt2": {"layers": 1, "heads": 2, "width": 16, "context": 16, "vocabulary": 256}}
        steps = {"train": {"epochs": 100, "max_steps": 10}}
        sums = [self.train(model, steps, {"data": {"plugin": p}, f"data.{p}": {"files": self.dir / f, "context": 16}},
                           name=f"{p}.ini").summary["parameter_sha256"] for p, f in (("jsonl", "t.jsonl"), ("tokens", "t.txt"))]
        self.equal(sums[0], sums[1])
        layer = {**model, "data": {"plugin": "jsonl"}, "data.jsonl": {"files": self.dir / "t.jsonl", "context": 16}}
        with open(self.dir / "t.jsonl", "a", encoding="ascii") as f:
            f.write("{\"text\": 3}\nnonsense\n")
        self.fails(self.run("-c", self.ini("x.ini", layer), "--nproc", 2), 10, f"{self.dir}/t.jsonl:62: no object with a text",
                   "skip_bad = yes")
        layer["data.jsonl"]["skip_bad"] = "yes"
        r = self.run("-c", self.ini("x.ini", layer), "--check")
        self.check("60 texts" in r.out and "2 bad lines left out" in r.out, r)
        layer["data.jsonl"]["max_line"] = 20
        self.fails(self.run("-c", self.ini("x.ini", layer), "--nproc", 2), 10, "t.jsonl:1", "max_line = 20")


if __name__ == "__main__":
    sys.exit(harness.main(Images))
