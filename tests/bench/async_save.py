#!/usr/bin/env python3
"""What saving costs: the same training without checkpoints, with saves beside it ([checkpoint] async = yes) and with saves in the
step, alternating, so that other load on the machine is shared by all three. Prints for each the time of a step over the whole run,
saves included, and the processor time, relative to the run that saves nothing; other load changes the second little. Then the
stall of a save relative to one copy of the state by memcpy, and how long a save is written.

    async_save.py [--model mlp|gpt2] [--rounds N] [--steps N] [--every N] [--batch N] [--dir FOLDER]

A memcpy of so many bytes is measured in this process, between the runs. Where a disk is slower than the saves come, training
waits for it, which is part of the stall.
"""
import argparse
import ctypes
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SRC = pathlib.Path(os.environ.get("DDP_SRCDIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
MLP = """
[model]
plugin = mlp
[model.mlp]
hidden = 4096, 3328, 1024
classes = 10
input = input
[data]
plugin = synthetic
[data.synthetic]
samples = 65536
shape = 784
classes = 10
[optimizer]
algorithm = adamw
lr = 0.0003
"""
GPT = """
[model]
plugin = gpt2
[model.gpt2]
preset = gpt2
context = 64
[data]
plugin = tokens
[data.tokens]
files = {dir}/text
context = 64
[optimizer]
algorithm = adamw
lr = 0.0003
"""
CONFIG = """
[train]
epochs = 100000
max_steps = {steps}
batch_size = {batch}
{model}
[checkpoint]
{checkpoint}
[output]
dir = {dir}/out
log_every = 1000
"""
HOWS = {"none": "", "async": "dir = {dir}/ck\nevery = {every}\nkeep = {keep}\nasync = yes",
        "in step": "dir = {dir}/ck\nevery = {every}\nkeep = {keep}\nasync = no"}


def memcpy_ms(size):
    """The second copy of so many bytes, when all pages are there."""
    a, b = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(a, 1, size)
    ctypes.memmove(b, a, size)
    began = time.perf_counter()
    ctypes.memmove(b, a, size)
    return (time.perf_counter() - began) * 1e3


def one(args, how, folder):
    """Milliseconds a step from the first save on, what saves take of them too; processor seconds of the run; the events of
    the saves; bytes of one."""
    shutil.rmtree(folder / "ck", ignore_errors=True)
    shutil.rmtree(folder / "out", ignore_errors=True)
    text = CONFIG.format(dir=folder, steps=args.steps, batch=args.batch, model=(MLP if args.model == "mlp" else GPT).format(dir=folder),
                         checkpoint=HOWS[how].format(dir=folder, every=args.every, keep=args.keep))
    (folder / "run.ini").write_text(text)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    r = subprocess.run([BUILD / "ddpengine", "-c", folder / "run.ini", *args.more], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        sys.exit(r.stderr)
    rows = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    saves = [r for r in rows if r["event"] == "checkpoint"]
    size = sum(f.stat().st_size for f in (folder / "ck").glob("step-*/*.safetensors")) / max(len(list((folder / "ck").glob("step-*"))), 1)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    saves = [s for s in saves if s["step"] < args.steps]  # the last one is waited for: not part of any step
    took = sum(r["step_ms"] for r in rows if r["event"] == "step" and r["step"] > args.every) + sum(s["ms"] for s in saves)
    return took / (args.steps - args.every), used, saves, int(size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("mlp", "gpt2"), default="mlp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--keep", type=int, default=1)
    parser.add_argument("--dir", default=None, help="a folder on the disk that is to be measured")
    parser.add_argument("more", nargs="*", help="for ddpengine, behind --")
    args = parser.parse_args()
    args.every = args.every or (20 if args.model == "mlp" else 50)
    args.steps = args.steps or 5 * args.every
    args.batch = args.batch or (256 if args.model == "mlp" else 1)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-save-", dir=args.dir))
    (folder / "text").write_bytes(bytes(range(32, 127)) * 4000)
    ms, used, stalls, writes, copies, size = {how: [] for how in HOWS}, {how: [] for how in HOWS}, [], [], [], 0
    try:
        for n in range(args.rounds):
            for how in HOWS:
                took, seconds, saves, bytes_there = one(args, how, folder)
                ms[how].append(took)
                used[how].append(seconds)
                if how == "async":
                    size = bytes_there
                    stalls += [s["ms"] for s in saves]
                    writes += [s["write_ms"] for s in saves]
                    copies += [memcpy_ms(size) for _ in range(3)]
            print(f"round {n + 1}: " + ", ".join(f"{how} {v[-1]:.1f} ms/step" for how, v in ms.items()), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{args.model}, batch {args.batch}, a save of {size / 1e6:.0f} MB every {args.every} steps, keep {args.keep}, "
          f"{args.rounds} alternating rounds, median (lowest .. highest)")
    for how in ("async", "in step"):
        for what, of in (("step", ms), ("processor time of the run", used)):
            ratios = [a / b for a, b in zip(of[how], of["none"])]
            print(f"  {what}, {how} / no saves: {statistics.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})")
    copy = statistics.median(copies)
    print(f"  stall / memcpy of the state {statistics.median(stalls) / copy:6.2f}   ({min(stalls) / copy:.2f} .. {max(stalls) / copy:.2f}), "
          f"memcpy {copy:.1f} ms, stall {statistics.median(stalls):.1f} ms")
    print(f"  written in {statistics.median(writes) / 1e3:.2f} s   ({min(writes) / 1e3:.2f} .. {max(writes) / 1e3:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
