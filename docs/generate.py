#!/usr/bin/env python3
"""Writes what docs/ shows of files and tables elsewhere, in place; tests compare it (tests/integration/kit/test_kit.py and
test_docs.py).

  docs/writing-plugins/KIND.md   the example, which is what `ddpengine new KIND mine` writes
  docs/plugins.md                all plugins and their options, by the plugins' own tables: `ddpengine plugins`
  docs/config.md                 all keys that are not a plugin's, by the core's own tables: `ddpengine manual keys`
  docs/commands.md               all commands, by their own help: `ddpengine COMMAND --help`

usage: generate.py [ENGINE]      ENGINE: the program (default: ./ddpengine). A plugin that it does not find keeps its
section in docs/plugins.md; DDPENGINE_PLUGIN_PATH names folders with more of them."""
import pathlib
import re
import subprocess
import sys
import tempfile

DOCS = pathlib.Path(__file__).resolve().parent
KINDS = ["backend", "init", "device", "model", "sampler", "dataset", "hook"]
CODE = re.compile(r"(?<=^```c\n).*?(?=^```$)", re.M | re.S)
HEAD = """# Plugins and their options

For those who look for a plugin or its keys. Made by `docs/generate.py` of the tables that `ddpengine plugins` shows. A
plugin is used where the INI names it, and its options stand in its own section. Which of them are there depends on the
libraries that were found when ddpengine was built. To write one: [writing-plugins](writing-plugins/README.md).
Which options may differ between ranks: [starting](starting.md#keys-that-may-differ).
"""
CONFIG = """# Configuration: every section and key

For those who write an INI file: each key that is not a plugin's, with its type, the values it takes and its default.
Made by `docs/generate.py` of the engine's own tables, which also read the file. The keys of a plugin, such as
`[model.resnet]` or `[backend.gloo-tcp]`, are in [plugins](plugins.md).

A line is `key = value` below a `[section]`. A line that begins with `#` or `;` is a comment, and so is what follows a
blank and `;`. Lists have commas; a value goes on in lines that are indented. Sizes have `B`, `KiB`, `MiB` or `GiB`;
durations `ms`, `s`, `m`, `h` or `d`; yes and no are `yes` and `no`. `include = FILE` before the first section reads
another file first, relative to this one. `--set SECTION.KEY=VALUE` overrides a key from the command line, and
`ddpengine help SECTION` prints a section of this page.

A key must have the same value on all ranks unless the table says that it may differ; a rank that differs ends the run
before step 0 with exit code 4, and the line names the key, both values and their files. All that may
differ in one list: [starting](starting.md#keys-that-may-differ).

```sh
ddpengine help train                                       # the keys of [train]
ddpengine -c conf/quickstart.ini --print-config            # all keys in effect, and the file and line that set them
```
"""
# section: what it is about, and where more is said
ABOUT = {
    "group": "Which ranks there are, how they find each other, and how long they wait. More: [starting](starting.md), "
             "[backends](backends.md), [network](hosts/network.md), [security](hosts/security.md).",
    "run": "What happens when a rank is lost. More: [starting](starting.md#runs-that-survive-the-loss-of-a-rank).",
    "train": "Devices, batches, length of the run, precision, memory, checks. More: [tuning](tuning.md), "
             "[using](using.md), [starting](starting.md#processors).",
    "model": "Which model is trained. More: [plugins](plugins.md#model), [nets](nets.md).",
    "data": "The training samples and the transforms of images. More: [datasets](datasets.md).",
    "eval": "The evaluation, with keys as those of `[data]`. More: [datasets](datasets.md).",
    "sampler": "The order of the samples. More: [plugins](plugins.md#sampler).",
    "optimizer": "The update and the learning rate. More: [tuning](tuning.md).",
    "lora": "Adapters that are trained in place of the model. More: [lora](language-models/lora.md).",
    "ddp": "How gradients become one update on all ranks. More: [tuning](tuning.md).",
    "hook": "Compression of gradients between ranks. More: [tuning](tuning.md), [plugins](plugins.md#hook).",
    "loader": "Reading of samples beside training. More: [datasets](datasets.md).",
    "checkpoint": "Saving and resuming. More: [checkpoints](checkpoints.md).",
    "output": "What a run prints and writes. More: [metrics](metrics.md), [report](report.md).",
    "plugins": "Where plugins are looked for. More: [writing-plugins](writing-plugins/README.md).",
}
COMMANDS = """# Commands

For those who look for a command or an option: the help that each command prints. Made by `docs/generate.py`. The keys
of the INI are in [config](config.md); exit codes in [exit-codes](exit-codes.md).
"""


