#!/usr/bin/env python3
"""Tokens a second of `ddpengine generate` and of transformers' generate with its cache, one thread each, in turn in one run, on the same
weights, which are drawn here; greedy, so that both have to give the same tokens:

    tests/bench/generate_tokens.py [--rounds 5] [--tokens 256] [--prompt 16] [--layers 12 --heads 12 --width 768 --vocabulary 50257]
                                   [--old BUILD --old-tokens 4] [--set train.precision=bf16 ...]       (DDP_BUILDDIR names the build)

A rate is of the tokens after the first one, which comes after the prompt: loading and the prompt are not in it. Prints for each side the
median and the range over the rounds, and the ratio of the medians; --old is another build to compare, over fewer tokens. Also how fast this
core reads memory, and the tokens a second at which it would read all weights: no side that reads each weight once a token is faster.
Without torch and transformers their side is left out, and said so; without numpy it skips itself. Nothing here decides a test."""
import argparse
import importlib.util
import json
import os
import pathlib
import pty
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", pathlib.Path(__file__).resolve().parents[2]))
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def draw_weights(path, a):
    """A GPT-2 by Hugging Face's names whose greedy text is not one token again and again."""
    import numpy
    g = numpy.random.default_rng(7)
    e, shapes = a.width, {}
    shapes["transformer.wte.weight"], shapes["transformer.wpe.weight"] = (a.vocabulary, e), (a.context, e)
    for i in range(a.layers):
        h = f"transformer.h.{i}."
        for name, inner, outer in (("attn.c_attn", e, 3 * e), ("attn.c_proj", e, e), ("mlp.c_fc", e, 4 * e), ("mlp.c_proj", 4 * e, e)):
            shapes[h + name + ".weight"], shapes[h + name + ".bias"] = (inner, outer), (outer,)
        for name in ("ln_1", "ln_2"):
            shapes[h + name + ".weight"] = shapes[h + name + ".bias"] = (e,)
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (e,)
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(numpy.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            x = g.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.02 if "wte" in name else 0.1)
            f.write((x + numpy.float32("ln_" in name and name.endswith("weight"))).tobytes())
    return at // 4


def ini_of(work, weights, a):
    path = work / "g.ini"
    sets = [s.split("=", 1) for s in a.set]
    path.write_text(f"[train]\nthreads = 1\n[model]\nplugin = gpt2\n[model.gpt2]\nlayers = {a.layers}\nheads = {a.heads}\nwidth = {a.width}\n"
                    f"context = {a.context}\nvocabulary = {a.vocabulary}\n[data]\nplugin = synthetic\n[data.synthetic]\nsamples = 8\n"
                    f"shape = {a.context}\nvocabulary = {a.vocabulary}\n[checkpoint]\ninit_from = {weights}\n")
    return [str(path)] + [x for key, value in sets for x in ("--set", f"{key}={value}")]


def ours(build, ini, prompt, count):
    """On a terminal each token comes as soon as it is chosen. Returns the new tokens, and the rate behind the first."""
    outer, inner = pty.openpty()
    p = subprocess.Popen([str(build / "ddpengine"), "generate", "-c", *ini, "--prompt-tokens", ",".join(map(str, prompt)), "--tokens",
                          str(count), "--temperature", "0"], stdout=inner, stderr=subprocess.PIPE, env=ENV)
    os.close(inner)
    text, times, seen = b"", [], len(prompt)
    while True:
        try:
            data = os.read(outer, 65536)
        except OSError:
            break
        if not data:
            break
        text += data
        now, tokens = time.monotonic(), len(text.split())
        times += [now] * (tokens - max(seen, len(prompt)))
        seen = max(tokens, seen)
    said = p.stderr.read().decode()
    if p.wait() != 0:
        sys.exit(said)
    os.close(outer)
    tokens = [int(x) for x in text.split()]
    return tokens[len(prompt):], (len(times) - 1) / (times[-1] - times[0])


