#!/usr/bin/env python3
"""Writes vectors/transforms.safetensors: what PyTorch makes of images by the tensor operations behind torchvision's Resize,
CenterCrop, ToTensor and Normalize, for tests/parity/test_transforms.c.

    python3 tests/parity/make/make_transforms.py        (Debian: apt-get install python3-torch)

Case K holds K.in, u8 or f32 (C, H, W), K.how, i64 (5): height and width of resize (0: none; width 0: shorter side), antialias,
height and width of center_crop (0: none), K.mean and K.std, f32 (C) or empty, and K.out, f32 (C, H', W')."""
import json
import pathlib
import struct

import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).resolve().parents[1] / "vectors/transforms.safetensors"
DTYPES = {torch.float32: "F32", torch.uint8: "U8", torch.int64: "I64"}
tensors = {}


def resized(shape, how):
    """torchvision's _compute_resized_output_size."""
    h, w = shape
    if how[1]:
        return how[0], how[1]
    short, long = (w, h) if w <= h else (h, w)
    new_long = int(how[0] * long / short)
    return (new_long, how[0]) if w <= h else (how[0], new_long)


def case(shape, resize=(0, 0), antialias=0, crop=(0, 0), mean=(), std=(), dtype=torch.uint8):
    k = len(tensors) // 5
    image = torch.randint(0, 256, shape, dtype=torch.uint8)
    if dtype == torch.float32:
        image = torch.randn(shape)
    x = image.to(torch.float32).div(255) if dtype == torch.uint8 else image
    if resize[0]:
        x = F.interpolate(x[None], size=resized(shape[1:], resize), mode="bilinear", align_corners=False,
                          antialias=bool(antialias))[0]
    if crop[0]:  # torchvision's center_crop
        top, left = int(round((x.shape[1] - crop[0]) / 2.0)), int(round((x.shape[2] - crop[1]) / 2.0))
        x = x[:, top:top + crop[0], left:left + crop[1]]
    mean, std = torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
    if len(mean):
        x = x.clone().sub_(mean[:, None, None])
    if len(std):
        x = x.clone().div_(std[:, None, None])
    tensors.update({f"{k}.in": image, f"{k}.how": torch.tensor([*resize, antialias, *crop]), f"{k}.mean": mean,
                    f"{k}.std": std, f"{k}.out": x.contiguous()})


def cases():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    case((3, 5, 7))
    case((3, 5, 7), mean=mean, std=std)
    case((1, 16, 16), mean=(0.2860,), std=(0.3530,))
    case((1, 4, 3), mean=(0.5,))
    for crop in ((1, 1), (4, 5), (5, 4), (6, 7), (3, 2)):  # odd and even remainders
        case((2, 7, 8), crop=crop)
    for antialias in (0, 1):
        for shape, size in (((3, 12, 9), (7, 5)), ((1, 5, 6), (11, 17)), ((2, 8, 8), (8, 8)), ((1, 9, 4), (9, 8)),
                            ((1, 1, 1), (3, 2)), ((1, 7, 5), (1, 1)), ((1, 2, 31), (3, 4)), ((1, 33, 2), (2, 33)),
                            ((3, 96, 96), (32, 40)), ((1, 10, 15), (4, 0)), ((1, 15, 11), (6, 0)), ((2, 6, 6), (13, 0)),
                            ((1, 64, 48), (50, 0))):
            case(shape, resize=size, antialias=antialias)
        case((3, 20, 14), resize=(9, 0), antialias=antialias, crop=(8, 6), mean=mean, std=std)
        case((3, 10, 12), resize=(15, 18), antialias=antialias, mean=mean, std=std, dtype=torch.float32)
    case((2, 6, 5), crop=(3, 3), mean=(1.0, -2.0), std=(0.5, 4.0), dtype=torch.float32)


def main():
    torch.manual_seed(4)
    torch.set_num_threads(1)
    cases()
    header, data = {"__metadata__": {"torch": torch.__version__}}, b""
    for name, t in tensors.items():
        raw = t.contiguous().numpy().tobytes()
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    OUT.write_bytes(struct.pack("<Q", len(text)) + text + data)
    print(f"{len(tensors) // 5} cases, {len(data)} bytes")


if __name__ == "__main__":
    main()
