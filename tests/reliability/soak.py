#!/usr/bin/env python3
"""A long run that loses a rank every few seconds: the same bits at the end as without a loss, and how much of the time was of use.

    tests/reliability/soak.py [--minutes 30] [--every 15] [--backend gloo-tcp] [--faults kill,stop] [--least 90] [--seed N]

About every 15 s (at random, 7.5 to 22.5 s) a random rank, rank 0 included, is killed or stopped. `supervisor` in --faults: the
supervisor is killed, and with it all ranks, and the same command is started again. The run waits for its data most of the time
(slow_dataset.c), as one on an accelerator leaves the processors alone. The run without a loss, with which the bits are compared, takes
its data without waiting.

The share of useful time, in percent of the wall time, which is from the first `start` to the `end` in metrics.jsonl: the sum of
step_ms over all updates of the run. An update that was made several times counts once, by its last line; one whose line was lost with
rank 0, which writes them four times a second, counts the median. So whatever else takes time counts as lost: noticing a loss, starting
and the rendezvous, checkpoints, updates that are made again. The share of a short run without a loss is printed beside it.

Exit 1 if the bits differ, the run ends with an error, no fault was tried, or the share is below --least."""
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

from survive import RANKS, STEP, Trial, arguments, harness, ranks_of, seeded, undisturbed

PAUSE_US, TRY_EPOCHS, PEER_TIMEOUT_S = 600, 25, 1  # 16 samples a step: about 10 ms
# Losses of more than a minute ago do not count: about four of 20 within one.
LIMITS = {"run": {"restarts": 20, "restart_window": "1m", "restart_delay": "0s"}, "group": {"peer_timeout": f"{PEER_TIMEOUT_S}s"},
          "checkpoint": {"every": 1000}, "output": {"log_every": 50}}


def layers(plugin, epochs, pause_us=PAUSE_US):
    return {**LIMITS, "train": {"epochs": epochs}, "data": {"plugin": plugin}, "data.synthetic": None, "data.slow": {"pause": pause_us}}


def usage(rows):
    """(percent of useful time, wall seconds, updates, updates made again)"""
    steps, last, again = {}, 0, 0
    for r in rows:
        if r["event"] == "step":
            steps[r["step"]] = r["step_ms"]
            last = r["step"]
        elif r["event"] == "start":
            again += max(0, last - r["step"])
    wall = rows[-1]["time"] - rows[0]["time"]
    count = rows[-1]["steps"]
    useful = sum(steps.values()) + (count - len(steps)) * statistics.median(steps.values())
    return 100 * useful / 1000 / wall, wall, count, again


class Soak(Trial):
    def __init__(self, backend, faults, every, rng):
        super().__init__()
        self.backend, self.faults, self.every, self.rng = backend, faults, every, rng
        self.struck = dict.fromkeys(faults, 0)

    def strike(self, p):
        """A fault of one kind; the supervisor that runs after it."""
        fault, ranks = self.rng.choice(self.faults), ranks_of(p, self.backend)
        if fault == "supervisor":
            p.kill()
            p.wait()
            harness.until(lambda: not any(harness.state_of(r) for r in ranks), "the ranks survive their supervisor")
            self.struck[fault] += 1
            return self.begin(self.backend, "soak", self.layers)
        if ranks:
            os.kill(self.rng.choice(ranks), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            self.struck[fault] += 1
        return p

    def through(self, run):
        """Runs it with all its faults."""
        self.layers = run
        p = self.begin(self.backend, "soak", run)
        harness.until(lambda: self.when(STEP)[0] or p.poll() is not None, "does not train")
        while p.poll() is None:
            at = time.monotonic() + self.rng.uniform(0.5, 1.5) * self.every
            while p.poll() is None and time.monotonic() < at:
                time.sleep(0.05)
            if p.poll() is None:
                p = self.strike(p)
        self.check(self.ended(p)[-1] == 0, f"exit {p.returncode}\n{self.last_lines(40)}")
        self.no_processes_left(self.dir)


def seconds_of_an_epoch(plugin, backend):
    """(seconds, percent of useful time) of a run that waits for its data and loses nobody."""
    t = Trial()
    try:
        t.equal(t.ended(t.begin(backend, "try", layers(plugin, TRY_EPOCHS))), [0], t.last_lines())
        share, wall, _, _ = usage(t.rows())
        return wall / TRY_EPOCHS, share
    finally:
        t.close()


def build(folder):
    plugin = folder / "dataset_slow.so"
    subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden",
                    f"-I{harness.SRC}/core/include", "-o", str(plugin), str(pathlib.Path(__file__).with_name("slow_dataset.c"))],
                   check=True)
    plugin.chmod(0o755)
    return plugin


def main():
    a = arguments(__doc__)
    a.add_argument("--minutes", type=float, default=30)
    a.add_argument("--every", type=float, default=15)
    a.add_argument("--backend", default="gloo-tcp")
    a.add_argument("--faults", default="kill,stop")
    a.add_argument("--least", type=float, default=90)
    a = a.parse_args()
    seed, rng = seeded(a)
    print(f"seed {seed}, {RANKS} ranks over {a.backend}, a fault of {a.faults} about every {a.every:g} s, peer_timeout {PEER_TIMEOUT_S} s",
          flush=True)
    t = Soak(a.backend, a.faults.split(","), a.every, rng)
    try:
        plugin = build(t.dir)
        epoch_s, calm = seconds_of_an_epoch(plugin, a.backend)
        epochs = max(1, int(60 * a.minutes * max(a.least, 50) / 100 / epoch_s))
        t.through(layers(plugin, epochs))
        share, wall, updates, again = usage(t.rows())
        got, struck = t.sha(), ", ".join(f"{n} {fault}" for fault, n in t.struck.items())
        want = undisturbed(a.backend, layers(plugin, epochs, 0), patience=harness.PATIENCE + wall)[0]
    except AssertionError as why:
        print(why)
        return 1
    finally:
        t.close()
    print(f"{'minutes':>8}   {'faults':32} {'updates':>8} {'again':>6} {'useful':>8} {'without a loss':>15} {'least':>7}   bits\n"
          f"{wall / 60:8.1f}   {struck:32} {updates:8} {again:6} {share:7.1f}% {calm:14.1f}% {a.least:6.1f}%   "
          f"{'the same' if got == want else f'{got} instead of {want}'}", flush=True)
    return 0 if got == want and share >= a.least and sum(t.struck.values()) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
