"""--sweep: the run with each value of a key, one after the other, and a table that names the best."""
import json
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, until  # noqa: E402

EVAL = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 160, "shape": 12, "classes": 4, "seed": 1}}


class Sweep(Case):
    def sweep(self, layers, *keys, nproc=2, args=()):
        path = self.ini("s.ini", {"output": {"dir": self.dir / "out", "progress": "off"}}, *layers)
        return self.run("-c", path, *(("--nproc", nproc) if nproc else ()), *args, *(a for k in keys for a in ("--sweep", k)))

    def rows(self, r):
        """By the run's name: (best, exit code, numbers)."""
        lines = r.out.strip().splitlines()
        self.equal(lines[0].split()[:3], ["run", "exit", "steps"], r)
        return {w[1 if w[0] == "*" else 0]: (w[0] == "*", w[2 if w[0] == "*" else 1], w[3 if w[0] == "*" else 2:])
                for w in (line.split() for line in lines[1:-1])}

    def summary(self, name):
        return json.loads((self.dir / "out" / name / "summary.json").read_text())

    def test_a_key(self):
        r = self.sweep([EVAL, {"checkpoint": {"dir": self.dir / "ck"}}], "optimizer.lr=1e-4, 0.05,1e30")
        self.equal(r.code, 0, r)
        rows = self.rows(r)
        self.equal([(n, best, code) for n, (best, code, _) in rows.items()],
                   [("lr=1e-4", False, "0"), ("lr=0.05", True, "0"), ("lr=1e30", False, "7")], r)
        for name, lr in (("lr=1e-4", 1e-4), ("lr=0.05", 0.05)):
            alone = self.train(EVAL, {"optimizer": {"lr": lr}}, name=f"{lr}")
            self.equal(self.summary(name)["parameter_sha256"], alone.summary["parameter_sha256"])
            self.equal(rows[name][2][:3], ["40", f"{alone.summary['final_loss']:.6g}", f"{alone.summary['eval_loss']:.6g}"])
            self.check((self.dir / "ck" / name / "step-00000040").exists())
        last = r.out.strip().splitlines()[-1]
        self.equal(last, f"best: lr=0.05, eval_loss {self.summary('lr=0.05')['eval_loss']:.6g}, in {self.dir}/out/lr=0.05")
        again = self.sweep([EVAL, {"checkpoint": {"dir": self.dir / "ck"}}], "optimizer.lr=1e-4, 0.05,1e30")
        self.check("already complete" in again.err and again.out.strip().splitlines()[-1] == last, again)

    def test_all_combinations_by_a_metric(self):
        r = self.sweep([EVAL, {"checkpoint": {"dir": self.dir / "ck", "keep_best": "accuracy"}}], "optimizer.lr=0.001,0.1", "train.seed=1,2", nproc=0)
        self.equal(r.code, 0, r)
        rows = self.rows(r)
        self.equal(list(rows), [f"lr={lr},seed={s}" for lr in ("0.001", "0.1") for s in (1, 2)])
        values = {n: self.summary(n)["best"]["value"] for n in rows}
        best = max(values, key=lambda n: (values[n], -list(rows).index(n)))
        self.equal([n for n, row in rows.items() if row[0]], [best], r)
        self.check(f"best: {best}, eval_accuracy {values[best]:.6g}, in " in r.out, r)

    def test_lists_and_training_loss(self):
        r = self.sweep([{"optimizer": {"algorithm": "adamw", "momentum": None, "lr": 0.01}, "train": {"max_steps": 5}}],
                       "optimizer.betas=0.9, 0.99; 0.5, 0.9", nproc=0)
        self.equal(list(self.rows(r)), ["betas=0.9,0.99", "betas=0.5,0.9"], r)
        self.check("final_loss" in r.out.splitlines()[-1], r)

    def test_all_fail(self):
        r = self.sweep([], "optimizer.lr=1e30,1e31", nproc=0)
        self.equal(r.code, 7, r)
        self.check("no run has a final_loss to compare" in r.out, r)

    def test_mistakes(self):
        for keys, *parts in ((["optimizer.lr=0.1,x"], "run 2", "lr = x: not a number"), (["optimizer.lrr=1"], "did you mean \"lr\""),
                             (["lr=1,2"], "write section.key=value,value"), (["optimizer.lr"], "write section.key"),
                             (["output.dir=a,b"], "its own folder"), (["train.seed=" + ",".join(map(str, range(40)))] * 2, "more than 1000 runs")):
            self.fails(self.sweep([], *keys, nproc=0), 2, "--sweep", *parts)
        self.fails(self.sweep([{"output": {"dir": ""}}], "train.seed=1,2", nproc=0), 2, "--sweep needs [output] dir")
        for other in ("--check", "--print-config", "--profile"):
            self.fails(self.sweep([], "train.seed=1,2", nproc=0, args=[other]), 2, "leave out " + other)

    def test_a_signal_ends_it(self):
        path = self.ini("s.ini", {"output": {"dir": self.dir / "out"}, "train": {"epochs": 1000000}})
        p = self.start("-c", path, "--nproc", 2, "--sweep", "train.seed=1,2,3")
        until(lambda: (self.dir / "out/seed=1/metrics.jsonl").exists() and self.metrics(self.dir / "out/seed=1", "step"), "no step")
        p.send_signal(signal.SIGTERM)
        r = self.finish(p)
        self.equal(r.code, 143, r)
        self.check("seed=1" in r.out and r.out.count("not started") == 2, r)
        self.no_processes_left(self.dir)


if __name__ == "__main__":
    sys.exit(harness.main(Sweep))
