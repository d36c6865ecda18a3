#!/usr/bin/env python3
"""make bundle: a finished build as one .tar.xz that runs from wherever it is unpacked, on any Linux of the same processor with
glibc 2.34 or newer:

    conf/packaging/bundle/make_bundle.py BUILD VERSION [--sources FOLDER] [--installed LIBRARY] [--glibc 2.34] [--glibcxx 3.4.29] [--limit MIB]

writes BUILD/bundle/ddpengine-VERSION-MACHINE.tar.xz, in it one folder:

    ddpengine        the program; it finds its libraries and plugins by where it lies, and sets nothing in the environment
    lib/ddpengine/   the plugins
    lib/             the libraries that they need, under names of their own, so that they are never mixed up with those of the
                     system in one process; libddpinfer for C programs and Python
    include/, conf/  ddpinfer.h; the examples
    licences/        of all that is in it

Not in it: libstdc++ and libgcc_s, which are in every system but the smallest; MPI, CUDA, NCCL and libarchive: backend mpi, backend nccl,
device cuda and dataset tar load where the system has those, and else say what is missing.

Fails where a file asks for a newer C library than --glibc, or C++ library than --glibcxx, and where the whole is larger than
--limit. Needs binutils, patchelf, cmake, dpkg-dev, and the Debian packages of the build."""
import argparse
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable

import libraries
from elf import (COMPILERS, Failed, Path, closure, compress, copy_stripped, fail, is_elf, needed, newest, number, output, plugins,
                 print_sizes)

ROOT = Path(__file__).resolve().parents[3]
# taken from the system: libraries of a cluster, and those that are larger than all the rest
LEFT = re.compile(rf"{COMPILERS.pattern}|^lib(mpi|mpich|open-rte|open-pal|archive)\.so")
LINKED_IN = "libstdc++6"  # the C++ library in libgloo has the licence of this package


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("version")
    p.add_argument("--sources", type=Path, help="a folder with the unpacked source package gloo, where apt-get source has none")
    p.add_argument("--installed", action="append", default=[], choices=sorted(libraries.SOURCES),
                   help="a library that is not built, but taken from its Debian package, with --glibcxx 3.4.30 on Debian 12")
    p.add_argument("--glibc", default="2.34")
    p.add_argument("--glibcxx", default="3.4.29")
    p.add_argument("--limit", type=float, default=20.0, help="MiB of the packed bundle at most (20); CUDA's plugins may take 8 more")
    p.add_argument("--preset", type=int, default=9, choices=range(10), help="of xz (9)")
    return p.parse_args()


def own_name(library: str) -> str:
    """libz.so.1 -> libz-ddpengine.so.1"""
    return library.replace(".so", "-ddpengine.so", 1)


def relocate(file: Path, names: Iterable[str], rpath: str | None) -> None:
    """The libraries of the bundle by their names in it, looked for in `rpath`. Plugins are opened as /proc/self/fd/N, where $ORIGIN says
    nothing: they have none, and take the program's, which is DT_RPATH for that, as DT_RUNPATH is not inherited. One call for each kind of change: patchelf 0.14 writes wrong offsets where it makes two."""
    command: list[object] = ["patchelf"]
    for name in sorted(set(needed(file)) & set(names)):
        command += ["--replace-needed", name, own_name(name)]
    if len(command) > 1:
        output(*command, file)
    if rpath is not None:
        output("patchelf", "--force-rpath", "--set-rpath", rpath, file)


def binaries(build: Path, to: Path) -> list[Path]:
    program, infer = build / "ddpengine", (build / ".libs/libddpinfer.so").resolve()
    for file in (program, infer):
        if not is_elf(file):
            fail(f"{file} is not there: build it first (make -C {build})")
    found = [copy_stripped(program, to / "ddpengine", "--strip-all"), copy_stripped(infer, to / "lib/libddpinfer.so.0", "--strip-unneeded")]
    return found + [copy_stripped(p, to / "lib/ddpengine" / p.name, "--strip-unneeded") for p in plugins(build)]


def for_the_library(files: list[Path], to: Path) -> set[str]:
    """What device cpu, models and datasets need, by name. Within a program of others, as Python is, a plugin inherits no path:
    libddpinfer itself needs these libraries, then they are there when a plugin asks for them. Tokenizers want libstdc++, which
    predictions do without."""
    def of(*kinds: str) -> set[str]:
        return {n for f in files if f.parent == to / "lib/ddpengine" and f.name.startswith(kinds) for n in needed(f)}
    with_cpp = {f.name for f in files if f.parent == to / "lib" and any(n.startswith("libstdc++") for n in needed(f))}
    return of("device_cpu", "model_") | {n for n in of("dataset_") if own_name(n) not in with_cpp}


