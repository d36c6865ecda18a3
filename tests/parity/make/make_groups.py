#!/usr/bin/env python3
"""Writes tests/parity/vectors/groups.json: 100 steps of a small smooth net with parameter groups and a moving average of the
weights, and the noise scale of its gradients, for tests/integration/habits. All samples are in every batch, so that their
order does not matter.

    python3 tests/parity/make/make_groups.py        (Debian: apt-get install python3-torch)"""
import copy
import fnmatch
import json
import os

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors", "groups.json")
SAMPLES, INPUTS, CLASSES, STEPS, SEED, DECAY = 32, 6, 3, 100, 11, 0.9
NO_DECAY, FACTORS = ["*.bias", "2.*"], [("3.*", 10.0), ("0.weight", 0.1)]
OPTIMIZERS = {"sgd": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}),
              "adamw": (torch.optim.AdamW, {"lr": 0.002, "eps": 1e-4, "weight_decay": 0.1})}


def data():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, INPUTS, generator=g)
    return x, (x[:, :CLASSES] + 0.3 * torch.randn(SAMPLES, CLASSES, generator=g)).argmax(1)


def net():
    torch.manual_seed(SEED)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, 9), torch.nn.GELU(), torch.nn.LayerNorm(9), torch.nn.Linear(9, CLASSES))


def groups(model, lr, weight_decay, **others):
    def factor(name):
        return next((f for pattern, f in FACTORS if fnmatch.fnmatchcase(name, pattern)), 1.0)

    return [{"params": [p], "lr": lr * factor(name), **others,
             "weight_decay": 0.0 if any(fnmatch.fnmatchcase(name, pattern) for pattern in NO_DECAY) else weight_decay}
            for name, p in model.named_parameters()]


def train(name):
    x, y = data()
    model = net()
    kind, numbers = OPTIMIZERS[name]
    optimizer = kind(groups(model, **numbers))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        losses.append(loss.item())
    averaged = torch.nn.functional.cross_entropy(average.module(x), y).item()
    values = {n: p.flatten().tolist() for n, p in model.named_parameters()}
    return {"losses": losses, "parameters": values, "eval_loss": averaged,
            "ema": {n: p.flatten().tolist() for n, p in copy.deepcopy(average.module).named_parameters()}}


def noise(ranks, accumulate):
    """tr(S) / |G|^2 at the first parameters (McCandlish et al. 2018, appendix A.1), from the first micro-batch of each rank."""
    x, y = data()
    batch = SAMPLES // (ranks * accumulate)

    def squares(rows):
        model = net()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        return sum((p.grad.double() ** 2).sum().item() for p in model.parameters())

    small = sum(squares(list(range(r, SAMPLES, ranks))[:batch]) for r in range(ranks)) / ranks
    big = squares(list(range(SAMPLES)))
    return ((small - big) / (1 / batch - 1 / SAMPLES)) / ((SAMPLES * big - batch * small) / (SAMPLES - batch))


x, y = data()
with open(PATH, "w", encoding="ascii") as f:
    json.dump({"torch": torch.__version__, "seed": SEED, "decay": DECAY, "no_decay": NO_DECAY, "factors": FACTORS,
               "x": x.tolist(), "y": y.tolist(),
               "optimizers": {n: numbers for n, (_, numbers) in OPTIMIZERS.items()},
               "noise": [[r, a, noise(r, a)] for r, a in ((2, 1), (1, 4), (2, 2))],
               "runs": {n: train(n) for n in OPTIMIZERS}}, f, indent=0)
    f.write("\n")
