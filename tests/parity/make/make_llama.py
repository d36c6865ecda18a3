#!/usr/bin/env python3
"""Writes what the ops and the models of the LLaMA class are compared with, from torch and transformers 5:

    vectors/llama_ops.safetensors   the ops on random inputs, their outputs and gradients in float32, as make_ops.py lays them out
    vectors/models.json             its entries of plugin llama, as make_models.py has the others
    vectors/models/NAME.*           weights and results of small models, as make_models.py says
    vectors/llama.json              their config.json, as transformers writes it now and as older versions did, and the losses of
                                    full fine-tuning from these weights, by AdamW on one batch of bytes; the most likely tokens
                                    after PROMPT, one after the other

    python3 tests/parity/make/make_llama.py
"""
import json
import hashlib
import pathlib
import warnings

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import make_models
import make_ops
from make_ops import case, leaf, unary

VECTORS = pathlib.Path(__file__).resolve().parents[1] / "vectors"

# kind as in DDP_ROPE_*, its parameters in transformers and in ddp_attrs (see <ddpengine/program.h>)
ROPES = (
    (0, {"rope_type": "default"}),
    (1, {"rope_type": "linear", "factor": 4.0}),
    (2, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 256}),
    (3, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}),
    (3, {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0,
         "attention_factor": 1.25, "truncate": False}),
)


def rms_norm(shape, eps):
    x, w = leaf(*shape, scale=2.0), leaf(shape[-1])
    y = F.rms_norm(x, (shape[-1],), w, eps)
    dy = torch.randn_like(y)
    y.backward(dy)
    invstd = ((x.detach().double() ** 2).mean(-1) + eps).rsqrt().float()
    case("rms_norm", [x, w], y, invstd, attrs=(eps,))
    case("rms_norm_grad", [dy, x, w, invstd], x.grad, w.grad, attrs=(eps,))


def rope(kind, parameters, n, t, heads, size, theta, positions):
    config = LlamaConfig(hidden_size=heads * size, num_attention_heads=heads, head_dim=size, max_position_embeddings=2048,
                         rope_parameters={"rope_theta": theta, **parameters})
    x = leaf(n, t, heads * size)
    split = x.view(n, t, heads, size).transpose(1, 2)
    at = torch.arange(t).expand(n, t) if positions is None else positions
    cos, sin = LlamaRotaryEmbedding(config)(x, at)
    y = apply_rotary_pos_emb(split, split, cos, sin)[0].transpose(1, 2).reshape(n, t, heads * size)
    dy = torch.randn_like(y)
    y.backward(dy)
    own = lambda name: float(parameters.get(name, 0.0))
    attrs = (size, kind | (0 if parameters.get("truncate", True) else 1) << 32, theta, own("factor"), own("low_freq_factor"),
             own("high_freq_factor"), own("beta_fast"), own("beta_slow"), own("attention_factor"),
             int(own("original_max_position_embeddings")))
    more = [] if positions is None else [positions]
    case("rope", [x, *more], y, attrs=attrs)
    case("rope_grad", [dy, *more], x.grad, attrs=attrs)


def ops():
    for shape in ((1, 1), (5, 17), (3, 4, 33), (2, 3, 64)):
        rms_norm(shape, 0.5 if shape == (1, 1) else 1e-6)  # of one element all else is rounding
        unary("silu", F.silu, shape, False)
        a, b = torch.randn(*shape), torch.randn(*shape)
        case("mul", [a, b], a * b)
    for kind, parameters in ROPES:
        rope(kind, parameters, 2, 7, 3, 32, 10000.0, None)
        rope(kind, parameters, 1, 9, 1, 64, 500000.0, torch.randint(2048, (1, 9)))
        rope(kind, parameters, 2, 5, 2, 6, 1e6, torch.randint(100000, (2, 5)))


