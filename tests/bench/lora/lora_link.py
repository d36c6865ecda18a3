#!/usr/bin/env python3
"""LoRA on two hosts with a slow network between them, against one host, in turn: tokens a second.

    DDP_BUILDDIR=... python3 tests/bench/lora/lora_link.py [--rate 1gbit] [--rounds 3] [--layers 30] [--precision f32]

SmolLM2-135M's shape, rank 8 on all linear layers, AdamW, one sequence of 512 tokens a micro-batch and 4 of them a step, one
thread a rank. The hosts are slow_link.py's: network namespaces with a link that tc shapes, one rank each, over gloo-tcp. One
host is one rank alone. Printed are the medians over the rounds, their range, and the ratio by round; what of a step waits, and
the bytes that a host sends in a step. Needs root and iproute2; without them it says so and exits with 77."""
import argparse
import pathlib
import shutil
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import lora_steps  # noqa: E402
from slow_link import DEVICE, ENGINE, HOST0, PORT, Network, Skip, sent, settings, shape, steps_of, together  # noqa: E402

WARMUP = 1


def ini(a, hosts):
    text = hosts.dir / "text.txt"
    text.write_text("".join(chr(97 + i * i % 26) for i in range(200000)))
    sizes = "\n".join(f"{k} = {v}" for k, v in {**lora_steps.SHAPE, "layers": a.layers}.items())
    body = lora_steps.INI.format(steps=WARMUP + a.steps, batch=1, precision=a.precision, shape=sizes, text=text, context=512,
                                 folder=hosts.dir / "out")
    return hosts.ini("node.ini", text=body.replace("batch_size = 1\n", "batch_size = 1\naccumulate = 4\n").replace("[group]\nbackend = auto\n", ""))


def rate(a, hosts, ranks):
    """Tokens a second, ms that a step waits, bytes that the second host sends in a step."""
    out, before = hosts.dir / "out", sent(hosts)
    shutil.rmtree(out, ignore_errors=True)
    if ranks == 1:
        together(hosts, [(None, [ENGINE, "-c", ini(a, hosts), "--nproc", 1])])
    else:
        group = {"backend": "gloo-tcp", "init_method": f"tcp://{HOST0}:{PORT}", "world_size": 2, "interface": DEVICE, "auth": "none"}
        common = [ENGINE, "-c", ini(a, hosts), *settings({f"group.{k}": v for k, v in group.items()})]
        together(hosts, [(where, [*common, *settings({"group.rank": r})]) for r, where in enumerate(hosts.names)])
    rows = steps_of(out)[WARMUP:]
    return (statistics.median(r["samples_per_s"] for r in rows) * 512, statistics.median(r["wait_ms"] for r in rows),
            (sent(hosts) - before) / (a.steps + WARMUP))


def line(name, runs):
    rates = [r[0] for r in runs]
    print(f"  {name:<10} {statistics.median(rates):9.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f})   waits {statistics.median(r[1] for r in runs):7.1f} ms a step"
          f"   sends {statistics.median(r[2] for r in runs) / 1e6:6.2f} MB a step", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", default="1gbit", help="tc's spelling")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--layers", type=int, default=lora_steps.SHAPE["layers"])
    p.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    a = p.parse_args()
    hosts = Network()
    try:
        if any(shutil.which(program) is None for program in ("ip", "tc")):
            raise Skip("no ip or no tc (iproute2)")
        hosts.setup()
        shape(hosts, a.rate)
        one, two = [], []
        for r in range(a.rounds):
            one.append(rate(a, hosts, 1))
            two.append(rate(a, hosts, 2))
            print(f"  round {r + 1}: {two[-1][0] / one[-1][0]:.3f}x", flush=True)
        print(f"LoRA rank 8, {a.layers} layers of SmolLM2-135M, {a.precision}, accumulate 4, {a.rate}")
        line("one host", one)
        line("two hosts", two)
    except Skip as why:
        print(f"lora_link: 1 skipped: {why}")
        return 77
    finally:
        hosts.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
