#!/usr/bin/env python3
"""Makes every allocation and system call of a small run fail, one in each trial, and looks at how the run ends. Needs a
program that was configured with --enable-failpoints: `make failpoints` builds it and runs this, `make failpoints-sample`
for one call of each place.

The run is a GPT of one layer on two ranks, three steps and a save after each, which a thread of each rank writes beside the
next step (a shard each): once with each rank a process of its own (file:// and
shm), so that the call of one rank fails; once with --nproc 2 (TLS and shm), where a call fails in the supervisor or, if it
comes later, in each rank that makes it; and of what these do not reach once more with --nproc 2 over gloo-tcp, with restarts,
an evaluation and the audit. First the processes list their calls; then trial N lets call N fail, and of writes another one has
it take half of the bytes. What must hold:

- all ranks end by themselves, with a documented exit code (docs/exit-codes.md), no signal and no sanitizer's report;
- a rank that fails prints one error, on one line, that says something;
- a rank that ends with 0 has done all of its work: the last checkpoint is there and whole, and the summary, and the audit
  proves that each sample was used once;
- a checkpoint that was said to be durable is there and whole;
- nothing is left: no process, no file of shm, no unfinished save, no file of the rendezvous. But for what the failed
  call itself was to remove. The rendezvous of a rank 0 that could not leave within a second, and was ended by its control
  thread, is the next start's to take over: more than one in fifty would be another matter.

With --kill the call does not fail: the process is killed (SIGKILL) when it is about to make it, in a run of one rank that
goes on from a checkpoint, saves after each step and keeps one; with --rank of one of two, of which each writes its shard. Of every
call on files. Then, too, a checkpoint that was said to
be durable is there, or a later one; whatever has a checkpoint's name is whole; and the same command again ends with the
parameters of a run that was not killed, and leaves no unfinished save.

    failpoints.py [--rank 0|1|nproc|restarts] [--only NAME] [--point NAME:N[:SHORT]] [--kill] [--sample] [--jobs N] [--verbose]
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from checkpoint_files import xxh128  # noqa: E402

SRC = pathlib.Path(os.environ.get("DDP_SRCDIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC / "build-failpoints"))
PATIENCE = 60.0  # seconds; nothing here waits for half of that
STEPS = 3
DOCUMENTED = set(range(0, 11))
CONFIG = """
[group]
backend = shm
{how}
rendezvous_timeout = 15s
peer_timeout = 5s
step_timeout = 10s
[train]
threads = 1
max_steps = {steps}
batch_size = 2
[model]
plugin = gpt2
[model.gpt2]
preset = bytes
layers = 1
width = 16
heads = 2
context = 16
[data]
plugin = tokens
[data.tokens]
files = {dir}/text
context = 16
[loader]
workers = 1
[optimizer]
algorithm = adamw
[ddp]
zero = 1
[checkpoint]
dir = {dir}/checkpoints
every = 1
sharded = yes
{keep}
[output]
dir = {dir}/out
"""
BY_FILE = """init_method = file://{dir}/rendezvous
world_size = 2
[init.file]
heartbeat = 100ms
listen = 127.0.0.1
[group]"""
RANKS = ("0", "1")
SUPERVISOR, RESTARTS = "nproc", "restarts"  # in the place of a rank
SUPERVISED = (SUPERVISOR, RESTARTS)
OVER_GLOO = ("group.backend=gloo-tcp", "ddp.zero=0", "checkpoint.sharded=no", "run.restarts=2", "run.restart_delay=0s",
             "run.rejoin_timeout=5s", "eval.plugin=tokens", "eval.tokens.files={dir}/text", "eval.tokens.context=16", "output.audit=yes")
TEXT = "".join(f"line {i} of a text that nobody reads\n" for i in range(60))

# how: "SHORT", the call takes half of its bytes; "": it fails
Point = collections.namedtuple("Point", "rank name number where how", defaults=("",))


class Run:
    """One start of both ranks in a folder of its own."""

    def __init__(self, folder):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        (self.dir / "text").write_text(TEXT)
        for who, how in (("rank", BY_FILE.format(dir=self.dir)), (SUPERVISOR, "")):
            (self.dir / f"{who}.ini").write_text(CONFIG.format(dir=self.dir, steps=STEPS, how=how, keep=""))
        self.ranks, self.codes, self.killed = {}, {}, set()

    def start(self, rank, **env):
        with open(self.dir / f"rank{rank}.log", "wb") as log:
            how = ["nproc.ini", "--nproc", "2"] if rank in SUPERVISED else ["rank.ini", "--set", f"group.rank={rank}"]
            how += [arg for o in OVER_GLOO if rank == RESTARTS for arg in ("--set", o.format(dir=self.dir))]
            command = [BUILD / "ddpengine", "-c", self.dir / how[0], *how[1:]]
            self.ranks[rank] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.dir,
                                                env={**os.environ, "DDPENGINE_HOST_ID": str(self.dir), **env})

    def log(self, rank):
        path = self.dir / f"rank{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, rank, seconds=PATIENCE):
        """False: it did not end."""
        try:
            self.codes[rank] = self.ranks[rank].wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def kill(self):
        for rank, process in self.ranks.items():
            if process.poll() is None:
                process.kill()
                process.wait()
                self.codes.setdefault(rank, -signal.SIGKILL)

    def remove(self):
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


# ---- listing ---------------------------------------------------------------------------------------------------------------
def list_points(folder, *kinds):
    """{rank: [Point]} of runs in which nothing fails."""
    points = {}
    for together in kinds or (RANKS, (SUPERVISOR,), (RESTARTS,)):
        run = Run(folder)
        for rank in together:
            run.start(rank, DDPENGINE_FAILPOINT_LIST=str(run.dir / f"list{rank}"))
        for rank in together:
            if not run.wait(rank) or run.codes[rank] != 0:
                sys.exit(f"the run does not work without a failure either:\n{run.log(rank)}")
            found = {}  # of several processes the first that makes a call of that number
            for line in (run.dir / f"list{rank}").read_text().splitlines():
                name, number, *where = line.split()
                found.setdefault((name, int(number)), Point(rank, name, int(number), tuple(where)))
            points[rank] = list(found.values())
        run.remove()
    if RESTARTS in points:  # the other runs have had their turn at the places that they reach
        reached = {place_of(p) for rank in points if rank != RESTARTS for p in points[rank]}
        points[RESTARTS] = [p for p in points[RESTARTS] if place_of(p) not in reached]
    return points


def place_of(point):
    """The same name by the same three frames."""
    return point.name, point.where[:3], point.how


def sample_of(points):
    """The first call of each place."""
    seen, out = set(), []
    for p in points:
        if place_of(p) not in seen:
            seen.add(place_of(p))
            out.append(p)
    return out


# ---- what must hold --------------------------------------------------------------------------------------------------------
def whole_checkpoint(path):
    try:
        facts = json.loads((path / "MANIFEST.json").read_text())["files"]
        return all(xxh128((path / name).read_bytes()) == f["xxh128"] for name, f in facts.items())
    except (OSError, ValueError, KeyError):
        return False


def check_lines(run, rank, point, wrong):
    log = run.log(rank)
    errors = [line for line in log.splitlines() if ": error: " in line]
    if re.search(r"AddressSanitizer|runtime error|LeakSanitizer|\(null\)", log):
        wrong.append(f"rank {rank} prints what no user should see")
    if run.codes[rank] == 0:
        return
    # by --nproc two ranks that fail by themselves may both say why (launch/cause.c), and one that fails to write may have
    # been the one to say it
    least, most = (point.name != "write", 2) if rank in SUPERVISED else (1, 1)
    if not least <= len(errors) <= most:
        wrong.append(f"rank {rank} ends with {run.codes[rank]} and prints {len(errors)} errors")
    elif errors and min(len(line.split(": error: ", 1)[1]) for line in errors) < 15:
        wrong.append(f"rank {rank}'s error says nothing: {errors}")


def check_left(run, point, wrong):
    """What is there when both ranks have ended."""
    removes = point.name in ("unlink", "unlinkat", "rmdir", "rename", "opendir", "fdopendir", "openat", "open")
    for path in [p for p in (run.dir / "checkpoints").glob("step-*") if p.suffix in (".tmp", ".part")]:
        if not removes:
            wrong.append(f"left: {path.relative_to(run.dir)}")
    if not removes and "0" not in run.killed and run.codes.get("0") == 0:
        wrong += [f"left: {path.relative_to(run.dir)}" for path in run.dir.glob("rendezvous*")]
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(run.dir).encode() in path.read_bytes():
                wrong.append(f"left: process {path.parent.name}")
        except OSError:
            continue


def check(run, point):
    wrong = [f"rank {rank} ends with {code}, where nothing has failed" for rank, code in run.codes.items() if point.how and code != 0]
    for rank, code in run.codes.items():
        if rank in run.killed and code in (4, -signal.SIGTERM, 128 + signal.SIGTERM):
            continue  # its partner died before it came: it was asked to end
        if code not in DOCUMENTED:
            wrong.append(f"rank {rank} ends with {code}" + (f" ({signal.Signals(-code).name})" if code < 0 else ""))
            continue
        check_lines(run, rank, point, wrong)
    if 0 in map(run.codes.get, ("0", *SUPERVISED)):
        if not whole_checkpoint(run.dir / f"checkpoints/step-{STEPS:08}"):
            wrong.append("rank 0 ends with 0, and the last checkpoint is not there or damaged")
        if not (run.dir / "out/summary.json").exists():
            wrong.append("rank 0 ends with 0, and there is no summary")
    if run.codes.get(RESTARTS) == 0:
        got = subprocess.run([BUILD / "ddpengine", "audit", run.dir / "out"], capture_output=True, text=True, check=False)
        wrong += [] if got.returncode == 0 else [f"the audit ends with {got.returncode}: {got.stderr}"]
    for step in sorted(durable_in("".join(map(run.log, run.codes)))):
        if not whole_checkpoint(run.dir / f"checkpoints/step-{step:08}"):
            wrong.append(f"step {step} was durable, and is not there or damaged")
    check_left(run, point, wrong)
    return wrong


def durable_in(log):
    return {int(step) for step in re.findall(r"step-(\d+) is durable", log)}


# ---- trials ----------------------------------------------------------------------------------------------------------------
def trial(folder, point, errno):
    """(codes, what is wrong, logs, whether the call came and the rendezvous was left) of a run in which this call fails."""
    run = Run(folder)
    spec = ":".join(filter(None, (point.name, str(point.number), point.how or errno)))
    shm_before = set(os.listdir("/dev/shm"))
    try:
        run.start(point.rank, DDPENGINE_FAILPOINT=spec, DDPENGINE_FAILPOINT_HIT=str(run.dir / "hit"))
        others = [] if point.rank in SUPERVISED else [rank for rank in RANKS if rank != point.rank]
        for rank in others:
            run.start(rank)
        ended = run.wait(point.rank)
        for rank in others:
            if ended and run.codes[point.rank] != 0 and not run.wait(rank, 1.5):
                # they had not met: by itself it would wait for the rest of rendezvous_timeout
                run.killed.add(rank)
                run.ranks[rank].terminate()
            ended = run.wait(rank) and ended
        run.kill()
        wrong = check(run, point) + ([] if ended else ["it hangs"])
        pids = [str(process.pid) for process in run.ranks.values()]
        wrong += [f"left: /dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - shm_before if any(pid in name for pid in pids)]
        facts = {"hit": int((run.dir / "hit").exists()), "left": int("0" not in run.killed and any(run.dir.glob("rendezvous*")))}
        return dict(run.codes), wrong, {rank: run.log(rank) for rank in run.ranks}, facts
    finally:
        run.remove()


# ---- kills -----------------------------------------------------------------------------------------------------------------
ON_FILES = {"open", "openat", "opendir", "fdopendir", "read", "write", "close", "fsync", "fdatasync", "ftruncate", "rename", "renameat2",
            "unlink", "unlinkat", "scandir", "mkdir", "rmdir", "stat", "lstat", "fstat", "access"}


class Alone(Run):
    """One rank, which goes on from a checkpoint of step 1."""

    def __init__(self, folder, steps=STEPS + 1):
        super().__init__(folder)
        self.name = "alone.ini"
        (self.dir / self.name).write_text(CONFIG.format(dir=self.dir, steps=steps, how="", keep="keep = 1"))
        self.go("--set", "train.max_steps=1")

    def go(self, *args, **env):
        log = self.dir / "rank0.log"
        with open(log, "wb") as f:
            p = subprocess.run([BUILD / "ddpengine", "-c", self.dir / self.name, *args], stdin=subprocess.DEVNULL, stdout=f,
                               stderr=subprocess.STDOUT, cwd=self.dir, timeout=PATIENCE, env={**os.environ, **env}, check=False)
        return p.returncode, log.read_text(errors="replace")

    def checkpoints(self):
        return {int(p.name[5:]): p for p in (self.dir / "checkpoints").glob("step-????????")}

    def hash(self):
        return json.loads((self.dir / "out/summary.json").read_text())["parameter_sha256"]


def list_kills(folder):
    """The calls on files of a run that is not killed, and the hash of its parameters."""
    run = Alone(folder)
    code, log = run.go(DDPENGINE_FAILPOINT_LIST=str(run.dir / "list"))
    if code != 0:
        sys.exit(f"the run does not work without a kill either:\n{log}")
    rows = [line.split() for line in (run.dir / "list").read_text().splitlines()]
    points, whole = [Point("0", name, int(n), tuple(where)) for name, n, *where in rows if name in ON_FILES], run.hash()
    run.remove()
    return points, whole


def kill_trial(folder, point, whole):
    run, wrong = Alone(folder), []
    try:
        code, log = run.go(DDPENGINE_FAILPOINT=f"{point.name}:{point.number}:KILL")
        durable = max(durable_in(log), default=1)
        there = run.checkpoints()
        if code not in (0, -signal.SIGKILL):
            wrong.append(f"ends with {code}")
        if max(there, default=0) < durable:
            wrong.append(f"step {durable} was durable, and the newest is {max(there, default='none')}")
        wrong += [f"{path.name} is damaged" for path in there.values() if not whole_checkpoint(path)]
        again, log = run.go()
        if again != 0 or run.hash() != whole or STEPS + 1 not in run.checkpoints():
            wrong.append(f"the same command again ends with {again}, {sorted(run.checkpoints())}: {log}")
        wrong += [f"left: {p.name}" for p in (run.dir / "checkpoints").glob("step-*") if p.suffix in (".tmp", ".part")]
        return {"0": code}, wrong, {"0": log}, {"hit": int(code == -signal.SIGKILL), "left": 0}
    finally:
        run.remove()


def checkpoints_of(run):
    return {int(p.name[5:]): p for p in (run.dir / "checkpoints").glob("step-????????")}


def shard_hash(run):
    return json.loads((run.dir / "out/summary.json").read_text())["parameter_sha256"]


def list_shard_kills(folder):
    """The calls on files of two ranks that each write their shard, and the hash of the parameters."""
    points = [p for found in list_points(folder, RANKS).values() for p in found if p.name in ON_FILES]
    run = Run(folder)
    for rank in RANKS:
        run.start(rank)
    for rank in RANKS:
        run.wait(rank)
    whole = shard_hash(run)
    run.remove()
    return points, whole


def shard_kill_trial(folder, point, whole):
    """One of the two is killed in this call, the other ends by itself; then the same commands once more."""
    run, wrong, other = Run(folder), [], RANKS[point.rank == RANKS[0]]
    try:
        run.start(point.rank, DDPENGINE_FAILPOINT=f"{point.name}:{point.number}:KILL")
        run.start(other)
        ended = run.wait(point.rank)
        code = run.codes.get(point.rank)
        if ended and code != 0 and not run.wait(other, 1.5):  # they had not met
            run.ranks[other].terminate()
        ended = run.wait(other) and ended
        run.kill()
        log, there = run.log(RANKS[0]), checkpoints_of(run)
        if not ended or code not in (0, -signal.SIGKILL):
            wrong.append(f"rank {point.rank} ends with {code}" if ended else "it hangs")
        if max(there, default=0) < max(durable_in(log), default=0):
            wrong.append(f"step {max(durable_in(log))} was durable, and the newest is {max(there, default='none')}")
        wrong += [f"{path.name} is damaged" for path in there.values() if not whole_checkpoint(path)]
        for rank in RANKS:
            run.start(rank)
        again = [run.wait(rank) and run.codes[rank] for rank in RANKS]
        if again != [0, 0] or shard_hash(run) != whole or STEPS not in checkpoints_of(run):
            wrong.append(f"the same commands again end with {again}, {sorted(checkpoints_of(run))}")
        wrong += [f"left: {p.name}" for p in (run.dir / "checkpoints").glob("step-*") if p.suffix in (".tmp", ".part")]
        return {point.rank: code}, wrong, {rank: run.log(rank) for rank in RANKS}, {"hit": int(code == -signal.SIGKILL), "left": 0}
    finally:
        run.remove()


def place(where):
    """The function and line of the innermost frames, where the tools and debug information are there."""
    out = []
    for frame in where[:5]:
        module, offset = frame.rsplit("+", 1)
        path = next((p for p in (BUILD / module, BUILD / ".libs" / module) if p.exists()), None)
        if path is None:
            break
        got = subprocess.run(["addr2line", "-f", "-s", "-e", path, hex(int(offset, 16) - 1)], capture_output=True, text=True, check=False)
        out.append(" ".join(got.stdout.split()) if got.returncode == 0 else frame)
    return " < ".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", choices=(*RANKS, *SUPERVISED), help="calls of this rank alone, or of a run by --nproc")
    parser.add_argument("--only", help="calls of this name alone")
    parser.add_argument("--point", help="NAME:N or NAME:N:SHORT alone, of --rank or 0; prints the logs")
    parser.add_argument("--errno", default="", help="the error, ENOSPC or a number, instead of the usual one of each call")
    parser.add_argument("--kill", action="store_true", help="kills the process instead, at each call on files of a run of one rank, or with --rank of that one of two")
    parser.add_argument("--sample", action="store_true", help="the first call of each place")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="trials at once; most of them wait")
    parser.add_argument("--verbose", action="store_true", help="a line for each trial")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-failpoints-"))
    try:
        return sweep(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def chosen(args, folder):
    if args.point:
        name, number, *how = args.point.split(":")
        return [Point(args.rank or "0", name, int(number), (), *how)]
    out = []
    for rank, points in list_points(folder).items():
        points = [p for p in points if args.only in (None, p.name)]
        points += [p._replace(how="SHORT") for p in points if p.name in ("write", "pwrite")]
        if args.rank in (None, rank):
            out += sample_of(points) if args.sample else points
    return out


def check_requests():
    """What is asked for wrongly is refused, and never a run in which nothing fails."""
    for spec, code in (("write:9999:EROFS", 0), ("write:9999:ESTALE", 0), ("write:9999:EDQUOT", 0), ("pwrite:9999:SHORT", 0),
                       ("write:9999:28", 0), ("write:1:ENONSENSE", 2), ("write:1:", 2), ("write:1:0", 2), ("open:1:SHORT", 2),
                       ("nonsense:1", 2), ("write:0", 2)):
        got = subprocess.run([BUILD / "ddpengine", "--version"], capture_output=True, text=True, check=False,
                             env={**os.environ, "DDPENGINE_FAILPOINT": spec})
        if got.returncode != code or (code != 0) != (f"DDPENGINE_FAILPOINT={spec} is not" in got.stderr):
            sys.exit(f"DDPENGINE_FAILPOINT={spec}: exit {got.returncode}, {got.stderr}")


def sweep(args, folder):
    check_requests()
    began, failed, codes, facts = time.monotonic(), 0, collections.Counter(), collections.Counter()
    shards = args.kill and args.rank in RANKS
    if args.kill:
        points, whole = (list_shard_kills if shards else list_kills)(folder)
        points = [p for p in points if not shards or p.rank == args.rank]
        points = [p for p in points if args.only in (None, p.name) and args.point in (None, f"{p.name}:{p.number}")]
        points = sample_of(points) if args.sample else points
    else:
        points = chosen(args, folder)
    trial_of_kill = shard_kill_trial if shards else kill_trial
    one = (lambda p: trial_of_kill(folder, p, whole)) if args.kill else lambda p: trial(folder, p, args.errno)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for point, (ended, wrong, logs, found) in zip(points, pool.map(one, points)):
            codes[ended.get(point.rank)] += 1
            failed += bool(wrong)
            facts.update(found)
            if wrong or args.verbose or args.point:
                what = "FAILED" if wrong else "ok" if found["hit"] else "not made"
                print(f"rank {point.rank} {point.name}:{point.number}{point.how and ':' + point.how} {what} {ended} {'; '.join(wrong)}")
            if wrong:
                print(f"    {place(point.where)}")
            if wrong or args.point:
                for rank, log in logs.items():
                    print("".join(f"    {rank}| {line}\n" for line in log.splitlines() if args.point or ": error: " in line), end="")
                sys.stdout.flush()
    # which calls are made depends on time here and there: on how often a thread is woken, on what has come already
    print(f"{facts['hit']} of {len(points)} calls were made and failed; exit codes of their rank: {dict(sorted(codes.items(), key=str))}")
    if facts["hit"] < 0.9 * len(points) or facts["left"] > 1 + len(points) // 50:
        print(f"too few of the calls were made (is it a build with --enable-failpoints?), or too many rendezvous left: {facts['left']}")
        failed += 1
    print(f"took {time.monotonic() - began:.0f} s")
    print(f"{len(points) - failed} passed, {failed} failed, 0 skipped")  # as .ci/run reads it
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
