"""train(): the program as a process of its own, and its metrics as they are written."""
from __future__ import annotations

import atexit
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from ._program import Error, program, settings

POLL_S = 0.05  # the program writes metrics four times a second
ERROR = re.compile(r"^ddpengine(\[\d+\])?: error: (.*)")
Path = str | os.PathLike[str]


class _Lines:
    """What this run appends to metrics.jsonl, though lines of an earlier run may stand there. A run that starts from step 0 empties
    the file, one that resumes goes on in it: the first line, which has the time of a start, tells which it was."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        text = path.read_bytes() if path.exists() else b""
        self._position = text.rfind(b"\n") + 1  # half a line that a kill has left is removed
        self._first = text.partition(b"\n")[0]

    def new(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                if file.readline().rstrip(b"\n") != self._first or file.seek(0, os.SEEK_END) < self._position:
                    self._position = 0
                file.seek(self._position)
                text = file.read()
                complete = text[:text.rfind(b"\n") + 1]
                if self._position == 0 and complete:
                    self._first = complete.partition(b"\n")[0]
        except FileNotFoundError:
            return []
        self._position += len(complete)
        return [json.loads(line) for line in complete.splitlines()]


class Run(Iterator[dict[str, Any]]):
    """A run that goes on: an iterator of its metrics, and a context manager that stops the run at its end.

    Each item is a line of metrics.jsonl as a dict: m["event"] is "start", "step", "eval", "checkpoint", "warning", "end" and so on;
    a step has "step", "epoch", "loss", "lr", "step_ms", "samples_per_s". Numbers that are not finite are None.

    folder: where the run writes metrics.jsonl and summary.json; a folder that is removed at the end where [output] dir is empty.
    exit_code: None while the run goes on."""

    def __init__(self, ini: Path, options: list[str], log: Callable[[str], object] | None) -> None:
        self.exit_code: int | None = None
        self._log = log
        self._said: collections.deque[str] = collections.deque()
        self._errors: list[str] = []
        self._waiting: collections.deque[dict[str, Any]] = collections.deque()
        self._stopped = False
        self._temporary: str | None = None
        words = [str(program()), "-c", os.fspath(ini), *options]
        folder = _output_folder(words)
        if not folder:
            folder = self._temporary = tempfile.mkdtemp(prefix="ddpengine-")
            words += ["--set", f"output.dir={folder}"]
        self.folder = pathlib.Path(folder)
        self._lines = _Lines(self.folder / "metrics.jsonl")
        # In a process group of its own: Ctrl-C reaches Python alone, which passes it on once. A second one would end the run unsaved.
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
                                         text=True, encoding="utf-8", errors="replace")
        # a thread that had `self` would keep a run that nobody else has
        self._reader = threading.Thread(target=_read, args=(self._process, self._errors, self._said if log is not None else None), daemon=True)
        self._reader.start()
        _running.add(self)

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> dict[str, Any]:
        """The next line of metrics, waiting for it. Raises Error where the run has failed; KeyboardInterrupt, as Ctrl-C does in any
        Python program, after the run has saved and ended."""
        try:
            while not self._waiting:
                ended = self._process.poll() is not None  # before the last look at the file
                self._waiting.extend(self._lines.new())
                self._tell()
                if not self._waiting and ended:
                    self._end()
                    raise StopIteration
                if not self._waiting:
                    self._wait(POLL_S)
            return self._waiting.popleft()
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the run as Ctrl-C ends the program: all ranks finish the step, save a checkpoint where [checkpoint] dir is set, and leave;
        returns when they have. A Ctrl-C meanwhile ends the run without saving. Metrics that were not yet taken can still be."""
        if self._process.poll() is None:
            self._stopped = True
            # A command that a script starts with & ignores SIGINT, and so does what it starts.
            ask = signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT
            self._process.send_signal(ask)
            try:
                self._process.wait()
            except KeyboardInterrupt:
                self._process.send_signal(ask)
                self._process.wait()
                raise
            finally:
                self._waiting.extend(self._lines.new())
                self._finish()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.stop()

    # ---- the process -----------------------------------------------------------------------------------------------
    def _tell(self) -> None:
        while self._said and self._log is not None:
            self._log(self._said.popleft())

    def _wait(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def _finish(self) -> None:
        """After the process has ended."""
        if self.exit_code is not None:
            return
        code = self._process.wait()
        self.exit_code = code if code >= 0 else 128 - code
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._tell()
        _running.discard(self)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _end(self) -> None:
        first = self.exit_code is None
        self._finish()
        if first and self.exit_code != 0 and not self._stopped:
            raise Error(self._errors[-1] if self._errors else "the program ended without a word", self.exit_code or 0)


def _read(process: subprocess.Popen[str], errors: list[str], said: collections.deque[str] | None) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        line = line.rstrip("\n")
        if (found := ERROR.match(line)) is not None:
            errors.append(found[2])
        if said is not None:
            said.append(line)


_running: weakref.WeakSet[Run] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for run in list(_running):
        run.stop()


def _output_folder(words: list[str]) -> str:
    """[output] dir of the effective INI; "" for none. Raises Error where the INI cannot be used."""
    done = subprocess.run([*words, "--print-config"], stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        lines = [found[2] for line in done.stderr.splitlines() if (found := ERROR.match(line)) is not None]
        raise Error(lines[-1] if lines else done.stderr.strip(), done.returncode)
    section = done.stdout.partition("\n[output]\n")[2].partition("\n[")[0]
    found = re.search(r"^dir = (.*?)\s{3}; .*$", section, re.M)
    return found[1] if found else ""


def train(ini: Path, set: Mapping[str, object] | None = None, *, nproc: int | None = None, log: Callable[[str], object] | None = None) -> Run:  # pylint: disable=redefined-builtin
    """Starts `ddpengine -c INI --set ... --nproc N`, and gives its metrics as they come.

    ini: the file; paths in it are relative to the working folder, as for the program.
    set: keys in place of the file's, {"train.batch_size": 8, "optimizer.lr": 0.1, "data.mean": [0.5, 0.5, 0.5]}.
    nproc: so many ranks on this machine; None: one, or what [group] says.
    log: is called with each line that the program prints, as in log=print; None: they are dropped.

    A checkpoint is resumed as the program does it ([checkpoint] resume). Raises Error at once where the INI cannot be used, and
    from the iteration where the run fails. Ctrl-C, and leaving the loop for good, end the run as Ctrl-C ends the program: see
    Run.stop. A Python that is killed leaves the run going on."""
    options = [word for setting in settings(set) for word in ("--set", setting)]
    if nproc is not None:
        options += ["--nproc", str(nproc)]
    return Run(ini, options, log)
