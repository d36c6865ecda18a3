#!/usr/bin/env python3
"""Writes vectors/llama_ops.safetensors: the ops of LLaMA-class models on random inputs, their outputs and gradients as PyTorch
and transformers give them in float32; laid out as make_ops.py says, for test_ops.c. Needs torch and transformers 5:

    python3 tests/parity/make/make_llama.py
"""
import pathlib

import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import make_ops
from make_ops import case, leaf, unary

VECTORS = pathlib.Path(__file__).resolve().parents[1] / "vectors"

# kind as in DDP_ROPE_*, its parameters in transformers and in ddp_attrs (see <ddpengine/program.h>)
ROPES = (
    (0, {"rope_type": "default"}),
    (1, {"rope_type": "linear", "factor": 4.0}),
    (2, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 256}),
    (3, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}),
    (3, {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0,
         "attention_factor": 1.25, "truncate": False}),
)


def rms_norm(shape, eps):
    x, w = leaf(*shape, scale=2.0), leaf(shape[-1])
    y = F.rms_norm(x, (shape[-1],), w, eps)
    dy = torch.randn_like(y)
    y.backward(dy)
    invstd = ((x.detach().double() ** 2).mean(-1) + eps).rsqrt().float()
    case("rms_norm", [x, w], y, invstd, attrs=(eps,))
    case("rms_norm_grad", [dy, x, w, invstd], x.grad, w.grad, attrs=(eps,))


def rope(kind, parameters, n, t, heads, size, theta, positions):
    config = LlamaConfig(hidden_size=heads * size, num_attention_heads=heads, head_dim=size, max_position_embeddings=2048,
                         rope_parameters={"rope_theta": theta, **parameters})
    x = leaf(n, t, heads * size)
    split = x.view(n, t, heads, size).transpose(1, 2)
    at = torch.arange(t).expand(n, t) if positions is None else positions
    cos, sin = LlamaRotaryEmbedding(config)(x, at)
    y = apply_rotary_pos_emb(split, split, cos, sin)[0].transpose(1, 2).reshape(n, t, heads * size)
    dy = torch.randn_like(y)
    y.backward(dy)
    own = lambda name: float(parameters.get(name, 0.0))
    attrs = (size, kind | (0 if parameters.get("truncate", True) else 1) << 32, theta, own("factor"), own("low_freq_factor"),
             own("high_freq_factor"), own("beta_fast"), own("beta_slow"), own("attention_factor"),
             int(own("original_max_position_embeddings")))
    more = [] if positions is None else [positions]
    case("rope", [x, *more], y, attrs=attrs)
    case("rope_grad", [dy, *more], x.grad, attrs=attrs)


def ops():
    for shape in ((1, 1), (5, 17), (3, 4, 33), (2, 3, 64)):
        rms_norm(shape, 0.5 if shape == (1, 1) else 1e-6)  # of one element all else is rounding
        unary("silu", F.silu, shape, False)
        a, b = torch.randn(*shape), torch.randn(*shape)
        case("mul", [a, b], a * b)
    for kind, parameters in ROPES:
        rope(kind, parameters, 2, 7, 3, 32, 10000.0, None)
        rope(kind, parameters, 1, 9, 1, 64, 500000.0, torch.randint(2048, (1, 9)))
        rope(kind, parameters, 2, 5, 2, 6, 1e6, torch.randint(100000, (2, 5)))


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    ops()
    make_ops.write(VECTORS / "llama_ops.safetensors")


if __name__ == "__main__":
    main()
