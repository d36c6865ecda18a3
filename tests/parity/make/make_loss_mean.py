#!/usr/bin/env python3
"""Writes tests/parity/vectors/loss_mean.json: 40 steps over answers of very different length, whose loss is the mean over all
labels of a step that count, by transformers' own function with num_items_in_batch, four micro-batches a step; the loss over other
samples at the end; and the same with class weights, which torch's mean divides by. For tests/integration/habits.

    python3 tests/parity/make/make_loss_mean.py        (pip: torch, transformers)"""
import json
import os

import torch
import transformers
from transformers.loss.loss_utils import fixed_cross_entropy

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors", "loss_mean.json")
SAMPLES, OTHERS, CONTEXT, VOCABULARY, WIDTH, STEPS, SEED, ACCUMULATE = 32, 12, 10, 11, 6, 40, 5, 4
OPTIMIZERS = {"sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
              "adamw": (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1})}
WEIGHT = [0.5 + 0.25 * (i % 5) for i in range(VOCABULARY)]


def data(count, seed):
    """Answers of 1 to 10 tokens, as 1, 1, 10, 1, 1, 9, ..: what stands before them counts for nothing."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (count, CONTEXT), generator=g)
    target = (tokens * 3 + 1 + torch.randint(2, (count, CONTEXT), generator=g)) % VOCABULARY
    for i in range(count):
        target[i, :CONTEXT - (CONTEXT - i // 3 % 9 if i % 3 == 2 else 1)] = -100
    return tokens, target


def net():
    torch.manual_seed(SEED)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, 9), torch.nn.GELU(), torch.nn.LayerNorm(9),
                               torch.nn.Linear(9, VOCABULARY))


def loss_of(model, x, y, items, weight):
    logits = model(x).flatten(0, 1)
    if weight is None:
        return fixed_cross_entropy(logits, y.flatten(), num_items_in_batch=items, ignore_index=-100)
    return torch.nn.functional.cross_entropy(logits, y.flatten(), weight=weight, reduction="sum") / items


def items_of(y, weight):
    counted = y[y != -100]
    return counted.numel() if weight is None else weight[counted].sum()


def train(name, weight=None):
    x, y = data(SAMPLES, 1)
    model = net()
    kind, numbers = OPTIMIZERS[name]
    optimizer = kind(model.parameters(), **numbers)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for part in torch.arange(SAMPLES).chunk(ACCUMULATE):
            loss = loss_of(model, x[part], y[part], items_of(y, weight), weight)
            loss.backward()
            total += loss.item()
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
        optimizer.step()
        losses.append(total)
    x, y = data(OTHERS, 2)
    return {"losses": losses, "grad_norms": norms, "eval_loss": loss_of(model, x, y, items_of(y, weight), weight).item(),
            "parameters": {n: p.flatten().tolist() for n, p in model.named_parameters()}}


with open(PATH, "w", encoding="ascii") as f:
    json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "seed": SEED, "vocabulary": VOCABULARY, "width": WIDTH,
               "weight": WEIGHT, "optimizers": {n: numbers for n, (_, numbers) in OPTIMIZERS.items()},
               "train": [t.tolist() for t in data(SAMPLES, 1)], "eval": [t.tolist() for t in data(OTHERS, 2)],
               "runs": {n: train(n) for n in OPTIMIZERS}, "weighted": train("sgd", torch.tensor(WEIGHT))}, f, indent=0)
    f.write("\n")
