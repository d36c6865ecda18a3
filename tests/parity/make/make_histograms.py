#!/usr/bin/env python3
"""Writes tests/parity/vectors/histograms.txt: what torch.utils.tensorboard's add_histogram makes of some values, for
tests/unit/observe/test_histograms.c.

A line for each: a name, the number of values, the values, as f32; minimum, maximum, sum and sum of squares; the number of buckets,
and of the first one and those that are not empty: which, its limit, its count.

    python3 tests/parity/make/make_histograms.py        (needs torch and tensorboard)"""
import os
import tempfile

import numpy
import torch
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import make_histogram

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors", "histograms.txt")


def cases():
    draw = torch.Generator().manual_seed(1)
    yield "normal", torch.randn(200, generator=draw) * 0.02
    yield "positive", torch.rand(50, generator=draw)
    yield "negative", -torch.rand(50, generator=draw) * 1e6
    yield "zeros", torch.zeros(7)
    yield "one", torch.tensor([-3.25])
    yield "around_zero", torch.tensor([1e-13, -1e-13, 0.0, -0.0, 1e-12, -1e-12, 9e-13])
    yield "far", torch.tensor([1e19, 9.5e19, 1e21, -1e21, -9.5e19, 2.0])
    # the limits themselves, as near as f32 comes to them
    yield "limits", torch.tensor([1e-12 * 1.1 ** k for k in range(0, 760, 23)] + [-1e-12 * 1.1 ** k for k in range(5, 760, 31)])


def main():
    with tempfile.TemporaryDirectory() as folder, open(PATH, "w") as out:
        bins = SummaryWriter(folder).default_bins
        for name, values in cases():
            values = values.numpy().astype(numpy.float32)
            h = make_histogram(values.astype(float), bins)
            rows = [(i, float(x).hex(), int(n)) for i, (x, n) in enumerate(zip(h.bucket_limit, h.bucket)) if i == 0 or n > 0]
            print(name, len(values), *(v.hex() for v in values.astype(float)), *(float(v).hex() for v in (h.min, h.max, h.sum, h.sum_squares)),
                  len(h.bucket), len(rows), *(f"{i} {x} {n}" for i, x, n in rows), file=out)


if __name__ == "__main__":
    main()
