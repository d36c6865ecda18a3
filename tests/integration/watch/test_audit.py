"""[output] audit and `ddpengine audit`: that each sample was used exactly once in each epoch is proven over kills, resumes and
other numbers of ranks, and what is missing or damaged is found. tests/unit/observe/test_audit.c has the cases one by one."""
import pathlib
import re
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, long_case, until  # noqa: E402


class Audit(Case):
    def audited(self, *layers, name="run", **more):
        """One output folder and one folder of checkpoints for all runs of a test."""
        own = {"output": {"dir": self.dir / "out", "audit": "yes", "log_every": 1000},
               "checkpoint": {"dir": self.dir / "ck", "every": 10, "keep": 0}}
        return self.train(own, *layers, name=name, **more)

    def proof(self, *folders, expect=0):
        r = self.run("audit", *(folders or (self.dir / "out",)))
        self.equal(r.code, expect, r)
        return r

    def epochs(self, text):
        return [tuple(map(int, m)) for m in re.findall(r"^epoch (\d+): (\d+) of (\d+) samples exactly once", text, re.M)]

    def test_over_resumes_and_other_worlds(self):
        self.audited(nproc=2, name="a")
        text = self.proof().out
        self.equal(self.epochs(text), [(1, 640, 640), (2, 640, 640)])
        self.check("steps 1 to 40 in 80 records" in text, text)
        # back to the end of the first epoch, with three ranks: steps 21 .. 40 are made again, 14 to an epoch
        whole = {"train": {"epochs": 3, "max_steps": 40, "global_batch": 48, "even_batches": "yes"}}
        self.audited({"checkpoint": {"resume": self.dir / "ck/step-00000020"}}, whole, nproc=3, name="b")
        text = self.proof().out
        self.equal(self.epochs(text), [(1, 640, 640), (2, 640, 640)])
        self.check("but for 2 that the sampler repeats to give 3 ranks" in text and "epoch 3: 288 of 640 samples so far" in text, text)
        self.check("40 records of steps that a later run has made again" in text, text)
        # from the middle of an epoch, with the same ranks
        self.audited(whole, {"train": {"max_steps": 0}}, nproc=3, name="c")
        self.equal(self.epochs(self.proof().out), [(1, 640, 640), (2, 640, 640), (3, 640, 640)])

    def test_over_a_kill(self):
        plan = {"train": {"epochs": 40, "batch_size": 8}, "output": {"dir": self.dir / "out", "audit": "yes"},
                "checkpoint": {"dir": self.dir / "ck", "every": 50}}
        p = self.start("-c", self.ini("kill.ini", plan), "--nproc", 2)
        until(lambda: list((self.dir / "ck").glob("step-*[0-9]")) or p.poll() is not None, "no checkpoint")
        for pid in self.children(p, 2) if p.poll() is None else []:
            self.signal_if_there(pid)
        self.finish(p)
        text = self.proof().out
        self.check("steps 1 to" in text, text)
        r = self.run("-c", self.dir / "kill.ini", "--nproc", 2)
        self.equal(r.code, 0, r)
        self.equal(self.epochs(self.proof().out), [(e, 640, 640) for e in range(1, 41)])

    @long_case
    def test_over_a_restart_from_memory(self):
        """The others go on with the step that the lost rank has made last: its record of it is there."""
        plan = {"train": {"epochs": 400}, "group": {"backend": "gloo-tcp", "peer_timeout": "2s"}, "run": {"restarts": 5, "restart_delay": "0s"},
                "output": {"dir": self.dir / "out", "audit": "yes", "log_every": 20}, "checkpoint": {"dir": self.dir / "ck", "every": 5000}}
        p = self.start("-c", self.ini("restart.ini", plan), "--nproc", 2)
        self.trained_a_while(p)
        self.signal_if_there(self.children(p, 2)[1])
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.check("from the memory of rank" in r.err, r)
        text = self.proof().out
        self.equal(self.epochs(text), [(e, 640, 640) for e in range(1, 401)])
        self.check("rollbacks of the ranks: 2" in text, text)

    def signal_if_there(self, pid):
        try:
            self.signal(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def test_samplers_replicas_and_stages(self):
        dropped = {"sampler.distributed": {"drop_last": "yes"}, "data.synthetic": {"samples": 641}, "train": {"accumulate": 3}}
        self.audited(dropped, nproc=2)
        text = self.proof().out
        self.equal(self.epochs(text), [(1, 640, 641), (2, 640, 641)])
        self.check("1 left over that the sampler drops" in text, text)
        for name, parallel in (("dp", {"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}}),
                               ("model", {"train": {"parallel": "model", "device": "cpu:0, cpu:1", "accumulate": 4},
                                          "model": {"plugin": "toy"}, "model.mlp": None, "data.synthetic": {"shape": 10, "classes": None},
                                          "model.toy": {"net": "relu", "place": "net1:0, net2:1"}})):
            shutil.rmtree(self.dir / "out")
            self.audited(parallel, {"checkpoint": {"resume": "never"}}, nproc=1, name=name)
            self.equal(self.epochs(self.proof().out), [(1, 640, 640), (2, 640, 640)])

    def test_what_is_missing_is_found(self):
        self.audited(nproc=2)
        (self.dir / "other").mkdir()
        shutil.move(self.dir / "out/audit-rank1.bin", self.dir / "other")
        self.fails(self.proof(expect=10), 10, "step 1: rank 1 has no record")
        self.proof(self.dir / "out", self.dir / "other")
        file = self.dir / "other/audit-rank1.bin"
        whole = file.read_bytes()
        file.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
        self.fails(self.proof(self.dir / "out", self.dir / "other", expect=10), 10, "audit-rank1.bin, byte", "checksum")
        size = 88 + 8 * 16  # of a step's record, behind the beginning's
        file.write_bytes(whole[:88 + 4 * size] + whole[88 + 5 * size:])
        self.fails(self.proof(self.dir / "out", self.dir / "other", expect=10), 10, "step 5: rank 1 has no record")
        self.fails(self.proof(self.dir / "none", expect=2), 2, "none")
        self.fails(self.run("audit"), 2, "which run")
        self.check("usage: ddpengine audit" in self.run("audit", "--help").out)
        self.fails(self.run("-c", self.ini("x.ini", {"output": {"audit": "yes"}})), 2, "[output] audit = yes needs [output] dir")


if __name__ == "__main__":
    sys.exit(harness.main(Audit))
