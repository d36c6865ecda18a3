"""Init methods: file://, env:// under each launcher, nodes. What goes wrong is one line with the documented code."""
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time

import harness
from harness import Case, Skip, long_case, until

SHORT = {"train": {"epochs": 1, "max_steps": 5}}
LONG = {"train": {"epochs": 100000, "max_steps": 0}, "output": {"log_every": 50}}
LAUNCHED = re.compile("^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_|OMPI_|PMI|SLURM_|TORCHELASTIC_)")


def free_pair():
    """A port whose successor is free too, outside the range that the kernel hands out by itself."""
    for port in range(20000 + os.getpid() % 4000 * 2, 32000, 2):
        try:
            for p in (port, port + 1):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", p))
            return port
        except OSError:
            pass
    raise Skip("no two free ports side by side")


class Init(Case):
    """The launcher's variables of whoever runs the tests are taken away."""

    def __init__(self):
        super().__init__()
        self.clean = {k: "" for k in os.environ if LAUNCHED.match(k)}
        self.file = self.dir / "rendezvous"
        self.number = 0
        self.mount = None

    def rank(self, rank, *layers, env=None, args=(), world=2, group=None):
        """Starts one rank by hand; rank None leaves the key out."""
        self.number += 1
        mine = {"init_method": f"file://{self.file}", "world_size": world, "rank": rank, "rendezvous_timeout": "20s"}
        mine.update(group or {})
        path = self.ini(f"{self.number}.ini", SHORT, {"init.file": {"listen": "127.0.0.1", "heartbeat": "100ms"}},
                        {"output": {"dir": self.dir / f"{self.number}.out", "log_every": 1000}}, {"group": mine}, *layers)
        p = self.start("-c", path, *args, env={**self.clean, **(env or {})})
        p.folder = self.dir / f"{self.number}.out"
        return p

    def sha(self, p):
        return json.loads((p.folder / "summary.json").read_text())["parameter_sha256"]

    def done(self, *ranks):
        results = [self.finish(p) for p in ranks]
        for r in results:
            self.equal(r.code, 0, r)
        return results

    def expected(self):
        """The bits of two ranks that a supervisor brings together."""
        r = self.train(SHORT)
        return r.summary["parameter_sha256"]

    @staticmethod
    def wait_for(path):
        until(path.exists, f"{path} does not appear")