THEIRS = """
import json, sys, time
import torch, transformers
from transformers.generation.streamers import BaseStreamer
q = json.loads(sys.stdin.readline())
torch.set_num_threads(1)
c = transformers.GPT2Config(vocab_size=q["vocabulary"], n_positions=q["context"], n_embd=q["width"], n_layer=q["layers"], n_head=q["heads"],
                            bos_token_id=None, eos_token_id=None)
m = transformers.GPT2LMHeadModel(c)
from safetensors.torch import load_file
missing, extra = m.load_state_dict(load_file(q["weights"]), strict=False)
assert not extra and all(n == "lm_head.weight" or n.endswith(".attn.bias") or n.endswith(".masked_bias") for n in missing), (missing, extra)
m.tie_weights()
m.eval()
if q["bf16"]:
    m = m.bfloat16()
class Clock(BaseStreamer):
    def put(self, value): self.at.append(time.monotonic())
    def end(self): pass
print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}), flush=True)
for line in sys.stdin:
    clock = Clock()
    clock.at = []
    ids = torch.tensor([q["prompt"]])
    with torch.inference_mode():
        out = m.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=True, max_new_tokens=q["tokens"],
                         min_new_tokens=q["tokens"], pad_token_id=0, streamer=clock)
    at = clock.at[1:]  # the prompt comes first
    print(json.dumps({"tokens": out[0, len(q["prompt"]):].tolist(), "rate": (len(at) - 1) / (at[-1] - at[0])}), flush=True)
"""


class Theirs:
    def __init__(self, weights, prompt, a):
        bf16 = any(s.replace(" ", "") == "train.precision=bf16" for s in a.set)
        q = {"weights": str(weights), "prompt": prompt, "tokens": a.tokens, "bf16": bf16,
             **{k: getattr(a, k) for k in ("vocabulary", "context", "width", "layers", "heads")}}
        self.p = subprocess.Popen([sys.executable, "-c", THEIRS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV)
        self.p.stdin.write(json.dumps(q) + "\n")
        self.p.stdin.flush()
        self.versions = json.loads(self.p.stdout.readline())

    def run(self):
        self.p.stdin.write("\n")
        self.p.stdin.flush()
        r = json.loads(self.p.stdout.readline())
        return r["tokens"], r["rate"]


def read_rate(seconds=1.0):
    """Bytes a second that one core reads, as numpy's sum does it: the best of many passes over 256 MiB."""
    import numpy
    x, best, end = numpy.ones(64 << 20, dtype=numpy.float32), 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        t = time.monotonic()
        numpy.dot(x, x)
        best = max(best, x.nbytes / (time.monotonic() - t))
    return best


def show(name, rates, base=None):
    ratio = "" if base is None else f"   {statistics.median(base) / statistics.median(rates):6.2f} x"
    print(f"  {name:34s} {statistics.median(rates):8.2f} tokens/s   ({min(rates):.2f} to {max(rates):.2f}, {len(rates)} rounds){ratio}", flush=True)


def same_tokens(name, a, b):
    n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    print(f"  {name}: " + (f"the same {n} tokens, {len(set(a[:n]))} different ones" if n == min(len(a), len(b)) else
                           f"NOT THE SAME from token {n} on: {a[n]} and {b[n]}"), flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rounds", 5), ("tokens", 256), ("prompt", 16), ("layers", 12), ("heads", 12), ("width", 768), ("context", 1024),
                        ("vocabulary", 50257), ("old-tokens", 4)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--old", type=pathlib.Path, help="another build")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=V")
    return p.parse_args()


def main():
    a = arguments()
    if importlib.util.find_spec("numpy") is None:
        print("generate_tokens.py: skipped, numpy is missing")
        return 77
    work = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-bench-"))
    try:
        count = draw_weights(work / "w.safetensors", a)
        prompt = [(i * 7919 + 11) % a.vocabulary for i in range(a.prompt)]
        ini, rates, texts = ini_of(work, work / "w.safetensors", a), {"ddpengine": [], "old": [], "transformers": []}, {}
        try:
            theirs = Theirs(work / "w.safetensors", prompt, a)
            print(f"transformers {theirs.versions['transformers']}, torch {theirs.versions['torch']}")
        except (json.JSONDecodeError, BrokenPipeError):
            theirs = None
            print("1 side left out: torch, transformers or safetensors is missing")
        for _ in range(a.rounds):
            sides = [("ddpengine", lambda: ours(BUILD, ini, prompt, a.tokens))]
            sides += [("old", lambda: ours(a.old, ini, prompt, a.old_tokens))] if a.old else []
            sides += [("transformers", theirs.run)] if theirs else []
            for name, run in sides:
                texts[name], rate = run()
                rates[name].append(rate)
        read = read_rate()
        print(f"{count / 1e6:.1f} million weights, prompt of {a.prompt} tokens, {a.tokens} more, 1 thread{''.join(' ' + s for s in a.set)}")
        show("ddpengine generate", rates["ddpengine"])
        for name, title in (("old", f"ddpengine generate of {a.old}"), ("transformers", "transformers generate, its cache")):
            if rates[name]:
                show(title, rates[name], rates["ddpengine"])
                same_tokens(title, texts["ddpengine"], texts[name])
        print(f"  one core reads {read / 1e9:.1f} GB/s here: the weights in f32 {read / 4 / count:.1f} times a second")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
