"""Tables as CSV and arrays of NumPy in whole runs: the same samples give the same bits from each, what --check shows of them, and
mistakes."""
import sys

import harness
from harness import Case, Skip

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


if __name__ == "__main__":
    sys.exit(harness.main(Tables))
