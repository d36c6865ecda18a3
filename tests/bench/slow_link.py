#!/usr/bin/env python3
"""Two hosts on a slow network: ddpengine over gloo-tcp, with and without a hook that compresses gradients, against PyTorch DDP over
gloo, against the bare all-reduce and against one rank alone; all in turn in every round of one run:

    make -s bench LINK_FLAGS="--rate 1gbit --rate 100mbit --rounds 3 [--model gpt2] [--variants f32,bf16,powersgd:rank=4]
                              [--newest VENV/bin/python] [--text FILE] [--quality]"

The hosts are network namespaces with one rank of one thread each, as two hosts count for the engine; the link is a veth pair
that tc shapes at both ends. Needs root, iproute2 and make tests/bench/bench_allreduce; without root it says so and exits with 77.
A variant is f32 (no hook), or NAME[:OPTION=VALUE...] of a hook plugin with its options.

Prints of everything the median over the rounds and their range: a step, what of it waits for the network (of PyTorch what its step
takes longer than on one rank), samples/s against one rank of ours, the bytes that a host sent in a step (headers and all, the mean
of all steps), and the floor: these bytes over the rate. --quality trains instead, on this host: the validation loss of
conf/quickstart.ini by variant, three seeds. Nothing here decides a test."""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from harness import BUILD, ENGINE, FASHION, SRC, Skip  # noqa: E402
from model_steps import BEST, DEBIAN, MODELS  # noqa: E402
from test_network import PORT, Network  # noqa: E402
from torch_steps import BATCH  # noqa: E402

HOST0, HOST1, DEVICE = "10.77.0.1", "10.77.0.2", "eth0"  # Network's
NAMES = {"mlp": "mlp4096", "gpt2": "gpt2"}  # model_steps.py's
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
ALLREDUCE, TORCH = BUILD / "tests/bench/bench_allreduce", SRC / "tests/bench/torch_steps.py"
WAYS = ("", "--dynamic")  # torch_steps.py's, of which the faster counts
SEEDS = 3


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", action="append", help="tc's spelling: 1gbit, 100mbit; may be repeated; both without it")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--bucket-size", default="8MiB", help="of ddpengine; powersgd's passes find smaller ones in the cache (default %(default)s)")
    p.add_argument("--steps", type=int, default=8, help="that count, of a run")
    p.add_argument("--warmup", type=int, default=3, help="steps before them")
    p.add_argument("--variants", help="separated by commas; f32 and all hooks of this build without it")
    p.add_argument("--model", choices=NAMES, default="mlp")
    p.add_argument("--newest", help="a Python that has a newer PyTorch")
    p.add_argument("--text", help="what PyTorch's language model reads; bytes in order without it")
    p.add_argument("--quality", action="store_true", help="validation loss by variant, no network")
    p.add_argument("--epochs", type=int, default=5, help="of --quality")
    args = p.parse_args()
    args.rate = args.rate or ["1gbit", "100mbit"]
    for rate in args.rate:
        if not re.fullmatch(r"[\d.]+(kbit|mbit|gbit)", rate):
            p.error(f"--rate {rate}: a number and kbit, mbit or gbit")
    args.newest, args.text = (os.path.abspath(path) if path else None for path in (args.newest, args.text))
    args.variants = chosen(args.variants)
    return args


# ---- variants ------------------------------------------------------------------------------------------------------------
def chosen(text):
    """Of the hooks that this build has."""
    built = [h.stem.removeprefix("hook_") for h in sorted((BUILD / ".libs").glob("hook_*.so"))]
    found = []
    for variant in text.split(",") if text else ["f32", *built]:
        if variant == "f32" or variant.split(":")[0] in built:
            found.append(variant)
        else:
            print(f"{variant}: left out, this build has no such hook", flush=True)
    return found


def hook(variant, **defaults):
    """--set of a variant."""
    name, *options = variant.split(":")
    if name == "f32":
        return []
    values = {**defaults.get(name, {}), **dict(o.split("=", 1) for o in options)}
    return settings({"hook.plugin": name, **{f"hook.{name}.{k}": v for k, v in values.items()}})


def settings(keys):
    return [word for k, v in keys.items() for word in ("--set", f"{k}={v}")]


# ---- what runs -----------------------------------------------------------------------------------------------------------
def rate_of(rate):
    number, unit = re.fullmatch(r"([\d.]+)(\w+)", rate).groups()
    return float(number) * UNITS[unit]


def shape(hosts, rate):
    for where in hosts.names:
        hosts.inside(where, "tc", "qdisc", "del", "dev", DEVICE, "root", check=False)
        r = hosts.inside(where, "tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms", check=False)
        if r.returncode != 0:
            raise Skip(f"tc cannot shape here: {r.stderr.strip()}")


