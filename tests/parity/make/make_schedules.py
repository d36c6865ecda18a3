#!/usr/bin/env python3
"""Writes tests/parity/vectors/schedules.txt: what torch.optim.lr_scheduler gives, for tests/unit/train/test_schedule.c.

A line is a name and pairs of numbers: of each update the learning rate and the momentum (or the first of betas); of a plateau
the result of each evaluation and the learning rate after it. The test has the arguments under the same names.

    python3 tests/parity/make/make_schedules.py        (Debian: apt-get install python3-torch)"""
import os
import random

import torch
from torch.optim import lr_scheduler

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors", "schedules.txt")


def sgd(lr):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)


def adam(lr):
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def rates(optimizer, scheduler, steps):
    out = []
    for i in range(steps):
        group = optimizer.param_groups[0]
        out += [group["lr"], group.get("momentum", group.get("betas", (0,))[0])]
        optimizer.step()
        if i + 1 < steps:
            scheduler.step()
    return out


def plateau(seed, mode, count, **arguments):
    draw, optimizer, out = random.Random(seed), sgd(0.4), []
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, **arguments)
    for i in range(count):
        value = round((1 / (1 + i) if mode == "min" else i / (1 + i)) + draw.uniform(-0.2, 0.2), 3)
        scheduler.step(value)
        out += [value, optimizer.param_groups[0]["lr"]]
    return out


def cases():
    o = sgd(0.5)
    yield "multi_step", rates(o, lr_scheduler.MultiStepLR(o, [3, 4, 9], gamma=0.3), 14)
    o = sgd(0.5)
    warm = lr_scheduler.LinearLR(o, start_factor=1 / 4, total_iters=3)
    drop = lr_scheduler.MultiStepLR(o, [3, 4], gamma=0.5)
    yield "multi_step_after_warmup", rates(o, lr_scheduler.SequentialLR(o, [warm, drop], [4]), 12)
    o = sgd(0.1)
    yield "one_cycle", rates(o, lr_scheduler.OneCycleLR(o, 0.1, total_steps=40), 40)
    o = adam(0.01)
    yield "one_cycle_linear", rates(o, lr_scheduler.OneCycleLR(o, 0.01, total_steps=23, pct_start=0.4, anneal_strategy="linear",
                                                               div_factor=10, final_div_factor=100, base_momentum=0.8,
                                                               max_momentum=0.9), 23)
    o = sgd(0.1)
    yield "one_cycle_still", rates(o, lr_scheduler.OneCycleLR(o, 0.1, total_steps=7, cycle_momentum=False), 7)
    o = sgd(0.2)
    yield "one_cycle_three", rates(o, lr_scheduler.OneCycleLR(o, 0.2, total_steps=37, three_phase=True), 37)
    o = adam(0.01)
    yield "one_cycle_three_linear", rates(o, lr_scheduler.OneCycleLR(o, 0.01, total_steps=20, pct_start=0.4, anneal_strategy="linear",
                                                                     three_phase=True), 20)
    yield "plateau", plateau(1, "min", 40, patience=2)
    yield "plateau_max", plateau(2, "max", 40, patience=1, factor=0.5, cooldown=2)
    yield "plateau_abs", plateau(3, "min", 40, patience=0, factor=0.5, threshold=0.05, threshold_mode="abs", min_lr=0.01)
    yield "plateau_max_abs", plateau(4, "max", 40, patience=1, factor=0.7, threshold=0.02, threshold_mode="abs", cooldown=1)
    yield "plateau_rel", plateau(5, "max", 40, patience=3, threshold=0.1)


with open(PATH, "w", encoding="ascii") as f:
    f.write(f"# Written by tests/parity/make/make_schedules.py with PyTorch {torch.__version__}; do not edit.\n")
    for name, numbers in cases():
        f.write(" ".join([name, *(repr(float(n)) for n in numbers)]) + "\n")
