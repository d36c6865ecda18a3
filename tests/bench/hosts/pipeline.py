#!/usr/bin/env python3
"""A llama of SmolLM2-135M's shape, with an output layer of its own, on two hosts and on one: [train] parallel = pipeline over
gloo-tcp, parallel = ddp, PyTorch DDP, and two stages of torch.distributed.pipelining; all ways in turn in every round of one run:

    tests/bench/hosts/pipeline.py [--rate 1gbit --rate 100mbit] [--rounds 3] [--steps 3] [--micros 8] [--batch 1] [--context 256]
                                  [--python VENV/bin/python] [--small]

The hosts are network namespaces with one rank of one thread each; tc shapes the link at both ends. The Python has a newer PyTorch
and transformers; without it PyTorch's side is left out. Every way makes an update of the same global batch, which is --micros times
--batch sequences, by AdamW. Of each it prints the median step over the rounds and the range, how many times as fast as one host
of ours, and the largest memory (PSS) of each rank after the first step, over one host's. A way that does not end is
said, after --patience seconds, and not tried again. Needs root and iproute2; without them it says so and exits with 77. Nothing here
decides a test."""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2] / "integration")]
from harness import ENGINE, SRC, Skip  # noqa: E402
from slow_link import DEVICE, HOST0, settings, shape, steps_of  # noqa: E402
from test_network import PORT, Network  # noqa: E402

SHAPES = {False: {"vocabulary": 49152, "width": 576, "intermediate": 1536, "layers": 30, "heads": 9, "kv_heads": 3},
          True: {"vocabulary": 2048, "width": 192, "intermediate": 512, "layers": 8, "heads": 3, "kv_heads": 3}}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", action="append", help="tc's spelling; may be repeated; 1gbit and 100mbit without it")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=3, help="that count, of a run")
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--micros", type=int, default=8)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--context", type=int, default=256)
    p.add_argument("--python", help="with PyTorch and transformers")
    p.add_argument("--small", action="store_true", help="a small model, to try this out")
    p.add_argument("--ways", help="separated by commas; all without it")
    p.add_argument("--patience", type=int, default=600)
    args = p.parse_args()
    args.rate = args.rate or ["1gbit", "100mbit"]
    args.shape = SHAPES[args.small]
    return args


