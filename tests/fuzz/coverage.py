#!/usr/bin/env python3
"""What the kept inputs reach of each parser: runs fuzz-build/bin/coverage, which `make fuzz-coverage` has built for gcov,
and prints lines and the share of them that ran; with --missing also those that did not. Exits 1 below the goal.
Functions that no input reaches, since they write, or look at this machine, are left out and listed here; so are lines
that a failed allocation or system call alone reaches, which are the failpoints' (tests/reliability/failpoints.py)."""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOAL = 95.0
PARSERS = [
    "core/base/launcher.c", "core/checkpoint/manifest.c", "core/checkpoint/peft/adapter_config.c", "core/checkpoint/safetensors/read.c",
    "core/checkpoint/safetensors/scan.c", "core/checkpoint/shards_join.c", "core/config/config.c", "core/config/ini.c",
    "core/config/options.c", "core/config/reader.c", "core/config/value.c", "core/control/client.c",
    "core/control/failure.c", "core/control/request.c", "core/control/rank0/accept.c", "core/control/rank0/agree.c",
    "core/control/rank0/pending.c", "core/control/rank0/arrivals.c", "core/control/rank0/server.c",
    "core/control/rank0/waiting.c", "core/control/rank0/store.c", "core/control/straggler.c", "core/launch/secret.c",
    "core/net/address.c", "core/net/identity.c", "core/net/nodes.c", "core/net/tls.c", "core/net/wire.c",
    "core/plugin/elf.c", "infer/export/gguf/json.c", "infer/export/gguf/pieces.c",
    "infer/export/gguf/vocabulary.c", "core/train/state/resume_hook.c", "plugins/dataset/cifar/cifar.c", "plugins/dataset/common/file.c",
    "plugins/dataset/common/cell.c", "plugins/dataset/csv/columns.c", "plugins/dataset/csv/csv.c",
    "plugins/dataset/csv/describe.c", "plugins/dataset/csv/fit.c", "plugins/dataset/csv/scan.c",
    "plugins/dataset/csv/table.c", "plugins/dataset/common/texts.c",
    "plugins/dataset/common/image/catalog.c", "plugins/dataset/common/image/exif.c", "plugins/dataset/common/image/image.c",
    "plugins/dataset/common/image/jpeg.c", "plugins/dataset/common/image/png.c", "plugins/dataset/common/image/verify.c",
    "plugins/dataset/common/image/webp.c", "plugins/dataset/common/temp.c",
    "plugins/dataset/common/tokenizer/added.c", "plugins/dataset/common/tokenizer/bpe.c",
    "plugins/dataset/common/tokenizer/model.c", "plugins/dataset/common/tokenizer/pieces.c", "plugins/dataset/common/tokenizer/read.c",
    "plugins/dataset/common/tokenizer/regex/newer.c", "plugins/dataset/common/tokenizer/regex/pattern.c",
    "plugins/dataset/common/tokenizer/regex/program.c", "plugins/dataset/common/tokenizer/regex/sets.c",
    "plugins/dataset/common/tokenizer/sentencepiece.cc", "plugins/dataset/common/tokenizer/steps/decode.c",
    "plugins/dataset/common/tokenizer/steps/normalize.c", "plugins/dataset/common/tokenizer/steps/split.c",
    "plugins/dataset/common/tokenizer/steps/steps.c", "plugins/dataset/common/tokenizer/tokenizer.c",
    "plugins/dataset/common/tokenizer/utf8.c", "plugins/dataset/common/tokenizer/vocabulary.c",
    "plugins/dataset/folder/folder.c", "plugins/dataset/folder/list.c", "plugins/dataset/jsonl/jsonl.c", "plugins/dataset/tar/shard.c", "plugins/dataset/tar/tar.c",
    "plugins/dataset/npy/array.c", "plugins/dataset/npy/header.c", "plugins/dataset/npy/npy.c", "plugins/dataset/npy/npz.c",
    "plugins/dataset/idx/file.c", "plugins/dataset/idx/idx.c", "plugins/dataset/stl10/stl10.c",
    "plugins/dataset/tokens/tokens.c", "plugins/init/env/slurm.c", "plugins/init/file/record.c", "plugins/init/tcp/tcp.c",
    "plugins/model/layers/build.c", "plugins/model/layers/file.c", "plugins/model/layers/keys.c",
    "plugins/model/layers/kinds.c",
]
LEFT_OUT = {
    "core/config/config.c": {"ddp_config_plugin"},  # the option target has what it calls
    "core/control/failure.c": set(),
    "core/control/rank0/accept.c": {"add", "postpone", "ddp_listener_accept", "watch_listener", "rank0_listener_open"},
    "core/launch/secret.c": {"launch_secret_make", "launch_secret_share", "make_text", "write_new", "ddp_secret_write"},
    "core/net/address.c": {"ddp_address_own", "ddp_address_net", "ddp_address_family", "ddp_address_of_loopback"},
    "core/net/nodes.c": {"routed_address", "ddp_own_address"},
}
UNREACHABLE = re.compile(r"DDP_ERR_NOMEM|no_memory|[Oo]ut of memory|fail_errno|ddp_fail_errno|strerror|DDP_ERR_LIBRARY|EINTR")


def measured(build):
    """{source: {line: count}} and {source: [(function, first, last)]} over all object files."""
    lines, functions = collections.defaultdict(dict), collections.defaultdict(set)
    for data in sorted(build.glob("coverage/**/*.gcda")):
        out = subprocess.run(["gcov", "--json-format", "--stdout", str(data)], capture_output=True, text=True, check=True).stdout
        for text in out.splitlines():
            for f in json.loads(text)["files"]:
                name = re.sub(r"^(\./)+", "", f["file"])
                path = (ROOT / name).resolve()
                source = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else name
                for line in f["lines"]:
                    lines[source][line["line_number"]] = lines[source].get(line["line_number"], 0) + line["count"]
                for function in f["functions"]:
                    functions[source].add((function["name"], function["start_line"], function["end_line"]))
    return lines, functions


def counted(source, lines, functions):
    """The lines of a source that inputs can reach, with how often each ran."""
    text = (ROOT / source).read_text().splitlines()
    skip = set()
    for name, first, last in functions:
        if name in LEFT_OUT.get(source, ()):
            skip.update(range(first, last + 1))
    return {n: count for n, count in sorted(lines.items()) if n not in skip and (count > 0 or not UNREACHABLE.search(text[n - 1]))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="the folder fuzz-build")
    parser.add_argument("--missing", action="store_true", help="print the lines that did not run")
    args = parser.parse_args()
    for old in args.build.glob("coverage/**/*.gcda"):
        old.unlink()
    subprocess.run([args.build / "bin/coverage", ROOT / "tests/fuzz/corpus"], check=True, stdout=subprocess.DEVNULL)
    lines, functions = measured(args.build)
    all_lines = all_run = 0
    print(f"{'parser':46} {'lines':>6} {'run':>7}")
    for source in PARSERS:
        if source not in lines:
            print(f"{source:46} {'-':>6} {'not built':>7}")
            continue
        here = counted(source, lines[source], functions[source])
        run = sum(count > 0 for count in here.values())
        all_lines += len(here)
        all_run += run
        print(f"{source:46} {len(here):6} {100.0 * run / len(here):6.1f}%")
        if args.missing:
            text = (ROOT / source).read_text().splitlines()
            for n, count in here.items():
                if count == 0:
                    print(f"    {source}:{n}: {text[n - 1].strip()}")
    share = 100.0 * all_run / all_lines
    print(f"{'all':46} {all_lines:6} {share:6.1f}%")
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
