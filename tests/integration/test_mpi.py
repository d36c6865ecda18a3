"""Backend mpi: started by mpirun, by --nproc through mpirun, or not at all; ranks that die; what the log then says."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import harness
from harness import Case, Skip, children_of, long_case, seldom, state_of, until

MPI = {"group": {"backend": "mpi"}}
# few lines, for nobody reads them for a while; and a rank that gets no processor for long is not lost
LONG = {"train": {"epochs": 1000000}, "output": {"log_every": 2000}, "group": {"peer_timeout": "60s"}}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


RANK = re.compile(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)")


def ranks_of(launcher):
    """Its children, or theirs: mpiexec of MPICH has a process of its own between."""
    found = children_of(launcher)
    between = [p for p in found if pathlib.Path(f"/proc/{p}/comm").read_text().startswith("hydra")]
    return sorted(set(found) - set(between)) + [rank for p in between for rank in children_of(p)]


def foreign_lines(text):
    """Those of others than the program. Where there is no /sys, the libraries that MPI asks about processors and networks complain of that."""
    without_sys = r"|hwloc/linux: |\[hwloc/|\[.*/sys/class/net" if not pathlib.Path("/sys/devices").is_dir() else ""
    return [line for line in text.splitlines() if not re.match("ddpengine" + without_sys, line)]


def is_mpich():
    """The mpirun of the PATH, and so the library that the backend was built with."""
    return "HYDRA" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout


def sockets_of(pid):
    return {os.readlink(f).strip("socket:[]") for f in pathlib.Path(f"/proc/{pid}/fd").iterdir()
            if os.path.islink(f) and os.readlink(f).startswith("socket:")}


def listeners_of(pid, launcher):
    """The addresses at which a process listens for TCP. MPICH's ranks inherit the socket of their launcher."""
    own = sockets_of(pid) - sockets_of(launcher)
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            words = row.split()
            if words[3] == "0A" and words[9] in own:
                raw = bytes.fromhex(words[1].split(":")[0])
                raw = b"".join(raw[i:i + 4][::-1] if sys.byteorder == "little" else raw[i:i + 4] for i in range(0, len(raw), 4))
                found.append(socket.inet_ntop(family, raw))
    return found


