"""Backend nccl and device cuda together in the real program, over doubles of CUDA and NCCL: two processes, each with a GPU whose memory the
host cannot touch (CUDA_DOUBLE_STRICT). Of two ranks every backend's sum has the same bits, and so have the parameters
where no kernel is chosen by its time ([train] deterministic)."""
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness import BUILD, Case, Skip, children_of
from test_cuda import CUDA, DOUBLE, GPT, LENET, SHORT, STRICT

LIBRARY = BUILD / ".libs/nccl_double.so"
RUNTIME = BUILD / ".libs/libcuda_double.so"
PLUGIN = BUILD / ".libs/backend_nccl.so"
NCCL = {"group": {"backend": "nccl"}, "backend.nccl": {"library": LIBRARY, "cuda_library": RUNTIME, "driver_library": RUNTIME},
        "train": {"check_replicas_every": 4}}
GLOO = {"group": {"backend": "gloo-tcp"}}
MANY = {"train": {"max_steps": 6, "check_replicas_every": 3}, "model.mlp": {"hidden": "64, 64"},
        "ddp": {"bucket_size": "1KiB", "first_bucket_size": "1KiB", "overlap": "yes"}}
ADAMW = {"optimizer": {"algorithm": "adamw", "lr": 0.001, "momentum": None}}
LONG = {"train": {"epochs": 100000, "max_steps": 0}, "output": {"log_every": 10}}
EVAL = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 50, "shape": 12, "classes": 4, "seed": 1}}


