"""Builds the libraries of a bundle that Debian links with a C++ library which is too new for other systems: libgloo. The sources are Debian's, of the version whose -dev package is installed, unchanged; the C++ library
is linked into them. Needs cmake, dpkg-dev and a network, or the unpacked sources in a folder."""
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Collection

from elf import Failed, Path, fail, is_elf, output

# The symbols of the C++ library stay within: another copy of it may be in the same process. libgcc_s stays a library of the system:
# as an archive it wants _dl_find_object of glibc 2.35.
LINKED_IN = "-static-libstdc++ -shared-libgcc -Wl,--exclude-libs,ALL -Wl,--gc-sections"
OPTIMISE = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS_RELEASE=-O2 -DNDEBUG", "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG")


def run(log: Path, *command: object, cwd: Path | None = None) -> None:
    with log.open("a") as to:
        done = subprocess.run([str(word) for word in command], stdout=to, stderr=to, stdin=subprocess.DEVNULL, cwd=cwd, check=False)
    if done.returncode != 0:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        fail(f"{' '.join(str(word) for word in command[:3])}: exit code {done.returncode}; the whole log is {log}, its end:\n{end}")


# ---- sources -----------------------------------------------------------------------------------------------------------
def source_lists(to: Path) -> None:
    """The lists of this machine's apt, with deb-src in place of deb."""
    to.mkdir(parents=True, exist_ok=True)
    for file in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if file.suffix in (".list", ".sources") and file.is_file():
            text = re.sub(r"^Types:.*", "Types: deb-src", file.read_text(), flags=re.M)
            (to / file.name).write_text(re.sub(r"^deb\s", "deb-src ", text, flags=re.M))


def download(package: str, version: str, work: Path) -> Path:
    """Debian's source package, checked against its signature's sums and unpacked by apt-get."""
    apt = work / "apt"
    source_lists(apt / "parts")
    (apt / "lists/partial").mkdir(parents=True, exist_ok=True)
    options = ["-q", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={apt}/parts", "-o", f"Dir::State::Lists={apt}/lists",
               "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o", "APT::Sandbox::User=root"]
    log = work / "apt.log"
    try:
        run(log, "apt-get", *options, "update")
    except Failed:
        pass  # a list without sources among others; what is missing is seen next
    try:
        run(log, "apt-get", *options, "source", f"{package}={version}", cwd=work)
    except Failed as e:
        fail(f"Debian's source package {package} {version} could not be had by apt-get source: unpack it by hand and name the folder "
             f"that has it as {package}, make bundle BUNDLE_SOURCES=FOLDER. {e}")
    return next(p for p in sorted(work.glob(f"{package}-*")) if p.is_dir())


def version_of(dev_package: str) -> str:
    """Of the source package of an installed package."""
    return output("dpkg-query", "-W", "-f", "${source:Version}", dev_package)


def unpacked(package: str, dev_package: str, sources: Path | None, work: Path) -> Path:
    if sources and (sources / package).is_dir():
        return sources / package
    done = sorted(p for p in work.glob(f"{package}-*") if p.is_dir())
    return done[0] if done else download(package, version_of(dev_package), work)


# ---- builds ------------------------------------------------------------------------------------------------------------
def cmake(tree: Path, work: Path, target: str, *options: str) -> None:
    """Builds a target in `work`; as many jobs as the environment's CMAKE_BUILD_PARALLEL_LEVEL, or as there are processors."""
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
    run(work / "build.log", "cmake", "-S", tree, "-B", work / "build", *OPTIMISE, f"-DCMAKE_SHARED_LINKER_FLAGS={LINKED_IN}", *options)
    run(work / "build.log", "cmake", "--build", work / "build", "--target", target, "--parallel", jobs)


def gloo(tree: Path, work: Path) -> None:
    """Only TCP is used. A later linux/ethtool.h than Gloo was written for ends a struct with [] in place of [0], which C++ does
    not take within another struct: Gloo is compiled against a copy that has [0]."""
    header = Path("/usr/include/linux/ethtool.h").read_text()
    copy = work / "include/linux/ethtool.h"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(header.replace("link_mode_masks[];", "link_mode_masks[0];"))
    cmake(tree, work, "gloo", "-DBUILD_SHARED_LIBS=ON", "-DUSE_REDIS=OFF", "-DUSE_IBVERBS=OFF", "-DUSE_MPI=OFF", "-DUSE_LIBUV=OFF",
          "-DBUILD_TEST=OFF", "-DBUILD_BENCHMARK=OFF", f"-DCMAKE_CXX_FLAGS=-isystem {work}/include")


SOURCES = {"libgloo": ("gloo", "libgloo-dev", gloo)}


def build(names: set[str], installed: Collection[str], sources: Path | None, work: Path) -> dict[str, Path]:
    """By soname: those of the `names` of libraries that are built here, but for the `installed`, as "libgloo", which are taken as they are.
    What was built before, of the same version, is kept."""
    made: dict[str, Path] = {}
    for stem, (package, dev_package, build_one) in SOURCES.items():
        if stem in installed:
            continue
        for name in sorted(n for n in names if n.startswith(f"{stem}.so")):
            folder = work / f"{package}_{version_of(dev_package).replace(':', '_')}"
            kept = folder / name
            if not is_elf(kept):
                folder.mkdir(parents=True, exist_ok=True)
                print(f"bundle: {name} is built from Debian's source package {package}; the log is {folder}/build.log", flush=True)
                build_one(unpacked(package, dev_package, sources, folder).resolve(), folder)
                built = next((p for p in (folder / "build").rglob(name) if is_elf(p.resolve())), None)
                if built is None:
                    fail(f"{package} made no {name}, which the plugins need: is {dev_package} of the same version as the sources?")
                shutil.copyfile(built.resolve(), kept)
            made[name] = pathlib.Path(kept)
    return made
