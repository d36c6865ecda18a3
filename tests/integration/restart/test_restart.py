"""[run] restarts: ranks that are lost are started again, the others keep the run's state, and the bits are those of a run
that lost nobody."""
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, Skip, long_case, seldom, until  # noqa: E402

# 640 samples, 2 ranks x 16: 20 steps an epoch
LENGTH = {"train": {"epochs": 100}, "checkpoint": {"every": 100}, "output": {"log_every": 20}}
BUCKETS = {"ddp": {"bucket_size": "1KiB", "first_bucket_size": "256"}}  # several: a failure may come between two
RESTARTS = {**BUCKETS, "run": {"restarts": 5, "restart_delay": "0s"}, "group": {"peer_timeout": "1s"}}
GLOO = {"group": {"backend": "gloo-tcp"}}
ADAMW = {"optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}}


def copy_of_lock(pid):
    """A descriptor of the open file .lock of another process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        if not os.readlink(fd).endswith("/.lock"):
            continue
        process = os.pidfd_open(pid)
        copy = libc.syscall(438, process, int(fd.name), 0)  # pidfd_getfd, Linux 5.6
        os.close(process)
        if copy < 0:
            raise Skip(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
        return copy
    raise AssertionError("rank 0 has no lock")


def open_files(pid):
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield os.readlink(fd)
        except OSError:  # closed meanwhile
            continue


class Restart(Case):
    wholes = {}  # hash of the run that loses nobody, by what it is

    def whole(self, *more):
        key = json.dumps([m for m in more if m is not GLOO], default=str)  # the bits are the same over every backend
        if key not in self.wholes:
            layers = [LENGTH, {"checkpoint": {"dir": self.dir / "whole"}}, *more]
            self.wholes[key] = self.train(*layers, name="whole.ini").summary["parameter_sha256"]
        return self.wholes[key]

    def begin(self, *more, args=("--nproc", 2)):
        """Starts it; once it trains, the process."""
        self.out = self.dir / "fault.out"
        path = self.ini("fault.ini", LENGTH, RESTARTS, {"output": {"dir": self.out}, "checkpoint": {"dir": self.dir / "fault"}}, *more)
        p = self.start("-c", path, *args)
        self.trained_a_while(p)
        return p

    def end(self, p, *more, memory=None, generations=1):
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.no_processes_left(self.dir)
        self.equal(json.loads((self.out / "summary.json").read_text())["parameter_sha256"], self.whole(*more), r)
        self.equal(self.metrics(self.out, "start")[-1]["generation"], generations, r)  # the first may be lost with rank 0
        if memory is not None:
            self.equal("from the memory of rank" in r.err, memory, r)
        return r

    def next_generation(self, p):
        """Reads lines until the ranks train in the next generation; those lines."""
        lines = []
        while "training mlp" not in (lines or [""])[-1]:
            lines.append(p.stderr.readline())
            self.check(lines[-1], "ended early")
        self.trained_a_while(p)
        return "".join(lines)

    def test_any_rank_is_replaced(self):
        """Rank 1, then rank 0, which has the control plane: each time the other one has the run's state in memory."""
        p = self.begin(GLOO, ADAMW)
        for victim in (1, 0):
            os.kill(self.children(p, 2)[victim], signal.SIGKILL)
            lines = self.next_generation(p)
            self.check(f"rank {victim} (pid" in lines and "was killed by signal 9" in lines, lines)
            self.check(f"from the memory of rank {1 - victim}" in lines, lines)
        r = self.end(p, GLOO, ADAMW, generations=2)
        self.equal(len(r.errors()), 0, r)

    @seldom
    def test_hubs(self):
        """A leaf, then a hub, of five ranks of which two speak to rank 0 through hubs: each generation has hubs of its own."""
        shape = {"train": {"batch_size": 8}, "checkpoint": {"every": 200}}  # 640 samples, 5 ranks x 8: 16 steps an epoch
        hubs = {"group": {"ranks_per_hub": 2, "peer_timeout": "5s"}}
        p = self.begin(GLOO, ADAMW, shape, hubs, args=("--nproc", 5))
        for victim in (3, 2):
            os.kill(self.children(p, 5)[victim], signal.SIGKILL)
            lines = self.next_generation(p)
            self.check(f"rank {victim} (pid" in lines and "was killed by signal 9" in lines, lines)
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.equal(self.metrics(self.out, "start")[-1]["generation"], 2, r)
        whole = self.train(LENGTH, RESTARTS, GLOO, ADAMW, shape, {"checkpoint": {"dir": self.dir / "whole"}, "group": {"ranks_per_hub": 0}}, nproc=5)
        self.equal(json.loads((self.out / "summary.json").read_text())["parameter_sha256"], whole.summary["parameter_sha256"], r)

    @long_case
    def test_rank0_waits_until_its_predecessor_has_ended(self):
        """Which still has the checkpoint folder's lock: this process has a copy of that open file."""
        p = self.begin(GLOO)
        rank0 = self.children(p, 2)[0]
        held = copy_of_lock(rank0)
        os.kill(rank0, signal.SIGKILL)
        line = ""
        while "if it is ending it is waited for" not in line:
            line = p.stderr.readline()
            self.check(line, "ended early")
        self.check(f"process {rank0} on host" in line and "(rejoin_timeout)" in line, line)
        os.close(held)
        self.end(p, GLOO, memory=True)

    def plugin(self, kind, name, source, *flags):
        folder = self.dir / "plugins"
        folder.mkdir(exist_ok=True)
        plugin = folder / f"{kind}_{name}.so"
        subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
                        f"-I{harness.SRC}/core/include", *flags, "-o", str(plugin), str(harness.SRC / "tests/integration/support" / source)],
                       check=True)
        plugin.chmod(0o755)
        return plugin

    def test_a_failure_between_two_buckets(self):
        """Rank 0 has reduced the first bucket of a step, when the second one fails: what it goes on with is of one step, parameters,
        states and running statistics. Then rank 1 cannot connect, and later the broadcast of what rank 0 has in memory fails as
        well: it still has it."""
        self.plugin("backend", "failing", "failing_backend.c", f"-I{harness.SRC}/docs/examples/backend-skeleton")
        model = {"model": {"plugin": self.plugin("model", "buffered", "buffered_model.c")}, "model.mlp": None, "model.buffered": {"norm": "yes"}}
        run = [BUCKETS, model, ADAMW, {"train": {"max_steps": 8}, "plugins": {"path": self.dir / "plugins"}, "group": {"backend": "failing"},
                                "run": {"restarts": 3}, "checkpoint": {"dir": self.dir / "saved", "every": 100}, "ddp": {"overlap": "no"}}]
        plan = self.run("-c", self.ini("plan.ini", *run), "--check").out
        buckets = int(re.search(r"^buckets +(\d+)", plan, re.M).group(1))
        self.check(buckets >= 2, plan)
        want = self.train(*run, {"checkpoint": {"dir": self.dir / "whole"}}, name="whole.ini").summary
        r = self.train(*run, env={"FAIL": f"0:{5 * buckets + 2}", "FAIL_BROADCAST": "0:3", "FAIL_CONNECT": "1:2"}, name="fails.ini")
        self.check("all-reduce" not in r.err and r.err.count("fails on purpose") == 3, r)
        self.check("going on from the memory of rank 0: step 5, epoch 1" in r.err, r)
        keys = ("parameter_sha256", "buffer_sha256")
        self.equal([r.summary[k] for k in keys], [want[k] for k in keys], r)
        self.equal(json.loads((self.dir / "saved/step-00000008/MANIFEST.json").read_text())["micro_steps"], 8)

    @seldom
    def test_sharded_state_comes_from_the_checkpoint(self):
        p = self.begin()
        until(lambda: list((self.dir / "fault").glob("step-*/MANIFEST.json")), "no checkpoint")
        os.kill(self.children(p, 2)[1], signal.SIGKILL)
        r = self.end(p, memory=False)
        self.check("resuming from" in r.err, r)

    @long_case
    def test_running_statistics(self):
        """Rank 0's are the run's: in its memory they are those before the step that failed, without it a checkpoint has them."""
        plugin = self.dir / "model_buffered.so"
        subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-fPIC", "-shared", "-w", f"-I{harness.SRC}/core/include", "-o",
                        str(plugin), str(harness.SRC / "tests/integration/support/buffered_model.c")], check=True)
        plugin.chmod(0o755)
        model = {"model": {"plugin": plugin}, "model.mlp": None, "model.buffered": {"norm": "yes"}}
        want = self.train(LENGTH, model, name="buffered.ini").summary
        for victim in (1, 0):
            shutil.rmtree(self.dir / "fault", ignore_errors=True)
            p = self.begin(GLOO, model)
            os.kill(self.children(p, 2)[victim], signal.SIGKILL)
            r = self.finish(p)
            got = json.loads((self.out / "summary.json").read_text())
            self.equal([got[k] for k in ("parameter_sha256", "buffer_sha256")],
                       [want[k] for k in ("parameter_sha256", "buffer_sha256")], r)
            self.equal("from the memory of rank 0" in r.err, victim == 1, r)

    @long_case
    def test_stopped_rank_is_replaced(self):
        p = self.begin(GLOO)
        os.kill(self.children(p, 2)[1], signal.SIGSTOP)
        r = self.end(p, GLOO, memory=True)
        self.check("has been stopped for 1 s" in r.err or "has been silent for 1 s" in r.err, r)

    @long_case
    def test_all_ranks_at_once(self):
        """One loss, whatever it takes along; `resume = never` is of the start alone."""
        never = {"checkpoint": {"resume": "never"}, "run": {"restarts": 1}}
        p = self.begin(GLOO, never)
        until(lambda: list((self.dir / "fault").glob("step-????????/MANIFEST.json")), "no checkpoint")
        for pid in self.children(p, 2):
            os.kill(pid, signal.SIGKILL)
        r = self.end(p, GLOO, memory=False, generations=0)
        self.check("resuming from" in r.err, r)

    @long_case
    def test_buckets_are_measured_once(self):
        auto = {"ddp": {"bucket_size": "auto", "first_bucket_size": None}, "checkpoint": {"every": 2000}}
        p = self.begin(GLOO, auto)
        for victim in (1, 0):
            os.kill(self.children(p, 2)[victim], signal.SIGKILL)
            lines = self.next_generation(p)
            self.check("from the memory of rank" in lines and "bucket_size = auto" not in lines, lines)
        self.equal(self.finish(p).code, 0)

    def slow(self, section):
        """Samples that can be held back, and take 100 ms each from the moment when `quick` is removed."""
        plugin = self.plugin("dataset", "slow", "../../reliability/slow_dataset.c")
        self.hold, self.quick = self.dir / "hold", self.dir / "quick"
        self.quick.touch()
        return {section: {"plugin": plugin}, f"{section}.synthetic": None,
                f"{section}.slow": {"pause": 100000, "until": self.quick, "hold": self.hold}}

    @long_case
    def test_a_rank_is_lost_in_what_takes_long(self):
        """The other one ends the batch that it waits for, and keeps the state: in an evaluation, and in a step of many micro-batches.
        The rest of that, which would take a minute, it leaves out."""
        for name, *more in (("eval", {"train": {"epochs": 2}}), ("data", {"train": {"accumulate": 30, "epochs": 1000}})):
            for folder in ("fault", "whole"):
                shutil.rmtree(self.dir / folder, ignore_errors=True)
            slow = self.slow(name)
            if name == "eval":
                self.hold.touch()
            p = self.begin(GLOO, slow, *more, {"output": {"log_every": 1}})
            self.hold.touch()
            until(pathlib.Path(f"{self.hold}.held").exists, "no sample is held back")
            self.quick.unlink()
            os.kill(self.children(p, 2)[1], signal.SIGKILL)
            line = ""
            while "was killed by signal 9" not in line:
                line = p.stderr.readline()
                self.check(line, "ended early")
            time.sleep(1.5)  # longer than a rank has that may not return
            self.hold.unlink()
            pathlib.Path(f"{self.hold}.held").unlink()
            lines = ""
            while "from the memory of rank 0" not in lines:
                lines += p.stderr.readline()
                self.check(": error: " not in lines and "resuming" not in lines, lines)
            self.quick.touch()
            self.end(p, GLOO, slow, *more, {"output": {"log_every": 1}})

    @long_case
    def test_a_loss_after_the_signal_to_end(self):
        """The ranks are to end after the step that they are in, and one is lost in it: nobody is waited for."""
        slow = self.slow("data")
        p = self.begin(GLOO, slow, {"run": {"rejoin_timeout": "10min"}, "train": {"epochs": 100000}})
        self.hold.touch()
        until(pathlib.Path(f"{self.hold}.held").exists, "no sample is held back")
        p.send_signal(signal.SIGTERM)
        while "the ranks are asked to end" not in (line := p.stderr.readline()):
            self.check(line, "ended early")
        os.kill(self.children(p, 2)[1], signal.SIGKILL)
        self.hold.unlink()
        r = self.finish(p)
        self.check(r.code != 0 and "rejoin_timeout" not in r.err, r)
        self.no_processes_left(self.dir)

    @long_case
    def test_a_rank_hangs_in_a_collective(self):
        """Its backend does not return, and does not hear of the abort either: the rank is ended for that, and another process takes its
        place. The other one has waited for `step_timeout`."""
        self.plugin("backend", "failing", "failing_backend.c", f"-I{harness.SRC}/docs/examples/backend-skeleton")
        run = [BUCKETS, {"train": {"max_steps": 40}, "plugins": {"path": self.dir / "plugins"}, "ddp": {"overlap": "no"},
                         "group": {"backend": "failing", "step_timeout": "2s"}, "run": {"restarts": 20, "restart_delay": "0s"},
                         "checkpoint": {"every": 1000}}]
        whole = self.train(*run, {"checkpoint": {"dir": self.dir / "whole"}}, name="whole.ini").summary["parameter_sha256"]
        for victim in (1, 0):
            hung = self.dir / f"hung-{victim}"
            r = self.train(*run, {"checkpoint": {"dir": self.dir / f"fault-{victim}"}}, name=f"hangs-{victim}.ini",
                           env={"HANG": f"{victim}:30:{hung}"})
            self.check(hung.exists() and "within 2 s" in r.err and f"rank {victim} (pid" in r.err, r)
            self.check(re.search(f"from the memory of rank {1 - victim}: step [1-9]", r.err), r)
            self.equal(r.summary["parameter_sha256"], whole, r)
            self.no_processes_left(self.dir)

    @long_case
    def test_a_rank_hangs_for_want_of_data(self):
        """Its dataset does not return: it has half a minute to come back, is ended then, and replaced."""
        slow = self.slow("data")
        files = [self.ini(f"hangs-{r}.ini", LENGTH, RESTARTS, GLOO, slow, {
            "group": {"world_size": 2, "rank": r, "init_method": f"file://{self.dir}/rendezvous", "step_timeout": "2s"},
            "output": {"dir": self.dir / f"out-{r}"}, "checkpoint": {"dir": self.dir / "saved", "every": 100000}, "run": {"restarts": 20},
            "data.slow": {"hold": self.hold if r == 1 else self.dir / "none"}}) for r in (0, 1)]
        p = [self.start("-c", file, "--supervise") for file in files]
        self.trained_a_while(p[0])
        self.hold.touch()
        lines = [""]
        while "it is started again" not in lines[-1]:
            lines.append(p[1].stderr.readline())
            self.check(lines[-1], "ended early")
        self.hold.unlink()
        results = [self.finish(x) for x in p]
        self.equal([r.code for r in results], [0, 0], results)
        self.check("ended with exit code 6: it is started again" in lines[-1], lines)
        self.check("did not end within 2 s: another rank is stuck" in results[0].err, results)
        self.check("rank 1 has begun fewer collectives than rank 0: the ranks wait for the lost one" in results[0].err, results)
        self.check(re.search("from the memory of rank 0: step [1-9]", results[0].err), results)
        summary = json.loads((self.dir / "out-0/summary.json").read_text())
        self.equal(summary["parameter_sha256"], self.whole(GLOO, slow), results)

    @long_case
    def test_hooks_that_keep_a_state(self):
        """Each rank has its own, which no other one has in memory: all go on from a checkpoint, where the states of all are."""
        for hook in ("int8", "powersgd"):
            layer = {"hook": {"plugin": hook}}
            shutil.rmtree(self.dir / "whole", ignore_errors=True)
            for victim in (1, 0):
                shutil.rmtree(self.dir / "fault", ignore_errors=True)
                p = self.begin(GLOO, layer)
                until(lambda: list((self.dir / "fault").glob("step-????????/MANIFEST.json")), "no checkpoint")
                os.kill(self.children(p, 2)[victim], signal.SIGKILL)
                r = self.end(p, GLOO, BUCKETS, layer, memory=False)  # the hooks compress a bucket as a whole
                self.check(re.search(r"resuming from \S+: step [1-9]", r.err), r)

    @long_case
    def test_restarts_are_used_up(self):
        p = self.begin(GLOO, {"train": {"epochs": 100000}, "run": {"restarts": 1}})
        os.kill(self.children(p, 2)[1], signal.SIGKILL)
        self.next_generation(p)
        os.kill(self.children(p, 2)[1], signal.SIGKILL)
        r = self.finish(p)
        self.fails(r, 5, "rank 1", "killed by signal 9", "[run] restarts are used up")
        self.no_processes_left(self.dir)

    @long_case
    def test_mpirun_starts_all_of_them_again(self):
        if not (harness.BUILD / ".libs/backend_mpi.so").exists():
            raise Skip("backend mpi is not built")
        mpi = {"group": {"backend": "mpi"}}
        p = self.begin(mpi)
        until(lambda: list((self.dir / "fault").glob("step-????????/MANIFEST.json")), "no checkpoint")
        launcher = self.children(p, 1)[0]
        ranks = until(lambda: [c for c in harness.children_of(launcher)], "no ranks")
        os.kill(ranks[-1], signal.SIGKILL)
        r = self.end(p, memory=False, generations=0)
        self.check("all ranks are started again" in r.err and "resuming from" in r.err, r)

    def supervised(self, name, victim, group, envs=({}, {})):
        """As on two hosts: a rank each, under --supervise; the one whose supervisor starts it again finds the other."""
        files = [self.ini(f"{name}-{r}.ini", LENGTH, RESTARTS, GLOO, {"group": {"world_size": 2, "rank": r, **group}},
                          {"output": {"dir": self.dir / f"{name}-{r}"}, "checkpoint": {"dir": self.dir / f"{name}-saved"}}) for r in (0, 1)]
        p = [self.start("-c", file, "--supervise", env=env) for file, env in zip(files, envs)]
        self.trained_a_while(p[0])
        os.kill(self.children(p[victim], 1)[0], signal.SIGKILL)
        results = [self.finish(x) for x in p]
        self.equal([r.code for r in results], [0, 0], results)
        self.check(f"from the memory of rank {1 - victim}" in "".join(r.err for r in results), results)
        summary = json.loads((self.dir / f"{name}-0/summary.json").read_text())
        self.equal(summary["parameter_sha256"], self.whole(GLOO), results)

    @long_case
    def test_supervisors_join_by_an_address(self):
        for victim in (0, 1):
            self.supervised(f"tcp{victim}", victim, {"init_method": f"tcp://127.0.0.1:{harness.free_port()}"})

    @seldom
    def test_supervisors_join_by_a_file(self):
        """Each generation has an address and a secret of its own; a survivor that is rank 0 writes them into its own file."""
        for victim in (0, 1):
            path = self.dir / f"rendezvous{victim}"
            self.supervised(f"file{victim}", victim, {"init_method": f"file://{path}"})
            self.equal(sorted(self.dir.glob(path.name + "*")), [])

    @long_case
    def test_supervisors_join_by_variables(self):
        """The address that torchrun gives; the session folder of Open MPI, where the ranks find address and secret."""
        for victim in (0, 1):
            fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port()), "WORLD_SIZE": "2"}
            folder = self.dir / f"session{victim}"
            folder.mkdir(mode=0o700)
            job = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_SERVER_TMPDIR": str(folder),
                   "PMIX_NAMESPACE": "job"}
            for name, names, common in (("fixed", ["RANK"], fixed), ("job", ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"], job)):
                self.supervised(f"{name}{victim}", victim, {"init_method": "env://"},
                                [{**common, **dict.fromkeys(names, str(r))} for r in (0, 1)])

    def survivor(self, supervised):
        """Two ranks that have step 5 saved and go on; rank 1 is killed and does not come back. The process that is given signals,
        when rank 0 waits: the supervisor, or where each rank was started by hand rank 0 itself."""
        shutil.rmtree(self.dir / "ck", ignore_errors=True)
        waits = {"checkpoint": {"dir": self.dir / "ck", "every": 1000000}, "output": {"log_every": 20}, "train": {"epochs": 100000},
                 "run": {"restarts": 5, "restart_delay": "1h", "rejoin_timeout": "1h"}}
        self.train(GLOO, waits, {"train": {"max_steps": 5}})
        if supervised:
            p = self.start("-c", self.ini("x.ini", GLOO, waits), "--nproc", 2)
            ranks = self.children(p, 2)
        else:
            group = {"world_size": 2, "init_method": f"tcp://127.0.0.1:{harness.free_port()}"}
            both = [self.start("-c", self.ini(f"{r}.ini", GLOO, waits, {"group": {**group, "rank": r}})) for r in (0, 1)]
            p, ranks = both[0], [x.pid for x in both]
        self.trained_a_while(p)
        os.kill(ranks[1], signal.SIGKILL)
        line = ""
        while "the ranks wait for the lost one" not in line:
            line = p.stderr.readline()
            self.check(line, "ended early")
        until(lambda: not any(name.endswith("/.lock") for name in open_files(ranks[0])), "rank 0 keeps the folder's lock")
        return p

    def test_a_signal_while_a_rank_is_waited_for(self):
        """What is in memory alone is lost, and the line says so: of a supervisor, and of a rank without one."""
        lost = re.compile(r"ended by signal 15.* while the ranks waited for each other: steps 6 to \d+, which were in memory, are lost; "
                          "the newest checkpoint is of step 5$")
        for supervised in (True, False):
            p = self.survivor(supervised)
            self.signal(p.pid, signal.SIGTERM)
            r = self.finish(p)
            self.equal(abs(r.code) % 128, signal.SIGTERM, r)
            self.fails(r, r.code, lost)

    def test_what_is_lost_when_nobody_comes(self):
        """The rank that has waited in vain ends by itself, and the supervisor says what was in its memory."""
        self.train(GLOO, {"checkpoint": {"dir": self.dir / "ck"}, "train": {"max_steps": 5}})
        run = {"restarts": 5, "restart_delay": "1h", "rejoin_timeout": "1s"}
        p = self.start("-c", self.ini("x.ini", GLOO, {"checkpoint": {"dir": self.dir / "ck", "every": 1000000}, "run": run,
                                                      "output": {"log_every": 20}, "train": {"epochs": 100000}}), "--nproc", 2)
        self.trained_a_while(p)
        os.kill(self.children(p, 2)[1], signal.SIGKILL)
        r = self.finish(p)
        self.fails(r, 4, "rejoin_timeout")
        lost = r"warning: steps 6 to \d+, which were in memory, are lost; the newest checkpoint is of step 5$"
        self.check(re.search(lost, r.err, re.M), r)

    def test_restarts_need_a_checkpoint(self):
        r = self.run("-c", self.ini("x.ini", {"run": {"restarts": 3}}), "--nproc", 2)
        self.fails(r, 2, "x.ini:", "[run] restarts = 3", "[checkpoint] dir")


if __name__ == "__main__":
    sys.exit(harness.main(Restart))
