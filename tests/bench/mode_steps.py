#!/usr/bin/env python3
"""Step time of several devices in one process against one device and against ranks, every device with one thread, alternating in
one run:

    tests/bench/mode_steps.py [--rounds 4] [--steps 10] [--modes model,dp]     (DDP_BUILDDIR names the build)

model   a GPT of 4 layers x 256, micro-batches of --sequences x 256 tokens, 8 a step: one device, and 2 + 2 layers on two. At best the step
        takes 9/16 of the time, since each of two stages is idle for one of nine turns.
dp      an MLP 784-512-512-10, batch 64 a replica: two replicas, two ranks over shm, and one device with 128.

Prints the minimum and the median of each side over all rounds, and the ratios of both; a machine that does something else
beside it shows in the medians. Nothing here decides a test."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", pathlib.Path(__file__).resolve().parents[2]))
WARMUP = 3
GPT = ("[model]\nplugin = gpt2\n[model.gpt2]\npreset = bytes\nplace = 0:0, 2:1\n[data]\nplugin = synthetic\n[data.synthetic]\n"
       "samples = 1024\nshape = 256\nvocabulary = 256\n[optimizer]\nalgorithm = adamw\nlr = 0.0003\n")
MLP = ("[model]\nplugin = mlp\n[model.mlp]\nhidden = 512, 512\nclasses = 10\n[data]\nplugin = synthetic\n[data.synthetic]\n"
       "samples = 8192\nshape = 784\ninput_name = image\nclasses = 10\n[optimizer]\nlr = 0.01\n")
TWO = "device = cpu:0, cpu:1\n"


def steps_ms(work, model, train, steps, nproc=1):
    ini = work / "x.ini"
    ini.write_text(f"[train]\nthreads = 1\nepochs = 1000\nmax_steps = {steps + WARMUP}\n{train}{model}[output]\ndir = {work}/out\nlog_every = 1000000\n")
    shutil.rmtree(work / "out", ignore_errors=True)
    subprocess.run([str(BUILD / "ddpengine"), "-c", str(ini), "--nproc", str(nproc)], check=True, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (work / "out/metrics.jsonl").read_text().splitlines()]
    return [r["step_ms"] for r in rows if r["event"] == "step"][WARMUP:]


def compare(work, args, title, sides):
    """sides: (name, model, keys of [train], steps, ranks); the first one is what the others are held against."""
    times = {side[0]: [] for side in sides}
    for _ in range(args.rounds):
        for name, model, train, steps, nproc in sides:
            times[name] += steps_ms(work, model, train, steps, nproc)
    print(title)
    base = times[sides[0][0]]
    for name, t in times.items():
        print(f"  {name:34s} minimum {min(t):9.3f} ms   median {statistics.median(t):9.3f} ms   "
              f"ratio of minima {min(base) / min(t):5.3f}   of medians {statistics.median(base) / statistics.median(t):5.3f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--sequences", type=int, default=2)
    p.add_argument("--modes", default="model,dp")
    args = p.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-bench-"))
    micros = f"batch_size = {args.sequences}\naccumulate = 8\n"
    try:
        if "model" in args.modes:
            compare(work, args, f"GPT 4 x 256, 8 micro-batches of {args.sequences} x 256 tokens",
                    [("one device", GPT, micros, args.steps, 1),
                     ("2 + 2 layers on two devices", GPT, micros + "parallel = model\n" + TWO, args.steps, 1)])
        if "dp" in args.modes:
            compare(work, args, "MLP 784-512-512-10, 128 samples a step",
                    [("one device", MLP, "batch_size = 128\n", args.steps * 30, 1),
                     ("two replicas", MLP, "batch_size = 64\nparallel = dp\n" + TWO, args.steps * 30, 1),
                     ("two ranks over shm", MLP, "batch_size = 64\n", args.steps * 30, 2)])
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
