#!/usr/bin/env python3
"""The field's words, and lines that can be read: refuses the words that the engine once had of its own, in names, messages, help,
comments and docs; lines of C and C++ of more than 120 columns; and a string that is wrapped elsewhere than at the end of a sentence. Prints each
place; exits 1 when there is one."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 120
SOURCE = (".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".py", ".sh")
PROSE = (".md", ".ini", ".in")
SELF = "tests/lint/words.py"

# word -> what to write instead; looked for as a part of a name (ddp_WORD_x) and as a word of a sentence
EVERYWHERE = {
    "meet|meets|meeting|meetings": "rendezvous", "door|doors": "listener, accept", "pulse|pulses": "heartbeat",
    "pace|paces": "straggler, step times", "deliver|delivers|delivered": "client, dispatch", "lane|lanes": "comm stream",
    "crew|crews": "device group", "team|teams": "thread pool", "tend|tends|tending": "supervise",
    "bury|buries|buried": "reap", "anew": "again, from scratch", "judge|judges|judged|judging": "check",
    "verdict|verdicts": "result", "actor|actors": "rank process", "board|boards": "shared results",
}
# in messages, help and docs alone: elsewhere they are plain English
PRINTED = {
    "told|tells": "reported", "in force": "effective", "a rank by itself": "a single-rank run", "far memory": "device memory",
    "extras": "piggy-backed scalars",
}
# the field's own use of a word, by file
ALLOWED = [
    ("lane", r"^(plugins/device/|plugins/backend/common/|plugins/hook/common/|tests/doubles/|tests/unit/(cuda|device|hook|backend)/)"),
    ("lane", r"^(docs/|core/include/ddpengine/|tests/gpu/)"),  # a lane of a vector register, or of a warp
]
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if out.returncode == 0:
        return [f for f in out.stdout.splitlines() if (ROOT / f).exists()]
    return [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]


def pattern(words):
    return {re.compile(r"(?<![A-Za-z])(?:" + w + r")(?![A-Za-z])", re.I): use for w, use in words.items()}


def allowed(word, path):
    return any(word.lower().startswith(w) and re.search(where, path) for w, where in ALLOWED)


def look(path, number, text, words, bad):
    for rx, use in words.items():
        for m in rx.finditer(text):
            if not allowed(m.group(0), path):
                bad.append(f'{path}:{number}: "{m.group(0)}": write {use}')


def wrapped(path, text, bad):
    """"one piece"\\n"the next": fine at the end of a sentence, of a line of output, or beside a macro."""
    for m in re.finditer(r'"((?:\\.|[^"\\\n])*)"[ \t]*\n[ \t]*"', text):
        piece = m.group(1).rstrip(" ")
        if re.fullmatch(r"(\S+=\S+ ?)+", piece):  # a command's NAME=VALUE words are no sentence
            continue
        if not piece.endswith((".", ":", ";", "\\n", "!", "?")):
            bad.append(f"{path}:{text.count(chr(10), 0, m.start()) + 1}: a string is wrapped within a sentence")


def main():
    everywhere, printed, bad = pattern(EVERYWHERE), pattern(PRINTED), []
    for path in tracked():
        if path in (SELF, "CHANGELOG.md", "LICENSE") or "/vectors/" in path:
            continue
        look(path, 0, path, everywhere, bad)
        if not path.endswith(SOURCE + PROSE + (".mk", ".sed", ".am", ".ac")) and path != "quickstart":
            continue
        text = (ROOT / path).read_text()
        for number, line in enumerate(text.splitlines(), 1):
            look(path, number, line, everywhere, bad)
            if path.endswith(PROSE):
                look(path, number, line, printed, bad)
            elif not path.startswith("tests/"):
                for string in STRING.findall(line):
                    look(path, number, string, printed, bad)
            if path.endswith(SOURCE[:6]) and len(line) > COLUMNS and not re.fullmatch(r'\s*[^"]*"(?:\\.|[^"\\])*"[,;) ]*', line):
                bad.append(f"{path}:{number}: {len(line)} columns, {COLUMNS} are the most")
        if path.endswith(SOURCE[:6]) and not path.startswith("tests/"):
            wrapped(path, text, bad)
    print("\n".join(bad) if bad else "words: the field's, in lines that end")
    if bad:
        print(f"words: {len(bad)} places")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
