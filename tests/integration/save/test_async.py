"""[checkpoint] async: training goes on while a checkpoint is written, and what is said to be durable is. The disk is held, broken
or full for the thread that writes, by files (support/slow_disk.c)."""
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from disk import ADAMW, DiskCase  # noqa: E402
from harness import children_of, until  # noqa: E402


class Async(DiskCase):
    def test_steps_go_on_and_change_nothing_of_it(self):
        """The disk takes its time from the first save on, and the steps after it are made; what is written then is the state
        of that step, and it is durable no sooner than the disk has it."""
        p = self.begin("hold", "beside", ADAMW, steps=9)
        before = self.until_step(p, 9)
        self.held()
        self.check("is durable" not in before and self.names("beside") == ["step-00000005.tmp"], before)
        self.switch("hold", on=False)
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.equal(re.findall(r"step-(\d+) is durable", r.err), ["00000005", "00000009"], r)
        self.all_verify("beside", ["step-00000005", "step-00000009"])
        events = self.metrics(self.dir / "beside.out", "checkpoint")
        self.equal([e["step"] for e in events], [5, 9])
        self.check(all(e["ms"] >= 0 and e["write_ms"] > 0 for e in events), events)
        self.train(*self.layers("instep", ADAMW, steps=9), {"checkpoint": {"async": "no"}}, name="instep.ini")
        for step in (5, 9):
            self.equal(self.content("beside", step), self.content("instep", step), f"step {step}")

    def test_the_same_bytes_in_every_way_of_an_update(self):
        """One rank; shards that rank 0 collects, in shared memory and over gloo-tcp; what hooks of all ranks remember."""
        ways = {"alone": (0, ADAMW), "shares": (2, ADAMW), "zero": (2, {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}}, ADAMW),
                "hook": (2, {"group": {"backend": "gloo-tcp"}, "hook": {"plugin": "int8"}})}
        for way, (nproc, *more) in ways.items():
            for how in ("yes", "no"):
                self.train(*self.layers(way + how, *more), {"checkpoint": {"async": how}}, name=way + how + ".ini", nproc=nproc)
            for step in (5, 10, 12):
                there = self.content(way + "yes", step)
                self.equal(len(there), 3 if way == "hook" else 2)
                self.equal(there, self.content(way + "no", step), f"{way}, step {step}")

    def test_a_rollback_waits_for_the_save(self):
        """That is what it goes back to. The learning rate of step 7 is too high for step 8, each time."""
        wild = {"optimizer": {"schedule": "step", "step_size": 6, "gamma": 1e38}, "train": {"non_finite": "rollback"}}
        for name, more in (("all", {}), ("zero", {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}})):
            p = self.begin("hold", name, wild, more)
            line = ""
            while "all ranks go back" not in line:
                line = p.stderr.readline()
                self.check("is durable" not in line and line, line)
            self.held()
            self.switch("hold", on=False)
            r = self.finish(p)
            self.fails(r, 7, "step 8", "went back to step 5 and made it again")
            self.equal([m["step"] for m in self.metrics(self.dir / f"{name}.out", "rollback")], [5], r)

    def test_a_save_that_is_due_waits_for_the_one_before(self):
        p = self.begin("hold", "due", every=3, steps=11)
        line = ""
        while "is still being written" not in line:
            line = p.stderr.readline()
            self.check(line, "ended")
            self.check("step 7/" not in line, "goes on, with no copy of the state to write")
        for part in ("warning", "step 6 is due", "step 3", "training waits", "[checkpoint] every", "faster disk"):
            self.check(part in line, line)
        self.switch("hold", on=False)
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.check("is still being written" not in r.err, r)
        self.all_verify("due", [f"step-{n:08}" for n in (3, 6, 9, 11)])

    def test_a_write_that_fails_ends_the_run(self):
        """On all ranks, with exit code 8; the checkpoint before it stays, and nothing says that the other one is durable."""
        for n, (kind, error) in enumerate((("broken", "Input/output error"), ("full", "No space left on device"))):
            folder = f"bad{n}"
            self.train(*self.layers(folder, steps=5), name="good.ini")
            p = self.begin(kind, folder, steps=1000000)
            r = self.finish(p)
            self.switch(kind, on=False)
            self.fails(r, 8, f"{folder}/step-00000010.tmp/model.safetensors", error)
            self.check("is durable" not in r.err, r)
            self.no_processes_left(folder)
            self.all_verify(folder, ["step-00000005"])
            r = self.train(*self.layers(folder, steps=10), name="on.ini")
            self.check("resuming from" in r.err and "step-00000005" in r.err, r)

    def test_no_memory_for_a_copy(self):
        """Then saves are as with async = no, on all ranks, which is said once."""
        (self.dir / "disk").mkdir()
        (self.dir / "disk/meminfo").write_text("MemAvailable:    11 kB\n")  # the state fits, but some has to stay
        r = self.finish(self.begin("short", "full", ADAMW))
        self.equal(r.code, 0, r)
        (line,) = [x for x in r.err.splitlines() if "warning" in x]
        for part in ("ddpengine[0]", "[checkpoint] async", "waits for each", "copy of the state takes 10.5 KiB", "11 KiB are available", "async = no"):
            self.check(part in line, (part, line))
        self.all_verify("full", ["step-00000005", "step-00000010", "step-00000012"])
        self.equal([e["step"] for e in self.metrics(self.dir / "full.out", "checkpoint")], [5, 10, 12])

    def test_the_last_write_fails(self):
        """The run is not done then, though all its steps are."""
        (self.dir / "disk").mkdir()
        (self.dir / "disk/broken").write_text("step-00000007")
        p = self.begin("short", "last", steps=7)
        r = self.finish(p)
        self.fails(r, 8, "step-00000007.tmp", "Input/output error")
        self.equal(re.findall(r"step-(\d+) is durable", r.err), ["00000005"], r)
        self.all_verify("last", ["step-00000005"])

    def test_training_goes_on_without_a_checkpoint(self):
        """[checkpoint] on_error = warn, beside training, in the step and in shards: all but the last one may fail."""
        (self.dir / "disk").mkdir()
        warn = {"checkpoint": {"on_error": "warn"}}
        for name, *more in (("beside", {}), ("step", {"checkpoint": {"async": "no"}}),
                            ("shards", ADAMW, {"ddp": {"zero": 1}, "checkpoint": {"sharded": "yes", "async": "no"}}),
                            ("both", ADAMW, {"ddp": {"zero": 1}, "checkpoint": {"sharded": "yes"}})):
            if name == "step":
                (self.dir / "disk/every").touch()
            for failing, code, there in (("00000005", 0, [10, 12]), ("00000012", 8, [5, 10])):
                folder = f"{name}{code}"
                (self.dir / "disk/broken").write_text(f"step-{failing}")
                r = self.finish(self.begin("short", folder, warn, *more))
                self.equal(r.code, code, r)
                missed = re.findall(r"warning: the checkpoint of step (\d+) is not saved: .*Input/output error\. Training goes on", r.err)
                self.equal(missed, [] if code else ["5"], r)
                self.all_verify(folder, [f"step-{n:08}" for n in there])
                self.equal([p.name for p in (self.dir / folder).iterdir() if p.suffix in (".part", ".tmp")], [], r)
                rows = self.metrics(self.dir / (folder + ".out"), "warning")
                self.equal([m["step"] for m in rows if "not saved" in m["text"]], [] if code else [5], rows)

    def test_a_disk_that_takes_little_at_a_time(self):
        p = self.begin("short", "short", nproc=0, steps=6)
        self.equal(self.finish(p).code, 0)
        self.all_verify("short", ["step-00000005", "step-00000006"])

    def test_the_end_of_a_run_waits_for_the_disk(self):
        """Its own, after a signal, and after an error of its own: the save under way is not lost, and nothing is left of it."""
        nan = {"optimizer": {"lr": "1e30", "momentum": 0}}
        for folder, more, code in (("signal", {}, 143), ("error", nan, 7)):
            p = self.begin("hold", folder, more, nproc=0, every=1 if code == 7 else 5, steps=1000000)
            self.held()
            if code == 143:
                p.send_signal(signal.SIGTERM)
            self.switch("hold", on=False)
            r = self.finish(p)
            self.equal(r.code, code, r)
            self.check(not [n for n in self.names(folder) if n.endswith(".tmp")], self.names(folder))
            durable = re.findall(r"(step-\d+) is durable", r.err)
            self.check(durable, r)
            self.all_verify(folder, durable)

    def test_a_lost_rank_is_no_lost_checkpoint(self):
        """The others go on, after the save that was being written has ended."""
        p = self.begin("hold", "lost", {"run": {"restarts": 1, "restart_delay": "0s"}, "group": {"peer_timeout": "1s"}}, steps=40)
        self.held()
        victim = children_of(p.pid)[1]
        os.kill(victim, signal.SIGKILL)
        until(lambda: "lost one" in p.stderr.readline(), "nobody misses it")
        self.switch("hold", on=False)
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.all_verify("lost", [f"step-{n:08}" for n in range(5, 41, 5)])
        self.train(*self.layers("whole", steps=40), name="whole.ini")
        self.equal(self.content("lost", 40), self.content("whole", 40))


if __name__ == "__main__":
    sys.exit(harness.main(Async))
