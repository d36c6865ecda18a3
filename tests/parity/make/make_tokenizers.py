#!/usr/bin/env python3
"""Writes tests/parity/vectors/tokenizers: small tokenizers of each kind of pipeline, trained here with Hugging Face's
tokenizers, and what that library makes of texts, for tests/unit/dataset/test_tokenizer.c. make_tokenizers.py [FOLDER]
[VOCABULARY] [KIND ..]. Needs `pip install tokenizers` (written with 0.23.3) and the files of this tree as the text to train on."""
import json
import pathlib
import random
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/parity/vectors/tokenizers"
VOCABULARY = int(sys.argv[2]) if len(sys.argv) > 2 else 0
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+")
LLAMA3 = GPT4 % "{1,3}"
QWEN2 = GPT4 % ""
LLAMA4 = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
          r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SLOW = r"(?<=[a-z])\d+|\w+?e\b|\S+|\s+"  # what the own matcher does not have
TEXTS = [
    "", " ", "a", "Hello world", "  two  spaces   three\n\n\nlines\r\n\tand tabs \n", "It's we'll THEY'RE I'd x'S don't",
    "0 12 345 6789 1234567890 3.14e-5 ½ ² Ⅷ ٣", "naïve café e\u0301 \u1e9b\u0323 ﬁ ＡＢＣ Å İstanbul ŒUVRE ß",
    "你好，世界。こんにちは カタカナ 한국어 ᄒ\u1161\u11ab", "👩\u200d👩\u200d👧 🎉🎉 \U0001f1e9\U0001f1ea", "mot\u00a0à\u2003mot\u3000x\u200b\u2028y",
    "<s>begin</s> <mask>  x <mask>y <new> a<new>b renew<new>", "<|user|>\nhi<|end|>\n", "a<0x0A>b \u2581\u2581x \u2581",
    "int main(void)\n{\n    return f(x) + 1; /* ok */\n}\n", "\u0000\u0001\u007f\u0085", "ab" * 40 + " " * 70 + "z" * 90,
]
NEWER = ["an\U00010d71 \U00010d51a 12\U00010d41 an\u0897 .\u1b7f. \u2427! we'll\U00010d71 WE'LL an\U000323af"]  # Unicode 15 and 16


def sources():
    names = sorted(list((ROOT / "docs").glob("*.md")) + list((ROOT / "core/train").glob("*.c")))
    return [p.read_text() for p in names] + [text.replace("\0", "") for text in TEXTS * 3]


def train(t, alphabet=(), size=0, special=("<unk>", "<s>", "</s>"), more=()):
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY or size, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=list(alphabet), limit_alphabet=(256 if alphabet else 120) if not VOCABULARY else 4000)
    t.train_from_iterator(sources() + list(more), trainer)
    t.add_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("<new>", single_word=True, normalized=True),
                  AddedToken("<|end|>", rstrip=True, normalized=False), AddedToken("<|user|>", special=True)])
    return t


def byte_level(pre, normalizer=None, template=False, ignore_merges=False, more=()):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    train(t, sorted(pre_tokenizers.ByteLevel.alphabet()), 420, more=more)
    steps = [processors.ByteLevel(trim_offsets=False)]
    if template:
        steps.append(processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[
            ("<s>", t.token_to_id("<s>")), ("</s>", t.token_to_id("</s>"))]))
    t.post_processor = processors.Sequence(steps)
    return t


def raw(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def fallback(prepend, fuse=True, bytes_too=True, pre=None):
    """LLaMA 2's: spaces are marks, unknown characters are bytes."""
    t = Tokenizer(models.BPE(byte_fallback=bytes_too, unk_token="<unk>", fuse_unk=fuse))
    first = ["<unk>", "<s>", "</s>"] + (["<0x%02X>" % i for i in range(256)] if bytes_too else [])
    if pre is None:
        t.normalizer = normalizers.Sequence(([normalizers.Prepend("▁")] if prepend else []) + [normalizers.Replace(" ", "▁")])
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)  # to train words
    else:
        t.pre_tokenizer = pre
    train(t, size=len(first) + 180, special=first)
    if pre is None:
        t.pre_tokenizer = None
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def plain(normalizer, pre):
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizer
    t.pre_tokenizer = pre
    return train(t, size=200)


def metaspace(scheme):
    t = fallback(False, fuse=False, bytes_too=False, pre=pre_tokenizers.Metaspace(prepend_scheme=scheme))
    t.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return t


N, P = normalizers, pre_tokenizers
KINDS = {
    "gpt2": lambda: byte_level(P.ByteLevel(add_prefix_space=False)),
    "roberta": lambda: byte_level(P.ByteLevel(add_prefix_space=True), template=True),
    "llama3": lambda: byte_level(raw(LLAMA3), template=True, ignore_merges=True),
    "llama4": lambda: byte_level(raw(LLAMA4), ignore_merges=True, more=NEWER * 1000),
    "slow4": lambda: byte_level(raw(r"(?>" + LLAMA4 + ")"), more=NEWER * 1000),  # what the own matcher does not have
    "qwen2": lambda: byte_level(raw(QWEN2), N.NFC()),
    "deepseek": lambda: byte_level(P.Sequence([
        P.Split(Regex(r"\p{N}{1,3}"), "isolated"), P.Split(Regex("[一-龥\u3040-ゟ゠-ヿ]+"), "isolated"),
        P.Split(Regex("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                      " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"), "isolated"),
        P.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "starcoder": lambda: byte_level(P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])),
    "slow": lambda: byte_level(raw(SLOW), N.Sequence([N.NFKC(), N.Replace(Regex(" {2,}"), " "), N.Strip()])),
    "llama2": lambda: fallback(True),
    "gemma": lambda: fallback(False, pre=P.Split(" ", "merged_with_previous")),
    "always": lambda: metaspace("always"),
    "first": lambda: metaspace("first"),
    "uncased": lambda: plain(N.Sequence([N.NFD(), N.Lowercase()]), P.Whitespace()),
    "pieces": lambda: plain(N.NFKD(), P.Sequence([P.WhitespaceSplit(), P.Punctuation("merged_with_next"),
                                                  P.Digits(individual_digits=False), P.Split("e", "contiguous"),
                                                  P.Split("x", "removed", invert=False)])),
}


def cases(t, more):
    rng = random.Random(5)
    pool = [c for text in TEXTS for c in text]
    texts = TEXTS + more + ["".join(rng.choice(pool) for _ in range(rng.randrange(1, 30))) for _ in range(24)]
    out = []
    for text in texts:
        ids = t.encode(text).ids
        out.append([text, ids, t.encode(text, add_special_tokens=False).ids, t.decode(ids, skip_special_tokens=False),
                    t.decode(ids, skip_special_tokens=True)])
    return out


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in KINDS.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        t = make()
        tree = json.loads(t.to_str())
        tree["added_tokens"] = [a for a in tree["added_tokens"] if not a["content"].startswith("<0x")]  # as in real files
        t = Tokenizer.from_str(json.dumps(tree))
        (FOLDER / (name + ".json")).write_text(json.dumps(tree, ensure_ascii=False, separators=(",", ":")) + "\n")
        if not VOCABULARY:
            (FOLDER / (name + ".cases")).write_text(json.dumps(cases(t, NEWER if name.endswith("4") else []), separators=(",", ":")) + "\n")
    if not VOCABULARY:
        print(sum(p.stat().st_size for p in FOLDER.iterdir()), "bytes")


if __name__ == "__main__":
    main()
