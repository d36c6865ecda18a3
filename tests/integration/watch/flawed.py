"""For tests of what goes wrong with numbers: the device `flawed` (support/flawed_device.c) makes the faults."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import BUILD, SRC, Case  # noqa: E402

SMALL = {"ddp": {"bucket_size": "1KiB", "first_bucket_size": "1KiB"}}  # several buckets


def over(backend, **ddp):
    return {"group": {"backend": backend}, "ddp": ddp}


WAYS = {"direct": over("shm"), "all_reduce": over("shm", shard_update="no"), "overlap": over("shm", overlap="yes"),
        "gloo": over("gloo-tcp"), "gloo_overlap": over("gloo-tcp", overlap="yes"),"zero": over("gloo-tcp", zero=1),
        "clip": {**over("shm"), "optimizer": {"clip_norm": 0.2}}, "hook": {**over("shm"), "hook": {"plugin": "bf16"}},
        "mpi": over("mpi", zero=1)}


def compiled(case, source, name, *flags):
    """The plugin's path."""
    plugin = case.dir / name
    if not plugin.exists():
        subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
                        f"-I{SRC}/core/include", *flags, "-o", str(plugin), str(SRC / "tests/integration/support" / source)], check=True)
        plugin.chmod(0o755)
    return plugin


def device(case):
    return compiled(case, "flawed_device.c", "device_flawed.so", f'-DREAL_DEVICE="{BUILD}/.libs/device_cpu.so"')


def buffered(case):
    """A model with running statistics."""
    plugin = compiled(case, "buffered_model.c", "model_buffered.so")
    return {"model": {"plugin": plugin}, "model.mlp": None, "model.buffered": {"norm": "yes"}}


class Flawed(Case):
    def flawed(self, flaw, *layers, name, world=2, nproc=2, expect=0, times=None, env=None):
        """`flaw`: see flawed_device.c; "": none. `times`: so often at most."""
        env = {"FLAW_WORLD": str(world), **({"FLAW": flaw} if flaw else {}), **harness.MPI_LEAKS, **(env or {})}
        if times is not None:
            env["FLAW_TIMES"] = str(times)
        return self.train(SMALL, {"train": {"device": device(self)}}, *layers, name=name, nproc=nproc, env=env, expect=expect)

    def warnings(self, run):
        return [(m["step"], m["text"]) for m in self.metrics(run.dir, "warning") if "step" in m]

    def saved(self, name):
        return {"checkpoint": {"dir": self.dir / f"{name}.ck", "every": 1, "keep": 0}}
