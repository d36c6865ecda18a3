#!/usr/bin/env python3
"""All-reduce between hosts on a slow network: a backend of two, LOCAL+REMOTE, against the remote one alone, and both against
Gloo's own all-reduce and Open MPI's; all ways in turn in every round of one run:

    make tests/bench/hosts/bench_hosts tests/bench/hosts/bench_hosts_mpi
    tests/bench/hosts/hierarchy.py [--hosts 2] [--per-host 2] [--rate 1gbit] [--bytes 80000000] [--rounds 5]
                                   [--ways gloo-tcp,shm+gloo-tcp,gloo-ring,gloo-bcube] [--mpi default,ring,segmented]

The hosts are network namespaces on one switch, a bridge in a namespace of its own; tc shapes each cable at both ends. Of every way
it prints the median and the range, the time over the floor, which is 2 (hosts - 1)/hosts x bytes / rate, and what the first way
takes over it. Each way's first call in a round does not count; MPI's ways follow in each round, by one mpirun each. Needs root and
iproute2; without them it says so and exits with 77. Nothing here decides a test."""
import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(os.environ.get("DDP_BUILDDIR", "."))
PROGRAM, MPI_PROGRAM = BUILD / "tests/bench/hosts/bench_hosts", BUILD / "tests/bench/hosts/bench_hosts_mpi"
# of coll_tuned_allreduce_algorithm
MPI = {"default": None, "doubling": 3, "ring": 4, "segmented": 5, "rabenseifner": 6}
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
PREFIX, DEVICE, PORT = f"ddph{os.getpid()}-", "eth0", 29500


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hosts", type=int, default=2)
    p.add_argument("--per-host", type=int, default=2)
    p.add_argument("--rate", default="1gbit", help="tc's spelling")
    p.add_argument("--bytes", type=int, default=80_000_000)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--ways", default="gloo-tcp,shm+gloo-tcp,gloo-ring,gloo-bcube")
    p.add_argument("--mpi", default="", help=f"of {', '.join(MPI)}, separated by commas; none without it")
    args = p.parse_args()
    args.mpi = [m for m in args.mpi.split(",") if m]
    found = re.fullmatch(r"([\d.]+)(kbit|mbit|gbit)", args.rate)
    if not found:
        p.error(f"--rate {args.rate}: a number and kbit, mbit or gbit")
    args.bits = float(found.group(1)) * UNITS[found.group(2)]
    return args


def ip(*words, check=True):
    return subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=check)


def skip(why):
    print(why)
    sys.exit(77)


