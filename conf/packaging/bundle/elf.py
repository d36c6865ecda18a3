"""What `make bundle` and tests/gpu/pack do with programs and shared libraries: copy them without debugging information, find
the libraries that they need, and read which versions of the C and C++ libraries they ask for. Needs binutils and ldd."""
import lzma
import pathlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from typing import NoReturn

Path = pathlib.Path
# The C library and what comes with it, and the driver of a GPU: always those of the machine.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libutil|libcuda)\.so")
COMPILERS = re.compile(r"^(libstdc\+\+|libgcc_s)\.so")


class Failed(Exception):
    """One line: what is wrong, where, and what to do next."""


def fail(text: str) -> NoReturn:
    raise Failed(text)


def output(*command: object) -> str:
    """What the command prints. Fails with the end of its standard error."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(words[:6])}: exit code {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def is_elf(path: Path) -> bool:
    return path.is_file() and path.open("rb").read(4) == b"\x7fELF"


def copy_stripped(source: Path, target: Path, *flags: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    output("strip", *flags, target)
    return target


def plugins(build: Path) -> list[Path]:
    """The plugins of a finished build, but not the doubles of its tests."""
    found = [p for p in sorted((build / ".libs").glob("*_*.so")) if not p.is_symlink() and "double" not in p.name]
    return [p for p in found if re.match(r"(backend|dataset|device|hook|init|model|sampler)_", p.name)]


def needed(path: Path) -> list[str]:
    """The names in the file's own list of libraries (DT_NEEDED)."""
    return re.findall(r"^\s+NEEDED\s+(\S+)", output("objdump", "-p", path), re.M)


def closure(files: Iterable[Path], left: re.Pattern[str], instead: dict[str, Path] | None = None) -> dict[str, Path]:
    """The libraries that the files need, and those that these need, by name; those that match `left` and what only they need
    are left out. `instead` has files to take in place of this machine's."""
    found: dict[str, Path] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        here = dict(re.findall(r"^\s*(\S+) => (not found|\S+)", output("ldd", file), re.M))
        for name in needed(file):
            if left.match(name) or SYSTEM.match(name) or name in found:
                continue
            path = (instead or {}).get(name) or Path(here.get(name, "not found"))
            if not is_elf(path):
                fail(f"{file.name} needs {name}, which is not on this machine either: install its package, then try again")
            found[name] = path
            waiting.append(path)
    return dict(sorted(found.items()))


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def newest(files: Iterable[Path], *prefixes: str) -> list[tuple[str, str]]:
    """[("2.34", file), ..]: by prefix, as GLIBC or GLIBCXX, the newest version that a file asks for, and the first file that does;
    ("0", "no file") where none asks for any."""
    found = [("0", "no file")] * len(prefixes)
    for file in files:
        references = output("objdump", "-p", file).partition("Version References:")[2]
        for i, prefix in enumerate(prefixes):
            for version in re.findall(rf"\s{prefix}_(\d+(?:\.\d+)*)\s", references):
                if number(version) > number(found[i][0]):
                    found[i] = (version, file.name)
    return found


def compress(folder: Path, path: Path, preset: int, within: str = "") -> None:
    """`folder` as path.tar.xz, below a folder `within`; the same files give the same bytes."""
    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = int(info.mtime)
        return info
    with lzma.open(path, "wb", preset=preset) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for file in sorted(folder.iterdir()):
            tar.add(file, f"{within}/{file.name}" if within else file.name, filter=plain)


def print_sizes(folder: Path, most: int = 12) -> None:
    files = sorted((f for f in folder.rglob("*") if f.is_file() and not f.is_symlink()), key=lambda f: -f.stat().st_size)
    for file in files[:most]:
        print(f"  {file.stat().st_size / 2**20:8.2f} MiB  {file.relative_to(folder)}")
    print(f"  {sum(f.stat().st_size for f in files) / 2**20:8.2f} MiB  in {len(files)} files")
