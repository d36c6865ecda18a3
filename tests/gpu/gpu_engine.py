"""What the stages of tests/gpu/run share: the engine of a build or of pack's bundle, INI files made on the spot, the rows of the
table, the time that is left."""
import collections
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

SRC = pathlib.Path(__file__).resolve().parents[2]
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")


class Impossible(Exception):
    """What was asked for cannot be shown on this machine; the text says why. No failure."""


class Failure(Exception):
    pass


def merged(*layers):
    """Sections of keys, the later layer over the earlier; a section or key of None goes."""
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
        lines += [f"[{section}]", *(f"{k} = {v}" for k, v in keys.items() if v is not None)]
    return "\n".join(lines) + "\n"


def last_line(text):
    """What a failed program said last that is about the failure."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return ((errors or lines or ["no output"])[-1])[:300]


def kill_group(p):
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Log:
    """Everything, in one file; the progress on standard output too."""

    def __init__(self, path):
        self.file, self.lock, self.began = path.open("w"), threading.Lock(), time.monotonic()

    def write(self, text):
        with self.lock:
            self.file.write(text)
            self.file.flush()

    def say(self, text):
        line = f"[{time.monotonic() - self.began:5.0f} s] {text}"
        self.write(line + "\n")
        print(line, flush=True)


class Run:
    """One run of the engine that ended well."""

    def __init__(self, folder, err, seconds):
        self.dir, self.err, self.seconds = folder, err, seconds
        self.events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.summary = json.loads((folder / "summary.json").read_text())
        self.steps = [e for e in self.events if e["event"] == "step"]
        self.losses = [e["loss"] for e in self.steps]
        self.sha = self.summary["parameter_sha256"]

    def step_ms(self, warmup):
        """Mean over the steps behind the first `warmup`: what a step takes of the run's time, whatever its kernels overlap."""
        times = [e["step_ms"] for e in self.steps[warmup:]]
        return sum(times) / len(times)

    def unaccounted_ms(self):
        """From the start event to the end event, less all steps: a step whose work is counted nowhere would show here."""
        at = {e["event"]: e["time"] for e in self.events if "time" in e}
        return (at["end"] - at["start"]) * 1e3 - sum(e["step_ms"] for e in self.steps)


class Plan:
    """What --check says of a run."""

    UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

    def __init__(self, text):
        self.kernels = collections.Counter(re.findall(r"^  \d+ +(\S+) ", text[text.find("\nkernels "):], re.M))
        device = re.search(r"^model +\S+ on (.*)$", text, re.M)
        self.device = device.group(1) if device else "?"
        size = re.search(r"^memory a rank.* in all ([\d.,]+) (\w+)$", text, re.M)
        self.bytes = round(float(size.group(1).replace(",", "")) * self.UNITS[size.group(2)]) if size else None
        version = re.search(r"cuDNN (\d+)\.(\d+)\.(\d+)", self.device)
        self.cudnn = tuple(map(int, version.groups())) if version else None

    def paths(self):
        """The kernels that there are several ways for, by name: which of them it is stands in brackets."""
        return {name: count for name, count in self.kernels.items() if re.match(r"attention|conv", name)}


CRASHES = {-s for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)}


