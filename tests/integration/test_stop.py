"""A run that is asked to end: all ranks agree on a step, save, and leave with 128 + the signal; a second signal does not wait.
And replicas that are no longer the same bits."""
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys
import termios
import time

import harness
from harness import Case, children_of, until

LONG = {"train": {"epochs": 1000000}}
# the last batch of an epoch is smaller than the others
RUN = {**LONG, "data.synthetic": {"samples": 650}, "output": {"log_every": 20}, "checkpoint": {"keep": 2}}


def handles(pid, number):
    caught = re.search(r"^SigCgt:\t(\w+)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1]
    return int(caught, 16) >> (number - 1) & 1


class Stop(Case):
    def dirs(self, name):
        return {"output": {"dir": self.dir / name}, "checkpoint": {"dir": self.dir / (name + ".ck")}}

    def stopped(self, r, sig):
        self.fails(r, 128 + sig, f"ended by signal {sig}", "after step", "which is saved")
        step = int(re.search(r"after step (\d+)", r.errors()[0]).group(1))
        return step

    def test_every_signal_saves_and_the_run_goes_on_bit_for_bit(self):
        for nproc in (0, 2):
            for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                name = f"cut{nproc}{sig}"
                args = ("-c", self.ini(name + ".ini", RUN, self.dirs(name)), *(("--nproc", nproc) if nproc else ()))
                p = self.start(*args)
                self.trained_a_while(p)
                p.send_signal(sig)
                r = self.finish(p)
                step = self.stopped(r, sig)
                self.check((self.dir / f"{name}.ck/step-{step:08d}/MANIFEST.json").exists(), r)
                end = self.metrics(self.dir / name, "end")
                self.equal(end[-1].get("exit_code"), 128 + sig, end)
                on = {"train": {"max_steps": step + 50}}  # into another epoch
                whole, rest = (self.train(RUN, on, {"checkpoint": {"dir": folder}}, nproc=nproc, name=f"{name}.{folder.name}").summary
                               for folder in (self.dir / f"{name}.whole", self.dir / f"{name}.ck"))
                self.equal(rest["steps"], step + 50, rest)
                self.equal(rest["parameter_sha256"], whole["parameter_sha256"], f"not the bits of an uncut run: {rest}")

    def test_a_signal_within_a_matrix_product(self):
        """A library's generated code may point the stack pointer into memory of the heap, where a handler would overwrite it."""
        self.environ = {}
        wide = {"train": {"batch_size": 64}, "model.mlp": {"hidden": "1500, 1500"}, "data.synthetic": {"samples": 6400}}
        path = self.ini("wide.ini", LONG, wide, self.dirs("wide"), {"output": {"log_every": 1}})
        p = self.start("-c", path, "--nproc", 2)
        self.trained_a_while(p)
        victim = children_of(p.pid)[0]
        for _ in range(3000):  # of a supervised rank's only the first counts, the others just run the handler
            try:
                os.kill(victim, signal.SIGTERM)
            except ProcessLookupError:
                break
            time.sleep(0.0005)
        self.stopped(self.finish(p), 15)

    def test_a_signal_to_one_rank_ends_all(self):
        """Supervised, and two started by hand: the rank that was not asked learns it in the same step."""
        path = self.ini("one.ini", LONG, self.dirs("one"))
        p = self.start("-c", path, "--nproc", 3)
        self.trained_a_while(p)
        os.kill(children_of(p.pid)[2], signal.SIGTERM)
        self.stopped(self.finish(p), 15)
        self.no_processes_left(path)
        group = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 2}}
        both = [self.start("-c", self.ini(f"r{r}.ini", LONG, group, {"group": {"rank": r}},
                                          self.dirs("hand") if r == 0 else {})) for r in (0, 1)]
        self.trained_a_while(both[0])
        both[1].send_signal(signal.SIGINT)
        steps = {self.stopped(self.finish(p), 2) for p in both}
        self.equal(len(steps), 1, steps)

    def test_without_a_checkpoint_folder_it_says_that_nothing_is_saved(self):
        p = self.start("-c", self.ini("none.ini", LONG, {"output": {"log_every": 20}}), "--nproc", 2)
        self.trained_a_while(p)
        p.terminate()
        self.fails(self.finish(p), 143, "ended by signal 15", "nothing is saved", "[checkpoint] dir")

    def test_during_an_evaluation(self):
        """Which is cut short on all ranks, and does not count."""
        big = {"train": {"epochs": 1}, "eval": {"plugin": "synthetic"},
               "eval.synthetic": {"samples": 40000000, "shape": 12, "classes": 4, "seed": 2}}
        p = self.start("-c", self.ini("eval.ini", big, self.dirs("eval"), {"output": {"log_every": 1}}), "--nproc", 2)
        for _ in range(20):  # steps of the one epoch
            self.trained_a_while(p)
        time.sleep(0.3)  # of an evaluation that takes minutes
        p.terminate()
        r = self.finish(p)
        self.equal(self.stopped(r, 15), 20, r)
        self.equal(self.metrics(self.dir / "eval", "eval"), [], r)

    def test_a_second_signal_leaves_at_once(self):
        """The first one cannot be served, for one rank stands still."""
        path = self.ini("second.ini", LONG, self.dirs("second"))
        p = self.start("-c", path, "--nproc", 2)
        self.trained_a_while(p)
        self.stand_still(children_of(p.pid)[1])
        self.signal(p.pid, signal.SIGTERM)
        time.sleep(0.3)
        self.equal(p.poll(), None)
        p.terminate()
        r = self.finish(p)
        self.fails(r, 143, "ended by signal 15")
        self.no_processes_left(path)

    def test_a_rank_that_crashes_while_it_should_save_is_named(self):
        # A sanitizer's own handler would turn the signal into an exit code.
        plain = {f"{s}SAN_OPTIONS": os.environ.get(f"{s}SAN_OPTIONS", "") + ":handle_segv=0" for s in ("A", "T", "UB")}
        for sig in (signal.SIGSEGV, signal.SIGKILL):
            path = self.ini(f"crash{sig}.ini", LONG, self.dirs(f"crash{sig}"))
            p = self.start("-c", path, "--nproc", 2, env=plain)
            self.trained_a_while(p)
            ranks = children_of(p.pid)
            self.stand_still(ranks[1])  # so that rank 0 cannot leave
            self.signal(p.pid, signal.SIGTERM)
            os.kill(ranks[0], sig)
            self.fails(self.finish(p), 5, "rank 0 (pid", f"was killed by signal {int(sig)}")
            self.no_processes_left(path)

    def test_before_training_it_ends_at_once(self):
        group = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 2}}
        p = self.start("-c", self.ini("alone.ini", group))
        until(lambda: handles(p.pid, signal.SIGTERM), "no handler of SIGTERM")
        p.terminate()
        self.fails(self.finish(p), -15, "ended by signal 15")

    def test_interrupt_of_a_terminal(self):
        """A terminal sends it to the supervisor and to every rank: that is one signal, not two."""
        path = self.ini("tty.ini", LONG, self.dirs("tty"))
        parent, child = harness.open_terminal()
        p = self.spawn([harness.ENGINE, "-c", path, "--nproc", 2], stdin=child, stdout=child, stderr=child, start_new_session=True,
                       preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(child)
        asked = []

        def interrupt(seen):
            if not asked and b"step" in seen:
                asked.append(os.write(parent, b"\x03"))

        seen = harness.read_terminal(parent, interrupt)
        self.equal(p.wait(harness.PATIENCE), 130, seen)
        self.check("which is saved" in seen, seen)
        self.no_processes_left(path)


class Replicas(Case):
    def test_equal_replicas_pass(self):
        plain = self.train({}, name="plain.ini")
        checked = self.train({"train": {"check_replicas_every": 3}}, name="checked.ini")
        self.equal(plain.summary["parameter_sha256"], checked.summary["parameter_sha256"])

    def test_a_deviant_rank_ends_the_run(self):
        (self.dir / "plugins").mkdir()
        cc = os.environ.get("CC", "cc").split()
        subprocess.run([*cc, "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
                        f"-I{harness.SRC}/core/include", f"-I{harness.SRC}/docs/examples/backend-skeleton", "-o",
                        str(self.dir / "plugins/backend_drifting.so"),
                        str(harness.SRC / "tests/integration/support/drifting_backend.c")], check=True)
        os.chmod(self.dir / "plugins/backend_drifting.so", 0o755)
        for every, step in ((1, None), (5, 10)):
            path = self.ini("drift.ini", {"group": {"backend": "drifting"}, "plugins": {"path": self.dir / "plugins"},
                                          "train": {"check_replicas_every": every}, "output": {"log_every": 1}})
            r = self.run("-c", path, "--nproc", 3)
            self.fails(r, 9, "rank 2", "bit for bit", re.compile(r"first in \S+\.(weight|bias)"))
            if step:
                self.check(f"step {step}:" in r.errors()[0], r)


if __name__ == "__main__":
    sys.exit(harness.main(Stop, Replicas))
