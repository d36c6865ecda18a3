#!/usr/bin/env python3
"""What the floor plan of docs/overview.md promises, counted: circles of files, wide folders, structs that many write, optional
features that the step asks for, exit codes set beforehand, plugins that the core knows by name. Prints each figure and what
breaks it; exits 1 when one is over its bound. `structure.py --list` also prints what was counted."""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ["net", "control", "comm", "session", "train"]
FILES_OF_A_FOLDER = 25
MEMBERS = 25
# a folder that must be wide says why here; a target of fuzzing is a file, found by its name
WIDE_ON_PURPOSE = {"core/include/ddpengine", "tests/fuzz/targets"}
INPUTS = ("tests/fuzz/corpus/", "tests/parity/vectors/")  # files of bytes, which nobody reads side by side
COMMENT = re.compile(r"/\*.*?\*/", re.S)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
WRITE = r"(?:\[[^\]]*\])*\s*(?:[-+*/|&^]?=(?!=)|\+\+|--|<<=|>>=)"


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if out.returncode == 0:
        return [f for f in out.stdout.splitlines() if (ROOT / f).exists()]
    return [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]


def engine(files):
    return [f for f in files if re.match(r"(core|conform|infer)/.*\.[ch]$", f) and not f.startswith("core/include/")]


def code(text):
    """The text without its comments, line numbers kept."""
    return COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