class File(Init):
    def test_two_ranks(self):
        p = self.rank(0), self.rank(1)
        self.done(*p)
        self.equal(self.sha(p[0]), self.expected())
        self.check(not self.file.exists(), "the file is left behind")
        self.equal([f.name for f in self.dir.iterdir() if "rendezvous" in f.name], [])

    def test_ranks_by_hand_share_the_processors(self):
        """How many ranks are on this host is known only once they have met; the default of threads goes by it."""
        processors = len(os.sched_getaffinity(0))
        if processors < 2:
            raise Skip("one processor is not to be shared")
        default = {"train": {"threads": None}}
        port = harness.free_port()
        by_hand = [{"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} for r in (0, 1)]
        env = {"init_method": "env://", "rank": None, "world_size": None}
        for ranks in ([self.rank(0, default), self.rank(1, default)],
                      [self.rank(0, default, group=env, env=by_hand[0]), self.rank(1, default, group=env, env=by_hand[1])]):
            r = self.done(*ranks)[0]
            share = processors // 2
            self.check(f", {share} thread{'' if share == 1 else 's'} a rank" in r.err, r)
        r = self.done(self.rank(0, {"train": {"threads": 2}}), self.rank(1))[0]
        self.check(", 2 threads a rank" in r.err, r)

    def test_rank0_last_and_late_rank(self):
        for order in ((1, 2, 0), (0, 1, 2)):
            ranks = []
            for r in order:
                ranks.append(self.rank(r, world=3))
                time.sleep(0.4)
            self.done(*ranks)

    def test_removed_after_a_failure(self):
        for r in self.done_badly(self.rank(0), self.rank(1, {"optimizer": {"lr": 0.06}})):
            self.fails(r, 4, "optimizer.lr")
        self.check(not self.file.exists(), "the file is left behind")

    def done_badly(self, *ranks):
        return [self.finish(p) for p in ranks]

    def test_missing_rank(self):
        r = self.finish(self.rank(0, group={"rendezvous_timeout": "1s"}))
        self.fails(r, 4, "rank 1")
        self.check(not self.file.exists(), "the file is left behind")
        r = self.finish(self.rank(1, group={"rendezvous_timeout": "1s"}))
        self.fails(r, 4, "rank 0 was not found", str(self.file), "not there yet")

    def killed_run(self):
        """A file whose rank 0 has been killed; its pid."""
        p = self.rank(0, LONG), self.rank(1, LONG)
        self.trained_a_while(p[0])
        p[0].kill()
        self.finish(p[0])
        self.finish(p[1])
        self.check(self.file.exists(), "killed, and still removed")
        return p[0].pid

    def test_dead_run_is_taken_over(self):
        dead = self.killed_run()
        late = self.rank(1)
        time.sleep(0.3)
        p = self.rank(0), late
        r = self.done(*p)[0]
        self.check(re.search(rf"{self.file} is of a run that has died \(host \S+, pid {dead}, .* ago\); taking it over", r.err), r)
        self.equal(r.err.count("taking it over"), 1, r)
        self.equal([f.name for f in self.dir.iterdir() if "rendezvous" in f.name], [])

    def test_two_new_runs_race_for_a_dead_one(self):
        self.killed_run()
        p = [self.rank(0) for _ in range(4)]
        until(lambda: sum(q.poll() is not None for q in p) >= 3, "more than one goes on")
        for loser in [q for q in p if q.poll() is not None]:
            p.remove(loser)
            self.fails(self.finish(loser), 4, "in use by another run")
        self.done(*p, self.rank(1))
        self.equal([f.name for f in self.dir.iterdir() if "rendezvous" in f.name], [])

    def elsewhere(self):
        """Makes the file one of another machine."""
        text = self.file.read_text()
        text = re.sub(r"machine .*", "machine 00000000-elsewhere/1", text)
        self.file.write_text(text)

    def test_dead_run_of_another_host(self):
        self.killed_run()
        self.elsewhere()
        late = self.rank(1)
        time.sleep(0.3)
        p = self.rank(0), late
        r = self.done(*p)[0]
        self.check("looking for a sign of life for 0.5 s" in r.err, r)
        self.check("taking it over" in r.err, r)

    def test_two_jobs_on_one_path(self):
        first = self.rank(0)
        self.wait_for(self.file)
        r = self.finish(self.rank(0))
        host = socket.gethostname()
        self.fails(r, 4, f"in use by another run (host {host}, pid {first.pid}, since 20", f"this one (host {host}, pid ")
        self.check(self.file.exists(), "the other run's file has been removed")
        self.done(self.rank(1), first)
        self.check(not self.file.exists(), "the file is left behind")
        training = self.rank(0, LONG), self.rank(1, LONG)
        self.trained_a_while(training[0])
        self.fails(self.finish(self.rank(0, LONG)), 4, "in use by another run", f"pid {training[0].pid}")
        self.fails(self.finish(self.rank(1, LONG)), 4, "rank 1 is already taken")
        self.equal([p.poll() for p in training], [None, None])

    def test_live_run_of_another_host(self):
        """In a machine of its own name as far as the reader can tell: only the heartbeat speaks."""
        first = self.rank(0, LONG)
        self.wait_for(self.file)
        with open(self.file, "r+") as f:  # in place, as the heartbeat writes
            text = f.read()
            at = re.search(r"machine (\S+)", text)
            f.seek(at.start(1))
            f.write("x" * (at.end(1) - at.start(1)))
        r = self.finish(self.rank(0))
        self.fails(r, 4, "in use by another run", f"pid {first.pid}")
        late = self.rank(1, LONG)
        self.trained_a_while(first)
        first.kill()
        self.finish(late)

    def test_another_pid_namespace(self):
        """A container on the same kernel cannot look for rank 0's process: the heartbeat speaks there as well."""
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if shutil.which("unshare") is None or subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode:
            raise Skip("cannot make a pid namespace here")
        # to the core, such ranks are on two hosts: here they are one, but share no memory
        first = self.rank(0, env={"DDPENGINE_HOST_ID": "one"}, group={"backend": "gloo-tcp"})
        self.wait_for(self.file)
        path = self.ini("apart.ini", SHORT, {"init.file": {"listen": "127.0.0.1", "heartbeat": "100ms"}},
                        {"group": {"init_method": f"file://{self.file}", "world_size": 2, "rank": 1, "rendezvous_timeout": "20s",
                                   "backend": "gloo-tcp"}})
        r = subprocess.run([*apart, str(harness.ENGINE), "-c", str(path)], capture_output=True, text=True,
                           env={**os.environ, **self.clean, "DDPENGINE_HOST_ID": "one"}, timeout=harness.PATIENCE)
        self.equal(r.returncode, 0, r.stderr)
        self.done(first)

    def test_live_and_dead_run_of_another_user(self):
        """Where /proc shows nobody else's processes: a live run is told from a dead one by its heartbeat."""
        if os.geteuid() != 0:
            raise Skip("needs root to be another user")
        if tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2]) < (5, 8):
            raise Skip("hidepid is one setting for the whole machine before Linux 5.8")
        hidden = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"', "sh"]
        if any(shutil.which(p) is None for p in ("unshare", "setpriv")) or subprocess.run(
                [*hidden, str(harness.ENGINE), "plugins", "gloo-tcp"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
            raise Skip("cannot be another user in a mount namespace with hidepid here, or nobody else may read the build folder")
        self.dir.chmod(0o777)
        auth_none = {"auth": "none"}
        path = self.ini("other.ini", SHORT, {"init.file": {"listen": "127.0.0.1", "heartbeat": "100ms"}},
                        {"group": {"init_method": f"file://{self.file}", "world_size": 2, "rank": 0, "rendezvous_timeout": "2s",
                                   "backend": "gloo-tcp", "auth": "none"}})
        other = [*hidden, str(harness.ENGINE), "-c", str(path)]
        first = self.rank(0)  # its file has the run's secret, and nobody else reads it
        self.wait_for(self.file)
        r = subprocess.run(other, capture_output=True, text=True, timeout=harness.PATIENCE, check=False)
        self.equal(r.returncode, 4, r.stderr)
        self.check("cannot be read by this user" in r.stderr and "secret_file" in r.stderr, r.stderr)
        self.done(self.rank(1), first)
        first = self.rank(0, group=auth_none)
        self.wait_for(self.file)
        r = subprocess.run(other, capture_output=True, text=True, timeout=harness.PATIENCE, check=False)
        self.equal(r.returncode, 4, r.stderr)
        self.check(f"in use by another run (host {socket.gethostname()}, pid {first.pid}" in r.stderr, r.stderr)
        self.done(self.rank(1, group=auth_none), first)
        dead = self.killed_run()
        text = self.file.read_text()
        self.file.write_text(re.sub(r"pid \d+", f"pid {os.getpid()}", text))  # a process of root's that cannot be seen either
        self.file.chmod(0o644)  # as of a run with auth = none
        r = subprocess.run(other, capture_output=True, text=True, timeout=harness.PATIENCE, check=False)
        self.check("looking for a sign of life" in r.stderr and "taking it over" in r.stderr, r.stderr)
        self.equal(r.returncode, 4, r.stderr)  # rank 1 is missing
        self.check(dead and not self.file.exists(), r.stderr)

    def test_what_stands_there_instead(self):
        for content, what in (("", "is an empty file"), ("precious\n", "holds something else"),
                              ("ddpengine rendezvous 2\ngeneration 12\n", "is damaged"),
                              ("ddpengine rendezvous 9\n", "another version")):
            for rank in (0, 1):
                self.file.write_text(content)
                r = self.finish(self.rank(rank))
                self.fails(r, 4, str(self.file), what, "remove it, or name a file that does not exist yet")
                self.equal(self.file.read_text(), content)
        self.file.unlink()
        self.file.mkdir()
        for rank in (0, 1):
            self.fails(self.finish(self.rank(rank)), 4, str(self.file), "is a folder")
        self.equal([f.name for f in self.dir.iterdir() if f.name.startswith("rendezvous.")], [])

    def test_unwritable_folder(self):
        folder = self.unwritable()
        r = self.finish(self.rank(0, group={"init_method": f"file://{folder}/rendezvous"}))
        self.fails(r, 4, f"{folder}/rendezvous", re.compile("Permission denied|Operation not permitted|Read-only"), "may write")
        self.file = self.dir / "nowhere" / "rendezvous"
        for rank in (0, 1):
            self.fails(self.finish(self.rank(rank)), 4, str(self.file), "No such file", "create or mount it")

    def mounted(self, options):
        """A file system of its own, for root. close() unmounts it."""
        if os.geteuid() != 0:
            raise Skip("needs root for a file system of its own")
        self.mount = self.dir / "mounted"
        self.mount.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.mount], stderr=subprocess.DEVNULL).returncode:
            self.mount = None
            raise Skip("cannot mount a tmpfs here")
        return self.mount

    def close(self):
        if self.mount:
            subprocess.run(["umount", self.mount], check=True)
        super().close()

    def unwritable(self):
        """Root may write anywhere but in some file systems."""
        if os.geteuid() == 0:
            return "/sys/kernel" if os.path.isdir("/sys/kernel") else self.mounted("ro")
        folder = self.dir / "locked"
        folder.mkdir(0o500)
        return folder

    def test_full_disk(self):
        small = self.mounted("size=8k")
        with open(small / "all", "wb", buffering=0) as f:
            try:
                while True:
                    f.write(b"x" * 4096)
            except OSError:
                pass
        self.file = small / "rendezvous"
        self.fails(self.finish(self.rank(0)), 4, "cannot write", "No space left", "free some space")
        self.equal([f.name for f in small.iterdir()], ["all"])

    def test_urls(self):
        for url, what in (("file://rendezvous", "must be absolute"), ("file://", "path is missing"), ("file:///tmp/", "names a folder")):
            self.fails(self.finish(self.rank(0, group={"init_method": url})), 2, url, what, "file:///PATH")

    def test_where_rank0_listens(self):
        r = self.finish(self.rank(0, {"init.file": {"listen": "eth-none"}}))
        self.fails(r, 4, "eth-none", "lo")
        p = self.rank(0, {"init.file": {"listen": "lo"}}), self.rank(1)
        self.done(*p)

    def test_other_hosts(self):
        """Where this host has an address of its own, auto takes that one: the secret in the file is for all who may read it."""
        for group in ({}, {"auth": "none"}):
            first = self.rank(0, {"init.file": {"listen": "auto"}}, group=group)
            self.wait_for(self.file)
            self.equal(self.file.stat().st_mode & 0o777, 0o644 if group else 0o600)
            self.done(self.rank(1, {"init.file": {"listen": "auto"}}, group=group), first)


