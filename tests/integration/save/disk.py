"""Runs that save to a disk that is held, broken or full for the thread that writes, by files (support/slow_disk.c)."""
import os
import re
import subprocess

from harness import SRC, Case, until

ADAMW = {"optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}}


class DiskCase(Case):
    def disk(self):
        """The environment of a program that sees this disk."""
        self.switches = self.dir / "disk"
        self.switches.mkdir(exist_ok=True)
        lib = self.dir / "libslow_disk.so"
        if not lib.exists():
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", f"{SRC}/tests/integration/support/slow_disk.c", "-o", str(lib), "-ldl"],
                           check=True)
        # a sanitizer's runtime wants to come before all that is preloaded, or to be told that it does not
        return {"LD_PRELOAD": str(lib), "SLOW_DISK": str(self.switches),
                "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def switch(self, name, on=True):
        path = self.switches / name
        if on:
            path.touch()
        else:
            path.unlink(missing_ok=True)

    def held(self):
        until((self.switches / "held").exists, "no save comes to the disk")
        self.switch("held", on=False)

    def layers(self, folder, *more, every=5, steps=12):
        return [{"train": {"max_steps": steps, "epochs": 1000000}, "output": {"log_every": 1, "dir": self.dir / (folder + ".out")},
                 "checkpoint": {"dir": self.dir / folder, "every": every, "keep": 0}}, *more]

    def begin(self, disk, folder, *more, nproc=2, **length):
        """With the disk so from the beginning on."""
        path = self.ini(folder + ".ini", *self.layers(folder, *more, **length))
        env = self.disk()
        self.switch(disk)
        return self.start("-c", path, *(("--nproc", nproc) if nproc else ()), env=env)

    def until_step(self, p, step):
        """Reads the lines up to that of a step; returns them."""
        lines = []
        while not lines or not re.search(rf"step {step}/", lines[-1]):
            lines.append(p.stderr.readline())
            self.check(lines[-1], f"ended before step {step}: {lines}")
        return "".join(lines)

    def names(self, folder):
        return sorted(p.name for p in (self.dir / folder).glob("step-*"))

    def content(self, folder, step):
        """Of the files of tensors; the manifest has the settings, too."""
        return {path.name: path.read_bytes() for path in (self.dir / folder / f"step-{step:08}").glob("*.safetensors")}

    def all_verify(self, folder, names):
        self.equal(self.names(folder), names)
        r = self.run("checkpoint", "verify", self.dir / folder)
        self.equal(r.code, 0, r)
