#!/usr/bin/env python3
"""Writes vectors/attention.safetensors: attention over q, k and v apart, its output and gradients as PyTorch's
scaled_dot_product_attention gives them in float32: fewer heads of k and v (enable_gqa), segments (a mask that is causal within
blocks of a sample). test_ops.c runs the same inputs through device cpu and through the scalar references. Needs torch:

    /usr/bin/python3 tests/parity/make/make_attention.py

The names of the tensors are those of make_ops.py."""
import pathlib

import make_ops
import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).resolve().parents[1] / "vectors/attention.safetensors"


def split(x, heads):
    """(N, T, heads D) -> (N, heads, T, D)"""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def attention(n, t, heads, kv_heads, size, causal, lengths=None):
    """lengths: of the packed samples of a row; what is left is padding, segment 0."""
    q, k, v = make_ops.leaf(n, t, heads * size), make_ops.leaf(n, t, kv_heads * size), make_ops.leaf(n, t, kv_heads * size)
    sees = torch.ones(t, t, dtype=torch.bool)
    if causal:
        sees = sees.tril()
    segment = None
    if lengths is not None:
        segment = torch.zeros(t, dtype=torch.int64)
        at = 0
        for i, length in enumerate(lengths):
            segment[at:at + length] = i + 1
            at += length
        sees = sees & (segment[:, None] == segment[None, :])
        segment = segment.expand(n, t).contiguous()
    scale = size ** -0.5
    y = F.scaled_dot_product_attention(split(q, heads), split(k, kv_heads), split(v, kv_heads), attn_mask=sees, scale=scale,
                                       enable_gqa=True).transpose(1, 2).flatten(2)
    dy = torch.randn_like(y)
    y.backward(dy)
    wide = split(k.detach().double(), kv_heads).repeat_interleave(heads // kv_heads, 1)
    scores = split(q.detach().double(), heads) @ wide.transpose(2, 3) * scale
    lse = scores.masked_fill(~sees, -torch.inf).logsumexp(3).float()
    # double scale, dropout; two integers of 32 bits each
    attrs = (scale, 0.0, heads | int(causal) << 32, kv_heads << 32)
    more = [] if segment is None else [segment]
    make_ops.case("attention_apart", [q, k, v, *more], y, lse, attrs=attrs)
    make_ops.case("attention_apart_grad", [dy, q, k, v, y, lse, *more], q.grad, k.grad, v.grad, attrs=attrs)


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    attention(1, 2, 1, 1, 3, True)
    attention(2, 5, 6, 2, 7, True)
    attention(1, 35, 2, 1, 64, True, (5, 20, 1, 7))
    attention(1, 9, 2, 1, 128, True)
    attention(1, 13, 4, 2, 80, True, (6, 7))
    attention(1, 35, 3, 1, 8, False, (33, 2))
    attention(1, 70, 3, 3, 16, True, (31, 1, 34))
    make_ops.write(OUT)


if __name__ == "__main__":
    main()
