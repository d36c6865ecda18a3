#!/usr/bin/env python3
"""An epoch of conf/quickstart.ini with one layer of 64, whose number of ranks changes, beside one of a fixed number:

    DDP_SRCDIR=. DDP_BUILDDIR=BUILD tests/bench/hosts/world_change.py [--worlds 2,3,1,4] [--epochs 1] [--set KEY=VALUE ...]

Each part of the run is a start of the program, which goes on from the checkpoint of the one before it; both runs are told
`even_batches = no`. Prints what `ddpengine audit` says of both, the largest difference of a step's loss and of the loss after the
epoch, and as a measure the same between two fixed numbers of ranks, which sum gradients in another order too: with the two layers of
512 of conf/quickstart.ini rounding alone comes to 5e-4 within 100 steps. Needs dataset-fashion-mnist."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integration"))
from harness import ENGINE, FASHION, SRC  # noqa: E402


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--worlds", default="2,3,1,4", help="one after the other, each for the same number of steps (default %(default)s)")
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--set", action="append", default=[], help="KEY=VALUE, as of ddpengine")
    args = p.parse_args()
    args.worlds = [int(w) for w in args.worlds.split(",")]
    return args


def start(args, folder, world, steps):
    own = {"train.epochs": args.epochs, "train.max_steps": steps, "train.even_batches": "no", "model.mlp.hidden": 64, "checkpoint.resume": "auto",
           "optimizer.lr": 0.0005, "optimizer.schedule": "constant",  # the runs end at different steps, and a schedule with them
           "checkpoint.dir": folder / "ck", "output.dir": folder, "output.audit": "yes", "output.log_every": 1000000}
    sets = [f"{k}={v}" for k, v in own.items()] + args.set
    command = [ENGINE, "-c", SRC / "conf/quickstart.ini", "--nproc", world, *(x for s in sets for x in ("--set", s))]
    subprocess.run([str(x) for x in command], cwd=folder, check=True, stderr=subprocess.DEVNULL)


def rows(folder, event):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [r for r in found if r["event"] == event]


def trained(args, folder, worlds, steps):
    """Of each of the worlds so many steps, of the last what is left. Losses of the steps, and the evaluation's."""
    folder.mkdir()
    for i, world in enumerate(worlds):
        start(args, folder, world, steps * (i + 1) if i + 1 < len(worlds) else 0)
    audit = subprocess.run([str(ENGINE), "audit", str(folder)], capture_output=True, text=True)
    print(f"ranks {' -> '.join(map(str, worlds))}:\n    " + (audit.stdout or audit.stderr).strip().replace("\n", "\n    "))
    return [r["loss"] for r in rows(folder, "step")], rows(folder, "eval")[-1]["eval_loss"]


def compare(what, a, b):
    gaps = [abs(x - y) for x, y in zip(a[0], b[0])]
    print(f"{what}: {len(a[0])} and {len(b[0])} steps, largest difference of a loss {max(gaps):.2g} (step {gaps.index(max(gaps)) + 1}), "
          f"after half of them {max(gaps[:len(gaps) // 2]):.2g}, of the evaluation {abs(a[1] - b[1]):.2g}")


def main():
    args = arguments()
    if not FASHION.exists():
        sys.exit("dataset-fashion-mnist is not installed")
    with tempfile.TemporaryDirectory() as where:
        where = pathlib.Path(where)
        fixed = trained(args, where / "fixed", args.worlds[:1], 0)
        moved = trained(args, where / "moved", args.worlds, len(fixed[0]) // len(args.worlds))
        other = trained(args, where / "other", [args.worlds[0] + 2], 0)
        compare("changed and fixed", moved, fixed)
        compare(f"fixed {args.worlds[0]} and {args.worlds[0] + 2}", other, fixed)


if __name__ == "__main__":
    main()
