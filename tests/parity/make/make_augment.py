#!/usr/bin/env python3
"""Writes vectors/augment.safetensors: what torchvision's adjust_brightness, adjust_contrast, adjust_saturation and adjust_hue make of
float images, for tests/parity/test_augment.c.

    python3 tests/parity/make/make_augment.py        (needs torchvision)

Case mixK is a batch by v2.MixUp or v2.CutMix: in and out, f32 (N, C, H, W); label, i64 (N); soft, f32 (N, classes); drawn, f32 (3):
what was drawn for lambda, and for CutMix y and x, else -1.

Case K holds K.in and K.out, f32 (3, H, W), K.what, i64 (1): 0 to 3 in the order above, and K.factor, f32 (1)."""
import json
import pathlib
import struct

import torch
import torchvision
import torchvision.transforms.functional as F
from torchvision.transforms import v2

OUT = pathlib.Path(__file__).resolve().parents[1] / "vectors/augment.safetensors"
DTYPES = {torch.float32: "F32", torch.int64: "I64"}
ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
FACTORS = ((0.0, 0.3, 1.0, 1.7), (0.0, 0.25, 1.0, 2.0), (0.0, 0.5, 1.0, 1.9), (-0.5, -0.21, 0.0, 0.13, 0.5))


def images():
    yield torch.rand(3, 11, 9)
    bytes_ = torch.randint(0, 256, (3, 16, 16)).to(torch.float32) / 255
    bytes_[:, 0] = bytes_[:1, 0]  # grey: no hue
    bytes_[1:, 1] = 0  # pure colors
    bytes_[:2, 2] = 1
    bytes_[:, 3] = 0
    bytes_[:, 4] = 1
    yield bytes_


def mixed(cut, drawn, shape, classes=4):
    """What the transform draws is given to it."""
    transform = (v2.CutMix if cut else v2.MixUp)(num_classes=classes)
    image, label = torch.rand(*shape), torch.randint(classes, shape[:1])
    places, kept = [drawn[2], drawn[1]], torch.randint  # x is drawn first
    transform._dist = type("Given", (), {"sample": staticmethod(lambda _: torch.tensor(drawn[0]))})
    torch.randint = lambda *_, **__: torch.tensor([places.pop(0)])
    try:
        out, soft = transform(image, label)
    finally:
        torch.randint = kept
    return {"in": image, "label": label, "out": out.contiguous(), "soft": soft,
            "drawn": torch.tensor(drawn if cut else (drawn[0], -1, -1), dtype=torch.float32)}


def mixes():
    yield False, (0.3, 0, 0), (5, 3, 8, 9)
    yield False, (1.0, 0, 0), (4, 1, 5, 5)
    yield False, (0.7231, 0, 0), (1, 3, 4, 4)
    for lam, y, x in ((0.3, 4, 4), (0.75, 0, 8), (0.0, 7, 0), (1.0, 3, 3), (0.5071, 7, 8)):
        yield True, (lam, y, x), (4, 3, 8, 9)


def main():
    torch.manual_seed(5)
    tensors = {}
    for image in images():
        for what, factors in enumerate(FACTORS):
            for factor in factors:
                k = len(tensors) // 4
                value = torch.tensor([factor], dtype=torch.float32)
                tensors.update({f"{k}.in": image, f"{k}.what": torch.tensor([what]), f"{k}.factor": value,
                                f"{k}.out": ADJUST[what](image, float(value[0])).contiguous()})
    count = len(tensors) // 4
    for k, (cut, drawn, shape) in enumerate(mixes()):
        tensors.update({f"mix{k}.{name}": t for name, t in mixed(cut, drawn, shape).items()})
    header, data = {"__metadata__": {"torch": torch.__version__, "torchvision": torchvision.__version__}}, b""
    for name, t in tensors.items():
        raw = t.contiguous().numpy().tobytes()
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    OUT.write_bytes(struct.pack("<Q", len(text)) + text + data)
    print(f"{count} cases and {k + 1} of mixing, {len(data)} bytes")


if __name__ == "__main__":
    main()
