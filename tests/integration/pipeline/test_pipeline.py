"""Stages of a model that are ranks: [train] parallel = pipeline. What they train is what the same stages in one process train."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import BUILD, MPI_LEAKS, SRC, Case, Skip, merged, seldom  # noqa: E402

BACKENDS = ("gloo-tcp", "shm")
MODEL = {"train": {"parallel": "model", "device": "cpu:0, cpu:1"}}
STAGES = {"train": {"parallel": "pipeline", "stages": 2}}
TOY = {"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu", "place": "net1:0, net2:1"},
       "data.synthetic": {"shape": 10, "classes": 0, "outputs": 5, "samples": 337}, "eval": {"plugin": "synthetic"},
       "eval.synthetic": {"shape": 10, "classes": 0, "outputs": 5, "samples": 61},
       "train": {"max_steps": 30, "epochs": 9, "accumulate": 3},
       "optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None, "clip_norm": 0.5}}
TEXT = {"files": "/usr/share/common-licenses/GPL-3", "context": 32}
GPT = {"model": {"plugin": "gpt2"}, "model.mlp": None, "data": {"plugin": "tokens"}, "data.synthetic": None, "data.tokens": TEXT,
       "model.gpt2": {"preset": "bytes", "width": 32, "heads": 4, "place": "0:0, 2:1", "tied": "no", "dropout": 0.1},
       "train": {"accumulate": 4, "batch_size": 4, "max_steps": 8},
       "optimizer": {"algorithm": "adamw", "lr": 0.0006, "momentum": None}}


class Pipeline(Case):
    def together(self, *layers, stages=2, replicas=1, backend="gloo-tcp", name="ranks", **more):
        return self.train(*layers, {"train": {"parallel": "pipeline", "stages": stages, "device": "cpu"}, "group": {"backend": backend}},
                          nproc=stages * replicas, name=name, **more)

    def files(self, folder):
        """The bytes of all tensors of all checkpoints."""
        return {str(p.relative_to(folder)): p.read_bytes() for p in pathlib.Path(folder).rglob("*.safetensors")}

    def buffered(self):
        plugins = self.dir / "plugins"
        plugins.mkdir(exist_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", f"-I{SRC}/core/include", f"{SRC}/tests/integration/support/buffered_model.c", "-o",
                        plugins / "model_buffered.so", "-lm"], check=True)
        return plugins

    @seldom
    def test_the_bits_of_the_stages_in_one_process(self):
        """Loss, norm, evaluation, parameters and the files of checkpoints; an uneven last batch, dropout, three stages."""
        three = merged(GPT, {"model.gpt2": {"place": "0:0, 1:1, 3:2"}, "optimizer": {"clip_norm": 0.5}})
        for name, extra, stages in (("toy", TOY, 2), ("gpt", GPT, 2), ("three", three, 3)):
            devices = {"train": {"device": ", ".join(f"cpu:{i}" for i in range(stages))}}
            here = self.train(extra, MODEL, devices, {"checkpoint": {"dir": self.dir / f"{name}-here", "every": 4, "keep": 0}}, nproc=1,
                              name=f"{name}.ini")
            for backend in BACKENDS:
                folder = self.dir / f"{name}-{backend}"
                r = self.together(extra, {"checkpoint": {"dir": folder, "every": 4, "keep": 0}}, stages=stages, backend=backend,
                                  name=f"{name}-{backend}.ini")
                for key in ("parameter_sha256", "final_loss", "eval_loss"):
                    self.equal(r.summary[key], here.summary[key], key)
                for x, y in zip(self.metrics(r.dir, "step"), self.metrics(here.dir, "step"), strict=True):
                    self.equal((x["loss"], x.get("grad_norm")), (y["loss"], y.get("grad_norm")), (x, y))
                self.equal(self.files(folder), self.files(self.dir / f"{name}-here"), name)

    def test_over_mpi(self):
        if not (BUILD / ".libs/backend_mpi.so").exists() or shutil.which("mpirun") is None:
            raise Skip("no backend mpi here")
        short = {"train": {"max_steps": 6}}
        here = self.train(TOY, MODEL, short, nproc=1, name="toy.ini")
        r = self.together(TOY, short, backend="mpi", name="mpi.ini", env=MPI_LEAKS)
        self.equal(r.summary["parameter_sha256"], here.summary["parameter_sha256"])

    def test_running_statistics_are_of_all_stages(self):
        extra = {"plugins": {"path": self.buffered()}, "model": {"plugin": "buffered"}, "model.mlp": None, "train": {"accumulate": 2},
                 "model.buffered": {"classes": 4, "norm": "yes", "dropout": 0.2, "place": "yes"},
                 "eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 61, "shape": 12, "classes": 4, "seed": 1}}
        one = self.train(extra, {"checkpoint": {"dir": self.dir / "one"}}, nproc=1, name="one.ini")
        r = self.together(extra, {"checkpoint": {"dir": self.dir / "two"}}, name="two.ini")
        for key in ("parameter_sha256", "buffer_sha256", "eval_loss", "eval_accuracy"):
            self.equal(r.summary[key], one.summary[key], key)
        self.equal(self.files(self.dir / "two"), self.files(self.dir / "one"))

    @seldom
    def test_goes_on_from_its_own_and_from_one_ranks_checkpoint(self):
        whole = self.train(GPT, nproc=1, name="whole.ini")
        for first, second in ((2, 2), (2, 1), (1, 2)):
            ck = {"checkpoint": {"dir": self.dir / f"{first}-{second}"}}

            def go(ranks, *layers, ck=ck):
                run = self.together if ranks == 2 else lambda *a, **k: self.train(*a, nproc=1, **k)
                return run(GPT, ck, *layers, name="x.ini")

            go(first, {"train": {"max_steps": 3}})
            r = go(second)
            self.check("resuming from" in r.err and "step 3" in r.err, r)
            self.equal(r.summary["parameter_sha256"], whole.summary["parameter_sha256"], (first, second))

    def test_replicas_of_stages_train_what_one_rank_trains(self):
        plain = {"sampler.distributed": {"shuffle": "no"}, "data.synthetic": {"samples": 960}, "train": {"accumulate": 3}}
        one = self.train(TOY, plain, nproc=1, name="one.ini")
        for backend in BACKENDS:
            r = self.together(TOY, plain, {"train": {"batch_size": 8}}, replicas=2, backend=backend, name=f"{backend}.ini")
            for x, y in zip(self.metrics(r.dir, "step"), self.metrics(one.dir, "step"), strict=True):
                self.check(abs(x["loss"] / y["loss"] - 1) < 1e-6 and abs(x["grad_norm"] / y["grad_norm"] - 1) < 1e-6, (x, y))
            self.check(abs(r.summary["eval_loss"] / one.summary["eval_loss"] - 1) < 1e-6, r)

    def test_a_lost_stage_is_named_by_all(self):
        for replicas, backend in ((1, "shm"), (2, "gloo-tcp")):
            p = self.start("-c", self.ini(f"x{replicas}.ini", TOY, STAGES,
                                          {"train": {"max_steps": 0, "epochs": 1000000, "eval_every": 0}, "group": {"backend": backend},
                                           "output": {"progress": "plain", "log_every": 1}}), "--nproc", 2 * replicas)
            self.trained_a_while(p)
            last = self.children(p, 2 * replicas)[-1]
            os.kill(last, signal.SIGKILL)
            r = self.finish(p)
            self.fails(r, 5, f"rank {2 * replicas - 1}", "killed by signal 9")

    def test_a_failing_stage_ends_the_run_with_its_words(self):
        text = self.dir / "text"
        text.write_bytes(bytes(range(128)) * 40 + b"\xff" + bytes(range(128)) * 40)
        small = merged(GPT, STAGES, {"model.gpt2": {"vocabulary": 128}, "data.tokens": {"files": text}})
        self.fails(self.run("-c", self.ini("x.ini", small), "--nproc", 2), 10, "255")
        self.fails(self.run("-c", self.ini("y.ini", GPT, STAGES, {"optimizer": {"lr": 1e30}}), "--nproc", 2), 7, "not finite", "of rank")
        r = self.run("-c", self.ini("z.ini", GPT, STAGES, {"optimizer": {"lr": 1e30}, "train": {"non_finite": "skip", "non_finite_limit": 2}}),
                     "--nproc", 2)
        self.fails(r, 7, "not finite", "2 updates before it were left out")

    @seldom
    def test_stopped_by_a_signal_it_saves_and_goes_on(self):
        extra = merged(TOY, {"train": {"max_steps": 3000, "epochs": 1000, "eval_every": 0}, "checkpoint": {"dir": self.dir / "ck"},
                             "output": {"progress": "plain", "log_every": 1}}, STAGES)
        p = self.start("-c", self.ini("x.ini", extra), "--nproc", 2)
        self.trained_a_while(p)
        p.terminate()
        r = self.finish(p)
        self.equal(r.code, 128 + signal.SIGTERM, r)
        r = self.run("-c", self.ini("x.ini", extra), "--nproc", 2)
        self.equal(r.code, 0, r)
        self.check("resuming from" in r.err, r)

    LLAMA = {"model": {"plugin": "llama"}, "model.mlp": None, "data": {"plugin": "tokens"}, "data.synthetic": None, "data.tokens": TEXT,
             "model.llama": {"vocabulary": 256, "width": 32, "intermediate": 48, "layers": 4, "heads": 4, "kv_heads": 2},
             "train": {"accumulate": 4, "batch_size": 4, "max_steps": 6},
             "optimizer": {"algorithm": "adamw", "lr": 0.0006, "momentum": None, "clip_norm": 1}}

    @seldom
    def test_layers_are_placed_by_the_engine(self):
        """Measured, by arithmetic, and by name: the parameters are those of one rank."""
        one = self.train(self.LLAMA, nproc=1, name="one.ini")
        for name, extra, told in (("auto", {}, "place = auto: stage 1 begins at model.layers."),
                                  ("counted", {"train": {"deterministic": "yes"}, "ddp": {"bucket_size": "1MiB"}}, "2 stages"),
                                  ("named", {"train": {"place": "layers.1.mlp:1"}}, "2 stages")):
            r = self.together(self.LLAMA, extra, name=f"{name}.ini")
            self.check(told in r.err, r)
            for x, y in zip(self.metrics(r.dir, "step"), self.metrics(one.dir, "step"), strict=True):
                self.check(abs(x["loss"] / y["loss"] - 1) < 1e-6, (x, y))
        for layers, ranks, parts in ((({"train": {"place": "layers.9:1"}},), 2, ("[train] place", "layers.9:1", "does not have")),
                                     (({"train": {"place": "layers.1"}},), 2, ("[train] place", "h.6:1")),
                                     (({"train": {"place": "layers.1:1"}, "model.llama": {"tied": "yes"}},), 2, ("embed_tokens", "tied = no")),
                                     (({"model.llama": {"tied": "yes"}},), 2, ("at most 1", "tied = no")),
                                     (({"train": {"stages": 40}},), 40, ("at most", "fewer stages")),
                                     (({"train": {"stages": 3, "place": "layers.1:1, layers.0:2"}},), 3, ("goes backwards",)),
                                     (({"train": {"stages": 3, "place": "layers.1:1"}},), 3, ("every stage",))):
            r = self.run("-c", self.ini("x.ini", self.LLAMA, STAGES, *layers), "--nproc", ranks)
            self.fails(r, 2, "x.ini:", *parts)

    def test_check_tells_the_plan(self):
        r = self.run("-c", self.ini("x.ini", self.LLAMA, STAGES), "--nproc", 4, "--check")
        self.equal(r.code, 0, r)
        for part in ("2 stages, 2 ranks each", "stage 0             ranks 0 to 1", "stage 1             ranks 2 to 3", "parameters", "sends"):
            self.check(part in r.out, r)

    def test_refusals(self):
        tied = {"model.gpt2": {"tied": "yes"}}
        for layers, ranks, parts in (
                (({"train": {"stages": 3}},), 2, ("stages = 3 does not divide the 2 ranks", "x.ini:")),
                (({"train": {"stages": 0}},), 2, ("stages", "x.ini:", "stages = 2")),
                (({"train": {"stages": 3}},), 3, ("stages 0 to 2", "stages 0 to 1", "place", "x.ini:")),
                ((tied,), 2, ('"transformer.wte.weight" is used by stage 1 too', "tied = no")),
                (({"train": {"batch_size": 2, "accumulate": 0, "global_batch": 9}},), 4, ("global_batch 9", "replicas of the model count as ranks")),
                (({"hook": {"plugin": "bf16"}},), 2, ("[hook] plugin", "pipeline", "x.ini:")),
                (({"ddp": {"zero": 1}},), 2, ("[ddp] zero", "x.ini:", "zero = 0")),
                (({"run": {"restarts": 1}, "checkpoint": {"dir": "ck", "every": 2}},), 2, ("[run] restarts", "x.ini:", "newest checkpoint")),
                (({"train": {"check_replicas_every": 2}},), 2, ("check_replicas_every", "x.ini:")),
                (({"train": {"non_finite": "rollback"}},), 2, ("non_finite", "x.ini:", "abort or skip")),
                (({"train": {"noise_scale": "yes"}},), 2, ("noise_scale", "x.ini:")),
                (({"optimizer": {"ema": 0.9}},), 2, ("[optimizer] ema", "x.ini:")),
                (({"output": {"audit": "yes"}},), 2, ("[output] audit", "x.ini:")),
                (({"train": {"device": "cpu:0, cpu:1"}},), 2, ("device", "x.ini:"))):
            r = self.run("-c", self.ini("x.ini", GPT, STAGES, *layers), "--nproc", ranks)
            self.fails(r, 2, *parts)


if __name__ == "__main__":
    harness.main(Pipeline)
