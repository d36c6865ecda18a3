#!/usr/bin/env python3
"""Trains a model of torch_models.py as the engine does, in one process: the same first values, order of samples, batches and
update rule. Prints one JSON object: the loss of every step, and with --from the mean loss of what evaluation has.

    torch_train.py lenet '{"variant": "two_conv"}' --data fashion --steps 100 --batch 32 --lr 0.01
    torch_train.py gpt2 '{"preset": "bytes"}' --data kjv.txt --context 256 --to 0.9 --from 0.9 --optimizer adamw ...

Needs torch alone (Debian: python3-torch). oneDNN inside PyTorch is off: the engine's device uses oneDNN too, and the comparison
is to be with something else."""
import argparse
import json
import math
import pathlib
import sys

import torch
import torch_mlp
import torch_models


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("plugin")
    p.add_argument("options", type=json.loads)
    p.add_argument("--data", required=True, help="fashion, or a text whose bytes are the tokens")
    p.add_argument("--context", type=int, default=256)
    p.add_argument("--to", type=float, default=1.0)
    p.add_argument("--from", type=float, dest="eval_from", help="evaluates the text from there on, or the test images")
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--optimizer", default="sgd")
    p.add_argument("--lr", type=float, required=True)
    p.add_argument("--momentum", type=float, default=0.0)
    p.add_argument("--betas", type=float, nargs=2, default=(0.9, 0.999))
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--mean", type=float, default=0.286)
    p.add_argument("--std", type=float, default=0.353)
    return p.parse_args()


def windows(text, begin, end, context):
    """plugins/dataset/tokens: sample i is tokens i T .. i T + T - 1, its target the same one further; the rest is left out."""
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()[begin:end]
    count = (len(tokens) - 1) // context
    return tokens[:count * context].view(count, context), tokens[1:count * context + 1].view(count, context)


def load(args):
    """(input, target) of training, and of evaluation or None."""
    if args.data == "fashion":
        return torch_mlp.load("train", args), None if args.eval_from is None else torch_mlp.load("t10k", args)
    text = pathlib.Path(args.data).read_bytes()
    end = len(text) if args.to == 1.0 else math.floor(args.to * len(text))
    train = windows(text, 0, end, args.context)
    if args.eval_from is None:
        return train, None
    return train, windows(text, math.floor(args.eval_from * len(text)), len(text), args.context)


def batches(count, args):
    """Indices of each step: DistributedSampler's permutation of each epoch, whose last batch may be smaller."""
    data = torch.utils.data.TensorDataset(torch.empty(count, 0))
    sampler = torch.utils.data.distributed.DistributedSampler(data, 1, 0, shuffle=True, seed=args.seed)
    step = 0
    for epoch in range(args.steps):
        sampler.set_epoch(epoch)
        indices = torch.tensor(list(sampler))
        for at in range(0, count, args.batch):
            if step == args.steps:
                return
            yield indices[at:at + args.batch]
            step += 1


def update_rule(model, args):
    if args.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    return torch.optim.AdamW(model.parameters(), lr=args.lr, betas=tuple(args.betas), weight_decay=args.weight_decay)


def evaluate(model, data, batch):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, target in zip(data[0].split(batch), data[1].split(batch), strict=True):
            total += torch_models.loss_of(model(x), target).double().item() * len(x)
    return total / len(data[0])


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.backends.mkldnn.set_flags(_enabled=False)
    data, held_out = load(args)
    image = {"channels": data[0].shape[1], "size": data[0].shape[2]} if args.data == "fashion" else {}
    torch.manual_seed(args.seed)
    model = torch_models.build(args.plugin, **image, **args.options)
    out = {"torch": torch.__version__}
    rule, losses = update_rule(model, args), []
    for pick in batches(len(data[0]), args):
        rule.zero_grad(set_to_none=True)
        loss = torch_models.loss_of(model(data[0][pick]), data[1][pick])
        loss.backward()
        rule.step()
        losses.append(loss.detach())
    out["losses"] = torch.stack(losses).double().tolist()
    if held_out is not None:
        out["eval_loss"] = evaluate(model, held_out, args.batch)
    print(json.dumps(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
