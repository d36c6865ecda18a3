"""Model llama as a user has it: a folder of Hugging Face's, in one file or in several, with config.json of either style; logits
and losses of fine-tuning against transformers' (tests/parity/make/make_llama.py), and what a folder may not ask for."""
import array
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import BUILD, SANITIZED, SRC, Case  # noqa: E402
from support import infer_library  # noqa: E402

VECTORS = SRC / "tests/parity/vectors"
STORED = json.loads((VECTORS / "llama.json").read_text())
NAMES = ("llama", "qwen2", "qwen3")
NO_MLP = {"model.mlp": None, "data.synthetic": None, "model": {"plugin": "llama"}}


def tensors_of(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    raw = path.read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    return {n: (t["dtype"], t["shape"], raw[start + t["data_offsets"][0]:start + t["data_offsets"][1]])
            for n, t in json.loads(raw[8:start]).items() if n != "__metadata__"}


def write_tensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


class Llama(Case):
    def folder(self, name, style="new", parts=1, change=()):
        """As save_pretrained writes it: config.json, and the weights in so many files."""
        folder = self.dir / f"{name}-{style}-{parts}"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**STORED[name][style], **dict(change)}))
        tensors = tensors_of(VECTORS / f"models/{name}.safetensors")
        if parts == 1:
            write_tensors(folder / "model.safetensors", tensors)
            return folder
        where = {n: f"model-{i % parts + 1:05}-of-{parts:05}.safetensors" for i, n in enumerate(tensors)}
        for file in set(where.values()):
            write_tensors(folder / file, {n: t for n, t in tensors.items() if where[n] == file})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
        return folder

    def data(self, context):
        text = self.dir / "text"
        text.write_bytes(STORED["text"].encode())
        return {"data": {"plugin": "tokens"}, "data.tokens": {"files": text, "format": "bytes", "context": context, "vocabulary": 101}}

    def layers(self, folder, context):
        return NO_MLP, self.data(context), {"model.llama": {"config": folder}, "checkpoint": {"init_from": folder}}

    # ---- what it computes ------------------------------------------------------------------------------------------------
    def test_logits(self):
        """Of each model, in one file and in three, with rope_parameters and with rope_theta and rope_scaling."""
        if SANITIZED:
            raise harness.Skip("the library is loaded into Python")
        for name in NAMES:
            expected = tensors_of(VECTORS / f"models/{name}.expected.safetensors")
            want = array.array("f", expected["eval.logits"][2])
            batch, length = expected["input"][1]
            for style, parts in (("new", 1), ("old", 3)):
                folder = self.folder(name, style, parts)
                model = infer_library.Model(BUILD, self.ini("run.ini", *self.layers(folder, length)), None)
                got = model.run(batch, expected["input"][2])
                model.close()
                self.equal(len(got), len(want))
                apart = max(abs(a - b) for a, b in zip(got, want, strict=True))
                self.check(apart < 1e-5 * max(map(abs, want)), f"{folder}: {apart}")

    def test_fine_tuning(self):
        """All parameters by AdamW: the loss of each step is transformers'."""
        for name in NAMES:
            r = self.train(*self.layers(self.folder(name), 16), {
                "train": {"epochs": STORED["steps"], "batch_size": 2},
                "optimizer": {"algorithm": "adamw", "lr": 3e-3, "weight_decay": 0.1, "momentum": None},
                "output": {"log_every": 1}}, nproc=0)
            losses = [row["loss"] for row in self.metrics(r.dir, "step")]
            self.equal(len(losses), STORED["steps"], r)
            for step, (ours, theirs) in enumerate(zip(losses, STORED[name]["losses"], strict=True)):
                self.check(abs(ours - theirs) <= 1e-4 * theirs, f"{name}, step {step}: {ours}, transformers' {theirs}")

    def test_greedy_tokens(self):
        """With keys and values kept, with a prompt of several tokens: transformers', and those of a pass over all of them."""
        for name in NAMES:
            tokens = [int(t) for t in STORED[name]["greedy"].split()]
            ini = self.ini("run.ini", *self.layers(self.folder(name), len(tokens)))
            (self.dir / "text").write_bytes(bytes(200))
            r = self.run("generate", "-c", ini, "--prompt-tokens", ",".join(map(str, tokens[:5])), "--tokens", len(tokens) - 5,
                         "--temperature", 0)
            self.equal([int(t) for t in r.out.replace(",", " ").split()], tokens, r)
            self.check("whole context" not in r.err, r)
            if SANITIZED:
                continue
            model = infer_library.Model(BUILD, ini, None)
            logits = model.run(1, array.array("q", tokens))
            model.close()
            wide = len(logits) // len(tokens)
            rows = [logits[i * wide:(i + 1) * wide] for i in range(len(tokens))]
            self.equal([row.index(max(row)) for row in rows[4:-1]], tokens[5:], name)

    def test_sizes_alone(self):
        """Without a file, from scratch; options go before what the file says."""
        sizes = {"vocabulary": 101, "width": 16, "intermediate": 24, "layers": 1, "heads": 4, "kv_heads": 2}
        r = self.train(NO_MLP, self.data(8), {"model.llama": sizes, "train": {"epochs": 30, "batch_size": 2}}, nproc=0)
        self.check(r.summary["final_loss"] < 4.3, r)
        self.equal(r.summary["parameters"], 2 * 101 * 16 + 3 * 16 + 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24)
        r = self.run("model", "-c", self.ini("m.ini", NO_MLP, self.data(8), {"model.llama": {
            "config": self.folder("llama"), "layers": 1, "tied": "yes", "bias": "all", "qk_norm": "yes"}}))
        self.check("model.layers.1" not in r.out and r.code == 0, r)
        for line in ("model.layers.0.self_attn.q_norm", "model.layers.0.self_attn.o_proj", "lm_head"):
            self.check(line in r.out, r)

    def test_packed_samples(self):
        """Conversations that share a sample and do not see each other have the loss that they have by themselves."""
        if "dataset  sft " not in self.run("plugins").out:
            raise harness.Skip("dataset sft is not built")
        rows = (("one", "two three"), ("hello there", "a b c d e f g"), ("x", "y"), ("what is this", "it is it"))
        (self.dir / "rows.json").write_text(json.dumps([{"instruction": q, "output": a} for q, a in rows]))
        losses = {}
        for packing, length, batch in (("no", 256, 4), ("separate", 1024, 1), ("yes", 1024, 1)):
            r = self.train(NO_MLP, {
                "model.llama": {"vocabulary": 2000, "width": 32, "intermediate": 48, "layers": 2, "heads": 4, "kv_heads": 2},
                "data": {"plugin": "sft"}, "data.sft": {"files": "rows.json", "template": "llama3", "length": length,
                                                        "packing": packing, "tokenizer": VECTORS / "sft/llama3"},
                "train": {"batch_size": batch, "epochs": 1}, "output": {"log_every": 1}}, nproc=0, name=packing)
            losses[packing], = (row["loss"] for row in self.metrics(r.dir, "step"))
        self.check(abs(losses["separate"] - losses["no"]) < 1e-6 * losses["no"], losses)
        self.check(abs(losses["yes"] - losses["no"]) > 1e-4, losses)

    def test_the_example(self):
        """conf/llama-smol.ini with a small model and a short text in place of its own."""
        text, folder = self.dir / "long", self.folder("llama")
        text.write_bytes(STORED["text"].encode() * 40)
        sets = [x for k, v in {"model.llama.config": folder, "checkpoint.init_from": folder, "checkpoint.dir": self.dir / "ckpt",
                               "output.dir": self.dir / "out", "train.max_steps": 3, "optimizer.warmup_steps": 1,
                               **{f"{s}.tokens.{k}": v for s in ("data", "eval") for k, v in {
                                   "files": text, "tokenizer": "", "vocabulary": 101, "context": 16}.items()}}.items()
                for x in ("--set", f"{k}={v}")]
        r = self.run("-c", SRC / "conf/llama-smol.ini", *sets, "--nproc", 2)
        self.equal(r.code, 0, r)
        self.check((self.dir / "ckpt/step-00000003/model.safetensors").exists())

    # ---- mistakes --------------------------------------------------------------------------------------------------------
    def bad(self, folder, *parts, code=2):
        self.fails(self.run("-c", self.ini("bad.ini", *self.layers(folder, 16)), "--check"), code, *parts)

    def test_what_a_config_may_not_ask_for(self):
        for change, *parts in (
                ({"model_type": "gemma"}, '"model_type": "gemma" is not here', "llama, mistral, qwen2"),
                ({"hidden_act": "gelu"}, '"hidden_act"', '"gelu" is not here'),
                ({"rope_parameters": {"rope_type": "longrope"}}, '"rope_type": "longrope" is not here'),
                ({"rope_parameters": {"rope_type": "linear"}}, '"factor": it is missing'),
                ({"rope_parameters": [1]}, '"rope_parameters": it must be an object'),
                ({"partial_rotary_factor": 0.5}, '"partial_rotary_factor"'),
                ({"quantization_config": {}}, '"quantization_config"', "quantised"),
                ({"use_sliding_window": True}, '"sliding_window"', "window"),
                ({"layer_types": ["sliding_attention"]}, '"layer_types"', "full_attention"),
                ({"hidden_size": None}, '"hidden_size": it is missing'), ({"hidden_size": "48"}, '"hidden_size"', "a number"),
                ({"num_hidden_layers": 1e9}, '"num_hidden_layers"', "is not from 1 to 512"),
                ({"num_attention_heads": 2.5}, '"num_attention_heads"', "whole number"),
                ({"num_key_value_heads": 3}, '"num_key_value_heads"', "divide"),
                ({"tie_word_embeddings": 1}, '"tie_word_embeddings"', "true or false"),
                ({"model_type": "a\x1b[31m"}, '"model_type": "a?[31m"'),
                ({"head_dim": 7}, "rope", "7 features", "even")):
            self.bad(self.folder("llama", change=change), *parts)
        folder = self.folder("llama")
        (folder / "config.json").write_text("{")
        self.bad(folder, "config.json:1: not JSON")
        (folder / "config.json").write_text("[]")
        self.bad(folder, "config.json: it is no JSON object")
        (folder / "config.json").unlink()
        self.bad(folder, "cannot open", "config.json", "No such file")
        r = self.run("-c", self.ini("x.ini", NO_MLP, self.data(8), {"model.llama": {"width": 8}}), "--check")
        self.fails(r, 2, "vocabulary is not set", "[model.llama] config = FOLDER")
        r = self.run("-c", self.ini("x.ini", *self.layers(self.folder("qwen2"), 16), {"model.llama": {"context": 12}}), "--check")
        self.fails(r, 2, "sequences of 16 tokens", "context is 12")

    def test_another_models_weights(self):
        folder = self.folder("qwen2", parts=2)
        layers = (*self.layers(folder, 16), {"train": {"batch_size": 2}})
        r = self.train(*layers, {"model.llama": {"intermediate": 40, "bias": "none"}}, nproc=0, expect=8)
        self.fails(r, 8, "6 of another shape", "gate_proj.weight: f32 48x32 there in model-0000", "f32 40x32 here",
                   "6 unexpected")
        r = self.train(*layers, {"model.llama": {"tied": "no"}}, nproc=0, expect=8)
        self.fails(r, 8, "1 missing (lm_head.weight)")


if __name__ == "__main__":
    sys.exit(harness.main(Llama))