# ---- models --------------------------------------------------------------------------------------------------------------
LENGTH, BATCH = 13, 3
SIZES = {"layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "intermediate": 48, "context": 64, "vocabulary": 101}
# name, what it adds to the sizes as options of the plugin, class of its config, what it adds there
MODELS = (
    ("llama", {"rope": "llama3", "rope_factor": 8, "original_context": 8}, LlamaConfig,
     {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 8}}),
    ("qwen2", {"bias": "qkv", "tied": "yes", "theta": 1e6, "eps": 1e-6}, Qwen2Config,
     {"tie_word_embeddings": True, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    ("qwen3", {"qk_norm": "yes", "tied": "yes", "head_dim": 12, "rope": "yarn", "rope_factor": 4, "original_context": 16}, Qwen3Config,
     {"tie_word_embeddings": True, "head_dim": 12, "rope_parameters": {
         "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}}),
)
PARTS = ("input_layernorm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj", "post_attention_layernorm", "gate_proj",
         "up_proj", "down_proj")


def config_of(kind, more):
    return kind(**{"vocab_size": SIZES["vocabulary"], "hidden_size": SIZES["width"], "intermediate_size": SIZES["intermediate"],
                   "num_hidden_layers": SIZES["layers"], "num_attention_heads": SIZES["heads"],
                   "num_key_value_heads": SIZES["kv_heads"], "max_position_embeddings": SIZES["context"], "rms_norm_eps": 1e-5,
                   **more})


def model_of(config):
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def declared(model):
    """state_dict in the order in which the graph uses the layers, which is that of the plugin."""
    def place(name):
        part = next((i for i, p in enumerate(PARTS) if p in name), 0)
        layer = int(name.split(".")[2]) if ".layers." in name else -1 if "embed" in name else 1000 if "norm" in name else 1001
        return layer, part, name.endswith("bias")
    return {k: t for k, t in sorted(model.state_dict().items(), key=lambda item: place(item[0]))
            if not (k == "lm_head.weight" and model.config.tie_word_embeddings)}


def entry(name, options):
    return {"name": name, "plugin": "llama", "options": {k: str(v) for k, v in {**SIZES, **options}.items()}, "data": LENGTH}


def listed(name, options, config):
    out = {**entry(name, options), "library": "transformers", "initial": {}}
    for seed in make_models.SEEDS:
        torch.manual_seed(seed)
        state = declared(model_of(config))
        h = hashlib.sha256()
        for t in state.values():
            h.update(t.detach().contiguous().numpy().tobytes())
        out["initial"][str(seed)] = h.hexdigest()
    out["state"] = [[k, make_models.NAMES[t.dtype], list(t.shape)] for k, t in state.items()]
    return out


def norm_as_wide(norm):
    """transformers computes it in float32 whatever the model is in."""
    norm.forward = lambda x: norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))


def results(config, state, fields, dtype):
    model = model_of(config).to(dtype)
    for m in model.modules():
        if hasattr(m, "variance_epsilon") and dtype == torch.float64:
            norm_as_wide(m)
    model.load_state_dict(state, strict=not config.tie_word_embeddings)
    logits = model.eval()(fields["input"]).logits
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), fields["target"].reshape(-1))
    loss.backward()
    out = {f"{where}{k}": t for where in ("", "eval.") for k, t in (("logits", logits), ("loss", loss))}
    out.update({f"grad.{k}": p.grad for k, p in model.named_parameters()})
    return {k: t.detach().double() for k, t in out.items()}


def small(name, options, config):
    torch.manual_seed(1)
    model = model_of(config)
    with torch.no_grad():
        for k, t in model.named_parameters():
            if k.endswith("norm.weight"):
                t.uniform_(0.5, 1.5)
            else:
                t.normal_(0.0, 0.15)
    state = {k: t.clone() for k, t in declared(model).items()}
    tokens = torch.randint(SIZES["vocabulary"], (BATCH, LENGTH + 1))
    fields = {"input": tokens[:, :-1].contiguous(), "target": tokens[:, 1:].contiguous()}
    fields["target"][0, :2] = -100
    exact = results(config, state, fields, torch.float64)
    own = make_models.distances(results(config, state, fields, torch.float32), exact)
    make_models.save(VECTORS / "models" / f"{name}.safetensors", dict(sorted(state.items())), {"format": "pt"})
    expected = {**fields, **{k: t.float() for k, t in exact.items()}, **{f"own.{k}": torch.tensor(v) for k, v in own.items()}}
    make_models.save(VECTORS / "models" / f"{name}.expected.safetensors", expected, {"torch": torch.__version__})
    return {**entry(name, options), "batch": BATCH}


STEPS, TEXT = 20, b"To be, or not to be, that is the question: Whether 'tis noble"


def fine_tuned(config, state):
    """The loss before each step. All parameters decay, as the engine has it without no_decay."""
    model = model_of(config)
    model.load_state_dict(state, strict=not config.tie_word_embeddings)
    tokens = torch.tensor([c % SIZES["vocabulary"] for c in TEXT[:2 * 16 + 1]])
    x, y = tokens[:-1].view(2, 16), tokens[1:].view(2, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    losses = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x).logits.reshape(-1, SIZES["vocabulary"]), y.reshape(-1))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


PROMPT, NEW = [7, 77, 3, 50, 9], 57  # the whole context


def greedy(config, state):
    """Without a cache, and with generate's: the same."""
    model = model_of(config).eval()
    model.load_state_dict(state, strict=not config.tie_word_embeddings)
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        for _ in range(NEW):
            tokens = torch.cat([tokens, model(tokens, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    cached = model.generate(torch.tensor([PROMPT]), max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=-1)
    assert cached.tolist() == tokens.tolist()
    return " ".join(map(str, tokens[0].tolist()))


def old_config(new):
    """As transformers 4 has it."""
    old = {k: v for k, v in new.items() if k != "rope_parameters"}
    rope = dict(new["rope_parameters"])
    old["rope_theta"] = rope.pop("rope_theta")
    old["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return old


def models():
    path = VECTORS / "models.json"
    known, own = json.loads(path.read_text()), {"steps": STEPS, "text": "".join(chr(c % SIZES["vocabulary"]) for c in TEXT[:33])}
    for part in ("listed", "small"):
        known[part] = [m for m in known[part] if m["plugin"] != "llama"]
    for name, options, kind, more in MODELS:
        config = config_of(kind, more)
        known["listed"].append(listed(name, options, config))
        known["small"].append(small(name, options, config))
        new = config.to_dict()
        state = {k: t for k, t in torch_state(name).items()}
        own[name] = {"new": new, "old": old_config(new), "losses": fine_tuned(config, state), "greedy": greedy(config, state)}
    text = json.dumps(known).replace('{"name"', '\n{"name"').replace('["', '\n["')
    path.write_text(text + "\n")
    (VECTORS / "llama.json").write_text(json.dumps(own, indent=1) + "\n")


def torch_state(name):
    from safetensors.torch import load_file
    return load_file(VECTORS / "models" / f"{name}.safetensors")


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    ops()
    make_ops.write(VECTORS / "llama_ops.safetensors")
    models()


if __name__ == "__main__":
    main()
