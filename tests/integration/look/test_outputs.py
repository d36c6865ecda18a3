"""What other programs read of a run: TensorBoard's event file and Prometheus' text file, against metrics.jsonl."""
import bisect
import os
import pathlib
import re
import shutil
import signal
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import event_file  # noqa: E402
import harness  # noqa: E402
from checkpoint_files import read_safetensors  # noqa: E402
from harness import Case, seldom, until  # noqa: E402

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
        have = {tag: steps for tag, steps in have.items() if not tag.startswith("ranks/")}  # of ranks.jsonl: test_ranks.py
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

    @seldom
    def test_histograms(self):
        """Of the weights as a checkpoint has them, of the gradients as their norm has it; the same whatever way the update goes."""
        edges = [1e-12]
        while edges[-1] * 1.1 < 1e20:
            edges.append(edges[-1] * 1.1)
        edges = [-e for e in reversed(edges)] + [0.0] + edges
        first = None
        for name, layers, nproc in (("shm", {"group": {"backend": "shm"}}, 2), ("plain", {"group": {"backend": "gloo-tcp"}}, 2),
                                    ("zero", {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}}, 2),
                                    ("one", {"train": {"batch_size": 32}}, 0), ("parts", {"train": {"batch_size": 8, "accumulate": 2}}, 2)):
            for clip in (0.05, None):
                r = self.train(layers, {"output": {"tensorboard": "yes", "histograms": 7}, "train": {"max_steps": 15},
                                        "optimizer": {"clip_norm": clip}, "ddp": {"bucket_size": "1KiB", "first_bucket_size": "1KiB"},
                                        "checkpoint": {"dir": self.dir / f"{name}{clip}.ck", "every": 7, "keep": 0}}, nproc=nproc,
                               name=f"{name}{clip}")
                found = event_file.histograms(r.dir)
                self.check(all(sorted(steps) == [7, 14] for steps in found.values()), found.keys())
                weights = read_safetensors(self.dir / f"{name}{clip}.ck/step-00000014/model.safetensors")
                self.equal(sorted(found), sorted(f"{kind}/{p}" for p in weights for kind in ("weights", "gradients")))
                for p, (_, _, data) in weights.items():
                    values = struct.unpack(f"<{len(data) // 4}f", data)
                    h = found[f"weights/{p}"][14]
                    self.equal((h["min"], h["max"], h["num"]), (min(values), max(values), len(values)))
                    bins = [bisect.bisect_right(edges, v) for v in values]
                    self.equal(h["limits"], edges[min(bins) - 1:max(bins) + 1])
                    self.equal(h["counts"], [float(bins.count(i)) for i in range(min(bins) - 1, max(bins) + 1)])
                gradients = {p: found[f"gradients/{p}"][7] for p in weights}
                squares = sum(g["sum_squares"] for g in gradients.values())
                if clip:  # what the line of the step has is the norm before clipping
                    norm = next(m["grad_norm"] for m in self.metrics(r.dir, "step") if m["step"] == 7)
                    self.check(norm > clip and abs(squares ** 0.5 - norm) <= 1e-6 * norm, f"{squares ** 0.5} {norm}")
                    if name != "parts":
                        first = first or gradients
                        self.check(all(abs(gradients[p][k] - first[p][k]) <= 1e-5 for p in first for k in ("min", "max", "sum")), name)

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

    @seldom
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

    def test_tensorboard_after_its_folder_was_removed(self):
        out = self.dir / "out"
        p = self.start("-c", self.ini("run.ini", {"output": {"dir": out, "tensorboard": "yes", "progress": "off"}, "train": {"epochs": 100000}}))
        until(lambda: p.poll() is not None or (out / "metrics.jsonl").exists() and len(self.metrics_whole(out)) > 100, "no steps")
        shutil.rmtree(out, ignore_errors=True)  # the run may make it again meanwhile
        until(lambda: p.poll() is not None or (out / "metrics.jsonl").exists() and len(self.metrics_whole(out)) > 300, "no new file")
        p.send_signal(signal.SIGTERM)
        r = self.finish(p)
        self.equal(r.code, 143, r)
        self.equal(len(re.findall(r"events\.out\S+ was removed during the run", r.err)), 1, r)
        have = sorted(event_file.read(out)[0]["train/loss"])  # whole records after a first one
        want = [x["step"] for x in self.metrics(out, "step")]
        first = max(have[0], want[0])  # one of the two may have been removed before its lines of that moment were written
        self.equal([x for x in have if x >= first], [x for x in want if x >= first])

    def test_prometheus_of_two_runs(self):
        """What one writes for a moment is not the other's, nor what one left that was killed."""
        file = self.dir / "run.prom"
        left, own = self.dir / "run.prom.ddp-0123abcd.tmp", self.dir / "run.prom.tmp"
        left.write_text("half")
        own.write_text("a user's")
        runs = [self.start("-c", self.ini(f"{n}.ini", {"output": {"dir": self.dir / n, "prometheus": file, "progress": "off"}, "train": {"epochs": 100000}}))
                for n in ("one", "two")]
        until(lambda: all(p.poll() is not None or (self.dir / n / "metrics.jsonl").exists() and len(self.metrics_whole(self.dir / n)) > 50
                          for p, n in zip(runs, ("one", "two"))) and file.exists(), "no steps")
        for p in runs:
            p.send_signal(signal.SIGTERM)
            r = self.finish(p)
            self.equal((r.code, "prom" in r.err), (143, False), r)
        self.check(file.read_text().endswith("\n"))
        self.equal(sorted(p.name for p in self.dir.glob("run.prom*")), ["run.prom", "run.prom.tmp"])
        self.equal(own.read_text(), "a user's")

    def test_two_runs_in_one_folder(self):
        """The second says so once, and so does --check; a run that comes later says nothing."""
        out = self.dir / "out"
        long = self.ini("long.ini", {"output": {"dir": out, "progress": "off"}, "train": {"epochs": 100000}})
        short = self.ini("short.ini", {"output": {"dir": out, "progress": "off"}})
        p = self.start("-c", long)
        until(lambda: p.poll() is not None or (out / "metrics.jsonl").exists() and len(self.metrics_whole(out)) > 5, "no steps")
        r = self.run("-c", short, "--check")
        self.check(r.code == 0 and re.search(rf"warning +output +another run, which has not ended, writes into {out}: ", r.out), r)
        r = self.run("-c", short)
        warned = re.findall(rf"another run, which has not ended, writes {out}/metrics.jsonl too.*: .*", r.err)
        self.check(r.code == 0 and len(warned) == 1 and "end one of them, or give it an [output] dir of its own" in warned[0], r)
        p.send_signal(signal.SIGTERM)
        self.equal(self.finish(p).code, 143)
        for r in (self.run("-c", short), self.run("-c", short, "--check")):
            self.check(r.code == 0 and "another run" not in r.out + r.err, r)

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
        # a name that a terminal would take for a command
        shutil.copytree(self.dir / "runs/a", self.dir / "runs/\x1b[2J\r\x9b1m")
        r = self.run("runs", "runs")
        self.equal((r.code, [c for c in r.out if c < " " and c != "\n" or "\x7f" <= c < "\xa0"]), (0, []), r)
        self.check("\nruns/ [2J ??1m " in r.out, r.out)
        # the settings of a run are an INI that runs
        again = self.run("-c", self.dir / "runs/a/settings.ini", "--set", "output.dir=again", "--set", "checkpoint.dir=ck-again")
        self.equal(again.code, 0, again)
        self.equal(self.metrics(self.dir / "again", "step")[-1]["loss"], self.metrics(self.dir / "runs/a", "step")[-1]["loss"])
        self.fails(self.run("runs", "nothing"), 2, "nothing")
        self.fails(self.run("runs", "ck"), 2, "no run below ck")

    def test_mistakes(self):
        r = self.run("-c", self.ini("run.ini", {"output": {"tensorboard": "yes"}}))
        self.fails(r, 2, "run.ini:", "[output] tensorboard", "needs [output] dir")
        r = self.run("-c", self.ini("run.ini", {"output": {"histograms": 5}}))
        self.fails(r, 2, "run.ini:", "[output] histograms", "set tensorboard = yes")
        r = self.run("-c", self.ini("run.ini", {"output": {"prometheus": self.dir / "no/such/run.prom"}}))
        self.fails(r, 2, "[output] prometheus", "a folder that can be written", "no/such")


if __name__ == "__main__":
    harness.main(Outputs)
