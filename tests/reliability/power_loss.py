#!/usr/bin/env python3
"""Power that is lost while checkpoints are written, over and over: at a random moment the file system of the checkpoints is cut off,
and nothing of it reaches the disk any more that was not flushed.

    tests/reliability/power_loss.py [--trials 100] [--seed N] [--without-fsync]

The checkpoints are in an ext4 file system on a loop device. EXT4_IOC_SHUTDOWN with NOLOGFLUSH cuts it off: what the kernel still has in
memory, data and journal, is lost, as by a power cut. Half of the cuts come while a checkpoint is saved. Then all processes of the run
are killed with signal 9, and the file system is mounted again from what the image has. It does not model a disk that has said of a
flush what is not true.

For each trial: every checkpoint that the log called durable is there (with `keep`, of which half of the trials have 2: the newest),
`ddpengine checkpoint verify` finds all of them good, and the run goes on from the newest, and in a trial of three from any other one,
to the parameters of the run that lost nothing. Needs root, mkfs.ext4 and loop devices; where those are missing it says so and ends with
exit code 1.

--without-fsync: fsync does nothing in the ranks. Must end with exit code 1, which shows that the cut is one."""
import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

from survive import Trial, arguments, harness, seeded

EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587d, 2  # linux/fs/ext4/ext4.h
IMAGE_MIB, EVERY, LATEST_S, SAVE_S = 192, 10, 0.5, 0.002
RUN = {"train": {"epochs": 200}, "data.synthetic": {"samples": 640}, "checkpoint": {"every": EVERY}, "group": {"backend": "shm"},
       "run": {"restarts": 0}, "output": {"log_every": 50}}
NO_FSYNC = "int fsync(int fd) { (void)fd; return 0; }\nint fdatasync(int fd) { (void)fd; return 0; }\n"


def shell(*command):
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        raise OSError(f"{' '.join(map(str, command))}: {r.stderr.strip() or r.stdout.strip()}")
    return r.stdout