class Mpi(Case):
    def __init__(self):
        super().__init__()
        for name in [n for n in os.environ if n.startswith(("OMPI_", "PMI", "SLURM_"))]:
            del os.environ[name]
        os.environ.update(harness.MPI_LEAKS)

    def mpirun(self, np, *args, env=None, options=None):
        """Started as users start it: mpirun -np 2 ddpengine ... With MPICH it takes the address of rank 0, unless there are other `options`."""
        if options is None:
            address = ("-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "MASTER_PORT", harness.free_port())
            options = address if is_mpich() else ()
        return self.spawn(["mpirun", "--host", "localhost:64", "--bind-to", "none", *options, "-np", np, harness.ENGINE, *args],
                          {**ROOT, **(env or {})})

    @staticmethod
    def gone(pids):
        """None of them runs any more; a zombie waits for its parent only. How soon is for the reliability runs to say."""
        until(lambda: not any(map(state_of, pids)), lambda: f"still there: {[p for p in pids if state_of(p)]}")

    def none_left(self, pids):
        """Already, and not after a while."""
        self.equal([p for p in pids if state_of(p)], [])

    # ---- it trains ------------------------------------------------------------------------------------------------
    def test_same_bits_as_gloo(self):
        mpi, gloo = self.train(MPI), self.train({"group": {"backend": "gloo-tcp"}}, name="gloo.ini")
        self.equal(mpi.summary["backend"], "mpi")
        self.equal(mpi.summary["parameter_sha256"], gloo.summary["parameter_sha256"])
        self.equal(mpi.err.count("error"), 0, mpi)

    def test_nothing_on_stderr_but_our_own_lines(self):
        r = self.train(MPI)
        self.equal(foreign_lines(r.err) + foreign_lines(r.out), [], r)

    @long_case
    def test_more_ranks_than_processors(self):
        world = (os.cpu_count() or 1) + 3
        once, again = self.train(MPI, nproc=world), self.train(MPI, nproc=world, name="again.ini")
        self.equal(once.summary["world_size"], world)
        self.equal(once.summary["parameter_sha256"], again.summary["parameter_sha256"])

    def test_one_rank_needs_no_mpirun(self):
        """And leaves nothing."""
        folder = self.dir / "tmp"
        folder.mkdir()
        before = set(pathlib.Path("/dev/shm").iterdir())
        for nproc in (None, 1):
            r = self.train(MPI, nproc=nproc, env={"PATH": "/nowhere", "TMPDIR": str(folder)}, name=f"one{nproc}.ini")
            self.equal(r.summary["world_size"], 1)
        self.equal(sorted(folder.iterdir()), [])
        self.equal([p for p in set(pathlib.Path("/dev/shm").iterdir()) - before if re.search(r"_segment\..*0000\.\d+$", p.name)], [])

    def test_mpirun_as_users_start_it(self):
        """Open MPI has a folder where rank 0 says its address; with MPICH it takes the two variables that an error names."""
        path = self.ini("run.ini", MPI, {"output": {"dir": self.dir / "out"}})
        if is_mpich():
            r = self.finish(self.mpirun(2, "-c", path, options=()))
            self.check(r.code == 2 and "add -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 to mpiexec" in r.err, r)
        r = self.finish(self.mpirun(2, "-c", path))
        self.equal(r.code, 0, r)
        self.check("2 ranks" in r.err and "over mpi" in r.err, r)
        address = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "rank": "auto", "world_size": 3}}
        r = self.finish(self.mpirun(3, "-c", self.ini("tcp.ini", MPI, address)))
        self.equal(r.code, 0, r)

    @long_case
    def test_gloo_under_mpirun(self):
        """The launcher says who is who; the backend need not be MPI."""
        r = self.finish(self.mpirun(2, "-c", self.ini("gloo.ini", {"group": {"backend": "gloo-tcp"}})))
        self.equal(r.code, 0, r)

    @long_case
    def test_no_noise_where_processes_may_not_be_read(self):
        """Containers refuse process_vm_readv; Open MPI would say so for each message."""
        filtered = subprocess.run([sys.executable, "-c", SECCOMP, str(harness.ENGINE), "-c",
                                   str(self.ini("run.ini", MPI, {"model.mlp": {"hidden": "512, 512"}})), "--nproc", "2"],
                                  capture_output=True, text=True, timeout=harness.PATIENCE, cwd=self.dir, check=False)
        if filtered.returncode == 77:
            raise Skip("this machine does not let a process filter its system calls: " + filtered.stderr.strip())
        self.equal(filtered.returncode, 0, filtered.stderr)
        self.equal(foreign_lines(filtered.stderr), [], filtered.stderr)

    def test_interface(self):
        """Over TCP by the one that is named, unless the environment has named another for MPI."""
        tcp, named = {"OMPI_MCA_btl": "self,tcp", "UCX_TLS": "self,tcp"}, {"group": {"interface": "lo"}}
        if is_mpich() and not pathlib.Path("/sys/class/net").is_dir():
            raise Skip("UCX finds networks in /sys, which is not there")
        self.train(MPI, named, env=tcp)
        other = self.start("-c", self.ini("other.ini", MPI, named), "--nproc", 2,
                           env={**tcp, "OMPI_MCA_btl_tcp_if_include": "none0", "UCX_NET_DEVICES": "none0"})
        r = self.finish(other)
        self.check(r.code != 0, r)

    def test_ranks_run_with_what_was_written(self):
        """As many overrides as one may give; a rank in the INI is the first one's; nothing else is put in."""
        overrides = [a for _ in range(64) for a in ("--set", "optimizer.lr=0.04")]
        self.train(MPI, {"group": {"rank": 0}}, args=overrides)

    def test_launcher_that_does_not_say_who_is_who(self):
        r = self.run("-c", self.ini("x.ini", MPI), "--nproc", 2, env=self.double('while [ "${1%/ddpengine}" = "$1" ]; do shift; done; exec "$@"\n'))
        self.fails(r, 2, "started this rank by the backend's launcher", "OMPI_COMM_WORLD_RANK")

    # ---- other users of this machine, and other machines ------------------------------------------------------------
    @seldom
    def test_what_others_reach(self):
        """The port is on the ranks' command lines, the secret is neither there nor in an environment nor in a file. MPI's messages
        need no port, since all ranks are here."""
        p, launcher, ranks = self.running()
        self.equal(sorted(listeners_of(pid, launcher) for pid in ranks), [[], ["127.0.0.1"]])
        words = pathlib.Path(f"/proc/{ranks[0]}/cmdline").read_text().split("\0")
        url = next(w.split("=", 1)[1] for w in words if w.startswith("--one-rank="))
        held = pathlib.Path(words[words.index("--one-rank-secret") + 1])
        secret = held.read_text().strip()
        self.check(re.fullmatch("[0-9a-f]{64}", secret), "no secret")
        self.equal(held.stat().st_mode & 0o777, 0o600)
        for pid in (p.pid, launcher, *ranks):
            for name in ("cmdline", "environ"):
                self.check(secret.encode() not in pathlib.Path(f"/proc/{pid}/{name}").read_bytes(), f"in {name} of {pid}")
        self.equal([f for f in self.dir.rglob("*") if f.is_file() and secret.encode() in f.read_bytes()], [])
        stray = {"group": {"init_method": url, "world_size": 2, "rank": 1, "rendezvous_timeout": "5s", "backend": "gloo-tcp"}}
        r = self.run("-c", self.ini("stray.ini", LONG, stray))
        self.fails(r, 4, "differ in their secret", "fingerprint is none (rank 1)")
        self.equal(p.poll(), None, "the run has ended")
        p.terminate()
        r = self.finish(p)
        self.check("refused a process at 127.0.0.1:" in r.err and secret not in r.err, r)
        self.check(not held.exists(), "the secret is still there")

    # ---- it cannot start --------------------------------------------------------------------------------------------
    def test_plain_start_says_the_command(self):
        address = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 2, "rendezvous_timeout": "3s"}}
        self.fails(self.run("-c", self.ini("x.ini", MPI, address)), 2, "not started by mpirun",
                   "mpirun --bind-to none -np 2 ddpengine -c", "--nproc 2")

    def test_srun_without_pmix_says_the_flag(self):
        step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
                "SLURM_STEP_NODELIST": "node1", "SLURM_STEP_NUM_NODES": "1"}
        self.fails(self.run("-c", self.ini("x.ini", MPI), env=step), 2, "rank 1 of 2 was started by srun without PMIx", "srun --mpi=pmix",
                   "srun --mpi=list", "mpirun --bind-to none -np 2 ddpengine -c")

    @long_case
    def test_srun(self):
        """Where there is a Slurm to run on: by srun with PMIx, and mpirun by --nproc within an allocation."""
        if shutil.which("srun") is None or subprocess.run(["srun", "--immediate=10", "-n", "2", "--overcommit", "true"],
                                                          capture_output=True, timeout=60, check=False).returncode:
            raise Skip("no Slurm runs here (srun)")
        if "pmix" not in subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, check=False).stdout:
            raise Skip("this Slurm has no PMIx (srun --mpi=list)")
        path = self.ini("x.ini", MPI, {"output": {"dir": self.dir / "out"}})
        for command in (["srun", "--mpi=pmix", "-n", 2, "--overcommit", harness.ENGINE, "-c", path],
                        ["salloc", "-n", 2, "--overcommit", harness.ENGINE, "-c", path, "--nproc", 2]):
            r = self.finish(self.spawn(command))
            self.equal(r.code, 0, r)
            self.check("2 ranks" in r.err and "over mpi" in r.err, r)
        r = self.finish(self.spawn(["srun", "--mpi=none", "-n", 2, "--overcommit", harness.ENGINE, "-c", path]))
        self.check(r.code == 2 and "srun --mpi=pmix" in r.err, r)

    def test_missing_mpirun(self):
        r = self.run("-c", self.ini("x.ini", MPI), "--nproc", 2, env={"PATH": "/nowhere"})
        self.fails(r, 3, "mpirun is not on the PATH", "Debian package " + ("mpich" if is_mpich() else "openmpi-bin"))

    def test_nproc_is_the_whole_world(self):
        address = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 3}}
        self.fails(self.run("-c", self.ini("x.ini", MPI, address), "--nproc", 2), 2, "must be world_size (3, ", "x.ini:", "not 2")

    def test_check_plans_without_mpirun_and_says_so(self):
        r = self.run("-c", self.ini("x.ini", MPI), "--nproc", 2, "--check", env={"PATH": "/nowhere"})
        self.fails(r, 3, "mpirun", "not on the PATH", "Debian package " + ("mpich" if is_mpich() else "openmpi-bin"))
        self.check("backend mpi" in r.out and "kernels " in r.out, r)

    def test_mismatched_world(self):
        """Both numbers, whoever sees it first: the launcher's variables, or MPI itself where they are hidden."""
        wrong = {"group": {"world_size": 3, "init_method": f"tcp://127.0.0.1:{harness.free_port()}"}}
        r = self.finish(self.mpirun(2, "-c", self.ini("x.ini", MPI, wrong)))
        self.equal(r.code, 2, r)
        for line in r.errors():
            self.check("world_size = 3" in line and f"{'PMI_SIZE' if is_mpich() else 'OMPI_COMM_WORLD_SIZE'}=2" in line, r)
        self.check(r.errors(), r)

    @long_case
    def test_mpi_disagrees_with_the_rank(self):
        """Ranks the other way round, told by variables that count before MPI's."""
        if is_mpich():
            raise Skip("MPICH's own variables cannot be hidden: its library reads them")
        port = harness.free_port()
        swapped = (f'export RANK=$((1 - OMPI_COMM_WORLD_RANK)) WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}; '
                   f'unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE; exec {harness.ENGINE} "$@"')
        path = self.ini("x.ini", MPI, {"group": {"init_method": "env://"}})
        r = self.finish(self.spawn(["mpirun", "--host", "localhost:64", "-np", 2, "sh", "-c", swapped, "sh", "-c", path], ROOT))
        self.equal(r.code, 4, r)
        self.check(re.search(r"rank [01] of 2 in MPI, but rank [01] of 2 in the run", r.err), r)

    # ---- a rank fails or dies -------------------------------------------------------------------------------------------
    def test_first_cause_gives_the_code(self):
        r = self.run("-c", self.ini("x.ini", MPI, {"optimizer": {"lr": 1e30}}), "--nproc", 2)
        self.equal(r.code, 7, r)
        for line in r.errors():
            self.check("not finite" in line, r)
        self.equal(foreign_lines(r.err), [], r)

    @seldom
    def test_killed_rank(self):
        for victim in (0, 1):
            p = self.start("-c", self.ini("x.ini", MPI, LONG), "--nproc", 2)
            self.trained_a_while(p)
            launcher = children_of(p.pid)[0]
            ranks = ranks_of(launcher)
            self.equal(len(ranks), 2)
            left = self.left_of(ranks[0])
            # their order is that of their start, not of their numbers
            number = {pid: int(RANK.search(pathlib.Path(f"/proc/{pid}/environ").read_bytes())[1]) for pid in ranks}
            os.kill(next(pid for pid in ranks if number[pid] == victim), signal.SIGKILL)
            self.gone([*ranks, launcher])
            r = self.finish(p)
            self.equal(r.code, 5, r)
            told = any(re.search(rf"\[{1 - victim}\]: error: rank {victim} on host .*: connection closed", e) for e in r.errors())
            if is_mpich():  # it kills the others at once, so that they may not get to say it, and does not say which signal it was
                self.check(told or "a rank has ended without saying why" in r.errors()[-1], r)
            else:
                self.check(told and ("killed by signal 9" in r.errors()[-1] or len(r.errors()) == 1), r)
            self.equal(foreign_lines(r.err) + r.out.splitlines(), [], r)
            self.equal(left(), [], r)

    @long_case
    def test_killed_rank_under_mpirun(self):
        p = self.mpirun(3, "-c", self.ini("x.ini", MPI, LONG))
        self.trained_a_while(p)
        ranks = ranks_of(p.pid)
        os.kill(ranks[-1], signal.SIGKILL)
        self.gone([*ranks, p.pid])
        r = self.finish(p)
        self.check(r.code != 0 and (is_mpich() or re.search(r"error: rank \d on host .*: connection closed", r.err)), r)

    def running(self, *layers):
        """A long run that trains by now: its parent, mpirun, the ranks."""
        p = self.start("-c", self.ini("x.ini", MPI, LONG, *layers), "--nproc", 2, env={"TMPDIR": str(self.dir)})
        self.trained_a_while(p)
        launcher = children_of(p.pid)[0]
        ranks = ranks_of(launcher)
        self.equal(len(ranks), 2)
        return p, launcher, ranks

    def left_of(self, rank):
        """Call it while the rank runs; the function that it gives names what MPI has left of that run by then: its session's
        folder, and the files of shared memory that the rank has. Whatever version names them as it likes."""
        environ = dict(v.split("=", 1) for v in pathlib.Path(f"/proc/{rank}/environ").read_text().split("\0") if "=" in v)
        session = [pathlib.Path(environ[n]) for n in ("PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_jobfam_session_dir") if n in environ][:1]
        used = {line.split()[-1] for line in pathlib.Path(f"/proc/{rank}/maps").read_text().splitlines()}
        files = session + sorted(p for p in map(pathlib.Path, used) if p.is_relative_to("/dev/shm") and p.exists())
        self.check(len(files) > 2 or "PMI_RANK" in environ, files)  # MPICH's have no names any more
        self.check(all(p.exists() for p in files), files)
        return lambda: [str(p) for p in files if p.exists()]

    def lost_the_launcher(self, r):
        """What the ranks say before it is their own affair: that they have saved, or lost each other."""
        self.equal(r.code, 5, r)
        self.check("mpirun was killed by signal 9" in r.errors()[-1], r)
        self.check(all("]: error: " in line for line in r.errors()[:-1]), r)

    @long_case
    def test_killed_launcher(self):
        """The ranks save and leave; what mpirun cannot clean up any more is removed, and nothing else."""
        p, launcher, ranks = self.running({"checkpoint": {"dir": self.dir / "saved"}})
        left = self.left_of(ranks[0])
        if not left():
            raise Skip("this MPI has no files that could be left")
        session, segment = pathlib.Path(left()[0]), pathlib.Path(left()[-1])
        head, job, _ = segment.name.rsplit(".", 2)
        others = [segment.with_name(f"{head}.{int(job, 16) ^ 0x10000:x}.0"), session.with_name(session.name.replace(str(launcher), f"{launcher}0"))]
        others[0].touch()
        others[1].mkdir()
        try:
            os.kill(launcher, signal.SIGKILL)
            r = self.finish(p)
            self.lost_the_launcher(r)
            self.none_left([*ranks, launcher])
            self.equal(left(), [], r)
            self.check(all(o.exists() for o in others), others)
            # Open MPI 6 aborts a rank that has lost mpirun, and says so
            self.check(list((self.dir / "saved").glob("step-*")) or "MPI_ERRORS_ARE_FATAL" in r.err, r)
        finally:
            others[0].unlink(missing_ok=True)

    @long_case
    def test_killed_parent(self):
        p, launcher, ranks = self.running()
        left = self.left_of(ranks[0])
        p.kill()
        self.gone([*ranks, launcher])
        self.finish(p)
        self.equal(left(), [])

    @long_case
    def test_killed_launcher_and_ranks_that_cannot_help(self):
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            p, launcher, ranks = self.running()
            left = self.left_of(ranks[0])
            os.kill(launcher, signal.SIGSTOP)  # so that it sees nothing of what follows
            for rank in ranks:
                os.kill(rank, sig)
            os.kill(launcher, signal.SIGKILL)
            r = self.finish(p)
            self.lost_the_launcher(r)
            self.none_left([*ranks, launcher])
            self.equal(left(), [], r)

    def test_launcher_that_loses_the_code(self):
        """mpiexec of MPICH 4.2 ends with 0 now and then where a rank has failed: what the rank itself has said counts."""
        losing = self.double(f'{shutil.which("mpirun")} "$@"\nexit 0\n')
        r = self.run("-c", self.ini("x.ini", MPI, {"optimizer": {"lr": 1e30}}), "--nproc", 2, env=losing)
        self.equal(r.code, 7, r)
        p = self.start("-c", self.ini("y.ini", MPI, LONG), "--nproc", 2, env=losing)
        self.trained_a_while(p)
        mpirun = children_of(children_of(p.pid)[0])[0]
        for rank in ranks_of(mpirun):  # all at once: none says that it has lost another
            self.stand_still(rank)
        for rank in ranks_of(mpirun):
            os.kill(rank, signal.SIGKILL)
        r = self.finish(p)
        self.fails(r, 5, "a rank has ended without saying why")

    # ---- a launcher that fails, or stands still -------------------------------------------------------------------------
    def double(self, script, interpreter="/bin/sh"):
        """Stands in for mpirun: the environment in which it is found."""
        (self.dir / "mpirun").write_text(f"#!{interpreter}\n{script}")
        (self.dir / "mpirun").chmod(0o755)
        return {"PATH": f"{self.dir}:{os.environ['PATH']}"}

    def test_launcher_that_fails_by_itself(self):
        r = self.run("-c", self.ini("x.ini", MPI), "--nproc", 2, env=self.double("exit 243\n"))
        self.fails(r, 3, "mpirun failed with exit code 243")

    @long_case
    def test_launcher_that_never_ends(self):
        """Its ranks have left; it is made to, although it heeds no SIGTERM. The ranks are what counts."""
        script = ("import signal, subprocess, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                  "p = subprocess.Popen(['sh', '-c', 'sleep 1.5; exit 7'])\ntime.sleep(1000)\n")
        r = self.run("-c", self.ini("x.ini", MPI), "--nproc", 2, env=self.double(script, sys.executable))
        self.equal(r.code, 7, r)
        self.check("mpirun has not ended after its ranks" in r.err, r)

    @long_case
    def test_launcher_that_stands_still_at_the_end(self):
        gate = self.dir / "gate"  # the second and last epoch begins when this is there
        subprocess.run(["cc", "-shared", "-fPIC", f"-I{harness.SRC}/core/include",
                        f"{harness.SRC}/tests/reliability/paced_sampler.c", "-o", self.dir / "sampler_paced.so"], check=True)
        path = self.ini("x.ini", MPI, {"plugins": {"path": self.dir}, "sampler": {"plugin": "paced"},
                                       "sampler.paced": {"gate": gate, "last": 1},
                                       "output": {"dir": self.dir / "out", "log_every": 1}})
        p = self.start("-c", path, "--nproc", 2)
        self.trained_a_while(p)
        self.stand_still(children_of(p.pid)[0])
        gate.touch()
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.check("mpirun" in r.err and "was stopped" in r.err, r)
        self.check((self.dir / "out/summary.json").exists(), r)

    @long_case
    def test_asked_while_the_launcher_stands_still(self):
        p, launcher, ranks = self.running({"checkpoint": {"dir": self.dir / "saved"}})
        left = self.left_of(ranks[0])
        os.kill(launcher, signal.SIGSTOP)
        p.terminate()
        r = self.finish(p)
        self.equal(r.code, 128 + 15, r)
        self.none_left([*ranks, launcher])
        self.equal(left(), [], r)
        self.check(list((self.dir / "saved").glob("step-*")), r)

    @long_case
    def test_asked_twice_while_the_launcher_stands_still(self):
        """And nobody heeds the first one; Open MPI's own ranks go on with their mpirun, too soon for this test."""
        there = self.dir / "there"
        deaf = f"trap '' TERM\nsh -c 'sleep 1000 & : > {there}; wait; sleep 1000' &\nwait; wait\n"
        p = self.start("-c", self.ini("x.ini", MPI), "--nproc", 2, env=self.double(deaf))
        until(there.exists, "the double does not start")
        launcher = children_of(p.pid)[0]
        rank = children_of(launcher)[0]
        started = children_of(rank)[0]
        os.kill(launcher, signal.SIGSTOP)
        self.signal(p.pid, signal.SIGTERM)
        time.sleep(0.3)
        self.check(p.poll() is None, "did not wait")
        p.terminate()
        r = self.finish(p)
        self.fails(r, 128 + 15, "ended by signal 15")
        self.none_left([launcher, rank, started])

    @long_case
    def test_children_that_are_not_of_this_run(self):
        """A shell that becomes the program keeps its children; they are neither waited for nor ended."""
        p = self.spawn(["sh", "-c", 'sleep 1000 >&- 2>&- & echo $!; exec "$@"', "sh", harness.ENGINE, "-c", self.ini("x.ini", MPI),
                        "--nproc", 2])
        sleeper = int(p.stdout.readline())
        try:
            r = self.finish(p)
            self.equal(r.code, 0, r)
            self.check(pathlib.Path(f"/proc/{sleeper}").exists(), "ended")
        finally:
            os.kill(sleeper, signal.SIGKILL)

    # ---- asked to end -----------------------------------------------------------------------------------------------------
    @seldom
    def test_asked_to_end(self):
        saved = {"checkpoint": {"dir": self.dir / "saved"}, "output": {"dir": self.dir / "out"}}
        for sig in (signal.SIGTERM, signal.SIGINT):
            p = self.start("-c", self.ini("x.ini", MPI, LONG, saved), "--nproc", 2)
            self.trained_a_while(p)
            launcher = children_of(p.pid)[0]
            ranks = ranks_of(launcher)
            p.send_signal(sig)
            r = self.finish(p)
            self.equal(r.code, 128 + sig, r)
            self.check(f"ended by signal {int(sig)}" in r.err and "is saved" in r.err, r)
            self.gone([*ranks, launcher])
        self.check(list((self.dir / "saved").glob("step-*")), r)

    @seldom
    def test_asked_twice(self):
        p = self.start("-c", self.ini("x.ini", MPI, LONG), "--nproc", 2)
        self.trained_a_while(p)
        launcher = children_of(p.pid)[0]
        ranks = ranks_of(launcher)
        for rank in ranks:
            self.stand_still(rank)  # so that they cannot leave before the second one
        self.signal(p.pid, signal.SIGTERM)
        p.terminate()
        self.gone([*ranks, launcher])
        self.fails(self.finish(p), 128 + 15, "ended by signal 15")


# Runs a command that may not read other processes' memory: process_vm_readv and _writev fail with EPERM.
SECCOMP = """
import ctypes, os, platform, struct, sys
calls = {"x86_64": (310, 311), "aarch64": (270, 271)}.get(platform.machine())
if calls is None:
    sys.exit(77)
def op(code, k, jt=0, jf=0):
    return struct.pack("HBBI", code, jt, jf, k)
program = (op(0x20, 0) + op(0x15, calls[0], 1, 0) + op(0x15, calls[1], 0, 1) + op(0x06, 0x00050000 | 1) + op(0x06, 0x7fff0000))
buffer = ctypes.create_string_buffer(program)
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
chosen = Filter(len(program) // 8, ctypes.addressof(buffer))
if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(chosen), 0, 0) != 0:
    print(os.strerror(ctypes.get_errno()), file=sys.stderr)
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""


def why_not():
    if not (harness.BUILD / ".libs/backend_mpi.so").exists():
        return "backend mpi is not built"
    return None if shutil.which("mpirun") else "mpirun is not installed (openmpi-bin)"


if __name__ == "__main__":
    if why_not():
        print(f"1..1\nok 1 Mpi # SKIP {why_not()}")
        sys.exit(0)
    sys.exit(harness.main(Mpi))
