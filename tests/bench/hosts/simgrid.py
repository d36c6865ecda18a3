#!/usr/bin/env python3
"""A step of `ddpengine advise` as traces that SimGrid's SMPI replays, beside the formula and beside real runs.

    DDP_SRCDIR=.. DDP_BUILDDIR=. python3 ../tests/bench/hosts/simgrid.py [--rate 100mbit] [--world 2 --world 4] [--ranks 64 --ranks 1024]
                                                                  [--keep FOLDER]

The step is described by what advise measures in network namespaces (advice.py): compute, buckets, link. Each rank is two processes on
its host, as it is two threads: a trainer, which computes and tells the other when a bucket is ready, and a queue, which sends each bucket
as backend gloo-tcp does: the N-th part to each rank, then the sums to all. smpirun -replay computes when all that ends on a cluster whose
links have the measured latency and bandwidth; what it knows and the formula does not is how messages share links (without its 5 % for acknowledgements, which the measured bandwidth has).

--world N is simulated beside a real run of N hosts; --ranks N beside the formula alone. Above 128 ranks a rank's messages are bundled:
it exchanges with 32 partners, as many bytes in all. Every figure says whether it is measured, predicted or simulated. Needs root,
iproute2 and SimGrid (Debian: libsimgrid-dev); without them it says so and exits with 77."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import advice  # noqa: E402
from harness import Skip  # noqa: E402

ALL, PARTNERS, WINDOW, FLOPS = 128, 32, 16, 1e9
REPLAY = next((p for p in map(pathlib.Path, ("/usr/lib/x86_64-linux-gnu/simgrid/smpireplaymain", "/usr/lib/simgrid/smpireplaymain")) if p.exists()), None)


def trainer(work, rank, queue):
    """Computes; sends a byte to its queue for each bucket that is ready, and waits for as many back."""
    yield "init"
    at, lines = 0.0, []

    def compute(seconds):
        if seconds > 0:
            lines.append(f"compute {seconds * FLOPS:.0f}")

    compute(work["before_s"])
    for b, k in enumerate(work["buckets"]):
        ready = k["ready_s"] if b < work["early"] else work["compute_s"]
        compute(max(ready - at, 0))
        at = max(at, ready)
        compute(k["before_s"])
        lines.append(f"send {queue} {b} 1")
    for b, k in enumerate(work["buckets"]):
        lines.append(f"recv {queue} {b} 1")
        compute(k["update_s"])
    yield from lines
    yield "finalize"


def queue_of(work, rank, ranks, trainer_rank):
    """Buckets one after the other, each in two rounds of messages."""
    partners = ranks - 1 if ranks <= ALL else PARTNERS
    yield "init"
    for b, k in enumerate(work["buckets"]):
        yield f"recv {trainer_rank} {b} 1"
        each = max(int(k["bytes"] * (ranks - 1) / ranks / partners), 1)
        for phase in range(2):
            if work["message_s"] > 0:
                yield f"compute {(ranks - 1) * work['message_s'] * FLOPS:.0f}"
            for first in range(1, partners + 1, WINDOW):
                some = [i * (ranks - 1) // partners for i in range(first, min(first + WINDOW, partners + 1))]
                for i in some:
                    yield f"irecv {ranks + (rank - i) % ranks} {100 + 2 * b + phase} {each}"
                for i in some:
                    yield f"isend {ranks + (rank + i) % ranks} {100 + 2 * b + phase} {each}"
                yield "waitall"
        yield f"send {trainer_rank} {b} 1"
    yield "finalize"


def simulate(a, ranks, folder):
    """Seconds of a step of so many ranks, each on a host of its own."""
    work = a["work"]
    folder.mkdir(parents=True)
    (folder / "cluster.xml").write_text(
        '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n<platform version="4.1">\n'
        f'<cluster id="hosts" prefix="h" suffix="" radical="0-{ranks - 1}" speed="{FLOPS:.0f}f" core="2" bw="{work["bytes_per_s"]:.0f}Bps" '
        f'lat="{work["latency_s"] / 2:.9f}s" sharing_policy="SPLITDUPLEX" loopback_bw="100GBps" loopback_lat="0s"/>\n</platform>\n')
    (folder / "hosts").write_text("".join(f"h{i}\n" for i in range(ranks)))
    names = []
    for r in range(2 * ranks):
        lines = trainer(work, r, ranks + r) if r < ranks else queue_of(work, r - ranks, ranks, r - ranks)
        names.append(folder / f"{r}.txt")
        names[-1].write_text("".join(f"{r} {line}\n" for line in lines))
    (folder / "traces").write_text("".join(f"{n}\n" for n in names))
    command = ["smpirun", "-np", 2 * ranks, "-platform", folder / "cluster.xml", "-hostfile", folder / "hosts", "-replay", folder / "traces",
               "--cfg=smpi/display-timing:yes", "--cfg=smpi/bw-factor:0:1", "--cfg=smpi/lat-factor:0:1", "--cfg=network/TCP-gamma:1e12", "--cfg=network/crosstraffic:no", "--log=root.thres:info", REPLAY]
    r = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=folder)
    found = re.search(r"[Ss]imulat(?:ed|ion) time:? ([\d.e+-]+)", r.stdout + r.stderr)
    if r.returncode != 0 or not found:
        raise RuntimeError(f"smpirun: exit {r.returncode}\n{(r.stdout + r.stderr)[-2000:]}")
    return float(found[1])


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", action="append", help="tc's spelling; may be repeated; 100mbit and 1gbit without it")
    p.add_argument("--world", type=int, action="append", help="hosts of real runs; 2, 4 and 8 without it")
    p.add_argument("--ranks", type=int, action="append", help="powers of two up to 1024 that are simulated alone; 64 and 1024 without it")
    p.add_argument("--keep", help="a folder for the traces of the last simulation")
    args = p.parse_args()
    args.rate, args.world, args.ranks = args.rate or ["1gbit", "100mbit"], args.world or [2, 4, 8], args.ranks or [64, 1024]
    return args


def main():
    args = arguments()
    sys.argv = sys.argv[:1]
    net, hosts, scratch = advice.arguments(), None, pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-simgrid-"))
    try:
        if shutil.which("smpirun") is None or REPLAY is None:
            raise Skip("no smpirun (libsimgrid-dev)")
        hosts = advice.Hosts(max(args.world))
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n{'link':>8s} {'ranks':>5s} {'simulated ms':>13s} {'predicted ms':>13s} "
              f"{'sim/pred %':>10s} {'measured ms':>12s} {'sim/meas %':>10s}", flush=True)
        for rate in args.rate:
            hosts.shape(rate)
            for world in args.world:
                a = advice.advise(net, hosts, world)
                row(rate, world, simulate(a, world, scratch / f"{rate}-{world}"), a["predicted"]["step_s"], advice.run(net, hosts, world))
            for ranks in args.ranks:
                predicted = next(w["step_s"] for w in a["worlds"] if w["ranks"] == ranks)
                row(rate, ranks, simulate(a, ranks, scratch / f"{rate}-{ranks}"), predicted, None)
                if args.keep:
                    shutil.rmtree(args.keep, ignore_errors=True)
                    shutil.copytree(scratch / f"{rate}-{ranks}", args.keep)
                shutil.rmtree(scratch / f"{rate}-{ranks}")
        return 0
    except Skip as why:
        print(f"simgrid: 1 skipped: {why}")
        return 77
    finally:
        if hosts is not None:
            hosts.close()
        shutil.rmtree(scratch, ignore_errors=True)


def row(rate, ranks, simulated, predicted, measured):
    print(f"{rate:>8s} {ranks:5d} {simulated * 1e3:13.2f} {predicted * 1e3:13.2f} {100 * (simulated / predicted - 1):+10.1f}"
          + (f" {measured * 1e3:12.2f} {100 * (simulated / measured - 1):+10.1f}" if measured else ""), flush=True)


if __name__ == "__main__":
    sys.exit(main())