class Context:
    def __init__(self, args, out, work):
        self.args, self.out, self.work = args, out, work
        self.log = Log(out / "run.log")
        self.rows, self.tables, self.profiles, self.facts = [], {}, [], {}
        self.deadline = time.monotonic() + args.budget
        self.stage, self.stage_deadline = "", self.deadline
        self.cuda = args.device == "cuda"
        self.numbers = itertools.count(1)
        self.home = self.find_home()
        self.env = {**os.environ, "DDP_BUILDDIR": str(self.home)}
        libraries = cuda_library_folders() if self.cuda else []
        self.env["DDP_CUDA_LIBRARIES"] = ":".join(map(str, libraries))
        if libraries and not (self.home / "bin/ddpengine").exists():  # a bundle's wrapper takes DDP_CUDA_LIBRARIES
            self.env["LD_LIBRARY_PATH"] = ":".join(filter(None, [*map(str, libraries), os.environ.get("LD_LIBRARY_PATH")]))
        self.data = self.find_data()
        self.device_keys = self.keys_of_device()

    # ---- where things are ---------------------------------------------------------------------------------------
    def find_home(self):
        given = self.args.build or SRC
        bundle = given / "bundle.tar.xz" if given.is_dir() else given
        if not bundle.exists():
            if not (given / "ddpengine").exists():
                raise SystemExit(f"run: neither ddpengine nor bundle.tar.xz in {given}; name a build folder or what pack made")
            return given.resolve()
        home = self.work / "bundle"
        with tarfile.open(bundle) as tar:
            tar.extractall(home, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(home)
        known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
        for lib in (home / "fallback").iterdir():
            if f"{lib.name} " not in known:
                shutil.copy(lib, home / "lib" / lib.name)
        return home

    def find_data(self):
        packed = self.home / "data"
        folder = packed if packed.is_dir() else self.work / "data"
        if not packed.is_dir():
            folder.mkdir(exist_ok=True)
            for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
                if not (FASHION / f"{name}.gz").exists():
                    raise SystemExit(f"run: no {FASHION}/{name}.gz: apt-get install dataset-fashion-mnist, or use pack's bundle")
                with (folder / name).open("wb") as f:
                    subprocess.run(["gzip", "-dc", str(FASHION / f"{name}.gz")], stdout=f, check=True)
            (folder / "text.txt").write_bytes(b"".join(p.read_bytes() for p in sorted(SRC.glob("docs/*.md"))) * 4)
        return folder

    def keys_of_device(self):
        """Options of the device under test, as it lists them."""
        if not self.cuda:
            return set()
        r = self.call("plugins", [self.home / "ddpengine", "plugins", "cuda"], check=False)
        return set(re.findall(r"^  (\w+) +\S", r.stdout, re.M))

    # ---- programs -----------------------------------------------------------------------------------------------
    def left(self):
        return min(self.deadline, self.stage_deadline) - time.monotonic()

    def library_env(self, folder):
        """What cuDNN and NCCL themselves say of a failure goes to files."""
        if not self.cuda:
            return {}
        return {"CUDNN_LOGLEVEL_DBG": "2", "CUDNN_LOGDEST_DBG": f"{folder}/cudnn-%i", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": f"{folder}/nccl-%p"}

    @staticmethod
    def library_lines(folder):
        text = "".join(f"---- {f.name}\n{f.read_text(errors='replace')[-20000:]}" for f in sorted(pathlib.Path(folder.name).iterdir()))
        folder.cleanup()
        return text

    def call(self, title, command, env=None, limit=None, check=True, cwd=None):
        """Runs a program, with all of its children ended when the time is over; what it says goes to the log."""
        limit = max(1.0, min(limit or 1e9, self.left()))
        command = list(map(str, command))
        began = time.monotonic()
        libraries = tempfile.TemporaryDirectory(dir=self.work, prefix="library-logs-")
        p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace",
                             env={**self.env, **self.library_env(libraries.name), **(env or {})}, cwd=cwd or self.work, start_new_session=True)
        try:
            out, err = p.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            kill_group(p)
            out, err = p.communicate()
            self.log.write(f"---- {title}: {' '.join(command)}\n{out}{err}{self.library_lines(libraries)}---- ended after {limit:.0f} s\n")
            raise Failure(f"not done after {limit:.0f} s; it said last: {last_line(err or out)}") from None
        r = subprocess.CompletedProcess(command, p.returncode, out, err)
        r.seconds = time.monotonic() - began
        said = self.library_lines(libraries) if r.returncode != 0 else libraries.cleanup() or ""
        self.log.write(f"---- {title}: {' '.join(command)}\n{out}{err}{said}---- exit {r.returncode} after {r.seconds:.1f} s\n")
        if r.returncode in CRASHES:
            self.backtrace(title, command, env, cwd)
        if check and r.returncode != 0:
            raise Failure(f"exit {r.returncode}: {last_line(err or out)}")
        return r

    def backtrace(self, title, command, env, cwd):
        """Of a program that a signal has ended: once more, under a debugger."""
        debugger = next((d for d in ("gdb", "cuda-gdb", "/usr/local/cuda/bin/cuda-gdb") if shutil.which(d)), None)
        if debugger:
            argv = [debugger, "-batch", "-ex", "run", "-ex", "bt 30", "-ex", "info threads", "--args", *command]
            if open(command[0], "rb").read(2) == b"#!":
                argv[argv.index("--args") + 1:] = ["/bin/sh", *command]
            self.call(f"{title}, backtrace", argv, env, 45, False, cwd)

    def device(self, number=0):
        return f"cuda:{number}" if self.cuda else "cpu"

    def device_section(self, tf32=False):
        """[device.cuda]: measured algorithms are kept between runs; exact f32 unless told otherwise."""
        keys = {}
        if "algorithm_cache" in self.device_keys:
            keys["algorithm_cache"] = self.work / "cache"
        if "tf32" in self.device_keys:
            keys["tf32"] = "yes" if tf32 else "no"
        return {"device.cuda": keys} if keys else {}

    def prepare(self, config, name):
        """The INI and the folder of a run."""
        number = next(self.numbers)
        out = self.work / f"{number:03d}-{name}"
        on_cuda = str(config.get("train", {}).get("device", self.device())).startswith("cuda")
        base = {"train": {"device": self.device(), "epochs": 100000, "eval_every": 0, "seed": 1}, "output": {"dir": out, "log_every": 1000000}}
        if not on_cuda:
            config = {k: v for k, v in config.items() if k != "device.cuda"}
        ini = self.work / f"{number:03d}-{name}.ini"
        ini.write_text(ini_text(merged(base, self.device_section() if on_cuda else {}, config)))
        return ini, out

    def plan(self, name, *layers, env=None):
        ini, _ = self.prepare(merged(*layers), f"{name}-plan")
        return Plan(self.call(f"{name}-plan", [self.home / "ddpengine", "-c", ini, "--check", "--log-level", "debug"], env=env).stdout)

    def train(self, name, *layers, nproc=1, options=(), env=None, limit=None):
        ini, out = self.prepare(merged(*layers), name)
        r = self.call(name, [self.home / "ddpengine", "-c", ini, "--nproc", nproc, *options], env=env, limit=limit)
        return Run(out, r.stderr, r.seconds)

    # ---- results ------------------------------------------------------------------------------------------------
    def row(self, what, status, text, **numbers):
        """status: ok, FAILED, n/a or info."""
        self.rows.append({"stage": self.stage, "what": what, "status": status, "text": text, **numbers})
        self.log.say(f"{self.stage}: {what}: {status}: {text}")

    def part(self, what, function, *args):
        """One part of a stage; whatever it raises is its own row, and the stage goes on."""
        if self.left() <= 0:
            self.row(what, "FAILED", "not run: no time left")
            return None
        try:
            return function(*args)
        except Impossible as e:
            self.row(what, "n/a", f"not possible: {e}")
        except Exception as e:  # a fault of one part, even of this script, costs no other part its turn
            self.row(what, "FAILED", f"{'' if isinstance(e, Failure) else type(e).__name__ + ': '}{e}")
        return None


def cuda_library_folders():
    """PyTorch's own CUDA libraries first, so that both sides of a comparison have the same, then the toolkit's."""
    found = []
    for site in [pathlib.Path(p) for p in sys.path if p.endswith("-packages")]:
        for pattern in ("nvidia/cu1*/lib", "nvidia/*/lib"):
            found += [f for f in sorted(site.glob(pattern)) if f not in found]
    return found + [f for f in (pathlib.Path("/usr/local/cuda/lib64"),) if f.is_dir()]


def apart(ours, theirs):
    """Relative differences of two loss curves; one that is not finite is infinitely far away."""
    if len(ours) != len(theirs):
        raise Failure(f"{len(ours)} steps against {len(theirs)}")
    return [abs(a - b) / abs(b) if a is not None and b is not None and math.isfinite(a) and math.isfinite(b) and b != 0 else math.inf
            for a, b in zip(ours, theirs, strict=True)]


# ---- models, as INI sections -------------------------------------------------------------------------------------------------------
SGD = {"optimizer": {"algorithm": "sgd", "lr": 0.01, "momentum": 0.9}}
ADAMW = {"optimizer": {"algorithm": "adamw", "lr": 0.0003, "betas": "0.9, 0.95", "weight_decay": 0.1}}


def fashion(c, limit=0):
    return {"data": {"plugin": "idx"}, "data.idx": {"images": c.data / "train-images-idx3-ubyte", "labels": c.data / "train-labels-idx1-ubyte",
                                                    "mean": 0.286, "std": 0.353, "limit": limit}}


def small_models(c):
    """The models of the proofs: an MLP, a convolutional net with dropout, a narrow ResNet-18, a GPT on bytes with the head size 64 that
    the tensor-core attention takes."""
    context = 32 if c.args.tiny else 128
    gpt = {"layers": 2, "width": 128, "heads": 2, "context": context, "vocabulary": 256}
    return {
        "mlp": merged(fashion(c), SGD, {"model": {"plugin": "mlp"}, "model.mlp": {"hidden": "256, 100", "classes": 10}, "train": {"batch_size": 64}}),
        "lenet": merged(fashion(c), SGD, {"model": {"plugin": "lenet"}, "model.lenet": {"variant": "two_conv"}, "train": {"batch_size": 32}}),
        "resnet": merged(fashion(c), {"optimizer": {"algorithm": "sgd", "lr": 0.001, "momentum": 0}}, {
            "model": {"plugin": "resnet"}, "model.resnet": {"stem": "cifar", "width": 8, "classes": 10}, "train": {"batch_size": 16}}),
        "gpt": merged(ADAMW, {"model": {"plugin": "gpt2"}, "model.gpt2": gpt, "data": {"plugin": "tokens"},
                              "data.tokens": {"files": c.data / "text.txt", "context": context}, "train": {"batch_size": 8}}),
    }
