#!/usr/bin/env python3
"""Step time of real models against PyTorch DDP over gloo, 2 ranks x 1 thread, alternating in one run; ours over shm, each side at
its best:

    make -s bench MODEL_FLAGS="[--models lenet,gpt] [--rounds 3] [--newest VENV/bin/python] [--text FILE]"

PyTorch is Debian's (python3-torch with libopenblas0-pthread, with OPENBLAS_CORETYPE=SkylakeX on a CPU with AVX-512, since its
OpenBLAS does not know newer ones) and, where --newest names a Python that has one, the newest; of each the fastest way counts: eager, torch.compile, images
channels last, attention by scaled_dot_product_attention where the version has it; in bf16 its autocast. torch_steps.py has
the details. Prints for each model and precision the median of every way with its spread over the rounds, PyTorch's best / ours by
round, and the largest proportional memory (PSS) of a rank. Nothing here decides a test."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import torch_steps  # which makes tests/parity known
import openblas

SRC = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
DEBIAN = "/usr/bin/python3"
BEST = {**openblas.best(), "MKL_NUM_THREADS": "1"}
SGD = "algorithm = sgd\nlr = 0.01\nmomentum = 0.9\n"
ADAMW = "algorithm = adamw\nlr = 0.0003\nbetas = 0.9, 0.95\nweight_decay = 0.1\n"
STEPS = {"mlp512": 400, "mlp4096": 40, "lenet": 60, "resnet": 16, "gpt": 12, "gpt2": 6}
WARMUP = 3


def mlp(width):
    return (f"[model]\nplugin = mlp\n[model.mlp]\nhidden = {width}, {width}\nclasses = 10\n", "samples = 8192\nshape = 784\ninput_name = image\nclasses = 10\n", SGD)


MODELS = {
    "mlp512": mlp(512),
    "mlp4096": mlp(4096),
    "lenet": ("[model]\nplugin = lenet\n[model.lenet]\nvariant = two_conv\n", "samples = 8192\nshape = 1, 28, 28\nclasses = 10\n", SGD),
    "resnet": ("[model]\nplugin = resnet\n[model.resnet]\ndepth = 18\nclasses = 10\n", "samples = 1024\nshape = 3, 96, 96\nclasses = 10\n", SGD),
    "gpt": ("[model]\nplugin = gpt2\n[model.gpt2]\npreset = bytes\n", "samples = 1024\nshape = 256\nvocabulary = 256\n", ADAMW),
    "gpt2": ("[model]\nplugin = gpt2\n[model.gpt2]\npreset = gpt2\npadded_vocabulary = 50304\n", "samples = 256\nshape = 256\nvocabulary = 50257\n", ADAMW),
}


def engine(work, model, precision, steps):
    section, data, optimizer = MODELS[model]
    ini = work / "x.ini"
    ini.write_text(f"[group]\nbackend = shm\n[train]\nthreads = 1\nprecision = {precision}\nbatch_size = {torch_steps.BATCH[model]}\n"
                   f"max_steps = {steps + WARMUP}\nepochs = 1000\n{section}[data]\nplugin = synthetic\n[data.synthetic]\n{data}"
                   f"[optimizer]\n{optimizer}[output]\ndir = {work}/out\nlog_every = 1\n")
    shutil.rmtree(work / "out", ignore_errors=True)
    subprocess.run([str(BUILD / "ddpengine"), "-c", str(ini), "--nproc", "2"], check=True, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (work / "out/metrics.jsonl").read_text().splitlines()]
    times = [r["step_ms"] for r in rows if r["event"] == "step"][WARMUP:]
    return statistics.median(times), json.loads((work / "out/summary.json").read_text())["peak_pss_bytes"]


def ways(args, model, precision):
    """(name, python, flags): every way that may be PyTorch's fastest."""
    flags = ["--bf16"] if precision == "bf16" else []
    found = [("1.13", DEBIAN, flags)] if precision == "f32" else []
    if args.newest:
        found += [("newest", args.newest, flags), ("newest, compiled", args.newest, [*flags, "--compile"])]
        if model in ("lenet", "resnet"):
            found.append(("newest, channels last", args.newest, [*flags, "--channels-last"]))
    elif precision == "bf16":
        found.append(("1.13", DEBIAN, flags))
    return found


def torch(python, model, flags, steps, text):
    argv = [python, str(SRC / "tests/bench/torch_steps.py"), "--model", model, "--steps", str(steps), *flags]
    r = subprocess.run([*argv, *(["--data", text] if text else [])], check=True, capture_output=True, text=True, env={**os.environ, **BEST})
    out = json.loads(r.stdout.splitlines()[-1])
    return out["median_step_ms"], out["peak_pss_bytes"]


def row(name, values, mib):
    print(f"  {name:26s} median {statistics.median(values):9.2f} ms   min {min(values):9.2f}   max {max(values):9.2f}   PSS {mib / 2**20:6.0f} MiB", flush=True)


def compare(args, work, model, precision):
    steps = STEPS[model]
    times, memory, dead = {}, {}, set()
    for _ in range(args.rounds):
        for name, python, flags in [("ddpengine", None, None), *ways(args, model, precision)]:
            if name in dead:
                continue
            try:
                ms, pss = engine(work, model, precision, steps) if python is None else torch(python, model, flags, max(steps // 2, 4), args.text)
            except subprocess.CalledProcessError as e:
                if python is None:
                    raise
                dead.add(name)
                print(f"  {name}: {(e.stderr or '').strip().splitlines()[-1:]}", flush=True)
                continue
            times.setdefault(name, []).append(ms)
            memory[name] = max(memory.get(name, 0), pss)
    print(f"{model}, {precision}, batch {torch_steps.BATCH[model]} a rank, 2 ranks x 1 thread")
    for name, values in times.items():
        row(name, values, memory[name])
    rivals = {n: v for n, v in times.items() if n != "ddpengine"}
    best = min(rivals, key=lambda n: statistics.median(rivals[n]))
    ratios = [t / o for o, t in zip(times["ddpengine"], rivals[best], strict=True)]
    print(f"  PyTorch ({best}) / ddpengine: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--models", default=",".join(MODELS))
    p.add_argument("--precisions", default="f32,bf16")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--newest")
    p.add_argument("--text", help="what PyTorch's language models read; bytes in order without it")
    args = p.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-bench-"))
    try:
        for model in args.models.split(","):
            for precision in args.precisions.split(","):
                if precision == "bf16" and "avx512_bf16" not in pathlib.Path("/proc/cpuinfo").read_text():
                    print(f"{model}, bf16: not run, this CPU has no AVX512_BF16")
                    continue
                compare(args, work, model, precision)
    finally:
        shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
