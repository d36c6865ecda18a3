#!/usr/bin/env python3
"""Writes what test_models.c compares the engine's models with:

    vectors/models.json                   state_dict's keys, dtypes and shapes of torchvision's and Hugging Face's models, and the
                                          SHA-256 of their first values (float32, parameters in state_dict's order) under seeds
    vectors/models/NAME.safetensors       random weights of a small model, in the layout in which those libraries save theirs
    vectors/models/NAME.expected.safetensors   for these weights and the inputs in it: loss, logits, every gradient and what batch
                                          norm's buffers become, from PyTorch in float64; "own.X" is how far PyTorch in float32 is
                                          from it, the largest difference over the largest magnitude of X (of a
                                          gradient at least GRAD_FLOOR of the largest of all gradients)

Needs torch, torchvision and transformers, any interpreter that has them. The models are those of torch_models.py, once they are
proved equal to the libraries'. A seed is taken under which PyTorch's float32 agrees with its float64: where a ReLU's input or
the first of two in a pool comes within rounding of a tie, the two part and a comparison says nothing."""
import hashlib
import json
import pathlib
import struct
import sys
import warnings

import torch

HERE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
import torch_models  # noqa: E402

AGREES = 6e-6
GRAD_FLOOR = 1e-6
NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
SEEDS = (0, 42)
# name, plugin, its options, the image's channels and size or the tokens' length
LISTED = (
    ("resnet18", "resnet", {}, (3, 224)),
    ("resnet34", "resnet", {"depth": 34}, (3, 224)),
    ("gpt2", "gpt2", {}, 1024),
    ("gpt2-medium", "gpt2", {"preset": "gpt2-medium"}, 1024),
    ("gpt2-tiny", "gpt2", {"layers": 3, "heads": 3, "width": 15, "context": 7, "vocabulary": 211}, 7),
    ("gpt2-padded", "gpt2", {"preset": "bytes", "padded_vocabulary": 264}, 256),
    ("resnet-narrow", "resnet", {"stem": "cifar", "width": 1, "classes": 3}, (1, 32)),
    ("resnet-cifar", "resnet", {"stem": "cifar", "width": 16, "classes": 10}, (3, 32)),
    ("lenet", "lenet", {}, (1, 28)),
    ("lenet32", "lenet", {"classes": 7}, (3, 32)),
    ("two_conv", "lenet", {"variant": "two_conv"}, (1, 28)),
)
# the same, and the batch
SMALL = (
    ("lenet", "lenet", {}, (1, 16), 5),
    ("two_conv", "lenet", {"variant": "two_conv", "dropout1": 0.0, "dropout2": 0.0}, (1, 8), 5),
    ("resnet", "resnet", {"stem": "cifar", "width": 8, "classes": 10}, (3, 16), 3),
    ("resnet_imagenet", "resnet", {"width": 4, "classes": 10}, (3, 64), 2),
    ("gpt2", "gpt2", {"layers": 2, "heads": 4, "width": 32, "context": 16, "vocabulary": 61}, 13, 3),
)


def build(plugin, options, data):
    image = {"channels": data[0], "size": data[1]} if isinstance(data, tuple) else {}
    return torch_models.build(plugin, **image, **options)


def save(path, tensors, metadata):
    header, body = {"__metadata__": metadata}, b""
    for name, t in tensors.items():
        raw = t.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(path.name, len(tensors), "tensors,", path.stat().st_size, "bytes")


# ---- the libraries' own models -------------------------------------------------------------------------------------------
def library_model(name, plugin, options):
    """The library's model of that name, or None where it has none."""
    if name in ("resnet18", "resnet34"):
        import torchvision
        return getattr(torchvision.models, name)()
    if plugin != "gpt2":
        return None
    import transformers
    transformers.logging.set_verbosity_error()
    m = dict(zip(("layers", "heads", "width", "context", "vocabulary"), torch_models.PRESETS[options.get("preset", "gpt2")],
                 strict=True))
    m.update(options)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=m["layers"], n_head=m["heads"], n_embd=m["width"], n_positions=m["context"],
        vocab_size=m.get("padded_vocabulary", m["vocabulary"])))


def saved_state(model):
    """What the library writes: transformers drops the tied lm_head.weight and its masks of attention."""
    return {k: v for k, v in model.state_dict().items() if k != "lm_head.weight" and not k.endswith((".attn.bias", ".masked_bias"))}


def prove_equal(name, ours, theirs):
    if list(ours) != list(theirs):
        raise SystemExit(f"{name}: other keys than the library's: {set(ours) ^ set(theirs)}")
    for k, t in theirs.items():
        if ours[k].dtype != t.dtype or ours[k].shape != t.shape or not torch.equal(ours[k], t):
            raise SystemExit(f"{name}: {k} is not the library's")


