"""One trial of the reliability table: a folder of its own, a seed, processes whose output goes to files, and what is asked of
them in the end. The rows are in kill.py, pause.py, rendezvous.py, hostile.py and network.py; run.py runs them."""
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402
from harness import Case, Skip, children_of, merged  # noqa: E402, F401

# how much longer all may take: in such a build, and in a test, which does not decide by time
SLOW = int(os.environ.get("DDP_RELIABILITY_SLOW", 5 if harness.SANITIZED else 1))
POLL_S = 0.005
SHM, TMP = pathlib.Path("/dev/shm"), pathlib.Path("/tmp")
PRIVATE_NAME = "DDP_RELIABILITY_PRIVATE"
PRIVATE = os.environ.get(PRIVATE_NAME, "").split()  # which of them, "shm" and "tmp", are this run's alone

# Starts in a moment and takes steps of a fraction of a millisecond.
TINY = {"train": {"epochs": 2, "batch_size": 8}, "model.mlp": {"hidden": "8"}, "data.synthetic": {"samples": 320},
        "output": {"log_every": 1000}}
LONG = {"train": {"epochs": 10000000}}


def backends():
    """Those that are built, of those that the table is about."""
    return [b for b in ("gloo-tcp", "shm", "mpi") if built("backend", b)]


def built(kind, name):
    return (harness.BUILD / ".libs" / f"{kind}_{name.replace('-', '_')}.so").exists()


# No port is tried and no plugin written while another thread forks: the child would hold a copy of the descriptor.
_forking, _ports = threading.Lock(), set()
_open, _stopping = set(), threading.Event()  # trials; that all of them shall end


def stop_all():
    """No trial starts a process any more, and those that were started are killed: each fails, and cleans up."""
    with _forking:
        _stopping.set()
        trials = list(_open)
    for t in trials:
        t.kill_all()


# Below those that the kernel gives to connections, so that none of those takes it before rank 0 listens. Of rows in several
# processes (parts.py) each has its share.
PORTS = [int(n) for n in os.environ.get("DDP_RELIABILITY_PORTS", "10000 32000").split()]


def free_port():
    import socket
    with _forking:
        for _ in range(1000):
            port = random.SystemRandom().randrange(*PORTS)
            with socket.socket() as s:
                try:
                    s.bind(("127.0.0.1", port))
                except OSError:
                    continue
            if port not in _ports:
                _ports.add(port)
                return port
    raise AssertionError("no free port")


