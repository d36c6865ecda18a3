#!/usr/bin/env python3
"""PyTorch's side of pipeline.py: transformers' llama with an output layer of its own, one thread a rank; on one rank, under
DistributedDataParallel over gloo, or as two stages of torch.distributed.pipelining (1F1B). Prints one JSON object: the median step in
ms, and the largest PSS of this rank in bytes.

    torch_llama.py --way one|ddp|pipeline [--rank 0 --address 10.77.0.1 --port 29500] --layers 30 ..."""
import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import time

import torch
import torch.distributed as dist


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--way", choices=("one", "ddp", "pipeline"), required=True)
    p.add_argument("--rank", type=int, default=0)
    p.add_argument("--address", default="127.0.0.1")
    p.add_argument("--port", type=int, default=29500)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--micros", type=int, default=8)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--context", type=int, default=256)
    for name in ("vocabulary", "width", "intermediate", "layers", "heads", "kv_heads"):
        p.add_argument(f"--{name}", type=int, required=True)
    p.add_argument("--timeout", type=int, default=300, help="seconds of a collective")
    return p.parse_args()


def model_of(args):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=args.vocabulary, hidden_size=args.width, intermediate_size=args.intermediate, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, max_position_embeddings=args.context, tie_word_embeddings=False,
        use_cache=False, attn_implementation="sdpa"))


class Stage(torch.nn.Module):
    """Half of it: the embedding and the first layers; the others, the norm and the head."""

    def __init__(self, whole, first):
        super().__init__()
        inner, half = whole.model, len(whole.model.layers) // 2 + 2  # the head is worth some layers
        self.rotary = inner.rotary_emb
        self.embed = inner.embed_tokens if first else None
        self.layers = inner.layers[:half] if first else inner.layers[half:]
        self.norm, self.head = (None, None) if first else (inner.norm, whole.lm_head)

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        positions = torch.arange(x.shape[1])[None]
        rotary = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=rotary)
            x = x[0] if isinstance(x, tuple) else x
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, target):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def pss():
    return int(re.search(r"^Pss: +(\d+)", pathlib.Path("/proc/self/smaps_rollup").read_text(), re.M)[1]) * 1024


def stepper(args, model, optimizer):
    """One update: the micro-batches, then AdamW."""
    tokens = torch.randint(0, args.vocabulary, (args.micros * args.batch, args.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if args.way == "pipeline":
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        schedule = Schedule1F1B(PipelineStage(model, args.rank, 2, torch.device("cpu")), args.micros, loss_fn=loss_of)

        def run():
            if args.rank == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=targets)
    else:
        def run():
            for m in range(args.micros):
                rows = slice(m * args.batch, (m + 1) * args.batch)
                quiet = args.way == "ddp" and m + 1 < args.micros
                with model.no_sync() if quiet else torch.enable_grad():
                    (loss_of(model(inputs[rows]).logits, targets[rows]) / args.micros).backward()

    def step():
        run()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def main():
    args = arguments()
    torch.set_num_threads(1)
    if args.way != "one":
        os.environ |= {"MASTER_ADDR": args.address, "MASTER_PORT": str(args.port)}
        dist.init_process_group("gloo", rank=args.rank, world_size=2, timeout=datetime.timedelta(seconds=args.timeout))
    model = model_of(args)
    if args.way == "ddp":
        args.micros //= 2  # each rank has half of the global batch
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=False)
    if args.way == "pipeline":
        model = Stage(model, args.rank == 0)
    step = stepper(args, model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    times, largest = [], 0
    for i in range(args.warmup + args.steps):
        began = time.perf_counter()
        step()
        times.append((time.perf_counter() - began) * 1e3)
        largest = max(largest, pss())
    print(json.dumps({"median_step_ms": statistics.median(times[args.warmup:]), "pss": largest}), flush=True)
    if args.way != "one":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
