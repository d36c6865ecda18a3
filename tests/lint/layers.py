#!/usr/bin/env python3
"""Layers include only downwards: a folder of core/ may include what stands above it in ORDER, the public headers, and
itself; plugins, models and samplers see the public headers alone; nothing in core/ includes a header of MPI, Gloo, CUDA,
NCCL or oneDNN. Prints each violation; exits 1 when there is one."""
import pathlib
import re
import sys

ORDER = ["base", "config", "plugin", "graph", "net", "control", "comm", "data", "checkpoint", "observe", "session", "train",
         "launch", "infer", "conform", "cli"]
FOREIGN = re.compile(r"^(mpi\.h|gloo/|cuda|nccl|cublas|cudnn|dnnl|oneapi/)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# one source each, compiled into the core and into the plugin that must match it: the generator of torch.Generator, the
# table of launchers, and the reader of protocol buffers
SHARED = {"samplers/distributed.c": {"base/mt19937.h"},
          "plugins/init/env/env.c": {"base/launcher.h"}, "plugins/init/env/slurm.c": {"base/launcher.h"},
          "plugins/dataset/sft/builtin.h": {"base/embedded.h"},
          "plugins/dataset/common/tokenizer/pieces.c": {"base/protobuf.h"},
          "plugins/device/cuda/kernels/simt.h": {"simt_double.h"}}


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        m = INCLUDE.match(line)
        if m:
            yield number, m.group(1), m.group(2)


def check_core(root, path, bad):
    parts = path.relative_to(root).parts
    layer = parts[1] if parts[0] == "core" else parts[0]
    for number, quote, name in includes(path):
        where = f"{path.relative_to(root)}:{number}"
        if FOREIGN.match(name):
            bad.append(f"{where}: the core includes <{name}>, which only a plugin may")
        if layer == "include":
            if quote == '"' or (name.startswith("ddpengine/") and not (root / "core/include" / name).exists()):
                bad.append(f"{where}: a public header includes {name}")
            continue
        first = name.split("/")[0]
        if quote == '"' and first in ORDER and ORDER.index(first) > ORDER.index(layer):
            bad.append(f"{where}: {layer} includes {name}, which stands above it")
        if quote == '"' and first not in ORDER:
            bad.append(f"{where}: include \"{name}\" by its path from core/")


def check_plugin(root, path, bad):
    allowed = SHARED.get(str(path.relative_to(root)), set())
    for number, quote, name in includes(path):
        kind = path.relative_to(root).parts[:2]
        roots = [path.parent, root.joinpath(*kind), root.joinpath(*path.relative_to(root).parts[:3])]
        if name.startswith("common/"):
            roots.append(root / "plugins")
        beside = ".." not in name and any((folder / name).exists() for folder in roots)
        if quote == '"' and not beside and name not in allowed:
            bad.append(f"{path.relative_to(root)}:{number}: a plugin includes \"{name}\"; it may see <ddpengine/...> only")


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    bad = []
    for folder in ("core", "conform", "infer"):
        for path in sorted((root / folder).glob("**/*.[ch]")):
            if ".pb-c." not in path.name:  # what protoc-c made, in a tree that was built in place
                check_core(root, path, bad)
    for folder in ("plugins", "models", "samplers"):
        for path in sorted((root / folder).glob("**/*")):
            if path.suffix in (".c", ".h", ".cc", ".cu", ".cuh"):
                check_plugin(root, path, bad)
    print("\n".join(bad) if bad else "layers: every include points downwards")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
