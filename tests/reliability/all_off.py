#!/usr/bin/env python3
"""All machines lose power at once, over and over: every process of a run, the supervisors too, is killed with signal 9 at a random
moment, and the same commands start it again, as conf/ddpengine@.service does.

    tests/reliability/all_off.py [--offs 50] [--backends gloo-tcp,shm,mpi] [--seed N]

A run goes through as many losses as it takes until it is complete; then the next one begins, until there were --offs of them, and the
last one ends undisturbed. With gloo-tcp there are two commands, as of two hosts: one with two ranks and one with one. For each backend:
how many losses, and how many of them before the first step, while the run starts; how many runs, and those with the parameters of the
run that lost nothing; the time from the commands to the first new step (seconds: median and longest), and the updates that were made
again. It is a failure too if a start does not go on from the last checkpoint that was said to be durable, or from a later one."""
import pathlib
import re
import signal
import sys
import time

from survive import EVERY, RANKS, RESUMED, STEP, Trial, arguments, harness, processes, seeded, strike, text, undisturbed

LOG_EVERY = 10  # updates: what a line has not told yet is not counted as made again
MORE_S = 1.5  # a loss comes within this and twice the time that a start takes
DURABLE = r"step-(\d+) is durable"


class Run(Trial):
    def __init__(self, backend):
        super().__init__()
        self.out = self.dir / "run.out"
        self.shm = shared_memory()
        group = {"group": {"backend": backend}, "output": {"log_every": LOG_EVERY}}
        if backend == "gloo-tcp":
            group["group"].update(init_method=f"tcp://127.0.0.1:{harness.free_port()}", world_size=RANKS)
            self.commands = [["-c", self.settings("run", group, {"group": {"rank": 0}}), "--nproc", RANKS - 1],
                             ["-c", self.settings("node", group, {"group": {"rank": RANKS - 1}, "output": {"dir": self.out},
                                                                  "checkpoint": {"dir": self.dir / "run.saved"}}), "--supervise"]]
        else:
            self.commands = [["-c", self.settings("run", group), "--nproc", RANKS]]
        (self.dir / "tmp").mkdir()
        self.durable = self.done = 0  # the steps of the last checkpoint that was said to be durable, and of the last line

    def power_on(self):
        self.lines, self.readers = [], []
        self.on = time.monotonic()
        self.nodes = [self.follow(self.start(*c, env={"TMPDIR": str(self.dir / "tmp")})) for c in self.commands]

    def goes_on(self):
        """Whether the commands run. What ends by itself ends well."""
        ended = [p.poll() for p in self.nodes if p.poll() is not None]
        self.check(not any(ended), f"a command ended with {ended}")
        return len(ended) < len(self.nodes)

    def power_off(self):
        """Nobody sees another one die: all stand still first, the supervisors before what they watch."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            strike([p.pid for p in self.nodes], number)
            strike(processes(self.dir), number)
        harness.until(lambda: not processes(self.dir), "a process survives signal 9")
        self.ended(*self.nodes)

    def check_start(self):
        """(seconds from the commands to the first step, updates made again) of the start that is over; either may be None."""
        at, resumed = self.when(RESUMED)
        first = self.when(STEP)[0]
        stepped = None if first is None else first - self.on
        if resumed is not None:
            self.check(int(resumed[1]) >= self.durable, f"it goes on from step {resumed[1]}, and step {self.durable} was durable")
        else:
            self.check(first is None or self.durable == 0, f"it starts from scratch, and step {self.durable} was durable")
        self.durable = max([self.durable, *(int(m[1]) for _, line in self.lines if (m := re.search(DURABLE, line)))])
        again = max(0, self.done - int(resumed[1])) if resumed is not None else None
        self.done = max([self.done, self.durable, *(int(m[1]) for _, line in self.lines if (m := re.search(r"step (\d+)/", line)))])
        return stepped, again

    def nothing_left(self):
        self.no_processes_left(self.dir)
        # another run on this machine may have something there for a moment
        harness.until(lambda: shared_memory() <= self.shm, lambda: f"left in /dev/shm: {shared_memory() - self.shm}")


def shared_memory():
    return {p.name for p in pathlib.Path("/dev/shm").glob("*ddp*")}


class Row:
    def __init__(self, backend, want, rng):
        self.backend, self.want, self.rng = backend, want, rng
        self.offs = self.early = self.runs = self.good = 0
        self.seconds, self.again = [], []

    def note(self, checked):
        self.seconds.append(checked[0])
        self.again.append(checked[1])

    def one_run(self, offs, start_s):
        """Until it is complete; up to `offs` losses."""
        t = Run(self.backend)
        try:
            for left in range(offs, -1, -1):
                t.power_on()
                limit = t.on + (self.rng.uniform(0, 2 * start_s + MORE_S) if left > 0 else 4 * harness.PATIENCE)
                while t.goes_on() and time.monotonic() < limit:
                    time.sleep(0.005)
                if not t.goes_on():
                    break
                t.check(left > 0, f"the run is not complete after {4 * harness.PATIENCE} s")
                t.power_off()
                self.offs += 1
                self.early += t.when(STEP)[0] is None
                self.note(t.check_start())
            t.ended(*t.nodes)
            self.note(t.check_start())
            t.nothing_left()
            self.good += t.sha() == self.want
        except AssertionError as why:
            print(f"{self.backend}: {why}\n{t.last_lines(40)}", flush=True)
        finally:
            strike(processes(t.dir), signal.SIGKILL)
            t.close()
            self.runs += 1

    def __str__(self):
        return (f"{self.backend:9} off {self.offs:3} times, {self.early:3} of them while it starts   same bits {self.good} of {self.runs} "
                f"runs   first step after {text(self.seconds, '%.2f')} s   updates again {text(self.again, '%d')}")


def main():
    a = arguments(__doc__)
    a.add_argument("--offs", type=int, default=50)
    a.add_argument("--backends", default="gloo-tcp,shm,mpi")
    a = a.parse_args()
    seed, rng = seeded(a)
    print(f"seed {seed}, {RANKS} ranks, a checkpoint every {EVERY} updates", flush=True)
    good = True
    for backend in a.backends.split(","):
        want, _, start_s = undisturbed(backend)
        row = Row(backend, want, rng)
        while row.offs < a.offs and row.runs - row.good < 3:
            row.one_run(a.offs - row.offs, start_s)
        print(row, flush=True)
        good = good and row.good == row.runs
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
