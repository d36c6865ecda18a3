#!/usr/bin/env python3
"""Writes tests/parity/vectors/*.txt: what PyTorch draws, for the unit tests to compare with.

The vectors are stored in the repository, so the tests need no PyTorch. Run this again only to add cases; an unchanged
case must give an unchanged line:

    python3 tests/parity/make/make_vectors.py        (Debian: apt-get install python3-torch; an x86-64 CPU with AVX2)

Every file names the PyTorch that wrote it. Hashes are the first 16 hex digits of the SHA-256 of the little-endian bytes
(int64 indices, float32 values), except in initial.txt, which has all 64.
"""

import hashlib
import os
import random

import torch
from torch.utils.data.distributed import DistributedSampler

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors")


def sha(data):
    return hashlib.sha256(data).hexdigest()


def tensor_bytes(t):
    return t.contiguous().numpy().tobytes()


def bits(t, count):
    """The first floats, as hex words, for a readable failure."""
    return " ".join("%08x" % (v & 0xFFFFFFFF) for v in t.flatten()[:count].view(torch.int32).tolist())


def write(name, about, lines):
    path = os.path.join(FOLDER, name)
    with open(path, "w", encoding="ascii") as f:
        f.write("# Written by tests/parity/make/make_vectors.py with PyTorch %s; do not edit.\n" % torch.__version__)
        f.write("# %s\n" % about)
        f.writelines(line + "\n" for line in lines)
    print("%s: %d lines, %d bytes" % (path, len(lines), os.path.getsize(path)))


