#!/usr/bin/env python3
"""Writes vectors/ops.safetensors: every op of the graph on random inputs, its output and gradients as PyTorch gives them in
float32. test_ops.c runs the same inputs through device cpu and through the scalar references. Needs torch and nothing else:

    /usr/bin/python3 tests/parity/make/make_ops.py

Case K of op OP has the tensors "OP.K.in0", "OP.K.in1", .. and "OP.K.out", "OP.K.out1", ..: in the order of
<ddpengine/program.h>. "OP.K.attrs" is the first words of ddp_attrs; "OP.K.after3" what input 3, a buffer, is afterwards."""
import json
import pathlib
import struct

import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).resolve().parents[1] / "vectors/ops.safetensors"
NAMES = {torch.float32: "F32", torch.int64: "I64"}
tensors, counts = {}, {}


def case(op, inputs, *out, attrs=(), after={}):
    k = counts.get(op, 0)
    counts[op] = k + 1
    for i, t in enumerate(inputs):
        tensors[f"{op}.{k}.in{i}"] = t
    for i, t in enumerate(out):
        tensors[f"{op}.{k}.out{i or ''}"] = t
    if attrs:  # integers as they are, a float as the bits of its double
        tensors[f"{op}.{k}.attrs"] = torch.tensor([struct.unpack("<q", struct.pack("<d", a))[0] if isinstance(a, float) else a
                                                   for a in attrs])
    for i, t in after.items():
        tensors[f"{op}.{k}.after{i}"] = t


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


def conv(x_shape, out, kernel, stride, padding, groups, bias):
    x, w = leaf(*x_shape), leaf(out, x_shape[1] // groups, *kernel, scale=0.3)
    b = leaf(out) if bias else None
    y = F.conv2d(x, w, b, stride, padding, 1, groups)
    dy = torch.randn_like(y)
    y.backward(dy)
    attrs = (*stride, *padding, groups)
    case("conv2d", [x, w, b] if bias else [x, w], y, attrs=attrs)
    case("conv2d_grad_input", [dy, w], x.grad, attrs=attrs)
    case("conv2d_grad_weight", [dy, x], w.grad, attrs=attrs)
    if bias:
        case("conv2d_grad_bias", [dy], b.grad, attrs=attrs)


def pool(name, f, shape, attrs, reads_input):
    x = leaf(*shape)
    with torch.no_grad():  # some values are equal
        x.mul_(4).round_().div_(4)
    y = f(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    case(name, [x], y, attrs=attrs)
    case(f"{name}_grad", [dy, x] if reads_input else [dy], x.grad, attrs=attrs)


def pools(shape, kernel, stride, padding):
    attrs = (*kernel, *stride, *padding)
    pool("max_pool2d", lambda x: F.max_pool2d(x, kernel, stride, padding), shape, attrs, True)
    pool("avg_pool2d", lambda x: F.avg_pool2d(x, kernel, stride, padding), shape, attrs, False)


def batch_norm(*shape):
    c, eps, momentum = shape[1], 1e-5, 0.1
    x, w, b = leaf(*shape, scale=2.0), leaf(c), leaf(c)
    with torch.no_grad():
        x.add_(torch.randn(c, 1, 1) * 3)
    mean, var = torch.randn(c), torch.rand(c) + 0.5
    before = mean.clone(), var.clone()
    y = F.batch_norm(x, mean, var, w, b, True, momentum, eps)
    dy = torch.randn_like(y)
    y.backward(dy)
    wide = x.detach().double().transpose(0, 1).reshape(c, -1)
    saved = wide.mean(1).float(), ((wide.var(1, unbiased=False) + eps) ** -0.5).float()
    case("batch_norm", [x, w, b, *before], y, *saved, attrs=(eps, momentum, 1), after={3: mean, 4: var})
    case("batch_norm_grad", [dy, x, w, *saved], x.grad, w.grad, b.grad, attrs=(eps, momentum, 1))
    case("batch_norm_eval", [x, w, b, mean, var], F.batch_norm(x, mean, var, w, b, False, momentum, eps),
         attrs=(eps, momentum, 0), after={3: mean, 4: var})


def images():
    for bias in (False, True):
        conv((1, 1, 4, 5), 2, (3, 3), (1, 1), (0, 0), 1, bias)
        conv((2, 3, 11, 9), 5, (3, 2), (2, 1), (1, 0), 1, bias)
        conv((2, 16, 8, 8), 32, (3, 3), (1, 1), (1, 1), 1, bias)
        conv((2, 6, 7, 7), 9, (3, 3), (2, 2), (1, 1), 3, bias)
        conv((3, 18, 5, 5), 16, (1, 1), (2, 2), (0, 0), 1, bias)
    conv((1, 3, 23, 21), 16, (7, 7), (2, 2), (3, 3), 1, False)
    pools((1, 1, 2, 2), (2, 2), (2, 2), (0, 0))
    pools((2, 5, 8, 6), (2, 2), (2, 2), (0, 0))
    pools((2, 17, 9, 7), (3, 3), (2, 2), (1, 1))
    pools((1, 3, 7, 8), (3, 2), (1, 3), (1, 0))
    for shape, out in (((2, 5, 4, 4), (1, 1)), ((1, 17, 7, 5), (3, 2)), ((2, 3, 3, 2), (5, 4))):
        pool("adaptive_avg_pool2d", lambda x, out=out: F.adaptive_avg_pool2d(x, out), shape, out, False)
    for shape in ((3, 2, 2, 2), (1, 3, 4, 5), (4, 18, 6, 6)):
        batch_norm(*shape)


def write(path):
    header, body = {"__metadata__": {"torch": torch.__version__}}, b""
    for name, t in tensors.items():
        raw = t.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(len(tensors), "tensors,", path.stat().st_size, "bytes")


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
    images()
    write(OUT)


if __name__ == "__main__":
    main()
