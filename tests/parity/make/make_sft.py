#!/usr/bin/env python3
"""Writes tests/parity/vectors/sft: conversations in each format, and of what LLaMA-Factory makes of them hashes and the
first samples, for tests/unit/dataset/test_sft.c. make_sft.py [FOLDER TOKENIZER_FOLDER..]: with other tokenizers. Needs
`pip install llamafactory transformers torch xxhash` (written with llamafactory 0.9.5, transformers 5.24)."""
import importlib.machinery
import json
import os
import pathlib
import random
import shutil
import sys
import types

os.environ["DISABLE_VERSION_CHECK"] = "1"
for name in ("torchaudio",):  # of its images and sounds nothing is used
    try:
        __import__(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)

import numpy
import xxhash
from llamafactory.data.converter import AlpacaDatasetConverter, SharegptDatasetConverter
from llamafactory.data.formatter import EmptyFormatter, StringFormatter
from llamafactory.data.parser import DatasetAttr
from llamafactory.data.processor.pretrain import PretrainDatasetProcessor
from llamafactory.data.processor.supervised import PackedSupervisedDatasetProcessor, SupervisedDatasetProcessor
from llamafactory.data.template import TEMPLATES, get_template_and_fix_tokenizer, register_template
from llamafactory.hparams import DataArguments
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/parity/vectors/sft"
BUILTIN = ["default", "alpaca", "chatml", "llama2", "llama3", "qwen", "qwen3_nothink", "smollm2"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"]
OWN = {"user": [{"token": "<|im_start|>"}, "\n", "{{content}} ({{idx}})", {"token": "<|im_end|>"}],
       "assistant": ["\n", "{{content}}"], "prefix": [{"special": "bos_token"}], "efficient_eos": True,
       "observation": ["<tool>{{content}}"], "stop_words": ["<|im_start|>"]}
register_template(name="own", format_user=StringFormatter(slots=[{"token": "<|im_start|>"}, "\n", "{{content}} ({{idx}})",
                                                                 {"token": "<|im_end|>"}]),
                  format_assistant=StringFormatter(slots=["\n", "{{content}}"]),
                  format_observation=StringFormatter(slots=["<tool>{{content}}"]),
                  format_prefix=EmptyFormatter(slots=[{"bos_token"}]), efficient_eos=True, stop_words=["<|im_start|>"])
register_template(name="bare", efficient_eos=True)

# ---- data
WORDS = ("the a model of data train loss learning rate token answer question why does it how many steps 7 1234 3.5 café naïve 你好 "
         "🎉 don't we'll (x) f(x)=1; <s> </s> <|im_end|> {{content}} {{idx}} \n \n\n  \t <image>").split(" ")


def text(rng, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(most)))


def alpaca(rng):
    row = {"instruction": text(rng, 20), "input": text(rng, 12) if rng.random() < .5 else "", "output": text(rng, 40)}
    if rng.random() < .3:
        row["system"] = text(rng, 6)
    if rng.random() < .3:
        row["history"] = [[text(rng, 9), text(rng, 12)] for _ in range(rng.randrange(4))]
    return row


def chat(rng, keys, roles, key):
    turns = [] if rng.random() < .6 else [{keys[0]: roles[3], keys[1]: text(rng, 8)}]
    for _ in range(rng.randrange(1, 5)):
        turns.append({keys[0]: roles[0] if rng.random() < .9 else roles[2], keys[1]: text(rng, 14)})
        turns.append({keys[0]: roles[1], keys[1]: text(rng, 25)})
    row = {key: turns}
    if rng.random() < .2:
        row["system"] = text(rng, 5)
    return row


def write_data():
    rng = random.Random(11)
    rows = [alpaca(rng) for _ in range(200)]
    (FOLDER / "alpaca.json").write_text(json.dumps(rows, ensure_ascii=False, indent=0) + "\n")
    named = [{"q": r["instruction"], "a": r["output"]} for r in rows[:40]]
    (FOLDER / "named.jsonl").write_text("".join(json.dumps(r) + "\n" for r in named))
    for name, keys, roles, key in (("sharegpt", ("from", "value"), ("human", "gpt", "observation", "system"), "conversations"),
                                   ("messages", ("role", "content"), ("user", "assistant", "tool", "system"), "messages")):
        rows = [chat(rng, keys, roles, key) for _ in range(80)]
        (FOLDER / (name + ".jsonl")).write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    (FOLDER / "text.jsonl").write_text("".join(json.dumps({"text": text(rng, 60)}) + "\n" for _ in range(60)))
    (FOLDER / "own.json").write_text(json.dumps(OWN) + "\n")
    (FOLDER / "bare.json").write_text(json.dumps({"efficient_eos": True}) + "\n")


