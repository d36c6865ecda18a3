#!/usr/bin/env python3
"""Step time and time to the first step against PyTorch DDP over gloo, 2 ranks x 1 thread, alternating in one run; ours over gloo-tcp,
like for like, and over shm, which is the default on one host:

    make -s bench [BENCH_FLAGS="--rounds 7 --steps 400"]

PyTorch is taken at its best: OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 and, on a CPU with AVX-512, OPENBLAS_CORETYPE=SkylakeX.
Prints each side's median with its spread over the rounds, and the ratio of each round; and, before and after the rounds, the
floor of a step: oneDNN's own best times for the same products with both ranks' processors busy, plus the faster of Gloo's own
ring and bcube all-reduce of that size, called directly. Nothing here decides a test."""
import argparse
import gzip
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parity"))
import openblas  # noqa: E402

SRC = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
TORCH_PYTHON = "/usr/bin/python3"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
BEST = openblas.best()


def engine(work, steps, plain, backend="gloo-tcp"):
    ini = work / "x.ini"
    data = f"images = {work}/images\nlabels = {work}/labels\n" if plain else "split = train\n"
    ini.write_text(f"[group]\nbackend = {backend}\n[train]\nthreads = 1\nbatch_size = 64\nmax_steps = {steps}\nepochs = 100\n[model]\nplugin = mlp\n"
                   f"[data]\nplugin = idx\n[data.idx]\nmean = 0.286\nstd = 0.353\n{data}"
                   f"[optimizer]\nlr = 0.01\n[output]\ndir = {work}/out\nlog_every = 1000000\n")
    subprocess.run([str(BUILD / "ddpengine"), "-c", str(ini), "--nproc", "2"], check=True, stderr=subprocess.DEVNULL)
    return json.loads((work / "out/summary.json").read_text())


def torch(steps):
    r = subprocess.run([TORCH_PYTHON, str(SRC / "tests/parity/torch_mlp.py"), "--world", "2", "--steps", str(steps), "--epochs", "100"],
                       check=True, capture_output=True, text=True, env={**os.environ, **BEST})
    return json.loads(r.stdout)


def floor():
    """(compute, all-reduce) in ms; both ranks compute at once, as they do in a step."""
    env = {**os.environ, "DDP_BUILDDIR": str(BUILD)}
    both = [subprocess.Popen([str(BUILD / "tests/bench/bench_device")], stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    texts = [p.communicate()[0] for p in both]
    compute = statistics.mean(float(re.search(r"batch 64: 784-512-512-10 +floor ([\d.]+) ms", t).group(1)) for t in texts)
    text = subprocess.run([str(BUILD / "tests/bench/bench_allreduce"), "0.3"], capture_output=True, text=True, env=env).stdout
    gloo = min(float(x) for x in re.findall(r"2700000 B +gloo \w+ +median +([\d.]+)", text)) / 1e3
    print(f"  floor: compute {compute:.3f} ms + Gloo's own all-reduce of 2.7 MB {gloo:.3f} ms = {compute + gloo:.3f} ms", flush=True)
    return compute + gloo


def row(name, values, unit):
    print(f"  {name:34s} median {statistics.median(values):8.3f} {unit}   min {min(values):8.3f}   max {max(values):8.3f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=400)
    args = p.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-bench-"))
    ours, shared, theirs, first, first_gz, first_torch, floors = [], [], [], [], [], [], []
    try:
        for part, name in (("images", "train-images-idx3-ubyte.gz"), ("labels", "train-labels-idx1-ubyte.gz")):
            (work / part).write_bytes(gzip.decompress((FASHION / name).read_bytes()))
        floors.append(floor())
        for _ in range(args.rounds):
            a, gz, b = engine(work, args.steps, True), engine(work, 2, False), torch(args.steps)
            ours.append(a["median_step_ms"])
            shared.append(engine(work, args.steps, True, "shm")["median_step_ms"])
            first.append(a["first_step_s"])
            first_gz.append(gz["first_step_s"])
            theirs.append(b["median_step_ms"])
            first_torch.append(b["first_step_s"])
            print(f"  round: ddpengine {ours[-1]:.3f} ms, over shm {shared[-1]:.3f} ms, PyTorch {theirs[-1]:.3f} ms, ratio {theirs[-1] / ours[-1]:.2f}", flush=True)
        floors.append(floor())
    finally:
        shutil.rmtree(work)
    print("MLP 784-512-512-10, batch 64 a rank, 2 ranks x 1 thread, f32 over gloo")
    row("ddpengine, step", ours, "ms")
    row("ddpengine over shm, step", shared, "ms")
    row("PyTorch DDP, step", theirs, "ms")
    ratios = [t / o for o, t in zip(ours, theirs, strict=True)]
    row("ratio", ratios, "x ")
    row("ratio over shm", [t / o for o, t in zip(shared, theirs, strict=True)], "x ")
    row("floor", floors, "ms")
    row("ddpengine, first step, plain IDX", first, "s ")
    row("ddpengine, first step, .gz", first_gz, "s ")
    row("PyTorch DDP, first step", first_torch, "s ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