class Hosts:
    """Namespaces, each with a cable to the switch."""

    def __init__(self, count, rate):
        self.names = []
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
            skip("needs root, ip and tc: cannot make network namespaces")
        self.switch = self.make("switch")
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")
        self.hosts = [self.make(i) for i in range(count)]
        for i, host in enumerate(self.hosts):
            ip("-n", host, "link", "add", DEVICE, "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
            ip("-n", host, "addr", "add", f"{self.address(i)}/24", "dev", DEVICE)
            ip("-n", self.switch, "link", "set", f"port{i}", "master", "br0")
            for where, device in ((host, "lo"), (host, DEVICE), (self.switch, f"port{i}")):
                ip("-n", where, "link", "set", device, "up")
            self.shape(host, DEVICE, rate)
            self.shape(self.switch, f"port{i}", rate)

    @staticmethod
    def address(i):
        return f"10.78.0.{i + 1}"

    def make(self, name):
        if ip("netns", "add", f"{PREFIX}{name}", check=False).returncode != 0:
            skip("cannot make network namespaces here")
        self.names.append(f"{PREFIX}{name}")
        return self.names[-1]

    def shape(self, where, device, rate):
        r = subprocess.run(["ip", "netns", "exec", where, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb",
                            "latency", "50ms"], capture_output=True, text=True, check=False)
        if r.returncode != 0:
            self.close()
            skip(f"tc cannot shape here: {r.stderr.strip()}")

    def close(self):
        for name in self.names:
            ip("netns", "del", name, check=False)


def mpi(args, hosts, algorithm, agent):
    """Its milliseconds. What mpirun takes for ssh enters the namespace that has the address."""
    if not agent.exists():
        names = "\n".join(f"{hosts.address(i)}) ns={n};;" for i, n in enumerate(hosts.hosts))
        agent.write_text(f"#!/bin/sh\ncase $1 in\n{names}\nesac\nexport TMPDIR=$0.$1\nmkdir -p $TMPDIR\nshift\nexec ip netns exec $ns sh -c \"$*\"\n")
        agent.chmod(0o755)
    number = MPI[algorithm]
    chosen = ["--mca", "coll_tuned_use_dynamic_rules", 1, "--mca", "coll_tuned_allreduce_algorithm", number] if number else []
    r = subprocess.run(
        list(map(str, ["ip", "netns", "exec", hosts.hosts[0], "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                       "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", DEVICE, "--mca", "btl_tcp_if_include", DEVICE,
                       "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp", "--mca", "mpi_yield_when_idle", 1,
                       "--mca", "orte_keep_fqdn_hostnames", 1, *chosen, "-np", args.hosts * args.per_host,
                       "--host", ",".join(f"{hosts.address(i)}:{args.per_host}" for i in range(args.hosts)),
                       MPI_PROGRAM, args.bytes, 1])), capture_output=True, text=True, check=False)
    if r.returncode != 0:
        sys.exit(f"mpirun: {r.stderr}")
    return float(r.stdout.split()[-1])


def start(args, hosts):
    world = args.hosts * args.per_host
    ranks = []
    for r in range(world):
        i = r // args.per_host
        ranks.append(subprocess.Popen(
            ["ip", "netns", "exec", hosts.hosts[i], PROGRAM, str(r), str(world), f"{hosts.address(0)}:{PORT}", hosts.address(i), DEVICE,
             str(args.bytes), "1", *args.ways.split(",")],
            stdout=subprocess.PIPE if r == 0 else subprocess.DEVNULL, text=True, env={**os.environ, "DDPENGINE_PLUGIN_PATH": str(BUILD / ".libs")}))
    return ranks


def finish(ranks):
    """What rank 0 has printed. One that fails ends all."""
    text, _ = ranks[0].communicate()
    until = time.monotonic() + 10
    while any(p.poll() is None for p in ranks) and time.monotonic() < until:
        time.sleep(0.05)
    for p in ranks:
        p.kill()
        p.wait()
    if any(p.returncode for p in ranks):
        sys.exit(f"exit codes {[p.returncode for p in ranks]}")
    return text


def one_round(args, hosts, agent, times):
    """The first line of each way is of the call that warms up."""
    lines = [line.rsplit(" ", 1) for line in finish(start(args, hosts)).splitlines()]
    for way, ms in lines[len(lines) // 2:]:
        times.setdefault(way, []).append(float(ms))
    for algorithm in args.mpi:
        times.setdefault(f"MPI {algorithm}", []).append(mpi(args, hosts, algorithm, agent))


def show(args, times):
    floor = 2 * (args.hosts - 1) / args.hosts * args.bytes * 8e3 / args.bits
    first = args.ways.split(",", maxsplit=1)[0]
    print(f"{args.hosts} hosts x {args.per_host} ranks, {args.rate}, {args.bytes / 1e6:g} MB, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}; "
          f"2 (N - 1)/N x bytes / rate = {floor:.1f} ms")
    print(f"  {'way':14s} {'ms':>9s} {'range':>20s} {'x floor':>8s}  {first} / it")
    for way, ms in times.items():
        print(f"  {way:14s} {statistics.median(ms):9.1f} {f'{min(ms):.1f} to {max(ms):.1f}':>20s} {statistics.median(ms) / floor:8.3f}  "
              f"{statistics.median(a / b for a, b in zip(times[first], ms)):.3f}", flush=True)


def main():
    args = arguments()
    if not PROGRAM.exists():
        skip("no bench_hosts: make tests/bench/hosts/bench_hosts")
    hosts, times = Hosts(args.hosts, args.rate), {}
    try:
        with tempfile.TemporaryDirectory(prefix="ddpengine-bench-") as folder:
            for _ in range(args.rounds):
                one_round(args, hosts, pathlib.Path(folder) / "agent", times)
        show(args, times)
    finally:
        hosts.close()


if __name__ == "__main__":
    main()
