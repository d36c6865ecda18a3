#!/usr/bin/env python3
"""Tokens a second of LoRA training against PEFT + PyTorch, alternating, on the shape of SmolLM2-135M.

    DDP_BUILDDIR=... python3 tests/bench/lora/lora_steps.py [--rounds 3] [--ranks 1] [--precision f32] [--compile]

Needs a Python with torch, transformers and peft. Rank 8 on all linear layers, AdamW, sequences of 512 tokens; each rank has
one thread. PyTorch runs as DistributedDataParallel over gloo where there are two ranks, under autocast for bf16, with SDPA's
attention; --compile adds torch.compile. A figure is the median over the steps of a round but for its first two; printed are the
medians over the rounds, their range, and the ratio by round. The memory is the sum of Pss over the ranks after the last step.
Nothing is decided here."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SRC = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
SHAPE = {"width": 576, "intermediate": 1536, "layers": 30, "heads": 9, "kv_heads": 3, "vocabulary": 49152}
INI = """[group]
backend = auto
[train]
epochs = 1000
max_steps = {steps}
batch_size = {batch}
threads = 1
precision = {precision}
[model]
plugin = llama
[model.llama]
{shape}
tied = yes
[data]
plugin = tokens
[data.tokens]
files = {text}
context = {context}
[optimizer]
algorithm = adamw
lr = 0.0001
[lora]
rank = 8
alpha = 16
[output]
dir = {folder}
progress = off
"""


def engine(a, folder):
    text = folder / "text.txt"
    text.write_text("".join(chr(97 + i * i % 26) for i in range(200000)))
    ini = folder / "run.ini"
    shape = "\n".join(f"{k} = {v}" for k, v in {**SHAPE, "layers": a.layers}.items())
    ini.write_text(INI.format(steps=a.steps, batch=a.batch, precision=a.precision, shape=shape, text=text, context=a.context, folder=folder))
    subprocess.run([BUILD / "ddpengine", "-c", ini, *(["--nproc", str(a.ranks)] if a.ranks > 1 else [])], check=True, capture_output=True)
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    rates = [r["samples_per_s"] * a.context for r in rows if r["event"] == "step"][2:]
    return statistics.median(rates), json.loads((folder / "summary.json").read_text())["peak_pss_bytes"] / 2**20


def torch_rank(a):
    """One rank, whose environment says which; rank 0 prints tokens a second of all and its own Pss in MiB."""
    import peft
    import torch
    import transformers
    torch.set_num_threads(1)
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    config = transformers.LlamaConfig(hidden_size=SHAPE["width"], intermediate_size=SHAPE["intermediate"], num_hidden_layers=a.layers,
                                      num_attention_heads=SHAPE["heads"], num_key_value_heads=SHAPE["kv_heads"], vocab_size=SHAPE["vocabulary"],
                                      tie_word_embeddings=True, use_cache=False, bos_token_id=None, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    if a.precision == "bf16":  # the frozen base in bf16, the adapters in f32, as PEFT's autocast_adapter_dtype has it
        for name, p in model.named_parameters():
            p.data = p.data if "lora_" in name else p.data.bfloat16()
    step = model
    if world > 1:
        torch.distributed.init_process_group("gloo")
        step = torch.nn.parallel.DistributedDataParallel(model)
    if a.compile:
        step = torch.compile(step)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    tokens = torch.randint(0, 256, (a.batch, a.context), generator=torch.Generator().manual_seed(rank))
    times = []
    for _ in range(a.steps):
        began = time.monotonic()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
            loss = step(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic() - began)
    pss = int(next(x for x in open("/proc/self/smaps_rollup") if x.startswith("Pss:")).split()[1]) / 1024
    if rank == 0:
        print(world * a.batch * a.context / statistics.median(times[2:]), pss, flush=True)
    if world > 1:
        torch.distributed.destroy_process_group()


def torch_ranks(a, port):
    own = [sys.executable, __file__, "--torch-rank", *sys.argv[1:]]
    started = [subprocess.Popen(own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(a.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
               for r in range(a.ranks)]
    out = [p.communicate()[0] for p in started]
    rate, pss = out[0].split()
    return float(rate), float(pss)


def line(name, rates, memory):
    print(f"  {name:<24} {statistics.median(rates):9.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f})   Pss of rank 0 {max(memory):8.0f} MiB", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--layers", type=int, default=SHAPE["layers"])
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--torch-rank", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.torch_rank:
        torch_rank(a)
        return
    ours, theirs = [], []
    for r in range(a.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ours.append(engine(a, pathlib.Path(folder)))
        theirs.append(torch_ranks(a, 29600 + r))
        print(f"  round {r + 1}: {ours[-1][0] / theirs[-1][0]:.2f}x", flush=True)
    print(f"LoRA rank 8, {a.layers} layers of SmolLM2-135M, {a.ranks} rank(s), {a.precision}, batch {a.batch} x {a.context}")
    line("ddpengine", *zip(*ours))
    line("PEFT + PyTorch" + (", compiled" if a.compile else ""), *zip(*theirs))


if __name__ == "__main__":
    main()
