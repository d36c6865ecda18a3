#!/usr/bin/env python3
"""make wheel: the bundle as a Python wheel, by the standard library alone:

    conf/packaging/bundle/make_wheel.py BUILD VERSION

takes the folder that make_bundle.py has left in BUILD/bundle, and writes
BUILD/bundle/ddpengine-VERSION-py3-none-manylinux_2_NN_MACHINE.whl: the module of conf/packaging/python with the bundle in
it, and the console script `ddpengine`. NN is the newest version of glibc that a file asks for, 34 at least.

The same bundle gives the same bytes."""
import base64
import hashlib
import platform
import sys
import zipfile

from elf import Failed, Path, fail, is_elf, newest, number

ROOT = Path(__file__).resolve().parents[3]
MODULE = ROOT / "conf/packaging/python/ddpengine"
METADATA = """Metadata-Version: 2.1
Name: ddpengine
Version: {version}
Summary: Data-parallel training in C: the program, its plugins, and a small module to run it and to predict
License: Apache-2.0
Classifier: Programming Language :: Python :: 3
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
Requires-Python: >=3.11
License-File: LICENSE
Description-Content-Type: text/markdown

{description}"""
WHEEL = """Wheel-Version: 1.0
Generator: ddpengine make_wheel
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
ddpengine = ddpengine._program:main
"""
DESCRIPTION = """Data-parallel training in C, without PyTorch: an INI file names what to train, on what data and on which devices.

    ddpengine -c run.ini --nproc 2

and from Python:

    import ddpengine
    for m in ddpengine.train("run.ini", set={"train.batch_size": 8}):
        print(m)
    logits = ddpengine.load("run.ini", "checkpoints").predict(pixels)

The licences of all that is in this package are in `ddpengine/bundle/licences`.
"""


class Wheel:
    """A zip whose last file lists the others with their SHA-256 (PEP 427)."""

    def __init__(self, path: Path, info: str) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self._record = f"{info}/RECORD"
        self._rows: list[str] = []

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._rows.append(f"{name},sha256={digest},{len(data)}")

    def close(self) -> None:
        entry = zipfile.ZipInfo(self._record, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = 0o100644 << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(entry, "\n".join([*self._rows, f"{self._record},,"]) + "\n")
        self._zip.close()


def make(build: Path, version: str) -> Path:
    machine = platform.machine()
    bundle = build / f"bundle/ddpengine-{version}-{machine}"
    if not is_elf(bundle / "ddpengine"):
        fail(f"{bundle} is not there: make bundle makes it")
    files = sorted(f for f in bundle.rglob("*") if f.is_file() and not f.is_symlink())
    glibc = max(number(newest((f for f in files if is_elf(f)), "GLIBC")[0][0]), (2, 34))
    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{machine}"
    path, info = build / f"bundle/ddpengine-{version}-{tag}.whl", f"ddpengine-{version}.dist-info"
    for old in (build / "bundle").glob("*.whl"):
        old.unlink()
    wheel = Wheel(path, info)
    for file in sorted(p for p in MODULE.iterdir() if p.suffix == ".py" or p.name == "py.typed"):
        wheel.add(f"ddpengine/{file.name}", file.read_bytes())
    for file in files:
        wheel.add(f"ddpengine/bundle/{file.relative_to(bundle)}", file.read_bytes(), executable=file.stat().st_mode & 0o100 != 0)
    wheel.add(f"{info}/METADATA", METADATA.format(version=version, description=DESCRIPTION).encode())
    wheel.add(f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
    wheel.add(f"{info}/entry_points.txt", ENTRY_POINTS.encode())
    wheel.add(f"{info}/LICENSE", (ROOT / "LICENSE").read_bytes())
    wheel.close()
    print(f"wheel: {path}: {path.stat().st_size / 2**20:.1f} MiB")
    return path


def main() -> int:
    try:
        make(Path(sys.argv[1]).resolve(), sys.argv[2])
    except Failed as e:
        print(f"make wheel: error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