# ---- sampler.txt -----------------------------------------------------------------------------------------------------
def sampler_line(length, world, rank, seed, epoch, shuffle, drop_last):
    s = DistributedSampler(range(length), world, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
    s.set_epoch(epoch)
    indices = list(s)
    data = torch.tensor(indices, dtype=torch.int64).numpy().tobytes()
    first = " ".join(str(i) for i in indices[:6])
    return "%d %d %d %d %d %d %d : %d %s : %s" % (
        length, world, rank, seed, epoch, shuffle, drop_last, len(indices), sha(data)[:16], first)


def sampler_cases():
    cases = []
    # every small combination, more ranks than samples among them
    for length in (1, 2, 3, 5, 7, 8, 16, 100):
        for world in (1, 2, 3, 4, 7, 16):
            for shuffle in (True, False):
                for drop_last in (True, False):
                    if drop_last and length < world:
                        continue  # PyTorch gives nothing; the plugin refuses
                    ranks = {0, world - 1, world // 2}
                    cases += [(length, world, r, 0, 1, shuffle, drop_last) for r in sorted(ranks)]
    rng = random.Random(20261)
    for _ in range(150):
        world = rng.choice((1, 2, 2, 3, 4, 5, 8, 13, 64))
        length = rng.randint(world, 3000)
        seed = rng.choice((0, 1, 42, 3407, 2**31 - 1, 2**32 - 1, 2**32 + 5, 2**53 + 1, rng.getrandbits(62)))
        epoch = rng.choice((0, 1, 2, 9, 999))
        cases.append((length, world, rng.randrange(world), seed, epoch, rng.random() < 0.8, rng.random() < 0.5))
    # real sizes; the draws pass many refills of the generator
    for length, world in ((60000, 2), (60000, 7), (50000, 4), (100001, 3)):
        for rank in (0, world - 1):
            for epoch in (0, 3):
                cases.append((length, world, rank, 42, epoch, True, False))
    return cases


# ---- random.txt ------------------------------------------------------------------------------------------------------
def generator(seed):
    g = torch.Generator()
    g.manual_seed(seed if seed < 2**63 else seed - 2**64)
    return g


def random_lines():
    lines = []
    seeds = (0, 1, 42, 2**31, 2**32 - 1, 2**32 + 7, 2**63 - 1, 2**64 - 1)
    ranges = ((0.0, 1.0), (-1.0, 1.0), (-784**-0.5, 784**-0.5), (3.0, 7.7), (1e-8, 2e-8), (0.1, 0.1))
    for seed in seeds:
        for count in (1, 7, 8, 16, 623, 625, 10000):
            for low, high in ranges:
                t = torch.empty(count).uniform_(low, high, generator=generator(seed))
                lines.append("uniform %d %d %s %s : %s : %s" % (
                    seed, count, low.hex(), high.hex(), sha(tensor_bytes(t))[:16], bits(t, 3)))
        for count in (0, 1, 2, 3, 10, 624, 1000, 60000):
            t = torch.randperm(count, generator=generator(seed))
            lines.append("permutation %d %d : %s : %s" % (
                seed, count, sha(tensor_bytes(t))[:16], " ".join(str(i) for i in t[:4].tolist())))
    for seed in seeds:
        for count in (1, 2, 3, 15, 16, 17, 31, 32, 33, 1023, 1025, 10000, 70001):
            for mean, std in ((0.0, 1.0), (0.0, 0.02), (-1.5, 3.0)):
                t = torch.empty(count).normal_(mean, std, generator=generator(seed))
                lines.append("normal %d %d %s %s : %s : %s" % (
                    seed, count, mean.hex(), std.hex(), sha(tensor_bytes(t))[:16], bits(t, 3)))
    for seed in seeds:
        # one generator, draws in turn: a draw must leave it where PyTorch leaves it
        g = generator(seed)
        h = hashlib.sha256()
        for i in range(1, 40):
            h.update(tensor_bytes(torch.randperm(37 * i, generator=g)))
            h.update(tensor_bytes(torch.empty(13 * i).uniform_(-0.5, 0.5, generator=g)))
        lines.append("mixed %d : %s" % (seed, h.hexdigest()[:16]))
        # fewer than 16 normals come in pairs, the second of which may wait behind draws of another kind
        g = generator(seed)
        h = hashlib.sha256()
        for i in range(1, 40):
            h.update(tensor_bytes(torch.empty(i).normal_(0.25, 2.0, generator=g)))
            h.update(tensor_bytes(torch.empty(3 * i).uniform_(-0.5, 0.5, generator=g)))
        lines.append("normals %d : %s" % (seed, h.hexdigest()[:16]))
    return lines


# ---- initial.txt -----------------------------------------------------------------------------------------------------
def initial_lines():
    """torch.manual_seed, then a chain of torch.nn.Linear, as a model's constructor makes it."""
    lines = []
    for seed in (0, 1, 42, 1234567890123):
        for sizes in ((10, 5), (1, 1), (784, 512, 512, 10), (3, 17, 1), (33, 64, 7)):
            torch.manual_seed(seed)
            layers = [torch.nn.Linear(i, o) for i, o in zip(sizes, sizes[1:])]
            data = b"".join(tensor_bytes(p.detach()) for layer in layers for p in (layer.weight, layer.bias))
            lines.append("linear %d %s : %s : %s" % (
                seed, ",".join(map(str, sizes)), sha(data), bits(layers[0].weight.detach(), 3)))
    return lines


# ---- normalize.txt ---------------------------------------------------------------------------------------------------
def normalize_lines():
    """torchvision's ToTensor and Normalize of every byte, in their tensor operations: div(255), sub_(mean), div_(std)."""
    lines = []
    pairs = ((0.0, 1.0), (0.5, 0.5), (0.1307, 0.3081), (0.2860, 0.3530), (0.485, 0.229), (-3.0, 1e-3))
    for mean, std in pairs:
        t = torch.arange(256, dtype=torch.uint8).to(torch.float32).div(255)
        t.sub_(torch.as_tensor([mean])).div_(torch.as_tensor([std]))
        lines.append("%s %s : %s : %s" % (mean.hex(), std.hex(), sha(tensor_bytes(t))[:16], bits(t, 256)))
    return lines


def main():
    os.makedirs(FOLDER, exist_ok=True)
    write("sampler.txt", "length world rank seed epoch shuffle drop_last : count hash : first indices",
          [sampler_line(*c) for c in sampler_cases()])
    write("random.txt", "uniform seed count from to | permutation seed count | normal seed count mean std | mixed, normals seed : hash : first values",
          random_lines())
    write("initial.txt", "linear seed sizes : SHA-256 of all parameters in state_dict order : first values",
          initial_lines())
    write("normalize.txt", "mean std : hash : results of the bytes 0 to 255", normalize_lines())


if __name__ == "__main__":
    main()