class CudaNccl(Case):
    def need(self):
        for f in (DOUBLE, LIBRARY, PLUGIN):
            if not f.exists():
                raise Skip(f"{f.name} is not built")

    def gpu(self, *layers, env=None, **more):
        """Whatever the run does, no rule of CUDA or NCCL is broken, and each rank gives back all that it had."""
        self.need()
        r = self.train(CUDA, SHORT, {"train": {"deterministic": "yes"}}, *layers, env={"CUDA_DOUBLE_REPORT": "1", **(STRICT if env is None else env)}, **more)
        reports = re.findall(r"misuse (\d+); left: (.*)", r.err)
        self.equal(len(reports), 2, r)
        for misuse, left in reports:
            self.equal((misuse, re.findall(r"\d+", left)), ("0", ["0"] * 5), r)
        return r

    def nccl(self, *layers, **more):
        r = self.gpu(NCCL, *layers, **more)
        self.equal(r.summary["backend"], "nccl")
        return r

    def losses(self, r):
        return [x["loss"] for x in self.metrics(r.dir, "step")]

    def same(self, a, b):
        self.equal(self.losses(a), self.losses(b))
        self.equal(a.summary["parameter_sha256"], b.summary["parameter_sha256"])

    def alike(self, a, b, within):
        x, y = self.losses(a), self.losses(b)
        self.check(len(x) == len(y) > 0, (x, y))
        self.check(all(abs(i / j - 1) < within for i, j in zip(x, y, strict=True)), (x, y))

    # ---- what it computes --------------------------------------------------------------------------------------------
    def test_trains_what_others_train(self):
        for name, extra in (("mlp", {}), ("gpt", GPT), ("lenet", LENET)):
            r = self.nccl(extra, name=f"{name}-nccl")
            self.same(r, self.gpu(extra, GLOO, name=f"{name}-gloo"))
            self.alike(r, self.train(SHORT, extra, {"group": {"backend": "shm"}}, name=f"{name}-cpu"), within=1e-4)

    def test_bf16(self):
        half = {"train": {"precision": "bf16"}}
        for name, extra in (("mlp", {}), ("gpt", GPT)):
            r = self.nccl(extra, half, name=f"{name}-nccl")
            self.same(r, self.gpu(extra, half, GLOO, name=f"{name}-gloo"))
            self.alike(r, self.train(SHORT, extra, name=f"{name}-cpu"), within=0.02)

    def test_auto(self):
        self.equal(self.gpu(NCCL, {"group": {"backend": "auto"}}).summary["backend"], "nccl")

    # ---- in which order ------------------------------------------------------------------------------------------------
    def test_the_same_bits_however_late_a_stream_is(self):
        """Many buckets under way beside the backward pass: what the streams' events do not order comes out differently."""
        for name, extra in (("whole", {}), ("shares", {"ddp": {"zero": 1}}), ("clipped", {"optimizer": {"clip_norm": 0.05}})):
            first = self.nccl(MANY, extra, env={}, name=f"{name}-first")
            self.same(first, self.gpu(MANY, extra, GLOO, env={}, name=f"{name}-gloo"))
            for way, env in (("late", {"CUDA_DOUBLE_LATE": "1"}), ("reverse", {"CUDA_DOUBLE_LATE": "1", "CUDA_DOUBLE_ORDER": "reverse"})):
                self.same(self.nccl(MANY, extra, env=env, name=f"{name}-{way}"), first)

    # ---- what a run does -------------------------------------------------------------------------------------------------
    def test_shares_of_the_update(self):
        """Parameters and the optimiser's state go in pieces too; more collectives than may be pending."""
        zero = {"ddp": {"zero": 1}}
        for name, extra in (("adamw", ADAMW), ("half", {**ADAMW, "train": {"precision": "bf16"}})):
            self.same(self.nccl(zero, extra, name=f"{name}-nccl"), self.gpu(zero, extra, GLOO, name=f"{name}-gloo"))
        steps = {"train": {"max_steps": 150, "epochs": 20}}
        self.same(self.nccl(zero, steps, env={}, name="nccl"), self.gpu(zero, steps, GLOO, env={}, name="gloo"))

    def test_accumulates_clips_and_evaluates(self):
        extra = {"train": {"accumulate": 2, "eval_every": 1, "max_steps": 6}, "optimizer": {"clip_norm": 0.05}}
        r, other = self.nccl(extra, EVAL, name="nccl"), self.gpu(extra, EVAL, GLOO, name="gloo")
        self.same(r, other)
        for x, y in zip(self.metrics(r.dir, "step"), self.metrics(other.dir, "step"), strict=True):
            self.equal(x["grad_norm"], y["grad_norm"])
        evals = [[x["eval_loss"] for x in self.metrics(one.dir, "eval")] for one in (r, other)]
        self.check(len(evals[0]) > 1, evals)
        self.equal(*evals)

    def test_resumes_with_the_same_bits(self):
        for name, extra in (("whole", {}), ("shares", {"ddp": {"zero": 1}, **ADAMW})):
            whole = self.nccl(extra, EVAL, name=f"{name}-whole")
            saved = {"checkpoint": {"dir": self.dir / name}}
            self.nccl(extra, EVAL, saved, {"train": {"max_steps": 6}}, name=f"{name}-1")
            r = self.nccl(extra, EVAL, saved, name=f"{name}-2")
            self.check("resuming from" in r.err, r)
            for key in ("parameter_sha256", "final_loss", "eval_loss"):
                self.equal(r.summary[key], whole.summary[key])

    def test_stops_when_asked(self):
        self.need()
        path = self.ini("stop.ini", CUDA, NCCL, LONG, {"checkpoint": {"dir": self.dir / "saved"}})
        p = self.start("-c", path, "--nproc", 2, env=STRICT)
        self.trained_a_while(p)
        p.terminate()
        r = self.finish(p)
        self.equal(r.code, 128 + 15, r)
        self.check(list((self.dir / "saved").glob("step-*/MANIFEST.json")), r)

    # ---- what goes wrong -----------------------------------------------------------------------------------------------
    def lost(self, victim, sig, **group):
        """Two ranks in training, one of which gets the signal; what the family says. The replicas are not compared:
        whenever the signal comes, the other one goes on to a collective of NCCL's."""
        self.need()
        (self.dir / "tmp").mkdir(exist_ok=True)
        path = self.ini("lost.ini", CUDA, NCCL, LONG, {"group": group, "train": {"check_replicas_every": 0}})
        p = self.start("-c", path, "--nproc", 2, env={**STRICT, "TMPDIR": str(self.dir / "tmp")})
        self.trained_a_while(p)
        os.kill(children_of(p.pid)[victim], sig)
        r = self.finish(p)
        self.no_processes_left(path)
        self.equal(os.listdir(self.dir / "tmp"), [])
        return r

    def test_killed_rank_ends_the_run(self):
        """The other one stands in a collective, on a stream that nothing but an abort can wake."""
        for victim in (0, 1):
            r = self.lost(victim, signal.SIGKILL)
            self.fails(r, 5, f"rank {victim} (pid ", "killed by signal 9")

    def test_stopped_rank_is_a_time_out(self):
        r = self.lost(1, signal.SIGSTOP, step_timeout="10s", peer_timeout="60s")  # a step may take 1 s beside others
        self.fails(r, 6, "on rank 0", "step_timeout")
        r = self.lost(0, signal.SIGSTOP, peer_timeout="2s")
        self.fails(r, 6, "rank 0 on host ", "silent for 2 s (peer_timeout)")

    def test_losses_that_are_not_finite(self):
        self.need()
        for zero in (0, 1):
            path = self.ini("x.ini", CUDA, NCCL, SHORT, {"optimizer": {"lr": 1e38}, "ddp": {"zero": zero}})
            self.fails(self.run("-c", path, "--nproc", 2, env=STRICT), 7, "not finite", "step 2")

    def test_refusals(self):
        self.need()
        for code, words, layer, env in (
                (2, ("[train] device = cpu is host memory", "gloo-tcp, shm or mpi"), {"train": {"device": "cpu"}}, {}),
                (2, ('hook "bf16" works in the host\'s memory', 'backend "nccl"', "name another in [group] backend"), {"hook": {"plugin": "bf16"}}, {}),
                (2, ('hook "powersgd" works in the host\'s memory', 'backend "nccl"'), {"hook": {"plugin": "powersgd"}}, {}),
                (2, ("CUDA device 1", "has 1, numbered from 0"), {}, {"CUDA_DOUBLE_DEVICES": "1"}),
                (3, ("no CUDA device on this machine",), {}, {"CUDA_DOUBLE_DEVICES": "0"})):
            path = self.ini("x.ini", CUDA, NCCL, SHORT, layer)
            self.fails(self.run("-c", path, "--nproc", 2, env={**STRICT, **env}), code, *words)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    sys.exit(harness.main(CudaNccl))
