"""parts.py, with parts that are small scripts: nothing is lost of what they say, and an interrupted run ends all of them; run.py
likewise ends its trials."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import trial  # noqa: F401 -- finds harness
import parts
from harness import Case, main

HERE = pathlib.Path(__file__).resolve().parent


def script(text, name="a part", **more):
    return parts.Part(name, ["sh", "-c", text], 1, **more)


class PartsTest(Case):
    def test_what_is_said_counts(self):
        good = script("echo '3 passed, 0 failed, 1 skipped in 2 s'")
        bad = script("echo '3 passed, 2 failed, 0 skipped'; exit 3")
        both = [good, bad]
        parts.Parts().run(both, 2)
        self.equal([(p.passed, p.failed, p.skipped) for p in both], [(3, 0, 1), (3, 2, 0)])
        lines = parts.table(both).splitlines()
        self.equal([line.split() for line in lines[1:]], [["a", "part", "3", "0", "1", "0"], ["a", "part", "3", "2", "0", "0"]])

    def test_a_part_that_says_nothing_has_failed(self):
        for text, note in (("exit 0", "exit 0 without"), ("kill -9 $$", "exit -9 without"), ("exit 3", "exit 3 without"),
                           ("echo '3 passed, 0 failed, 0 skipped'; exit 1", "exit 1"),
                           ("echo '3 passed, 1 failed, 0 skipped'", "exit 0")):
            p = script(text)
            parts.Parts().run([p], 1)
            self.equal(p.failed, 1, text)
            self.check(note in p.note, f"{text}: {p.note}")

    def test_a_part_that_is_one_check(self):
        for code, counts in ((0, (1, 0, "")), (3, (0, 1, "exit 3"))):
            p = script(f"exit {code}", by_exit=True)
            parts.Parts().run([p], 1)
            self.equal((p.passed, p.failed, p.note), counts)

    def test_no_gpu_is_a_skip_with_its_reason(self):
        p = script("echo 'error: no driver'; exit 3", "conform nccl")
        parts.Parts().run([p], 1)
        self.equal((p.failed, p.skipped, p.note), (0, 1, "error: no driver"))

    def test_side_by_side_with_ports_of_their_own(self):
        made = [script(f"echo $DDP_RELIABILITY_PORTS >{self.dir}/{i}; until [ -e {self.dir}/{1 - i} ]; do sleep 0.01; done; "
                       "echo 1 passed, 0 failed, 0 skipped") for i in (0, 1)]
        parts.Parts().run(made, 2)
        self.equal([p.passed for p in made], [1, 1])
        (a, b), (c, d) = sorted([int(n) for n in (self.dir / str(i)).read_text().split()] for i in (0, 1))
        self.check(a < b <= c < d, (a, b, c, d))

    def test_a_part_that_hangs_is_ended(self):
        p = script("echo 1 passed, 0 failed, 0 skipped; exec sleep 1000")
        parts.Parts(limit_s=0.3).run([p], 1)
        self.equal((p.failed, p.note), (1, "exit -15"))

    def test_the_long_ones_begin_first(self):
        made = [script(f"echo {i} >>{self.dir}/order; echo 1 passed, 0 failed, 0 skipped") for i in range(3)]
        made[2].weight, made[0].weight = 9, 5
        parts.Parts().run(made, 1)
        self.equal((self.dir / "order").read_text().split(), ["2", "0", "1"])

    def interrupt(self, text, number):
        """Of a program that runs parts or trials; its exit code."""
        p = subprocess.Popen([sys.executable, "-c", text], cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        self.started.append(p)
        ready, until = self.dir / "ready", time.monotonic() + 60
        while not ready.exists():
            self.check(time.monotonic() < until and p.poll() is None, "it does not start")
            time.sleep(0.01)
        os.kill(p.pid, number)
        out = p.communicate(timeout=60)[0]
        for pid in map(int, ready.read_text().split()):
            until = time.monotonic() + 20
            while not trial.gone(pid):
                self.check(time.monotonic() < until, f"process {pid} is left\n{out}")
                time.sleep(0.01)
        return p.returncode

    def test_interrupted(self):
        text = ("import signal, parts\n"
                "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, parts.interrupted)\n"
                f"text = 'echo $$ >{self.dir}/new; mv {self.dir}/new {self.dir}/ready; exec sleep 1000'\n"
                "parts.Parts().run([parts.Part('a', ['sh', '-c', text], 1), parts.Part('b', ['sleep', '1000'], 0)], 1)")
        for number in (signal.SIGINT, signal.SIGTERM):
            self.equal(self.interrupt(text, number), 128 + number)
            (self.dir / "ready").unlink()

    def test_interrupted_trials(self):
        text = ("import signal, run, trial\n"
                "signal.signal(signal.SIGTERM, run.interrupted)\n"
                "def sleeps(t):\n"
                "    p = t.popen('sleep', ['sleep', '1000'])\n"
                f"    (trial.pathlib.Path('{self.dir}') / 'new').write_text(str(p.pid))\n"
                f"    (trial.pathlib.Path('{self.dir}') / 'new').rename('{self.dir}/ready')\n"
                "    p.wait()\n"
                "    t.popen('again', ['sleep', '1000']).wait()\n"
                "run.run_row(trial.Row('sleeps', 'shm', sleeps), 5, 1)\n")
        self.equal(self.interrupt(text, signal.SIGTERM), 128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(PartsTest))
