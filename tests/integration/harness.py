"""What the integration tests share: the real program started as users start it, INI files made on the spot, TAP output.

A test is a method `test_...` of a Case; it may raise Skip("why"), which is counted. Every case has a folder of its own.
No test decides by elapsed time: it waits until something is so (`until`), and the patience of that only ends a hang."""
import json
import os
import pathlib
import pty
import random
import re
import resource
import shutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

SRC = pathlib.Path(os.environ.get("DDP_SRCDIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
ENGINE = BUILD / "ddpengine"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
SANITIZED = "fsanitize" in (BUILD / "config.status").read_text() and "DDP_SAN=\"\"" not in (BUILD / "config.status").read_text()
# Environment of ranks that load an MPI library: a leak checker sees what that keeps until the process ends.
MPI_LEAKS = {"LSAN_OPTIONS": "detect_leaks=0"} if SANITIZED else {}
# oneDNN writes its matrix products for AVX-512 when a process makes the first one: 30 ms, most of a small run.
QUICK = {"ONEDNN_MAX_CPU_ISA": "SSE41"}
PATIENCE = 120  # seconds after which a run counts as hung


LONG = os.environ.get("DDP_LONG") == "1"  # make check-long
SELDOM = os.environ.get("DDP_SELDOM") == "1"  # the sanitizers


def long_case(test):
    """A test that takes long, or whose part is long as a whole: `make check-long` runs it, and `make check` does not."""
    test.long = "long"
    return test


def seldom(test):
    """A test that takes a second of a processor or more, of what few changes touch: `make check-long` runs it, and the sanitizers
    do, but `make check`, which has a quicker case of the same part, does not."""
    test.long = "seldom"
    return test


class Skip(Exception):
    pass


def has_bf16():
    """Whether kernels may use instructions for bf16: the CPU has them, and DDPENGINE_CPU does not leave them out."""
    return os.environ.get("DDPENGINE_CPU") in (None, "", "native") and "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text()


def needs_onednn():
    if b"libdnnl.so" not in (BUILD / ".libs/device_cpu.so").read_bytes():
        raise Skip("device cpu is built without oneDNN")


def until(condition, what, patience=PATIENCE):
    """Polls until `condition` gives something true, and returns that; `what` says what does not come."""
    limit = Patience(patience)
    while not (got := condition()):
        if limit.is_over():
            raise AssertionError(f"{what() if callable(what) else what} (waited for {patience} s)")
        time.sleep(0.01)
    return got


class Patience:
    """Seconds in which this process ran as well: a machine that stood still as a whole has made nobody hang."""

    def __init__(self, seconds):
        self.left, self.seen = seconds, time.monotonic()

    def is_over(self):
        now = time.monotonic()
        self.left -= min(now - self.seen, 2)
        self.seen = now
        return self.left < 0


def state_of(pid):
    """The letter of /proc, or None where there is no such process any more; a zombie is none."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None
    return None if state in "ZX" else state


def is_free(port):
    """Nobody has it, and no connection gets it before the test does: Linux takes ports from 32768 on for them."""
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return port < 32768


def free_port():
    while not is_free(port := random.randrange(10240, 32768)):
        pass
    return port


# A small, quick, learnable run; tests override what they are about.
BASE = {
    "train": {"epochs": 2, "batch_size": 16, "seed": 3, "threads": 1},
    "model": {"plugin": "mlp"},
    "model.mlp": {"hidden": "24, 17", "classes": 4, "input": "input"},
    "data": {"plugin": "synthetic"},
    "data.synthetic": {"samples": 640, "shape": 12, "classes": 4, "seed": 1},
    "optimizer": {"algorithm": "sgd", "lr": 0.05, "momentum": 0.9},
}


def merged(*layers):
    out = {}
    for layer in layers:
        for section, keys in layer.items():
            if keys is None:
                out.pop(section, None)
            else:
                out.setdefault(section, {}).update(keys)
    return out


def ini_text(config):
    lines = []
    for section, keys in config.items():
        lines.append(f"[{section}]")
        lines += [f"{k} = {v}" for k, v in keys.items() if v is not None]
    return "\n".join(lines) + "\n"


class Result:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def errors(self):
        return [line for line in self.err.splitlines() if ": error: " in line]

    def __repr__(self):
        return f"exit {self.code} after {self.seconds:.2f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Case:
    environ = QUICK  # of the programs it starts, where the environment does not say; {}: with all of oneDNN's code

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-test-"))
        self.started = []

    def close(self):
        for p in self.started:
            if p.poll() is None:
                p.kill()
                p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    # ---- running -------------------------------------------------------------------------------------------------
    def ini(self, name, *layers, text=None):
        path = self.dir / name
        path.write_text(text if text is not None else ini_text(merged(BASE, *layers)))
        return path

    def start(self, *args, env=None, cwd=None, ignore=None, affinity=None):
        """`ignore`: a signal that the program is started with as ignored; `affinity`: the processors that it may use."""

        def prepare():
            if ignore:
                signal.signal(ignore, signal.SIG_IGN)
            if affinity:
                os.sched_setaffinity(0, affinity)

        return self.spawn([ENGINE, *args], env, cwd=cwd or self.dir, preexec_fn=prepare if ignore or affinity else None)

    def finish(self, p, timeout=PATIENCE):
        limit = Patience(timeout)
        while True:
            try:
                out, err = p.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                if not limit.is_over():
                    continue
                p.kill()
                out, err = p.communicate()
                raise AssertionError(f"hung for {timeout} s\n{out}\n{err}") from None
        return Result(p.returncode, out, err, time.monotonic() - p.began)

    def run(self, *args, env=None, cwd=None, timeout=PATIENCE):
        return self.finish(self.start(*args, env=env, cwd=cwd), timeout)

    def train(self, *layers, nproc=2, args=(), env=None, name="run.ini", expect=0, timeout=PATIENCE):
        out = self.dir / (name + ".out")
        path = self.ini(name, {"output": {"dir": out, "log_every": 1000}}, *layers)
        extra = ["--nproc", nproc] if nproc else []
        r = self.run("-c", path, *extra, *args, env=env, timeout=timeout)
        self.equal(r.code, expect, r)
        r.dir = out
        r.summary = json.loads((out / "summary.json").read_text()) if (out / "summary.json").exists() else None
        return r

    @staticmethod
    def signal(pid, number):
        """Sends it, and returns when the process has taken it: two of the same number would else be one on a busy machine."""
        os.kill(pid, number)

        def taken():
            try:
                text = pathlib.Path(f"/proc/{pid}/status").read_text()
            except OSError:
                return True
            pending = [int(mask, 16) for mask in re.findall(r"^S(?:ig|hd)Pnd:\t(\w+)$", text, re.M)]
            return not any(mask >> (number - 1) & 1 for mask in pending)

        until(taken, f"signal {number} is not taken")

    @staticmethod
    def stand_still(pid):
        """SIGSTOP takes a moment on a busy machine."""
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state_of(pid) == "T", f"process {pid} does not stop")

    def trained_a_while(self, p):
        """Reads its plain lines until one shows a step; returns that."""
        line = ""
        while "step" not in line or "loss" not in line:
            line = p.stderr.readline()
            self.check(line, "ended early")
        return line

    def spawn(self, argv, env=None, **more):
        """Any command that is to be finished like the program itself."""
        p = subprocess.Popen([str(a) for a in argv], **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
                             "errors": "replace", "stdin": subprocess.DEVNULL, "cwd": self.dir,
                             "env": {**self.environ, **os.environ, **(env or {})}, **more})
        p.began = time.monotonic()
        self.started.append(p)
        return p

    def children(self, p, count):
        """The pids, once there are that many."""
        until(lambda: p.poll() is not None or len(children_of(p.pid)) >= count, f"no {count} children")
        self.equal(p.poll(), None, "ended early")
        return children_of(p.pid)

    def metrics(self, folder, event=None):
        going_on = any(p.poll() is None for p in self.started)
        lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines(keepends=True)
        if going_on and lines and not lines[-1].endswith("\n"):
            lines.pop()  # it is being written
        rows = [json.loads(line) for line in lines]
        return rows if event is None else [r for r in rows if r["event"] == event]

    # ---- asserting ------------------------------------------------------------------------------------------------
    @staticmethod
    def check(ok, detail=""):
        if not ok:
            raise AssertionError(str(detail))

    def equal(self, a, b, detail=""):
        self.check(a == b, f"{a!r} != {b!r}\n{detail}")

    def fails(self, result, code, *parts):
        """The documented exit code and exactly one error line that has every part."""
        self.equal(result.code, code, result)
        self.equal(len(result.errors()), 1, result)
        for part in parts:
            self.check(re.search(part, result.errors()[0]) if hasattr(part, "search") else str(part) in result.errors()[0],
                       f"no {part!r} in: {result.errors()[0]}")

    def no_processes_left(self, marker):
        """No process has `marker` (a path of this case) on its command line."""
        left = []

        def none():
            left.clear()
            for entry in pathlib.Path("/proc").iterdir():
                if entry.name.isdigit() and state_of(entry.name):
                    try:
                        cmd = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    except OSError:
                        continue
                    if str(marker) in cmd and "ddpengine" in cmd:
                        left.append(f"{entry.name}: {cmd}")
            return not left

        until(none, lambda: f"left behind: {left}")


def open_terminal():
    try:
        return pty.openpty()
    except OSError as why:
        raise Skip(f"no pseudo-terminal here: {why}") from None


def read_terminal(fd, on_text=lambda text: None):
    """All that comes until nobody writes any more."""
    seen = b""

    def ended():
        nonlocal seen
        if not select.select([fd], [], [], 0.1)[0]:
            return False
        try:
            data = os.read(fd, 65536)
        except OSError:  # the other end has gone
            return True
        seen += data
        on_text(seen)
        return not data

    until(ended, lambda: f"the terminal stays open: {seen}")
    os.close(fd)
    return seen.decode(errors="replace")


def started(pid):
    """When a process was started, in ticks; one that has gone comes last."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return sys.maxsize


def children_of(pid):
    """In the order in which they were started, which the kernel's lists have; pids begin again at some number."""
    kids = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        kids += [int(k) for k in (task / "children").read_text().split()]
    return sorted(kids, key=started)


def processor_seconds():
    """Of this process and of all that it has waited for, and these of theirs."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def main(*cases):
    """Runs the test_ methods of every case as TAP, the long ones or the others, or what arguments choose by name."""
    tests = [(c, n) for c in cases for n in dir(c) if n.startswith("test_")]
    kinds = ("long",) if SELDOM and not LONG else ("long", "seldom")
    long = [t for t in tests if getattr(getattr(*t), "long", None) in kinds]
    if len(sys.argv) > 1:
        tests = [t for t in tests if any(a in t[1] for a in sys.argv[1:])]
    elif long and LONG:
        tests = long
    elif long:
        tests = [t for t in tests if t not in long]
        print(f"# {len(long)} more cases run in make check-long", flush=True)
    print(f"1..{len(tests)}", flush=True)
    failed = 0
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for sig in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # a shell's background job ignores them, and the programs would
        signal.signal(sig, signal.SIG_DFL)
    for number, (cls, name) in enumerate(tests, 1):
        case = None
        began, busy = time.monotonic(), processor_seconds()
        title = f"{number} {cls.__name__}.{name}"
        try:
            case = cls()
            getattr(case, name)()
            print(f"ok {title}", flush=True)
        except Skip as why:
            print(f"ok {title} # SKIP {why}", flush=True)
        except Exception:  # noqa: BLE001 -- a test's failure is reported, whatever it is
            failed += 1
            print(f"not ok {title}", flush=True)
            print("\n".join("# " + line for line in traceback.format_exc().splitlines()), flush=True)
        finally:
            if case is not None:
                case.close()
        print(f"# {time.monotonic() - began:.2f} s, {processor_seconds() - busy:.2f} s of a processor", flush=True)
    return 1 if failed else 0
