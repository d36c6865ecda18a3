"""Metrics of an evaluation: those of scikit-learn for the same predictions, over any number of ranks and any batches, and where they
are written; losses in a .net against PyTorch's. The model is one layer whose weight is 1 on the diagonal, so that it predicts what
it reads."""
import json
import pathlib
import re
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "parity/make"))
import harness  # noqa: E402
import make_metrics  # noqa: E402
from harness import SRC, Case, Skip  # noqa: E402

EXPECTED = json.loads((SRC / "tests/parity/vectors/metrics.json").read_text())


def npy(code, rows):
    """What numpy.save writes."""
    shape = (len(rows), len(rows[0])) if isinstance(rows[0], list) else (len(rows),)
    flat = [v for row in rows for v in row] if isinstance(rows[0], list) else rows
    text = f"{{'descr': '{'<f4' if code == 'f' else '<i8'}', 'fortran_order': False, 'shape': {shape}, }}"
    text = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + struct.pack(f"<{len(flat)}{code}", *flat)


def identity(width):
    """A checkpoint of [linear] out = width, bias = no."""
    body = struct.pack(f"<{width * width}f", *(float(i % (width + 1) == 0) for i in range(width * width)))
    head = json.dumps({"0.weight": {"dtype": "F32", "shape": [width, width], "data_offsets": [0, len(body)]}}).encode()
    return struct.pack("<Q", len(head)) + head + body