# ---- what runs -----------------------------------------------------------------------------------------------------------
def pss_of(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss: +(\d+)", text, re.M)
    return int(found[1]) * 1024 if found else 0


def together(args, hosts, commands, trains=lambda: True):
    """Runs them to their end; the outputs, and the largest PSS of each while `trains`."""
    ranks, largest = [], [0] * len(commands)
    for i, (where, command) in enumerate(commands):
        log = (hosts.dir / f"rank{i}.log").open("w+")
        # one thread a rank: a processor each, where there are enough
        p = subprocess.Popen(["ip", "netns", "exec", where, *map(str, command)], stdout=log, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, cwd=hosts.dir, env={**os.environ, **args.env})
        p.log = log
        ranks.append(p)
        hosts.started.append(p)
    until = time.monotonic() + args.patience
    while any(p.poll() is None for p in ranks) and not any(p.returncode for p in ranks) and time.monotonic() < until:
        if trains():
            largest = [max(m, pss_of(p.pid)) for m, p in zip(largest, ranks, strict=True)]
        time.sleep(0.1)
    late = time.monotonic() >= until
    for p in ranks:
        if p.poll() is None and (late or any(q.returncode for q in ranks)):
            p.kill()
        p.wait()
        p.log.seek(0)
    texts = [p.log.read() for p in ranks]
    hosts.started.clear()
    if late:
        raise RuntimeError(f"not done within {args.patience} s")
    if any(p.returncode for p in ranks):
        raise RuntimeError(f"exit {[p.returncode for p in ranks]}: " + " | ".join(t.strip().splitlines()[-1][:300] for t in texts if t.strip()))
    return texts, largest


def engine_ini(args, hosts):
    model = "".join(f"{k} = {v}\n" for k, v in args.shape.items())
    text = hosts.dir / "text"
    if not text.exists():
        text.write_bytes(b"".join(p.read_bytes() for p in sorted(pathlib.Path("/usr/share/common-licenses").glob("*GPL-*"))))
    return hosts.ini("x.ini", text=f"[train]\nthreads = 1\nbatch_size = {args.batch}\nmax_steps = {args.warmup + args.steps}\nepochs = 1000\n"
                     f"[model]\nplugin = llama\n[model.llama]\ntied = no\n{model}[data]\nplugin = tokens\n[data.tokens]\nfiles = {text}\n"
                     f"context = {args.context}\n[optimizer]\nalgorithm = adamw\nlr = 0.0001\n[output]\ndir = out\nlog_every = 1000000\n")


def engine(args, hosts, ranks, way):
    out = hosts.dir / "out"
    shutil.rmtree(out, ignore_errors=True)
    more = {"train.accumulate": args.micros // (2 if way == "ddp" and ranks == 2 else 1), "train.parallel": way}
    if way == "pipeline":
        more["train.stages"] = 2
    if ranks == 2:
        more |= {"group.backend": "gloo-tcp", "group.init_method": f"tcp://{HOST0}:{PORT}", "group.world_size": 2, "group.interface": DEVICE,
                 "group.auth": "none"}
    common = [ENGINE, "-c", engine_ini(args, hosts), *settings(more)]
    texts, largest = together(args, hosts, [(hosts.names[r], [*common, *settings({"group.rank": r})]) for r in range(ranks)],
                              trains=lambda: (out / "metrics.jsonl").exists() and len(steps_of(out)) >= args.warmup)
    rows = steps_of(out)[args.warmup:]
    placed = [line for line in texts[0].splitlines() if "place = auto" in line]
    if placed and not args.told:
        args.told = True
        print(placed[0], flush=True)
    return {"ms": statistics.median(r["step_ms"] for r in rows), "wait": statistics.median(r["wait_ms"] for r in rows), "pss": largest}


def torch(args, hosts, ranks, way):
    script = SRC / "tests/bench/hosts/torch_llama.py"
    flags = [x for k, v in args.shape.items() for x in (f"--{k}", v)]
    common = [args.python, script, "--way", way, "--address", HOST0, "--port", PORT, "--steps", args.steps, "--warmup", args.warmup, "--micros",
              args.micros, "--batch", args.batch, "--context", args.context, "--timeout", args.patience, *flags]
    texts, _ = together(args, hosts, [(hosts.names[r], [*common, "--rank", r]) for r in range(ranks)])
    rows = [json.loads(next(x for x in t.splitlines() if x.startswith("{"))) for t in texts]
    return {"ms": max(r["median_step_ms"] for r in rows), "pss": [r["pss"] for r in rows]}


WAYS = {"one host": (engine, 1, "ddp"), "pipeline": (engine, 2, "pipeline"), "ddp": (engine, 2, "ddp"), "PyTorch one host": (torch, 1, "one"),
        "PyTorch pipelining": (torch, 2, "pipeline"), "PyTorch DDP": (torch, 2, "ddp")}


# ---- a rate --------------------------------------------------------------------------------------------------------------
def measure(args, hosts, rate):
    rows, failed = {}, {}
    for _ in range(args.rounds):
        for name, (run, ranks, way) in WAYS.items():
            if name in failed or (run is torch and args.python is None) or (args.ways and name not in args.ways.split(",")):
                continue
            try:
                got = run(args, hosts, ranks, way)
                rows.setdefault(name, []).append(got)
            except RuntimeError as e:
                failed[name] = str(e)
    one = rows.get("one host")
    print(f"{rate}: {args.micros} micro-batches of {args.batch} x {args.context} tokens, {args.rounds} rounds", flush=True)
    for name, got in rows.items():
        ms = [g["ms"] for g in got]
        text = f"  {name:20s} {statistics.median(ms):9.0f} ms ({min(ms):.0f} to {max(ms):.0f})"
        if one:
            ratios = [a["ms"] / b["ms"] for a, b in zip(one, got, strict=False)]
            text += f"  {statistics.median(ratios):5.2f} x one host ({min(ratios):.2f} to {max(ratios):.2f})"
            base = max(max(g["pss"]) for g in one)
            text += "  PSS " + ", ".join(f"{max(g['pss'][r] for g in got) / 2**20:.0f} MiB ({max(g['pss'][r] for g in got) / base:.2f})"
                                         for r in range(len(got[0]["pss"])))
        print(text, flush=True)
    for name, why in failed.items():
        print(f"  {name:20s} failed: {why}", flush=True)


def main():
    args = arguments()
    args.told, args.env = False, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICE}
    hosts = Network()
    try:
        for program in ("ip", "tc"):
            if shutil.which(program) is None:
                raise Skip(f"no {program} (iproute2)")
        hosts.setup()
        for rate in args.rate:
            shape(hosts, rate)
            measure(args, hosts, rate)
    except Skip as e:
        print(f"skipped: {e}")
        sys.exit(77)
    finally:
        hosts.close()


if __name__ == "__main__":
    main()
