#!/usr/bin/env python3
"""How near `ddpengine advise` comes: predicted steps beside those of real runs, for several numbers of hosts and links.

    DDP_SRCDIR=.. DDP_BUILDDIR=. python3 ../tests/bench/hosts/advice.py [--world 2 --world 4] [--rate none --rate 100mbit] [--rounds 3]
                                                                 [--batch 64] [--remedies]

A host is a network namespace with one rank of one thread; all are at one bridge, and tc shapes what each sends and gets with tbf.
Every round makes an advice and a run of its own after it, of the same net over gloo-tcp, for each world and rate in turn. Prints the
median of both and how far the prediction is off; then, for the step that one rank takes alone, its prediction beside a real run.
--remedies runs each of advise's remedies that can be set, at the first rate and world, and prints gain beside gain.
Needs root and iproute2; without them it says so and exits with 77. All hosts share this machine's processors: with more of them than
there are processors they compute in turn, which advise measures as well. Nothing here decides a test."""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integration"))
from harness import ENGINE, Skip  # noqa: E402

PORT = 29571
WORLDS, RATES = [2, 4, 8], ["none", "1gbit", "500mbit", "200mbit", "100mbit"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--world", type=int, action="append", help="hosts; may be repeated; 2, 4 and 8 without it")
    p.add_argument("--rate", action="append", help="tc's spelling, or none: as fast as this machine; may be repeated")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--steps", type=int, default=8, help="that count, of an advice and of a run")
    p.add_argument("--batch", type=int, default=64, help="of a rank")
    p.add_argument("--hidden", default="512, 512", help="of the net")
    p.add_argument("--overlap", default="auto")
    p.add_argument("--set", action="append", default=[], help="of both; may be repeated")
    p.add_argument("--remedies", action="store_true")
    args = p.parse_args()
    args.world, args.rate = args.world or WORLDS, args.rate or RATES
    return args


def ip(*command, check=True):
    return subprocess.run(["ip", *command], capture_output=True, text=True, check=check)


class Hosts:
    """Namespaces at a bridge, which is in one of its own."""

    def __init__(self, count):
        self.base, self.dir = f"adv{os.getpid()}", pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-advice-"))
        self.names = [f"{self.base}-{i}" for i in range(count)]
        self.bridge, self.started = f"{self.base}-br", []
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
            raise Skip("needs root and iproute2")
        for name in (self.bridge, *self.names):
            if ip("netns", "add", name, check=False).returncode != 0:
                self.close()
                raise Skip("no network namespaces here")
        if ip("-n", self.bridge, "link", "add", "name", "sw0", "type", "bridge", check=False).returncode != 0:
            self.close()
            raise Skip("no bridge here")
        ip("-n", self.bridge, "link", "set", "dev", "sw0", "up")
        for i, name in enumerate(self.names):
            ip("-n", self.bridge, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.bridge, "link", "set", "dev", f"p{i}", "master", "sw0", "up")
            ip("-n", name, "addr", "add", f"10.79.0.{i + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")

    def shape(self, rate):
        for i, name in enumerate(self.names):
            for where, device in ((name, "eth0"), (self.bridge, f"p{i}")):
                tc = ["ip", "netns", "exec", where, "tc", "qdisc"]
                subprocess.run([*tc, "del", "dev", device, "root"], capture_output=True, check=False)
                if rate != "none":
                    subprocess.run([*tc, "add", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"], check=True)

    def close(self):
        for p in self.started:
            if p.poll() is None:
                p.kill()
                p.wait()
        for name in (*self.names, self.bridge):
            ip("netns", "del", name, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def together(self, world, command):
        """What rank 0 prints on standard output; `command` of a rank."""
        self.started = []
        for r in range(world):
            log = open(self.dir / f"log{r}", "w")  # noqa: SIM115 -- the process has it
            self.started.append(subprocess.Popen(["ip", "netns", "exec", self.names[r], *map(str, command(r))], stdin=subprocess.DEVNULL,
                                                 stdout=subprocess.PIPE if r == 0 else log, stderr=log, text=True, cwd=self.dir))
        out = self.started[0].communicate()[0]
        codes = [p.wait() for p in self.started]
        if any(codes):
            raise RuntimeError(f"exit {codes}\n" + "".join((self.dir / f"log{r}").read_text()[-600:] for r in range(world)))
        return out


def settings(args, world, rank, **more):
    keys = {"group.backend": "gloo-tcp", "group.init_method": f"tcp://10.79.0.1:{PORT}", "group.world_size": world, "group.rank": rank,
            "group.auth": "none", "group.interface": "eth0", **more}
    if world == 1:
        keys = {k: v for k, v in keys.items() if not k.startswith("group.")}
    return [w for k, v in keys.items() for w in ("--set", f"{k}={v}")] + [w for s in args.set for w in ("--set", s)]


def ini(args, hosts):
    path = hosts.dir / "net.ini"
    path.write_text(f"[train]\nthreads = 1\nbatch_size = {args.batch}\nepochs = 100000\n[model]\nplugin = mlp\n[model.mlp]\nhidden = {args.hidden}\nclasses = 10\n"
                    f"input = input\n[data]\nplugin = synthetic\n[data.synthetic]\nsamples = 20000\nshape = 784\nclasses = 10\n[optimizer]\nalgorithm = sgd\nlr = 0.01\n"
                    f"[ddp]\noverlap = {args.overlap}\nbucket_size = 1MiB\nfirst_bucket_size = 256KiB\n")
    return path


def advise(args, hosts, world):
    path = ini(args, hosts)
    return json.loads(hosts.together(world, lambda r: [ENGINE, "advise", "-c", path, "--json", "--steps", args.steps + 2, *settings(args, world, r)]))


def run(args, hosts, world, *sets):
    """Median step of a run, in s."""
    path, out = ini(args, hosts), hosts.dir / "out"
    shutil.rmtree(out, ignore_errors=True)
    more = {"train.max_steps": args.steps + 3, "output.log_every": 1000000, "output.advice": "no"}
    hosts.together(world, lambda r: [ENGINE, "-c", path, *settings(args, world, r, **more, **({"output.dir": out} if r == 0 else {})),
                                     *(w for s in sets for w in ("--set", s))])
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return statistics.median([r["step_ms"] for r in rows if r["event"] == "step"][3:]) / 1e3


def compare(args, hosts):
    print(f"{'link':>8s} {'hosts':>5s} {'predicted ms':>13s} {'measured ms':>12s} {'off %':>7s} {'speed-up':>9s} {'measured':>9s}   MB/s  latency us   probed", flush=True)
    worst = 0.0
    for rate in args.rate:
        hosts.shape(rate)
        for world in args.world:
            rounds = []
            for _ in range(args.rounds):
                a = advise(args, hosts, world)
                rounds.append((a, run(args, hosts, world)))
            predicted, measured = (statistics.median(x) * 1e3 for x in ([a["predicted"]["step_s"] for a, _ in rounds], [m for _, m in rounds]))
            one, link = statistics.median(a["one_rank"]["step_s"] for a, _ in rounds) * 1e3, rounds[0][0]["link"]
            off = 100 * (predicted / measured - 1)
            worst = max(worst, abs(off))
            print(f"{rate:>8s} {world:5d} {predicted:13.2f} {measured:12.2f} {off:+7.1f} {world * one / predicted:8.3f}x {world * one / measured:8.3f}x"
                  f" {link['bytes_per_s'] / 1e6:6.1f} {link['latency_s'] * 1e6:10.0f} {link['bytes'] / 1024:8.0f} KiB", flush=True)
    alone = run(args, hosts, 1) * 1e3
    print(f"one rank alone: {alone:.2f} ms a step, by the last advice {one:.2f} ms ({100 * (one / alone - 1):+.1f} %); the worst prediction is {worst:.1f} % off")


def remedies(args, hosts):
    rate, world = args.rate[0], args.world[0]
    hosts.shape(rate)
    a = advise(args, hosts, world)
    base = statistics.median(run(args, hosts, world) for _ in range(args.rounds))
    print(f"{rate}, {world} hosts: {base * 1e3:.2f} ms a step, predicted {a['predicted']['step_s'] * 1e3:.2f}\n"
          f"{'remedy':30s} {'predicted':>10s} {'measured':>9s} {'off %':>7s}   samples a second against the run as it is", flush=True)
    for r in a["remedies"]:
        if not r["set"] or "NAME" in r["set"] or "+" in r["set"]:
            continue
        samples = 4 if r["set"].startswith("train.accumulate") else 1
        more = ("hook.powersgd.start_step=0",) if r["set"].endswith("powersgd") else ()
        gain = samples * base / statistics.median(run(args, hosts, world, r["set"], *more) for _ in range(args.rounds))
        print(f"{r['set']:30s} {r['gain']:9.2f}x {gain:8.2f}x {100 * (r['gain'] / gain - 1):+7.1f}", flush=True)


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    hosts = None
    try:
        hosts = Hosts(max(args.world))
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, {time.strftime('%H:%M')}", flush=True)
        (remedies if args.remedies else compare)(args, hosts)
        return 0
    except Skip as why:
        print(f"advice: 1 skipped: {why}")
        return 77
    finally:
        if hosts is not None:
            hosts.close()


if __name__ == "__main__":
    sys.exit(main())
