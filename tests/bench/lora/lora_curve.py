#!/usr/bin/env python3
"""The loss of each LoRA step on the whole shape of SmolLM2-135M against PEFT + PyTorch: too long for a test.

    DDP_BUILDDIR=... python3 tests/bench/lora/lora_curve.py [--steps 100] [--batch 1] [--context 512] [--layers 30] [--lr 0.0002]

Needs a Python with torch, transformers and peft. The base is seeded, not trained; rank 8 on all linear layers, AdamW, windows of
a text whose bytes are the tokens, in DistributedSampler's order; both in f32 with one thread, side by side. Prints the largest
relative difference of the two losses and the step that has it, and both at some steps. About 6 s a step."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import lora_steps
import peft
import torch
import transformers

SRC = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
sys.path.insert(0, str(SRC / "tests/parity"))
import torch_train  # noqa: E402

TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
SEED = 5


def base(a, folder):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=a.layers, num_attention_heads=9,
                                      num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True, rope_theta=100000.0,
                                      max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, use_cache=False)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "base")


def theirs(a, folder):
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "base", use_cache=False)
    torch.manual_seed(SEED)
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    x, target = torch_train.windows(TEXT.read_bytes(), 0, TEXT.stat().st_size, a.context)
    rule = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=a.lr, weight_decay=0.01)
    losses = []
    for pick in torch_train.batches(len(x), SimpleNamespace(steps=a.steps, batch=a.batch, seed=SEED)):
        rule.zero_grad(set_to_none=True)
        logits = model(input_ids=x[pick]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target[pick].reshape(-1))
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--layers", type=int, default=30)
    p.add_argument("--lr", type=float, default=0.0002, help="a usual one of LoRA")
    a = p.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base(a, folder)
        ini = folder / "run.ini"
        ini.write_text(lora_steps.INI.format(steps=a.steps, batch=a.batch, context=a.context, precision="f32", text=TEXT,
                                             shape=f"config = {folder}/base", folder=folder / "out"))
        more = {"train.seed": SEED, "optimizer.lr": a.lr, "optimizer.weight_decay": 0.01, "checkpoint.init_from": folder / "base"}
        sets = [word for key, value in more.items() for word in ("--set", f"{key}={value}")]
        engine = subprocess.Popen([BUILD / "ddpengine", "-c", ini, *sets], stdout=subprocess.DEVNULL)
        want = theirs(a, folder)
        if engine.wait() != 0:
            sys.exit(f"lora_curve: the engine ended with {engine.returncode}")
        rows = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
        got = [r["loss"] for r in rows if r["event"] == "step"]
    apart = [abs(x - y) / abs(y) for x, y in zip(got, want, strict=True)]
    for step in sorted({0, len(got) // 4, len(got) // 2, len(got) - 1}):
        print(f"step {step + 1:4}: ddpengine {got[step]:.6f}, PEFT {want[step]:.6f}")
    print(f"largest relative difference of {len(got)} steps: {max(apart):.1e}, at step {apart.index(max(apart)) + 1}")


if __name__ == "__main__":
    main()