def sent(hosts):
    """Bytes that the second host has sent, headers and all. The first one sends the initial parameters as well."""
    rows = json.loads(hosts.inside(hosts.b, "tc", "-s", "-j", "qdisc", "show", "dev", DEVICE).stdout)
    return next(r["bytes"] for r in rows if r["kind"] == "tbf")


def together(hosts, commands, env=None):
    """Runs them to their end, each in its host; the output of the first. One that fails ends all."""
    ranks = []
    for i, (where, command) in enumerate(commands):
        path = hosts.dir / f"rank{i}.log"
        inside = ["ip", "netns", "exec", where] if where else []
        with path.open("w") as log:
            p = subprocess.Popen([*inside, *map(str, command)], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 cwd=hosts.dir, env={**os.environ, **(env or {})})
        p.log = path
        ranks.append(p)
        hosts.started.append(p)
    while any(p.poll() is None for p in ranks) and not any(p.returncode for p in ranks):
        time.sleep(0.02)
    if any(p.returncode for p in ranks):
        fail(ranks)
    hosts.started.clear()
    return ranks[0].log.read_text(errors="replace")


def fail(ranks):
    """The others may not know that one has failed, or say better why."""
    until = time.monotonic() + 15
    while any(p.poll() is None for p in ranks) and time.monotonic() < until:
        time.sleep(0.02)
    for p in ranks:
        p.kill()
        p.wait()
    said = "\n".join(line for p in ranks for line in p.log.read_text(errors="replace").splitlines()[-8:])
    raise RuntimeError(f"exit {[p.returncode for p in ranks]}\n{said}")


def node_ini(args, hosts):
    """What both nodes share."""
    section, data, optimizer = MODELS[NAMES[args.model]]
    optimizer = optimizer.replace("momentum = 0.9\n", "")
    return hosts.ini("node.ini", text=f"[train]\nthreads = 1\nbatch_size = {BATCH[NAMES[args.model]]}\nmax_steps = {args.warmup + args.steps}\nepochs = 1000\n"
                     f"[ddp]\noverlap = yes\nbucket_size = {args.bucket_size}\n{section}[data]\nplugin = synthetic\n[data.synthetic]\n{data}[optimizer]\n{optimizer}"
                     f"[output]\ndir = {hosts.dir}/out\nlog_every = 1000000\n")


