"""Where the program and its library are, what fails, and the console script."""
from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Mapping
from typing import NoReturn

BUNDLE = pathlib.Path(__file__).resolve().parent / "bundle"


class Error(Exception):
    """What the program, or its library, could not do. `str()` of it is the program's own line.

    exit_code: the class of the error, as in docs/exit-codes.md: 2 a wrong setting, 3 a plugin, 8 a checkpoint, 10 data, 128 + n
    ended by signal n, and so on."""

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(line)
        self.line = line
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.line} (exit code {self.exit_code})"

    def __reduce__(self) -> tuple[type[Error], tuple[str, int]]:
        return type(self), (self.line, self.exit_code)


def program() -> pathlib.Path:
    """The program's file: for subprocess, or for another launcher such as mpirun."""
    return BUNDLE / "ddpengine"


def version() -> str:
    """"0.1.0": of the program and of this package."""
    try:
        return (BUNDLE / "version").read_text().strip()
    except FileNotFoundError:
        raise ImportError(f"{BUNDLE} is not there: this is the source of the package without the program; `make wheel` puts them together, "
                          "and pip installs the wheel") from None


def settings(values: Mapping[str, object] | None) -> list[str]:
    """{"train.batch_size": 8} -> ["train.batch_size=8"]: booleans as yes and no, lists with commas."""
    def text(value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, (list, tuple)):
            return ", ".join(text(v) for v in value)
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)

    for key in values or {}:
        if not isinstance(key, str) or "." not in key:
            raise ValueError(f"{key!r} is no setting: a key is \"section.key\", as in \"train.batch_size\"")
    return [f"{key}={text(value)}" for key, value in (values or {}).items()]


def main() -> NoReturn:
    """The console script `ddpengine`: the program takes this process's place."""
    os.execv(program(), ["ddpengine", *sys.argv[1:]])
