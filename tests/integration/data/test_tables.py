"""Tables as CSV and arrays of NumPy in whole runs: the same samples give the same bits from each, what --check shows of them, and
mistakes."""
import io
import os
import pathlib
import re
import shutil
import struct
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, Skip, until  # noqa: E402

INPUT = {"data.synthetic": None, "model.mlp": {"input": "input", "classes": 3, "hidden": 16}}


class Tables(Case):
    def needs(self, *names):
        listed = self.run("plugins").out
        for name in names:
            if f"dataset  {name} " not in listed:
                raise Skip(f"dataset {name} is not built")

    @staticmethod
    def rows(count=320):
        """Numbers that f32 holds exactly, and one of three classes that follows from them."""
        out, x = [], 1
        for _ in range(count):
            numbers = []
            for _ in range(4):
                x = x * 1103515245 + 12345 & 0xFFFFFFFF
                numbers.append((x >> 16 & 1023) / 256 - 2)
            out.append((numbers, (numbers[0] + numbers[1] > 0) + (numbers[2] > 1)))
        return out

    def csv(self, name="t.csv", **keys):
        """Classes are words whose order is that of the numbers."""
        path = self.dir / name
        lines = ["a,b,kind,c,d"] + [f"{x[0]},{x[1]},{'low mid top'.split()[y]},{x[2]},{x[3]}" for x, y in self.rows()]
        path.write_text("\n".join(lines) + "\n")
        return {**INPUT, "data": {"plugin": "csv"}, "data.csv": {"path": path, "target": "kind", "standardize": "no", **keys}}

    @staticmethod
    def npy(code, shape, values):
        """What numpy.save writes: f4, u1 and i8 by their codes of struct."""
        descr = {"f": "<f4", "B": "|u1", "q": "<i8"}[code]
        text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
        return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + struct.pack(f"<{len(values)}{code}", *values)

    def arrays(self):
        rows = self.rows()
        return (self.npy("f", (len(rows), 4), [v for x, _ in rows for v in x]), self.npy("q", (len(rows),), [y for _, y in rows]))

    def npz(self, name, method):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as z:
            for key, data in zip(("inputs.npy", "kind.npy"), self.arrays()):
                z.writestr(key, data)
        (self.dir / name).write_bytes(out.getvalue())
        return {**INPUT, "data": {"plugin": "npy"}, "data.npy": {"path": self.dir / name, "input": "inputs", "label": "kind"}}

    def npy_files(self):
        for name, data in zip(("x.npy", "y.npy"), self.arrays()):
            (self.dir / name).write_bytes(data)
        return {**INPUT, "data": {"plugin": "npy"}, "data.npy": {"input": self.dir / "x.npy", "label": self.dir / "y.npy"}}

    # ---- two tables -------------------------------------------------------------------------------------------------
    def test_columns_of_training_and_evaluation_agree(self):
        """What the two sections say about the columns is compared, and so is what they find in their files."""
        self.needs("csv")
        train = self.csv()
        rows = (self.dir / "t.csv").read_text().splitlines()
        (self.dir / "e.csv").write_text("\n".join(rows[:1] + [r for r in rows[60:90] if ",top," not in r]) + "\n")

        def evaluated(**keys):
            return train, {"eval": {"plugin": "csv"}, "eval.synthetic": None,
                           "eval.csv": {"path": self.dir / "e.csv", "fit": self.dir / "t.csv", "target": "kind", "standardize": "no",
                                        **keys}}
        for wrong, *parts in (({"fit": ""}, 'column "kind"', "top in [data.csv] and absent in [eval.csv]", "Write the same fit"),
                              ({"target": "a", "target_type": "number"}, 'column "kind" where [eval.csv] has "a"'),
                              ({"standardize": "yes"}, "standardize"),
                              ({"ignore": "b"}, 'column "b" where [eval.csv] has "c"')):
            r = self.run("-c", self.ini("x.ini", *evaluated(**wrong)), "--check")
            self.fails(r, 2, *parts)
        self.train(*evaluated())

    def test_one_table_is_divided_alike(self):
        """[data] and [eval] of one file: another share, another id, a part of all."""
        self.needs("csv")
        layer = self.csv(split="train", validation=0.25)
        (self.dir / "link.csv").symlink_to(self.dir / "t.csv")

        def check(data=None, **keys):
            mine = {**layer, "data.csv": {**layer["data.csv"], **(data or {})}}
            return self.run("-c", self.ini("x.ini", mine, {"eval": {"plugin": "csv"}, "eval.synthetic": None,
                            "eval.csv": {**layer["data.csv"], "split": "validation", **keys}}), "--check")
        r = check()
        self.equal((r.code, "warning" in r.err), (0, False), r)
        self.fails(check(path=self.dir / "link.csv", validation=0.5), 2, "t.csv", "validation = 0.25 in [data.csv]",
                   "validation = 0.5 in [eval.csv]", "Write the same validation in both")
        self.fails(check(id="a", ignore=""), 2, "id = a in [eval.csv]", "id = (none) in [data.csv]", "Write the same id")
        self.equal(check({"ignore": "a", "id": ""}, id="", ignore="1").code, 0)
        standardized = {"standardize": "yes", "fit": self.dir / "t.csv", "split": "all"}
        shutil.copy(self.dir / "t.csv", self.dir / "e.csv")
        self.fails(check({"standardize": "yes"}, **standardized, path=self.dir / "e.csv", validation=0.5), 2, "validation = 0.5")
        for data, keys, part in (({"split": "all"}, {}, "[data.csv] reads all of it"), ({}, {"split": "all"}, "[eval.csv] reads all")):
            r = check(data, **keys)
            self.check(r.code == 0 and part in r.err, r)

    # ---- the same from each ----------------------------------------------------------------------------------------
    def test_the_same_samples_train_the_same_bits(self):
        self.needs("csv", "npy")
        steps = {"train": {"epochs": 100, "max_steps": 50}}
        layers = [self.csv(), self.npy_files(), self.npz("a.npz", zipfile.ZIP_STORED), self.npz("b.npz", zipfile.ZIP_DEFLATED)]
        summaries = [self.train(layer, steps, name=f"{n}.ini").summary for n, layer in enumerate(layers)]
        self.equal([s["steps"] for s in summaries], [50] * 4)
        self.equal(len({s["parameter_sha256"] for s in summaries}), 1, summaries)
        other = self.train(self.csv(standardize="yes"), steps, name="other.ini").summary
        self.check(other["parameter_sha256"] != summaries[0]["parameter_sha256"])

    # ---- csv -------------------------------------------------------------------------------------------------------
    def test_csv_is_learnt_and_shown(self):
        self.needs("csv")
        layer = self.csv(standardize="yes", split="train", validation=0.25)
        evaluated = {"eval": {"plugin": "csv"}, "eval.csv": {**layer["data.csv"], "split": "validation"}}
        r = self.run("-c", self.ini("x.ini", layer, evaluated), "--check")
        self.equal(r.code, 0, r)
        for part in ("samples of [data]     ", "samples of [eval]     ", "  a                    number    -1.97656 to 1.99219, mean ",
                     "kind                 class     3 classes: low, mid, top; target\n"):
            self.check(part in r.out, (part, r))
        r = self.train(layer, evaluated, {"train": {"epochs": 30}})
        self.check(r.summary["eval_accuracy"] > 0.8, r.summary)

    def test_csv_warns_of_what_it_leaves_out(self):
        self.needs("csv")
        layer = self.csv(skip_bad="yes")
        with open(self.dir / "t.csv", "a", encoding="ascii") as f:
            f.write("1,2\n1,2,,3,4\n")
        r = self.train(layer, nproc=1)
        lines = [line for line in r.err.splitlines() if "warning" in line]
        self.equal(len(lines), 1, r)
        self.check("t.csv: 2 bad rows are left out; the first is line 322: the row has 2 cells, the header has 5" in lines[0], r)

    def wrong(self, code, layer, *parts):
        self.fails(self.run("-c", self.ini("x.ini", layer), "--nproc", 2), code, *parts)

    def test_csv_mistakes(self):
        self.needs("csv")
        layer = self.csv()
        self.wrong(2, self.csv(target="Kind"), "[data.csv]", "target = Kind", "no such column", "a, b, kind, c, d")
        self.wrong(2, {**layer, "model.mlp": {**INPUT["model.mlp"], "input": "image"}}, "image", "input")
        self.wrong(10, {**layer, "model.mlp": {**INPUT["model.mlp"], "classes": 2}}, "label", "classes")
        with open(self.dir / "t.csv", "a", encoding="ascii") as f:
            f.write("1,2,mid,3\n")
        self.wrong(10, layer, f"{self.dir}/t.csv:322: the row has 4 cells, the header has 5", "skip_bad = yes")

    # ---- npy -------------------------------------------------------------------------------------------------------
    def test_npy_images_are_transformed(self):
        self.needs("npy")
        (self.dir / "x.npy").write_bytes(self.npy("B", (32, 8, 9, 3), [n * 7 % 256 for n in range(32 * 216)]))
        (self.dir / "y.npy").write_bytes(self.npy("B", (32,), [n % 4 for n in range(32)]))
        layer = {"data.synthetic": None, "model.mlp": {"input": "image"}, "data": {"plugin": "npy", "resize": "6, 6", "flip": 0.5},
                 "data.npy": {"input": self.dir / "x.npy", "label": self.dir / "y.npy"}}
        r = self.run("-c", self.ini("x.ini", layer), "--check")
        self.equal(r.code, 0, r)
        for part in ('x.npy", u1 (32, 8, 9, 3): image u8, from (H, W, C)\n  "', "label i64 from 0 to 3\n", "u8 3x8x9 -> resize 6x6"):
            self.check(part in r.out, (part, r))
        self.train(layer)

    def test_npy_cut_short_while_training(self):
        self.needs("npy")
        out = self.dir / "out"
        config = {"train": {"epochs": 1000000}, "output": {"dir": out, "log_every": 1}}
        p = self.start("-c", self.ini("cut.ini", self.npy_files(), config), "--nproc", 2)
        until(lambda: p.poll() is not None or (out / "metrics.jsonl").exists() and "step" in (out / "metrics.jsonl").read_text(), "no step")
        os.truncate(self.dir / "x.npy", 1000)
        self.fails(self.finish(p), 10, self.dir / "x.npy", "Something has truncated it", re.compile(r"sample \d+ of the dataset"))

    def test_npy_mistakes(self):
        self.needs("npy")
        layer = self.npz("a.npz", zipfile.ZIP_STORED)
        self.wrong(2, {**layer, "data.npy": {**layer["data.npy"], "label": "y"}}, "label = y", "a.npz", "it has: inputs, kind")
        files = self.npy_files()
        os.truncate(self.dir / "y.npy", 1000)
        self.wrong(10, files, f"{self.dir}/y.npy", "is truncated: its header promises 2560 bytes of elements, it has 872")


if __name__ == "__main__":
    sys.exit(harness.main(Tables))
