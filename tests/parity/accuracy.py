#!/usr/bin/env python3
"""How well the engine's models learn. Not part of `make check`: these trainings take minutes to hours on a few cores.

    python3 tests/parity/accuracy.py lenet|resnet|gpt [--precision f32|bf16] [--seed N] [--nproc N] [--threads N]

DDP_BUILDDIR names the folder where the engine was built, unless that is the source tree itself.

lenet    conf/fashion-lenet.ini as it is, 10 epochs of the net with two convolutions on Fashion-MNIST; prints the accuracy.
resnet   ResNet-18 of width 16, with the stem for small images, on Fashion-MNIST with random crops (padding 2) and mirroring, SGD
         with momentum 0.9 and weight decay 5e-4, global batch 128: 6 epochs at lr 0.05, then 2 at 0.005 from the first part's
         checkpoint. Prints the accuracy; 0.92 is the goal, and the exit code is 1 below it.
gpt      the byte GPT (preset bytes) on the King James text (Debian: bible-kjv; --text names another), the last twentieth held
         out: --steps N (300) of --batch N (8), in the engine and in PyTorch (torch_train.py, always float32) with the same first
         values, batches and update rule. Prints both validation losses and their relative difference. --python names the
         interpreter that has torch.

--epochs N and --max-steps N cut lenet and resnet short, for a look at whether all of it still works; what they print then says
nothing. --work DIR keeps the files there, else they are in a temporary folder that goes with the script."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SRC = HERE.parents[1]
ENGINE = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC)).resolve() / "ddpengine"
GOAL = 0.92
CONTEXT, SPLIT = 256, 0.95
GPT = {"lr": 0.0006, "betas": (0.9, 0.95), "weight_decay": 0.1}

RESNET = """
[train]
global_batch = 128
[model]
plugin = resnet
[model.resnet]
depth = 18
stem = cifar
width = 16
classes = 10
[data]
plugin = idx
padding = 2
random_crop = 28
flip = 0.5
mean = 0.286
std = 0.353
[data.idx]
split = train
[eval]
plugin = idx
[eval.idx]
split = test
[optimizer]
algorithm = sgd
momentum = 0.9
weight_decay = 0.0005
"""
RESNET_PARTS = ((6, 0.05), (2, 0.005))  # epochs, lr


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("lenet", "resnet", "gpt"))
    p.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--nproc", type=int, default=1)
    p.add_argument("--threads", type=int, default=0, help="of a rank, and of PyTorch; 0 shares the processors out")
    p.add_argument("--epochs", type=int, default=0)
    p.add_argument("--max-steps", type=int, default=0)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--text")
    p.add_argument("--python", default="/usr/bin/python3")
    p.add_argument("--work")
    return p.parse_args()


def train(args, ini, out, **keys):
    """The run's summary. `keys` override the INI's, __ for the dot."""
    keys = {"train__seed": args.seed, "train__precision": args.precision, "train__threads": args.threads, "output__dir": out,
            "checkpoint__dir": out / "checkpoints", "checkpoint__resume": "never", **keys}
    command = [str(ENGINE), "-c", str(ini), "--nproc", str(args.nproc)]
    for key, value in keys.items():
        command += ["--set", f"{key.replace('__', '.', 1)}={value}"]
    if subprocess.run(command).returncode != 0:
        raise SystemExit(f"accuracy.py: the engine failed; its command was {' '.join(command)}")
    return json.loads((out / "summary.json").read_text())


def cut(args, epochs):
    return {"train__epochs": args.epochs or epochs, "train__max_steps": args.max_steps}


def result(args, summary):
    print(f"{args.what}, {args.precision}, seed {args.seed}: accuracy {summary['eval_accuracy']:.4f}, loss {summary['eval_loss']:.4f} "
          f"on the test images after {summary['steps']} steps, {summary['samples_per_s']:.0f} samples/s")


def lenet(args, work):
    result(args, train(args, SRC / "conf/fashion-lenet.ini", work / "lenet", **cut(args, 10)))
    return 0


def resnet(args, work):
    ini, start = work / "resnet.ini", {}
    ini.write_text(RESNET)
    for part, (epochs, lr) in enumerate(RESNET_PARTS):
        out = work / f"resnet-{part}"
        # another seed, so that the second part does not repeat the order and the crops of the first
        summary = train(args, ini, out, **{**cut(args, epochs), "train__seed": args.seed + 1000 * part, "optimizer__lr": lr, **start})
        start = {"checkpoint__init_from": max((out / "checkpoints").glob("step-????????"))}
    result(args, summary)
    return 0 if summary["eval_accuracy"] >= GOAL else 1


def king_james(work):
    try:
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise SystemExit("accuracy.py: no command bible; apt-get install bible-kjv, or name a text with --text") from None
    (work / "kjv.txt").write_bytes(text)
    return work / "kjv.txt"


def pytorch(args, text):
    threads = args.threads or len(os.sched_getaffinity(0))
    r = subprocess.run([args.python, str(HERE / "torch_train.py"), "gpt2", '{"preset": "bytes"}', "--data", str(text),
                        "--context", str(CONTEXT), "--to", str(SPLIT), "--from", str(SPLIT), "--steps", str(args.steps),
                        "--batch", str(args.batch), "--optimizer", "adamw", "--lr", str(GPT["lr"]),
                        "--betas", *map(str, GPT["betas"]), "--weight-decay", str(GPT["weight_decay"]), "--seed", str(args.seed),
                        "--threads", str(threads)],
                       stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    if r.returncode != 0:
        raise SystemExit(f"accuracy.py: torch_train.py failed under {args.python}; --python names an interpreter that has torch")
    return json.loads(r.stdout)


def gpt(args, work):
    text = pathlib.Path(args.text).resolve() if args.text else king_james(work)
    ini = work / "gpt.ini"
    ini.write_text(f"""
[train]
epochs = {args.steps}
max_steps = {args.steps}
global_batch = {args.batch}
eval_every = 0
[model]
plugin = gpt2
[model.gpt2]
preset = bytes
[data]
plugin = tokens
[data.tokens]
files = {text}
context = {CONTEXT}
to = {SPLIT}
[eval]
plugin = tokens
[eval.tokens]
files = {text}
context = {CONTEXT}
from = {SPLIT}
[optimizer]
algorithm = adamw
lr = {GPT["lr"]}
betas = {GPT["betas"][0]}, {GPT["betas"][1]}
weight_decay = {GPT["weight_decay"]}
""")
    ours, theirs = train(args, ini, work / "gpt"), pytorch(args, text)
    a, b = ours["eval_loss"], theirs["eval_loss"]
    steps = [row for row in map(json.loads, (work / "gpt/metrics.jsonl").read_text().splitlines()) if row["event"] == "step"]
    first = abs(steps[0]["loss"] - theirs["losses"][0]) / theirs["losses"][0]
    print(f"gpt, {args.precision}, seed {args.seed}: validation loss {a:.6f} after {args.steps} steps, PyTorch's in float32 {b:.6f}, "
          f"relative difference {(a - b) / b:+.1e}; of the first step's loss {first:.1e}")
    return 0


def main():
    args = arguments()
    if not ENGINE.exists():
        raise SystemExit(f"accuracy.py: {ENGINE} is not there; build it, or set DDP_BUILDDIR")
    with tempfile.TemporaryDirectory(prefix="ddpengine-accuracy-") as temporary:
        work = pathlib.Path(args.work or temporary).resolve()
        work.mkdir(parents=True, exist_ok=True)
        return {"lenet": lenet, "resnet": resnet, "gpt": gpt}[args.what](args, work)


if __name__ == "__main__":
    sys.exit(main())
