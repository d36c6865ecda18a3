#!/usr/bin/env python3
"""PyTorch's side of model_steps.py: one model of tests/parity/torch_models.py under DistributedDataParallel over gloo, a process a
rank, one thread each. Prints one JSON object: the median step in ms, the largest PSS of a rank in bytes, the loss at the end.

    torch_steps.py --model resnet --world 2 --steps 20 [--compile] [--bf16] [--channels-last] [--dynamic] [--data FILE]

Made as fast as PyTorch allows without other libraries: data in memory, gradients as views of the buckets, a static graph (--dynamic:
none, which newer versions are faster with on a slow network), fused optimisers where this version has them on CPUs,
scaled_dot_product_attention, zero_grad to None."""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parity"))
import torch_ranks  # noqa: E402

MODELS = ("mlp512", "mlp4096", "lenet", "resnet", "gpt", "gpt2")
BATCH = {"mlp512": 64, "mlp4096": 64, "lenet": 64, "resnet": 16, "gpt": 8, "gpt2": 1}


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=MODELS, required=True)
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--rank", type=int, default=-1)
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--address", default="127.0.0.1", help="rank 0's")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--momentum", type=float, default=0.9, help="of SGD")
    for flag in ("--compile", "--bf16", "--channels-last", "--dynamic"):
        p.add_argument(flag, action="store_true")
    p.add_argument("--data", help="bytes to read tokens from")
    return p.parse_args()


def build(args):
    import torch
    import torch_models
    from torch import nn
    torch.manual_seed(0)
    if args.model.startswith("mlp"):
        width = int(args.model[3:])
        return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    if args.model == "lenet":
        return torch_models.build("lenet", channels=1, variant="two_conv")
    if args.model == "resnet":
        return torch_models.build("resnet", classes=10)
    if hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        def forward(self, x):
            n, t, e = x.shape
            q, k, v = (y.view(n, t, self.heads, e // self.heads).transpose(1, 2) for y in self.c_attn(x).split(e, 2))
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(n, t, e))
        torch_models.Attention.forward = forward
    if args.model == "gpt":
        return torch_models.build("gpt2", preset="bytes")
    return torch_models.build("gpt2", preset="gpt2", context=1024, padded_vocabulary=50304)


def batches(args):
    """Endless pairs of input and target, made before the first step."""
    import torch
    n = BATCH[args.model]
    g = torch.Generator().manual_seed(args.rank)
    if args.model.startswith("gpt"):
        raw = pathlib.Path(args.data).read_bytes() if args.data else bytes(range(256)) * 1024
        rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        at = [int(i) for i in torch.randint(0, len(rows) - 257, (8 * n,), generator=g)]
        rows = torch.stack([rows[i:i + 257].long() for i in at]).reshape(8, n, 257)
        made = [(r[:, :-1].contiguous(), r[:, 1:].contiguous()) for r in rows]
    else:
        shape = {"lenet": (1, 28, 28), "resnet": (3, 96, 96)}.get(args.model, (784,))
        made = [(torch.randn(n, *shape, generator=g), torch.randint(0, 10, (n,), generator=g)) for _ in range(8)]
        if args.channels_last:
            made = [(x.to(memory_format=torch.channels_last), y) for x, y in made]
    while True:
        yield from made


def optimizer(args, model):
    import torch
    kind, options = torch.optim.SGD, {"lr": 0.01, "momentum": args.momentum}
    if args.model.startswith("gpt"):
        kind, options = torch.optim.AdamW, {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    try:
        return kind(model.parameters(), fused=True, **options)
    except (TypeError, RuntimeError):
        return kind(model.parameters(), **options)


def pss():
    with open("/proc/self/smaps_rollup") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("Pss:"))


def worker(args):
    import torch
    import torch.distributed as dist
    import torch_models
    os.environ.update(MASTER_ADDR=args.address, MASTER_PORT=str(args.port), RANK=str(args.rank), WORLD_SIZE=str(args.world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = build(args)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=not args.dynamic, broadcast_buffers=False)
    opt = optimizer(args, model)

    def forward(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
            logits = net(x)
            return torch_models.loss_of(logits, y)
    step = torch.compile(forward) if args.compile else forward
    data, times, most, loss = batches(args), [], 0, 0.0
    for i in range(args.warmup + args.steps):
        x, y = next(data)
        began = time.perf_counter()
        opt.zero_grad(set_to_none=True)
        out = step(x, y)
        out.backward()
        opt.step()
        loss = out.item()
        if i >= args.warmup:
            times.append((time.perf_counter() - began) * 1e3)
        if i % 4 == 3:
            most = max(most, pss())
    if args.rank == 0:
        print(json.dumps({"median_step_ms": statistics.median(times), "peak_pss_bytes": most, "loss": loss, "torch": torch.__version__}))
    dist.barrier()
    dist.destroy_process_group()


def main():
    args = arguments()
    if args.rank >= 0:
        worker(args)
        return 0
    return torch_ranks.start(__file__, args.world)


if __name__ == "__main__":
    sys.exit(main())