def bundled_libraries(files: list[Path], args: argparse.Namespace, build: Path, to: Path) -> dict[str, Path]:
    names = set().union(*(needed(f) for f in files))
    instead = libraries.build(names, args.installed, args.sources and args.sources.resolve(), build / "bundle/work")
    found = closure(files, LEFT, instead)
    for name, path in found.items():
        files.append(copy_stripped(path, to / "lib" / own_name(name), "--strip-unneeded"))
    wanted = for_the_library(files, to)  # before the names change
    for file in files:
        folder = file.parent.relative_to(to).as_posix()
        relocate(file, found, {".": "$ORIGIN/lib", "lib": "$ORIGIN"}.get(folder))
        if folder == "lib" and file.name != "libddpinfer.so.0":
            output("patchelf", "--set-soname", file.name, file)
    for name in sorted(wanted & set(found)):
        output("patchelf", "--add-needed", own_name(name), to / "lib/libddpinfer.so.0")
    return found


def check_versions(files: list[Path], limits: dict[str, str]) -> None:
    for (prefix, limit), (version, where) in zip(limits.items(), newest(files, *limits), strict=True):
        if number(version) > number(limit):
            fail(f"{where} asks for {prefix}_{version}, and systems that have {prefix}_{limit} are to run the bundle: build on an older system, "
                 "or give the option that raises the limit")
        print(f"bundle: {prefix}_{version} or newer is needed (by {where})")


def package_of(path: Path) -> str:
    """Debian's package that has the file; the path as it was given may lead over a folder that is a link."""
    for name in (path, path.resolve(), Path(str(path.resolve()).removeprefix("/usr"))):
        try:
            return output("dpkg-query", "-S", name).split(":")[0]
        except Failed:
            continue
    fail(f"no Debian package has {path}, so its licence is not known: install the library from its package")


def licences(found: dict[str, Path], build: Path, to: Path) -> None:
    folder = to / "licences"
    folder.mkdir()
    shutil.copyfile(ROOT / "LICENSE", folder / "ddpengine")
    names = {package_of(path) for path in found.values() if build not in path.parents} | {LINKED_IN}
    for stem, (_, dev_package, _) in libraries.SOURCES.items():
        if any(name.startswith(f"{stem}.so") for name in found):
            names.add(dev_package)
    for name in sorted(names):
        text = Path("/usr/share/doc") / name / "copyright"
        if not text.is_file():
            fail(f"{text} is not there: a bundle has the licence of each library in it; reinstall the package {name}")
        shutil.copyfile(text, folder / name)


def examples(to: Path) -> None:
    shutil.copytree(ROOT / "conf", to / "conf", ignore=shutil.ignore_patterns("packaging", "local.mk", "*@.service", "cluster"))
    (to / "include").mkdir()
    shutil.copyfile(ROOT / "infer/lib/ddpinfer.h", to / "include/ddpinfer.h")
    (to / "lib/libddpinfer.so").symlink_to("libddpinfer.so.0")


def fill(folder: Path, build: Path, args: argparse.Namespace) -> None:
    files = binaries(build, folder)
    found = bundled_libraries(files, args, build, folder)
    check_versions(files, {"GLIBC": args.glibc, "GLIBCXX": args.glibcxx, "CXXABI": "1.3.13", "GCC": "4.8.0"})
    licences(found, build, folder)
    examples(folder)
    (folder / "version").write_text(f"{args.version}\n")


def make(args: argparse.Namespace) -> Path:
    building = set(libraries.SOURCES) - set(args.installed)
    for tool, package in (("patchelf", "patchelf"), ("objdump", "binutils"), ("cmake", "cmake"), ("dpkg-query", "dpkg")):
        if shutil.which(tool) is None and (building or tool != "cmake"):
            fail(f"no {tool}, which makes the bundle: apt-get install {package}")
    build: Path = args.build.resolve()
    name = f"ddpengine-{args.version}-{platform.machine()}"
    folder, tar = build / "bundle" / name, build / "bundle" / f"{name}.tar.xz"
    shutil.rmtree(folder, ignore_errors=True)
    tar.unlink(missing_ok=True)
    folder.mkdir(parents=True)
    fill(folder, build, args)
    print_sizes(folder)
    compress(folder, tar, args.preset, within=name)
    mib = tar.stat().st_size / 2**20
    limit = args.limit + (8.0 if (folder / "lib/ddpengine/device_cuda.so").exists() else 0.0)
    print(f"bundle: {tar}: {mib:.1f} MiB")
    if mib > limit:
        tar.unlink()
        fail(f"that is more than {limit} MiB: nothing is left behind; --limit raises it")
    return tar


def main() -> int:
    os.umask(0o022)
    try:
        make(arguments())
    except Failed as e:
        print(f"make bundle: error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
