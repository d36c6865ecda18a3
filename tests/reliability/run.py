"""The reliability table, row by row: run.py [--trials N] [--backend a,b] [--only ROW] [--seed S].

Exits non-zero if any trial fails. A failure prints its seed, what was done, and the output of all ranks; `--seed S --trials 1
--only ROW` repeats it. A row has a greatest number of trials, so `--trials 100` is the full table."""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import trial
import harness
from trial import PLUGINS, Skip, Trial


TRIES = 3  # of a trial during which the machine stood still
ENOUGH = 3  # failures after which a row is not tried any more


def all_rows():
    import hostile
    import kill
    import network
    import pause
    import rendezvous
    return [row for module in (kill, pause, rendezvous, hostile, network) for row in module.rows()]


def run_one(row, seed, scale, verbose):
    """(problem or None, whether it is only that something came late, worst figure)"""
    t = Trial(seed, row.backend, scale)
    try:
        row.trial(t)
        if verbose:
            print("\n".join(f"  seed {seed}: {line}" for line in t.story), flush=True)
        return None, False, t.worst
    except Exception as why:  # noqa: BLE001 -- a failure is reported, whatever it is
        detail = str(why) if isinstance(why, AssertionError) else traceback.format_exc()
        return f"{detail}\n{t.report()}", isinstance(why, trial.Late), t.worst
    finally:
        t.close()


class Stalls:
    """Notices when the whole machine stands still, as virtual ones do: a time taken meanwhile says nothing."""
    LOOK_S, LONG_S = 0.05, 0.5

    def __init__(self):
        self.seen = []  # (when it was over, seconds)
        threading.Thread(target=self.look, daemon=True).start()

    def look(self):
        while True:
            before = time.monotonic()
            time.sleep(self.LOOK_S)
            gap = time.monotonic() - before - self.LOOK_S
            if gap > self.LONG_S:
                self.seen.append((time.monotonic(), gap))

    def since(self, began):
        return sum(gap for at, gap in self.seen if at > began)


class Outcome:
    def __init__(self, row):
        self.row, self.passed, self.failed, self.worst, self.skipped, self.seconds = row, 0, [], 0.0, None, 0.0


STALLS = Stalls()


def run_row(row, trials, seed, jobs=None, scale=1.0, verbose=False):
    out, began = Outcome(row), time.monotonic()
    try:
        row.needs()
    except Skip as why:
        out.skipped = str(why)
        return out

    def one(s):
        if len(out.failed) >= ENOUGH:
            return
        for _ in range(TRIES):
            started = time.monotonic()
            problem, late, worst = run_one(row, s, scale, verbose)
            stood_still = STALLS.since(started)
            if problem is None or not late or stood_still == 0:
                break
            print(f"# {row.name}, {row.backend}, seed {s}: repeated, for the machine stood still for {stood_still:.1f} s: "
                  f"{problem.splitlines()[0]}", flush=True)
        out.worst = max(out.worst, worst)
        if problem is None:
            out.passed += 1
        else:
            out.failed.append((s, problem))
    pool = concurrent.futures.ThreadPoolExecutor(jobs or row.jobs)
    try:
        list(pool.map(one, range(seed, seed + trials)))
    except BaseException:  # interrupted
        trial.stop_all()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    out.seconds = time.monotonic() - began
    return out


def print_failures(out, to=sys.stdout, prefix=""):
    for seed, problem in out.failed:
        lines = [f"FAILED: {out.row.name}, {out.row.backend}, seed {seed}: repeat with --only \"{out.row.name}\" "
                 f"--backend {out.row.backend} --seed {seed} --trials 1", *problem.splitlines()]
        print("\n".join(prefix + line for line in lines), file=to, flush=True)


def private_places():
    """Where this process may: the same once more with a /dev/shm of its own, and a /tmp where nothing that it needs lies there,
    so that whatever is found in them in the end is ours."""
    if trial.PRIVATE_NAME in os.environ or os.geteuid() != 0:
        return
    needed = [p.resolve() for p in (harness.SRC, harness.BUILD, pathlib.Path(__file__), pathlib.Path.cwd())]
    places = {"shm": trial.SHM}
    if not any(trial.TMP in p.parents for p in needed) and tempfile.gettempdir() == str(trial.TMP):
        places["tmp"] = trial.TMP
    script = " && ".join([*(f"mount -t tmpfs -o mode=1777 none {p}" for p in places.values()), 'exec "$@"'])
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
    if shutil.which("unshare") and subprocess.run([*command, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                                  check=False).returncode == 0:
        os.execvpe(command[0], [*command, sys.executable, *sys.argv], {**os.environ, trial.PRIVATE_NAME: " ".join(places)})


def interrupted(number, _frame):
    raise SystemExit(128 + number)


def chosen(rows, backends, only):
    return [r for r in rows if (not backends or r.backend in backends) and
            (not only or any(o in f"{r.name} {r.backend}" for o in only))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--backend", default="", help="only these, separated by commas")
    parser.add_argument("--only", action="append", help="rows whose name has this text; may be repeated")
    parser.add_argument("--row", help="the row of exactly this name")
    parser.add_argument("--seed", type=int, default=None, help="of the first trial; the next ones count on")
    parser.add_argument("--jobs", type=int, default=None, help="trials at a time, where a row allows several")
    parser.add_argument("--verbose", action="store_true", help="tells what each trial did")
    args = parser.parse_args()
    private_places()
    signal.signal(signal.SIGTERM, interrupted)
    rows = [r for r in chosen(all_rows(), [b for b in args.backend.split(",") if b], args.only) if args.row in (None, r.name)]
    if not rows:
        sys.exit("no such row; those there are: " + "; ".join(f"{r.name} ({r.backend})" for r in all_rows()))
    seed = args.seed if args.seed is not None else int(time.time()) % 1000000
    began, good, bad, skipped = time.monotonic(), 0, 0, 0
    print(f"{'row':44} {'backend':9} {'passed':>9} {'worst':>6}     {'allowed':>9} {'took':>7}   seeds from {seed}", flush=True)
    for row in rows:
        trials = min(args.trials, row.most)
        out = run_row(row, trials, seed, min(args.jobs or row.jobs, row.jobs), verbose=args.verbose)
        good += out.passed
        skipped += trials - out.passed - len(out.failed)  # after ENOUGH failures
        bad += len(out.failed)
        if out.skipped is not None:
            print(f"{row.name:44} {row.backend:9} skipped: {out.skipped}", flush=True)
            continue
        print(f"{row.name:44} {row.backend:9} {out.passed:>4}/{trials:<4} {out.worst:>6.2f} {row.unit:3} {row.limit:>9} "
              f"{out.seconds:>5.0f} s", flush=True)
        print_failures(out)
    print(f"{good} passed, {bad} failed, {skipped} skipped in {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        PLUGINS.close()