class Metrics(Case):
    def predictions(self, width, rows, targets, loss, metrics=(), more=None):
        """The INI whose model predicts `rows`."""
        if "dataset  npy " not in self.run("plugins").out:
            raise Skip("dataset npy is not built")
        (self.dir / "p.npy").write_bytes(npy("f", rows))
        (self.dir / "t.npy").write_bytes(npy("f" if isinstance(targets[0], list) else "q", targets))
        (self.dir / "w.safetensors").write_bytes(identity(width))
        (self.dir / "x.net").write_text(f"[input] field = input\n[linear] out = {width}, bias = no\n[loss] type = {loss}\n"
                                        + "".join(f"[metric] type = {m}\n" for m in metrics))
        data = {"input": self.dir / "p.npy", "label": self.dir / "t.npy"}
        return self.ini("run.ini", {
            "model": {"plugin": "layers"}, "model.mlp": None, "model.layers": {"net": self.dir / "x.net"},
            "data": {"plugin": "npy"}, "data.npy": data, "data.synthetic": None, "eval": {"plugin": "npy", **(more or {})},
            "eval.npy": data, "train": {"batch_size": 8, "epochs": 1}, "checkpoint": {"init_from": self.dir / "w.safetensors"}, "output": {"dir": self.dir / "out"}})

    def evaluate(self, ini, nproc=1, expect=0, **changed):
        sets = [word for key, value in changed.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        r = self.run("eval", "-c", ini, "--nproc", nproc, *sets)
        self.equal(r.code, expect, r)
        if expect == 0:
            (r.event,) = self.metrics(self.dir / "out", "eval")[-1:]
        return r

    def near(self, got, wanted, what):
        if isinstance(wanted, list):
            self.equal(len(got), len(wanted), what)
            for g, w in zip(got, wanted):
                self.near(g or 0, w, what)
        else:
            self.check(got is not None and abs(got - wanted) <= 1e-6 * max(1, abs(wanted)), (what, got, wanted))

    def printed(self, r):
        return {name: float(value) for name, value in re.findall(r"(\w+) (-?[\d.]+(?:e-?\d+)?),", r.out)}

    def compare(self, ini, wanted, *names):
        """Every rank count and batch cuts the samples otherwise; each sample counts once."""
        for nproc, batch in ((1, 103), (1, 10), (2, 8), (3, 7)):
            r = self.evaluate(ini, nproc, train__batch_size=batch)
            self.equal(r.event["samples"], 103)
            self.near(r.event["eval_loss"], wanted["loss"], "loss")
            for name in names:
                self.near(r.event[f"eval_{name}"], wanted[name], (name, nproc, batch))
                self.near(self.printed(r)[name], wanted[name], (name, r.out))
        return r

    # ---- classes ----------------------------------------------------------------------------------------------------
    def test_classes(self):
        """Named by [eval] metrics; the table, and what is too large for one."""
        for which, classes in (("few", make_metrics.CLASSES), ("many", make_metrics.MANY)):
            logits, labels = make_metrics.samples(classes)
            wanted = EXPECTED[which]
            ini = self.predictions(classes, logits, labels, "cross_entropy", more={"metrics": "accuracy, top5, f1, confusion"})
            r = self.compare(ini, wanted, "accuracy", "top5", "f1")
            if which == "few":
                self.equal(r.event["eval_confusion"], wanted["confusion"])
                table = [[int(n) for n in line.split()] for line in r.out.splitlines()[2:]]
                self.equal(table, [list(range(classes))] + [[i, *row] for i, row in enumerate(wanted["confusion"])], r.out)
                continue
            self.check("eval_confusion" not in r.event and "confusion of 30 classes, the most frequent mistakes:" in r.out, r)
            worst = max(n for i, row in enumerate(wanted["confusion"]) for k, n in enumerate(row) if i != k)
            self.equal(int(r.out.splitlines()[3].split()[2]), worst, r.out)

    def test_in_a_training(self):
        """The events and the summary of a run; the .net's own metrics, and one more."""
        logits, labels = make_metrics.samples(make_metrics.CLASSES)
        ini = self.predictions(make_metrics.CLASSES, logits, labels, "cross_entropy", ["f1", "confusion"], {"metrics": "f1, top5"})
        r = self.run("-c", ini, "--nproc", "2", "--set", "optimizer.lr=0")
        self.equal(r.code, 0, r)
        summary, wanted = json.loads((self.dir / "out/summary.json").read_text()), EXPECTED["few"]
        for name in ("top5", "f1", "f1_by_class", "confusion"):
            self.near(sum(summary[f"eval_{name}"], []) if name == "confusion" else summary[f"eval_{name}"],
                      sum(wanted[name], []) if name == "confusion" else wanted[name], name)
        self.equal(summary["eval_accuracy"], None)
        (event,) = self.metrics(self.dir / "out", "eval")
        self.near(event["eval_top5"], wanted["top5"], "top5")
        self.check(re.search(r"eval loss 2\.5208, f1 0\.4166, top5 0\.7961", r.err), r)

    def test_two_classes(self):
        logits, truth = make_metrics.binary()
        ini = self.predictions(make_metrics.TARGETS, logits, truth, "bce_with_logits", ["accuracy", "f1", "confusion"])
        r = self.compare(ini, EXPECTED["binary"], "accuracy", "f1")
        self.equal(r.event["eval_confusion"], EXPECTED["binary"]["confusion"])

    def test_ignored_labels(self):
        """They count in no metric, and the loss is the mean over the others."""
        logits, labels = make_metrics.samples(make_metrics.CLASSES)
        kept = [i for i in range(103) if labels[i] != 2]
        right = sum(max(range(7), key=lambda k: logits[i][k]) == labels[i] for i in kept)
        ini = self.predictions(make_metrics.CLASSES, logits, labels, "cross_entropy, ignore_index = 2", ["accuracy", "confusion"])
        r = self.evaluate(ini, 2)
        self.near(r.event["eval_accuracy"], right / len(kept), "accuracy")
        self.equal(sum(r.event["eval_confusion"][2]), 0)

    # ---- numbers ----------------------------------------------------------------------------------------------------
    def test_numbers(self):
        p, t = make_metrics.regression()
        wanted = EXPECTED["regression"]
        for loss, name in (("mse", "mse"), ("l1", "l1"), ("smooth_l1, beta = 0.5", "smooth_l1")):
            ini = self.predictions(make_metrics.TARGETS, p, t, loss, ["mae"], {"metrics": "mae, r2"})
            self.compare(ini, {**wanted, "loss": wanted[name]}, "mae", "r2")

    # ---- mistakes ---------------------------------------------------------------------------------------------------
    def test_mistakes(self):
        logits, labels = make_metrics.samples(make_metrics.CLASSES)
        ini = self.predictions(make_metrics.CLASSES, logits, labels, "cross_entropy")
        self.fails(self.evaluate(ini, expect=2, eval__metrics="mae"), 2, 'metric "mae"', "cross_entropy", "accuracy, top5, f1, confusion")
        self.fails(self.evaluate(ini, expect=2, eval__metrics="auc"), 2, 'metric "auc" is not known', "[eval] metrics", "loss cross_entropy has accuracy, top5")
        for loss, *parts in (("mse, classes = 3", "x.net:3: [loss]", "keys of cross_entropy alone"),
                             ("l1, beta = 0.5", "x.net:3: [loss]", "beta is a key of smooth_l1 alone"),
                             ("cross_entropy, weight = 1, 2", "x.net:3: [loss]", "2 class weights for 7 classes"),
                             ("cross_entropy, weight = 1, -2", "x.net:3: [loss]", "weight = -2", "a number from 0 for each class"),
                             ("huber", "x.net:3: [loss]", "one of cross_entropy, mse, l1, smooth_l1, bce_with_logits")):
            ini = self.predictions(make_metrics.CLASSES, logits, labels, loss)
            self.fails(self.evaluate(ini, expect=2), 2, *parts)


if __name__ == "__main__":
    sys.exit(harness.main(Metrics))
