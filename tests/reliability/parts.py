"""All of `make reliability`: the rows of the table (run.py) and the whole contract of every backend that is built (`ddpengine
conform`), each as a part, in a process of its own, some of them side by side. Most parts wait for time-outs most of the time.

A part's output is shown when it has ended; last comes one line a part with what passed, failed and was skipped, and its seconds.
Exits non-zero if anything failed or a part ended without saying how it went."""
import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped", re.M)  # of conform and of run.py
PORTS = (10000, 32000)  # below those that the kernel gives to connections; each job has its share
CONFORM_NICE = 5  # the contracts compute, the rows measure
LIMIT_S = 1200  # of a part, at 20 trials
END_S = 20  # for a part that was asked to end


class Part:
    """`weight`: about its seconds, so that the long ones begin first. `by_exit`: it is one check, and prints no counts."""

    def __init__(self, name, command, weight, nice=0, by_exit=False):
        self.name, self.command, self.weight, self.nice = name, [*map(str, command)], weight, nice
        self.by_exit = by_exit
        self.passed, self.failed, self.skipped, self.seconds, self.note = 0, 0, 0, 0.0, ""


class Parts:
    def __init__(self, limit_s=LIMIT_S, prefix=""):
        """`prefix` stands before each line of output."""
        self.limit_s, self.prefix, self.lock, self.running, self.stopped = limit_s, prefix, threading.Lock(), set(), False

    def start(self, part, ports):
        env = {**os.environ, "DDP_RELIABILITY_PORTS": "%d %d" % ports}
        with self.lock:
            if self.stopped:
                return None
            p = subprocess.Popen(["nice", "-n", str(part.nice), *part.command], stdin=subprocess.DEVNULL, env=env,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            self.running.add(p)
        return p

    def one(self, part, jobs):
        """In a thread of the pool; `jobs` holds the shares of the ports that are free."""
        ports, began = jobs.get(), time.monotonic()
        try:
            p = self.start(part, ports)
            if p is None:
                return
            try:
                out, _ = p.communicate(timeout=self.limit_s)
            except subprocess.TimeoutExpired:
                out = self.end(p) + f"\nended after {self.limit_s} s\n"
            finally:
                self.running.discard(p)
            part.seconds = time.monotonic() - began
            check(part, p.returncode, out)
            with self.lock:
                lines = [f"== {part.name}, {part.seconds:.0f} s", *out.rstrip().splitlines()]
                print("\n".join(self.prefix + line for line in lines), flush=True)
        finally:
            jobs.put(ports)

    @staticmethod
    def end(p):
        """Asks it to end, and sees to it; what it has written."""
        p.terminate()
        try:
            return p.communicate(timeout=END_S)[0]
        except subprocess.TimeoutExpired:
            p.kill()
            return p.communicate()[0]

    def stop(self):
        """What runs ends, nothing else begins."""
        with self.lock:
            self.stopped = True
        for p in list(self.running):
            p.terminate()

    def run(self, parts, jobs):
        free, share = queue.Queue(), (PORTS[1] - PORTS[0]) // jobs
        for i in range(jobs):
            free.put((PORTS[0] + i * share, PORTS[0] + (i + 1) * share))
        pool = concurrent.futures.ThreadPoolExecutor(jobs)
        try:
            for done in [pool.submit(self.one, part, free) for part in sorted(parts, key=lambda p: -p.weight)]:
                done.result()
        finally:
            self.stop()
            pool.shutdown(cancel_futures=True)


def check(part, code, out):
    """From the last summary in its output; an exit code that does not fit is a failure of its own."""
    said = SUMMARY.findall(out)
    if part.by_exit:
        part.passed, part.failed, part.note = (1, 0, "") if code == 0 else (0, 1, f"exit {code}")
    elif said:
        part.passed, part.failed, part.skipped = map(int, said[-1])
        if (code == 0) != (part.failed == 0):
            part.failed, part.note = max(1, part.failed), f"exit {code}"
    elif part.name == "conform nccl" and code == 3:  # its check: no driver, no GPU
        part.skipped, part.note = 1, out.strip().splitlines()[-1][:100] if out.strip() else "exit 3"
    else:
        part.failed, part.note = 1, f"exit {code} without a word on how it went"


def table(parts):
    lines = [f"{'part':58} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"]
    for p in parts:
        lines.append(f"{p.name:58} {p.passed:>7} {p.failed:>7} {p.skipped:>8} {p.seconds:>8.0f}{'   ' + p.note if p.note else ''}")
    return "\n".join(lines)


# ---- what there is -----------------------------------------------------------------------------------------------------
# About the seconds that 20 trials take on two cores; more for what computes all the time and is slowed by the others.
WEIGHTS = (("conform gloo-tcp", 200), ("conform mpi", 110), ("conform shm", 100), ("strangers", 60), ("kill", 20),
           ("SIGSTOP", 20), ("a pause", 20), ("a cut link", 22))


def weight_of(name):
    return next((w for start, w in WEIGHTS if name.startswith(start)), 5)


def row_parts(args):
    import run
    rows = run.chosen(run.all_rows(), [b for b in args.backend.split(",") if b], args.only)
    seed = args.seed if args.seed is not None else int(time.time()) % 1000000
    return [Part(f"{r.name}, {r.backend}", [sys.executable, HERE / "run.py", "--row", r.name, "--backend", r.backend,
                                            "--trials", args.trials, "--seed", seed, *(["--verbose"] if args.verbose else [])],
                 weight_of(r.name)) for r in rows]


def conform_parts(args):
    """nccl too: without a GPU its check says so."""
    import harness
    names = sorted(p.stem.removeprefix("backend_").replace("_", "-") for p in (harness.BUILD / ".libs").glob("backend_*.so"))
    chosen = [n for n in names if (not args.backend or n in args.backend.split(",")) and
              (not args.only or any(o in f"conform {n}" for o in args.only))]
    return [Part(f"conform {n}", [harness.ENGINE, "conform", f"backend.{n}"], weight_of(f"conform {n}"), CONFORM_NICE)
            for n in chosen]


def interrupted(number, _frame):
    raise SystemExit(128 + number)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--backend", default="", help="only these, separated by commas")
    parser.add_argument("--only", action="append", help="parts whose name has this text; may be repeated")
    parser.add_argument("--seed", type=int, default=None, help="of the first trial of each row")
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="parts at a time")
    parser.add_argument("--verbose", action="store_true", help="tells what each trial did")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    parts = row_parts(args) + conform_parts(args)
    if not parts:
        sys.exit("no such part")
    began, before = time.monotonic(), os.getloadavg()
    Parts(LIMIT_S * max(1, args.trials / 20)).run(parts, max(1, args.jobs))
    print(f"\n{table(parts)}")
    failed = sum(p.failed for p in parts)
    print(f"{sum(p.passed for p in parts)} passed, {failed} failed, {sum(p.skipped for p in parts)} skipped in "
          f"{time.monotonic() - began:.0f} s, {args.jobs} parts at a time; load {before[0]:.1f} before, "
          f"{os.getloadavg()[0]:.1f} after")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    import trial  # noqa: F401 -- finds harness
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