class Env(Init):
    def pair(self, variables, *layers, world=None, each=None, group=None):
        """Two ranks; `variables` are of both, `each` of one rank, as launchers set them."""
        ranks = []
        for r in (0, 1):
            env = {**variables, **{k: v.format(r=r) for k, v in (each or {}).items()}}
            ranks.append(self.rank(None, *layers, env=env, group={"init_method": "env://", "world_size": world, **(group or {})}))
        return ranks

    def torchrun(self):
        return ({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}, {"RANK": "{r}"})

    def test_exported_by_hand(self):
        shared, each = self.torchrun()
        p = self.pair(shared, each=each)
        self.done(*p)
        self.equal(self.sha(p[0]), self.expected())

    def test_ranks_of_the_ini(self):
        shared, _ = self.torchrun()
        del shared["WORLD_SIZE"]
        self.done(*[self.rank(r, env=shared, group={"init_method": "env://"}) for r in (0, 1)])

    def test_rank_auto_without_a_url(self):
        shared, each = self.torchrun()
        self.done(*self.pair(shared, each=each, group={"init_method": None, "rank": "auto"}))

    def test_contradictions(self):
        shared, _ = self.torchrun()
        env = {**shared, "RANK": "1"}
        e = {"init_method": "env://"}
        self.fails(self.finish(self.rank(0, env=env, group=e)), 2, "1.ini:", "rank = 0", "RANK=1")
        self.fails(self.finish(self.rank(1, env=env, group=e, world=3)), 2, "2.ini:", "world_size = 3", "WORLD_SIZE=2")
        self.fails(self.finish(self.rank(None, env=env, group=e, args=("--nproc", 2))), 2, "--nproc 2", "RANK=1")

    def test_missing_and_garbled(self):
        shared, _ = self.torchrun()
        shared["RANK"] = "0"
        e = {"init_method": "env://", "world_size": None}
        for name, value, *parts in (("RANK", "", "env://", "looked for RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
                                    ("RANK", "one", "RANK=one", "no number"),
                                    ("RANK", "2", "RANK=2 and WORLD_SIZE=2"),
                                    ("WORLD_SIZE", "", "RANK=0", "WORLD_SIZE is not set"),
                                    ("WORLD_SIZE", "0", "WORLD_SIZE=0"),
                                    ("MASTER_ADDR", "", "MASTER_ADDR is not set"),
                                    ("MASTER_ADDR", "a b", "MASTER_ADDR=a b"),
                                    ("MASTER_PORT", "", "MASTER_PORT is not"),
                                    ("MASTER_PORT", "http", "MASTER_PORT=http"),
                                    ("MASTER_PORT", "65536", "MASTER_PORT=65536")):
            self.fails(self.finish(self.rank(None, env={**shared, name: value}, group=e)), 2, *parts)

    def test_nothing_tells_the_rank(self):
        for url in (None, "tcp://127.0.0.1:29999"):
            r = self.finish(self.rank("auto", group={"init_method": url}))
            self.fails(r, 2, "1.ini:" if url is None else "2.ini:", "rank = auto", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "nodes")

    def test_address_of_other_hosts_needs_consent(self):
        shared, _ = self.torchrun()
        env = {**shared, "RANK": "0", "MASTER_ADDR": "192.0.2.1"}
        self.fails(self.finish(self.rank(None, env=env, group={"init_method": "env://"})), 2, "192.0.2.1", "auth = none")

    # ---- launchers --------------------------------------------------------------------------------------------------------
    def mpirun(self, *args, env=None, ini=None, before=()):
        if shutil.which("mpirun") is None:
            raise Skip("mpirun is not installed")
        path = ini or self.ini("mpi.ini", SHORT, {"output": {"dir": self.dir / "mpi.out"}})
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return self.finish(self.spawn(["mpirun", *root, "--oversubscribe", "--bind-to", "none", *before, harness.ENGINE, "-c", path,
                                       *args], {**self.clean, **(env or {})}))

    def test_mpirun(self):
        """Neither rank nor world_size nor init_method in the INI."""
        r = self.mpirun(before=("-np", 2))
        self.equal(r.code, 0, r)
        self.equal(json.loads((self.dir / "mpi.out" / "summary.json").read_text())["parameter_sha256"], self.expected())

    def test_mpirun_with_an_address(self):
        port = harness.free_port()
        path = self.ini("addr.ini", SHORT, {"group": {"init_method": "env://", "rank": "auto", "world_size": 2}})
        r = self.mpirun(before=("-np", 2, "-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={port}"), ini=path)
        self.equal(r.code, 0, r)

    def test_mpirun_and_tcp(self):
        path = self.ini("tcp.ini", SHORT, {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}"}})
        r = self.mpirun(before=("-np", 2), ini=path)
        self.equal(r.code, 0, r)

    def test_mpirun_with_another_world_size(self):
        path = self.ini("three.ini", SHORT, {"group": {"world_size": 3}})
        r = self.mpirun(before=("-np", 2), ini=path)
        self.equal(r.code, 2, r)
        self.check("three.ini:" in r.err and "world_size = 3" in r.err and "OMPI_COMM_WORLD_SIZE=2" in r.err, r)

    def test_ranks_of_mpirun_on_several_hosts(self):
        env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
               "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
        r = self.finish(self.rank(None, env=env, group={"init_method": None, "world_size": None}))
        self.fails(r, 2, "several hosts", "-x MASTER_ADDR=HOST -x MASTER_PORT=29500")

    def slurm(self, job="70123"):
        return ({"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1",
                 "SLURM_STEP_NODELIST": "node[07-08]", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"},
                {"SLURM_PROCID": "{r}", "SLURM_LOCALID": "{r}"})

    def test_slurm_step(self):
        while not harness.is_free(20000 + (job := random.randrange(100000)) * 31 % 40000):  # the port that follows from it
            pass
        shared, each = self.slurm(job=str(job))
        p = self.pair(shared, each=each, group={"init_method": None})
        self.done(*p)
        self.equal(self.sha(p[0]), self.expected())

    def test_slurm_batch_script_is_no_rank(self):
        """SLURM_PROCID alone is also there in a batch script, and around a shell of srun --pty."""
        env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "5"}
        for more in ({}, {"SLURM_STEP_NUM_TASKS": "1"}):
            path = self.ini("batch.ini", SHORT)
            r = self.finish(self.start("-c", path, "--nproc", 2, env={**self.clean, **env, **more}))
            self.equal(r.code, 0, r)
            self.fails(self.finish(self.rank(1, env={**env, **more}, group={"rendezvous_timeout": "1s"})), 4, "not there yet")

    def test_pmi(self):
        shared = {"PMI_SIZE": "2", "MASTER_ADDR": "localhost" if self.resolves("localhost") else "127.0.0.1",
                  "MASTER_PORT": str(harness.free_port())}
        self.done(*self.pair(shared, each={"PMI_RANK": "{r}"}, group={"init_method": None}))
        r = self.finish(self.rank(None, env={"PMI_SIZE": "2", "PMI_RANK": "1"}, group={"init_method": None, "world_size": None}))
        self.fails(r, 2, "PMI_RANK", "-genv MASTER_ADDR")

    @staticmethod
    def resolves(name):
        try:
            return bool(socket.getaddrinfo(name, None))
        except OSError:
            return False

    @long_case
    def test_torchrun(self):
        torchrun = shutil.which("torchrun")
        if torchrun is None or subprocess.run([torchrun, "--help"], capture_output=True).returncode:
            raise Skip("torchrun is not installed")
        path = self.ini("tr.ini", SHORT, {"group": {"init_method": "env://"}, "output": {"dir": self.dir / "tr.out"}})
        r = self.finish(self.spawn([torchrun, "--nproc_per_node=2", "--master_addr=127.0.0.1",
                                    f"--master_port={free_pair()}", "-r", "1", "-t", "1", "--no_python", harness.ENGINE, "-c", path], self.clean))
        self.equal(r.code, 0, r)
        self.equal(json.loads((self.dir / "tr.out" / "summary.json").read_text())["parameter_sha256"], self.expected())


class Nodes(Init):
    def node(self, nodes, *args, group=None):
        path = self.ini("nodes.ini", SHORT, {"group": {"rank": "auto", "nodes": nodes, **(group or {})},
                                             "output": {"dir": self.dir / "nodes.out"}})
        return self.finish(self.start("-c", path, *args, env=self.clean))

    def test_one_node_starts_its_ranks(self):
        r = self.node("127.0.0.1:2")
        self.equal(r.code, 0, r)
        self.equal(json.loads((self.dir / "nodes.out" / "summary.json").read_text())["parameter_sha256"], self.expected())
        self.equal(self.node("127.0.0.1:2", group={"rank": None}).code, 0)
        self.equal(self.node(f"{socket.gethostname()}:2", group={"world_size": 2}).code, 0)

    def test_second_of_two_nodes(self):
        r = self.node("192.0.2.250:2, 127.0.0.1:1", group={"rendezvous_timeout": "1s", "auth": "none"})
        self.fails(r, 4, "rank 0 was not found at 192.0.2.250:29500")
        r = self.node("192.0.2.250:2, 127.0.0.1:1", group={"rendezvous_timeout": "1s"})
        self.fails(r, 2, "192.0.2.250:29500", "auth = none")

    def test_first_node_finds_the_second(self):
        """The second node is a rank started by hand."""
        port = harness.free_port()
        url = {"init_method": f"tcp://127.0.0.1:{port}"}
        other = self.rank(2, world=3, group={**url, "nodes": "127.0.0.1:2, 192.0.2.250:1", "world_size": 3})
        r = self.node("127.0.0.1:2, 192.0.2.250:1", group={**url, "world_size": 3, "rendezvous_timeout": "20s"})
        self.equal(r.code, 0, r)
        self.done(other)

    def test_mistakes(self):
        self.fails(self.node("127.0.0.1:1, 127.0.0.2:1"), 2, "nodes.ini:", "lists this machine twice", "127.0.0.1:1", "127.0.0.2:1")
        self.fails(self.node("192.0.2.250:1, 192.0.2.251:1"), 2, "nodes.ini:", "none of nodes is this machine", socket.gethostname())
        self.fails(self.node("127.0.0.1"), 2, "nodes.ini:", '"127.0.0.1"', "HOST:RANKS")
        self.fails(self.node("127.0.0.1:0"), 2, '"127.0.0.1:0"')
        self.fails(self.node("::1:2"), 2, '"::1:2"', "HOST:RANKS")
        self.fails(self.node("127.0.0.1:2", "--nproc", 3), 2, "2 ranks", "--nproc is 3")
        self.fails(self.node("127.0.0.1:2", group={"world_size": 3}), 2, "world_size = 3", "2 ranks")
        self.fails(self.node("127.0.0.1:2, 192.0.2.250:1"), 2, "127.0.0.1", "loopback address on this machine")


if __name__ == "__main__":
    sys.exit(harness.main(File, Env, Nodes))
