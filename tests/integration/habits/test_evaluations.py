"""What a run does with the results of its evaluations: schedule = plateau, keep_best, early_stopping. Resumed at any step it
does the same."""
import json
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case  # noqa: E402

# 20 steps an epoch of 2 ranks; the evaluation's labels have nothing to do with its samples, so that results go up and down
NOISY = {"train": {"epochs": 12}, "optimizer": {"lr": 0.3}, "eval": {"plugin": "synthetic"},
         "eval.synthetic": {"samples": 320, "shape": 12, "classes": 4, "seed": 2}}
PLATEAU = {"optimizer": {"schedule": "plateau", "patience": 0, "cooldown": 1, "gamma": 0.5}}


class Evaluations(Case):
    def saves(self, folder, **more):
        return {"checkpoint": {"dir": self.dir / folder, "every": 7, "keep": 0, **more}}

    def manifest(self, path):
        return json.loads((pathlib.Path(path) / "MANIFEST.json").read_text())

    def results(self, r, name="eval_loss"):
        return {m["step"]: m[name] for m in self.metrics(r.dir, "eval")}

    def test_plateau(self):
        r = self.train(NOISY, PLATEAU)
        lr, best, bad, cooldown, want = 0.3, float("inf"), 0, 0, {}
        for step, loss in self.results(r).items():  # ReduceLROnPlateau.step
            better = loss < best * (1 - 1e-4)
            best, bad = (loss, 0) if better else (best, bad + 1)
            if cooldown > 0:
                cooldown, bad = cooldown - 1, 0
            if bad > 0:
                lr, bad, cooldown = lr * 0.5, 0, 1
            want[step + 1] = lr
        self.check(len(set(want.values())) > 2, want)
        got = {m["step"]: m["lr"] for m in self.metrics(r.dir, "step")}
        for step, lr in want.items():
            self.check(step not in got or abs(got[step] - lr) <= 1e-6 * lr, (step, lr, got))
        drops = [m["factor"] for m in self.metrics(r.dir, "lr_drop")]
        self.equal(drops, [0.5 ** (i + 1) for i in range(len(drops))])

    def test_a_resume_at_any_step_goes_the_same_way(self):
        habits = [NOISY, PLATEAU, {"train": {"early_stopping": "loss, 4"}}]
        whole = self.train(*habits, self.saves("whole", keep_best="accuracy"), name="whole.ini")
        self.check(whole.summary["stopped_early"], whole.summary)
        end = whole.summary["steps"]
        last = self.manifest(self.dir / "whole" / f"step-{end:08}")
        self.check(last["finished"] and last["history"]["plateau.drops"] > 0, last)
        # within an epoch, at its end where an evaluation belongs to it, one step before the end
        for step in (7, 35, 140 if end >= 140 else 70, (end - 1) // 7 * 7):
            name = f"from{step}"
            shutil.copytree(self.dir / "whole" / f"step-{step:08}", self.dir / name / f"step-{step:08}")
            r = self.train(*habits, self.saves(name, keep_best="accuracy"), name=f"{name}.ini")
            self.equal(r.summary["parameter_sha256"], whole.summary["parameter_sha256"], step)
            self.equal(r.summary["best"]["step"], whole.summary["best"]["step"], step)
            self.equal(self.manifest(self.dir / name / f"step-{end:08}")["history"], last["history"], step)

    def test_goes_on_after_an_end_within_an_epoch(self):
        """The evaluation at the end of a run is none of those that plateau counts."""
        plateau = {"optimizer": {"schedule": "plateau", "patience": 0}}
        whole = self.train(NOISY, plateau, self.saves("whole"), {"train": {"max_steps": 100}}, name="whole.ini")
        self.train(NOISY, plateau, self.saves("part"), {"train": {"max_steps": 25}}, name="first.ini")
        part = self.train(NOISY, plateau, self.saves("part"), {"train": {"max_steps": 100}}, name="part.ini")
        self.check(self.metrics(whole.dir, "lr_drop"), whole)
        self.equal(part.summary["parameter_sha256"], whole.summary["parameter_sha256"])

    def test_another_metric_starts_from_scratch(self):
        """A loss of 200 is no accuracy that has to be reached."""
        self.train(NOISY, self.saves("ck", keep_best="loss"), {"train": {"epochs": 2, "early_stopping": "loss, 1"}, "optimizer": {"lr": 30}})
        r = self.train(NOISY, self.saves("ck", keep_best="accuracy"), {"train": {"epochs": 6, "early_stopping": "max:loss, 50"}}, name="more.ini")
        self.check(r.summary["best"]["value"] <= 1.0 and r.summary["steps"] == 120, r.summary)
        self.check("keep_best: the best result so far was of another metric than accuracy" in r.err, r)
        self.check("early_stopping: the best result so far was of another metric than loss" in r.err, r)

    def test_the_best_checkpoint_is_kept(self):
        r = self.train(NOISY, self.saves("ck", every=3, keep=2, keep_best="accuracy"))
        accuracy = self.results(r, "eval_accuracy")
        best = max(accuracy.values())
        step = next(s for s, a in accuracy.items() if a == best)
        self.equal(r.summary["best"], {"metric": "accuracy", "value": best, "step": step, "checkpoint": f"{self.dir}/ck/step-{step:08}"})
        self.check(f"best accuracy {best:.4f} in {self.dir}/ck/step-{step:08}" in r.err, r)
        self.equal(os.readlink(self.dir / "ck" / "best"), f"step-{step:08}")
        end = r.summary["steps"]
        kept = sorted(p.name for p in (self.dir / "ck").glob("step-*"))
        self.equal(kept, sorted({f"step-{s:08}" for s in (step, end - end % 3 - (3 if end % 3 == 0 else 0), end)}))
        path = self.dir / "run.ini"
        for way in (["best"], [self.dir / "ck" / "best"]):
            e = self.run("eval", "-c", path, "--checkpoint", *way)
            self.check(f"accuracy {best:.6f}, 320 samples, step {step} of " in e.out, e)
        pruned = self.run("checkpoint", "prune", self.dir / "ck", "--keep", "1")
        self.equal(pruned.code, 0, pruned)
        self.check((self.dir / "ck" / "best" / "MANIFEST.json").exists(), pruned)
        self.equal(self.run("checkpoint", "verify", self.dir / "ck" / "best").code, 0)

    def test_a_run_from_scratch_has_a_best_one_of_its_own(self):
        self.train(NOISY, {"train": {"epochs": 2}}, self.saves("ck", keep_best="min:accuracy"))
        self.check((self.dir / "ck" / "best").is_symlink())
        self.train(NOISY, {"train": {"epochs": 2, "eval_every": 0, "max_steps": 3}, "eval": None, "eval.synthetic": None},
                   self.saves("ck", resume="never"))
        self.check(not (self.dir / "ck" / "best").is_symlink())
        r = self.run("eval", "-c", self.ini("e.ini", NOISY, self.saves("ck")), "--checkpoint", "best")
        self.fails(r, 8, "has no best checkpoint", "keep_best")

    def test_early_stopping(self):
        r = self.train(NOISY, self.saves("ck"), {"train": {"early_stopping": "eval_loss, 2", "min_delta": 0.01}})
        best, since, stop = float("inf"), 0, None
        for step, loss in self.results(r).items():
            best, since = (loss, 0) if loss < best - 0.01 else (best, since + 1)
            if since == 2:
                stop = step
        self.equal((r.summary["steps"], r.summary["stopped_early"]), (stop, True))
        self.check(f"early stopping at step {stop}: loss was best at step " in r.err, r)
        again = self.run("-c", self.dir / "run.ini", "--nproc", 2)
        self.equal(again.code, 0, again)
        self.check("already complete" in again.err and "ended by early stopping" in again.err, again)
        more = self.run("-c", self.dir / "run.ini", "--nproc", 2, "--set", "train.early_stopping=loss, 3")
        self.equal(more.code, 0, more)
        self.check(json.loads((r.dir / "summary.json").read_text())["steps"] > stop, more)

    def test_mistakes(self):
        path = self.ini("m.ini", NOISY, self.saves("ck"))
        for setting, *parts in (("checkpoint.keep_best=acuracy", "no result \"acuracy\"", "did you mean \"accuracy\"? There is loss, accuracy"),
                                ("train.early_stopping=f1, 3", "no result \"f1\"", "loss, accuracy"),
                                ("train.early_stopping=loss", "as in loss, 5"), ("train.early_stopping=loss, x", "as in loss, 5"),
                                ("train.early_stopping=loss, 0", "as in loss, 5")):
            self.fails(self.run("-c", path, "--check", "--set", setting), 2, *parts)
        self.fails(self.run("-c", path, "--check", "--set", "checkpoint.keep_best=loss", "--set", "checkpoint.dir="), 2, "needs [checkpoint] dir")
        blind = ["-c", path, "--check", "--set", "eval.plugin="]
        for setting in ("optimizer.schedule=plateau", "checkpoint.keep_best=loss", "train.early_stopping=loss, 2"):
            self.fails(self.run(*blind, "--set", setting), 2, "[eval] plugin is not set")
        for setting in ("optimizer.schedule=plateau", "train.early_stopping=loss, 2"):
            self.fails(self.run("-c", path, "--check", "--set", setting, "--set", "train.eval_every=0"), 2, "makes none before the end")
        for setting, *parts in (("optimizer.schedule=multi_step", "needs milestones"), ("optimizer.milestones=5, 3", "3 comes after 5"),
                                ("optimizer.schedule=one_cycle", None)):
            r = self.run("-c", path, "--check", "--set", setting)
            if parts[0] is None:
                self.equal(r.code, 0, r)
            else:
                self.fails(r, 2, *parts)
        self.fails(self.run("-c", path, "--check", "--set", "optimizer.schedule=one_cycle", "--set", "optimizer.momentum=0"), 2, "cycle_momentum = no")
        self.fails(self.run("-c", path, "--check", "--set", "optimizer.schedule=one_cycle", "--set", "optimizer.warmup_steps=5"), 2, "pct_start")

    def test_one_cycle_over_ranks(self):
        """The rates of a run are those of the unit test's schedule; a resume goes on in it."""
        cycle = {"optimizer": {"schedule": "one_cycle", "lr": 0.1}, "train": {"epochs": 2}}
        whole = self.train(cycle, self.saves("whole"), name="whole.ini")
        rates = [m["lr"] for m in self.metrics(whole.dir, "step")]
        self.check(max(rates) <= 0.1 and rates[0] < max(rates) and rates[-1] < 1e-6, rates)
        shutil.copytree(self.dir / "whole" / "step-00000014", self.dir / "part" / "step-00000014")
        part = self.train(cycle, self.saves("part"), name="part.ini")
        self.equal(part.summary["parameter_sha256"], whole.summary["parameter_sha256"])


if __name__ == "__main__":
    sys.exit(harness.main(Evaluations))
