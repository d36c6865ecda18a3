#!/usr/bin/env python3
"""A training step of Darknet, Debian's package of that name, against ours of the same net, alternating in one run: cifar.cfg and
conf/nets/darknet-cifar.net, alexnet.cfg and conf/nets/darknet-alexnet.net.

    tests/bench/darknet.py [--rounds 3] [--steps 3] [--batch 4] [--nets cifar,alexnet]     (DDP_BUILDDIR names the build)

Darknet's side is train_network_datum of its own library on random images that are in memory: forward, backward, update, and no
reading of files. Debian builds it for the CPU, without OpenMP and for any amd64, so that it has one thread; ours is measured with one
and with all processors. Parameters are those of both programs' count. Prints the minimum and the median of each side over all rounds
and the spread (largest less smallest, in % of the median). Exit code 77 where Darknet or a compiler is not there."""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

SRC = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", SRC))
LIB, CFG = pathlib.Path("/usr/lib/darknet"), pathlib.Path("/usr/share/darknet/cfg")
WARMUP = 2
NETS = {"cifar": ("3, 28, 28", 10), "alexnet": ("3, 227, 227", 1000)}

PROGRAM = r"""
#include <darknet.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    network *net = parse_network_cfg(argv[1]);
    long parameters = 0;

    for (int i = 0; i < net->n; i++)
        parameters += net->layers[i].nweights + net->layers[i].nbiases +
                      (net->layers[i].type == CONNECTED ? (long)net->layers[i].inputs * net->layers[i].outputs + net->layers[i].outputs
                                                        : 0) +
                      (net->layers[i].batch_normalize ? net->layers[i].n : 0);
    fprintf(stdout, "parameters %ld\n", parameters);
    for (int step = 0; step < atoi(argv[2]); step++) {
        double from;
        for (int i = 0; i < net->inputs * net->batch; i++) net->input[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        for (int i = 0; i < net->truths * net->batch; i++) net->truth[i] = 0.0f;
        for (int i = 0; i < net->batch; i++) net->truth[i * net->truths + rand() % net->truths] = 1.0f;
        from = now();
        float loss = train_network_datum(net);
        fprintf(stdout, "step %.6f loss %g\n", now() - from, (double)loss);
        fflush(stdout);
    }
    return argc == 3 ? 0 : 1;
}
"""


def build(work):
    (work / "step.c").write_text(PROGRAM)
    command = [os.environ.get("CC", "cc"), "-O2", "-o", str(work / "step"), str(work / "step.c"), f"-I{LIB}/include", f"-L{LIB}",
               "-ldarknet", f"-Wl,-rpath,{LIB}"]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True)


def darknet(work, name, batch, steps):
    text = (CFG / f"{name}.cfg").read_text()
    for key, value in (("batch", batch), ("subdivisions", 1), ("learning_rate", 0.001)):
        text = re.sub(rf"(?m)^{key} *=.*$", f"{key}={value}", text, count=1)
    (work / "x.cfg").write_text(text)
    out = subprocess.run([str(work / "step"), str(work / "x.cfg"), str(steps + WARMUP)], check=True, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True).stdout
    return [float(v) for v in re.findall(r"step (\S+)", out)][WARMUP:], int(re.search(r"parameters (\d+)", out)[1])


def ours(work, name, batch, steps, threads):
    shape, classes = NETS[name]
    (work / "x.ini").write_text(
        f"[train]\nthreads = {threads}\nbatch_size = {batch}\nepochs = 100000\nmax_steps = {steps + WARMUP}\n"
        f"[model]\nplugin = layers\n[model.layers]\nnet = {SRC}/conf/nets/darknet-{name}.net\n"
        f"[data]\nplugin = synthetic\n[data.synthetic]\nshape = {shape}\nsamples = {batch * 8}\nclasses = {classes}\n"
        f"[optimizer]\nlr = 0.001\nmomentum = 0.9\nweight_decay = 0.0005\n"
        f"[output]\ndir = {work}/out\nlog_every = 1000000\n")
    shutil.rmtree(work / "out", ignore_errors=True)
    subprocess.run([str(BUILD / "ddpengine"), "-c", str(work / "x.ini")], check=True, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (work / "out/metrics.jsonl").read_text().splitlines()]
    return ([r["step_ms"] for r in rows if r["event"] == "step"][WARMUP:],
            json.loads((work / "out/summary.json").read_text())["parameters"])


def compare(work, args, name):
    cores = len(os.sched_getaffinity(0))
    times = {"Darknet": [], "ours, 1 thread": [], f"ours, {cores} threads": []}
    for _ in range(args.rounds):
        t, there = darknet(work, name, args.batch, args.steps)
        times["Darknet"] += t
        for threads in (1, cores):
            t, here = ours(work, name, args.batch, args.steps * 4, threads)
            times[f"ours, {threads} thread" + ("s" if threads > 1 else "")] += t
    print(f"{name}.cfg, batch {args.batch}, {there} parameters there and {here} here, f32, {args.rounds} rounds")
    base = times["Darknet"]
    for side, t in times.items():
        middle = statistics.median(t)
        print(f"  {side:18s} minimum {min(t):9.2f} ms   median {middle:9.2f} ms   spread {100 * (max(t) - min(t)) / middle:4.0f} %   "
              f"Darknet / this: {statistics.median(base) / middle:6.1f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--nets", default="cifar,alexnet")
    args = p.parse_args()
    if not (LIB / "libdarknet.so").exists() or not CFG.is_dir() or shutil.which(os.environ.get("CC", "cc")) is None:
        print("skipped: it needs Debian's package darknet and a C compiler")
        return 77
    work = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-bench-"))
    try:
        made = build(work)
        if made.returncode != 0:
            print(f"Darknet's side does not build: {made.stderr}")
            return 1
        for name in args.nets.split(","):
            compare(work, args, name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
