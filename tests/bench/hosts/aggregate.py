#!/usr/bin/env python3
"""All-reduce and training with hosts that aggregate: backend aggregate with k of them against the best all-reduce between the ranks
alone, ours and Gloo's; all ways in turn in every round of one run:

    make tests/bench/hosts/bench_hosts
    tests/bench/hosts/aggregate.py [--workers 4] [--aggregators 4,2] [--rate 200mbit] [--bytes 80000000] [--rounds 3]
                                   [--bucket-size 25MiB] [--only reduce,train,death]

Each rank and each aggregator has a host, hierarchy.py's network namespaces on one switch, whose cables tc shapes at both ends.
reduce: one all-reduce of so many bytes, the slowest rank's time; the first call of each way in a round does not count. train: the
step of an MLP of 20 M parameters, and what the busiest host sent in it against the formula. death: an aggregator is killed in the
middle of training; the time until the last rank has ended, and what they said. Of every way it prints the median and the range, what
the best way without aggregators takes over it by round, and what theory gives, 1 + k (n - 2)/n^2. Needs root and iproute2; without
them it says so and exits with 77. Nothing here decides a test."""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from hierarchy import BUILD, DEVICE, PORT, PROGRAM, UNITS, Hosts, skip  # noqa: E402

ENGINE = (BUILD / "ddpengine").resolve()
ALONE = ("gloo-tcp", "gloo-ring", "gloo-bcube")
PARAMETERS = 784 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 10 + 10
RUN = """[group]
init_method = tcp://{address}:{port}
world_size = {world}
interface = {device}
auth = none
backend = {backend}
{section}
[ddp]
bucket_size = {bucket}
[train]
threads = 1
batch_size = 1
max_steps = {steps}
epochs = 1000
[model]
plugin = mlp
[model.mlp]
hidden = 4096, 4096
classes = 10
input = input
[data]
plugin = synthetic
[data.synthetic]
shape = 784
classes = 10
samples = 4096
[optimizer]
lr = 0.01
[output]
log_every = 1
dir = {out}
"""


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--aggregators", default="4,2", help="numbers of them, separated by commas")
    p.add_argument("--rate", default="200mbit", help="tc's spelling")
    p.add_argument("--bytes", type=int, default=80_000_000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=4, help="of a training; the first does not count")
    p.add_argument("--bucket-size", default="25MiB", help="of a training (default %(default)s)")
    p.add_argument("--only", default="reduce,train,death")
    args = p.parse_args()
    args.aggregators = [int(k) for k in args.aggregators.split(",")]
    args.most = max(args.aggregators)
    found = re.fullmatch(r"([\d.]+)(kbit|mbit|gbit)", args.rate)
    if not found:
        p.error(f"--rate {args.rate}: a number and kbit, mbit or gbit")
    args.bits = float(found.group(1)) * UNITS[found.group(2)]
    return args


def gain(n, k):
    return 1 + min(n, k) * (n - 2) / n ** 2 if n > 2 else 1.0


def inside(host, *command, **more):
    return subprocess.Popen(["ip", "netns", "exec", host, *map(str, command)], text=True,
                            env={**os.environ, "DDPENGINE_PLUGIN_PATH": str(BUILD / ".libs")}, **more)


def wait(processes, folder=None, patience=900):
    """All have ended well; else what they have written into the folder is shown."""
    until = time.monotonic() + patience
    while any(p.poll() is None for p in processes) and not any(p.returncode for p in processes) and time.monotonic() < until:
        time.sleep(0.02)
    bad = any(p.returncode for p in processes) or any(p.poll() is None for p in processes)
    if bad:
        time.sleep(3)
    for p in processes:
        p.kill()
        p.wait()
    for path in sorted(folder.glob("log*")) if bad and folder else []:
        print(path.name, *path.read_text().splitlines()[-4:], sep="\n  ")
    if bad:
        raise SystemExit(f"exit codes {[p.returncode for p in processes]}")


class Table:
    def __init__(self):
        self.times = {}

    def add(self, way, ms):
        self.times.setdefault(way, []).append(ms)

    def show(self, args, title):
        alone = [w for w in self.times if w in ALONE]
        best = min(alone, key=lambda w: statistics.median(self.times[w]))
        print(f"{title}, {args.workers} workers, {args.rate}, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}; best alone: {best}")
        print(f"  {'way':18s} {'ms':>9s} {'range':>20s}  {'best alone / it':>24s} {'theory':>8s}")
        for way, ms in self.times.items():
            ratios = [a / b for a, b in zip(self.times[best], ms, strict=True)]
            k = re.search(r"(\d+) aggregators", way)
            print(f"  {way:18s} {statistics.median(ms):9.1f} {f'{min(ms):.1f} to {max(ms):.1f}':>20s}  "
                  f"{f'{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})':>24s} "
                  f"{f'{gain(args.workers, int(k[1])):.3f}' if k else '':>8s}", flush=True)