def gone(pid):
    """It runs no more; a zombie waits for its parent only."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


class Late(AssertionError):
    """Something took longer than it may: the one failure whose cause can be a machine that stood still."""


class Plugins:
    """The paced sampler, built once a run; `close` removes it."""

    def __init__(self):
        self.dir = None

    def folder(self):
        with _forking:
            if self.dir is None:
                import tempfile
                folder = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-test-"))
                source = pathlib.Path(__file__).with_name("paced_sampler.c")
                subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-O1", "-fPIC", "-shared",
                                "-fvisibility=hidden", f"-I{harness.SRC}/core/include", "-o",
                                str(folder / "sampler_paced.so"), str(source)], check=True)
                os.chmod(folder / "sampler_paced.so", 0o755)
                self.dir = folder
        return self.dir

    def close(self):
        if self.dir is not None:
            shutil.rmtree(self.dir, ignore_errors=True)


PLUGINS = Plugins()


class Ended:
    def __init__(self, name, code, at, log):
        self.name, self.code, self.at, self.log = name, code, at, log

    def errors(self):
        return [line for line in self.log.splitlines() if ": error: " in line]


class Trial(Case):
    def __init__(self, seed, backend, scale=1.0):
        super().__init__()
        self.seed, self.backend, self.scale = seed, backend, scale
        self.rng = random.Random(seed)
        self.worst = 0.0  # the figure that the row is about, of this trial: seconds, mostly
        self.story = []   # what was done, for the report of a failure
        self.tmp = self.dir / "tmp"
        self.tmp.mkdir()
        self.before = self.leavings()
        _open.add(self)

    def tell(self, text):
        self.story.append(text)

    # ---- processes ------------------------------------------------------------------------------------------------
    def spawn(self, name, *args, command=(), env=None):
        """Output goes to NAME.log; TMPDIR is the trial's own. `command` stands before the program."""
        p = self.popen(name, [*command, harness.ENGINE, *args], env)
        p.name = name
        return p

    def popen(self, name, command, env=None):
        path = self.dir / f"{name}.log"
        with open(path, "wb") as out, _forking:
            self.check(not _stopping.is_set(), "interrupted")
            p = subprocess.Popen([*map(str, command)], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.dir,
                                 env={**os.environ, "TMPDIR": str(self.tmp), **(env or {})}, start_new_session=True)
            self.started.append(p)
        p.began, p.path, p.at, p.name = time.monotonic(), path, None, name
        return p

    def config(self, name, *layers):
        return self.ini(f"{name}.ini", TINY, {"group": {"backend": self.backend}, "output": {"dir": self.dir / f"{name}.out"}},
                        {"init.file": {"listen": "127.0.0.1", "heartbeat": "100ms"}} if built("init", "file") else {}, *layers)

    def ranks(self, world, *layers, only=None, init="tcp", url=None):
        """Ranks started by hand, each with an INI of its own; rank r is r.log."""
        url = url or self.url(init)
        group = {"group": {"init_method": url, "world_size": world}}
        return {r: self.spawn(f"r{r}", "-c", self.config(f"r{r}", group, *layers, {"group": {"rank": r}}))
                for r in (only if only is not None else range(world))}

    def family(self, world, *layers):
        return self.spawn("job", "-c", self.config("job", *layers), "--nproc", world)

    def url(self, init):
        return f"tcp://127.0.0.1:{free_port()}" if init == "tcp" else f"file://{self.dir}/rendezvous"

    def kids(self, p, count):
        """The pids of the ranks that a supervisor has started, in the order of their ranks."""
        until = time.monotonic() + 20 * SLOW
        while time.monotonic() < until and p.poll() is None:
            found = children_of(p.pid)
            if len(found) == count:
                return found
            time.sleep(POLL_S)
        raise AssertionError(f"{p.name} did not start {count} ranks")

    @staticmethod
    def in_time(ok, detail):
        if not ok:
            raise Late(detail)

    def all_gone(self, pids, limit, since, what):
        """None of them runs `limit` seconds after `since`."""
        self.until(lambda: all(gone(pid) for pid in pids), f"{what} are gone", limit + 10)
        took = time.monotonic() - since
        self.worst = max(self.worst, took)
        self.in_time(took <= limit * SLOW, f"{what} left {took:.2f} s after it, allowed {limit * SLOW:g} s")

    def seen(self, p, pattern, timeout=30):
        """Waits until the process has written it."""
        self.until(lambda: re.search(pattern, self.log(p)), f"{p.name} writes {pattern!r}", timeout, p)

    def until(self, condition, what, timeout=30, alive=None):
        end = time.monotonic() + timeout * SLOW
        while not condition():
            self.in_time(time.monotonic() < end, f"waited {timeout * SLOW} s until {what}")
            if alive is not None and alive.poll() is not None and not condition():
                self.in_time("_timeout" not in self.log(alive), f"a time-out ended {alive.name} before {what}")
                raise AssertionError(f"ended before {what}")
            time.sleep(POLL_S)

    def trains(self, p, name):
        """Waits for the first steps of the run whose rank 0 has the INI `name`."""
        metrics = self.dir / f"{name}.out" / "metrics.jsonl"

        def started():  # of the file's beginning: it may grow faster than it can be read
            if not metrics.exists():
                return False
            with metrics.open(errors="replace") as f:
                return '"event": "step"' in f.read(65536)

        self.until(started, "it trains", 30, p)

    @staticmethod
    def log(p):
        return p.path.read_text(errors="replace")

    def all_end(self, processes, limit, since):
        """Waits until all have ended, at most `limit` seconds after `since`; the time of the last is noted as the worst."""
        limit *= SLOW
        left = list(processes)
        while left:
            now = time.monotonic()
            for p in [p for p in left if p.poll() is not None]:
                p.at = now
                left.remove(p)
            if left and now > since + limit + 10 * SLOW:
                raise Late(f"{', '.join(p.name for p in left)} still there {now - since:.1f} s after it")
            if left:
                time.sleep(POLL_S)
        last = max((p.at - since for p in processes), default=0.0)
        self.worst = max(self.worst, last)
        self.in_time(last <= limit,
                     f"the last of {', '.join(p.name for p in processes)} left {last:.2f} s after it, allowed {limit:g} s")
        return [Ended(p.name, p.returncode, p.at, self.log(p)) for p in processes]

    # ---- what is asked in the end ----------------------------------------------------------------------------------
    def one_error(self, ended, code, *parts):
        """The exit code and one error line with every part."""
        self.equal(ended.code, code, ended.name)
        self.equal(len(ended.errors()), 1, f"error lines of {ended.name}: {ended.errors()}")
        for part in parts:
            line = ended.errors()[0]
            self.check(part.search(line) if hasattr(part, "search") else str(part) in line, f"{ended.name}: no {part!r} in: {line}")

    def leavings(self):
        """What lies in the places for temporary things, of which TMPDIR is the trial's own. Where /dev/shm is shared with others,
        only what this engine would name is counted."""
        places = {str(p) for p in SHM.iterdir() if "shm" in PRIVATE or "ddp" in p.name} if SHM.is_dir() else set()
        if "tmp" in PRIVATE:
            places |= {str(p) for p in TMP.iterdir() if not p.name.startswith("ddpengine-test-")}
        return places | {str(p) for p in self.tmp.rglob("*")}

    def nothing_left(self):
        self.no_processes_left(self.dir)
        left = self.leavings() - self.before
        self.check(not left, f"left behind: {sorted(left)}")

    # ---- bits ---------------------------------------------------------------------------------------------------------
    def paced(self, epochs, pause_ms):
        """A run that goes on, with a pause before each epoch, and ends only after `go`; its bits are always the same."""
        return {"train": {"epochs": epochs}, "sampler": {"plugin": "paced"}, "plugins": {"path": PLUGINS.folder()},
                "sampler.paced": {"gate": self.dir / "gate", "pause": pause_ms, "last": epochs - 1}}

    def go(self):
        (self.dir / "gate").touch()

    def sha(self, name):
        import json
        return json.loads((self.dir / f"{name}.out" / "summary.json").read_text())["parameter_sha256"]

    def report(self):
        """All that a reader of a failure needs."""
        lines = [f"  {line}" for line in self.story]
        for p in self.started:
            if p.poll() == 0 and "--check" in p.args:
                continue
            state = "running" if p.poll() is None else f"exit {p.returncode}"
            lines.append(f"--- {p.name} ({state}): {' '.join(map(str, p.args))}")
            lines += self.log(p).splitlines()[-25:]
        return "\n".join(lines)

    def kill_all(self):
        for p in list(self.started):
            if p.poll() is None:  # a process that stands still is ended too
                try:
                    os.killpg(p.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                p.wait()

    def close(self):
        self.kill_all()
        _open.discard(self)
        super().close()


class Row:
    """`trial(t)` raises if the trial fails. `most`: trials that the full table asks for. `jobs`: that may run at a time.
    `limit`: as text, of the worst figure, which has the `unit`. `alone`: it looks for what is left in places that all share."""

    def __init__(self, name, backend, trial, limit="", most=100, jobs=1, unit="s", alone=False, needs=lambda: None):
        self.name, self.backend, self.trial, self.limit = name, backend, trial, limit
        self.most, self.jobs, self.unit, self.alone, self.needs = most, jobs, unit, alone, needs