# ---- circles -----------------------------------------------------------------------------------------------------------
DEFINITION = re.compile(r"^(?!static|typedef|#|return|else)[A-Za-z_][\w \*]*?\b(\w+)\((?:[^;{}()]|\([^()]*\))*\)\s*\n\{", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def unit(path):
    return path[:-2]


def edges(files, texts):
    """unit -> the units whose functions it uses or whose header it includes; a .c and its .h are one unit."""
    owner, graph = {}, collections.defaultdict(set)
    for f in files:
        if f.endswith(".c"):
            for name in DEFINITION.findall(texts[f]):
                owner.setdefault(name, unit(f))
    units = {unit(f) for f in files}
    for f in files:
        used = set(re.findall(r"\b[a-z_]\w+(?=\s*\()", texts[f])) | set(re.findall(r"\b[a-z]\w+_\w+\b", texts[f]))
        if f.endswith(".c"):  # a header declares what its own .c defines; what it includes is an edge all the same
            graph[unit(f)] |= {owner[n] for n in used if n in owner and owner[n] != unit(f)}
        for name in INCLUDE.findall(texts[f]):
            for base in ("core/", ""):
                target = (base + name)[:-2]
                if target in units and target != unit(f):
                    graph[unit(f)].add(target)
    return graph


def circles(graph):
    """Strongly connected components of more than one unit (Tarjan, without recursion)."""
    index, low, on, stack, out, counter = {}, {}, set(), [], [], 0
    for root in sorted(graph):
        if root in index:
            continue
        work = [(root, iter(sorted(graph.get(root, ()))))]
        index[root] = low[root] = counter
        counter += 1
        stack.append(root)
        on.add(root)
        while work:
            node, rest = work[-1]
            for child in rest:
                if child not in index:
                    index[child] = low[child] = counter
                    counter += 1
                    stack.append(child)
                    on.add(child)
                    work.append((child, iter(sorted(graph.get(child, ())))))
                    break
                if child in on:
                    low[node] = min(low[node], index[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while True:
                        top = stack.pop()
                        on.discard(top)
                        group.append(top)
                        if top == node:
                            break
                    if len(group) > 1:
                        out.append(sorted(group))
    return out


# ---- structs -----------------------------------------------------------------------------------------------------------
STRUCT = re.compile(r"(?:typedef\s+)?struct\s+(\w+)\s*\{")


def body_of(text, start):
    depth = 0
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1:i]
    return ""


def members(body):
    """Names and types of a struct's own members; a nested anonymous struct or union is one."""
    flat, depth = [], 0
    for c in body:
        depth += {"{": 1, "}": -1}.get(c, 0)
        if depth == 0:
            flat.append(c)
    out = {}
    for declaration in "".join(flat).split(";"):
        declaration = " ".join(declaration.replace("}", " ").split())
        pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", declaration)
        if pointer:
            out[pointer.group(1)] = ""
            continue
        parts = declaration.split(",")
        first = re.match(r"(?:const |struct |_Atomic |unsigned )*(\w+)", declaration)
        for part in parts:
            name = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?::\s*\d+)?$", part.strip())
            if name and declaration:
                out[name.group(1)] = first.group(1) if first else ""
    return out


def structs(files, texts):
    out = {}
    for f in files:
        for m in STRUCT.finditer(texts[f]):
            out[m.group(1)] = members(body_of(texts[f], m.end() - 1))
    return out


def writers(name, all_structs, files, texts):
    """Folders that assign a member of the struct, by a variable of its type or through another struct's member of it."""
    through = {m for s in all_structs.values() for m, t in s.items() if t == name}
    declared = re.compile(r"\b" + name + r"\s*\*?\s*(?:const\s+)?(\w+)\b")
    found = set()
    for f in files:
        names = set(declared.findall(texts[f])) - {name}
        for v in names:
            if re.search(r"(?<![\w>.])" + re.escape(v) + r"(?:->|\.)\w+" + WRITE, texts[f]):
                found.add(str(pathlib.PurePath(f).parent))
        for v in through:
            if re.search(r"(?:->|\.)" + re.escape(v) + r"(?:->|\.)\w+" + WRITE, texts[f]):
                found.add(str(pathlib.PurePath(f).parent))
    return found


# ---- names of plugins ----------------------------------------------------------------------------------------------------
# Words that are a plugin's and plain English, or the field's, are looked for as whole strings alone.
# A launcher's variables carry its name, an INI made of another program's file names plugins, help explains what can be written, and what is taken where nothing is written has one list.
NAMING = re.compile(r"core/(base/launcher\.[ch]|config/(sections\.c|defaults\.h)|cli/import/\w+\.[ch])$")
DTYPES = {"bf16", "int8"}  # hooks are named for them
PLAIN = {"csv", "sft", "file", "folder", "jsonl", "tar", "env", "tcp", "cpu", "tokens", "bf16", "sequential", "distributed", "synthetic", "toy", "common", "layers"}


def plugin_names(files):
    names = set()
    for f in files:
        m = re.match(r"plugins/\w+/(\w+)/|models/(\w+)\.c$|samplers/(\w+)\.c$", f)
        if m:
            names.add(next(g for g in m.groups() if g))
    return (names - {"common"} - DTYPES) | {"gloo", "cudnn", "cublas"}


PRODUCTS = re.compile(r"llama\.cpp|LLaMA-Factory")  # of others, with a plugin's name in theirs


def named(files, texts, names):
    """file:line of an identifier or a string that has a plugin's name; comments do not count. A command may have it too: its code says it."""
    commands = {n for n in names if any(f.startswith(f"core/cli/{n}/") for f in files)}
    strict = re.compile(r"(?<![A-Za-z])(" + "|".join(sorted(names - PLAIN)).replace("_", "[-_]") + r")(?![A-Za-z0-9])", re.I)
    plain = re.compile(r'"(' + "|".join(sorted(names & PLAIN)) + r')(?:[:][^"]*)?"')
    out = []
    for f in files:
        if NAMING.match(f):
            continue
        for number, line in enumerate(texts[f].splitlines(), 1):
            if re.match(r"\s*#\s*include", line):
                continue
            line = PRODUCTS.sub("", line)
            hit = strict.search(line) or plain.search(line)
            if hit and not (f.startswith("core/cli/") and hit.group(1) in commands):
                out.append(f"{f}:{number}: {hit.group(0)}")
    return out


def main():
    verbose = "--list" in sys.argv
    files = tracked()
    ours = engine(files)
    texts = {f: code((ROOT / f).read_text()) for f in ours}
    bad = 0

    def figure(what, found, bound=0):
        nonlocal bad
        over = len(found) > bound
        bad |= over
        print(f"structure: {what}: {len(found)} (bound {bound})")
        if over or verbose:
            for line in found:
                print(f"    {line}")

    rings = circles(edges(ours, texts))
    room = re.compile(r"core/(" + "|".join(ROOMS) + r")/")
    figure("circles of files in " + ", ".join(ROOMS), [" ".join(r) for r in rings if any(room.match(u) for u in r)])
    print(f"structure: circles of files elsewhere in the engine: {sum(1 for r in rings if not any(room.match(u) for u in r))}")

    count = collections.Counter(str(pathlib.PurePath(f).parent) for f in files)
    figure(f"folders of more than {FILES_OF_A_FOLDER} files",
           [f"{d}: {n}" for d, n in sorted(count.items()) if n > FILES_OF_A_FOLDER and d not in WIDE_ON_PURPOSE and not d.startswith(INPUTS)])

    known = structs(ours, texts)
    wide = []
    for name, m in sorted(known.items()):
        if len(m) > MEMBERS:
            where = writers(name, known, ours, texts)
            if len(where) > 1:
                wide.append(f"{name}: {len(m)} members, written in {', '.join(sorted(where))}")
    figure(f"structs of more than {MEMBERS} members that more than one folder writes", wide)

    step = "core/train/step.c"
    figure("optional features that step.c asks for",
           [f"{step}:{n}: {line.strip()}" for n, line in enumerate(texts[step].splitlines(), 1)
            if re.search(r"[!=]= NULL\b", line)])
    figure("exit codes set beforehand (a variable `phase`)",
           [f"{f}:{n}" for f in ours for n, line in enumerate(texts[f].splitlines(), 1)
            if re.search(r"\bphase\s*=[^=]", line)])
    core = [f for f in ours if f.startswith("core/")]
    figure("plugins that the core knows by name", named(core, texts, plugin_names(files)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
