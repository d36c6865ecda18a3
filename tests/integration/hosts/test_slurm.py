"""A Slurm of its own: munged, slurmctld and two slurmd of this host, all in the case's folder. Long: it takes half a minute."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SRC, Case, Skip, free_port, long_case, until  # noqa: E402

CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port[0]}
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=requeue_delay=1,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port[1]} CPUs=4 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port[2]} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")


class Slurm(Case):
    def begin(self):
        path = os.environ["PATH"] + ":/usr/sbin:/sbin"
        missing = [p for p in PROGRAMS if shutil.which(p, path=path) is None]
        if missing:
            raise Skip(f"no {missing[0]}: install slurm-wlm and munge")
        d = self.dir / "slurm"
        (d / "state").mkdir(parents=True)
        key = d / "munge.key"
        key.write_bytes(os.urandom(256))
        key.chmod(0o400)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        (d / "slurm.conf").write_text(CONF.format(host=socket.gethostname().split(".")[0], user=user, dir=d, port=[free_port() for _ in range(3)]))
        self.slurm = {"SLURM_CONF": str(d / "slurm.conf"), "PATH": f"{harness.BUILD}:{path}", "MASTER_ADDR": "127.0.0.1",  # node1 is no name of DNS
                      **self.environ}
        self.daemon("munged", "-F", "--force", f"--key-file={key}", f"--socket={d}/munge.socket", f"--pid-file={d}/munged.pid",
                    f"--log-file={d}/munged.log", f"--seed-file={d}/seed")
        until(lambda: (d / "munge.socket").exists() or self.ended(), "munged does not run")
        self.daemon("slurmctld", "-D", "-i")
        for node in ("node1", "node2"):
            self.daemon("slurmd", "-D", "-N", node)
        until(lambda: self.ask("sinfo", "-h", "-o", "%D %T") == "2 idle" or self.ended(), lambda: self.ask("sinfo"), patience=30)
        if self.ended():
            raise Skip(f"{self.ended()} does not run here: " + "".join((d / n).read_text()[-300:] for n in ("munged.log", "slurmctld.log")
                                                                      if (d / n).exists()))

    def daemon(self, *argv):
        p = self.spawn(argv, self.slurm, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.daemons = [*getattr(self, "daemons", []), (argv[0], p)]

    def ended(self):
        return next((name for name, p in self.daemons if p.poll() is not None), None)

    def close(self):
        for _, p in reversed(getattr(self, "daemons", [])):
            p.terminate()
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
        super().close()

    def ask(self, *argv):
        return subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **self.slurm}, cwd=self.dir, check=False).stdout.strip()

    @long_case
    def test_srun(self):
        """Four tasks on two nodes are four ranks; the exit code of a run that fails is srun's."""
        self.begin()
        path = self.ini("x.ini", {"output": {"dir": self.dir / "out"}})
        r = self.finish(self.spawn(["srun", "-N", 2, "-n", 4, harness.ENGINE, "-c", path], self.slurm))
        self.equal(r.code, 0, r)
        self.check("with 4 ranks" in r.err, r)
        whole = self.train(nproc=4)
        self.check(whole.summary["parameter_sha256"] in (self.dir / "out" / "summary.json").read_text(), r)
        r = self.finish(self.spawn(["srun", "-N", 2, "-n", 4, harness.ENGINE, "-c", path, "--set", "optimizer.lr=1e30"], self.slurm))
        self.equal(r.code, 7, r)

    @long_case
    def test_sbatch_goes_on_after_its_time_limit(self):
        """The job is told that its time is nearly over, saves, is queued again, and ends with the bits of a run without that."""
        self.begin()
        length = {"train": {"epochs": 2000}, "checkpoint": {"dir": self.dir / "checkpoints", "every": 10000}, "output": {"log_every": 1000}}
        path = self.ini("x.ini", length, {"output": {"dir": self.dir / "out"}})
        answer = self.ask("sbatch", "--parsable", SRC / "conf/cluster/train.sbatch", path)
        self.check(re.fullmatch(r"\d+", answer), answer)
        log = self.dir / f"ddpengine-{answer}.log"
        until(lambda: log.exists() and "step" in log.read_text() and "loss" in log.read_text(), lambda: self.ask("squeue") + log.read_text() if log.exists() else "")
        self.ask("scancel", "--signal=USR1", "--batch", answer)
        until(lambda: "queued again" in log.read_text(), lambda: self.ask("squeue", "-a") + log.read_text())
        until(lambda: "done at step 20,000" in log.read_text(), lambda: self.ask("squeue", "-a") + log.read_text())
        self.check("exit code 143" in log.read_text(), log.read_text())
        self.check(re.search(r"resum", log.read_text()), log.read_text())
        whole = self.train(length, {"checkpoint": {"dir": self.dir / "whole"}}, nproc=4)
        self.check(whole.summary["parameter_sha256"] in (self.dir / "out" / "summary.json").read_text(), log.read_text())


if __name__ == "__main__":
    sys.exit(harness.main(Slurm))
