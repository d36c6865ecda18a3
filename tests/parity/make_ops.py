#!/usr/bin/env python3
"""Writes vectors/ops.safetensors: every op of the graph on random inputs, its output and gradients as PyTorch gives them in
float32. test_ops.c runs the same inputs through device cpu and through the scalar references. Needs torch and nothing else:

    /usr/bin/python3 tests/parity/make_ops.py

Case K of op OP has the tensors "OP.K.in0", "OP.K.in1", .. and "OP.K.out": the inputs in the order of <ddpengine/program.h>."""
import json
import pathlib
import struct

import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).resolve().parent / "vectors/ops.safetensors"
NAMES = {torch.float32: "F32", torch.int64: "I64"}
tensors, counts = {}, {}


def case(op, inputs, out):
    k = counts.get(op, 0)
    counts[op] = k + 1
    for i, t in enumerate(inputs):
        tensors[f"{op}.{k}.in{i}"] = t
    tensors[f"{op}.{k}.out"] = out


def leaf(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).requires_grad_()


def linear(rows, wide, out, bias):
    x, w = leaf(*rows, wide), leaf(out, wide, scale=0.2)
    b = leaf(out) if bias else None
    y = F.linear(x, w, b)
    dy = torch.randn_like(y)
    y.backward(dy)
    case("linear", [x, w, b] if bias else [x, w], y)
    case("linear_grad_input", [dy, w], x.grad)
    case("linear_grad_weight", [dy, x], w.grad)
    if bias:
        case("linear_grad_bias", [dy], b.grad)


def unary(name, f, shape, saves_output):
    x = leaf(*shape, scale=2.0)
    y = f(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    case(name, [x], y)
    case(f"{name}_grad", [dy, y if saves_output else x], x.grad)


def losses(n, c):
    logits, label = leaf(n, c, scale=3.0), torch.randint(c, (n,))
    loss = F.cross_entropy(logits, label)
    loss.backward()
    case("cross_entropy", [logits, label], loss)
    case("cross_entropy_grad", [logits, label], logits.grad)
    case("accuracy", [logits, label], (logits.argmax(1) == label).float().sum())
    p, t = leaf(n, c), torch.randn(n, c)
    loss = F.mse_loss(p, t)
    loss.backward()
    case("mse", [p, t], loss)
    case("mse_grad", [p, t], p.grad)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    for rows, wide, out, bias in (((1,), 1, 1, True), ((7,), 13, 5, True), ((64,), 100, 10, True), ((33,), 31, 17, False),
                                  ((3, 5), 19, 23, True), ((2, 4, 6), 16, 48, True)):
        linear(rows, wide, out, bias)
    for shape in ((1, 1), (5, 17), (3, 4, 33)):
        unary("relu", F.relu, shape, True)
        unary("gelu", F.gelu, shape, False)
        unary("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), shape, False)
        a, b = torch.randn(*shape), torch.randn(*shape)
        case("add", [a, b], a + b)
    for n, c in ((1, 2), (7, 3), (64, 10), (5, 129)):
        losses(n, c)
    header, body = {"__metadata__": {"torch": torch.__version__}}, b""
    for name, t in tensors.items():
        raw = t.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    OUT.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(len(tensors), "tensors,", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