def listed(name, plugin, options, data):
    out = {"name": name, "plugin": plugin, "options": {k: str(v) for k, v in options.items()}, "data": data, "library": "",
           "initial": {}}
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = build(plugin, options, data)
        torch.manual_seed(seed)
        library = library_model(name, plugin, options)
        if library is not None:
            prove_equal(name, model.state_dict(), saved_state(library))
            out["library"] = type(library).__module__.split(".")[0]
        h = hashlib.sha256()
        for p in model.parameters():
            h.update(p.detach().contiguous().numpy().tobytes())
        out["initial"][str(seed)] = h.hexdigest()
    out["state"] = [[k, NAMES[t.dtype], list(t.shape)] for k, t in model.state_dict().items()]
    print(name, len(out["state"]), "tensors")
    return out


# ---- small models with weights ---------------------------------------------------------------------------------------------
def randomize(model):
    """Away from ones and zeros, which would hide mistakes."""
    with torch.no_grad():
        for k, t in model.state_dict().items():
            if k.endswith("num_batches_tracked"):
                t.fill_(3)
            elif k.endswith("running_var") or (t.dim() == 1 and k.endswith("weight")):
                t.uniform_(0.5, 1.5)
            elif t.dim() == 1:
                t.normal_(0.0, 0.1)
            elif "transformer" in k:
                t.normal_(0.0, 0.15)


def make_fields(plugin, model, data, batch):
    if plugin == "gpt2":
        tokens = torch.randint(model.transformer.wte.weight.shape[0], (batch, data + 1))
        fields = {"input": tokens[:, :-1].contiguous(), "target": tokens[:, 1:].contiguous()}
        fields["target"][0, :2] = -100
        return fields
    return {"image": torch.randn(batch, data[0], data[1], data[1]), "label": torch.randint(10, (batch,))}


def results(model, state, fields, dtype):
    """Evaluation first, since training moves batch norm's buffers."""
    model.load_state_dict(state)
    model = model.to(dtype)
    x, target = (t.to(dtype) if t.is_floating_point() else t for t in fields.values())
    out = {}
    with torch.no_grad():
        out["eval.logits"] = model.eval()(x)
        out["eval.loss"] = torch_models.loss_of(out["eval.logits"], target)
    model.zero_grad()
    out["logits"] = model.train()(x)
    out["loss"] = torch_models.loss_of(out["logits"], target)
    out["loss"].backward()
    out.update({f"grad.{k}": p.grad.clone() for k, p in model.named_parameters()})
    out.update({f"after.{k}": b.clone() for k, b in model.named_buffers() if b.is_floating_point()})
    return {k: t.detach().double() for k, t in out.items()}


def distances(ours, exact):
    floor = GRAD_FLOOR * max(t.abs().max() for k, t in exact.items() if k.startswith("grad."))
    return {k: ((t - exact[k]).abs().max() / max(exact[k].abs().max(), floor if k.startswith("grad.") else 0)).item()
            for k, t in ours.items()}


def small(name, plugin, options, data, batch):
    for seed in range(100):
        torch.manual_seed(seed)
        model = build(plugin, options, data)
        randomize(model)
        state = {k: t.clone() for k, t in model.state_dict().items()}
        fields = make_fields(plugin, model, data, batch)
        exact = results(model, state, fields, torch.float64)
        own = distances(results(build(plugin, options, data), state, fields, torch.float32), exact)
        if max(own.values()) <= AGREES:
            break
    else:
        raise SystemExit(f"{name}: PyTorch's float32 agrees with its float64 under no seed")
    print(f"{name}: seed {seed}, PyTorch's float32 from its float64: {max(own.values()):.1e}")
    folder = HERE / "vectors/models"
    folder.mkdir(exist_ok=True)
    save(folder / f"{name}.safetensors", dict(sorted(state.items())), {"format": "pt"})
    expected = {**fields, **{k: t.float() for k, t in exact.items()}, **{f"own.{k}": torch.tensor(v) for k, v in own.items()}}
    save(folder / f"{name}.expected.safetensors", expected, {"torch": torch.__version__})
    return {"name": name, "plugin": plugin, "options": {k: str(v) for k, v in options.items()}, "data": data, "batch": batch}


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    out = {"torch": torch.__version__}
    for library in ("torchvision", "transformers"):
        out[library] = __import__(library).__version__.split("+")[0]
    out["listed"] = [listed(*m) for m in LISTED]
    out["small"] = [small(*m) for m in SMALL]
    text = json.dumps(out).replace('{"name"', '\n{"name"').replace('["', '\n["')
    (HERE / "vectors/models.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