def add_tokens(tree, contents):
    """As a model's tokenizer.json has them."""
    known = {t["content"] for t in tree["added_tokens"]}
    top = max([max(tree["model"]["vocab"].values())] + [t["id"] for t in tree["added_tokens"]])
    for content in contents:
        if content not in known:
            top += 1
            tree["added_tokens"].append({"id": top, "content": content, "single_word": False, "lstrip": False,
                                         "rstrip": False, "normalized": False, "special": True})


def write_tokenizers():
    for name in ("llama3", "llama2"):
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        tree = json.loads((ROOT / "tests/parity/vectors/tokenizers" / (name + ".json")).read_text())
        add_tokens(tree, SPECIAL)
        (folder / "tokenizer.json").write_text(json.dumps(tree, ensure_ascii=False, separators=(",", ":")) + "\n")
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        if name == "llama2":
            names["pad_token"] = "<unk>"
        (folder / "tokenizer_config.json").write_text(json.dumps(names) + "\n")
    return ["llama3", "llama2"]


def copy_tokenizers(folders):
    for folder in map(pathlib.Path, folders):
        to = FOLDER / folder.name
        to.mkdir(parents=True, exist_ok=True)
        tree = json.loads((folder / "tokenizer.json").read_text())
        add_tokens(tree, SPECIAL)
        (to / "tokenizer.json").write_text(json.dumps(tree, ensure_ascii=False))
        shutil.copy(folder / "tokenizer_config.json", to)
        names = json.loads((to / "tokenizer_config.json").read_text())
        keep = {k: names[k] for k in ("bos_token", "eos_token", "pad_token") if names.get(k)}
        (to / "tokenizer_config.json").write_text(json.dumps(keep))
    return [pathlib.Path(f).name for f in folders]


# ---- LLaMA-Factory
ATTRS = {
    "alpaca": dict(system="system", history="history"),
    "sharegpt": dict(messages="conversations", system="system"),
    "messages": dict(messages="messages", role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant",
                     observation_tag="tool", system="system"),
    "text": dict(prompt="text", query=None, response=None),
    "named": dict(prompt="q", query=None, response="a"),
}
FILES = {"alpaca": "alpaca.json", "sharegpt": "sharegpt.jsonl", "messages": "messages.jsonl", "text": "text.jsonl",
         "named": "named.jsonl"}


def load(kind):
    raw = (FOLDER / FILES[kind]).read_text()
    rows = json.loads(raw) if raw[0] == "[" else [json.loads(line) for line in raw.split("\n") if line]
    attr = DatasetAttr("file", dataset_name=kind, **ATTRS[kind])
    columns = [getattr(attr, c) for c in ("system", "history", "prompt", "query", "response", "messages") if getattr(attr, c)]
    for row in rows:  # as datasets does
        for c in columns:
            row.setdefault(c, None)
    converter = (AlpacaDatasetConverter if kind in ("alpaca", "text", "named") else SharegptDatasetConverter)(attr, None)
    return [converter(row) for row in rows]


def tokenizer_of(name):
    names = json.loads((FOLDER / name / "tokenizer_config.json").read_text())
    names = {k: v["content"] if isinstance(v, dict) else v for k, v in names.items()}
    return PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / name / "tokenizer.json"), **names)


def arguments(case):
    args = DataArguments(template=case["template"], cutoff_len=case["length"], train_on_prompt=case.get("train_on_prompt", False),
                         mask_history=case.get("mask_history", False), packing=case.get("packing", "no") != "no" and case["data"] != "text",
                         neat_packing=case.get("packing") == "separate")
    args.packing = case.get("packing", "no") != "no"  # with which stage pt comes later, when cutoff_len is not changed
    args.default_system = case.get("default_system")
    return args


