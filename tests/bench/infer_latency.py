#!/usr/bin/env python3
"""Latency of libddpinfer against onnxruntime, one thread each, alternating in one process, on the same weights.

    DDP_BUILDDIR=... python3 tests/bench/infer_latency.py [--rounds 20] [--batch 1] [mlp] [resnet18]

Needs a Python with onnx, onnxruntime and numpy. Each round runs some calls of one side, then as many of the other; printed
are the medians over all calls, the middle half of them, and the ratio of the medians. The largest difference of the outputs
is printed too. Nothing is decided here."""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SRC = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
sys.path.insert(0, str(SRC / "tests/integration/support"))
import numpy  # noqa: E402
import onnxruntime  # noqa: E402
from infer_library import Model  # noqa: E402

NETS = {  # plugin, options, shape of an image, calls of a round
    "mlp": ("mlp", "classes = 10", "1, 28, 28", 200),
    "resnet18": ("resnet", "classes = 1000", "3, 224, 224", 3),
}
INI = """[train]
max_steps = 1
batch_size = 2
[model]
plugin = {plugin}
[model.{plugin}]
{options}
[data]
plugin = synthetic
[data.synthetic]
samples = 8
shape = {shape}
classes = 10
[checkpoint]
dir = ckpt
"""


def timed(call, count, out):
    for _ in range(count):
        began = time.perf_counter()
        call()
        out.append(time.perf_counter() - began)


def text(times):
    low, middle, high = numpy.percentile(times, (25, 50, 75)) * 1e6
    return f"{middle:9.1f} us ({low:.1f} to {high:.1f})"


def measure(name, args):
    plugin, options, shape, calls = NETS[name]
    (pathlib.Path("x.ini")).write_text(INI.format(plugin=plugin, options=options, shape=shape))
    for command in (["-c", "x.ini"], ["export", "onnx", "-c", "x.ini", "x.onnx"]):
        subprocess.run([BUILD / "ddpengine", *command], check=True, stderr=subprocess.DEVNULL)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession("x.onnx", settings, providers=["CPUExecutionProvider"])
    model = Model(BUILD, "x.ini", "ckpt")
    x = numpy.random.default_rng(1).standard_normal(model.inputs[0].shape(args.batch)).astype(numpy.float32)
    field = model.inputs[0].name.decode()
    ours, theirs = [], []
    run = model.prepare(args.batch, [x.ctypes.data])
    sides = ((run, ours), (lambda: session.run(None, {field: x}), theirs))
    for round_ in range(args.rounds + 1):
        for call, times in sides:
            timed(call, calls, times)
            if round_ == 0:
                times.clear()  # what the first calls prepare
    difference = abs(numpy.array(model.answers) - session.run(None, {field: x})[0].reshape(-1)).max()
    print(f"{name}, batch {args.batch}: libddpinfer {text(ours)}, onnxruntime {onnxruntime.__version__} {text(theirs)}, "
          f"ratio {numpy.median(ours) / numpy.median(theirs):.2f}; difference {difference:.2g}", flush=True)
    model.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("nets", nargs="*", default=list(NETS))
    args = parser.parse_args()
    for name in args.nets:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            measure(name, args)
            os.chdir("/")


if __name__ == "__main__":
    main()
