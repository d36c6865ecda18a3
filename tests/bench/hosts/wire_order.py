#!/usr/bin/env python3
"""Order on the wire: [ddp] wire_order = forward against fifo, and PyTorch DDP over gloo, on two hosts on a slow network; all in turn
in every round of one run:

    python3 tests/bench/hosts/wire_order.py [--rate 1gbit] [--rounds 3] [--steps 8] [--warmup 3] [--model gpt2] [--bucket-size 8MiB]
                                      [--batch 4] [--newest VENV/bin/python] [--no-torch] [--no-single] [--emulate S] [--text FILE]

Hosts, link and model are those of slow_link.py, gradients are f32. Prints the medians over the rounds and their range of a step and
of what of it waits for the network; fifo / forward by round; whether the parameters have the same bits at the end; and what theory
gives: a step of fifo takes forward + the all-reduce, one of forward the all-reduce alone where the network is the bottleneck.
--emulate S instead: a quarter of GPT-2's width and vocabulary, on a link of a 16th of the rate, with paced_device.c, whose forward and
backward pass takes S seconds in which the processor is free. So the machine may be busy; the figures are emulated, and it says so.
Needs root and iproute2; without it says so and exits with 77. Nothing here decides a test."""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import slow_link  # noqa: E402
from slow_link import BUILD, DEVICE, ENGINE, HOST0, NAMES, PORT, SRC, Skip, Table, on_hosts, settings, shape, steps_of, together  # noqa: E402

ORDERS = ("fifo", "forward")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", action="append", help="tc's spelling; may be repeated (default 1gbit)")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=8, help="that count, of a run")
    p.add_argument("--warmup", type=int, default=3, help="steps before them")
    p.add_argument("--model", choices=NAMES, default="gpt2")
    p.add_argument("--batch", type=int, default=4, help="samples of 256 tokens a rank (default %(default)s)")
    p.add_argument("--bucket-size", default="8MiB")
    p.add_argument("--emulate", type=float, metavar="S", help="forward and backward pass by the clock, without PyTorch")
    p.add_argument("--newest", help="a Python that has a newer PyTorch")
    p.add_argument("--no-torch", action="store_true")
    p.add_argument("--no-single", action="store_true", help="nothing of one rank")
    p.add_argument("--text", help="what PyTorch's language model reads; bytes in order without it")
    args = p.parse_args()
    args.rate = args.rate or ["1gbit"]
    args.no_torch |= args.emulate is not None
    args.no_single |= args.emulate is not None
    args.newest, args.text = (os.path.abspath(path) if path else None for path in (args.newest, args.text))
    return args


# ---- a quarter of GPT-2 --------------------------------------------------------------------------------------------------
PARTS = 16  # as many times as few parameters
TOKENS, PARAMETERS = 64, 7_956_096


def emulated_ini(args, hosts):
    return hosts.ini("node.ini", text=f"""[train]
device = {hosts.dir}/device_paced.so
threads = 1
batch_size = 1
max_steps = {args.warmup + args.steps}
epochs = 1000
[ddp]
overlap = yes
bucket_size = 512KiB
first_bucket_size = 64KiB
[model]
plugin = gpt2
[model.gpt2]
layers = 12
heads = 12
width = 192
vocabulary = 12576
padded_vocabulary = 12608
[data]
plugin = synthetic
[data.synthetic]
samples = 256
shape = {TOKENS}
vocabulary = 12576
[optimizer]
algorithm = adamw
lr = 0.0003
[output]
dir = {hosts.dir}/out
log_every = 1000000
advice = no
""")


def make_device(args, hosts):
    """Its speed: what one rank takes for a step by itself, against what is asked for."""
    plugin = hosts.dir / "device_paced.so"
    subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{SRC}/core/include",
                    f'-DREAL_DEVICE="{BUILD}/.libs/device_cpu.so"', "-o", str(plugin), str(SRC / "tests/bench/hosts/paced_device.c")], check=True)
    plugin.chmod(0o755)
    flops = 6 * TOKENS * PARAMETERS / args.emulate
    together(hosts, [(None, [ENGINE, "-c", emulated_ini(args, hosts), "--nproc", 1, "--set", "train.max_steps=3"])], env={"DEVICE_FLOPS": f"{flops}"})
    took = statistics.median(r["step_ms"] for r in steps_of(hosts.dir / "out")) / 1e3
    args.env = {"DEVICE_FLOPS": f"{flops * took / args.emulate}"}


