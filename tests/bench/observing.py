#!/usr/bin/env python3
"""What looking at a run costs: the step of the MLP 784-512-512-10, batch 64, over shm, with everything that watches it (ranks.jsonl,
TensorBoard, Prometheus, a live line on a terminal) and without (metrics.jsonl alone), alternating, 2 ranks and 1:

    python3 tests/bench/observing.py [--rounds 9] [--steps 1500]

Prints each side's median_step_ms with its spread over the rounds, and that of the ratio of each round; and what a busy machine
does not change as much: the processor time a step of the threads that watch, ddp-observe and ddp-control, of all ranks. Nothing
here decides a test."""
import argparse
import json
import os
import pathlib
import pty
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

SRC = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))


def read_away(fd):
    """What a terminal would show."""
    try:
        while os.read(fd, 65536):
            pass
    except OSError:
        pass


def on_processor(pids, spent):
    """ns that the threads which watch a run have had a processor for: the last that is seen of each."""
    for task in (t for pid in pids for t in pathlib.Path(f"/proc/{pid}/task").glob("*")):
        try:
            name = (task / "comm").read_text().strip()
            if name in ("ddp-observe", "ddp-control"):
                spent[task] = int((task / "schedstat").read_text().split()[0])
        except (OSError, IndexError):
            continue  # it has just ended


def ranks_of(p):
    try:
        return [p.pid, *map(int, pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split())]
    except OSError:
        return []


def measure(work, ranks, steps, watched):
    """(median_step_ms, ms a step of the threads that watch)"""
    ini, out = work / "x.ini", work / "out"
    more = f"tensorboard = yes\nprometheus = {work}/x.prom\nranks = yes\n" if watched else "ranks = no\nprogress = off\n"
    ini.write_text(f"[train]\nthreads = 1\nbatch_size = 64\nmax_steps = {steps}\nepochs = 1000\n[model]\nplugin = mlp\n"
                   "[model.mlp]\ninput = input\nclasses = 10\nhidden = 512, 512\n[data]\nplugin = synthetic\n"
                   "[data.synthetic]\nsamples = 6400\nshape = 784\nclasses = 10\n[optimizer]\nlr = 0.01\n"
                   f"[output]\ndir = {out}\nlog_every = 1000000\n{more}")
    shutil.rmtree(out, ignore_errors=True)
    master, terminal = pty.openpty()
    reader = threading.Thread(target=read_away, args=(master,))
    reader.start()
    spent = {}
    try:
        p = subprocess.Popen([str(BUILD / "ddpengine"), "-c", str(ini), "--nproc", str(ranks)], stdout=terminal, stderr=terminal)
        while p.poll() is None:
            on_processor(ranks_of(p), spent)
            time.sleep(0.1)
    finally:
        os.close(terminal)
        reader.join()
        os.close(master)
    assert p.returncode == 0 and (out / "ranks.jsonl").exists() == (watched and ranks > 1)
    return json.loads((out / "summary.json").read_text())["median_step_ms"], sum(spent.values()) * 1e-6 / steps


def row(name, values, unit):
    print(f"  {name:26s} median {statistics.median(values):8.4f} {unit}   min {min(values):8.4f}   max {max(values):8.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--steps", type=int, default=1500)
    p.add_argument("--ranks", default="2,1")
    args = p.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-bench-"))
    try:
        for ranks in map(int, args.ranks.split(",")):
            with_it, without = [], []
            for i in range(args.rounds):  # which side is first changes, so that a drift of the machine is on neither
                for watched in ((True, False), (False, True))[i % 2]:
                    (with_it if watched else without).append(measure(work, ranks, args.steps, watched))
            print(f"{ranks} rank{'s' if ranks > 1 else ''}, {args.rounds} rounds of {args.steps} steps")
            row("watched", [s for s, _ in with_it], "ms")
            row("not watched", [s for s, _ in without], "ms")
            row("watched / not watched", [a / b for (a, _), (b, _) in zip(with_it, without)], "  ")
            row("threads, watched", [c for _, c in with_it], "ms")
            row("threads, not watched", [c for _, c in without], "ms")
            row("their share of a step", [100 * (a - b) / s for (_, a), (s, b) in zip(with_it, without)], "% ")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