# ---- all-reduce ----------------------------------------------------------------------------------------------------------
def reduce_round(args, hosts, table):
    ways = [*ALONE, *(f"aggregate:aggregators={k}" for k in args.aggregators)]
    at = f"{hosts.address(0)}:{PORT}"
    helpers = [inside(hosts.hosts[args.workers + i], PROGRAM, "helper", args.workers, at, DEVICE, "aggregate") for i in range(args.most)]
    ranks = [inside(hosts.hosts[r], PROGRAM, r, args.workers, at, hosts.address(r), DEVICE, args.bytes, 1, *ways,
                    stdout=subprocess.PIPE if r == 0 else subprocess.DEVNULL) for r in range(args.workers)]
    wait([*ranks, *helpers])
    lines = [line.rsplit(" ", 1) for line in ranks[0].stdout.read().splitlines()]
    for way, ms in lines[len(lines) // 2:]:
        k = re.search(r"aggregators=(\d+)", way)
        table.add(f"{k[1]} aggregators" if k else way, float(ms))


# ---- training ------------------------------------------------------------------------------------------------------------
def sent(hosts):
    """Bytes that each host has sent, headers and all."""
    rows = []
    for host in hosts.hosts:
        r = subprocess.run(["ip", "netns", "exec", host, "tc", "-s", "-j", "qdisc", "show", "dev", DEVICE], capture_output=True, text=True, check=True)
        rows.append(next(q["bytes"] for q in json.loads(r.stdout) if q["kind"] == "tbf"))
    return rows


def begin(args, hosts, folder, k, steps):
    """k None: gloo-tcp. The ranks and the aggregators."""
    ini = folder / "run.ini"
    ini.write_text(RUN.format(address=hosts.address(0), port=PORT + 1, world=args.workers, device=DEVICE, steps=steps, out=folder / "out", bucket=args.bucket_size,
                              backend="gloo-tcp" if k is None else "aggregate",
                              section=f"[backend.aggregate]\naggregators = {k}" if k is not None else ""))
    logs = [(folder / f"log{i}").open("w") for i in range(args.workers + (k or 0))]
    helpers = [inside(hosts.hosts[args.workers + i], ENGINE, "aggregate", "-c", ini, stderr=logs[args.workers + i]) for i in range(k or 0)]
    ranks = [inside(hosts.hosts[r], ENGINE, "-c", ini, "--set", f"group.rank={r}", stderr=logs[r], stdout=subprocess.DEVNULL) for r in range(args.workers)]
    return ranks, helpers


def train(args, hosts, folder, k):
    before = sent(hosts)
    ranks, helpers = begin(args, hosts, folder, k, args.steps)
    wait([*ranks, *helpers], folder)
    moved = max(b - a for a, b in zip(before[1:], sent(hosts)[1:], strict=True)) / args.steps  # rank 0 sends the first parameters too
    rows = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    return statistics.median(r["step_ms"] for r in rows if r["event"] == "step" and r["step"] > 1), moved


def train_round(args, hosts, folder, table, bytes_sent):
    for k in (None, *args.aggregators):
        way = "gloo-tcp" if k is None else f"{k} aggregators"
        ms, moved = train(args, hosts, folder, k)
        table.add(way, ms)
        bytes_sent[way] = (moved, 2 * (args.workers - 1) / args.workers * 4 * PARAMETERS / gain(args.workers, k or 0))


# ---- death ---------------------------------------------------------------------------------------------------------------
def death(args, hosts, folder):
    ranks, helpers = begin(args, hosts, folder, args.most, 1000)
    while "step" not in (folder / "log0").read_text():
        time.sleep(0.05)
    time.sleep(3)
    began = time.monotonic()
    subprocess.run(["pkill", "-KILL", "-P", str(helpers[0].pid)], check=False)
    helpers[0].send_signal(signal.SIGKILL)
    ended = []
    while len(ended) < len(ranks) and time.monotonic() < began + 60:
        ended += [(p, time.monotonic() - began) for p in ranks if p.poll() is not None and p not in [q for q, _ in ended]]
        time.sleep(0.01)
    for p in (*ranks, *helpers):
        p.kill()
        p.wait()
    said = [re.findall(r"error: (.*)", (folder / f"log{r}").read_text()) for r in range(args.workers)]
    print(f"an aggregator killed: the ranks ended after {', '.join(f'{t:.2f}' for _, t in ended)} s, exit codes {[p.returncode for p in ranks]}")
    for line in sorted({line for lines in said for line in lines}):
        print(f"  {sum(line in lines for lines in said)} of {args.workers}: {line}", flush=True)


def main():
    args = arguments()
    if not PROGRAM.exists():
        skip("no bench_hosts: make tests/bench/hosts/bench_hosts")
    hosts, reduced, trained, bytes_sent = Hosts(args.workers + args.most, args.rate), Table(), Table(), {}
    try:
        with tempfile.TemporaryDirectory(prefix="ddpengine-bench-") as name:
            for _ in range(args.rounds):
                if "reduce" in args.only:
                    reduce_round(args, hosts, reduced)
                if "train" in args.only:
                    train_round(args, hosts, pathlib.Path(name), trained, bytes_sent)
            if reduced.times:
                reduced.show(args, f"all-reduce of {args.bytes / 1e6:g} MB")
            if trained.times:
                trained.show(args, f"a step of an MLP of {PARAMETERS / 1e6:.1f} M parameters, buckets of {args.bucket_size}")
                for way, (moved, formula) in bytes_sent.items():
                    print(f"  {way:18s} the busiest host sent {moved / 1e6:.1f} MB a step, headers and all; by the formula {formula / 1e6:.1f} MB")
            if "death" in args.only:
                death(args, hosts, pathlib.Path(name))
    finally:
        hosts.close()


if __name__ == "__main__":
    main()