class Disk:
    """An ext4 file system on a loop device, whose image is in memory: this machine's own disk need not flush for it."""

    def __init__(self, folder):
        self.memory, self.folder, self.mounted = folder / "memory", folder / "disk", False
        self.folder.mkdir()
        self.memory.mkdir()
        self.image = self.memory / "image"
        shell("mount", "-t", "tmpfs", "-o", f"size={2 * IMAGE_MIB}m", "none", self.memory)
        with open(self.image, "wb") as f:
            f.truncate(IMAGE_MIB << 20)
        shell("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image)

    def mount(self):
        shell("mount", "-o", "loop", self.image, self.folder)
        self.mounted = True

    def cut(self):
        """Whether a save was in progress, as far as can be seen."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            saving = any(self.folder.glob("saved/*.tmp"))
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
            return saving
        finally:
            os.close(fd)

    def unmount(self):
        if self.mounted:
            harness.until(self.unmounted, "the file system stays busy")
            self.mounted = False

    def unmounted(self):
        return subprocess.run(["umount", str(self.folder)], stderr=subprocess.DEVNULL, check=False).returncode == 0

    def remove(self):
        self.unmount()
        shell("umount", self.memory)

    def clean(self):
        for entry in self.folder.iterdir():
            if entry.name != "lost+found":
                shutil.rmtree(entry)


def missing():
    """What this machine lacks; None: nothing."""
    if os.geteuid() != 0:
        return "not root: cannot mount a file system"
    for program in ("mkfs.ext4", "mount", "losetup"):
        if shutil.which(program) is None:
            return f"no {program}"
    t = Trial()
    disk = None
    try:
        disk = Disk(t.dir)
        disk.mount()
        (disk.folder / "lost").write_text("written, and never flushed")
        disk.cut()
        disk.unmount()
        disk.mount()
        return "EXT4_IOC_SHUTDOWN loses nothing here" if (disk.folder / "lost").exists() else None
    except OSError as why:
        return str(why)
    finally:
        if disk is not None:
            disk.remove()
        t.close()


def build_without_fsync(folder):
    source, library = folder / "no_fsync.c", folder / "no_fsync.so"
    source.write_text(NO_FSYNC)
    subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library)}


class Power(Trial):
    """A trial, whose checkpoints lie on the disk; its own folder has the rest."""

    def __init__(self, disk, rng, env):
        super().__init__()
        self.disk, self.rng, self.env = disk, rng, env
        self.keep = rng.choice((2, 1000))
        self.out = self.dir / "run.out"

    def command(self, resume="auto", every=EVERY):
        saves = {"dir": self.disk.folder / "saved", "keep": self.keep, "resume": resume, "every": every}
        return ["-c", self.settings("run", RUN, {"checkpoint": saves}), "--nproc", 2]

    def lose_power(self):
        """The steps that were called durable."""
        self.disk.mount()
        self.disk.clean()
        p = self.follow(self.start(*self.command(), env=self.env))
        harness.until(lambda: self.when(r"is durable")[0] or p.poll() is not None, "does not save")
        time.sleep(self.rng.uniform(0, LATEST_S))
        if self.rng.random() < 0.5:  # or while one is saved
            harness.until(lambda: list((self.disk.folder / "saved").glob("*.tmp")) or p.poll() is not None, "does not save")
            time.sleep(self.rng.uniform(0, SAVE_S))
        ranks = harness.children_of(p.pid) if p.poll() is None else []
        self.saving = self.disk.cut()
        for pid in [p.pid, *ranks]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        harness.until(lambda: not any(harness.state_of(pid) for pid in ranks), "a rank survives signal 9")
        self.ended(p)
        self.disk.unmount()
        return [int(m[1]) for _, line in self.lines if (m := re.search(r"step-(\d+) is durable", line))]

    def finish_run(self, resume):
        r = self.run(*self.command(resume, every=0))  # at the end alone
        self.equal(r.code, 0, r)
        found = re.search(r"resuming from \S+: step (\d+)", r.err)
        self.check(found, f"does not resume\n{r}")
        return int(found[1]), self.sha()

    def check_saved(self, durable, want):
        """That all of them are there, are whole, and lead to the same bits."""
        self.disk.mount()
        saved = self.disk.folder / "saved"
        there = sorted(int(p.name[5:]) for p in saved.glob("step-????????"))
        lost = set(durable if self.keep > 2 else durable[-1:]) - set(there)
        self.check(not lost, f"of {durable}, called durable, {sorted(lost)} are lost; the disk has {there}")
        r = self.run("checkpoint", "verify", saved)
        self.equal(r.code, 0, r)
        if self.rng.random() < 1 / 3:
            start = self.rng.choice(there)
            self.equal(self.finish_run(saved / f"step-{start:08}"), (start, want), "from an older checkpoint")
        else:
            start, sha = self.finish_run("auto")
            self.check(start >= max(durable), f"resumes from step {start}, and step {max(durable)} was durable")
            self.equal(sha, want)

    def close(self):
        for p in self.started:
            if p.poll() is None:
                for pid in [p.pid, *harness.children_of(p.pid)]:
                    os.kill(pid, signal.SIGKILL)
                p.wait()
        self.disk.unmount()
        super().close()


def whole():
    t = Trial()
    try:
        t.out = t.dir / "whole.out"
        r = t.run("-c", t.settings("whole", RUN, {"checkpoint": {"every": 1000}}), "--nproc", 2)
        t.equal(r.code, 0, r)
        return t.sha()
    finally:
        t.close()


def main():
    a = arguments(__doc__)
    a.add_argument("--trials", type=int, default=100)
    a.add_argument("--without-fsync", action="store_true")
    a = a.parse_args()
    seed, rng = seeded(a)
    print(f"seed {seed}, a checkpoint every {EVERY} updates", flush=True)
    why = missing()
    if why:
        print(f"power cannot be cut here: {why}")
        return 1
    want, good, tried, durable, during, began = whole(), 0, 0, 0, 0, time.monotonic()
    base = Trial()
    disk = Disk(base.dir)
    try:
        env = build_without_fsync(base.dir) if a.without_fsync else None
        while tried < a.trials and tried - good < 3:
            t = Power(disk, rng, env)
            try:
                said = t.lose_power()
                t.check_saved(said, want)
                durable += len(said)
                during += t.saving
                good += 1
            except AssertionError as wrong:
                print(f"trial {tried}: {wrong}\n{t.last_lines(8)}", flush=True)
            finally:
                tried += 1
                t.close()
    finally:
        disk.remove()
        base.close()
    print(f"cut off {tried:3} times, {during:3} of them during a save   {durable} checkpoints were called durable   "
          f"all of them whole, and same bits {good} of {tried}   {time.monotonic() - began:.0f} s", flush=True)
    return 0 if good == tried == a.trials else 1


if __name__ == "__main__":
    sys.exit(main())
