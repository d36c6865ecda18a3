#!/usr/bin/env python3
"""Peak memory of what reads a checkpoint: verify, eval and a resume, of the same run saved in whole files and in shards
([checkpoint] sharded). Prints for each the largest resident set of any of its processes, in MiB, and how much of it is over that of
the same command with a model of a few parameters: the program itself.

    checkpoint_memory.py [--engine PROGRAM]... [--hidden N, N, ..] [--dir FOLDER]

--engine, twice: another build beside this one, on the same checkpoints.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SRC = pathlib.Path(os.environ.get("DDP_SRCDIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
CONFIG = """
[model]
plugin = mlp
[model.mlp]
hidden = {hidden}
classes = 10
input = input
[data]
plugin = synthetic
[data.synthetic]
samples = 64
shape = 784
classes = 10
[eval]
plugin = synthetic
[eval.synthetic]
samples = 8
shape = 784
classes = 10
[optimizer]
algorithm = adamw
lr = 0.0003
[train]
epochs = 1000
batch_size = 8
max_steps = {steps}
[group]
backend = {backend}
[ddp]
zero = 1
[checkpoint]
dir = {dir}/{name}
sharded = {sharded}
async = no
[output]
dir = {dir}/{name}.out
"""


def run(engine, *args):
    """The largest resident set of the program and of those that it has waited for, in MiB."""
    p = subprocess.Popen([str(a) for a in (engine, *args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    err = p.stderr.read()
    _, status, usage = os.wait4(p.pid, 0)
    if status != 0:
        sys.exit(f"{engine} {args} ended with {os.waitstatus_to_exitcode(status)}:\n{err}")
    return usage.ru_maxrss / 1024


def measure(engine, folder, hidden, backend):
    out = {}
    for sharded in ("no", "yes"):
        name = f"sharded-{sharded}"
        ini = {}
        for steps in (1, 2):
            ini[steps] = folder / f"{name}-{steps}.ini"
            ini[steps].write_text(CONFIG.format(dir=folder, name=name, sharded=sharded, hidden=hidden, steps=steps, backend=backend))
        run(engine, "-c", ini[1], "--nproc", 2)
        newest = folder / name / "step-00000001"
        state = sum(p.stat().st_size for p in newest.glob("optimizer*")) / 2**20
        out[sharded] = {"verify": run(engine, "checkpoint", "verify", newest), "eval": run(engine, "eval", "-c", ini[1]),
                        "resume": run(engine, "-c", ini[2], "--nproc", 2)}
        shutil.rmtree(folder / name)
    return state, out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", help="the program; twice: both")
    parser.add_argument("--hidden", default="6144, 6144", help="layers of the model, an mlp")
    parser.add_argument("--backend", default="gloo-tcp")
    parser.add_argument("--dir", help="where checkpoints are written")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-memory-", dir=args.dir))
    try:
        for engine in args.engine or [BUILD / "ddpengine"]:
            state, found = measure(engine, folder, args.hidden, args.backend)
            _, least = measure(engine, folder, "8", args.backend)
            print(f"{engine}: the optimiser's state has {state:.0f} MiB")
            for sharded, of in found.items():
                print(f"  sharded = {sharded:3}  " + "   ".join(f"{what} {mib:6.0f} MiB ({mib - least[sharded][what]:+6.0f})"
                                                                for what, mib in of.items()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
