"""The recipes of docs/recipes: their INI and their commands, on data of the kind that they describe, as a reader follows them."""
import pathlib
import random
import re
import shutil
import struct
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SRC, Case, Skip, long_case  # noqa: E402

BLOCK = re.compile(r"^```(ini|sh)\n(.*?)^```", re.M | re.S)


class Recipes(Case):
    def follow(self, page, name, most, more=()):
        """Writes the INI as `name` and runs the commands, to which `more` is added; their results. The INI has at most `most`
        keys beside what it includes."""
        shutil.copytree(SRC / "conf", self.dir / "conf")
        results = []
        for kind, text in BLOCK.findall((SRC / "docs/recipes" / page).read_text()):
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

    @long_case
    def test_photos(self):
        """2,000 of them in 5 classes; a smaller net than the recipe's, on smaller crops."""
        if "dataset  folder " not in self.run("plugins").out:
            raise Skip("dataset folder is not built")
        draw, names = random.Random(3), ["cat", "cow", "dog", "horse", "sheep"]
        for i in range(2000):
            folder = self.dir / "animals" / names[i % 5]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.png").write_bytes(self.photo(draw, i % 5))
        (self.dir / "new.png").write_bytes(self.photo(draw, 3))
        small = [x for key in ("data.random_resized_crop=32", "eval.resize=36", "eval.center_crop=32", "model.resnet.stem=cifar",
                               "model.resnet.width=8", "train.epochs=4") for x in ("--set", key)]
        check, train, predict = self.follow("photos.md", "animals.ini", 5, small)
        self.check(all(name in check.out for name in names), check)
        (accuracy,) = re.findall(r"done at step .* eval accuracy ([\d.]+)", train.err)
        self.check(float(accuracy) > 0.8, train)
        self.check(predict.out.startswith("new.png: horse "), predict)

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
