#!/usr/bin/env python3
"""Writes plugins/dataset/common/tokenizer/regex/unicode16.h: the characters that Hugging Face's Oniguruma knows and that of Debian 12, of
Unicode 14, does not, with their categories. make_unicode16.py [FILE]. Needs `pip install tokenizers` (written with 0.23.3: Unicode 16), and a
Python whose own tables are Unicode 14 (3.11)."""
import pathlib
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILE = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "plugins/dataset/common/tokenizer/regex/unicode16.h"
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So".split()
HEAD = """/* plugins/dataset/common/tokenizer/regex/unicode16.h -- characters that Hugging Face's Oniguruma knows (Unicode 16) and
 * that of Debian 12 does not (Unicode 14). Written by tests/parity/make/make_unicode16.py. */
#pragma once

#include <stdint.h>

static const struct unicode16 {
    uint32_t first, last;
    char category[3];
} unicode16[] = {
"""


def characters(category):
    split = pre_tokenizers.Split(Regex(r"\p{%s}" % category), "removed", invert=True)
    every = "".join(chr(c) for c in range(1, 0x110000) if not 0xd800 <= c < 0xe000)
    parts = [every[i:i + 2048] for i in range(0, len(every), 2048)]
    return {ord(c) for part in parts for word, _ in split.pre_tokenize_str(part) for c in word}


def main():
    assert unicodedata.unidata_version.startswith("14."), "needs a Python of Unicode 14"
    ranges = []
    for category in CATEGORIES:
        for c in sorted(c for c in characters(category) if unicodedata.category(chr(c)) == "Cn"):
            if ranges and ranges[-1][2] == category and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c, category])
    items = ['{0x%x, 0x%x, "%s"}' % tuple(r) for r in sorted(ranges)]
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) + 2 > 112:
            lines.append(line)
            line = ""
        line += (" " if line else "") + item + ","
    FILE.write_text(HEAD + "".join("    %s\n" % one for one in lines + [line]) + "};\n")
    print(len(items), "ranges")


if __name__ == "__main__":
    main()
