#!/usr/bin/env python3
"""The evaluation loss of a GPT-2 of torch_models.py with the weights of a checkpoint, in float64: the mean over all windows, of
which the last batch may have fewer. Prints one JSON object; "batches": the mean of the batches' means, which is another number
where they are not equally large; "padding": the loss where padding columns are classes.

    torch_eval.py model.safetensors '{"layers": 2, ..}' --data text --context 64 --from 0.9 --batch 8"""
import argparse
import json
import math
import pathlib
import struct
import sys

import torch
import torch_models
import torch_train


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("weights")
    p.add_argument("options", type=json.loads)
    p.add_argument("--data", required=True)
    p.add_argument("--context", type=int, required=True)
    p.add_argument("--from", type=float, dest="begin", required=True)
    p.add_argument("--batch", type=int, required=True)
    return p.parse_args()


def state_of(path):
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    data = bytearray(raw[8 + length:])
    return {name: torch.frombuffer(data, dtype=torch.float32, count=math.prod(t["shape"]), offset=t["data_offsets"][0])
            .reshape(t["shape"]) for name, t in header.items()}


def main():
    args = arguments()
    text = pathlib.Path(args.data).read_bytes()
    model = torch_models.build("gpt2", **args.options).eval()
    model.load_state_dict(state_of(args.weights))
    model.double()
    tokens, target = torch_train.windows(text, math.floor(args.begin * len(text)), len(text), args.context)
    classes, means, sizes, padded = args.options["vocabulary"], [], [], []
    with torch.no_grad():
        for x, y in zip(tokens.split(args.batch), target.split(args.batch), strict=True):
            logits = model(x)
            means.append(torch_models.loss_of(logits[..., :classes], y).item())
            padded.append(torch_models.loss_of(logits, y).item())
            sizes.append(len(x))
    print(json.dumps({"samples": len(tokens), "batches": sum(means) / len(means),
                      "loss": sum(m * n for m, n in zip(means, sizes, strict=True)) / len(tokens),
                      "padding": sum(m * n for m, n in zip(padded, sizes, strict=True)) / len(tokens)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
