#!/usr/bin/env python3
"""The PyTorch side of every comparison: an MLP on Fashion-MNIST under DistributedDataParallel over gloo, as its tutorials
write it. Prints one JSON object: losses (mean over the global batch), step times, time to the first step, accuracy.

    torch_mlp.py --world 2 --steps 200 --lr 0.01 --momentum 0 [--hidden 512,512] [--epochs 1] [--eval]

Needs torch alone (Debian: python3-torch). Each rank is a process of its own, one thread each unless --threads says more."""
import argparse
import gzip
import hashlib
import json
import os
import struct
import sys
import time

import torch_ranks

BEGAN = float(os.environ.get("TORCH_MLP_BEGAN", "0")) or time.time()
FOLDER = "/usr/share/datasets/fashion-mnist"


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--world", type=int, default=1)
    p.add_argument("--rank", type=int, default=-1)
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--momentum", type=float, default=0.0)
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--optimizer", default="sgd")
    p.add_argument("--hidden", default="512,512")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--mean", type=float, default=0.286)
    p.add_argument("--std", type=float, default=0.353)
    p.add_argument("--eval", action="store_true")
    return p.parse_args()


def read_idx(path):
    import torch
    with gzip.open(path) as f:
        raw = bytearray(f.read())
    rank = raw[3]
    dims = struct.unpack(f">{rank}I", raw[4:4 + 4 * rank])
    return torch.frombuffer(raw, dtype=torch.uint8, offset=4 + 4 * rank).reshape(dims)


def load(split, args):
    """torchvision's ToTensor and Normalize on the whole set."""
    images = read_idx(f"{FOLDER}/{split}-images-idx3-ubyte.gz").float().div_(255).unsqueeze(1)
    return images.sub_(args.mean).div_(args.std), read_idx(f"{FOLDER}/{split}-labels-idx1-ubyte.gz").long()


def build(args):
    import torch
    torch.manual_seed(args.seed)
    widths = [784, *map(int, args.hidden.split(",")), 10]
    layers = [torch.nn.Flatten()]
    for i in range(len(widths) - 1):
        layers.append(torch.nn.Linear(widths[i], widths[i + 1]))
        if i + 2 < len(widths):
            layers.append(torch.nn.ReLU())
    return torch.nn.Sequential(*layers)


def digest(model):
    h = hashlib.sha256()
    for t in model.state_dict().values():
        h.update(t.contiguous().numpy().tobytes())
    return h.hexdigest()


def worker(args):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(args.threads)
    model = build(args)
    out = {"initial_sha256": digest(model), "losses": [], "step_ms": [], "torch": torch.__version__}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{args.port}", rank=args.rank, world_size=args.world)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    images, labels = load("train", args)
    data = torch.utils.data.TensorDataset(images, labels)
    sampler = torch.utils.data.distributed.DistributedSampler(data, args.world, args.rank, shuffle=True, seed=args.seed)
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(ddp.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    else:
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        indices = torch.tensor(list(sampler))
        for at in range(0, len(indices), args.batch):
            if args.steps and len(losses) == args.steps:
                break
            began = time.perf_counter()
            pick = indices[at:at + args.batch]  # batches by indexing: faster than a DataLoader with workers for data in memory
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(ddp(images[pick]), labels[pick])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            out["step_ms"].append((time.perf_counter() - began) * 1e3)
            if len(losses) == 1:
                out["first_step_s"] = time.time() - BEGAN
    total = torch.stack(losses)
    dist.all_reduce(total)
    out["losses"] = (total / args.world).double().tolist()
    if args.eval and args.rank == 0:
        with torch.no_grad():
            images, labels = load("t10k", args)
            out["accuracy"] = (model(images).argmax(1) == labels).double().mean().item()
    out["final_sha256"] = digest(model)
    dist.barrier()
    if args.rank == 0:
        out["median_step_ms"] = sorted(out["step_ms"])[len(out["step_ms"]) // 2]
        print(json.dumps(out))
    dist.destroy_process_group()


def main():
    args = arguments()
    if args.rank >= 0:
        worker(args)
        return 0
    return torch_ranks.start(__file__, args.world, {"TORCH_MLP_BEGAN": str(BEGAN)})


if __name__ == "__main__":
    sys.exit(main())
