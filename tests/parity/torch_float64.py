#!/usr/bin/env python3
"""An MLP with gelu on Fashion-MNIST under AdamW, in float64 and one process that plays all ranks: the gradient of a step is the mean
of theirs, the samples are DistributedSampler's. gelu, for a ReLU's kink amplifies rounding: see docs/design/testing.md. Prints the
losses of all steps as JSON.

    torch_float64.py --world 3 --steps 60 --batch 16 --hidden 64,64 --lr 0.001 --eps 0.01 --weight-decay 0.01 --seed 0"""
import json
import sys

import torch
import torch_mlp


def arguments():
    eps, argv = None, sys.argv[1:]
    if "--eps" in argv:
        at = argv.index("--eps")
        eps = float(argv[at + 1])
        del argv[at:at + 2]
    sys.argv[1:] = argv
    return torch_mlp.arguments(), eps


def main():
    args, eps = arguments()
    images, labels = torch_mlp.load("train", args)
    model = torch_mlp.build(args).double()
    for i, layer in enumerate(model):
        if isinstance(layer, torch.nn.ReLU):
            model[i] = torch.nn.GELU()
    rule = torch.optim.AdamW(model.parameters(), lr=args.lr, eps=eps, weight_decay=args.weight_decay)
    data = torch.utils.data.TensorDataset(images, labels)
    shares = [torch.tensor(list(torch.utils.data.distributed.DistributedSampler(data, args.world, rank, shuffle=True, seed=args.seed)))
              for rank in range(args.world)]
    losses = []
    for step in range(args.steps):
        rule.zero_grad()
        total = 0.0
        for share in shares:
            pick = share[step * args.batch:(step + 1) * args.batch]
            loss = torch.nn.functional.cross_entropy(model(images[pick].double()), labels[pick]) / args.world
            loss.backward()
            total += loss.item()
        rule.step()
        losses.append(total)
    print(json.dumps(losses))
    return 0


if __name__ == "__main__":
    sys.exit(main())
