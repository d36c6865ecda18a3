#!/usr/bin/env python3
"""Writes vectors/losses.safetensors, in the form of make_ops.py: the losses and what the metrics add up, on random inputs, as
PyTorch gives them in float64, rounded to float32. "cross_entropy.K.weight" are class weights. Needs torch and nothing else:

    /usr/bin/python3 tests/parity/make/make_losses.py"""
import pathlib

import make_ops
import torch
import torch.nn.functional as F
from make_ops import case, leaf, tensors

OUT = pathlib.Path(__file__).resolve().parents[1] / "vectors/losses.safetensors"


def pair(name, loss, p, t, attrs=()):
    value = loss(p.double(), t.double())
    value.backward()
    case(name, [p, t], value.float(), attrs=attrs)
    case(f"{name}_grad", [p, t], p.grad, attrs=attrs)


def pairs(*shape):
    pair("l1", F.l1_loss, leaf(*shape), torch.randn(*shape))
    t = torch.randn(*shape)
    p = t.clone().requires_grad_()  # no difference, and one beyond every beta
    with torch.no_grad():
        p.view(-1)[::2] += torch.randn(p.numel())[::2] * 2
    pair("l1", F.l1_loss, p, t)
    for beta in (1.0, 0.25, 0.0):
        pair("smooth_l1", lambda p, t: F.smooth_l1_loss(p, t, beta=beta), leaf(*shape), torch.randn(*shape), attrs=(beta,))
    pair("bce_with_logits", F.binary_cross_entropy_with_logits, leaf(*shape, scale=4.0), torch.randint(2, shape).float())
    pair("bce_with_logits", F.binary_cross_entropy_with_logits, leaf(*shape, scale=50.0), torch.rand(*shape))


def cross_entropy(n, c, weighted, ignore, smoothing):
    logits, label = leaf(n, c, scale=3.0), torch.randint(c, (n,))
    weight = torch.rand(c) * 3 if weighted else None
    if weighted and c > 2:
        weight[1] = 0.0
    if ignore is not None:
        label[:: 3] = ignore
    loss = F.cross_entropy(logits.double(), label, None if weight is None else weight.double(),
                           ignore_index=-100 if ignore is None else ignore, label_smoothing=smoothing)
    loss.backward()
    attrs = (smoothing, -100 if ignore is None else ignore, 1)
    for op, out in (("cross_entropy", loss.float()), ("cross_entropy_grad", logits.grad)):
        k = make_ops.counts.get(op, 0)
        case(op, [logits, label], out, attrs=attrs)
        if weighted:
            tensors[f"{op}.{k}.weight"] = weight


def mixed(n, c, smoothing):
    """The targets of mixup: two classes, which may be the same, with shares that add up to 1."""
    logits, label, other, share = leaf(n, c, scale=3.0), torch.randint(c, (n,)), torch.randint(c, (n,)), torch.rand(n)
    share[0] = 1.0
    target = F.one_hot(label, c).double() * share.double()[:, None] + F.one_hot(other, c).double() * (1 - share.double())[:, None]
    loss = F.cross_entropy(logits.double(), target, label_smoothing=smoothing)
    loss.backward()
    for op, out in (("cross_entropy", loss.float()), ("cross_entropy_grad", logits.grad)):
        case(op, [logits, label, other, share], out, attrs=(smoothing, -100, 1))


def metrics(n, c):
    logits, label = torch.randn(n, c), torch.randint(c, (n,))
    order = logits.argsort(1, descending=True)
    for k in (1, 5):
        counts = torch.tensor([float((order[:, :k] == label[:, None]).sum()), float(n)])
        case("top_k", [logits, label], counts, attrs=(-100, 1 | k << 32))
    matrix = torch.zeros(c, c)
    for y, p in zip(label.tolist(), logits.argmax(1).tolist()):
        matrix[y, p] += 1
    case("confusion", [logits, label], matrix, attrs=(-100, 1))
    p, t = torch.randn(n, c) * 3, torch.randn(n, c) * 2 + 5
    y, d = t.double(), p.double() - t.double()
    sums = torch.stack([torch.ones_like(d).sum(0), d.abs().sum(0), (d * d).sum(0), y.sum(0), (y * y).sum(0)], 1)
    case("regression", [p, t], torch.stack([sums.float(), (sums - sums.float().double()).float()]))
    hit, t = torch.randn(n, c), torch.randint(2, (n, c)).float()
    counts = [float(((t > 0.5) == a).logical_and((hit > 0) == b).sum()) for a in (False, True) for b in (False, True)]
    case("binary_confusion", [hit, t], torch.tensor(counts).view(2, 2))


def leaky_relu(slope, *shape):
    x = leaf(*shape, scale=2.0)
    y = F.leaky_relu(x, slope)
    dy = torch.randn_like(y)
    y.backward(dy)
    case("leaky_relu", [x], y, attrs=(slope,))
    case("leaky_relu_grad", [dy, y], x.grad, attrs=(slope,))


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    for shape in ((1, 1), (7, 1), (13, 5), (2, 4, 9)):
        pairs(*shape)
    for n, c in ((5, 3), (17, 10), (4, 37)):
        for weighted in (False, True):
            for ignore in (None, -100, 1, 255):
                for smoothing in (0.0, 0.1):
                    cross_entropy(n, c, weighted, ignore, smoothing)
    for n, c in ((1, 3), (64, 10), (33, 37)):
        metrics(n, c)
    leaky_relu(0.01, 3, 17)
    leaky_relu(0.1, 2, 3, 5, 4)
    for n, c in ((5, 3), (17, 10), (4, 300)):
        for smoothing in (0.0, 0.1):
            mixed(n, c, smoothing)
    make_ops.write(OUT)


if __name__ == "__main__":
    main()
