"""ddpengine export gguf: the pairs and the tensors of the file, the tokenizer in it, adapters of PEFT's; what is refused. llama.cpp itself
continues a text where DDP_GGUF_PYTHON names a Python that has xllamacpp."""
import json
import math
import os
import pathlib
import random
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SANITIZED, SRC, Case, Skip, long_case, seldom  # noqa: E402

PYTHON = os.environ.get("DDP_GGUF_PYTHON", sys.executable)
TOKENIZERS = SRC / "tests/parity/vectors/tokenizers"
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Reader:
    """pairs: key -> value; tensors: name -> (shape as PyTorch has it, type, bytes)."""

    def __init__(self, path):
        self.data, self.at, self.tensors = path.read_bytes(), 0, {}
        assert self.take("4sI") == (b"GGUF", 3), "head"
        count, pairs = self.take("QQ")
        self.pairs = {}
        for _ in range(pairs):
            key = self.text()
            assert key not in self.pairs, key
            self.pairs[key] = self.value(self.take("I")[0])
        infos = [(self.text(), self.take("%dQ" % self.take("I")[0]), *self.take("IQ")) for _ in range(count)]
        begin = -(-self.at // 32) * 32
        for name, shape, kind, offset in infos:
            assert offset % 32 == 0, name
            size = math.prod(shape) * {0: 4, 1: 2, 30: 2}[kind]
            self.tensors[name] = (shape[::-1], kind, self.data[begin + offset:begin + offset + size])
            self.end = begin + offset + -(-size // 32) * 32
        assert self.end == len(self.data), "length"

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def text(self):
        (size,) = self.take("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("IQ")
            return [self.value(inner) for _ in range(count)]
        return self.take(FORMS[kind])[0]

    def floats(self, name):
        shape, kind, data = self.tensors[name]
        if kind == 30:
            return shape, [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
        return shape, list(struct.unpack("<%d%s" % (math.prod(shape), {0: "f", 1: "e"}[kind]), data))


def safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {n: (t["shape"], struct.unpack("<%df" % math.prod(t["shape"]), data[8 + length:][slice(*t["data_offsets"])])) for n, t in header.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += struct.pack("<%df" % len(values), *values)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def transposed(shape, values):
    return (shape[1], shape[0]), [values[r * shape[1] + c] for c in range(shape[1]) for r in range(shape[0])]


def rounded(values, kind):
    if kind == "f16":
        return [struct.unpack("<e", struct.pack("<e", v))[0] for v in values]
    bits = [struct.unpack("<I", struct.pack("<f", v))[0] for v in values]
    return [struct.unpack("<f", struct.pack("<I", (b + 0x7fff + (b >> 16 & 1)) & 0xffff0000))[0] for b in bits]


class Gguf(Case):
    def prepare(self, rows=480, **sets):
        """A GPT-2 that has done a step, over tokens of a small tokenizer."""
        folder, text = self.dir / "tok", self.dir / "text.txt"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_bytes((TOKENIZERS / "gpt2.json").read_bytes())
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}))
        text.write_bytes((SRC / "README.md").read_bytes())
        self.train({"model.mlp": None, "model": {"plugin": "gpt2"}, "data": {"plugin": "tokens"}, "data.synthetic": None,
                    "train": {"max_steps": 1, "batch_size": 2}, "checkpoint": {"dir": self.dir / "ckpt"},
                    "model.gpt2": {"layers": 2, "heads": 2, "width": 16, "context": 80, "vocabulary": rows},
                    "data.tokens": {"files": text, "context": 12, "tokenizer": folder, "vocabulary": rows}}, nproc=0)
        (weights,) = (self.dir / "ckpt").glob("step-*/model.safetensors")
        return safetensors(weights)

    def export(self, out, *args):
        r = self.run("export", "gguf", "-c", "run.ini", *args, out)
        self.equal((r.code, r.err), (0, ""), r)
        return Reader(self.dir / out)

    def test_a_model(self):
        weights = self.prepare()
        g = self.export("a.gguf")
        self.equal({k: v for k, v in g.pairs.items() if not k.startswith("tokenizer")}, {
            "general.architecture": "gpt2", "general.type": "model", "general.name": "gpt2", "general.file_type": 0,
            "general.quantization_version": 2, "gpt2.block_count": 2, "gpt2.context_length": 80, "gpt2.embedding_length": 16,
            "gpt2.feed_forward_length": 64, "gpt2.attention.head_count": 2, "gpt2.vocab_size": 480,
            "gpt2.attention.layer_norm_epsilon": struct.unpack("<f", struct.pack("<f", 1e-5))[0]})
        self.equal(len(g.tensors), len(weights))
        for name, ours, turned in (("token_embd.weight", "transformer.wte.weight", False), ("blk.1.attn_qkv.bias", "transformer.h.1.attn.c_attn.bias", False),
                                   ("blk.0.ffn_up.weight", "transformer.h.0.mlp.c_fc.weight", True), ("output_norm.weight", "transformer.ln_f.weight", False)):
            shape, values = weights[ours]
            wanted = transposed(shape, values) if turned else (tuple(shape), list(values))
            self.equal(g.floats(name), wanted, name)
        self.export("b.gguf")
        self.equal((self.dir / "a.gguf").read_bytes(), (self.dir / "b.gguf").read_bytes())

    def test_types(self):
        weights = self.prepare()
        values = list(weights["transformer.wte.weight"][1])
        values[:16] = [1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 2048, -1 - 3 / 2048, 65504.0, 65500.0, 1e-8, 2.0 ** -25, 3 * 2.0 ** -25, 6.1e-5, 5e-6, -0.0, 0.1,
                       1 / 3, -2.0 ** -24, 3.1e-8]  # halfway between two, large, without an exponent
        weights["transformer.wte.weight"] = (weights["transformer.wte.weight"][0], struct.unpack("<%df" % len(values), struct.pack("<%df" % len(values), *values)))
        write_safetensors(self.dir / "w.safetensors", weights)
        for kind, number, code in (("f16", 1, 1), ("bf16", 30, 32)):
            g = self.export(f"{kind}.gguf", "--type", kind, "--checkpoint", self.dir / "w.safetensors")
            self.equal(g.pairs["general.file_type"], code)
            self.equal({n for n, t in g.tensors.items() if t[1] == 0},
                       {n for n in g.tensors if n.endswith((".bias", "_norm.weight", "position_embd.weight"))})
            self.equal(g.tensors["token_embd.weight"][1], number)
            self.equal(g.floats("token_embd.weight")[1], rounded(weights["transformer.wte.weight"][1], kind), kind)

    def test_the_tokenizer(self):
        self.prepare()
        g = self.export("a.gguf").pairs
        tree = json.loads((TOKENIZERS / "gpt2.json").read_text())
        self.equal((g["tokenizer.ggml.model"], g["tokenizer.ggml.pre"]), ("gpt2", "gpt-2"))
        self.equal([g["tokenizer.ggml.tokens"][i] for i in tree["model"]["vocab"].values()], list(tree["model"]["vocab"]))
        self.equal(g["tokenizer.ggml.merges"], [" ".join(m) for m in tree["model"]["merges"]])
        types = dict(zip(g["tokenizer.ggml.tokens"], g["tokenizer.ggml.token_type"]))
        self.equal((types["<s>"], types["<new>"], types["a"], types["[PAD479]"]), (3, 4, 1, 5))
        self.equal((g["tokenizer.ggml.bos_token_id"], g["tokenizer.ggml.eos_token_id"], g["tokenizer.ggml.add_bos_token"]), (1, 2, True))
        for name, pre in (("llama3", "llama-bpe"), ("llama4", "llama4"), ("qwen2", "qwen2"), ("deepseek", "deepseek-v3"), ("starcoder", "smollm")):
            self.equal(self.export("b.gguf", "--tokenizer", self.own(name)).pairs["tokenizer.ggml.pre"], pre)
        g = self.export("c.gguf", "--tokenizer", "").pairs
        self.equal([v for k, v in g.items() if k.startswith("tokenizer")], ["none"])

    def own(self, name):
        folder = self.dir / name
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_bytes((TOKENIZERS / f"{name}.json").read_bytes())
        return folder

    def test_tokenizers_with_scores(self):
        """LLaMA 2's kind: an earlier merge has a higher score; and SentencePiece's own file."""
        self.prepare()
        g = self.export("a.gguf", "--tokenizer", self.own("llama2")).pairs
        tree = json.loads((TOKENIZERS / "llama2.json").read_text())["model"]
        scores, types = (dict(zip(g["tokenizer.ggml.tokens"], g["tokenizer.ggml." + k])) for k in ("scores", "token_type"))
        self.equal((g["tokenizer.ggml.model"], "tokenizer.ggml.merges" in g), ("llama", False))
        first, last = "".join(tree["merges"][0]), "".join(tree["merges"][-1])
        self.equal((scores[first], scores[last] < scores[first], types["<0x0A>"], types["<unk>"]), (-1.0, True, 6, 3))
        folder = self.dir / "pieces"
        folder.mkdir()
        model = (SRC / "tests/fuzz/corpus/pieces/prefix").read_bytes()
        (folder / "tokenizer.model").write_bytes(model[2:2 + struct.unpack("<H", model[:2])[0]])
        g = self.export("b.gguf", "--tokenizer", folder).pairs
        self.equal(g["tokenizer.ggml.tokens"][:4], ["<unk>", "<s>", "</s>", "<0x00>"])
        self.equal(g["tokenizer.ggml.token_type"][:4], [2, 3, 3, 6])
        self.equal((g["tokenizer.ggml.scores"][260], g["tokenizer.ggml.tokens"][260], g["tokenizer.ggml.add_space_prefix"]), (-2.0, "a", False))

    def adapter(self, **config):
        folder = self.dir / "adapter"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 8, "fan_in_fan_out": True, **config}))
        name = "base_model.model.transformer.h.1.mlp.c_fc.lora_%s.weight"
        tensors = {name % "A": ([2, 16], [0.25 * ((i * 7) % 13 - 6) for i in range(32)]), name % "B": ([64, 2], [0.25 * ((i * 5) % 11 - 5) for i in range(128)])}
        write_safetensors(folder / "adapter_model.safetensors", tensors)
        return folder, {k.split("lora_")[1][0].lower(): v for k, v in tensors.items()}

    def test_an_adapter(self):
        self.prepare()
        folder, tensors = self.adapter()
        g = self.export("a.gguf", "--adapter", folder)
        self.equal(g.pairs, {"general.architecture": "gpt2", "general.type": "adapter", "general.name": "gpt2", "general.file_type": 0,
                             "general.quantization_version": 2, "adapter.type": "lora", "adapter.lora.alpha": 8.0})
        for which, (shape, values) in tensors.items():
            self.equal(g.floats(f"blk.1.ffn_up.weight.lora_{which}"), (tuple(shape), values))
        self.adapter(use_rslora=True)
        self.equal(round(self.export("b.gguf", "--adapter", folder).pairs["adapter.lora.alpha"], 4), round(8 * 2 ** 0.5, 4))

    def test_errors(self):
        self.prepare()
        run = ("export", "gguf", "-c", "run.ini")
        self.fails(self.run(*run, "--type", "q4", "a"), 2, "f32, f16 or bf16")
        self.fails(self.run(*run, "--tokenizer", "nowhere", "a"), 10, "nowhere")
        self.fails(self.run(*run, "--tokenizer", self.own("slow"), "a"), 2, "splits text", "name another with --tokenizer")
        self.fails(self.run(*run, "--adapter", "nowhere", "a"), 10, "adapter_config.json")
        folder, _ = self.adapter()
        a, b = (f"base_model.model.transformer.h.1.mlp.c_fc.lora_{x}.weight" for x in "AB")
        for tensors, *details in (({a: ([2, 16], [0.5] * 32), b: ([63, 2], [0.5] * 126)}, f"{b} is 63 x 2", "64 features out"),
                                  ({a: ([2, 17], [0.5] * 34), b: ([64, 2], [0.5] * 128)}, f"{a} is 2 x 17", "16 features in"),
                                  ({a: ([2, 16], [0.5] * 32), b: ([64, 3], [0.5] * 192)}, f"{a} is of rank 2 and {b} of rank 3"),
                                  ({a: ([2, 16], [0.5] * 32)}, f"{b} is not")):
            write_safetensors(folder / "adapter_model.safetensors", tensors)
            self.fails(self.run(*run, "--adapter", folder, "a"), 10, *details, "look for the")
        self.adapter(r=3)
        self.fails(self.run(*run, "--adapter", folder, "a"), 10, f"{a} is of rank 2", '"r" of adapter_config.json is 3')
        # what can be known beforehand is said before the model is read
        self.fails(self.run(*run, "--type", "q4", "--checkpoint", "nowhere", "a"), 2, "f32, f16 or bf16")
        self.fails(self.run(*run, "--tokenizer", "gone", "--checkpoint", "nowhere", "a"), 10, 'tokenizer "gone" cannot be read')
        self.fails(self.run(*run, "--adapter", "gone", "--checkpoint", "nowhere", "a"), 10, "gone/adapter_config.json")
        self.fails(self.run("export", "torch", "-c", "run.ini", "--type", "f16", "a"), 2, "--type, --tokenizer and --adapter go with gguf, not torch")
        folder, _ = self.adapter(modules_to_save=["lm_head"])
        self.fails(self.run(*run, "--adapter", folder, "a"), 2, "merge the adapter")
        self.fails(self.run(*run, "/proc/none/x.gguf"), 8, "/proc/none/x.gguf")
        tree = json.loads((TOKENIZERS / "gpt2.json").read_text())
        for token, detail in (({"content": "<late>", "special": True}, '"<late>" lacks its "id"'), ({"id": 470}, 'lacks its "content"'),
                              ({"id": "470", "content": "<late>"}, '"<late>" lacks its "id"')):
            (self.dir / "tok/tokenizer.json").write_text(json.dumps({**tree, "added_tokens": [token]}))
            self.fails(self.run(*run, "a"), 10, "tokenizer.json", detail, "download the file again")
        (self.dir / "tok/tokenizer.json").write_text("{}")
        self.fails(self.run(*run, "a"), 2, "tokenizer.json")
        self.train({"checkpoint": {"dir": self.dir / "other"}, "data.synthetic": {"samples": 32}}, nproc=0, name="mlp.ini")
        self.fails(self.run("export", "gguf", "-c", "mlp.ini", "a"), 2, "llama.cpp has GPT-2, LLaMA")

    def llama(self, kind, **config):
        """A folder as Hugging Face writes it, of numbers that follow from their place, which bf16 has."""
        folder = self.dir / f"hf_{len(list(self.dir.glob('hf_*')))}"
        folder.mkdir()
        heads, kv, dim, width, hidden, rows = 4, 2, config.get("head_dim", 16), 64, 96, 480
        (folder / "config.json").write_text(json.dumps({
            "architectures": [kind.capitalize() + "ForCausalLM"], "model_type": kind, "vocab_size": rows, "hidden_size": width,
            "intermediate_size": hidden, "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", **config}))
        shapes = {"model.embed_tokens.weight": (rows, width), "model.norm.weight": (width,), "lm_head.weight": (rows, width)}
        for i in range(2):
            q, k = heads * dim, kv * dim
            layer = {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,), "self_attn.q_proj.weight": (q, width),
                     "self_attn.k_proj.weight": (k, width), "self_attn.v_proj.weight": (k, width), "self_attn.o_proj.weight": (width, q),
                     "mlp.gate_proj.weight": (hidden, width), "mlp.up_proj.weight": (hidden, width), "mlp.down_proj.weight": (width, hidden)}
            if kind == "qwen2" or config.get("attention_bias"):
                layer.update({"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (k,), "self_attn.v_proj.bias": (k,)})
            if config.get("attention_bias"):
                layer.update({"self_attn.o_proj.bias": (width,)})
            if config.get("mlp_bias"):
                layer.update({"mlp.gate_proj.bias": (hidden,), "mlp.up_proj.bias": (hidden,), "mlp.down_proj.bias": (width,)})
            if kind == "qwen3":
                layer.update({"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)})
            shapes.update({f"model.layers.{i}.{n}": s for n, s in layer.items()})
        rng = random.Random(4)
        tensors = {n: (list(s), [(n.endswith("norm.weight")) + rng.randrange(-64, 65) / 256 for _ in range(math.prod(s))]) for n, s in shapes.items()}
        tensors["lm_head.weight"][1][:width] = [0.0] * width  # the token of the end is never the likeliest
        write_safetensors(folder / "model.safetensors", tensors)
        (self.dir / "llama.ini").write_text(
            f"[train]\nthreads = 1\n[model]\nplugin = llama\n[model.llama]\nconfig = {folder}\n[data]\nplugin = synthetic\n[data.synthetic]\nsamples = 8\n"
            f"shape = 80\nvocabulary = 480\n[checkpoint]\ninit_from = {folder}\n")
        return tensors

    KINDS = {"llama": {}, "llama3": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                                                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
             "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
             "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}},
             "biases": {"attention_bias": True, "mlp_bias": True}, "attention_bias": {"attention_bias": True}, "mlp_bias": {"mlp_bias": True},
             "qwen2": {}, "qwen3": {"head_dim": 32}}

    def each_llama(self):
        if self.run("plugins", "model.llama").code != 0:
            raise Skip("no model llama in this build")
        for name, config in self.KINDS.items():
            yield name, self.llama(name if name.startswith("qwen") else "llama", **config)

    @seldom
    def test_llama(self):
        for name, tensors in self.each_llama():
            r = self.run("export", "gguf", "-c", "llama.ini", "a.gguf")
            self.equal(r.code, 0, r)
            g = Reader(self.dir / "a.gguf")
            arch, dim = g.pairs["general.architecture"], 32 if name == "qwen3" else 16
            self.equal(arch, name if name.startswith("qwen") else "llama")
            self.equal([g.pairs[f"{arch}.{k}"] for k in ("context_length", "attention.head_count_kv", "rope.dimension_count", "feed_forward_length")],
                       [256, 2, dim, 96])
            self.equal((g.pairs.get(f"{arch}.rope.scaling.type"), g.pairs.get(f"{arch}.rope.scaling.factor")),
                       {"linear": ("linear", 2.0), "yarn": ("yarn", 4.0)}.get(name, (None, None)))
            self.equal("blk.1.attn_q.bias" in g.tensors, name in ("qwen2", "biases", "attention_bias"))
            self.equal("blk.1.attn_output.bias" in g.tensors, name in ("biases", "attention_bias"))
            self.equal("blk.1.ffn_gate.bias" in g.tensors, name in ("biases", "mlp_bias"))
            self.equal("blk.1.attn_k_norm.weight" in g.tensors, name == "qwen3")
            for part, heads in (("q", 4), ("k", 2)):
                shape, values = tensors[f"model.layers.1.self_attn.{part}_proj.weight"]
                rows = [values[i * 64:i * 64 + 64] for i in range(shape[0])]
                if arch == "llama":
                    rows = [rows[h * dim + i % 2 * dim // 2 + i // 2] for h in range(heads) for i in range(dim)]
                self.equal(g.floats(f"blk.1.attn_{part}.weight"), (tuple(shape), [v for row in rows for v in row]), name)
                if arch == "llama" and "blk.1.attn_q.bias" in g.tensors:
                    shape, values = tensors[f"model.layers.1.self_attn.{part}_proj.bias"]
                    self.equal(g.floats(f"blk.1.attn_{part}.bias"), (tuple(shape), [values[h * dim + i % 2 * dim // 2 + i // 2] for h in range(heads) for i in range(dim)]))
            self.equal("rope_freqs.weight" in g.tensors, name == "llama3")
            if name == "llama3":
                factors = [1 / f for f in self.llama3_shares()]
                self.check(all(abs(a - b) < 1e-5 * b for a, b in zip(g.floats("rope_freqs.weight")[1], factors)), (g.floats("rope_freqs.weight"), factors))

    def test_biases_that_llama_cpp_does_not_have(self):
        if self.run("plugins", "model.llama").code != 0:
            raise Skip("no model llama in this build")
        self.llama("qwen3", head_dim=32, attention_bias=True)
        self.fails(self.run("export", "gguf", "-c", "llama.ini", "a.gguf"), 2, "qwen3", "no tensor", "model.layers.0.self_attn.q_proj.bias")

    def llama3_shares(self):
        """What llama3 makes of each frequency, as a share (transformers, _compute_llama3_parameters)."""
        shares = []
        for i in range(8):
            length = 2 * math.pi * 500000.0 ** (2 * i / 16)
            smooth = (64 / length - 1.0) / (4.0 - 1.0)
            shares.append(1.0 if length < 64 / 4 else 1 / 8 if length > 64 else (1 - smooth) / 8 + smooth)
        return shares

    def continued(self, out, ini, *args):
        r = self.run("generate", "-c", ini, *args, "--prompt-tokens", "70,80,90", "--tokens", "64", "--temperature", "0")
        self.equal(r.code, 0, r)
        live = self.finish(self.spawn([PYTHON, SRC / "tests/integration/support/gguf_live.py", self.dir / out, "70,80,90", "64"]))
        self.equal(live.code, 0, live)
        self.equal(json.loads(live.out.strip().splitlines()[-1]), [int(x) for x in r.out.split()][3:], f"{ini} {out}")

    @long_case
    def test_llama_cpp_continues_as_generate_does(self):
        if SANITIZED:
            raise Skip("a library under the sanitizers is not for Python")
        if self.finish(self.spawn([PYTHON, "-c", "import xllamacpp"])).code != 0:
            raise Skip("no xllamacpp (DDP_GGUF_PYTHON names a Python that has it)")
        weights = self.prepare()
        rng = random.Random(6)
        drawn = {n: (s, [n.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) + rng.randrange(-64, 65) / 256 for _ in v])
                 for n, (s, v) in weights.items()}
        drawn["transformer.wte.weight"][1][:16] = [0.0] * 16
        write_safetensors(self.dir / "w.safetensors", drawn)
        words = {"<|endoftext|>": 0, "t": 1, "1": 2, "t1": 3, **{f"t{i}": i for i in range(4, 480)}}  # each is whole text
        tiny = self.dir / "tiny"
        tiny.mkdir()
        (tiny / "vocab.json").write_text(json.dumps(words))
        (tiny / "merges.txt").write_text("#version: 0.2\nt 1\n")
        for kind in ("f32", "f16"):
            self.export("a.gguf", "--tokenizer", tiny, "--type", kind, "--checkpoint", self.dir / "w.safetensors")
            self.continued("a.gguf", "run.ini", "--checkpoint", self.dir / "w.safetensors")
        for _ in self.each_llama():
            r = self.run("export", "gguf", "-c", "llama.ini", "--tokenizer", tiny, "b.gguf")
            self.equal(r.code, 0, r)
            self.continued("b.gguf", "llama.ini")


if __name__ == "__main__":
    sys.exit(harness.main(Gguf))