def steps_of(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [r for r in rows if r["event"] == "step"]


def engine(args, hosts, variant):
    """Two nodes, as users start them."""
    out, before = hosts.dir / "out", sent(hosts)
    shutil.rmtree(out, ignore_errors=True)
    group = {"backend": "gloo-tcp", "init_method": f"tcp://{HOST0}:{PORT}", "world_size": 2, "interface": DEVICE, "auth": "none"}
    common = [ENGINE, "-c", node_ini(args, hosts), *settings({f"group.{k}": v for k, v in group.items()}),
              *hook(variant, powersgd={"start_step": 0})]
    together(hosts, [(where, [*common, *settings({"group.rank": r})]) for r, where in enumerate(hosts.names)])
    rows = steps_of(out)[args.warmup:]
    return {"ms": statistics.median(r["step_ms"] for r in rows), "exposed": statistics.median(r["wait_ms"] for r in rows),
            "bytes": (sent(hosts) - before) / (args.steps + args.warmup)}


def alone(args, hosts):
    """One rank: its step, and the forward part of it with the loss."""
    out = hosts.dir / "out"
    shutil.rmtree(out, ignore_errors=True)
    together(hosts, [(None, [ENGINE, "-c", node_ini(args, hosts), "--nproc", 1, "--profile"])])
    profile = json.loads((out / "profile.json").read_text())["rows"]
    forward = sum(r["ms"] for r in profile if r["name"] not in ("update", "wait", "data", "other") and not is_gradient(r["name"]))
    return {"ms": statistics.median(r["step_ms"] for r in steps_of(out)[args.warmup:]), "forward": forward}


def is_gradient(kernel):
    """Of the backward pass; the loss's kernel has its gradient in it and counts as forward."""
    return "grad" in kernel and not kernel.startswith("cross_entropy")


def torch(args, hosts, python, ranks, *flags):
    argv = [python, TORCH, "--model", NAMES[args.model], "--steps", args.steps, "--warmup", args.warmup, "--momentum", 0, *flags,
            *(["--data", args.text] if args.text else [])]
    before = sent(hosts)
    if ranks == 1:
        text = together(hosts, [(hosts.a, [*argv, "--world", 1, "--rank", 0, "--port", PORT])], env=BEST)
    else:
        text = together(hosts, [(where, [*argv, "--rank", r, "--address", HOST0, "--port", PORT]) for r, where in enumerate(hosts.names)],
                        env={**BEST, "GLOO_SOCKET_IFNAME": DEVICE})
    out = {"ms": next(json.loads(line)["median_step_ms"] for line in text.splitlines() if line.startswith("{"))}
    if ranks > 1:
        out["bytes"] = (sent(hosts) - before) / (args.steps + args.warmup)
    return out


def bare(hosts, size):
    before = sent(hosts)
    text = together(hosts, [(hosts.a, [ALLREDUCE, 2, size, HOST0, HOST1, f"/run/netns/{hosts.b}"])])
    ms, rounds = re.search(r"median +([\d.]+).*\((\d+) rounds\)", text).groups()
    return {"ms": float(ms) / 1e3, "bytes": (sent(hosts) - before) / (int(rounds) + 1)}  # and one before them


def torches(args):
    """PyTorch's version -> Python."""
    found = {}
    for python in filter(None, (DEBIAN, args.newest)):
        r = subprocess.run([python, "-c", "import torch; print(torch.__version__.split('+')[0])"], capture_output=True, text=True, check=False)
        if r.returncode == 0:
            found[f"PyTorch {r.stdout.strip()}"] = python
        else:
            print(f"{python} has no PyTorch: left out", flush=True)
    return found


# ---- a rate --------------------------------------------------------------------------------------------------------------
COLUMNS = {"": "29", "step ms": ">8", "range": ">18", "exposed ms": ">10", "PyTorch / it": ">12", "samples/s": ">9", "of one rank": ">11",
           "MB sent": ">8", "floor ms": ">8"}


class Table:
    """Name -> field -> its values by round; None of a way that has failed."""

    def __init__(self):
        self.rows = {}

    def add(self, name, run, *args):
        """A way that has failed is said and not tried again."""
        if self.rows.get(name, {}) is None:
            return None
        try:
            got = run(*args)
        except RuntimeError as e:
            print(f"{name}: failed, {e}", flush=True)
            self.rows[name] = None
            return None
        for key, value in got.items():
            self.note(name, key, value)
        return got

    def note(self, name, key, value):
        self.rows.setdefault(name, {}).setdefault(key, []).append(value)

    def has(self, name):
        return bool(self.rows.get(name))

    def median(self, name, key="ms"):
        return statistics.median(self.rows[name][key])


def one_round(args, hosts, table, pythons, size):
    if ALLREDUCE.exists():
        table.add("bare all-reduce", bare, hosts, size)
    for variant in args.variants:
        table.add(f"ddpengine {variant}", engine, args, hosts, variant)
    for name, python in pythons.items():
        one = table.add(f"one rank, {name}", torch, args, hosts, python, 1)
        for flag in WAYS:
            two = table.add(f"{name}{flag.replace('--', ', ')}", torch, args, hosts, python, 2, *flag.split())
            if two and one:
                table.note(f"{name}{flag.replace('--', ', ')}", "exposed", two["ms"] - one["ms"])
    table.add("one rank, ddpengine", alone, args, hosts)


def line(*cells):
    print("  " + " ".join(f"{c:{w}s}" for c, w in zip(cells, COLUMNS.values(), strict=True)).rstrip(), flush=True)


def show(args, table, rate):
    best = fastest(table, "PyTorch")
    single = table.median("one rank, ddpengine") if table.has("one rank, ddpengine") else None
    line(*COLUMNS)
    for name in sorted(filter(table.has, table.rows), key=lambda n: n.startswith("one rank")):
        row, ms = table.rows[name], table.median(name)
        ranks = 0 if name == "bare all-reduce" else 1 if name.startswith("one rank") else 2
        line(name, f"{ms:.1f}", f"{min(row['ms']):.1f} to {max(row['ms']):.1f}",
             f"{table.median(name, 'exposed'):.1f}" if "exposed" in row else "",
             f"{table.median(best) / ms:.2f}" if best and ranks == 2 else "",
             f"{ranks * BATCH[NAMES[args.model]] / ms * 1e3:.3g}" if ranks else "",
             f"{ranks * single / ms:.3f}" if ranks and single else "",
             f"{table.median(name, 'bytes') / 1e6:.2f}" if "bytes" in row else "",
             f"{table.median(name, 'bytes') * 8e3 / rate_of(rate):.1f}" if "bytes" in row else "")
    conclude(table, best, single)


def fastest(table, whose):
    return min((n for n in table.rows if n.startswith(whose) and table.has(n)), key=table.median, default=None)


def conclude(table, best, single):
    ours = [n for n in table.rows if n.startswith("ddpengine") and table.has(n)]
    for name in ours if best else []:
        ratios = [t / o for o, t in zip(table.rows[name]["ms"], table.rows[best]["ms"], strict=False)]
        print(f"  {best} / {name}, by round: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    if not single:
        return
    forward = table.median("one rank, ddpengine", "forward")
    print(f"  forward and loss alone, one rank: {forward:.1f} ms")
    if table.has("bare all-reduce") and table.has("ddpengine f32"):
        bound = 1.05 * (table.median("bare all-reduce") + forward)
        print(f"  1.05 x (bare all-reduce + forward) = {bound:.1f} ms; ddpengine f32 takes {table.median('ddpengine f32') / bound:.3f} of it")
    if ours:
        name = fastest(table, "ddpengine")
        print(f"  two ranks with the best variant ({name.removeprefix('ddpengine ')}): {2 * single / table.median(name):.3f} times the samples/s of one rank", flush=True)


def parameters(args, hosts):
    """From the summary of a run of one step."""
    together(hosts, [(None, [ENGINE, "-c", node_ini(args, hosts), "--nproc", 1, "--set", "train.max_steps=1"])])
    return json.loads((hosts.dir / "out/summary.json").read_text())["parameters"]


def speed(args, hosts):
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise Skip(f"no {program} (iproute2)")
    hosts.setup()
    pythons, count, bad = torches(args), parameters(args, hosts), False
    if not ALLREDUCE.exists():
        print("no bare all-reduce: make tests/bench/bench_allreduce", flush=True)
    for rate in args.rate:
        shape(hosts, rate)
        table = Table()
        print(f"{rate}: {NAMES[args.model]}, {count:,} parameters, batch {BATCH[NAMES[args.model]]} a rank, 2 hosts x 1 rank x 1 thread, "
              f"{args.rounds} rounds of {args.steps} steps; gradients in f32 at this rate: {count * 32e3 / rate_of(rate):.1f} ms", flush=True)
        for _ in range(args.rounds):
            one_round(args, hosts, table, pythons, 4 * count)
            print("  round: " + ", ".join(f"{name} {row['ms'][-1]:.1f} ms" for name, row in table.rows.items() if row), flush=True)
        show(args, table, rate)
        bad |= any(row is None for name, row in table.rows.items() if "PyTorch" not in name)
    return int(bad)


# ---- quality -------------------------------------------------------------------------------------------------------------
def validation(args, hosts, variant, seed):
    out = hosts.dir / "out"
    shutil.rmtree(out, ignore_errors=True)
    keys = {"group.backend": "shm", "train.threads": 1, "train.epochs": args.epochs, "train.eval_every": 0, "train.seed": seed,
            "optimizer.lr": 0.0005, "optimizer.schedule": "cosine",  # the last steps are small, or their noise would hide what is looked for
            "checkpoint.dir": "", "output.dir": out}
    together(hosts, [(None, [ENGINE, "-c", SRC / "conf/quickstart.ini", "--nproc", 2, *settings(keys), *hook(variant)])])
    summary = json.loads((out / "summary.json").read_text())
    return summary["eval_loss"], summary["eval_accuracy"]


def quality(args, hosts):
    if not FASHION.is_dir():
        raise Skip("no dataset-fashion-mnist")
    variants = ["f32", *(v for v in args.variants if v != "f32")]
    found = {v: [] for v in variants}
    for seed in range(SEEDS):
        for v in variants:
            found[v].append(validation(args, hosts, v, seed))
    print(f"conf/quickstart.ini with lr = 0.0005, {args.epochs} epochs, 2 ranks over shm, seeds 0 to {SEEDS - 1}: validation after the same samples")
    for v in variants:
        losses, accuracies = zip(*found[v], strict=True)
        against = [100 * (x / y[0] - 1) for x, y in zip(losses, found["f32"], strict=True)]
        print(f"  {v:26s} loss {statistics.mean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})   accuracy {statistics.mean(accuracies):.4f}   "
              f"loss against f32 {statistics.mean(against):+.2f} % ({min(against):+.2f} to {max(against):+.2f})", flush=True)
    return 0


def on_hosts(name, measure):
    """The exit code of measure(hosts), or 77 where it lacks something; nothing of the network is left, after a signal either."""
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in ends:
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    hosts = Network()
    try:
        return measure(hosts)
    except Skip as why:
        print(f"{name}: 1 skipped: {why}")
        return 77
    finally:
        for number in ends:  # what is left to do is done
            signal.signal(number, signal.SIG_IGN)
        hosts.close()


def main():
    args = arguments()
    return on_hosts("slow_link", lambda hosts: (quality if args.quality else speed)(args, hosts))


if __name__ == "__main__":
    sys.exit(main())
