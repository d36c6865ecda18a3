#!/usr/bin/env python3
"""Writes vectors/lora/: what PEFT makes of a small GPT-2 of Hugging Face's, for tests/parity/test_lora.py to compare the engine with.

    gpt2/       the model, as save_pretrained writes it: seeded weights, no download; llama/ likewise
    adapter/    a LoRA adapter after 100 AdamW steps, as PEFT's save_pretrained writes it
    lora.json   the loss of every step of each run, the sum of the first adapter's elements, and the tokens of:
    logits.safetensors  logits of one window, with the adapter

Needs torch, transformers and peft (pip install peft transformers); seconds:

    PYTHON tests/parity/make/make_lora.py

Samples and batches are those of torch_train.py: windows of a text whose bytes are the tokens, in DistributedSampler's order. The
adapter is drawn after torch.manual_seed(SEED), which the engine's [train] seed stands for."""
import json
import pathlib
import shutil
import sys
from types import SimpleNamespace

import peft
import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
import torch_train  # noqa: E402

OUT = HERE / "vectors/lora"
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
SIZES = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 256}
CONTEXT, BATCH, STEPS, SEED, LR = 32, 8, 100, 5, 0.003
DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


GPT2 = transformers.GPT2LMHeadModel, transformers.GPT2Config(**SIZES, **DROPOUT, use_cache=False)
LLAMA = transformers.LlamaForCausalLM, transformers.LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
    max_position_embeddings=32, bos_token_id=None, eos_token_id=None, use_cache=False)


def save_base(kind, config, folder):
    """A model that has learnt a little: adapters of a random one change nothing that a loss would show."""
    torch.manual_seed(0)
    model = kind(config)
    train(model, model.parameters(), 200, 0.003, 0)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def loss_of(model, x, target):
    logits = model(input_ids=x).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def data():
    return torch_train.windows(TEXT.read_bytes(), 0, TEXT.stat().st_size, CONTEXT)


def train(model, groups, steps, lr, seed):
    x, target = data()
    rule = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), weight_decay=0.01)
    losses = []
    for pick in torch_train.batches(len(x), SimpleNamespace(steps=steps, batch=BATCH, seed=seed)):
        rule.zero_grad(set_to_none=True)
        loss = loss_of(model, x[pick], target[pick])
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses


def load():
    return transformers.GPT2LMHeadModel.from_pretrained(OUT / "gpt2", use_cache=False)


def adapted(model=None, **options):
    model = model or load()
    torch.manual_seed(SEED)
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **{"fan_in_fan_out": True, **options}))


def all_linear(out):
    model = adapted(r=8, lora_alpha=16, target_modules="all-linear")
    first = {n: p.detach().double().sum().item() for n, p in model.named_parameters() if "lora_A" in n}
    losses = train(model, [p for p in model.parameters() if p.requires_grad], STEPS, LR, SEED)
    shutil.rmtree(OUT / "adapter", ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = "gpt2"
    model.save_pretrained(OUT / "adapter")
    x, _ = data()
    with torch.no_grad():
        logits = model(input_ids=x[:1]).logits
    out["all_linear"] = {"losses": losses, "first": {n.replace(".default", ""): v for n, v in first.items()}}
    out["input"] = x[0].tolist()
    safetensors.torch.save_file({"logits": logits[0].contiguous()}, OUT / "logits.safetensors")


def plus(out):
    """rsLoRA, LoRA+, some layers by the ends of their names, and one trained whole."""
    model = adapted(r=4, lora_alpha=8, use_rslora=True, target_modules=["c_attn", "mlp.c_fc"], modules_to_save=["ln_f"])
    b = [p for n, p in model.named_parameters() if "lora_B" in n]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and "lora_B" not in n]
    out["plus"] = {"losses": train(model, [{"params": rest}, {"params": b, "lr": 4 * LR}], STEPS, LR, SEED)}


def llama(out):
    model = transformers.LlamaForCausalLM.from_pretrained(OUT / "llama", use_cache=False)
    model = adapted(model, r=8, lora_alpha=16, target_modules="all-linear", fan_in_fan_out=False)
    out["llama"] = {"losses": train(model, [p for p in model.parameters() if p.requires_grad], STEPS, LR, SEED)}


def freeze(out):
    """No adapters: some parameters with requires_grad=False."""
    model = load()
    for n, p in model.named_parameters():
        p.requires_grad = not any(part in n for part in ("wte", "wpe", "h.0.", "ln_1.bias"))
    out["freeze"] = {"losses": train(model, [p for p in model.parameters() if p.requires_grad], STEPS, LR, SEED)}


def main():
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    save_base(*GPT2, OUT / "gpt2")
    save_base(*LLAMA, OUT / "llama")
    out = {"torch": torch.__version__, "peft": peft.__version__, "transformers": transformers.__version__, "seed": SEED,
           "lr": LR, "batch": BATCH, "context": CONTEXT}
    for case in (all_linear, plus, llama, freeze):
        case(out)
    (OUT / "adapter/README.md").unlink(missing_ok=True)
    (OUT / "lora.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
