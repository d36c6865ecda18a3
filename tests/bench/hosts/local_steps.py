#!/usr/bin/env python3
"""[ddp] local_steps against plain DDP and one host, on two hosts on a slow network; and what it costs in loss:

    python3 tests/bench/hosts/local_steps.py [--rate 100mbit] [--rounds 3] [--local-steps 50] [--batch 4] [--text FILE] [--no-speed]
                                       [--no-quality] [--steps 1000] [--seeds 3] [--quality-batch 2] [--ways diloco,average]
                                       [--layers 4] [--width 256] [--context 256] [--lr 0.0006]

The model is a GPT of bytes (4 layers of width 256, 256 bytes of context, without the sizes), the text King James's Bible (Debian: bible-kjv;
--text names another), the last twentieth held out. Speed: hosts are network namespaces with one rank of one thread each, on a link
that tc shapes at both ends. One host, plain DDP on two, and local steps on two run in turn in every round; a run of local steps is two
rounds of H steps, of which the second counts, with its outer step. Prints the medians over the rounds and their range of a step, samples/s
against one host, and the bytes that a host sends in a step. Quality: on this host, two ranks over shm, the same samples in the
same order by plain DDP and by local steps, all in turn for each seed: the validation loss at the end and its difference. Speed
needs root and iproute2; without it says so and exits with 77. Nothing here decides a test."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import slow_link  # noqa: E402
from slow_link import DEVICE, ENGINE, HOST0, PORT, Skip, Table, on_hosts, sent, settings, shape, steps_of, together  # noqa: E402

PLAIN_STEPS, WARMUP = 6, 2
WAYS = {"diloco": {}, "average": {"ddp.outer_momentum": 0}, "half": {"ddp.outer_momentum": 0.5}}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", default="100mbit", help="tc's spelling (default %(default)s)")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--local-steps", type=int, default=50, metavar="H")
    p.add_argument("--batch", type=int, default=4, help="sequences a rank, of the speed (default %(default)s)")
    p.add_argument("--quality-batch", type=int, default=2, help="the same of the quality (default %(default)s)")
    p.add_argument("--steps", type=int, default=1000, help="of the quality (default %(default)s)")
    p.add_argument("--lr", type=float, default=6e-4, help="of AdamW, with a warm-up and a cosine (default %(default)s)")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--width", type=int, default=256, help="32 a head (default %(default)s)")
    p.add_argument("--context", type=int, default=256)
    p.add_argument("--ways", default="diloco,average", help=f"of local steps, of the quality: {', '.join(WAYS)} (default %(default)s)")
    p.add_argument("--text", help="without it the King James text of command bible")
    p.add_argument("--no-speed", action="store_true")
    p.add_argument("--no-quality", action="store_true")
    args = p.parse_args()
    args.text = os.path.abspath(args.text) if args.text else None
    return args


def text_of(args, work):
    if args.text is None:
        args.text = work / "kjv.txt"
        for program in ("bible", "/usr/games/bible"):
            if shutil.which(program):
                args.text.write_bytes(subprocess.run([program, "-f", "gen1:1-rev22:21"], capture_output=True, check=True).stdout)
                return
        raise Skip("no command bible; apt-get install bible-kjv, or name a text with --text")


def ini(args, hosts, batch, steps, schedule=""):
    data = f"plugin = tokens\n[{{0}}.tokens]\nfiles = {args.text}\ncontext = {args.context}\n"
    return hosts.ini("node.ini", text=f"[train]\nthreads = 1\nbatch_size = {batch}\nmax_steps = {steps}\nepochs = 1000\neval_every = 0\n"
                     f"[model]\nplugin = gpt2\n[model.gpt2]\npreset = bytes\nlayers = {args.layers}\nheads = {args.width // 32}\n"
                     f"width = {args.width}\nvocabulary = 256\n[data]\n{data.format('data')}to = 0.95\n[eval]\n{data.format('eval')}from = 0.95\n"
                     f"[optimizer]\nalgorithm = adamw\nlr = {args.lr}\nbetas = 0.9, 0.95\nweight_decay = 0.1\n{schedule}"
                     f"[output]\ndir = {hosts.dir}/out\nlog_every = 1000000\nadvice = no\n")


# ---- speed ---------------------------------------------------------------------------------------------------------------
def one_host(args, hosts):
    shutil.rmtree(hosts.dir / "out", ignore_errors=True)
    together(hosts, [(hosts.a, [ENGINE, "-c", ini(args, hosts, args.batch, WARMUP + PLAIN_STEPS), "--nproc", 1, "--set", "eval.plugin="])])
    return {"ms": statistics.mean(r["step_ms"] for r in steps_of(hosts.dir / "out")[WARMUP:])}


def two_hosts(args, hosts, keys, warmup, steps):
    shutil.rmtree(hosts.dir / "out", ignore_errors=True)
    keys = {"group.backend": "gloo-tcp", "group.init_method": f"tcp://{HOST0}:{PORT}", "group.world_size": 2, "group.interface": DEVICE,
            "group.auth": "none", "eval.plugin": "", **keys}
    common, before = [ENGINE, "-c", ini(args, hosts, args.batch, warmup + steps), *settings(keys)], sent(hosts)
    together(hosts, [(where, [*common, "--set", f"group.rank={r}"]) for r, where in enumerate(hosts.names)])
    rows = steps_of(hosts.dir / "out")[warmup:]
    return {"ms": statistics.mean(r["step_ms"] for r in rows), "exposed": statistics.mean(r["wait_ms"] for r in rows),
            "bytes": (sent(hosts) - before) / (warmup + steps)}


def show_speed(args, table):
    one = table.median("one host")
    for name in filter(table.has, table.rows):
        row, ms = table.rows[name], table.median(name)
        more = ""
        if name != "one host":
            gains = [2 * a / b for a, b in zip(table.rows["one host"]["ms"], row["ms"], strict=True)]
            more = (f", {2 * one / ms:.3f} times one host's samples/s (by round {min(gains):.3f} to {max(gains):.3f}), "
                    f"{table.median(name, 'exposed'):.1f} ms of it wait, {table.median(name, 'bytes') / 1e6:.3f} MB sent a step")
        print(f"  {name:24s} {ms:8.1f} ms/step ({min(row['ms']):.1f} to {max(row['ms']):.1f}){more}", flush=True)


def speed(args, hosts):
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise Skip(f"no {program} (iproute2)")
    hosts.setup()
    text_of(args, hosts.dir)
    shape(hosts, args.rate)
    table, h = Table(), args.local_steps
    print(f"{args.rate}: GPT {args.layers} x {args.width}, {args.batch} x {args.context} bytes a rank, H = {h}, {args.rounds} rounds; load {os.getloadavg()[0]:.1f}", flush=True)
    for _ in range(args.rounds):
        table.add("one host", one_host, args, hosts)
        table.add("two hosts, ddp", two_hosts, args, hosts, {}, WARMUP, PLAIN_STEPS)
        table.add("two hosts, local steps", two_hosts, args, hosts, {"ddp.local_steps": h}, h, h)
    show_speed(args, table)
    return int(not all(map(table.has, table.rows)))


# ---- quality -------------------------------------------------------------------------------------------------------------
def trained(args, hosts, seed, keys):
    shutil.rmtree(hosts.dir / "out", ignore_errors=True)
    schedule = f"schedule = cosine\nwarmup_steps = {args.steps // 20}\n"
    keys = {"group.backend": "shm", "train.seed": seed, **keys}
    together(hosts, [(None, [ENGINE, "-c", ini(args, hosts, args.quality_batch, args.steps, schedule), "--nproc", 2, *settings(keys)])])
    return json.loads((hosts.dir / "out/summary.json").read_text())["eval_loss"]


def quality(args, hosts):
    text_of(args, hosts.dir)
    found = {}
    print(f"GPT {args.layers} x {args.width}: validation loss after {args.steps} steps of 2 x {args.quality_batch} x {args.context} bytes, H = {args.local_steps}, {args.seeds} seeds", flush=True)
    for seed in range(args.seeds):
        plain = trained(args, hosts, seed, {})
        print(f"  seed {seed}: ddp {plain:.4f}", end="", flush=True)
        for way in args.ways.split(","):
            loss = trained(args, hosts, seed, {"ddp.local_steps": args.local_steps, **WAYS[way]})
            found.setdefault(way, []).append((loss, plain))
            print(f", {way} {loss:.4f} ({100 * (loss / plain - 1):+.2f} %)", end="", flush=True)
        print(flush=True)
    for way, pairs in found.items():
        mean, plain = (statistics.mean(x) for x in zip(*pairs, strict=True))
        print(f"  {way}: {mean:.4f} against {plain:.4f}, {100 * (mean / plain - 1):+.2f} % of the means", flush=True)
    return 0


def measure(args, hosts):
    bad = 0 if args.no_speed else speed(args, hosts)
    return bad if args.no_quality else quality(args, hosts) or bad


def main():
    args = arguments()
    return on_hosts("local_steps", lambda hosts: measure(args, hosts))


if __name__ == "__main__":
    sys.exit(main())
