"""What the measurements of runs that survive share: restart.py, all_off.py, soak.py and power_loss.py. Each starts the real program
as users start it, in a folder of its own that is removed at the end, and prints its seed, a table, and exit code 1 for any failure."""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402
from harness import Case, children_of  # noqa: E402

RANKS, EVERY, PEER_TIMEOUT = 3, 100, 2
EPOCHS = int(os.environ.get("DDP_SURVIVE_EPOCHS", "300"))  # survivors.py has shorter runs
RUN = {"train": {"epochs": EPOCHS, "batch_size": 16}, "model.mlp": {"hidden": "128, 128"}, "data.synthetic": {"samples": 960},
       "checkpoint": {"every": EVERY}, "output": {"log_every": 50},
       "ddp": {"bucket_size": "16KiB", "first_bucket_size": "4KiB"}, "run": {"restarts": 10, "restart_delay": "0s"},
       "group": {"peer_timeout": f"{PEER_TIMEOUT}s"}}
STEP, RESUMED = r"step \d+/", r"(?:memory of rank \d+|resuming from \S+): step (\d+)"


def ranks_of(p, backend):
    """The pids of the ranks that a supervisor has now; mpirun stands between them and it."""
    parent = p.pid if backend != "mpi" else (children_of(p.pid) or [0])[0]
    return children_of(parent) if parent else []


def processes(marker):
    """The pids of all that have the path `marker` on their command line: supervisors, launchers, ranks."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and str(marker).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def strike(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


class Trial(Case):
    """A run, whose lines are kept with the time at which they came."""

    def __init__(self):
        super().__init__()
        self.lines, self.readers = [], []

    def settings(self, name, *more):
        """An INI of the run; its output is in NAME.out, its checkpoints in NAME.saved, unless `more` says something else."""
        return self.ini(f"{name}.ini", RUN, {"output": {"dir": self.dir / f"{name}.out"},
                                             "checkpoint": {"dir": self.dir / f"{name}.saved"}}, *more)

    def follow(self, p):
        def read():
            for line in p.stderr:
                self.lines.append((time.monotonic(), line))

        self.readers.append(threading.Thread(target=read, daemon=True))
        self.readers[-1].start()
        return p

    def begin(self, backend, name, *more):
        self.out = self.dir / f"{name}.out"
        return self.follow(self.start("-c", self.settings(name, {"group": {"backend": backend}}, *more), "--nproc", RANKS))

    def ended(self, *processes, patience=harness.PATIENCE):
        """Their exit codes, when all has been read of what they have written."""
        for p in processes:
            p.wait(patience)
        for reader in self.readers:
            reader.join()
        return [p.returncode for p in processes]

    def when(self, pattern, since=0.0):
        """(time, match) of the first line like that, or (None, None)"""
        return next(((t, re.search(pattern, line)) for t, line in self.lines if t >= since and re.search(pattern, line)), (None, None))

    def last_lines(self, count=15):
        return "".join(line for _, line in self.lines[-count:])

    def rows(self):
        """Of metrics.jsonl; the last line may not be whole yet."""
        rows = []
        try:
            for line in (self.out / "metrics.jsonl").read_text(errors="replace").splitlines():
                rows.append(json.loads(line))
        except (OSError, ValueError):
            pass
        return rows

    def starts_and_steps(self):
        """(start events, step records after the last of them)"""
        rows = self.rows()
        at = [i for i, r in enumerate(rows) if r["event"] == "start"]
        return len(at), sum(r["event"] == "step" for r in rows[at[-1]:]) if at else 0

    def first_new_step(self, before, running):
        """The time at which metrics.jsonl has a step of a start later than the first `before`; None where the run ends without."""
        while running():
            starts, steps = self.starts_and_steps()
            if starts > max(before, 1) - (before == 0) and steps > 0:
                return time.monotonic()
            time.sleep(0.005)
        return None

    def updates_again(self, since):
        """How many updates were made twice after a loss that was told after `since`, by the lines of rank 0; None: none was."""
        done, new = self.when(r"at step (\d+)", since)[1], self.when(RESUMED, since)[1]
        return int(done[1]) - int(new[1]) if done and new else None

    def summary(self):
        return json.loads((self.out / "summary.json").read_text())

    def sha(self):
        return self.summary()["parameter_sha256"]


def undisturbed(backend, *more, patience=harness.PATIENCE):
    """(hash, seconds of training, seconds from its start to its first step) of the run that loses nobody."""
    t, began = Trial(), time.monotonic()
    try:
        codes = t.ended(t.begin(backend, "whole", *more), patience=patience)
        t.equal(codes, [0], t.last_lines())
        first = t.when(STEP)[0]
        return t.sha(), t.lines[-1][0] - first, first - began
    finally:
        t.close()


def text(values, form):
    """Median and longest."""
    values = [v for v in values if v is not None]
    return f"{form % statistics.median(values)} ({form % max(values)})" if values else "-"


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None)
    return parser


def seeded(a):
    """(seed, generator); what ends this program from now on also removes what it has made."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    seed = a.seed if a.seed is not None else random.SystemRandom().randrange(1 << 32)
    return seed, random.Random(seed)