def ask(engine, *args):
    return subprocess.run([str(engine), *args], capture_output=True, text=True, check=True).stdout


def example(engine, kind):
    with tempfile.TemporaryDirectory() as folder:
        ask(engine, "new", kind, "mine", "--dir", f"{folder}/mine")
        return (pathlib.Path(folder) / f"mine/{kind}_mine.c").read_text()


def with_example(page, code):
    found = CODE.findall(page)
    assert len(found) == 1, f"{len(found)} examples in a page"
    return CODE.sub(lambda _: code, page)


def cell(text):
    """Text in a table: what is not in backticks shows as it is."""
    parts = text.split("`")
    parts[::2] = [p.replace("*", "\\*").replace("<", "&lt;") for p in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


def section(engine, kind, name):
    """The last of that name that is found; where a folder of DDPENGINE_PLUGIN_PATH has it too, they are the same."""
    text = ask(engine, "plugins", f"{kind}.{name}")
    text = text[text.rindex(f'{kind} "{name}" '):].splitlines()
    out = [f"### {name}", "", text[0].split(": ", 1)[1].replace("<", "&lt;") + ".", ""]
    if text[2].strip() == "no options":
        return "\n".join(out) + "It has no options.\n"
    out += ["Options, in section `" + text[2].split("section ")[1].rstrip(":") + "`:", "",
            "| key | type, range, default | what it is |", "|---|---|---|"]
    for line in text[3:]:
        key, rest = line.strip().split(None, 1)
        doc, kind_of_value = rest[:rest.rindex(" (")], rest[rest.rindex(" (") + 2:-1]
        out.append(f"| `{key}` | {cell(kind_of_value)} | {cell(doc)} |")
    return "\n".join(out) + "\n"


def sections_of(page):
    """(kind, name) -> text."""
    out = {}
    for part in re.split(r"^## ", page, flags=re.M)[1:]:
        kind = part.splitlines()[0].strip("`")
        for text in re.split(r"^(?=### )", part, flags=re.M)[1:]:
            out[kind, text.splitlines()[0][4:]] = text.rstrip("\n") + "\n"
    return out


def plugins(engine, before):
    """The page; `before` is what it was."""
    all_of_it = sections_of(before)
    for line in ask(engine, "plugins").splitlines():
        kind, name = line.split()[:2]
        if kind in KINDS:
            all_of_it[kind, name] = section(engine, kind, name)
    out = [HEAD]
    for kind in KINDS:
        out.append(f"## `{kind}`\n")
        out += [all_of_it[k] for k in sorted(all_of_it) if k[0] == kind]
    return "\n".join(out)


def code_cell(text):
    return "`" + text.replace("|", "\\|") + "`"


def config(engine):
    """The page of all sections; a section that ABOUT lacks stands there without a line about it."""
    out, before = [CONFIG], None
    for line in ask(engine, "manual", "keys").splitlines():
        section, key, values, default, ranks, doc = line.split("\t")
        if section != before:
            out += ["" if before else None, f"## `[{section}]`", "", ABOUT.get(section), "" if section in ABOUT else None,
                    "| key | type, values | default | what it is |", "|---|---|---|---|"]
            before = section
        default = default if default in ("required", "empty") else code_cell(default)
        doc = cell(doc) + (" *May differ between ranks.*" if ranks != "same" else "")
        out.append(f"| `{key}` | {cell(values)} | {default} | {doc} |")
    return "\n".join(x for x in out if x is not None) + "\n"


def commands(engine):
    """The page of all commands."""
    names = re.findall(r"^\.Ss \\&(\S+)", ask(engine, "manual", "commands"), re.M)
    whole = ask(engine, "--help")
    out = [COMMANDS, "## ddpengine", "", "```text", whole.rstrip(), "```", ""]
    for name in names:
        name = name.replace("\\-", "-")
        text = subprocess.run([str(engine), name, "--help"], capture_output=True, text=True, check=False)
        if text.returncode == 0 and text.stdout != whole:
            out += [f"## {name}", "", "```text", text.stdout.rstrip(), "```", ""]
    return "\n".join(out)


def main():
    engine = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "./ddpengine").resolve()
    for kind in KINDS:
        page = DOCS / f"writing-plugins/{kind}.md"
        page.write_text(with_example(page.read_text(), example(engine, kind)))
    page = DOCS / "plugins.md"
    page.write_text(plugins(engine, page.read_text() if page.exists() else ""))
    (DOCS / "config.md").write_text(config(engine))
    (DOCS / "commands.md").write_text(commands(engine))


if __name__ == "__main__":
    main()
