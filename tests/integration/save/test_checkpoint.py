"""Checkpoints of real runs: read with json and struct alone, resumed bit for bit after kill -9 at any moment."""
import errno
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from checkpoint_files import read_safetensors, xxh128  # noqa: E402
from harness import Case, long_case  # noqa: E402

TRIES = int(os.environ.get("DDPENGINE_KILL_TRIES", "20"))


class Checkpoint(Case):
    def saved(self, *layers, name="run.ini", nproc=2, args=(), expect=0, folder="ckpt"):
        return self.train({"checkpoint": {"dir": self.dir / folder, "every": 20, "keep": 3}}, *layers, name=name,
                          nproc=nproc, args=args, expect=expect)

    def newest(self, folder="ckpt"):
        return sorted((self.dir / folder).glob("step-????????"))[-1]

    def test_opens_with_json_and_struct(self):
        r = self.saved()
        folder = self.newest()
        self.equal(folder.name, "step-00000040")
        model = read_safetensors(folder / "model.safetensors")
        self.equal([(n, t[1]) for n, t in model.items()],
                   [("fc1.weight", [24, 12]), ("fc1.bias", [24]), ("fc2.weight", [17, 24]), ("fc2.bias", [17]),
                    ("fc3.weight", [4, 17]), ("fc3.bias", [4])])
        digest = hashlib.sha256(b"".join(t[2] for t in model.values())).hexdigest()
        self.equal(digest, r.summary["parameter_sha256"])
        optimizer = read_safetensors(folder / "optimizer.safetensors")
        self.equal(set(optimizer), {f"{n}.momentum_buffer" for n in model})
        manifest = json.loads((folder / "MANIFEST.json").read_text())
        text = json.dumps(manifest)
        for f in ("model.safetensors", "optimizer.safetensors"):
            self.check(xxh128((folder / f).read_bytes()) in text, manifest)

    def test_stopped_and_resumed_is_the_uninterrupted_run(self):
        for extra in ({}, {"optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}}):
            whole = self.saved(extra, name="whole.ini", folder="whole")
            for steps in (7, 20, 31):
                folder = f"part{steps}"
                self.saved(extra, {"train": {"max_steps": steps}}, name="part.ini", folder=folder)
                r = self.saved(extra, name="part.ini", folder=folder)
                self.check("resuming from" in r.err, r)
                self.equal(r.summary["parameter_sha256"], whole.summary["parameter_sha256"])
                self.equal(r.summary["steps"], 40)
                shutil.rmtree(self.dir / folder)
            shutil.rmtree(self.dir / "whole")

    @long_case
    def test_kill_9_at_any_moment(self):
        """`kill -9` of a random process of the run, then the same command: the same parameters, every time."""
        slow = {"train": {"epochs": 30}, "checkpoint": {"every": 9}}
        whole = self.saved(slow, name="whole.ini", folder="whole")
        rng = random.Random(7)
        killed, attempt, seconds = 0, 0, whole.seconds
        while killed < TRIES:
            attempt += 1
            self.check(attempt <= 3 * TRIES, f"only {killed} of {attempt} runs were still there to be killed")
            hit = self.kill_and_resume(slow, f"kill{attempt}", rng.uniform(0.05, 0.9) * seconds, rng, whole.summary["parameter_sha256"])
            killed += hit
            seconds *= 1 if hit else 0.9  # the machine is faster than when it was measured
        print(f"# {killed} kills in {attempt} runs")

    def kill_and_resume(self, slow, folder, delay, rng, sha256):
        """True when something was killed; either way the second run ends with the same parameters as the uninterrupted one."""
        path = self.ini("kill.ini", {"checkpoint": {"dir": self.dir / folder, "keep": 3}}, slow, {"output": {"dir": self.dir / "out"}})
        p = self.start("-c", path, "--nproc", 2)
        time.sleep(delay)
        killed = False
        victims = [p.pid] + harness.children_of(p.pid) if p.poll() is None else []
        if victims:
            try:
                os.kill(rng.choice(victims), 9)
                killed = True
            except ProcessLookupError:
                pass
        code = self.finish(p).code
        self.no_processes_left(path)
        r = self.run("-c", path, "--nproc", 2)
        self.equal(r.code, 0, r)
        model = read_safetensors(self.newest(folder) / "model.safetensors")
        self.equal(hashlib.sha256(b"".join(t[2] for t in model.values())).hexdigest(), sha256, folder)
        self.check(not list((self.dir / folder).glob("*.tmp")), "a .tmp was left")
        shutil.rmtree(self.dir / folder)
        return killed and code != 0

    def test_ranks_with_different_folders(self):
        port = harness.free_port()
        group = {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2}}

        def both(steps):
            rank = [self.ini(f"{r}.ini", group, {"group": {"rank": r}, "train": {"max_steps": steps},
                                                 "output": {"dir": self.dir / f"out{r}"},
                                                 "checkpoint": {"dir": self.dir / f"only{r}",
                                                                "resume": "auto" if r == 0 else "never"}}) for r in (0, 1)]
            for r in [self.finish(p) for p in [self.start("-c", x) for x in rank]]:
                self.equal(r.code, 0, r)
            return json.loads((self.dir / "out0/summary.json").read_text())["parameter_sha256"]

        both(13)
        resumed = both(30)
        self.check(not (self.dir / "only1").exists(), "only rank 0 writes")
        self.equal(resumed, self.train({"train": {"max_steps": 30}}).summary["parameter_sha256"])

    def test_finished_run_says_so(self):
        self.saved()
        r = self.saved()
        self.check("already complete" in r.err, r)

    def test_finished_run_is_reported_where_a_kill_came_before_that(self):
        """As after a kill in the last evaluation, which comes after the last save: no summary, or that of an earlier part."""
        evaluates = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 96, "shape": 12, "classes": 4, "seed": 1}}
        first = self.saved(evaluates)
        path = first.dir / "summary.json"
        rows = len(self.metrics(first.dir))
        for stale in (None, {**first.summary, "exit_code": 143}, {**first.summary, "steps": 7},
                      {**first.summary, "parameter_sha256": "0" * 64}, ["no summary"]):
            path.unlink() if stale is None else path.write_text(json.dumps(stale))
            r = self.saved(evaluates)
            self.check("its summary is not in" in r.err, r)
            for key in ("steps", "epochs", "parameter_sha256", "eval_loss", "eval_accuracy", "exit_code"):
                self.equal(r.summary[key], first.summary[key], key)
        self.check(len(self.metrics(first.dir)) > rows, "metrics.jsonl goes on")
        written = path.read_text()
        r = self.saved(evaluates)
        self.check("already complete" in r.err and "its summary is not in" not in r.err, r)
        self.equal(path.read_text(), written)

    def test_never_starts_afresh(self):
        a = self.saved()
        b = self.saved({"checkpoint": {"resume": "never"}})
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])

    def names(self, folder="ckpt"):
        return sorted(p.name for p in (self.dir / folder).iterdir() if p.name != ".lock")

    def test_never_sets_older_checkpoints_aside(self):
        """Those of an older run with higher steps must not pass for the newest of this one, nor be removed as its oldest."""
        self.saved()
        afresh = {"train": {"max_steps": 10}, "checkpoint": {"resume": "never", "every": 5, "keep": 1}}
        r = self.saved(afresh, name="again.ini")
        self.equal(self.names(), ["step-00000010", "step-00000020.old", "step-00000040.old"], r)
        self.check("step-00000040" in r.err and str(self.dir / "ckpt") in r.err and "set aside" in r.err, r)
        r = self.saved({"train": {"max_steps": 15}}, name="auto.ini")
        self.check("resuming from" in r.err and "step-00000010" in r.err and "set aside" not in r.err, r)
        r = self.saved(afresh, name="third.ini")
        self.equal(self.names(), ["step-00000010", "step-00000010.old", "step-00000015.old"], r)

    def test_going_back_sets_later_checkpoints_aside(self):
        self.saved({"checkpoint": {"every": 10, "keep": 0}})
        back = {"checkpoint": {"resume": f"{self.dir}/ckpt/step-00000020/", "every": 7, "keep": 0}, "train": {"max_steps": 22}}
        r = self.saved(back, name="back.ini")
        self.check("resuming from" in r.err, r)
        self.equal(self.names(), ["step-00000010", "step-00000020", "step-00000021", "step-00000022", "step-00000030.old",
                                  "step-00000040.old"], r)
        r = self.saved({"train": {"max_steps": 25}, "checkpoint": {"keep": 0}}, name="on.ini")
        self.check("step-00000022: step 22" in r.err, r)
        # nothing to do: nothing is touched
        before = self.names()
        self.saved({"checkpoint": {"resume": f"{self.dir}/ckpt/step-00000020"}, "train": {"max_steps": 20}}, name="done.ini")
        self.equal(self.names(), before)

    def test_another_seed_in_the_middle_of_an_epoch(self):
        self.saved({"train": {"max_steps": 7}})
        r = self.run("-c", self.ini("x.ini", {"checkpoint": {"dir": self.dir / "ckpt"}, "train": {"seed": 4}}), "--nproc", 2)
        self.fails(r, 8, "seed 3", "4")

    # what decides which samples come, and in which order; how the difference is named
    OTHER_ORDERS = (({"data.synthetic": {"seed": 2}}, re.compile("data.fingerprint = [0-9a-f]{16} there and [0-9a-f]{16} in this run")),
                    ({"data.synthetic": {"samples": 660}}, "data.length = 640 there and 660 in this run"),
                    ({"sampler": {"plugin": "sequential"}}, "sampler.plugin = distributed there and sequential in this run"),
                    ({"sampler.distributed": {"shuffle": "no"}}, "sampler.distributed.shuffle = yes there and no in this run"))

    def test_other_samples_in_the_middle_of_an_epoch(self):
        self.saved({"train": {"max_steps": 7}}, nproc=1)
        before = self.names()
        for layer, text in self.OTHER_ORDERS:
            r = self.saved(layer, name="other.ini", nproc=1, expect=8)
            self.fails(r, 8, text, "step-00000007 was saved in the middle of an epoch", "set that as it was", "epoch's end")
        self.equal(self.names(), before)

    def test_other_samples_after_an_epoch(self):
        self.saved({"train": {"epochs": 1}}, nproc=1)
        for n, (layer, text) in enumerate(self.OTHER_ORDERS):
            folder = f"copy{n}"
            shutil.copytree(self.dir / "ckpt", self.dir / folder)
            r = self.saved(layer, name="other.ini", nproc=1, folder=folder)
            (line,) = [x for x in r.err.splitlines() if "was saved with other settings" in x]
            self.check("warning: " in line and "train.epochs = 1 there and 2 in this run" in line, r)
            self.check(re.search(text, line), (text, r))

    def test_other_settings_are_one_line(self):
        """Each with both values, wherever in the epoch; what is only about writing does not count, nor an older checkpoint."""
        frozen = "fc1.weight, fc1.bias, fc2.weight, "
        self.saved({"train": {"max_steps": 7, "freeze": frozen + "fc2.bias"}}, nproc=1)
        other = {"train": {"max_steps": 9, "precision": "bf16", "freeze": frozen + "fc2.bia*"},
                 "optimizer": {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.01},
                 "output": {"log_every": 3}, "checkpoint": {"every": 3}}
        r = self.saved(other, name="other.ini", nproc=1)
        (line,) = [x for x in r.err.splitlines() if "warning" in x]
        for text in ("train.max_steps = 7 there and 9 in this run", "train.freeze = ...t, fc2.bias there and ...t, fc2.bia* in this run",
                     "train.precision = f32 there and bf16 in this run",
                     "optimizer.lr = 0.05 there and 0.1 in this run", "optimizer.momentum = 0.9 there and 0.8 in this run"):
            self.check(text in line, (text, r))
        for text in ("checkpoint.", "output.", "model."):
            self.check(text not in line.split("other settings")[1], (text, r))
        r = self.saved({**other, "train": {"precision": "bf16", "max_steps": 10, "freeze": frozen + "fc2.bia*"}}, name="other.ini", nproc=1)
        self.check("other settings: train.max_steps = 9 there and 10 in this run\n" in r.err, r)
        self.strip_settings(self.newest())
        r = self.saved({"train": {"max_steps": 13, "freeze": frozen + "fc2.bias"}, "data.synthetic": {"seed": 2}}, name="older.ini", nproc=1)
        self.check("resuming from" in r.err and "warning" not in r.err, r)

    def strip_settings(self, folder):
        """As an earlier version has written it."""
        manifest = json.loads((folder / "MANIFEST.json").read_text())
        del manifest["settings"], manifest["checksum"]
        manifest["version"] = 1
        for name, facts in manifest["files"].items():
            del facts["xxh128"]
            facts["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        manifest["checksum"] = hashlib.sha256(text.encode()).hexdigest()
        (folder / "MANIFEST.json").write_text(json.dumps(manifest))

    def test_less_data_than_the_position(self):
        self.saved({"train": {"max_steps": 17}})
        less = {"checkpoint": {"dir": self.dir / "ckpt"}, "data.synthetic": {"samples": 100}}
        r = self.run("-c", self.ini("x.ini", less), "--nproc", 2)
        self.fails(r, 8, "micro-batch 17", "4 in this run", "step-00000017")

    def test_output_folder_removed_while_running(self):
        path = self.ini("x.ini", {"train": {"epochs": 200}, "output": {"dir": self.dir / "out", "log_every": 1}})
        p = self.start("-c", path, "--nproc", 2)
        while "loss" not in p.stderr.readline():
            pass
        (self.dir / "out").rename(self.dir / "gone")  # at once: the run writes into it meanwhile
        shutil.rmtree(self.dir / "gone")
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.equal(json.loads((self.dir / "out/summary.json").read_text())["exit_code"], 0)

    def test_another_models_checkpoint(self):
        self.saved()
        path = self.ini("other.ini", {"checkpoint": {"dir": self.dir / "ckpt"}, "model.mlp": {"hidden": "25, 17"}})
        r = self.run("-c", path, "--nproc", 2)
        self.fails(r, 8, "fc1.weight", "24x12", "25x12")

    def test_resume_from_a_path(self):
        whole = self.saved()
        first = sorted((self.dir / "ckpt").glob("step-*"))[0]
        self.equal(first.name, "step-00000020")
        r = self.saved({"checkpoint": {"resume": first}}, name="again.ini", folder="other")
        self.check(f"resuming from {first}" in r.err, r)
        self.equal(r.summary["parameter_sha256"], whole.summary["parameter_sha256"])

    def test_damaged_newest_is_skipped(self):
        whole = self.saved()
        newest = self.newest()
        raw = bytearray((newest / "model.safetensors").read_bytes())
        raw[-5] ^= 1
        (newest / "model.safetensors").write_bytes(raw)
        r = self.saved()
        self.check(newest.name in r.err and "resuming from" in r.err, r)
        self.equal(r.summary["parameter_sha256"], whole.summary["parameter_sha256"])

    def everything(self, *folders):
        """{path: what is there} below the folders of this case; of a link where it leads."""
        found = [p for folder in folders for p in (self.dir / folder).rglob("*")]
        return {p: os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else "folder" for p in found}

    def test_newest_that_cannot_be_read_ends_the_run(self):
        """Not damage, for which an older one is taken: the system does not read the file. A loop of links stops root too."""
        self.saved()
        newest = self.newest()
        for nproc, name in ((1, "MANIFEST.json"), (2, "model.safetensors"), (2, "optimizer.safetensors")):
            file, aside = newest / name, self.dir / "aside"
            file.rename(aside)
            file.symlink_to(name)
            before = self.everything("ckpt", "run.ini.out")
            self.check(self.dir / "run.ini.out/metrics.jsonl" in before)
            r = self.saved({"train": {"epochs": 3}}, nproc=nproc, expect=8)
            self.fails(r, 8, file, os.strerror(errno.ELOOP), "[checkpoint] resume")
            self.equal(self.everything("ckpt", "run.ini.out"), before)
            file.unlink()
            aside.rename(file)
        self.equal(self.saved({"train": {"epochs": 3}}).summary["steps"], 60)

    def test_folders_none_of_which_is_valid(self):
        self.saved({"checkpoint": {"every": 10}})
        folders = sorted((self.dir / "ckpt").glob("step-*"))
        for folder, damage in zip(folders, ("MANIFEST.json", "model.safetensors", "optimizer.safetensors")):
            (folder / damage).write_bytes((folder / damage).read_bytes()[:-7])
        before = self.everything("ckpt", "run.ini.out")
        r = self.saved({"train": {"epochs": 3}}, expect=8)
        self.fails(r, 8, f"none of the 3 checkpoints in {self.dir / 'ckpt'} verifies", "step-00000040", "[checkpoint] resume = never")
        self.equal(self.everything("ckpt", "run.ini.out"), before)

    def test_keep(self):
        self.saved({"checkpoint": {"every": 5, "keep": 2}})
        self.equal(self.names(), ["step-00000035", "step-00000040"])

    def test_keep_every(self):
        self.saved({"checkpoint": {"every": 5, "keep": 1, "keep_every": 20}, "train": {"max_steps": 50}}, nproc=1)
        self.equal(self.names(), ["step-00000020", "step-00000040", "step-00000050"])

    def test_one_run_at_a_time(self):
        """The second is refused and changes nothing, who only reads is not; a dead one is no obstacle."""
        evaluates = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 32, "shape": 12, "classes": 4, "seed": 1}}
        path = self.ini("x.ini", evaluates, {"train": {"epochs": 100000}, "output": {"log_every": 1},
                                             "checkpoint": {"dir": self.dir / "ckpt", "every": 2, "keep": 2}})
        first = self.start("-c", path)
        while "is durable" not in first.stderr.readline():
            self.equal(first.poll(), None, "ended early")
        self.stand_still(first.pid)
        leftover = self.dir / "ckpt/step-99999999.tmp"  # not one of a dead process: it may be the first one's
        leftover.mkdir()
        before = self.names()
        second = self.ini("y.ini", {"checkpoint": {"dir": self.dir / "ckpt", "resume": "never"}, "output": {"dir": self.dir / "out"}})
        for nproc in (1, 2):
            r = self.run("-c", second, "--nproc", nproc)
            self.fails(r, 8, f"process {first.pid} on host {socket.gethostname()}", self.dir / "ckpt", "[checkpoint] dir", "end that run")
        self.equal(self.names(), before)
        self.check(not (self.dir / "out").exists(), "nor is anything else written")
        r = self.run("eval", "-c", path)
        self.equal(r.code, 0, r)
        first.kill()
        self.finish(first)
        r = self.run("-c", path, "--set", "train.max_steps=2")
        self.equal(r.code, 0, r)
        self.check("already complete" in r.err and not leftover.exists(), r)

    def test_folder_that_cannot_be_used(self):
        (self.dir / "file").write_text("x")
        path = self.ini("x.ini", {"checkpoint": {"dir": self.dir / "file"}})
        r = self.run("-c", path, "--nproc", 2)
        self.fails(r, 8, self.dir / "file")
        path = self.ini("y.ini", {"checkpoint": {"resume": self.dir / "nowhere"}})
        self.fails(self.run("-c", path, "--nproc", 2), 8, self.dir / "nowhere", "[checkpoint] resume", "never")

    def test_full_disk(self):
        """The file-size limit stands in for a full disk where a small file system cannot be mounted."""
        first = self.saved({"train": {"max_steps": 20}})
        before = self.names()
        path = self.ini("full.ini", {"checkpoint": {"dir": self.dir / "ckpt", "every": 20}, "model.mlp": {"hidden": "24, 17"},
                                     "group": {"backend": "gloo-tcp"}})  # shared memory falls under the limit too
        r = self.run_limited(path, 2048)
        self.fails(r, 8, "ckpt", re.compile("File too large|No space"))
        self.equal(self.names(), before)
        again = self.saved()
        self.equal(again.code, 0)
        self.check(first.summary["parameter_sha256"] != again.summary["parameter_sha256"])

    def run_limited(self, path, size):
        import resource
        import signal
        import subprocess

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores, and so would the program
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        return self.finish(self.spawn([harness.ENGINE, "-c", path, "--nproc", 2], preexec_fn=limit))


if __name__ == "__main__":
    sys.exit(harness.main(Checkpoint))
