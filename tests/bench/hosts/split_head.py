#!/usr/bin/env python3
"""A classifier of very many classes: its output layer divided among the ranks ([train] split_head), whole on every rank (ddp), and on one
rank with the same global batch; all ways in turn in every round of one run:

    tests/bench/hosts/split_head.py [--ranks 4] [--classes 200000] [--features 512] [--batch 32] [--steps 20] [--rounds 3]
                                    [--backend shm] [--no-ddp] [--save]

--batch are the samples of a step, of all ranks together. The data are a npy file of random inputs and labels, read in order. Of each
way it prints the median step over the rounds and the range, the largest memory (PSS) of each rank over that of one rank, and the bytes
that a rank sends in a step by arithmetic; and how far the losses of the steps are from one rank's. With --no-ddp whole replicas are left out,
which take --ranks times the memory. Nothing here decides a test."""
import argparse
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2] / "integration")]
from harness import ENGINE  # noqa: E402
from slow_link import steps_of  # noqa: E402


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=4)
    p.add_argument("--classes", type=int, default=200000)
    p.add_argument("--features", type=int, default=512)
    p.add_argument("--inputs", type=int, default=64)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=2, help="steps at the beginning whose times do not count")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--backend", default="shm")
    p.add_argument("--algorithm", default="adamw")
    p.add_argument("--no-ddp", action="store_true")
    p.add_argument("--save", action="store_true", help="a checkpoint at the end, whose memory counts too")
    args = p.parse_args()
    if args.batch % args.ranks:
        p.error("--batch must be a multiple of --ranks")
    return args


# ---- data ----------------------------------------------------------------------------------------------------------------
def npy(path, dtype, shape, raw):
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}), }}".encode()
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + raw)


def make_data(args, folder):
    samples, rng = args.batch * args.steps, random.Random(7)
    npy(folder / "x.npy", "<f4", (samples, args.inputs), struct.pack(f"<{samples * args.inputs}f", *(rng.gauss(0, 1) for _ in range(samples * args.inputs))))
    npy(folder / "y.npy", "<i8", (samples,), struct.pack(f"<{samples}q", *(rng.randrange(args.classes) for _ in range(samples))))


def ini(args, folder):
    path = folder / "x.ini"
    path.write_text(f"[train]\nthreads = 1\nepochs = 1\nmax_steps = {args.steps}\nseed = 3\n[model]\nplugin = mlp\n[model.mlp]\ninput = input\n"
                    f"hidden = {args.features}\nclasses = {args.classes}\n[data]\nplugin = npy\n[data.npy]\ninput = {folder}/x.npy\n"
                    f"label = {folder}/y.npy\n[sampler.distributed]\nshuffle = no\n[optimizer]\nalgorithm = {args.algorithm}\nlr = 0.001\n"
                    f"[group]\nbackend = {args.backend}\n[output]\nlog_every = 1000000\n")
    return path


# ---- a run ---------------------------------------------------------------------------------------------------------------
def pss_of(pid):
    try:
        found = re.search(r"^Pss: +(\d+)", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def ranks_of(pid, ranks):
    """The processes of the ranks: the program's children, or itself."""
    if ranks == 1:
        return [pid]
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(c) for c in children]


def run(args, folder, ranks, split):
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [ENGINE, "-c", ini(args, folder), "--set", f"output.dir={out}", "--set", f"train.batch_size={args.batch // ranks}"]
    command += ["--set", "train.split_head=yes"] if split else []
    command += ["--nproc", ranks] if ranks > 1 else []
    shutil.rmtree(folder / "ck", ignore_errors=True)
    command += ["--set", f"checkpoint.dir={folder}/ck"] if args.save else []
    log = (folder / "log").open("w+")
    p = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder)
    largest = {}
    while p.poll() is None:
        for pid in ranks_of(p.pid, ranks):
            largest[pid] = max(largest.get(pid, 0), pss_of(pid))
        time.sleep(0.05)
    if p.returncode:
        log.seek(0)
        sys.exit(f"exit {p.returncode}: {log.read()[-600:]}")
    rows = steps_of(out)
    return {"ms": statistics.median(r["step_ms"] for r in rows[args.warmup:]), "pss": [largest[k] for k in sorted(largest)], "loss": [r["loss"] for r in rows]}


def sent(args, split):
    """Of a rank, in MB a step: an all_reduce is 2 (N - 1) / N of the bytes, a gather and a scatter (N - 1) / N each."""
    n, head = args.ranks, args.classes * (args.features + 1)
    rest = args.features * (args.inputs + 1)
    floats = 2 * rest + (2 * args.batch * args.features if split else 2 * head) + (4 * args.batch * n if split else 0)
    return floats * 4 * (n - 1) / n * 1e-6


def main():
    args = arguments()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-bench-"))
    try:
        make_data(args, folder)
        ways = {"one rank": (1, False), "split_head": (args.ranks, True)} | ({} if args.no_ddp else {"ddp": (args.ranks, False)})
        rows = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, (ranks, split) in ways.items():
                rows[name].append(run(args, folder, ranks, split))
        print(f"{args.features} x {args.classes} classes, {args.ranks} ranks of one thread over {args.backend}, {args.batch} samples a step, "
              f"{args.steps} steps, {args.rounds} rounds")
        base = max(max(g["pss"]) for g in rows["one rank"])
        for name, got in rows.items():
            ms = [g["ms"] for g in got]
            off = max(abs(x / y - 1) for g in got for x, y in zip(g["loss"], rows["one rank"][0]["loss"], strict=True))
            largest = [max(g["pss"][r] for g in got) for r in range(len(got[0]["pss"]))]
            text = f"  {name:11s} {statistics.median(ms):8.0f} ms ({min(ms):.0f} to {max(ms):.0f})  PSS "
            text += ", ".join(f"{x / 2**20:.0f} MiB ({x / base:.2f})" for x in largest)
            text += f"  loss within {off:.1e}"
            print(text + (f"  sends {sent(args, ways[name][1]):.2f} MB" if ways[name][0] > 1 else ""), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
