"""What other programs read of a run: TensorBoard's event file and Prometheus' text file, against metrics.jsonl."""
import os
import pathlib
import re
import signal
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import event_file  # noqa: E402
import harness  # noqa: E402
from harness import Case, until  # noqa: E402

EVALUATED = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 160, "shape": 12, "classes": 4, "seed": 1}}
GROUP = {"loss": "train", "lr": "train", "epoch": "train", "grad_norm": "train", "step_ms": "speed", "data_ms": "speed", "wait_ms": "speed",
         "samples_per_s": "speed"}


def f32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


class Outputs(Case):
    def expected(self, folder):
        """{tag: {step: float32}} of metrics.jsonl, of two lines of one step the later."""
        out = {}
        for line in self.metrics(folder):
            kind = line.pop("event")
            line.pop("time", None)
            step = line.pop("step", 0)
            if kind in ("start", "end"):
                continue
            for name, number in line.items():
                if isinstance(number, (int, float)):
                    group = GROUP[name] if kind == "step" else kind
                    out.setdefault(f"{group}/{name.removeprefix('eval_') if kind == 'eval' else name}", {})[step] = f32(number)
        return out

    def compare(self, folder, subset=False):
        want = self.expected(folder)
        have, texts = event_file.read(folder)
        for tag in want:
            for step, number in want[tag].items():
                got = have.get(tag, {}).get(step)
                # metrics.jsonl has times with six digits, losses with nine
                close = got == number if tag.startswith(("train/", "eval/")) else got is not None and abs(got - number) <= 1e-5 * abs(number)
                self.check(close, f"{tag} step {step}: {got}, metrics.jsonl has {number}")
        self.equal(sorted(have), sorted(want))
        if not subset:
            self.equal({t: sorted(have[t]) for t in have}, {t: sorted(want[t]) for t in want})
        return texts

    def test_tensorboard_has_every_number(self):
        layers = (EVALUATED, {"optimizer": {"clip_norm": 1}}, {"checkpoint": {"dir": self.dir / "ck", "every": 15}})
        r = self.train(*layers, {"output": {"tensorboard": "yes"}})
        texts = self.compare(r.dir)
        self.check("train/grad_norm" in event_file.read(r.dir)[0])
        self.check("[optimizer]" in texts["settings"][0] and "clip_norm = 1" in texts["settings"][0], texts)
        # goes on from step 40: the same numbers, in a second file
        self.train(*layers, {"output": {"tensorboard": "yes"}}, {"train": {"epochs": 3}})
        self.equal(len(list(r.dir.glob("events.out.tfevents.*"))), 2)
        self.compare(r.dir)
        plain = self.train(*layers, {"checkpoint": {"resume": "never"}}, name="plain")
        self.equal(list(plain.dir.glob("events.*")), [])

    def test_tensorboard_of_a_run_that_was_killed(self):
        out = self.dir / "out"
        plan = {"output": {"dir": out, "tensorboard": "yes", "progress": "off"}, "train": {"epochs": 100000},
                "checkpoint": {"dir": self.dir / "ck", "every": 50}}
        p = self.start("-c", self.ini("run.ini", plan))
        until(lambda: p.poll() is not None or (out / "metrics.jsonl").exists() and len(self.metrics_whole(out)) > 300, "no steps")
        self.equal(p.poll(), None, "ended early")
        p.send_signal(signal.SIGKILL)
        self.finish(p)
        text = (out / "metrics.jsonl").read_text()
        (out / "metrics.jsonl").write_text(text[:text.rindex("\n") + 1])
        self.compare(out, subset=True)
        # the steps after the checkpoint are made again, and what was written of them is void. A checkpoint may be of steps whose
        # lines the kill has lost
        steps = max(event_file.read(out)[0]["train/loss"])
        saved = max(int(p.name[5:]) for p in (self.dir / "ck").glob("step-????????"))
        end = max(steps, saved) + 20
        r = self.run("-c", self.ini("again.ini", plan, {"train": {"max_steps": end}}))
        self.equal(r.code, 0, r)
        self.equal(sorted(event_file.read(out)[0]["train/loss"]), [*range(1, min(steps, saved) + 1), *range(saved + 1, end + 1)])
        self.compare(out, subset=True)

    def metrics_whole(self, folder):
        return (folder / "metrics.jsonl").read_text().splitlines()

    def test_prometheus(self):
        file = self.dir / "run.prom"
        r = self.train(EVALUATED, {"output": {"prometheus": file}, "checkpoint": {"dir": self.dir / "ck", "every": 15}})
        text = file.read_text()
        values = dict(re.findall(r"^(ddpengine_[^ ]+) (\S+)$", text, re.M))
        last = self.metrics(r.dir, "step")[-1]
        self.equal(float(values["ddpengine_step"]), 40.0)
        self.equal(float(values["ddpengine_planned_steps"]), 40.0)
        self.equal(f32(float(values["ddpengine_loss"])), f32(last["loss"]))
        self.equal(float(values['ddpengine_eval{metric="accuracy"}']), self.metrics(r.dir, "eval")[-1]["eval_accuracy"])
        self.equal(int(values["ddpengine_checkpoints_total"]), len(self.metrics(r.dir, "checkpoint")))
        # each family is described once, before its values; the last line ends
        families = re.findall(r"^# TYPE (\S+) (gauge|counter)$", text, re.M)
        self.equal(sorted(n for n, _ in families), sorted({re.sub(r"\{.*", "", n) for n in values}))
        self.equal(sorted(n for n, _ in families), sorted(re.findall(r"^# HELP (\S+) \S", text, re.M)))
        self.check(text.endswith("\n") and all(n.endswith("_total") == (kind == "counter") for n, kind in families), text)
        self.equal([p.name for p in self.dir.glob("run.prom*")], ["run.prom"])

    def test_prometheus_is_never_half_there(self):
        file = self.dir / "run.prom"
        p = self.start("-c", self.ini("run.ini", {"output": {"prometheus": file, "progress": "off"}, "train": {"epochs": 100000}}))
        until(lambda: p.poll() is not None or file.exists(), "no file")
        reads = seen = 0
        stamp = b""
        while seen < 3 and p.poll() is None:  # three versions of it
            text = file.read_bytes()
            self.check(text.endswith(b"\n") and b"\nddpengine_written_timestamp_seconds " in text, text)
            reads += 1
            seen += text != stamp
            stamp = text
        self.equal(p.poll(), None, "ended early")
        self.check(reads > 100, reads)
        p.send_signal(signal.SIGTERM)
        self.equal(self.finish(p).code, 143)

    def test_runs(self):
        plan = {"output": {"dir": "runs/a"}, "checkpoint": {"dir": "ck", "keep_best": "accuracy"}}
        ini = self.ini("run.ini", EVALUATED, plan)
        for args in ([], ["--set", "output.dir=runs/deep/b", "--set", "optimizer.lr=0.1", "--set", "checkpoint.dir=ck-b"],
                     ["--set", "output.dir=runs/c", "--set", "data.synthetic.samples=0"]):
            self.run("-c", ini, *args)
        self.run("-c", ini, "--set", "output.dir=runs/d", "--set", "optimizer.lr=1e30", "--set", "checkpoint.dir=ck-d")  # exit 7
        cut = self.dir / "runs/cut"
        cut.mkdir()
        lines = [x for x in (self.dir / "runs/a/metrics.jsonl").read_text().splitlines() if '"end"' not in x]
        (cut / "metrics.jsonl").write_text("\n".join(lines[:20] + [lines[20][:9]]))
        old = (cut / "metrics.jsonl").stat().st_mtime - 3600
        os.utime(cut / "metrics.jsonl", (old, old))
        r = self.run("runs", "runs")
        self.equal(r.code, 0, r)
        rows = {line.split()[0]: line for line in r.out.splitlines()[1:]}
        self.equal(sorted(rows), ["runs/a", "runs/cut", "runs/d", "runs/deep/b"])
        best = max(x["eval_accuracy"] for x in self.metrics(self.dir / "runs/a", "eval"))
        self.check(re.search(rf"^runs/a +done +80 +[0-9.]+ +accuracy {best:.4f} at \d+ +.* optimizer.lr=0.05$", rows["runs/a"]), r.out)
        self.check("optimizer.lr=0.1" in rows["runs/deep/b"] and "output.dir" not in r.out and "checkpoint.dir" not in r.out, r.out)
        self.check(re.search(r"^runs/d +exit 7 ", rows["runs/d"]), r.out)
        self.check(re.search(r"^runs/cut +cut off +19/80 .*\(no settings.ini that can be read\)$", rows["runs/cut"]), r.out)
        # the settings of a run are an INI that runs
        again = self.run("-c", self.dir / "runs/a/settings.ini", "--set", "output.dir=again", "--set", "checkpoint.dir=ck-again")
        self.equal(again.code, 0, again)
        self.equal(self.metrics(self.dir / "again", "step")[-1]["loss"], self.metrics(self.dir / "runs/a", "step")[-1]["loss"])
        self.fails(self.run("runs", "nothing"), 2, "nothing")
        self.fails(self.run("runs", "ck"), 2, "no run below ck")

    def test_mistakes(self):
        r = self.run("-c", self.ini("run.ini", {"output": {"tensorboard": "yes"}}))
        self.fails(r, 2, "run.ini:", "[output] tensorboard", "needs [output] dir")
        r = self.run("-c", self.ini("run.ini", {"output": {"prometheus": self.dir / "no/such/run.prom"}}))
        self.fails(r, 2, "[output] prometheus", "a folder that can be written", "no/such")


if __name__ == "__main__":
    harness.main(Outputs)
