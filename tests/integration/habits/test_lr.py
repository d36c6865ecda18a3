"""`ddpengine lr`: the learning rate finder, as fastai's lr_find with its suggestion `steep`."""
import math
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case  # noqa: E402


class Finder(Case):
    def find(self, *layers, args=(), nproc=2):
        path = self.ini("f.ini", {"output": {"dir": self.dir / "out"}, "checkpoint": {"dir": self.dir / "ck", "every": 5}}, *layers)
        return self.run("lr", "-c", path, *(("--nproc", nproc) if nproc else ()), *args)

    def curve(self, path=None):
        lines = (path or self.dir / "out/lr.csv").read_text().splitlines()
        self.equal(lines[0], "lr,loss,smoothed_loss")
        return [tuple(map(float, line.split(","))) for line in lines[1:]]

    def agrees(self, r, points, steps, first, last):
        """With fastai's AvgSmoothLoss, SchedExp and steep."""
        average = 0
        for i, (lr, loss, smoothed) in enumerate(points):
            self.check(abs(lr / (first * (last / first) ** (i / steps)) - 1) < 1e-6, (i, lr))
            average = average * 0.98 + loss * 0.02
            want = average / (1 - 0.98 ** (i + 1))
            self.check(abs(smoothed - want) < 1e-6 * max(1, abs(want)), (i, smoothed))
        kept = points[steps // 10:-5]
        slopes = [(b[2] - a[2]) / (math.log(b[0]) - math.log(a[0])) for a, b in zip(kept, kept[1:])]
        want = kept[slopes.index(min(slopes))][0]
        self.check(f"suggestion: lr = {want:.3g}, where" in r.out, (want, r))
        return want

    def test_as_fastai(self):
        r = self.find()
        self.equal(r.code, 0, r)
        points = self.curve()
        want = self.agrees(r, points, 100, 1e-7, 10)
        self.check(1e-3 < want < 5, want)
        self.check(r.out.startswith("smoothed loss\n") and r.out.count("*") > 30 and f"the curve is in {self.dir}/out/lr.csv" in r.out, r)
        self.equal(sorted(p.name for p in self.dir.iterdir()), ["f.ini", "out"])
        self.equal([p.name for p in (self.dir / "out").iterdir()], ["lr.csv"])

    def test_divergence_ends_it(self):
        """Smoothed loss over four times the least, or not finite; a hook that keeps a state; and who has a say in it."""
        for layers in ([{"optimizer": {"momentum": 0}}], [{"hook": {"plugin": "int8"}}], [{"train": {"non_finite": "rollback"}}]):
            r = self.find(*layers, args=["--end-lr", "1e9", "--steps", "60", "--csv", self.dir / "c.csv"])
            self.equal(r.code, 0, r)
            points = self.curve(self.dir / "c.csv")
            self.check(20 < len(points) < 60 and "the loss has diverged at a learning rate of " in r.out, r)
            self.agrees(r, points, 60, 1e-7, 1e9)
            self.check(all(p[2] <= 4 * min(q[2] for q in points[:i + 1]) for i, p in enumerate(points[:-1])), points)

    def test_beside_a_run(self):
        """What a run has left stays, and it goes on from there."""
        run = self.train({"checkpoint": {"dir": self.dir / "ck"}, "train": {"epochs": 1}, "optimizer": {"schedule": "cosine", "warmup_steps": 3}})
        before = {p: p.read_bytes() for p in (*run.dir.iterdir(), *(self.dir / "ck").rglob("*")) if p.is_file()}
        r = self.run("lr", "-c", self.dir / "run.ini", "--nproc", 2, "--steps", 20)
        self.equal(r.code, 0, r)
        self.equal({p: p.read_bytes() for p in before}, before)

    def test_one_rank_and_repeatable(self):
        a, b = (self.find({"train": {"seed": 5}}, nproc=0, args=["--steps", "30", "--csv", self.dir / n]) for n in "ab")
        self.equal((a.code, b.code), (0, 0), a)
        self.equal((self.dir / "a").read_bytes(), (self.dir / "b").read_bytes())

    def test_leaves_what_the_ini_asks_of_a_run_to_the_run(self):
        out = {"output": {"prometheus": self.dir / "run.prom", "tensorboard": "yes", "advice": "full", "dir": self.dir / "out"}}
        before = set(pathlib.Path("/tmp").glob("ddpengine-lr-*"))
        r = self.run("lr", "-c", self.ini("asks.ini", out), "--steps", "5", "--nproc", "2")
        self.equal((r.code, (self.dir / "run.prom").exists()), (0, False), r)
        self.equal([p.name for p in (self.dir / "out").iterdir()], ["lr.csv"])
        self.equal(set(pathlib.Path("/tmp").glob("ddpengine-lr-*")) - before, set())

    def test_the_schedule_by_itself(self):
        r = self.train({"optimizer": {"schedule": "lr_range", "min_lr": 1e-3, "lr": 1e9}, "train": {"epochs": 9, "non_finite": "skip"}})
        self.check(r.summary["steps"] < 180, r.summary)
        for setting in ("optimizer.min_lr=0", "optimizer.min_lr=2e9"):
            self.fails(self.run("-c", self.dir / "run.ini", "--check", "--set", setting), 2, "lr_range", "min_lr")

    def test_mistakes(self):
        for args, *parts in ((["--start-lr", "0"], "--start-lr takes a number above 0, not 0"), (["--end-lr", "x"], "not x"),
                             (["--start-lr", "20"], "--start-lr must be below --end-lr"), (["--steps", "0"], "--steps"), (["now"], "too many arguments: now")):
            self.fails(self.find(nproc=0, args=args), 2, *parts)
        self.fails(self.run("lr"), 2, "give -c FILE")
        self.fails(self.run("lr", "-c", self.dir / "none.ini"), 2, "none.ini")
        r = self.run("lr", "-c", self.ini("x.ini", {"data": {"plugin": "nothing"}}))
        self.fails(r, 3, "nothing")
        help_text = self.run("lr", "--help")
        self.check(help_text.code == 0 and re.search(r"--start-lr LR +the first learning rate", help_text.out), help_text)


if __name__ == "__main__":
    sys.exit(harness.main(Finder))
