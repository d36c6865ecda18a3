"""The recipes of docs/recipes: their INI and their commands, on data of the kind that they describe, as a reader follows them."""
import pathlib
import random
import re
import shutil
import socket
import struct
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SRC, Case, Skip, long_case  # noqa: E402

BLOCK = re.compile(r"^```(ini|net|sh)\n(.*?)^```", re.M | re.S)


class Recipes(Case):
    def follow(self, page, name, most, more=()):
        """Writes the INI as `name` and runs the commands, to which `more` is added; their results. The INI has at most `most`
        keys beside what it includes."""
        shutil.copytree(SRC / "conf", self.dir / "conf")
        results = []
        for kind, text in BLOCK.findall((SRC / "docs/recipes" / page).read_text()):
            if kind == "net":
                (self.dir / name).with_suffix(".net").write_text(text)
                continue
            if kind == "ini":
                (self.dir / name).write_text(text)
                keys = [line for line in text.splitlines() if "=" in line and not line.startswith("include")]
                self.check(len(keys) <= most, f"{page}: {len(keys)} keys")
                continue
            for line in text.splitlines():
                words = re.findall(r'"[^"]*"|\S+', line)
                self.equal(words.pop(0), "ddpengine")
                r = self.run(*[w.strip('"') for w in words], *more)
                self.equal(r.code, 0, f"{page}: {line}\n{r}")
                results.append(r)
        return results

    @long_case
    def test_table(self):
        if "dataset  csv " not in self.run("plugins").out:
            raise Skip("dataset csv is not built")
        draw = random.Random(5)
        rows = []
        for _ in range(50000):
            rooms, area, age = draw.randrange(1, 7), draw.randrange(200, 2000) / 10, draw.randrange(80)
            heating, town = draw.choice(["gas", "oil", "district"]), draw.choice(["north", "south", "centre"])
            worth = area + 15 * rooms - age + (60 if town == "centre" else 0)
            rows.append((f"{rooms},{area},{age},{heating},{town}", "cheap" if worth < 110 else "fair" if worth < 200 else "dear"))
        head = "rooms,area,age,heating,town"
        (self.dir / "houses.csv").write_text("\n".join([head + ",price"] + [f"{x},{y}" for x, y in rows]) + "\n")
        (self.dir / "new.csv").write_text("\n".join([head] + [x for x, _ in rows[:50]]) + "\n")
        check, train, predict = self.follow("table.md", "houses.ini", 5)
        self.check("heating" in check.out and "of 50000 rows" in check.out, check)
        (accuracy,) = re.findall(r"done at step .* eval accuracy ([\d.]+)", train.err)
        self.check(float(accuracy) > 0.95, train)
        found = re.findall(r"^new.csv:\d+: (\w+) ", predict.out, re.M)
        self.equal(len(found), 50)
        self.check(sum(a == b for a, (_, b) in zip(found, rows)) >= 45, predict)

    @long_case
    def test_number(self):
        if "dataset  csv " not in self.run("plugins").out:
            raise Skip("dataset csv is not built")
        draw, rows = random.Random(5), ["rooms,area,age,heating,town,price"]
        for _ in range(5000):
            rooms, area, age = draw.randrange(1, 7), draw.randrange(200, 2000) / 10, draw.randrange(80)
            heating, town = draw.choice(["gas", "oil", "district"]), draw.choice(["north", "south", "centre"])
            rows.append(f"{rooms},{area},{age},{heating},{town},{(area + 15 * rooms - age + (60 if town == 'centre' else 0)) / 100:.3f}")
        (self.dir / "houses.csv").write_text("\n".join(rows) + "\n")
        (self.dir / "new.csv").write_text("\n".join(rows[:21]) + "\n")
        _, _, evaluated, predict = self.follow("number.md", "houses.ini", 8)
        (error,) = re.findall(r"^eval loss .*, mae ([\d.]+), r2 ", evaluated.out, re.M)
        self.check(float(error) < 0.1, evaluated)
        found = [float(x) for x in re.findall(r"^new.csv:\d+: (\S+)$", predict.out, re.M)]
        self.check(len(found) == 20 and all(abs(a - float(r.rsplit(",", 1)[1])) < 0.5 for a, r in zip(found, rows[1:])), predict)

    def array(self, name, kind, shape, data):
        """A file of numpy.save."""
        head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
        head += b" " * (-(len(head) + 11) % 64) + b"\n"
        (self.dir / name).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data)

    def test_own_net(self):
        """Stripes of three directions."""
        if "dataset  npy " not in self.run("plugins").out:
            raise Skip("dataset npy is not built")
        draw, x, y = random.Random(5), [], []
        for _ in range(1000):
            kind = draw.randrange(3)
            x += [draw.gauss(0, .3) + ((j // 8, j % 8, j // 8 + j % 8)[kind] % 2 == 0) for j in range(64)]
            y.append(kind)
        self.array("x.npy", "<f4", (1000, 1, 8, 8), struct.pack(f"<{len(x)}f", *x))
        self.array("y.npy", "<i8", (1000,), struct.pack("<1000q", *y))
        model, train, predict, _ = self.follow("own-net.md", "shapes.ini", 16)
        self.check("(N, 16, 4, 4)" in model.out, model)
        (accuracy,) = re.findall(r"done at step .* eval accuracy ([\d.]+)", train.err)
        self.check(float(accuracy) > 0.9, train)
        self.equal(len(predict.out.splitlines()), 1000)
        self.check((self.dir / "shapes_torch/model.safetensors").exists())

    def test_two_hosts(self):
        """Both machines are this one."""
        if "backend  gloo-tcp " not in self.run("plugins").out:
            raise Skip("backend gloo-tcp is not built")
        shutil.copytree(SRC / "conf", self.dir / "conf")
        with socket.create_server(("127.0.0.1", 0)) as s:
            address = f"127.0.0.1:{s.getsockname()[1]}"
        blocks = BLOCK.findall((SRC / "docs/recipes/two-hosts.md").read_text())
        ini = self.ini("conf/quickstart.ini")  # its own data are a package that need not be there
        self.check(ini.exists() and blocks[0][0] == "ini", blocks)
        (self.dir / "train.ini").write_text(blocks[0][1].replace("192.0.2.7:29500", address))
        for _, text in blocks[1:]:
            both = []
            for line in text.splitlines():
                words = line.split()
                self.equal(words.pop(0), "ddpengine")
                both.append((line, self.start(*words)))
            for line, p in both:
                r = self.finish(p)
                self.equal(r.code, 0, f"{line}\n{r}")
        self.equal(len(blocks), 4)

    @staticmethod
    def png(width, height, rows):
        """rows: bytes of red, green, blue."""
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(
            b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows), 1)) + chunk(b"IEND", b"")

    def photo(self, draw, kind):
        """Stripes of one of five directions and widths, in two colours, of any size."""
        width, height = draw.randrange(40, 90), draw.randrange(40, 90)
        colours = [bytes(draw.randrange(low, high) for _ in range(3)) for low, high in ((0, 110), (140, 256))]
        if kind == 0:
            return self.png(width, height, [colours[y // 4 % 2] * width for y in range(height)])
        if kind == 1:
            return self.png(width, height, [colours[y // 12 % 2] * width for y in range(height)])
        if kind == 2:
            row = b"".join(colours[x // 4 % 2] for x in range(width))
            return self.png(width, height, [row] * height)
        if kind == 3:
            row = b"".join(colours[x // 12 % 2] for x in range(width))
            return self.png(width, height, [row] * height)
        rows = [b"".join(colours[(x // 8 + i) % 2] for x in range(width)) for i in (0, 1)]
        return self.png(width, height, [rows[y // 8 % 2] for y in range(height)])

    def photos(self, count):
        """animals/CLASS/N.png of 5 classes, and new.png, which is a horse."""
        if "dataset  folder " not in self.run("plugins").out:
            raise Skip("dataset folder is not built")
        draw, names = random.Random(3), ["cat", "cow", "dog", "horse", "sheep"]
        for i in range(count):
            folder = self.dir / "animals" / names[i % 5]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.png").write_bytes(self.photo(draw, i % 5))
        (self.dir / "new.png").write_bytes(self.photo(draw, 3))
        return names

    @long_case
    def test_photos(self):
        """2,000 of them in 5 classes; a smaller net than the recipe's, on smaller crops."""
        names = self.photos(2000)
        small = [x for key in ("data.random_resized_crop=32", "eval.resize=36", "eval.center_crop=32", "model.resnet.stem=cifar",
                               "model.resnet.width=8", "train.epochs=4") for x in ("--set", key)]
        check, train, predict = self.follow("photos.md", "animals.ini", 5, small)
        self.check(all(name in check.out for name in names), check)
        (accuracy,) = re.findall(r"done at step .* eval accuracy ([\d.]+)", train.err)
        self.check(float(accuracy) > 0.8, train)
        self.check(predict.out.startswith("new.png: horse "), predict)

    @long_case
    def test_transfer(self):
        """A smaller net; the weights to start from are those of a run of one step."""
        self.photos(500)
        small = [x for key in ("data.random_resized_crop=32", "eval.resize=36", "eval.center_crop=32", "model.resnet.stem=cifar",
                               "model.resnet.width=8", "train.epochs=2", "optimizer.warmup_steps=0") for x in ("--set", key)]
        (self.dir / "first.ini").write_text("include = conf/photos.ini\n[data.folder]\npath = animals\n[eval.folder]\npath = animals\n")
        shutil.copytree(SRC / "conf", self.dir / "conf")
        r = self.run("-c", "first.ini", *small, "--set", "train.max_steps=1", "--set", "checkpoint.dir=first")
        self.equal(r.code, 0, r)
        shutil.copy(self.dir / "first/step-00000001/model.safetensors", self.dir / "start.safetensors")
        shutil.rmtree(self.dir / "conf")
        head, whole, evaluated, predicted = self.follow("transfer.md", "animals.ini", 6, small)
        self.check("runs/head/best" not in head.err and "done at step" in whole.err, whole)
        self.check(re.search(r"^eval loss .* accuracy", evaluated.out, re.M), evaluated)
        self.check(predicted.out.startswith("new.png: "), predicted)

    def test_text(self):
        """A smaller model than the recipe's: what it has learnt is not of interest here."""
        (self.dir / "book.txt").write_bytes((SRC / "README.md").read_bytes() * 4)
        (self.dir / "start.txt").write_text("The ")
        small = [x for key in ("train.max_steps=4", "model.gpt2.layers=1", "model.gpt2.width=16", "model.gpt2.context=256")
                 for x in ("--set", key)]
        train, predict, generate = self.follow("text.md", "book.ini", 2, small)
        self.check("done at step 4" in train.err, train)
        self.check(re.fullmatch(r"start.txt: (('.'|\S+) [01]\.\d{4}(, )?){5}\n", predict.out), predict)
        self.check(generate.out.startswith("The "), generate)


if __name__ == "__main__":
    sys.exit(harness.main(Recipes))