def slower(rate):
    number, unit = re.fullmatch(r"([\d.]+)(\w+)", rate).groups()
    return f"{float(number) / PARTS:g}{unit}" if float(number) >= PARTS else f"{float(number) * slow_link.UNITS[unit] / 1e3 / PARTS:g}kbit"


# ---- runs ----------------------------------------------------------------------------------------------------------------
def engine(args, hosts, order):
    out = hosts.dir / "out"
    shutil.rmtree(out, ignore_errors=True)
    keys = {"group.backend": "gloo-tcp", "group.init_method": f"tcp://{HOST0}:{PORT}", "group.world_size": 2, "group.interface": DEVICE,
            "group.auth": "none", "ddp.wire_order": order}
    if args.emulate is None:
        keys["train.batch_size"] = args.batch
    ini = slow_link.node_ini(args, hosts) if args.emulate is None else emulated_ini(args, hosts)
    common = [ENGINE, "-c", ini, *settings(keys)]
    together(hosts, [(where, [*common, "--set", f"group.rank={r}"]) for r, where in enumerate(hosts.names)], env=args.env)
    rows = steps_of(out)[args.warmup:]
    args.hashes.add(json.loads((out / "summary.json").read_text())["parameter_sha256"])
    # over all of them: a step of forward ends when the next one has begun
    return {"ms": statistics.mean(r["step_ms"] for r in rows), "exposed": statistics.mean(r["wait_ms"] for r in rows)}


def one_round(args, hosts, table, pythons):
    for order in ORDERS:
        table.add(order, engine, args, hosts, order)
    for name, python in pythons.items():
        for flag in slow_link.WAYS:
            table.add(f"{name}{flag.replace('--', ', ')}", slow_link.torch, args, hosts, python, 2, *flag.split())
    if not args.no_single:
        table.add("one rank", slow_link.alone, args, hosts)


def show(args, table):
    for name in filter(table.has, table.rows):
        row = table.rows[name]
        waits = f", of which {table.median(name, 'exposed'):.1f} ms wait" if "exposed" in row else ""
        print(f"  {name:28s} {table.median(name):8.1f} ms/step ({min(row['ms']):.1f} to {max(row['ms']):.1f}){waits}", flush=True)
    if not all(map(table.has, ORDERS)):
        return
    ratios = [a / b for a, b in zip(*(table.rows[o]["ms"] for o in ORDERS), strict=True)]
    print(f"  fifo / forward, by round: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"  parameters at the end: {'the same bits in all runs' if len(args.hashes) == 1 else 'DIFFERENT BITS'}", flush=True)
    torch = slow_link.fastest(table, "PyTorch")
    if torch:
        print(f"  {torch} / forward: {table.median(torch) / table.median('forward'):.3f}", flush=True)


def speed(args, hosts):
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise Skip(f"no {program} (iproute2)")
    hosts.setup()
    pythons, args.env, bad = {} if args.no_torch else slow_link.torches(args), None, False
    if args.emulate is not None:
        make_device(args, hosts)
    count = slow_link.parameters(args, hosts) if args.emulate is None else PARAMETERS
    for rate in args.rate if args.emulate is None else map(slower, args.rate):
        shape(hosts, rate)
        table, args.hashes = Table(), set()
        what = NAMES[args.model] if args.emulate is None else f"a quarter of gpt2, EMULATED: forward and backward take {args.emulate:g} s"
        print(f"{rate}: {what}, {count:,} parameters, 2 hosts x 1 rank x 1 thread, {args.rounds} rounds of {args.steps} steps; "
              f"gradients in f32 at this rate: {count * 32e3 / slow_link.rate_of(rate):.1f} ms; load {os.getloadavg()[0]:.1f}", flush=True)
        for _ in range(args.rounds):
            one_round(args, hosts, table, pythons)
            print("  round: " + ", ".join(f"{name} {row['ms'][-1]:.1f} ms" for name, row in table.rows.items() if row), flush=True)
        show(args, table)
        bad |= len(args.hashes) != 1 or not all(map(table.has, ORDERS))
    return int(bad)


def main():
    args = arguments()
    return on_hosts("wire_order", lambda hosts: speed(args, hosts))


if __name__ == "__main__":
    sys.exit(main())