def samples(case):
    kind = case["data"]
    args, tokenizer = arguments(case), tokenizer_of(case["tokenizer"])
    rows, size = load(kind), case.get("pack_rows", 1000)
    packing = case.get("packing", "no")
    if kind == "text":
        args.template = None
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        processor = PretrainDatasetProcessor(template=None, tokenizer=tokenizer, processor=None, data_args=args)
    else:
        saved = TEMPLATES[args.template].default_system
        template = get_template_and_fix_tokenizer(tokenizer, args)
        cls = PackedSupervisedDatasetProcessor if packing != "no" else SupervisedDatasetProcessor
        processor = cls(template=template, tokenizer=tokenizer, processor=None, data_args=args)
    out = []
    for at in range(0, len(rows), size):
        batch = rows[at:at + size]
        made = processor.preprocess_dataset({k: [r[k] for r in batch] for k in batch[0]})
        for i in range(len(made["input_ids"])):
            ids = made["input_ids"][i]
            labels = made["labels"][i] if kind != "text" else list(ids)
            if len(labels) != len(ids):  # an empty prompt with efficient_eos, after the first: a mistake there
                raise ValueError(case)
            out.append(arrange(ids, labels, made, i, case, tokenizer.pad_token_id, kind))
    if kind != "text":
        TEMPLATES[args.template].default_system = saved
    return out


def arrange(ids, labels, made, i, case, pad, kind):
    """The fields of this engine: the target of a position is the label of the next one."""
    size, packing = case["length"], case.get("packing", "no")
    ids, labels = list(ids) + [pad] * (size + 1 - len(ids)), list(labels) + [-100] * (size + 1 - len(labels))
    fields = [ids[:size], labels[1:size + 1]]
    if packing != "no" and kind != "text":
        fields.append(made["position_ids"][i][:size])
    if packing == "separate":
        segment = made["attention_mask"][i]
        fields[1] = [-100 if k + 1 < size and segment[k + 1] != segment[k] else fields[1][k] for k in range(size)]
        fields.append(segment[:size])
    return fields


def cases(tokenizers):
    out = []
    for tokenizer in tokenizers:
        add = lambda **k: out.append(dict(k, tokenizer=tokenizer))
        for template in BUILTIN + ["own"]:
            for kind in ("alpaca", "sharegpt", "messages"):
                add(data=kind, template=template, length=160)
        for template in ("llama3", "qwen", "default", "own"):
            for kind in ("alpaca", "sharegpt"):
                for length in (24, 96, 512):
                    add(data=kind, template=template, length=length, mask_history=True)
                    if template != "own":
                        add(data=kind, template=template, length=length, train_on_prompt=True)
                    for packing in ("yes", "separate"):
                        add(data=kind, template=template, length=length, packing=packing, pack_rows=64)
        add(data="messages", template="llama2", length=256, packing="separate", train_on_prompt=True)
        add(data="messages", template="own", length=256, packing="separate", mask_history=True, pack_rows=7)
        add(data="named", template="bare", length=64)
        add(data="named", template="bare", length=64, packing="separate")
        add(data="named", template="alpaca", length=64, default_system="Be brief.")
        add(data="text", template="default", length=64)
        add(data="text", template="default", length=64, packing="yes", pack_rows=25)
    return out


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_data()
    tokenizers = copy_tokenizers(sys.argv[2:]) if len(sys.argv) > 2 else write_tokenizers()
    done = []
    for case in cases(tokenizers):
        made = samples(case)
        flat = numpy.array([v for sample in made for field in sample for v in field], dtype="<i8")
        done.append(dict(case, samples=len(made), hash="%016x" % xxhash.xxh3_64_intdigest(flat.tobytes())))
        if len(sys.argv) > 2:  # to find out what differs
            flat.tofile(FOLDER / ("case%d.bin" % (len(done) - 1)))
    (FOLDER / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in done) + "\n]\n")
    print(len(done), "cases,", sum(p.stat().st_size for p in FOLDER.rglob("*") if p.is_file()), "bytes")


if __name__ == "__main__":
    main()
